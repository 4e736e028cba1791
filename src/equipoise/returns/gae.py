"""Generalised advantage estimation."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.rows import Returns, check, floats, real
from equipoise.returns.scan import scan


@torch.no_grad()
def gae(
    *,
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    lambda_: float,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Returns:
    """The exponentially weighted advantage of every row, and the value target that goes with it.

        delta_t = r_t + gamma V_{t+1} - V_t
        advantage_t = sum_{l >= 0} (gamma lambda)^l delta_{t+l}
        target_t = advantage_t + V_t

    Schulman et al. 2015, arXiv:1506.02438, Eq. (16); the target is the TD(lambda) return, the same
    as ``lambda_returns``. The sum runs to the end of the row's episode or of the window, whichever
    is first.

    ``value`` is V of obs[0..T], ``discount`` gamma if V(obs[t+1]) may be used and else 0. A row
    with ``mask`` False (a seam) neither gives nor passes on anything: its advantage is 0, its
    target V.

    No gradient flows out. Raises ValueError if a shape is wrong.
    """
    check(mask=mask, value=value, reward=reward, discount=discount)
    reward, discount, value = floats(reward, discount, value)
    td_error = real(reward + discount * value[1:] - value[:-1], mask)
    advantage = scan(a=td_error, b=real(lambda_ * discount, mask))[:-1]
    return Returns(target=value[:-1] + advantage, advantage=advantage)
