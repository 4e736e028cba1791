"""A data set's rows in a ring of their own: every process reads them again, and they are never
overwritten.

All episodes lie one after the other in one stream, with a seam after each (``types/rows.py``),
whose observation is the true final one. An episode that ended without being terminated, for
whatever reason, bootstraps from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from equipoise import schema, tree
from equipoise.envs.restore.snapshot import generator, generator_state
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded.dataset import Dataset, Episode, Faulty
from equipoise.experience.replay.codec import chosen
from equipoise.experience.replay.row_buffer import Extent, RowBuffer
from equipoise.experience.replay.row_layout import Layout, smallest
from equipoise.experience.replay.selectors import Prioritized, Uniform, importance_weights
from equipoise.types import (
    TRAJECTORY_STREAMS,
    Array,
    Batch,
    Stack,
    StateReader,
    StateWriter,
    Trajectory,
    Tree,
)
from equipoise.types import ReplaySettings as Settings

CHUNK = 256  # rows that are inserted together
NOBODY = -1  # the acting version: not a version of this run


class RecordedRows:
    """The rows of a data set, and the order in which they are sampled."""

    def __init__(
        self,
        dataset: Dataset,
        settings: Settings,
        *,
        row: RowSpec,
        window: int,
        stacks: Mapping[str, Stack],
        pinned: bool = False,
        pulse: Callable[[], object] = lambda: None,
    ) -> None:
        """Read all episodes; ``Faulty`` if an episode does not fit ``dataset.Episode``. It may take
        minutes: ``pulse`` is called every ``CHUNK`` rows or so.
        """
        self._settings = settings
        layout = Layout.of(row, stacks)
        chunk = max(CHUNK, window + layout.history)
        # a seam an episode, room for the last window
        rows = -(-(dataset.steps + dataset.episodes + window) // chunk) * chunk
        slots = max(rows + 2 * chunk, smallest(layout, unroll=chunk, window=window))
        self.ring = RowBuffer(
            layout,
            Extent(slots=slots, block=1, actors=1, unroll=chunk, window=window),
            folder=settings.file,
            codecs=chosen(settings.codec, layout.large, layout.small),
            threads=settings.decode_threads,
            pinned=pinned,
        )
        self.selector: Prioritized | Uniform = Uniform(self.ring.slots)
        if settings.selector == "prioritized":
            self.selector = Prioritized(
                self.ring.slots, alpha=settings.alpha, epsilon=settings.epsilon
            )
        for data in blocks(dataset, row, stacks, rows=rows, chunk=chunk):
            for where, there in self.ring.insert(data, 0):
                self.selector.put(where, there)
            pulse()

    def draw(self, n: int, rng: np.random.Generator, *, done: float, buffer: int = 0) -> Batch:
        """Draw ``n`` windows. ``done``: the share of the run that is over, which beta follows."""
        places, probability = self.selector.sample(n, rng)
        weight = torch.ones(n)
        if self._settings.selector == "prioritized":
            beta = self._settings.beta + (1.0 - self._settings.beta) * done
            weight = torch.from_numpy(importance_weights(probability, beta).astype(np.float32))
        data = self.ring.gather(places, buffer)
        keys = np.stack([places, np.asarray(data.context["start"])], 1)
        return Batch(data=data, keys=keys, weight=weight, targets={})

    def learned(self, keys: Array, priority: Array | None) -> None:
        if priority is not None:
            self.selector.update(keys[:, 0], np.asarray(tree.on_host(priority), np.float64))

    def state(self) -> Tree:
        """Return the state without the rows, which the data set has."""
        return self.selector.state()

    def load(self, state: Tree) -> None:
        self.selector.load(state)


class Offline:
    """``Experience`` without actors: any number of batches of a data set."""

    def __init__(
        self, rows: RecordedRows, *, seed: int, updates: int, file: str = "replay"
    ) -> None:
        """``updates``: the updates of the run, over which beta is annealed."""
        self.rows, self._updates, self._file = rows, updates, file  # the name in a checkpoint
        self._rng, self._done, self._buffer = np.random.default_rng(seed), 0, 0

    def coming(self) -> None:
        """Not known: every batch is drawn again."""

    def sample(self, n: int) -> Batch | None:
        self._buffer ^= 1
        return self.rows.draw(
            n, self._rng, done=min(self._done / self._updates, 1.0), buffer=self._buffer
        )

    def learned(self, keys: Array, priority: Array | None) -> None:
        self.rows.learned(keys, priority)

    def finish(self, keys: Array) -> None:
        self._done += 1

    def stats(self) -> dict[str, float]:
        return {"items": len(self.rows.selector)}

    def state(self) -> Tree:
        """Return the state between ``sample`` and ``finish``; ``load`` takes that batch as
        finished.
        """
        return {
            "done": self._done + 1,
            "rng": generator_state(self._rng),
            "selector": self.rows.state(),
        }

    def load(self, state: Tree) -> None:
        schema.check(
            state,
            {
                "done": schema.count(),
                "rng": schema.Array((None,), "uint8"),
                "selector": schema.Anything(),
            },
            "replay",
        )
        self._done, self._rng = state["done"], generator(state["rng"])
        self.rows.load(state["selector"])

    def save(self, to: StateWriter) -> None:
        to.put(self.state(), self._file)

    def adopt(self, keys: Array) -> None:
        """Nothing: recorded rows are finished with at once."""

    def restore(self, source: StateReader, learners: int) -> None:
        self.load(source.state(self._file))

    def close(self) -> None:
        self.rows.ring.close()


def beside(live: Batch, recorded: Batch) -> Batch:
    """Join two batches into one copy, the live items first."""

    def join(dim: int, a: Tree, b: Tree) -> Tree:
        return tree.map(lambda *both: torch.cat(both, dim), a, b)

    others = recorded.data.fields()
    data = Trajectory(
        **{
            name: join(0 if name in TRAJECTORY_STREAMS else 1, field, others[name])
            for name, field in live.data.fields().items()
        }
    )
    keys = np.concatenate([live.keys, recorded.keys])
    weight = torch.cat([live.weight, recorded.weight])
    return Batch(data=data, keys=keys, weight=weight, targets={})


# --------------------------------------------------------------------------------------------- rows


def look(dataset: Dataset, row: RowSpec, stacks: Mapping[str, Stack]) -> None:
    """Check a data set before a run: ValueError if a row needs what no data set has, or the first
    episode is ``Faulty``.
    """
    if missing := [
        f"{name} ({path})"
        for name, specs in (("behaviour", row.behaviour), ("state", row.state))
        for path, _ in tree.items(specs)
    ]:
        raise ValueError(
            "dataset: expected a policy that learns from rows alone, got one that needs "
            f"{missing[0]}"
        )
    next(_episodes(dataset, row, stacks), None)


def blocks(
    dataset: Dataset, row: RowSpec, stacks: Mapping[str, Stack], *, rows: int, chunk: int
) -> Iterator[Trajectory]:
    """Yield all episodes as blocks [chunk, 1] of one stream, ``rows`` in all;
    seams fill the last.
    """
    edges: list[Tree] = []  # episodes and parts of them that are in no block yet
    held = start = 0
    for part in itertools.chain(_episodes(dataset, row, stacks), [None]):
        if part is None:
            if (left := rows + 1 - start - held) <= 0:
                raise Faulty(
                    f"{dataset.name}: expected the {dataset.steps:,} steps that it declares, got "
                    "more"
                )
            part = _seams(row, left)
        edges.append(part)
        held += len(part["mask"])
        if held <= chunk:
            continue
        joined = tree.map(lambda *parts: np.concatenate(parts), *edges)
        at = 0
        for at in range(0, held - chunk, chunk):
            yield _block(joined, at, chunk, start + at)
        at += chunk
        edges, held, start = [tree.map(lambda x, at=at: x[at:], joined)], held - at, start + at


def _block(rows: Tree, at: int, chunk: int, start: int) -> Trajectory:
    """Cut a block from rows ``at`` on, with the observation after it."""

    def cut(name: str, more: int = 0) -> Tree:
        return tree.map(lambda x: x[at : at + chunk + more, None], rows[name])

    return Trajectory(
        obs=cut("obs", 1),
        first=cut("first", 1),
        action=cut("action"),
        behaviour={},
        reward=cut("reward"),
        mask=cut("mask"),
        bootstrap=cut("bootstrap"),
        version=np.full((chunk, 1), NOBODY),
        state={},
        context={"stream": np.zeros(1, np.int64), "start": np.array([start])},
    )


def _episodes(dataset: Dataset, row: RowSpec, stacks: Mapping[str, Stack]) -> Iterator[Tree]:
    for number, episode in enumerate(dataset):
        if not len(episode):
            continue
        where = f"{dataset.name}: episode {number}"
        rows = _rows(episode, row, where)
        _counted(dataset.action, episode.action, f"{where}, action")
        for path, stack in stacks.items():
            _slides(tree.named("obs", episode.obs)[f"obs/{path}" if path else "obs"], stack, where)
        yield rows


def _rows(episode: Episode, row: RowSpec, where: str) -> Tree:
    """Make L real rows and a seam."""
    length = len(episode)
    for name, flags in (("terminated", episode.terminated), ("truncated", episode.truncated)):
        if (got := flags.shape) != (length,):
            raise Faulty(
                f"{where}, {name}: expected shape {(length,)}, as of its rewards, got {got}"
            )
    ends = np.asarray(episode.terminated, bool) | np.asarray(episode.truncated, bool)
    if ends[:-1].any():
        raise Faulty(
            f"{where}: expected an end at its last step, {length - 1}, alone, got one at "
            f"{int(ends.argmax())}"
        )
    seam = np.arange(length + 1) == length
    return {
        "obs": _fitted(episode.obs, row.obs, length + 1, f"{where}, observation"),
        "action": _padded(_fitted(episode.action, row.action, length, f"{where}, action")),
        "reward": _padded(
            _fitted(episode.reward, tree.ArraySpec((), "float32"), length, f"{where}, reward")
        ),
        "mask": ~seam,
        "bootstrap": ~np.append(np.asarray(episode.terminated, bool), False),
        "first": np.arange(length + 1) == 0,
    }


def _fitted(arrays: Tree, specs: Tree, length: int, where: str) -> Tree:
    """Cast [length, ...] to the dtypes of the rows; ``Faulty`` for another shape or kind and for
    numbers that are not finite.
    """
    found = tree.named(where, arrays)

    def fit(where: str, spec: tree.ArraySpec) -> Array:
        array = np.asarray(found[where])
        if array.shape != (length, *spec.shape):
            raise Faulty(f"{where}: expected shape {(length, *spec.shape)}, got {array.shape}")
        if not np.can_cast(array.dtype, spec.dtype, "same_kind") and not (
            array.dtype.kind in "bui" and spec.dtype != "bool"
        ):
            raise Faulty(f"{where}: expected {spec.dtype}, got {array.dtype}")
        array, given = array.astype(spec.dtype, copy=False), array
        if given.dtype.kind in "bui" and (other := array != given).any():
            at = int(np.argwhere(other)[0, 0])
            raise Faulty(
                f"{where}: expected numbers that {spec.dtype} has, got {given[at]} at step {at}"
            )
        if spec.dtype == "float32" and not np.isfinite(array).all():
            at = int(np.argwhere(~np.isfinite(array))[0, 0])
            raise Faulty(f"{where}: expected finite numbers, got {array[at]} at step {at}")
        return array

    return tree.like(
        specs, {path: fit(path, spec) for path, spec in tree.named(where, specs).items()}, where
    )


def _counted(space: gymnasium.Space[object], action: Tree, where: str) -> None:
    """Raise ``Faulty`` for an action that is no choice of the space."""
    if (inner := tree.branches(space)) is not None:
        for key, one in inner.items():
            _counted(one, action[key], f"{where}/{key}")
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        choices = space.n if isinstance(space, spaces.Discrete) else space.nvec
        known = (action >= space.start) & (action < space.start + choices)
        if not known.all():
            at = int(np.argwhere(~known)[0, 0])
            raise Faulty(f"{where}: expected one of {space}, got {action[at]} at step {at}")


def _padded(arrays: Tree) -> Tree:
    return tree.map(lambda x: np.concatenate([x, np.zeros_like(x[:1])]), arrays)


def _seams(row: RowSpec, count: int) -> Tree:
    zeros: Tree = tree.zeros(tree.prepend({"obs": row.obs, "action": row.action}, count))
    return {
        **zeros,
        "reward": np.zeros(count, np.float32),
        "mask": np.zeros(count, bool),
        "bootstrap": np.ones(count, bool),
        "first": np.ones(count, bool),
    }


def _slides(stacked: Array, stack: Stack, where: str) -> None:
    """Raise ``Faulty`` unless the ring can rebuild the stacks from their newest frames."""
    before = stacked[0, :-1]
    begins = (before == (0 if stack.padding == "zero" else stacked[0, -1:])).all()
    if not begins or not (stacked[1:, :-1] == stacked[:-1, 1:]).all():
        raise Faulty(
            f"{where}: expected stacks of {stack.frames} frames that move by one a step and begin "
            "with "
            f"{'black frames' if stack.padding == 'zero' else 'the first one repeated'}, as the "
            "env's do, got others"
        )
