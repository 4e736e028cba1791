"""The two distributions against torch.distributions, and their samples against their own
probabilities.
"""

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from equipoise.nets import Categorical, DiagonalGaussian, action_dims

T, B = 3, 7
TINY, NEXT_TO_ONE = 1e-38, 1 - 2**-24  # the extremes of float32 noise in (0, 1)


def categorical(n, start=0, seed=0):
    torch.manual_seed(seed)
    logits = torch.randn(n, T, B) * 2
    return Categorical(logits, start), TorchCategorical(
        logits=logits.movedim(0, -1), validate_args=False
    )


def gaussian(shape, seed=0, by_row=False):
    torch.manual_seed(seed)
    d = torch.Size(shape).numel()
    mean, log_std = torch.randn(T, B, d), torch.randn(*((T, B, d) if by_row else (d,))) * 0.5
    return DiagonalGaussian(mean, log_std, shape), Independent(
        Normal(mean, log_std.exp(), validate_args=False), 1
    )


def noise_grid(n):
    """[n, 2] evenly spaced in (0, 1), column 1 a constant that must not matter."""
    return torch.stack([(torch.arange(n) + 0.5) / n, torch.full((n,), 0.3)], 1)


@pytest.mark.parametrize("n", [1, 2, 3, 18])
@pytest.mark.parametrize("start", [0, 5, -1])
def test_categorical_equals_torch(n, start):
    ours, theirs = categorical(n, start)
    other, their_other = categorical(n, start, seed=1)
    actions = torch.randint(n, (T, B))
    torch.testing.assert_close(ours.logp(actions + start), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), kl_divergence(theirs, their_other))
    assert torch.equal(ours.mode(), theirs.mode + start)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("shape", [(1,), (6,), (2, 3), ()])
def test_gaussian_equals_torch(shape, by_row):
    ours, theirs = gaussian(shape, by_row=by_row)
    other, their_other = gaussian(shape, seed=1, by_row=by_row)
    flat = torch.randn(T, B, ours.mean.shape[-1])
    torch.testing.assert_close(ours.logp(flat.reshape(T, B, *shape)), theirs.log_prob(flat))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), kl_divergence(theirs, their_other))
    assert torch.equal(ours.mode(), ours.mean.reshape(T, B, *shape))


@pytest.mark.parametrize("start", [0, 5, -1])
@pytest.mark.parametrize("n", [1, 2, 3, 18])
def test_categorical_samples_have_their_probabilities(n, start):
    """Evenly spaced noise: every count is within one of its expectation. And a chi-square on random
    noise.
    """
    torch.manual_seed(n)
    logits, count = torch.randn(n), 20_000
    policy = Categorical(logits.unsqueeze(1).expand(n, count), start)
    expected = logits.softmax(0) * count
    even = torch.bincount(policy.sample(noise_grid(count)) - start, minlength=n)
    assert (even - expected).abs().max() <= 1.01
    drawn = torch.bincount(policy.sample(torch.rand(count, 2)) - start, minlength=n)
    chi_square = ((drawn - expected) ** 2 / expected).sum().item()
    assert chi_square < n - 1 + 4 * (2 * max(n - 1, 1)) ** 0.5  # mean n-1, variance 2(n-1)


@pytest.mark.parametrize("n", [2, 3])
def test_categorical_inverts_in_the_order_of_actions(n):
    """Two actions go a shorter way; it is the same map from noise to action."""
    policy = Categorical(
        torch.log(torch.tensor([0.25, 0.75] if n == 2 else [0.25, 0.25, 0.5]))
        .unsqueeze(1)
        .expand(n, 4)
    )
    noise = torch.tensor([[0.2, 0.9], [0.3, 0.1], [0.6, 0.1], [0.9, 0.1]])
    assert policy.sample(noise).tolist() == ([0, 1, 1, 1] if n == 2 else [0, 1, 2, 2])


def test_gaussian_samples_are_normal_in_each_dimension():
    """Kolmogorov and Smirnov: sup |F_n - F| sqrt(n) < 1.95 with probability 0.999."""
    torch.manual_seed(3)
    count, mean, log_std = 20_000, torch.tensor([1.0, -2.0]), torch.tensor([0.5, -1.0])
    policy = DiagonalGaussian(mean.expand(count, 2), log_std, (2,))
    x = policy.sample(torch.rand(count, 3))
    for i in range(2):
        cdf = Normal(mean[i], log_std[i].exp()).cdf(x[:, i].sort().values)
        grid = torch.arange(count) / count
        assert (
            max((cdf - grid).abs().max(), (cdf - grid - 1 / count).abs().max()) * count**0.5 < 1.95
        )
    z = (x - mean) / log_std.exp()
    assert abs((z[:, 0] * z[:, 1]).mean()) < 4 / count**0.5  # a column of noise each
    assert z.abs().max() > 3.5  # the tails are there


def test_gaussian_sample_is_the_inverse_of_the_normal_cdf():
    u = torch.linspace(0.001, 0.999, 999).unsqueeze(1)
    policy = DiagonalGaussian(torch.full((999, 1), 2.0), torch.zeros(1), (1,))
    torch.testing.assert_close(policy.sample(u) - 2, torch.special.ndtri(u), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: categorical(2, 3),
        lambda: categorical(5, 3),
        lambda: gaussian((2, 3)),
        lambda: gaussian(()),
    ],
)
def test_sample_and_logp_is_sample_and_logp(make):
    policy, _ = make()
    noise = torch.rand(T, B, 7).clamp(1e-6, 1 - 1e-6)
    action, logp = policy.sample_and_logp(noise)
    assert torch.equal(action, policy.sample(noise))
    torch.testing.assert_close(logp, policy.logp(action), atol=2e-6, rtol=1e-5)
    assert logp.shape == (T, B)
    assert action.dtype == (torch.int64 if isinstance(policy, Categorical) else torch.float32)
    assert action.shape == ((T, B) if isinstance(policy, Categorical) else (T, B, *policy.shape))


