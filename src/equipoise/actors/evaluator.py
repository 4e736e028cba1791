"""Evaluation: fresh episodes of a fixed policy, a step of all streams at a time so that a runtime can do it in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.actors.noise import uniform
from equipoise.nets.precision import autocast
from equipoise.types import Algorithm, Env, Precision, Tick, TimeStep, Tree

LONGEST = 100_000  # steps of an episode that never ends by itself; its return so far counts


PATIENCE = 3  # aborted episodes of a stream in a row, after which one is given up


class Evaluator:
    """Plays ``episodes`` episodes, each stream an equal number of them, so that short ones are not counted too often.

    An episode that the env's failure aborted is played again; one that is given up is missing in ``returns``.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        net: Any,
        env: Env,
        *,
        streams: int,
        episodes: int,
        noise_columns: int,
        seed: int,
        deterministic: bool = True,
        precision: Precision = "fp32",
    ) -> None:
        self._algorithm, self._net, self._env = algorithm, net, env
        self._deterministic, self._noise_columns, self._seed = deterministic, noise_columns, seed
        self._autocast = autocast(precision)
        self._left = np.full(streams, episodes // streams)
        self._left[: episodes % streams] += 1
        self._return = np.zeros(streams)
        self._length = np.zeros(streams, np.int64)
        self._aborted = np.zeros(streams, np.int64)  # in a row
        self._rows = np.zeros(streams, np.int64)  # since the last episode's end, the masked ones of an aborted one included
        self._state: Tree = net.initial_state(streams)
        self._ids = np.arange(streams)
        self._row = 0
        self.returns: list[float] = []

    @property
    def done(self) -> bool:
        return not self._left.any()

    def close(self) -> None:
        self._env.close()

    def tick(self) -> Tick:
        """One step of every stream."""
        ts = self._env.recv()
        if ts is None:
            return Tick.STARVED
        self._note(ts)
        if not self.done:
            self._env.send(self._act(ts), ts.stream)
        return Tick.WORKED

    def _note(self, ts: TimeStep) -> None:
        self._return += ts.reward
        self._length += ts.valid
        self._rows += 1
        for i in np.flatnonzero(ts.first & ~ts.valid & (self._length > 0)):  # not a seam: there the length is 0 already
            self._return[i], self._length[i] = 0.0, 0
            self._aborted[i] += 1
            if self._aborted[i] >= PATIENCE and self._left[i] > 0:
                self._left[i] -= 1
                self._aborted[i] = 0
        for i in np.flatnonzero(ts.terminated | ts.truncated | (self._rows > LONGEST)):
            if self._left[i] > 0:
                self._left[i] -= 1
                if self._length[i] > 0:
                    self.returns.append(float(self._return[i]))
            self._return[i] = 0.0
            self._length[i] = self._rows[i] = 0
            self._aborted[i] = 0

    def _act(self, ts: TimeStep) -> Tree:
        obs, first = tree.torch_views(ts.obs), torch.from_numpy(ts.first)
        with torch.inference_mode(), self._autocast:
            if self._deterministic:
                action, self._state = self._algorithm.best(self._net, obs, first, self._state)
            else:
                start = np.full(len(self._ids), self._row)
                noise = torch.from_numpy(uniform(self._seed, self._ids, start, 1, self._noise_columns)[0])
                explore = self._algorithm.explore(self._ids, len(self._ids), 0)
                action, _, self._state = self._algorithm.act(self._net, obs, first, self._state, explore=explore, noise=noise)
        self._row += 1
        return tree.numpy_views(action)


def load_params(net: torch.nn.Module, params: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters and buffers by name into a network."""
    with torch.no_grad():
        for name, tensor in tree.named_tensors(net).items():
            tensor.copy_(params[name])
