"""Stacks that cross a link by their newest frames: what arrives is what was written, to the bit,
whatever the env does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.experience.layout import RowSpec, columns
from equipoise.experience.queue.outbound import block_bytes, block_views
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.unstacked import BlockPacker, LastRows
from equipoise.tree import ArraySpec
from equipoise.types import Slot, Stack, Trajectory

CONTEXT = {"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")}
STACKS = {
    "screens": {"": Stack(frames=4, padding="zero")},
    "mixed": {"a": Stack(frames=3, padding="first")},
    "plain": {},
}


def row(obs: Any, agents: int = 1) -> RowSpec:
    action = ArraySpec((), "int64")
    return RowSpec(
        obs=obs,
        action=action,
        behaviour={"logp": ArraySpec((), "float32")},
        state={},
        context=CONTEXT,
        columns=agents,
    )


def plan(unroll: int = 5, block: int = 3) -> Plan:
    rows = {
        "screens": row(ArraySpec((4, 3, 3), "uint8")),
        "mixed": row(
            {"a": ArraySpec((3, 5), "float32"), "b": ArraySpec((2,), "float64")}, agents=2
        ),
        "plain": row(ArraySpec((7,), "float32")),
    }
    return Plan(rows=rows, unroll=unroll, batch=2 * block, block=block, envs=2 * block, max_lag=1)


class Actor:
    """Envs that do what envs do to stacks, and what they should not do, written as an actor writes
    it.
    """

    def __init__(self, plan: Plan, rng: Any) -> None:
        self.plan, self._rng, self._now = plan, rng, dict[tuple[str, str], Any]()

    def _next(self, before: Any) -> Any:
        """The stack [B, k, ...] after ``before``; each stream by itself."""
        rng, after = self._rng, np.empty_like(before)
        for b in range(len(before)):
            newest = (
                rng.integers(0, 256, before[b, 0].nbytes, np.uint8)
                .view(before.dtype)
                .reshape(before[b, 0].shape)
            )
            what = rng.integers(0, 20)
            if what == 0:  # an episode begins
                after[b] = 0
            elif what == 1:
                after[b] = newest
            # the row is held, or a row that was aborted shows its observation again
            elif what == 2:
                after[b] = before[b]
                continue
            elif what == 3:  # an env that shuffles its frames
                after[b, :-1] = before[b, rng.permutation(len(before[b]))[1:]]
            else:
                after[b, :-1] = before[b, 1:]
            after[b, -1] = newest if what != 4 else after[b, -2]
        return after

    def write(self) -> Any:
        """The bytes of a block."""
        data = self._rng.integers(0, 2, block_bytes(self.plan), np.uint8)
        for policy, fields in block_views(self.plan, data).items():
            for path, leaf in tree.items(fields):
                if path in {"screens": ["obs"], "mixed": ["obs/a"]}.get(policy, []):
                    leaf[0] = self._now.get((policy, path), leaf[0])
                    for t in range(1, len(leaf)):
                        leaf[t] = self._next(leaf[t - 1])
                    self._now[policy, path] = leaf[-1].copy()
        return data


def slots(plan: Plan) -> dict[str, Slot]:
    """As in a queue: the streams of a block lie between those of another."""
    made = {}
    for name, fields in plan.fields(2 * plan.block).items():
        whole, b = (
            tree.map(lambda spec: np.full(spec.shape, 1, spec.dtype), fields),
            plan.block * plan.rows[name].columns,
        )
        made[name] = Slot(
            keys=np.zeros((b, 2), np.int64), data=Trajectory(**columns(whole, b, 2 * b))
        )
    return made


def alike(plan: Plan, found: dict[str, Slot], data: Any) -> bool:
    """Are these the bytes that were written?"""
    written = block_views(plan, data)
    return all(
        np.ascontiguousarray(leaf).tobytes() == dict(tree.items(written[name]))[path].tobytes()
        for name, slot in found.items()
        for path, leaf in tree.items(slot.data.fields())
    )


def wrong_blocks(make: type[BlockPacker], blocks: int, seed: int) -> int:
    """Send blocks, of which some are dropped and some begin a session -> how many arrived that are
    not what was written.
    """
    rng, wrong, sizes = np.random.default_rng(seed), 0, plan()
    here, there, actor = make(sizes, STACKS), BlockPacker(sizes, STACKS), Actor(sizes, rng)
    sent, got = here.last(), there.last()
    for _ in range(blocks):
        data, what = actor.write(), rng.integers(0, 10)
        if what == 0:  # its block was taken away: neither end knows of it
            continue
        if what == 1:
            sent, got = here.last(), there.last()
        found = slots(sizes)
        before = data.copy()
        there.unpack(bytes(here.pack(data, sent)), found, got)
        assert (data == before).all(), "the sender's rows were written"
        wrong += not alike(sizes, found, data)
    return wrong


def test_what_arrives_is_what_was_written(seed: int) -> None:
    assert wrong_blocks(BlockPacker, 300, seed) == 0


@pytest.mark.thorough
def test_what_arrives_is_what_was_written_ten_thousand_times(seed: int) -> None:
    assert sum(wrong_blocks(BlockPacker, 1000, seed + n) for n in range(10)) == 0


class TrustsFirst(BlockPacker):
    """Every row is taken to follow from the one before."""

    def _compare(self, n: int, rows: Any, last: LastRows, follows: Any) -> None:
        super()._compare(n, rows, last, follows)
        follows[1:] = 1


class NeverForgets(BlockPacker):
    """The row that the last block ended with is not compared."""

    def _compare(self, n: int, rows: Any, last: LastRows, follows: Any) -> None:
        super()._compare(n, rows, last, follows)
        follows[0] = last.known


class ComparesNewest(BlockPacker):
    """Only the last but one frame of a stack is compared."""

    def _compare(self, n: int, rows: Any, last: LastRows, follows: Any) -> None:
        super()._compare(n, rows, last, follows)
        f = self._stacked[n].frame
        follows[1:] = (rows[1:, :, -2 * f : -f] == rows[:-1, :, -f:]).all(-1)


@pytest.mark.parametrize(
    "broken", [TrustsFirst, NeverForgets, ComparesNewest], ids=lambda one: one.__name__
)
def test_a_sender_that_compares_less_is_caught(broken: type[BlockPacker], seed: int) -> None:
    assert wrong_blocks(broken, 100, seed) > 0


def test_a_stack_crosses_once(seed: int) -> None:
    """84 x 84 x 4 in unrolls of 20: a step costs a frame, and the bytes that are no frame."""
    pong = Plan(
        rows={"main": row(ArraySpec((4, 84, 84), "uint8"))},
        unroll=20,
        batch=4,
        block=2,
        envs=4,
        max_lag=1,
    )
    crossing, screens = (
        BlockPacker(pong, {"main": {"": Stack(frames=4, padding="zero")}}),
        np.zeros((2, 4, 84, 84), np.uint8),
    )
    last, rng, sizes = crossing.last(), np.random.default_rng(seed), []
    for _ in range(3):
        data = np.zeros(block_bytes(pong), np.uint8)
        obs = block_views(pong, data)["main"]["obs"]
        obs[0] = screens
        for t in range(1, 21):
            obs[t, :, :-1], obs[t, :, -1] = (
                obs[t - 1, :, 1:],
                rng.integers(0, 256, (2, 84, 84), np.uint8),
            )
        screens = obs[-1].copy()
        sizes.append(len(crossing.pack(data, last)) / 40)
    assert sizes[0] < 7500 + 84 * 84 * 4 / 20 and sizes[1] == sizes[2] < 7200
    assert block_bytes(pong) / 40 > 29_000


def test_rows_that_never_follow_cost_no_more_than_whole_ones(seed: int) -> None:
    sizes = plan()
    crossing, rng = BlockPacker(sizes, STACKS), np.random.default_rng(seed)
    data = rng.integers(0, 256, block_bytes(sizes), np.uint8)
    assert len(crossing.pack(data, crossing.last())) == crossing.most
    flags = 64 * sum(1 for stacks in STACKS.values() for _ in stacks)
    assert crossing.most <= block_bytes(sizes) + 2 * flags


def test_a_block_without_stacks_travels_as_it_lies() -> None:
    sizes = plan()
    crossing, data = BlockPacker(sizes, {}), np.zeros(block_bytes(sizes), np.uint8)
    assert crossing.pack(data, crossing.last()) is data
    assert crossing.least == crossing.most == block_bytes(sizes)


def test_frames_that_are_not_in_the_shape_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"screens, obs: expected a stack of 5 frames, got shape \(6, 3, 4, 3, 3\)"
    ):
        BlockPacker(plan(), {"screens": {"": Stack(frames=5, padding="zero")}})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda body, one: body[:-1], "expected .* bytes by the rows that follow"),
        (lambda body, one: body[: one.least - 1], "expected .* to .* bytes"),
        (lambda body, one: bytes(one.most + 1), "expected .* to .* bytes"),
        (
            lambda body, one: with_byte(body, one._stacked[0].follows + 1, 2),
            "expected 0 or 1 for each row, got 2",
        ),
        (lambda body, one: with_byte(body, one._stacked[0].follows, 1), "got rows that follow"),
        (
            lambda body, one: with_byte(body, one._stacked[1].follows + 7, 1),
            "bytes by the rows that follow",
        ),
    ],
    ids=["cut short", "too few", "too many", "no flag", "follows what is not known", "other bytes"],
)
def test_what_is_no_block_is_refused_and_writes_nothing(broken: Any, said: str, seed: int) -> None:
    sizes = plan()
    crossing, rng = BlockPacker(sizes, STACKS), np.random.default_rng(seed)
    body = bytes(crossing.pack(rng.integers(0, 256, block_bytes(sizes), np.uint8), crossing.last()))
    found, before, last = slots(sizes), slots(sizes), crossing.last()
    with pytest.raises(ValueError, match=said):
        crossing.unpack(broken(body, crossing), found, last)
    assert not last.known
    for name, slot in found.items():
        tree.map(np.testing.assert_array_equal, slot.data.obs, before[name].data.obs)


def with_byte(body: bytes, at: int, value: int) -> bytes:
    return body[:at] + bytes([value]) + body[at + 1 :]
