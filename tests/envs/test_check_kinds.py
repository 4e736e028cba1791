"""``check`` on PettingZoo envs, envs of old gym, and envs with running statistics."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as vectors

from equipoise.envs.check import report as names
from equipoise.envs.check.agents import JointMasks, joint_actions
from equipoise.envs.check.check import check_env
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.report import Report
from equipoise.envs.families.joint import Joint
from equipoise.envs.families.old_gym import advice
from equipoise.envs.making import make
from equipoise.types import EnvFactory
from tests.envs.planted import Sound

ROUNDS = "tests.envs.rounds"


def checked(name: str, module: str = ROUNDS, **kwargs: Any) -> Report:
    return check_env(EnvFactory(target=f"{module}:{name}", kwargs=kwargs), steps=100)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


# --------------------------------------------------------------------------------------- PettingZoo

pytest.importorskip("pettingzoo")


@pytest.mark.parametrize("name", ["Sound", "Duel", "Masked", "Turns"])
def test_silent_on_sound_envs_of_several_agents(name: str) -> None:
    report = checked(name)
    assert report.findings == () and report.left_out == ()
    assert report.facts["episodes"] == "12 ended after 8.0 steps on average"
    assert ("aec_to_parallel" in report.facts.get("turns", "")) == (name == "Turns")
    if name == "Sound":
        assert report.facts["agent listener"] == "Box (4,) float32 -> Discrete of 3"
        assert report.facts["seeds"] == "the same seed and actions give the same rows, bit for bit"


@pytest.mark.parametrize(
    ("name", "severity", "what", "where", "seen"),
    [
        (
            "SharedDice",
            "error",
            "reset ignores the seed",
            "reset(seed)",
            "obs/agents/speaker at [0]: expected",
        ),
        (
            "LeavesItsSpace",
            "error",
            "obs/agents/speaker leaves its space",
            "step 3",
            "expected within [0, 2], got ",
        ),
        ("Raises", "error", "step() raises KeyError", "step 4", "(tests/envs/rounds.py:"),
        (
            "ForgetsAnObservation",
            "error",
            "agent 'right' is wrong",
            "step 3",
            "expected an observation of it, its last one",
        ),
        (
            "KeepsItsAgents",
            "error",
            "a rule of PettingZoo's",
            "parallel_api_test",
            "set(par_env.agents) == live_agents; got",
        ),
        (
            "NewSpaces",
            "note",
            "a rule of PettingZoo's",
            "parallel_api_test",
            "action_space should return the exact same",
        ),
        (
            "TakesNoOptions",
            "note",
            "reset() raises TypeError in",
            "parallel_api_test",
            "'options' (the env's reset: tests/",
        ),
        (
            "RaisesInTheTest",
            "error",
            "step() raises RuntimeError in",
            "parallel_api_test",
            "episode (tests/envs/rounds.py:",
        ),
    ],
)
def test_a_fault_of_an_env_of_several_agents(
    name: str, severity: str, what: str, where: str, seen: str
) -> None:
    finding = only(checked(name))
    assert finding.severity == severity
    assert (
        finding.what.startswith(what) and finding.where.startswith(where) and seen in finding.seen
    )


def test_pettingzoos_test_says_the_same() -> None:
    """A twin: its own words on envs whose rules our walks do not know."""
    with warnings.catch_warnings(action="ignore"):
        from pettingzoo.test import parallel_api_test

    from tests.envs import rounds

    for cls, broken in (
        (rounds.KeepsItsAgents, True),
        (rounds.NewSpaces, True),
        (rounds.Sound, False),
    ):
        env: Any = cls()
        env.unwrapped = env
        if broken:
            with pytest.raises(AssertionError):
                parallel_api_test(env, num_cycles=20)
        else:
            parallel_api_test(env, num_cycles=20)


def test_every_call_is_announced_also_those_of_pettingzoos_test() -> None:
    told: list[tuple[str, Any]] = []
    check_env(
        EnvFactory(target=f"{ROUNDS}:Duel"),
        steps=20,
        tell=lambda kind, value: told.append((kind, value)),
    )
    begins = [value[0] for kind, value in told if kind == "probe"]
    assert begins == [
        names.MAKING,
        names.FIRST,
        names.AGAIN,
        names.BESIDE,
        names.ANEW,
        names.RULES,
        names.CLOSING,
    ]
    calls = [
        value
        for kind, value in told[told.index(("probe", [names.RULES, None])) :]
        if kind == "call"
    ]
    assert (
        calls[:4] == ["the constructor", "reset(seed, options)", "reset()", "step 1"]
        and calls[-1] == "close()"
    )


@pytest.mark.parametrize("name", ["Turns", "TurnsOnly"])
def test_training_takes_agents_in_turns_as_check_does(name: str) -> None:
    assert checked(name).findings == ()
    made = make(EnvFactory(target=f"{ROUNDS}:{name}"), streams=np.arange(2), seed=0)
    assert made.envs[0].names == ("one", "two")  # type: ignore[attr-defined]
    made.close()


def test_without_pettingzoos_test_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo.test", None)
    report = checked("Duel")
    assert (
        report.ok
        and report.left_out == (names.RULES,)
        and "pettingzoo.test, which is not installed" in report.why
    )


def test_joint_actions_are_in_their_spaces_and_allowed() -> None:
    from tests.envs.rounds import Masked

    joint = Joint(Masked)
    drawn = joint_actions(joint, 50, seed=1)
    assert drawn.shape == (50, 2) and set(np.unique(drawn)) == {0, 1, 2}
    masks = JointMasks(joint, "auto")
    obs, _ = joint.reset(seed=0)
    for row in drawn:
        action = row[None].copy()
        masks(action, obs)
        assert 0 not in action  # forbidden at the beginning
        assert ((action == row) | (row == 0)).all()


# ------------------------------------------------------------------------------------------ old gym


class OldApi:
    """As an env of package gym before 0.26, which need not be installed."""

    observation_space: Any = spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, {}


class NewApi(OldApi):
    """As one of gym 0.26."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(), {}


