"""Reward functions of text: named as data, called as TRL calls them, and their answers looked at.

A function is ``reward(prompts, completions, completion_ids=..., **columns) -> list[float | None]``,
plain or async. It gives each sample a number, or None if it does not apply; a sample to which all
functions give None is in no baseline. It gets, if its signature names them or takes any::

    prompts         [M] texts, or lists of messages
    completions     [M] texts; where the prompt is messages, lists with the assistant's message
    completion_ids  [M] lists of tokens, the end included
    ended           [M] bool: did the sample end by itself (the end was said), rather than at the limit of tokens?
    columns         [M] of each other column of the task
"""  # noqa: E501

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import statistics
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from equipoise import foreign
from equipoise.hints import hint, raised, shortened
from equipoise.naming import called
from equipoise.registry.reward_models import place
from equipoise.sums import MODELS, parsed
from equipoise.types.packed import Prompt, begun

Part = list[float | None]  # [M] what one function gave
TOLD = ("prompts", "completions", "completion_ids", "ended")  # besides the columns
LARGEST = 3.4e38  # the range of the learner's float32


class WrongReward(ValueError):
    """A function that wants what the task has not, or whose answer is no reward for each sample."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function, as ``module:function``, and the weight of its reward in the sum."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of one prompt, as reward functions see them: values that JSON can hold."""

    prompts: Sequence[Prompt]  # [M]
    completions: Sequence[Prompt]  # [M]
    completion_ids: Sequence[Sequence[int]]  # [M]
    ended: Sequence[bool]  # [M]
    columns: Mapping[str, Sequence[object]] = field(default_factory=dict)  # [M] each

    def to_json(self) -> dict[str, object]:
        return {
            "prompts": list(self.prompts),
            "completions": list(self.completions),
            "completion_ids": [list(one) for one in self.completion_ids],
            "ended": list(self.ended),
            "columns": {name: list(column) for name, column in self.columns.items()},
        }


def functions(names: str, weights: Sequence[float] = ()) -> list[RewardFunction]:
    """The functions in ``module:function[,...]``, or in a sum of them; ``weights``: one for each,
    default 1.
    """
    products = parsed(names, "reward")
    found = [product.name for product in products]
    for name in found:
        if not name.partition(":")[2] or "*" in name:
            raise ValueError(f"reward: expected module:function[,...], got {name!r}")
    if weights and (weighed := [one for one in products if one.weight != 1.0]):
        raise ValueError(
            "reward_weights: must be empty if the sum has weights, got "
            f"{weighed[0].weight:g}*{weighed[0].name}; remove one of them"
        )
    weights = weights or [product.weight for product in products]
    if weights and len(weights) != len(found):
        raise ValueError(
            f"reward_weights: expected {len(found)} numbers, one for each reward function, got "
            f"{len(weights)}"
        )
    if wrong := [weight for weight in weights if not math.isfinite(weight)]:
        raise ValueError(f"reward_weights: expected finite numbers, got {wrong[0]}")
    return [
        RewardFunction(name, float(weight)) for name, weight in zip(found, weights, strict=True)
    ]


def load(name: str) -> Callable[..., object]:
    """Import the function; ValueError names the reward that cannot be imported.

    ``run:DIR`` and ``registry:NAME`` are reward models.
    """
    if name.startswith(MODELS):
        from equipoise.language import reward_models  # it loads torch

        return reward_models.RewardModel.read(place(name))
    try:
        return called(name, "reward")
    except ValueError as error:
        if str(error).startswith("reward "):
            raise
        raise ValueError(f"reward {name!r}: {raised(error)}") from error
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ValueError(f"reward {name!r}: {raised(error)}") from error


def check_columns(name: str, function: Callable[..., object], columns: Collection[str]) -> None:
    """``WrongReward`` if an argument is in no sample of a task with these columns."""
    try:
        _accepted(function, dict.fromkeys((*columns, *TOLD)))
    except WrongReward as error:
        raise WrongReward(f"reward {name!r}: {error}") from None


def call(function: Callable[..., object], samples: Samples) -> Part:
    """The rewards of each sample; ``WrongReward`` unless each is a finite number or None."""
    given = {
        **samples.columns,
        "prompts": samples.prompts,
        "completions": samples.completions,
        "completion_ids": samples.completion_ids,
        "ended": samples.ended,
    }
    count = len(samples.completions)
    answer = function(
        **{name: _copied(value) for name, value in _accepted(function, given).items()}
    )
    if inspect.isawaitable(answer):
        answer = asyncio.run(_wait(answer))
    return _checked(answer, count)


def _copied(value: object) -> object:
    """A copy that a function may change: others, and the capsule, need the samples unchanged."""
    if isinstance(value, list):
        return [_copied(one) if isinstance(one, list | dict) else one for one in value]
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    return value


