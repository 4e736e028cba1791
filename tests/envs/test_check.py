"""What ``check`` finds: the planted fault and its place, and nothing in an env that has none."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise.envs.check import check, compare
from equipoise.envs.check.check import check_env
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.probe import sample
from equipoise.types import EnvFactory

FAULTY = "tests.envs.planted"


def checked(name: str, steps: int = 200, **kwargs: Any) -> Any:
    target = name if "/" in name or ":" in name else f"{FAULTY}:{name}"
    return check_env(EnvFactory(target=target, kwargs=kwargs), steps=steps)


def found(name: str, **given: Any) -> tuple[Finding, ...]:
    return checked(name, **given).findings


@pytest.mark.parametrize(
    ("name", "severity", "what", "where", "seen"),
    [
        (
            "python:CliffWalking-v1",
            "note",
            "no episode ends",
            "the whole walk",
            "or a time limit, got none in 200 steps",
        ),
        (
            "Endless",
            "note",
            "no episode ends",
            "the whole walk",
            "an end or a time limit, got none in 200 steps",
        ),
        # observations
        (
            "NotFinite",
            "error",
            "obs is not finite",
            "step 17",
            "expected finite numbers, got nan at [2]",
        ),
        (
            "OutsideItsSpace",
            "error",
            "obs/position leaves its space",
            "step 3",
            "within [-1.0, 1.0], got 1",
        ),
        (
            "OutsideDiscrete",
            "error",
            "obs leaves its space",
            "reset(seed)",
            "expected within [1, 5], got 0",
        ),
        (
            "MissingKey",
            "error",
            "obs/speed is missing",
            "step 4",
            "keys ['position', 'speed'], got ['position']",
        ),
        (
            "SurplusKey",
            "note",
            "obs/more is not in the space",
            "reset(seed)",
            "got ['more', 'position', 'speed']",
        ),
        ("WrongShape", "error", "obs has the wrong shape", "step 2", "expected (3,), got (4,)"),
        (
            "WrongDtype",
            "error",
            "obs has the wrong dtype",
            "reset(seed)",
            "expected uint8, got float32",
        ),
        (
            "OtherDtype",
            "note",
            "obs has another dtype than its space",
            "reset(seed)",
            "expected float32, got float64",
        ),
        ("AList", "note", "obs is no numpy array", "reset(seed)", "got list"),
        (
            "Ragged",
            "error",
            "obs is no array",
            "reset(seed)",
            "expected an array, got [[1.0], [1.0, 2.0]] of list",
        ),
        (
            "OverwritesInPlace",
            "note",
            "obs is overwritten in place",
            "step 1",
            "other numbers in the same memory",
        ),
        # spaces
        ("FloatImage", "note", "obs is an image of floats", "observation_space", "expected uint8"),
        (
            "Constant",
            "note",
            "obs has a low equal to its high",
            "observation_space",
            "got low 0.0 and high 0.0 at [1]",
        ),
        ("AText", "error", "a space is not supported", "the spaces", "observation space Text"),
        (
            "CannotTravel",
            "error",
            "observation_space cannot be pickled",
            "observation_space",
            "lambda",
        ),
        # what step and reset return
        (
            "InfiniteReward",
            "error",
            "reward is not finite",
            "step 5",
            "expected a finite number, got inf",
        ),
        (
            "RewardOfOne",
            "error",
            "reward has the wrong shape",
            "step 1",
            "expected a scalar, got (1,)",
        ),
        ("NoReward", "error", "reward is no number", "step 6", "got None of NoneType"),
        (
            "NeverSaysTerminated",
            "error",
            "terminated is neither True nor False",
            "step 1",
            "expected True or False, got None",
        ),
        ("OneForTrue", "note", "terminated is no bool", "step 1", "got 0 of int"),
        ("NoInfo", "note", "info is no dict", "step 1", "got NoneType"),
        (
            "OldApi",
            "error",
            "step() returns 4 values, as Gym did before 0.26",
            "step 1",
            "got a tuple of 4",
        ),
        (
            "faulty/OldApi-v0",
            "error",
            "step() returns 4 values, as Gym did before 0.26",
            "step 1",
            "got a tuple of 4",
        ),
        ("TwoValues", "error", "step() does not return 5 values", "step 1", "got a tuple of 2"),
        ("OnlyObs", "error", "reset() does not return (obs, info)", "reset(seed)", "got ndarray"),
        ("RaisesAtSeven", "error", "step() raises ZeroDivisionError", "step 7", "planted.py:"),
        # ends
        (
            "LimitInInfo",
            "error",
            "a time limit is reported as terminated",
            "step",
            "info['TimeLimit.truncated']",
        ),
        (
            "ClockAsEnd",
            "note",
            "a time limit may be reported as terminated",
            "step 10 of an episode",
            "max_steps is a clock",
        ),
        (
            "RewardAfterTheEnd",
            "error",
            "a reward comes with the row after an end",
            "step",
            "expected reward 0",
        ),
        (
            "ActsAfterTheEnd",
            "error",
            "the action after an end is not ignored",
            "step",
            "obs at [0, ",
        ),
        (
            "NothingIsFinal",
            "note",
            "the last observation of an episode is nowhere",
            "step",
            "info['final_obs']",
        ),
        ("SumsRewards", "error", "reward has the wrong shape", "step 1", "expected (2,), got ()"),
        (
            "faulty/Limit-v0",
            "error",
            "the declared time limit is not kept",
            "step 6",
            "expected truncated at step 5",
        ),
        # randomness
        (
            "UnseededGenerator",
            "error",
            "reset ignores the seed",
            "reset(seed)",
            "obs at [0]: expected",
        ),
        (
            "FixedGenerator",
            "error",
            "reset ignores the seed",
            "reset(seed)",
            "obs at [0]: expected",
        ),
        (
            "NewGeneratorEachReset",
            "error",
            "reset() without a seed takes a new generator",
            "reset() before step",
            "obs at [0]",
        ),
        (
            "GlobalGenerator",
            "error",
            "a global random generator is used",
            "step 4",
            "self.np_random",
        ),
        (
            "Clockwork",
            "error",
            "the same seed and actions give other rows",
            "step 9",
            "reward: expected",
        ),
        (
            "faulty/Declared-v0",
            "note",
            "the same seed and actions give other rows",
            "step 9",
            "reward: expected",
        ),
        ("KeepsItsClock", "error", "reset(seed) does not begin again", "step", "expected"),
        ("SharedByAll", "error", "another env changes what this one does", "step 2", "obs at [0]"),
    ],
)
def test_the_planted_fault_is_all_that_is_found(name, severity, what, where, seen):
    findings = found(name)
    planted = next((f for f in findings if f.what == what), None)
    assert planted is not None, findings
    assert planted.severity == severity
    assert planted.where.startswith(where)
    assert seen in planted.seen
    assert planted.cost.endswith(".") and len(planted.cost) > 10
    follow = {
        "NothingIsFinal": {"truncation treated as termination"},
        # Bytes as floats: a network would get numbers up to 255.
        "FloatImage": {"obs has large numbers"},
        "WrongDtype": {"obs has large numbers"},
    }
    busy = {"some steps take far longer than most"}  # a note that a busy machine gives as well
    assert {f.what for f in findings} - {what} - busy <= follow.get(name, set()), findings


def test_one_buffer_for_all_envs():
    whats = {f.what: f for f in found("SharesItsBuffer")}
    assert whats.keys() == {
        "two envs share the memory of their observations",
        "obs is overwritten in place",
    }
    assert whats["two envs share the memory of their observations"].severity == "error"
    assert whats["two envs share the memory of their observations"].where == "reset(seed)"


def test_a_space_whose_low_is_above_its_high():
    (first, *_) = found("upside_down")
    assert (first.severity, first.what) == ("error", "obs has a low above its high")
    assert "expected low < high, got low 2.0 and high 1.0 at [1]" in first.seen


@pytest.mark.parametrize(
    ("which", "severity", "what"),
    [
        ("unbounded", "note", "the action has no bounds"),
        ("one", "note", "there is only one action"),
        ("text", "error", "a space is not supported"),
    ],
)
def test_actions(which, severity, what):
    assert [(f.severity, f.what) for f in found("ThatAction", which=which)] == [(severity, what)]


@pytest.mark.parametrize("name", ["many_same_step", "GivesWhatIsFinal"])
def test_same_step_says_what_it_costs(name):
    report = checked(name)
    assert report.ok and not report.findings and " truncated, " in report.facts["episodes"]
    assert (
        report.facts["autoreset"].startswith("SAME_STEP: ")
        and "wait one row" in report.facts["autoreset"]
    )


def test_same_step_without_final_observations_says_what_it_costs():
    report = checked("NothingIsFinal")
    (note,) = (f for f in report.findings if f.what == "truncation treated as termination")
    assert report.ok and "learned as 0" in note.cost
    assert report.facts["autoreset"].startswith("SAME_STEP without info['final_obs']")


def test_same_step_without_a_truncation_leaves_it_open():
    """One of its own, which may give a final observation or not; Gymnasium's do."""
    of_its_own, gymnasiums = (
        {f.what for f in found(*given, steps=10)}
        for given in (["GivesWhatIsFinal"], ["many_same_step"])
    )
    assert of_its_own - gymnasiums == {
        "truncation treated as termination, since the env gives no info['final_obs']"
    }


