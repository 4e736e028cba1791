"""The server's doors: requests made from the messages' own fields, over HTTP and the socket, and
what becomes of its file.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from equipoise import web
from equipoise.serving import bounds, messages, oip
from equipoise.serving import store as stores
from tests.outside.harness import Door, Fault, Planted, shares
from tests.outside.served import served

OBS = {"obs": [0.1, -0.2, 0.3, 0.4], "action_mask": [1, 0, 1]}
POLICY = "mask"
HELD_S = 0.05  # that a request may hold the loop
LARGEST = 9 << 20  # bytes of an example, about: somewhat more than a server takes
NO_FAULT = (501, 503, 507)  # what a server answers that is well
MODEL = f"/v2/models/{POLICY}"
PATHS = ("/v1/act", "/v1/outcome", "/v1/end", f"{MODEL}/infer", f"{MODEL}/versions/champion/infer")
OTHERS = (
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v2",
    MODEL,
    f"{MODEL}/ready",
    "/v2/models/x/infer",
    "/x",
    "/v1/act/",
)
HEADERS = (
    "Content-Encoding",
    "Origin",
    "Authorization",
    "Inference-Header-Content-Length",
    "Upgrade",
    "X",
    "Cookie",
)
VALUES = (
    "gzip",
    "identity",
    "null",
    "12",
    "websocket",
    "bearer x",
    "",
    "",
    "a",
    "9" * 20,
    "x" * 3000,
)
FIELDS = {
    "/v1/act": messages.Act,
    "/v1/outcome": messages.Outcome,
    "/v1/end": messages.End,
    f"{MODEL}/infer": oip.Infer,
}

# An example is what JSON can hold. A map with one of these keys stands for a value that is long, or
# that JSON has not: {"$many": [value, n]}   a list      {"$text": [letters, n]}   a text
# {"$keys": n}   a map of n keys {"$deep": n}            nested lists    {"$digits": text}     a
# number as it is written    {"$float": "nan"} {"$array": [dtype, shape, bytes]}       an array map


def plain(value: Any, form: str = "json") -> Any:
    """The value that is stood for, with ``Raw`` for what only bytes can say: lists too deep for
    Python, numbers as written.
    """
    if isinstance(value, list):
        return [plain(one, form) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        key, given = next(iter(value.items()))
        if key == "$many":
            one = plain(given[0], form)
            return [one] * min(given[1], 1 + LARGEST // size(one))
        if key == "$text":
            return given[0] * given[1]
        if key == "$keys":
            return dict.fromkeys(map(str, range(given)), 0)
        if key == "$deep":
            return msgspec.Raw(
                b"[" * given + b"]" * given if form == "json" else b"\x91" * given + b"\x90"
            )
        if key == "$digits":
            return msgspec.Raw(given.encode()) if form == "json" else _number(given)
        if key == "$float":
            return float(given)
        if key == "$array":
            return {"dtype": given[0], "shape": given[1], "data": bytes(min(given[2], 1 << 23))}
    return {key: plain(one, form) for key, one in value.items()}


def _number(text: str) -> float | int:
    """The nearest number that msgpack has."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1 << 62 else number


def size(value: Any) -> int:
    """About how many bytes a value takes in a request."""
    if isinstance(value, dict):
        return 2 + sum(len(key) + size(inner) for key, inner in value.items())
    if isinstance(value, list) and value and value[0] is value[-1]:  # one value many times
        return 2 + len(value) * size(value[0])
    return 2 + (
        sum(map(size, value))
        if isinstance(value, list)
        else len(value)
        if isinstance(value, str | bytes | msgspec.Raw)
        else 2
    )


def not_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not_finite(one) for one in value.values())
    return (
        any(map(not_finite, value))
        if isinstance(value, list)
        else isinstance(value, float) and not math.isfinite(value)
    )