async def _wait(answer: Awaitable[object]) -> object:
    return await answer


def _accepted(function: Callable[..., object], given: Mapping[str, object]) -> Mapping[str, object]:
    """The arguments of the signature; ``WrongReward`` names one that no column gives."""
    kinds = inspect.Parameter
    try:
        wanted = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C, and some classes
        return given
    for name, one in wanted.items():
        needed = one.default is kinds.empty
        if needed and one.kind is kinds.POSITIONAL_ONLY:
            raise WrongReward(
                f"expected arguments that can be given by name, got {name!r} before '/'"
            )
        if (
            name not in given
            and needed
            and one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        ):
            verl = (
                "; verl's solution_str is 'completions' here, a list"
                if name == "solution_str"
                else ""
            )
            raise WrongReward(
                f"expected a column {name!r} in the task, got none{verl or hint(name, given)}"
            )
    if any(one.kind is kinds.VAR_KEYWORD for one in wanted.values()):
        return given
    return {name: value for name, value in given.items() if name in wanted}


def _checked(answer: object, count: int) -> Part:
    answer = foreign.listed(answer)
    if inspect.isgenerator(answer) or isinstance(answer, map | zip | range):
        answer = list(islice(answer, count + 1))  # an endless answer is also too long
    if inspect.iscoroutine(answer):
        answer.close()  # a coroutine of a coroutine, which is never awaited
    if not isinstance(answer, list | tuple):
        raise WrongReward(
            f"expected a list of {count} rewards, one for each completion, got "
            f"{type(answer).__name__}"
        )
    if len(answer) != count:
        got = f"more than {count}" if len(answer) == count + 1 else len(answer)
        raise WrongReward(f"expected {count} rewards, one for each completion, got {got}")
    return [_number(one, i) for i, one in enumerate(answer)]


def _number(value: object, i: int) -> float | None:
    if value is None:
        return None
    number = value
    for name in ("detach", "item"):  # torch's with a gradient, and a scalar of either
        if callable(take := foreign.optional(number, name)):
            # raised for several elements
            with contextlib.suppress(ValueError, RuntimeError, TypeError):
                number = take()
    if not isinstance(number, bool | int | float):
        raise WrongReward(
            f"expected a finite number or None, got {_shown(value)} for completion {i}"
        )
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if not abs(found) <= LARGEST:
        raise WrongReward(
            f"expected a finite number or None, got {_shown(value)} for completion {i}"
        )
    return found


def _shown(value: object) -> str:
    """A value in short, or its type if its repr raises."""
    if inspect.iscoroutine(value):
        value.close()  # it is never awaited
    if isinstance(value, int):
        return f"a whole number of {value.bit_length():,} bits"
    if not isinstance(value, str | bytes | float | list | tuple | dict):
        return type(value).__name__
    try:
        said = repr(value)
    except Exception as error:  # of what a list has in it
        return f"a {type(value).__name__}; its repr raises {type(error).__name__}"
    return shortened(said, 60)


def what(error: Exception | SystemExit) -> str:
    """The text of an error of ``call``: with its kind, and its line if a user's code raised it."""
    return str(error) if isinstance(error, WrongReward) else raised(error)


def total(
    functions: Sequence[RewardFunction], parts: Mapping[str, Part], caution: float = 0.0
) -> Part:
    """Return the weighted sum of the rewards of each sample; None if every function gave it None.

    ``caution``: standard deviations of the reward models that are taken off their mean.
    """
    sums: Part = []
    for row in zip(*(parts[one.name] for one in functions), strict=True):
        given = [
            one.weight * value
            for one, value in zip(functions, row, strict=True)
            if value is not None
        ]
        models = [
            (value, one.weight)
            for one, value in zip(functions, row, strict=True)
            if value is not None and one.name.startswith(MODELS)
        ]
        if caution and len(models) > 1:
            values, weights = zip(*models, strict=True)
            given.append(-caution * abs(sum(weights)) * statistics.pstdev(values))
        sums.append(sum(given) if given else None)
    if wrong := [value for value in sums if value is not None and not abs(value) <= LARGEST]:
        raise WrongReward(f"expected a finite sum of the weighted rewards, got {wrong[0]}")
    return sums


def text_of(completion: Prompt) -> str:
    """The text of a completion, which is a text or the assistant's messages."""
    return (
        completion
        if isinstance(completion, str)
        else "".join(str(one["content"]) for one in completion)
    )


def spoken(prompt: Prompt, text: str) -> Prompt:
    """The completion for functions: a text after a text, a message after messages.

    Messages that end with the beginning of an answer lend it to the completion, as in TRL.
    """
    return (
        text
        if isinstance(prompt, str)
        else [{"role": "assistant", "content": begun(prompt)[1] + text}]
    )
