"""Parity: the answers of an exported graph compared with torch's, over sequences with their seams,
in batches of several sizes.

Both keep a recurrent state of their own, so that a small error may grow as it would in service.
Noise is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from equipoise import tree
from equipoise.edge import Artifact
from equipoise.exporting.graph import PolicyGraph
from equipoise.nets.threads import one_thread
from equipoise.types import Array, Tree

# sizes of batches: one of this number of rows is compared in them, since small batches are slow
BATCHES = {1: 10, 5: 4, 64: 1}
# of log propensities, states and numbers of a Box; relative if they are above 1
TOLERANCE = 1e-4
EQUAL = 0.999  # share of rows with torch's actions and log propensities
BEST = 4  # one of this number of rows takes the best action
MOST_SEQUENCES = 10_000


class Differs(ValueError):
    """A graph whose answers differ from torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observations of S streams over T rows."""

    obs: Tree  # [T, S, ...]
    first: Array  # [T, S] bool
    source: str  # the source, in words
    recorded: bool  # by an env, not made up


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far a graph is from torch."""

    rows: int
    equal: float  # share of rows with torch's action
    likely: float  # share of rows with torch's log propensity
    logp: float  # greatest difference of log propensities, if the action is torch's
    state: float  # greatest difference of recurrent states


def compare(
    artifact: Artifact, graph: PolicyGraph, seen: Seen, *, rows: int, seed: int = 0
) -> Parity:
    """Compare on ``rows`` rows in large batches and on some of them in small ones; ``Differs``
    names the difference.
    """
    found = [
        _compare(artifact, graph, seen, -(-rows // share), size, seed)
        for size, share in BATCHES.items()
    ]
    for size, one in zip(BATCHES, found, strict=True):
        said = (
            f"in batches of {size}, on {one.rows:,} rows of {seen.source}: the exporter wrote "
            "an operator wrongly"
        )
        if not one.state <= TOLERANCE:
            raise Differs(
                f"policy.onnx: expected torch's recurrent state, got one that is {one.state:.2g} "
                f"away, {said}"
            )
        if not one.equal >= EQUAL:
            raise Differs(
                f"policy.onnx: expected torch's actions, got others in {1 - one.equal:.2%} of "
                f"rows, {said}"
            )
        if not one.likely >= EQUAL:
            raise Differs(
                "policy.onnx: expected torch's log propensities, got others in "
                f"{1 - one.likely:.2%} of rows, {said}"
            )
    total = sum(one.rows for one in found)
    equal, likely = (
        sum(getattr(one, name) * one.rows for one in found) / total for name in ("equal", "likely")
    )
    logp, state = (
        float(np.max([getattr(one, name) for one in found])) for name in ("logp", "state")
    )
    return Parity(rows=total, equal=equal, likely=likely, logp=logp, state=state)


@dataclass(slots=True)
class _Row:
    """How a batch agrees in one row, each [size]."""

    equal: Array
    apart: Array  # of log propensities
    scale: Array  # of those, 1 or more
    state: Array


def _compare(
    artifact: Artifact, graph: PolicyGraph, seen: Seen, rows: int, size: int, seed: int
) -> Parity:
    """Sequences of ``size`` streams at a time, from their beginning; if there are fewer streams,
    with other noise again.
    """
    length, streams = seen.first.shape
    found: list[_Row] = []
    with torch.inference_mode(), one_thread():
        for begin in range(0, MOST_SEQUENCES * size, size):
            column, mine, theirs = (
                np.arange(begin, begin + size),
                artifact.initial(size),
                artifact.initial(size),
            )
            for t in range(length):
                if len(found) * size >= rows:
                    break
                seen_now = tree.named("obs", seen.obs).items()
                obs = {
                    path: np.ascontiguousarray(leaf[t][column % streams]) for path, leaf in seen_now
                }
                first = seen.first[t][column % streams] | (t == 0)
                noise = artifact.draw(seed, column, np.full(size, t))
                best = (column + t) % BEST == 0
                row, mine, theirs = _row(artifact, graph, obs, first, mine, theirs, noise, best)
                found.append(row)
    equal, apart, scale, state = (
        np.stack([getattr(row, name) for row in found]) for name in _Row.__slots__
    )
    return Parity(
        rows=equal.size,
        equal=float(equal.mean()),
        likely=float((apart <= TOLERANCE * scale).mean()),
        logp=float(np.max(apart, where=equal, initial=0.0)),
        state=float(state.max()),
    )


def _row(
    artifact: Artifact,
    graph: PolicyGraph,
    obs: dict[str, Array],
    first: Array,
    mine: Tree,
    theirs: Tree,
    noise: Array,
    best: Array,
) -> tuple[_Row, Tree, Tree]:
    size = len(first)
    action, logp, mine = artifact.run(obs, first, mine, noise, best)
    given = {
        **artifact.constants(size),
        **obs,
        **theirs,
        "first": first,
        "noise": noise,
        "deterministic": best,
    }
    tensors = [torch.from_numpy(given[name]) for name in graph.signature.inputs]
    out = {name: x.numpy() for name, x in zip(graph.outputs, graph(*tensors), strict=True)}
    theirs = {
        f"state/{name.removeprefix('next/')}": x
        for name, x in out.items()
        if name.startswith("next/")
    }
    row = _Row(np.ones(size, bool), np.zeros(size), np.ones(size), np.zeros(size))
    for name, x in action.items():
        row.equal &= _near(x, out[name]).reshape(size, -1).all(1)
    # The propensity of one action, the graph's: next to a bound of a Box it depends on the action's
    # last bit.
    wanted = graph.logp(tensors, {name: torch.from_numpy(x) for name, x in action.items()})
    if logp is not None and wanted is not None:
        row.apart, row.scale = (
            np.abs(logp - wanted.numpy()),
            np.maximum(1.0, np.abs(wanted.numpy())),
        )
    for name, x in mine.items():
        gap = np.abs(x - theirs[name]) / np.maximum(1.0, np.abs(theirs[name]))
        row.state = np.maximum(row.state, gap.reshape(size, -1).max(1))
    return row, mine, theirs


def _near(mine: Array, theirs: Array) -> Array:
    if theirs.dtype.kind != "f":
        return mine == theirs
    return np.abs(mine - theirs) <= TOLERANCE * np.maximum(1.0, np.abs(theirs))
