"""The step of a learner under way: its metrics so far, and numbers still to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from equipoise.errors import Final
from equipoise.types import LossOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers that an update depends on, or tensors [] on the device in their place."""

    progress: float | Tensor  # the share of the schedule done, 0..1
    rates: Mapping[str, float | Tensor]  # learning rates by group


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The results of a learner step besides the new version."""

    metrics: Mapping[str, tuple[Tensor, Tensor]]  # name -> (sum, count), on the learner's device
    priority: Tensor | None  # [B]


@dataclass(slots=True)
class StepInProgress:
    """A batch on its way through the learner."""

    numbers: Numbers
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    priority: Tensor | None = None
    # of each optimiser step whose numbers are still to be looked at
    groups: list[str] = field(default_factory=list)
    unseen: list[Tensor] = field(default_factory=list)  # [2] loss and gradient norm of each
    # [] bool, is no further step to be taken; None: nothing asks for that
    ended: Tensor | None = None

    def add(self, metrics: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Add sums and counts; zeros once the batch has ended."""
        for name, (total, count) in metrics.items():
            if self.ended is not None:
                total, count = total.masked_fill(self.ended, 0.0), count.masked_fill(self.ended, 0)
            old = self.metrics.get(name)
            self.metrics[name] = (total, count) if old is None else (old[0] + total, old[1] + count)

    def ends(self, now: Tensor) -> None:
        self.ended = now if self.ended is None else self.ended | now


def checked(out: object, algorithm: object) -> LossOutput | None:
    """Return the result of an algorithm's loss; TypeError if a user's loss returned another type,
    sums that are no tensors or have no gradient, or metrics that are no pairs.
    """
    where = f"{type(algorithm).__name__}.loss()"
    if out is None:
        return None
    if not isinstance(out, LossOutput):
        raise TypeError(
            f"expected {where} to return a LossOutput or None, got {type(out).__name__}"
        )
    sums: Mapping[str, object] = {"loss": out.loss, "count": out.count}  # a user's
    for name, value in sums.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}: expected {name} to be a tensor, got {type(value).__name__}")
    if out.loss.numel() != 1 or not out.loss.requires_grad:
        got = "one without a gradient" if out.loss.numel() == 1 else f"shape {list(out.loss.shape)}"
        raise ValueError(
            f"{where}: expected loss to be one number with a gradient, got {got}; sum it over the "
            "rows, and detach no parameter that learns"
        )
    metrics: Mapping[str, object] = out.metrics  # a user's mapping, whatever its annotation is
    for name, value in metrics.items():
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(
                f"{where}: expected metrics[{name!r}] to be (sum, count), got "
                f"{type(value).__name__}"
            )
    return out


class NonFiniteUpdate(Final, RuntimeError):
    """The error of a loss or gradient that is nan or infinite; no weight was changed by it."""


def either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """[] bool, one or the other; None counts as false."""
    return other if one is None else one if other is None else one | other
