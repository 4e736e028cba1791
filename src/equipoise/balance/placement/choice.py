"""The forecast of a plan, and the best of many plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from equipoise.balance.placement.costs import MOST_DEVICES, PARTS, Costs, Forecast, Kind, Plan
from equipoise.balance.placement.lending import settled
from equipoise.balance.placement.recursion import flow

ALIKE = 0.02  # plans whose seconds differ by a smaller share are alike
SPLITS = 8  # numbers of generating devices that a search tries first


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best plan and the reason, one sentence."""

    best: Forecast
    why: str
    others: tuple[Forecast, ...]  # the best plans of other kinds and lags, the fastest first


def plans(
    devices: int, *, max_lag: int = 1, scoring: Sequence[tuple[int, int]] = ((0, 0),)
) -> tuple[Plan, ...]:
    """Return all plans for a number of devices, with lags of 0, 1 and ``max_lag``.

    ``scoring``: pairs of the devices of a reward model and of a reference.
    """
    if not 1 <= devices <= MOST_DEVICES:
        raise ValueError(f"devices: must be 1 to {MOST_DEVICES:,}, got {devices}")
    found = []
    for score, reference in scoring:
        rest = devices - score - reference
        own = {"score": score, "reference": reference}
        if rest >= 1:
            found.append(Plan(kind="together", generate=rest, learn=rest, **own))
        for lag in sorted({0, min(1, max_lag), max_lag}):
            found += [
                Plan(kind="apart", generate=one, learn=rest - one, max_lag=lag, **own)
                for one in range(1, rest)
            ]
            if lag and rest >= 3:
                found.append(Plan(kind="elastic", generate=1, learn=rest - 1, max_lag=lag, **own))
    if not found:
        raise ValueError(f"devices: must be more than those that score, got {devices}")
    return tuple(found)


def forecast(costs: Costs, plan: Plan) -> Forecast:
    """Forecast a run by this plan."""
    if plan.kind == "elastic":
        return replace(settled(costs, plan), plan=plan)
    return flow(costs, plan)


def best(costs: Costs, among: Iterable[Plan], *, growth: float = 1.0) -> Choice:
    """Return the plan with the shortest updates. If several are alike, it is the simplest one:
    together, then apart, then elastic, and the least lag.

    ``growth``: the factor by which lengths grow during the run. A plan's seconds are then the mean
    over its stages.
    """
    if not 1 / 64 <= growth <= 64:
        raise ValueError(f"growth: must be 1/64 to 64, got {growth}")
    stages = [costs] if growth == 1.0 else [costs.grown(growth**part) for part in (0, 0.5, 1)]
    order = ("together", "apart", "elastic")
    alike_in = defaultdict[tuple[Kind, int, int, int], list[Plan]](list)
    for plan in among:
        alike_in[plan.kind, plan.max_lag, plan.score, plan.reference].append(plan)
    if not alike_in:
        raise ValueError("best: must have at least one plan, got none")
    found = [_least(stages, splits) for splits in alike_in.values()]
    found.sort(key=lambda one: one.seconds)
    alike = [one for one in found if one.seconds <= found[0].seconds * (1 + ALIKE)]
    chosen = min(alike, key=lambda one: (order.index(one.plan.kind), one.plan.max_lag, one.seconds))
    kinds = {(chosen.plan.kind, chosen.plan.max_lag)}
    others = []
    for one in found:
        if (of := (one.plan.kind, one.plan.max_lag)) not in kinds:
            kinds.add(of)
            others.append(one)
    return Choice(best=chosen, why=_why(chosen, others), others=tuple(others))


def _least(stages: Sequence[Costs], splits: Sequence[Plan]) -> Forecast:
    """Return the best of plans that differ only in how many devices generate and how many learn.

    Seconds fall and then rise with the number that generates, so the search halves its steps.
    """
    ordered = sorted(splits, key=lambda one: one.generate)
    found: dict[int, Forecast] = {}

    def at(place: int) -> float:
        if place not in found:
            plan = ordered[place]
            found[place] = _mean(plan, [forecast(one, plan) for one in stages])
        return found[place].seconds

    step = max(len(ordered) // SPLITS, 1)
    best = min(range(0, len(ordered), step), key=at)
    while step > 1:
        step //= 2
        near = [place for place in (best, best - step, best + step) if 0 <= place < len(ordered)]
        best = min(near, key=at)
    return found[best]


def _mean(plan: Plan, stages: Sequence[Forecast]) -> Forecast:
    """Return the mean forecast of the stages of a run, which have equally many updates."""

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(stages)

    return Forecast(
        plan=plan,
        seconds=mean(one.seconds for one in stages),
        generators_idle=mean(one.generators_idle for one in stages),
        learners_idle=mean(one.learners_idle for one in stages),
        lag=mean(one.lag for one in stages),
        spent={part: mean(one.spent[part] for one in stages) for part in PARTS},
        devices=stages[0].devices,
    )


def _why(chosen: Forecast, others: Sequence[Forecast]) -> str:
    reason = (
        f"{chosen.plan.name}: {chosen.seconds:.3g} s an update, most of it for {chosen.bound}"
        if chosen.plan.max_lag == 0
        else f"{chosen.plan.name}: {chosen.seconds:.3g} s an update, the learners idle "
        f"{chosen.learners_idle:.0%} of it"
    )
    # an elastic plan that ends with the chosen split is the same plan
    place = chosen.plan.max_lag, chosen.devices
    others = [one for one in others if (one.plan.max_lag, one.devices) != place]
    if not others:
        return reason
    other = others[0]
    if other.seconds < chosen.seconds:
        return (
            f"{reason}; {other.plan.name} would save {1 - other.seconds / chosen.seconds:.1%}, too "
            "little to pay for"
        )
    return f"{reason}; the next best, {other.plan.name}, takes {other.seconds:.3g} s"