def packed(value: Any, form: str) -> bytes:
    """JSON by hand, since msgspec and json have not what some callers send; msgpack has no numbers
    as they are written.
    """
    if form == "msgpack":
        return msgspec.msgpack.encode(value)
    parts: list[str] = []

    def write(one: Any) -> None:
        if isinstance(one, msgspec.Raw):
            parts.append(bytes(one).decode())
        elif isinstance(one, dict):
            parts.append("{")
            for i, (key, inner) in enumerate(one.items()):
                parts.append(f"{',' if i else ''}{json.dumps(key)}:")
                write(inner)
            parts.append("}")
        elif isinstance(one, list) and any(
            isinstance(x, dict | list | msgspec.Raw) for x in one[:1]
        ):
            parts.append("[")
            if one and all(x is one[0] for x in one):
                begun = len(parts)
                write(one[0])
                parts[begun:] = [",".join(["".join(parts[begun:])] * len(one))]
            else:
                for i, inner in enumerate(one):
                    parts.append("," if i else "")
                    write(inner)
            parts.append("]")
        else:
            parts.append(json.dumps(one, default=lambda x: "AAAA"))

    write(value)
    return "".join(parts).encode("utf-8", "replace")


# ------------------------------------------------------------------------------------- the examples

COUNTS = st.sampled_from((0, 1, 2, 3, 20, 300, 5_000, 60_000, 300_000))
LETTERS = st.sampled_from(("x", "FP32I6", "é", '"', "\\", "\n", "1", ",", "😀", "\x00"))
DIGITS = ("1e999", "9" * 400, "9" * 4_000, "-0", "1." + "0" * 5_000, "1e-999", "NaN", "Infinity")
NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.sampled_from((1 << 31, 1 << 62, -(1 << 63), 1e308, -1e-308, 0.5)),
    st.floats(-10, 10, width=32),
    st.sampled_from(DIGITS).map(lambda x: {"$digits": x}),
    st.sampled_from(("nan", "inf", "-inf")).map(lambda x: {"$float": x}),
)
LONG_TEXTS = st.tuples(LETTERS, COUNTS).map(lambda x: {"$text": list(x)})
TEXTS = st.one_of(st.sampled_from(("", "a", "champion", "x" * 257)), LONG_TEXTS)
SMALL = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
INNER = st.one_of(SMALL, st.sampled_from(([], {}, [0.0], [""], {"a": 0}, {"name": "action"})))
SHAPES: tuple[list[Any], ...] = ([4], [], [1 << 62, 0], [1 << 40], [0.5])
DTYPES = ("float32", "int8", "bool", "float16", "object")
SIZES = st.sampled_from((0, 4, 16, 1 << 23))
LONG = st.one_of(
    st.tuples(INNER, COUNTS).map(lambda x: {"$many": list(x)}),
    COUNTS.map(lambda n: {"$keys": min(n, 200_000)}),
    st.sampled_from((1, 30, 70, 500, 3000)).map(lambda n: {"$deep": n}),
    st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), SIZES).map(
        lambda x: {"$array": list(x)}
    ),
)
KEYS = st.sampled_from(("obs", "action_mask", "data", "x"))
ANYTHING = st.one_of(
    SMALL,
    LONG,
    st.lists(SMALL, max_size=4),
    st.lists(LONG, max_size=2),
    st.dictionaries(KEYS, st.one_of(SMALL, LONG), max_size=3),
)
ODD = ANYTHING.map(copy.deepcopy)
FLOATS = st.sampled_from(("nan", "inf", "-inf")).flatmap(
    lambda x: st.sampled_from(({"$float": x}, [{"$float": x}], {"a": {"$float": x}})).map(
        copy.deepcopy
    )
)
HEAVY = st.tuples(
    st.sampled_from(([], {}, 0, [0], "")), st.sampled_from((100_000, 500_000, 2_000_000))
).map(lambda x: {"$many": [copy.deepcopy(x[0]), x[1]]})
OF_FIELDS = {
    "float": ("reward", "time", "data", "deadline_ms"),
    "heavy": ("obs", "data", "inputs", "id"),
}


def valid(path: str) -> dict[str, Any]:
    """A request that is right, of each path."""
    if path.startswith("/v2"):
        tensors = [
            ("obs/obs", [1, 4], "FP32", OBS["obs"]),
            ("obs/action_mask", [1, 3], "INT8", OBS["action_mask"]),
        ]
        return {
            "inputs": [
                {"name": n, "shape": s, "datatype": d, "data": x, "parameters": {}}
                for n, s, d, x in tensors
            ],
            "outputs": [{"name": "action"}],
            "parameters": {},
        }
    right: dict[str, dict[str, Any]] = {
        "/v1/act": {"obs": OBS},
        "/v1/outcome": {"id": "x", "reward": 1.0},
        "/v1/end": {"session": "a"},
    }
    return right[path]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of each value within one."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        stands = isinstance(inner, dict) and any(one.startswith("$") for one in inner)
        if isinstance(inner, dict | list) and not stands:
            yield from places(inner)


