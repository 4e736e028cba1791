"""Curriculum: the learner issues the prompts of coming groups by how often each one was solved.

The law. A prompt has a pass rate p: an exponential mean over its groups, from 0 (no sample passed)
to 1 (all did). The learner walks through the run's plain order and takes each prompt with the
chance

    weight(p) = floor + (1 - floor) 4 p (1 - p)          1, if the prompt has no pass rate yet

so a prompt is taken at most once in a pass over the data, one that teaches (p near 1/2) in nearly
every pass, and no prompt is forgotten. With ``floor`` 1 this is the plain order.

A prompt is chosen when its block is dealt, after the version that dealt it: blocks of a queue with
a bound are dealt in order, so what is written depends on the seed and the rates of versions alone,
wherever a run is and whichever worker dies. Several learners hold the same rates, and each computes
the choice of all. A choice costs some candidates of a pass, and an update the prompts of its batch,
however many prompts there are.

The prompts that replace groups of equal rewards (``refills``) come from a second walk, of its own.
A dropped group also counts for its prompt's rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise import schema
from equipoise.learners.pool import Learners
from equipoise.seeds import uniforms
from equipoise.types import Array, Trajectory, Tree

UNSEEN = -1.0  # instead of a pass rate
SETTLED = 0.02  # a pass rate this near to 0 or 1 counts as 0 or 1 in the metrics
LOOK = 64  # candidates looked at together, at least
F32 = NDArray[np.float32]


class Order(Protocol):
    """A plain order of prompts, without end."""

    def span(self, first: int, count: int, series: int) -> Array:
        """The prompts [count] int64 at these places of an order, of which there are several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """The facts about a run that its curriculum depends on."""

    prompts: int
    groups: int  # of a learner's batch
    samples: int  # of a group
    learners: int
    dealt: int  # blocks of all learners that are dealt when the run begins, in the plain order
    refills: int  # most groups that are dropped in a place
    floor: float  # the least chance, above 0
    decay: float  # the share of the old pass rate that stays when a group is learned from
    full: float  # the reward of a sample that passes
    seed: int


