"""Checkpoints of runs with a replay: completed while the run goes on, whole or not there, and gone
on from to the same bits.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.errors import CannotResume
from equipoise.experience.replay.journal import Journal
from equipoise.experience.replay.replay import Replay
from equipoise.record import checkpoint, statefile
from equipoise.record.directory import RunDirectory
from equipoise.runtime.cut import Gate
from equipoise.types import ReplaySettings as Settings
from tests.experience.history import History
from tests.experience.saving import content
from tests.experience.test_journal import learn
from tests.experience.test_replay import ACTORS, BLOCK, ROUND, STACKS, Writers, replay
from tests.runtime.doomed import CHANGING, kill_at
from tests.runtime.resuming import finish, kill_after, told
from tests.runtime.test_resume import go_on, train

pytestmark = pytest.mark.few(2)  # all cases: make test-all

SMALL = [
    "--actors",
    "2",
    "--envs-per-actor",
    "2",
    "--max-lag",
    "0",
    "--evaluate-episodes",
    "0",
    "--no-recipe",
]
SETTINGS = {
    "dqn": [
        "algorithm.hidden=[16]",
        "algorithm.target_every=20",
        "replay.selector=prioritized",
        "replay.capacity=300",
    ],
    "sac": ["algorithm.hidden=[16]", "replay.capacity=300"],
    "sac sde": [
        "algorithm.hidden=[16]",
        "algorithm.sde_every=3",
        "algorithm.random_steps=50",
        "replay.capacity=300",
    ],
    "tqc": ["algorithm.hidden=[16]", "replay.capacity=300"],
    "crossq": ["algorithm.hidden=[16]", "algorithm.critic_hidden=[16]", "replay.capacity=300"],
    "qr_dqn": ["algorithm.hidden=[16]", "algorithm.target_every=20", "replay.capacity=300"],
    "apex_dqn": [
        "algorithm.hidden=[16]",
        "algorithm.target_every=20",
        "replay.capacity=300",
        "replay.updates=1",
    ],
    "r2d2": [
        "algorithm.hidden=[8]",
        "algorithm.core_size=8",
        "algorithm.burn_in=4",
        "algorithm.length=8",
        "algorithm.n_step=2",
        "algorithm.target_every=20",
        "replay.capacity=300",
    ],
}
SETTINGS = {name: [*given, "batch=8", "replay.starts_at=100"] for name, given in SETTINGS.items()}
ENVS = dict.fromkeys(("sac", "sac sde", "tqc", "crossq"), "Pendulum-v1") | dict.fromkeys(
    ("dqn", "apex_dqn", "r2d2", "qr_dqn"), "CartPole-v1"
)

BOTH = [(name, on) for name in ("apex_dqn", "r2d2") for on in ("serial", "process")]


def program(algorithm: str = "dqn", **options: Any) -> Any:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 2,
        "steps": 1536,
        "evaluate_episodes": 0,
        "recipe": False,
        "max_lag": 0,
        "unroll": 4,
    }
    return api.program(
        ENVS[algorithm],
        algorithm=algorithm.partition(" ")[0],
        settings=SETTINGS[algorithm],
        **{**given, **options},
    )


def named(checkpoints: Path) -> set[str]:
    return {name for path in checkpoints.glob("step_*") for name in checkpoint.segments(path)}


def segments(checkpoints: Path) -> set[str]:
    return {path.name for path in (checkpoints / "replay").iterdir()}


# ------------------------------------------------------------------------------------------ the run


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "on"),
    [("dqn", "serial"), ("sac", "serial"), ("sac sde", "serial"), ("dqn", "process"), *BOTH],
)
def test_a_run_goes_on_to_the_same_bits(algorithm: str, on: Any, tmp_path: Path) -> None:
    """Its ring has been full for long, twice."""
    whole = train(program(algorithm, checkpoint_every=0), tmp_path / "whole", on)
    train(
        program(algorithm, steps=1024, schedule_steps=1536, checkpoint_every=128),
        tmp_path / "part",
        on,
    )
    assert go_on(tmp_path / "part", steps=1536)["params_sha256"] == whole["params_sha256"]
    checkpoints = tmp_path / "part/checkpoints"
    assert segments(checkpoints) == named(checkpoints)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "algorithm",
    [
        "dqn",
        "sac",
        "r2d2",
        "crossq",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("sac sde", "qr_dqn", "tqc")),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(
    algorithm: str, tmp_path: Path, seed: int, deadline: Any
) -> None:
    kill_and_resume(algorithm, "serial", 1, tmp_path, seed, deadline)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("algorithm", ["dqn", "sac", "apex_dqn", "r2d2"])
def test_a_run_killed_at_ten_moments(
    algorithm: str, on: str, tmp_path: Path, seed: int, deadline: Any
) -> None:
    kill_and_resume(algorithm, on, 10, tmp_path, seed, deadline)


def kill_and_resume(
    algorithm: str, on: str, moments: int, path: Path, seed: int, deadline: Any
) -> None:
    words = [
        ENVS[algorithm],
        "--algorithm",
        algorithm.partition(" ")[0],
        *SMALL,
        "--unroll",
        "4",
        "--steps",
        "2048",
        "--on",
        on,
    ]
    words += [
        "--checkpoint-every",
        "256",
        *(word for text in SETTINGS[algorithm] for word in ("--set", text)),
    ]
    finish(["train", *words, "--quiet", "--out", str(path / "whole")])
    expected = told(path / "whole")
    assert len(expected["reports"]) > 20
    draw = random.Random(seed)
    for moment in range(moments):
        out, wait_s = path / f"killed {moment}", draw.uniform(0.0, 1.0)
        while not (out / "run.json").exists() or (out / "summary.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            there = (out / "checkpoints").glob
            kill_after(
                ["train", *words, "--out", str(out)],
                lambda: [*there("step_*")],  # noqa: B023
                deadline,
                wait_s,
            )
            wait_s /= 2
        go_on(out)
        assert told(out) == expected


def test_a_resume_that_fails_at_once_leaves_the_run_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(program("sac", steps=256), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.learners.learner.Learner.load", refuse)
        with pytest.raises(CannotResume, match="of another size"):
            go_on(tmp_path / "run", steps=512)
    assert go_on(tmp_path / "run", steps=512)["status"] == "completed"


def refuse(*_: Any) -> None:
    raise ValueError("a state of another size")


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["rows", "rng", "priorities"])
def test_a_resume_that_lost_something_is_seen(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail."""
    whole = train(program(checkpoint_every=0), tmp_path / "whole")
    train(program(steps=768, schedule_steps=1536), tmp_path / "half")
    real, load = Journal.load, Replay.load

    def nothing(self: Journal, chunks: Any, *args: Any) -> None:
        real(self, chunks, *args)
        self._ring._records[:, :, 8:] = 0

    def forgetful(self: Replay, state: Any) -> None:
        rng = self._rng
        load(self, state)
        if lost == "rng":
            self._rng = rng
        else:
            self.selector.update(np.arange(self.ring.places), np.ones(self.ring.places))

    if lost == "rows":
        monkeypatch.setattr(Journal, "load", nothing)
    else:
        monkeypatch.setattr(Replay, "load", forgetful)
    assert go_on(tmp_path / "half", steps=1536)["params_sha256"] != whole["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_cuts_change_nothing_and_old_segments_go(on: Any, tmp_path: Path) -> None:
    without = train(program(checkpoint_every=0), tmp_path / "a", on)
    often = train(program(checkpoint_every=32), tmp_path / "b", on)
    assert without["params_sha256"] == often["params_sha256"]
    checkpoints = tmp_path / "b/checkpoints"
    # They are written while the run goes on: where a disk is slow few are whole by its end.
    kept = {path.name for path in checkpoints.glob("step_*")}
    assert "step_1536" in kept and 2 <= len(kept) <= 3 and not [*checkpoints.glob(".*")]
    assert segments(checkpoints) == named(checkpoints) != set()


@pytest.mark.few(1)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_that_ends_early_is_saved_whole(on: Any, tmp_path: Path) -> None:
    with api.start(program(steps=10**6), on=on, out=tmp_path / "run") as run:
        for report in run:
            if report.env_steps > 1000:
                break
    assert run.summary is not None and run.summary["status"] == "interrupted"
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None and newest.name == f"step_{run.summary['env_steps']}"


@pytest.mark.thorough
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Journal._append, list[int]()

    def sometimes(self: Journal, arrays: Any) -> Any:
        calls.append(1)
        if len(calls) in (1, 8):
            raise OSError(28, "No space left on device")
        return real(self, arrays)

    monkeypatch.setattr(Journal, "_append", sometimes)
    summary = train(program(checkpoint_every=256), tmp_path / "run")
    lost = [
        note
        for note in summary["notes"]
        if "warning: no checkpoint at step" in note and "No space left" in note
    ]
    assert summary["status"] == "completed" and len(lost) == 2
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None and newest.name == "step_1536"
    assert go_on(tmp_path / "run", steps=2048)["status"] == "completed"


def test_an_error_in_the_thread_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any) -> Any:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Journal, "_append", wrong)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        train(program(checkpoint_every=256), tmp_path / "run")


