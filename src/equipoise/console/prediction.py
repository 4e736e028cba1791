"""A prediction as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from equipoise.balance.forecast import Forecast
from equipoise.balance.model import Outcome, Spent
from equipoise.balance.remedies import Prediction, Probed
from equipoise.console.columns import columns

STATES = ("worked", "preempted", "starved", "blocked")


def lines(found: Prediction) -> Iterator[str]:
    """The prediction next to the measurement; without changes, the suggestions."""
    model = found.now.steps_per_s
    yield f"measured: {found.measured:,.0f} steps/s (the model comes to {model:,.0f})"
    if found.change is None or found.asked is None:
        yield from _table(found.now)
        if not found.remedies:
            yield "No change of one setting would make it faster."
            return
        rows = [
            [one.change, one.costs, f"{one.gain:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
            for one in found.remedies
        ]
        yield from columns(
            ["what would help", "it costs", "times", "between"], rows, left=2, width=None
        )
        return
    for key, (was, now) in found.changes.items():
        yield f"changed: {key} {was!r} -> {now!r}"
    one = found.change
    low, high = (one.steps_per_s / one.gain * x for x in (one.low, one.high))
    yield (
        f"predicted: {one.steps_per_s:,.0f} steps/s, {low:,.0f} to {high:,.0f}: {one.gain:.2f} "
        "times"
    )
    yield from _table(found.asked)


def forecasts(found: Sequence[Forecast]) -> Iterator[str]:
    """A line for each."""
    head = [
        "actors",
        "steps/s",
        "lag",
        "learner",
        "actors work",
        "home's link",
        "$ a million",
        "bound by",
    ]
    rows = [
        [
            f"{one.actors:,}",
            f"{one.steps_per_s:,.0f}",
            f"{one.lag:.1f}",
            f"{one.learner:.0%}",
            f"{one.acting:.0%}",
            f"{one.home_mbit:,.0f} Mbit/s",
            "-" if one.dollars_per_million is None else f"{one.dollars_per_million:.3g}",
            one.bound,
        ]
        for one in found
    ]
    yield from columns(head, rows, left=0, width=None)


def probes(found: Sequence[Probed]) -> Iterator[str]:
    """A line for each that was tried."""
    if not found:
        yield "No change of one setting is predicted to make it faster, so nothing was tried."
        return
    head = ["what was tried", "predicted", "between", "measured", "between"]
    rows = [
        [
            one.change,
            f"{one.predicted:.2f}",
            f"{one.low:.2f} to {one.high:.2f}",
            one.said if one.gain is None else f"{one.gain:.2f}",
            "" if one.least is None or one.most is None else f"{one.least:.2f} to {one.most:.2f}",
        ]
        for one in found
    ]
    yield from columns(head, rows, left=1, width=None)


def _table(outcome: Outcome) -> Iterator[str]:
    rows = [
        [name, *(f"{getattr(spent, state):.0%}" for state in STATES)]
        for name, spent in _folded(outcome.workers).items()
    ]
    yield f"lag: {outcome.lag:.2f} versions, mean over rows"
    yield from columns(
        ["worker", "works", "waits for a core", "starved", "blocked"], rows, left=1, width=None
    )


def _folded(workers: Mapping[str, Spent]) -> dict[str, Spent]:
    """Actors that are alike are one line."""
    actors = [name for name, one in workers.items() if one.steps]
    if len(actors) < 5:
        return dict(workers)
    mean = Spent(
        **{
            state: sum(getattr(workers[name], state) for name in actors) / len(actors)
            for state in STATES
        }
    )
    return {f"{len(actors)} actors": mean} | {
        name: one for name, one in workers.items() if name not in actors
    }
