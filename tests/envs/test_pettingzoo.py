"""Agents are streams: who gets which row, who may be dealt where, what a failure costs, and what a
resume brings back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import make
from equipoise.envs.failures import capsule
from equipoise.envs.failures.capsule import EnvFailed, Failures
from equipoise.envs.failures.reproduce import reproduce
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.families.joint import Joint, blank, is_parallel
from equipoise.envs.families.pettingzoo import PettingZooEnv, deal, dealt
from equipoise.envs.families.turns import is_turns
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.toys.ruler import reward
from equipoise.types import EnvFactory
from tests.envs import herd
from tests.envs.games import Duel, Game

HERD = "tests.envs.herd:ExactHerd"
TWO = {"goats": (0, 1), "dog": (2,)}


FIELDS = ("obs", "reward", "terminated", "truncated", "first", "valid", "stream")


def build(
    target: str = HERD,
    *,
    envs: Any = (0, 1),
    policies: Any = ("goats", "dog"),
    failures: Any = None,
    **kwargs: Any,
) -> Any:
    factory = EnvFactory(target=target, kwargs=kwargs)
    route = (
        {"a*": "goats", "b0": "dog"}
        if policies == tuple(TWO)
        else {name: name for name in policies[1:]}
    )
    return dealt(
        make(factory, streams=np.array(envs), seed=3, failures=failures),
        policies=policies,
        route=route,
    )


def actions(parts: Any) -> Any:
    return {policy: (ts.stream + 1) % 3 for policy, ts in parts.items()}


def walk(env: Any, steps: int) -> list[Any]:
    """Copies of what was told: every field by policy."""
    rows = []
    for _ in range(steps):
        parts = env.recv()
        rows.append(
            {
                name: {p: tree.map(np.array, getattr(ts, name)) for p, ts in parts.items()}
                for name in FIELDS
            }
        )
        env.send(actions(parts))
    return rows


def parts(env: Any) -> Any:
    """What was told last."""
    return env._parts


def test_every_agent_gets_its_rows_by_the_law() -> None:
    env = build(envs=(4, 7))
    rows, seen = walk(env, 200), Counter[str]()
    for r, row in enumerate(rows):
        for policy, places in TWO.items():
            for i, stream in enumerate(row["stream"][policy].tolist()):
                assert stream == (4, 7)[i // len(places)] * 3 + places[i % len(places)]
                of = herd.law(stream, r)
                life, t = of.shown[r]
                shown = row["obs"][policy][i].tolist()
                assert shown == (
                    [stream, life, t, 7][: len(shown)] if life >= 0 else [0] * len(shown)
                )
                assert row["first"][policy][i] == of.first[r]
                acted = r > 0 and of.here[r - 1]
                assert row["valid"][policy][i] == acted
                ended = of.ended[r - 1] if acted else (False, False)
                assert (row["terminated"][policy][i], row["truncated"][policy][i]) == ended
                got = float(reward(*of.shown[r - 1], (stream + 1) % 3)) if acted else 0.0
                assert row["reward"][policy][i] == got
                seen["died"] += any(ended)
                seen["came back"] += (
                    of.first[r] and of.here[r] and r > 0 and not of.first[r - 1] and life > 0
                )
                seen["absent"] += life < 0
    assert min(seen.values()) > 20, seen


def test_with_one_policy_agents_are_plain_streams() -> None:
    env: Any = dealt(
        make(EnvFactory(target="tests.envs.games:Duel"), streams=np.arange(3), seed=0),
        policies=("main",),
        route={},
    )
    told = env.recv()
    ts = told["main"]
    assert ts.obs.shape == (6, 2) and ts.stream.tolist() == [0, 1, 2, 3, 4, 5]
    env.send({"main": np.array([0, 1, 0, 1, 0, 1])})
    assert env.recv() is told and told["main"] is ts, "the same objects each time"
    assert ts.reward.tolist() == [-2.0, 2.0] * 3 and ts.valid.all()
    assert env.spec.policies["main"].places == (0, 1) and env.spec.env.agents == ("left", "right")


def test_an_env_of_one_agent_has_one_entry() -> None:
    env: Any = dealt(
        make(EnvFactory(target="CartPole-v1"), streams=np.arange(3), seed=0),
        policies=("main",),
        route={},
    )
    told = env.recv()
    ts = told["main"]
    assert ts.obs.shape == (3, 4) and env.spec.policies == {"main": env.spec.env}
    env.send({"main": np.zeros(3, np.int64)})
    assert env.recv() is told and told["main"] is ts and ts.valid.all()
    env.close()


@pytest.mark.parametrize("steps", [0, 1, 7, 40])
def test_an_exact_env_goes_on_to_the_same_rows(steps: int) -> None:
    env, other = build(), build()
    walk(env, steps)
    if steps:
        env.recv()
    other.load(env.state())
    if steps:
        assert other.resumed == {"exact": 2, "replay": 0, "restart": 0}
        assert str(parts(other)) == str(parts(env))
        for one in (env, other):
            one.send(actions(parts(one)))
    assert str(walk(env, 30)) == str(walk(other, 30))


def test_another_env_is_brought_back_by_replay() -> None:
    env, other = (build("tests.envs.games:Signal", policies=("main", "listener")) for _ in range(2))
    walk(env, 21)  # in its third episode, whose seed was drawn
    env.recv()
    other.load(env.state())
    assert other.resumed == {"exact": 0, "replay": 2, "restart": 0}
    for one in (env, other):
        one.send(actions(parts(one)))
    assert str(walk(env, 20)) == str(walk(other, 20))


def test_an_env_that_remembers_more_restarts_and_says_so() -> None:
    env, other = (build("tests.envs.herd:Herd") for _ in range(2))
    walk(env, 60)
    env.recv()
    other.load(env.state())
    assert other.resumed["restart"] == 2 and set(other.restarts) == {0, 3}
    other.send(actions(parts(other)))
    for ts in other.recv().values():
        assert ts.first.all() and not ts.valid.any() and not ts.reward.any()


# ----------------------------------------------------------------------------------------- failures


def test_an_exception_aborts_the_episodes_of_all_agents_of_its_env(tmp_path: Any) -> None:
    failures = Failures(capsules=tmp_path)
    env = build("tests.envs.test_pettingzoo:Fragile", policies=("main",), failures=failures)
    rows = walk(env, 12)
    for r, row in enumerate(rows):
        failed = np.array([r % 6 == 0, r % 6 == 0, False, False])  # env 0 raises in its sixth step
        seam = np.array([False, False, r % 9 == 0, r % 9 == 0])
        assert row["first"]["main"].tolist() == (failed | seam).tolist(), r
        assert row["valid"]["main"].tolist() == (~(failed | seam)).tolist()
        assert not row["terminated"]["main"].any() and row["truncated"]["main"][:2].sum() == 0
    assert failures.counts[0] == 1
    (path,) = tmp_path.iterdir()
    played = reproduce(capsule.read(path))
    assert played.same and played.steps == 6


class Fragile(Duel):
    def __init__(self, stream: int) -> None:
        self.breaks = stream == 0

    def play(self, actions: Any) -> Any:
        if self.breaks and self.t == 6:
            raise ArithmeticError("the sixth step")
        return super().play(actions)


class Wrong(Duel):
    """``what`` is wrong with the second step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.t == 2:
            if self.what == "obs":
                del obs["left"]
            elif self.what == "reward":
                del reward["left"]
            elif self.what == "nan":
                reward["left"] = float("nan")
            elif self.what == "left":
                self.agents = ["right"]
            elif self.what == "stranger":
                self.agents = [*self.agents, "middle"]
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("obs", "agent 'left': expected an observation of it"),
        ("reward", "agent 'left' acted: expected its reward, terminated and truncated"),
        ("nan", "reward: expected a finite number"),
        ("left", "agent 'left' left env.agents: expected terminated or truncated with it"),
        ("stranger", "agents: expected names in possible_agents, .*, got 'middle'"),
    ],
)
def test_what_an_env_tells_wrong_is_said(what: str, said: str) -> None:
    env = build("tests.envs.test_pettingzoo:Wrong", policies=("main",), what=what)
    walk(env, 2)
    with pytest.raises(RuntimeError, match=said) as refused:
        env.recv()
    assert isinstance(refused.value.__cause__ or refused.value, WrongValue), (
        "which is told in a line"
    )


