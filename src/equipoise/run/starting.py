"""Where a run's workers are started, and all that the driver asks of them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.messages import Cut, Message
from equipoise.runtime.stats import RunStats
from equipoise.types import WeightStore
from equipoise.workers.kind import Kind
from equipoise.workers.kinds import KINDS

On = Literal["serial", "process"]


class Runtime(Protocol):
    """What the driver asks of a runtime; it reads nothing of a runtime's memory."""

    @property
    def done(self) -> bool: ...  # learned to the end, and saved
    def poll(self, timeout_s: float) -> list[Message]: ...  # what workers said: records, notes and cuts; may raise WorkerFailed
    def hold(self) -> None: ...  # ask for a cut after the next version
    def release(self, cut: Cut) -> None: ...  # the run goes on
    def stats(self) -> RunStats: ...  # also after ``stop``
    def weights(self, policy: str) -> WeightStore: ...
    def stop(self) -> None: ...  # end every worker


def start(blue: Blueprint, on: On, kinds: Sequence[Kind] = KINDS) -> Runtime:
    """Build the workers of a run where they are to work. ``kinds``: what there is besides, or instead, of ours."""
    if on == "serial":
        from equipoise.runtime.serial import SerialRuntime

        return SerialRuntime(blue, kinds)
    if on == "process":
        from equipoise.runtime.process.process import ProcessRuntime

        return ProcessRuntime(blue, kinds)
    raise ValueError(f"expected on='serial' or 'process', got {on!r}")
