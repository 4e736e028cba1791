"""Runs whose learners keep a part of a large network each: the weights of a run without, resumes,
losses, refusals.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise import api
from equipoise.plans.plan import plan_run
from equipoise.record.directory import RunDirectory
from tests.runtime.killing import killing_some

STEPS = 256
DEEP = [
    # sums in another order differ by rounding, which Adam makes a whole step of a gradient near 0
    "optimizer.epsilon=0.01",
    "algorithm.core=gtrxl",
    "algorithm.core_size=32",
    "algorithm.core_layers=2",
    "algorithm.core_window=4",
]


def program(*settings: str, algorithm: str = "impala", **options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 2,
        "unroll": 8,
        "batch": 4,
        "steps": STEPS,
        "evaluate_episodes": 0,
        "max_lag": 0,
        "learners": 2,
    }
    return api.program(
        "CartPole-v1", algorithm, recipe=False, settings=[*DEEP, *settings], **{**given, **options}
    )


def end(run: Any) -> Any:
    notes = [note for report in run for note in report.notes]
    assert run.summary is not None and run.summary["status"] == "completed"
    return run.summary | {"notes": notes}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(RunDirectory.open(run).whole_checkpoint().path / "weights.safetensors")


@pytest.mark.thorough
@pytest.mark.parametrize("shard", ["fsdp", "tensor"])
def test_a_run_with_parts_is_the_run_without_and_goes_on_with_any_number(
    shard: str, tmp_path: Path
) -> None:
    end(api.start(program(), on="process", out=tmp_path / "whole"))
    settings = [f"placement.shard={shard}", "placement.gradient_checkpointing=true"]
    end(api.start(program(*settings), on="process", out=tmp_path / "parts"))
    parts = weights(tmp_path / "parts")
    for name, x in weights(tmp_path / "whole").items():
        torch.testing.assert_close(parts[name], x, rtol=0, atol=1e-5, msg=name)
    for rounds, learners in enumerate((1, 2), 2):
        summary = end(
            api.start(
                resume=tmp_path / "parts", steps=rounds * STEPS, learners=learners, on="process"
            )
        )
        assert summary["env_steps"] == rounds * STEPS


@pytest.mark.thorough
def test_a_learner_with_a_part_that_is_lost_begins_again_from_the_checkpoint(
    tmp_path: Path, seed: int
) -> None:
    made = program("placement.shard=fsdp", steps=6 * STEPS, checkpoint_every=STEPS)
    whole = end(api.start(made, on="process", out=tmp_path / "whole"))
    run, killed = api.start(made, on="process", out=tmp_path / "killed"), list[str]()
    # so that they gather already, and there is a checkpoint
    next(report for report in run if report.env_steps > STEPS)
    with killing_some(
        ["learner", "learner 1"], killed, times=1, draw=random.Random(seed), most_s=0.8
    ):
        summary = end(run)
    assert any("the run goes on from step" in note for note in summary["notes"]), summary["notes"]
    assert killed and summary["params_sha256"] == whole["params_sha256"], summary["notes"]


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        (
            ["placement.shard=fspd"],
            {},
            r"placement.shard: expected one of 'none', 'fsdp', 'tensor', got 'fspd'",
        ),
        (
            ["placement.shard=fsdp", "placement.compile=true"],
            {},
            r"expected none with placement.compile",
        ),
        (
            ["placement.shard=fsdp", "placement.graphs=true"],
            {"device": "cuda"},
            r"graphs: expected false with 2 learners",
        ),
        (
            ["placement.shard=fsdp", "placement.precision=fp16"],
            {"device": "cuda"},
            r"expected none with precision fp16",
        ),
        (
            ["placement.shard=fsdp", "algorithm.target_every=1"],
            {"algorithm": "appo"},
            r"expected none with a target network",
        ),
        (
            ["placement.shard=fsdp", "placement.device=cuda"],
            {"inference": "central"},
            r"expected none with central inference",
        ),
        (["placement.shard=tensor"], {"learners": 1}, r"placement.shard"),
    ],
)
def test_what_does_not_go_with_parts_is_refused(
    settings: list[str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        program(*settings, **options)


def test_a_replay_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"placement.shard: expected none with a replay, which DQN learns from here, got "
        r"'fsdp'",
    ):
        api.program(
            "CartPole-v1",
            "dqn",
            recipe=False,
            settings=["placement.shard=fsdp"],
            learners=2,
            actors=2,
            batch=32,
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["placement.gradient_checkpointing=true"],
            r"gradient_checkpointing: expected false for a network without blocks",
        ),
        (
            ["placement.shard=tensor"],
            r"placement.shard: expected none or fsdp for a network without pairs",
        ),
    ],
)
def test_a_network_without_blocks_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_run(
            api.program(
                "CartPole-v1",
                "impala",
                recipe=False,
                settings=settings,
                learners=2,
                actors=2,
                batch=32,
            )
        )


def test_learners_in_threads_of_one_process_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"placement.shard: expected none with on=serial, or on=process"
    ):
        api.start(program("placement.shard=fsdp"), on="serial", out=tmp_path / "run")
