"""What is ``auto`` is chosen in one place: when it is measured, what is taken, what is written
down, what a resume keeps.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from equipoise import api
from equipoise.api import training
from equipoise.plans.plan import plan_run
from equipoise.programs.config_file import read_config, write_config
from equipoise.programs.fields import alter
from equipoise.programs.program import from_json, to_json
from equipoise.programs.refusals import check, check_resume
from equipoise.programs.settings import apply_settings
from equipoise.runtime.session import Interrupt
from equipoise.tuning import choice, choices, race, runs, updates
from equipoise.tuning.updates import Took, Way
from equipoise.types import Program, learning

FP32, FP32_2 = Way(), Way(threads=2)
MEDIUM, BF16, BF16_2 = (
    Way(precision="medium"),
    Way(precision="bf16"),
    Way(precision="bf16", threads=2),
)
WAYS = [FP32, FP32_2, MEDIUM, Way(precision="medium", threads=2), BF16, BF16_2]
PIXELS = "tests.runtime.pixels:PixelCatch"


def wide(**options: Any) -> Program:
    """A program whose layers are wide, and which will take hours."""
    given = {
        "actors": 1,
        "envs_per_actor": 4,
        "unroll": 8,
        "max_lag": 1,
        "recipe": False,
        "steps": 10**9,
    } | options
    return api.program("CartPole-v1", "impala", settings={"algorithm.hidden": (256, 256)}, **given)


# ------------------------------------------------------------------------------ how one asks for it


@pytest.mark.parametrize(
    "options",
    [
        {"threads": "auto", "actors": "auto"},
        {"settings": ["placement.threads=auto", "placement.actors=AUTO"]},
        {"settings": {"placement.auto": ("precision", "threads", "actors")}},
    ],
)
def test_auto_is_a_name_in_the_program_beside_the_usual_value(options: Any) -> None:
    place = api.program("CartPole-v1", "impala", **options).placement
    assert place.auto == ("precision", "threads", "actors") and (
        place.precision,
        place.threads,
        place.actors,
    ) == ("fp32", 1, 2)


def test_a_value_ends_auto_and_a_program_travels_as_json(tmp_path: Path) -> None:
    made = api.program("CartPole-v1", "impala", precision="bf16", envs_per_actor="auto")
    assert (
        made.placement.auto == ("threads", "envs_per_actor") and made.placement.envs_per_actor == 8
    )
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    write_config(made, file := tmp_path / "run.toml")
    assert read_config(file) == made
    file.write_text(file.read_text().replace('precision = "bf16"', 'precision = "auto"'))
    assert read_config(file).placement.auto == ("threads", "envs_per_actor", "precision")
    assert api.configured(file, threads=2).placement.auto == ("envs_per_actor", "precision")
    assert apply_settings(made, ["placement.threads=2"]).placement.auto == ("envs_per_actor",)


def test_what_cannot_be_measured_is_named_with_the_nearest_that_can() -> None:
    with pytest.raises(
        ValueError,
        match=r"placement.auto: expected some of actors, .*, got 'thread'; did you mean 'threads'",
    ):
        check(api.program("CartPole-v1", settings=["placement.auto=thread"]))
    with pytest.raises(
        ValueError, match="threads: expected a whole number or auto, got 'aut'; did you mean 'auto'"
    ):
        api.program("CartPole-v1", **cast(Any, {"threads": "aut"}))
    with pytest.raises(ValueError, match="max_lag: expected a whole number or none, got 'auto'"):
        api.program("CartPole-v1", **cast(Any, {"max_lag": "auto"}))
    with pytest.raises(ValueError, match="threads: expected to be given once, got 'auto'"):
        api.program("CartPole-v1", threads="auto", settings=["placement.threads=2"])


# ------------------------------------------------------------------------------ when it is measured


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing is measured here")


@pytest.mark.parametrize(
    ("on", "options", "why"),
    [
        ("process", {"max_lag": 0}, "max_lag=0"),
        ("serial", {}, "one thread"),
        ("process", {"compile": True}, "torch.compile"),
    ],
)
def test_in_lockstep_and_on_one_thread_the_usual_values_hold(
    on: str, options: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "timed", refuse)
    monkeypatch.setattr(runs, "raced", refuse)
    told: list[str] = []
    given = alter(wide(), actors="auto", inference="auto", **options)
    made, record = choices.settled(given, on=on, asked=["actors"], tell=told.append)
    assert made == choices.usual(given) and made.placement.auto == ()
    assert record.keys() == {"precision", "threads", "actors", "inference"}
    assert all(why in one["why"] and not one["measured"] for one in record.values())
    assert len(told) == 1 and told[0].startswith("actors: 1, since ") and why in told[0], (
        "what nobody asked for is not told"
    )


def test_a_small_network_takes_the_usual_values_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "timed", refuse)
    made, record = choices.settled(api.program("CartPole-v1", "impala"), on="process", tell=refuse)
    assert (made.placement.precision, made.placement.threads, made.placement.auto) == (
        "fp32",
        1,
        (),
    )
    assert "no wide layer" in record["precision"]["why"]


@pytest.mark.parametrize(
    ("net", "small"),
    [
        (torch.nn.Linear(300, 64), True),
        (torch.nn.Linear(256, 256), False),
        (torch.nn.Conv2d(1, 4, 3), False),
        (torch.nn.GRU(64, 128), True),
        (torch.nn.LSTM(64, 256), False),
    ],
)
def test_a_convolution_or_a_wide_layer_makes_a_network_large(net: Any, small: bool) -> None:
    assert updates.is_small(net) is small


def timings(took: dict[Way, float], seen: list[Any]) -> Any:
    """A stand-in for the process that times updates."""

    def timed(blue: Any, ways: Any, interrupt: Any, *, until: float, enough: Any) -> Any:
        found = {way: Took(update_s=took[way], act_s=0.0) for way in ways if way in took}
        seen.append(until - time.monotonic())
        return ({ways[0]: found[ways[0]]} if enough(found[ways[0]]) else found), ""

    return timed


def races(rates: dict[str, float], seen: list[Any]) -> Any:
    """A stand-in for whole runs."""

    def raced(programs: Any, interrupt: Any, *, until: float, tell: Any) -> Any:
        seen.append((list(programs), until - time.monotonic()))
        return race.Race(rates={label: [rates[label]] for label in programs})

    return raced


@pytest.mark.parametrize(
    ("took", "rates", "tried", "taken"),
    [
        # No way is over 10 % faster: fp32 without whole runs.
        (dict.fromkeys(WAYS, 0.1) | {BF16_2: 0.093}, {}, None, FP32),
        # One way is far ahead: no whole runs are needed.
        (dict.fromkeys(WAYS, 0.1) | {BF16: 0.02}, {}, None, BF16),
        # Two are near each other by their updates: whole runs decide, and a tie goes to fewer
        # threads.
        (
            dict.fromkeys(WAYS, 0.1) | {BF16: 0.03, BF16_2: 0.025},
            {BF16: 100.0, BF16_2: 104.0},
            [BF16_2, BF16],
            BF16,
        ),
        (
            dict.fromkeys(WAYS, 0.1) | {BF16: 0.03, BF16_2: 0.025},
            {BF16: 100.0, BF16_2: 120.0},
            [BF16_2, BF16],
            BF16_2,
        ),
        # What there was no time to time is not tried.
        ({FP32: 0.1, FP32_2: 0.08}, {FP32: 100.0, FP32_2: 90.0}, [FP32_2, FP32], FP32),
    ],
)
def test_updates_narrow_what_whole_runs_decide(
    took: dict[Way, float],
    rates: dict[Way, float],
    tried: Any,
    taken: Way,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed_for: list[float] = []
    raced: list[Any] = []
    monkeypatch.setattr(choices, "usable", lambda: 4)
    monkeypatch.setattr(choices, "ways_of", lambda program, names: WAYS)
    monkeypatch.setattr(updates, "timed", timings(took, timed_for))
    monkeypatch.setattr(
        runs, "raced", races({str(way): rate for way, rate in rates.items()}, raced)
    )
    made, record = choices.settled(wide(), on="process")
    assert (made.placement.precision, made.placement.threads) == (taken.precision, taken.threads)
    assert [labels for labels, _ in raced] == (
        [] if tried is None else [[str(way) for way in tried]]
    )
    assert 0 < timed_for[0] <= choices.BUDGET_S and all(
        left <= choices.BUDGET_S for _, left in raced
    )
    assert (
        record["precision"]["value"] == taken.precision
        and record["threads"]["value"] == taken.threads
    )
    assert record["threads"]["left_out"] == tuple(str(way) for way in WAYS if way not in took)
    unit = "s an update" if tried is None else "steps/s"
    assert record["threads"]["unit"] == unit and record["threads"]["measured"]


def test_where_there_is_time_for_one_run_alone_updates_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took = dict.fromkeys(WAYS, 0.1) | {BF16: 0.03, BF16_2: 0.028}
    monkeypatch.setattr(choices, "usable", lambda: 4)
    monkeypatch.setattr(choices, "ways_of", lambda program, names: WAYS)
    monkeypatch.setattr(updates, "timed", timings(took, []))
    late = race.Race(rates={str(BF16_2): [9.0], str(BF16): []}, left_out=[str(BF16)])
    monkeypatch.setattr(runs, "raced", lambda *_, **__: late)
    made, record = choices.settled(wide(), on="process")
    assert (made.placement.precision, made.placement.threads) == ("bf16", 1), (
        "they are within a tie of updates"
    )
    assert record["threads"]["why"].endswith("there was no time to try bf16 with 1 thread")
    assert record["threads"]["left_out"] == (str(BF16),)


@pytest.mark.parametrize(
    ("asked", "steps", "measures"),
    [((), 2_000, False), (["threads"], 2_000, True), ((), 10**9, True)],
)
def test_a_short_run_is_measured_only_where_that_was_asked_for(
    asked: Any, steps: int, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "ways_of", lambda program, names: WAYS)
    monkeypatch.setattr(updates, "timed", timings(dict.fromkeys(WAYS, 0.01) | {BF16: 0.001}, []))
    made, record = choices.settled(wide(steps=steps), on="process", asked=asked)
    assert made.placement.precision == ("bf16" if measures else "fp32")
    assert ("too short" in record["precision"]["why"]) is not measures


def test_all_settings_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a setting is measured with what was chosen before it."""
    timed_for: list[float] = []
    raced: list[Any] = []
    rates = {"local": 1.0, "central": 2.0, "1": 1.0, "2": 3.0, "4": 2.0}
    monkeypatch.setattr(choices, "_problem", lambda program: "")
    monkeypatch.setattr(
        updates, "timed", timings(dict.fromkeys(WAYS, 0.1) | {BF16: 0.01}, timed_for)
    )
    monkeypatch.setattr(choices, "ways_of", lambda program, names: WAYS)
    monkeypatch.setattr(runs, "raced", races(rates, raced))
    made, record = choices.settled(alter(wide(), inference="auto", actors="auto"), on="process")
    place = made.placement
    assert (place.precision, place.inference, place.actors) == ("bf16", "central", 2)
    (_, second), (_, third) = raced
    assert timed_for[0] <= 10.0 and second <= 15.1 and third <= 30.1
    assert record["actors"]["why"] == "1 made 1 steps/s, 2 made 3 steps/s, 4 made 2 steps/s"


