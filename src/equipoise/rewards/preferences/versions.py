"""The versions of a policy that the guard compares: the best so far, and the candidate.

The answers of a round are about segments that the version at the end of the round before began.
The candidate stays until no answer about it is missing, so late answers choose no version that
they are not about.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields
from typing import get_args

import numpy as np

from equipoise import schema, tree
from equipoise.rewards.preferences.candidates import Rows
from equipoise.rewards.preferences.guard import Kind, Signs, State, Verdict
from equipoise.rewards.term import LearnerStates
from equipoise.types import Tree

BEST, CANDIDATE = "best", "candidate"  # names of the learner's kept states
MOST_CAUTION = 8.0  # deviations that pull backs add
SIGNS = len(fields(Signs))


@dataclass(slots=True)
class Versions:
    """The best version and the candidate by their rounds, and what the verdicts so far led to."""

    best: int = 0  # the round of the segments that the best version began
    candidate: int = 0  # the same of the candidate
    best_rows: Rows | None = None  # segments of the best version
    pull_backs: int = 0  # so far
    pulled_at: int = 0  # rows that the run had collected at the last pull back
    caution: float = 0.0  # deviations by which rewards are lowered, beyond the setting
    verdict: Kind = "ok"
    guard: State = field(default_factory=State)

    def take(self, verdict: Verdict, collected: int) -> None:
        """Take the verdict of a round; ``collected``: rows of the run so far."""
        self.verdict = verdict.kind
        if verdict.kind == "pull back":
            self.pull_backs, self.pulled_at = self.pull_backs + 1, collected
            self.caution = min(2 * self.caution + 0.5, MOST_CAUTION)

    def begin(self, states: LearnerStates, rows: Rows, round_: int) -> None:
        """Take the present version as the best one after the first fit; ``round_``: the next
        round.
        """
        states.keep(BEST)
        self._keep_segments(rows, round_ - 1)
        self._next_candidate(states, round_)

    def follow(
        self,
        verdict: Verdict | None,
        states: LearnerStates,
        rows: Rows,
        round_: int,
        *,
        waits: bool,
    ) -> None:
        """Keep the candidate if it is the best one, or go back to the best one.

        ``verdict``: None if there was none. ``rows``: the candidates. ``round_``: the next round.
        ``waits``: answers about the candidate are missing.
        """
        back = verdict is not None and verdict.kind in ("pull back", "stop")
        better = verdict is not None and verdict.best
        if better:
            states.rename(CANDIDATE, BEST)
            self._keep_segments(rows, self.candidate)
        elif back:
            states.go_back(BEST)
        if better or back or not waits:
            self._next_candidate(states, round_)

    def _next_candidate(self, states: LearnerStates, round_: int) -> None:
        states.keep(CANDIDATE)
        self.candidate = round_

    def _keep_segments(self, rows: Rows, round_: int) -> None:
        """Keep the segments of a round, which the newest ones are compared with."""
        if (mine := rows.round == round_).any():
            self.best, self.best_rows = round_, Rows(**tree.index(rows.fields(), mine))

    def with_best(self, rows: Rows) -> Rows:
        """Return the segments of the best version and all other candidates, the oldest first."""
        if self.best_rows is None:
            return rows
        others = tree.index(rows.fields(), rows.round != self.best)

        def joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            return np.concatenate([one, other])

        return Rows(**tree.map(joined, self.best_rows.fields(), others))

    def state(self) -> Tree:
        recent = [astuple(one) for one in self.guard.recent]
        return {
            "best": self.best,
            "candidate": self.candidate,
            "best_rows": {} if self.best_rows is None else self.best_rows.fields(),
            "pull_backs": self.pull_backs,
            "pulled_at": self.pulled_at,
            "caution": self.caution,
            "verdict": self.verdict,
            "guard": {
                "look": self.guard.look,
                "recent": np.array(recent, np.float64).reshape(-1, SIGNS),
                "unanswered": self.guard.unanswered,
                "pulled": np.array(self.guard.pulled, np.int64),
                "stopped": self.guard.stopped,
            },
        }

    @staticmethod
    def schema(rows: schema.Schema) -> schema.Schema:
        """Return the schema of a saved state; ``rows``: that of any number of segments."""
        counts = ("best", "candidate", "pull_backs", "pulled_at")
        return {
            **dict.fromkeys(counts, schema.count()),
            "best_rows": schema.Either(({}, rows)),
            "caution": schema.Number(0, MOST_CAUTION),
            "verdict": schema.Text(among=get_args(Kind)),
            "guard": {
                "look": schema.count(),
                "recent": schema.Array((None, SIGNS), "float64"),
                "unanswered": schema.count(),
                "pulled": schema.Array((None,), "int64"),
                "stopped": schema.Flag(),
            },
        }

    @classmethod
    def loaded(cls, state: Tree) -> Versions:
        """Return the versions of a saved state, which fits the schema."""
        rows, guard = state["best_rows"], state["guard"]
        state = state | {
            "best_rows": Rows(**tree.map(np.copy, rows)) if rows else None,
            "guard": State(
                **guard
                | {
                    "recent": tuple(_signs(one) for one in guard["recent"].tolist()),
                    "pulled": tuple(guard["pulled"].tolist()),
                }
            ),
        }
        return cls(**state)


def _signs(values: list[float]) -> Signs:
    """Return signs from their numbers in the order of the fields."""
    answers, accuracy, expected, compared, win_answers, win_model, newest, labelled, kl = values
    return Signs(
        answers=int(answers),
        accuracy=accuracy,
        expected=expected,
        compared=int(compared),
        win_answers=win_answers,
        win_model=win_model,
        deviation=newest,
        deviation_labelled=labelled,
        kl=kl,
    )