def test_no_cut_begins_while_the_last_is_being_written() -> None:
    words = {name: np.zeros(1, np.int64) for name in ("asked", "begun", "released", "closed")}
    cuts = list[int]()
    gate = Gate(words, every=4, last=20, round_=2, announce=cuts.append)

    def until(version: int, start: int) -> None:
        for v in range(start, version):
            assert not gate(v)

    until(4, 1)
    assert gate(4) and gate(4) and cuts == [4]
    words["released"][:] = 1
    until(9, 4)  # 8 was due
    words["closed"][:] = 1
    assert not gate(9) and gate(10) and cuts == [4, 10]
    words["released"][:] = 2
    words["asked"][:] = 3
    until(20, 10)
    assert gate(20) and cuts == [4, 10], "at the end it holds still until there can be one"
    words["closed"][:] = 2
    assert gate(20) and cuts == [4, 10, 20]
    words["released"][:] = words["closed"][:] = 3
    assert not gate(20)


# ---------------------------------------------------------------------------------------- the files


def damage(file: Path, how: str) -> None:
    if how == "missing":
        file.unlink()
    elif how == "short":
        os.truncate(file, file.stat().st_size - 1)
    elif how == "link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to("elsewhere")
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)


@pytest.mark.parametrize("how", ["changed", "missing", "short", "link"])
def test_a_checkpoint_whose_rows_are_damaged_is_skipped(how: str, tmp_path: Path) -> None:
    scenario(tmp_path, 3, rounds=20)  # they have no row in common
    older, newest = tmp_path / "step_1", tmp_path / "step_2"
    (name,) = checkpoint.segments(newest).keys()
    damage(tmp_path / "replay" / name, how)
    skipped: list[str] = []
    assert checkpoint.latest(tmp_path, whole=True, skipped=skipped) == older
    assert (
        len(skipped) == 1
        and f"step_2: rows of its replay are lost: {tmp_path / 'replay' / name}: expected"
        in skipped[0]
    )
    assert checkpoint.latest(tmp_path) == newest, "its weights are there"


