"""Clips with pictures for people who label: the policy of a run plays, and its behaviour goes into
a store of preferences.

A clip has the arrays of a clip of the term ``preferences``, so that its reward model learns from
the answers, and ``frames`` and ``fps``, which the page shows. The env's reward is in no clip.

Another process may train on the same store. Two rules keep its rounds as they were:

- The queries have no step, so a round that is done again sees the same unanswered queries.
- Their purpose is "random": "newest" is for comparisons of a round with the best one, by which the
  guard of the term assesses its policy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise import tree
from equipoise.actors.playing import Playing
from equipoise.api.playing import Loaded, read_policies
from equipoise.console.video import NoFrames, draws, fps_of, frame_of, make_drawn
from equipoise.envs.base import SyncEnv
from equipoise.envs.spaces import differ
from equipoise.feedback import Store
from equipoise.feedback.database import FILE
from equipoise.feedback.items import Arrays
from equipoise.files import local_path
from equipoise.nets.threads import one_thread
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.record.report import step_of
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences.asking import HELD_OUT, SPLIT
from equipoise.rewards.preferences.clips import EPISODE, Clips
from equipoise.rewards.preferences.queries import random_pairs
from equipoise.rewards.preferences.segments import held_out
from equipoise.seeds import derive_seed
from equipoise.types import EnvFactory, EnvSpec, Tree

LARGEST_SIDE = 200  # pixels of a frame
MOST_BYTES = 8 << 20  # of the frames of a clip
PER_EPISODE = 4  # clips, so that a checkpoint's clips show several episodes
LONGEST = 5_000  # rows of an episode that clips are cut from
POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parameters of ``add_clips``, besides the run and the store."""

    clips: int = 20  # of a checkpoint
    rows: int = 25  # of a clip
    queries: int = 700  # about clips that the store may have in all
    seed: int = 0
    follow: bool = False  # play each newer checkpoint too, until the run ends
    trust: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What one checkpoint brought."""

    step: int
    clips: int
    queries: int
    total: int  # queries about clips in the store


def add_clips(
    run: str | os.PathLike[str], store: str | os.PathLike[str], asked: Asked
) -> Iterator[Added]:
    """Play the newest checkpoint of a run and add its clips and queries to a store, which is
    created if there is none.

    ValueError if the env does not render, or the store has clips of another env.
    """
    run, store = local_path(run), local_path(store)
    env = _env(run, asked.trust)
    played: Path | None = None
    while True:
        # read first: a checkpoint that is missed below was written after the run ended
        ended = RunDirectory.found(run).summary() is not None
        if (newest := _newest(RunDirectory.found(run).checkpoints)) not in (None, played):
            assert newest is not None
            added = _of_checkpoint(newest, env, store, asked)
            if added is not None:
                played = newest
                yield added
                if added.total >= asked.queries:
                    return
        if not asked.follow and played is None:
            raise FileNotFoundError(
                f"{run}: must have a checkpoint, got none; --follow waits for the first one"
            )
        if not asked.follow or ended:
            return
        time.sleep(POLL_S)


def _env(run: str | os.PathLike[str], trust: Sequence[str]) -> EnvFactory:
    """Return the env of a run; ValueError if it has none that renders."""
    env = RunDirectory.open(run, trusted=trust).program.source.played
    if env is None:
        raise ValueError(f"{run}: must be a run with an env, got one without")
    if not draws(env):
        raise _curves(env)
    return env


def _curves(env: EnvFactory) -> ValueError:
    return ValueError(
        f"{env.target}: must be an env of one agent that renders rgb_array frames, got one that "
        "does not; the queries of the training itself show curves of its observations"
    )


def _newest(checkpoints: Path) -> Path | None:
    return next((path for _, path in checkpoint.steps(checkpoints) if path.is_dir()), None)


def _of_checkpoint(path: Path, env: EnvFactory, store: Path, asked: Asked) -> Added | None:
    """Add the clips of a checkpoint; None if the run removed it before it was read."""
    try:
        loaded = read_policies(path, trust=asked.trust)
    except (OSError, ValueError):
        if path.exists():
            raise
        return None
    spec, step = loaded.playable[loaded.first].spec, step_of(loaded.meta)
    if len(spec.agents) > 1:
        raise _curves(env)
    clips = Clips(Observed(spec).space, spec.action)
    there = (store / FILE).exists() or store.is_file()
    with Store.open(store) if there else Store.create(store) as opened:
        clips.check(opened)
        if (total := _total(opened)) >= asked.queries:
            return Added(step=step, clips=0, queries=0, total=total)
        found = _played(loaded, env, clips, asked)
        return _add(opened, found, int(loaded.meta["version"]), step, asked)


def _total(store: Store) -> int:
    return sum(one.kind == "clip" for one in store.queries())


def _add(store: Store, found: Iterator[Arrays], version: int, step: int, asked: Asked) -> Added:
    """Store clips, and as many random pairs of them as queries."""
    hashes, episodes = list[str](), list[int]()
    for one in found:
        hashes.append(store.add_segment(one))
        episodes.append(int(one[EPISODE][0]))
    place = {hash_: i for i, hash_ in enumerate(hashes)}
    known = [
        (place[one.left], place[one.right])
        for one in store.queries()
        if one.left in place and one.right in place
    ]
    pairs = random_pairs(
        len(hashes),
        held_out(np.array(episodes, np.int64), share=HELD_OUT, seed=SPLIT),
        seed=derive_seed(asked.seed, f"pairs {step}"),
        asked=np.array(known, np.int64).reshape(-1, 2),
    )
    queries = 0
    for left, right in pairs:
        if _total(store) >= asked.queries:  # the training adds queries too
            break
        store.add_query("clip", hashes[left], hashes[right], version=version)
        queries += 1
    return Added(step=step, clips=len(hashes), queries=queries, total=_total(store))


@dataclass(slots=True)
class _Piece:
    """Rows of an episode without a seam."""

    place: int  # among the pieces that are kept; frames are rendered if it is one of these
    whole: bool  # does the episode begin with them?
    obs: list[Tree] = field(default_factory=list)
    action: list[Tree] = field(default_factory=list)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)


def _played(loaded: Loaded, env: EnvFactory, clips: Clips, asked: Asked) -> Iterator[Arrays]:
    """Play episodes with drawn actions, as in training, until there are enough clips."""
    spec, step = loaded.playable[loaded.first].spec, step_of(loaded.meta)
    seed = derive_seed(asked.seed, f"clips {step}")
    try:
        made = make_drawn(env, seed)
    except NoFrames:
        raise _curves(env) from None
    playing = Playing(
        loaded.policies[loaded.first], np.arange(1), deterministic=False, seed=seed, step=step
    )
    draw, left = np.random.default_rng(seed), asked.clips
    try:
        _check_fits(env, made, spec)
        made.recv()
        for number in range(asked.clips):
            with one_thread():
                pieces = _episode(made, playing, spec, asked.rows, draw)
            episode = derive_seed(seed, f"episode {number}")
            for one in pieces[:left]:
                left -= 1
                yield _arrays(one, clips, episode, fps_of(made))
            if not left:
                break
    finally:
        made.close()


def _check_fits(env: EnvFactory, made: SyncEnv, spec: EnvSpec) -> None:
    """ValueError if the policy was trained with other spaces."""
    place = differ("observation", made.spec.observation, spec.observation) or differ(
        "action", made.spec.action, spec.action
    )
    if place is not None:
        where, wanted, got = place
        raise ValueError(
            f"{env.target}: {where}: must be as in training, {wanted}, got {got}; has the env "
            "changed?"
        )


def _episode(
    made: SyncEnv, playing: Playing, spec: EnvSpec, rows: int, draw: np.random.Generator
) -> list[_Piece]:
    """Play to the end of an episode, and return some of its pieces at random.

    A piece has ``rows`` rows; the last one may be shorter if it has half of them or is the whole
    episode.
    """
    kept, seen, ts, observed = dict[int, _Piece](), 0, made.ts, Observed(spec)

    def begun(whole: bool) -> _Piece:
        """Begin a piece, which is kept with the same chance as each other one (reservoir
        sampling).
        """
        return _Piece(seen if seen < PER_EPISODE else int(draw.integers(seen + 1)), whole)

    piece = begun(bool(ts.first[0]))
    for _ in range(LONGEST):
        shown = [small(frame_of(made))] if piece.place < PER_EPISODE else []
        obs = tree.map(np.copy, observed.leaf(ts.obs))
        action = tree.map(np.copy, playing(ts.obs, ts.first.copy()))
        made.send(action, ts.stream)
        ts = made.recv()
        if not ts.valid[0]:  # the action was ignored, and the next episode begins
            piece = begun(bool(ts.first[0]))
            continue
        piece.obs.append(tree.index(obs, 0))
        piece.action.append(tree.index(action, 0))
        piece.frames += shown
        over, size = bool(ts.terminated[0] or ts.truncated[0]), len(piece.obs)
        if size == rows or (over and (piece.whole or 2 * size >= rows)):
            if shown:
                kept[piece.place] = piece
            seen += 1
            piece = begun(whole=False)
        if over:
            break
    return list(kept.values())


def _arrays(piece: _Piece, clips: Clips, episode: int, fps: int) -> Arrays:
    """Return a clip with its frames, fewer of them per second if they are large."""

    def stacked(spec: tree.ArraySpec, *rows: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.stack(rows).astype(spec.dtype)

    obs = tree.map(stacked, clips.specs["obs"], *piece.obs)
    action = tree.map(stacked, clips.specs["action"], *piece.action)
    frames = np.stack(piece.frames)
    every = max(1, -(-frames.nbytes // MOST_BYTES))
    shown = {"frames": frames[::every], "fps": np.array([fps / every])}
    return {**clips.arrays(obs, action, episode, len(piece.obs)), **shown}


def small(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a frame [H, W, 3], halved by means of 2 x 2 pixels until no side is over 200."""
    while max(frame.shape[:2]) > LARGEST_SIDE and min(frame.shape[:2]) > 1:
        height, width = (2 * (side // 2) for side in frame.shape[:2])
        wide = frame[:height, :width].astype(np.uint16)
        rows = wide[::2] + wide[1::2]
        frame = ((rows[:, ::2] + rows[:, 1::2] + 2) // 4).astype(np.uint8)
    return frame