# -------------------------------------------------------------------------------------- the dealing


def test_the_dealing() -> None:
    agents = ("archer_0", "knight_0", "archer_1", "knight_1")
    assert deal(agents, ["main"], {}) == {"main": (0, 1, 2, 3)}
    assert deal(agents, ["only"], {}) == {"only": (0, 1, 2, 3)}
    assert deal(agents, ["main", "bow"], {"archer_*": "bow"}) == {"main": (1, 3), "bow": (0, 2)}
    exact_first = {"*": "a", "knight_1": "b"}
    assert deal(agents, ["a", "b"], exact_first) == {"a": (0, 1, 2), "b": (3,)}


@pytest.mark.parametrize(
    ("policies", "route", "said"),
    [
        (
            ["a", "b"],
            {"archer_0": "a"},
            "route: agent 'knight_0' has none, so it: expected one of the policies",
        ),
        (["a", "b"], {"*": "c"}, r"route.\*: expected one of the policies \['a', 'b'\], got 'c'"),
        (
            ["main", "b"],
            {},
            r"policies.b: no agent is dealt to it; route.AGENT=b does, of archer_0, knight_0",
        ),
        (
            ["main"],
            {"archer_1": "main"},
            "unknown agent 'archer_1' in route; .* did you mean 'archer_0'",
        ),
    ],
)
def test_a_dealing_that_cannot_be(policies: Any, route: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        deal(("archer_0", "knight_0"), policies, route)


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="policies.main: expected agents with the same observation space, got .* of 'a0'",
    ):
        build(policies=("main",))
    with pytest.raises(
        ValueError,
        match="CartPole-v1: expected a PettingZoo parallel env for the policies goats, dog",
    ):
        build("CartPole-v1")
    with pytest.raises(UnsupportedSpace, match="test_pettingzoo:Odd"):
        build("tests.envs.test_pettingzoo:Odd", policies=("main",))


