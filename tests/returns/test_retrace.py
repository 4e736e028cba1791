import pytest
import torch

from equipoise.returns import lambda_returns, nstep, retrace
from tests.returns import oracle
from tests.returns.cases import agree, cases


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_the_papers_sum_in_every_episode(lambda_: float) -> None:
    for c in cases():
        got = retrace(**c.inputs("q", "log_rho"), lambda_=lambda_)
        agree(c, got, c.expect(oracle.retrace, "q", "log_rho", lambda_=lambda_))


def test_float32_is_close() -> None:
    for c in cases(torch.float32):
        got = retrace(**c.inputs("q", "log_rho"))
        agree(c, got, c.expect(oracle.retrace, "q", "log_rho", lambda_=1.0), rtol=2e-5, atol=2e-5)


def test_on_policy_with_q_equal_to_v_it_is_the_lambda_return() -> None:
    for c in cases():
        got = retrace(
            **(c.inputs() | {"q": c.value[:-1]}), log_rho=torch.zeros_like(c.reward), lambda_=0.9
        )
        want = lambda_returns(**c.inputs(), lambda_=0.9)
        agree(c, got, (want.target.numpy(), want.advantage.numpy()))


def test_an_action_the_target_never_takes_ends_the_trace() -> None:
    for c in cases():
        got = retrace(**c.inputs("q"), log_rho=torch.full_like(c.reward, -torch.inf))
        one_step = nstep(**c.inputs(), n=1).target
        torch.testing.assert_close(got.target, torch.where(c.mask, one_step, c.q), msg=c.name)


def test_likelier_actions_count_no_more_than_on_policy_and_the_first_not_at_all() -> None:
    for c in cases():
        inputs = c.inputs("q")
        on_policy = retrace(**inputs, log_rho=torch.zeros_like(c.reward))
        likelier = retrace(**inputs, log_rho=c.log_rho.abs())
        assert torch.equal(on_policy.target, likelier.target), c.name
        first = c.log_rho.clone()
        first[0] += 5
        assert torch.equal(
            retrace(**inputs, log_rho=c.log_rho).target[0],
            retrace(**inputs, log_rho=first).target[0],
        ), c.name
