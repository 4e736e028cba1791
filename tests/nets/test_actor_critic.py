"""The whole network: ``step`` and ``unroll`` agree, and what is said of its parts."""

import copy
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from equipoise import tree
from equipoise.nets import ActorCritic, Categorical, CoreOptions, DiagonalGaussian, action_dims
from equipoise.nets.heads import HeadOptions
from equipoise.types import EnvSpec, Network

CORES = ("none", "lstm", "gru", "mingru", "gtrxl")
SMALL = CoreOptions(size=6, layers=2, heads=2, window=8)
T, B = 20, 4
BOX = spaces.Box(-1, 1, (3,), np.float64)
DICT = spaces.Dict({"position": spaces.Box(-1, 1, (2, 2)), "mode": spaces.Discrete(3, start=1)})
ACTIONS = {
    "two": spaces.Discrete(2),
    "five from -1": spaces.Discrete(5, start=-1),
    "box": spaces.Box(-2, 2, (2, 3)),
}


def make(core="none", observation=BOX, action=ACTIONS["five from -1"], *, shared=False, **head):
    torch.manual_seed(5)
    net = ActorCritic(
        EnvSpec(observation=observation, action=action),
        core=replace(SMALL, kind=core),
        hidden=(16, 8),
        shared=shared,
        head=HeadOptions(gain=1.0, **head),
    )
    assert isinstance(net, torch.nn.Module)
    return net


def rows(observation=BOX, share=0.1):
    observation.seed(3)
    first = torch.rand(T, B, generator=torch.Generator().manual_seed(2)) < share
    drawn = [[observation.sample() for _ in range(B)] for _ in range(T)]
    if isinstance(observation, spaces.Dict):
        return {
            key: torch.as_tensor(np.array([[o[key] for o in row] for row in drawn]))
            for key in observation
        }, first
    return torch.as_tensor(np.array(drawn)), first


def some_state(net):
    """A state in the middle of an episode; of a window all rows are held."""
    return {
        name: torch.full_like(leaf, SMALL.window) if name == "held" else torch.randn_like(leaf)
        for name, leaf in net.initial_state(B).items()
    }


def numbers(policy):
    return policy.log_probs.movedim(0, -1) if isinstance(policy, Categorical) else policy.mean


