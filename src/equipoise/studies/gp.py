"""A Gaussian process over the unit cube, from scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from jaxtyping import Float64

Rows = Float64[np.ndarray, "n d"]
Values = Float64[np.ndarray, "n"]
MOST_POINTS = 200  # the newest; a fit takes time by the cube of them
MOST_ITERATIONS = 30


class _Kernel(Protocol):
    def get_params(self) -> dict[str, float]: ...


class _Regressor(Protocol):
    kernel_: _Kernel

    def fit(self, X: Rows, y: Values) -> object: ...
    def predict(self, X: Rows, return_std: bool) -> tuple[Values, Values]: ...


class GaussianProcess:
    """A fit of values over the unit cube: a Matern kernel of one length for each dimension, with
    noise. The same points and seed give the same fit.
    """

    def __init__(self, measured: Sequence[tuple[Sequence[float], float]], seed: int) -> None:
        newest = measured[-MOST_POINTS:]
        self._points = np.asarray([point for point, _ in newest], dtype=np.float64)
        self._values = np.asarray([value for _, value in newest], dtype=np.float64)
        self._mean = float(self._values.mean())
        self.scale = float(self._values.std()) or 1.0
        self._fitted = _regressor(self._points, (self._values - self._mean) / self.scale, seed)

    def at(self, points: Sequence[Sequence[float]] | Rows) -> tuple[Values, Values]:
        """Return the mean and its deviation, without the noise of a measurement, at each point."""
        with _one_thread():
            mean, deviation = self._fitted.predict(np.asarray(points, dtype=np.float64), True)
        noise = self._fitted.kernel_.get_params()["k2__noise_level"]
        deviation = np.sqrt(np.maximum(deviation**2 - noise, 0.0))
        return mean * self.scale + self._mean, deviation * self.scale

    def believing(self, points: Sequence[Sequence[float]]) -> GaussianProcess:
        """Return the process as it would be if each of these points, whose results are still to
        come, had its mean as its value, so that the next choice is another one.
        """
        if len(points) == 0:
            return self
        other = object.__new__(GaussianProcess)
        other._mean, other.scale = self._mean, self.scale
        other._points = np.vstack([self._points, np.asarray(points, dtype=np.float64)])
        other._values = np.concatenate([self._values, self.at(points)[0]])
        values = (other._values - other._mean) / other.scale
        other._fitted = _regressor(other._points, values, 0, self._fitted.kernel_)
        return other


def _regressor(
    points: Rows, values: Values, seed: int, kernel: _Kernel | None = None
) -> _Regressor:
    """Return a fitted regressor of scikit-learn; with a kernel given, as that is."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengths = np.full(points.shape[1], 0.5)
    found: _Regressor = GaussianProcessRegressor(
        kernel
        or ConstantKernel(1.0, (0.05, 20.0)) * Matern(lengths, (0.05, 20.0), nu=2.5)
        + WhiteKernel(0.01, (1e-6, 1.0)),
        optimizer=None if kernel else _minimum,
        random_state=seed % 2**32,
    )
    with warnings.catch_warnings(), _one_thread():
        warnings.simplefilter("ignore")  # a length at its bound is no fault of the caller
        found.fit(points, values)
    return found


def _minimum(
    loss: Callable[[Values], tuple[float, Values]], start: Values, bounds: Rows
) -> tuple[Values, float]:
    from scipy.optimize import minimize

    options = {"maxiter": MOST_ITERATIONS}
    found = minimize(loss, start, method="L-BFGS-B", jac=True, bounds=bounds, options=options)
    return found.x, found.fun


def _one_thread() -> AbstractContextManager[object]:
    """Keep the matrices to one thread: they are small, and the trials need the other cores."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
