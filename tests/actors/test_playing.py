"""The evaluator, a loaded policy and an actor's agent choose the same actions
for the same noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.actors.agent import ActingParts, LocalAgent, StreamNumbers
from equipoise.actors.episodes import Episodes
from equipoise.actors.evaluator import Evaluator
from equipoise.actors.forward.forward import Forward, LeanForward
from equipoise.actors.forward.noise import Noise
from equipoise.actors.playing import FixedPolicy, Playing, noise_of
from equipoise.actors.worker import PARTS
from equipoise.algorithms.apex_dqn import ApexDQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.sac import SAC
from equipoise.api import Player
from equipoise.clock import Clock
from equipoise.envs import make, observation_spec
from equipoise.envs.families.pettingzoo import SingleEnv
from equipoise.envs.spaces import ActionForm
from equipoise.experience.discard import Discard
from equipoise.experience.layout import RowSpec
from equipoise.types import EnvFactory, EnvSpec, TimeStep

STREAMS, ROWS, SEED = 4, 60, 7
POLICIES = {
    "gru": (IMPALA(core="gru"), "CartPole-v1"),
    "box": (PPO(), "Pendulum-v1"),
    "squashed": (SAC(random_steps=0), "Pendulum-v1"),
    "held noise": (SAC(random_steps=0, sde_every=3), "Pendulum-v1"),
    "ladder": (ApexDQN(), "CartPole-v1"),
}


class Recorded:
    """An env that notes the rows that it gave and the actions that it got."""

    def __init__(self, env: Any) -> None:
        self._env = SingleEnv(env, "main")
        self.spec = self._env.spec
        self.steps: list[TimeStep] = []
        self.actions: list[Any] = []

    def recv(self) -> dict[str, TimeStep]:
        rows: Any = self._env.recv()
        ts = rows["main"]
        fields = {name: getattr(ts, name) for name in TimeStep.__slots__}
        self.steps.append(
            TimeStep(
                **{name: None if x is None else tree.map(np.array, x) for name, x in fields.items()}
            )
        )
        return {"main": self.steps[-1]}

    def send(self, actions: Any) -> None:
        self.actions.append(np.array(actions["main"]))
        self._env.send(actions)

    def close(self) -> None:
        self._env.close()


class Heap:
    """Memory of this process."""

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)


class Fixed:
    """A store of one version."""

    def __init__(self, net: Any) -> None:
        self._net = net

    def fetch(self, newer_than: int = -1) -> Any:
        return None if newer_than >= 0 else (0, tree.named_tensors(self._net))


@pytest.fixture(params=POLICIES)
def played(request: pytest.FixtureRequest) -> Any:
    """(policy, spec, what an evaluation gave to it and got from it)."""
    algorithm, target = POLICIES[request.param]
    env: Any = Recorded(make(EnvFactory(target=target), streams=np.arange(STREAMS), seed=1))
    torch.manual_seed(0)
    spec = env.spec.policies["main"]
    net: Any = algorithm.network(spec)
    policy = FixedPolicy(algorithm=algorithm, net=net, noise=noise_of(algorithm, net, spec.action))
    exam = Evaluator({"main": policy}, env, envs=STREAMS, episodes=1000, seed=SEED, step=0)
    for _ in range(ROWS):
        exam.tick()
    exam.close()
    return policy, spec, env


def test_a_loaded_policy_draws_as_the_evaluator_does(played: Any) -> None:
    policy, spec, env = played
    player, form = (
        Player(policy, spec, meta={"env_steps": 0, "version": 0}, seed=SEED),
        ActionForm(spec.action, STREAMS),
    )
    for ts, action in zip(env.steps, env.actions, strict=True):
        np.testing.assert_array_equal(
            player.act(ts.obs, deterministic=False, first=ts.first), form(action)
        )


@pytest.mark.parametrize("kind", [Forward, LeanForward])
def test_an_agent_acts_as_the_evaluator_does(played: Any, kind: type[Forward]) -> None:
    policy, spec, env = played
    agent = agent_of(policy, spec, kind)
    for ts, action in zip(env.steps, env.actions, strict=True):
        agent.observe(ts)
        chosen = agent.action()
        if kind is Forward:
            np.testing.assert_array_equal(chosen, action)
        else:  # numpy's kernels round otherwise
            assert np.isclose(np.asarray(chosen), action, 1e-4, 1e-4).mean() >= 0.75


def agent_of(policy: FixedPolicy, spec: EnvSpec, kind: type[Forward]) -> LocalAgent:
    streams, algorithm, net = np.arange(STREAMS), policy.algorithm, policy.net
    obs, state = observation_spec(spec.observation), net.initial_state(1)
    with torch.inference_mode():
        action, behaviour, _ = algorithm.act(
            net,
            tree.torch_views(tree.zeros(tree.prepend(obs, 1))),
            torch.ones(1, dtype=torch.bool),
            state,
            explore=algorithm.explore(np.zeros(1, np.int64), STREAMS, 0),
            noise=torch.full((1, policy.noise.columns), 0.5),
        )

    def one(batch: Any) -> Any:
        return tree.map(lambda s: tree.ArraySpec(s.shape[1:], s.dtype), tree.spec(batch))

    number = tree.ArraySpec((), "int64")
    row = RowSpec(
        obs=obs,
        action=one(action),
        behaviour=one(behaviour),
        state=one(state),
        context={"stream": number, "start": number},
    )
    weights: Any = Fixed(net)
    return LocalAgent(
        acting=ActingParts(
            forward=kind(algorithm, net), weights=weights, noise=policy.noise, seed=SEED
        ),
        experience=Discard(row, ROWS // 3, STREAMS),
        episodes=Episodes(STREAMS, Heap(tree.nbytes(Episodes.layout()))),
        streams=StreamNumbers(numbers=streams, total=STREAMS, envs=STREAMS),
        unroll=ROWS // 3,
        clock=Clock(PARTS),
    )


@pytest.mark.few(1)
def test_given_noise_takes_the_place_of_the_seeds(played: Any) -> None:
    policy, _, env = played
    drawn, given, other = (
        Playing(policy, np.arange(STREAMS), deterministic=False, seed=seed)
        for seed in (SEED, SEED + 1, SEED + 1)
    )
    differs = False
    for row, ts in enumerate(env.steps):
        noise = policy.noise.draw(SEED, np.arange(STREAMS), np.full(STREAMS, row), 1)[0]
        wanted = np.array(drawn(ts.obs, ts.first))
        np.testing.assert_array_equal(given(ts.obs, ts.first, noise), wanted)
        differs |= bool((np.array(other(ts.obs, ts.first)) != wanted).any())
    assert differs


def test_the_rows_of_a_batch_begin_episodes_by_themselves() -> None:
    torch.manual_seed(0)
    spec = EnvSpec(
        observation=spaces.Box(-1, 1, (5,), np.float32), action=spaces.Box(-1, 1, (2,), np.float32)
    )
    algorithm = PPO(core="lstm")
    policy = FixedPolicy(algorithm=algorithm, net=algorithm.network(spec), noise=Noise(2))
    two, alone = (Player(policy, spec, meta={"env_steps": 0, "version": 0}) for _ in range(2))
    obs = np.random.default_rng(0).normal(size=(6, 2, 5)).astype(np.float32)
    for t in range(3):
        two.act(obs[t])
    acted: Any = None
    for t in range(3, 6):  # the second row's episode begins anew, the first one's goes on
        acted = two.act(obs[t], first=[False, t == 3])
        np.testing.assert_allclose(acted[1], alone.act(obs[t, 1]), rtol=1e-5, atol=1e-6)
    assert not np.allclose(acted[0], alone.act(obs[5, 0]), rtol=1e-5)


def test_noise_goes_on_after_a_reset() -> None:
    torch.manual_seed(0)
    spec = EnvSpec(
        observation=spaces.Box(-1, 1, (5,), np.float32), action=spaces.Box(-9, 9, (1,), np.float32)
    )
    algorithm = PPO()
    policy = FixedPolicy(algorithm=algorithm, net=algorithm.network(spec), noise=Noise(1))
    player = Player(policy, spec, meta={"env_steps": 0, "version": 0})
    drawn = []
    for count in (1, 1, 3, 1, 2):
        player.reset()
        drawn.append(float(player.act(np.zeros((count, 5)), deterministic=False)[0, 0]))
    assert len(set(drawn)) == len(drawn)
