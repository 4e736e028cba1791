"""Messages of the server: fields of requests and answers, and a refusal with its HTTP status."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from equipoise import frames
from equipoise.files import BOM
from equipoise.hints import hint
from equipoise.serving import bounds

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=256)]  # a name, or ""
LATEST_MS = 86_400_000
Deadline = Annotated[float, msgspec.Meta(gt=0, le=LATEST_MS)]  # ms after the request arrived


Header = tuple[bytes, bytes]


class Refused(Exception):
    """A request that cannot be answered: the HTTP status, and a sentence with the path, the
    expected value and the value that came.
    """

    headers: tuple[Header, ...] = ()  # of the answer

    def __init__(self, status: int, sentence: str) -> None:
        self.status, self.sentence = status, bounds.sentence(sentence)
        super().__init__(self.sentence)

    def body(self) -> dict[str, object]:
        return {"error": self.sentence}


class Act(msgspec.Struct, forbid_unknown_fields=True):
    """A request for one action.

    ``session`` names an episode: its recurrent state and its version stay until ``done`` or the
    next ``first``. ``unit`` is the user or device that the decision is about (default: the
    session). ``version`` is an alias or the first digits of a version; within an episode an alias
    has no further effect. ``deadline_ms`` counts from the arrival of the request.
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

    ``propensity``: the probability of the action (``kind`` "probability"), or its density; None if
    the policy has none, or if a rule was broken. ``fallback``: the reason why the shield chose in
    place of the policy, or None. With "unlogged" the action is the policy's best one, and
    ``propensity`` belongs to it.
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
    """The outcome of a decision: a reward, and further facts. ``time``: seconds since 1970, default
    now.
    """

    id: Name
    reward: float | None = None
    data: Any = None
    time: float | None = None


class End(msgspec.Struct, forbid_unknown_fields=True):
    """An episode ended without a further observation."""

    session: Name


Outcomes = Annotated[list[Outcome], msgspec.Meta(max_length=10_000)]
JSON, MSGPACK = b"application/json", b"application/msgpack"
FORM = b"application/x-www-form-urlencoded"  # curl's Content-Type by default
FIELDS = {
    "act": Act.__struct_fields__,
    "outcome": Outcome.__struct_fields__,
    "end": End.__struct_fields__,
}
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"ascii")
PARTS = 256  # of an observation that is a Tuple
MOST = 1 << 28  # bytes of an answer
_MSGPACKS = (MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack")


class Codec:
    """Requests from bytes, and answers to bytes: in JSON, or in msgpack with arrays as ``frames``
    has them.
    """

    def __init__(
        self,
        content_type: bytes,
        decoder: Any,
        encode: Callable[[Any], bytes],
        check: Callable[[bytes], None],
    ) -> None:
        """``check`` raises ``bounds.TooMuch``."""
        self.content_type, self.encode, self._check = content_type, encode, check
        self._decoders = {
            "act": decoder(Act),
            "outcome": decoder(Outcome | Outcomes),
            "end": decoder(End),
        }

    def decode(self, kind: str, body: bytes) -> Any:
        """The request; Refused names what is wrong (400), or the bound that it exceeds (413)."""
        return decoded(self._decoders[kind], body, self._check, FIELDS[kind])


def decoded(
    decoder: Any,
    body: bytes,
    check: Callable[[bytes], None],
    fields: Collection[str] = (),
    what: str = "body",
) -> Any:
    """Decode a body by msgspec; Refused (400, 413) if it is no such message. ``fields``: names for
    a hint.
    """
    body = body.removeprefix(BOM)  # the bounds are of what is decoded
    try:
        if len(body) <= bounds.SMALL:
            return decoder.decode(body)
        check(body)
        with no_collection():
            return decoder.decode(body)
    except bounds.TooMuch as error:
        raise Refused(413, str(error)) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        said = str(error)[:500]
        unknown = re.search(r"unknown field `(.*?)`", said)
        near = hint(unknown[1], fields) if unknown and fields else ""
        if b"\0" in body[:4] or body[:2] in (b"\xff\xfe", b"\xfe\xff"):
            near += (
                "; JSON is UTF-8, and this looks like UTF-16 or UTF-32"
                if check is bounds.check_json
                else ""
            )
        raise Refused(400, f"{what}: {said}{near}") from None


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn Python's search for cycles off,
    which it would repeat while thousands of lists are made.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


json = Codec(JSON, msgspec.json.Decoder, msgspec.json.Encoder().encode, bounds.check_json)
msgpack = Codec(
    MSGPACK,
    msgspec.msgpack.Decoder,
    lambda message: frames.encode(message, MOST)[frames.HEAD.size :],
    bounds.check_msgpack,
)


def codec(content_type: bytes | None) -> Codec:
    """Return the codec of a Content-Type header, JSON without one; else Refused (415)."""
    if content_type is None or content_type == JSON:
        return json
    kind, _, parameters = content_type.lower().partition(b";")
    if (kind := kind.strip()) in (JSON, FORM):
        charset = re.search(rb"(?:^|;)\s*charset\s*=\s*\"?([^\s;\"]*)", parameters[:200])
        if charset is not None and charset[1] not in _CHARSETS:
            raise Refused(
                415,
                f"Content-Type: expected the charset utf-8, got {charset[1].decode('latin-1')!r}",
            )
        return json
    if kind in _MSGPACKS:
        return msgpack
    expected = f"{JSON.decode()} or {MSGPACK.decode()}"
    raise Refused(
        415, f"Content-Type: expected {expected}, got {content_type[:80].decode('latin-1')!r}"
    )


def arrays(value: object, place: str = "obs") -> object:
    """An observation with its array maps as arrays; Refused (400) for a map that is no array, and
    for keys beyond the bounds.
    """
    if not isinstance(value, Mapping):
        if type(value) is not list:
            return value[: bounds.KEY] if isinstance(value, str | bytes) else value
        if bounds.SCALARS.issuperset(map(type, value)):
            return value
        # the parts of a Tuple
        if len(value) <= PARTS and any(isinstance(one, Mapping) for one in value):
            return [arrays(one, f"{place}/{i}") for i, one in enumerate(value)]
        return bounds.numbers(value)
    if "data" in value and "dtype" in value:
        try:
            return frames.array(value, place)
        except frames.BadFrame as error:
            raise Refused(400, str(error)) from None
    if len(value) > bounds.KEYS or any(
        not isinstance(key, str) or len(key) > bounds.KEY for key in value
    ):
        raise Refused(
            400,
            f"{place}: expected at most {bounds.KEYS:,} keys of at most {bounds.KEY} letters, got "
            "others",
        )
    return {key: arrays(inner, f"{place}/{key}") for key, inner in value.items()}
