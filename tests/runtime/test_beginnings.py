"""Each way to begin a run: its program is checked once, and a resume hands its directory to few
files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

import equipoise
from equipoise import api
from equipoise.cli import app
from equipoise.plans.beginning import Fresh, FromWeights, Resumed
from equipoise.plans.plan import plan_run
from equipoise.programs import refusals
from equipoise.programs.config_file import write_config
from equipoise.programs.fields import alter
from equipoise.record.checkpoint import Source
from equipoise.record.directory import RunDirectory
from equipoise.tuning.choices import settled
from equipoise.types import Program

PACKAGE = str(Path(equipoise.__file__).parent)
HANDED = 14  # files at most that a resume's directory is handed to
SMALL: dict[str, Any] = {
    "actors": 2,
    "envs_per_actor": 2,
    "unroll": 8,
    "steps": 128,
    "recipe": False,
    "evaluate_episodes": 0,
}


def small(**changed: Any) -> Program:
    return api.program("CartPole-v1", "impala", **{**SMALL, **changed})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    out = tmp_path_factory.mktemp("saved") / "run"
    with api.start(small(), on="serial", out=out, tensorboard=False) as run:
        assert list(run)[-1].final
    return out


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that are checked."""
    seen, problems = list[Program](), refusals.problems

    def noted(program: Program) -> list[str]:
        seen.append(program)
        return problems(program)

    monkeypatch.setattr(refusals, "problems", noted)
    return seen


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "fresh": lambda saved, out: api.start("CartPole-v1", "impala", on="serial", out=out, **SMALL),
    "weights": lambda saved, out: api.start(
        "CartPole-v1", "impala", on="serial", out=out, init_from=saved, **SMALL
    ),
    "learner": lambda saved, out: api.start(
        "CartPole-v1",
        "impala",
        on="serial",
        out=out,
        init_from=saved,
        init_what="learner",
        schedule_steps=128,
        **SMALL,
    ),
    "resume": lambda saved, out: api.start(resume=saved, settings=["evaluation.episodes=0"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_checked_once(
    way: str, saved: Path, tmp_path: Path, checked: list[Program]
) -> None:
    (saved / "summary.json").unlink(missing_ok=True)  # it goes on as one that was killed
    WAYS[way](saved, tmp_path / "run").close()
    assert len(checked) == 1


def test_a_program_that_was_made_before_is_checked_once(
    tmp_path: Path, checked: list[Program]
) -> None:
    made = small()
    assert checked == [made]
    api.start(made, on="serial", out=tmp_path / "run").close()
    assert checked == [made, made], "the caller may have changed it"


def test_the_program_of_a_file_is_checked_once(tmp_path: Path, checked: list[Program]) -> None:
    write_config(small(), tmp_path / "file.toml")
    checked.clear()
    words = [
        "train",
        "--config",
        str(tmp_path / "file.toml"),
        "--on",
        "serial",
        "--out",
        str(tmp_path / "run"),
        "-q",
    ]
    result = CliRunner().invoke(app, words, prog_name="equipoise")
    assert result.exit_code == 0, result.output
    assert len(checked) == 1


def test_a_resume_checks_the_program_before_and_the_changed_one(
    saved: Path, checked: list[Program]
) -> None:
    api.start(resume=saved, steps=256).close()
    assert [program.schedule.steps for program in checked] == [128, 256]


def test_what_is_chosen_is_checked_if_it_is_another_program(checked: list[Program]) -> None:
    made = small(inference="auto")
    assert made.placement.inference == "central"
    checked.clear()
    chosen, _ = settled(made, on="serial")
    assert chosen.placement.inference == "local" and checked == [chosen]
    checked.clear()
    settled(chosen, on="serial")
    assert not checked


def test_a_program_that_cannot_be_is_refused_on_each_way(saved: Path, tmp_path: Path) -> None:
    wrong = alter(small(), actors=-1)
    with pytest.raises(ValueError, match=r"actors: expected .*, got -1"):
        api.start(wrong, on="serial", out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"actors: expected .*, got -1"):
        api.start(wrong, on="serial", out=tmp_path / "run", init_from=saved)
    with pytest.raises(ValueError, match=r"threads: expected .*, got -1"):
        api.start(resume=saved, steps=256, threads=-1)
    assert not (tmp_path / "run").exists()


def test_a_beginning_is_what_the_plan_says_of_the_first_weights(saved: Path) -> None:
    run = RunDirectory.open(saved)
    source = run.whole_checkpoint()
    program = run.program
    for beginning, weights, resume, before in (
        (Fresh(), None, None, None),
        (FromWeights(weights=source.path), str(source.path), None, None),
        (FromWeights(weights=source.path, learner=True), str(source.path), None, 4),
        (Resumed(directory=run, source=source), None, source, None),
    ):
        blue = plan_run(program, beginning)
        assert (blue.weights, blue.resume, blue.before) == (weights, resume, before)
    other = small(settings=["algorithm.hidden=[24]"])
    for wrong in (FromWeights(weights=source.path), Resumed(directory=run, source=source)):
        with pytest.raises(ValueError, match="expected"):
            plan_run(other, wrong)


def test_a_resume_hands_its_directory_to_few_files(saved: Path) -> None:
    files: set[str] = set()

    def handed(value: object) -> bool:
        return isinstance(value, RunDirectory | Source) or (
            isinstance(value, str | Path) and str(value).startswith(str(saved))
        )

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            names = frame.f_code.co_varnames[
                : frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
            ]
            if any(handed(frame.f_locals.get(name)) for name in names):
                files.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    sys.setprofile(seen)
    try:
        run = api.start(resume=saved, steps=256)
    finally:
        sys.setprofile(None)
    run.close()
    assert 3 < len(files) <= HANDED, sorted(files)