# ------------------------------------------------------------------------------- the pure functions


def test_ties_go_to_the_most_usual() -> None:
    order = ["fp32", "medium", "bf16"]
    assert (
        race.most_usual({"fp32": 100.0, "medium": 104.0, "bf16": 103.0}, order, tie=1.05) == "fp32"
    )
    assert (
        race.most_usual({"fp32": 100.0, "medium": 118.0, "bf16": 120.0}, order, tie=1.05)
        == "medium"
    )
    assert race.most_usual({"medium": 1.0, "bf16": 2.0}, order, tie=1.05) == "bf16"


def test_a_shortlist_is_short_and_begins_with_the_best_guess() -> None:
    assert choices.shortlist({FP32: 1.0, BF16: 1.09}, WAYS) == [FP32]
    assert choices.shortlist(
        {FP32: 1.0, BF16: 1.2, BF16_2: 1.25, MEDIUM: 1.1, FP32_2: 1.05}, WAYS
    ) == [BF16_2, BF16, MEDIUM]
    assert choices.shortlist({FP32: 1.0, BF16: 3.0}, WAYS) == [BF16]


def test_more_threads_pay_only_where_there_are_cores_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """rows 32 a batch; an update takes 32 ms with one thread and 20 ms with two; an act of 4 envs
    takes 4 ms.
    """
    blue: Any = SimpleNamespace(program=wide(actors=2), pace=SimpleNamespace(rows=32, updates=1))
    one, two = Took(update_s=0.032, act_s=0.004), Took(update_s=0.020, act_s=0.004)
    monkeypatch.setattr(choices, "usable", lambda: 2)
    assert choices.bound(blue, FP32, one) == pytest.approx(1000.0)  # the learner, and both cores
    assert choices.bound(blue, FP32_2, two) == pytest.approx(2 / (2 * 0.020 / 32 + 0.001))
    monkeypatch.setattr(choices, "usable", lambda: 8)
    assert choices.bound(blue, FP32, one) == pytest.approx(1000.0)
    assert choices.bound(blue, FP32_2, two) == pytest.approx(1600.0)  # the learner
    # the actors
    assert choices.bound(blue, FP32_2, Took(update_s=0.001, act_s=0.004)) == pytest.approx(2000.0)


