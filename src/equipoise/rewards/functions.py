"""Reward functions of text: named as data, called as TRL calls them, and their answers looked at.

A function is ``reward(prompts, completions, completion_ids=..., **columns) -> list[float | None]``, plain or async. It gives
each sample a number, or None where it does not apply. It is told, where its signature names them or takes any::

    prompts         [M] texts, or lists of messages
    completions     [M] texts; where the prompt is messages, lists with the assistant's message
    completion_ids  [M] lists of tokens, the end included
    ended           [M] bool: did the sample end by itself (the end was said), rather than at the limit of tokens?
    columns         [M] of each other column of the task
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.hints import hint, raised
from equipoise.naming import called

Part = list[float | None]  # [M] what one function gave


class WrongReward(ValueError):
    """A function that wants what the task has not, or whose answer is no reward for each sample."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function, as ``module:function``, and the weight of its reward in the sum."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of one prompt, as reward functions see them: what JSON can say."""

    prompts: Sequence[Any]  # [M]
    completions: Sequence[Any]  # [M]
    completion_ids: Sequence[Sequence[int]]  # [M]
    ended: Sequence[bool]  # [M]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # [M] each

    def to_json(self) -> dict[str, Any]:
        return {
            "prompts": list(self.prompts),
            "completions": list(self.completions),
            "completion_ids": [list(one) for one in self.completion_ids],
            "ended": list(self.ended),
            "columns": {name: list(column) for name, column in self.columns.items()},
        }


def functions(names: str, weights: Sequence[float] = ()) -> list[RewardFunction]:
    """The functions in ``module:function[,...]``; ``weights``: one for each, 1 where none are given."""
    found = [name.strip() for name in names.split(",")]
    for name in found:
        module, _, function = name.partition(":")
        if not module or not function:
            raise ValueError(f"reward: expected module:function[,...], got {name!r}")
    if twice := [name for i, name in enumerate(found) if name in found[:i]]:
        raise ValueError(f"reward: expected each function once, got {twice[0]!r} twice")
    if weights and len(weights) != len(found):
        raise ValueError(f"reward_weights: expected {len(found)} numbers, one for each reward function, got {len(weights)}")
    if wrong := [weight for weight in weights if not math.isfinite(weight)]:
        raise ValueError(f"reward_weights: expected finite numbers, got {wrong[0]}")
    return [RewardFunction(name, float(weight)) for name, weight in zip(found, weights or [1.0] * len(found), strict=True)]


def load(name: str) -> Callable[..., Any]:
    """Import the function; ValueError with the nearest name where there is none."""
    return called(name, "reward")


def call(function: Callable[..., Any], samples: Samples) -> Part:
    """What the function gives each sample; ``WrongReward`` unless that is a finite number or None."""
    given = {
        **samples.columns,
        "prompts": samples.prompts,
        "completions": samples.completions,
        "completion_ids": samples.completion_ids,
        "ended": samples.ended,
    }
    answer = function(**_accepted(function, given))
    if inspect.isawaitable(answer):
        answer = asyncio.run(_wait(answer))
    return _checked(answer, len(samples.completions))


async def _wait(answer: Any) -> Any:
    return await answer


def _accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the signature has; ``WrongReward`` with the nearest column where it wants one that there is not."""
    kinds = inspect.Parameter
    wanted = inspect.signature(function).parameters
    for name, one in wanted.items():
        if name not in given and one.default is kinds.empty and one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
            raise WrongReward(f"expected a column {name!r} in the task, got none{hint(name, given)}")
    if any(one.kind is kinds.VAR_KEYWORD for one in wanted.values()):
        return given
    return {name: value for name, value in given.items() if name in wanted}


def _checked(answer: Any, count: int) -> Part:
    if hasattr(answer, "tolist"):  # numpy's and torch's
        answer = answer.tolist()
    if not isinstance(answer, list | tuple):
        raise WrongReward(f"expected a list of {count} rewards, one for each completion, got {type(answer).__name__}")
    if len(answer) != count:
        raise WrongReward(f"expected {count} rewards, one for each completion, got {len(answer)}")
    return [_number(one, i) for i, one in enumerate(answer)]


def _number(value: Any, i: int) -> float | None:
    if value is None:
        return None
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise WrongReward(f"expected a finite number or None, got {value!r} for completion {i}")
    return float(value)


def what(error: Exception) -> str:
    """What an error of ``call`` says: with its kind and its line where a user's code raised it."""
    return str(error) if isinstance(error, WrongReward) else raised(error)


def total(functions: Sequence[RewardFunction], parts: Mapping[str, Part]) -> list[float]:
    """The weighted sum for each sample of what was given; ``WrongReward`` where every function gave a sample None."""
    columns = [parts[one.name] for one in functions]
    sums = []
    for i, row in enumerate(zip(*columns, strict=True)):
        if all(value is None for value in row):
            raise WrongReward(f"expected a reward from at least one function, got None for completion {i} from each")
        sums.append(sum(one.weight * value for one, value in zip(functions, row, strict=True) if value is not None))
    return sums


def text_of(completion: Any) -> str:
    """The text of a completion, which is a text or the assistant's messages."""
    return completion if isinstance(completion, str) else "".join(one["content"] for one in completion)


def spoken(prompt: Any, text: str) -> Any:
    """The completion as functions are told it: a text after a text, the assistant's message after messages."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