# What a right request may have beside what every one has.
EPISODES = ("a", "é" * 256, 1, 0, 1 << 62)
RIGHTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "/v1/act": {
        "session": EPISODES[:2],
        "first": (True, False),
        "done": (True, False),
        "unit": ("u", "x" * 256),
        "deterministic": (True, False),
        "version": ("champion", "shadow", "x"),
        "deadline_ms": (1e-9, 1, 1000.0, 86_400_000),
        "obs": (
            {"obs": {"$many": [0.5, 4]}, "action_mask": [0, 0, 0]},
            {"obs": [1e30] * 4, "action_mask": [1, 0.0, True]},
        ),
    },
    "/v1/outcome": {
        "reward": (None, -1e308, 0),
        "time": (0, -1e300, 1 << 53),
        "data": ({"a": [1, "é"]}, {"$keys": 20}, None),
    },
    "/v1/end": {"session": EPISODES[:2]},
    f"{MODEL}/infer": {
        "parameters": (
            *(
                {"sequence_id": one, "sequence_start": i < 3, "sequence_end": i > 1}
                for i, one in enumerate(EPISODES)
            ),
            {"binary_data_output": True},
            {"unit": "u", "other": [1]},
            {"deterministic": False, "deadline_ms": 1000.0},
        ),
        "outputs": (
            None,
            [],
            [{"name": "propensity"}],
            [{"name": "action", "parameters": {"binary_data": True}}],
        ),
        "id": ("r", "", "x" * 256),
        "inputs": tuple(
            [
                {
                    "name": "obs/obs",
                    "shape": [rows, 4],
                    "datatype": kind,
                    "data": {"$many": [0.5, 4 * rows]},
                },
                {
                    "name": "obs/action_mask",
                    "shape": [rows, 3],
                    "datatype": "BOOL",
                    "data": {"$many": [True, 3 * rows]},
                },
            ]
            for rows, kind in (
                (2, "FP32"),
                (300, "FP64"),
                (4096, "FP32"),
                (4097, "FP32"),
                (0, "FP16"),
                (1, "INT64"),
            )
        ),
    },
}


@st.composite
def bodies(draw: Any, path: str) -> Any:
    """A right request of which some values, or fields, are others."""
    kind = path.replace("/versions/champion", "")
    body = json.loads(json.dumps(valid(path)))
    if draw(st.sampled_from((False,) * 7 + (True,))):
        return draw(ODD)
    for name, given in RIGHTS[kind].items():
        if draw(st.sampled_from((False, False, True))):
            body[name] = copy.deepcopy(draw(st.sampled_from(given)))
    for _ in range(draw(st.sampled_from((0, 0, 1, 1, 1, 2, 3)))):
        texts = [place for place in places(body) if isinstance(place[0][place[1]], str)]
        how = draw(st.sampled_from(("field", "place", "text", "float", "heavy")))
        if how == "text" and texts:
            kinds_of_values = [place for place in texts if place[1] == "datatype"]
            where, key = draw(st.sampled_from((*texts, *kinds_of_values * 4)))
            where[key] = {"$text": ["FP32I6", draw(st.sampled_from((30, 3_000, 60_000)))]}
        elif how in OF_FIELDS and (
            fields := [one for one in OF_FIELDS[how] if one in FIELDS[kind].__struct_fields__]
        ):
            body[draw(st.sampled_from(fields))] = draw(FLOATS if how == "float" else HEAVY)
        elif how == "field":
            body[draw(st.sampled_from((*FIELDS[kind].__struct_fields__, "x")))] = draw(ODD)
        else:
            found = [
                place
                for place in places(body)
                if not isinstance(place[1], str) or not place[1].startswith("$")
            ]
            where, key = draw(st.sampled_from(found))
            where[key] = draw(ODD)
    if path == "/v1/outcome":
        return draw(st.sampled_from((body, body, [body], [], {"$many": [body, draw(COUNTS)]})))
    return body


