"""Requests of agents: the fields of OpenAI's API, with the conversation, the group and the tools
of a call.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import msgspec

from equipoise.files import parse_json
from equipoise.foreign import Foreign
from equipoise.serving import bounds
from equipoise.serving.chat.wire import Asked, Denied, Kind, read
from equipoise.serving.messages import Name, Refused, decoded

CONVERSATION, GROUP = b"x-conversation", b"x-group"  # headers
LONGEST = 256  # letters of a name
MOST_COLUMNS = 64  # of metadata
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
PATH = re.compile(r"(?:/groups/([^/]{1,256}))?/conversations/([^/]{1,256})(/v1/.*)")
FIELDS = ("model", "tools", "tool_choice", "parallel_tool_calls", "conversation", "group")


class Reward(msgspec.Struct, forbid_unknown_fields=True):
    """A request of ``/v1/reward``. ``id``: of an answer or a conversation; ``index``: of an answer
    among ``n``; ``reward`` None: the conversation has ended, and the run's function grades it.
    """

    id: Name
    reward: float | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] | None = None


REWARDS, ANYTHING = msgspec.json.Decoder(Reward), msgspec.json.Decoder()


def read_reward(body: bytes) -> Reward:
    """Return a checked request of ``/v1/reward``; ``Refused`` names the wrong field."""
    found: Reward = decoded(REWARDS, body, bounds.check_json, Reward.__struct_fields__)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall(Asked):
    """A checked call."""

    conversation: str = ""
    group: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)

    @property
    def tooled(self) -> bool:
        """Has the call tools?"""
        return "tools" in self.template


def read_call(kind: Kind, body: bytes, headers: Mapping[bytes, bytes], name: str) -> AskedCall:
    """Return a checked call; ``Denied`` names the wrong field. ``name``: of the model, if the call
    names none. Every name of a model is accepted, since agents have theirs in their code.
    """
    try:
        given: Foreign = decoded(ANYTHING, body, bounds.check_json)
    except Refused as no:
        raise Denied(no.status, no.sentence) from None
    if not isinstance(given, dict):
        raise Denied(400, f"body: must be a JSON object, got {bounds.shown(given)}")
    ours = {key: given.pop(key) for key in FIELDS if given.get(key) is not None}
    for key in FIELDS:
        given.pop(key, None)
    model = ours.get("model", name)
    if not isinstance(model, str) or not 1 <= len(model) <= 1024:
        raise Denied(400, f"model: must be a name, got {bounds.shown(model)}", "model")
    asked = read(kind, msgspec.json.encode(given), name)
    if len(asked.prompts) > 1:
        raise Denied(
            400, f"prompt: must be one prompt, got {len(asked.prompts)}; send a call for each",
            "prompt",
        )  # fmt: skip
    metadata = given.get("metadata")
    columns: dict[str, object] = {}
    if metadata is not None:
        if not isinstance(metadata, dict) or len(metadata) > MOST_COLUMNS:
            raise Denied(
                400,
                f"metadata: must be an object of at most {MOST_COLUMNS} values, got "
                f"{bounds.shown(metadata)}",
                "metadata",
            )
        columns = dict(metadata)
    names = {
        key: _name(key, ours.get(key, columns.pop(key, None)), headers.get(header))
        for key, header in (("conversation", CONVERSATION), ("group", GROUP))
    }
    asked = replace(asked, model=model, template=_tools(ours))
    values: dict[str, Foreign] = {name: getattr(asked, name) for name in Asked.__dataclass_fields__}
    return AskedCall(**(values | names), columns=columns)


def _name(field: str, value: object, header: bytes | None) -> str:
    """Return the name that a call gives in its body, or else in a header."""
    if value is None:
        value = "" if header is None else _decoded(header)
    if not isinstance(value, str) or len(value) > LONGEST:
        raise Denied(
            400,
            f"{field}: must be a text of at most {LONGEST} letters, got {bounds.shown(value)}",
            field,
        )
    return value


def _decoded(header: bytes) -> str:
    """Return the text of a header, which most clients write in UTF-8 and some in Latin-1."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def _tools(given: Mapping[str, Foreign]) -> dict[str, object]:
    """Return the tools of a call as arguments of a chat template."""
    tools, choice = given.get("tools"), given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise Denied(
            400,
            "tool_choice: must be auto or none, since the model decides which tools it calls, got "
            f"{bounds.shown(choice)}",
            "tool_choice",
        )
    if not tools or choice == "none":
        return {}
    if not isinstance(tools, list) or not all(
        isinstance(one, dict)
        and one.get("type") == "function"
        and isinstance(one.get("function"), dict)
        and isinstance(one["function"].get("name"), str)
        for one in tools
    ):
        raise Denied(
            400, "tools: must be a list of functions with names, as OpenAI's API has them, got "
            f"{bounds.shown(tools)}", "tools",
        )  # fmt: skip
    return {"tools": tools}


def tool_calls(text: str, id: str) -> tuple[str, list[dict[str, object]]]:
    """Return the text before the calls of tools in an answer, and the calls; [] if it has none.

    A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, as Qwen and Hermes write
    it. An answer with a call that is no such JSON is plain text.
    """
    found = list[dict[str, object]]()
    for number, match in enumerate(CALL.finditer(text)):
        try:
            said: Foreign = parse_json(match[1].encode(errors="replace"), "call")
        except ValueError:
            return text, []
        if not isinstance(said, dict) or not isinstance(said.get("name"), str):
            return text, []
        function = {"name": said["name"], "arguments": json.dumps(said.get("arguments", {}))}
        found.append({"id": f"call_{id}_{number}", "type": "function", "function": function})
    return (text[: text.index("<tool_call>")].rstrip() if found else text), found


def keys(messages: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a key of the messages up to each message: equal for messages that ask the same,
    whatever the ids of their calls and the white space around their texts.
    """
    digest, found = hashlib.sha256(), list[str]()
    for one in messages:
        calls = one.get("tool_calls") or ()
        functions = [
            each.get("function", each) for each in calls if isinstance(each, Mapping)
        ] if isinstance(calls, Sequence) else []  # fmt: skip
        called = [
            [each.get("name"), _value(each.get("arguments"))]
            for each in functions
            if isinstance(each, Mapping)
        ]
        said = [one.get("role"), _text(one.get("content")), called]
        digest.update(json.dumps(said, sort_keys=True, default=str).encode())
        found.append(digest.hexdigest())
    return found


def _text(content: object) -> str:
    if isinstance(content, list):
        content = "".join(str(one.get("text", "")) for one in content if isinstance(one, Mapping))
    return str(content or "").strip()


def _value(arguments: object) -> object:
    """Return the arguments of a call, which may be a text of JSON."""
    if isinstance(arguments, str):
        try:
            found: object = parse_json(arguments.encode(errors="replace"), "arguments")
        except ValueError:
            return arguments
        return found
    return arguments
