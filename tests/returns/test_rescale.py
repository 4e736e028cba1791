import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.returns import rescale, unscale

POINTS = np.concatenate([[0.0], np.logspace(-8, 8, 2001), -np.logspace(-8, 8, 2001)])
EPSILONS = (1e-4, 1e-3, 1e-2, 1.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rescale_is_the_papers_formula(epsilon: float) -> None:
    want = np.sign(POINTS) * (np.sqrt(np.abs(POINTS) + 1) - 1) + epsilon * POINTS
    np.testing.assert_allclose(
        rescale(torch.from_numpy(POINTS), epsilon=epsilon).numpy(), want, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_unscale_is_the_papers_formula(epsilon: float) -> None:
    """Proposition A.2 as printed, which in float64 still has digits enough."""
    root = (np.sqrt(1 + 4 * epsilon * (np.abs(POINTS) + 1 + epsilon)) - 1) / (2 * epsilon)
    want = np.sign(POINTS) * (root**2 - 1)
    np.testing.assert_allclose(
        unscale(torch.from_numpy(POINTS), epsilon=epsilon).numpy(), want, rtol=1e-7, atol=1e-10
    )


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS])
def test_each_undoes_the_other_to_the_last_digits(
    dtype: torch.dtype, rtol: float, epsilon: float
) -> None:
    x = torch.from_numpy(POINTS).to(dtype)
    torch.testing.assert_close(
        unscale(rescale(x, epsilon=epsilon), epsilon=epsilon), x, rtol=rtol, atol=0
    )
    y = x.clamp(-1e4, 1e4)
    torch.testing.assert_close(
        rescale(unscale(y, epsilon=epsilon), epsilon=epsilon), y, rtol=rtol, atol=0
    )


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.sampled_from([0.0, *EPSILONS]))
def test_any_float32(x: float, epsilon: float) -> None:
    tensor = torch.tensor(x)
    got = unscale(rescale(tensor, epsilon=epsilon), epsilon=epsilon)
    torch.testing.assert_close(got, tensor, rtol=1e-5, atol=1e-37)


def test_monotone_odd_and_of_any_shape() -> None:
    x = torch.linspace(-50, 50, 1001).reshape(7, 11, 13)
    for function in (rescale, unscale):
        assert function(x).shape == x.shape
        assert (function(x).flatten().diff() > 0).all()
        assert torch.equal(function(-x), -function(x))


@pytest.mark.parametrize("function", [rescale, unscale])
def test_no_gradient_and_at_least_float32(function) -> None:
    assert not function(torch.ones(2, requires_grad=True)).requires_grad
    assert function(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert function(torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(ValueError, match="epsilon: expected at least 0, got -1"):
        function(torch.ones(2), epsilon=-1.0)
