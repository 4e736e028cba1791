"""Hindsight: relabelled items against a twin that walks the history row by row, through wraps, gaps
and running episodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.experience.layout import trajectory_specs
from equipoise.experience.replay.feed import ReplayFeed
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.replay import Replay
from equipoise.tree import ArraySpec
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Stack, Trajectory, stream_ids
from tests.experience.alone import POLICY, rounds
from tests.experience.history import History
from tests.experience.saving import load, save

UNROLL, BLOCK, ACTORS = 4, 2, 3
OWN = 100_000  # desired goals of the history itself: (stream, OWN + row)


class Goals:
    """A goal is (stream, row): it says where it was achieved."""

    closed = False

    def __init__(self, terminates: bool = True) -> None:
        self.terminates = terminates

    def reward(self, achieved: Any, desired: Any) -> Any:
        assert (achieved[:, 0] == desired[:, 0]).all(), "of another stream"
        return (achieved[:, 1] - 0.5 * desired[:, 1]).astype(np.float32)

    def terminated(self, achieved: Any, desired: Any) -> Any:
        return (achieved == desired).all(-1) if self.terminates else None

    def close(self) -> None:
        self.closed = True


class GoalHistory(History):
    """Every observation achieves (stream, row)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(streams=BLOCK * ACTORS, rows=1500, **options)
        goal = ArraySpec((2,), "float32")
        self.row = replace(
            self.row, obs=self.row.obs | {"achieved_goal": goal, "desired_goal": goal}
        )

    def obs(self, stream: int, row: int) -> dict[str, Any]:
        desired = np.array([stream, OWN + row], np.float32)
        return super().obs(stream, row) | {
            "achieved_goal": np.array([stream, row], np.float32),
            "desired_goal": desired,
        }


class Filled:
    """A replay that actors' blocks are put into at once, and what the twin knows: which rows of
    which stream were written.
    """

    def __init__(
        self,
        history: History,
        *,
        window: int,
        seed: int = 3,
        goals: Any = None,
        folder: Path | None = None,
        **settings: Any,
    ) -> None:
        given: dict[str, Any] = {
            "capacity": 20 * UNROLL * BLOCK * ACTORS,
            "starts_at": 1,
            "relabel": 0.8,
        }
        plan = ReplayPlan(
            settings=Settings(**given | settings),
            row=history.row,
            unroll=UNROLL,
            window=window,
            block=BLOCK,
            actors=ACTORS,
            stacks={} if history.stack is None else {"image": history.stack},
            span=BLOCK,
            rounds=100,
        )
        unused: Any = None
        self.goals: Any = goals or Goals()
        self.history, self.plan = history, plan
        self.replay = Replay(
            plan, rounds(plan, unused), POLICY, seed=seed, goals=self.goals, folder=folder
        )
        self.next, self.written = [0] * ACTORS, [set[int]() for _ in range(ACTORS)]
        self.order = [list[int]() for _ in range(ACTORS)]

    def write(self, actor: int) -> None:
        streams, start = stream_ids(actor, BLOCK), self.next[actor]
        data: Trajectory = Trajectory(
            **tree.zeros(trajectory_specs(self.history.row, UNROLL, BLOCK))
        )
        self.history.write(data, streams, start)
        self.replay.insert(data)
        self.written[actor] |= set(range(start, start + UNROLL))
        self.order[actor] += range(start, start + UNROLL)
        self.next[actor] += UNROLL

    def fill(self, rounds: int, *, gaps: bool = False) -> None:
        rng = np.random.default_rng(1)
        for i in range(rounds):
            for actor in rng.permutation(ACTORS):
                if gaps and rng.random() < 0.3:
                    self.next[actor] += 1
                self.write(int(actor))
                if i % 5 == 0:  # not all are equally far
                    self.write(int(actor))

    def span(self, stream: int, row: int) -> tuple[int, int]:
        """The first row of the episode that is still held, and the row of its last observation,
        walked to from ``row``.
        """
        actor = stream // BLOCK
        written, newest, mask, first = (
            self.written[actor],
            self.next[actor],
            self.history.mask,
            self.history.first,
        )
        oldest = self.order[actor][-(self.plan.slots - UNROLL) :][0]
        begin = end = row
        while (
            begin - 1 in written
            and begin > oldest
            and mask[begin - 1, stream]
            and not first[begin, stream]
        ):
            begin -= 1
        while end in written and mask[end, stream] and (end + 1 in written or end + 1 == newest):
            end += 1
        return begin, end

    def prove(self, n: int = 64) -> list[tuple[int, int, int, int, int]]:
        """One batch, every number of it -> (stream, row, its episode's beginning and end, goal's
        row) of relabelled items.
        """
        found, history, window = [], self.history, self.plan.window
        data = self.replay._draw(n).data
        data = Trajectory(**tree.numpy_views(data.fields()))
        for b in range(n):
            stream, start = int(data.context["stream"][b]), int(data.context["start"][b])
            whose, goal = data.obs["desired_goal"][0, b].tolist()
            begin, end = self.span(stream, start)
            assert whose == stream
            if relabelled := goal < OWN:
                found.append((stream, start, begin, end, int(goal)))
            for t in range(window + 1):
                row, seen = start + t, history.obs(stream, start + t)
                if relabelled and row <= end:
                    seen["desired_goal"] = np.array([stream, goal], np.float32)
                for name, value in seen.items():
                    assert (data.obs[name][t, b] == value).all(), (
                        f"stream {stream}, row {start} + {t}: {name}"
                    )
                if t == window:
                    continue
                reward, bootstrap = history.reward[row, stream], history.bootstrap[row, stream]
                if relabelled and row < end:
                    reward = np.float32(row + 1 - 0.5 * goal)
                    bootstrap = row + 1 != goal if self.goals.terminates else bootstrap
                assert data.reward[t, b] == reward, (stream, start, t)
                assert data.bootstrap[t, b] == bootstrap, (stream, start, t)
                for name in ("mask", "action", "version"):
                    assert getattr(data, name)[t, b] == getattr(history, name)[row, stream]
        return found


