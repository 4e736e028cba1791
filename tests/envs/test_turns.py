"""Games whose agents act in turns: every row is what the AEC interface gives, and players change
seats.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise import api
from equipoise.envs import make
from equipoise.envs.families.pettingzoo import dealt
from equipoise.envs.families.turns import Seats, Turns, at_once, is_turns, seated, turns_of
from equipoise.types import EnvFactory
from tests.envs.games import Duel
from tests.envs.rounds import TurnsOnly as Bits

pytest.importorskip("pettingzoo")

NAMES = ["ann", "bob", "cid"]


class Draughts:
    """Three agents; whose turn it is is drawn, an agent may move twice, and one after the other
    falls out.

    What an agent sees: its number, how many moves there were, the last action, and whether it is to
    move. A move pays the mover its action and takes it from the others.
    """

    metadata: dict[str, Any] = {"name": "draughts"}
    render_mode = None
    masks = "none"  # "obs": in the observation; "info": in the infos

    def __init__(self, masks: str = "none") -> None:
        self.possible_agents, self.masks = list(NAMES), masks
        self.agents: list[str] = []
        self.log: list[tuple[str, int]] = []

    def agent_iter(self) -> None: ...
    def last(self) -> None: ...

    def observation_space(self, agent: str) -> Any:
        return self._spaces[agent]

    @property
    def _spaces(self) -> dict[str, Any]:
        box = spaces.Box(-1, 99, (4,), np.float32)
        if self.masks == "obs":
            both = spaces.Dict({"observation": box, "action_mask": spaces.MultiBinary(3)})
            return dict.fromkeys(NAMES, both)
        return dict.fromkeys(NAMES, box)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def allowed(self) -> Any:
        return np.array([1, self.moves % 2, 1], np.int8)

    def observe(self, agent: str) -> Any:
        seen = np.array(
            [NAMES.index(agent), self.moves, self.played, agent == self.agent_selection], np.float32
        )
        if self.masks != "obs":
            return seen
        mask = self.allowed() if agent == self.agent_selection else np.zeros(3, np.int8)
        return {"observation": seen, "action_mask": mask}

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents, self.moves, self.played = list(NAMES), 0, -1
        self._zero()
        self.terminations, self.truncations = (
            dict.fromkeys(NAMES, False),
            dict.fromkeys(NAMES, False),
        )
        self._next()

    def _zero(self) -> None:
        self.rewards = dict.fromkeys(self.agents, 0.0)

    def _next(self) -> None:
        gone = [agent for agent in self.agents if self.terminations[agent]]
        self.agent_selection = gone[0] if gone else NAMES[0]
        if not gone and self.agents:
            self.agent_selection = self.agents[self.rng.integers(len(self.agents))]
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if self.masks == "info":
            self.infos[self.agent_selection] = {"action_mask": self.allowed()}

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            assert action is None
            self.agents.remove(self.agent_selection)
            self._zero()
            self._next()
            return
        assert action is not None
        assert self.masks == "none" or self.allowed()[int(action)]
        self.log.append((self.agent_selection, int(action)))
        self.moves, self.played = self.moves + 1, int(action)
        self._zero()
        self.rewards = {
            a: float(action) * (1 if a == self.agent_selection else -1) for a in self.agents
        }
        if self.moves % 5 == 0:
            fallen = self.agents[-1]
            self.terminations[fallen] = True
            if len(self.agents) == 2:  # nobody is left to play with
                self.terminations = dict.fromkeys(NAMES, True)
        self._next()

    def close(self) -> None: ...


def played_by_hand(
    env: Draughts, seed: int, choose: Any
) -> list[tuple[str, int, dict[str, float], list[str], list[str]]]:
    """The moves of one episode through the AEC interface: (mover, action, rewards, agents before
    it, those that end).
    """
    env.reset(seed=seed)
    rows = []
    while env.agents:
        mover, before = env.agent_selection, list(env.agents)
        action = choose(env.moves)
        env.step(action)
        rewards = dict(env.rewards)
        ended = [agent for agent in before if env.terminations[agent]]
        rows.append((mover, action, rewards, before, ended))
        while env.agents and env.terminations[env.agent_selection]:
            env.step(None)
    return rows


@pytest.mark.parametrize("masks", ["none", "obs", "info"])
def test_every_row_is_what_the_aec_interface_gives(masks: str) -> None:
    def choose(moves: int) -> int:
        return (0, 2)[moves % 2]  # always allowed

    env: Any = Turns(Draughts(masks))
    for seed in range(20):
        expected = played_by_hand(Draughts(masks), seed, choose)
        seen, _ = env.reset(seed=seed)
        for t, (mover, _, rewards, before, ended) in enumerate(expected):
            assert env.agents == before == sorted(seen)
            for agent in before:
                inner = seen[agent]["observation"] if masks == "obs" else seen[agent]["obs"]
                assert inner.tolist() == [
                    NAMES.index(agent),
                    t,
                    choose(t - 1) if t else -1,
                    agent == mover,
                ]
                mask = [1, t % 2 if masks != "none" else 1, 1] if agent == mover else [1, 0, 0]
                assert np.asarray(seen[agent]["action_mask"]).tolist() == mask
                assert env.observation_space(agent).contains(seen[agent])
            seen, got, terminated, truncated, infos = env.step(
                {agent: choose(t) if agent == mover else 0 for agent in before}
            )
            assert (
                got == rewards
                and not any(truncated.values())
                and infos.keys() == seen.keys() == set(before)
            )
            # each with its last observation
            assert [agent for agent in before if terminated[agent]] == ended
            seen = {agent: seen[agent] for agent in env.agents}
        assert env.agents == []


def test_the_ring_gets_these_rows_and_check_agrees_with_training() -> None:
    for masks in ("none", "obs", "info"):
        target, kwargs = "tests.envs.test_turns:Draughts", {"masks": masks}
        made = make(EnvFactory(target=target, kwargs=kwargs), streams=np.arange(2), seed=3)
        env = dealt(made, policies=("main",), route={})
        ended = 0
        for _ in range(60):
            rows: Any = env.recv()["main"]  # type: ignore[index]
            seen = rows.obs["observation" if masks == "obs" else "obs"].reshape(2, 3, 4)
            moves = (seen[:, :, 3] == 1) & ~rows.terminated.reshape(2, 3)
            assert (moves.sum(axis=1) <= 1).all()  # at most one agent moves
            assert (rows.obs["action_mask"].reshape(2, 3, 3).sum(axis=2)[moves] > 1).all()
            ended += int(rows.terminated.sum())
            env.send({"main": np.zeros(6, np.int64)})
        assert ended >= 12
        env.close()
        report = api.check(target, env_kwargs=kwargs, steps=40)
        assert [finding for finding in report.findings if finding.severity == "error"] == []
        assert "one step is one move" in report.facts["turns"]


def test_an_agent_that_stays_after_its_end_is_one_sentence() -> None:
    class Stays(Draughts):
        def step(self, action: Any) -> None:
            if action is not None:
                super().step(action)

    env = Turns(Stays())
    env.reset(seed=0)
    for _ in range(4):
        env.step(dict.fromkeys(env.agents, 0))
    with pytest.raises(
        ValueError,
        match=r"has ended: expected step\(None\) to take it out of env.agents, got \['ann'",
    ):
        env.step(dict.fromkeys(env.agents, 0))


def test_which_way_an_env_is_taken() -> None:
    from tests.envs.rounds import Turns as Rounds

    assert is_turns(Bits()) and not is_turns(Duel())
    assert "one step is one move" in turns_of(at_once(Bits))
    assert "aec_to_parallel" in turns_of(at_once(Rounds)) and turns_of(Duel()) == ""
    assert turns_of(Seats(at_once(Rounds))) == turns_of(at_once(Rounds))


@pytest.mark.parametrize(
    "name", ["classic/connect_four_v3", "classic/connect_four-v3", "classic/tictactoe_v3"]
)
def test_pettingzoos_games_are_envs_like_others(name: str, tmp_path: Any) -> None:
    report = api.check(f"pettingzoo:{name}", steps=40)
    assert not report.findings and "one step is one move" in report.facts["turns"]


# -------------------------------------------------------------------------------------------- seats


def test_seats_are_dealt_anew_and_the_rows_follow_the_players() -> None:
    plain, seats = Turns(Draughts()), Seats(Turns(Draughts()))
    orders = set()
    for seed in range(30):
        expected, _ = plain.reset(seed=seed)
        seen, _ = seats.reset(seed=seed)
        seat = {player: NAMES[int(seen[player]["obs"][0])] for player in NAMES}
        orders.add(tuple(seat.values()))
        while plain.agents:
            assert {seat[player] for player in seats.agents} == set(plain.agents)
            for player in seats.agents:
                np.testing.assert_equal(seen[player], expected[seat[player]])
            acts = {agent: NAMES.index(agent) for agent in plain.agents}
            expected, *rest = plain.step(acts)
            seen, *ours = seats.step({player: acts[seat[player]] for player in seats.agents})
            for by_seat, by_player in zip(rest[:3], ours[:3], strict=True):
                assert {
                    seat[player]: value for player, value in by_player.items() if player in seat
                } == by_seat
    assert orders == set(itertools.permutations(NAMES))


def test_seats_are_refused_where_there_are_none() -> None:
    with pytest.raises(ValueError, match="seats: expected one of fixed, swap, got 'random'"):
        seated(Bits, "random")
    with pytest.raises(ValueError, match="CartPole-v1.*takes no argument 'seats'"):
        make(
            EnvFactory(target="CartPole-v1", kwargs={"seats": "swap"}), streams=np.arange(1), seed=0
        )
    with pytest.raises(
        ValueError, match="seats are those of an env of several agents, got seats='swap'"
    ):
        make(
            EnvFactory(
                target="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
                kwargs={"seats": "swap"},
            ),
            streams=np.arange(1),
            seed=0,
        )
    odd = Duel()
    odd.action_space = lambda agent: spaces.Discrete(2 + (agent == odd.possible_agents[1]))  # type: ignore[method-assign]
    with pytest.raises(
        ValueError,
        match="seats=swap: expected agents with the same action_space, got .* take seats=fixed",
    ):
        Seats(odd)


def spoiled(method: str, **given: Any) -> Turns:
    """A game whose env has these attributes after each call of ``method``."""
    game = Turns(Draughts())
    call = getattr(game.env, method)

    def called(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        for name, value in given.items():
            setattr(game.env, name, value)

    setattr(game.env, method, called)
    return game


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent_selection": "zoe"}, "agent_selection: expected one of env.agents .*, got 'zoe'"),
        ({"agent_selection": None}, "agent_selection: expected one of env.agents .*, got None"),
        (
            {"agents": ["ann", "new"]},
            "env.agents: expected agents of possible_agents .*, got 'new'",
        ),
        ({"rewards": None}, "env.rewards: expected a dict with one for each agent, got NoneType"),
        (
            {"terminations": [False]},
            "env.terminations: expected a dict with one for each agent, got list",
        ),
    ],
)
def test_a_game_that_breaks_the_interface_is_told_what_to_give(
    given: dict[str, Any], said: str
) -> None:
    game = spoiled("step", **given)
    game.reset(seed=0)
    with pytest.raises(ValueError, match=said):
        game.step(dict.fromkeys(game.agents, 0))


def test_a_game_that_begins_without_agents_is_told_so() -> None:
    game = spoiled("reset", agents=[])
    with pytest.raises(
        ValueError, match="expected the agents of a game that begins, got none after reset"
    ):
        game.reset(seed=0)


def test_a_game_without_infos_has_no_masks_in_them() -> None:
    game = spoiled("reset", infos=None)
    seen, _ = game.reset(seed=0)
    assert seen[game.env.agent_selection]["action_mask"].tolist() == [1, 1, 1]
