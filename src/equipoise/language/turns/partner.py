"""Partners of conversations: the Protocol, and checks of what a user's partner returns.

A partner is named as ``module:Class``. Each conversation has an instance of its own. A partner may
have a third method, ``end``: it is called once when the conversation is over, also if it was cut or
failed, so that the partner can free what it holds. The number that ``end`` returns after a cut is
added to the conversation's reward. After a late ``reset`` or ``step`` ``end`` may run while that
still does.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from equipoise import foreign
from equipoise.hints import raised, shortened
from equipoise.language.messages import read_prompt
from equipoise.language.task_files import plain
from equipoise.naming import called
from equipoise.types.packed import Prompt

LARGEST = 3.4e38  # reward of a conversation, in the range of the learner's float32
METHODS = ("reset", "step")
END = "end"  # the method that a partner may have besides
Settle = Callable[[object], object]  # returns the result of an awaitable, else the value itself


class Partner(Protocol):
    """The other side of a conversation: a user, a game or a tool. Both methods may be async."""

    def reset(self, row: Mapping[str, object]) -> Prompt:
        """Return the prompt of this row: a text or messages, the same for all conversations of
        the row.
        """

    def step(self, text: str) -> tuple[Prompt | None, float]:
        """Take a turn of the policy; return the answer, or None at the end, and the reward."""


class WrongAnswer(ValueError):
    """The error of a partner whose ``reset`` or ``step`` returns a wrong value."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A partner's answer to a turn."""

    messages: Prompt | None  # None: the conversation is over
    reward: float


def load(name: str) -> Callable[[], Partner]:
    """Import the class ``module:Class``; ValueError unless it has the methods of a partner."""
    found: foreign.Foreign = called(name, "partner")
    if not (inspect.isclass(found) and foreign.calls(found, *METHODS)):
        raise ValueError(
            f"partner {name!r}: must be a class with the methods {' and '.join(METHODS)}, got "
            f"{shortened(repr(found))}"
        )
    return cast("Callable[[], Partner]", found)


def maker(name: str, make: Callable[[], object] | None) -> Callable[[], Partner]:
    """Return what makes a task's partners: ``make``, or the class ``name``."""
    return load(name) if make is None else cast("Callable[[], Partner]", make)


class Dialogue:
    """The partner of one conversation, which is made at the first turn."""

    def __init__(
        self, make: Callable[[], Partner], row: Mapping[str, object], prompt: Prompt
    ) -> None:
        self._make, self._row, self._prompt = make, row, read_prompt(prompt, "prompt")
        self._partner: Partner | None = None

    def step(self, text: str, settle: Settle) -> object:
        """Return the partner's answer, unchecked.

        Raise the partner's errors, and ``WrongAnswer`` if it begins with another prompt than
        before.
        """
        if self._partner is None:
            self._partner = self._make()  # which also ends if its reset fails
            if opening(self._partner, self._row, settle) != self._prompt:
                raise WrongAnswer(
                    "reset: must return the same prompt for the same row, got another one"
                )
        return settle(self._partner.step(text))

    @property
    def ends(self) -> bool:
        """Has it a partner with a method ``end``?"""
        return self._partner is not None and foreign.calls(self._partner, END)

    def end(self, settle: Settle) -> object:
        """End the partner; return (None, the reward that was still due) as ``step`` does."""
        due = settle(foreign.attribute(self._partner, END, None)())
        return None, 0.0 if due is None else due


def opening(partner: Partner, row: Mapping[str, object], settle: Settle) -> Prompt:
    """Return the prompt that a partner begins with; ``WrongAnswer`` if it is no prompt."""
    said = settle(partner.reset(copy.deepcopy(dict(row))))
    try:
        return read_prompt(said, "reset")
    except ValueError as error:
        raise WrongAnswer(str(error)) from None


def answer(value: object, *, chat: bool, most: int) -> Answer:
    """Return the checked result of ``step``; ``WrongAnswer`` if it is wrong.

    ``chat``: the prompt is messages, so a text becomes the user's message; ``most``: bytes of the
    answer.
    """
    try:
        return _answer(value, chat, most)
    except WrongAnswer:
        raise
    except Exception as error:  # objects of a user's class, which may raise anything when read
        raise WrongAnswer(f"step: must return (answer, reward), got {raised(error)}") from error


def _answer(value: object, chat: bool, most: int) -> Answer:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise WrongAnswer(f"step: must return (answer, reward), got {_shown(value)}")
    said, reward = value[0], foreign.listed(value[1])
    if not isinstance(reward, bool | int | float) or not _abs(reward) <= LARGEST:
        raise WrongAnswer(f"step: the reward must be a finite number, got {_shown(reward)}")
    if said is None:
        return Answer(None, float(reward))
    if not isinstance(said, str) and not (chat and isinstance(said, list | tuple)):
        wanted = "a text or messages" if chat else "a text"
        raise WrongAnswer(f"step: the answer must be {wanted} or None, got {_shown(said)}")
    if (size := _bytes(said, most)) > most:
        raise WrongAnswer(f"step: the answer must have at most {most:,} bytes, got {size:,}")
    if isinstance(said, str) and chat:
        said = [{"role": "user", "content": said}]
    try:
        messages = read_prompt(plain(said, "step"), "step")
    except ValueError as error:
        raise WrongAnswer(str(error)) from None
    if not isinstance(messages, str) and any(one["role"] == "assistant" for one in messages):
        raise WrongAnswer("step: the answer must have no message of the assistant, got one")
    return Answer(messages, float(reward))


def _bytes(said: object, most: int) -> int:
    """Return the bytes of the texts in an answer; stop to count above ``most``."""
    if isinstance(said, str):
        return len(said) if len(said) > most else len(said.encode(errors="replace"))
    total, left = 0, [said]
    while left and total <= most:
        one = left.pop()
        if isinstance(one, str):
            total += _bytes(one, most)
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
            total += 1
        elif isinstance(one, list | tuple):
            left += one[: most + 1]
            total += 1
        else:
            total += 1
    return total


def _abs(number: float) -> float:
    try:
        return abs(float(number))
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    if isinstance(value, str | bytes):
        return shortened(repr(value[:100]))
    if isinstance(value, float) or value is None:
        return repr(value)
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value):,}"
    return type(value).__name__


def settled(value: object) -> object:
    """Return the result of an awaitable, run in a new event loop; any other value as it is."""
    return asyncio.run(awaited(value)) if inspect.isawaitable(value) else value


async def awaited(value: Awaitable[object]) -> object:
    """Wrap an awaitable as a coroutine, as event loops need it."""
    return await value
