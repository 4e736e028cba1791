"""Distributions over nested, masked and squashed actions: against torch.distributions, numeric
integrals, and frequencies.
"""

import copy
import math
import pickle
import re
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import AffineTransform, TanhTransform

from equipoise import tree
from equipoise.nets import (
    ActorCritic,
    Bernoulli,
    Categorical,
    CoreOptions,
    DiagonalGaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
    action_dims,
)
from equipoise.nets.heads import HeadOptions, head
from equipoise.types import EnvSpec

T, B = 3, 7
COUNTS, START = (2, 5, 1, 3), (1, 0, -2, 4)


def many(seed=0, size=(T, B)):
    """A MultiCategorical as its head makes it, and torch's parts."""
    made = head(spaces.MultiDiscrete(np.reshape(COUNTS, (2, 2)), start=np.reshape(START, (2, 2))))
    y = torch.randn(made.size, math.prod(size), generator=torch.Generator().manual_seed(seed)) * 2
    parts = [TorchCategorical(logits=one.t().reshape(*size, -1)) for one in y.split(COUNTS)]
    return made(y, None, torch.Size(size), None), parts


def coins(seed=0, size=(T, B)):
    logits = torch.randn(6, *size, generator=torch.Generator().manual_seed(seed)) * 2
    return Bernoulli(logits, (2, 3)), Independent(TorchBernoulli(logits=logits.movedim(0, -1)), 1)


def squashed(low=(-1.0, 0.0), high=(1.0, 3.0), size=(T, B), seed=0, log_std=(-0.5, 0.2)):
    low, high = torch.tensor(low), torch.tensor(high)
    mean = torch.randn(*size, len(low), generator=torch.Generator().manual_seed(seed))
    least = torch.maximum(low.abs(), high.abs()) * 2.0**-24
    return SquashedGaussian(
        mean, torch.tensor(log_std), (len(low),), low=low, high=high, least=least
    )


def by_torch(policy):
    """The same in float64."""
    low, high = policy.low.double(), policy.high.double()
    base = Normal(policy.mean.double(), policy.log_std.double().exp())
    bend = [
        TanhTransform(cache_size=1),
        AffineTransform((low + high) / 2, (high - low) / 2, cache_size=1),
    ]
    return Independent(TransformedDistribution(base, bend), 1)


# --------------------------------------------------------------------------------- MultiCategorical


