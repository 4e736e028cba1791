"""``equipoise probe``: what is predicted beside what short runs make of it."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from equipoise.api import probing
from equipoise.balance.remedies import Remedy
from equipoise.cli import app
from equipoise.errors import WorkerFailed
from equipoise.tuning.race import Race
from tests.cli.samples import short_run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run in lockstep, which a lag would help."""
    return short_run(tmp_path_factory.mktemp("runs") / "run", steps=12_000, max_lag=0)


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Whatever else runs here."""
    monkeypatch.setattr(probing, "busy", lambda: 0.0)


@pytest.mark.thorough
def test_on_a_busy_machine_nothing_is_tried_unless_the_time_is_said(run, monkeypatch):
    monkeypatch.setattr(probing, "busy", lambda: 1e3)
    monkeypatch.setattr(probing, "remedies", lambda known, allowed: [remedy("--max-lag 1", 1.8)])
    code, said = asked(run)
    assert code == 2 and "expected a machine that is idle" in said and "--seconds" in said
    given = []

    def raced(programs, interrupt, *, until, **_):
        given.append(until - time.monotonic())
        return Race(rates={probing.NOW: [100.0], "--max-lag 1": []})

    monkeypatch.setattr(probing, "raced", raced)
    code, said = asked(run, "--seconds", 40)
    assert code == 0 and "no two updates in 40 s; --seconds 160" in said and 79 < given[0] <= 80
    for wrong in (0, -1, "nan", "inf", "many"):
        assert asked(run, "--seconds", wrong)[0] == 2


def remedy(change, gain):
    return Remedy(
        change=change, costs="", steps_per_s=1.0, gain=gain, low=gain - 0.1, high=gain + 0.1
    )


def asked(*words):
    found = CliRunner().invoke(app, ["probe", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


def test_it_tries_the_settings_among_the_remedies(run, monkeypatch):
    """The machine cannot be changed in a short run."""
    monkeypatch.setattr(
        probing,
        "remedies",
        lambda known, allowed: [
            remedy("--max-lag 1", 1.8),
            remedy("--actors 4", 1.5),
            remedy("4 cores", 1.4),
        ],
    )
    tried = []

    def raced(programs, interrupt, *, until, turns, far, tell):
        tried.append(
            {
                label: (one.placement.actors, one.placement.max_lag)
                for label, one in programs.items()
            }
        )
        if "--actors 4" in programs:
            failed = {"--actors 4": WorkerFailed("actor 3", "no memory")}
            return Race(rates={probing.NOW: [100.0, 90.0], "--actors 4": []}, failed=failed)
        return Race(rates={probing.NOW: [100.0, 90.0], "--max-lag 1": [150.0, 160.0]})

    monkeypatch.setattr(probing, "raced", raced)
    found = probing.probe(run)
    assert tried == [
        {probing.NOW: (2, 0), "--max-lag 1": (2, 1)},
        {probing.NOW: (2, 0), "--actors 4": (4, 0)},
    ]
    assert (found[0].least, found[0].most) == (150 / 100, 160 / 90), "of a pair of turns each"
    assert [(one.change, one.predicted, one.gain) for one in found] == [
        ("--max-lag 1", 1.8, 1.6),
        ("--actors 4", 1.5, None),
    ]
    assert "no memory" in found[1].said
    code, said = asked(run, "--top", 1, "--quiet")
    assert code == 0 and "--max-lag 1 1.80 1.70 to 1.90 1.60" in said and "--actors" not in said


def test_what_cannot_be_tried_is_said(run, monkeypatch, tmp_path):
    code, said = asked(run, "--top", 0)
    assert code == 2 and "top: expected at least 1, got 0" in said
    code, said = asked(tmp_path / "none")
    assert code == 2 and "expected a run directory" in said
    monkeypatch.setattr(probing, "remedies", lambda known, allowed: [remedy("4 cores", 1.4)])
    code, said = asked(run)
    assert code == 0 and "nothing was tried" in said
    monkeypatch.setattr(probing, "remedies", lambda known, allowed: [remedy("--max-lag 1", 1.8)])
    monkeypatch.setattr(
        probing, "raced", lambda *_, **__: Race(rates={probing.NOW: [0.0], "--max-lag 1": []})
    )
    code, said = asked(run)
    assert code == 2 and "expected a run that learns within" in said


@pytest.mark.slow
def test_a_lag_is_tried_in_short_runs(run):
    found = probing.probe(run, top=1, seconds=30)
    assert len(found) == 1 and found[0].gain is not None and 0.3 < found[0].gain < 5
