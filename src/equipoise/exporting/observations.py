"""Observations for a comparison and for quantiles: played in the run's own env, recorded, or made
up from the space.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.actors.playing import FixedPolicy, Playing
from equipoise.envs import masks, observation_spec
from equipoise.envs.failures.capsule import Failures
from equipoise.exporting.parity import Seen
from equipoise.nets.normalize import RunningNorm
from equipoise.nets.torso import encoded_size, ordered
from equipoise.seeds import derive_seed
from equipoise.sources.envs import env_maker
from equipoise.types import Array, EnvSpec, Program, Tree, agent_streams

STREAMS = 16
ROWS, LARGE_ROWS, LARGE = 10_000, 2_000, 8_192  # rows; of observations with more bytes than this
QUANTILES = (0.0, 0.001, 0.01, 0.05, 0.5, 0.95, 0.99, 0.999, 1.0)
# numbers of an observation that have quantiles of their own; of larger ones all numbers together
# have some
MOST = 256
LONGEST_S = 60.0  # an env that is slow is played for so long, whatever the number of rows
SEAM = 0.02  # made-up rows that begin an episode


def wanted_rows(spec: EnvSpec) -> int:
    """The number of rows that are compared, by default."""
    size = sum(s.nbytes for s in tree.leaves(observation_spec(spec.observation)))
    return ROWS if size <= LARGE else LARGE_ROWS


def played(
    program: Program,
    policies: Mapping[str, FixedPolicy],
    name: str,
    *,
    rows: int,
    step: int,
    seed: int = 0,
) -> Seen:
    """Rows that the policy ``name`` saw in fresh envs, acting as at the end of training. Errors of
    the env are not caught.
    """
    env = env_maker(program)(
        streams=np.arange(STREAMS),
        seed=derive_seed(seed, "export"),
        failures=Failures(on_nonfinite=program.source.on_nonfinite),
    )
    try:
        agents = len(env.spec.env.agents)
        playing = {
            one: Playing(
                policy,
                agent_streams(np.arange(STREAMS), agents, env.spec.policies[one].places),
                deterministic=False,
                seed=seed,
                step=step,
                total_streams=STREAMS * agents,
            )
            for one, policy in policies.items()
        }
        kept: list[dict[str, Tree]] = []
        until = time.monotonic() + LONGEST_S
        while len(kept) * len(playing[name].streams) < rows and time.monotonic() < until:
            if (parts := env.recv()) is None:
                continue
            mine = parts[name]
            kept.append(tree.map(np.array, {"obs": mine.obs, "first": mine.first}))
            env.send({one: playing[one](parts[one].obs, parts[one].first) for one in playing})
    finally:
        env.close()
    if not kept:
        raise TimeoutError(
            f"{program.env.target}: expected an observation within {LONGEST_S:.0f} s, got none"
        )
    whole = tree.stack(kept)
    return Seen(
        obs=whole["obs"], first=whole["first"], source=f"{program.env.target}", recorded=True
    )


def recorded(episodes: Iterable[Tree], source: str, *, rows: int) -> Seen:
    """The observations [L, ...] of episodes, one after another in one stream."""
    kept: list[Tree] = []
    lengths: list[int] = []
    for one in episodes:
        kept.append(one)
        lengths.append(len(tree.leaves(one)[0]))
        if sum(lengths) >= rows:
            break
    if not sum(lengths):
        raise ValueError(f"{source}: expected recorded observations, got none")
    obs = tree.map(lambda *parts: np.concatenate(parts)[:rows, None], *kept)
    first = np.zeros((len(tree.leaves(obs)[0]), 1), np.bool_)
    first[[at for at in np.cumsum([0, *lengths[:-1]]) if at < len(first)]] = True
    return Seen(obs=obs, first=first, source=source, recorded=True)


def sampled(spec: EnvSpec, net: Any, *, rows: int, seed: int = 0) -> Seen:
    """Made-up rows: drawn from the space, or by the statistics of the network's norm; masks allow
    something.
    """
    rng = np.random.default_rng(seed)
    steps = -(-rows // STREAMS)
    obs = _drawn(spec.observation, rng, (steps, STREAMS))
    norm = next((one for one in net.modules() if isinstance(one, RunningNorm)), None)
    if norm is not None and float(norm.count) > 0:
        mean, std = norm.mean.numpy(), (norm.m2.numpy() / float(norm.count)) ** 0.5
        seen = obs
        for key in net.seen:
            seen = seen[key]
        _by_statistics(net.observation, seen, rng, mean, std)
    if spec.mask:
        mask = obs
        for key in spec.mask:
            mask = mask[key]
        for _, one, begins in masks.counted(
            "obs", tree.map(lambda x: x.reshape(-1, *x.shape[2:]), mask), spec.action
        ):
            ends = [*begins[1:], one.shape[1]]
            # a view of the rows: one of each choice is allowed
            for begin, end in zip(begins, ends, strict=True):
                one[np.arange(len(one)), rng.integers(begin, end, len(one))] = 1
    first = rng.random((steps, STREAMS)) < SEAM
    return Seen(obs=obs, first=first, source="made-up observations", recorded=False)


def _drawn(space: spaces.Space[object], rng: np.random.Generator, shape: tuple[int, ...]) -> Tree:
    if (inner := tree.branches(space)) is not None:
        return {key: _drawn(one, rng, shape) for key, one in inner.items()}
    if isinstance(space, spaces.Box):
        size = (*shape, *space.shape)
        if space.dtype.kind in "iub":
            low, high = (
                np.clip(bound.astype(np.float64), -(2.0**31), 2.0**31)
                for bound in (space.low, space.high)
            )
            return (
                np.floor(rng.random(size) * (high - low + 1) + low)
                .clip(low, high)
                .astype(space.dtype)
            )
        bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high - space.low < 1e3)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        return np.where(
            bounded, rng.random(size) * (high - low) + low, rng.standard_normal(size)
        ).astype(np.float32)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (*shape, *space.shape)).astype(space.dtype)
    count, start = (
        (space.n, space.start) if isinstance(space, spaces.Discrete) else (space.nvec, space.start)  # type: ignore[attr-defined]
    )
    return (np.floor(rng.random((*shape, *(space.shape or ()))) * count) + start).astype(
        space.dtype
    )


def _by_statistics(
    space: spaces.Space[object], obs: Tree, rng: np.random.Generator, mean: Array, std: Array
) -> None:
    """Overwrite the numbers of Boxes by normal ones of this mean and deviation [F], in the order of
    ``encode``.
    """
    if (inner := tree.branches(space)) is not None:
        at = 0
        for key in ordered(space, inner):
            size = encoded_size(inner[key])
            _by_statistics(inner[key], obs[key], rng, mean[at : at + size], std[at : at + size])
            at += size
    elif isinstance(space, spaces.Box) and space.dtype.kind == "f":
        obs[...] = (rng.standard_normal((*obs.shape[:2], len(mean))) * std + mean).reshape(
            obs.shape
        )


def quantiles(seen: Seen, mask: tuple[str, ...]) -> dict[str, Any] | None:
    """{path: {"q": [...], "values": [[...] for each]}} of numbers that an env gave; None for
    made-up numbers.

    A list of values has one for each number of the leaf, flat, or one for all of them if these are
    many.
    """
    if not seen.recorded:
        return None
    hidden, found = tree.path_of("obs", *mask), {}
    for path, leaf in tree.named("obs", seen.obs).items():
        if mask and (path == hidden or path.startswith(f"{hidden}/")):
            continue
        rows = leaf.reshape(leaf.shape[0] * leaf.shape[1], -1)
        rows = rows if rows.shape[1] <= MOST else rows[:: max(1, len(rows) // 200)].reshape(-1, 1)
        found[path] = {
            "q": list(QUANTILES),
            "values": np.quantile(rows.astype(np.float64), QUANTILES, axis=0).tolist(),
        }
    return found