def test_multi_categorical_is_the_product_of_torchs():
    policy, parts = many()
    other, others = many(seed=1)
    action = torch.stack([part.sample() + start for part, start in zip(parts, START)], -1)
    expected = sum(part.log_prob(action[..., k] - START[k]) for k, part in enumerate(parts))
    torch.testing.assert_close(policy.logp(action.reshape(T, B, 2, 2)), expected)
    torch.testing.assert_close(policy.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(policy.kl(other), sum(map(kl_divergence, parts, others)))
    mode = torch.stack([part.mode + start for part, start in zip(parts, START)], -1).reshape(
        T, B, 2, 2
    )
    assert torch.equal(policy.mode(), mode) and policy.dims == 4
    torch.testing.assert_close(policy[1:].logp(action[1:].reshape(2, B, 2, 2)), expected[1:])


def test_multi_categorical_samples_have_their_probabilities():
    """Each choice, and pairs of them: they are independent."""
    count = 40_000
    policy, parts = many(size=(1, 1))
    wide = MultiCategorical(policy.logits[..., 0].expand(-1, -1, count), policy.start, (2, 2))
    drawn = (wide.sample(torch.rand(count, 6)).reshape(count, 4) - torch.tensor(START)).T
    for k, part in enumerate(parts):
        seen = torch.bincount(drawn[k], minlength=COUNTS[k]) / count
        torch.testing.assert_close(seen, part.probs[0, 0], atol=4 * 0.5 / count**0.5, rtol=0)
    both = torch.bincount(drawn[1] * 3 + drawn[3], minlength=15) / count
    expected = torch.outer(parts[1].probs[0, 0], parts[3].probs[0, 0]).flatten()
    torch.testing.assert_close(both, expected, atol=4 * 0.5 / count**0.5, rtol=0)


def test_even_counts_go_a_shorter_way_to_the_same():
    y = torch.randn(12, 5)
    short, long = head(spaces.MultiDiscrete([3, 3, 3, 3])), head(spaces.MultiDiscrete([3, 3, 3, 3]))
    long.even = False
    one, other = (made(y, None, torch.Size([5]), None) for made in (short, long))
    assert torch.equal(one.logits, other.logits) and torch.equal(one.entropy(), other.entropy())


# ---------------------------------------------------------------------------------------- Bernoulli


def test_bernoulli_equals_torch():
    policy, theirs = coins()
    other, their_other = coins(seed=1)
    action = theirs.sample()
    torch.testing.assert_close(
        policy.logp(action.to(torch.int8).reshape(T, B, 2, 3)), theirs.log_prob(action)
    )
    torch.testing.assert_close(policy.entropy(), theirs.entropy())
    torch.testing.assert_close(policy.kl(other), kl_divergence(theirs, their_other))
    assert torch.equal(policy.mode().reshape(T, B, 6), (theirs.mean > 0.5).to(torch.int8))


def test_bernoulli_samples_have_their_probabilities():
    count, logits = 40_000, torch.tensor([-3.0, 0.0, 1.0])
    policy = Bernoulli(logits[:, None].expand(3, count), (3,))
    seen = policy.sample(torch.rand(count, 5)).float()
    torch.testing.assert_close(seen.mean(0), logits.sigmoid(), atol=4 * 0.5 / count**0.5, rtol=0)
    assert abs((seen[:, 1] * seen[:, 2]).mean() - 0.5 * logits[2].sigmoid()) < 4 * 0.5 / count**0.5


def test_bernoulli_far_out_is_finite():
    policy = Bernoulli(torch.tensor([[-200.0], [200.0]]).requires_grad_(), (2,))
    action = torch.tensor([[1, 0]], dtype=torch.int8)
    total = policy.logp(action) + policy.entropy() + policy.kl(Bernoulli(-policy.logits, (2,)))
    total.sum().backward()
    assert policy.logits.grad.isfinite().all() and policy.logp(action).item() == pytest.approx(-400)


# ----------------------------------------------------------------------------------------- squashed


def test_squashed_equals_torch():
    policy = squashed()
    theirs = by_torch(policy)
    action = policy.sample(torch.rand(T, B, 2).clamp(0.01, 0.99))
    assert ((policy.low < action) & (action < policy.high)).all()
    torch.testing.assert_close(
        policy.logp(action).double(), theirs.log_prob(action.double()), atol=2e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        policy.kl(squashed(seed=1)), DiagonalGaussian.kl(policy, squashed(seed=1))
    )
    middle = policy.low + (policy.high - policy.low) * (1 + policy.mean.tanh()) / 2
    torch.testing.assert_close(policy.mode(), middle)


@pytest.mark.few(1)
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.01), (-300.0, 500.0), (10.0, 11.0)])
def test_squashed_density_integrates_to_one_and_to_its_entropy(low, high):
    for mean, log_std in ((0.0, 0.0), (1.5, -1.0), (-0.5, 0.5)):
        x = torch.linspace(-16, 16, 400_001, dtype=torch.float64)
        slope = (high - low) / 2 / x.cosh().square()  # da = slope dx
        a = low + (high - low) * (2 * x).sigmoid()
        policy = SquashedGaussian(
            torch.full((len(a), 1), mean, dtype=torch.float64),
            torch.tensor([log_std], dtype=torch.float64),
            (1,),
            low=torch.tensor([low], dtype=torch.float64),
            high=torch.tensor([high], dtype=torch.float64),
            least=torch.tensor([1e-16], dtype=torch.float64),
        )
        logp = policy.logp(a[:, None])
        weight = logp.exp() * slope
        assert torch.trapezoid(weight, x).item() == pytest.approx(1.0, abs=1e-5)
        assert torch.trapezoid(-weight * logp, x).item() == pytest.approx(
            policy.entropy()[0].item(), abs=4e-3
        )


