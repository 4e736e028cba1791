"""A run over machines that are processes: the bits of one machine, and what becomes of a machine that is lost."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from equipoise.runtime.messages import Note
from tests.runtime.machines import ONE_MACHINE, Processes, blue_of, finish, on_machines

AWAY = {"site 0": ["actor 1"], "site 1": ["actor 2", "actor 3"]}
ALL_AWAY = {"site 0": ["actor 0", "actor 1"], "site 1": ["actor 2", "actor 3"]}
SMALL = ["algorithm.hidden=16"]
PROGRAMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", {"settings": [*SMALL, "algorithm.epochs=2", "algorithm.normalize_obs=true"]}),
    "impala, lstm": ("CartPole-v1", "impala", {"settings": [*SMALL, "algorithm.core=lstm", "algorithm.core_size=8"]}),
    "dqn": ("CartPole-v1", "dqn", {"settings": [*SMALL, "replay.starts_at=64"]}),
    "sac": ("Pendulum-v1", "sac", {"settings": [*SMALL, "replay.starts_at=64"]}),
    "two learners": ("CartPole-v1", "ppo", {"learners": 2, "settings": [*SMALL, "algorithm.epochs=2"]}),
    "central": ("CartPole-v1", "ppo", {"inference": "central", "settings": [*SMALL, "placement.inference_workers=2"]}),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_three_machines_compute_the_bits_of_one(name: str, tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS[name]
    sites: Any = AWAY
    if name == "central":  # an inference worker acts for whole actors: those of one machine
        sites = {"site 0": ["actor 2", "actor 3", "inference 1"]}
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    there, stats = finish(on_machines(blue_of(tmp_path / "cluster", env, algorithm, **options), sites))
    assert there == here
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["held"] and rows["dropped"] == 0


@pytest.mark.thorough
def test_frames_that_cross_once_are_the_frames_that_the_actors_saw(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", "ALE/Pong-v5", "impala", steps=640)))
    blue = blue_of(tmp_path / "cluster", "ALE/Pong-v5", "impala", steps=640)
    assert all(role.spec.stacks for role in blue.learns.values())
    there, stats = finish(on_machines(blue, ALL_AWAY))
    assert there == here and stats.rows["dropped"] == 0


def test_strangers_at_home_s_port_are_counted_and_change_nothing(tmp_path: Path) -> None:
    """The bits of a run to which nobody else speaks."""
    env, algorithm, options = PROGRAMS["impala, lstm"]
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    runtime, notes = on_machines(blue_of(tmp_path / "cluster", env, algorithm, **options), AWAY), list[str]()

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if not runtime.done and runtime.stats().version > 0:
            with socket.create_connection(("127.0.0.1", runtime._home.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")

    there, stats = finish(runtime, each)
    assert there == here and stats.rows["dropped"] == 0
    assert stats.refused.keys() == {"no ZeroMQ"} and stats.refused["no ZeroMQ"] >= 1
    assert notes.count("warning: the link to other machines refuses what it gets: no ZeroMQ") == 1


@pytest.mark.thorough
def test_a_machine_that_is_lost_is_replaced_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    nodes, notes, killed = Processes(), list[str](), list[int]()
    blue = blue_of(tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=12_800, settings=SMALL)
    runtime = on_machines(blue, ALL_AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if len(killed) < 2 and runtime.stats().version >= 20 + 40 * len(killed):
            killed.append(runtime.stats().version)
            nodes.kill(f"site {len(killed) - 1}")

    _, stats = finish(runtime, each)
    assert len(killed) == 2
    for name in ALL_AWAY:
        assert any(f"{name} ended with" in note and "begin anew" in note for note in notes), notes
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"] and rows["dropped"] > 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "max_lag"), [("ppo", 0), ("impala, lstm", 0), ("ppo", 1), ("dqn", 0), ("central", 0), ("two learners", 0)]
)
def test_a_machine_that_is_drained_hands_its_workers_over_and_nothing_is_lost(name: str, max_lag: int, tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS[name]
    away: Any = {"site 0": ["actor 2", "actor 3", "inference 1"]} if name == "central" else AWAY
    options = options | {
        "max_lag": max_lag,
        "steps": 12_800 if max_lag else 1280,
    }  # with a lag nobody waits for those that move
    nodes, moved, seen = Processes(), list[str](), list[int]()
    runtime = on_machines(blue_of(tmp_path / "cluster", env, algorithm, **options), away, nodes)

    def each(messages: Any) -> None:
        moved.extend(m.text for m in messages if isinstance(m, Note) and "will be taken away" in m.text)
        if runtime.stats().version >= 8 and not seen:
            seen.append(1)
            nodes.drained.add(sorted(away)[-1])

    there, stats = finish(runtime, each)
    assert moved and runtime.moved == {sorted(away)[-1]: 1}
    assert stats.rows["dropped"] == 0
    if max_lag == 0:
        here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
        assert there == here
