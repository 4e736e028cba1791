"""What a world may send: hellos with spaces and keys of any kind, and the messages after them, as
frames or as bytes.

Hellos and messages are right ones in which a few values are others, since most random ones are
refused at their first key.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from equipoise import frames, tree
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.spaces import action_spec, differ, observation_spec
from equipoise.envs.worlds import env as envs
from equipoise.envs.worlds import protocol, seat
from equipoise.envs.worlds.door import Dealt
from equipoise.frames import BadFrame
from tests.outside.harness import Door, Fault, Planted, shares
from tests.outside.runs_door import change

MOST = 1 << 19  # values of both spaces together
SMALL = 1 << 14  # bytes of an observation and an action of an env that is made of a hello
INF = float("inf")
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    0.5,
    300_000,
    1 << 31,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
    1e308,
    INF,
    float("nan"),
    "",
    "inf",
    "nan",
    "x" * 300,
    "float32",
    "Box",
    [],
    {},
    [0],
    [1, 2],
    [[1, 2], [3]],
    [1 << 40],
    [True],
    ["x", 1],
    {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"},
    {"dtype": "float32", "shape": [2], "data": "x"},
]
odd = st.sampled_from(range(len(ODD))).map(lambda i: json.loads(json.dumps(ODD[i])))
steps = st.lists(st.integers(0, 12), min_size=1, max_size=6)
changes = shares(
    (2, st.just([])), (1, st.lists(st.tuples(steps, odd).map(list), min_size=1, max_size=2))
)

# ------------------------------------------------------------------------------------------- hellos

SHAPES = st.sampled_from([[], [1], [2], [3], [2, 3], [0], [3, 0], [2, 1, 2], [5000], [64, 64, 3]])
BOUNDS = st.sampled_from(
    [("-inf", "inf"), (-1.0, 1.0), (0, 1), (0, 255), (-1e30, 1e30), (0, "inf"), (3, 3)]
)
BOXES = st.builds(
    lambda shape, dtype, bounds: {
        "type": "Box",
        "shape": shape,
        "dtype": dtype,
        "low": bounds[0],
        "high": bounds[1],
    },
    SHAPES,
    st.sampled_from(
        ["float32", "float32", "float64", "float16", "uint8", "int8", "int64", "uint64", "bool"]
    ),
    BOUNDS,
)
SIZES = st.sampled_from([*range(1, 9)] * 3 + [300_000, 1 << 31, 1 << 62, (1 << 63) - 1])
STARTS = st.sampled_from([0, 0, 0, 7, -5, 1 << 62])
WHOLE = st.sampled_from(["int64", "int64", "int64", "int8", "int32", "uint8"])
COUNTED = st.one_of(
    st.builds(
        lambda n, start, dtype: {"type": "Discrete", "n": n, "start": start, "dtype": dtype},
        SIZES,
        STARTS,
        WHOLE,
    ),
    st.builds(
        lambda nvec, start, dtype: {
            "type": "MultiDiscrete",
            "nvec": nvec,
            "start": start,
            "dtype": dtype,
        },
        st.one_of(st.lists(SIZES, min_size=1, max_size=3), st.just([[2, 3], [4, 5]])),
        STARTS,
        WHOLE,
    ),
    st.sampled_from([3, 1, 2, [2], [2, 3], [5000], 1 << 40]).map(
        lambda n: {"type": "MultiBinary", "n": n}
    ),
)
KEYS = st.one_of(
    st.sampled_from(["a", "b", "/", "", "0", "obs", "action_mask", "é"]), st.text(max_size=3)
)


def grouped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A Dict or Tuple of spaces."""
    pairs = st.lists(
        st.tuples(KEYS, inner).map(list),
        min_size=1,
        max_size=3,
        unique_by=lambda pair: str(pair[0]),
    )
    return st.one_of(
        pairs.map(lambda pairs: {"type": "Dict", "spaces": pairs}),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: {"type": "Tuple", "spaces": parts}
        ),
    )


PLAIN = BOXES | COUNTED
SPACES = shares(
    (3, PLAIN), (2, grouped(PLAIN)), (1, grouped(shares((2, PLAIN), (1, grouped(PLAIN)))))
)
HELLOS = st.fixed_dictionaries(
    {"observation": SPACES, "action": COUNTED | SPACES, "changes": changes}
)
NAMES = st.dictionaries(
    st.sampled_from(["session", "name", "token", "version", "kind", "x", "action"]), odd, min_size=1
)

# ------------------------------------------------------------------------------------ conversations

