"""Callbacks hear reports, evaluations and checkpoints, and stop a run; odd ones are told what is
wrong.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import equipoise as eq
from equipoise.api import training
from equipoise.record.directory import RunDirectory
from equipoise.record.report import Evaluation, Report
from equipoise.run.callbacks import Listeners


class Hears(eq.Callback):
    """Notes all that it hears; answers ``answer`` from the first learned step on."""

    def __init__(self, answer: Any = None) -> None:
        self.answer, self.heard = answer, list[Any]()

    def on_report(self, report: Any) -> Any:
        self.heard.append(report)
        return self.answer if report.env_steps else None

    def on_evaluation(self, evaluation: Any) -> None:
        self.heard.append(evaluation)

    def on_checkpoint(self, directory: Path) -> None:
        assert (directory / "manifest.json").is_file()
        self.heard.append(directory)


def of(kind: type, heard: list[Any]) -> list[Any]:
    return [one for one in heard if isinstance(one, kind)]


def begin(small: dict[str, Any], *callbacks: Any, **more: Any) -> Any:
    options = {**small, **more}
    options.pop("progress", None)
    return eq.start("CartPole-v1", callbacks=callbacks, **options)


def test_a_callback_hears_every_report_evaluation_and_checkpoint(small: dict[str, Any]) -> None:
    hears = Hears()
    run = begin(small, hears, evaluate_every=512, evaluate_episodes=2, checkpoint_every=512)
    reports = list(run)
    assert [id(one) for one in of(Report, hears.heard)] == [*map(id, reports)]
    lines = RunDirectory.open(run.directory).metrics()
    told = {line["evaluation"]["env_steps"] for line in lines if line["evaluation"] is not None}
    evaluations = of(Evaluation, hears.heard)
    assert len(evaluations) == len(told) > 2, "each one once"
    steps = [one.name for one in of(Path, hears.heard) if one.parent.name == "checkpoints"]
    assert steps == [f"step_{step}" for step in (512, 1024, 1536, 2048)]


@pytest.mark.parametrize("answer", [False, np.False_], ids=["python", "numpy"])
def test_false_stops_the_run_which_is_saved_and_can_go_on(
    answer: Any, small: dict[str, Any]
) -> None:
    hears = Hears(answer)
    result = eq.train("CartPole-v1", callbacks=[hears], **{**small, "steps": 100_000_000})
    assert result.status == "interrupted" and 0 < result.steps < 100_000
    again = Hears()
    more = eq.resume(result.directory, steps=result.steps + 1024, callbacks=[again], progress=False)
    assert more.status == "completed" and of(Report, again.heard)


@pytest.mark.parametrize("answer", [True, np.True_, None], ids=["true", "numpy", "none"])
def test_true_and_none_go_on(answer: Any, small: dict[str, Any]) -> None:
    assert eq.train("CartPole-v1", callbacks=[Hears(answer)], **small).status == "completed"


@pytest.mark.parametrize("answer", [0, 1, "stop", np.zeros(2)], ids=["0", "1", "text", "array"])
def test_another_answer_is_refused_and_the_run_is_saved(answer: Any, small: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Hears: on_report must return True, False or None, got"):
        eq.train("CartPole-v1", callbacks=[Hears(answer)], **small)
    assert (RunDirectory.open(small["out"]).summary() or {})["status"] == "interrupted"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_what_a_callback_raises_is_raised_and_the_run_is_saved(
    error: type[BaseException], small: dict[str, Any]
) -> None:
    class Raises(Hears):
        def on_report(self, report: Any) -> None:
            if report.env_steps:
                raise error

    with pytest.raises(error):
        list(begin(small, Raises()))
    files = RunDirectory.open(small["out"])
    assert (files.summary() or {})["status"] == "interrupted"
    assert files.whole_checkpoint().path.is_dir()


def test_stop_iteration_in_a_callback_is_no_end_of_the_run(small: dict[str, Any]) -> None:
    class Raises(eq.Callback):
        def on_report(self, report: Any) -> None:
            next(iter([]))

    with pytest.raises(RuntimeError, match="callback Raises: on_report raised StopIteration"):
        list(begin(small, Raises()))


def test_a_callback_may_close_the_run_and_save_it_and_train_another(
    small: dict[str, Any], tmp_path: Path
) -> None:
    runs: list[Any] = []

    class Busy(eq.Callback):
        done = False

        def on_report(self, report: Any) -> None:
            if report.env_steps and not self.done:
                self.done = True
                assert runs[0].save().is_dir()
                inner = {**small, "out": tmp_path / "inner"}
                assert eq.train("CartPole-v1", **inner).status == "completed"
                runs[0].close()

    runs.append(begin(small, Busy(), steps=100_000_000))
    list(runs[0])
    assert runs[0].summary["status"] == "interrupted"


def test_a_callback_cannot_ask_for_the_next_report(small: dict[str, Any]) -> None:
    class Asks(eq.Callback):
        def on_report(self, report: Any) -> None:
            next(run)

    run = begin(small, Asks())
    with pytest.raises(RuntimeError, match="from within a callback"):
        list(run)


def test_several_are_called_in_their_order_though_one_stops(small: dict[str, Any]) -> None:
    first, second = Hears(False), Hears()
    list(begin(small, first, second))
    assert len(of(Report, first.heard)) == len(of(Report, second.heard))


def test_one_method_is_enough(small: dict[str, Any]) -> None:
    class Ends:
        heard = 0

        def on_checkpoint(self, directory: Path) -> None:
            self.heard += 1

    ends = Ends()
    list(begin(small, ends))
    assert ends.heard, "the last weights are a checkpoint"


# ------------------------------------------------------------------------------------- odd objects


class Misspelt(eq.Callback):
    def on_reprot(self, report: Any) -> None: ...


class Two:
    def on_report(self, report: Any, more: Any) -> None: ...


class NoArgument:
    def on_report(self) -> None: ...


class Waits:
    async def on_report(self, report: Any) -> None: ...


class Yields:
    def on_report(self, report: Any) -> Any:
        yield report


class Number:
    on_report = 3


class Foreign:
    def on_step(self) -> bool:
        return True


class Spoilt:
    @property
    def on_report(self) -> Any:
        raise ZeroDivisionError("not yet")


ODD: list[tuple[Any, str]] = [
    ([Hears], r"must be objects, got the class Hears; write Hears\(\)"),
    (Hears(), r"must be a list of objects, got .*; write callbacks=\[MyCallback\(\)\]"),
    ("mine:Callback", "must be a list of objects"),
    ([Misspelt()], "callback Misspelt: unknown method 'on_reprot'; did you mean 'on_report'"),
    ([Foreign()], "callback Foreign: unknown method 'on_step'"),
    ([print], "must have one of the methods on_report, on_evaluation, on_checkpoint"),
    ([None], "must have one of the methods"),
    ([Two()], "on_report must take one argument besides self, got"),
    ([NoArgument()], "on_report must take one argument besides self, got"),
    ([Waits()], "on_report must be a plain method, got one with 'async' or 'yield'"),
    ([Yields()], "on_report must be a plain method, got one with 'async' or 'yield'"),
    ([Number()], "on_report must be a method, got 3"),
    ([Spoilt()], "on_report of Spoilt: expected a value, got ZeroDivisionError: not yet"),
]


@pytest.mark.few(20)
@pytest.mark.parametrize(("wrong", "said"), ODD, ids=range(len(ODD)))
def test_what_is_no_callback_is_refused_before_anything_is_made(
    wrong: Any, said: str, small: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        eq.train("CartPole-v1", callbacks=wrong, **small)
    with pytest.raises((TypeError, ValueError), match=said):
        eq.resume(small["out"], callbacks=wrong)
    assert not small["out"].exists()


@pytest.mark.parametrize("empty", [(), []])
def test_no_callbacks_are_fine(empty: Any) -> None:
    assert not Listeners(empty).stopped


# -------------------------------------------------------------------------------- the command line

MODULE = """
import equipoise as eq

