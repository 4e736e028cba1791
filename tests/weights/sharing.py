"""Publishing and reading weights in processes of their own, on the CPU or on CUDA."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.runtime.ipc import Segment
from equipoise.weights.device import DeviceWeights, Share
from equipoise.weights.store import WeightPlan, Weights


class Memfd:
    """Stands in for CUDA's: memory of one process that others find by a name, as long as that
    process lives.
    """

    def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
        fd = os.memfd_create("equipoise-device")
        os.ftruncate(fd, nbytes)
        memory = mmap.mmap(fd, nbytes)
        weakref.finalize(memory, os.close, fd)
        return torch.frombuffer(memory, dtype=torch.uint8), f"/proc/{os.getpid()}/fd/{fd}".encode()

    def attach(self, handle: bytes) -> torch.Tensor:
        fd = os.open(handle, os.O_RDWR)
        try:
            return torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8)
        finally:
            os.close(fd)

    def wait(self, device: torch.device) -> None: ...


class Heap:
    def __init__(self, name: str, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8).data


def params(value: float, size: int = 1000, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Of several dtypes and shapes, each full of one value."""
    made = {
        "w": torch.full((size, 7), float(value)),
        "steps": torch.full((3,), int(value)),
        "scale": torch.tensor(float(value)),
        "mean": torch.full((5,), value, dtype=torch.float64),
    }
    return {name: x.to(device) for name, x in made.items()}


def store(share: Share | None, size: int = 1000, memory: Any = Heap) -> Weights | DeviceWeights:
    plan = WeightPlan(params(0, size))
    host = Weights(plan, memory("host", plan.nbytes))
    return (
        host
        if share is None
        else DeviceWeights(
            plan, memory("device", tree.nbytes(DeviceWeights.specs(plan))), host, share
        )
    )


def between_processes(share: Share | None, size: int = 1000) -> Weights | DeviceWeights:
    return store(share, size, Segment)


def whole(tensors: Any, version: int) -> bool:
    return all(bool((x == version).all()) for x in tensors.values())


def publish(weights: Weights | DeviceWeights, size: int, device: str) -> None:
    """A process that publishes without pause until it is killed."""
    made, version = params(0, size, device), 1
    while True:
        for x in made.values():
            x.fill_(version)
        weights.publish(version, made)
        version += 1


def read(weights: Weights | DeviceWeights, fetches: int, device: str) -> None:
    """A process that fetches so often; it ends with 0 if all of them were whole, rising and on this
    device.
    """
    version = 0
    for _ in range(fetches):
        while (got := weights.fetch(version)) is None:
            pass
        right = (
            got[0] > version
            and whole(got[1], got[0])
            and all(x.device.type == device for x in got[1].values())
        )
        if not right:
            os._exit(1)
        version = got[0]
    os._exit(0)
