"""``torch.compile`` for torsos of images, and the reason if it is not available."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from equipoise.nets.capture import FAILURES, OPTIONS
from equipoise.nets.capture import said as said_of
from equipoise.nets.heads import at
from equipoise.nets.precision import autocast
from equipoise.nets.torso import MLP
from equipoise.types import Precision, Tree

NOTHING = (
    "compile: nothing was compiled, since there is no torso of images (an MLP is slower when "
    "compiled)"
)


def pays(net: nn.Module) -> bool:
    """Has the network a torso of images? An MLP is slower when compiled."""
    torso = getattr(net, "torso", None)
    return torso is not None and not isinstance(torso, MLP)


def compile_torso(net: nn.Module, obs: Tree, *, precision: Precision) -> str | None:
    """Compile the torso of ``net`` to act on rows like ``obs`` [N, ...]; None, or the reason why it
    stays uncompiled.

    Compiling takes a C++ compiler and a minute or so, here and once more for every other number of
    rows that comes. It is done in this process: the pool of processes that torch would start for it
    outlives a killed worker.
    """
    if not pays(net):
        return NOTHING
    torso: Any = net.torso
    try:
        torso.forward = torch.compile(torso.forward, dynamic=False, options=OPTIONS)
        # another mode would compile again
        with torch.inference_mode(), autocast(precision, next(net.parameters()).device):
            torso(at(obs, getattr(net, "seen", ())))
    except FAILURES as error:
        torso.__dict__.pop("forward", None)
        return (
            "warning: compile: the torso runs uncompiled, since torch.compile failed: "
            f"{said_of(error)}"
        )
    return None