class Stops(eq.Callback):
    def __init__(self, at=1_000):
        self.at = at
    def on_report(self, report):
        return report.env_steps < self.at

class Fails(eq.Callback):
    def on_report(self, report):
        if report.env_steps:
            raise ValueError("mine")

class Needs(eq.Callback):
    def __init__(self, at): ...

later = Stops(2_000)
number = 3
"""


def command(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_command_line_takes_an_object_or_a_class_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_callbacks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    (made,) = training.made_callbacks(["mine_of_callbacks:Stops"])
    assert cast(Any, made).at == 1000
    (made,) = training.made_callbacks(["mine_of_callbacks:later"])
    assert cast(Any, made).at == 2000
    for name, said in (
        ("mine_of_callbacks:Needs", "must be made without arguments, got TypeError"),
        ("mine_of_callbacks:number", "must have one of the methods"),
        ("mine_of_callbacks:Stop", "did you mean 'Stops'"),
        ("mine_of_callbacks", "expected module:name"),
    ):
        with pytest.raises(ValueError, match=f"^callback.*{said}"):
            training.made_callbacks([name])


@pytest.mark.thorough
def test_a_command_is_stopped_by_a_callback_and_goes_on_with_another(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    train = ("train", "CartPole-v1", "--on", "serial", "--out", "run", "--steps", "1M")
    done = command(tmp_path, *train, "--callback", "mine:Stops")
    assert done.returncode == 130 and "Interrupted" in done.stdout, done.stderr
    done = command(tmp_path, "resume", "run", "--callback", "mine:Fails")
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr and "equipoise/run" not in done.stderr, (
        "the error is shown from the user's line on"
    )
    summary = RunDirectory.open(tmp_path / "run").summary()
    assert summary is not None and summary["status"] == "interrupted"