HEADER = st.tuples(st.sampled_from(HEADERS), st.sampled_from(VALUES))
HEADS = shares(
    (6, st.just([])),
    (2, st.lists(HEADER.map(lambda one: [*one, 1]), min_size=1, max_size=2)),
    (1, st.tuples(HEADER, st.sampled_from((200, 60_000))).map(lambda one: [[*one[0], one[1]]])),
    (1, st.just([["X", "", 60_000]])),
)
METHODS = st.sampled_from(("GET", "PUT", "OPTIONS", "DELETE", "POST"))


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    served(POLICY)  # once, and not in the time of an attempt: the policy is exported
    path = draw(st.sampled_from((*PATHS, *PATHS, draw(st.sampled_from(OTHERS)))))
    usual = "POST" if path in PATHS else "GET"
    return {
        "method": draw(shares((8, st.just(usual)), (1, METHODS))),
        "path": path,
        "form": draw(st.sampled_from(("json", "json", "msgpack"))) if "/v1" in path else "json",
        "body": draw(bodies(path)) if path in PATHS else None,
        "headers": draw(HEADS),
        "chunk": draw(st.sampled_from((0,) * 6 + (1, 70, 10_000, 10_000))),
        "bom": draw(st.sampled_from((False,) * 9 + (True,))),
    }


