"""Parameters of which several learners keep a part each, and the whole tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from equipoise.learners.optimizers import descent
from equipoise.learners.parameters.mesh import lost, mesh_of
from equipoise.learners.parameters.parameters import Groups, Parameters
from equipoise.learners.pool import Learners
from equipoise.types import Optimizer, Tree


def part_of(x: Tensor) -> Tensor:
    """The part of a tensor that lies here; all of it if it is not spread."""
    return x.to_local() if isinstance(x, DTensor) else x


def cut(whole: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that lies here if it is spread as ``like`` is."""
    if not isinstance(like, DTensor):
        return whole
    # Without the rank of a source each learner cuts what it has, and sends nothing.
    return distribute_tensor(
        whole.contiguous(), like.device_mesh, like.placements, src_data_rank=None
    ).to_local()


def gathered(part: Tensor, like: Tensor) -> Tensor:
    """The whole tensor of the parts of all learners, which call this together."""
    if not isinstance(like, DTensor):
        return part
    spread = DTensor.from_local(
        part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    )
    with lost():
        return spread.full_tensor()


def _spread(x: Tensor) -> bool:
    """Do the learners have different parts of a tensor?"""
    return isinstance(x, DTensor) and any(place.is_shard() for place in x.placements)


def _gradient_of(param: Tensor) -> Tensor:
    """The part of a gradient that lies here, once it is spread as its parameter is."""
    gradient = param.grad
    assert gradient is not None
    return part_of(
        gradient.redistribute(placements=param.placements)  # type: ignore[attr-defined]
        if isinstance(gradient, DTensor)
        else gradient
    )


class Gathered(Mapping[str, Tensor]):
    """Tensors by name, gathered at each read. All learners read in one order."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return gathered(part_of(self._tensors[name]), self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Parts:
    """The parts of the parameters of an optimiser group, each moved by an optimiser of its own."""

    def __init__(self, settings: Optimizer, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        # in the same memory
        self._leaves = [nn.Parameter(part_of(param.detach())) for param in params]
        self.each = [descent(settings, leaf) for leaf in self._leaves]

    def clear(self) -> None:
        """A gradient of zeros."""
        for x in (*self.params, *self._leaves):
            x.grad = None

    def gradient(self) -> list[Tensor]:
        """The parts of the gradient; parameters that backward did not reach have 0."""
        out: list[Tensor] = []
        for param, leaf in zip(self.params, self._leaves, strict=True):
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf) if param.grad is None else _gradient_of(param)
            out.append(leaf.grad)
        return out

    def squares(self, learners: int) -> Tensor:
        """The sum [] of squares of the gradient's parts; shared tensors count by a share each."""
        shares = zip(self.params, self.gradient(), strict=True)
        return torch.stack(
            [part.square().sum() / (1 if _spread(param) else learners) for param, part in shares]
        ).sum()

    def step(self, rate: float) -> None:
        for one in self.each:
            one.step(rate)

    def step_unless(self, skip: Tensor, rate: float) -> None:
        for one in self.each:
            one.step_unless(skip, rate)

    def state(self, *, keep: bool) -> Tree:
        """The parameters, one behind the other, and the memory of an optimiser of that one tensor.

        All learners ask at once. Without ``keep`` nothing is kept of what is gathered: empty
        tensors.
        """
        slots = {
            name: self._flat([one.slots[name] for one in self.each], keep) for name in self._moments
        }
        return {
            "params": self._flat(self._leaves, keep),
            "optimizer": slots | {"step": self.each[0].slots["step"]},
        }

    def like(self) -> Tree:
        """The types and shapes of ``state``, without numbers."""
        flat = torch.empty(
            sum(param.numel() for param in self.params), dtype=self._leaves[0].dtype, device="meta"
        )
        return {
            "params": flat,
            "optimizer": dict.fromkeys(self._moments, flat) | {"step": self.each[0].slots["step"]},
        }

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        """Take what ``state`` gave, or that of a learner which had all of it."""
        slots, sizes = state["optimizer"], [param.numel() for param in self.params]
        wholes = {name: slots[name].split(sizes) for name in self._moments}
        for n, whole in enumerate(state["params"].split(sizes)):
            param = self.params[n]
            self._leaves[n].copy_(cut(whole.view(param.shape), param))
            parts = {name: cut(each[n].view(param.shape), param) for name, each in wholes.items()}
            self.each[n].load(parts | {"step": slots["step"]})

    @property
    def _moments(self) -> tuple[str, ...]:
        return self.each[0].moments

    @torch.no_grad()
    def _flat(self, parts: Sequence[Tensor], keep: bool) -> Tensor:
        flat = torch.empty(sum(p.numel() for p in self.params) if keep else 0, dtype=parts[0].dtype)
        at = 0
        for param, part in zip(self.params, parts, strict=True):
            whole = gathered(part.detach(), param)
            if keep:
                flat[at : at + whole.numel()] = whole.reshape(-1)
            at += whole.numel()
        return flat


class Spread(Parameters):
    """A part of some parameters, of their gradient and of what the optimiser remembers.

    ``tensors``, ``state`` and ``load`` are of whole tensors, as with ``Flat``. So all learners ask
    for them at once. ``tensors`` are gathered one by one as they are read, while the other learners
    call ``join_gather``. Only learner 0 is given the tensors of ``state``; the other learners get
    empty ones.
    """

    def __init__(self, learners: Learners, pool: Learners) -> None:
        """``learners``: the learners that have the other parts."""
        super().__init__(pool)
        self.learners = learners

    def hold(self, net: nn.Module, groups: Groups, settings: Optimizer) -> None:
        self.net, self.device = net, next(net.parameters()).device
        self.spread(mesh_of(self.learners, self.device))  # type: ignore[arg-type]  # several learners have a Group
        self.optimizers = {name: Parts(settings, params) for name, params in groups(net).items()}

    @abstractmethod
    def spread(self, mesh: DeviceMesh) -> None:
        """Spread the network's parameters over the learners."""

    def together(self) -> AbstractContextManager[object]:
        return lost()

    def begin(self, group: str, parts: int) -> int:
        self.optimizers[group].clear()
        return 0

    def gradient(self, group: str) -> Sequence[Tensor]:
        return self.optimizers[group].gradient()  # type: ignore[no-any-return]

    def norm(self, group: str) -> Tensor:
        return self.learners.sum(self.optimizers[group].squares(self.learners.size)).sqrt()

    def settings(self) -> list[Optimizer]:
        return [one.settings for parts in self.optimizers.values() for one in parts.each]

    def tensors(self) -> Mapping[str, Tensor]:
        return Gathered(super().tensors())

    def join_gather(self) -> None:
        for _ in self.tensors().values():
            pass

    def state(self, group: str) -> Tree:
        return self.optimizers[group].state(keep=self.learners.rank == 0)

    def like(self, group: str) -> Tree:
        return self.optimizers[group].like()

    def load(self, group: str, state: Tree) -> None:
        self.optimizers[group].load(state)
