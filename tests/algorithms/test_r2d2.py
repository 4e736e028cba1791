"""R2D2 against loops over rows, from the paper's equations: targets, ends, burn-in, stored state,
priorities, Retrace.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.algorithms._off_policy import ladder
from equipoise.algorithms.r2d2 import R2D2
from equipoise.types import EnvSpec, Trajectory
from tests.algorithms.items import DISCRETE, batch, drawn, generator, masked, network

ITEMS, GAMMA, EPS = 9, 0.9, 1e-3
SMALL: dict[str, Any] = {
    "hidden": (8,),
    "core_size": 6,
    "burn_in": 3,
    "length": 6,
    "n_step": 3,
    "gamma": GAMMA,
}


def windows(algorithm: R2D2, net: Any, seed: int, spec: EnvSpec = DISCRETE) -> Trajectory:
    """Of several episodes, with a state that is not zero, and behaviour at random."""
    data, rng = drawn(spec, algorithm.item_rows, ITEMS, seed), generator(seed)
    first = torch.zeros(algorithm.item_rows + 1, ITEMS, dtype=torch.bool)
    first[1:] = ~data.mask
    state = tree.map(lambda x: torch.randn(x.shape, generator=rng), net.initial_state(ITEMS))
    behaviour = {name: torch.randn(data.reward.shape, generator=rng) for name in ("q", "value")}
    return replace(data, first=first, state=state, behaviour=behaviour)


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + EPS * x


def h_inverse(x: float) -> float:
    root = (math.sqrt(1 + 4 * EPS * (abs(x) + 1 + EPS)) - 1) / (2 * EPS)
    return math.copysign(root**2 - 1, x)


def by_steps(algorithm: R2D2, net: Any, data: Trajectory) -> Any:
    """Q [item_rows, ITEMS, actions], a row at a time from the window's first."""
    state = data.state if algorithm.stored_state else tree.map(torch.zeros_like, data.state)
    rows = []
    with torch.no_grad():
        for t in range(algorithm.item_rows):
            q, state = net.step(tree.index(data.obs, t), data.first[t], state)
            rows.append(q[..., 0])
    return torch.stack(rows).double().numpy()


def n_step_target(algorithm: R2D2, data: Trajectory, b: int, t: int, value: Any) -> float:
    """``value`` [item_rows], in rescaled space; y_t of section 2.3."""
    total, scale, s = 0.0, 1.0, t
    for _ in range(algorithm.n_step):
        total += scale * float(data.reward[s, b])
        going_on = bool(data.bootstrap[s, b])
        scale *= algorithm.gamma if going_on else 0.0
        s += 1
        if not going_on or not data.mask[s, b]:  # obs[s] of a seam is what the episode ended with
            break
    if scale:
        total += scale * (h_inverse(value[s]) if algorithm.rescale else value[s])
    return h(total) if algorithm.rescale else total


def retrace_target(
    algorithm: R2D2, data: Trajectory, b: int, t: int, q: Any, value: Any, best: Any
) -> float:
    """Munos et al. 2016, Eq. (3), to the end of the episode or of what the
    window knows a value of.
    """
    inverse = h_inverse if algorithm.rescale else float
    total, scale, s = inverse(q[t]), 1.0, t
    while True:
        going_on = bool(data.bootstrap[s, b])
        following = algorithm.gamma * inverse(value[s + 1]) if going_on else 0.0
        total += scale * (float(data.reward[s, b]) + following - inverse(q[s]))
        s += 1
        if not going_on or s == algorithm.item_rows - 1 or not data.mask[s, b] or not best[s]:
            break
        scale *= algorithm.gamma * algorithm.lambda_
    return h(total) if algorithm.rescale else total