class OfPackage(NewApi):
    """Its spaces are of package gym, too."""


OfPackage.__module__ = "gym.envs.custom"
OfPackage.observation_space = types.new_class(
    "Box", exec_body=lambda body: body.update(__module__="gym.spaces")
)()


class OldInDisguise(Sound):
    """A Gymnasium env by its class alone."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]


gymnasium.register("old/Api-v0", f"{__name__}:OldApi")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("OldApi", "shimmy.GymV21CompatibilityV0(env=OldApi())"),
        ("NewApi", "shimmy.GymV26CompatibilityV0(env=NewApi())"),
        ("OfPackage", "shimmy.GymV26CompatibilityV0(env=OfPackage())"),
    ],
)
def test_old_gym_is_known_and_its_wrapper_is_named(name: str, call: str) -> None:
    finding = only(checked(name, __name__))
    assert (finding.severity, finding.what) == ("error", "old gym's interface")
    assert call in finding.seen and "of pip install shimmy gym" in finding.seen
    assert ("these are Gymnasium's" in finding.seen) == (name != "OfPackage")


def test_old_gym_behind_an_id() -> None:
    report = check_env(EnvFactory(target="old/Api-v0"), steps=20)
    assert (
        only(report).what == "old gym's interface"
        and "GymV21CompatibilityV0(env=...)" in only(report).seen
    )


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("OldApi", "tests.envs.planted"),
        ("OnlyObs", "tests.envs.planted"),
        ("OldInDisguise", __name__),
    ],
)
def test_old_gyms_methods_in_a_gymnasium_env(name: str, module: str) -> None:
    finding = only(checked(name, module))
    assert (
        "old gym's interface" in finding.cost
        and "shimmy.GymV21CompatibilityV0(env=make_env())" in finding.cost
    )
    assert "step returns (obs, reward, terminated, truncated, info)" in finding.cost


def test_the_advice_names_what_can_be_called() -> None:
    assert "env=make_env())" in advice(OldApi(), "old/Api-v0") and "env=make())" in advice(
        OldApi(), "a.b:make"
    )


# ------------------------------------------------------------------------------- running statistics


def observations() -> Any:
    return NormalizeObservation(Sound())


def rewards() -> Any:
    return gymnasium.wrappers.TimeLimit(NormalizeReward(Sound()), 20)


def vector_observations(num_envs: int) -> Any:
    return vectors.NormalizeObservation(SyncVectorEnv([Sound] * num_envs))


def vector_rewards(num_envs: int) -> Any:
    return vectors.NormalizeReward(SyncVectorEnv([Sound] * num_envs))


def inside_a_vector(num_envs: int) -> Any:
    return SyncVectorEnv([observations] * num_envs)


@pytest.mark.parametrize(
    ("name", "wrapper", "setting"),
    [
        ("observations", "gymnasium.wrappers.NormalizeObservation", "algorithm.normalize_obs=true"),
        ("rewards", "gymnasium.wrappers.NormalizeReward", "rewards.normalize=true"),
        (
            "vector_observations",
            "gymnasium.wrappers.vector.NormalizeObservation",
            "algorithm.normalize_obs=true",
        ),
        ("vector_rewards", "gymnasium.wrappers.vector.NormalizeReward", "rewards.normalize=true"),
        (
            "inside_a_vector",
            "gymnasium.wrappers.NormalizeObservation",
            "algorithm.normalize_obs=true",
        ),
    ],
)
def test_running_statistics_are_found(name: str, wrapper: str, setting: str) -> None:
    report = checked(name, __name__)
    finding = next(f for f in report.findings if "keeps running statistics" in f.what)
    assert (
        finding.severity == "error"
        and finding.seen.endswith(wrapper)
        and f"--set {setting}" in finding.cost
    )
    assert {f.what for f in report.findings if f.severity == "error"} == {finding.what}, (
        report.findings
    )
