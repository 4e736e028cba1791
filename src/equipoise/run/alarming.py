"""The limits and the moments of a run, as its alarms (``balance/alarms.py``) take them."""

from __future__ import annotations

import math

from equipoise.balance.alarms import FirstEpisodes, Limits, Moment, PolicyLimits, Probe
from equipoise.plans.blueprint import Blueprint
from equipoise.record.report import Evaluation, Report
from equipoise.runtime.stats import RunStats
from equipoise.runtime.usage import DRIVER
from equipoise.sources.source import source_of
from equipoise.workers.kind import KeepingKind, LearningKind, SamplingKind, crew
from equipoise.workers.kinds import KINDS

# bytes: of the actions that an env keeps for its restart, and of other data when memory fills
ACTIONS, ROOM = 64e6, 256e6


def limits(blue: Blueprint) -> Limits:
    """The numbers of a run that its moments are compared with."""
    return Limits(
        steps=blue.program.schedule.steps,
        unroll=blue.unroll,
        policies={
            name: PolicyLimits(
                algorithm=type(policy.algorithm).__name__,
                max_sensible_lag=policy.algorithm.max_sensible_lag,
                least_entropy=source_of(blue.program).least_entropy(blue.roles[name].spec),
                scale=policy.rewards.scale,
            )
            for name, policy in blue.policies.items()
        },
        filling=_filling(blue),
        **_ratio(blue),
    )


def _ratio(blue: Blueprint) -> dict[str, float]:
    """How often a row of a replay is learned from and how many updates an env step has; {} without
    a replay.
    """
    replays = {name: policy for name, policy in blue.policies.items() if policy.replay is not None}
    if not replays or blue.pace.offline:
        return {}
    batch = max(policy.batch / len(blue.roles[name].places) for name, policy in replays.items())
    updates = blue.pace.updates / blue.pace.rows
    return {"samples": updates * batch, "updates": updates}


def _filling(blue: Blueprint) -> dict[str, float]:
    """Bytes that the memory of a worker may grow by as the run goes on, by the worker's title."""
    rows: float = sum(plan.nbytes(plan.slots) for plan in blue.replays.values())
    if blue.dataset is not None:  # read as it is needed
        rows = math.inf
    found = {}
    for member in crew(blue, KINDS):
        if isinstance(member.kind, LearningKind | KeepingKind) and rows:
            found[member.title] = ROOM + rows
        elif isinstance(member.kind, SamplingKind) and blue.spec.env.resume == "restart":
            found[member.title] = ROOM + ACTIONS * max(len(member.groups(blue)), 1)
    return found


def probe(evaluation: Evaluation) -> Probe | None:
    """Return an evaluation by the true and the learned reward; None if there is one reward."""
    gold, proxy = evaluation.info.get("gold"), evaluation.info.get("proxy")
    if gold is None or proxy is None:
        return None
    error = evaluation.std / math.sqrt(max(evaluation.episodes, 1))
    return Probe(step=evaluation.step, gold=gold, error=error, proxy=proxy)


def moment(report: Report, stats: RunStats) -> Moment:
    """A moment of a run."""
    return Moment(
        wall_s=report.wall_s,
        step=report.step,
        published=stats.version,
        episodes=report.episodes,
        return_mean=report.return_mean,
        lag_mean=report.lag_mean,
        metrics=report.metrics,
        first=None
        if stats.first is None
        else FirstEpisodes(episodes=stats.first[0], mean=stats.first[1], std=stats.first[2]),
        acting=stats.acting,
        balance=report.balance,
        memory={
            name: one.own
            for name, one in stats.usage.items()
            if one.own and _under_way(name, stats)
        },
    )


def _under_way(name: str, stats: RunStats) -> bool:
    """Has a worker begun its repeating work? While it starts, compiles or makes its envs it fills
    its memory.
    """
    if name == DRIVER or name in stats.phases:
        return False
    shares = stats.workers.get(name)
    return shares is None or shares.begun
