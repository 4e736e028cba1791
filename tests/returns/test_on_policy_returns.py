"""gae, lambda_returns and nstep: three views of one thing."""

import pytest
import torch

from equipoise.returns import gae, lambda_returns, nstep
from tests.returns import oracle
from tests.returns.cases import agree, cases

LAMBDAS = (0.0, 0.5, 0.95, 1.0)


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_gae_is_the_papers_sum_in_every_episode(lambda_: float) -> None:
    for c in cases():
        agree(c, gae(**c.inputs(), lambda_=lambda_), c.expect(oracle.gae, lambda_=lambda_))


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_lambda_returns_weigh_all_n_step_returns_of_the_episode(lambda_: float) -> None:
    for c in cases():
        agree(
            c,
            lambda_returns(**c.inputs(), lambda_=lambda_),
            c.expect(oracle.lambda_returns, lambda_=lambda_),
        )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 19, 100])
def test_nstep_is_the_sum_of_n_rewards_and_a_value(n: int) -> None:
    for c in cases():
        agree(c, nstep(**c.inputs(), n=n), c.expect(oracle.nstep, n=n))


def test_float32_is_close() -> None:
    for c in cases(torch.float32):
        agree(
            c,
            gae(**c.inputs(), lambda_=0.95),
            c.expect(oracle.gae, lambda_=0.95),
            rtol=2e-5,
            atol=2e-5,
        )
        agree(c, nstep(**c.inputs(), n=3), c.expect(oracle.nstep, n=3), rtol=2e-5, atol=2e-5)
        got = lambda_returns(**c.inputs(), lambda_=0.95)
        agree(c, got, c.expect(oracle.lambda_returns, lambda_=0.95), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_the_lambda_return_is_gaes_target(lambda_: float) -> None:
    for c in cases():
        want = gae(**c.inputs(), lambda_=lambda_)
        agree(
            c,
            lambda_returns(**c.inputs(), lambda_=lambda_),
            (want.target.numpy(), want.advantage.numpy()),
        )


def test_lambda_1_is_the_discounted_return_and_lambda_0_one_step() -> None:
    for c in cases():
        whole, _ = c.expect(oracle.nstep, n=len(c.reward))
        advantage = gae(**c.inputs(), lambda_=1.0).advantage
        torch.testing.assert_close(advantage + c.value[:-1], torch.from_numpy(whole))
        torch.testing.assert_close(
            gae(**c.inputs(), lambda_=0.0).target, nstep(**c.inputs(), n=1).target
        )


def test_nstep_by_hand() -> None:
    """Two steps over a window of four, cut by a truncation (seam in row 2)."""
    got = nstep(
        reward=torch.tensor([[1.0], [2.0], [0.0], [4.0]]),
        discount=torch.full((4, 1), 0.5),
        value=torch.tensor([[9.0], [9.0], [8.0], [9.0], [16.0]]),
        n=2,
        mask=torch.tensor([[True], [True], [False], [True]]),
    )
    assert got.target.flatten().tolist() == [1 + 0.5 * 2 + 0.25 * 8, 2 + 0.5 * 8, 8.0, 4 + 0.5 * 16]


@pytest.mark.parametrize("n", [0, -1])
def test_nstep_needs_a_step(n: int) -> None:
    with pytest.raises(ValueError, match=f"n: expected at least 1, got {n}"):
        nstep(reward=torch.zeros(2, 1), discount=torch.zeros(2, 1), value=torch.zeros(3, 1), n=n)
