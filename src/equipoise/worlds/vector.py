"""A world as a Gymnasium vector env on the CPU: what looks at an env, evaluates or records it takes this one."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from equipoise import tree
from equipoise.seeds import stream_seed
from equipoise.types import Tree
from equipoise.worlds.naming import make_world
from equipoise.worlds.world import Bounds, World, streams_on

CPU = torch.device("cpu")


class WorldVector(VectorEnv[Any, Any, Any]):
    """B streams of a world."""

    def __init__(self, world: World, streams: Any, seed: int) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.world, self.num_envs, self._run = world, len(streams), seed
        self.single_observation_space, self.single_action_space = world.observation, world.action
        self.observation_space = batch_space(world.observation, self.num_envs)
        self.action_space = batch_space(world.action, self.num_envs)
        self._streams, self._bounds = streams_on(streams, CPU), Bounds(world.action, CPU)
        self._state: Tree = {}
        self._first = stream_seed(seed, int(streams[0]))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin all streams; without a ``seed`` by one that ``np_random`` draws."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**62)) if seed is None else seed
        # Envs are given the seed of their first stream. A world takes the run's and makes those of all streams of it, so that
        # a stream's episodes do not depend on which streams are beside it.
        run = self._run if seed == self._first else drawn
        with torch.inference_mode():
            self._state, ts = self.world.reset(run, self._streams)
        return tree.numpy_views(ts.obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with torch.inference_mode():
            self._state, ts = self.world.step(self._state, self._bounds(_tensors(actions)))
        rows = tree.numpy_views({"obs": ts.obs, "reward": ts.reward, "end": ts.terminated, "cut": ts.truncated})
        return rows["obs"], rows["reward"], rows["end"], rows["cut"], {}


class ExactWorldVector(WorldVector):
    """B streams of a world whose state is all that the next rows depend on."""

    snapshot_attributes: ClassVar[tuple[str, ...]] = ("bytes",)

    @property
    def bytes(self) -> Any:
        """The state as [n] uint8, leaf after leaf."""
        leaves = [np.ascontiguousarray(x.numpy()).reshape(-1).view(np.uint8) for x in tree.leaves(self._state)]
        return np.concatenate(leaves)

    @bytes.setter
    def bytes(self, packed: Any) -> None:
        at = 0

        def taken(x: torch.Tensor) -> torch.Tensor:
            nonlocal at
            at += x.nbytes
            return torch.from_numpy(packed[at - x.nbytes : at].copy().view(x.numpy().dtype).reshape(x.shape))

        self._state = tree.map(taken, self._state)


def _tensors(actions: Any) -> Tree:
    """A vector env's actions as tensors; a Tuple's parts by "0", "1", ...."""
    if isinstance(actions, tuple):
        actions = {str(i): one for i, one in enumerate(actions)}
    if isinstance(actions, dict):
        return {key: _tensors(one) for key, one in actions.items()}
    return torch.from_numpy(np.asarray(actions))


def vector(name: str, *, streams: Any, seed: int, **kwargs: Any) -> WorldVector:
    """Make the streams [B] int64 of the device env ``name`` (without ``device:``) for a run's ``seed``."""
    world = make_world(name, kwargs, streams=len(streams))
    return (ExactWorldVector if world.exact else WorldVector)(world, streams, seed)
