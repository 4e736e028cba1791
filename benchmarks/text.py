"""Reinforcement learning on text, whole: what a bound on lag does to what is learned, two processes beside one, and TRL.

    .venv/bin/python benchmarks/text.py lags [--seeds 1-2] [--page FILE]
    .venv/bin/python benchmarks/text.py serial [--turns 3]
    .venv/bin/python benchmarks/text.py trl [--turns 2] [--updates 40]
    .venv/bin/python benchmarks/text.py publish

lags     "sort" by its recipe for grpo at bounds of 0, 1, 4 and 8, and at 4 without any correction or clip: the share of all 729
         inputs, and of those that were held out, that the last weights sort
serial   samples/s of "sort" at a bound of 1, in one thread and as two processes, in turns
trl      samples/s of "sort" in turns with TRL's GRPOTrainer (benchmarks/peers/setup.sh trl), same first weights, prompts,
         rewards and groups; start-up left out on both sides. TRL at each of some settings, of which the best counts
publish  a version of 25M float32 weights to two processes that decode: ms from its beginning until an engine has it, and
         the longest time that a decode step was held up by it
"""

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
from itertools import product
from pathlib import Path
from typing import Any

from generate import LARGE
from harness import Failed, host, markdown, ran, recorded
from matrix import OURS

HERE = Path(__file__).resolve().parent
TRL = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise-peers/trl/bin/python"
LADDER = {
    "0": ("0",), "1": ("1",), "4": ("4",), "8": ("8",),
    "4, weights by start against engine": ("4", "algorithm.anchor=recomputed"),
    "4, neither clip nor correction": ("4", "algorithm.epsilon=0", "algorithm.force=true"),
}  # fmt: skip


def train(out: Path, *words: str, limit_s: float = 1200) -> None:
    begin = [str(OURS), "train", "sort", "--algorithm", "grpo", "--quiet", "--no-tensorboard", "--evaluate-episodes", "0"]
    ran([*begin, *words, "--out", str(out)], out.parent / "log", limit_s=limit_s, PYTHONPATH=str(HERE.parent / "src"))


def right(out: Path, seed: int) -> tuple[float, float]:
    """The share of all inputs, and of the held-out ones, that the last weights sort, ended."""
    from equipoise import api
    from equipoise.language import tasks

    said = api.generate(out, [f"{''.join(one)}>" for one in product("012", repeat=6)], greedy=True)
    good = {str(one.prompt): one.ended and one.text == "".join(sorted(str(one.prompt)[:-1])) for one in said}
    held_out = {str(one.prompt) for one in tasks.make("sort", seed=seed).held_out}
    return sum(good.values()) / len(good), sum(good[one] for one in held_out) / len(held_out)


