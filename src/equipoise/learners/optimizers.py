"""Adam, AdamW and RMSprop of one flat parameter, to the bit those of ``torch.optim``.

Why not ``torch.optim`` itself: its constructor imports the compiler (``torch._dynamo`` and sympy), one to four seconds of
every learner's start, and around Adam's one kernel it spends 70 us a step on hooks and lists of parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from equipoise.types import Optimizer


class Descent(ABC):
    """Move ``flat`` by its gradient; ``slots`` are the tensors that the optimiser remembers, by name."""

    moments: ClassVar[tuple[str, ...]]  # slots of the parameter's shape

    def __init__(self, settings: Optimizer, flat: nn.Parameter) -> None:
        self.settings, self._flat = settings, flat
        self.slots = {name: torch.zeros_like(flat, requires_grad=False) for name in self.moments}
        self.slots["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)

    @abstractmethod
    def step(self, rate: float) -> None:
        """Take one step at this learning rate."""

    @torch.no_grad()
    def step_unless(self, skip: Tensor, rate: float) -> None:
        """Take one step, and undo it where ``skip`` [] is True, which is not looked at: a device is not waited for."""
        state = [self._flat.detach(), *self.slots.values()]
        before = [x.clone() for x in state]
        self.step(rate)
        for x, old in zip(state, before, strict=True):
            x.copy_(torch.where(skip, old, x))

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Take the slots of a saved state, which the learner has checked."""
        for name, slot in self.slots.items():
            slot.copy_(slots[name])


class Adam(Descent):
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, in torch's fused kernel; AdamW is Loshchilov and Hutter 2019,
    arXiv:1711.05101, algorithm 2.
    """

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __init__(self, settings: Optimizer, flat: nn.Parameter) -> None:
        super().__init__(settings, flat)
        self._kernel = torch._fused_adamw_ if settings.name == "adamw" else torch._fused_adam_

    @torch.no_grad()
    def step(self, rate: float) -> None:
        flat, slots, mine = self._flat, self.slots, self.settings
        assert flat.grad is not None
        slots["step"] += 1
        self._kernel(
            [flat], [flat.grad], [slots["exp_avg"]], [slots["exp_avg_sq"]], [], [slots["step"]], amsgrad=False, lr=rate,
            beta1=mine.betas[0], beta2=mine.betas[1], weight_decay=mine.weight_decay, eps=mine.epsilon, maximize=False,
        )  # fmt: skip


class RMSprop(Descent):
    """Tieleman and Hinton 2012, lecture 6e: the gradient over the root of the smoothed square of it."""

    moments: ClassVar[tuple[str, ...]] = ("square_avg",)

    def __init__(self, settings: Optimizer, flat: nn.Parameter) -> None:
        super().__init__(settings, flat)
        self._root = torch.empty_like(flat, requires_grad=False)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        flat, square, mine = self._flat, self.slots["square_avg"], self.settings
        gradient = flat.grad
        assert gradient is not None
        self.slots["step"] += 1
        if mine.weight_decay:
            gradient.add_(flat, alpha=mine.weight_decay)
        square.mul_(mine.decay).addcmul_(gradient, gradient, value=1 - mine.decay)
        torch.sqrt(square, out=self._root)
        flat.addcdiv_(gradient, self._root.add_(mine.epsilon), value=-rate)


KINDS: dict[str, type[Descent]] = {"adam": Adam, "adamw": Adam, "rmsprop": RMSprop}


def descent(settings: Optimizer, flat: nn.Parameter) -> Descent:
    """The optimiser that the settings name."""
    if settings.name not in KINDS:
        raise ValueError(f"optimizer.name: expected one of {', '.join(KINDS)}, got {settings.name!r}")
    return KINDS[settings.name](settings, flat)


def unknown_group(settings: Optimizer, groups: Collection[str]) -> str | None:
    """The first group in ``settings.rates`` that the algorithm does not have; None where there is none."""
    return next((name for name in settings.rates if name not in groups), None)