@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize(
    ("core", "shared"), [("none", False), ("none", True), *((core, False) for core in CORES[1:])]
)
@pytest.mark.parametrize(("observation", "action"), list(itertools.product((BOX, DICT), ACTIONS)))
def test_step_unroll_and_policy_agree(core, shared, share, observation, action):
    net = make(core, observation, ACTIONS[action], shared=shared)
    obs, first = rows(observation, share)
    state = some_state(net)
    (policy, value), end = net.unroll(obs, first, state)
    assert value.shape == (T, B)
    for t in range(T):
        alone, alone_state = net.policy(tree.index(obs, t), first[t], state)
        (step, step_value), state = net.step(tree.index(obs, t), first[t], state)
        torch.testing.assert_close(numbers(step), numbers(policy)[t], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(step_value, value[t], atol=1e-5, rtol=1e-4)
        assert torch.equal(numbers(alone), numbers(step))
        tree.map(lambda a, b: torch.testing.assert_close(a, b, atol=0, rtol=0), alone_state, state)
    if core != "gtrxl":  # whose state has rows that nothing reads: tests/nets/test_gtrxl.py
        torch.testing.assert_close(state, end, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_first_matters_to_a_core_only(core):
    net = make(core)
    obs, first = rows(share=0.0)
    state = some_state(net)
    (before, value_before), _ = net.unroll(obs, first, state)
    first = first.clone()
    first[7, 1] = True
    (after, value_after), _ = net.unroll(obs, first, state)
    changed = (value_before - value_after).abs() + (numbers(before) - numbers(after)).abs().sum(
        -1
    ) > 1e-4
    if core == "none":
        assert not changed.any()
    else:
        assert changed[7:11, 1].all()
        assert not changed[:7].any()
        assert not changed[:, [0, 2, 3]].any()


@pytest.mark.parametrize("core", CORES)
def test_initial_state(core):
    state = make(core).initial_state(3)
    names = {
        "none": [],
        "lstm": ["h", "c"],
        "gru": ["h"],
        "mingru": ["h"],
        "gtrxl": ["memory", "held"],
    }
    assert list(state) == names[core]
    assert all(
        len(leaf) == 3 and leaf.dtype == torch.float32 and not leaf.any()
        for leaf in tree.leaves(state)
    )


@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("core", CORES)
def test_actions_are_in_the_terms_of_the_env(core, action):
    net, space = make(core, action=ACTIONS[action]), ACTIONS[action]
    obs, first = rows()
    with torch.inference_mode():
        policy, _ = net.policy(obs[0], first[0], net.initial_state(B))
        noise = torch.rand(B, action_dims(space)).clamp(1e-6, 1 - 1e-6)
        for a in (policy.sample(noise), policy.mode()):
            assert a.shape == (B, *space.shape)
            assert a.dtype == (torch.int64 if isinstance(space, spaces.Discrete) else torch.float32)
            if isinstance(space, spaces.Discrete):
                assert all(space.contains(np.int64(one)) for one in a.tolist())


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("action", ["two", "box"])
def test_gradients_reach_every_parameter(core, action):
    net = make(core, action=ACTIONS[action])
    obs, first = rows()
    (policy, value), _ = net.unroll(obs, first, net.initial_state(B))
    action_taken = policy.mode().detach() + (0.5 if isinstance(policy, DiagonalGaussian) else 0)
    (
        policy.logp(action_taken).sum() + policy.entropy().square().sum() + value.square().sum()
    ).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name


def test_separate_torsos_share_nothing_and_a_shared_one_all():
    obs, first = rows()
    for shared in (False, True):
        net = make(shared=shared)
        (_, value), _ = net.unroll(obs, first, {})
        value.sum().backward()
        assert (net.torso.layers[0].weight.grad is not None) is shared
        assert (net.value_torso is None) is shared
        assert net.policy_head.weight.grad is None


@pytest.mark.parametrize("core", CORES)
def test_policy_skips_the_value(core):
    net = make(core)
    obs, first = rows()
    want, _ = net.policy(obs[0], first[0], net.initial_state(B))
    net.value_head = net.value_torso = None
    got, _ = net.policy(obs[0], first[0], net.initial_state(B))
    assert torch.equal(numbers(got), numbers(want))


def test_names_of_parameters_are_stable():
    torso = [
        "torso.layers.0.weight",
        "torso.layers.0.bias",
        "torso.layers.1.weight",
        "torso.layers.1.bias",
    ]
    heads = ["policy_head.weight", "policy_head.bias", "value_head.weight", "value_head.bias"]
    core = [f"core.rnn.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    assert list(make().state_dict()) == [*torso, *(f"value_{name}" for name in torso), *heads]
    assert list(make(shared=True).state_dict()) == [*torso, *heads]
    assert list(make("gru").state_dict()) == [*torso, *core, *heads]
    assert set(make(action=ACTIONS["box"], shared=True).state_dict()) == {*torso, *heads, "log_std"}


@pytest.mark.parametrize("action", ["two", "box"])
def test_how_it_starts(action):
    net = ActorCritic(EnvSpec(observation=BOX, action=ACTIONS[action]))
    weight = net.policy_head.weight
    torch.testing.assert_close(
        weight @ weight.t(), 1e-4 * torch.eye(len(weight)), atol=1e-9, rtol=1e-4
    )
    torch.testing.assert_close(net.value_head.weight.norm(), torch.tensor(1.0))
    assert not any(
        p.any() for name, p in net.named_parameters() if name.endswith("bias") or name == "log_std"
    )
    assert [layer.out_features for layer in net.torso.layers] == [64, 64]


@pytest.mark.parametrize("core", CORES)
def test_the_same_twice_bit_for_bit_also_pickled_and_copied(core):
    obs, first = rows()
    results = []
    for net in (
        make(core),
        make(core),
        pickle.loads(pickle.dumps(make(core))),
        copy.deepcopy(make(core)),
    ):
        (policy, value), state = net.unroll(obs, first, net.initial_state(B))
        value.sum().backward()
        results.append([numbers(policy), value, *tree.leaves(state), net.value_head.weight.grad])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("core", CORES)
def test_parameters_may_become_views_of_one_flat_buffer(core):
    """As the weight store does: data is swapped under the parameters, and every call reads the new
    ones.
    """
    net, other = make(core), make(core)
    obs, first = rows()
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    parts = flat.split([p.numel() for p in net.parameters()])
    for p, part in zip(net.parameters(), parts, strict=True):
        p.data = part.view_as(p)
    with torch.no_grad():
        flat.mul_(2)
        for p in other.parameters():
            p.mul_(2)
        got, want = (n.unroll(obs, first, n.initial_state(B))[0].value for n in (net, other))
    assert torch.equal(got, want)


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="core 'lsmt' is unknown; known are none, lstm, gru"):
        make("lsmt")
    with pytest.raises(ValueError, match="observation space Text"):
        make(observation=spaces.Text(3))
    with pytest.raises(
        ValueError,
        match="action space Text.* at action/a/1 is not supported; supported are Discrete, Multi",
    ):
        make(action=spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])}))


