"""The n-step return."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.lambda_returns import lambda_returns
from equipoise.returns.rows import Returns, check, floats


@torch.no_grad()
def nstep(
    *,
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    n: int,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Returns:
    """The n-step return of every row as target, and target - V as advantage.

        G_t^(n) = sum_{k=0}^{N-1} gamma^k r_{t+k} + gamma^N V_{t+N},  N = min(n, rows left)

    counting the rows left in the episode or in the window, whichever is fewer: near an end the
    return is shorter and bootstraps there (from nothing at a termination). Watkins 1989; Sutton and
    Barto 2018, Eq. (7.1); with n >= T it is the return of Mnih et al. 2016, A3C, arXiv:1602.01783,
    Algorithm S3.

    ``value`` is V of obs[0..T], or max_a Q, or Q at the online net's best action for double
    Q-learning; ``discount`` is gamma if it may be used and else 0. A row with ``mask`` False (a
    seam) has the target V.

    No gradient flows out. Raises ValueError if a shape is wrong or n < 1.
    """
    check(mask=mask, value=value, reward=reward, discount=discount)
    if n < 1:
        raise ValueError(f"n: expected at least 1, got {n}")
    if n >= len(reward):  # all the way to the end, in one pass
        return lambda_returns(reward=reward, discount=discount, value=value, lambda_=1.0, mask=mask)
    reward, discount, value = floats(reward, discount, value)
    target = value
    for _ in range(n):  # G^(k+1)_t = r_t + gamma G^(k)_{t+1}, from G^(0) = V
        longer = reward + discount * target[1:]
        if mask is not None:
            longer = torch.where(mask, longer, value[:-1])
        target = torch.cat([longer, value[-1:]])
    target = target[:-1]
    return Returns(target=target, advantage=target - value[:-1])
