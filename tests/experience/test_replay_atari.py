"""Stacks of real frames: what the env showed is what comes out, though each frame was kept once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.envs import make, observation_spec
from equipoise.experience.layout import RowSpec, trajectory_specs
from equipoise.experience.replay.row_buffer import Extent, RowBuffer
from equipoise.experience.replay.row_layout import Layout
from equipoise.tree import ArraySpec
from equipoise.types import EnvFactory, Trajectory
from tests.experience.history import STREAM


@pytest.mark.parametrize("padding", ["zero", "first"])
@pytest.mark.parametrize("target", ["ALE/Pong-v5", "python:ALE/Pong-v5"])
@pytest.mark.parametrize(("window", "unroll"), [(1, 5), (3, 5), (1, 1), (3, 2)])
def test_stacks_are_those_of_the_env(target: str, padding: str, window: int, unroll: int) -> None:
    streams, blocks = 3, 80 // unroll
    kwargs = {"stack_padding": padding, "max_num_frames_per_episode": 60, "noop_max": 5}
    env = make(EnvFactory(target=target, kwargs=kwargs), streams=np.arange(streams), seed=3)
    row = RowSpec(
        obs=observation_spec(env.spec.observation),
        action=ArraySpec((), "int64"),
        behaviour={},
        state={},
        context=STREAM,
    )
    layout = Layout.of(row, env.spec.stacks)
    ring = RowBuffer(
        layout,
        Extent(slots=30 // unroll * unroll, block=streams, actors=1, unroll=unroll, window=window),
    )
    assert ring.layout.large["obs"].shape == (84, 84), "one frame of four is kept"
    rng, seen, firsts = np.random.default_rng(0), list[Any](), list[Any]()
    may = np.zeros((ring.slots, streams), bool)
    fields: dict[str, Any] = {}
    ts = env.recv()
    for block in range(blocks):
        fields = tree.zeros(trajectory_specs(row, unroll, streams))
        for t in range(unroll + 1):
            assert ts is not None
            fields["obs"][t], fields["first"][t] = ts.obs, ts.first
            if t == unroll:
                break
            seen.append(np.array(ts.obs))
            firsts.append(np.array(ts.first))
            env.send(rng.integers(0, 6, streams), np.arange(streams))
            ts = env.recv()
            assert ts is not None
            fields["mask"][t], fields["bootstrap"][t] = ts.valid, ~ts.terminated
        fields["context"]["stream"][:], fields["context"]["start"][:] = (
            np.arange(streams),
            block * unroll,
        )
        for (slots, columns), there in ring.insert(Trajectory(**fields), 0):
            may[slots, columns] = there
    env.close()
    seen.append(np.array(fields["obs"][unroll]))
    assert sum(first.sum() for first in firsts) > 4 * streams, "episodes end within the walk"
    chosen = np.flatnonzero(may)
    data = ring.gather(chosen)
    for item in range(len(chosen)):
        stream, start = int(data.context["stream"][item]), int(data.context["start"][item])
        for t in range(window + 1):
            np.testing.assert_array_equal(
                data.obs[t, item].numpy(), seen[start + t][stream], err_msg=f"row {start} + {t}"
            )
