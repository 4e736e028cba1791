"""The rules of our own device envs, each beside a plain one;
and what all of them have in common.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.device_envs.bricks import BALL, BRICK, PADDLE, TRAIL, Bricks
from equipoise.device_envs.device_env import check, check_state
from equipoise.device_envs.names import NAMES
from equipoise.device_envs.naming import make_device_env
from equipoise.device_envs.reacher import Reacher
from equipoise.device_envs.rooms import MOVES, Rooms
from equipoise.envs import action_spec, observation_spec

pytestmark = pytest.mark.usefixtures("one_thread")


def acted(env: Any, count: int, generator: torch.Generator) -> Any:
    spec = action_spec(env.action)
    if spec.dtype == "int64":
        return torch.randint(0, int(env.action.n), (count,), generator=generator)
    return torch.rand(count, *spec.shape, generator=generator) * 2 - 1


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_as_the_spaces_say_and_seams_follow_ends(name: str) -> None:
    env, streams = make_device_env(name, {"max_episode_steps": 9}, streams=64), torch.arange(64)
    generator = torch.Generator().manual_seed(0)
    state, ts = env.reset(5, streams)
    check(name, ts, observation_spec(env.observation), streams)
    ended = torch.zeros(64, dtype=torch.bool)
    for _ in range(40):
        before = state
        state, ts = env.step(state, acted(env, 64, generator))
        check(name, ts, observation_spec(env.observation), streams)
        check_state(name, before, state)
        assert (
            torch.equal(ts.first, ended)
            and torch.equal(ts.valid, ~ended)
            and not ts.reward[ended].any()
        )
        assert env.observation.contains(ts.obs[3].numpy())
        ended = ts.terminated | ts.truncated
    assert bool((state["episode"] > 2).all())


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_a_pure_function_and_the_same_of_fixed_shape(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph resets rows by ``where``; without one only those that begin are computed: to the same
    bits.
    """
    env, streams = make_device_env(name, {"max_episode_steps": 7}, streams=32), torch.arange(32)
    generator, found = torch.Generator().manual_seed(0), []
    state, _ = env.reset(5, streams)
    for _ in range(20):
        action = acted(env, 32, generator)
        kept = tree.map(torch.clone, state)
        after, ts = env.step(state, action)
        assert all(
            torch.equal(a, b) for a, b in zip(tree.leaves(kept), tree.leaves(state), strict=True)
        )
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            other, rows = env.step(state, action)
        same = zip(
            tree.leaves({"s": after, "o": ts.obs}),
            tree.leaves({"s": other, "o": rows.obs}),
            strict=True,
        )
        found += [torch.equal(a, b) for a, b in same]
        state = after
    assert all(found)


def test_rooms_have_walls_and_doors_and_a_goal() -> None:
    env, streams = Rooms(size=9), torch.arange(200)
    state, ts = env.reset(0, streams)
    assert not env.wall.reshape(-1)[state["inner"].numpy()].any() and bool(
        (ts.obs[:, 0] != ts.obs[:, 1]).all()
    )
    generator, goals = torch.Generator().manual_seed(1), 0
    for _ in range(300):
        action = torch.randint(0, 4, (200,), generator=generator)
        before, seam = ts.obs, state["done"]
        state, ts = env.step(state, action)
        for i in np.flatnonzero(~seam.numpy())[:20]:
            (y, x), (down, right) = divmod(int(before[i, 0]), 9), MOVES[int(action[i])]
            to = (y + down, x + right)
            open_ = 0 <= to[0] < 9 and 0 <= to[1] < 9 and not env.wall[to]
            assert int(ts.obs[i, 0]) == (to[0] * 9 + to[1] if open_ else y * 9 + x)
        there = (ts.obs[:, 0] == ts.obs[:, 1]) & ts.valid
        assert torch.equal(there, ts.terminated) and torch.allclose(
            ts.reward, (there.float() - 0.01) * ts.valid
        )
        goals += int(there.sum())
    assert goals > 100
    with pytest.raises(ValueError, match="size: expected an odd number of at least 5, got 8"):
        Rooms(size=8)


