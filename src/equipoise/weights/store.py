"""Versioned parameters in one flat buffer: published with one pass, fetched with one copy, never
torn, never locked.

Some buffers with a begin and an end counter each. The writer raises ``begin`` before it writes a
buffer and ``end`` after; a reader copies the newest buffer and keeps the copy only if ``begin``
still equals the ``end`` that it saw before. With two buffers a reader that sleeps over two
publishes would often retry; with three, the default, it practically never does.

The buffers lie in memory that processes share (``Weights``), or on a device (``device.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.memory import Buffer, Memory
from equipoise.publishing import publish
from equipoise.tree import ArraySpec
from equipoise.types import Array, Look

BUFFERS = 3
ATTEMPTS = 1000
PAGE = 4096  # bytes, at most a page of memory


class WeightPlan:
    """The layout of a network's parameters and buffers in one flat buffer."""

    def __init__(
        self, params: Mapping[str, Tensor], *, dtype: str | None = None, buffers: int = BUFFERS
    ) -> None:
        """``dtype``: the stored type of floating point numbers (None: as they are). ``buffers``: at
        least 2.
        """
        if buffers < 2:
            raise ValueError(
                "buffers: expected at least 2, since one is read while the other is written, got "
                f"{buffers}"
            )
        self.leaves = {
            name: ArraySpec(
                tuple(p.shape),
                str(p.dtype).removeprefix("torch.")
                if dtype is None or not p.is_floating_point()
                else dtype,
            )
            for name, p in params.items()
        }
        self.flat, self.buffers = tree.nbytes(self.leaves), buffers
        self.words = {
            "latest": ArraySpec((1,), "int64"),  # number of the newest publish; 0: none yet
            "begin": ArraySpec((buffers,), "int64"),
            "end": ArraySpec((buffers,), "int64"),
            "version": ArraySpec((buffers,), "int64"),
        }
        self.specs = self.words | {
            "buffers": {str(i): ArraySpec((self.flat,), "uint8") for i in range(buffers)}
        }
        self.nbytes = tree.nbytes(self.specs)

    def over(self, memory: Tensor) -> dict[str, Tensor]:
        """The tensors that lie in a flat buffer [flat] uint8."""
        laid: dict[str, Tensor] = tree.tensor_views(self.leaves, memory)
        return laid


class Versions(ABC):
    """``WeightStore`` over buffers wherever they lie; one publisher, any number of handles that
    fetch.
    """

    _params: Sequence[Mapping[str, Tensor]]  # the publisher's views of each buffer

    def __init__(self, words: Mapping[str, Array]) -> None:
        """``words``: the counters of a plan, in memory that all handles share."""
        self._latest, self._begin, self._end, self._version = (
            words[name] for name in ("latest", "begin", "end", "version")
        )

    def _write(self, i: int, params: Mapping[str, Tensor]) -> None:
        """Write into buffer i; the write is complete when this returns."""
        for name, target in self._params[i].items():
            target.copy_(params[name])

    @abstractmethod
    def _read(self, i: int) -> Mapping[str, Tensor]:
        """Copy buffer i into tensors of this handle; the copy is complete when this returns."""

    @property
    def version(self) -> int:
        """The newest version; -1 before the first."""
        count = int(self._latest[0])
        return int(self._version[count % len(self._begin)]) if count else -1

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        """Publish parameters and buffers, from any device; only one process publishes."""
        count = int(self._begin.max()) + 1
        i = count % len(self._begin)
        publish(self._begin, i, count)
        self._write(i, params)
        self._version[i] = version
        publish(self._end, i, count)
        publish(self._latest, 0, count)
        self._prepare()

    def _prepare(self) -> None:  # noqa: B027  # memory of a device needs nothing
        """Make all buffers ready after the first publish, which a run waits for anyway."""

    def fetch(self, newer_than: int = -1) -> tuple[int, Mapping[str, Tensor]] | None:
        """Return (version, tensors of this handle, rewritten by its next fetch), or None if there
        is nothing newer.
        """
        for _ in range(ATTEMPTS):
            count = int(self._latest[0])
            i = count % len(self._begin)
            version = int(self._version[i])
            if count == 0 or version <= newer_than:
                return None
            ended = int(self._end[i])
            mine = self._read(i)
            if int(self._begin[i]) == ended and int(self._version[i]) == version:
                return version, mine
        raise RuntimeError(
            f"no whole copy of the weights in {ATTEMPTS} attempts: the publisher is faster than a "
            "copy"
        )

    def look(self, newer_than: int = -1) -> Look | None:
        """As ``fetch``, for a reader that copies at a pace of its own: the tensors may be rewritten
        while they are read.
        """
        found = self.fetch(newer_than)
        return None if found is None else (*found, lambda: True)