def test_other_numbers_of_envs_learn_as_often_from_a_row() -> None:
    made = api.program(
        "CartPole-v1",
        "dqn",
        recipe=False,
        actors=2,
        envs_per_actor=4,
        settings=["replay.updates=8"],
    )
    (policy,) = learning(choices.variant(made, actors=4)).values()
    assert policy.replay is not None and policy.replay.updates == 16
    with pytest.raises(ValueError, match="1 updates a round of 8 envs are no whole number of 3"):
        choices.variant(apply_settings(made, ["replay.updates=1"]), actors=1, envs_per_actor=3)
    found, why = choices.candidates(
        choices.usual(alter(made, envs_per_actor=1, actors=1)), "actors", "process"
    )
    assert found == [1, 2, 4] and why


def test_no_number_of_actors_is_tried_some_of_whom_would_always_wait() -> None:
    made = choices.usual(wide(actors=2, envs_per_actor=4, batch=8))
    assert choices.candidates(made, "actors", "process")[0] == [2, 4, 1]
    assert choices.candidates(made, "envs_per_actor", "process")[0] == [4, 8, 2]
    found, why = choices.candidates(made, "actors", "ray")
    assert found == [2] and "several machines" in why


def test_a_race_stops_where_the_next_turn_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, began = SimpleNamespace(at=0.0), []

    def rate(blue: str, interrupt: Any, seconds: float, *, until: float) -> float:
        began.append(blue)
        now.at += 7.0
        return {"a": 100.0, "b": 95.0, "c": 10.0}[blue]

    monkeypatch.setattr(race, "time", SimpleNamespace(monotonic=lambda: now.at))
    monkeypatch.setattr(runs, "rate", rate)
    monkeypatch.setattr(runs, "throwaway", lambda program, place: program)
    place = SimpleNamespace(placement=SimpleNamespace(inference="local"))
    programs: Any = {}

    class Named(str):
        placement = place.placement

    programs = {name: Named(name) for name in "abc"}
    found = runs.raced(programs, Interrupt(), until=36.0)
    assert began == ["a", "b", "c", "a", "b"] and now.at == 35.0, (
        "c is far behind; a sixth turn would be too long"
    )
    assert found.best == {"a": 100.0, "b": 95.0, "c": 10.0} and not found.left_out
    began.clear()
    now.at = 0.0
    found = runs.raced(programs, Interrupt(), until=12.0)
    assert began == ["a"] and found.left_out == ["b", "c"]
    assert runs.outcome(found) == "a made 100 steps/s, there was no time to try b, c"


