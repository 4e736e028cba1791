"""The discounted return so far, forwards in time; its spread scales the rewards."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from equipoise.returns.rows import check, floats, real
from equipoise.returns.scan import scan


@torch.no_grad()
def running_returns(
    *,
    reward: Float[Tensor, "T B"],
    first: Bool[Tensor, "T B"],
    gamma: float,
    before: Float[Tensor, " B"] | None = None,
    mask: Bool[Tensor, "T B"] | None = None,
) -> Float[Tensor, "T B"]:
    """The discounted sum of the rewards of the episode up to and with each row.

        R_t = r_t + gamma R_{t-1}, with R_{t-1} = 0 if row t begins an episode

    It looks back, unlike every other return. OpenAI Baselines' VecNormalize divides rewards by the
    standard deviation of it ("reward scaling" in Engstrom et al. 2020, arXiv:2005.12729). ``first``
    is that of rows 0 to T-1; ``before`` [B] is the last row of the window before this one (default
    0). A row with ``mask`` False hands on what it was given, undiscounted: nothing happened in it.
    (After a seam an episode begins.)

    No gradient flows out. Raises ValueError if a shape is wrong.
    """
    check(mask=mask, reward=reward, first=first)
    (reward,) = floats(reward)
    if before is not None and before.shape != reward.shape[1:]:
        raise ValueError(
            f"before: expected [B] = {list(reward.shape[1:])}, got {list(before.shape)}"
        )
    last = None if before is None else before.to(reward.dtype)
    carried = (~first).to(reward.dtype)
    carried = gamma * carried if mask is None else torch.where(mask, gamma * carried, carried)
    return scan(a=real(reward, mask).flip(0), b=carried.flip(0), last=last)[:-1].flip(0)