class Turns(Duel):
    def last(self) -> None: ...
    def agent_iter(self) -> None: ...


class Odd(Duel):
    actions = dict.fromkeys(Duel.possible_agents, spaces.Text(3))


def test_an_env_is_known_by_what_it_has() -> None:
    assert is_parallel(Duel()) and not is_turns(Duel())
    assert is_turns(Turns()) and not is_parallel(Turns())
    assert not is_parallel(object())
    with pytest.raises(ValueError, match="expected possible_agents with names of their own"):
        Joint(Game)


def test_a_blank_row_is_of_its_space() -> None:
    space = spaces.Dict(
        {
            "near": spaces.Box(1, 2, (2,)),
            "which": spaces.Discrete(3, start=5),
            "action_mask": spaces.MultiBinary(4),
        }
    )
    got = blank(space)
    assert space.contains({**got, "which": int(got["which"])})
    assert (
        got["near"].tolist() == [1, 1]
        and got["which"] == 5
        and got["action_mask"].tolist() == [1] * 4
    )


# --------------------------------------------------------------------------------- the real package


def test_pettingzoo_itself_agrees() -> None:
    """Its envs are known for what they are, and one of them is dealt."""
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic.rps import rps
    from pettingzoo.utils import aec_to_parallel

    assert is_parallel(aec_to_parallel(rps.env())) and is_turns(rps.env())
    env = build("pettingzoo:classic/rps_v2", policies=("main",), max_cycles=7)
    assert isinstance(env, PettingZooEnv) and env.spec.env.agents == ("player_0", "player_1")
    rows = walk(env, 40)
    assert sum(row["valid"]["main"].sum() for row in rows) > 100 and any(
        row["truncated"]["main"].any() for row in rows
    )