def twin(algorithm: R2D2, net: Any, target_net: Any, data: Trajectory) -> tuple[Any, Any]:
    """The errors [length, ITEMS], nan where no row is; the priorities."""
    mine, theirs = by_steps(algorithm, net, data), by_steps(algorithm, target_net, data)
    action = data.action.numpy() - 2
    error, priority = np.full((algorithm.length, ITEMS), np.nan), np.zeros(ITEMS)
    for b in range(ITEMS):
        best = [int(np.argmax(row)) for row in mine[:, b]]
        value = [theirs[t, b, best[t]] for t in range(algorithm.item_rows)]
        taken = [theirs[t, b, action[t, b]] for t in range(algorithm.item_rows)]
        for i in range(algorithm.length):
            t = algorithm.burn_in + i
            if not data.mask[t, b]:
                continue
            if algorithm.target == "nstep":
                y = n_step_target(algorithm, data, b, t, value)
            else:
                y = retrace_target(
                    algorithm,
                    data,
                    b,
                    t,
                    taken,
                    value,
                    [int(x) == a for x, a in zip(action[:, b], best, strict=True)],
                )
            error[i, b] = y - mine[t, b, action[t, b]]
        absolute = np.abs(error[:, b][~np.isnan(error[:, b])])
        priority[b] = (
            algorithm.eta * absolute.max() + (1 - algorithm.eta) * absolute.mean()
            if len(absolute)
            else 0.0
        )
    return error, priority


def learn(algorithm: R2D2, net: Any, target_net: Any, data: Trajectory, weight: Any = None) -> Any:
    net.zero_grad()
    out = algorithm.loss(
        net, target_net, batch(data, weight), group="all", step=0.0, rng=generator()
    )
    assert out is not None
    out.loss.backward()
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"core": "gru"},
        {"core": "none"},
        {"burn_in": 0},
        {"n_step": 1},
        {"n_step": 9},
        {"length": 1},
        {"rescale": False},
        {"stored_state": False},
        {"target": "retrace"},
        {"target": "retrace", "lambda_": 0.5, "rescale": False},
        {"dueling": False, "eta": 0.3},
    ],
)
def test_the_loss_is_the_papers_loop(options: dict[str, Any], seed: int) -> None:
    algorithm = R2D2(**{**SMALL, **options})
    net, target_net = network(algorithm, DISCRETE, 0), network(algorithm, DISCRETE, 1)
    data = windows(algorithm, net, seed)
    error, priority = twin(algorithm, net, target_net, data)
    weight = torch.rand(ITEMS, generator=generator(seed))
    out = learn(algorithm, net, target_net, data, weight)
    real = ~np.isnan(error)
    assert (
        out.count.item()
        == real.sum()
        == data.mask[algorithm.burn_in :][: algorithm.length].sum().item()
    )
    expected = (np.where(real, 0.5 * error**2, 0.0) * weight.numpy()).sum()
    assert out.loss.item() == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(out.priority.numpy(), priority, rtol=1e-3, atol=1e-4)
    total, count = out.metrics["td_error"]
    assert float(total / count) == pytest.approx(np.abs(error[real]).mean(), rel=1e-4)
    mine, rows = (
        by_steps(algorithm, net, data)[algorithm.burn_in :][: algorithm.length],
        data.behaviour["q"].numpy(),
    )
    for name, row in (("first", 0), ("last", algorithm.length - 1)):
        t = algorithm.burn_in + row
        there = [b for b in range(ITEMS) if data.mask[t, b]]
        apart = [
            abs(mine[row, b, data.action[t, b] - 2] - rows[t, b]) / np.abs(mine[:, b]).max()
            for b in there
        ]
        total, count = out.metrics[f"discrepancy/{name}"]
        assert int(count) == len(there) and float(total) == pytest.approx(
            sum(apart), rel=1e-4, abs=1e-6
        )


REWARD = 2.0
VALUE = REWARD / (1 - GAMMA)


