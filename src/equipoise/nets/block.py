"""Blocks: parts of deep networks that are sharded, gathered, or computed again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A part of a network whose parameters are used by its ``forward`` alone, and which is called
    as a module.

    So several learners may each keep a part of them (``learners/parameters/``), and backward may
    compute its inputs again.
    """

    # two layers each, one after the other with no sum over units in between
    pairs: ClassVar[tuple[tuple[str, str], ...]] = ()


class Layered(nn.Module):
    """A network of another library, whose layers are like blocks but of classes of their own."""

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Modules whose parameters are used by their ``forward`` alone, and which are called as
        modules.
        """
        return ()


def blocks(net: nn.Module) -> list[Block]:
    """The blocks of a network, each before its inner blocks."""
    return [module for module in net.modules() if isinstance(module, Block)]


def parts(net: nn.Module) -> list[nn.Module]:
    """The blocks of a network, and the layers of another library's; each before its inner ones."""
    found = [
        one for module in net.modules() if isinstance(module, Layered) for one in module.layers
    ]
    return [*found, *blocks(net)]


def recompute(net: nn.Module) -> None:
    """From now on keep only the inputs of blocks, and compute the rest again in backward.

    Gradient checkpointing (Chen et al. 2016, arXiv:1604.06174). The gradients are the same bits.
    Blocks draw no random numbers.
    """
    for block in parts(net):
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )
