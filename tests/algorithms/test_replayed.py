"""The truth table of episode ends through the whole chain: an env, the inbox, a replay that keeps
frames once, and targets.

Every step gives the reward r and every value is r / (1 - gamma). So an item's target is that value
wherever a clock cut the episode, or nothing did, and the rewards that are left where it terminated:
r, where the item begins with its last row.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from equipoise.envs import make, observation_spec
from equipoise.envs.spaces import action_spec
from equipoise.experience.layout import RowSpec
from equipoise.experience.queue.queue import Plan
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.replay import Replay
from equipoise.facts import values_of
from equipoise.runtime.ipc import Heap
from equipoise.types import EnvFactory, Stack
from equipoise.types import ReplaySettings as Settings
from tests.algorithms.items import network, target
from tests.algorithms.test_off_policy import GAMMA, KINDS, REWARD, VALUE, constant
from tests.experience.alone import POLICY, Alone, rounds
from tests.experience.history import STREAM
from tests.experience.saving import members

FRAMES, SIDE, UNROLL, STREAMS, ROUNDS, HELD = 4, 36, 4, 3, 12, 6
ENDS = {
    "terminated": (True, False),
    "truncated": (False, True),
    "both": (True, True),
    "neither": (False, False),
}


class Clock(gymnasium.Env[Any, Any]):
    """Episodes of 4, 5, 6, 4, ... steps, and images of one shade each,
    stacked as ``padding`` says.
    """

    def __init__(self, *, ends: str, padding: str, continuous: bool) -> None:
        self.observation_space = spaces.Box(0, 255, (FRAMES, SIDE, SIDE), np.uint8)
        self.action_space = (
            spaces.Box(-1.0, 1.0, (2,)) if continuous else spaces.Discrete(4, start=2)
        )
        self.terminated, self.truncated = ENDS[ends]
        self.padding, self.episode, self.t, self.shade = padding, -1, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.shade = seed % 1000
        self.episode, self.t = self.episode + 1, 0
        before = np.zeros_like(self.frame()) if self.padding == "zero" else self.frame()
        self.stack = np.stack([*[before] * (FRAMES - 1), self.frame()])
        return self.stack.copy(), {}

    def frame(self) -> Any:
        return np.full(
            (SIDE, SIDE), 1 + (self.shade + 101 * self.episode + 23 * self.t) % 255, np.uint8
        )

    def step(self, action: Any) -> Any:
        self.t += 1
        self.stack = np.stack([*self.stack[1:], self.frame()])
        over = self.t == 4 + self.episode % 3
        return self.stack.copy(), REWARD, over and self.terminated, over and self.truncated, {}


def played(ends: str, padding: Any, n: int, *, continuous: bool) -> tuple[Replay, Any, Any, Any]:
    """A replay that has come round, the env's spec, every observation [rows, streams], and where an
    episode's end is told.
    """
    kwargs = {"ends": ends, "padding": padding, "continuous": continuous}
    env = make(
        EnvFactory(target=f"{__name__}:Clock", kwargs=kwargs), streams=np.arange(STREAMS), seed=5
    )
    row = RowSpec(
        obs=observation_spec(env.spec.observation),
        action=action_spec(env.spec.action),
        behaviour={},
        state={},
        context=STREAM,
    )
    plan = Plan(
        rows={POLICY: row}, unroll=UNROLL, batch=STREAMS, block=STREAMS, envs=STREAMS, max_lag=0
    )
    inbox = Alone(
        plan,
        Heap("rows", plan.nbytes),
        free=[LocalChannel() for _ in range(plan.channels)],
        full=LocalChannel(),
    )
    inbox.fill()
    settings = Settings(capacity=HELD * UNROLL * STREAMS, starts_at=0)
    replay = ReplayPlan(
        settings=settings,
        row=row,
        stacks={"": Stack(frames=FRAMES, padding=padding)},
        unroll=UNROLL,
        window=n,
        block=STREAMS,
        actors=1,
        span=STREAMS,
        rounds=ROUNDS,
    )
    made = Replay(replay, rounds(replay, inbox), POLICY, seed=0)
    env.spec.action.seed(0)
    seen, over, streams = list[Any](), list[Any](), np.arange(STREAMS)
    ts: Any = env.recv()
    for number in range(ROUNDS):
        slot: Any = inbox.reserve(streams)
        data = slot.data
        data.context["stream"][:], data.context["start"][:] = streams, number * UNROLL
        for t in range(UNROLL):
            data.obs[t], data.first[t] = ts.obs, ts.first
            seen.append(np.array(ts.obs))
            data.action[t] = np.array([env.spec.action.sample() for _ in streams])
            env.send(data.action[t], streams)
            ts = env.recv()
            data.reward[t], data.mask[t], data.bootstrap[t] = ts.reward, ts.valid, ~ts.terminated
            over.append(ts.terminated | ts.truncated)
        data.obs[UNROLL], data.first[UNROLL] = ts.obs, ts.first
        inbox.commit(slot)
        if (batch := made.sample(2)) is not None:
            made.finish(batch.keys)
    seen.append(np.array(ts.obs))
    env.close()
    return made, env.spec, np.array(seen), np.array(over)


@pytest.mark.parametrize("padding", ["zero", "first"])
@pytest.mark.parametrize("name", ["dqn", "sac"])
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("ends", ENDS)
def test_the_truth_table_through_a_replay_of_frames(
    ends: str, n: int, name: str, padding: str
) -> None:
    made, spec, seen, over = played(ends, padding, n, continuous=name == "sac")
    algorithm = type(KINDS[name][0])(**{**values_of(KINDS[name][0]), "n_step": n, "torso": "mlp"})
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    constant(target_net, algorithm.followed(target_net))
    data = made.ring.gather(members(made))
    got = target(algorithm, net, target_net, data)["target"].reshape(-1)
    told, last = dict[tuple[bool, int], int](), (ROUNDS - 1) * UNROLL
    for item, (stream, start) in enumerate(
        zip(*(data.context[k].tolist() for k in ("stream", "start")), strict=True)
    ):
        for t in range(n + 1):  # what the value is asked for, too: the true final observation
            np.testing.assert_array_equal(
                data.obs[t, item].numpy(), seen[start + t, stream], err_msg=f"row {start} + {t}"
            )
        # rows to the end, if it is in sight
        left = next((t + 1 for t in range(n) if over[start + t, stream]), 0)
        terminates = bool(left) and ENDS[ends][0]
        expected = (
            REWARD * sum(GAMMA**i for i in range(left)) if terminates else REWARD / (1 - GAMMA)
        )
        assert got[item].item() == pytest.approx(expected, rel=1e-5), (
            f"stream {stream}, row {start}: {left} rows left"
        )
        told[terminates, left] = told.get((terminates, left), 0) + 1
        assert start >= last - HELD * UNROLL
    assert len(got) > 40 and REWARD / (1 - GAMMA) == VALUE
    assert set(told) == {
        (False, 0),
        *((ENDS[ends][0], left) for left in range(1, n + 1) if ends != "neither"),
    }
