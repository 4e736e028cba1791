"""Adam and RMSprop of one flat parameter, to the bit those of ``torch.optim``.

Why not ``torch.optim`` itself: its constructor imports the compiler (``torch._dynamo`` and sympy), one to four seconds of
every learner's start, and around Adam's one kernel it spends 70 us a step on hooks and lists of parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from equipoise.types import Algorithm

BETAS = 0.9, 0.999


class Optimizer(ABC):
    """Move ``flat`` by its gradient; ``slots`` are the tensors that the optimiser remembers, by name."""

    def __init__(self, flat: nn.Parameter, epsilon: float, slots: tuple[str, ...]) -> None:
        self._flat, self._epsilon, self.rate = flat, epsilon, 0.0
        self.slots = {name: torch.zeros_like(flat, requires_grad=False) for name in slots}

    @abstractmethod
    def step(self) -> None:
        """Take one step at ``rate``, which the learner sets before."""

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Take the slots of a saved state; ValueError where one is missing or of another shape."""
        for name, slot in self.slots.items():
            if name not in slots or slots[name].shape != slot.shape:
                got = tuple(slots[name].shape) if name in slots else f"only {sorted(slots)}"
                raise ValueError(f"optimiser: expected {name!r} of shape {tuple(slot.shape)}, got {got}")
        for name, slot in self.slots.items():
            slot.copy_(slots[name])


class Adam(Optimizer):
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, in torch's fused kernel."""

    def __init__(self, flat: nn.Parameter, *, epsilon: float) -> None:
        super().__init__(flat, epsilon, ("exp_avg", "exp_avg_sq"))
        self.slots["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)

    @torch.no_grad()
    def step(self) -> None:
        flat, slots = self._flat, self.slots
        assert flat.grad is not None
        slots["step"] += 1
        torch._fused_adam_(
            [flat], [flat.grad], [slots["exp_avg"]], [slots["exp_avg_sq"]], [], [slots["step"]], amsgrad=False, lr=self.rate,
            beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=self._epsilon, maximize=False,
        )  # fmt: skip


class RMSprop(Optimizer):
    """Tieleman and Hinton 2012, lecture 6e: the gradient over the root of the smoothed square of it."""

    def __init__(self, flat: nn.Parameter, *, epsilon: float, decay: float) -> None:
        super().__init__(flat, epsilon, ("square_avg",))
        self._decay, self._root = decay, torch.empty_like(flat, requires_grad=False)

    @torch.no_grad()
    def step(self) -> None:
        flat, square = self._flat, self.slots["square_avg"]
        assert flat.grad is not None
        square.mul_(self._decay).addcmul_(flat.grad, flat.grad, value=1 - self._decay)
        torch.sqrt(square, out=self._root)
        flat.addcdiv_(flat.grad, self._root.add_(self._epsilon), value=-self.rate)


def optimizer(algorithm: Algorithm, flat: nn.Parameter) -> Optimizer:
    """The optimiser that an algorithm names."""
    if algorithm.optimizer == "adam":
        return Adam(flat, epsilon=algorithm.optimizer_epsilon)
    if algorithm.optimizer == "rmsprop":
        return RMSprop(flat, epsilon=algorithm.optimizer_epsilon, decay=algorithm.optimizer_decay)
    raise ValueError(f"expected optimizer 'adam' or 'rmsprop', got {algorithm.optimizer!r}")
