"""Importance weights: action probabilities of the learned policy over the acting one's."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.rows import check, floats, real


@torch.no_grad()
def log_ratio(
    *,
    logp_target: Float[Tensor, "T B"],
    logp_behaviour: Float[Tensor, "T B"],
    mask: Bool[Tensor, "T B"] | None = None,
) -> Float[Tensor, "T B"]:
    """log rho_t = log pi(a_t | x_t) - log mu(a_t | x_t), and 0 where ``mask`` is False.

    pi is the policy that is learned, mu the policy that acted (in Espeholt et al. 2018,
    arXiv:1802.01561, section 4.1). It is taken in the dtype of the corrections: two near
    log-probabilities in half precision would leave nothing of their difference.

    No gradient flows out: a loss whose ratio is to be differentiated (PPO) takes its own. Raises
    ValueError on a wrong shape.
    """
    check(mask=mask, logp_target=logp_target, logp_behaviour=logp_behaviour)
    logp_target, logp_behaviour = floats(logp_target, logp_behaviour)
    return real(logp_target - logp_behaviour, mask)


@torch.no_grad()
def importance_weight(
    *,
    log_rho: Float[Tensor, "T B"],
    clip: float = math.inf,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Float[Tensor, "T B"]:
    """min(clip, exp(log_rho)), and 0 where ``mask`` is False.

    Espeholt et al. 2018, arXiv:1802.01561, Eq. (1): rho and c. No gradient flows out. Raises
    ValueError on a wrong shape.
    """
    check(mask=mask, log_rho=log_rho)
    (log_rho,) = floats(log_rho)
    return real(log_rho.exp().clamp_(max=clip), mask)
