"""How the threads of a learner should wait for each other next to workers that have the same cores.

    .venv/bin/python benchmarks/waiting.py [--rounds 3] [--cases text,together,mlp]

Threads of OpenMP that wait for the last of them spin at first, and sleep later. A thread that
spins has its core, which another worker may need. Each case is a run on processes whose learner has
two threads, in turns with a spin of a few ms (``GOMP_SPINCOUNT=300000``, OpenMP's own choice), a
short one, which worker processes get, and none (``OMP_WAIT_POLICY=PASSIVE``). Printed are env steps
a second, medians of the rounds. Only builds of torch with GNU's OpenMP know a count of spins.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from harness import host, markdown, ran, recorded
from matrix import OURS

LARGE = (
    "llama:hidden_size=512,num_hidden_layers=8,num_attention_heads=8,num_key_value_heads=8,"
    "head_dim=64,intermediate_size=1376"
)
TEXT = ["sort", "--algorithm", "grpo", "--model", LARGE, "--batch", "64", "--max-lag", "1"]
CASES = {
    # a learner that takes two thirds of the work, and a generator
    "text": [*TEXT, "--steps", "512"],
    # one worker alone
    "together": [*TEXT[:-1], "0", "--placement", "together", "--steps", "512"],
    # networks so small that a thread hardly has work before it waits again
    "mlp": ["CartPole-v1", "--algorithm", "ppo", "--actors", "1", "--steps", "100000"],
}
SPINS = {"300000": "spins", "20000": "short", "0": "sleeps"}


def rate(words: list[str], spins: str) -> float:
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out = Path(folder) / "run"
        common = ["--on", "process", "--threads", "2", "--quiet", "--no-tensorboard", "--no-recipe"]
        command = [str(OURS), "train", *words, *common, "--evaluate-episodes", "0"]
        ran(
            [*command, "--out", str(out)],
            Path(folder) / "log",
            limit_s=600,
            GOMP_SPINCOUNT=spins,
        )
        return recorded(out)[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    a = parser.parse_args()
    print(host())
    rows = []
    for case in a.cases.split(","):
        found: dict[str, list[float]] = {spins: [] for spins in SPINS}
        for _ in range(a.rounds):
            for spins, rates in found.items():
                rates.append(rate(CASES[case], spins))
                print(f"{case}, {SPINS[spins]}: {rates[-1]:,.1f}", flush=True)
        rows.append([case, *(f"{statistics.median(rates):,.1f}" for rates in found.values())])
    print(markdown(["env steps/s", *SPINS.values()], rows))


if __name__ == "__main__":
    main()
