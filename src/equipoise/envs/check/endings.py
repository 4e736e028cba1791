"""How episodes end: the truth table of terminated and truncated, time limits, and the rows after an
end in a vector env.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from equipoise import foreign, tree
from equipoise.envs import final
from equipoise.envs.check.findings import CLOCK, Findings, judge_observation
from equipoise.envs.check.places import core
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.spaces import observation_spec
from equipoise.types import Array, Tree

CLOCKS = (
    "_max_episode_steps",
    "max_episode_steps",
    "max_steps",
    "time_limit",
    "horizon",
    "max_cycles",
)  # attributes that limit an episode
ALIKE = 3  # episodes of one length, from which on a clock may be what ends them


class Endings:
    """The episode ends of one walk of B streams, judged row by row and summed up."""

    def __init__(
        self,
        found: Findings,
        env: object,
        space: spaces.Space[object],
        *,
        streams: int,
        vector: bool,
        same_step: bool,
        joint: bool,
    ) -> None:
        self.found, self.vector, self.same_step, self.joint = found, vector, same_step, joint
        self.wrapped = vector and foreign.optional(env, "unwrapped", env) is not env
        self.lasts = tree.zeros(tree.prepend(observation_spec(space), streams)) if same_step else {}
        self.spaces = tree.named("info/final_obs", tree.parts(space))
        self.named = clocks(env)
        self.declared: int | None = self.named.get(
            "max_episode_steps",
            foreign.optional(foreign.optional(env, "spec"), "max_episode_steps"),
        )
        self.length = np.zeros(streams, np.int64)
        self.over = np.zeros(streams, np.bool_)
        self.kinds: Counter[str] = Counter()
        self.lengths: list[int] = []
        self.clocked: Counter[str] = Counter()  # clock -> ends by terminated alone on its very step
        # (step, stream) of actions that NEXT_STEP must ignore
        self.seams: list[tuple[int, int]] = []
        self.glued = False  # NEXT_STEP is not what the env does
        # SAME_STEP: does a truncation come with the last observation; None: there was none
        self.finals: bool | None = None
        self.steps = 0

    def reset(self) -> None:
        self.length[:] = 0

    def step(
        self, where: str, terminated: Array, truncated: Array, reward: Array, info: Tree
    ) -> None:
        """Take in one row; every argument is [B]."""
        seam = self.over if self.vector and not self.same_step else np.zeros_like(self.over)
        self.seams += [(self.steps, int(b)) for b in np.flatnonzero(seam)]
        self.steps += 1
        self.length = np.where(seam, 0, self.length + 1)
        self.over = terminated | truncated
        self._judge_seam(where, seam, reward)
        if self.declared is not None and (self.length > self.declared).any():
            seen = (
                f"expected truncated at step {self.declared} of an episode, got an episode of "
                f"{self.length.max()} and more"
            )
            cost = "Episodes are longer than those that others report for this id."
            self.found.error("the declared time limit is not kept", where, seen, cost)
        for b in np.flatnonzero(self.over):
            kind = (
                "both"
                if terminated[b] and truncated[b]
                else "terminated"
                if terminated[b]
                else "truncated"
            )
            self.kinds[kind] += 1
            self.lengths.append(int(self.length[b]))
            # a joint env has ends of its agents
            if kind == "terminated" and not self.joint:
                self.clocked.update(
                    name for name, limit in self.named.items() if limit == self.length[b]
                )
        if self.same_step and self.over.any():
            self.length[self.over] = 0
            if (cut := truncated & ~terminated).any():
                self._read_finals(where, info, cut)
            if isinstance(info, Mapping) and final.named(info) is None:
                seen = f"expected info['final_obs'] of a SAME_STEP env, got {sorted(info, key=str)}"
                cost = (
                    "If the env resets with the next step in truth, episodes are glued "
                    "together; else nothing more is lost."
                )
                self.found.note("the last observation of an episode is nowhere", where, seen, cost)

    def _read_finals(self, where: str, info: object, cut: Array) -> None:
        """Read the last observations of the streams ``cut`` [B] bool, and judge them."""
        try:
            there = final.read(self.lasts, info, cut)
        except WrongValue as wrong:
            cost = "Training ends at the first truncation."
            self.found.error(
                f"{wrong.key} is wrong", where, f"expected {wrong.expected}, got {wrong.got}", cost
            )
            return
        self.finals = bool((there == cut).all()) and self.finals is not False
        for (place, space), rows in zip(self.spaces.items(), tree.leaves(self.lasts), strict=True):
            for row in rows[there]:
                judge_observation(self.found, space, place, np.asarray(row), (), where)

    def _judge_seam(self, where: str, seam: Array, reward: Array) -> None:
        """The row after an end is the reset's: it may earn no reward and end nothing."""
        cost = (
            "The autoreset mode in its metadata is not what it does: the first step of every "
            "episode is thrown away."
        )
        wrong = seam & self.over
        # a wrapper may change the reward of a seam
        unearned = seam & (reward != 0) & (not self.wrapped)
        self.glued = self.glued or bool((wrong | unearned).any())
        if wrong.any():
            seen = (
                "expected the row of a reset, got terminated or truncated (env "
                f"{int(np.flatnonzero(wrong)[0])})"
            )
            self.found.error("an episode ends in the row after an end", where, seen, cost)
        if unearned.any():
            b = int(np.flatnonzero(unearned)[0])
            seen = f"expected reward 0 in the row of a reset, got {reward[b]} (env {b})"
            self.found.error("a reward comes with the row after an end", where, seen, cost)

    def judge(self, *, limited: bool) -> None:
        """Judge the whole walk; ``limited``: is it known that episodes end some day?"""
        for name, times in self.clocked.items():
            if times >= 2 and times == self.kinds["terminated"]:
                seen = f"expected truncated if {name} is a clock, got terminated all {times} times"
                self.found.note(
                    "a time limit may be reported as terminated",
                    f"step {self.named[name]} of an episode",
                    seen,
                    CLOCK,
                )
        if not limited and not self.kinds and self.declared is None and not self.named:
            seen = f"expected an end or a time limit, got none in {self.steps:,} steps"
            cost = (
                "An evaluation waits for ends that may never come, and training returns are of "
                "whole episodes: give it one, "
                "--set env.max_episode_steps=N for an id, gymnasium.wrappers.TimeLimit in a "
                "function of yours."
            )
            self.found.note("no episode ends", "the whole walk", seen, cost)

    def said(self) -> str:
        count = sum(self.kinds.values())
        limit = f"; time limit {self.declared:,} steps" if self.declared is not None else ""
        if not count:
            return f"none ended in {self.steps:,} steps{limit}"
        kinds = ", ".join(
            f"{self.kinds[kind]:,} {kind}" for kind in ("terminated", "truncated", "both")
        )
        how = "" if self.joint else f" ({kinds})"
        alike = (
            not self.joint
            and count == self.kinds["terminated"] >= ALIKE
            and len(set(self.lengths)) == 1 < self.lengths[0]
        )
        clock = (
            f", each of them after {self.lengths[0]:,}: if a clock ends them, truncated is to be "
            "True"
            if alike
            else ""
        )
        return (
            f"{count:,} ended{how} after {np.mean(self.lengths):,.1f} steps on "
            f"average{clock}{limit}"
        )


def clocks(env: object) -> dict[str, int]:
    """Find the limits that the env itself keeps, by attribute name."""
    found = {name: foreign.optional(core(env), name) for name in CLOCKS}
    return {
        name: int(limit)
        for name, limit in found.items()
        if isinstance(limit, int | np.integer) and limit > 1
    }