@pytest.mark.thorough
def test_steps_that_stall():
    (stall,) = found("Stalls", steps=100)
    assert (stall.severity, stall.what) == ("note", "some steps take far longer than most")
    assert "99th percentile" in stall.seen


def test_an_argument_that_is_no_json():
    assert "argument 'which' is not JSON" in [
        f.what for f in found("ThatAction", which=np.float32(1))
    ]


@pytest.mark.thorough
def test_a_fault_is_counted_once_and_errors_come_first():
    (nan,) = found("NotFinite")
    assert 100 < nan.times < 200
    (surplus,) = found("SurplusKey")
    assert 200 < surplus.times < 230  # steps and resets of the first walk alone
    for findings in (found("SharesItsBuffer"), found("upside_down")):
        assert [f.severity for f in findings] == sorted(f.severity for f in findings)


def test_where_no_episode_ends_a_reset_is_tried_all_the_same(monkeypatch):
    only, endless = found("NewGeneratorAndNoEnd", steps=200)
    assert (only.what, only.where) == (
        "reset() without a seed takes a new generator",
        "reset() before step 160",
    )
    assert endless.what == "no episode ends"
    monkeypatch.setattr(check, "KEPT_BYTES", 50 * 64 * check.STREAMS)
    only, _ = found("NewGeneratorAndNoEnd", steps=200)
    assert only.where == "reset() before step 40"


