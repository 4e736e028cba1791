"""Messages of the server: what a request may say, what an answer says, and a refusal with its HTTP status."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from equipoise import frames
from equipoise.hints import hint

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=256)]  # a name, or "" where there is none
Deadline = Annotated[float, msgspec.Meta(gt=0)]  # ms after the request arrived


class Refused(Exception):
    """What a caller asked for cannot be: the HTTP status, and a sentence with the path, what was expected and what came."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    def body(self) -> dict[str, Any]:
        return {"error": self.sentence}


class Act(msgspec.Struct, forbid_unknown_fields=True):
    """A request for one action.

    ``session`` names an episode: its recurrent state and its version stay until ``done`` or the next ``first``. ``unit`` is the
    user or device that the decision is about (default: the session). ``version`` is an alias or the first digits of a version;
    within an episode an alias says nothing more. ``deadline_ms`` counts from the arrival of the request.
    """

    obs: Any
    session: Name | None = None
    first: bool = False
    done: bool = False
    unit: Name | None = None
    deterministic: bool = True
    version: Name | None = None
    deadline_ms: Deadline | None = None


class Decision(msgspec.Struct, omit_defaults=False):
    """The answer to ``Act``.

    ``propensity``: how probable the action was (``kind`` "probability"), or its density; None where the policy knows none, and
    where a rule was broken. ``fallback``: why the shield chose in place of the policy; None where it did not. With "unlogged"
    the action is the policy's best one, and ``propensity`` that one's.
    """

    id: str
    action: Any
    version: str
    propensity: float | None
    kind: str
    deterministic: bool
    session: str | None
    fallback: str | None


class Outcome(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a decision: a reward, and whatever else is known. ``time``: seconds since 1970, default now."""

    id: Name
    reward: float | None = None
    data: Any = None
    time: float | None = None


class End(msgspec.Struct, forbid_unknown_fields=True):
    """An episode ended without a further observation."""

    session: Name


Outcomes = Annotated[list[Outcome], msgspec.Meta(max_length=10_000)]
JSON, MSGPACK = b"application/json", b"application/msgpack"
FORM = b"application/x-www-form-urlencoded"  # what curl says of what it is given
FIELDS = {"act": Act.__struct_fields__, "outcome": Outcome.__struct_fields__, "end": End.__struct_fields__}
_MSGPACKS = (MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack")


class Codec:
    """Requests from bytes, and answers to bytes: in JSON, or in msgpack with arrays as ``frames`` has them."""

    def __init__(self, content_type: bytes, decoder: Any, encode: Callable[[Any], bytes]) -> None:
        self.content_type, self.encode = content_type, encode
        self._decoders = {
            "act": decoder(Act), "outcome": decoder(Outcome | Outcomes), "end": decoder(End),
        }  # fmt: skip

    def decode(self, kind: str, body: bytes) -> Any:
        """The request; Refused (400) says where it is none."""
        try:
            return self._decoders[kind].decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            unknown = re.search(r"unknown field `(.*?)`", str(error))
            near = hint(unknown[1], FIELDS[kind]) if unknown and kind in FIELDS else ""
            raise Refused(400, f"body: {str(error)[:500]}{near}") from None


json = Codec(JSON, msgspec.json.Decoder, msgspec.json.Encoder().encode)
msgpack = Codec(MSGPACK, msgspec.msgpack.Decoder, lambda message: frames.encode(message)[frames.HEAD.size :])


def codec(content_type: bytes | None) -> Codec:
    """The codec of a Content-Type header; JSON where there is none. Refused (415) for another one."""
    if content_type is None or content_type == JSON:
        return json
    kind = content_type.partition(b";")[0].strip().lower()
    if kind in (JSON, FORM):
        return json
    if kind in _MSGPACKS:
        return msgpack
    expected = f"{JSON.decode()} or {MSGPACK.decode()}"
    raise Refused(415, f"Content-Type: expected {expected}, got {content_type[:80].decode('latin-1')!r}")


def arrays(value: Any, place: str = "obs") -> Any:
    """An observation with its array maps as arrays; Refused (400) for a map that is none."""
    if not isinstance(value, Mapping):
        return value
    if "data" in value and "dtype" in value:
        try:
            return frames.array(value, place)
        except frames.BadFrame as error:
            raise Refused(400, str(error)) from None
    return {key: arrays(inner, f"{place}/{key}") for key, inner in value.items()}
