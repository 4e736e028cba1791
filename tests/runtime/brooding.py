"""IMPALA that has something compiled when it first learns, or first acts, by a compiler that takes
its time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from equipoise.algorithms.impala import IMPALA

BROODS_S = 6.0
_compiled: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class Brooding(IMPALA):
    where: Literal["loss", "act"] = "loss"

    def network(self, spec: Any) -> Any:
        # the compiler's own imports, as a torso's would bring them
        torch.compile(plus_one, backend="eager")(torch.ones(2))
        return super().network(spec)

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.where == "loss":
            brood()
        return super().loss(*args, **kwargs)

    def act(self, net: Any, obs: Any, first: Any, state: Any, **kwargs: Any) -> Any:
        if self.where == "act" and len(first) > 1:  # not the look at one action before the run
            brood()
        return super().act(net, obs, first, state, **kwargs)


def brood() -> None:
    if not _compiled:
        _compiled.append(torch.compile(plus_one, backend=slow))
        _compiled[0](torch.ones(2))


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def slow(graph: Any, inputs: Any) -> Any:
    time.sleep(BROODS_S)
    return graph.forward
