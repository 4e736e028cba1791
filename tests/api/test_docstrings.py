"""Every public function, class and method has a docstring with one line, Args, Returns, Raises and
an example, and the examples run, on one small trained run.
"""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from tests.api.conftest import SMALL

PARTS = ("Args:", "Returns:", "Raises:", "Example:")
CALLBACK = ("Args:", "Returns:")  # of a method that a user writes


def public() -> Iterator[tuple[str, Any]]:
    """The public functions, classes and their methods, by dotted name."""
    for name in dir(eq):
        thing = getattr(eq, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        if inspect.isclass(thing):
            for key, method in vars(thing).items():
                if inspect.isfunction(method) and not key.startswith("_"):
                    yield f"{name}.{key}", method


@pytest.mark.parametrize(("name", "thing"), [*public()], ids=[name for name, _ in public()])
def test_a_docstring_has_its_parts(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    assert first.endswith(".") and len(first) <= 100 and (not rest or rest.startswith("\n")), first
    if inspect.isclass(thing):
        wanted: tuple[str, ...] = ("Example:",)
    elif name.startswith("Callback."):
        wanted = CALLBACK
    else:
        takes = [one for one in inspect.signature(thing).parameters if one != "self"]
        wanted = PARTS if takes else ("Returns:", "Example:")
    assert [part for part in wanted if f"\n{part}\n" not in text] == []
    if "Args:" in wanted:
        told = text.partition("\nArgs:\n")[2] + text.partition("\nSettings of the run:\n")[2]
        missing = [
            one
            for one in inspect.signature(thing).parameters
            if one not in ("self", *settings()) and f"    {one}: " not in told
        ]
        assert not missing or "options: " in told, missing


def settings() -> list[str]:
    from equipoise.api.settings_of_python import fields_of_python

    return [*fields_of_python()]


class Words(doctest.OutputChecker):
    """Compare what is printed; ``...`` stands for anything."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags | doctest.ELLIPSIS)


def examples() -> list[Any]:
    finder = doctest.DocTestFinder(recurse=False)
    found = [finder.find(eq, "equipoise", module=False, globs={})[0]]
    for name, thing in public():
        found += [one for one in finder.find(thing, name, module=False, globs={}) if one.examples]
    return found


@pytest.mark.few(40)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of ONNX's exporter, which the user sees also
@pytest.mark.parametrize("example", examples(), ids=lambda one: one.name)
def test_an_example_runs(
    example: doctest.DocTest,
    trained: eq.Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained
    if "resume" in example.name:  # it goes on with a run
        run = eq.train("CartPole-v1", **SMALL, out=tmp_path / "own")
    small = {**SMALL, "out": tmp_path / "run"}
    if example.name == "start":
        del small["progress"]
    example.globs = {"eq": eq, "np": np, "run": run, "small": small}
    told: list[str] = []
    runner = doctest.DocTestRunner(checker=Words(), optionflags=doctest.ELLIPSIS)
    runner.run(example, out=told.append)
    assert not runner.failures, "".join(told)


def test_every_function_is_shown_at_work() -> None:
    shown = {example.name for example in examples()}
    assert {name for name, _ in public() if "Callback." not in name} <= shown
