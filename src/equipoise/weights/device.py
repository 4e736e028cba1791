"""A weight store with its buffers on the publisher's device: a process that acts on that device
fetches without the host.

The counters that mark the whole buffer lie in host memory. Next to them stands the handle of the
buffers: the publisher writes it before its first version, and a reader attaches at its first fetch.
Until then versions come from the host's store.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.memory import Memory
from equipoise.private.torch import cuda_handle, open_cuda_handle
from equipoise.tree import ArraySpec
from equipoise.weights.store import Versions, WeightPlan, Weights

LONGEST = 4096  # bytes of a handle; one of CUDA takes about 500


class Share(Protocol):
    """The operations that only a device's own interface offers."""

    def allocate(self, nbytes: int, device: torch.device) -> tuple[Tensor, bytes]:
        """Memory [nbytes] uint8 that lives as long as this process, and the handle by which others
        find it.
        """

    def attach(self, handle: bytes) -> Tensor:
        """Open that memory in another process."""

    def wait(self, device: torch.device) -> None:
        """Wait until all work of this thread on the device is done."""


class CudaIpc:
    """CUDA memory, shared by what torch's multiprocessing sends through a pickle, as JSON.

    A process that allocates must end by ``os._exit``, as workers do: torch would stumble over the
    missing file at its teardown.
    """

    def allocate(self, nbytes: int, device: torch.device) -> tuple[Tensor, bytes]:
        memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        fields, counter = cuda_handle(memory)
        # torch counts the users of the memory in a named file, to know when it may be freed. Ours
        # never is, and the file would outlive a worker that is killed: its name is taken away at
        # once. A reader that cannot count itself out goes on.
        with contextlib.suppress(FileNotFoundError):
            Path("/dev/shm", counter.decode().lstrip("/")).unlink()
        return memory, json.dumps([x.hex() if isinstance(x, bytes) else x for x in fields]).encode()

    def attach(self, handle: bytes) -> Tensor:
        fields = [bytes.fromhex(x) if isinstance(x, str) else x for x in json.loads(handle)]
        try:
            return open_cuda_handle(fields)
        except RuntimeError as error:
            error.add_note(
                "expected memory of the learner's GPU, shared by CUDA IPC, which this system does "
                "not give; inference=local "
                "needs none"
            )
            raise

    def wait(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()


class DeviceWeights(Versions):
    """The buffers, on the device of the first published version."""

    @staticmethod
    def specs(plan: WeightPlan) -> dict[str, ArraySpec]:
        """The arrays in host memory."""
        return plan.words | {"handle": ArraySpec((LONGEST,), "uint8")}

    def __init__(self, plan: WeightPlan, memory: Memory, host: Weights, share: Share) -> None:
        """``host``: the store of versions from before the buffers exist."""
        self._plan, self._memory, self._host, self._share = plan, memory, host, share
        words = tree.views(self.specs(plan), memory.buffer)
        super().__init__(words)
        self._handle = words["handle"]
        self._params = []  # set once this process publishes
        self._device = torch.device("cpu")
        self._theirs: list[Tensor] = []  # the buffers, once it fetches, and its copy:
        self._copy = torch.empty(0)
        self._mine: Mapping[str, Tensor] = {}

    def __getstate__(self) -> tuple[WeightPlan, Memory, Weights, Share]:
        return self._plan, self._memory, self._host, self._share

    def __setstate__(self, state: tuple[WeightPlan, Memory, Weights, Share]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def handle(self) -> DeviceWeights:
        """Another reader of the same memory, with its own copy."""
        return DeviceWeights(self._plan, self._memory, self._host.handle(), self._share)

    @property
    def version(self) -> int:
        return super().version if self._latest[0] else self._host.version

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        if not self._params:
            self._announce(next(iter(params.values())).device)
        super().publish(version, params)

    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None:
        return super().fetch(newer_than) if self._latest[0] else self._host.fetch(newer_than)

    def _announce(self, device: torch.device) -> None:
        memory, handle = self._share.allocate(self._plan.buffers * self._plan.flat, device)
        if len(handle) > LONGEST:
            raise ValueError(
                f"a device's handle: expected at most {LONGEST} bytes, got {len(handle)}"
            )
        self._params = [self._plan.over(part) for part in memory.chunk(self._plan.buffers)]
        self._device = device
        self._handle[:] = np.frombuffer(handle.ljust(LONGEST), np.uint8)

    def _write(self, i: int, params: Mapping[str, Tensor]) -> None:
        super()._write(i, params)
        self._share.wait(self._device)

    def _read(self, i: int) -> Mapping[str, Tensor]:
        if not self._theirs:
            memory = self._share.attach(self._handle.tobytes().rstrip())
            buffers, flat = self._plan.buffers, self._plan.flat
            if memory.numel() != buffers * flat:
                raise ValueError(
                    f"expected weights of {buffers} x {flat} bytes, got {memory.numel()} in all"
                )
            self._theirs = list(memory.chunk(buffers))
            self._copy = torch.empty_like(self._theirs[0])
            self._mine = self._plan.over(self._copy)
        self._copy.copy_(self._theirs[i])
        self._share.wait(self._copy.device)
        return self._mine
