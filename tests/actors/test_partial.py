"""Partial streams: whoever answers when, rows prove themselves, and windows line up with recurrent
state.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.actors.agent import ActingParts, LocalAgent, StreamNumbers
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.forward import Forward
from equipoise.actors.partial import PartialActor, PartialAgent
from equipoise.actors.routed import RoutedAgent
from equipoise.actors.worker import PARTS
from equipoise.clock import Clock
from equipoise.envs import make
from equipoise.envs.partial import PartialEnv
from equipoise.envs.spaces import observation_spec, timestep
from equipoise.envs.toys import ruler
from equipoise.experience.discard import Discard
from equipoise.learners.stale import mask_stale
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.runtime.ipc import Heap
from equipoise.types import EnvFactory, Slot, Tick, TimeStep, Trajectory
from equipoise.weights.store import WeightPlan, Weights
from equipoise.workers.agents import build_forward
from tests.actors.file import File
from tests.runtime import ruling
from tests.runtime.ruling import Ruling, program

pytestmark = pytest.mark.usefixtures("one_thread")
B = 6


class Arrivals:
    """One env a stream; ``draw`` says which of those under way answer next: at least ``answers`` of
    them.
    """

    def __init__(self, target: str, answers: int, draw: Any) -> None:
        self.envs: Any = [
            make(EnvFactory(target=f"python:{target}"), streams=np.array([i]), seed=1, metrics=())
            for i in range(B)
        ]
        self.spec = self.envs[0].spec
        ts, _ = timestep(observation_spec(self.spec.observation), np.arange(B))
        self.ts: Any = TimeStep(
            **{
                name: getattr(ts, name)
                for name in ("obs", "reward", "terminated", "truncated", "first", "valid", "stream")
            },
            answered=np.zeros(B, bool),
        )
        self.answers, self.draw, self.busy = answers, draw, set(range(B))

    def send(self, action: Any, stream: Any) -> None:
        for k, i in enumerate(stream.tolist()):
            assert i not in self.busy, f"stream {i} was asked twice"
            self.busy.add(i)
            self.envs[i].send(tree.index(action, slice(k, k + 1)), self.envs[i].ts.stream)

    def recv(self) -> Any:
        assert len(self.busy) >= self.answers, "a pool would wait for ever"
        ts = self.ts
        some = (
            sorted(self.busy)
            if not ts.first.any() and not ts.obs.any()
            else self.draw(sorted(self.busy), self.answers)
        )
        for array in (ts.reward, ts.terminated, ts.truncated, ts.first, ts.valid, ts.answered):
            array.fill(0)
        for i in some:
            one = self.envs[i].recv()
            for name in ("reward", "terminated", "truncated", "first", "valid"):
                getattr(ts, name)[i] = getattr(one, name)[0]
            tree.map(lambda to, x, i=i: operator.setitem(to, i, x[0]), ts.obs, one.obs)
            ts.answered[i] = True
            self.busy.discard(i)
        return ts

    def state(self) -> Any:
        return {str(i): env.state() for i, env in enumerate(self.envs)} | {
            "busy": np.isin(np.arange(B), list(self.busy))
        }

    def load(self, state: Any) -> None:
        for i, env in enumerate(self.envs):
            env.load(state[str(i)])
        self.busy = set(np.flatnonzero(state["busy"]).tolist())
        self.ts.first.fill(True)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def anybody(rng: Any) -> Any:
    """As many as there have to be, or a few more; stream 1 only one time in twenty."""

    def draw(busy: list[int], least: int) -> list[int]:
        fast = [i for i in busy if i != 1 or rng.random() < 0.05]
        fast = fast if len(fast) >= least else busy
        return sorted(rng.permutation(fast)[: rng.integers(least, len(fast) + 1)].tolist())

    return draw


class Places:
    """One slot and copies of what was handed in. ``free``: is there a place? Each unroll begins
    with a version of its own.
    """

    def __init__(self, blue: Blueprint, store: Any, net: Any) -> None:
        self.inner, self.rows, self.free = (
            Discard(blue.roles["main"].row, blue.unroll, B),
            list[Trajectory](),
            True,
        )
        self._store, self._net, self.version = store, net, 0

    def reserve(self, streams: Any) -> Slot | None:
        return self.inner.reserve(streams) if self.free else None

    def commit(self, slot: Slot) -> None:
        copied = tree.map(np.array, tree.on_host(slot.data.fields()))
        self.rows.append(Trajectory(**copied))
        self.version += 1
        with torch.no_grad():
            if hasattr(self._net, "updates"):
                self._net.updates.fill_(self.version)
        self._store.publish(self.version, tree.named_tensors(self._net))
        self.inner.commit(slot)

    def restart(self, slot: Slot) -> None: ...


def actor(
    blue: Blueprint, draw: Any, answers: int, target: str = "equipoise/Ruler-v0"
) -> tuple[PartialActor, Places, Arrivals]:
    role, net = blue.roles["main"], blue.network("main")
    weights = WeightPlan(tree.named_tensors(net))
    store = Weights(weights, Heap("", weights.nbytes))
    store.publish(0, tree.named_tensors(net))
    places, env = Places(blue, store, blue.network("main")), Arrivals(target, answers, draw)
    agent = PartialAgent(
        answers=answers,
        row={"action": role.row.action, "behaviour": role.row.behaviour},
        acting=ActingParts(
            forward=build_forward(Forward, blue, "main"),
            weights=store.handle(),
            noise=role.noise,
            seed=3,
        ),
        experience=places,
        episodes=Episodes(B, Heap("", tree.nbytes(Episodes.layout()))),
        streams=StreamNumbers(numbers=np.arange(B), total=B, envs=B),
        unroll=blue.unroll,
        clock=Clock(PARTS),
    )
    made: Any = PartialEnv(env, "main")  # type: ignore[arg-type]
    return PartialActor(made, RoutedAgent({"main": agent}), Clock(PARTS)), places, env


def blue_of(unroll: int) -> Blueprint:
    return plan_run(
        program(actors=1, envs=B, unroll=unroll, max_lag=None, algorithm=Ruling(partial=0))
    )


def problems(rows: list[Trajectory], oldest: int = -1) -> list[str]:
    """What the ruler, the counter and the versions say of all windows, in their order."""
    ruling.LEDGER.at.clear()
    found = []
    for data in rows:
        tensors = Trajectory(**tree.torch_views(data.fields()))
        found += ruling.violations(tensors, gaps=False, oldest=oldest)
    return found


def until(worker: PartialActor, places: Places, unrolls: int) -> None:
    for _ in range(10_000):
        if len(places.rows) >= unrolls:
            return
        assert worker.tick() is not Tick.STARVED
    raise AssertionError(f"expected {unrolls} unrolls, got {len(places.rows)}")


@pytest.mark.parametrize(("answers", "unroll"), [(1, 5), (3, 5), (5, 5), (3, 1), (2, 16)])
def test_rows_prove_themselves_whoever_answers_when(answers: int, unroll: int, seed: int) -> None:
    worker, places, env = actor(blue_of(unroll), anybody(np.random.default_rng(seed)), answers)
    until(worker, places, 60)
    assert not problems(places.rows)
    real = np.stack([data.mask.sum(0) for data in places.rows]).sum(0)
    assert 0 < real[1] < real[[0, 2, 3, 4, 5]].min(), (
        "the slow stream has rows, and the others have more"
    )
    whole = np.stack([data.mask for data in places.rows]).mean((0, 1))
    assert unroll == 1 or whole[[0, 2, 3, 4, 5]].min() > 0.3
    env.close()


# the action under way is forgotten at a slot's begin
def _never_again(self: Any, slot: Slot) -> None:
    LocalAgent._begin(self, slot)
    self._at.fill(0)


def _unpadded(self: Any, slot: Slot) -> None:
    LocalAgent._commit(self, slot)


def _state_after(self: Any, slot: Slot) -> None:
    self._state = tree.map(torch.clone, self._after)
    begin(self, slot)


def _one_cursor(self: Any, ts: TimeStep) -> None:
    if self._carry is not None:
        self._at[ts.answered] = self._at[ts.answered].max()
    observe(self, ts)


begin, commit, observe = PartialAgent._begin, PartialAgent._commit, PartialAgent.observe
PLANTED = {
    "forgets": ("_begin", _never_again),
    "unpadded": ("_commit", _unpadded),
    "state": ("_begin", _state_after),
    "cursor": ("observe", _one_cursor),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartialAgent, *PLANTED[bug])
    worker, places, env = actor(blue_of(5), anybody(np.random.default_rng(seed)), 3)
    until(worker, places, 40)
    assert problems(places.rows)
    env.close()


def test_noise_is_that_of_the_stream_and_its_row(seed: int) -> None:
    """Whoever answers when; and where all answer at once nobody is cut short."""
    draws = ((lambda busy, least: busy, B), (anybody(np.random.default_rng(seed)), 2))
    partly, whole = (actor(blue_of(5), draw, answers) for draw, answers in reversed(draws))
    for worker, places, _ in (whole, partly):
        until(worker, places, 30)
    noise = whole[0]._one._noise
    for _, places, env in (whole, partly):
        asked = np.zeros(B, bool)  # whose row 0 was chosen in an earlier slot
        for data in places.rows:
            drawn = noise.draw(3, data.context["stream"], data.context["start"], 5)[..., 0]
            chosen = data.mask | (ruler_seams(data))
            chosen[0] &= ~asked
            assert (data.behaviour["noise"] == drawn)[chosen].all() and chosen.sum() > 10
            asked = (data.obs[-1] == data.obs[-2]).all(-1)
        env.close()
    assert all(data.mask[~ruler_seams(data)].all() for data in whole[1].rows), "nobody is cut short"


def ruler_seams(data: Trajectory) -> Any:
    """[T, B] bool: an episode is over, and the row is there."""
    stream, number, t = np.moveaxis(data.obs.astype(int), -1, 0)
    seam = t[:-1] == ruler.episode(stream, number)[0][:-1]
    return seam & (number[1:] != number[:-1])


def test_it_is_blocked_without_a_slot_and_asks_nobody(seed: int) -> None:
    worker, places, env = actor(blue_of(5), anybody(np.random.default_rng(seed)), 3)
    until(worker, places, 3)
    places.free = False
    while worker.tick() is not Tick.BLOCKED:
        pass
    busy = set(env.busy)
    assert worker.tick() is Tick.BLOCKED and env.busy == busy and len(busy) < 3
    places.free = True
    until(worker, places, 20)
    assert not problems(places.rows)
    env.close()


def test_a_resume_goes_on_with_the_actions_that_were_under_way(seed: int, tmp_path: Any) -> None:
    blue, rng = blue_of(5), np.random.default_rng(seed)
    worker, places, env = actor(blue, anybody(rng), 3)
    until(worker, places, 12)
    while not env.busy:  # some stream is to be under way
        until(worker, places, len(places.rows) + 1)
    places.free = False
    while worker.tick() is not Tick.BLOCKED:
        pass
    file, (other, more, again) = File(), actor(blue, anybody(rng), 3)
    worker.save(file)  # type: ignore[arg-type]
    more.version = places.version
    with torch.no_grad():
        more._net.updates.fill_(places.version)
    more._store.publish(places.version, tree.named_tensors(more._net))
    again.recv()
    other.load(file)  # type: ignore[arg-type]
    until(other, more, 12)
    assert not problems(places.rows + more.rows)
    env.close()
    again.close()


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_recurrent_network_sees_in_a_window_what_the_actor_saw(core: str, seed: int) -> None:
    """The log-probabilities of the learner's unroll are those that were acted with, in every row
    that counts.
    """
    made = api.program(
        "CartPole-v1",
        "impala",
        actors=1,
        envs_per_actor=B,
        unroll=7,
        max_lag=None,
        recipe=False,
        evaluate_episodes=0,
        settings=[f"algorithm.core={core}"],
    )
    blue = plan_run(made)
    worker, places, env = actor(blue, anybody(np.random.default_rng(seed)), 3, "CartPole-v1")
    until(worker, places, 25)
    net: Any = blue.network("main")
    counted = 0
    for data in places.rows:
        rows = Trajectory(**tree.torch_views(data.fields()))
        with torch.no_grad():
            logp = net.unroll(rows.obs, rows.first, rows.state)[0].policy[:7].logp(rows.action)
        wrong = ~torch.isclose(logp, rows.behaviour["logp"], atol=1e-5) & rows.mask
        assert not wrong.any(), wrong.nonzero()
        counted += int(rows.mask.sum())
    assert counted > 500
    env.close()


def test_rows_older_than_the_lag_do_not_count() -> None:
    version = torch.tensor([[3, 7, 5], [8, 7, 5], [8, 8, 5]])
    mask = torch.tensor([[True, True, True], [True, True, True], [False, True, True]])
    data: Any = type("Data", (), {"version": version, "mask": mask})()
    assert mask_stale(data, 9, 2).tolist() == [8, 7, 9]
    assert mask.tolist() == [[False, True, False], [True, True, False], [False, True, False]]