@pytest.mark.parametrize("n", [1, 2, 3, 18, 1000])
def test_categorical_at_the_ends_of_the_noise(n):
    torch.manual_seed(0)
    logits = torch.randn(n, 500) * 5
    low, high = (
        Categorical(logits, 2).sample(torch.full((500, 2), u)) for u in (TINY, NEXT_TO_ONE)
    )
    assert low.min() >= 2
    assert high.max() <= 2 + n - 1
    assert (low == 2).any()


def test_categorical_never_takes_an_action_of_probability_zero():
    """At either end, or between, and although the partial sums of the rest may fall short of 1."""
    torch.manual_seed(0)
    for n in (2, 8):
        logits = torch.randn(n, 2000)
        for zero in ([0], [n - 1], [0, n - 1][: n - 1], list(range(n // 2, n))):
            masked = logits.clone()
            masked[zero] = -torch.inf
            for u in (TINY, 0.5, NEXT_TO_ONE):
                action, logp = Categorical(masked).sample_and_logp(torch.full((2000, 2), u))
                assert not torch.isin(action, torch.tensor(zero)).any()
                assert logp.isfinite().all()


@pytest.mark.parametrize("u", [0.0, TINY, NEXT_TO_ONE, 1.0])
def test_gaussian_at_the_ends_of_the_noise_is_finite(u):
    policy, _ = gaussian((6,))
    action, logp = policy.sample_and_logp(torch.full((T, B, 7), u))
    assert action.isfinite().all()
    assert logp.isfinite().all()
    assert ((action - policy.mean) / policy.log_std.exp()).abs().min() > 5


@pytest.mark.parametrize("n", [2, 5])
def test_categorical_gradients_equal_torch(n):
    ours, _ = categorical(n, 1)
    logits = ours.logits.clone().requires_grad_()
    policy, theirs = (
        Categorical(logits, 1),
        TorchCategorical(logits=logits.movedim(0, -1), validate_args=False),
    )
    action = torch.randint(n, (T, B))
    for mine, other in (
        (policy.logp(action + 1), theirs.log_prob(action)),
        (policy.entropy(), theirs.entropy()),
    ):
        got, want = (
            torch.autograd.grad(y.square().sum(), logits, retain_graph=True)[0]
            for y in (mine, other)
        )
        assert want.any()
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_gaussian_gradients_equal_torch():
    policy, _ = gaussian((6,))
    mean, log_std = policy.mean.clone().requires_grad_(), policy.log_std.clone().requires_grad_()
    ours, theirs = (
        DiagonalGaussian(mean, log_std, (6,)),
        Independent(Normal(mean, log_std.exp(), validate_args=False), 1),
    )
    action = torch.randn(T, B, 6)
    for mine, other in (
        (ours.logp(action), theirs.log_prob(action)),
        (ours.entropy(), theirs.entropy()),
    ):
        grads = [
            torch.autograd.grad(
                y.square().sum(),
                [mean, log_std],
                materialize_grads=True,
                allow_unused=True,
                retain_graph=True,
            )
            for y in (mine, other)
        ]
        assert grads[1][1].any()
        torch.testing.assert_close(grads[0], grads[1], atol=1e-3, rtol=1e-4)
    noise = torch.rand(T, B, 7).clamp(0.01, 0.99)
    assert torch.autograd.grad(ours.sample(noise).sum(), log_std)[0].any()  # reparametrised


@pytest.mark.parametrize("make", [lambda: categorical(4)[0], lambda: gaussian((6,))[0]])
def test_results_are_float32_and_the_same_twice(make):
    a, b, noise = make(), make(), torch.rand(T, B, 7).clamp(1e-6, 1 - 1e-6)
    for mine, again in zip(
        a.sample_and_logp(noise), pickle.loads(pickle.dumps(b)).sample_and_logp(noise), strict=True
    ):
        assert torch.equal(mine, again)
    assert {
        y.dtype for y in (a.logp(a.mode()), a.entropy(), a.kl(b), a.sample_and_logp(noise)[1])
    } == {torch.float32}
    torch.testing.assert_close(a.kl(b), torch.zeros(T, B))


@pytest.mark.parametrize(
    ("space", "dims"),
    [
        (spaces.Discrete(5), 1),
        (spaces.Box(-1, 1, (6,)), 6),
        (spaces.Box(-1, 1, (2, 3)), 6),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 1]])), 4),
        (spaces.MultiBinary((2, 3)), 6),
        (
            spaces.Dict(
                {
                    "a": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]),
                    "b": spaces.Box(-1, 1, (2,)),
                }
            ),
            5,
        ),
    ],
)
def test_dims_of_an_action(space, dims):
    assert action_dims(space) == dims


def test_other_spaces_are_named_and_refused():
    with pytest.raises(
        ValueError,
        match=r"action space Text.* is not supported; supported are Discrete, MultiDiscrete",
    ):
        action_dims(spaces.Text(3))
