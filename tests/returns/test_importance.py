import numpy as np
import torch

from equipoise.returns import importance_weight, log_ratio
from tests.returns.cases import cases


def test_log_ratio() -> None:
    for c in cases():
        got = log_ratio(logp_target=c.log_rho, logp_behaviour=c.q, mask=c.mask).numpy()
        np.testing.assert_array_equal(
            got, np.where(c.mask, c.log_rho.numpy() - c.q.numpy(), 0.0), err_msg=c.name
        )
        assert torch.equal(log_ratio(logp_target=c.log_rho, logp_behaviour=c.q), c.log_rho - c.q)


def test_log_ratio_of_half_precision_is_taken_in_float32() -> None:
    near = torch.tensor([[-0.5]], dtype=torch.bfloat16)
    got = log_ratio(logp_target=torch.tensor([[-0.501]]), logp_behaviour=near)
    torch.testing.assert_close(got, torch.tensor([[-0.001]]), rtol=1e-4, atol=0)


def test_importance_weight() -> None:
    for c in cases():
        ratio = np.exp(c.log_rho.numpy())
        for clip in (0.5, 1.0, 2.0):
            got = importance_weight(log_rho=c.log_rho, clip=clip, mask=c.mask).numpy()
            np.testing.assert_allclose(
                got, np.where(c.mask, np.minimum(clip, ratio), 0.0), rtol=1e-14, err_msg=c.name
            )
        np.testing.assert_allclose(importance_weight(log_rho=c.log_rho).numpy(), ratio, rtol=1e-14)
        # exp overflows, the weight does not
        assert importance_weight(log_rho=torch.full((1, 1), 1e4), clip=1.5) == 1.5


def test_no_gradient_flows_out() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    assert not log_ratio(logp_target=x, logp_behaviour=x.detach()).requires_grad
    assert not importance_weight(log_rho=x).requires_grad
