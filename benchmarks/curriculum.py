"""What a curriculum by pass rate gives on prompts of mixed difficulty: half of them can be learned,
and no sample solves the others.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/curriculum.py --seeds 3

For each seed one run in the plain order and one with ``source.curriculum=pass_rate``, of as many
samples: the share of samples whose group has equal rewards, so that nothing is learned from them,
and the mean reward of held-out prompts at the end, of those that can be solved.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import equipoise as eq
from equipoise.language.scoring.own import answered
from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import CharTokenizer
from equipoise.types import Example

LETTERS, LENGTH, HELD_OUT = "0123", 4, 32
ORDERS = {"plain": "none", "by pass rate": "pass_rate"}


def rows() -> TextTask:
    """Sort the letters. If the second is 2 or 3, no answer is worth anything."""
    examples = [
        Example(
            prompt=f"{''.join(one)}>",
            columns={"answer": "" if one[1] in "23" else "".join(sorted(one))},
        )
        for one in product(LETTERS, repeat=LENGTH)
    ]
    easy = [one for one in examples if one.columns["answer"]]
    kept = easy[:: len(easy) // HELD_OUT]
    return TextTask(
        name="mixed",
        train=[one for one in examples if one not in kept],
        held_out=kept,
        tokenizer=CharTokenizer(f"{LETTERS}>"),
        completion=LENGTH + 1,
        reward="curriculum:right",
        quick=True,
    )


def right(
    completions: Sequence[str], *, answer: Sequence[str], ended: Sequence[bool], **_: object
) -> list[float]:
    graded = answered(completions, answer=answer, ended=ended)
    return [one if wanted else 0.0 for one, wanted in zip(graded, answer, strict=True)]


def trained(out: Path, order: str, seed: int, steps: int) -> tuple[float, float, float]:
    """The share of equal groups, of settled prompts (nan in the plain order), and the reward."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = eq.train(
            "curriculum:rows",
            "grpo",
            out=out,
            steps=steps,
            seed=seed,
            batch=64,
            model="tiny",
            max_lag=1,
            evaluate_episodes=HELD_OUT,
            tensorboard=False,
            settings=["optimizer.learning_rate=1e-3", f"source.curriculum={order}"],
        )
    records = [json.loads(line)["metrics"] for line in (out / "metrics.jsonl").open()]
    equal, settled = (
        [one[name] for one in records if name in one]
        for name in ("frac_reward_zero_std", "curriculum/settled")
    )
    reward = run.summary["evaluation"]["mean"]
    return statistics.mean(equal), statistics.mean(settled or [math.nan]), reward


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20_480, help="samples of a run")
    given = parser.parse_args()
    print("| seed | order | equal groups | settled prompts | reward |\n|---|---|--:|--:|--:|")
    for seed in range(1, given.seeds + 1):
        for order, setting in ORDERS.items():
            with tempfile.TemporaryDirectory() as folder:
                found = trained(Path(folder) / "run", setting, seed, given.steps)
            print(
                f"| {seed} | {order} | " + " | ".join(f"{one:.2f}" for one in found) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
