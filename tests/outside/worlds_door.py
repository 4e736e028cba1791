"""What a world may send: hellos with spaces and keys of any kind, and the messages after them, as frames or as bytes."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import strategies as st

from equipoise import frames
from equipoise.envs.worlds import protocol, seat
from equipoise.frames import BadFrame
from tests.outside.harness import Door, Fault, Planted

LARGE = [0, -1, 1, 2, 300_000, 1 << 31, (1 << 62), (1 << 63) - 1]
NUMBERS = st.sampled_from(LARGE) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.text(max_size=3)
BOXES = st.fixed_dictionaries({
    "type": st.just("Box"), "shape": st.lists(st.sampled_from([0, 1, 2, 3, 5000, 1 << 40, -1, True]), max_size=3) | NUMBERS,
    "dtype": st.sampled_from(["float32", "uint8", "int64", "bool", "object", "U9", "", 3]),
    "low": st.sampled_from([0, -1.0, "-inf", "inf", "nan", [0], None]), "high": st.sampled_from([1, "inf", [1, 2], "x", None]),
})  # fmt: skip
COUNTED = st.fixed_dictionaries({
    "type": st.sampled_from(["Discrete", "MultiBinary", "MultiDiscrete", "Text", "Graph", 7]), "n": NUMBERS | st.just([2, 2]),
    "nvec": st.lists(st.sampled_from(LARGE), max_size=3), "start": st.sampled_from([0, -5, 1 << 62, [0, 0], None]),
    "dtype": st.sampled_from(["int64", "int8", "float32"]),
})  # fmt: skip
SPACES: st.SearchStrategy[Any] = st.recursive(
    BOXES | COUNTED | st.none() | st.just([]),
    lambda inner: st.builds(
        lambda kind, parts, names: {"type": kind, "spaces": [[n, p] for n, p in zip(names, parts, strict=False)] or parts},
        st.sampled_from(["Dict", "Tuple"]), st.lists(inner, max_size=3), st.lists(st.text(max_size=3), max_size=3),
    ),
    max_leaves=4,
)  # fmt: skip
MOST = 1 << 19  # values of both spaces together
GOOD = {"type": "Box", "shape": [2], "dtype": "float32", "low": "-inf", "high": "inf"}
VALUES = st.recursive(
    NUMBERS | st.none(), lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one, max_size=3)
)
KINDS = st.sampled_from(["observe", "beat", "bye", "hello", "act", None, 3])
MESSAGES = st.fixed_dictionaries(
    {"kind": KINDS}, optional=dict.fromkeys(("seq", "obs", "reward", "first", "terminated", "truncated", "took"), VALUES)
)
KEYS = st.sampled_from(["session", "name", "token", "version", "kind", "x"])
VALID = st.sampled_from(LARGE).flatmap(lambda n: st.sampled_from([
    {"type": "Discrete", "n": n, "start": 0, "dtype": "int64"},
    {"type": "MultiDiscrete", "nvec": [n, 3], "start": [0, 0], "dtype": "int64"},
    {"type": "Dict", "spaces": [["a", {"type": "Discrete", "n": n, "start": 0, "dtype": "int64"}], ["b", GOOD]]},
]))  # fmt: skip
FIRST = st.fixed_dictionaries(
    {"kind": st.just("observe"), "seq": st.just(0), "first": st.just(True) | VALUES},
    optional={"obs": st.just([0.0, 1.0]) | VALUES, "terminated": VALUES, "truncated": st.booleans(), "reward": VALUES},
)
EXAMPLES = st.one_of(
    st.fixed_dictionaries({"observation": VALID | SPACES, "action": VALID}),
    st.fixed_dictionaries({"messages": st.lists(FIRST | MESSAGES, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"observation": SPACES, "action": SPACES | st.just({"type": "Discrete", "n": 2, "start": 0})}),
    st.fixed_dictionaries(
        {"hello": st.dictionaries(st.sampled_from(["session", "name", "token", "version", "kind", "x"]), VALUES)}
    ),
    st.fixed_dictionaries({"messages": st.lists(MESSAGES, max_size=4)}),
    st.fixed_dictionaries({"bytes": st.binary(max_size=40).map(bytes.hex)}),
)
ACTION = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}


def attempt(example: dict[str, Any]) -> None:
    hello = {"kind": "hello", "version": 1, "session": "s", "observation": GOOD, "action": ACTION}
    if "messages" in example or "bytes" in example:
        conversation(example)
        return
    hello |= example.get("hello", example)
    try:
        spaces = protocol.read_hello(frames.decode(frames.encode(hello)[4:]), None, None)
    except (protocol.Refused, BadFrame):
        return
    size = sum(map(protocol.choices, (spaces.observation, spaces.action)))
    if size > MOST:
        raise Fault("a space that no policy can hold is welcomed", f"{size:,} values")


def conversation(example: dict[str, Any]) -> None:
    """What comes on a connection after its hello: it is taken, or refused with a code."""
    one, (mine, other) = seat.Seat(1 << 20), socket.socketpair()
    with mine, other:
        one.connect(mine, "s", "a world", stream=0, seed=1, times={"grace_s": 1.0, "heartbeat_s": 1.0})
        sent = bytes.fromhex(example.get("bytes", "")) + b"".join(map(frames.encode, example.get("messages", ())))
        other.sendall(sent)
        try:
            one.read()
            for row in one.rows:
                if any(type(row.get(key, False)) is not bool for key in ("first", "terminated", "truncated")):
                    raise Fault("a flag that is none is taken", repr(row))
        except protocol.Refused as refused:
            one.refuse(refused)
        one.disconnect()


def any_number_of_values(patch: pytest.MonkeyPatch) -> None:
    """Discrete with n = 2^62 was welcomed."""
    patch.setattr(protocol, "CHOICES", 1 << 80)


def flags_of_any_kind(patch: pytest.MonkeyPatch) -> None:
    """An observation was taken as it came."""
    patch.setattr(seat, "check_observe", lambda message, after_end: None)


DOORS = [Door(name="world", examples=EXAMPLES, attempt=attempt, hang_s=5.0, quick=60, full=300)]
PLANTED = [
    Planted("Discrete of any n is welcomed", "world", any_number_of_values, kinds=("no policy",)),
    Planted("an observation's flags are not looked at", "world", flags_of_any_kind, kinds=("a flag",)),
]
