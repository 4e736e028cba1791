"""The arrays of a trajectory as specs, so that memory is laid out once and only numbers travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise import tree
from equipoise.tree import ArraySpec
from equipoise.types import TRAJECTORY_EDGES, TRAJECTORY_ROWS, TRAJECTORY_STREAMS, Trajectory, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """What one stream writes in one row: trees of ``ArraySpec`` without T and B.

    Several policies that act in one env write side by side: their rows are a dict by policy, and so is all that follows from
    them here. Then an item is an env's, and ``columns`` says how many streams of an env are the policy's.
    """

    obs: Tree
    action: Tree
    behaviour: Tree
    state: Tree
    context: Tree
    columns: int = 1


Rows = RowSpec | Mapping[str, RowSpec]


def trajectory_specs(row: Rows, unroll: int, streams: int) -> dict[str, Tree]:
    """The fields of a ``Trajectory`` of ``streams`` windows of ``unroll`` rows, as specs."""
    if not isinstance(row, RowSpec):
        return {name: trajectory_specs(one, unroll, streams * one.columns) for name, one in row.items()}
    fields: dict[str, Tree] = {
        "obs": row.obs,
        "first": ArraySpec((), "bool"),
        "action": row.action,
        "behaviour": row.behaviour,
        "reward": ArraySpec((), "float32"),
        "mask": ArraySpec((), "bool"),
        "bootstrap": ArraySpec((), "bool"),
        "version": ArraySpec((), "int64"),
        "state": row.state,
        "context": row.context,
    }
    lead: dict[str, tuple[int, ...]] = dict.fromkeys(fields, (streams,))  # [B, ...]
    lead |= dict.fromkeys(TRAJECTORY_ROWS, (unroll, streams)) | dict.fromkeys(TRAJECTORY_EDGES, (unroll + 1, streams))
    return {name: tree.prepend(specs, *lead[name]) for name, specs in fields.items()}


def columns(fields: Mapping[str, Tree], start: int, stop: int, row: Rows) -> dict[str, Tree]:
    """Streams ``start`` to ``stop`` of every field, as views."""
    if not isinstance(row, RowSpec):
        return {name: columns(fields[name], start * one.columns, stop * one.columns, one) for name, one in row.items()}

    def cut(name: str) -> Tree:
        return tree.map(lambda x: x[start:stop] if name in TRAJECTORY_STREAMS else x[:, start:stop], fields[name])

    return {name: cut(name) for name in fields}


def trajectory(fields: Mapping[str, Any], row: Rows) -> Any:
    """A ``Trajectory``, or one a policy."""
    if not isinstance(row, RowSpec):
        return {name: Trajectory(**fields[name]) for name in row}
    return Trajectory(**fields)