class Weights(Versions):
    """A weight store in memory that several processes may map."""

    def __init__(self, plan: WeightPlan, memory: Memory) -> None:
        self.plan, self._memory = plan, memory
        views = tree.views(plan.specs, memory.buffer)
        super().__init__(views)
        self._buffers = [torch.from_numpy(one) for one in views["buffers"].values()]
        self._params = [plan.over(one) for one in self._buffers]
        self._copied: Tensor | None = None
        self._written = self._seen = False  # has this handle written to, or read, every page?

    def __getstate__(self) -> tuple[WeightPlan, Memory]:
        return self.plan, self._memory

    def __setstate__(self, state: tuple[WeightPlan, Memory]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def handle(self) -> Weights:
        """Another reader of the same memory, with its own copy."""
        return Weights(self.plan, self._memory)

    @property
    def nbytes(self) -> int:
        """The size of what ``fetch_bytes`` gives."""
        return self.plan.flat

    @property
    def _copy(self) -> Tensor:
        """This handle's own copy [flat] uint8, allocated when it is first read into."""
        if self._copied is None:
            self._copied = torch.empty(self.plan.flat, dtype=torch.uint8)
            self._mine = self.plan.over(self._copied)
        return self._copied

    def fetch_bytes(self, newer_than: int = -1) -> tuple[int, Array] | None:
        """As ``fetch``, but the tensors' bytes [n] uint8 as they lie in memory; the next fetch
        overwrites them.
        """
        found = self.fetch(newer_than)
        return None if found is None else (found[0], self._copy.numpy())

    def publish_bytes(self, version: int, data: Buffer) -> None:
        """Publish what ``fetch_bytes`` of a store with the same plan gave; ValueError if the size
        is another.
        """
        given = np.frombuffer(data, np.uint8)
        if len(given) != self.plan.flat:
            raise ValueError(f"expected {self.plan.flat:,} bytes of weights, got {len(given):,}")
        np.copyto(self._copy.numpy(), given)
        self.publish(version, self._mine)

    def _prepare(self) -> None:
        # A process's first write to a page costs ten times a later one: 40 ms of 100 MB, which
        # actors would wait for. No other process writes, so a byte may be written as it is.
        if not self._written:
            for buffer in self._buffers:
                buffer[::PAGE].copy_(buffer[::PAGE].clone())
            self._written = True

    def look(self, newer_than: int = -1) -> Look | None:
        count = int(self._latest[0])
        if count and not self._seen:  # the same for a reader, whose first look is at a run's start
            for buffer in self._buffers:
                buffer[::PAGE].sum()
            self._seen = True
        i = count % self.plan.buffers
        version = int(self._version[i])
        if (
            count == 0
            or version <= newer_than
            or not int(self._begin[i]) == int(self._end[i]) == count
        ):
            return None
        return version, self._params[i], lambda: int(self._begin[i]) == count

    def _read(self, i: int) -> Mapping[str, Tensor]:
        np.copyto(self._copy.numpy(), self._buffers[i].numpy())
        return self._mine
