"""Adam, AdamW and RMSprop of one flat parameter, equal to ``torch.optim`` to the bit.

Why not the classes of ``torch.optim``: their constructor imports the compiler (dynamo and sympy),
one to four seconds of every learner's start. Adam is torch's own function, in its fused kernel on
every device. There is nothing for a foreach kernel to join: all parameters of a group are one
tensor.

A rate is a number, or a tensor [] on the parameter's device that a CUDA graph reads again at each
replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from equipoise.types import Optimizer

# settings that an optimiser reads itself at each step; the learner reads the others
STEPPED = ("name", "epsilon", "betas", "decay", "weight_decay")


class Descent(ABC):
    """Moves ``flat`` by its gradient; ``slots``: the optimiser's state by name."""

    moments: ClassVar[tuple[str, ...]]  # slots of the parameter's shape

    def __init__(self, settings: Optimizer, flat: nn.Parameter) -> None:
        self.settings, self._flat = settings, flat
        self.slots = {name: torch.zeros_like(flat, requires_grad=False) for name in self.moments}
        self.slots["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)

    @abstractmethod
    def step(self, rate: float | Tensor) -> None:
        """Take one step at this learning rate."""

    @torch.no_grad()
    def step_unless(self, skip: Tensor, rate: float | Tensor) -> None:
        """Take one step, and undo it if ``skip`` [] is True. No device is waited for."""
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
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, in torch's fused kernel; AdamW is
    Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def step(self, rate: float | Tensor) -> None:
        self._step(rate, None)

    def step_unless(self, skip: Tensor, rate: float | Tensor) -> None:
        self._step(rate, skip.float())

    @torch.no_grad()
    def _step(self, rate: float | Tensor, skip: Tensor | None) -> None:
        """``skip`` []: 1 for no step, which the kernel takes for a gradient that overflowed."""
        flat, slots, mine = self._flat, self.slots, self.settings
        assert flat.grad is not None
        kernel = adamw if mine.name == "adamw" else adam
        kernel(
            [flat],
            [flat.grad],
            [slots["exp_avg"]],
            [slots["exp_avg_sq"]],
            [],
            [slots["step"]],
            fused=True,
            capturable=flat.is_cuda,
            found_inf=skip,
            amsgrad=False,
            maximize=False,
            lr=rate,
            beta1=mine.betas[0],
            beta2=mine.betas[1],
            eps=mine.epsilon,
            weight_decay=mine.weight_decay,
        )


class RMSprop(Descent):
    """The gradient over the root of its smoothed square (Tieleman and Hinton 2012, lecture 6e)."""

    moments: ClassVar[tuple[str, ...]] = ("square_avg",)

    def __init__(self, settings: Optimizer, flat: nn.Parameter) -> None:
        super().__init__(settings, flat)
        self._root = torch.empty_like(flat, requires_grad=False)

    @torch.no_grad()
    def step(self, rate: float | Tensor) -> None:
        flat, square, mine = self._flat, self.slots["square_avg"], self.settings
        gradient = flat.grad
        assert gradient is not None
        self.slots["step"] += 1
        if mine.weight_decay:
            gradient.add_(flat, alpha=mine.weight_decay)
        square.mul_(mine.decay).addcmul_(gradient, gradient, value=1 - mine.decay)
        torch.sqrt(square, out=self._root)
        root = self._root.add_(mine.epsilon)
        if isinstance(rate, Tensor):
            flat.sub_(gradient.div_(root).mul_(rate))
        else:
            flat.addcdiv_(gradient, root, value=-rate)


KINDS: dict[str, type[Descent]] = {"adam": Adam, "adamw": Adam, "rmsprop": RMSprop}


def descent(settings: Optimizer, flat: nn.Parameter) -> Descent:
    """The optimiser that the settings name."""
    if settings.name not in KINDS:
        raise ValueError(
            f"optimizer.name: expected one of {', '.join(KINDS)}, got {settings.name!r}"
        )
    return KINDS[settings.name](settings, flat)


def unknown_group(settings: Optimizer, groups: Collection[str]) -> str | None:
    """Return the first group of ``settings.rates`` that is not in ``groups``; None if all are."""
    return next((name for name in settings.rates if name not in groups), None)
