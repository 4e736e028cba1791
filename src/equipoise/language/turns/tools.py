"""Python functions as tools: a partner that runs the calls in a turn,
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, as Qwen and Hermes write them.

A call that cannot be run (no JSON, an unknown name, wrong arguments, a ValueError of the function)
is answered with its error, from which the policy can learn. After any other exception the
conversation fails.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from equipoise.files import parse_json, plain
from equipoise.hints import hint, said, shortened
from equipoise.types.packed import Prompt

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MOST_CALLS = 16  # in a turn
KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}


class Tools:
    """The base of a partner with tools: name the functions, and score a turn without calls."""

    functions: ClassVar[Sequence[Callable[..., object]]] = ()

    def reset(self, row: Mapping[str, object]) -> Prompt:
        self.row = row
        prompt: Prompt = row["prompt"]  # type: ignore[assignment]  # checked by its caller
        return prompt

    def step(self, text: str) -> tuple[Prompt | None, float]:
        calls = CALL.findall(text)
        if not calls:
            return None, self.score(text)
        return [self._message(one) for one in calls[:MOST_CALLS]], 0.0

    def score(self, text: str) -> float:
        """Return the reward of the final answer."""
        raise NotImplementedError(
            f"{type(self).__name__}: must have a method score, which returns the reward of the "
            "final answer, got none"
        )

    def _message(self, call: str) -> dict[str, object]:
        try:
            name, value = self._result(call)
        except ValueError as error:
            name, value = "error", {"error": said(error)}
        return {"role": "tool", "name": name, "content": json.dumps(value, default=plain)}

    def _result(self, call: str) -> tuple[str, object]:
        given = parse_json(call.encode(errors="replace"), "tool_call")
        named = {one.__name__: one for one in self.functions}
        if not (isinstance(given, Mapping) and isinstance(given.get("name"), str)):
            raise ValueError("tool_call: must be an object with a name and arguments")
        name, arguments = given["name"], given.get("arguments", {})
        if name not in named:
            raise ValueError(f"tool_call: unknown name {shortened(repr(name))}{hint(name, named)}")
        if not isinstance(arguments, Mapping):
            raise ValueError("tool_call: arguments: must be an object")
        try:
            bound = inspect.signature(named[name]).bind(**arguments)
        except TypeError as error:
            raise ValueError(f"tool_call: arguments of {name}: {error}") from None
        return name, named[name](*bound.args, **bound.kwargs)


def schemas(functions: Sequence[Callable[..., object]]) -> list[dict[str, object]]:
    """Return the functions as a chat template's ``tools``, for the column of that name."""
    return [_schema(one) for one in functions]


def _schema(function: Callable[..., object]) -> dict[str, object]:
    parameters = inspect.signature(function, eval_str=True).parameters
    described = {
        "name": function.__name__,
        "description": inspect.getdoc(function) or "",
        "parameters": {
            "type": "object",
            "properties": {
                name: {"type": KINDS.get(one.annotation, "string")}
                for name, one in parameters.items()
            },
            "required": [
                name for name, one in parameters.items() if one.default is inspect.Parameter.empty
            ],
        },
    }
    return {"type": "function", "function": described}
