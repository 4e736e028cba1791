"""The lambda-return: all n-step returns at once, weighted geometrically."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.rows import Returns, check, floats, real
from equipoise.returns.scan import scan


@torch.no_grad()
def lambda_returns(
    *,
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    lambda_: float,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Returns:
    """The lambda-return of every row as target, and target - V as advantage.

        G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}),  G_T = V_T
            = (1 - lambda) sum_{n=1}^{N-1} lambda^{n-1} G_t^(n) + lambda^{N-1} G_t^(N)

    with G^(n) the n-step return and N the number of rows left in the episode or in the window,
    whichever is fewer. Sutton and Barto 2018, Reinforcement Learning, 2nd edition, Eq. (12.18) and
    (12.3); TD(lambda) is Sutton 1988. With V = max_a Q it is Peng's Q(lambda).

    ``value`` is V of obs[0..T], ``discount`` gamma if V(obs[t+1]) may be used and else 0. A row
    with ``mask`` False (a seam) has the target V, and the row before it sees no further than that.

    No gradient flows out. Raises ValueError if a shape is wrong.
    """
    check(mask=mask, value=value, reward=reward, discount=discount)
    reward, discount, value = floats(reward, discount, value)
    one_step = reward + (1 - lambda_) * discount * value[1:]
    if mask is not None:
        one_step = torch.where(mask, one_step, value[:-1])
    target = scan(a=one_step, b=real(lambda_ * discount, mask), last=value[-1])[:-1]
    return Returns(target=target, advantage=target - value[:-1])
