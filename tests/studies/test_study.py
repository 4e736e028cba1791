"""The loop of a study, with trials that train nothing."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import (
    Clone,
    Decision,
    End,
    Entry,
    GoOn,
    History,
    Result,
    Start,
    Stop,
)
from equipoise.studies.journal import JOURNAL, Journal, decided, read_journal, replayed
from equipoise.studies.recorded import state_text
from equipoise.studies.settings import (
    STUDY,
    StudySettings,
    check_trust,
    read_study,
    write_cluster,
    write_study,
)
from equipoise.studies.space import Space, read_space
from equipoise.studies.stopping import PROCESS, STOP, stop_study
from equipoise.studies.strategies.cells import Cells
from equipoise.studies.strategy import Plan
from equipoise.studies.study import Study
from equipoise.trust import Untrusted

SPACE = read_space(["optimizer.learning_rate=log:1e-4..1e-2"])


@dataclass(frozen=True, kw_only=True)
class Halving:
    """The best half of each rung goes on, and the worst trial becomes a clone of the best."""

    needs_results: ClassVar[bool] = True
    changes_settings: ClassVar[bool] = True
    plan: Plan

    def ask(self, history: History) -> list[Decision]:
        plan, found = self.plan, list[Decision]()
        paused = sorted(history.of("paused"), key=lambda one: (-(one.score or 0.0), one.name))
        whole = len(history.trials) >= plan.trials
        if (
            whole
            and len(paused) > 1
            and history.free
            and paused[-1].points
            and not history.of("stopped")
        ):
            worst, best = paused[-1], min(paused, key=lambda one: (one.steps, one.name))
            name, to = f"{best.name}_clone", plan.steps
            found.append(Stop(trial=worst.name, reason="the worst"))
            found.append(
                Clone(trial=name, source=best.name, settings=best.settings, to=to, reason="")
            )
            return found
        free = history.free
        for trial in paused[: max(len(paused) // 2, 1)]:
            if free and trial.steps < plan.steps and len(history.trials) >= plan.trials:
                found.append(GoOn(trial=trial.name, to=trial.steps + 100, reason="better half"))
                free -= 1
        for number in range(len(history.trials), min(len(history.trials) + free, plan.trials)):
            settings = plan.space.sample(plan.rng("trial", number))
            found.append(Start(trial=f"trial_{number}", settings=settings, to=100, reason="new"))
        return found


@dataclass
class Simulated:
    """Trials whose score is a function of their settings and steps, in an order that is drawn."""

    seed: int = 0
    most_events: int = 10**9  # then it raises, as a kill would
    fail: Sequence[str] = ()
    begun: list[Job] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.jobs: dict[str, tuple[Job, int]] = {}

    def begin(self, job: Job) -> None:
        self.begun.append(job)
        self.jobs[job.trial] = (job, 0)

    def stop(self, trial: str) -> None:
        self.jobs.pop(trial, None)

    def close(self) -> None:
        self.closed = True

    def poll(self, timeout_s: float) -> list[Progress | Result]:
        self.most_events -= 1
        if self.most_events < 0:
            raise KeyboardInterrupt
        name = list(self.jobs)[int(self.rng.integers(len(self.jobs)))]
        job, part = self.jobs[name]
        if name in self.fail:
            del self.jobs[name]
            return [Result(trial=name, steps=0, state="failed", error="it cannot")]
        if part < 2:
            self.jobs[name] = (job, part + 1)
            return [Progress(trial=name, steps=job.to * (part + 1) // 4)]
        del self.jobs[name]
        rate = float(job.settings.get("optimizer.learning_rate", 1e-3))
        score = -abs(np.log(rate / 1e-3)) + job.to / 1000
        return [Result(trial=name, steps=job.to, state="paused", score=float(score), seconds=1.0)]


def study(folder: Path, executor: Simulated, **changes: Any) -> Study:
    plan = Plan(space=SPACE, trials=8, steps=400, seed=3)
    given: dict[str, Any] = {"in_order": True, "strategy": Halving(plan=plan)} | changes
    strategy = given.pop("strategy")
    settings = given.pop("settings", StudySettings(strategy="halving", trials=8, jobs=3, space=()))
    folder.mkdir(exist_ok=True)
    return Study(folder, settings, strategy, executor, **given)


def ran(folder: Path, executor: Simulated, **changes: Any) -> list[dict[str, object]]:
    one = study(folder, executor, **changes)
    try:
        one.run()
    except KeyboardInterrupt:
        pass
    finally:
        one.close()
    assert executor.closed
    return decided(read_journal(folder))


def test_a_study_ends_with_its_best_trial(tmp_path: Path) -> None:
    ran(tmp_path / "study", Simulated())
    entries = read_journal(tmp_path / "study")
    assert isinstance(entries[-1], End) and entries[-1].best is not None
    history = replayed(entries, 3)
    assert history.trials[entries[-1].best].steps == 400
    assert sum(isinstance(one, Clone) for one in entries) == 1


def test_in_order_the_decisions_do_not_depend_on_who_is_first(tmp_path: Path) -> None:
    each = [ran(tmp_path / f"{seed}", Simulated(seed)) for seed in range(6)]
    assert all(one == each[0] for one in each)
    free = [ran(tmp_path / f"free {seed}", Simulated(seed), in_order=False) for seed in range(6)]
    assert any(one != free[0] for one in free), "the order matters otherwise, or this tests nothing"


def test_a_study_that_ends_after_any_event_goes_on_to_the_same_journal(tmp_path: Path) -> None:
    whole = ran(tmp_path / "whole", Simulated())
    for events in range(0, 60, 3):
        folder, count = tmp_path / f"{events}", 0
        found = ran(folder, Simulated(0, events))
        while not found or found[-1]["kind"] != "end":
            count += 1
            found = ran(folder, Simulated(count, events + 5 * count))
        assert found == whole and (count > 0 or events > 50)


def test_a_torn_batch_is_decided_again(tmp_path: Path) -> None:
    whole = ran(tmp_path / "whole", Simulated())
    data = (tmp_path / "whole" / JOURNAL).read_bytes()
    for cut in range(0, len(data), 97):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / JOURNAL).write_bytes(data[:cut])
        assert ran(folder, Simulated(cut)) == whole, cut


def test_trials_that_were_training_are_begun_again_and_no_others(tmp_path: Path) -> None:
    first = Simulated(0, 7)
    ran(tmp_path / "study", first)
    training = [one.name for one in replayed(read_journal(tmp_path / "study"), 3).training]
    second = Simulated(1, 0)
    ran(tmp_path / "study", second)
    assert [job.trial for job in second.begun] == training and training


def test_a_program_whose_first_trials_all_fail_ends_the_study(tmp_path: Path) -> None:
    found = ran(tmp_path / "study", Simulated(fail=[f"trial_{n}" for n in range(8)]))
    assert found[-1]["kind"] == "end" and found[-1]["best"] is None
    assert found[-1]["reason"] == "the first trials all failed: it cannot"
    assert sum(one["kind"] == "start" for one in found) < 8


def test_one_trial_that_fails_costs_itself_alone(tmp_path: Path) -> None:
    found = ran(tmp_path / "study", Simulated(fail=["trial_2"]))
    assert found[-1]["kind"] == "end" and found[-1]["best"] not in (None, "trial_2")


@dataclass(frozen=True, kw_only=True)
class Odd:
    needs_results: ClassVar[bool] = False
    changes_settings: ClassVar[bool] = False
    plan: Plan
    first: tuple[Decision, ...]

    def ask(self, history: History) -> list[Decision]:
        return list(self.first) if not history.trials else []


RATE = {"optimizer.learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("decisions", "said"),
    [
        ([Start(trial="a", settings=RATE, to=500, reason="")], "at most 400 env steps, got 500"),
        ([Start(trial="a", settings=RATE, to=0, reason="")], "a: must train beyond step 0, got 0"),
        ([Start(trial="a", settings={}, to=100, reason="")] * 2, "a: must be a new name"),
        (
            [Start(trial=str(n), settings=RATE, to=9, reason="") for n in range(4)],
            "at most 3 trials",
        ),
        (
            [Start(trial="a", settings={"optimizer.learning_rate": 1.0}, to=9, reason="")],
            "must choose settings of the space",
        ),
        ([Start(trial="a", settings={"other": 1.0}, to=9, reason="")], "settings of the space"),
        ([Start(trial="../a", settings=RATE, to=9, reason="")], "must be the name of a folder"),
        ([Start(trial=".a", settings=RATE, to=9, reason="")], "must be the name of a folder"),
        ([GoOn(trial="a", to=9, reason="")], "a: must be a trial that has begun"),
        ([Clone(trial="b", source="a", settings=RATE, to=9, reason="")], "a: must be a trial that"),
        (
            [
                Start(trial="a", settings=RATE, to=9, reason=""),
                Clone(trial="b", source="a", settings=RATE, to=20, reason=""),
            ],
            "b: must be cloned from a trial with a result, got a",
        ),
    ],
)
def test_a_decision_that_cannot_be_is_refused_before_it_is_written(
    decisions: list[Decision], said: str, tmp_path: Path
) -> None:
    plan = Plan(space=SPACE, trials=8, steps=400)
    one = study(tmp_path, Simulated(), strategy=Odd(plan=plan, first=tuple(decisions)))
    with pytest.raises(ValueError, match=said):
        one.run()
    one.close()
    assert read_journal(tmp_path) == []


def start(**changes: Any) -> Start:
    given: dict[str, Any] = {"trial": "a", "settings": RATE, "to": 9, "reason": ""}
    return Start(**given | changes)


@dataclass(frozen=True, kw_only=True)
class Own(Odd):
    returned: Callable[[], Any]

    def ask(self, history: History) -> Any:
        return self.returned()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda: None, "must return a list of decisions, got None"),
        (start, "must return a list of decisions, got Start"),
        (lambda: [None], "must return Start, GoOn, Stop and Clone, got None"),
        (lambda: [Result(trial="a", steps=1, state="done")], "Clone, got Result"),
        (lambda: [start(to=9.5)], "Start.to must be a whole number, got 9.5"),
        (lambda: [start(to=True)], "Start.to must be a whole number, got True"),
        (lambda: [start(trial=3)], "Start.trial must be a text, got 3"),
        (lambda: [start(reason=None)], "Start.reason must be a text, got None"),
        (lambda: [start(settings=[1])], r"Start.settings must be a mapping, got \[1\]"),
        (lambda: [start(seed=-1)], "Start.seed must be from 0 to"),
        (lambda: [start(seed="1")], "Start.seed must be a whole number, got '1'"),
        (lambda: [Stop(trial="b", reason="")], "must stop a trial that has begun, got 'b'"),
        (lambda: 1 // 0, "ZeroDivisionError: .*test_study.py, line"),
    ],
)
def test_what_a_strategy_of_a_user_returns_is_checked(
    returned: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    plan = Plan(space=SPACE, trials=8, steps=400)
    settings = StudySettings(strategy="my:Own", space=("optimizer.learning_rate=log:1e-5..1e-2",))
    own = Own(plan=plan, first=(), returned=returned)
    one = study(tmp_path, Simulated(), strategy=own, settings=settings)
    with pytest.raises(ValueError, match=f"strategy my:Own: .*{said}"):
        one.run()
    one.close()
    assert read_journal(tmp_path) == []


def test_a_whole_trial_is_shown_as_completed(tmp_path: Path) -> None:
    one = study(tmp_path, Simulated())
    history = one.run()
    one.close()
    states = {state_text(trial, history, at_work=False) for trial in history}
    assert states == {"paused", "completed", "stopped"}
    assert [one for one in history if history.is_whole(one)] == [
        one for one in history.of("paused") if one.steps >= 400
    ]


def test_a_study_stops_when_it_is_asked_to_and_goes_on_later(tmp_path: Path) -> None:
    asked = list[str]()

    def ask(entry: Entry, history: History) -> None:
        if isinstance(entry, Result) and not asked:
            asked.append(entry.trial)
            (tmp_path / STOP).touch()

    one = study(tmp_path, Simulated(), on_entry=ask)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    one.close()
    assert one.history.end is None
    found = ran(tmp_path, Simulated())
    assert found[-1]["kind"] == "end" and not (tmp_path / STOP).exists()


def test_no_process_is_signalled_to_stop_a_study(
    tmp_path: Path, deadline: Callable[..., None]
) -> None:
    one = study(tmp_path, Simulated())
    write_study(tmp_path, one.settings, None, "", {})
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / PROCESS).write_text(json.dumps({"pid": bystander.pid, "host": gethostname()}))
        stopping = threading.Thread(target=stop_study, args=(tmp_path,))
        stopping.start()
        deadline((tmp_path / STOP).exists, 20.0, "a request to stop")
        with pytest.raises(KeyboardInterrupt):
            one.run()
        one.close()
        stopping.join(timeout=20)
        assert not stopping.is_alive() and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    with pytest.raises(ValueError, match="got one that none runs"):
        stop_study(tmp_path)


@pytest.mark.parametrize("suite", ["", "tiny"])
def test_the_cells_of_a_suite_share_no_program_and_no_best(suite: str, tmp_path: Path) -> None:
    settings = StudySettings(strategy="cells", suite=suite, jobs=2)
    plan = Plan(space=Space(), trials=6, steps=400)
    names = ("A.ppo.0", "A.ppo.1", "A.ppo.2", "A.ppo.3", "B.ppo.0", "B.ppo.1")
    cells = Cells(plan=plan, cells=tuple(f"{name}:400" for name in names))
    executor = Simulated(fail=names[:4])
    found = ran(tmp_path, executor, strategy=cells, settings=settings)
    assert found[-1]["kind"] == "end" and found[-1]["best"] is None
    assert (sum(one["kind"] == "start" for one in found) == 6) == bool(suite), (
        "an env that fails does not end a suite"
    )


def test_a_study_is_carried_on_by_one_process(tmp_path: Path) -> None:
    one = study(tmp_path, Simulated())
    with pytest.raises(ValueError, match="no process runs, got one that another process runs"):
        study(tmp_path, Simulated())
    one.close()
    study(tmp_path, Simulated()).close()


def test_a_score_that_is_no_number_counts_as_none(tmp_path: Path) -> None:
    class Broken(Simulated):
        def poll(self, timeout_s: float) -> list[Progress | Result]:
            return [
                one if isinstance(one, Progress) else replace(one, score=float("nan"))
                for one in super().poll(timeout_s)
            ]

    found = ran(tmp_path, Broken())
    assert all(one["score"] is None for one in found if one["kind"] == "result")
    assert found[-1]["kind"] == "end" and found[-1]["best"] is None


def test_a_space_that_names_code_needs_a_proof_or_trust(tmp_path: Path) -> None:
    space = ("rewards.parts=mine:a,mine:b", "env.size=small,large", "algorithm.gamma=0.9,0.99")
    write_study(tmp_path, StudySettings(strategy="random", space=space), None, "", {})
    check_trust(tmp_path, read_study(tmp_path), ())
    file = tmp_path / STUDY
    whole = file.read_text()
    for was, now in (("mine:b", "evil:b"), ("rewards.parts", "algorithm.torso")):
        file.write_text(whole.replace(was, now))
        with pytest.raises(Untrusted, match="mine:a"):
            check_trust(tmp_path, read_study(tmp_path), ())
        check_trust(tmp_path, read_study(tmp_path), ("mine", "evil", "small", "large"))


@pytest.mark.parametrize(
    ("given", "was", "now"),
    [
        ({"url": "file:///mine"}, "file:///mine", "s3://theirs/x"),
        (
            {"executor": "ray", "cluster": ("address=ray://mine:1",)},
            "ray://mine:1",
            "ray://theirs:1",
        ),
    ],
)
def test_a_place_that_a_study_would_connect_to_needs_a_proof_or_trust(
    given: dict[str, Any], was: str, now: str, tmp_path: Path
) -> None:
    write_study(tmp_path, StudySettings(strategy="random", **given), None, "", {})
    check_trust(tmp_path, read_study(tmp_path), ())
    file = tmp_path / STUDY
    file.write_text(file.read_text().replace(was, now))
    with pytest.raises(Untrusted, match=f"{now}' would be connected to.*--trust {now}"):
        check_trust(tmp_path, read_study(tmp_path), ())
    check_trust(tmp_path, read_study(tmp_path), (now,))


def test_a_study_keeps_its_proof_with_another_address(tmp_path: Path) -> None:
    settings = StudySettings(strategy="random", executor="ray", cluster=("address=ray://a:1",))
    write_study(tmp_path, settings, None, "", {})
    write_cluster(tmp_path, ("address=ray://b:1",))
    check_trust(tmp_path, read_study(tmp_path), ())
    assert read_study(tmp_path).cluster == ("address=ray://b:1",)


def test_settings_that_are_not_of_the_space_are_refused_before_they_are_used(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    journal.append([start(settings={"rewards.parts": "evil:code"})])
    journal.close()
    with pytest.raises(ValueError, match="must have settings of the space in study.toml"):
        study(tmp_path, Simulated())
    (tmp_path / JOURNAL).unlink()
    study(tmp_path, Simulated()).close()
