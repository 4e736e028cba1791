"""An evaluation counts every stream's episodes alike, and a fixed policy's returns are what they
are.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from equipoise.actors.evaluator import Evaluator
from equipoise.actors.forward.noise import Noise
from equipoise.actors.playing import FixedPolicy
from equipoise.envs import make
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.families.pettingzoo import dealt
from equipoise.record.report import repeated
from equipoise.types import EnvFactory
from tests.envs.games import Duel


class Still:
    """Always pushes left."""

    def initial_state(self, n: int) -> dict[str, Any]:
        return {}


class Left:
    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return torch.zeros(len(first), dtype=torch.int64), state

    def explore(self, stream: Any, streams: int, step: int) -> Any:
        """At random for its first million steps, then left for ever."""
        return {"random": step < 1_000_000}

    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        return (noise[:, 0] * 2).long(), {}, state


class Explorer(Left):
    def act(
        self, net: Any, obs: Any, first: Any, state: Any, *, explore: Any, noise: torch.Tensor
    ) -> Any:
        return (noise[:, 0] * 2 * explore["random"]).long(), {}, state


def evaluate(
    episodes: int,
    streams: int,
    *,
    deterministic: bool = True,
    seed: int = 0,
    kind: type[Left] = Left,
    step: int = 0,
) -> list[float]:
    made_env = make(EnvFactory(target="CartPole-v1"), streams=np.arange(streams), seed=seed)
    env = dealt(made_env, policies=("main",), route={})
    made: Any = kind()
    policies = {"main": FixedPolicy(algorithm=made, net=Still(), noise=Noise(2))}
    exam = Evaluator(
        policies,
        env,
        envs=streams,
        episodes=episodes,
        seed=seed,
        step=None if deterministic else step,
    )
    while not exam.done:
        exam.tick()
    exam.close()
    return exam.returns["main"]


def test_as_many_episodes_as_asked_for() -> None:
    assert len(evaluate(20, 20)) == 20
    assert len(evaluate(7, 3)) == 7


def test_a_policy_that_always_pushes_left_falls_within_a_dozen_steps() -> None:
    returns = evaluate(50, 10)
    assert min(returns) >= 8 and max(returns) <= 11


def test_the_stochastic_policy_draws_and_the_seed_decides() -> None:
    a, b, c = (evaluate(30, 10, deterministic=False, seed=s) for s in (1, 1, 2))
    assert a == b != c
    assert np.mean(a) > 15


def test_a_stochastic_policy_explores_as_at_its_step() -> None:
    left = evaluate(30, 10, kind=Explorer)
    assert evaluate(30, 10, deterministic=False, kind=Explorer, step=2_000_000) == left
    assert evaluate(30, 10, deterministic=False, kind=Explorer, step=1_000) != left


class Numbered(gymnasium.Env[Any, Any]):
    """Episodes of 2, 3, 4, ... steps; ``info`` tells the step, and in its last step the length of
    an even episode.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.length = 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.length = 0, self.length + 1
        return np.zeros(2, np.float32), {"t": 1000, "even": 1000}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == self.length
        even = {"even": self.length} if over and self.length % 2 == 0 else {}
        return np.zeros(2, np.float32), 1.0, over, False, {"t": self.t, **even}


def test_numbers_of_info_are_of_the_episodes_that_count() -> None:
    """Four streams, of which two have one episode more to play: lengths 2, 3, 4, 2, 3, 4, 2, 3, 2,
    3.
    """
    made: Any = Left()
    factory, names = EnvFactory(target=f"{__name__}:Numbered"), ("t", "even", "nowhere")
    env = dealt(
        make(factory, streams=np.arange(4), seed=0, metrics=names), policies=("main",), route={}
    )
    policies = {"main": FixedPolicy(algorithm=made, net=Still(), noise=Noise(2))}
    exam = Evaluator(policies, env, envs=4, episodes=10, seed=0, metrics=names)
    assert exam.info == dict.fromkeys(
        f"{name}/{what}" for name in names for what in ("last", "mean")
    )
    while not exam.done:
        exam.tick()
    exam.close()
    lengths = [2, 3, 4, 2, 3, 4, 2, 3, 2, 3]
    assert sorted(exam.returns["main"]) == sorted(lengths)
    assert exam.info == {
        "t/last": pytest.approx(np.mean(lengths)),
        "t/mean": pytest.approx(np.mean([(n + 1) / 2 for n in lengths])),
        "even/last": pytest.approx(np.mean([2, 4, 2, 4, 2, 2])),
        "even/mean": pytest.approx(np.mean([2, 4, 2, 4, 2, 2])),
        "nowhere/last": None,
        "nowhere/mean": None,
    }