def lags(a: argparse.Namespace) -> None:
    first, _, last = a.seeds.partition("-")
    rows = []
    for name, (lag, *settings) in LADDER.items():
        for seed in range(int(first), int(last or first) + 1):
            with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
                out = Path(folder) / "run"
                try:
                    train(out, "--max-lag", lag, "--seed", str(seed), *(f"--set={one}" for one in settings))
                except Failed as error:
                    rows.append([name, seed, "failed", str(error).splitlines()[0][:60], "-", "-"])
                    continue
                summary = json.loads((out / "summary.json").read_text())
                whole, held_out = right(out, seed)
                rows.append([
                    name, seed, f"{whole:.3f}", f"{held_out:.3f}", f"{summary['lag']['mean']:.2f}",
                    f"{summary['env_steps'] / summary['wall_s']:,.0f}",
                ])  # fmt: skip
            print(rows[-1], flush=True)
    table = markdown(["max lag", "seed", "of all", "of the held out", "mean lag", "samples/s"], rows)
    said = (
        f'# Lag of text\n\nWritten by `.venv/bin/python benchmarks/text.py lags --seeds {a.seeds}`: "sort" by grpo and its '
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


SETTINGS: dict[str, list[str]] = {
    "fp32, 2 threads": ["--threads", "2"], "fp32, 1 thread": ["--threads", "1"],
    "bf16, 2 threads": ["--threads", "2", "--bf16"],
    "continuous batching": ["--threads", "2", "--paged"],
}  # fmt: skip


def theirs(model: Path, prompts: Path, updates: int, words: list[str]) -> dict[str, Any]:
    command = [str(TRL), str(HERE / "peers/run_trl.py"), str(model), str(prompts), "--updates", str(updates), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    made: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return made


def trl(a: argparse.Namespace) -> None:
    from equipoise import api
    from equipoise.language import tasks

    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        place = Path(folder)
        train(place / "first", "--steps", "256")
        model = Path(api.export(place / "first", place / "model"))
        prompts = place / "prompts.jsonl"
        lines = [{"prompt": one.prompt, "answer": one.columns["answer"]} for one in tasks.make("sort", seed=1).train]
        prompts.write_text("".join(json.dumps(one) + "\n" for one in lines))
        words = [
            "--model",
            str(model),
            "--batch",
            "256",
            "--steps",
            str(256 * a.updates),
            "--set=algorithm.entropy=0",
            "--seed",
            "1",
        ]
        rates: dict[str, list[float]] = {}
        rewards: dict[str, float] = {}

        def told(who: str, rate: float, reward: float) -> None:
            rates.setdefault(who, []).append(rate)
            rewards[who] = reward
            print(f"{who}: {rate:,.0f} samples/s, reward {reward:.3f}", flush=True)

        for turn in range(a.turns):
            train(place / f"ours {turn}", *words)
            records, rate = recorded(place / f"ours {turn}")
            told("ours", rate, records[-1]["metrics"]["reward"])
            for who, more in SETTINGS.items():
                try:
                    made = theirs(model, prompts, a.updates, more)
                except Failed as error:
                    print(f"{who}: {error}", flush=True)
                    continue
                span = made["at"][-1] - made["at"][0]
                told(f"TRL, {who}", 256 * (len(made["at"]) - 1) / span, statistics.fmean(made["reward"][-5:]))
        medians = {who: statistics.median(found) for who, found in rates.items()}
        best = max((rate for who, rate in medians.items() if who != "ours"), default=float("nan"))
        print(json.dumps(medians | {"ratio": medians["ours"] / best, "rewards": rewards}))


def _decodes(store: Any, ready: Any, results: Any, seconds: float) -> None:
    """Decode without end, fetch each version, and say when it was there and how long a step was held up."""
    import torch

    from equipoise.actors.engine.torch_engine import TorchEngine

    torch.set_num_threads(1)
    engine = TorchEngine(_net(), rows=8, length=80, eos=(), seed=0)
    handle, version, group = store.handle(), -1, 0
    there, held = [], []
    ready.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not engine.live:
            engine.submit(group, list(range(1, 17)), 8, limit=64)
            group += 1
        if handle.version > version:
            began = time.monotonic()
            found = handle.fetch(version)
            if found is not None:
                engine.update(*found)
                version = found[0]
                there.append((version, time.monotonic()))
                held.append(time.monotonic() - began)
        engine.step()
    results.put((there, held))


def _net() -> Any:
    from equipoise.nets.decoder import Decoder, DecoderConfig

    return Decoder(DecoderConfig(**LARGE))


def publish(a: argparse.Namespace) -> None:
    import torch

    from equipoise.runtime.ipc import Segment
    from equipoise.weights.store import WeightPlan, Weights

    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    params = dict(_net().state_dict())
    plan = WeightPlan(params)
    store = Weights(plan, Segment("weights", plan.nbytes))
    ready, results, seconds = context.Event(), context.Queue(), 25.0
    workers = [context.Process(target=_decodes, args=(store, ready, results, seconds), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(10.0)
    ready.set()
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
    took.sort()
    count = sum(x.numel() for x in params.values())
    said = {"parameters": count, "fetches": len(took), "p50_ms": 1e3 * statistics.median(took)}
    said |= {"p95_ms": 1e3 * took[int(0.95 * len(took))], "held_ms": 1e3 * max(held)}
    print(json.dumps(said | {"held_median_ms": 1e3 * statistics.median(held)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lags", "serial", "trl", "publish"])
    parser.add_argument("--seeds", default="1-2", metavar="A-B")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    print(host(), flush=True)
    {"lags": lags, "serial": serial, "trl": trl, "publish": publish}[a.what](a)
    return 0


if __name__ == "__main__":
    sys.exit(main())
