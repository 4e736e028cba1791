"""Pure maths on [T, B]: the worth of a policy's rows. One idea a function, one file each.

One calling shape: keywords only, ``value [T+1, B]``, everything else ``[T, B]``, ``mask`` last.
``discount`` is ``Trajectory.discount(gamma)``, ``mask`` is ``Trajectory.mask``; together they end
every return at the end of its episode, so that a window with several episodes gives what each
episode would give alone. Results carry no gradient, except that of ``preference_loss``.

Text is packed (``types.Packed``): ``tokens.py`` is on [N] tokens, ``group.py`` on [M] samples.
"""

from equipoise.returns.gae import gae
from equipoise.returns.group import group_mean, group_range, group_std, leave_one_out
from equipoise.returns.importance import importance_weight, log_ratio
from equipoise.returns.lambda_returns import lambda_returns
from equipoise.returns.nstep import nstep
from equipoise.returns.preference import preference_loss
from equipoise.returns.rescale import rescale, unscale
from equipoise.returns.retrace import retrace
from equipoise.returns.rows import Returns
from equipoise.returns.running import running_returns
from equipoise.returns.scan import scan
from equipoise.returns.tokens import at_last, ends, token_gae
from equipoise.returns.vtrace import vtrace

__all__ = [
    "Returns",
    "at_last",
    "ends",
    "gae",
    "group_mean",
    "group_range",
    "group_std",
    "importance_weight",
    "lambda_returns",
    "leave_one_out",
    "log_ratio",
    "nstep",
    "preference_loss",
    "rescale",
    "retrace",
    "running_returns",
    "scan",
    "token_gae",
    "unscale",
    "vtrace",
]
