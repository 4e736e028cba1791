"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a linear layer with a frozen weight W
becomes

    y = W x + alpha / rank B A x,   A [rank, in] at random, B [out, rank] 0 at first

Only A and B learn. All weights of the base are buffers that are not saved. So optimisers, published
weights and checkpoints, which take parameters and saved buffers, have the adapters alone. The hash
of the base is saved with the adapters, since they mean nothing without it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.hints import hint, shortened
from equipoise.tree import saved_buffers
from equipoise.types.packed import Fields

BASE = "base.sha256"  # the buffer with the hash of the base [32] uint8
HEADS = ("lm_head", "embed_out", "score")  # linear layers that get no adapter
MOST_ALPHA = 1e6
A, B = "lora_A", "lora_B"
Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Settings of adapters."""

    rank: int
    alpha: float  # the update is scaled by alpha / rank
    targets: tuple[str, ...] = ()  # names or patterns of linear layers; none: all but heads


class Base(nn.Module):
    """The names and the hash of a network's frozen weights."""

    sha256: Tensor

    def __init__(self, net: nn.Module, learned: Sequence[str]) -> None:
        super().__init__()
        whole = {f"{one}.weight" for one in learned} | {f"{one}.bias" for one in learned}
        self.names = tuple(name for name, _ in net.named_parameters() if name not in whole)
        self.register_buffer("sha256", sha256(net, self.names))


class LoraLinear(nn.Linear):
    """A linear layer with a frozen weight and an adapter."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.scale = alpha / rank
        self.register_buffer("weight", base.weight.data, persistent=False)
        bias: Tensor | None = base.bias
        self.register_buffer("bias", None if bias is None else bias.data, persistent=False)
        self.lora_A = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as peft

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self._update(x)

    def _update(self, x: Tensor) -> Tensor:
        # the scale is with the few numbers between the products
        return F.linear(F.linear(x, self.lora_A) * self.scale, self.lora_B)

    def merged(self, piece: slice = slice(None)) -> Tensor:
        """Return rows of W + alpha / rank B A."""
        return torch.addmm(self.weight[piece], self.lora_B[piece], self.lora_A, alpha=self.scale)

    def plain(self) -> nn.Module:
        """Return a layer without the adapter whose weight includes it; the bias is shared."""
        with torch.no_grad(), torch.device("meta"):
            made: nn.Module = self._like()
        with torch.no_grad():
            made.weight = nn.Parameter(self.merged())
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.detach())
        return made

    def _like(self) -> nn.Module:
        return nn.Linear(self.in_features, self.out_features, self.bias is not None)


class LoraConv1D(LoraLinear):
    """A layer of GPT-2, whose frozen weight [in, out] is a linear layer's, transposed."""

    def __init__(self, base: nn.Module, rank: int, alpha: float) -> None:
        weight, bias = (dict(base.named_parameters())[name].data for name in ("weight", "bias"))
        linear = nn.Linear(len(weight), len(bias), device="meta")
        linear.weight, linear.bias = nn.Parameter(weight.T), nn.Parameter(bias)
        super().__init__(linear, rank, alpha)
        self.weight = weight
        self._kind = type(base)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T, self.bias) + self._update(x)

    def merged(self, piece: slice = slice(None)) -> Tensor:
        return torch.addmm(
            self.weight[piece], self.lora_A[:, piece].T, self.lora_B.T, alpha=self.scale
        )

    def _like(self) -> nn.Module:
        return self._kind(self.out_features, self.in_features)


def add_adapters(net: Net, settings: Fields, learned: Sequence[str] = ()) -> Net:
    """Freeze a network and add adapters to it, in place.

    ``settings``: the fields of a ``Lora``; {} leaves the network as it is. ``learned``: modules
    that learn whole. ValueError for targets that match nothing, and for a rank above a layer's
    sizes.
    """
    if not settings:
        return net
    lora = Lora(**settings)
    if not 0 <= lora.alpha <= MOST_ALPHA:
        raise ValueError(
            f"source.lora_alpha: must be at most {MOST_ALPHA:g}, got {lora.alpha:g}; try 16"
        )
    layers = targets(net, lora.targets)
    for name, layer in layers.items():
        if lora.rank > (most := min(dict(layer.named_parameters())["weight"].shape)):
            raise ValueError(
                f"source.lora: must be at most {most}, the smaller side of {name}, got {lora.rank}"
            )
    if not layers:
        raise ValueError(
            "source.lora: must be none for a model without linear layers (torch.nn.Linear, or "
            "Conv1D of transformers), got "
            f"{lora.rank}; the whole model can learn"
        )
    net.add_module("base", Base(net, learned))
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear):
            made = LoraLinear(layer, lora.rank, lora.alpha)
        else:
            made = LoraConv1D(layer, lora.rank, lora.alpha)
        net.set_submodule(name, made)
    for name, module in net.named_modules():
        if name not in learned and not isinstance(module, LoraLinear):
            _freeze(module)
    return net


