"""The ways to do an update: operation by operation, with a compiled loss, or as a CUDA graph that
is replayed.

A graph is recorded for each place that a batch lies in and each set of groups that are due. The
values that differ from one update to the next (the share of the schedule done, and the learning
rates) lie in tensors that are written before a replay. The results are copied at once, since the
next replay writes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.learners.steps import Numbers, StepInProgress
from equipoise.nets.capture import CudaGraphs, Graphs, Note, Record, compiled
from equipoise.nets.compiled import NOTHING, pays
from equipoise.rewards.terms import Terms
from equipoise.types import Batch, Learns, LossOutput, Placement, by_field

Work = Callable[[], StepInProgress]


class Execution(Protocol):
    """How the learner computes a minibatch, and an update of all of them."""

    loss: Callable[..., LossOutput | None]  # the algorithm's, or the same function made quicker

    # ValueError if that cannot be
    def follow(self, algorithm: Learns, terms: Terms | None = None) -> None: ...
    def numbers(self, now: Numbers) -> Numbers: ...  # in the form that an update takes them
    def update(self, batch: Batch, due: Sequence[str], work: Work) -> StepInProgress: ...


class Eager:
    """Operation by operation."""

    loss: Callable[..., LossOutput | None]

    def follow(self, algorithm: Learns, terms: Terms | None = None) -> None:
        self.loss = algorithm.loss

    def numbers(self, now: Numbers) -> Numbers:
        return now

    def update(self, batch: Batch, due: Sequence[str], work: Work) -> StepInProgress:
        return work()


class Compiled(Eager):
    """The loss compiled by torch. Numbers become tensors: other numbers would compile it again."""

    def __init__(self, device: torch.device, note: Note) -> None:
        """``note`` is called once if the loss cannot be compiled."""
        self._note, self._progress = note, torch.zeros((), device=device)

    def follow(self, algorithm: Learns, terms: Terms | None = None) -> None:
        self.loss = compiled(algorithm.loss, self._note, "losses")

    def numbers(self, now: Numbers) -> Numbers:
        return replace(now, progress=self._progress.fill_(now.progress))


class Graph(Eager):
    """One graph an update."""

    def __init__(
        self, device: torch.device, note: Note, record: Record, losses: Execution | None = None
    ) -> None:
        """``note``, ``record``: see ``Graphs``; ``losses`` computes a loss (default: ``Eager``)."""
        self._device, self._note, self._record = device, note, record
        self._losses: Execution = Eager() if losses is None else losses
        self._progress, self._rates = torch.zeros((), device=device), dict[str, Tensor]()

    def follow(self, algorithm: Learns, terms: Terms | None = None) -> None:
        """Forget every graph: each was recorded with the old settings."""
        if why := not_recorded(algorithm, terms):
            raise ValueError(f"graphs: expected an algorithm whose updates can be recorded, {why}")
        self._losses.follow(algorithm)
        self.loss, self._graphs = self._losses.loss, Graphs(self._note, self._record, "updates")

    def numbers(self, now: Numbers) -> Numbers:
        for group, rate in now.rates.items():
            self._rates.setdefault(group, torch.zeros((), device=self._device)).fill_(rate)
        return replace(now, progress=self._progress.fill_(now.progress), rates=self._rates)

    def update(self, batch: Batch, due: Sequence[str], work: Work) -> StepInProgress:
        leaves = [*tree.leaves(by_field(batch.data)), batch.weight]
        key = (*due, *((x.data_ptr(), tuple(x.shape)) for x in leaves))
        return self._graphs(key, lambda: _Packed(work())).unpacked()


class _Packed:
    """The results of an update, with all numbers of its metrics in one tensor."""

    def __init__(self, step: StepInProgress) -> None:
        self._step = step
        pairs = [x.double() for pair in step.metrics.values() for x in pair]
        unseen = [x for seen in step.unseen for x in seen.double()]
        self._numbers = torch.stack([*pairs, *unseen]) if pairs or unseen else torch.empty(0)

    def unpacked(self) -> StepInProgress:
        """Return a copy, which the next replay does not overwrite."""
        step, numbers = self._step, self._numbers.clone().unbind()
        names, metrics = list(step.metrics), 2 * len(step.metrics)
        return replace(
            step,
            metrics={name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(names)},
            unseen=[torch.stack(numbers[i : i + 2]) for i in range(metrics, len(numbers), 2)],
            priority=None if step.priority is None else step.priority.clone(),
        )


def not_recorded(algorithm: Learns, terms: Terms | None) -> str:
    """Return why such updates cannot be recorded as graphs; "" if they can."""
    if algorithm.needs_task:
        return "since every batch of text has another size"
    if terms:
        return "since a term of the rewards may run Python code"
    return (
        "since the first ones change the value alone"
        if getattr(algorithm, "value_warmup", 0) > 0
        else ""
    )


def chosen(
    algorithm: Learns,
    terms: Terms | None,
    net: nn.Module,
    rng: torch.Generator,
    place: Placement,
    note: Note,
) -> Execution:
    """Return the execution that the placement asks for; ``note`` hears of each part that is
    impossible.
    """
    execution: Execution = Eager()
    if place.compile and not pays(net):
        note(NOTHING)
    elif place.compile:
        execution = Compiled(rng.device, note)
    if place.graphs and (why := not_recorded(algorithm, terms)):
        note(f"graphs: updates are done operation by operation, {why}")
    elif place.graphs:
        execution = Graph(rng.device, note, CudaGraphs([rng]), execution)
    return execution
