"""Kill a run: ``python -m tests.rewards.preferences.killing FOLDER ALGORITHM SEED``.

A process of its own, since it forks: each child is a run in one process, or a resume. The child is
killed at a moment during a round or after it, three times. Prints JSON lines: what must be
the same, of the run that is never killed and of the other one, and the kills.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from equipoise import api, tree
from equipoise.feedback.database import FILE
from equipoise.feedback.store import SEGMENTS
from equipoise.record import statefile
from equipoise.record.directory import RunDirectory
from tests.rewards.preferences.test_loop import REPLAY, SMALL, SYNTHETIC, content
from tests.runtime.resuming import told

STEPS, EVERY = 1024, 256  # of the run, and between two checkpoints: four rounds
MOMENTS = ("asking", "fitting", "later")
SETTINGS = [
    *(one for one in SMALL if not one.startswith(("schedule", "reward.labels"))),
    *SYNTHETIC,
    "reward.labels=72",
]
LONGEST_S = 200.0


def go(folder: Path, algorithm: str) -> int:
    """Train or go on in a child; return its number."""
    if child := os.fork():
        return child
    with open(folder.with_suffix(".txt"), "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        if any((folder / "run" / "checkpoints").glob("step_*/manifest.json")):
            run = api.start(resume=folder / "run")
        else:
            program = api.program(
                "tests.rewards.preferences.worlds:pendulum",
                algorithm,
                recipe=False,
                reward="preferences",
                actors=1,
                envs_per_actor=4,
                unroll=16,
                steps=STEPS,
                checkpoint_every=EVERY,
                evaluate_episodes=0,
                max_lag=0,
                settings=[
                    *SETTINGS,
                    f"reward.store={folder}/store",
                    *(REPLAY if algorithm == "sac" else ()),
                ],
            )
            run = api.start(program, on="serial", out=folder / "run")
        for _ in run:
            pass
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        os._exit(1)


def rounds(store: Path) -> int:
    """The rounds in a store that a run has open."""
    try:
        with closing(sqlite3.connect(f"file:{store / FILE}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM rounds").fetchone()[0])
    except sqlite3.OperationalError:  # before it has a table
        return 0


def segments(store: Path) -> int:
    return len(list((store / SEGMENTS).glob("*.safetensors")))


def moment(kind: str, folder: Path, draw: random.Random) -> tuple[Callable[[], bool], float]:
    """A condition, and the seconds after it until the kill: one to three rounds after those that
    are in the store, so that some of them are done again.
    """
    store, checkpoints = folder / "store", folder / "run" / "checkpoints"
    wanted, there = max(rounds(store), EVERY // 64) + draw.randint(1, 3), list[int]()

    def reached() -> bool:
        if not any(checkpoints.glob("step_*/manifest.json")):
            return False
        done = rounds(store)
        if kind == "asking" and done == wanted - 1:  # its segments are being stored
            there.append(segments(store))
            return there[-1] > there[0]
        return done >= wanted

    return reached, draw.uniform(0.0, 0.3) if kind == "later" else 0.0


def kill(folder: Path, algorithm: str, kind: str, draw: random.Random) -> bool:
    """Begin or go on, and kill it at a moment; return False if the run has ended before."""
    (reached, wait_s), child = moment(kind, folder, draw), go(folder, algorithm)
    end = time.monotonic() + LONGEST_S
    while not reached():
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            check(folder, status)
            return False
        assert time.monotonic() < end, f"waited {LONGEST_S} s for the kill while {kind}"
        time.sleep(0.001)
    time.sleep(wait_s)  # the moment of the kill
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def check(folder: Path, status: int) -> None:
    text = folder.with_suffix(".txt").read_text()
    assert os.waitstatus_to_exitcode(status) == 0, text[-2000:]


def finish(folder: Path, algorithm: str) -> None:
    check(folder, os.waitpid(go(folder, algorithm), 0)[1])


def outcome(folder: Path) -> dict[str, object]:
    """The store, the reports, and each leaf of the reward's state in the newest checkpoint, without
    the name of the run in the store, which is random.
    """
    checkpoint = RunDirectory.open(folder / "run").whole_checkpoint().path
    learner = statefile.parse((checkpoint / "learner.safetensors").read_bytes())["learners"]["main"]
    own = learner["terms"]["preferences"]["own"]
    leaves = {
        path: hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()
        if isinstance(leaf, np.ndarray | torch.Tensor)
        else leaf
        for path, leaf in tree.items(own)
        if path != "run"
    }
    queries, answers = content(folder / "store")
    return {
        "run": told(folder / "run"),
        "reward": leaves,
        "queries": queries,
        "answers": answers,
    }


def main(folder: Path, algorithm: str, seed: int) -> None:
    torch.set_num_threads(1)
    whole, killed, draw = folder / "whole", folder / "killed", random.Random(seed)
    for one in (whole, killed):
        one.mkdir()
    finish(whole, algorithm)
    print(json.dumps(outcome(whole)), flush=True)
    kills = [kind for kind in draw.sample(MOMENTS, 3) if kill(killed, algorithm, kind, draw)]
    if len(kills) == len(MOMENTS):
        finish(killed, algorithm)
    print(json.dumps(outcome(killed)), flush=True)
    print(json.dumps(kills), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