GOOD = {"type": "Box", "shape": [2], "dtype": "float32", "low": "-inf", "high": "inf"}
TWO = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
UNIT = {"type": "Box", "shape": [2], "dtype": "float32", "low": -1.0, "high": 1.0}
PICTURE = {"type": "Box", "shape": [2, 3], "dtype": "uint8", "low": 0, "high": 255}
FROM_5 = {"type": "Discrete", "n": 3, "start": 5, "dtype": "int64"}
BITS, CHOICES = (
    {"type": "MultiBinary", "n": 3},
    {"type": "MultiDiscrete", "nvec": [2, 3], "start": 0, "dtype": "int64"},
)
PARTS = {
    "type": "Dict",
    "spaces": [["a", PICTURE], ["b", {"type": "Tuple", "spaces": [FROM_5, BITS]}]],
}
TUPLE = {"type": "Tuple", "spaces": [FROM_5, {"type": "Dict", "spaces": [["/", UNIT], ["", BITS]]}]}
MASKED = {"type": "Dict", "spaces": [["obs", GOOD], ["action_mask", BITS | {"n": 2}]]}
RUNS = [
    (GOOD, TWO),
    (MASKED, TWO),
    (UNIT, UNIT),
    (PARTS, CHOICES),
    (FROM_5, CHOICES),
    (CHOICES, BITS),
    (PICTURE, TUPLE),
]
# A value of the run's space: which one, as lists or as arrays, and what is changed in it.
GIVEN = st.fixed_dictionaries(
    {"sample": st.integers(0, 3), "arrays": st.booleans(), "changes": changes}
)
RIGHT = st.fixed_dictionaries(
    {"sample": st.integers(0, 3), "arrays": st.booleans(), "changes": st.just([])}
)
ENDS = st.sampled_from(
    [{}, {}, {}, {"terminated": True}, {"truncated": True}, {"terminated": True, "truncated": True}]
)
RIGHT_SAID = st.builds(
    lambda obs, took, reward, ends: {
        "obs": obs,
        "reward": reward,
        **ends,
        **({} if took is None else {"took": took}),
    },
    RIGHT,
    st.none() | RIGHT,
    st.floats(-2, 2),
    ENDS,
)
OTHER = st.one_of(
    st.fixed_dictionaries({"obs": GIVEN}),
    st.fixed_dictionaries({"took": GIVEN}),
    st.fixed_dictionaries({}, optional={"obs": odd, "took": odd}),
    st.tuples(
        st.sampled_from(["reward", "terminated", "truncated", "first", "info", "seq"]), odd
    ).map(lambda pair: dict([pair])),
    st.fixed_dictionaries(
        {}, optional={"first": st.booleans(), "seq": st.sampled_from([0, 1, 2, 5])}
    ),
    st.fixed_dictionaries({"kind": st.sampled_from(["beat", "bye", "hello", "act", "wish"]) | odd}),
)
SAID = shares(
    (3, RIGHT_SAID), (1, st.builds(lambda right, other: right | other, RIGHT_SAID, OTHER))
)
CONVERSATIONS = st.fixed_dictionaries(
    {"run": st.sampled_from(range(len(RUNS))), "messages": st.lists(SAID, min_size=2, max_size=8)}
)
EXAMPLES = shares(
    (4, HELLOS),
    (1, st.fixed_dictionaries({"hello": NAMES})),
    (4, CONVERSATIONS),
    (1, st.fixed_dictionaries({"run": st.just(0), "bytes": st.binary(max_size=40).map(bytes.hex)})),
)


def attempt(example: dict[str, Any]) -> None:
    if "run" in example:
        observation, action = RUNS[example["run"]]
        spaces = protocol.Spaces.read({"observation": observation, "action": action})
        conversation(spaces, example.get("messages", []), bytes.fromhex(example.get("bytes", "")))
        return
    hello = {"kind": "hello", "version": 1, "session": "s", "observation": GOOD, "action": TWO}
    both = {name: example[name] for name in ("observation", "action") if name in example}
    for path, to in example.get("changes", []):
        both = change(both, path, to)
        both = both if isinstance(both, dict) else {}
    hello |= example.get("hello", both)
    try:
        spaces = protocol.read_hello(frames.decode(frames.encode(hello)[4:]), None, None)
    except (protocol.Refused, BadFrame):
        return
    size = sum(map(protocol.choices, (spaces.observation, spaces.action)))
    if size > MOST:
        raise Fault("a space that no policy can hold is welcomed", f"{size:,} values")
    again = protocol.Spaces.read(json.loads(json.dumps(spaces.json, allow_nan=False)))
    if any(
        differ(name, getattr(spaces, name), getattr(again, name))
        for name in ("observation", "action")
    ):
        raise Fault("spaces are others once they were written", str(spaces))
    specs = (observation_spec(spaces.observation), action_spec(spaces.action))
    if sum(one.nbytes for spec in specs for one in tree.leaves(spec)) <= SMALL:
        right = {"sample": 0, "arrays": False, "changes": []}
        conversation(
            spaces,
            [{"obs": right}, {"obs": right, "took": right}, {"obs": right, "terminated": True}],
            right=True,
        )


class GivenDoor:
    """The door of an env, without a hub: it deals one world after the other."""

    grace_s, heartbeat_s = 5.0, 60.0

    def __init__(self, spaces: protocol.Spaces) -> None:
        self.spaces, self.conns = spaces, list[socket.socket]()
        self._bell, self._sessions = os.eventfd(0, os.EFD_NONBLOCK), 0

    def fileno(self) -> int:
        return self._bell

    def want(self, seat: int, dealt: int) -> None:
        mine, other = socket.socketpair()
        self._sessions += 1
        self.conns.append(other)
        self._dealt = Dealt(seat, str(self._sessions), "a world", mine)
        os.eventfd_write(self._bell, 1)

    def read(self) -> Iterator[Dealt]:
        os.eventfd_read(self._bell)
        yield self._dealt

    def close(self) -> None:
        os.close(self._bell)
        for conn in self.conns:
            conn.close()


