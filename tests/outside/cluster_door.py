"""The links of a cluster: messages of any kind, number and body come to home and to a site amid the
true ones.

What is not of the session is refused, and the run goes on with every row accounted for. What a site
says within its session, at the number that is next, may mislead home about that site (it has the
run's key), and must not stop it.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import strategies as st

from equipoise.runtime.cluster import proxy, site, wire
from equipoise.runtime.cluster.frames import MAGIC, Kind, Message
from equipoise.runtime.cluster.wire import Tally
from tests.outside.harness import Door, Fault, Planted
from tests.runtime.test_sites import World

LARGE = st.sampled_from(
    [0, 1, -1, 2, 5, 255, 1 << 20, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63), (1 << 32) + 1]
)
NUMBERS = st.one_of(st.integers(-3, 6), LARGE)
WORDS = ["title", "name", "message", "step", "at", "plan", "site", "why", "kind"]
ODD = [
    "",
    "{",
    "[" * 3000,
    "[]",
    "null",
    "1e999",
    "NaN",
    '{"plan": 1}',
    '{"title": 1}',
    '{"\\ud800": "\\ud800"}',
    "9" * 5000,
]
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5))
INNER = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=8,
)
SIZES = [0, 1, 7, 8, 16, 17, 64, 1000, 1 << 18, (1 << 20) + 9]
BODIES = st.one_of(
    st.builds(lambda text: {"text": text}, st.sampled_from(ODD) | INNER.map(json.dumps)),
    st.builds(
        lambda size, byte: {"bytes": byte, "size": size},
        st.sampled_from(SIZES),
        st.integers(0, 255),
    ),
)
KINDS = st.one_of(
    st.sampled_from([int(kind) for kind in Kind]),
    st.integers(0, 70),
    LARGE.map(lambda n: n % (1 << 32)),
)
ENDS = st.sampled_from(["home 0", "home 1", "site 0", "site 1"])
# Most messages are such as a site or home could send next, but for their numbers and body; the
# others are odd everywhere.
OF_SITES = [int(kind) for kind in Kind if kind < Kind.WELCOME or kind >= Kind.BEAT] + [
    int(Kind.SAID)
] * 6
OF_HOME = [int(kind) for kind in Kind if kind >= Kind.WELCOME]
COMMON = {
    "session": st.just("current"),
    "number": st.just("next"),
    "a": st.integers(-1, 5),
    "b": NUMBERS,
    "c": st.integers(-1, 3),
    "body": BODIES,
    "head": st.just("whole"),
    "after": st.integers(0, 5),
}
TO_HOME = COMMON | {"to": st.sampled_from(["home 0", "home 1"]), "kind": st.sampled_from(OF_SITES)}
TO_SITE = COMMON | {"to": st.sampled_from(["site 0", "site 1"]), "kind": st.sampled_from(OF_HOME)}
ODDER = {
    "to": ENDS,
    "kind": KINDS,
    "session": st.one_of(st.just("current"), st.just("none"), LARGE),
    "number": st.one_of(st.just("next"), NUMBERS),
    "a": NUMBERS,
    "b": NUMBERS,
    "c": NUMBERS,
    "body": BODIES,
    "head": st.sampled_from(["whole", "whole", "whole", "short", "long", "magic", "none"]),
    "after": st.integers(0, 30),
}
FRAMES = st.one_of(*(st.fixed_dictionaries(one) for one in (TO_HOME, TO_SITE, ODDER)))
# of no session: a forged one is of a site that has the key
GREETINGS = (Kind.HELLO, Kind.WELCOME, Kind.EXPELLED, Kind.REFUSED)
OUTSIDE = st.fixed_dictionaries(ODDER).filter(
    lambda said: (
        said["kind"] not in GREETINGS
        and (said["session"] != "current" or said["number"] != "next" or said["head"] != "whole")
    )
)
# in half of them nothing is of the session, and all must go on as without
EXAMPLES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 50),
        "max_lag": st.sampled_from([0, 1, None]),
        "frames": st.one_of(
            st.lists(FRAMES, min_size=1, max_size=6), st.lists(OUTSIDE, min_size=1, max_size=6)
        ),
    }
)


def head_of(said: dict[str, Any], line: Any) -> bytes:
    session = {"current": line.session, "none": 0}.get(said["session"], said["session"])
    number = line._received + 1 if said["number"] == "next" else said["number"]
    magic = MAGIC + 1 if said["head"] == "magic" else MAGIC
    whole = struct.pack(
        "<IIqqqqq", magic, said["kind"], session, number, said["a"], said["b"], said["c"]
    )
    return {"short": whole[:-1], "long": whole + b"\0", "none": b""}.get(said["head"], whole)


def body_of(said: dict[str, Any]) -> bytes:
    return (
        said["text"].encode("utf-8", "surrogatepass")
        if "text" in said
        else bytes([said["bytes"]]) * said["size"]
    )


def attempt(example: dict[str, Any]) -> None:
    world = World(example["seed"], example["max_lag"], delay=2.0)
    world.tick(40)
    inside = False  # was something said within a session, as its site might say it?
    try:
        for said in example["frames"]:
            end, i = said["to"].split()
            site = world.home.proxy._sites[f"site {i}"] if end == "home" else None
            line = site.line if site is not None else world.sites[int(i)].end.line
            inbox = (
                world.ways[int(i)].home.inbox
                if site is not None
                else world.ways[int(i)].home.to[-1].inbox
            )
            head = head_of(said, line)
            next_one = said["number"] in ("next", line._received + 1)
            inside |= (
                said["session"] == "current"
                and next_one
                and said["head"] == "whole"
                and line.session > 0
            )
            inside |= said["session"] in ("none", 0) and said["kind"] in GREETINGS
            inbox.appendleft((0.0, head, body_of(said["body"])))
            world.tick(1 + said["after"])
        if not inside:
            world.settle()
            if any(machine.ended for machine in world.sites):
                raise Fault("a site ended", str([machine.ended for machine in world.sites]))
    except AssertionError as error:
        if isinstance(error, Fault) or not inside:
            raise


def json_errors_escape(patch: pytest.MonkeyPatch) -> None:
    """A body that is no JSON ends the proxy, and with it the run."""

    def read(message: Message) -> Any:
        return json.loads(bytes(message.body))

    for end in (proxy, site):
        patch.setattr(end, "read", read)


def other_sessions_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A tally that knows no such reason, as one that a later kind of refusal forgot."""
    reasons = tuple(reason for reason in wire.REASONS if reason != "wrong numbers")
    patch.setattr(
        Tally, "add", lambda self, reason: self._counts.__setitem__(reasons.index(reason), 1)
    )


DOORS = [Door(name="cluster", examples=EXAMPLES, attempt=attempt, quick=8, full=150)]
PLANTED = [
    Planted(
        "a body that is no JSON ends the proxy", "cluster", json_errors_escape, kinds=("Error in",)
    ),
    Planted(
        "a reason without a place in the tally",
        "cluster",
        other_sessions_are_taken,
        kinds=("ValueError",),
    ),
]
