"""``Episodic``: a device env from three functions (begin, advance, observe), with NEXT_STEP resets,
a clock and seeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import gymnasium
import torch
from torch import Tensor

from equipoise import tree
from equipoise.device_envs.counter import key_of, uniform
from equipoise.device_envs.device_env import Autoreset, where
from equipoise.types import TimeStep, Tree


class Episodic(ABC):
    """A device env whose subclass defines how an episode begins, goes on and looks.

    The random numbers of a reset are a pure function of (seed, stream, number of the episode), so
    streams are independent, and a resume needs no generator.
    """

    observation: gymnasium.Space[object]
    action: gymnasium.Space[object]
    autoreset: ClassVar[Autoreset] = "next_step"
    exact: ClassVar[bool] = True
    draws: ClassVar[int]  # random numbers of a reset
    max_episode_steps: int = 0  # 0: no clock

    @abstractmethod
    def begin(self, u: Tensor) -> Tree:
        """The state at an episode's beginning, from ``u`` [N, draws] float32, uniform in (0, 1)."""

    @abstractmethod
    def advance(self, state: Tree, action: Tree) -> tuple[Tree, Tensor, Tensor]:
        """Step every stream -> the next state, reward [B] float32, terminated [B] bool.

        A stream whose episode has ended is also stepped, and the result is ignored.
        """

    @abstractmethod
    def observe(self, state: Tree) -> Tree:
        """The observations [B, ...] of a state."""

    def reset(self, seed: int, streams: Tensor) -> tuple[Tree, TimeStep]:
        key, no = (
            torch.tensor(key_of(seed), device=streams.device),
            torch.zeros_like(streams, dtype=torch.bool),
        )
        inner = self.begin(uniform(key, streams, torch.zeros_like(streams), self.draws))
        state = {
            "inner": inner,
            "steps": torch.zeros_like(streams, dtype=torch.int32),
            "done": no,
            "episode": torch.zeros_like(streams),
            "stream": streams,
            "key": key,
        }
        reward = torch.zeros(len(streams), device=streams.device)
        rows = TimeStep(
            obs=self.observe(inner),
            reward=reward,
            terminated=no,
            truncated=no,
            first=~no,
            valid=no,
            stream=streams,
        )
        return state, rows

    def step(self, state: Tree, action: Tree) -> tuple[Tree, TimeStep]:
        seam, streams = state["done"], state["stream"]
        inner, reward, terminated = self.advance(state["inner"], action)
        # Checked here, since the code below would broadcast them.
        if (
            terminated.dtype != torch.bool
            or reward.shape != seam.shape
            or terminated.shape != seam.shape
        ):
            got = (
                f"{reward.dtype} {list(reward.shape)} and {terminated.dtype} "
                f"{list(terminated.shape)}"
            )
            raise ValueError(
                f"advance: expected reward float32 [{len(seam)}] and terminated bool "
                f"[{len(seam)}], got "
                f"{got.replace('torch.', '')}"
            )
        episode = state["episode"] + seam
        inner = self._begun(inner, seam, state["key"], streams, episode)
        valid = ~seam
        steps = (state["steps"] + 1) * valid
        terminated = terminated & valid
        truncated = (
            steps >= self.max_episode_steps if self.max_episode_steps else torch.zeros_like(seam)
        )
        after = {
            "inner": inner,
            "steps": steps,
            "done": terminated | truncated,
            "episode": episode,
            "stream": streams,
            "key": state["key"],
        }
        rows = TimeStep(
            obs=self.observe(inner),
            reward=reward * valid,
            terminated=terminated,
            truncated=truncated,
            first=seam,
            valid=valid,
            stream=streams,
        )
        return after, rows

    def _begun(
        self, inner: Tree, seam: Tensor, key: Tensor, streams: Tensor, episode: Tensor
    ) -> Tree:
        """The state with a new episode where ``seam`` is True."""
        # of a fixed shape, as a graph needs it
        if seam.device.type != "cpu" or torch.compiler.is_compiling():
            return where(seam, self.begin(uniform(key, streams, episode, self.draws)), inner)
        at = seam.nonzero().squeeze(1)
        if not len(at):
            return inner
        begun = self.begin(uniform(key, streams[at], episode[at], self.draws))
        return tree.map(lambda x, new: x.index_copy(0, at, new), inner, begun)