def value_of(space: Any, given: Any) -> Any:
    """What is sent: a value of the space, as lists or arrays, with its changes."""
    if not isinstance(given, dict) or "sample" not in given:
        return given
    space.seed(given["sample"])
    value = space.sample()

    def arrays(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: arrays(inner) for key, inner in one.items()}
        return [arrays(inner) for inner in one] if isinstance(one, tuple) else np.asarray(one)

    value = arrays(value) if given["arrays"] else protocol.plain(value)
    if given["arrays"] and given["changes"]:  # as the frame has them
        value = frames.decode(frames.encode({"x": value})[4:])["x"]
    for path, to in given["changes"]:
        value = change(value, path, to)
    return value


def conversation(
    spaces: protocol.Spaces, messages: list[dict[str, Any]], first: bytes = b"", right: bool = False
) -> None:
    """What comes after a hello becomes rows that keep the law of rows, or is refused. ``right``:
    each has to become a row.
    """
    with (
        warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as patch,
        contextlib.ExitStack() as held,
    ):
        warnings.simplefilter("ignore")
        door = GivenDoor(spaces)
        patch.setattr(envs, "Door", lambda target, arguments: door)
        patch.setattr(envs, "WAIT_S", 0.0005)
        try:
            env = envs.RemoteEnv("a world", {}, streams=np.arange(1), seed=1, action_mask="auto")
        except UnsupportedSpace:  # a part that is called action_mask, and is none
            return
        held.callback(env.close)
        env.failures = Failures(on_nonfinite="drop")
        env.watch(["x"])
        env.recv()  # it asks for a world
        (seat_of,) = env._seats
        for message in [{"bytes": first}] * bool(first) + messages:
            for _ in range(20):
                if seat_of.conn is not None:
                    break
                env._listen()
            said = {
                "kind": "observe",
                "seq": seat_of._seen + 1,
                "first": seat_of._after_end,
                "obs": None,
            } | message
            # an episode begins, and does not end with it
            if seat_of._after_end and "first" not in message:
                said |= {
                    name: False for name in ("terminated", "truncated") if said.get(name) is True
                }
            for name, space in (("obs", spaces.observation), ("took", spaces.action)):
                if name in message:
                    said[name] = value_of(space, message[name])
            try:
                data = message["bytes"] if "bytes" in message else frames.encode(said)
            except (OverflowError, UnicodeEncodeError):  # what no frame holds
                continue
            with contextlib.suppress(OSError):
                # a world reads what it is answered
                door.conns[-1].recv(1 << 20, socket.MSG_DONTWAIT)
            with contextlib.suppress(OSError):
                door.conns[-1].sendall(data)
            env._listen()
            if any(
                type(row.get(key, False)) is not bool
                for row in seat_of.rows
                for key in ("first", "terminated", "truncated")
            ):
                raise Fault("a flag that is none is taken", repr(seat_of.rows))
            told = env.recv()
            if right and (told is None or seat_of.conn is None or env.failures.counts[0]):
                raise Fault("what a world may say is not taken", f"{said} {env.failures.causes}")
            if told is not None:
                lawful(env, told)
                spaces.action.seed(0)
                env.send(env.form.zeros(), env.ts.stream)


def lawful(env: Any, row: Any) -> None:
    """A row has finite numbers and members of its spaces; one that begins an episode has no reward
    and no end.
    """
    begins = bool(row.first[0])
    if begins and (row.valid[0] or row.reward[0] or row.terminated[0] or row.truncated[0]):
        raise Fault("a first row with a reward or an end", str(row))
    for one in (env.checks.reward, *env.checks.observation):
        if not np.isfinite(one.array).all() or (one.integers and not one.within().all()):
            raise Fault("a value that is none of its space", f"{one.key}: {one.array}")
    if row.differs[0] and not all(one.within().all() for one in env._bounds):
        raise Fault("an action that is none", str(row.taken))


def any_number_of_values(patch: pytest.MonkeyPatch) -> None:
    """Discrete with n = 2^62 was welcomed."""
    patch.setattr(protocol, "CHOICES", 1 << 80)


def flags_of_any_kind(patch: pytest.MonkeyPatch) -> None:
    """An observation was taken as it came."""
    patch.setattr(seat, "check_observe", lambda message, after_end: None)


DOORS = [Door(name="world", examples=EXAMPLES, attempt=attempt, hang_s=5.0, quick=60, full=300)]
PLANTED = [
    Planted("Discrete of any n is welcomed", "world", any_number_of_values, kinds=("no policy",)),
    Planted(
        "an observation's flags are not looked at", "world", flags_of_any_kind, kinds=("a flag",)
    ),
]