class Masked(Game):
    """Both may do everything, but "b" nothing once ``after`` steps are done (``gone``: it leaves
    then, with that mask).

    The mask is called ``legal``.
    """

    possible_agents = ["a", "b"]
    space = spaces.Dict({"legal": spaces.MultiBinary(3), "x": spaces.Box(0, 9, (1,), np.float32)})
    observations = {"a": space, "b": space}
    actions = {"a": spaces.Discrete(3), "b": spaces.Discrete(3)}

    def __init__(self, after: int = 3, gone: bool = False) -> None:
        self.after, self.gone = after, gone

    def play(self, actions: Any) -> dict[str, float]:
        return dict.fromkeys(self.possible_agents, 1.0)

    def seen(self) -> dict[str, Any]:
        legal = np.full(3, self.t < self.after, np.int8)
        x = np.full(1, self.t, np.float32)
        return {"a": {"legal": np.ones(3, np.int8), "x": x}, "b": {"legal": legal, "x": x}}

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.gone and self.t >= self.after:
            terminated["b"] = "b" in actions
            self.agents = [agent for agent in self.agents if agent != "b"]
        return obs, reward, terminated, truncated, info


def masked(choice: str, failures: Failures | None = None, **kwargs: Any) -> Any:
    factory = EnvFactory(
        target="tests.envs.test_pettingzoo:Masked", action_mask=choice, kwargs=kwargs
    )
    return dealt(
        make(factory, streams=np.arange(2), seed=0, failures=failures), policies=("main",), route={}
    )


STUCK = (
    r"Masked.*, stream 0: agent 'b', obs/legal: expected at least one action allowed \(an agent "
    r"that cannot act leaves .*, got none"
)


def test_an_agent_that_may_do_nothing_is_named() -> None:
    env = masked("obs/legal")
    assert env.spec.policies["main"].mask == ("legal",)
    for _ in range(3):
        env.recv()
        env.send({"main": np.zeros(4, np.int64)})
    with pytest.raises(WrongValue, match=STUCK):
        env.recv()
    assert masked("none").spec.policies["main"].mask == ()
    with pytest.raises(WrongValue, match=STUCK):  # the first observation of an episode, too
        masked("obs/legal", after=0).recv()


def test_an_agent_that_may_do_nothing_costs_its_env_an_episode(tmp_path: Any) -> None:
    failures = Failures(capsules=tmp_path)
    rows = walk(masked("obs/legal", failures), 12)
    for r, row in enumerate(rows):
        assert row["first"]["main"].tolist() == [r % 3 == 0] * 4, r
        assert row["valid"]["main"].tolist() == [r % 3 > 0] * 4
        assert not row["terminated"]["main"].any() and not row["truncated"]["main"].any()
    assert failures.counts[0] == 6
    played = reproduce(capsule.read(min(tmp_path.iterdir())))
    assert played.same and played.steps == 3
    with pytest.raises(
        EnvFailed, match="Masked.*, stream 0 failed 3 times in a row without one step that worked"
    ):
        masked("obs/legal", Failures(), after=0).recv()


def test_the_mask_of_an_agent_that_is_not_there_is_not_read() -> None:
    failures = Failures()
    rows = walk(masked("obs/legal", failures, gone=True), 8)
    assert failures.counts[0] == 0 and [int(row["valid"]["main"].sum()) for row in rows[:6]] == [
        0,
        4,
        4,
        4,
        2,
        2,
    ]
    assert rows[3]["terminated"]["main"].tolist() == [False, True, False, True]


@pytest.mark.parametrize("name", ["classic/tictactoe_v4", "classic/rps_v3", "rps_v2"])
def test_a_name_that_pettingzoo_does_not_have_is_one_error(name: str) -> None:
    pytest.importorskip("pettingzoo")
    with pytest.raises(
        ValueError,
        match=f"unknown PettingZoo env '{name}' in pettingzoo:{name}; did you mean 'classic/",
    ):
        make(EnvFactory(target=f"pettingzoo:{name}"), streams=np.arange(1), seed=0)


def test_masks_in_infos_of_agents_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match="expected action_mask=auto, obs/KEY or none for an env of several agents, got 'info'",
    ):
        masked("info")
