"""The choice of how a learner does its updates: plainly, with a compiled loss, as CUDA graphs, or both."""

from __future__ import annotations

from equipoise.learners.learner import Learner
from equipoise.learners.whole import Graphed, Plainly, Tensors, Whole
from equipoise.nets.capture import CudaGraphs, Note, compiled
from equipoise.nets.compiled import NOTHING, pays
from equipoise.types import Placement


def quickened(learner: Learner, place: Placement, note: Note) -> None:
    """Set it up as the placement says. ``note`` is told what stays as it was, and why."""
    loss, device = learner.algorithm.loss, learner.device
    whole: Whole = Plainly()
    if place.compile and not pays(learner.net):
        note(NOTHING)
    elif place.compile:
        loss, whole = compiled(loss, note, "losses"), Tensors(device)
    if place.graphs and learner.algorithm.needs_task:
        note("graphs: updates are done operation by operation, since every batch of text has another size")
    elif place.graphs and getattr(learner.algorithm, "value_warmup", 0) > 0:
        note("graphs: updates are done operation by operation, since the first ones change the value alone")
    elif place.graphs:
        whole = Graphed(device, note, CudaGraphs([learner.rng]))
    learner.through(whole, loss)
