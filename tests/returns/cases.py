"""Windows of several episodes: as envs make them, and at random."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.returns import Returns
from tests.returns import oracle

SEEDS = range(100)
KINDS = ("next_step", "same_step", "random", "no_ends", "only_seams")


@dataclass(frozen=True)
class Case:
    name: str  # says the seed, so that a failure can be run again
    gamma: float
    reward: Tensor
    value: Tensor
    log_rho: Tensor
    q: Tensor
    mask: Tensor
    bootstrap: Tensor

    @property
    def discount(self) -> Tensor:
        # float * bool alone would be float32
        return self.gamma * self.bootstrap.to(self.value.dtype)

    def inputs(self, *more: str) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in ("reward", "discount", "value", *more, "mask")
        }

    def expect(self, formula: oracle.Formula, *more: str, **settings: float) -> tuple[Any, Any]:
        """What the paper says, float64; a seam's target is Q where there is one, else V."""
        rows = {name: getattr(self, name).numpy() for name in ("reward", *more)}
        return oracle.per_episode(
            formula,
            mask=self.mask.numpy(),
            bootstrap=self.bootstrap.numpy(),
            value=self.value.numpy(),
            seam=self.q.numpy() if "q" in more else self.value[:-1].numpy(),
            rows=rows,
            gamma=self.gamma,
            **settings,
        )


def streams(kind: str, T: int, B: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """mask and bootstrap [T, B]."""
    mask, bootstrap = np.ones((T, B), bool), np.ones((T, B), bool)
    if kind == "random":
        return rng.random((T, B)) < 0.7, rng.random((T, B)) < 0.7
    if kind == "only_seams":
        return ~mask, rng.random((T, B)) < 0.5
    for b in range(B if kind != "no_ends" else 0):
        seam = rng.random() < 0.2  # a window never starts on one, but the maths does not mind
        for t in range(T):
            if seam:
                mask[t, b], seam = False, rng.random() < 0.1  # now and then a longer gap
                bootstrap[t, b] = rng.random() < 0.5  # of no meaning on a seam
                continue
            terminated, truncated = rng.random() < 0.1, rng.random() < 0.1
            if kind == "next_step":  # the true final observation is the next row
                bootstrap[t, b], seam = not terminated, terminated or truncated
            else:  # the next row belongs to the next episode at once
                bootstrap[t, b] = not (terminated or truncated)
    return mask, bootstrap


def case(seed: int, dtype: torch.dtype = torch.float64) -> Case:
    rng = np.random.default_rng(seed)
    kind = KINDS[int(rng.choice(len(KINDS), p=[0.4, 0.2, 0.3, 0.05, 0.05]))]
    T, B = int(rng.choice([1, 2, 3, 8, 20, 33])), int(rng.choice([1, 2, 5]))
    mask, bootstrap = streams(kind, T, B, rng)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    mask, bootstrap = torch.from_numpy(mask), torch.from_numpy(bootstrap)
    return Case(
        name=f"seed {seed}: {kind}, T={T}, B={B}",
        gamma=float(rng.choice([0.0, 0.5, 0.9, 0.99, 1.0])),
        reward=torch.where(mask, normal(T, B), 0.0),
        value=normal(T + 1, B),
        log_rho=normal(T, B),
        q=normal(T, B),
        mask=mask,
        bootstrap=bootstrap,
    )


def agree(
    case: Case, got: Returns, expected: tuple[Any, Any], rtol: float = 1e-10, atol: float = 1e-10
) -> None:
    for name, want in zip(("target", "advantage"), expected, strict=True):
        np.testing.assert_allclose(
            getattr(got, name).numpy(), want, rtol=rtol, atol=atol, err_msg=f"{name}, {case.name}"
        )


def same(a: Returns, b: Returns) -> bool:
    return torch.equal(a.target, b.target) and torch.equal(a.advantage, b.advantage)


def cases(dtype: torch.dtype = torch.float64) -> Iterator[Case]:
    return (case(seed, dtype) for seed in SEEDS)