@pytest.mark.parametrize("target", ["nstep", "retrace"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
def test_the_truth_table(target: Any, terminated: bool, truncated: bool, autoreset: str) -> None:
    """Every value is r / (1 - gamma): a row before a truncation has it as target, one before a
    termination what is left.
    """
    algorithm = R2D2(**{**SMALL, "target": target, "lambda_": 1.0, "dueling": False})
    net, target_net = (network(algorithm, DISCRETE, seed) for seed in (0, 1))
    for p in (*net.parameters(), *target_net.parameters()):
        p.data.zero_()
    net.head.bias.data[0] = 1.0  # the best is action 0 + start
    target_net.head.bias.data.fill_(h(VALUE))
    rows = algorithm.item_rows
    for where in range(rows):
        reward, mask, bootstrap = (
            np.full((rows, 1), REWARD),
            np.ones((rows, 1), bool),
            np.ones((rows, 1), bool),
        )
        if terminated or truncated:
            if autoreset == "next_step":
                bootstrap[where] = not terminated
                if where + 1 < rows:
                    mask[where + 1], reward[where + 1] = False, 0.0
            else:  # the value of the final observation is in the reward (envs.adapter)
                bootstrap[where] = False
                reward[where] += 0.0 if terminated else GAMMA * VALUE
        data = drawn(DISCRETE, rows, 1, 0)
        data = replace(
            data,
            reward=torch.as_tensor(reward, dtype=torch.float32),
            mask=torch.as_tensor(mask),
            bootstrap=torch.as_tensor(bootstrap),
            action=torch.full((rows, 1), 2),
            state=net.initial_state(1),
        )
        theirs = torch.full((rows - algorithm.burn_in, 1), h(VALUE))
        taken = torch.ones(rows - algorithm.burn_in - 1, 1, dtype=torch.bool)
        got = algorithm.of_rows(data, theirs[:-1], theirs, taken)[:, 0]
        for i in range(algorithm.length):
            t = algorithm.burn_in + i
            ends = terminated and t <= where
            reach = rows - algorithm.burn_in if target == "retrace" else algorithm.n_step
            left = where - t + 1
            sum_left = REWARD * sum(GAMMA**k for k in range(left))
            expected = sum_left if ends and left <= reach and where < rows - 1 else VALUE
            if mask[t, 0]:
                assert got[i].item() == pytest.approx(h(expected), rel=1e-4), (where, t)


def test_no_gradient_reaches_the_burn_in_the_state_or_the_target() -> None:
    algorithm = R2D2(**SMALL)
    net, target_net = network(algorithm, DISCRETE, 0), network(algorithm, DISCRETE, 1)
    data = windows(algorithm, net, 0)
    ones = torch.ones_like(data.mask)
    data = replace(data, mask=ones, bootstrap=ones, first=torch.zeros_like(data.first))
    obs = data.obs.clone().requires_grad_()
    state = tree.map(lambda x: x.clone().requires_grad_(), data.state)
    learn(algorithm, net, target_net, replace(data, obs=obs, state=state))
    seen = obs.grad.abs().sum((1, 2)).bool().tolist()
    # Not the last rows either: they are only looked at by what gives no gradient.
    assert seen == [False] * 3 + [True] * 6 + [False] * (algorithm.item_rows + 1 - 9)
    assert all(leaf.grad is None for leaf in tree.leaves(state)) and all(
        p.grad is None for p in target_net.parameters()
    )


@pytest.mark.parametrize("stored", [True, False])
def test_the_stored_state_is_where_a_window_begins(stored: bool) -> None:
    algorithm = R2D2(**{**SMALL, "stored_state": stored})
    net, target_net = network(algorithm, DISCRETE, 0), network(algorithm, DISCRETE, 1)
    data = windows(algorithm, net, 0)
    data = replace(data, first=torch.zeros_like(data.first))
    zero = replace(data, state=net.initial_state(ITEMS))
    mine, its = (learn(algorithm, net, target_net, one).loss.item() for one in (data, zero))
    assert (mine != its) == stored
    begins = torch.zeros_like(data.first)
    begins[0] = True  # an episode's first row needs none
    mine, its = (
        learn(algorithm, net, target_net, replace(one, first=begins)).loss.item()
        for one in (data, zero)
    )
    assert mine == its


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"rescale": False}])
def test_the_first_priority_is_by_what_the_actor_said(options: dict[str, Any], seed: int) -> None:
    algorithm = R2D2(**{**SMALL, **options})
    net = network(algorithm, DISCRETE, 0)
    data = windows(algorithm, net, seed)
    got = algorithm.priority(replace(data, obs={}, state={})).numpy()
    for b in range(ITEMS):
        rows = [t for t in range(3, 9) if data.mask[t, b]]
        value = data.behaviour["value"][:, b].double().numpy()
        q = data.behaviour["q"][:, b].numpy()
        errors = [abs(n_step_target(algorithm, data, b, t, value) - q[t]) for t in rows]
        assert got[b] == pytest.approx(
            0.9 * max(errors) + 0.1 * sum(errors) / len(errors), rel=1e-3
        )


