"""A reward model from simulated labels of ``sort``, and what a run learns from it.

    .venv/bin/python benchmarks/sort_preferences.py pairs sort_pairs.jsonl [--rows 2000] [--wrong 0.1]
    .venv/bin/python benchmarks/sort_preferences.py grade runs/NAME runs/reward
    .venv/bin/python benchmarks/sort_preferences.py loop DIR [--seed 0]
    .venv/bin/python benchmarks/sort_preferences.py guard DIR [--seed 0]

pairs  write pairs of answers, the one with the higher true reward first; a share of them is wrong
grade  the true reward of a run's greedy answers to held-out prompts, the share with the whole right
       answer, and the mean scores that the reward model gives these and the right ones
loop   2,000 labels in rounds: reward models, grpo, labels of the newest policy's answers, and so on;
       and grpo with the true reward in the same updates
guard  reward models of 200 labels, then grpo with the guard off and on: the true (gold) and the
       learned (proxy) reward over the root of the KL a token to the first policy
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import equipoise as eq
from equipoise.language.scoring.own import answered
from equipoise.language.tasks import make
from equipoise.types.packed import Example

WRONG = 0.1  # share of wrong labels
# labels of a round, the steps of grpo after it, and algorithm.beta
ROUNDS = ((1_400, 8_000, 0.1), (600, 16_000, 0.05))
WEAK = 200  # labels of the reward models that the guard is compared with
EXPLOITED = 8_000  # steps of the two runs that the guard is compared in
IMITATED = 64_000  # steps of the imitator
EPOCHS = 8  # of a reward model over its pairs
MEMBERS = 3  # reward models
SCALE = 0.2  # deviation of the learned rewards; that of the true reward is about as large
EVERY = 4_000  # steps between two evaluations
OFTEN = 1_000  # the same where the guard is compared
EVALUATED = 182  # held-out prompts
POLICY = ("algorithm.entropy=0.002", "optimizer.learning_rate=1e-3")
FIT = (
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule=linear",
    f"algorithm.label_smoothing={WRONG}",
)


def truth(text: str, right: str) -> float:
    return answered([text], answer=[right], ended=[True])[0]


def pairs(file: Path, rows: int, wrong: float, *, seed: int = 0) -> None:
    rng = random.Random(seed)

    def attempt(right: str, noise: float) -> str:
        text = "".join(rng.choice("012") if rng.random() < noise else one for one in right)
        if rng.random() < 0.3:  # of another length
            return text[: rng.randint(1, 6)] if rng.random() < 0.5 else text + rng.choice("012>")
        return text

    def attempts() -> Iterator[tuple[str, str, str, str]]:
        while True:
            asked = "".join(rng.choice("012") for _ in range(6))
            right, noise = "".join(sorted(asked)), rng.random()
            yield f"{asked}>", right, attempt(right, noise), attempt(right, noise)

    file.write_text(labelled(attempts(), rows, wrong, rng), "utf-8")


def labelled(
    some: Iterator[tuple[str, str, str, str]], rows: int, wrong: float, rng: random.Random
) -> str:
    """Return lines with the answers of a simulated person, who skips pairs of equal worth."""
    lines = list[str]()
    while len(lines) < rows:
        prompt, right, one, other = next(some)
        gap = truth(one, right) - truth(other, right)
        if gap and one and other:
            if (gap < 0) != (rng.random() < wrong):
                one, other = other, one
            lines.append(json.dumps({"prompt": prompt, "chosen": one, "rejected": other}))
    return "\n".join(lines) + "\n"


def newest(run: Path, rows: int, *, seed: int) -> str:
    """Return labels of pairs of the policy's own answers to training prompts."""
    rng = random.Random(seed)
    examples = list(make("sort", seed=0).train)

    def answers() -> Iterator[tuple[str, str, str, str]]:
        for turn in range(1_000):
            asked: Sequence[Example] = rng.sample(examples, len(examples))
            texts = eq.generate(run, [one.prompt for one in asked], samples=2, seed=seed + turn)
            for example, one, other in zip(asked, texts[::2], texts[1::2], strict=True):
                if one.ended and other.ended and one.text != other.text:
                    yield str(example.prompt), example.completion, one.text, other.text

    return labelled(answers(), rows, WRONG, rng)


