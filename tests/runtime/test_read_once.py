"""A resume opens each file of its checkpoint once, in whatever process, and a damaged one leads to
the checkpoint before.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import WorkerFailed
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from tests.runtime import test_replay_checkpoints as replays
from tests.runtime.test_resume import go_on, train
from tests.runtime.test_resume import program as simple

IN_OPEN, IN_CLOSE, IN_ISDIR = 0x20, 0x8 | 0x10, 0x40000000


@contextmanager
def opened(*places: Path) -> Iterator[Counter[str]]:
    """How often any process opened each file of these directories, from the kernel; whole once the
    block is left.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    # With the closing as well, since the kernel tells of equal events that follow each other as of
    # one.
    folders = {
        libc.inotify_add_watch(watch, os.fsencode(place), IN_OPEN | IN_CLOSE): place
        for place in places
    }
    counts: Counter[str] = Counter()
    try:
        yield counts
        while True:
            try:
                data = os.read(watch, 1 << 20)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                folder, mask, _, length = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
                at += 16 + length
                if mask & IN_OPEN and not mask & IN_ISDIR and folder in folders:
                    counts[str(folders[folder] / name)] += 1
    finally:
        os.close(watch)


def trained(kind: str, out: Path) -> int:
    """A run with two whole checkpoints -> the steps of a longer one."""
    if kind == "ppo":
        train(simple(checkpoint_every=1024), out)
        return 4096
    made = replays.program(kind, steps=480, schedule_steps=960, checkpoint_every=240)
    train(made, out, "serial")
    return 960


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_resume_opens_each_file_once(kind: str, on: Any, tmp_path: Path) -> None:
    steps = trained(kind, tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None
    rows = newest.parent / checkpoint.SEGMENTS
    files = [newest / name for name in os.listdir(newest)] + [
        rows / name for name in checkpoint.segments(newest)
    ]
    assert len(files) > 6 and (kind == "ppo" or any(file.suffix == ".rows" for file in files))
    with opened(newest, *([rows] if kind == "dqn" else [])) as counts:
        # what is kept is looked at with each
        run = api.start(resume=tmp_path / "run", on=on, steps=steps, checkpoint_every=0)
        at = next(report.updates for report in run)
        assert any(report.updates > at for report in run)  # every worker is at work
    run.close()
    unread = {"spec.json"}  # which is written anew
    assert {file.name: counts[str(file)] for file in files} == {
        file.name: int(file.name not in unread) for file in files
    }


WORKERS = ["learner.safetensors", "actor_1.safetensors"]


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("name", WORKERS)
def test_a_file_that_a_worker_finds_damaged_leads_to_the_checkpoint_before(
    name: str, on: Any, tmp_path: Path
) -> None:
    trained("ppo", tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None and newest.name == "step_2048"
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    whole = go_on(tmp_path / "whole", steps=4096)
    replays.damage(newest / name, "changed")
    run = api.start(resume=tmp_path / "run", on=on, steps=4096)
    with pytest.warns(
        RuntimeWarning,
        match=rf"step_2048/{name}: expected sha256 .*; .*step_1024 is taken "
        r"instead",
    ):
        reports = [report for report in run if report.recorded]
    assert run.summary is not None and run.summary["params_sha256"] == whole["params_sha256"]
    steps = [report.env_steps for report in reports]
    assert steps == sorted(steps) and any(
        "resumed at step 1,024" in note for note in run.summary["notes"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["replay.safetensors", "rows"])
def test_damaged_rows_lead_to_the_checkpoint_before(name: str, tmp_path: Path) -> None:
    trained("dqn", tmp_path / "run")
    newest = RunDirectory.open(tmp_path / "run").latest_checkpoint(whole=True)
    assert newest is not None
    rows = max((newest.parent / checkpoint.SEGMENTS).iterdir())
    replays.damage(rows if name == "rows" else newest / name, "changed")
    with pytest.warns(
        RuntimeWarning,
        match=rf"{name if name != 'rows' else rows.name}: expected sha256 .* is taken instead",
    ):
        assert go_on(tmp_path / "run", steps=960)["status"] == "completed"


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:.*is taken instead")
@pytest.mark.parametrize("on", ["serial", "process"])
def test_where_none_is_whole_the_run_ends_in_a_sentence(on: Any, tmp_path: Path) -> None:
    trained("ppo", tmp_path / "run")
    for place in (tmp_path / "run/checkpoints").glob("step_*"):
        if (place / "learner.safetensors").exists():
            replays.damage(place / "learner.safetensors", "changed")
    run = api.start(resume=tmp_path / "run", on=on, steps=4096)
    with pytest.raises(
        WorkerFailed,
        match=r"whole checkpoint to go on from, got none; .*learner.safetensors: .*sha256",
    ) as caught:
        list(run)
    assert "\n" not in str(caught.value)
    api.start(resume=tmp_path / "run", steps=4096).close()  # the lock of the directory is free
