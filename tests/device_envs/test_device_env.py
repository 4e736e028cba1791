"""Device envs that reset in the same step, the simulators' surfaces,
and what a env may not return.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import api
from equipoise.device_envs.cartpole import CartPole
from equipoise.device_envs.device_env import TRUNCATION, NextStep, as_next_step, check, check_state
from equipoise.device_envs.naming import make_device_env
from equipoise.device_envs.simulators import Genesis, IsaacLab
from equipoise.envs import make
from equipoise.tree import ArraySpec
from equipoise.types import EnvFactory, TimeStep

SPEC = ArraySpec((3,), "float32")
# the length and the end of a stream's episodes, in turn
ENDS = ((3, "terminated"), (4, "truncated"), (2, "truncated"))


class Counting:
    """Isaac Lab's surface over two counters: obs is (stream, episode, t); the reward is t; episodes
    end as ``ENDS`` says.
    """

    dtype = torch.float32

    def __init__(self, num_envs: int = 2, final: bool = True) -> None:
        self.num_envs, self.num_obs, self.num_actions, self._final = num_envs, 3, 1, final
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_observation_space = spaces.Dict({"policy": box, "critic": box})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.obs = torch.zeros(num_envs, 3, dtype=self.dtype)  # one buffer, as simulators have
        self.seed: Any = None

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed
        self.obs[:, 0], self.obs[:, 1:] = torch.arange(self.num_envs), 0
        return {"policy": self.obs, "critic": self.obs}, {}

    def step(self, action: torch.Tensor) -> Any:
        assert action.shape == (self.num_envs, 1)
        self.obs[:, 2] += 1
        reward, final = self.obs[:, 2].clone(), self.obs.clone()
        flags = {"terminated": [], "truncated": []}  # type: dict[str, list[bool]]
        for stream, episode, t in self.obs.tolist():
            length, end = ENDS[int(stream + episode) % len(ENDS)]
            for name, values in flags.items():
                values.append(t >= length and name == end)
        ended = torch.tensor(flags["terminated"]) | torch.tensor(flags["truncated"])
        self.obs[ended, 1] += 1
        self.obs[ended, 2] = 0
        extras = {"final_obs": {"policy": final, "critic": final}} if self._final else {}
        return (
            {"policy": self.obs, "critic": self.obs},
            reward,
            *map(torch.tensor, flags.values()),
            extras,
        )


class GenesisCounting(Counting):
    """The same as Genesis' examples give it."""

    dtype = torch.float64

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]["policy"], {"observations": {}}

    def step(self, action: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, extras = super().step(action)
        final = {"final_obs": extras["final_obs"]["policy"]} if extras else {}
        return (
            obs["policy"],
            reward,
            (terminated | truncated).int(),
            {"time_outs": truncated.float(), **final},
        )


KINDS = [(IsaacLab, Counting), (Genesis, GenesisCounting)]


@pytest.mark.parametrize(("adapter", "stand_in"), KINDS)
def test_a_simulators_rows_are_those_of_next_step(adapter: Any, stand_in: Any) -> None:
    """Each row proves itself: t rises by one in an episode, a final observation is shown where a
    clock cut it.
    """
    env = as_next_step(adapter(stand_in(3)), "counting")
    streams = torch.arange(3)
    state, ts = env.reset(7, streams)
    check("counting", ts, SPEC, streams)
    seen, ended = ts.obs.clone(), {"terminated": 0, "truncated": 0}
    finished, before = torch.zeros(3, dtype=torch.bool), ts
    for _ in range(60):
        state, ts = env.step(state, torch.zeros(3, 1))
        assert torch.equal(before.obs, seen), (
            "rows stay as they were, though the simulator has one buffer"
        )
        check("counting", ts, SPEC, streams)
        for i in range(3):
            _, episode, t = seen[i].tolist()
            length, end = ENDS[int(i + episode) % len(ENDS)]
            now = ts.obs[i].tolist()
            if finished[i]:  # the seam: the new episode after its first step
                assert (
                    bool(ts.first[i])
                    and not bool(ts.valid[i])
                    and float(ts.reward[i]) == 0
                    and now == [i, episode + 1, 1]
                )
            elif t + 1 < length:
                assert (
                    bool(ts.valid[i])
                    and not bool(ts.first[i])
                    and now == [i, episode, t + 1]
                    and float(ts.reward[i]) == t + 1
                )
            elif end == "terminated":  # the next one's first observation stands in the same row
                assert (
                    bool(ts.terminated[i])
                    and bool(ts.first[i])
                    and bool(ts.valid[i])
                    and now == [i, episode + 1, 0]
                )
                assert float(ts.reward[i]) == length
            else:
                assert (
                    bool(ts.truncated[i]) and not bool(ts.terminated[i]) and not bool(ts.first[i])
                )
                assert (
                    bool(ts.valid[i])
                    and now == [i, episode, length]
                    and float(ts.reward[i]) == length
                )
            ended["terminated"] += bool(ts.terminated[i])
            ended["truncated"] += bool(ts.truncated[i])
        seen, finished, before = ts.obs.clone(), ts.truncated.clone(), ts
    assert min(ended.values()) > 10 and before is ts


@pytest.mark.parametrize(("adapter", "stand_in"), KINDS)
def test_without_a_final_observation_a_truncation_is_a_termination(
    adapter: Any, stand_in: Any
) -> None:
    env: Any = as_next_step(adapter(stand_in(2, final=False)), "counting")
    state, _ = env.reset(0, torch.arange(2))
    for _ in range(20):
        state, ts = env.step(state, torch.zeros(2, 1))
        assert (
            not ts.truncated.any() and torch.equal(ts.first, ts.terminated) and bool(ts.valid.all())
        )
    assert env.notes == (TRUNCATION,)


def test_a_simulator_is_seeded_and_counted() -> None:
    simulator = Counting(2)
    env = IsaacLab(simulator)
    env.reset(7, torch.arange(2))
    first = simulator.seed
    env.reset(8, torch.arange(2))
    assert 0 <= first < 2**31 and simulator.seed != first
    assert env.action == spaces.Box(-100.0, 100.0, (1,), np.float32)
    with pytest.raises(ValueError, match="Counting: expected num_envs=3, one env a stream, got 2"):
        env.reset(0, torch.arange(3))
    said = "group: expected a group of Counting's observations, got 'polcy'; did you mean 'policy'"
    with pytest.raises(ValueError, match=said):
        IsaacLab(simulator, "polcy")


class Odd(CartPole):
    """CartPole whose rows are changed."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def step(self, state: Any, action: Any) -> Any:
        after, ts = super().step(state, action)
        return after, replace(
            ts, **{key: change(getattr(ts, key)) for key, change in self._changes.items()}
        )


WRONG = [
    (
        {"obs": lambda x: x.double()},
        "obs: expected float32 [5, 4] on cpu, got float64 [5, 4] on cpu",
    ),
    ({"obs": lambda x: x[:, :3]}, "obs: expected float32 [5, 4] on cpu, got float32 [5, 3] on cpu"),
    (
        {"obs": lambda x: x.to("meta")},
        "obs: expected float32 [5, 4] on cpu, got float32 [5, 4] on meta",
    ),
    ({"obs": lambda x: x.numpy()}, "obs: expected a tensor float32 [5, 4] on cpu, got ndarray"),
    (
        {"reward": lambda x: x[:, None]},
        "reward: expected float32 [5] on cpu, got float32 [5, 1] on cpu",
    ),
    (
        {"terminated": lambda x: x.float()},
        "terminated: expected bool [5] on cpu, got float32 [5] on cpu",
    ),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_another_device_dtype_or_shape_is_refused(changes: Any, said: str) -> None:
    env, streams = Odd(**changes), torch.arange(5)
    state, _ = env.reset(0, streams)
    _, ts = env.step(state, torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError) as error:
        check("odd", ts, ArraySpec((4,), "float32"), streams)
    assert str(error.value) == f"device env odd, {said}"


def test_a_state_that_changes_its_form_is_refused() -> None:
    a, b = {"x": torch.zeros(2), "y": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.zeros(3)}
    check_state("odd", a, dict(a))
    with pytest.raises(
        ValueError,
        match=r"device env odd, state y: expected float32 \[2\] on cpu after a step, got float32 "
        r"\[3\]",
    ):
        check_state("odd", a, b)
    with pytest.raises(
        ValueError,
        match=r"device env odd, state: trees differ: expected keys \['x', 'y'\], got \['x'\]",
    ):
        check_state("odd", a, {"x": a["x"]})


class Silent(CartPole):
    autoreset: ClassVar[Any] = None


def nothing() -> Any:
    return object()


BAD = [
    ("cartpol", {}, "unknown device env 'cartpol'; did you mean 'cartpole'"),
    (
        "cartpole",
        {"max_steps": 3},
        "device:cartpole takes no argument 'max_steps'; did you mean 'max_episode_steps'",
    ),
    (
        f"{__name__}:Silent",
        {},
        "expected autoreset = 'next_step' or 'same_step', whichever is true of an episode's end, "
        "got None",
    ),
    (
        f"{__name__}:nothing",
        {},
        "expected an env with 'observation' (equipoise.device_envs.DeviceEnv), got object, which",
    ),
    (
        "cartpole",
        {"max_episode_steps": -1},
        "max_episode_steps: expected a number of steps, or 0 for no limit, got -1",
    ),
    (f"{__name__}:nowhere", {}, "unknown function 'nowhere'"),
]


@pytest.mark.parametrize(("name", "kwargs", "said"), BAD)
def test_what_is_no_device_env_is_refused(name: str, kwargs: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:
        make_device_env(name, kwargs, streams=2)
    assert said in str(error.value)


class Doubles(CartPole):
    def observe(self, state: Any) -> Any:
        return super().observe(state).double()


class Integers(CartPole):
    def advance(self, state: Any, action: Any) -> Any:
        after, reward, ends = super().advance(state, action)
        return after, reward.long(), ends


class Broad(CartPole):
    def advance(self, state: Any, action: Any) -> Any:
        after, reward, ends = super().advance(state, action)
        return after, reward[:, None], ends


class Floats(CartPole):
    def advance(self, state: Any, action: Any) -> Any:
        after, reward, ends = super().advance(state, action)
        return after, reward, ends.float()


class Pair(CartPole):
    def advance(self, state: Any, action: Any) -> Any:
        return super().advance(state, action)[:2]


class Drifting(CartPole):
    def observe(self, state: Any) -> Any:
        return super().observe(state)[:, :4]

    def advance(self, state: Any, action: Any) -> Any:
        after, reward, ends = super().advance(state, action)
        return torch.cat([after, after], 1), reward, ends


class Texts(CartPole):
    def __init__(self) -> None:
        super().__init__()
        self.observation = spaces.Text(3)


UNFIT: list[tuple[type, str]] = [
    (Texts, "make it a Box of bytes of a fixed length, padded"),
    (Doubles, "Doubles, obs: expected float32 [3, 4] on cpu, got float64 [3, 4] on cpu"),
    (Integers, "Integers, reward: expected float32 [3] on cpu, got int64 [3] on cpu"),
    (
        Broad,
        "advance: expected reward float32 [3] and terminated bool [3], got float32 [3, 1] and bool "
        "[3]",
    ),
    (
        Floats,
        "advance: expected reward float32 [3] and terminated bool [3], got float32 [3] and float32 "
        "[3]",
    ),
    (
        Pair,
        "Pair, step: expected rows, got ValueError: not enough values to unpack (expected 3, got "
        "2)",
    ),
    (
        Drifting,
        "Drifting, state inner: expected float32 [3, 4] on cpu after a step, got float32 [3, 8] on "
        "cpu",
    ),
]


@pytest.mark.parametrize(("kind", "said"), UNFIT)
def test_an_envs_rows_are_looked_at_before_a_run_begins(
    kind: type, said: str, tmp_path: Path
) -> None:
    name = f"{__name__}:{kind.__name__}"
    with pytest.raises(ValueError) as error:
        make(EnvFactory(target=f"device:{name}"), streams=np.arange(3), seed=0)
    assert said in str(error.value)
    with pytest.raises(ValueError, match=kind.__name__):
        api.start(f"device:{name}", "ppo", on="serial", out=tmp_path / "run", steps=1000)
    assert not (tmp_path / "run").exists()


def test_a_step_after_a_cut_that_ends_at_once_stays_a_seam() -> None:
    class Short:
        """Episodes of one step, all cut."""

        observation, action = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        autoreset, exact = "same_step", True

        def reset(self, seed: int, streams: torch.Tensor) -> Any:
            no = torch.zeros_like(streams, dtype=torch.bool)
            return {}, TimeStep(
                obs=no[:, None].float(),
                reward=no.float(),
                terminated=no,
                truncated=no,
                first=~no,
                valid=no,
                stream=streams,
            )

        def step(self, state: Any, action: torch.Tensor) -> Any:
            yes = torch.ones_like(action, dtype=torch.bool)
            obs = yes[:, None].float()
            return {}, TimeStep(
                obs=-obs,
                reward=yes.float(),
                terminated=~yes,
                truncated=yes,
                first=yes,
                valid=yes,
                stream=action,
                final=obs,
            )

    env: Any = NextStep(Short())  # type: ignore[arg-type]
    state, _ = env.reset(0, torch.arange(1))
    rows = []
    for _ in range(4):
        state, ts = env.step(state, torch.zeros(1, dtype=torch.int64))
        rows.append(
            (
                float(ts.obs),
                float(ts.reward),
                bool(ts.truncated),
                bool(ts.first),
                bool(ts.valid),
                bool(ts.terminated),
            )
        )
    assert rows == [(1, 1, True, False, True, False), (-1, 0, False, True, False, False)] * 2
