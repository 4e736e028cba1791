"""Whatever a reward function returns is taken, or refused in a sentence."""

from __future__ import annotations

import fractions
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from equipoise.language.scoring.functions import Samples, WrongReward, call, check_columns, load


def given(answer: Any) -> list[float | None]:
    samples = Samples(
        prompts=["p"] * 2,
        completions=["a", "b"],
        completion_ids=[[1]] * 2,
        ended=[True] * 2,
        columns={},
    )
    return call(lambda **_: answer() if isinstance(answer, Callable) else answer, samples)  # type: ignore[arg-type]


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("never")


async def never() -> float:
    return 1.0


def test_what_is_taken() -> None:
    torch = pytest.importorskip("torch")
    scalar, graded = torch.tensor(0.5), torch.tensor([0.5, 1.0], requires_grad=True)
    for answer in (
        [0.5, 1],
        (0.5, True),
        np.array([0.5, 1.0]),
        np.array([0.5, 1.0], object),
        [np.float32(0.5), np.bool_(True)],
        graded,
        torch.tensor([0.5, 1.0]).bfloat16(),
        [scalar, graded[1]],
        [scalar, np.array([1])],
        lambda: (x for x in (0.5, 1.0)),
        lambda: map(float, (0.5, 1.0)),
    ):
        assert given(answer) == [0.5, 1.0]
    assert given([None, 1.0]) == [None, 1.0] and given(range(2)) == [0.0, 1.0]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "expected a list of 2 rewards, one for each completion, got NoneType"),
        ("ab", "got str"),
        ({"a": 1, "b": 2}, "got dict"),
        ({1.0, 2.0}, "got set"),
        (Unspeakable, "got "),
        ([], "expected 2 rewards, one for each completion, got 0"),
        (itertools.repeat(1.0), "got repeat"),
        (lambda: (1.0 for _ in itertools.count()), "got more than 2"),
        (np.zeros((2, 2)), r"got \[0.0, 0.0\] for completion 0"),
        (np.float64(1.0), "got float"),
        ([1.0, float("nan")], "got nan for completion 1"),
        ([10**400, 1.0], "got a whole number of 1,329 bits"),
        ([1e39, 1.0], r"got 1e\+39 for completion 0"),
        ([1.0, "1.0"], "got '1.0' for completion 1"),
        ([1.0, fractions.Fraction(1, 2)], "got Fraction for completion 1"),
        ([1.0, 1j], "got complex"),
        ([1.0, Unspeakable()], "got Unspeakable"),
        ([1.0, [Unspeakable()]], "got a list; its repr raises RuntimeError"),
        ([1.0, "\ud83e"], r"got '\\ud83e'"),
        (lambda: [1.0, never()], "got coroutine for completion 1"),
        ([1.0, "x" * 10**6], r"got 'x{56}\.\.\. for"),
    ],
)
def test_what_is_refused(answer: Any, said: str) -> None:
    with pytest.raises(WrongReward, match=said) as found:
        given(answer)
    str(found.value).encode()
    assert len(str(found.value)) < 300


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    return 1.0


def by_place(completions: Any, /) -> list[float]:
    return []


def test_a_signature_is_looked_at_before_the_run() -> None:
    check_columns("m:f", lambda completions, answer, more=1, **_: [], ["answer"])
    with pytest.raises(
        WrongReward,
        match="reward 'm:f': expected a column 'solution_str' .*verl's solution_str is "
        "'completions' here",
    ):
        check_columns("m:f", verl, ["data_source", "ground_truth", "extra_info"])
    with pytest.raises(
        WrongReward,
        match="expected arguments that can be given by name, got 'completions' before '/'",
    ):
        check_columns("m:f", by_place, [])
    check_columns("m:f", dict, [])  # without a signature


def test_a_module_that_cannot_be_imported_names_the_reward(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, code, said in (
        ("lacking", "import nosuchpackage", "ModuleNotFoundError: No module named 'nosuchpackage'"),
        ("broken", "def f(:", "SyntaxError: "),
        ("quitting", "raise SystemExit(3)", "SystemExit: 3"),
        ("odd", "1 / 0", "ZeroDivisionError"),
    ):
        (tmp_path / f"{name}_reward.py").write_text(code)
        with pytest.raises(ValueError, match=f"reward '{name}_reward:f': .*{said}"):
            load(f"{name}_reward:f")


def test_a_function_that_changes_what_it_is_given_changes_nothing_for_others() -> None:
    def spoil(**given: Any) -> list[float]:
        for one in given["prompts"]:
            one[0]["content"] = "?"
        for name in ("completions", "completion_ids", "notes"):
            given[name].clear()
        return [1.0, 2.0]

    def samples() -> Samples:
        message = {"role": "user", "content": "p"}
        prompts, ids = [[dict(message)], [dict(message)]], [[1], [2]]
        columns = {"notes": [{"a": [1]}, None]}
        return Samples(
            prompts=prompts,
            completions=["a", "b"],
            completion_ids=ids,
            ended=[True] * 2,
            columns=columns,
        )

    given = samples()
    assert call(spoil, given) == [1.0, 2.0], "as many as there were, not as many as are left"
    assert given == samples()