def as_http(example: dict[str, Any]) -> bytes:
    body = (
        b""
        if example["body"] is None
        else packed(plain(example["body"], example["form"]), example["form"])
    )
    body = (b"\xef\xbb\xbf" if example["bom"] else b"") + body
    lines = [(f"{name}: {value}\r\n", count) for name, value, count in example["headers"]]
    given = "".join(line * min(count, 1 + 250_000 // len(line)) for line, count in lines)
    head = f"{example['method']} {example['path']} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: application/{example['form']}\r\n{given}"
    if size := example["chunk"]:
        parts = [body[at : at + size] for at in range(0, min(len(body), size * 100_000), size)]
        cut = b"".join(b"%x\r\n%s\r\n" % (len(x), x) for x in parts)
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + cut + b"0\r\n\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def checked(status: int, said: Any, example: Any, documented: set[int]) -> None:
    """Wrong is: an answer that is no refusal in one sentence, a status that nobody expects, nan
    taken, a loop that is held.
    """
    if status >= 500 and status not in NO_FAULT:
        raise Fault("5xx", f"{status} {said}")
    if status and status not in documented:
        raise Fault("a status that /openapi.json has not", f"{status} {said}")
    if status >= 400:
        error = said.get("error") if isinstance(said, dict) else None
        if not isinstance(error, str) or len(error) > bounds.LONGEST + 200:
            raise Fault("a refusal that is no sentence", str(said)[:300])
    if status == 200 and isinstance(example, dict) and not_finite(plain(example, "msgpack")):
        raise Fault("nan is taken", str(example)[:300])


def held(tries: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
    """The loop's longest turn of the best of three tries; only turns that are long cost more than
    one.
    """
    loop, longest = served(POLICY).loop, list[float]()
    for _ in range(3):
        answer = tries()
        longest.append(loop.longest)
        if longest[-1] <= HELD_S:
            return answer
        served(POLICY).settle()
        gc.collect()
        gc.freeze()  # what a long search has made is not looked at again within a turn
    raise Fault("the loop is held", f"{min(longest) * 1000:.0f} ms")


def ask_http(example: dict[str, Any]) -> None:
    one, data = served(POLICY), as_http(example)
    status, said = held(lambda: one.http(data))
    path = example["path"].replace("/versions/champion", "/versions/{version}")
    known = (
        one.openapi["paths"].get(path, {}).get(example["method"].lower(), {}).get("responses", {})
        if path
        else {}
    )
    documented = {int(code) for code in known} or {200, 204, 400, 403, 404, 405, 431}
    if isinstance(said, bytes):
        said = {"error": "packed"} if status >= 400 else {}
    checked(status, said, example["body"] if example["form"] == "msgpack" else None, documented)
    one.settle()


@st.composite
def framed(draw: Any) -> dict[str, Any]:
    served(POLICY)
    path = draw(st.sampled_from(PATHS[:3]))
    body = draw(bodies(path))
    if isinstance(body, list) and body and isinstance(body[0], dict):  # a frame has one outcome
        body = body[0]
    if isinstance(body, dict) and isinstance(body.get("$many", [None])[0], dict):
        body = body["$many"][0]
    if isinstance(body, dict) and not any(key.startswith("$") for key in body):
        body |= {"op": path.rpartition("/")[2], "n": draw(st.sampled_from((0, 7, -1, 1 << 62)))}
        body = draw(shares((15, st.just(body)), (1, st.just({"op": "state", "n": 1}))))
    return {"body": body, "count": draw(st.sampled_from((1, 1, 1, 3, 5_000)))}


def ask_frames(example: dict[str, Any]) -> None:
    body = packed(plain(example["body"], "msgpack"), "msgpack")
    one, data = (
        served(POLICY),
        (len(body).to_bytes(4, "big") + body)
        * min(example["count"], 1 + (1 << 22) // (len(body) + 4)),
    )
    status, said = held(lambda: one.frame(data))
    checked(status, said, example["body"], {200, 400, 404, 409, 413, 429, 501, 507})
    one.settle()


# ------------------------------------------------------------------------------ the decisions' file

DONE = ("outcome", "decision", "move", "remove", "empty", "outcome")


def keep(example: list[str]) -> None:
    """What is told as stored is in the file that is then at the path; what was told before, there
    or in one that was moved.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, told, moved = Path(folder) / "decisions", [], 0
        store = stores.Store(path)
        try:
            for i, done in enumerate(example):
                if done == "outcome":
                    event, fine = threading.Event(), list[bool]()

                    def tell(
                        stored: bool, event: threading.Event = event, fine: list[bool] = fine
                    ) -> None:
                        fine.append(stored)
                        event.set()

                    store.put("outcomes", (str(i), 1.0, None, 0.0), written=tell)
                    if not event.wait(20) or not fine[0]:
                        raise Fault("not stored", f"after {example[:i]}: {store.alarm}")
                    told.append(str(i))
                    if str(i) not in ids(path):
                        raise Fault("stored is not in the file", f"after {example[: i + 1]}")
                elif done == "decision":
                    store.put("decisions", (str(i), *[None] * 9, 0.0, 1, {}))
                elif done == "move" and path.exists():
                    path.rename(path.with_name(f"moved-{moved}"))
                    moved += 1
                elif done == "remove":
                    path.unlink(missing_ok=True)
                    told.clear()
                elif done == "empty" and not path.exists():
                    path.touch()
        finally:
            store.close()
        everywhere = set().union(
            *(ids(one) for one in (path, *(path.with_name(f"moved-{i}") for i in range(moved))))
        )
        if lost := set(told) - everywhere:
            raise Fault("stored is lost", f"{sorted(lost)} after {example}")


def ids(path: Path) -> set[str]:
    if not path.exists() or not path.stat().st_size:
        return set()
    file = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)
    try:
        return {one for (one,) in file.execute("SELECT id FROM outcomes")}
    finally:
        file.close()


DOORS = [
    Door(name="http", examples=requests(), attempt=ask_http, quick=20, full=500),
    Door(name="frames", examples=framed(), attempt=ask_frames, quick=15, full=1000),
    Door(
        name="decisions",
        examples=st.lists(st.sampled_from(DONE), max_size=8),
        attempt=keep,
        quick=3,
        full=40,
    ),
]


# ----------------------------------------------------------------------------------- planted faults


def names_of_any_length(patch: pytest.MonkeyPatch) -> None:
    """As it was: the nearest datatype was sought for one of any length."""
    import equipoise.hints

    text = msgspec.defstruct(
        "Input",
        [
            ("name", str),
            ("shape", list[int]),
            ("datatype", str),
            ("data", list[Any] | None, None),
            ("parameters", oip.OfTensor, msgspec.field(default_factory=oip.OfTensor)),
        ],
    )
    infer = msgspec.defstruct(
        "Infer",
        [
            ("inputs", list[text]),  # type: ignore[valid-type]
            ("outputs", list[oip.Output] | None, None),
            ("id", str | None, None),
            ("parameters", oip.Parameters, msgspec.field(default_factory=oip.Parameters)),
        ],
    )
    patch.setattr(oip, "_decoder", msgspec.json.Decoder(infer))
    patch.setattr(equipoise.hints, "LONGEST_NAME", 1 << 40)


def a_removed_file_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stores.Store, "_state", lambda self: (1, 1))


def nan_through_msgpack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "unsayable", lambda value: None)


def headers_without_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(web, "MOST_LINES", 1 << 40)
    patch.setattr(web, "MOST_HEADERS", 1 << 40)


PLANTED = [
    Planted("the nearest name of any length", "http", names_of_any_length, kinds=("held", "hang")),
    Planted("headers without end", "http", headers_without_end, kinds=("held",)),
    Planted("nan through msgpack", "frames", nan_through_msgpack, kinds=("nan",)),
    Planted(
        "the store keeps a removed file", "decisions", a_removed_file_is_kept, kinds=("stored",)
    ),
]
