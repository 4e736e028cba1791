"""Playing recorded observations: ``play``. No env is made, so the env's package need not be
installed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from equipoise import tree
from equipoise.actors.playing import Playing, read_rows
from equipoise.api.playing import read_policies
from equipoise.envs.failures.capsule import read_arrays
from equipoise.envs.spaces import ActionForm, differ
from equipoise.experience.recorded import dataset as datasets
from equipoise.files import write_atomic
from equipoise.record.report import step_of
from equipoise.types import Array, EnvSpec, Tree

__all__ = ["Played", "Recording", "play"]

STREAMS = 100  # episodes that are played side by side, at most
KEYS = ("obs", "action", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recorded episode of L rows."""

    obs: Tree  # [L, ...]
    action: Tree | None  # [L, ...] as ``env.step`` took it; None: it was not recorded


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Played:
    """What a policy does where something else acted."""

    action: Tree  # [N, ...] of all rows, as ``env.step`` takes it
    first: Array  # [N] bool, where episodes begin
    step: int  # of training, which the weights are of
    # by path, of whole numbers: the share of rows whose recorded action is the policy's
    same: dict[str, float]
    # by path, of other numbers: the mean distance from the recorded action
    distance: dict[str, float]

    def __repr__(self) -> str:
        return f"<Played {self.rows:,} rows of {self.episodes:,} episodes, step {self.step:,}>"

    @property
    def rows(self) -> int:
        return len(self.first)

    @property
    def episodes(self) -> int:
        return int(self.first.sum())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz file: "action", or "action/KEY" for each part, and "first"."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer, **dict(tree.items({"action": self.action, "first": self.first}))
        )
        write_atomic(Path(path), buffer.getvalue())


def play(
    directory: str | os.PathLike[str],
    recorded: str | os.PathLike[str],
    *,
    policy: str | None = None,
    deterministic: bool = True,
    seed: int = 0,
    best: bool = False,
    trust: Sequence[str] = (),
) -> Played:
    """Play recorded observations with a trained policy, without its env.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        recorded: A Minari data set (an id, or a directory), or an npz file with rows: "obs"
            [N, ...] (or "obs/KEY" for each part), and if there are any "action" [N, ...] and
            "first" [N], which says where episodes begin.
        policy: The name of one of several policies (default: the first).
        deterministic: Take the likeliest actions, and do not draw them.
        seed: Seed of the actions that are drawn.
        best: Take the weights of the best evaluation.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The actions, and how far they are from the recorded ones.

    Raises:
        ValueError: The rows do not fit the spaces that the policy was trained with.

    Example:
        >>> np.savez("rows.npz", obs=np.zeros((5, 4), np.float32))
        >>> eq.play(run.directory, "rows.npz")
        <Played 5 rows of 1 episodes, step 2,048>
    """
    loaded = read_policies(directory, best=best, trust=trust)
    name = loaded.named(policy)
    spec, step = loaded.playable[name].spec, step_of(loaded.meta)
    place = os.fspath(recorded)
    episodes = recordings(place, spec)
    actions: list[Tree] = []
    found: list[Tree | None] = []
    for number, group in enumerate(_groups(episodes)):
        streams = np.arange(number * STREAMS, number * STREAMS + len(group))
        playing = Playing(
            loaded.policies[name], streams, deterministic=deterministic, seed=seed, step=step
        )
        actions += _side_by_side(playing, spec, group)
        found += [one.action for one in group]
    if not actions:
        raise ValueError(f"{place}: expected recorded episodes, got none")
    lengths = [len(tree.leaves(one)[0]) for one in actions]
    first = np.zeros(sum(lengths), np.bool_)
    first[np.cumsum([0, *lengths[:-1]])] = True
    action = _joined(actions)
    there = [one for one in found if one is not None]
    same, distance = (
        _compare(action, _joined(there), place) if len(there) == len(found) else ({}, {})
    )
    return Played(action=action, first=first, step=step, same=same, distance=distance)


def recordings(recorded: str | os.PathLike[str], spec: EnvSpec) -> Iterator[Recording]:
    """The episodes of an npz file or a Minari data set; ValueError if ``spec`` does not fit."""
    place = os.fspath(recorded)
    return (
        _of_file(Path(place).expanduser(), spec)
        if place.endswith(".npz")
        else _of_dataset(place, spec)
    )


def _groups(episodes: Iterator[Recording]) -> Iterable[list[Recording]]:
    while group := list(islice(episodes, STREAMS)):
        yield group