@pytest.mark.parametrize("target", ["Sound", "many", "KeepsItsClock"])
def test_rows_that_are_too_many_to_keep_are_judged_but_not_compared(target, monkeypatch):
    # an observation takes up 64 bytes
    monkeypatch.setattr(check, "KEPT_BYTES", 60 * 64 * check.STREAMS)
    lengths = []
    plain = compare.difference
    monkeypatch.setattr(
        compare, "difference", lambda *walks: lengths.extend(map(len, walks)) or plain(*walks)
    )
    report = checked(target, steps=300)
    assert report.ok == (target != "KeepsItsClock"), report.findings
    assert report.step_s.count == 300
    resets = 61 if target == "KeepsItsClock" else 15
    assert 60 < max(lengths) <= 60 + resets


def test_too_few_steps_and_unknown_targets_are_refused_as_in_train():
    with pytest.raises(ValueError, match="steps: expected at least 10, got 9"):
        checked("Sound", steps=9)
    with pytest.raises(ValueError, match="did you mean 'CartPole-v1'"):
        checked("gymnasium:CartPol-v1")
    with pytest.raises(ValueError, match="takes no argument 'wich' \\(did you mean 'which'"):
        checked("ThatAction", wich=1)


def test_the_global_generators_are_left_as_they_were():
    np.random.seed(3), random.seed(3)
    expected = np.random.random(), random.random()
    np.random.seed(3), random.seed(3)
    checked("GlobalGenerator")
    assert (np.random.random(), random.random()) == expected


# ------------------------------------------------------------------------------------------ healthy

GYMNASIUM = [
    "CartPole-v1",
    "python:CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
    "Taxi-v4",
]
MUJOCO = ["HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5"]
ALE = ["ALE/Pong-v5", "ALE/Breakout-v5"]
OURS = [
    "equipoise.envs:Catch",
    "equipoise.envs:CatchVector",
    "equipoise.envs:BitFlip",
    "equipoise.envs:BitFlipVector",
    "equipoise.envs:TMaze",
    "equipoise.envs:TMazeVector",
    "equipoise.envs:RepeatFirst",
    "equipoise.envs:RepeatFirstVector",
    f"{FAULTY}:Sound",
    f"{FAULTY}:many",
    f"{FAULTY}:WritesToItsAction",
]