class Curriculum:
    """The pass rates of a run's prompts, and the prompts that follow from them."""

    def __init__(self, facts: Issuing, order: Order) -> None:
        self._facts, self._order = facts, order
        self.rate: F32 = np.full(facts.prompts, UNSEEN, np.float32)
        self._at = np.array([facts.dealt, 0], np.int64)  # places of the two walks
        # the prompts of the blocks that the last version deals
        self._next = np.full((facts.learners, facts.groups, 1 + facts.refills), -1, np.int64)
        self._walked = self._chosen = 0  # candidates and choices of the last version

    def weight(self, rate: F32) -> F32:
        """The chance that a prompt is taken, by its pass rate [n]."""
        floor = np.float32(self._facts.floor)
        made: F32 = np.where(rate < 0, 1, floor + (1 - floor) * 4 * rate * (1 - rate))
        return made

    def outcomes(self, data: Trajectory, pool: Learners) -> tuple[Array, Array]:
        """The prompts [n] and pass rates [n] of a batch's groups, of all learners, in one order
        everywhere; -1 instead of the rate of a group that says nothing.
        """
        mine = self._mine(data)
        if pool.size > 1:
            whole = torch.zeros(pool.size, *mine.shape, dtype=torch.float64)
            whole[pool.rank] = torch.from_numpy(mine)
            mine = pool.sum(whole).numpy().reshape(-1, 2)
        return mine[:, 0].astype(np.int64), mine[:, 1].astype(np.float32)

    def _mine(self, data: Trajectory) -> NDArray[np.float64]:
        """[n, 2] float64: the prompts and pass rates of this learner's groups."""
        shape = self._facts.groups, self._facts.samples
        reward = data.reward[0].cpu().numpy().reshape(shape).astype(np.float64)
        there = data.mask[0].cpu().numpy().reshape(shape)
        task = data.context["task"].cpu().numpy().reshape(shape)[:, 0]
        found = [np.stack([task, self._passed(np.where(there, reward, np.nan))], 1)]
        if self._facts.refills:
            width = self._facts.refills
            dropped = data.context["dropped"].cpu().numpy().reshape(*shape, width)[:, 0]
            worth = data.context["dropped_reward"].cpu().numpy().reshape(*shape, width)[:, 0]
            passed = self._passed(worth.astype(np.float64).reshape(-1, 1))
            found += [np.stack([dropped.reshape(-1), passed], 1)]
        return np.concatenate(found)

    def _passed(self, reward: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] pass rates of groups from rewards [n, samples]; -1 if no sample has one (nan)."""
        graded = ~np.isnan(reward)
        part = np.where(graded, np.clip(reward / self._facts.full, 0.0, 1.0), 0.0).sum(1)
        count = graded.sum(1)
        return np.where(count > 0, part / np.maximum(count, 1), UNSEEN)

    def metrics(
        self, prompts: Array, passed: Array, pool: Learners
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Sums and counts of this learner's share of ``outcomes``, by the rates before them."""
        mine = slice(*(len(prompts) // pool.size * rank for rank in (pool.rank, pool.rank + 1)))
        there = passed[mine] >= 0
        before = self.rate[prompts[mine][there]]
        seen = before >= 0
        settled = seen & ((before <= SETTLED) | (before >= 1 - SETTLED))
        sums = {
            "curriculum/settled": (settled.sum(), there.sum()),
            "curriculum/unseen": ((~seen).sum(), there.sum()),
            "curriculum/pass_rate": (passed[mine][there].sum(), there.sum()),
            "curriculum/skipped": (self._walked - self._chosen, self._walked),
        }
        return {
            name: (torch.tensor(float(total)), torch.tensor(float(count)))
            for name, (total, count) in sums.items()
        }

    def learn(self, prompts: Array, passed: Array) -> None:
        """Take in the outcomes of a version, and choose the prompts of the blocks that it deals."""
        decay, rate = np.float32(self._facts.decay), self.rate
        for prompt, share in zip(prompts.tolist(), passed, strict=True):
            if share >= 0:
                old = rate[prompt]
                rate[prompt] = share if old < 0 else decay * old + (1 - decay) * share
        self._choose()

    def _choose(self) -> None:
        facts = self._facts
        count, before = facts.learners * facts.groups, self._at.copy()
        first = self._taken(0, count)[:, None]
        others = self._taken(1, count * facts.refills).reshape(count, facts.refills)
        self._walked = int((self._at - before).sum())
        self._chosen = count * (1 + facts.refills)
        # a block has a number among the blocks of all learners, which take turns
        chosen = np.concatenate([first, others], 1).reshape(facts.groups, facts.learners, -1)
        self._next[:] = chosen.transpose(1, 0, 2)

    def _taken(self, walk: int, count: int) -> Array:
        """Take the next ``count`` prompts of a walk."""
        found, left = [np.zeros(0, np.int64)], count
        while left:
            begin, size = int(self._at[walk]), max(LOOK, 2 * left)
            prompts = self._order.span(begin, size, walk)
            places = np.arange(begin, begin + size)
            chance = uniforms(self._facts.seed ^ walk, places)
            taken = np.flatnonzero(chance < self.weight(self.rate[prompts]))[:left]
            left -= len(taken)
            self._at[walk] += size if left else int(taken[-1]) + 1
            found.append(prompts[taken])
        return np.concatenate(found)

    def issued(self, rank: int) -> Array:
        """The prompts [groups, 1 + refills] of the blocks that a learner deals next."""
        issued: Array = self._next[rank]
        return issued

    def state(self) -> Tree:
        """Everything that later choices depend on, the same at all learners."""
        return {"rate": self.rate, "at": self._at, "next": self._next}

    def load(self, state: Tree) -> None:
        """Go on from a state; ValueError if it is of other prompts."""
        wanted: Mapping[str, schema.Schema] = {
            "rate": schema.Array(self.rate.shape, "float32", UNSEEN, 1),
            "at": schema.Array((2,), "int64", 0, schema.MOST),
            "next": schema.Array(
                (None, None, 1 + self._facts.refills), "int64", -1, self._facts.prompts - 1
            ),
        }
        schema.check(state, wanted, "curriculum")
        self.rate[:], self._at[:] = state["rate"], state["at"]
        # of another number of learners: the queues were dealt with these already
        if state["next"].shape == self._next.shape:
            self._next[:] = state["next"]
