"""How a run begins: with new weights, with the weights of another run, or where it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from equipoise.plans import begin
from equipoise.record import playable
from equipoise.record.checkpoint import Source
from equipoise.record.directory import RunDirectory
from equipoise.types import Program, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """A new run with new weights."""

    out: Path | None = None  # its directory; None: one in runs/
    weights: None = None
    source: None = None

    def fill(self, program: Program, spec: RunSpec, nets: Mapping[str, nn.Module]) -> int | None:
        """Copy the weights that the run begins with into ``nets`` -> the updates of a learner that
        it takes over, or None.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWeights:
    """A new run with the weights of a checkpoint; with ``learner`` also with its optimisers and
    statistics.
    """

    weights: Path
    learner: bool = False
    out: Path | None = None
    source: None = None

    def fill(self, program: Program, spec: RunSpec, nets: Mapping[str, nn.Module]) -> int | None:
        """As ``Fresh.fill``; ValueError if something of the checkpoint does not fit."""
        return begin.take(program, spec, nets, self.weights, learner=self.learner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run that goes on in its directory, from the checkpoint ``source``."""

    directory: RunDirectory
    source: Source
    weights: None = None

    def fill(self, program: Program, spec: RunSpec, nets: Mapping[str, nn.Module]) -> int | None:
        """As ``Fresh.fill``; the workers load the rest."""
        playable.fill(nets, self.source.params(), str(self.source.path))
        return None


Beginning = Fresh | FromWeights | Resumed
FRESH = Fresh()
