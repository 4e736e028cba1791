"""Editors, ``help`` and type checkers see what the Python functions take, from the same fields as
the command line.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest
import python_options

import equipoise as eq
from equipoise.api import fields, options
from equipoise.api.settings_of_python import fields_of_python
from equipoise.console.options import flags

ROOT = Path(__file__).parents[2]
WITH_SETTINGS = ("train", "start", "resume", "program", "configured")
PLUMBING = {"tell", "asked", "choices", "same", "order", "progress_of"}


def functions() -> list[str]:
    return [name for name in dir(eq) if inspect.isfunction(getattr(eq, name))]


def test_dir_is_all() -> None:
    assert dir(eq) == sorted(eq.__all__)
    assert all(hasattr(eq, name) for name in dir(eq))
    with pytest.raises(AttributeError, match="no attribute 'trian'; it has Callback"):
        _ = getattr(eq, "trian")  # noqa: B009  # mypy finds it written plainly


def test_the_options_are_what_the_fields_say() -> None:
    """``python tools/python_options.py`` writes them again."""
    for file, text in python_options.written().items():
        assert file.read_text(encoding="utf-8") == text


def test_every_option_of_the_command_line_is_a_parameter() -> None:
    wanted = {name.replace("-", "_") for name in flags()}
    taken = inspect.signature(eq.train).parameters.keys()
    assert wanted <= taken, wanted - taken
    free = {name.replace("-", "_") for name, (fact, _) in flags().items() if fact.rule == "free"}
    assert free <= inspect.signature(eq.resume).parameters.keys()


@pytest.mark.few(9)
@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_a_signature_names_each_with_its_type_and_default(name: str) -> None:
    function = getattr(eq, name)
    signature = inspect.signature(function)
    assert not [
        one for one in signature.parameters.values() if one.kind is inspect.Parameter.VAR_KEYWORD
    ]
    hints = typing.get_type_hints(function)
    assert signature.parameters.keys() | {"return"} == hints.keys()
    assert signature.parameters["steps"].annotation == int | None == hints["steps"]
    assert signature.parameters["steps"].default is None
    # the docstring has the help of each field that is taken
    for field, fact in fields_of_python().items():
        if field in signature.parameters:
            assert f"{field}: {' '.join(fact.help.split()[:3])}" in " ".join(
                (inspect.getdoc(function) or "").split()
            )


@pytest.mark.parametrize("name", functions())
def test_no_public_function_takes_plumbing(name: str) -> None:
    taken = inspect.signature(getattr(eq, name)).parameters
    assert not PLUMBING & taken.keys(), f"{name}: {PLUMBING & taken.keys()}"
    assert all(one.annotation is not inspect.Parameter.empty for one in taken.values()), (
        f"{name}: every parameter has a type"
    )


def test_what_has_defaults_in_a_signature_has_a_type() -> None:
    assert {*options.DEFAULTS} <= typing.get_type_hints(options.TrainOptions).keys() | {
        *typing.get_type_hints(options.StartOptions)
    }


RIGHT = """
    import equipoise as eq
    from equipoise.algorithms import PPO

    class Mine(eq.Callback):
        def on_report(self, report: object) -> bool | None:
            return None

    run = eq.train(
        "CartPole-v1", PPO(gamma=0.98), steps=100, seed=1, actors="auto", max_lag=None,
        settings={"algorithm.clip": 0.1}, callbacks=[Mine()], env_kwargs={"a": 1}, on="serial",
    )
    status: str = run.status
    again: eq.Result = run.resume(steps=200)
    action = run.load().act([0.0])
    eq.train(task="sums.jsonl", model="DIR", reward=len, algorithm="grpo")
    eq.train("CartPole-v1", eq.algorithms.PPO)
    with eq.start("CartPole-v1", steps=10) as started:
        for report in started:
            print(report.env_steps, report.return_mean)
"""
WRONG = {
    'eq.train("CartPole-v1", stepz=3)': 'Unexpected keyword argument "stepz" for "train"',
    'eq.train("CartPole-v1", steps="many")': 'Argument "steps" to "train" has incompatible type',
    'eq.train("CartPole-v1", actors=[1])': 'Argument "actors" to "train" has incompatible type',
    'eq.train("CartPole-v1", on="thread")': 'Argument "on" to "train" has incompatible type',
    'eq.train("CartPole-v1", 3)': 'Argument 2 to "train" has incompatible type "int"',
    'eq.train("CartPole-v1", tell=print)': 'Unexpected keyword argument "tell" for "train"',
    'eq.trian("CartPole-v1")': 'Module has no attribute "trian"',
    'eq.start("CartPole-v1", progress=True)': 'Unexpected keyword argument "progress" for "start"',
    'eq.resume("runs/x", seed=3)': 'Unexpected keyword argument "seed" for "resume"',
    "eq.algorithms.PP0": 'Module has no attribute "PP0"',
    "eq.algorithms.PPO(gama=0.9)": 'Unexpected keyword argument "gama" for "PPO"',
    'eq.algorithms.PPO(gamma="x")': 'Argument "gamma" to "PPO" has incompatible type "str"',
    'eq.train("CartPole-v1").returns': '"Result" has no attribute "returns"',
}


@pytest.mark.thorough
def test_mypy_finds_wrong_names_and_types_in_a_users_file(tmp_path: Path) -> None:
    """mypy strict, as a user runs it on a file of their own."""
    lines = ["import equipoise as eq", *WRONG]
    (tmp_path / "right.py").write_text(textwrap.dedent(RIGHT))
    (tmp_path / "wrong.py").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    found: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        file, _, rest = line.partition(":")
        assert file != "right.py", line
        if file == "wrong.py" and ": error: " in rest:
            number, _, said = rest.partition(": error: ")
            found.setdefault(int(number), []).append(said)
    for at, (code, wanted) in enumerate(WRONG.items(), 2):
        assert any(wanted in one for one in found.get(at, [])), (code, found.get(at), done)
    assert found.keys() <= {*range(2, 2 + len(WRONG))}


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_the_docstring_has_each_parameter(name: str) -> None:
    function = getattr(eq, name)
    text = inspect.getdoc(function) or ""
    missing = [
        one for one in inspect.signature(function).parameters if f"\n    {one}: " not in text
    ]
    assert not missing


def test_the_help_of_a_parameter_is_what_an_editor_shows() -> None:
    shown: dict[str, set[str]] = {}
    files = (Path(str(one.__file__)).read_text(encoding="utf-8") for one in (fields, options))
    for made in itertools.chain.from_iterable(ast.parse(text).body for text in files):
        if isinstance(made, ast.ClassDef):
            for kind, text in itertools.pairwise(made.body):
                if isinstance(kind, ast.AnnAssign) and isinstance(text, ast.Expr):
                    words = " ".join(ast.literal_eval(text.value).split())
                    shown.setdefault(ast.unparse(kind.target), set()).add(words)
    for own in (options.OWN, options.OWN_OF_RESUME, options.OWN_OF_TUNE):
        assert not {name: text for name, text in own.items() if text not in shown[name]}
