"""Reinforcement learning on text, whole: what a bound on lag does to what is learned, two processes
beside one, and TRL.

    .venv/bin/python benchmarks/text.py lags [--seeds 1-2] [--rungs "0|4"] [--page FILE]
    .venv/bin/python benchmarks/text.py serial [--turns 3]
    .venv/bin/python benchmarks/text.py trl [--turns 2] [--updates 40] [--settings 'fp32, 1 thread']
    .venv/bin/python benchmarks/text.py ragged --updates 4
    .venv/bin/python benchmarks/text.py large|lora --updates 12
    .venv/bin/python benchmarks/text.py large --precision bf16 --settings "bf16, 2 threads" --updates 12
    .venv/bin/python benchmarks/text.py publish
    .venv/bin/python benchmarks/text.py speed
    .venv/bin/python benchmarks/text.py reverse_add [--seeds 1-2]
    .venv/bin/python benchmarks/text.py reasoning

lags     "sort" by its recipe for grpo at bounds of 0, 1, 4 and 8, and at 4 without any correction or clip: the share of all 729
         inputs, and of those that were held out, that the last weights sort
serial   samples/s of "sort" at a bound of 1, in one thread and as two processes, in turns
trl      samples/s of "sort" in turns with TRL's GRPOTrainer (benchmarks/peers/setup.sh trl), same first weights, prompts,
         rewards and groups; start-up left out on both sides. TRL at each of some settings, of which
         the best counts
reverse_add, reasoning
         supervised learning until 30 % of the held-out prompts are answered rightly, then grpo and
         rloo from there: the share before and at the end. Of sums with the last digit first, and of
         reasoning-gym's "spell_backward" of 3 to 5 letters
ragged   the same of a model of 1M parameters that nobody trained, with completions of up to 256 tokens: tokens/s
large    "sort" with a model of 25M parameters, 64 samples an update
lora     the same with adapters of rank 8 on all linear layers
speed    trl, ragged, large and lora with the settings that were best for TRL, then publish, and the engine beside
         transformers' generate (benchmarks/generate.py): a table with the bounds, in less than 15 minutes of two
         quiet cores. It ends with 1 if a bound is missed
publish  a version of 25M float32 weights to two processes that decode: ms from its beginning until
an engine has it, and
         the longest time that a decode step was held up by it
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from generate import LARGE, SMALL
from harness import Failed, host, markdown, ran, recorded, seeds
from matrix import OURS

HERE = Path(__file__).resolve().parent
TRL = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    / "equipoise-peers/trl/bin/python"
)
LADDER = {
    "0": ("0",),
    "1": ("1",),
    "4": ("4",),
    "8": ("8",),
    "4, weights by start against engine": ("4", "algorithm.anchor=recomputed"),
    "4, neither clip nor correction": ("4", "algorithm.epsilon=0", "algorithm.force=true"),
}


def train(out: Path, *words: str, limit_s: float = 1200, task: str = "sort") -> None:
    begin = [
        str(OURS),
        "train",
        task,
        "--algorithm",
        "grpo",
        "--quiet",
        "--no-tensorboard",
        "--evaluate-episodes",
        "0",
    ]
    ran(
        [*begin, *words, "--out", str(out)],
        out.parent / "log",
        limit_s=limit_s,
        PYTHONPATH=f"{HERE}:{HERE.parent / 'src'}",
    )


def right(out: Path, seed: int) -> tuple[float, float]:
    """The share of all inputs, and of the held-out ones, that the last weights sort, ended."""
    from equipoise import api
    from equipoise.language import tasks

    said = api.generate(out, [f"{''.join(one)}>" for one in product("012", repeat=6)], greedy=True)
    good = {
        str(one.prompt): one.ended and one.text == "".join(sorted(str(one.prompt)[:-1]))
        for one in said
    }
    held_out = {str(one.prompt) for one in tasks.make("sort", seed=seed).held_out}
    return sum(good.values()) / len(good), sum(good[one] for one in held_out) / len(held_out)


def lags(a: argparse.Namespace) -> None:
    rows = []
    for name in a.rungs.split("|"):
        lag, *settings = LADDER[name]
        for seed in seeds(a.seeds):
            with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                out = Path(folder) / "run"
                try:
                    train(
                        out,
                        "--max-lag",
                        lag,
                        "--seed",
                        str(seed),
                        *(f"--set={one}" for one in settings),
                    )
                except Failed as error:
                    rows.append([name, seed, "failed", str(error).splitlines()[0][:60], "-", "-"])
                    continue
                summary = json.loads((out / "summary.json").read_text())
                whole, held_out = right(out, seed)
                rows.append(
                    [
                        name,
                        seed,
                        f"{whole:.3f}",
                        f"{held_out:.3f}",
                        f"{summary['lag']['mean']:.2f}",
                        f"{summary['env_steps'] / summary['wall_s']:,.0f}",
                    ]
                )
            print(rows[-1], flush=True)
    table = markdown(
        ["max lag", "seed", "of all", "of the held out", "mean lag", "samples/s"], rows
    )
    said = (
        "# Lag of text\n\nWritten by `.venv/bin/python benchmarks/text.py lags --seeds "
        f'{a.seeds}`: "sort" by grpo and its '
        "recipe. "
        f"On {host()['cpu']}, {host()['cores']} cores.\n\n{table}\n"
    )
    print(said)
    if a.page:
        a.page.write_text(said, encoding="utf-8")


def serial(a: argparse.Namespace) -> None:
    found: dict[str, list[float]] = {"serial": [], "process": []}
    for _ in range(a.turns):
        for on, rates in found.items():
            with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                train(Path(folder) / "run", "--on", on, "--max-lag", "1", "--steps", "40000")
                rates.append(recorded(Path(folder) / "run")[1])
            print(on, f"{rates[-1]:,.0f}", flush=True)
    medians = {on: statistics.median(rates) for on, rates in found.items()}
    print(json.dumps(medians | {"ratio": medians["process"] / medians["serial"]}))


TUNED: dict[str, dict[str, Any]] = {  # what both kinds of learning are given
    "reverse_add": {},
    "reasoning": {
        "env": "reasoning_gym:spell_backward",
        "max_completion_length": 6,
        "settings": {
            "source.arguments": ("min_word_len=3", "max_word_len=5", "size=20000", "held_out=500")
        },
    },
}
ENOUGH = 0.3  # of the held-out prompts, after which supervised learning ends
EXAM = 500  # held-out prompts of an evaluation


def tuned(a: argparse.Namespace) -> None:
    from equipoise import api

    given: dict[str, Any] = {
        "model": "tiny",
        "batch": 256,
        "evaluate_episodes": EXAM,
        "tensorboard": False,
    } | TUNED[a.what]
    env, settings = given.pop("env", a.what), given.pop("settings", {})
    rate = {"optimizer.learning_rate": 1e-3, "optimizer.schedule": "constant"}
    for seed in seeds(a.seeds):
        with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
            place, before = Path(folder), 0.0
            run = api.start(
                env,
                "sft",
                out=place / "sft",
                seed=seed,
                steps=2_000_000,
                evaluate_every=5_000,
                settings=settings | rate,
                **given,
            )
            with run:
                for report in run:
                    if (
                        report.evaluation is not None
                        and (before := report.evaluation.info["pass@1"] or 0.0) >= ENOUGH
                    ):
                        break
            print(
                f"seed {seed}: sft {before:.3f} after {report.env_steps:,} samples, "
                f"{report.wall_s:.0f} s",
                flush=True,
            )
            model = api.export(place / "sft", place / "model").path
            for algorithm in ("grpo", "rloo"):
                began = time.monotonic()
                more = (
                    settings
                    | {
                        "optimizer.learning_rate": a.rate,
                        "optimizer.schedule": "linear",
                        "algorithm.entropy": a.entropy,
                    }
                    | ({"algorithm.scale_rewards": "none"} if algorithm == "grpo" else {})
                )
                run = api.start(
                    env,
                    algorithm,
                    out=place / algorithm,
                    seed=seed,
                    steps=a.steps,
                    max_lag=1,
                    settings=more,
                    **given | {"model": str(model), "evaluate_every": a.steps // 6},
                )
                last = None
                with run:
                    for report in run:
                        if report.evaluation not in (None, last):
                            last = report.evaluation
                            shown = f"{report.env_steps:,}: {report.evaluation.info['pass@1']:.3f}"
                            print(
                                f"  {algorithm} {shown}, reward {report.evaluation.mean:.3f}",
                                flush=True,
                            )
                found = api.evaluate(place / algorithm, episodes=4 * EXAM).info["pass@1"]
                print(
                    f"seed {seed}: {algorithm} {before:.3f} -> {found:.3f}, "
                    f"{time.monotonic() - began:.0f} s",
                    flush=True,
                )


SETTINGS: dict[str, list[str]] = {
    "fp32, 2 threads": ["--threads", "2"],
    "fp32, 1 thread": ["--threads", "1"],
    "bf16, 2 threads": ["--threads", "2", "--bf16"],
    "continuous batching": ["--threads", "2", "--paged"],
}


def theirs(model: Path, prompts: Path, updates: int, words: list[str]) -> dict[str, Any]:
    command = [
        str(TRL),
        str(HERE / "peers/run_trl.py"),
        str(model),
        str(prompts),
        "--updates",
        str(updates),
        *words,
    ]
    env = os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=env
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    made: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return made


def shape(sizes: dict[str, int]) -> str:
    """A model of these sizes, as an option of ``train``."""
    return "llama:" + ",".join(f"{k}={v}" for k, v in sizes.items() if k != "vocab_size")


@dataclass(frozen=True)
class Beside:
    """A case that runs next to TRL."""

    task: str
    model: str  # the first one
    rate: float  # of learning
    completion: int = 7  # tokens
    groups: int = 32  # of 8 samples, of an update
    lora: int = 0  # rank
    threads: int = 1  # of our learner
    # The processors of two cores are not shared well by a learner of two threads and a generator,
    # so a large model is drawn from and learned in turns, each on both.
    together: bool = False


RANK = 8
BESIDE_TRL = {
    "trl": Beside("sort", "tiny", 1e-3),
    "ragged": Beside("outside.letters:task", shape(SMALL), 1e-9, completion=256),
    "large": Beside("sort", shape(LARGE), 1e-4, groups=8, threads=2, together=True),
    "lora": Beside("sort", shape(LARGE), 1e-4, groups=8, lora=RANK, threads=2, together=True),
}
GROUP = 8


def trl(a: argparse.Namespace) -> dict[str, float]:
    """Run a case next to TRL in turns -> by what is counted, ours over the best of TRL."""
    from equipoise import api
    from equipoise.language import tasks

    case = BESIDE_TRL[a.what]
    batch = GROUP * case.groups
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        place = Path(folder)
        begin = ["--model", case.model, "--steps", "256", "--batch", "256"]
        train(place / "first", *begin, task=case.task)
        model = api.export(place / "first", place / "model", trust=["outside.letters"]).path
        prompts = place / "prompts.jsonl"
        lines = [
            {"prompt": one.prompt, "answer": one.columns["answer"]}
            for one in tasks.make(case.task, seed=1).train
        ]
        prompts.write_text("".join(json.dumps(one) + "\n" for one in lines))
        given = {
            "--model": model,
            "--batch": batch,
            "--steps": batch * a.updates,
            "--seed": 1,
            "--max-lag": 0 if case.together else 1,
            "--placement": "together" if case.together else "apart",
            "--threads": case.threads,
            "--precision": a.precision,
        }
        words = [str(word) for option in given.items() for word in option]
        words += ["--set=algorithm.entropy=0", f"--set=optimizer.learning_rate={case.rate}"]
        words += [f"--lora={case.lora}"] if case.lora else []
        found: dict[str, list[tuple[float, float, float]]] = {}

        def told(who: str, rate: float, length: float, reward: float) -> None:
            found.setdefault(who, []).append((rate, rate * length, reward))
            print(
                f"{who}: {rate:,.1f} samples/s, {rate * length:,.0f} tokens/s, reward {reward:.3f}",
                flush=True,
            )

        more = ["--completion", str(case.completion), "--rate", str(case.rate)]
        more += ["--groups", str(case.groups), "--lora", str(case.lora)]
        for turn in range(a.turns):
            train(place / f"ours {turn}", *words, task=case.task)
            records, rate = recorded(place / f"ours {turn}")
            length = statistics.fmean(
                one["metrics"]["completions/mean_length"] for one in records if one["metrics"]
            )
            told("ours", rate, length, records[-1]["metrics"]["reward"])
            for who in a.settings.split("|"):
                try:
                    made = theirs(model, prompts, a.updates, [*SETTINGS[who], *more])
                except (Failed, subprocess.TimeoutExpired) as error:
                    print(f"{who}: {error}", flush=True)
                    continue
                rate = batch * (len(made["at"]) - 1) / (made["at"][-1] - made["at"][0])
                told(
                    f"TRL, {who}",
                    rate,
                    statistics.fmean(made["length"]),
                    statistics.fmean(made["reward"][-5:]),
                )
        medians = {
            who: [statistics.median(x) for x in zip(*rows, strict=True)]
            for who, rows in found.items()
        }
        best = [
            max((rows[n] for who, rows in medians.items() if who != "ours"), default=float("nan"))
            for n in (0, 1)
        ]
        ratio = {"samples": medians["ours"][0] / best[0], "tokens": medians["ours"][1] / best[1]}
        print(json.dumps(medians | {"ratio": ratio}), flush=True)
        return ratio


# Cases of ``speed`` next to TRL: updates, what is counted, the least ratio, and settings of TRL
SPEED = {
    "trl": (40, "samples", 2.5, "fp32, 2 threads|fp32, 1 thread"),
    "ragged": (3, "tokens", 5.0, "fp32, 2 threads"),
    "large": (12, "samples", 1.5, "fp32, 2 threads"),
    "lora": (12, "samples", 1.5, "fp32, 2 threads"),
}
PUBLISH_MS, HELD_MS, ENGINE = 150.0, 20.0, 2.0


def speed(a: argparse.Namespace) -> bool:
    """Run all cases of the speed of text -> is every bound met?"""
    rows, began = list[tuple[str, float, str, float]](), time.monotonic()
    for name, (updates, counted, least, settings) in SPEED.items():
        print(f"-- {name}, {time.monotonic() - began:.0f} s", flush=True)
        given = {"what": name, "updates": updates, "settings": settings}
        try:
            value = trl(argparse.Namespace(**vars(a) | given))[counted]
        except Failed as error:
            print(error, flush=True)
            value = float("nan")
        rows.append((f"{name}: {counted}/s over TRL's", value, ">=", least))
    print(f"-- publish, {time.monotonic() - began:.0f} s", flush=True)
    try:
        said = publish(a)
    except Failed as error:
        print(error, flush=True)
        said = dict.fromkeys(("p95_ms", "held_ms"), float("nan"))
    rows.append(("publishing 25M: p95, ms", said["p95_ms"], "<=", PUBLISH_MS))
    rows.append(("publishing 25M: longest hold of a step, ms", said["held_ms"], "<=", HELD_MS))
    print(f"-- engine, {time.monotonic() - began:.0f} s", flush=True)
    command = [sys.executable, str(HERE / "generate.py"), "--cases", "8x64", "--turns", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    line = done.stdout.strip() or f"generate.py: {done.stderr[-500:]}"
    print(line, flush=True)
    ratio = float(line.rpartition("ratio ")[2]) if done.returncode == 0 else float("nan")
    rows.append(("engine, batch 8: tokens/s over generate's", ratio, ">=", ENGINE))
    met = [value >= bound if sign == ">=" else value <= bound for _, value, sign, bound in rows]
    shown = [
        [name, f"{value:.2f}", f"{sign} {bound:g}", "met" if good else "missed"]
        for (name, value, sign, bound), good in zip(rows, met, strict=True)
    ]
    print(markdown(["case", "measured", "bound", ""], shown))
    print(f"took {time.monotonic() - began:.0f} s")
    return all(met)


START_S = 180.0  # for processes that decode to be ready


def _decodes(store: Any, ready: Any, results: Any, seconds: float) -> None:
    """Decode without end, fetch each version, and say when it was there and how long a step was
    held up.
    """
    import torch

    from equipoise.actors.engine.torch_engine import Ends, TorchEngine
    from equipoise.actors.generator import HELD_S

    torch.set_num_threads(1)
    engine = TorchEngine(_net(), rows=8, length=80, ends=Ends(), seed=0)
    engine.make_room()
    handle, version, group = store.handle(), -1, 0
    there, held, taking = [], [], None
    ready.wait(START_S)  # of both, and the publisher's
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not engine.live:
            engine.submit(group, list(range(1, 17)), 8, limit=64)
            group += 1
        began = time.monotonic()
        while handle.version > version and time.monotonic() < began + HELD_S:
            if taking is None:
                if (found := handle.look(version)) is None:
                    continue
                taking = found, engine.take(*found)
            if next(taking[1], taking) is taking:
                if taking[0][2]():
                    version = taking[0][0]
                    there.append((version, time.monotonic()))
                taking = None
        if (waited := time.monotonic() - began) > 1e-4:
            held.append(waited)
        engine.step()
    results.put((there, held))


def _net() -> Any:
    from equipoise.nets.decoder import Decoder, DecoderConfig

    sizes: dict[str, Any] = dict(LARGE)
    return Decoder(DecoderConfig(**sizes))


def publish(a: argparse.Namespace) -> dict[str, float]:
    """Publish 20 versions to two processes that decode -> milliseconds that it took and held."""
    import torch

    from equipoise.runtime.ipc import Segment
    from equipoise.weights.store import WeightPlan, Weights

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    params = dict(_net().state_dict())
    plan = WeightPlan(params)
    store = Weights(plan, Segment("weights", plan.nbytes))
    ready, results, seconds = context.Barrier(3), context.Queue(), 25.0
    workers = [
        context.Process(target=_decodes, args=(store, ready, results, seconds), daemon=True)
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    ready.wait(START_S)
    began = {}
    for version in range(20):
        began[version] = time.monotonic()
        store.publish(version, params)
        time.sleep(1.0)
    took, held = list[float](), list[float]()
    for _ in workers:
        there, waits = results.get(timeout=120)
        took += [at - began[version] for version, at in there if version > 0]
        held += waits[1:]
    for worker in workers:
        worker.join()
    if not took:
        raise Failed(f"publish: no version after the first arrived within {seconds:.0f} s")
    took.sort()
    count = sum(x.numel() for x in params.values())
    said = {"parameters": count, "fetches": len(took), "p50_ms": 1e3 * statistics.median(took)}
    said |= {"p95_ms": 1e3 * took[int(0.95 * len(took))], "held_ms": 1e3 * max(held)}
    said |= {"held_median_ms": 1e3 * statistics.median(held)}
    print(json.dumps(said), flush=True)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["lags", "serial", "publish", "speed", *BESIDE_TRL, *TUNED])
    parser.add_argument("--seeds", default="1-2", metavar="A-B")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rungs", default="|".join(LADDER), help="of lags")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--settings", default="|".join(SETTINGS), help="of TRL, with | between")
    parser.add_argument(
        "--steps", type=int, default=800_000, help="samples after supervised learning"
    )
    parser.add_argument("--precision", default="fp32", help="of our side")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--entropy", type=float, default=0.01)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    print(host(), flush=True)
    if a.what == "speed":
        return 0 if speed(a) else 1
    {"lags": lags, "serial": serial, "publish": publish}.get(
        a.what, tuned if a.what in TUNED else trl
    )(a)
    return 0


if __name__ == "__main__":
    sys.exit(main())
