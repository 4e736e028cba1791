"""What compiling costs is told before a run begins, and refused where it cannot pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.cli import app
from equipoise.tuning import choices, updates
from equipoise.tuning.updates import Took
from equipoise.types import Program
from tests.runtime.pixels import PixelCatch

PIXELS = f"{PixelCatch.__module__}:PixelCatch"


def pixels(**options: Any) -> Program:
    given = {
        "actors": 2,
        "envs_per_actor": 4,
        "unroll": 5,
        "recipe": False,
        "evaluate_episodes": 0,
        "steps": 200,
    } | options
    return api.program(PIXELS, "impala", compile=True, precision="fp32", threads=1, **given)


def measured(
    monkeypatch: pytest.MonkeyPatch,
    *,
    update_s: float = 0.01,
    cached: bool = False,
    wrong: str = "",
) -> None:
    """The compiler's imports take 4 s, and an act takes nothing."""
    took = Took(update_s=update_s, act_s=1e-6, compiler_s=4.0, cached=cached)
    monkeypatch.setattr(
        updates,
        "timed",
        lambda blue, ways, interrupt, until, enough: ({} if wrong else {ways[0]: took}, wrong),
    )


def judged(program: Program, **options: Any) -> tuple[str, dict[str, Any]]:
    told: list[str] = []
    _, record = choices.settled(program, on="process", tell=told.append, **options)
    assert [record["compile"]["why"]] == [text.removeprefix("compile: ") for text in told]
    return told[0], record["compile"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_that_it_cannot_shorten_is_refused_with_the_figures(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, cached=cached)
    monkeypatch.setattr("equipoise.tuning.compiling.usable", lambda: 2)
    # what an earlier run left costs its imports; else 26 s of the torso and 30 s of the loss
    cost = "6" if cached else "56"
    with pytest.raises(
        ValueError,
        match=rf"about 0 s uncompiled: .* {cost} s or more .* 0 s; try placement.compile=false",
    ):
        judged(pixels())


def test_a_run_that_it_may_shorten_is_told_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured(monkeypatch)
    monkeypatch.setattr("equipoise.tuning.compiling.usable", lambda: 1)
    text, record = judged(pixels(steps=10**7))
    assert "about 52 s before the first step and about 30 s before the first update" in text, (
        "two actors share a core"
    )
    assert record["value"] is True and record["measured"] == {"compiler": 4.0, "update": 0.01}
    text, _ = judged(pixels(steps=10**7, inference="central"))
    assert "first step" not in text, "central inference compiles no torso"


@pytest.mark.parametrize(("options", "told"), [({"max_lag": 0}, {}), ({"max_lag": 1}, {"at": 100})])
def test_in_lockstep_and_at_a_resume_it_is_only_told(
    options: Any, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch)
    assert "saves at most 0 s" in judged(pixels(**options), **told)[0]


def test_what_could_not_be_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, wrong="no memory")
    assert "a minute or more; it could not be measured: no memory" in judged(pixels())[0]


def test_nothing_is_measured_without_images_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(updates, "timed")
    cartpole = api.program("CartPole-v1", "impala", compile=True, steps=200)
    assert "compile" not in choices.settled(cartpole, on="process")[1]
    assert "compile" not in choices.settled(pixels(), on="process", known=["compile"])[1]


@pytest.mark.thorough
def test_the_command_measures_and_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        PIXELS,
        "--algorithm",
        "impala",
        "--steps",
        "200",
        "--set",
        "placement.compile=true",
    ]
    with pytest.raises(SystemExit) as ended:
        app([*words, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert ended.value.code and "torch.compile takes" in said and "Traceback" not in said, said
    assert not (tmp_path / "run").exists()