# ----------------------------------------------------------------------------------------- a resume


KNOWN = {
    name: {"value": None, "why": "measured"}
    for name in ("forward", "precision", "threads", "inference")
}


@pytest.mark.parametrize(
    ("changes", "kept", "again"),
    [
        ([], ["forward", "precision", "threads", "inference"], []),
        (["algorithm.entropy"], ["forward", "precision", "threads", "inference"], []),
        (["placement.precision"], ["inference"], ["threads"]),
        (["placement.threads"], ["forward", "precision", "inference"], []),
        (["placement.device"], ["forward", "inference"], ["precision", "threads"]),
        (["placement.acting_precision"], ["precision", "threads", "inference"], []),
    ],
)
def test_a_resume_keeps_choices_but_for_those_that_its_changes_ask_for_again(
    changes: list[str], kept: list[str], again: list[str]
) -> None:
    assert list(choice.kept(KNOWN, changes)) == kept
    assert choice.asked_again(KNOWN, changes) == again


def test_a_resume_cannot_measure_what_it_keeps() -> None:
    made = choices.usual(api.program("CartPole-v1", "impala"))
    with pytest.raises(
        ValueError, match=r"placement.actors: expected 2, which a run that goes on keeps, got auto"
    ):
        check_resume(made, alter(made, actors="auto"))
    assert check_resume(made, alter(made, threads="auto")) == {"placement.auto": [[], ["threads"]]}