@pytest.mark.gpu
@pytest.mark.parametrize("action", ["five from -1", "box"])
@pytest.mark.parametrize("core", CORES)
def test_on_a_gpu(core, action):
    net = make(core, DICT, ACTIONS[action])
    obs, first = rows(DICT)
    noise = torch.rand(T, B, action_dims(ACTIONS[action])).clamp(0.01, 0.99)
    (policy, value), state = net.unroll(obs, first, net.initial_state(B))
    net.cuda()
    start = net.initial_state(B)
    (on_gpu, gpu_value), gpu_state = net.unroll(tree.to(obs, "cuda"), first.cuda(), start)
    gpu_value.sum().backward()
    torch.testing.assert_close(gpu_value.cpu(), value, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(tree.to(gpu_state, "cpu"), state, atol=1e-3, rtol=1e-3)
    assert isinstance(on_gpu, Categorical | DiagonalGaussian)
    torch.testing.assert_close(on_gpu.entropy().cpu(), policy.entropy(), atol=1e-3, rtol=1e-3)
    assert on_gpu.sample_and_logp(noise.cuda())[0].is_cuda


def test_it_is_a_network() -> None:
    """For mypy: the Protocol holds."""
    net: Network = ActorCritic(EnvSpec(observation=BOX, action=ACTIONS["two"]))
    assert net.initial_state(1) == {}


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("core", CORES)
def test_noise_of_the_state_has_the_moments_of_the_formula_and_its_own_density(core, squash):
    """x - mean is normal with the variance sum_j h_j^2 sigma_ji^2, and logp is of that, with 1e-6
    more.
    """
    draws, action = 50_000, spaces.Box(-2, 2, (2,))
    net = make(core, action=action, squash=squash, by_state=True, log_std=-2.0)
    with torch.no_grad():
        net.log_std += torch.linspace(-0.5, 0.5, net.log_std.numel()).view_as(net.log_std)
        obs, first = (
            torch.tensor([[0.5, -1.0, 0.8]]).expand(draws, 3),
            torch.zeros(draws, dtype=torch.bool),
        )
        state = net.initial_state(draws)
        policy, _ = net.policy(obs, first, state)
        noise = torch.rand(
            draws, 2 + net.log_std.numel(), generator=torch.Generator().manual_seed(1)
        )
        drawn, logp = policy.sample_and_logp(noise)
        h, _ = net._features(
            net.torso(net._rows(obs[:1], first[:1])), first[:1], tree.map(lambda x: x[:1], state)
        )
    deviation = [
        sum((h[0, j] * net.log_std[j, i].exp()).item() ** 2 for j in range(h.shape[1])) ** 0.5
        for i in range(2)
    ]
    x = (drawn / 2).atanh() if squash else drawn
    for i in range(2):
        z = ((x[:, i] - policy.mean[0, i]) / deviation[i]).double()
        assert [(z**n).mean().item() for n in (1, 2, 3, 4)] == pytest.approx([0, 1, 0, 3], abs=0.15)
    normal = torch.distributions.Normal(
        policy.mean[0], (torch.tensor(deviation).square() + 1e-6).sqrt()
    )
    wanted = normal.log_prob(x).sum(-1) - (
        (2 * (1 - (drawn / 2) ** 2)).log().sum(-1) if squash else 0.0
    )
    torch.testing.assert_close(logp, wanted, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(logp, policy.logp(drawn), atol=1e-4, rtol=1e-3)


def test_noise_of_the_state_is_learned_without_a_gradient_to_the_features():
    net = make(action=spaces.Box(-2, 2, (2,)), by_state=True)
    obs, first = rows()
    policy = net.unroll(obs, first, {})[0].policy
    assert (
        policy.log_std.shape == (T, B, 2)
        and policy.entropy().shape == (T, B)
        and policy[1:3].log_std.shape == (2, B, 2)
    )
    policy.entropy().sum().backward()
    assert {name for name, p in net.named_parameters() if p.grad is not None} == {"log_std"}


def test_noise_of_the_state_needs_one_box():
    for action in (
        spaces.Discrete(3),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(2)}),
    ):
        with pytest.raises(
            ValueError,
            match=r"algorithm\.sde_every: must be 0 unless actions are a single Box, got",
        ):
            make(action=action, by_state=True)