def fitted(out: Path, file: Path, model: Path, *, seed: int) -> Path:
    """Fit a reward model that begins with ``model``."""
    count = len(file.read_text("utf-8").splitlines())
    eq.train(
        str(file),
        "reward_model",
        model=str(model),
        steps=2 * EPOCHS * count,  # a pair is two completions
        seed=seed,
        batch=128,
        settings=FIT,
        on="serial",
        out=out,
    )
    return out


def imitator(folder: Path, file: Path, *, seed: int) -> Path:
    """Return a model that was trained to write the chosen answers. A reward model that begins with
    it knows more of the task than the labels alone teach (Ouyang et al. 2022, arXiv:2203.02155).
    """
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    lines = [json.dumps({"prompt": one["prompt"], "completion": one["chosen"]}) for one in rows]
    (folder / "chosen.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    eq.train(
        str(folder / "chosen.jsonl"),
        "sft",
        model="tiny",
        steps=IMITATED,
        batch=256,
        seed=seed,
        settings=FIT[:2],
        on="serial",
        out=folder / "imitator",
    )
    return eq.export(folder / "imitator", folder / "model").path


def learn(
    out: Path,
    model: Path,
    steps: int,
    *,
    seed: int,
    reward: str | None = None,
    begin: Path | None = None,
    settings: Sequence[str] = ("algorithm.beta=1e-6",),  # reports have the KL
    every: int = EVERY,
) -> list[dict[str, float]]:
    """Train grpo on ``sort``; return its evaluations: step, gold, proxy and KL."""
    run = eq.train(
        "sort",
        "grpo",
        model=str(model),
        steps=steps,
        seed=seed,
        reward=reward,
        init_from=begin,
        settings=(*POLICY, *settings),
        evaluate_every=every,
        evaluate_episodes=EVALUATED,
        out=out,
    )
    lines = (run.directory / "metrics.jsonl").read_text("utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    found = list[dict[str, float]]()
    for report in reports:
        if (one := report.get("evaluation")) and all(one["version"] != x["version"] for x in found):
            # an evaluation is reported later than the updates of its version
            kl = [
                x["metrics"]["kl"]
                for x in reports
                if x["env_steps"] <= one["env_steps"] and "kl" in x["metrics"]
            ]
            found.append(
                {
                    "step": one["env_steps"],
                    "version": one["version"],
                    "gold": one["mean"],
                    "proxy": one["info"].get("proxy", math.nan),
                    "kl": kl[-1] if kl else math.nan,
                }
            )
    return found


def true_reward(run: Path, *, greedy: bool = False) -> float:
    """Return the mean true reward of greedy answers, or of four drawn ones, to held-out prompts."""
    examples, samples = make("sort", seed=0).held_out, 1 if greedy else 4
    answers = eq.generate(run, [one.prompt for one in examples], samples=samples, greedy=greedy)
    right = [one.completion for one in examples for _ in range(samples)]
    ended = [one.ended for one in answers]
    return sum(answered([one.text for one in answers], answer=right, ended=ended)) / len(right)


def grade(run: Path, model: Path) -> None:
    examples = make("sort", seed=0).held_out
    prompts, right = [one.prompt for one in examples], [one.completion for one in examples]
    answers = eq.generate(run, prompts, greedy=True)
    ended = [one.ended for one in answers]
    rewards = answered([one.text for one in answers], answer=right, ended=ended)
    scores = {
        "answers": eq.score(model, prompts, [one.text for one in answers]),
        "right answers": eq.score(model, prompts, right),
    }
    count = len(rewards)
    print(f"{count} prompts: true reward {sum(rewards) / count:.3f}")
    print(f"the whole answer: {sum(one == 1 for one in rewards) / count:.3f}")
    for name, some in scores.items():
        print(f"score of {name}: {sum(some) / count:.3f}")


def loop(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    before: Path | None = None
    file = folder / "pairs.jsonl"
    pairs(file, ROUNDS[0][0], WRONG, seed=seed)
    model = imitator(folder, file, seed=seed)
    for number, (labels, steps, beta) in enumerate(ROUNDS):
        here = folder / f"round{number}"
        if before is not None:
            with file.open("a", encoding="utf-8") as to:
                to.write(newest(before, labels, seed=seed * 100 + number))
        reward = f"{SCALE}*run:{fitted(here / 'reward', file, model, seed=seed)}"
        found = learn(
            here / "policy",
            model,
            steps,
            seed=seed,
            reward=reward,
            begin=before,
            settings=(f"algorithm.beta={beta}",),
        )
        show(f"round {number}, {labels} labels", found)
        before = here / "policy"
    steps = sum(n for _, n, _ in ROUNDS)
    show("the true reward", learn(folder / "true", model, steps, seed=seed))
    for name in ("imitator", f"round{len(ROUNDS) - 1}/policy", "true"):
        print(f"{name}: true reward {true_reward(folder / name, greedy=True):.3f} greedy, ", end="")
        print(f"{true_reward(folder / name):.3f} drawn", flush=True)


def guard(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True)
    file, few = folder / "pairs.jsonl", folder / "few.jsonl"
    pairs(file, ROUNDS[0][0], WRONG, seed=seed)
    model = imitator(folder, file, seed=seed)
    few.write_text("".join(file.read_text("utf-8").splitlines(keepends=True)[:WEAK]), "utf-8")
    several = [
        fitted(folder / f"reward{member}", few, model, seed=seed * 100 + member)
        for member in range(MEMBERS)
    ]
    prompts = [one.prompt for one in make("sort", seed=0).held_out]
    answers = [one.text for one in eq.generate(folder / "imitator", prompts, greedy=True)]
    proxy = SCALE * sum(eq.score(several[0], prompts, answers)) / len(prompts)
    gold = true_reward(folder / "imitator", greedy=True)
    print(f"imitator: gold {gold:.3f}, proxy of guard off {proxy:.3f}\n")
    one = f"{SCALE}*run:{several[0]}"
    each = "+".join(f"{SCALE / MEMBERS:.4f}*run:{model_of}" for model_of in several)
    show("guard off", learn(folder / "off", model, EXPLOITED, seed=seed, reward=one, every=OFTEN))
    guarded = ("source.caution=1", "algorithm.beta=0.1")
    found = learn(
        folder / "on", model, EXPLOITED, seed=seed, reward=each, settings=guarded, every=OFTEN
    )
    show("guard on", found)


def show(name: str, found: Sequence[dict[str, float]]) -> None:
    print(f"{name}\n   step  sqrt(KL)   gold  proxy")
    for one in found:
        root = math.sqrt(max(one["kl"], 0.0)) if one["kl"] == one["kl"] else math.nan
        print(f"{one['step']:7,.0f}  {root:8.2f}  {one['gold']:5.3f}  {one['proxy']:5.3f}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pairs")
    one.add_argument("file", type=Path)
    one.add_argument("--rows", type=int, default=2_000)
    one.add_argument("--wrong", type=float, default=WRONG)
    two = commands.add_parser("grade")
    two.add_argument("run", type=Path)
    two.add_argument("model", type=Path)
    several: dict[str, Callable[[Path, int], None]] = {"loop": loop, "guard": guard}
    for name in several:
        more = commands.add_parser(name)
        more.add_argument("folder", type=Path, metavar="DIR")
        more.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.command == "pairs":
        pairs(given.file, given.rows, given.wrong)
    elif given.command == "grade":
        grade(given.run, given.model)
    else:
        several[given.command](given.folder, given.seed)


if __name__ == "__main__":
    main()