@pytest.mark.parametrize(
    "name",
    ["../step_1/weights.safetensors", "/etc/passwd", "segment_1.rows/../x", "segment_1", "x.rows"],
)
def test_a_manifest_cannot_point_elsewhere(name: str, tmp_path: Path) -> None:
    scenario(tmp_path, 1)
    manifest = json.loads((tmp_path / "step_0/manifest.json").read_text())
    manifest["segments"][name] = {"size": 3, "sha256": ""}
    (tmp_path / "step_0/manifest.json").write_text(json.dumps(manifest))
    skipped: list[str] = []
    assert checkpoint.latest(tmp_path, skipped=skipped) is None
    assert "expected segments such as 'segment_1.rows'" in skipped[0]


# ------------------------------------------------------------------------------------------- killed


def made_in(directory: Path, history: History, saved: Any = None) -> Replay:
    settings = Settings(capacity=ROUND * 9, starts_at=ROUND * 2, updates=2, selector="prioritized")
    return replay(history, settings, window=2, saved=saved, folder=directory / "replay")


def scenario(
    directory: Path, saves: int, *, rounds: int = 4, made: Replay | None = None, first: int = 0
) -> dict[int, str]:
    """Save while rounds come in -> what was saved, by step."""
    history, expected = (
        History(streams=BLOCK * ACTORS, rows=600, stack=STACKS["black"]),
        dict[int, str](),
    )
    made = made or made_in(directory, history)
    writers = Writers(history, made)
    writers.next = [int(made.ring._expected[0, 0, 0]) if made._rounds.taken else 0] * ACTORS
    assert made.journal is not None
    for step in range(first, first + saves):
        learn(made, writers, rounds)
        expected[step] = content(made)
        place, state, inbox = (
            checkpoint.begin(directory, step),
            made.state(),
            statefile.dump(made._rounds.inbox.state()),
        )

        def files(
            chunks: Any, place: Path = place, state: Any = state, inbox: bytes = inbox
        ) -> Any:
            made = checkpoint.add(
                place, checkpoint.REPLAY, statefile.dump({"replay": state, "chunks": chunks})
            )
            made |= checkpoint.add(place, "experience.safetensors", inbox) | checkpoint.add(
                place, checkpoint.LEARNER, b"l"
            )
            return (
                made
                | checkpoint.add(place, checkpoint.WEIGHTS, b"w")
                | checkpoint.add(place, checkpoint.META, b"{}")
            )

        made.journal.begin(files)
        learn(made, writers, 3)
        made.journal.wait(60.0)
        saved = made.journal.poll()
        assert saved is not None and saved.error is None
        checkpoint.complete(directory, step, saved.files, saved.segments)
        checkpoint.retain(directory, 2)
    return expected


