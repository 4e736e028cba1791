"""Worlds outside, row by row: what a world says becomes rows, whatever a connection does to it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from equipoise import frames
from equipoise.chaos.ledger import COUNTS
from equipoise.envs import make
from equipoise.envs.base import SENT
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.worlds.addresses import Address
from equipoise.envs.worlds.protocol import Reader
from equipoise.tree import ArraySpec
from equipoise.types import EnvFactory
from tests.worlds.proxy import Proxy

sys.path.insert(0, str(Path(__file__).parents[2] / "clients"))
import world as client  # type: ignore[import-not-found]

OBSERVATION, ACTION = client.box([2], -100, 100), client.discrete(3)
RIGHT = "a-token-of-24-letters-xx"
HELLO = {
    "kind": "hello",
    "version": 1,
    "session": "s",
    "observation": OBSERVATION,
    "action": ACTION,
}


class Lone:
    """A world that says what a test wants, frame by frame."""

    open: ClassVar[list[Lone]] = []

    def __init__(self, path: Path, env: Any, **hello: Any) -> None:
        """``env``: its turn to listen comes while this world waits for an answer."""
        self._env = env
        Lone.open.append(self)
        self.conn = socket.socket(socket.AF_UNIX)
        self.conn.settimeout(0.01)
        self.conn.connect(str(path))
        self._splitter, self.got = frames.Splitter(), list[dict[str, Any]]()
        self.say(**{**HELLO, **hello})

    def say(self, **message: Any) -> None:
        self.conn.sendall(frames.encode(message))

    def observe(self, seq: int, obs: Any = (1.0, 2.0), **rest: Any) -> None:
        self.say(kind="observe", seq=seq, obs=list(obs) if isinstance(obs, tuple) else obs, **rest)

    def hear(self, kind: str, *, takes: bool = False) -> dict[str, Any]:
        """The next message of this kind; others are dropped. ``takes``: the env takes a row
        meanwhile, if there is one.
        """
        until = time.monotonic() + 10
        while time.monotonic() < until:
            while self.got:
                if (message := self.got.pop(0))["kind"] == kind:
                    return message
            if takes and self._env._phase == SENT:
                self._env.recv()
            self._env._listen()
            with contextlib.suppress(TimeoutError):
                data = self.conn.recv(1 << 16)
                assert data, f"expected {kind!r}, got the end of the connection"
                self.got += [frames.decode(body) for body in self._splitter.feed(data)]
        pytest.fail(f"waited 10 s for {kind!r}")

    def close(self) -> None:
        self.conn.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w"


@pytest.fixture
def env(path: Path) -> Iterator[Callable[..., Any]]:
    """``env(streams=1, **arguments)``: an env for worlds at ``path``,
    with its spaces from a file.
    """
    made: list[Any] = []

    def build(streams: int = 1, **arguments: Any) -> Any:
        spec = path.with_suffix(".json")
        if not spec.exists():
            import json

            spec.write_text(json.dumps({"observation": OBSERVATION, "action": ACTION}))
        kwargs = {"spec": str(spec), "heartbeat_s": 0.05, "grace_s": 20.0} | arguments
        made.append(
            make(
                EnvFactory(target=f"remote:unix:{path}", kwargs=kwargs),
                streams=np.arange(streams),
                seed=3,
                failures=Failures(on_nonfinite="drop"),
            )
        )
        made[-1].recv()  # it asks for worlds
        return made[-1]

    yield build
    for one in [*made, *Lone.open]:
        one.close()
    Lone.open.clear()


def rows(env: Any, seconds: float = 10.0) -> Any:
    """The next rows, copied."""
    until = time.monotonic() + seconds
    while (ts := env.recv()) is None:
        assert time.monotonic() < until, f"waited {seconds} s for rows"
    names = ("obs", "reward", "first", "valid", "terminated", "truncated", "differs", "taken")
    return {name: np.array(getattr(ts, name)) for name in names}


def act(env: Any, *action: int) -> None:
    env.send(np.array(action), env.ts.stream)


def flags(row: dict[str, Any], i: int = 0) -> str:
    """First, valid, terminated, cut short."""
    letters = {"first": "f", "valid": "v", "terminated": "t", "truncated": "c"}
    return "".join(letter if row[name][i] else "." for name, letter in letters.items())


# --------------------------------------------------------------------------------------------- rows


@pytest.mark.thorough
def test_rows_are_those_of_the_same_env_stepped_here(path: Path) -> None:
    """A world of CartPole, stepped by our client: row for row what ``LoopEnv`` gives for the same
    seed and actions.
    """

    def play() -> None:
        one = gymnasium.make("CartPole-v1", max_episode_steps=12)
        with contextlib.suppress(client.RunOver, ConnectionError):
            world = client.World(
                f"unix:{path}", client.box([4]), client.discrete(2), patience_s=2.0
            )
            obs, _ = one.reset(seed=world.seed)
            while True:
                action, over = world.reset(obs), False
                while not over:
                    obs, reward, terminated, truncated, _ = one.step(action)
                    over = terminated or truncated
                    if over:
                        world.end(obs, reward, terminated, truncated)
                    else:
                        action = world.step(obs, reward)
                obs, _ = one.reset()

    thread = threading.Thread(target=play)
    thread.start()
    here = make(
        EnvFactory(target="python:CartPole-v1", kwargs={"max_episode_steps": 12}),
        streams=np.arange(1),
        seed=5,
    )
    there = make(EnvFactory(target=f"remote:unix:{path}"), streams=np.arange(1), seed=5)
    try:
        assert there.spec.action == here.spec.action
        dice = np.random.default_rng(0)
        for _ in range(100):
            expected, got = here.recv(), rows(there)
            for name in ("obs", "reward", "first", "valid", "terminated", "truncated"):
                np.testing.assert_array_equal(got[name], getattr(expected, name), name)
            for one in (here, there):
                act(one, int(dice.integers(2)) if one is here else int(here.action[0]))
    finally:
        there.close()
        here.close()
        thread.join()


def test_a_world_that_is_gone_costs_its_episode_and_the_others_go_on(env: Any, path: Path) -> None:
    made = env(2, grace_s=2.0)
    one, two = Lone(path, made, session="one"), Lone(path, made, session="two")
    welcomes = [one.hear("welcome"), two.hear("welcome")]
    lives = [welcome["life"] for welcome in welcomes]
    assert [welcome["stream"] for welcome in welcomes] == [0, 1]
    for world in (one, two):
        world.observe(0, first=True)
    row = rows(made)
    assert [flags(row, i) for i in (0, 1)] == ["f...", "f..."]
    act(made, 1, 2)
    assert one.hear("act")["action"] == 1 and two.hear("act")["action"] == 2
    one.close()
    two.observe(1, (3.0, 4.0), reward=0.5)
    began = time.monotonic()
    row = rows(made)
    assert time.monotonic() - began > 1.0, "its grace is waited for"
    assert (
        flags(row, 0) == "f..."
        and flags(row, 1) == ".v.."
        and row["obs"].tolist() == [[0, 0], [3, 4]]
    )
    assert made.failures.counts[0] == 1 and "gone for longer" in made.failures.causes.told[0][1]
    for seq in (2, 3):  # the other goes on without waiting any more
        act(made, 0, 0)
        two.observe(seq, reward=1.0)
        row = rows(made)
        assert [flags(row, i) for i in (0, 1)] == ["f...", ".v.."] and row["reward"].tolist() == [
            0,
            1,
        ]
    again = Lone(path, made, session="one")
    welcome = again.hear("welcome")
    assert (welcome["stream"], welcome["seen"]) == (0, -1) and welcome["life"] != lives[0]
    again.observe(0, (7.0, 7.0), first=True)
    act(made, 0, 0)
    two.observe(4)
    while flags(row := rows(made)) == "f..." and row["obs"][0].tolist() == [0, 0]:
        act(made, 0, 0)
        two.observe(two.hear("act")["seq"] + 1)
    assert (
        flags(row) == "f..." and row["obs"][0].tolist() == [7, 7] and made.failures.counts[0] == 1
    )
    again.close()
    two.close()


def test_a_world_that_comes_again_within_its_grace_goes_on(env: Any, path: Path) -> None:
    made = env()
    one = Lone(path, made)
    first = one.hear("welcome")
    one.observe(0, first=True)
    rows(made)
    one.close()
    act(made, 2)  # which nobody hears
    again = Lone(path, made)
    welcome = again.hear("welcome")
    assert welcome == first | {"seen": 0}
    again.observe(0, first=True)  # it was not answered, as far as it knows
    assert again.hear("act") == {"kind": "act", "seq": 0, "action": 2}
    again.observe(1, reward=1.0)
    assert flags(rows(made)) == ".v.." and made.failures.counts[0] == 0
    again.close()


def test_what_is_doubled_or_late_is_dropped_and_what_is_lost_is_said_again(
    env: Any, path: Path
) -> None:
    made = env()
    one = Lone(path, made)
    one.say(**HELLO)  # a doubled hello
    one.hear("welcome")
    for _ in range(3):
        one.observe(0, first=True)
    rows(made)
    act(made, 1)
    assert one.hear("act") == {"kind": "act", "seq": 0, "action": 1}
    one.observe(1, (5.0, 5.0), reward=1.0, terminated=True)
    one.observe(0, first=True)
    one.observe(1, (6.0, 6.0), reward=2.0)
    row = rows(made)
    assert (
        flags(row) == ".vt." and row["obs"].tolist() == [[5, 5]] and row["reward"].tolist() == [1]
    )
    assert one.hear("act") == {"kind": "act", "seq": 1}, "an end is answered at once"
    assert one.hear("beat")["answered"] == 1
    act(made, 0)
    one.observe(2, first=True)
    assert flags(rows(made)) == "f..."
    one.close()


def test_a_world_may_begin_anew_and_may_leave(env: Any, path: Path) -> None:
    made = env()
    one = Lone(path, made)
    one.hear("welcome")
    one.observe(0, first=True)
    rows(made)
    act(made, 0)
    one.observe(1, (2.0, 2.0), first=True)
    row = rows(made)
    assert flags(row) == "f..." and row["obs"].tolist() == [[2, 2]]
    assert made.failures.counts[0] == 1 and "another episode" in made.failures.causes.told[0][1]
    act(made, 0)
    one.say(kind="bye")
    other = Lone(path, made, session="other")
    assert other.hear("welcome")["stream"] == 0
    other.close()
    one.close()


def test_the_action_that_a_world_took(env: Any, path: Path) -> None:
    made = env()
    one = Lone(path, made)
    one.hear("welcome")
    one.observe(0, first=True)
    rows(made)
    for seq, took, differs in ((1, 2, True), (2, 1, False), (3, None, False)):
        act(made, 1)
        one.observe(seq, took=took)
        row = rows(made)
        assert row["differs"].tolist() == [differs] and (
            not differs or row["taken"].tolist() == [took]
        )
    act(made, 1)
    one.observe(4, took=3)
    assert (
        one.hear("refuse", takes=True)["text"]
        == "took: expected an action of the space that was stated, got 3"
    )
    one.close()


def test_a_value_that_is_not_finite_costs_the_episode(env: Any, path: Path) -> None:
    made = env()
    one = Lone(path, made)
    one.hear("welcome")
    one.observe(0, first=True)
    rows(made)
    act(made, 1)
    one.observe(1, (float("nan"), 0.0))
    assert flags(rows(made)) == "f..." and made.failures.counts[0] == 1
    act(made, 1)
    one.hear("act")
    assert one.hear("act") == {"kind": "act", "seq": 1, "lost": True}
    one.observe(2, first=True)
    assert flags(rows(made)) == "f..." and made.failures.counts[0] == 1
    one.close()


@pytest.mark.parametrize("dtype", frames.DTYPES)
def test_a_list_without_elements_is_an_array_of_any_dtype(dtype: str) -> None:
    spec = ArraySpec(shape=(2, 0), dtype=dtype)
    values: list[Any] = [[[], []], np.zeros((2, 0), dtype)]
    for value in values:
        Reader(spec, np.zeros((1, 2, 0), dtype), "obs")(
            0, frames.decode(frames.encode({"x": value})[4:])["x"]
        )


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("hello", "code", "text"),
    [
        ({"version": 2}, "version", "version 1 of the protocol, got 2"),
        ({"token": "wrong"}, "token", "the token of this run, got another"),
        ({"token": None}, "token", "got none"),
        (
            {"action": client.discrete(4)},
            "space",
            "action: expected Discrete(3), as this run began with, got Discrete(4)",
        ),
        (
            {"observation": {"type": "Text"}},
            "space",
            "hello.observation: expected a JSON object whose 'type' is",
        ),
        ({"observation": client.box([1 << 20, 20])}, "space", "numbers"),
        ({"session": ""}, "frame", "hello.session"),
        ({"session": 3}, "frame", "hello.session"),
        ({"kind": "observe"}, "frame", "expected the kind 'hello' first, got 'observe'"),
    ],
)
@pytest.mark.few(9)
def test_a_hello_that_is_refused(
    env: Any,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hello: dict[str, Any],
    code: str,
    text: str,
) -> None:
    monkeypatch.setenv("EQUIPOISE_WORLD_TOKEN", RIGHT)
    made = env()
    wrong = Lone(path, made, **{"token": RIGHT} | hello)
    refused = wrong.hear("refuse")
    assert refused["code"] == code and text in refused["text"]
    with pytest.raises(AssertionError, match="the end of the connection"):
        wrong.hear("welcome")
    wrong.close()
    right = Lone(path, made, token=RIGHT)
    right.observe(0, first=True)
    assert flags(rows(made)) == "f...", "the run goes on"
    right.close()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"obs": [1.0]}, "obs: expected float32 [2], got float64 [1]"),
        ({"obs": [1.0, "x"]}, "obs: expected numbers"),
        ({"obs": {"dtype": "float32", "shape": [2], "data": b"1234"}}, "in 8 bytes, got 4 bytes"),
        ({"obs": None}, "obs: expected an array"),
        ({"reward": "much"}, "observe.reward: expected a number, got 'much'"),
        ({"terminated": 1}, "observe.terminated: expected true or false, got '1'"),
        ({"first": True, "truncated": True}, "observe.first: expected false"),
        ({"seq": 5}, "observe.seq: expected 1, after 0, got 5"),
        ({"kind": "wish"}, "expected the kind observe, beat or bye, got 'wish'"),
        ({"took": [1, 2]}, "took: expected int64 [], got int64 [2]"),
    ],
)
@pytest.mark.few(10)
def test_an_observation_that_is_refused(
    env: Any, path: Path, message: dict[str, Any], text: str
) -> None:
    made = env()
    one = Lone(path, made)
    one.hear("welcome")
    one.observe(0, first=True)
    rows(made)
    act(made, 1)
    one.say(**{"kind": "observe", "seq": 1, "obs": [1.0, 2.0]} | message)
    assert text in one.hear("refuse", takes=True)["text"]
    one.close()
    if made._phase != SENT:  # its arrays were looked at when a row was made of them
        act(made, 1)
    other = Lone(path, made, session="other")
    other.observe(0, first=True)
    assert flags(rows(made)) == "f..." and made.failures.counts[0] == 1, (
        "it costs the episode, and another world comes"
    )
    other.close()


@pytest.mark.thorough
def test_noise_from_the_wire_harms_nobody(env: Any, path: Path, seed: int) -> None:
    """Bytes of all kinds, before a hello and after: refusals,
    and a good world's rows after that.
    """
    made, dice = env(grace_s=2.0), random.Random(seed)
    good = frames.encode(HELLO)
    for number in range(300):
        conn = socket.socket(socket.AF_UNIX)
        conn.settimeout(5)
        conn.connect(str(path))
        data = dice.randbytes(dice.randrange(60))
        if number % 3 == 0:
            spoilt = bytearray(good)
            spoilt[dice.randrange(len(spoilt))] ^= 1 << dice.randrange(8)
            data = bytes(spoilt)
        elif number % 3 == 1:
            data = (
                frames.encode({**HELLO, "session": str(number)})
                + len(data).to_bytes(4, "big")
                + data
            )
        conn.sendall(data)
        made.recv()
        conn.close()
    until = time.monotonic() + 20
    last = Lone(path, made, session="good")
    last.observe(0, (9.0, 9.0), first=True)
    while (made.recv() if made._phase != 1 else None) is None or made.ts.obs[0].tolist() != [9, 9]:
        assert time.monotonic() < until
        if made._phase == 1:
            act(made, 0)
    last.close()


def test_an_address_that_cannot_be_listened_at(env: Any, path: Path, tmp_path: Path) -> None:
    for target, said in (
        ("remote:tcp://0.0.0.0:7000", "must have a token if other machines can connect"),
        ("remote:tcp://127.0.0.1", "expected remote:tcp://HOST:PORT or remote:unix:PATH"),
        ("remote:http://127.0.0.1:70", "expected remote:tcp://HOST:PORT"),
        ("remote:tcp://127.0.0.1:70000", "expected remote:tcp://HOST:PORT"),
        ("remote:unix:", "expected remote:tcp://HOST:PORT"),
        (f"remote:unix:/{'x' * 120}", "expected a path of at most 100 bytes, got 121"),
        ("python:remote:tcp://127.0.0.1:70", "expected worlds that connect"),
    ):
        with pytest.raises(ValueError, match=said.replace("(", r"\(")):
            make(EnvFactory(target=target), streams=np.arange(1), seed=0)
    with pytest.raises(ValueError, match="unknown argument 'grace'.* did you mean 'grace_s'"):
        env(grace=3)
    (tmp_path / "w").write_text("a file")
    with pytest.raises(FileExistsError, match="expected a socket, or nothing, got another file"):
        env()
    (tmp_path / "w").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OSError,
            match=f"{port}: expected an address and a port that are free here, got Address already",
        ):
            make(EnvFactory(target=f"remote:tcp://127.0.0.1:{port}"), streams=np.arange(1), seed=0)
    assert not os.path.exists(Address.of(f"remote:unix:{path}").private)


# -------------------------------------------------------------------------------------- proven rows


def ruled(world: Any, env: Any, absences: threading.Semaphore, away_s: float) -> int:
    """Play the ruler for ever -> how often its episode was lost; now and then it is away for
    ``away_s``, amid an episode.
    """
    lost = 0
    env.stream = world.stream
    obs, _ = env.reset(seed=world.seed)
    with contextlib.suppress(client.RunOver, ConnectionError):
        while True:
            try:
                action, over = world.reset(obs), False
                while not over:
                    if env.t and absences.acquire(blocking=False):
                        world._drop()
                        time.sleep(away_s)
                    obs, reward, terminated, truncated, _ = env.step(action)
                    over = terminated or truncated
                    if over:
                        world.end(obs, reward, terminated, truncated)
                    else:
                        action = world.step(obs, reward)
                obs, _ = env.reset()
            except client.EpisodeLost:
                lost += 1
                env.stream = world.stream
                obs, _ = env.reset(seed=world.seed)
    return lost


FAULTS = {"drop": 0.02, "double": 0.05, "swap": 0.05, "break": 0.005}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("on", "absent"), [("serial", 0), pytest.param("process", 2, marks=pytest.mark.thorough)]
)
def test_rows_prove_themselves_whatever_a_connection_does(
    tmp_path: Path, seed: int, on: Any, absent: int
) -> None:
    """Frames are lost, doubled and swapped, connections break; a world that is away too long costs
    its episode alone.
    """
    from equipoise import api
    from equipoise.chaos.envs import LIVES, Faulty
    from equipoise.record.checkpoint import latest
    from equipoise.record.checkpoint import load as load_checkpoint

    proxy = Proxy(tmp_path / "near", tmp_path / "far", FAULTS, seed)
    absences, losses = threading.Semaphore(absent), list[int]()

    def play() -> None:
        world = client.World(
            f"unix:{tmp_path / 'near'}",
            client.box([4], 0, LIVES),
            client.discrete(8),
            patience_s=20.0,
            timeout_s=0.5,
        )
        losses.append(ruled(world, Faulty(stream=world.stream), absences, 9.5))

    threads = [threading.Thread(target=play) for _ in range(2)]
    for thread in threads:
        thread.start()
    program = api.program(
        f"remote:unix:{tmp_path / 'far'}",
        "equipoise.chaos.ruling:Ruling",
        actors=2,
        envs_per_actor=1,
        unroll=8,
        max_lag=1,
        steps=1500 if on == "serial" else 4000,
        evaluate_episodes=0,
        env_kwargs={"heartbeat_s": 0.02, "grace_s": 8.0 if absent else 30.0},
        settings={"algorithm.streams": 2, "algorithm.aborts": True},
    )
    for _ in api.start(program, on=on, out=tmp_path / "run", tensorboard=False):
        pass
    for thread in threads:
        thread.join(30)
    proxy.close()
    checkpoint = latest(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    counts = dict(
        zip(COUNTS, load_checkpoint(checkpoint)[0]["ledger.counts"].tolist(), strict=True)
    )
    assert (
        counts == dict.fromkeys(COUNTS, 0) | {"rows": counts["rows"], "aborted": absent}
        and counts["rows"] >= 1500
    )
    assert sum(losses) == absent and all(proxy.done.values()), proxy.done
