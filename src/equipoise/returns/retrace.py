"""Retrace(lambda): Q-values of a policy from the experience of another."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.importance import importance_weight
from equipoise.returns.rows import Returns, check, floats, real
from equipoise.returns.scan import scan


@torch.no_grad()
def retrace(
    *,
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    q: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    log_rho: Float[Tensor, "T B"],
    lambda_: float = 1.0,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Returns:
    """The Retrace target for the Q of the actions taken, and target - V as advantage.

    With c_t = lambda min(1, exp(log_rho_t)):

        target_s = Q_s + sum_{t >= s} gamma^{t-s} (prod_{i=s+1}^{t} c_i) (r_t + gamma V_{t+1} - Q_t)

    Munos et al. 2016, Safe and efficient off-policy reinforcement learning, arXiv:1606.02647: the
    operator is Eq. (3), c is section 3's Retrace(lambda). The first action is a given, so unlike
    V-trace its ratio does not count. The sum runs to the end of the row's episode or of the window,
    whichever is first. The advantage is ACER's (Wang et al. 2016, arXiv:1611.01224), without its
    clipped weight.

    ``q`` is Q(obs[t], action[t]); ``value`` is sum_a pi(a | obs) Q(obs, a) of obs[0..T] under the
    target policy; ``log_rho`` is log(target / behaviour) of the actions taken; ``discount`` gamma
    if V(obs[t+1]) may be used and else 0. A row with ``mask`` False (a seam) neither gives nor
    passes on anything: its target is Q, its advantage 0.

    No gradient flows out. Raises ValueError if a shape is wrong.
    """
    check(mask=mask, value=value, reward=reward, discount=discount, q=q, log_rho=log_rho)
    reward, discount, q, value, log_rho = floats(reward, discount, q, value, log_rho)
    c = importance_weight(log_rho=log_rho, clip=1.0, mask=mask)
    next_c = torch.cat([c[1:], torch.zeros_like(c[:1])])
    td_error = real(reward + discount * value[1:] - q, mask)
    target = q + scan(a=td_error, b=real(lambda_ * discount * next_c, mask))[:-1]
    return Returns(target=target, advantage=real(target - value[:-1], mask))
