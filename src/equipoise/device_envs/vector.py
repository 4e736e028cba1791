"""A device env as a Gymnasium vector env on the CPU, for code that looks at an env, evaluates it or
records it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from equipoise import foreign, tree
from equipoise.device_envs.device_env import Bounds, DeviceEnv, probe, streams_on
from equipoise.device_envs.naming import make_device_env
from equipoise.seeds import stream_seed
from equipoise.types import Array, Tree

CPU = torch.device("cpu")


class DeviceVector(VectorEnv):
    """B streams of a device env."""

    def __init__(self, env: DeviceEnv, streams: Array, seed: int) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.env, self.num_envs, self._run = env, len(streams), seed
        self.single_observation_space, self.single_action_space = env.observation, env.action
        self.observation_space = batch_space(env.observation, self.num_envs)
        self.action_space = batch_space(env.action, self.num_envs)
        self._streams, self._bounds = streams_on(streams, CPU), Bounds(env.action, CPU)
        self._state: Tree = {}
        self._first = stream_seed(seed, int(streams[0]))

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Tree, dict[str, object]]:
        """Begin all streams; without a ``seed``, ``np_random`` draws it."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**62)) if seed is None else seed
        # A device env derives the seeds of all streams from the run's, so that a stream's episodes
        # do not depend on its neighbours.
        run = self._run if seed == self._first else drawn
        with torch.inference_mode():
            self._state, ts = self.env.reset(run, self._streams)
        return tree.numpy_views(ts.obs), {}

    def step(self, actions: Tree) -> tuple[Tree, Array, Array, Array, dict[str, object]]:
        with torch.inference_mode():
            self._state, ts = self.env.step(self._state, self._bounds(_tensors(actions)))
        rows = tree.numpy_views(
            {"obs": ts.obs, "reward": ts.reward, "end": ts.terminated, "cut": ts.truncated}
        )
        return rows["obs"], rows["reward"], rows["end"], rows["cut"], {}


class ExactDeviceVector(DeviceVector):
    """B streams of a device env whose state is all that the next rows depend on."""

    snapshot_attributes: ClassVar[tuple[str, ...]] = ("bytes",)

    @property
    def bytes(self) -> Array:
        """The state as [n] uint8, leaf after leaf."""
        leaves = [
            np.ascontiguousarray(x.numpy()).reshape(-1).view(np.uint8)
            for x in tree.leaves(self._state)
        ]
        return np.concatenate(leaves)

    @bytes.setter
    def bytes(self, packed: Array) -> None:
        at = 0

        def taken(x: torch.Tensor) -> torch.Tensor:
            nonlocal at
            at += x.nbytes
            return torch.from_numpy(
                packed[at - x.nbytes : at].copy().view(x.numpy().dtype).reshape(x.shape)
            )

        self._state = tree.map(taken, self._state)


def _tensors(actions: Tree) -> Tree:
    """A vector env's actions as tensors; a Tuple's parts by "0", "1", ...."""
    if isinstance(actions, tuple):
        actions = {str(i): one for i, one in enumerate(actions)}
    if isinstance(actions, dict):
        return {key: _tensors(one) for key, one in actions.items()}
    return torch.from_numpy(np.asarray(actions))


def vector(
    name: str,
    observation_spec: Callable[[gymnasium.Space[object]], Tree],
    *,
    streams: Array,
    seed: int,
    **kwargs: object,
) -> DeviceVector:
    """Make the streams [B] int64 of the device env ``name`` (without ``device:``) for a ``seed``.

    ``observation_spec``: that of ``envs``, which this room does not import. ValueError if rows are
    not as a rollout needs them; simulators and JAX envs are not stepped for that.
    """
    env = make_device_env(name, kwargs, streams=len(streams))
    made = (ExactDeviceVector if env.exact else DeviceVector)(env, streams, seed)
    if env.exact and foreign.optional(env, "traceable", True):
        made.action_space.seed(0)
        observation = observation_spec(env.observation)
        probe(
            name, env, observation, streams_on(streams, CPU), _tensors(made.action_space.sample())
        )
    return made
