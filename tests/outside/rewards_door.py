"""The door of rewards: a function may return or raise anything, which is taken or refused in a
sentence.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from equipoise.language.scoring import functions
from equipoise.language.scoring.functions import (
    RewardFunction,
    Samples,
    WrongReward,
    call,
    total,
    what,
)
from tests.outside.harness import Door, Fault, Planted, shares

COUNT = 3


class Rude:
    """A value whose every word raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def later(value: Any) -> Any:
    return value


def ended() -> Any:
    """A coroutine that nobody waits for, and that does not say so."""
    one = later(1.0)
    one.close()
    return one


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(-2, 2),
    st.sampled_from(["!tensor", "!graded", "!numpy"]),
)
ITEMS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.floats(-2, 2),
        st.sampled_from(["1.0", "", "\ud83e", "x" * 5000]),
        st.sampled_from(
            [
                "!nan",
                "!inf",
                "!-inf",
                "!big",
                "!huge",
                "!rude",
                "!coroutine",
                "!tensor",
                "!graded",
                "!array",
            ]
        ),
        st.sampled_from(["!numpy", "!bytes", "!complex", "!object"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
RIGHT = st.lists(PLAIN, min_size=COUNT, max_size=COUNT)
EXAMPLES = st.fixed_dictionaries(
    {
        "items": shares(  # most are taken, or have one thing that is wrong
            RIGHT,
            RIGHT,
            st.tuples(PLAIN, PLAIN, ITEMS).map(list).flatmap(st.permutations),
            st.lists(ITEMS, max_size=5),
        ),
        "as": st.one_of(
            st.sampled_from(
                ["list", "list", "tuple", "array", "objects", "tensor", "graded", "half"]
            ),
            st.sampled_from(
                ["dict", "set", "generator", "endless", "one", "none", "text", "map", "class"]
            ),
        ),
        "how": st.sampled_from(
            [
                "plain",
                "plain",
                "plain",
                "plain",
                "async",
                "async",
                "raises",
                "raises rudely",
                "twice async",
            ]
        ),
    }
)
SPECIAL: dict[str, Callable[[], Any]] = {
    "!nan": lambda: math.nan,
    "!inf": lambda: math.inf,
    "!-inf": lambda: -math.inf,
    "!big": lambda: 10**400,
    "!huge": lambda: 1e300,
    "!rude": Rude,
    "!coroutine": ended,
    "!tensor": lambda: torch.tensor(0.5),
    "!array": lambda: np.zeros(2),
    "!graded": lambda: torch.tensor(0.5, requires_grad=True),
    "!numpy": lambda: np.float32(0.5),
    "!bytes": lambda: b"\xff",
    "!complex": lambda: 1j,
    "!object": object,
}


def made(item: Any) -> Any:
    if isinstance(item, str) and item in SPECIAL:
        return SPECIAL[item]()
    if isinstance(item, list):
        return [made(one) for one in item]
    return {name: made(one) for name, one in item.items()} if isinstance(item, dict) else item


def numbers(items: list[Any]) -> list[float]:
    return [float(one) if isinstance(one, int | float) else math.nan for one in items]


def forever() -> Any:
    while True:
        yield 1.0


def container(kind: str, items: list[Any]) -> Any:
    shapes: dict[str, Callable[[], Any]] = {
        "list": lambda: made(items),
        "tuple": lambda: tuple(made(items)),
        "dict": lambda: dict(enumerate(made(items))),
        "set": lambda: set(numbers(items)),
        "generator": lambda: (one for one in made(items)),
        "endless": forever,
        "array": lambda: np.array(numbers(items)),
        "objects": lambda: np.array([*made(items), None], object)[:-1],
        "tensor": lambda: torch.tensor(numbers(items)),
        "graded": lambda: torch.tensor(numbers(items), requires_grad=True),
        "half": lambda: torch.tensor(numbers(items)).bfloat16(),
        "one": lambda: made(items)[0] if items else 0.0,
        "none": lambda: None,
        "text": lambda: "1.0 1.0 1.0",
        "map": lambda: map(made, items),
        "class": lambda: Rude,
    }
    return shapes[kind]()


def attempt(example: dict[str, Any]) -> None:
    try:
        answered = container(example["as"], example["items"])
    except Exception:  # numpy or torch cannot make it
        return

    def reward(completions: Any, **_: Any) -> Any:
        if example["how"] == "raises":
            raise ValueError("\ud83e", made(example["items"]), "x" * 10_000)
        if example["how"] == "raises rudely":
            raise RudeError
        answer = later(answered) if "async" in example["how"] else answered
        return later(answer) if "twice" in example["how"] else answer

    samples = Samples(
        prompts=["p"] * COUNT,
        completions=["c"] * COUNT,
        completion_ids=[[1]] * COUNT,
        ended=[True] * COUNT,
        columns={},
    )
    try:
        part = call(reward, samples)
        sums = total([RewardFunction("m:f", 2.0)], {"m:f": part})
    except WrongReward as error:
        sentence(str(error), 400)
    except Exception as error:  # as the scorer's process catches it
        # waiting for one is code of the user's
        if not (example["how"].startswith("raises") or inspect.iscoroutine(answered)):
            raise
        sentence(what(error), 5_000)
    else:
        if len(part) != COUNT or not all(
            one is None or (type(one) is float and math.isfinite(one)) for one in (*part, *sums)
        ):
            raise Fault("what is no reward is taken", repr(part))
        if [one is None for one in sums] != [one is None for one in part]:
            raise Fault("None is not None", repr((part, sums)))


def sentence(said: str, most: int) -> None:
    try:
        said.encode()
    except UnicodeEncodeError:
        raise Fault("a sentence that cannot be printed", ascii(said)) from None
    if not said or len(said) > most:
        raise Fault("no sentence", said[:200])


def old_number(patch: pytest.MonkeyPatch) -> None:
    """Ask any number whether it is finite, also one that no float holds."""

    def number(value: Any, i: int) -> float | None:
        if value is None:
            return None
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            raise WrongReward(f"expected a finite number or None, got {value!r} for completion {i}")
        return float(value)

    patch.setattr(functions, "_number", number)


def none_is_refused(patch: pytest.MonkeyPatch) -> None:
    """Take None for 0."""
    patch.setattr(functions, "_number", lambda value, i: 0.0 if value is None else 1.0)
    real = functions.total
    patch.setitem(globals(), "total", lambda those, parts: [x or None for x in real(those, parts)])


DOORS = [Door(name="rewards", examples=EXAMPLES, attempt=attempt, quick=60, full=600)]
PLANTED = [
    Planted("a number that no float holds", "rewards", old_number),
    Planted("None is a number", "rewards", none_is_refused, kinds=("None",)),
]
