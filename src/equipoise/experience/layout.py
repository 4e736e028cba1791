"""The arrays of a trajectory as specs, so that memory is laid out once and only numbers travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise import tree
from equipoise.tree import ArraySpec
from equipoise.types import TRAJECTORY_EDGES, TRAJECTORY_ROWS, TRAJECTORY_STREAMS, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """The row that one stream of a policy writes: trees of ``ArraySpec`` without T and B.

    ``columns``: the number of streams of one env that belong to the policy. ``issues``: prompts
    that the learner issues for each block of a queue; 0 if it issues none.
    """

    obs: Tree
    action: Tree
    behaviour: Tree
    state: Tree
    context: Tree
    columns: int = 1
    issues: int = 0


def trajectory_specs(row: RowSpec, unroll: int, streams: int) -> dict[str, Tree]:
    """The fields of a ``Trajectory`` of ``streams`` windows of ``unroll`` rows, as specs."""
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
    lead |= dict.fromkeys(TRAJECTORY_ROWS, (unroll, streams)) | dict.fromkeys(
        TRAJECTORY_EDGES, (unroll + 1, streams)
    )
    return {name: tree.prepend(specs, *lead[name]) for name, specs in fields.items()}


def columns(fields: Mapping[str, Tree], start: int, stop: int) -> dict[str, Tree]:
    """Streams ``start`` to ``stop`` of every field, as views."""

    def cut(name: str) -> Tree:
        return tree.map(
            lambda x: x[start:stop] if name in TRAJECTORY_STREAMS else x[:, start:stop],
            fields[name],
        )

    return {name: cut(name) for name in fields}