def test_squashed_samples_are_of_the_density():
    """Kolmogorov and Smirnov, as for the Gaussian."""
    count = 20_000
    policy = squashed(size=(1, 1))
    wide = SquashedGaussian(
        policy.mean[0].expand(count, 2),
        policy.log_std,
        (2,),
        low=policy.low,
        high=policy.high,
        least=policy.least,
    )
    a = wide.sample(torch.rand(count, 3)).double()
    for i in range(2):
        x = (
            (2 * a[:, i] - policy.low[i] - policy.high[i]) / (policy.high[i] - policy.low[i])
        ).atanh()
        cdf = Normal(policy.mean[0, 0, i].double(), policy.log_std[i].double().exp()).cdf(
            x.sort().values
        )
        grid = torch.arange(count) / count
        assert (
            max((cdf - grid).abs().max(), (cdf - grid - 1 / count).abs().max()) * count**0.5 < 1.95
        )


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.0, 1e-3), (1000.0, 1001.0), (-1e6, 3e6)])
@pytest.mark.parametrize("mean", [-30.0, -8.0, 0.0, 6.0, 30.0])
def test_squashed_is_finite_and_the_same_for_actor_and_learner_at_the_bounds(bounds, mean):
    low, high = (torch.tensor([b]) for b in bounds)
    mean = torch.full((9, 1), mean, requires_grad=True)
    log_std = torch.zeros(1, requires_grad=True)
    policy = SquashedGaussian(
        mean,
        log_std,
        (1,),
        low=low,
        high=high,
        least=torch.maximum(low.abs(), high.abs()) * 2.0**-24,
    )
    noise = torch.tensor([1e-38, 0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1 - 2**-24])[:, None]
    action, logp = policy.sample_and_logp(noise)
    assert ((low <= action) & (action <= high)).all()
    again = policy.logp(action.detach())
    assert torch.equal(again, logp) and logp.isfinite().all()
    (again.sum() + policy.entropy().sum()).backward()
    assert mean.grad.isfinite().all() and log_std.grad.isfinite().all()


def test_squashed_density_is_exact_next_to_a_bound():
    """Where 1 - tanh^2 is all rounding: torch in float64, from the same float32 action."""
    policy = squashed(low=(0.0, -1.0), high=(1.0, 1.0), size=(1, 5))
    near = torch.tensor(
        [[1e-7, -1 + 2**-23], [1e-5, 1 - 2**-22], [1e-3, -0.999], [0.5, 0.9], [0.999, 0.999]]
    )[None]
    torch.testing.assert_close(
        policy.logp(near).double(), by_torch(policy).log_prob(near.double()), atol=1e-4, rtol=1e-5
    )


def test_what_cannot_be_squashed_is_named():
    with pytest.raises(
        ValueError,
        match=r"squash: expected finite bounds .* for action/a, got low -1.0 and high inf in "
        r"dimension 1",
    ):
        head(
            spaces.Dict(
                a=spaces.Box(np.array([-1, -1], np.float32), np.array([1, np.inf], np.float32))
            ),
            squash=True,
        )


def test_what_is_advised_about_squashing_works():
    env = gymnasium.Env()
    env.observation_space, env.action_space = (
        spaces.Box(-1, 1, (2,)),
        spaces.Box(-np.inf, np.inf, (2,)),
    )
    with pytest.raises(ValueError, match="expected finite bounds") as error:
        head(env.action_space, squash=True)
    advice = re.search(r"returns (gymnasium.*) with arrays of finite bounds", str(error.value))
    low, high = np.full(2, -1, np.float32), np.ones(2, np.float32)
    bounded = eval(advice[1], {"gymnasium": gymnasium, "env": env, "low": low, "high": high})
    head(bounded.action_space, squash=True)
    assert bounded.action(high) is high, "and the env gets what the policy chose"


# -------------------------------------------------------------------------------------------- joint

SPACE = spaces.Tuple(
    [
        spaces.Discrete(3, start=2),
        spaces.Dict(OrderedDict(z=spaces.MultiDiscrete([2, 4]), a=spaces.Box(-1, 1, (2,)))),
        spaces.MultiBinary(3),
    ]
)


def joint(squash=False, seed=0, size=(T, B)):
    made = head(SPACE, squash=squash)
    y = torch.randn(made.size, math.prod(size), generator=torch.Generator().manual_seed(seed))
    return made(y, torch.tensor([0.3, -0.2]), torch.Size(size), None)


