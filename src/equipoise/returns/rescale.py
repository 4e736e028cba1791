"""Value rescaling: one network for rewards of any size, without clipping them."""

import torch
from jaxtyping import Float
from torch import Tensor

from equipoise.returns.rows import floats

EPSILON = 1e-3  # of R2D2 (Kapturowski et al. 2019); Pohlen et al. use 1e-2


@torch.no_grad()
def rescale(x: Float[Tensor, "*shape"], *, epsilon: float = EPSILON) -> Float[Tensor, "*shape"]:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, elementwise.

    Pohlen et al. 2018, Observe and look further, arXiv:1805.11593, section 3.2. Computed as
    x / (sqrt(|x| + 1) + 1) + epsilon x, which keeps all digits near 0.

    No gradient flows out: a target is rescaled, ``rescale(target)`` of ``target = r + gamma
    unscale(value)``.
    """
    _check(epsilon)
    (x,) = floats(x)
    return x / ((x.abs() + 1).sqrt() + 1) + epsilon * x


@torch.no_grad()
def unscale(x: Float[Tensor, "*shape"], *, epsilon: float = EPSILON) -> Float[Tensor, "*shape"]:
    """The inverse of ``rescale``: sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2
    epsilon))^2 - 1), elementwise.

    Pohlen et al. 2018, arXiv:1805.11593, Proposition A.2. That form subtracts near-equal numbers
    twice: in float32 four digits are left, and near 0 none. With w = sqrt(|h^-1| + 1) - 1 the
    equation is epsilon w^2 + (1 + 2 epsilon) w = |x|; its root w = 2 |x| / (1 + 2 epsilon + sqrt((1
    + 2 epsilon)^2 + 4 epsilon |x|)) subtracts nothing, and |h^-1| = w (w + 2).

    No gradient flows out. ``epsilon`` 0 is allowed.
    """
    _check(epsilon)
    (x,) = floats(x)
    slope = 1 + 2 * epsilon
    w_per_x = 2 / (slope + (slope**2 + 4 * epsilon * x.abs()).sqrt())
    return x * w_per_x * (w_per_x * x.abs() + 2)


def _check(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"epsilon: expected at least 0, got {epsilon}")
