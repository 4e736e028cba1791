"""The papers' sums, in NumPy and float64, one episode at a time: no recursion, no mask, no
bootstrap flag inside a formula.

``per_episode`` cuts every stream of a window into its episodes first, so that a formula only ever
sees the rows of one and the value that follows them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Formula = Callable[..., tuple[list[float], list[float]]]


def episodes(mask: Array, bootstrap: Array) -> Iterator[slice]:
    """The runs of real rows of one stream: each ends before a seam, at a termination, or with the
    window.
    """
    start = None
    for t in range(len(mask)):
        if not mask[t]:
            continue
        start = t if start is None else start
        last = t + 1 == len(mask) or not mask[t + 1] or not bootstrap[t]
        if last:
            yield slice(start, t + 1)
            start = None


def per_episode(
    formula: Formula,
    *,
    mask: Array,
    bootstrap: Array,
    value: Array,
    seam: Array,
    rows: dict[str, Array],
    **settings: float,
) -> tuple[Array, Array]:
    """Target and advantage [T, B]; ``seam`` [T, B] is the target of rows that are not real, whose
    advantage is 0.
    """
    target, advantage = seam.astype(np.float64).copy(), np.zeros(mask.shape)
    for b in range(mask.shape[1]):
        for part in episodes(mask[:, b], bootstrap[:, b]):
            values = value[part.start : part.stop + 1, b].astype(np.float64).copy()
            if not bootstrap[part.stop - 1, b]:
                values[-1] = 0.0  # nothing comes after a termination
            episode = {name: row[part, b].astype(np.float64) for name, row in rows.items()}
            target[part, b], advantage[part, b] = formula(value=values, **episode, **settings)
    return target, advantage


def vtrace(
    *,
    reward: Array,
    value: Array,
    log_rho: Array,
    gamma: float,
    lambda_: float,
    clip_rho: float,
    clip_c: float,
    clip_pg_rho: float,
) -> tuple[list[float], list[float]]:
    """Espeholt et al. 2018, Eq. (1), and the advantage of section 4.2."""
    N = len(reward)
    ratio = np.exp(log_rho)
    rho = [min(clip_rho, x) for x in ratio]
    c = [lambda_ * min(clip_c, x) for x in ratio]
    target = [
        value[s]
        + sum(
            gamma ** (t - s)
            * np.prod(c[s:t])
            * rho[t]
            * (reward[t] + gamma * value[t + 1] - value[t])
            for t in range(s, N)
        )
        for s in range(N)
    ]
    after = [*target[1:], value[N]]
    advantage = [
        min(clip_pg_rho, ratio[s]) * (reward[s] + gamma * after[s] - value[s]) for s in range(N)
    ]
    return target, advantage


def gae(
    *, reward: Array, value: Array, gamma: float, lambda_: float
) -> tuple[list[float], list[float]]:
    """Schulman et al. 2015, Eq. (16): the sum of discounted TD residuals."""
    N = len(reward)
    delta = [reward[t] + gamma * value[t + 1] - value[t] for t in range(N)]
    advantage = [sum((gamma * lambda_) ** k * delta[s + k] for k in range(N - s)) for s in range(N)]
    return [advantage[s] + value[s] for s in range(N)], advantage


def n_step_return(reward: Array, value: Array, gamma: float, s: int, n: int) -> float:
    """Sutton and Barto 2018, Eq. (7.1)."""
    return float(sum(gamma**k * reward[s + k] for k in range(n)) + gamma**n * value[s + n])


def nstep(
    *, reward: Array, value: Array, gamma: float, n: float
) -> tuple[list[float], list[float]]:
    N = len(reward)
    target = [n_step_return(reward, value, gamma, s, min(int(n), N - s)) for s in range(N)]
    return target, [target[s] - value[s] for s in range(N)]


def lambda_returns(
    *, reward: Array, value: Array, gamma: float, lambda_: float
) -> tuple[list[float], list[float]]:
    """Sutton and Barto 2018, Eq. (12.3): the n-step returns, weighted, the longest with all the
    weight that is left.
    """
    N = len(reward)
    target = []
    for s in range(N):
        G = [n_step_return(reward, value, gamma, s, n) for n in range(1, N - s + 1)]
        target.append(
            (1 - lambda_) * sum(lambda_**i * g for i, g in enumerate(G[:-1]))
            + lambda_ ** (len(G) - 1) * G[-1]
        )
    return target, [target[s] - value[s] for s in range(N)]


def retrace(
    *, reward: Array, q: Array, value: Array, log_rho: Array, gamma: float, lambda_: float
) -> tuple[list[float], list[float]]:
    """Munos et al. 2016, Eq. (3) with c = lambda min(1, pi / mu); the product begins at the second
    action.
    """
    N = len(reward)
    c = [lambda_ * min(1.0, x) for x in np.exp(log_rho)]
    target = [
        q[s]
        + sum(
            gamma ** (t - s) * np.prod(c[s + 1 : t + 1]) * (reward[t] + gamma * value[t + 1] - q[t])
            for t in range(s, N)
        )
        for s in range(N)
    ]
    return target, [target[s] - value[s] for s in range(N)]
