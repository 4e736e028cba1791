"""What dqn, sac, td3 and their kin share: n-step returns of items, across ends of every kind;
weights, priorities, refusals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.algorithms._off_policy import ahead
from equipoise.algorithms.bc import BC
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.qr_dqn import QRDQN
from equipoise.algorithms.sac import SAC, policy
from equipoise.algorithms.td3 import TD3
from equipoise.algorithms.tqc import TQC
from equipoise.nets.vision import Vision
from equipoise.programs.program import algorithm_class
from equipoise.returns import nstep
from equipoise.types import EnvSpec, Trajectory
from tests.algorithms.items import (
    BOX,
    DISCRETE,
    batch,
    drawn,
    learn,
    masked,
    network,
    target,
    touched,
    trajectory,
)

GAMMA, REWARD = 0.9, 2.0
# of every state, where each step gives the reward and the clock is no end
VALUE = REWARD / (1 - GAMMA)
SMALL: dict[str, Any] = {"hidden": (16, 16), "gamma": GAMMA}
KINDS: dict[str, tuple[Any, EnvSpec]] = {
    "dqn": (DQN(**SMALL), DISCRETE),
    "dqn plain": (DQN(double=False, **SMALL), DISCRETE),
    "c51": (DQN(distribution="c51", v_min=0.0, v_max=2 * VALUE, atoms=101, **SMALL), DISCRETE),
    "quantile": (DQN(distribution="quantile", quantiles=8, **SMALL), DISCRETE),
    "sac": (SAC(temperature=1e-9, learn_temperature=False, **SMALL), BOX),
    "discrete sac": (SAC(temperature=1e-9, learn_temperature=False, **SMALL), DISCRETE),
    "td3": (TD3(**SMALL), BOX),
    "qr_dqn": (QRDQN(quantiles=8, **SMALL), DISCRETE),
    "tqc": (TQC(temperature=1e-9, learn_temperature=False, quantiles=5, **SMALL), BOX),
}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("seed", range(20))
def test_ahead_is_the_nstep_return_of_row_0(seed: int, n: int) -> None:
    data = drawn(BOX, 7, 40, seed)
    value = torch.randn(8, 40, generator=torch.Generator().manual_seed(seed))
    expected = nstep(
        reward=data.reward, discount=data.discount(GAMMA), value=value, n=n, mask=data.mask
    ).target[0]
    places = trajectory(
        value.unsqueeze(-1), data.action, data.reward, mask=data.mask, bootstrap=data.bootstrap
    )
    reward, discount, obs = ahead(places, GAMMA, n)
    torch.testing.assert_close(reward + discount * obs.squeeze(-1), expected)


def constant(net: Any, critic: Any) -> None:
    """Every value is VALUE."""
    for p in critic.parameters():
        p.data.zero_()
    if isinstance(getattr(net, "head", None), torch.nn.Linear):
        net.head.bias.data.fill_(VALUE)
    else:
        critic.twins.biases[-1].data.fill_(VALUE)


def ending(n: int, where: int, terminated: bool, truncated: bool, autoreset: str) -> Trajectory:
    """One window of a constant reward whose row ``where`` ends its episode; another episode, of
    other values, follows.

    NEXT_STEP has the true final observation in the row after, a seam; and so has SAME_STEP after a
    truncation, which is held (envs.adapter). After a termination SAME_STEP begins the next episode
    at once.
    """
    rows = max(n, where + 3)
    reward, mask, bootstrap = (
        np.full((rows, 1), REWARD),
        np.ones((rows, 1), bool),
        np.ones((rows, 1), bool),
    )
    if terminated or truncated:
        bootstrap[where] = not terminated
        if where + 1 < rows:
            seam = autoreset == "next_step" or not terminated
            mask[where + 1], reward[where + 1] = not seam, 0.0 if seam else 1000.0
        reward[where + 2 :] = 1000.0  # what must not be seen
    return trajectory(
        torch.randn(rows + 1, 1, 3),
        torch.zeros(rows, 1, dtype=torch.int64),
        reward,
        mask=mask,
        bootstrap=bootstrap,
    )


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
def test_the_truth_table(
    name: str, n: int, terminated: bool, truncated: bool, autoreset: str
) -> None:
    """Truncation goes on with the value, r / (1 - gamma); termination ends there: r, where it is
    the first row.
    """
    given, spec = KINDS[name]
    algorithm = replace(given, n_step=n)
    assert algorithm.item_rows == n
    net = network(algorithm, spec, 0)
    target_net = network(algorithm, spec, 1)
    critic = algorithm.followed(target_net) if name != "td3" else target_net.critic
    if name == "c51":  # all on the atom of VALUE, which is the middle one
        for p in critic.parameters():
            p.data.zero_()
        target_net.head.bias.data.view(4, -1)[:, 50] = 1e3
    else:
        constant(target_net, critic)
    for where in range(n + 1):
        data = ending(n, where, terminated, truncated, autoreset)
        data = Trajectory(**{k: cut(getattr(data, k), n, k) for k in Trajectory.__slots__})
        got = target(algorithm, net, target_net, data)["target"]
        if name == "c51":
            got = (got * algorithm.support(got)).sum(-1)
        rewards = min(where + 1, n)
        expected = (
            REWARD * sum(GAMMA**i for i in range(rewards)) if terminated and where < n else VALUE
        )
        assert got.mean().item() == pytest.approx(expected, rel=1e-5), (where, rewards)
        if where == 0 and terminated:
            assert got.mean().item() == pytest.approx(REWARD, rel=1e-5)


def cut(leaf: Any, n: int, name: str) -> Any:
    return (
        leaf
        if name in ("state", "context", "behaviour")
        else leaf[: n + (name in ("obs", "first"))]
    )


CRITICS = [*KINDS, "bc"]


def made(name: str) -> tuple[Any, EnvSpec, str]:
    if name == "bc":
        return BC(hidden=(16,)), DISCRETE, "all"
    algorithm, spec = KINDS[name]
    return algorithm, spec, "all" if isinstance(algorithm, DQN) else "critic"


@pytest.mark.parametrize("name", CRITICS)
def test_weights_weigh_the_loss_and_not_the_priority(name: str) -> None:
    algorithm, spec, group = made(name)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    data, weight = drawn(spec, 1, 6, 0), torch.tensor([0.0, 0.5, 1.0, 0.25, 0.0, 1.0])
    each = [learn(algorithm, net, target_net, one(data, i), group).loss.item() for i in range(6)]
    plain, weighed = (learn(algorithm, net, target_net, data, group, w) for w in (None, weight))
    if name not in ("sac", "td3", "tqc"):  # whose noise is that of the place in the batch
        assert plain.loss.item() == pytest.approx(sum(each), rel=1e-4)
        assert weighed.loss.item() == pytest.approx(
            sum(w * x for w, x in zip(weight.tolist(), each, strict=True)), rel=1e-4
        )
    assert weighed.loss.item() != pytest.approx(plain.loss.item(), rel=0.01)
    assert plain.count.item() == weighed.count.item() == 6
    assert torch.equal(plain.priority, weighed.priority)
    learn(algorithm, net, target_net, data, group, torch.zeros(6))
    assert touched(net) == set()


def one(data: Trajectory, i: int) -> Trajectory:
    return Trajectory(
        **{
            k: tree.map(
                lambda x, k=k: x[i : i + 1] if k in ("state", "context") else x[:, i : i + 1],
                getattr(data, k),
            )
            for k in Trajectory.__slots__
        }
    )


@pytest.mark.parametrize("name", KINDS)
def test_a_priority_is_the_td_error(name: str) -> None:
    algorithm, spec, group = made(name)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    data = drawn(spec, 1, 6, 0)
    wanted = target(algorithm, net, target_net, data)["target"]
    out = learn(algorithm, net, target_net, data, group)
    with torch.no_grad():
        if isinstance(algorithm, DQN):
            q = net(data.obs[0])[torch.arange(6), data.action[0] - 2]
            if name == "c51":
                q, wanted = ((p * algorithm.support(q)).sum(-1) for p in (q.softmax(-1), wanted))
            else:
                q, wanted = q.mean(-1), wanted.mean(-1)
            error = (q - wanted).abs()
        elif spec is BOX:
            scaled = torch.stack([data.action[0][:, 0] / 2, data.action[0][:, 1] * 2 - 1], -1)
            q = net.critic(data.obs[0], scaled)
            error = (
                (q.mean((0, 2)) - wanted.mean(0)).abs()
                if name == "tqc"
                else (q - wanted).abs().mean(0)
            )
        else:
            q = net.critic(data.obs[0])[:, torch.arange(6), data.action[0] - 2]
            error = (q - wanted).abs().mean(0)
    torch.testing.assert_close(out.priority, error)
    assert out.priority.dtype == torch.float32 and not out.priority.requires_grad
    total, count = out.metrics["td_error"]
    assert float(total / count) == pytest.approx(error.mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_no_gradient_reaches_the_target_network_or_the_target(name: str) -> None:
    algorithm, spec, group = made(name)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    learn(algorithm, net, target_net, drawn(spec, 3, 6, 0), group)
    assert all(p.grad is None for p in target_net.parameters())
    assert touched(net) == ({"torso", "head"} if group == "all" else {"critic"})


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_acting_is_a_function_of_the_noise_and_stays_in_the_space(name: str) -> None:
    algorithm, spec, _ = made(name)
    net = network(algorithm, spec, 0)
    obs, first = torch.randn(500, 3), torch.zeros(500, dtype=torch.bool)
    noise = torch.rand(500, 3)
    noise[0], noise[1] = 0.5**24, 1 - 0.5**24
    for step in (0, 10**6):
        explore = algorithm.explore(np.arange(500), 500, step)
        actions = [
            algorithm.act(net, obs, first, {}, explore=explore, noise=noise) for _ in range(2)
        ]
        assert torch.equal(actions[0][0], actions[1][0]) and actions[0][1:] == ({}, {})
        other, _, _ = algorithm.act(net, obs, first, {}, explore=explore, noise=1 - noise)
        assert not torch.equal(actions[0][0], other)
        best, state = algorithm.best(net, obs, first, {})
        assert state == {}
        for action in (actions[0][0], best):
            assert all(spec.action.contains(a) for a in action.numpy())
    assert algorithm.network(spec).initial_state(3) == {}


@pytest.mark.parametrize("name", ["dqn", "dqn plain", "c51", "quantile", "discrete sac"])
def test_what_a_mask_forbids_is_never_done_and_never_believed(name: str) -> None:
    algorithm, spec = KINDS[name][0], masked(DISCRETE)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    data = drawn(spec, 1, 400, 0)
    obs, mask = tree.index(data.obs, 1), data.obs["action_mask"][1]
    noise = torch.rand(400, 3)
    for step in (0, 10**6):
        action, _, _ = algorithm.act(
            net,
            obs,
            data.first[1],
            {},
            explore=algorithm.explore(np.arange(400), 400, step),
            noise=noise,
        )
        assert mask[torch.arange(400), action - 2].all()
        assert len(set(action.tolist())) == 4
    assert mask[torch.arange(400), algorithm.best(net, obs, data.first[1], {})[0] - 2].all()
    if name == "discrete sac":
        assert not policy(net.actor(obs)[0])[0][mask == 0].any()
        return
    with torch.no_grad():
        q, of_target = algorithm.mean(net(obs)), target_net(obs)
        judged = q if algorithm.double else algorithm.mean(of_target)
    best = [max((judged[i, a].item(), a) for a in range(4) if mask[i, a])[1] for i in range(400)]
    assert (judged.argmax(-1) != torch.tensor(best)).sum() > 50, "the mask decides often"
    forced = replace(data, action=torch.tensor(best)[None] + 2)
    if name != "c51":
        expected = data.reward[0][:, None] + GAMMA * data.bootstrap[0][:, None] * target_net.taken(
            of_target, forced.action[0]
        )
        torch.testing.assert_close(target(algorithm, net, target_net, data)["target"], expected)


def test_a_row_that_forbids_all_is_as_one_without_a_mask() -> None:
    """The last observation of an episode may have any mask; its value is asked for where a clock
    cut it.
    """
    algorithm, spec = KINDS["dqn"][0], masked(DISCRETE)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    data = drawn(spec, 1, 50, 0)
    targets = []
    for mask in (0, 1):
        obs = data.obs | {"action_mask": torch.full_like(data.obs["action_mask"], mask)}
        targets.append(target(algorithm, net, target_net, replace(data, obs=obs))["target"])
    assert torch.equal(*targets)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dqn", "sac", "discrete sac", "td3", "tqc", "bc"])
def test_images_and_dicts_are_seen(name: str) -> None:
    algorithm, spec, group = made(name)
    image = spaces.Dict(
        {
            "screen": spaces.Box(0, 255, (2, 36, 36), np.uint8),
            "speed": spaces.Box(-1, 1, (3,), np.float32),
        }
    )
    spec = EnvSpec(observation=image, action=spec.action)
    net, target_net = algorithm.network(spec), algorithm.network(spec)
    obs = {
        "screen": torch.randint(0, 255, (2, 5, 2, 36, 36), dtype=torch.uint8),
        "speed": torch.randn(2, 5, 3),
    }
    data = drawn(spec, 1, 5, 0)
    data = trajectory(obs, data.action, data.reward)
    out = learn(algorithm, net, target_net, data, group)
    assert out.priority.shape == (5,) and any(isinstance(m, Vision) for m in net.modules())
    if name in ("sac", "discrete sac", "td3", "tqc"):
        learn(algorithm, net, target_net, data, "actor")
        assert touched(net) == {"actor"}
        mine, its = (
            sum(isinstance(m, Vision) for m in part.modules()) for part in (net.actor, net.critic)
        )
        assert (mine, its) == (1, 1)
    algorithm.best(net, tree.index(obs, 0), data.first[0], {})


@pytest.mark.parametrize(
    ("name", "action", "said"),
    [
        ("dqn", BOX.action, "expected a Discrete"),
        ("td3", DISCRETE.action, "td3 expected a Box"),
        ("qr_dqn", BOX.action, "expected a Discrete"),
        ("tqc", DISCRETE.action, "tqc expected a Box"),
        ("crossq", DISCRETE.action, "crossq expected a Box"),
        ("sac", spaces.MultiBinary(2), "sac expected a Box or a Discrete"),
        (
            "sac",
            spaces.Box(-np.inf, 1.0, (2,)),
            "sac: expected finite bounds with low < high for action, got low -inf",
        ),
        ("td3", spaces.Box(-1.0, np.inf, (2,)), "td3: expected finite bounds"),
    ],
)
def test_what_it_cannot_act_in_is_refused(name: str, action: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        algorithm_class(name)().network(EnvSpec(observation=BOX.observation, action=action))


def test_the_batch_is_left_as_it_was() -> None:
    """Several learn from the same rows of a ring."""
    for name in CRITICS:
        algorithm, spec, group = made(name)
        data = drawn(spec, 3, 4, 0)
        before = [leaf.clone() for leaf in (data.obs, data.reward, data.mask, data.action)]
        learn(algorithm, network(algorithm, spec, 0), network(algorithm, spec, 1), data, group)
        assert all(
            torch.equal(a, b)
            for a, b in zip(before, (data.obs, data.reward, data.mask, data.action), strict=True)
        )
        assert batch(data).keys.shape == (4, 2)
