"""The layout of a row: which leaves lie in a record, and which in memory of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from equipoise import tree
from equipoise.experience.layout import RowSpec
from equipoise.experience.replay.leaves import PER_ROW
from equipoise.tree import ArraySpec
from equipoise.types import Array, Stack, Tree

IMAGE = 1024  # a leaf of this many bytes or more has memory of its own


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a row's leaves, by path: ``small`` in the record at their offsets, ``large`` in
    memory of their own.
    """

    small: Mapping[str, tuple[int, ArraySpec]]
    large: Mapping[str, ArraySpec]  # for a stack: one frame
    stacks: Mapping[str, Stack]
    record: int  # bytes
    state: Tree  # specs of the recurrent state, kept at the first row of every block

    @staticmethod
    def of(row: RowSpec, stacks: Mapping[str, Stack]) -> Layout:
        """Make the layout of a row; ``stacks`` by the path within an observation."""
        by_path = {f"obs/{path}" if path else "obs": stack for path, stack in stacks.items()}
        fields = {
            "row": ArraySpec((), "int64"),
            "version": ArraySpec((), "int64"),
            "reward": ArraySpec((), "float32"),
            "mask": ArraySpec((), "bool"),
            "bootstrap": ArraySpec((), "bool"),
            "first": ArraySpec((), "bool"),
        } | dict(tree.items({"obs": row.obs, "action": row.action, "behaviour": row.behaviour}))
        if by_path:
            fields["age"] = ArraySpec((), "uint8")  # rows since the first row of its episode
        large = {path: ArraySpec(fields[path].shape[1:], fields[path].dtype) for path in by_path}
        large |= {
            path: spec
            for path, spec in fields.items()
            if spec.nbytes >= IMAGE and path not in large
        }
        small, at = {}, 0
        # so that each is aligned
        for path, spec in sorted(
            fields.items(), key=lambda item: -np.dtype(item[1].dtype).itemsize
        ):
            if path not in large:
                small[path] = at, spec
                at += spec.nbytes
        return Layout(
            small=small, large=large, stacks=by_path, record=-(-at // 8) * 8, state=row.state
        )

    @property
    def history(self) -> int:
        """The number of earlier rows that a row's observation is made of."""
        return max((stack.frames - 1 for stack in self.stacks.values()), default=0)

    def nbytes(
        self, *, slots: int, streams: int, unroll: int, encoded: Collection[str] = ()
    ) -> int:
        """Bytes of a ring; for ``encoded`` leaves only the bytes that are certain before there are
        rows.
        """
        row = self.record + sum(
            PER_ROW if path in encoded else spec.nbytes for path, spec in self.large.items()
        )
        state: int = sum(spec.nbytes for spec in tree.leaves(self.state))
        return slots * streams * row + slots // unroll * streams * state


def smallest(layout: Layout, *, unroll: int, window: int) -> int:
    """The fewest slots with a whole window: the block being written, the one given up for it, and a
    window's rows.
    """
    return (2 + -(-(window + layout.history) // unroll)) * unroll


def _field(records: Array, at: int, spec: ArraySpec) -> Array:
    """A view of one leaf of all records [..., bytes]."""
    inner = np.empty(spec.shape, spec.dtype).strides
    return np.ndarray(
        (*records.shape[:-1], *spec.shape), spec.dtype, records, at, (*records.strides[:-1], *inner)
    )
