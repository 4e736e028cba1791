"""Forgetting: is an evaluation far below the best one so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from equipoise.record.report import Evaluation
from equipoise.schema import Each, Maybe, Number, Schema

# share of what was learned, from the first evaluation to the best one, that a far fall has lost
FAR = 0.2
DEVIATIONS = 2.0  # of the difference of two means, below which a fall may be chance


class Evaluations:
    """The first, the best and the last evaluation of a run, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.told: Evaluation | None = None  # the best evaluation, if a fall from it was reported
        self.first: Evaluation | None = None
        self.best: Evaluation | None = None
        self.last: Evaluation | None = None

    def enter(self, evaluation: Evaluation) -> str | None:
        """Note one more evaluation -> a warning if it is far below the best one, once for each best
        one.
        """
        self.count += 1
        self.first, self.last = self.first or evaluation, evaluation
        if self.best is None or evaluation.mean > self.best.mean:
            self.best = evaluation
        if not self.fallen or self.told == self.best:
            return None
        self.told = self.best
        return (
            f"warning: the evaluation fell to {evaluation.mean:.1f} at step {evaluation.step:,}, "
            f"far below the best one, {self.best.mean:.1f} at step {self.best.step:,}, whose "
            "weights are kept (equipoise evaluate DIR --best)"
        )

    def remember(self, best: Evaluation) -> None:
        """Note an evaluation that came after the state that was loaded: the last one of a run that
        goes on after its end.
        """
        if self.best is None or best.mean > self.best.mean:
            self.first, self.best = self.first or best, best

    @property
    def fallen(self) -> bool:
        """The last evaluation is far below the best one, by more than chance.

        The best of many evaluations was lucky, and the luckier the more there were: the difference
        of the best and the worst of n equal ones is about 2 sqrt(ln n) deviations of a difference.
        """
        if self.first is None or self.best is None or self.last is None:
            return False
        fall, learned = self.best.mean - self.last.mean, self.best.mean - self.first.mean
        chance = math.sqrt(sum(one.std**2 / max(one.episodes, 1) for one in (self.best, self.last)))
        deviations = max(DEVIATIONS, 2 * math.sqrt(math.log(max(self.count, 1))))
        return fall > max(FAR * learned, deviations * chance)

    def summary(self) -> dict[str, object] | None:
        """The best evaluation, and whether the last one is far below it; None if there was none."""
        if (best := self.best) is None:
            return None
        return {
            "mean": best.mean,
            "std": best.std,
            "episodes": best.episodes,
            "env_steps": best.env_steps,
            "fallen": self.fallen,
        }

    def state(self) -> dict[str, object]:
        return {
            "first": self.first,
            "best": self.best,
            "last": self.last,
            "told": self.told,
            "count": self.count,
        }

    @staticmethod
    def schema(version: int) -> Schema:
        """The schema of ``load``'s argument, from a checkpoint of this version."""
        count, mean = Number(0, 1 << 53, whole=True), Maybe(Number())
        one: Schema = {
            "mean": mean,
            "std": mean,
            "episodes": count,
            "env_steps": count,
            "version": Number(0, version, whole=True),
            "policies": Each(mean),
            "info": Each(mean),
        }
        return {"count": count} | {name: Maybe(one) for name in ("first", "best", "last", "told")}

    def load(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        for name in ("first", "best", "last", "told"):
            setattr(self, name, None if state[name] is None else Evaluation(**state[name]))
