"""``torch.compile`` for torsos of images, and the reason where it is not available."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from equipoise.nets.heads import at
from equipoise.nets.precision import autocast
from equipoise.nets.torso import MLP
from equipoise.types import Precision, Tree


def while_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Register two functions: one called whenever ``torch.compile`` begins to compile in this process, one when it ends.

    What was not compiled at the start (another number of rows, another mode) is compiled where it first comes up.
    """
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(lambda _: begins())
    callback_handler.register_end_callback(lambda _: ends())


def compile_torso(net: nn.Module, obs: Tree, *, precision: Precision, gradient: bool) -> str | None:
    """Compile the torso of ``net`` for rows like ``obs`` [N, ...]; None, or the reason why it stays uncompiled.

    Compiling takes a C++ compiler and a minute or so, here and once more for every other number of rows that comes. It is
    done in this process: the pool of processes that torch would start for it outlives a killed worker.
    """
    torso: Any = getattr(net, "torso", None)
    if torso is None or isinstance(torso, MLP):
        return "compile: nothing was compiled, since there is no torso of images (an MLP is slower when compiled)"
    try:
        import torch._inductor.config as inductor

        inductor.compile_threads = 1
        torso.compile(dynamic=False)
        mode = (
            torch.enable_grad() if gradient else torch.inference_mode()
        )  # the mode in which it is used: another mode would compile again
        with mode, autocast(precision, next(net.parameters()).device):
            features = torso(at(obs, getattr(net, "seen", ())))
        if gradient:
            features.float().sum().backward()
            net.zero_grad(set_to_none=False)  # gradients may be views of one buffer
    except (RuntimeError, OSError, ImportError) as error:  # dynamo, inductor, the compiler or its cache failed
        torso._compiled_call_impl = None  # as before ``compile``
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"warning: compile: the torso runs uncompiled, since torch.compile failed: {type(error).__name__}: {lines[0]}"
    return None
