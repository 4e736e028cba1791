"""Walks that must give the rows of the first one again: a fresh env, two side by side, one seeded
again, other actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from equipoise import foreign, tree
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.endings import Endings
from equipoise.envs.check.findings import Findings, Severity, bounds
from equipoise.envs.check.probe import Probe, Rows, difference
from equipoise.types import Tree

IRREPRODUCIBLE = (
    "Two runs of the same seed differ, also at --max-lag 0; a resume cannot go on bit by bit, "
    "and a failure cannot be played again."
)


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The comparing walks of a check, of ``steps`` each."""

    found: Findings
    fresh: Callable[[], SyncEnv]
    probe: Callable[..., Probe]
    steps: int

    def same_again(self, rows: Rows, actions: Tree) -> bool:
        """Compare with a fresh env, given the same seed and actions."""
        probe = self.probe(self.fresh(), watch=True)
        parted = difference(rows, probe.rows(actions))
        # its spec may have it
        itself = foreign.optional(foreign.optional(probe.env, "spec"), "nondeterministic")
        severity: Severity = "note" if itself else "error"
        if probe.touched:
            seen = (
                "expected numbers from self.np_random only, got another state of np.random or "
                "random after the call"
            )
            cost = (
                f"The envs of a worker share that generator, and nothing seeds it. {IRREPRODUCIBLE}"
            )
            self.found.add(severity, "a global random generator is used", probe.touched, seen, cost)
        elif parted is not None:
            call = parted.where.partition(" ")[0]
            known = {
                "reset(seed)": "reset ignores the seed",
                "reset()": "reset() without a seed takes a new generator",
            }
            what = known.get(call, "the same seed and actions give other rows")
            self.found.add(severity, what, parted.where, parted.what, IRREPRODUCIBLE)
        return parted is None

    def side_by_side(self, rows: Rows, actions: Tree) -> Rows:
        """Step two envs in turn with the same actions; return the second's rows."""
        made = self.fresh()
        one, other = self.probe(made), self.probe(made, index=1)
        ours: Rows = []
        theirs: Rows = []
        walk = other.walk(actions)
        for answer in one.walk(actions):
            observed = one.observed(answer)
            ours.append((answer.where, one.row(answer, observed)))
            if (next_to_it := next(walk, None)) is None:  # it had fewer resets
                break
            theirs.append((next_to_it.where, other.row(next_to_it, other.observed(next_to_it))))
            if shared := difference(ours[-1:], [(answer.where, one.row(answer, observed))]):
                cost = (
                    "Every stream of a worker gets the last stream's observation: training "
                    "learns from wrong rows."
                )
                self.found.error(
                    "two envs share the memory of their observations",
                    answer.where,
                    shared.what,
                    cost,
                )
                return theirs
        if parted := difference(rows, ours):
            cost = (
                "The streams of a worker are not independent, and their rows depend on how many "
                "there are."
            )
            self.found.error(
                "another env changes what this one does", parted.where, parted.what, cost
            )
        return theirs

    def begins_anew(self, probe: Probe, rows: Rows, actions: Tree, *, ignores: bool) -> None:
        """Compare with the first env, used by now and seeded again."""
        if (parted := difference(rows, probe.rows(actions))) is None:
            return
        if ignores:
            cost = (
                "Every stream of the run plays the same episodes: more envs bring no more "
                "experience."
            )
            self.found.error("reset ignores the seed", parted.where, parted.what, cost)
        else:
            cost = (
                "An episode depends on those before it, so it can be neither evaluated nor "
                "played again by itself."
            )
            self.found.error("reset(seed) does not begin again", parted.where, parted.what, cost)

    def seams_ignore_actions(
        self, rows: Rows, actions: Tree, endings: Endings, space: spaces.Space[object]
    ) -> None:
        """Check that NEXT_STEP ignores the action after an end: other actions give the same
        rows.
        """
        others = tree.map(np.array, actions)
        for step, stream in endings.seams:
            if step < self.steps:
                put_other(space, others, (step, stream))
        probe = self.probe(self.fresh())
        if parted := difference(rows, probe.rows(others)):
            cost = (
                "Its metadata declares NEXT_STEP, but it behaves otherwise: the first step of "
                "every "
                "episode is thrown away."
            )
            self.found.error(
                "the action after an end is not ignored", parted.where, parted.what, cost
            )


def put_other(space: spaces.Space[object], actions: Tree, at: tuple[int, int]) -> None:
    """Replace the action ``at`` (step, stream) by another one."""
    if (inner := tree.branches(space)) is not None:
        for key, one in inner.items():
            put_other(one, actions[key], at)
    elif isinstance(space, spaces.Box):
        finite, action = np.isfinite(space.low) & np.isfinite(space.high), actions[at]
        mirrored = np.clip(-action, space.low, space.high)
        mirrored = np.where(
            mirrored == action, np.clip(action + 1, space.low, space.high), mirrored
        )
        # the widest bounds have no float between them
        other = 2 * (space.low / 2 + space.high / 2 - action / 2)
        actions[at] = np.where(finite, np.clip(other, space.low, space.high), mirrored)
    else:
        least, most = bounds(space)
        actions[at] = np.where(actions[at] == most, least, actions[at] + 1)