# ------------------------------------------------------------------------------------- real choices


def test_a_random_batch_is_one_that_the_learner_can_learn_from() -> None:
    """Also with action masks, recurrent states and replays."""
    for env, algorithm, settings in [
        (PIXELS, "impala", []),
        ("CartPole-v1", "ppo", ["algorithm.core=lstm"]),
        ("CartPole-v1", "r2d2", []),
        ("Pendulum-v1", "sac", []),
        ("tests.runtime.masked:masked_cartpole", "dqn", []),
    ]:
        blue = plan_run(api.program(env, algorithm, recipe=False, settings=settings, steps=10**6))
        (name,) = blue.learns
        net = blue.network(name)
        batch = updates.random_batch(blue, name, net)
        assert batch.data.reward.shape[1] == blue.batch(name) and batch.data.mask.all()
        assert 0.0 < updates.update_s(blue.learner(name, net), batch, span_s=0.01) < math.inf


@pytest.mark.thorough
def test_a_run_of_images_measures_and_a_resume_keeps_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    options: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 2,
        "unroll": 8,
        "max_lag": 1,
        "steps": 2_000,
    }
    options |= {"recipe": False, "evaluate_episodes": 0}
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    began = time.monotonic()
    asked: Any = {"precision": "auto", "threads": "auto", "out": tmp_path / "run", **options}
    run = training.begun(PIXELS, "impala", asked, tell=told.append)
    assert time.monotonic() - began < choices.BUDGET_S + 10.0  # and the run's own start
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
    list(run)
    record = json.loads((tmp_path / "run/run.json").read_text())
    place, made = record["program"]["placement"], record["choices"]
    assert place["auto"] == [] and made.keys() == {"precision", "threads", "forward"}
    for name in ("precision", "threads"):
        assert place[name] == made[name]["value"] and made[name]["measured"]
        assert f"{name}: {place[name]}, since {made[name]['why']}" in told
    monkeypatch.setattr(updates, "timed", refuse)
    with api.start(resume=tmp_path / "run", steps=3_000) as going:
        list(going)
    assert json.loads((tmp_path / "run/run.json").read_text())["choices"] == made
