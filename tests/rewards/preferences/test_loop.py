"""The loop of preferences: the same labels and parameters, however a run goes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise import api, files
from equipoise.errors import RewardsFailed
from equipoise.feedback import Choice, Store
from equipoise.rewards.preferences import guard
from equipoise.rewards.preferences.segments import Answers
from equipoise.rewards.preferences.term import Preferences
from tests.rewards.preferences import worlds

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "reward.segment=8",
    "reward.every=64",
    "reward.first=8",
    "reward.queries=4",
    "reward.labels=24",
    "reward.hidden=8",
    "schedule.schedule_steps=512",
)
SYNTHETIC = ("reward.teacher=synthetic", "reward.error=0.1")
REPLAY = ("replay.capacity=1000", "replay.starts_at=128", "algorithm.hidden=16")


def program(
    store: Path,
    steps: int,
    *settings: str,
    algorithm: str = "ppo",
    env: str = "",
    **options: Any,
) -> Any:
    given: dict[str, Any] = {
        "reward": "preferences",
        "actors": 1,
        "envs_per_actor": 4,
        "unroll": 16,
        "max_lag": 0,
    } | options
    return api.program(
        env or "tests.rewards.preferences.worlds:pendulum",
        algorithm,
        recipe=False,
        steps=steps,
        evaluate_episodes=0,
        settings=[f"reward.store={store}", *SMALL, *settings],
        **given,
    )


def finish(run: Any) -> str:
    for _ in run:
        pass
    assert run.summary is not None
    return str(run.summary["params_sha256"])


def train(out: Path, store: Path, steps: int, *settings: str, on: Any = "serial", **of: Any) -> str:
    return finish(api.start(program(store, steps, *settings, **of), on=on, out=out))


def content(folder: Path) -> tuple[list[Any], list[Any]]:
    """The queries and answers of a store, without their times."""
    with Store(folder) as store:
        queries = [
            (one.id, one.left, one.right, one.purpose, one.version, one.step)
            for one in store.queries()
        ]
        return queries, [(one.query, one.annotator, one.choice) for one in store.answers()]


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_run_in_processes_has_the_same_store_and_parameters(
    tmp_path: Path, algorithm: str
) -> None:
    settings = (*SYNTHETIC, *(REPLAY if algorithm == "sac" else ()))
    found = {
        on: (
            train(
                tmp_path / on, tmp_path / f"store-{on}", 320, *settings, on=on, algorithm=algorithm
            ),
            content(tmp_path / f"store-{on}"),
        )
        for on in ("serial", "process")
    }
    assert found["serial"] == found["process"]
    assert len(found["serial"][1][1]) >= 12


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_run_that_goes_on_from_before_a_round_asks_nothing_twice(
    tmp_path: Path, algorithm: str
) -> None:
    settings = (*SYNTHETIC, *(REPLAY if algorithm == "sac" else ()))
    whole = train(tmp_path / "whole", tmp_path / "one", 512, *settings, algorithm=algorithm)
    train(tmp_path / "half", tmp_path / "two", 256, *settings, algorithm=algorithm)
    # as if killed: its later rounds are in the store, and no checkpoint has them
    shutil.copytree(tmp_path / "half", tmp_path / "killed")
    for name in ("half", "killed"):
        run = api.start(resume=tmp_path / name, steps=512)
        assert finish(run) == whole, name
        assert content(tmp_path / "two") == content(tmp_path / "one"), name


@pytest.mark.thorough
def test_with_recorded_labels_the_env_s_rewards_change_nothing(tmp_path: Path) -> None:
    train(tmp_path / "first", tmp_path / "store", 384, *SYNTHETIC)
    found = []
    for env in ("pendulum", "noise"):
        shutil.copytree(tmp_path / "store", tmp_path / env)
        name = f"tests.rewards.preferences.worlds:{env}"
        found.append(train(tmp_path / f"run-{env}", tmp_path / env, 256, env=name))
    assert found[0] == found[1]


@pytest.mark.thorough
def test_people_are_never_waited_for_and_are_heard_later(tmp_path: Path) -> None:
    train(tmp_path / "run", tmp_path / "store", 256)
    with Store(tmp_path / "store") as store:
        assert store.counts().open == len(store.queries()) >= 8
        store.add_annotator("ann")
        while (question := store.next_query("ann")) is not None:
            store.answer(question.query.id, "ann", "left", latency_s=1.0)
    run = api.start(resume=tmp_path / "run", steps=512)
    reports = [report.metrics for report in run]
    assert reports[-1]["preferences_labels"] >= 8
    assert "preferences_caution" in reports[-1]  # the guard looks at a model from its second round


@pytest.mark.thorough
def test_answers_that_are_all_ties_fit_nothing_and_a_later_choice_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, fits = Preferences._fit, list[int]()

    def counted(self: Preferences, answers: Answers, seed: int) -> None:
        fits.append(len(answers))
        fit(self, answers, seed)

    monkeypatch.setattr(Preferences, "_fit", counted)

    def answer(choice: Choice) -> None:
        with Store(tmp_path / "store") as store:
            while (question := store.next_query("ann")) is not None:
                store.answer(question.query.id, "ann", choice, latency_s=1.0)

    train(tmp_path / "run", tmp_path / "store", 256)
    with Store(tmp_path / "store") as store:
        store.add_annotator("ann")
    fitted = list[bool]()
    turns: tuple[tuple[Choice, int], ...] = (("equal", 512), ("left", 768))
    for choice, steps in turns:
        answer(choice)
        last = [report.metrics for report in api.start(resume=tmp_path / "run", steps=steps)][-1]
        assert last["preferences_labels"] >= 8
        fitted.append(len(fits) > 0)
    assert fitted == [False, True]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "status"), [("pull back", "completed"), ("stop", "alarmed")])
def test_the_guard_lowers_rewards_and_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: guard.Kind, status: str
) -> None:
    verdict = guard.Verdict(kind, "planted")
    monkeypatch.setattr(guard, "assess", lambda state, signs, limits, last: (state, verdict))
    settings = (*SYNTHETIC, "evaluation.on_alarm=stop")
    run = api.start(program(tmp_path / "store", 512, *settings), on="serial", out=tmp_path / "run")
    last = [report.metrics for report in run][-1]
    assert run.summary is not None and run.summary["status"] == status
    assert (last["preferences_caution"] >= 0.5) == (kind == "pull back")


@pytest.mark.thorough
def test_the_last_round_of_a_schedule_asks_about_its_version(tmp_path: Path) -> None:
    settings = (*SYNTHETIC, "reward.newest=0.5")
    train(tmp_path / "run", tmp_path / "store", 512, *settings)
    with Store(tmp_path / "store") as store:
        steps = [one.step for one in store.queries() if one.purpose == "newest"]
    assert steps.count(512) == 4 and len(steps) <= 12


STOPS, PULLS_BACK = (f"tests.rewards.preferences.guarded:{one}" for one in ("Stops", "PullsBack"))


@pytest.mark.thorough
def test_a_stopped_run_ends_with_the_best_version(tmp_path: Path) -> None:
    """An update has 64 rows and a round: round 2 assesses the version that round 1 ended with."""
    best = train(tmp_path / "best", tmp_path / "one", 128, *SYNTHETIC, reward=STOPS)
    stopped = train(tmp_path / "stopped", tmp_path / "two", 512, *SYNTHETIC, reward=STOPS)
    assert stopped == best


@pytest.mark.thorough
def test_a_stopped_run_with_a_replay_stands_still(tmp_path: Path) -> None:
    given = {"algorithm": "sac", "reward": STOPS}
    found = {
        train(
            tmp_path / f"{steps}", tmp_path / f"store{steps}", steps, *SYNTHETIC, *REPLAY, **given
        )
        for steps in (448, 512)
    }
    assert len(found) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_run_that_goes_back_is_the_same_in_processes_and_after_a_resume(
    tmp_path: Path, algorithm: str
) -> None:
    settings = (*SYNTHETIC, *(REPLAY if algorithm == "sac" else ()))
    given = {"algorithm": algorithm, "reward": PULLS_BACK}
    whole = train(tmp_path / "whole", tmp_path / "one", 512, *settings, **given)
    assert whole == train(tmp_path / "p", tmp_path / "two", 512, *settings, on="process", **given)
    plain = train(tmp_path / "plain", tmp_path / "three", 512, *settings, algorithm=algorithm)
    assert plain != whole
    train(tmp_path / "half", tmp_path / "four", 192, *settings, **given)  # before it goes back
    assert finish(api.start(resume=tmp_path / "half", steps=512)) == whole
    assert content(tmp_path / "four") == content(tmp_path / "one")


@pytest.mark.thorough
def test_the_synthetic_teacher_answers_by_a_function_of_the_user(tmp_path: Path) -> None:
    settings = (SYNTHETIC[0], "reward.score=tests.rewards.preferences.worlds:leftness")
    train(tmp_path / "run", tmp_path / "store", 192, *settings)
    with Store(tmp_path / "store") as store:
        answers = {one.query: one.choice for one in store.answers()}
        for query in store.queries():
            left, right = (
                worlds.leftness(store.segment(one)["observations"], None)
                for one in (query.left, query.right)
            )
            assert answers[query.id] == ("left" if left > right else "right")
    assert len(answers) >= 8


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.rewards.preferences.worlds:lefness", "^reward.preferences.score .*did you mean"),
        ("tests.rewards.preferences.worlds:__name__", "score .*a function, got"),
        ("tests.rewards.preferences.worlds:leaves", "^reward.preferences.score failed: SystemExit"),
        ("nothing", "expected module:name"),
        ("tests.rewards.preferences.worlds:nowhere", "score: must return a finite number, got nan"),
        ("tests.rewards.preferences.worlds:beyond", "a finite number, got a whole number of more"),
        ("tests.rewards.preferences.worlds:tensor", "must return a finite number, got a Tensor"),
        ("tests.rewards.preferences.worlds:unread", "score failed: OSError: no file of mine"),
    ],
)
def test_a_function_that_gives_no_number_is_refused(tmp_path: Path, name: str, said: str) -> None:
    settings = (SYNTHETIC[0], f"reward.score={name}")
    with pytest.raises((ValueError, RewardsFailed), match=said):
        train(tmp_path / "run", tmp_path / "store", 128, *settings)
    if (tmp_path / "store").exists():
        assert content(tmp_path / "store") == ([], [])


@pytest.mark.thorough
def test_a_function_may_change_the_arrays_that_it_gets(tmp_path: Path) -> None:
    place = "reward.score=tests.rewards.preferences.worlds"
    plain = train(tmp_path / "a", tmp_path / "one", 192, SYNTHETIC[0], f"{place}:leftness")
    same = train(tmp_path / "b", tmp_path / "two", 192, SYNTHETIC[0], f"{place}:changes")
    assert plain == same and content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.thorough
@pytest.mark.parametrize("full", ["segments", "database"])
def test_a_round_on_a_full_disk_leaves_nothing_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    settings = (*SYNTHETIC, "schedule.checkpoint_every=64")
    whole = train(tmp_path / "whole", tmp_path / "one", 384, *settings)
    with monkeypatch.context() as patch:
        if full == "segments":
            write, sizes = files.write_atomic, list[int]()

            def partly(path: Path, data: bytes) -> None:
                with Store(tmp_path / "two") as store:
                    sizes.append(store.last_row())
                if sizes.count(12) > 1:  # a part of the segments of the third round
                    raise OSError(errno.ENOSPC, "No space left on device")
                write(path, data)

            patch.setattr("equipoise.feedback.items.write_atomic", partly)
        else:
            ask = Store.ask

            def filled(self: Store, run: str, number: int, *given: Any, **named: Any) -> int:
                if number == 2:
                    (pages,) = self._db._db.execute("PRAGMA page_count").fetchone()
                    self._db._db.execute(f"PRAGMA max_page_count = {pages}")
                    with self._db.writing() as db:  # no page is free
                        db.execute("CREATE TABLE IF NOT EXISTS filler (x)")
                return ask(self, run, number, *given, **named)

            patch.setattr(Store, "ask", filled)
        with pytest.raises(RewardsFailed, match="^reward.preferences.store: .*the disk is full"):
            train(tmp_path / "full", tmp_path / "two", 384, *settings)
    with Store(tmp_path / "two") as store:
        assert len(store.queries()) == len(store.answers()) == 12  # of two rounds
        assert not [one for one in (store.path / "segments").iterdir() if one.name[0] == "."]
    assert finish(api.start(resume=tmp_path / "full")) == whole
    assert content(tmp_path / "two") == content(tmp_path / "one")
