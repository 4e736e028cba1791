"""Cuts of a run over machines that are processes: what they wait for, and what they are given up
for.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.runtime.cluster.host import SiteJob
from equipoise.runtime.messages import Cut, Note
from tests.runtime.machines import Processes, blue_of, finish, on_machines
from tests.runtime.test_cluster import ALL_AWAY, AWAY, SMALL, pids

pytestmark = pytest.mark.thorough


class Late(Processes):
    """Machines that begin only once they are not ``late`` any more."""

    def __init__(self, late: Callable[[SiteJob], object]) -> None:
        super().__init__()
        self._late, self._jobs = late, dict[str, SiteJob]()

    def start(self, job: SiteJob) -> None:
        if self._late(job):
            self._jobs[job.name] = job
        else:
            super().start(job)

    def ended(self) -> Mapping[str, str]:
        for name in [name for name, job in self._jobs.items() if not self._late(job)]:
            super().start(self._jobs.pop(name))
        return {name: how for name, how in super().ended().items() if name not in self._jobs}

    def where(self, name: str) -> str:
        return super().where(name) if name in self.sites else ""


def test_the_last_checkpoint_waits_for_a_machine_that_is_lost(tmp_path: Path) -> None:
    cuts, killed = list[Cut](), list[int]()
    blue = blue_of(tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=6_400, settings=SMALL)
    nodes = Late(lambda job: job.incarnation > 1 and runtime.stats().version < blue.updates)
    runtime = on_machines(blue, AWAY, nodes)

    def each(messages: Any) -> None:
        cuts.extend(message for message in messages if isinstance(message, Cut))
        if not killed and runtime.stats().version >= 8:
            killed.append(1)
            nodes.kill("site 0")

    finish(runtime, each)
    assert killed and cuts[-1].version == blue.updates and cuts[-1].error is None, cuts
    assert "actor_1.safetensors" in cuts[-1].files


def test_a_cut_is_given_up_where_a_worker_of_another_machine_dies_in_it(tmp_path: Path) -> None:
    """Its successor has nothing to save for that cut, and the learner would hold still for ever."""
    flag, cuts = tmp_path / "flag", list[Cut]()
    blue = blue_of(
        tmp_path / "run",
        "tests.runtime.saving_env:KilledWhileSaving",
        "ppo",
        checkpoint_every=256,
        max_lag=1,
        steps=12_800,
        settings=[*SMALL, f"env.flag={flag}"],
    )
    runtime = on_machines(blue, ALL_AWAY)

    def each(messages: Any) -> None:
        cuts.extend(message for message in messages if isinstance(message, Cut))
        if len(cuts) == 2:
            flag.touch()

    finish(runtime, each)
    assert not flag.exists() and cuts[-1].error is None and cuts[-1].version == blue.updates
    assert any("was killed by SIGKILL meanwhile" in str(cut.error) for cut in cuts), cuts


def test_a_cut_that_no_other_follows_waits_for_a_machine_that_still_begins(tmp_path: Path) -> None:
    cuts, asked = list[Cut](), list[float]()
    blue = blue_of(
        tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=64_000, checkpoint_every=0, settings=SMALL
    )
    nodes = Late(
        lambda job: job.name == "site 0" and not (asked and time.monotonic() > asked[0] + 1.0)
    )
    runtime = on_machines(blue, AWAY, nodes)

    def each(messages: Any) -> None:
        cuts.extend(message for message in messages if isinstance(message, Cut))
        if not asked and runtime.stats().version >= 2:
            asked.append(time.monotonic())
            runtime.hold(last=True)
        runtime.done |= bool(cuts)

    finish(runtime, each)
    assert [cut.error for cut in cuts] == [None] and "actor_1.safetensors" in cuts[0].files


def limit_files(pid: int, size: int) -> None:
    """As on a full disk: a process cannot write more than that into a file; -1: it can."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))


def test_a_full_disk_at_home_costs_checkpoints_and_not_the_proxy(tmp_path: Path) -> None:
    cuts, limited = list[Cut](), list[int]()
    blue = blue_of(
        tmp_path,
        "CartPole-v1",
        "ppo",
        max_lag=1,
        steps=12_800,
        checkpoint_every=640,
        settings=SMALL,
    )
    runtime = on_machines(blue, ALL_AWAY)

    def each(messages: Any) -> None:
        cuts.extend(message for message in messages if isinstance(message, Cut))
        if not limited and runtime.stats().version >= 2:
            limited.append(pids("proxy")[0])
            limit_files(limited[0], 64)
        elif limited and any("File too large" in str(cut.error) for cut in cuts):
            limit_files(limited[0], -1)

    finish(runtime, each)
    assert any("File too large" in str(cut.error) for cut in cuts) and cuts[-1].error is None, cuts


def test_workers_whose_state_cannot_be_kept_begin_anew_elsewhere(tmp_path: Path) -> None:
    nodes, notes, limited = Processes(), list[str](), list[int]()
    blue = blue_of(tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=12_800, settings=SMALL)
    runtime = on_machines(blue, AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if not limited and runtime.stats().version >= 8:
            limited.append(pids("proxy")[0])
            limit_files(limited[0], 64)
            nodes.drained.add("site 1")
        elif limited and runtime.stats().sites["site 1"].lost:
            limit_files(limited[0], -1)

    _, stats = finish(runtime, each)
    assert any("could not hand over what actor" in note for note in notes), notes
    assert (
        stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["dropped"] + stats.rows["held"]
    )


def test_no_cut_waits_for_a_successor_that_will_not_save_for_it(tmp_path: Path) -> None:
    """An actor of another machine that is killed again and again, while there is a cut after every
    version.
    """
    blue = blue_of(
        tmp_path,
        "CartPole-v1",
        "ppo",
        max_lag=1,
        steps=640_000,
        checkpoint_every=64,
        settings=SMALL,
    )
    runtime, killed, rows = on_machines(blue, ALL_AWAY), list[int](), list[Any]()

    def each(messages: Any) -> None:
        if len(killed) == 12 and any(
            isinstance(one, Cut) and one.error is None for one in messages
        ):
            rows.append(runtime.stats().rows)  # nobody writes
        runtime.done |= bool(rows)
        for pid in pids("actor 1"):
            if (
                pid not in killed
                and runtime.stats().version >= 4 * len(killed)
                and len(killed) < 12
            ):
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    finish(runtime, each)
    assert len(killed) == 12
    assert rows[0]["inserted"] == rows[0]["sampled"] + rows[0]["dropped"] + rows[0]["held"]
