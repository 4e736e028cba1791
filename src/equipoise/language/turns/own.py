"""Partners of the built-in tasks: a game of guessing, and two tools.

``guess``: the policy guesses a number; the answers are ``<`` (the number is smaller), ``>`` (it is
greater) and ``?`` (the guess is no number). The reward is 1 for the number itself.

``calculator`` and ``lookup``: a turn that begins with ``#`` calls the tool, whose answer is ``=``
and a value, or ``?``. A turn without ``#`` is the final answer. Half of the reward is for a first
turn that calls the tool with the question, and half for the answer after it: each is the share of
right characters, and the end counts as a character. So a model from random weights finds the call
letter by letter. An answer without a call has no reward: guessing would be learned first, and the
tool never.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

CALL = "#"
UNKNOWN = "?"
NUMBERS = "abcdefg"  # of the guessing game, as letters, so that each is one token
GUESSES = 3  # enough for 2^3 - 1 numbers, by halving
PEOPLE = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "ida")
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_CALCULATION = re.compile(r"(\d{1,3})([-+*])(\d{1,3})")


class Guess:
    """A number that is guessed by hints. Halving the numbers that are left always finds it."""

    def reset(self, row: Mapping[str, object]) -> str:
        self._number = NUMBERS.index(str(row["number"]))
        return UNKNOWN

    def step(self, text: str) -> tuple[str | None, float]:
        guess = NUMBERS.find(text) if len(text) == 1 else -1
        if guess == self._number:
            return None, 1.0
        return (UNKNOWN if guess < 0 else "<" if self._number < guess else ">"), 0.0


class _Tool:
    """A question that a tool can answer."""

    def reset(self, row: Mapping[str, object]) -> str:
        self._question, self._answer = str(row["question"]), str(row["answer"])
        self._called = False
        return self._question

    def step(self, text: str) -> tuple[str | None, float]:
        if not text.startswith(CALL):
            return None, right(text, self._answer) / 2 if self._called else 0.0
        first, self._called = not self._called, True
        reward = right(text, CALL + self._question) / 2 if first else 0.0
        return self.call(text.removeprefix(CALL)), reward

    def call(self, argument: str) -> str:
        """Return the tool's answer to a call."""
        raise NotImplementedError


class Calculator(_Tool):
    """A tool that computes a sum, a difference or a product of two numbers."""

    def call(self, argument: str) -> str:
        found = _CALCULATION.fullmatch(argument)
        if found is None:
            return UNKNOWN
        return f"={_OPERATORS[found[2]](int(found[1]), int(found[3]))}"


class Lookup(_Tool):
    """A tool that returns the number of a person from a table that no prompt shows."""

    def call(self, argument: str) -> str:
        return f"={number(argument)}" if argument in PEOPLE else UNKNOWN


def right(text: str, wanted: str) -> float:
    """Return the share of right characters, 0 to 1; the end counts as a character."""
    same = sum(a == b for a, b in zip(text, wanted, strict=False))
    return (same + (len(text) == len(wanted))) / (max(len(text), len(wanted)) + 1)


def number(name: str) -> int:
    """Return the number of a person in the table of ``lookup``."""
    return 11 + 37 * PEOPLE.index(name) % 89


def guesses() -> list[dict[str, object]]:
    """Return the rows of ``guess``."""
    return [{"number": one} for one in NUMBERS]


def products() -> list[dict[str, object]]:
    """Return the rows of ``calculator``."""
    return [
        {"question": f"{a}*{b}", "answer": str(a * b)} for a in range(2, 32) for b in range(2, 32)
    ]


def people() -> list[dict[str, object]]:
    """Return the rows of ``lookup``."""
    return [{"question": name, "answer": str(number(name))} for name in PEOPLE]