@pytest.mark.parametrize("squash", [False, True])
def test_a_joint_is_the_sum_of_its_parts(squash):
    policy, other = joint(squash), joint(squash, seed=1)
    assert {path: type(part) for path, part in tree.items(policy.parts)} == {
        "0": Categorical,
        "1/z": MultiCategorical,
        "1/a": SquashedGaussian if squash else DiagonalGaussian,
        "2": Bernoulli,
    }
    noise = torch.rand(T, B, policy.dims + 1).clamp(0.01, 0.99)
    assert policy.dims == action_dims(SPACE) == 8
    action, logp = policy.sample_and_logp(noise)
    torch.testing.assert_close(logp, policy.logp(action), atol=1e-5, rtol=1e-5)
    parts, at = tree.leaves(policy.parts), 0
    for part, one in zip(parts, tree.leaves(action), strict=True):
        assert torch.equal(one, part.sample(noise[..., at : at + part.dims]))  # columns of its own
        at += part.dims
    terms = [part.logp(one) for part, one in zip(parts, tree.leaves(action), strict=True)]
    torch.testing.assert_close(logp, sum(terms), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(policy.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(
        policy.kl(other), sum(a.kl(b) for a, b in zip(parts, tree.leaves(other.parts), strict=True))
    )
    torch.testing.assert_close(
        policy[:2].logp(tree.index(action, slice(2))), logp[:2], atol=1e-5, rtol=1e-5
    )
    assert tree.map(lambda x: (str(x.dtype), x.shape), policy.mode()) == tree.map(
        lambda x: (str(x.dtype), x.shape), action
    )


def test_the_heads_share_the_layer_without_overlap():
    """A nudge of one output moves one part only."""
    made = head(SPACE)
    y = torch.randn(made.size, 5)
    noise = torch.full((5, 8), 0.37)

    def probe(y):
        return [
            part.logp(one)
            for part, one in zip(*(tree.leaves(x) for x in (policy(y).parts, fixed)), strict=True)
        ]

    def policy(y):
        return made(y, torch.zeros(2), torch.Size([5]), None)

    fixed = policy(y).sample(noise)
    before = probe(y)
    owners = []
    for column in range(made.size):
        nudged = y.clone()
        nudged[column] += 1.0
        moved = [not torch.equal(a, b) for a, b in zip(before, probe(nudged), strict=True)]
        assert sum(moved) == 1
        owners.append(moved.index(True))
    assert owners == [0] * 3 + [1] * 6 + [2] * 2 + [3] * 3


# -------------------------------------------------------------------------------------------- masks


def masked_net(action, mask_space, **kwargs):
    torch.manual_seed(0)
    observation = spaces.Dict(
        OrderedDict(observation=spaces.Box(-1, 1, (3,)), action_mask=mask_space)
    )
    return ActorCritic(
        EnvSpec(observation=observation, action=action, mask=("action_mask",)),
        head=HeadOptions(gain=2.0),
        **kwargs,
    )


def masked_rows(masks):
    return {"observation": torch.randn(T, B, 3), "action_mask": masks}, torch.zeros(
        T, B, dtype=torch.bool
    )


def test_a_masked_policy_is_that_of_the_allowed_actions():
    net = masked_net(spaces.Discrete(5, start=3), spaces.MultiBinary(5))
    mask = torch.rand(T, B, 5) < 0.5
    mask[..., 2] |= ~mask.any(-1)
    obs, first = masked_rows(mask.to(torch.int8))
    policy, free = (
        net.unroll(obs, first, {})[0].policy,
        net.unroll({**obs, "action_mask": torch.ones(T, B, 5)}, first, {})[0].policy,
    )
    theirs = TorchCategorical(logits=free.logits.movedim(0, -1).masked_fill(~mask, -math.inf))
    torch.testing.assert_close(policy.log_probs.exp().movedim(0, -1), theirs.probs)
    assert not policy.log_probs.exp().movedim(0, -1)[~mask].any()
    probs = theirs.probs
    torch.testing.assert_close(
        policy.entropy(), -torch.where(mask, probs * probs.log(), 0.0).sum(-1)
    )
    assert torch.equal(policy.mode(), theirs.probs.argmax(-1) + 3)
    action = theirs.sample() + 3
    torch.testing.assert_close(policy.logp(action), theirs.log_prob(action - 3))
    other = masked_net(spaces.Discrete(5, start=3), spaces.MultiBinary(5))
    with torch.no_grad():
        other.policy_head.weight.mul_(-0.5)
    divergence = policy.kl(other.unroll(obs, first, {})[0].policy)
    assert (
        divergence.isfinite().all()
        and (divergence >= -1e-6).all()
        and (divergence[mask.sum(-1) > 1] > 0).any()
    )


@pytest.mark.parametrize("u", [1e-38, 0.25, 0.5, 0.75, 1 - 2**-24])
@pytest.mark.parametrize("counts", [(5,), (2,), (2, 4, 3), (2, 2), (1, 6)])
def test_what_is_forbidden_is_never_drawn(counts, u):
    space = spaces.Discrete(counts[0]) if len(counts) == 1 else spaces.MultiDiscrete(counts)
    net = masked_net(space, spaces.MultiBinary(sum(counts)))
    torch.manual_seed(1)
    parts = [torch.rand(T, B, n) < 0.4 for n in counts]
    for part in parts:
        part[..., 0] |= ~part.any(-1)
    obs, first = masked_rows(torch.cat(parts, -1).to(torch.int8))
    policy = net.unroll(obs, first, {})[0].policy
    action, logp = policy.sample_and_logp(torch.full((T, B, len(counts)), u))
    assert logp.isfinite().all() and (logp > -50).all()
    for k, part in enumerate(parts):
        one = action if len(counts) == 1 else action[..., k]
        assert part.gather(-1, one.unsqueeze(-1)).all()
        assert part.gather(
            -1, (policy.mode() if len(counts) == 1 else policy.mode()[..., k]).unsqueeze(-1)
        ).all()


def test_no_gradient_flows_to_what_is_forbidden_and_none_is_nan():
    net = masked_net(spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(5))
    mask = torch.tensor([1, 0, 0, 1, 1]).expand(T, B, 5).clone()
    # the row of an episode's end: nothing is allowed, and nothing is learned from it
    mask[0, 0] = 0
    obs, first = masked_rows(mask)
    out = net.unroll(obs, first, {})[0]
    action, logp = out.policy.sample_and_logp(torch.rand(T, B, 2))
    (
        out.policy.logp(action)[1:].sum()
        + out.policy.entropy()[1:].sum()
        + 0 * out.policy.entropy().sum()
    ).backward()
    assert logp.isfinite().all() and out.policy.entropy().isfinite().all()
    grad = net.policy_head.bias.grad
    assert grad.isfinite().all() and grad.tolist()[:3] == [0, 0, 0] and grad[3:].all()


def test_a_tuple_of_masks_is_a_concatenated_one():
    space = spaces.MultiDiscrete([2, 3])
    whole = masked_net(space, spaces.MultiBinary(5))
    parts = masked_net(
        space, spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (3,), np.int8)])
    )
    mask = torch.tensor([1, 0, 0, 1, 1], dtype=torch.int8).expand(T, B, 5)
    obs, first = masked_rows(mask)
    one = whole.unroll(obs, first, {})[0].policy
    other = parts.unroll(
        {**obs, "action_mask": {"0": mask[..., :2], "1": mask[..., 2:]}}, first, {}
    )[0].policy
    assert torch.equal(one.logits, other.logits)


