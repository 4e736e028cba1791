"""A loaded version of a policy, and the recurrent states of the episodes that it answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.edge import branches, escaped, plain
from equipoise.serving.backend import Model
from equipoise.serving.settings import Rules
from equipoise.serving.shield import Shield, middle, not_finite

Array = np.ndarray
INLINE_S = 1e-4  # a run of one row below this is done in the event loop: a thread would cost more
INLINE_BATCH_S = 1e-3  # and so must be a run of a whole batch
TIMED = 15  # runs that are timed, or
TIMED_S = 0.3  # as many as this time is enough for


class States:
    """The recurrent states of a version's episodes: {name: [slots, ...]}, which grows by doubling.
    Empty without a memory.
    """

    def __init__(self, initial: Mapping[str, Array], slots: int = 64) -> None:
        """``initial``: the state [1, ...] with which an episode begins."""
        self._initial = initial
        self._arrays = {name: np.repeat(x, slots, 0) for name, x in initial.items()}
        self._free = list(range(slots))[::-1]
        self._slots = slots

    def take(self) -> int:
        """A slot with the initial state; -1 without a memory."""
        if not self._arrays:
            return -1
        if not self._free:
            self._arrays = {
                name: np.concatenate([x, np.empty_like(x)]) for name, x in self._arrays.items()
            }
            self._free = list(range(self._slots, 2 * self._slots))[::-1]
            self._slots *= 2
        slot = self._free.pop()
        for name, x in self._arrays.items():
            x[slot] = self._initial[name][0]
        return slot

    def give(self, slot: int) -> None:
        if slot >= 0:
            self._free.append(slot)

    def read(self, slots: Array) -> dict[str, Array]:
        """The states [B, ...] of slots [B]."""
        return {name: x[slots] for name, x in self._arrays.items()}

    def write(self, slots: Array, states: Mapping[str, Array]) -> None:
        for name, x in self._arrays.items():
            x[slots] = states[name]


class Version:
    """A loaded version: its model, its shield, its episodes' states, and arrays in which batches
    are put together.
    """

    def __init__(self, model: Model, rules: Rules | None = None, batch: int = 64) -> None:
        """ValueError if the spec lacks what serving needs, or the model does not run."""
        self.model, self.digest = model, model.version
        self.episodes = 0  # open ones, of which this version is the main or the shadow
        try:
            self.shield = Shield(rules or Rules(), model.spec)
            about = model.spec["artifact"]["rows"]
            self.rows = {
                name: (tuple(one["shape"]), np.dtype(one["dtype"])) for name, one in about.items()
            }
            forms = model.spec["artifact"]["action"]
            self.action = {
                name: (tuple(one["shape"]), np.dtype(one["dtype"])) for name, one in forms.items()
            }
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"spec.json: expected what 'equipoise export' writes, got {type(error).__name__}: "
                f"{error}"
            ) from error
        self.states = States(initial := model.initial(1))
        self.recurrent = bool(initial)
        self._arrays = {
            name: np.zeros((batch, *shape), dtype) for name, (shape, dtype) in self.rows.items()
        }
        self.inline = self._seconds(1) < INLINE_S and self._seconds(batch) < INLINE_BATCH_S

    def prove(self) -> None:
        """Decide for recorded observations as a server does; ValueError if a decision does not fit
        the spec.
        """
        rows = self._recorded()
        count, initial = len(next(iter(rows.values()))), self.model.initial(1)
        first, state = np.ones(count, bool), self.model.initial(count)
        noise = self.model.draw(0, np.arange(count), np.zeros(count, np.int64))
        for certain in (True, False):
            raw, logp, following = self.model.run(
                rows, first, state, None if certain else noise, np.full(count, certain)
            )
            got = {name: np.shape(x) for name, x in (*raw.items(), *following.items())}
            wanted = {name: (count, *shape) for name, (shape, _) in self.action.items()}
            wanted |= {name: (count, *x.shape[1:]) for name, x in initial.items()}
            if got != wanted:
                raise ValueError(f"policy.onnx: expected outputs of the shapes {wanted}, got {got}")
            if not_finite([raw, following, None if logp is None else {"logp": logp}]) is not None:
                raise ValueError(
                    "policy.onnx: expected finite numbers for recorded observations, got nan or an "
                    "infinity"
                )
            for i in range(count):
                json.dumps(
                    [plain(self.model.action(raw, i)), self.shield.safe(rows, i)], allow_nan=False
                )
        self.shield.outside(rows)

    def _recorded(self) -> dict[str, Array]:
        """The quantiles of the observations [n, ...] that export recorded; one from the middle of
        the space without them.
        """
        about = self.model.spec["artifact"]
        quantiles = about.get("quantiles") or {}
        count = max([1, *(len(one["values"]) for one in quantiles.values())])
        masks = {name for name, _ in self.shield.masks}
        spaces = dict(_leaves(self.model.spec["policies"][about["policy"]]["observation"], "obs"))
        rows = {}
        for name, (shape, dtype) in self.rows.items():
            rows[name] = np.ones((count, *shape), dtype)
            if name in masks:
                continue
            values = (
                quantiles[name]["values"] if name in quantiles else [middle(spaces[name], iter(()))]
            )
            for i, one in enumerate(values * count if len(values) == 1 else values):
                rows[name][i] = np.reshape(one, () if np.size(one) == 1 else shape)
        return rows

    def stack(self, parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """Rows of several requests as one batch, in arrays that the next call overwrites."""
        if len(parts) == 1:
            return parts[0]
        found = {}
        for name, whole in self._arrays.items():
            at = 0
            for part in parts:
                x = part[name]
                whole[at : at + len(x)] = x
                at += len(x)
            found[name] = whole[:at]
        return found

    def _seconds(self, count: int) -> float:
        """The time of the fastest run of ``count`` rows, which nothing else on the machine
        disturbed.
        """
        rows = {
            name: np.zeros((count, *shape), dtype) for name, (shape, dtype) in self.rows.items()
        }
        rows |= {name: np.ones_like(rows[name]) for name, _ in self.shield.masks}
        state, flags = self.model.initial(count), np.ones(count, bool)
        took: list[float] = []
        while len(took) < TIMED and sum(took) < TIMED_S:
            began = time.perf_counter()
            self.model.run(rows, flags, state, None, flags)
            took.append(time.perf_counter() - began)
        return min(took)


def _leaves(space: object, place: str) -> Iterator[tuple[str, Any]]:
    """The parts of a space that have no parts, by the names of their arrays."""
    inner = branches(space)
    if inner is None:
        yield place, space
    for key, one in (inner or {}).items():
        yield from _leaves(one, f"{place}/{escaped(key)}")