def adaptable(module: nn.Module) -> bool:
    """Return whether a module is a linear layer and nothing more, of torch or of GPT-2."""
    theirs = sys.modules.get("transformers.pytorch_utils")  # loaded if such a layer is there
    return type(module) is nn.Linear or type(module) is getattr(theirs, "Conv1D", None)


def targets(net: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the linear layers that match a pattern; without patterns, all but heads.

    A pattern is the end of a layer's name (q_proj, layers.0.mlp.up_proj), or has wildcards.
    ValueError for a pattern that matches nothing.
    """
    linear = {
        name: module
        for name, module in net.named_modules()
        if adaptable(module) and name.rpartition(".")[2] not in HEADS
    }
    found = {
        one: [name for name in linear if f".{name}".endswith(f".{one}") or fnmatchcase(name, one)]
        for one in patterns
    }
    ends = sorted({name.rpartition(".")[2] for name in linear})
    for one, names in found.items():
        if not names:
            raise ValueError(
                f"source.lora_targets: must match linear layers of the model ({', '.join(ends)}), "
                f"got {shortened(repr(one))}, which matches none{hint(one, ends)}"
            )
    named = {name for names in found.values() for name in names}
    return {name: module for name, module in linear.items() if name in named or not patterns}


def sha256(net: nn.Module, names: Sequence[str]) -> Tensor:
    """Return the hash [32] uint8 of parameters of a network: names, shapes and bytes."""
    digest, params = hashlib.sha256(), dict(net.named_parameters())
    for name in sorted(names):
        x = params[name]
        digest.update(json.dumps([name, str(x.dtype), list(x.shape)]).encode())
        digest.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def _freeze(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        delattr(module, name)
        module.register_buffer(name, parameter.data, persistent=False)


def layers_of(net: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with adapters by name; {} if the network has none."""
    names = _names(net)
    return {
        name: one
        for name, one in net.named_modules()
        if isinstance(one, LoraLinear) and f"{name}.weight" in names
    }


def base(net: nn.Module) -> dict[str, Tensor]:
    """Return the frozen weights of a network with adapters, by name."""
    names = _names(net)
    return {name: x for name, x in net.named_buffers() if name in names}


def _names(net: nn.Module) -> tuple[str, ...]:
    found = dict(net.named_children()).get("base")
    return found.names if isinstance(found, Base) else ()


def copied(net: Net) -> Net:
    """Return a copy of a network; a frozen base is shared, so it is once in memory."""
    kept = saved_buffers(net)
    shared = {id(x): x for name, x in net.named_buffers() if name not in kept}
    return copy.deepcopy(net, shared)


def merged(net: Net) -> Net:
    """Return a network without adapters whose weights include them; ``net`` if it has none.

    Weights that have no adapter are shared with ``net``.
    """
    layers = layers_of(net)
    if not layers:
        return net
    plain = copied(net)
    for name, layer in layers.items():
        plain.set_submodule(name, layer.plain())
    for name, x in base(plain).items():
        place, _, last = name.rpartition(".")
        module = plain.get_submodule(place)
        delattr(module, last)
        module.register_parameter(last, nn.Parameter(x))
    del plain.base
    return plain


def check_base(net: nn.Module, params: Mapping[str, Tensor], where: str) -> None:
    """ValueError unless saved adapters belong to the base of this network."""
    mine = dict(net.named_buffers()).get(BASE)
    if mine is None or BASE not in params or torch.equal(mine.cpu(), params[BASE].cpu()):
        return
    wanted, got = (bytes(x.tolist()).hex()[:12] for x in (mine, params[BASE]))
    raise ValueError(
        f"{where}: must be adapters of this base (sha256 {wanted}...), got adapters of another "
        f"({got}...); name the model that they were trained on"
    )
