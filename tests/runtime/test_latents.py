"""Runs whose replay keeps latents of images: one hash, exact resumes, few bytes; what cannot work
is refused before the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api, tree
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from tests.runtime.test_resume import go_on, train

SETTINGS = ["algorithm.hidden=[16]", "replay.capacity=400", "batch=8", "replay.starts_at=64"]
VAE = ["algorithm.torso=vae", "algorithm.encoder_rows=256"]


def program(*settings: str, algorithm: str = "dqn", **options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 4,
        "steps": 768,
        "evaluate_episodes": 0,
        "recipe": False,
        "max_lag": 0,
        "unroll": 4,
    }
    return api.program(
        "tests.runtime.pixels:PixelCatch",
        algorithm,
        settings=[*SETTINGS, *settings],
        **{**given, **options},
    )


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [[], ["replay.selector=prioritized", "algorithm.n_step=3"]])
def test_a_run_is_one_hash_and_goes_on_to_it(settings: list[str], tmp_path: Path) -> None:
    settings = [*VAE, *settings]
    whole = train(program(*settings, checkpoint_every=0), tmp_path / "whole", "process")
    part = program(*settings, steps=512, schedule_steps=768, checkpoint_every=512)
    train(part, tmp_path / "part", "serial")
    assert go_on(tmp_path / "part", steps=768)["params_sha256"] == whole["params_sha256"]


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_what_is_learned_from_are_latents(algorithm: str, tmp_path: Path) -> None:
    sizes = (
        ["algorithm.burn_in=4", "algorithm.length=8", "algorithm.n_step=2"]
        if algorithm == "r2d2"
        else []
    )
    summary = train(program(*VAE, *sizes, algorithm=algorithm), tmp_path / "run")
    assert 0 < summary["reports"][-1].metrics["encoder_error"] < 0.2
    assert api.evaluate(tmp_path / "run", episodes=2).episodes == 2


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [0, 256, 250])
def test_windows_are_filled_after_the_encoder_has_learned(rows: int, tmp_path: Path) -> None:
    """Else rounds without an item would go by that no step counts."""
    sizes = [
        "algorithm.burn_in=10",
        "algorithm.length=20",
        "algorithm.n_step=2",
        "algorithm.torso=vae",
    ]
    made = program(
        *sizes,
        f"algorithm.encoder_rows={rows}",
        "replay.starts_at=32",
        algorithm="r2d2",
        evaluate_episodes=0,
    )
    summary = train(made, tmp_path / "run")
    round_ = 2 * 4 * 4
    assert summary["env_steps"] == 768
    # one more, which nobody learned from, and the reset rows
    assert summary["reports"][-1].taken <= 768 + 2 * round_


@pytest.mark.thorough
def test_a_learner_whose_encoder_has_learned_is_not_to_learn_again(tmp_path: Path) -> None:
    train(program(*VAE), tmp_path / "first")
    with pytest.raises(
        ValueError,
        match="algorithm.encoder_rows: expected 0, since its encoder has learned, got 256",
    ):
        train(program(*VAE), tmp_path / "second", init_from=tmp_path / "first", init_what="learner")
    with pytest.raises(ValueError, match="algorithm.encoder_rows"):
        go_on(tmp_path / "first", steps=1536, settings=["algorithm.encoder_rows=512"])
    frozen = program("algorithm.torso=vae", "algorithm.encoder_rows=0")
    train(frozen, tmp_path / "third", init_from=tmp_path / "first", init_what="learner")


@pytest.mark.thorough
def test_a_frozen_encoder_is_that_of_the_other_run(tmp_path: Path) -> None:
    train(program(*VAE), tmp_path / "first")
    frozen = program("algorithm.torso=vae", "algorithm.encoder_rows=0")
    train(frozen, tmp_path / "second", init_from=tmp_path / "first")
    one, other = (_encoder(tmp_path / name) for name in ("first", "second"))
    assert one.keys() == other.keys() and len(one) > 5
    assert all((one[name] == other[name]).all() for name in one)


def _encoder(run: Path) -> dict[str, Any]:
    params = checkpoint.load(RunDirectory.open(run).latest_checkpoint() or run)[0]
    return {path: leaf for path, leaf in tree.items(params) if ".cnns." in path}


def test_a_row_takes_less_than_a_twentieth_of_its_image() -> None:
    pytest.importorskip("minigrid")

    def nbytes(torso: str) -> int:
        settings = ["env.codes=map", "env.tile=16", f"algorithm.torso={torso}"]
        made = api.program(
            "MiniGrid-Empty-Random-6x6-v0", "dqn", settings=settings, recipe=False, steps=50_000
        )
        plan = plan_run(made).replays["main"]
        return plan.nbytes(plan.slots)

    assert nbytes("vae") * 20 <= nbytes("nature")


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        (
            "ppo",
            [],
            "algorithm.torso: vae needs a replay, which keeps its latents; got PPO, which has none",
        ),
        (
            "dqn",
            ["placement.learners=2"],
            "placement.learners: expected 1 with algorithm.torso=vae, since each learner",
        ),
        (
            "dqn",
            ["replay.shards=2"],
            "replay.shards: expected 1 with algorithm.torso=vae, since the learner's process",
        ),
        ("dqn", ["replay.relabel=0.5"], "replay.relabel: expected 0 with algorithm.torso=vae"),
        (
            "dqn",
            ["replay.codec=lz4"],
            "replay.codec: expected none, since no key of a row is large enough",
        ),
        (
            "dqn",
            ["algorithm.encoder_rows=-1"],
            "algorithm.encoder_rows: expected at least 0, got -1",
        ),
        (
            "dqn",
            ["algorithm.encoder_rows=10k"],
            "steps: expected at least 1.,..., so that an update follows algorithm.encoder_rows, "
            "replay.starts_at and a window",
        ),
    ],
)
def test_what_does_not_go_with_it(
    algorithm: str, settings: list[str], said: str, tmp_path: Path
) -> None:
    settings = ["algorithm.torso=vae", *settings]
    with pytest.raises(ValueError, match=said):
        api.start(
            "tests.runtime.pixels:PixelCatch",
            algorithm,
            settings=settings,
            recipe=False,
            steps=5000,
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
