"""Messages: prompts as a chat has them, read into a form that every chat template takes.

A message has a ``role`` and a ``content``: a text, or parts of text as OpenAI's clients write them,
which are joined. An assistant's message may call tools instead. Other keys of a message go to the
template as they are.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence

from equipoise.files import parse_json
from equipoise.hints import hint, shortened
from equipoise.types.packed import Example, Prompt

ROLES = ("system", "user", "assistant", "tool", "developer")


def read_prompt(value: object, at: str) -> Prompt:
    """A prompt: a text, or messages. ValueError, which begins with ``at``, for anything else."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [read_message(one, f"{at}, message {i + 1}") for i, one in enumerate(value)]
    raise ValueError(
        f"{at}: expected a text or messages, got "
        f"{shortened(repr(value)) if value else 'an empty one'}"
    )


def read_message(value: object, at: str) -> dict[str, object]:
    """One message, its content as one text; ValueError if it is no message."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise ValueError(f"{at}: expected texts 'role' and 'content', got {shortened(repr(value))}")
    role, content, calls = value["role"], value.get("content"), value.get("tool_calls")
    if role not in ROLES:
        raise ValueError(f"{at}: unknown role {shortened(repr(role))}{hint(role[:40], ROLES)}")
    if content is None and not calls:
        raise ValueError(f"{at}: expected texts 'role' and 'content', got {shortened(repr(value))}")
    made = _given(value) | {"content": _text(content or "", at)}
    return made | (
        {"tool_calls": [_call(one, at) for one in _objects(calls, f"{at}: tool_calls")]}
        if calls
        else {}
    )


def _text(content: object, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(
            f"{at}: content: expected a text, or parts of text, got {shortened(repr(content))}"
        )
    for one in content:
        if not (
            isinstance(one, Mapping)
            and one.get("type") == "text"
            and isinstance(one.get("text"), str)
        ):
            wanted = '{"type": "text", "text": ...}'
            raise ValueError(
                f"{at}: content: expected parts {wanted}, since the model reads text alone, got "
                f"{shortened(repr(one))}"
            )
    return "".join(one["text"] for one in content)


def _call(value: Mapping[str, object], at: str) -> dict[str, object]:
    """A tool's call with its arguments as an object; OpenAI's are a text of JSON."""
    function = value.get("function", value)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"{at}: tool_calls: expected a function with a name, got {shortened(repr(value))}"
        )
    given = function.get("arguments", {})
    said = dict(function) | {
        "arguments": _parsed(given, f"{at}: tool_calls: arguments")
        if isinstance(given, str)
        else given
    }
    return {**value, "function": said} if "function" in value else said


def template(row: Mapping[str, object], at: str) -> dict[str, object]:
    """The chat template's arguments in a row: ``tools`` and ``chat_template_kwargs``."""
    tools, more = row.get("tools"), row.get("chat_template_kwargs")
    more = _parsed(more, f"{at}: chat_template_kwargs") if isinstance(more, str) else more
    if not isinstance(more, Mapping | None):
        raise ValueError(
            f"{at}: chat_template_kwargs: expected an object, got {shortened(repr(more))}"
        )
    tools = _parsed(tools, f"{at}: tools") if isinstance(tools, str) else tools
    return {**_given(more or {}), **({"tools": _objects(tools, f"{at}: tools")} if tools else {})}


def _objects(value: object, at: str) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"{at}: expected a list of objects, got {shortened(repr(value))}")
    return [_given(one) for one in value]


def _given(value: Mapping[str, object]) -> dict[str, object]:
    """An object without its nulls: in a table each row has the keys of all rows."""
    return {name: _without_nulls(one) for name, one in value.items() if one is not None}


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return _given(value)
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _parsed(text: str, at: str) -> object:
    return parse_json(text.encode(errors="replace"), at) if text.strip() else None


def asked(example: Example) -> str:
    """A text that is equal for rows with the same prompt, whatever its white space or coding."""
    prompt = (
        [{"role": "user", "content": example.prompt}]
        if isinstance(example.prompt, str)
        else example.prompt
    )
    said = [_same(dict(one)) for one in prompt], _same(example.template.get("tools"))
    return json.dumps(said, sort_keys=True, default=str)


def _same(value: object) -> object:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", " ".join(value.split()))
    if isinstance(value, Mapping):
        return {name: _same(one) for name, one in value.items()}
    return [_same(one) for one in value] if isinstance(value, list) else value
