"""V-trace: the value of a policy from the experience of another, by clipped importance weights."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.importance import importance_weight
from equipoise.returns.rows import Returns, check, floats, real
from equipoise.returns.scan import scan


@torch.no_grad()
def vtrace(
    *,
    reward: Float[Tensor, "T B"],
    discount: Float[Tensor, "T B"],
    value: Float[Tensor, "T+1 B"],
    log_rho: Float[Tensor, "T B"],
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Returns:
    """The V-trace target and the policy-gradient advantage of every row.

    With rho_t = min(clip_rho, exp(log_rho_t)) and c_t = lambda min(clip_c, exp(log_rho_t)):

        v_s = V_s + sum_{t >= s} gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t (r_t + gamma V_{t+1} -
        V_t) advantage_s = min(clip_pg_rho, exp(log_rho_s)) (r_s + gamma v_{s+1} - V_s)

    Espeholt et al. 2018, IMPALA, arXiv:1802.01561: the target is Eq. (1), lambda its Remark 2, the
    advantage the factor of grad log pi in section 4.2. The sums run to the end of the row's episode
    or of the window, whichever is first. On policy with lambda = 1 the target is the longest n-step
    return. The paper's contraction wants clip_rho >= clip_c.

    ``value`` is V of obs[0..T] under the target policy, ``log_rho`` log(target / behaviour) of the
    actions taken (``log_ratio``), ``discount`` gamma if V(obs[t+1]) may be used and else 0. A row
    with ``mask`` False (a seam) neither gives nor passes on anything: its target is V, its
    advantage 0, and the truncated row before it bootstraps from the seam's V, the value of the true
    final observation.

    No gradient flows out. Raises ValueError if a shape is wrong.
    """
    check(mask=mask, value=value, reward=reward, discount=discount, log_rho=log_rho)
    reward, discount, value, log_rho = floats(reward, discount, value, log_rho)
    # 0 on a seam: no correction begins there and none passes
    ratio = importance_weight(log_rho=log_rho, mask=mask)
    td_error = real(torch.addcmul(reward, discount, value[1:]) - value[:-1], mask)
    # v - V in every row, and in row T, where v is V
    correction = scan(
        a=ratio.clamp(max=clip_rho) * td_error, b=discount * ratio.clamp(max=clip_c).mul_(lambda_)
    )
    return Returns(
        target=value[:-1] + correction[:-1],
        # r + gamma v' - V = (r + gamma V' - V) + gamma (v' - V')
        advantage=torch.addcmul(td_error, discount, correction[1:]).mul_(
            ratio.clamp(max=clip_pg_rho)
        ),
    )
