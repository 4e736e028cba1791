"""A reward model from simulated labels of ``sort``, and what a run learns from it.

    .venv/bin/python benchmarks/sort_preferences.py pairs sort_pairs.jsonl [--rows 2000] [--wrong 0.1]
    .venv/bin/python benchmarks/sort_preferences.py grade runs/NAME runs/judge

pairs  write pairs of answers, the one with the higher true reward first; a share of them is wrong
grade  the true reward of a run's greedy answers to held-out prompts, the share with the whole right
       answer, and the mean scores that the reward model gives these and the right ones
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import equipoise as eq
from equipoise.language.scoring.own import answered
from equipoise.language.tasks import make


def truth(text: str, right: str) -> float:
    return answered([text], answer=[right], ended=[True])[0]


def pairs(file: Path, rows: int, wrong: float) -> None:
    rng, lines = random.Random(0), list[str]()

    def attempt(right: str, noise: float) -> str:
        text = "".join(rng.choice("012") if rng.random() < noise else one for one in right)
        if rng.random() < 0.3:  # of another length
            return text[: rng.randint(1, 6)] if rng.random() < 0.5 else text + rng.choice("012>")
        return text

    while len(lines) < rows:
        asked = "".join(rng.choice("012") for _ in range(6))
        right, noise = "".join(sorted(asked)), rng.random()
        one, other = attempt(right, noise), attempt(right, noise)
        gap = truth(one, right) - truth(other, right)
        if gap:
            if (gap < 0) != (rng.random() < wrong):
                one, other = other, one
            lines.append(json.dumps({"prompt": f"{asked}>", "chosen": one, "rejected": other}))
    file.write_text("\n".join(lines) + "\n", "utf-8")


def grade(run: Path, judge: Path) -> None:
    examples = make("sort", seed=0).held_out
    prompts, right = [one.prompt for one in examples], [one.completion for one in examples]
    answers = eq.generate(run, prompts, greedy=True)
    ended = [one.ended for one in answers]
    rewards = answered([one.text for one in answers], answer=right, ended=ended)
    scores = {
        "answers": eq.score(judge, prompts, [one.text for one in answers]),
        "right answers": eq.score(judge, prompts, right),
    }
    count = len(rewards)
    print(f"{count} prompts: true reward {sum(rewards) / count:.3f}")
    print(f"the whole answer: {sum(one == 1 for one in rewards) / count:.3f}")
    for name, some in scores.items():
        print(f"score of {name}: {sum(some) / count:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pairs")
    one.add_argument("file", type=Path)
    one.add_argument("--rows", type=int, default=2_000)
    one.add_argument("--wrong", type=float, default=0.1)
    two = commands.add_parser("grade")
    two.add_argument("run", type=Path)
    two.add_argument("judge", type=Path)
    given = parser.parse_args()
    if given.command == "pairs":
        pairs(given.file, given.rows, given.wrong)
    else:
        grade(given.run, given.judge)


if __name__ == "__main__":
    main()
