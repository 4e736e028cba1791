"""Pure maths on [T, B]: what a policy's rows were worth. One idea a function, one file each.

One calling shape: keywords only, ``value [T+1, B]``, everything else ``[T, B]``, ``mask`` last. ``discount`` is
``Trajectory.discount(gamma)``, ``mask`` is ``Trajectory.mask``; together they end every return at the end of its episode, so
that a window with several episodes gives what each episode would give alone. Results carry no gradient.
"""

from equipoise.returns.gae import gae
from equipoise.returns.importance import effective_sample_size, importance_weight, log_ratio
from equipoise.returns.lambda_returns import lambda_returns
from equipoise.returns.nstep import nstep
from equipoise.returns.rescale import rescale, unscale
from equipoise.returns.retrace import retrace
from equipoise.returns.rows import Returns
from equipoise.returns.running import running_returns
from equipoise.returns.scan import scan
from equipoise.returns.vtrace import vtrace

__all__ = [
    "Returns", "effective_sample_size", "gae", "importance_weight", "lambda_returns", "log_ratio", "nstep", "rescale",
    "retrace", "running_returns", "scan", "unscale", "vtrace",
]  # fmt: skip
