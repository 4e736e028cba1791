"""Text is learned from scratch: a tiny model sorts six digits, to the end of its run and on inputs
that it has not seen.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from equipoise import api
from equipoise.language import tasks
from equipoise.programs.program import text_algorithm_names

GIVEN = ("dpo", "reward_model", "sft")  # these learn from given completions
PROMPTS = ["".join(one) for one in product("012", repeat=6)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("algorithm", [one for one in text_algorithm_names() if one not in GIVEN])
def test_six_digits_are_sorted(algorithm: str, seed: int, tmp_path: Path) -> None:
    run = api.start(
        "sort", algorithm, seed=seed, out=tmp_path / "run", evaluate_episodes=0, tensorboard=False
    )
    with run:
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "completed"
    said = api.generate(tmp_path / "run", [f"{one}>" for one in PROMPTS], greedy=True)
    right = {
        one.prompt: one.ended and one.text == "".join(sorted(str(one.prompt)[:-1])) for one in said
    }
    held_out = {str(one.prompt) for one in tasks.make("sort", seed=seed).held_out}
    shares = [sum(right.values()) / len(right), sum(right[one] for one in held_out) / len(held_out)]
    print(
        algorithm,
        f"seed {seed}: of all {shares[0]:.3f}, of the held out {shares[1]:.3f}, "
        f"{run.summary['wall_s']:.0f} s",
    )
    assert len(right) == 729 and len(held_out) == 182
    assert shares[0] >= 0.95 and shares[1] >= 0.93


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_number_is_guessed_as_well_as_can_be(tmp_path: Path) -> None:
    run = api.start("guess", "grpo", seed=1, out=tmp_path / "run", on="serial", tensorboard=False)
    with run:
        for _ in run:
            pass
    found = api.evaluate(tmp_path / "run", episodes=7)
    print(f"return {found.mean}, {found.info}, {run.summary and run.summary['wall_s']:.0f} s")
    assert found.mean >= 0.9  # 1 is the most