class PlainBricks:
    """MinAtar's Breakout as its code reads, for one stream."""

    def __init__(self, column: int, right: int) -> None:
        self.y, self.x, self.down, self.right = 3, column, 1, right
        self.last, self.pos, self.strike = (3, column), 4, False
        self.wall = np.zeros((10, 10), bool)
        self.wall[1:4] = True

    def act(self, action: int) -> tuple[float, bool]:
        reward, over, strike = 0.0, False, False
        self.pos = min(max(self.pos + {0: 0, 1: -1, 2: 1}[action], 0), 9)
        self.last = (self.y, self.x)
        y, x = self.y + self.down, self.x + self.right
        if x < 0 or x > 9:
            x = min(max(x, 0), 9)
            self.right = -self.right
        if y < 0:
            y, self.down = 0, -self.down
        elif self.wall[y, x]:
            strike = True
            if not self.strike:
                reward, self.strike = 1.0, True
                self.wall[y, x] = False
                y, self.down = self.last[0], -self.down
        elif y == 9:
            if not self.wall.any():
                self.wall[1:4] = True
            if self.x == self.pos:
                y, self.down = self.last[0], -self.down
            elif x == self.pos:
                y, self.down, self.right = self.last[0], -self.down, -self.right
            else:
                over = True
        if not strike:
            self.strike = False
        self.y, self.x = y, x
        return reward, over


def test_bricks_have_the_rules_of_minatars_breakout() -> None:
    env, count = Bricks(scale=2), 32
    state, ts = env.reset(0, torch.arange(count))
    plain = [PlainBricks(int(ball[1]), int(ball[3])) for ball in state["inner"]["ball"]]
    rng, rewards, ends = np.random.default_rng(0), 0.0, 0
    for _ in range(500):
        toward = [
            np.sign(one.x + one.right - one.pos) if rng.random() < 0.95 else 0 for one in plain
        ]
        action = torch.tensor([{0: 0, -1: 1, 1: 2}[int(t)] for t in toward])
        seam = state["done"].tolist()
        state, ts = env.step(state, action)
        for i, one in enumerate(plain):
            if seam[i]:
                ball = state["inner"]["ball"][i]
                plain[i] = one = PlainBricks(int(ball[1]), int(ball[3]))
                reward, over = 0.0, False
            else:
                reward, over = one.act(int(action[i]))
            assert (float(ts.reward[i]), bool(ts.terminated[i])) == (reward, over)
            screen = one.wall * np.uint8(BRICK)
            screen[one.last], screen[9, one.pos], screen[one.y, one.x] = TRAIL, PADDLE, BALL
            assert np.array_equal(ts.obs[i, 0].numpy(), screen.repeat(2, 0).repeat(2, 1))
            rewards, ends = rewards + reward, ends + over
    assert rewards > 100 and ends > 10, (rewards, ends)


def test_a_free_arm_keeps_its_energy_and_its_momentum() -> None:
    """Without torque and friction both are conserved; with float64 and small steps to the error of
    the integrator.
    """
    arm, step = Reacher(bodies=4, friction=0.0), 1e-3
    arm._weights = arm._weights.double()
    generator = torch.Generator().manual_seed(0)
    angle, speed = (torch.randn(16, 4, generator=generator, dtype=torch.float64) for _ in range(2))

    def conserved() -> torch.Tensor:
        apart = angle.unsqueeze(-1) - angle.unsqueeze(-2)
        momentum = ((arm._weights * apart.cos()) @ speed.unsqueeze(-1)).squeeze(-1)
        return torch.stack([(momentum * speed).sum(-1) / 2, momentum.sum(-1)], -1)

    before = conserved()
    for _ in range(200):
        middle = angle + step / 2 * speed
        half = speed + step / 2 * arm.accelerations(angle, speed, torch.zeros_like(angle))
        speed = speed + step * arm.accelerations(middle, half, torch.zeros_like(angle))
        angle = angle + step * half
    torch.testing.assert_close(conserved(), before, rtol=1e-5, atol=1e-5)


def test_an_arm_has_as_many_bodies_as_it_is_told() -> None:
    env = make_device_env("reacher", {"bodies": 7}, streams=4)
    assert env.observation.shape == (25,) and env.action.shape == (7,)
    state, _ = env.reset(0, torch.arange(4))
    still = env.step(state, torch.zeros(4, 7))[0]["inner"]
    moved = env.step(state, torch.ones(4, 7))[0]["inner"]
    assert torch.equal(still["angle"], state["inner"]["angle"]) and not torch.equal(
        moved["angle"], still["angle"]
    )
