"""Items as a replay cuts them: windows of a few rows of one stream, some of which cross an
episode's end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.learners.learner import Learner
from equipoise.learners.pool import ALONE
from equipoise.nets.threads import one_thread
from equipoise.types import TRAJECTORY_EDGES as EDGES
from equipoise.types import Batch, EnvSpec, Trajectory
from tests.returns.cases import streams

DISCRETE = EnvSpec(
    observation=spaces.Box(-1.0, 1.0, (3,), np.float32), action=spaces.Discrete(4, start=2)
)
BOX = EnvSpec(
    observation=spaces.Box(-1.0, 1.0, (3,), np.float32),
    action=spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
)


def drawn(spec: EnvSpec, rows: int, items: int, seed: int) -> Trajectory:
    """At random; the first row of every item is real. Some leaves are views that are not
    contiguous.
    """
    rng = np.random.default_rng(seed)
    mask, bootstrap = streams("next_step", rows, items, rng)
    mask[0] = True
    spec.action.seed(seed)
    action = np.array([[spec.action.sample() for _ in range(items)] for _ in range(rows)])
    obs = rng.normal(size=(items, rows + 1, 3)).astype(np.float32)
    if isinstance(spec.observation, spaces.Dict):
        allowed = rng.random((rows + 1, items, 4)) < 0.6
        allowed[..., 1] |= ~allowed.any(-1)
        whole: Any = {
            "obs": torch.from_numpy(obs).transpose(0, 1),
            "action_mask": torch.from_numpy(allowed.astype(np.int8)),
        }
    else:
        whole = torch.from_numpy(obs).transpose(0, 1)
    return trajectory(
        whole,
        torch.from_numpy(action),
        np.where(mask, rng.normal(size=(rows, items)), 0.0),
        mask=mask,
        bootstrap=bootstrap,
    )


def trajectory(
    obs: Any, action: Tensor, reward: Any, *, mask: Any = None, bootstrap: Any = None
) -> Trajectory:
    reward = torch.as_tensor(reward, dtype=torch.float32)
    rows, items = reward.shape
    ones = np.ones((rows, items), bool)
    return Trajectory(
        obs=obs,
        first=torch.zeros(rows + 1, items, dtype=torch.bool),
        action=action,
        behaviour={},
        reward=reward,
        mask=torch.as_tensor(ones if mask is None else mask),
        bootstrap=torch.as_tensor(ones if bootstrap is None else bootstrap),
        version=torch.zeros(rows, items, dtype=torch.int64),
        state={},
        context={"stream": torch.arange(items), "start": torch.zeros(items, dtype=torch.int64)},
    )


def batch(data: Trajectory, weight: Tensor | None = None, targets: Any = None) -> Batch:
    items = data.shape[1]
    weight = torch.ones(items) if weight is None else weight
    return Batch(
        data=data,
        keys=np.zeros((items, 2), np.int64),
        weight=weight,
        targets={} if targets is None else targets,
    )


def network(algorithm: Any, spec: EnvSpec, seed: int) -> Any:
    """With heads large enough for policies and values to differ."""
    torch.manual_seed(seed)
    net = algorithm.network(spec)
    if hasattr(net, "actor"):
        torch.nn.init.orthogonal_(net.actor.head.weight)
    return net


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def target(algorithm: Any, net: Any, target_net: Any, data: Trajectory, seed: int = 0) -> Any:
    """All that ``targets`` returns; ``target_net`` of the whole network."""
    with torch.no_grad():
        return algorithm.targets(
            net, algorithm.followed(target_net), data, rng=generator(seed), pool=ALONE
        )


def learn(
    algorithm: Any,
    net: Any,
    target_net: Any,
    data: Trajectory,
    group: str,
    weight: Tensor | None = None,
) -> Any:
    """The loss of one group, its gradient taken."""
    net.zero_grad()
    targets = target(algorithm, net, target_net, data)
    made = batch(data, weight, targets)
    out = algorithm.loss(
        net, algorithm.followed(target_net), made, group=group, step=0.0, rng=generator(1)
    )
    out.loss.backward()
    return out


def touched(net: Any) -> set[str]:
    """The parts of a network whose parameters have a gradient that is not zero."""
    return {
        name.split(".")[0]
        for name, p in net.named_parameters()
        if p.grad is not None and p.grad.any()
    }


def trained(
    algorithm: Any, spec: EnvSpec, made: Batch, updates: int, *, learning_rate: float
) -> Any:
    torch.manual_seed(0)
    optimizer = replace(algorithm.default_optimizer, learning_rate=learning_rate)
    learner = Learner(
        algorithm,
        algorithm.network(spec),
        optimizer=optimizer,
        schedule_updates=updates,
        seed=0,
        batch=made.data.shape[1],
    )
    # as a run's learner; several would wait for each other longer than they compute
    with one_thread():
        for _ in range(updates):
            learner.step(made)
    return learner.net


def cut_rows(data: Trajectory, rows: int) -> Trajectory:
    """The first of its rows."""

    def cut(name: str) -> Any:
        leaf = getattr(data, name)
        return (
            leaf
            if name in ("state", "context", "behaviour")
            else tree.map(lambda x: x[: rows + (name in EDGES)], leaf)
        )

    return Trajectory(**{name: cut(name) for name in Trajectory.__slots__})


def masked(spec: EnvSpec) -> EnvSpec:
    """The same with a mask of 4 actions in the observation."""
    observation = spaces.Dict({"obs": spec.observation, "action_mask": spaces.MultiBinary(4)})
    return replace(spec, observation=observation, mask=("action_mask",))