def loaded(path: Path, directory: Path) -> Replay:
    inbox = statefile.parse(checkpoint.read(path, "experience.safetensors"))
    made = made_in(
        directory, History(streams=BLOCK * ACTORS, rows=600, stack=STACKS["black"]), inbox
    )
    state = statefile.parse(checkpoint.read(path, checkpoint.REPLAY))
    made.load(state["replay"])
    assert made.journal is not None
    source = checkpoint.Source(path=path, files={}, segments=checkpoint.segments(path), meta={})
    made.journal.load(state["chunks"], source.segments, source.read_segment)
    return made


def operations(
    directory: Path, saves: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, str], int]:
    """What is saved where nothing is killed, and how many file operations that takes."""
    count, lock = [0], threading.Lock()

    def counting(real: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with lock:
                count[0] += 1
            return real(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        for name in CHANGING:
            patch.setattr(os, name, counting(getattr(os, name)))
        expected = scenario(directory, saves)
    return expected, count[0]


@pytest.mark.thorough
@pytest.mark.parametrize("moments", [20, pytest.param(None, marks=pytest.mark.chaos)])
@pytest.mark.timeout(900)
def test_a_writer_killed_at_any_moment_leaves_what_it_completed(
    moments: int | None, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rounds come in and are saved: at 20 random file operations, or at each."""
    expected, total = operations(tmp_path / "whole", 5, monkeypatch)
    points = sorted(random.Random(seed).sample(range(total), moments)) if moments else range(total)
    for n in points:
        directory = tmp_path / str(n)
        if (child := os.fork()) == 0:
            kill_at(n)
            scenario(directory, 5)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, n
        skipped: list[str] = []
        newest = checkpoint.latest(directory, whole=True, skipped=skipped)
        there = [int(path.name.removeprefix("step_")) for path in directory.glob("step_*")]
        assert (newest.name if newest else None) == (f"step_{max(there)}" if there else None), (
            f"killed at {n}: {skipped}"
        )
        made, step = None, -1
        if newest is not None:
            made, step = loaded(newest, directory), max(there)
            assert content(made) == expected[step], f"killed at operation {n}"
        again = scenario(directory, 2, made=made, first=step + 1)
        newest = checkpoint.latest(directory, whole=True)
        assert newest is not None and newest.name == f"step_{step + 2}"
        assert content(loaded(newest, directory)) == again[step + 2]
        assert segments(directory) == named(directory)
        shutil.rmtree(directory)
    assert total > 50