def _side_by_side(playing: Playing, spec: EnvSpec, group: list[Recording]) -> list[Tree]:
    """The actions of each episode; an ended episode repeats its last row."""
    lengths = [len(tree.leaves(one.obs)[0]) for one in group]
    form, rows = ActionForm(spec.action, len(group)), []
    for t in range(max(lengths)):
        obs = tree.map(
            lambda *parts: np.stack(parts),
            *(
                tree.index(one.obs, min(t, length - 1))
                for one, length in zip(group, lengths, strict=True)
            ),
        )
        rows.append(form(playing(obs, np.full(len(group), t == 0))))
    whole = tree.map(lambda *parts: np.stack(parts), *rows)
    return [tree.map(lambda x: x[:length, i], whole) for i, length in enumerate(lengths)]  # noqa: B023


def _joined(episodes: list[Tree]) -> Tree:
    return tree.map(lambda *parts: np.concatenate(parts), *episodes)


def _compare(action: Tree, recorded: Tree, place: str) -> tuple[dict[str, float], dict[str, float]]:
    """The agreement of the two, by the path of each part of an action."""
    mine, theirs = dict(tree.items(action, "action")), dict(tree.items(recorded, "action"))
    same: dict[str, float] = {}
    distance: dict[str, float] = {}
    for path, x in mine.items():
        if path not in theirs or theirs[path].shape != x.shape:
            got = f"{list(theirs[path].shape)}" if path in theirs else f"{sorted(theirs)}"
            raise ValueError(
                f"{place}: {path}: expected recorded actions of shape {list(x.shape)}, got {got}"
            )
        rows = (len(x), -1)
        if x.dtype.kind == "f":
            gap = x.reshape(rows).astype(np.float64) - theirs[path].reshape(rows)
            distance[path] = float(np.linalg.norm(gap, axis=1).mean())
        else:
            same[path] = float((x.reshape(rows) == theirs[path].reshape(rows)).all(axis=1).mean())
    return same, distance


def _of_file(path: Path, spec: EnvSpec) -> Iterator[Recording]:
    arrays = read_arrays(path)
    if "obs" not in arrays or (unknown := arrays.keys() - set(KEYS)):
        got = f"the unknown {sorted(unknown)}" if "obs" in arrays else f"{sorted(arrays)}"
        raise ValueError(
            f"{path}: expected the arrays obs, action and first (obs at least), got {got}"
        )
    try:
        obs, single = read_rows(spec, arrays["obs"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    count = len(tree.leaves(obs)[0])
    first, action = arrays.get("first", np.arange(count) == 0), arrays.get("action")
    if single:
        raise ValueError(f"{path}: obs: expected rows [N, ...], got one observation")
    for name, x in tree.items({key: arrays[key] for key in ("first", "action") if key in arrays}):
        if x.shape[:1] != (count,) or (name == "first" and x.ndim > 1):
            wanted = [count] if name == "first" else f"[{count}, ...]"
            raise ValueError(
                f"{path}: {name}: expected shape {wanted}, as many rows as obs has, got "
                f"{list(x.shape)}"
            )
        if (wrong := ~np.isfinite(x)).any():
            row = int(wrong.reshape(count, -1).any(axis=1).argmax())
            raise ValueError(
                f"{path}: {name}: expected finite numbers, got {x[wrong].flat[0]} in row {row}"
            )
    if isinstance(first, dict) or not np.isin(first, (0, 1)).all():
        raise ValueError(f"{path}: first: expected one array of 0 and 1, got others")
    first = np.asarray(first, np.bool_)
    begins = np.flatnonzero(first)
    if not len(begins) or begins[0]:
        begins = np.concatenate([[0], begins])
    for start, end in zip(begins, [*begins[1:], count], strict=True):
        rows = slice(int(start), int(end))
        yield Recording(
            obs=tree.index(obs, rows), action=None if action is None else tree.index(action, rows)
        )


def _of_dataset(name: str, spec: EnvSpec) -> Iterator[Recording]:
    """The episodes of a Minari data set, without their final observations."""
    found = datasets.find(name)
    if place := differ("observation", found.observation, spec.observation) or differ(
        "action", found.action, spec.action
    ):
        where, wanted, got = place
        raise ValueError(
            f"data set {name}: {where}: expected what the policy was trained with, {wanted}, "
            f"got {got}"
        )
    for one in found:
        obs, _ = read_rows(spec, tree.map(lambda x: x[:-1], one.obs))
        yield Recording(obs=obs, action=one.action)