STACKS = {"vectors": None, "stacked": Stack(frames=4, padding="zero")}


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("window", "terminates"), [(1, True), (6, True), (6, False)])
@pytest.mark.parametrize("longest", [1, 9, 200])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_items_are_as_the_twin_says(
    strategy: Any, longest: int, window: int, terminates: bool, gaps: bool
) -> None:
    """200 rows are longer than the ring: such an episode's beginning is overwritten, and its end is
    still to come.
    """
    made = Filled(
        GoalHistory(longest=longest), window=window, strategy=strategy, goals=Goals(terminates)
    )
    seen = 0
    for _ in range(6):
        made.fill(7, gaps=gaps)
        for _, row, begin, end, goal in made.prove(32):
            low, high = {
                "future": (row + 1, end),
                "final": (end, end),
                "episode": (begin + 1, end),
            }[strategy]
            assert low <= goal <= high
            seen += 1
    assert abs(seen / (6 * 32) - 0.8) < 0.1


@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_every_goal_has_the_same_chance(strategy: Any) -> None:
    """Of the episode's later observations, or all: the places of goals between the first and the
    last, as shares.
    """
    made = Filled(GoalHistory(longest=12), window=2, strategy=strategy)
    made.fill(30)
    counts: dict[int, Counter[int]] = {}
    for _ in range(30):
        for _, row, begin, end, goal in made.prove(64):
            low = row + 1 if strategy == "future" else begin + 1
            counts.setdefault(end - low + 1, Counter())[goal - low] += 1
    tested = 0
    for length, found in counts.items():
        if (expected := found.total() / length) > 20:
            chi = sum((found[i] - expected) ** 2 / expected for i in range(length))
            assert chi < length + 4 * (2 * length) ** 0.5 + 4, (length, found)
            tested += length > 1
    assert tested > 2


@pytest.mark.parametrize("codec", ["", "delta"])
def test_a_stack_beside_the_goals(codec: str) -> None:
    made = Filled(GoalHistory(stack=STACKS["stacked"]), window=3, codec=codec)
    made.fill(30)
    assert made.prove()


def test_what_is_kept_stays_as_it_is() -> None:
    made = Filled(GoalHistory(), window=3)
    made.fill(30)
    before = made.replay.ring._records.copy()
    for _ in range(20):
        made.prove(16)
    np.testing.assert_array_equal(made.replay.ring._records, before)


def test_a_share_of_zero_changes_nothing() -> None:
    """Not one draw more: the items are those that the selector alone gives, and as they were
    written.
    """
    made, rng = Filled(GoalHistory(), window=3, relabel=0.0), np.random.default_rng(3)
    made.fill(30)
    for _ in range(5):
        batch = made.replay._draw(32)
        np.testing.assert_array_equal(batch.keys[:, 0], made.replay.selector.sample(32, rng)[0])
        made.history.prove(batch)


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_a_loaded_replay_relabels_as_the_other_would_have(
    strategy: Any, selector: Any, tmp_path: Path
) -> None:
    history = GoalHistory(longest=40)
    settings: Any = {"window": 3, "strategy": strategy, "selector": selector, "folder": tmp_path}
    made = Filled(history, **settings)
    made.fill(33, gaps=True)
    saved = save(made.replay)
    other = Filled(history, seed=4, **settings)
    load(other.replay, saved, tmp_path)
    other.next, other.written, other.order = (
        list(made.next),
        [set(x) for x in made.written],
        [list(x) for x in made.order],
    )
    for _ in range(8):
        for one in (made, other):
            for actor in range(ACTORS):
                one.write(actor)
        mine, its = made.replay._draw(32).data, other.replay._draw(32).data
        tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), mine.obs, its.obs)
        assert torch.equal(mine.reward, its.reward) and torch.equal(mine.bootstrap, its.bootstrap)
        other.prove(16)
        made.prove(16)


def test_a_budget_in_bytes_counts_what_relabelling_takes() -> None:
    budget = 1_000_000
    made = Filled(GoalHistory(), window=1, memory=budget).replay
    hindsight = made._hindsight
    assert hindsight is not None
    tables = (hindsight._episode, hindsight._begin, hindsight._end)
    held = made.ring._records.nbytes + made.selector.nbytes + sum(table.nbytes for table in tables)
    assert 0.95 * budget <= held <= 1.05 * budget


def test_goals_are_closed_with_the_replay() -> None:
    goals = Goals()
    made = Filled(GoalHistory(), window=1, goals=goals)
    made.replay.close()
    assert goals.closed


def test_what_it_cannot_work_with_is_refused() -> None:
    with pytest.raises(ValueError, match="recurrent state"):
        Filled(GoalHistory(recurrent=True), window=UNROLL)
    history = GoalHistory(stack=STACKS["stacked"])
    plan, feed = Filled(history, window=1).plan, ReplayFeed(None)  # type: ignore[arg-type]
    stacked = replace(plan, stacks={"achieved_goal": Stack(frames=2, padding="zero")})
    with pytest.raises(ValueError, match="no stacks of frames, got obs/achieved_goal"):
        Replay(stacked, feed, POLICY, seed=0, goals=Goals())
    with pytest.raises(
        ValueError, match=r"goals: expected those of the env with replay\.relabel=0\.8, got none"
    ):
        Replay(plan, feed, POLICY, seed=0)
