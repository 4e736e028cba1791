"""What an OpenEnv server says of itself: its address, and the fields of its actions and
observations by their JSON schemas.
"""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from equipoise.files import parse_json
from equipoise.foreign import Foreign
from equipoise.hints import hint, said, shortened
from equipoise.urls import read_url

TOKEN = "EQUIPOISE_OPENENV_TOKEN"  # the variable with a server's token
LARGEST = 8 << 20  # bytes of a message
LONGEST = 300  # characters of the server's words in an error
WHOLE = "json"  # as the name of a field: all fields
SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}  # and HTTP's for each
OURS = ("metadata", "done", "reward")  # fields that are no text for or of the model
NUMBERS: Mapping[str, Callable[[str], float]] = {"integer": int, "number": float}
Fields = Mapping[str, Foreign]


class Invalid(ValueError):
    """The error of an action that the server refuses, in the server's words."""


def address(url: str, at: str) -> tuple[str, bool]:
    """Return a URL as http(s)://..., and whether only this machine can be reached by it."""
    wanted, example = f"{at}: must be openenv:URL with a URL", "openenv:http://127.0.0.1:8000"
    found = read_url(url, wanted, example, f"a token stands in {TOKEN}", SCHEMES)
    path = found.path.removesuffix("/ws")
    return f"{SCHEMES[found.scheme]}://{found.netloc}{path}", found.local


def read_schema(
    base: str, headers: Mapping[str, str], deadline_s: float, local: bool
) -> Mapping[str, Fields]:
    """Return the server's schemas of actions and observations."""
    at = f"{base}/schema"
    no_proxy = [urllib.request.ProxyHandler({})] if local else []
    opener = urllib.request.build_opener(*no_proxy, _Stays())
    try:
        request = urllib.request.Request(at, headers=dict(headers))
        with opener.open(request, timeout=deadline_s) as answer:
            read = answer.read(LARGEST + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ValueError(
            f"{at}: must be the schema of an OpenEnv server, got {said(error)}; is the server "
            "running?"
        ) from error
    if len(read) > LARGEST:
        raise ValueError(f"{at}: must have at most {LARGEST:,} bytes, got more")
    found = parse_json(read, at)
    for key in ("action", "observation"):
        one = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(one, Mapping) or not isinstance(one.get("properties", {}), Mapping):
            raise ValueError(
                f"{at}: must have a JSON schema {key!r} as OpenEnv writes it, got "
                f"{shortened(repr(one), LONGEST)}"
            )
    return found  # type: ignore[no-any-return]


class _Stays(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead a token elsewhere."""

    def redirect_request(self, *given: Foreign) -> None:
        return None


def fields_of(schema: Fields) -> dict[str, frozenset[str]]:
    """Return the JSON types of each field of a schema, without the protocol's own."""
    named = schema.get("properties", {})
    return {
        str(key): frozenset(_types(one, schema)) for key, one in named.items() if key not in OURS
    }


def required(schema: Fields) -> Sequence[str]:
    found = schema.get("required", ())
    return [str(one) for one in found] if isinstance(found, Sequence) else ()


def _types(one: object, schema: Fields, depth: int = 4) -> set[str]:
    """Return the JSON types that a part of a schema allows."""
    if not isinstance(one, Mapping) or not depth:
        return set()
    if isinstance(ref := one.get("$ref"), str):
        defined = schema.get("$defs", {})
        name = ref.rpartition("/")[2]
        return _types(
            defined.get(name) if isinstance(defined, Mapping) else None, schema, depth - 1
        )
    found = set[str]()
    for key in ("anyOf", "oneOf", "allOf"):
        several = one.get(key, ())
        for part in several if isinstance(several, Sequence) else ():
            found |= _types(part, schema, depth - 1)
    kind = one.get("type")
    found |= {kind} if isinstance(kind, str) else {*kind} if isinstance(kind, list) else set()
    values = one.get("enum", [one["const"]] if "const" in one else [])
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        found.add("string")
    return found


def chosen(
    what: str, name: str, fields: Mapping[str, frozenset[str]], required: Sequence[str], at: str
) -> str:
    """Return the field that a text goes to or comes from: the named one, or the one text."""
    if name:
        if name != WHOLE and name not in fields:
            raise ValueError(f"{at}: {what}: unknown field {name!r}{hint(name, [*fields, WHOLE])}")
        return name
    texts = [key for key, kinds in fields.items() if "string" in kinds]
    needed = [key for key in texts if key in required]
    for some in (texts, needed):
        if len(some) == 1:
            return some[0]
    have = ", ".join(f"{key} ({'/'.join(sorted(kinds))})" for key, kinds in fields.items())
    raise ValueError(
        f"{at}: the {what} must have one text, got {have or 'no field'}; name the field: "
        f"source.arguments={what}=FIELD, or {what}={WHOLE} for all as JSON"
    )


def number(text: str, kinds: frozenset[str], name: str) -> object:
    """Return a text as the value of a field that is no text; Invalid if it is none."""
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    found: object
    for kind, make in NUMBERS.items():
        if kind in kinds and len(text) <= LONGEST:
            try:
                found = make(text)
            except ValueError:
                continue
            if isinstance(found, int) or math.isfinite(found):
                return found
    try:
        found = parse_json(text.encode(errors="replace"), name)
    except ValueError:
        found = None
    if kinds & {"array", "object"} and isinstance(found, list | dict):
        return found
    wanted = " or ".join(sorted(kinds)) or "a JSON value"
    raise Invalid(f"{name} must be {wanted}, got {text[:80]!r}")