def aborting(
    *, how: str = "raise", every: int = 60, length: int = 20, episodes: int = 12
) -> Evaluator:
    """Of an env that gives 1 a step, and fails; four streams."""
    factory = EnvFactory(
        target="tests.envs.faulty:Faulty", kwargs={"how": how, "every": every, "length": length}
    )
    env = make(factory, streams=np.arange(4), seed=0, failures=Failures(on_nonfinite="drop"))
    made: Any = Left()
    policies = {"main": FixedPolicy(algorithm=made, net=Still(), noise=Noise(2))}
    exam = Evaluator(
        policies, dealt(env, policies=("main",), route={}), envs=4, episodes=episodes, seed=0
    )
    for _ in range(20_000):
        if exam.done:
            break
        exam.tick()
    exam.close()
    assert exam.done and env.failures is not None and env.failures.counts[0] > 0
    return exam


def test_an_aborted_episode_is_played_again_and_never_counted() -> None:
    assert aborting().returns == {"main": [20.0] * 12}


def test_an_env_that_finishes_no_episode_does_not_keep_an_evaluation_for_ever() -> None:
    assert aborting(every=8, length=10_000).returns == {"main": []}


class Late(Duel):
    """The right agent comes with the third step; "nobody" never does."""

    possible_agents = ["left", "right", "nobody"]
    observations = dict.fromkeys(possible_agents, Duel.observations["left"])
    actions = dict.fromkeys(possible_agents, Duel.actions["left"])

    def begin(self) -> None:
        super().begin()
        self.agents = ["left"]

    def play(self, actions: Any) -> dict[str, float]:
        self.both = (0, 0)
        gain = dict.fromkeys(self.agents, 1.0)
        if self.t == 3:
            self.agents = ["left", "right"]
        return gain

    def seen(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, np.zeros(2, np.float32))


@pytest.mark.parametrize("policies", [("main",), ("main", "other")])
def test_agents_that_are_not_there_keep_no_evaluation_waiting(policies: Any) -> None:
    made: Any = Left()
    route = {"right": "other"} if len(policies) > 1 else {}
    env = make(EnvFactory(target="tests.actors.test_evaluator:Late"), streams=np.arange(3), seed=0)
    player = FixedPolicy(algorithm=made, net=Still(), noise=Noise(1))
    exam = Evaluator(
        dict.fromkeys(policies, player),
        dealt(env, policies=policies, route=route),
        envs=3,
        episodes=7,
        seed=0,
    )
    for _ in range(100):
        if exam.done:
            break
        exam.tick()
    exam.close()
    assert exam.done
    played = [exam.returns[name].count(worth) for name in policies for worth in (8.0, 5.0)]
    assert played == ([7, 7] if len(policies) == 1 else [7, 0, 0, 7])


def test_two_players_that_repeat_a_game_are_told_by_the_number_of_different_games() -> None:
    """A game that is seeded differs from episode to episode; one of seats that swap is two; else it
    is one again and again.
    """

    def games(target: str, **kwargs: Any) -> dict[str, Any]:
        factory = EnvFactory(target=target, kwargs=kwargs)
        env = dealt(make(factory, streams=np.arange(3), seed=0), policies=("main",), route={})
        policies = {"main": FixedPolicy(algorithm=First(), net=Still(), noise=Noise(1))}  # type: ignore[arg-type]
        exam = Evaluator(policies, env, envs=3, episodes=12, seed=0)
        while not exam.done:
            exam.tick()
        exam.close()
        return dict(exam.info)

    pytest.importorskip("pettingzoo")
    assert games("pettingzoo:classic/tictactoe_v3") == {"games": 12, "different_games": 1}
    assert games("pettingzoo:classic/tictactoe_v3", seats="swap") == {
        "games": 12,
        "different_games": 2,
    }
    drawn = games("tests.envs.test_turns:Draughts")
    assert drawn["games"] == 12 and drawn["different_games"] > 6
    assert repeated({"games": 12, "different_games": 1}).startswith("12 games, 1 different one")
    assert repeated(drawn | {"games": drawn["different_games"]}) == repeated({}) == ""


class First(Left):
    """The first action that is allowed."""

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        return obs["action_mask"].argmax(dim=-1), state
