"""Traces for the guard: a policy of two numbers that climbs a reward model, look by look.

The first number is skill: the true return rises with it from 0 to 1. The second one is a shortcut:
the true return falls with it, and a hacked model pays for it. A look is a step of the policy uphill
on the model, and a few answers of a Bradley-Terry teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from equipoise.rewards.preferences.guard import Limits, Signs, State, Verdict, assess

RATIONALITY = 5.0  # a gap of 0.2 of the best return is seen in 73 of 100 answers


@dataclass(frozen=True)
class Case:
    bonus: float = 0.0  # what the model pays for a unit of the shortcut
    doubt: float = 0.0  # deviation of the members, a unit of the shortcut
    speed: float = 0.04  # of the policy, a look
    errors: float = 0.0  # share of wrong answers, which the model expects
    wobble: float = 0.0  # of the policy, at random
    # answers a look about the newest version beside the best one, and as many about others; a look
    # after "ask" has three times as many
    asked: int = 12
    forgets: int = 0  # look at which skill begins to be lost, as the model sees


@dataclass
class Trace:
    true: list[float] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def lost(self, *kinds: str) -> float:
        """The share of the best true return that is lost at the first verdict of these kinds; 1
        without any.
        """
        for look, verdict in enumerate(self.verdicts):
            if verdict.kind in kinds:
                best = max(self.true[: look + 1])
                return (best - self.true[look]) / best
        return 1.0


def true_return(policy: np.ndarray) -> float:
    skill, shortcut = policy
    return float(1 - (1 - skill) ** 2 - max(shortcut, 0.0))


def play(case: Case, *, looks: int, seed: int, obey: bool, limits: Limits | None = None) -> Trace:
    """``obey``: pull backs are carried out, and a stop ends the trace."""
    limits = limits or Limits()
    rng = np.random.default_rng(seed)
    policy, best, state, trace = np.array([0.1, 0.0]), np.array([0.1, 0.0]), State(), Trace()

    def model(one: np.ndarray) -> float:
        return true_return(one) + (case.bonus + 1) * max(one[1], 0.0) * (case.bonus > 0)

    def chance(gap: float) -> float:
        return case.errors + (1 - 2 * case.errors) / (1 + np.exp(-RATIONALITY * gap))

    for look in range(looks):
        skill = np.sign(1 - policy[0]) * min(case.speed, abs(1 - policy[0]))
        if case.forgets and look >= case.forgets:
            skill = -case.speed
        cut = case.speed * (case.bonus > 0 and policy[0] > 0.5)
        policy = policy + np.array([skill, cut])
        policy = policy + case.wobble * rng.normal(size=2)
        trace.true.append(true_return(policy))
        asked = case.asked * (3 if trace.verdicts and trace.verdicts[-1].kind == "ask" else 1)
        gaps = np.zeros(2 * asked)  # beside the best version, and beside some other one
        predicted = gaps.copy()
        other = policy + rng.normal(size=2) * 0.1
        for part, against in ((slice(0, asked), best), (slice(asked, None), other)):
            noise = rng.normal(size=asked) * 0.1  # segments of one policy differ
            gaps[part] = true_return(policy) - true_return(against) + noise
            predicted[part] = model(policy) - model(against) + noise
        wins = rng.random(len(gaps)) < [chance(gap) for gap in gaps]
        said = np.array([chance(gap) for gap in predicted])
        compared = slice(0, asked)
        signs = Signs(
            answers=len(wins),
            accuracy=float(((said > 0.5) == wins).mean()),
            expected=float(np.maximum(said, 1 - said).mean()),
            compared=asked,
            win_answers=float(wins[compared].mean()),
            win_model=float(said[compared].mean()),
            deviation=1.0 + case.doubt * max(policy[1], 0.0),
        )
        state, verdict = assess(state, signs, limits)
        if verdict.best:
            best = policy
        trace.verdicts.append(verdict)
        if obey and verdict.kind == "stop":
            break
        if obey and verdict.kind == "pull back":
            policy = best
    return trace