def silent(report: Any) -> None:
    assert report.ok and report.findings == ()
    known = {"observation", "action", "autoreset", "resume", "episodes", "seeds"}
    assert known == set(report.facts) - {"settings", "info", "action mask"}
    assert report.step_s.p50 <= report.step_s.p99 <= report.step_s.max


@pytest.mark.few(1)
@pytest.mark.parametrize("target", [*GYMNASIUM, *OURS])
def test_silent_on_healthy_envs(target):
    silent(checked(target, steps=600))


@pytest.mark.thorough
@pytest.mark.parametrize("target", MUJOCO)
def test_silent_on_mujoco(target, tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where MuJoCo puts its log
    report = checked(f"gymnasium:{target}", steps=300)
    silent(report)
    assert "float64, cast to float32" in report.facts["observation"]


@pytest.mark.thorough
@pytest.mark.parametrize("target", ALE)
def test_silent_on_ale(target):
    pytest.importorskip("ale_py")
    report = checked(target, steps=300)
    silent(report)
    assert report.facts["observation"] == "Box (4, 84, 84) uint8"


def test_facts_of_a_python_env():
    report = checked("python:CartPole-v1", steps=300)
    assert report.facts | {"episodes": ""} == {
        "observation": "Box (4,) float32",
        "action": "Discrete of 2",
        "autoreset": "NEXT_STEP: where terminated is True the return ends; where only truncated "
        "is, the value of the last "
        "observation is added",
        "resume": "exact: an episode goes on where it was, bit for bit",
        "episodes": "",
        "seeds": "the same seed and actions give the same rows, bit for bit",
    }
    assert "time limit 500 steps" in report.facts["episodes"]
    assert report.step_s.count == 300 and report.reset_s.count > 5


def test_time_limits_are_seen():
    report = checked("MountainCar-v0", steps=450)
    silent(report)
    assert (
        report.facts["episodes"]
        == "2 ended (0 terminated, 2 truncated, 0 both) after 200.0 steps on average; time limit "
        "200 steps"
    )


def test_ends_of_one_length_may_be_a_clocks():
    said = checked("equipoise.envs.toys.catch:Catch").facts["episodes"]
    assert said.endswith(", each of them after 9: if a clock ends them, truncated is to be True"), (
        said
    )
    assert "clock" not in checked("CartPole-v1").facts["episodes"]


def test_an_env_without_randomness_is_said_to_be_so():
    assert checked("CliffWalking-v1").facts["seeds"] == "every seed gives the same rows"


@pytest.mark.thorough
def test_the_checks_do_not_depend_on_the_seed():
    for seed, name in itertools.product(
        range(3), ("Sound", "NewGeneratorEachReset", "ActsAfterTheEnd")
    ):
        report = check_env(EnvFactory(target=f"{FAULTY}:{name}"), steps=200, seed=seed)
        assert report.ok == (name == "Sound"), (seed, name, report.findings)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_the_actions_are_in_their_space_and_often_on_its_bounds(lead):
    half = spaces.Box(
        np.array([-2, -np.inf, 0], np.float32), np.array([1, np.inf, np.inf], np.float32)
    )
    drawn = sample(half, 400, lead, seed=1)
    assert drawn.shape == (400, *lead, 3) and drawn.dtype == np.float32 and np.isfinite(drawn).all()
    assert np.array_equal(drawn, sample(half, 400, lead, seed=1)) and not np.array_equal(
        drawn, sample(half, 400, lead, seed=2)
    )
    first = drawn.reshape(-1, 3)[:, 0]
    assert first.min() == -2 and first.max() == 1 and 0.15 < np.isin(first, (-2, 1)).mean() < 0.35
    assert drawn.reshape(-1, 3)[:, 2].min() >= 0
    drawn = sample(spaces.Discrete(3, start=5), 400, lead, seed=1)
    assert drawn.shape == (400, *lead) and set(drawn.ravel().tolist()) == {5, 6, 7}


def test_the_names_in_info_are_told():
    report = check_env(EnvFactory(target="tests.envs.telling:Wandering"), steps=60)
    assert report.ok, report.findings
    assert report.facts["info"] == "end/right, place (--metrics reports those that are numbers)"
    assert "info" not in check_env(EnvFactory(target="CartPole-v1"), steps=60).facts