@torch.inference_mode()
def test_it_acts_by_the_network_and_says_q_and_value() -> None:
    algorithm, spec = R2D2(**SMALL), masked(DISCRETE)
    net = network(algorithm, spec, 0)
    data = drawn(spec, 1, 400, 0)
    obs, first, state = tree.index(data.obs, 0), data.first[0], net.initial_state(400)
    noise = torch.rand(400, 2, generator=generator())
    q, after = net.step(obs, first, state)
    allowed = obs["action_mask"].bool()
    best = torch.where(allowed, q[..., 0], -1e9).argmax(-1)
    for epsilon in (0.0, 0.5, 1.0):
        explore = {"epsilon": torch.full((400,), epsilon)}
        action, behaviour, went = algorithm.act(
            net, obs, first, state, explore=explore, noise=noise
        )
        assert allowed[torch.arange(400), action - 2].all()
        assert torch.equal(behaviour["q"], q[torch.arange(400), action - 2, 0])
        assert torch.equal(behaviour["value"], q[torch.arange(400), best, 0])
        assert all(
            torch.equal(a, b) for a, b in zip(tree.leaves(went), tree.leaves(after), strict=True)
        )
        greedy = (noise[:, -1] >= epsilon) & (action - 2 != best)
        assert not greedy.any() and ((action - 2 != best).float().mean() > 0.2) == (epsilon > 0)
    assert torch.equal(algorithm.best(net, obs, first, state)[0], best + 2)


@pytest.mark.parametrize("streams", [2, 5, 360])
def test_the_ladder_is_the_papers(streams: int) -> None:
    expected = [0.4 ** (1 + i / (streams - 1) * 7) for i in range(streams)]
    np.testing.assert_allclose(
        ladder(np.arange(streams), streams, 0.4, 7.0).numpy(), expected, rtol=1e-6
    )
    # an actor's rungs are those of its streams
    some = R2D2().explore(np.array([1, 0]), streams, 10**6)["epsilon"]
    np.testing.assert_allclose(some.numpy(), [expected[1], expected[0]], rtol=1e-6)
    assert ladder(np.zeros(1), 1, 0.4, 7.0).tolist() == pytest.approx([0.4])


def test_a_fresh_core_remembers_about_as_long_as_its_span() -> None:
    def left(span: int) -> float:
        net = network(R2D2(core_span=span, **SMALL | {"core_size": 64}), DISCRETE, 0)
        x, first = torch.zeros(51, 2, 3), torch.zeros(51, 2, dtype=torch.bool)
        x[0, 0] = 1.0
        with torch.no_grad():
            _, state = net.unroll(x, first, net.initial_state(2))
        return float((state["c"][0] - state["c"][1]).norm())

    assert left(0) < 1e-6 < 1e-3 < left(60)
    with pytest.raises(ValueError, match="span: expected 0 or at least 3 rows, got 2"):
        left(2)


@pytest.mark.parametrize("target", ["nstep", "retrace"])
def test_what_a_mask_forbids_is_never_believed(target: Any) -> None:
    algorithm, spec = R2D2(**SMALL, dueling=False, target=target), masked(DISCRETE)
    net, target_net = network(algorithm, spec, 0), network(algorithm, spec, 1)
    data = windows(algorithm, net, 0, spec)
    data.obs["action_mask"][..., 0], data.obs["action_mask"][..., 3] = 0, 1
    data = replace(data, action=torch.where(data.action == 2, 5, data.action))
    found = []
    for bias in (1e3, -1e3):
        net.head.bias.data[0] = target_net.head.bias.data[0] = bias
        found.append(learn(algorithm, net, target_net, data).loss.item())
    assert found[0] == found[1]