def test_masks_of_a_tree_reach_the_parts_that_have_one():
    action = spaces.Dict(
        move=spaces.Discrete(3),
        push=spaces.Box(-1, 1, (2,)),
        pick=spaces.Tuple([spaces.MultiDiscrete([2, 2])]),
    )
    mask_space = spaces.Dict(
        move=spaces.MultiBinary(3), pick=spaces.Dict({"0": spaces.MultiBinary(4)})
    )
    net = masked_net(action, mask_space)
    move, pick = torch.tensor([0, 1, 0]).expand(T, B, 3), torch.tensor([0, 1, 1, 0]).expand(T, B, 4)
    obs, first = masked_rows({"move": move, "pick": {"0": pick}})
    drawn = net.unroll(obs, first, {})[0].policy.sample(torch.rand(T, B, 5))
    assert (drawn["move"] == 1).all() and (drawn["pick"]["0"] == torch.tensor([1, 0])).all()


def test_a_mask_is_no_feature():
    net = masked_net(spaces.Discrete(2), spaces.MultiBinary(2))
    assert net.torso.layers[0].in_features == 3
    with pytest.raises(ValueError, match="must have another part besides the mask"):
        ActorCritic(
            EnvSpec(
                observation=spaces.Dict(m=spaces.MultiBinary(2)),
                action=spaces.Discrete(2),
                mask=("m",),
            ),
            hidden=(4,),
        )


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("squash", [False, True])
def test_the_whole_network_steps_and_unrolls_alike_and_travels(core, squash):
    torch.manual_seed(0)
    observation = spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))])
    net = ActorCritic(
        EnvSpec(observation=observation, action=SPACE),
        core=CoreOptions(kind=core, size=8),
        head=HeadOptions(squash=squash, gain=1.0),
    )
    obs = {"0": torch.randint(2, (T, B, 2)), "1": torch.randn(T, B, 2)}
    first = torch.rand(T, B) < 0.2
    noise = torch.rand(T, B, 8).clamp(0.01, 0.99)
    policy, value = net.unroll(obs, first, net.initial_state(B))[0]
    action, logp = policy.sample_and_logp(noise)
    for twin in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        state = twin.initial_state(B)
        for t in range(T):
            (step, step_value), state = twin.step(tree.index(obs, t), first[t], state)
            one, one_logp = step.sample_and_logp(noise[t])
            tree.map(
                lambda a, b: torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4),
                one,
                tree.index(action, t),
            )
            torch.testing.assert_close(one_logp, logp[t], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(step_value, value[t], atol=1e-5, rtol=1e-4)
    (
        policy.logp(tree.map(torch.Tensor.detach, action)).sum()
        + policy.entropy().sum()
        + value.sum()
    ).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert isinstance(policy, Joint)
