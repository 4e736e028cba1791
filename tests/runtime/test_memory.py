"""The memory of a run: the sum that is known before, what the machine has, and the refusal of what
does not fit.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from equipoise import api, tree
from equipoise.actors.inference.exchange import Exchange
from equipoise.plans import memory_needed as memory
from equipoise.plans import plan, roles
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.memory_needed import Machine
from equipoise.plans.plan import plan_run
from equipoise.runtime import build
from equipoise.runtime.ipc import Heap, PipeChannel
from equipoise.workers.kinds import KINDS

GIB = 1 << 30
ADDRESSES = 8 * GIB  # of the subprocesses: torch maps 3, and a queue of 10^12 envs would take 10^15


def sizes(blue: Blueprint) -> dict[str, int]:
    return {
        name: memory.nbytes(roles.network(blue.program, blue.spec, name)) for name in blue.roles
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ppo", "actors": 2},
        {"algorithm": "impala", "actors": 3, "max_lag": 2},
        {"algorithm": "impala", "actors": 3, "max_lag": None},
        {"algorithm": "impala", "actors": 2, "max_lag": 1, "inference": "central"},
        {"algorithm": "dqn", "actors": 2},
    ],
)
def test_the_sum_has_the_memory_that_workers_share(settings: dict[str, Any]) -> None:
    """Memory that is allocated at once at the start: at most a twentieth (the board, the episodes)
    is not in the sum.
    """
    program = api.program(
        "CartPole-v1",
        settings.pop("algorithm"),
        recipe=False,
        envs_per_actor=64,
        unroll=128,
        **settings,
    )
    blue, channels, got = plan_run(program), list[PipeChannel](), list[int]()

    def channel() -> PipeChannel:
        channels.append(PipeChannel())
        return channels[-1]

    def allocate(name: str, size: int) -> Heap:
        got.append(size)
        return Heap(name, size)

    try:
        build.lay_out(blue, KINDS, allocate, channel)
    finally:
        for one in channels:
            one.close()
    found = memory.parts(blue, sizes(blue))
    shared = (
        found["queue"]
        + found["weights"]
        + (
            tree.nbytes(
                Exchange.specs(policies=memory.exchange_sizes(blue), groups=blue.program.groups)
            )
            if blue.inferences
            else 0
        )
    )
    assert 0.95 * got[0] < shared <= got[0]


@pytest.mark.parametrize(
    ("algorithm", "key", "value", "step"),
    [
        ("ppo", "envs_per_actor", 1_000_000, 1),
        ("ppo", "unroll", 10_000_000, 1),
        ("ppo", "algorithm.hidden", (40_000, 40_000), 1),
        ("dqn", "algorithm.hidden", (40_000, 40_000), 1),
        ("impala", "envs_per_actor", 1_000_000, 1),
        ("dqn", "replay.capacity", 100_000_000, 1),
        ("dqn", "replay.memory", 10 * GIB, 1),
        ("dqn", "batch", 100_000_000, 1),
        ("r2d2", "algorithm.core_size", 100_000, 1),
    ],
)
def test_the_nearest_setting_that_fits_is_told(
    algorithm: str, key: str, value: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of 1 GiB: a sentence names the setting and its nearest value, which is taken;
    the next larger one is not.
    """
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=GIB, free=None))
    # a batch of more items than there are rows
    monkeypatch.setattr(plan, "too_small", lambda plan, policies: [])

    def made(number: Any) -> Any:
        given = {key: number} if "." not in key else {}
        text = ",".join(map(str, number)) if isinstance(number, tuple) else str(number)
        settings = [f"{key}={text}"] if "." in key else []
        return api.program(
            "CartPole-v1", algorithm, recipe=False, settings=settings, max_lag=1, **given
        )

    with pytest.raises(
        ValueError,
        match=rf"^{re.escape(key)}: expected a run that fits in this machine's memory, 1\.0 GiB, "
        r"got",
    ) as refused:
        plan_run(made(value))
    said = str(refused.value)
    assert "\n" not in said
    assert "which takes at least" in said
    found = re.search(r"the nearest that fits is ([\d,]+)", said)
    assert found is not None, said
    fits = int(found[1].replace(",", ""))
    wide = (lambda number: (number,) * 2) if isinstance(value, tuple) else (lambda number: number)
    assert 1 < fits < (value[0] if isinstance(value, tuple) else value)
    if "hidden" not in key and "core" not in key:
        plan_run(made(wide(fits)))
    with pytest.raises(ValueError, match="fits in this machine's memory"):
        plan_run(made(wide(fits + max(step, fits // 50))))


def test_of_two_policies_the_one_with_the_large_replay_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=GIB, free=None))
    program = api.program(
        "tests.envs.games:Signal",
        policies={"speaker": "dqn", "listener": "dqn"},
        route={"speaker": "speaker", "listener": "listener"},
        settings=["policies.listener.replay.capacity=500M"],
    )
    with pytest.raises(
        ValueError, match=r"^policies\.listener\.replay\.capacity: expected a run that fits"
    ):
        plan_run(program)


def test_what_is_free_now_counts_for_what_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = api.program("CartPole-v1", recipe=False, envs_per_actor=10_000)
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=GIB, free=GIB // 20))
    with pytest.raises(
        ValueError,
        match=r"^envs_per_actor: expected a run that fits in the memory that is free now, 51\.2 "
        r"MiB",
    ):
        plan_run(program)
    filled = api.program("CartPole-v1", "dqn", recipe=False, settings=["replay.capacity=5M"])
    plan_run(filled)  # which takes 300 MiB as the run goes on


def test_where_no_setting_alone_is_enough_the_parts_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=1000, free=None))
    with pytest.raises(
        ValueError,
        match=r"^expected a run that fits in .*, 1,000 bytes, got one that takes at least "
        r".*networks .*no setting alone",
    ):
        plan_run(api.program("CartPole-v1", recipe=False))


def test_a_machine_that_tells_nothing_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine", lambda: Machine(total=None, free=None))
    plan_run(api.program("CartPole-v1", recipe=False, envs_per_actor=10**9))


def test_a_network_that_cannot_be_counted_is_built() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(2, 2)
        assert layer.weight[0, 0].item() != 7.0  # no number on the meta device
        return layer

    with pytest.raises(ValueError, match="counted before it is built"):
        memory.counted(build)
    assert memory.nbytes(memory.built(build)) == 24


def test_a_network_that_memory_does_not_hold_is_refused_when_it_is_built() -> None:
    with pytest.raises(ValueError, match="algorithm: expected a network that fits in"):
        memory.built(lambda: nn.Linear(1 << 30, 1 << 30))
    assert memory.counted(lambda: nn.Linear(1 << 62, 1 << 62)) == memory.ENDLESS


# -------------------------------------------------------------------------------------- the machine


def system(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return memory.machine(root)


MEMINFO = {
    "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\nSwapTotal: 0 "
    "kB\nSwapFree:        1048576 kB\n"
}


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert system(tmp_path, MEMINFO) == Machine(total=16 * GIB, free=9 * GIB)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4294967296\n"}, 4),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{4 * GIB}"}, 4),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{2 * GIB}",
                "sys/fs/cgroup/a/b/memory.max": f"{4 * GIB}",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{3 * GIB}",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/gone\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
        ),
    ],
)
def test_the_smallest_limit_of_the_groups_around_the_process_counts(
    files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    got = system(tmp_path, MEMINFO | files)
    if limit is None:
        assert got == Machine(total=16 * GIB, free=9 * GIB)
    else:
        assert got == Machine(
            total=limit * GIB, free=limit * GIB, name="the memory limit of this cgroup"
        )


# --------------------------------------------------------------------------------- the command line


def command(
    *arguments: str, cwd: Path, temporary: Path = Path("/tmp"), **limits: int
) -> subprocess.CompletedProcess[str]:
    """``equipoise train CartPole-v1`` under these resource limits ("AS", "NOFILE", "FSIZE")."""

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    call = "from equipoise.cli import main; main()"
    return subprocess.run(  # noqa: PLW1510
        [
            sys.executable,
            "-c",
            call,
            "train",
            "CartPole-v1",
            "--quiet",
            "--steps",
            "4k",
            "--out",
            "run",
            *arguments,
        ],
        cwd=cwd,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
    )


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--envs-per-actor", "1000000000000"), "envs_per_actor: expected a run that fits in"),
        (
            ("--set", "policy.unroll=1000000000000", "--on", "serial"),
            "unroll: expected a run that fits in",
        ),
        (
            ("--set", "algorithm.hidden=[100000000,100000000]"),
            "algorithm.hidden: expected a run that fits in",
        ),
    ],
)
def test_nothing_is_allocated_for_a_run_that_does_not_fit(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = command(*arguments, cwd=tmp_path, AS=ADDRESSES)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"equipoise train: {said}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        (
            "ppo",
            {"max_lag": 1_000_000},
            r"max_lag: expected at most [\d,]+, or none for no bound, .* got 1,000,000; more "
            r"envs_per",
        ),
        (
            "dqn",
            {"max_lag": 1_000_000},
            r"max_lag: expected at most [\d,]+, or none for no bound, .* got 1,000,000",
        ),
        (
            "impala",
            {"batch": 160_000, "max_lag": 0},
            r"batch: expected at most [\d,]+, since the queue has room",
        ),
        (
            "impala",
            {"batch": 160_000, "max_lag": None},
            r"batch: expected at most [\d,]+, since the queue has room",
        ),
        (
            "impala",
            {"actors": 3000, "max_lag": None},
            r"actors: expected at most 2,048, since the queue has room",
        ),
    ],
)
def test_more_blocks_than_a_queue_has_room_for(
    algorithm: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        api.program("CartPole-v1", algorithm, **settings)


@pytest.mark.parametrize("value", ["inf", "1e300", "11"])
def test_a_learning_rate_that_no_update_survives_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"^optimizer\.learning_rate: expected 0 to 10, got"):
        api.program("CartPole-v1", settings=[f"optimizer.learning_rate={value}"])


def one_sentence(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    assert done.returncode == code, done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert re.match(f"equipoise train: {said}", last), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("on", ["serial", "process"])
def test_an_update_that_is_not_finite_ends_the_run_in_a_sentence(on: str, tmp_path: Path) -> None:
    done = command("--on", on, "--set", "algorithm.entropy=1e300", cwd=tmp_path)
    one_sentence(
        done, 1, r"learner, group 'all', update 1: expected a finite (loss|grad_norm/all), got"
    )


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_too_few_open_files_are_a_sentence_that_names_enough(tmp_path: Path) -> None:
    done = command(cwd=tmp_path, NOFILE=24)
    one_sentence(
        done,
        2,
        r"expected a limit of at least \d+ open files for \d+ worker processes, got 24 \(ulimit -n\)",  # noqa: E501
    )
    assert not (tmp_path / "run").exists()
    enough = re.search(r"at least (\d+) open files", done.stderr)
    assert enough is not None
    assert command(cwd=tmp_path, NOFILE=int(enough[1])).returncode == 0


def test_a_temporary_directory_with_a_long_path_is_a_sentence(tmp_path: Path) -> None:
    """Sockets, which processes talk through, cannot lie in it."""
    place = tmp_path / ("long" * 30)
    place.mkdir()
    done = command(cwd=tmp_path, temporary=place)
    path = rf"whose path has {len(str(place))} characters, expected at most 75"
    one_sentence(done, 2, rf"the run cannot start, .* in the temporary directory, {path}")
    assert not (tmp_path / "run").exists()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_limit_of_the_size_of_files_costs_checkpoints_not_the_run(tmp_path: Path) -> None:
    """In one thread: what is too large is not saved, and the run says so. Processes share memory,
    which counts as a file.
    """
    done = command(cwd=tmp_path, FSIZE=20_000)
    one_sentence(
        done,
        2,
        r"the run cannot start, since it needs a larger file than .* may write \(.*'run' takes .* "
        r"MiB",
    )
    assert not (tmp_path / "run").exists()
    done = command("--on", "serial", cwd=tmp_path, FSIZE=20_000)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert summary["status"] == "completed"
    assert any("File too large" in note for note in summary["notes"]), summary["notes"]
    assert not list((tmp_path / "run" / "checkpoints").glob("*/.*"))


CHURN = """
import resource
import sys
import numpy as np
from equipoise.memory import keep_freed

if sys.argv[1] == "keep":
    keep_freed()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for turn in range(6):
    if turn == 1:
        before = faults()
    made = [np.ones(24 << 20, np.uint8) for _ in range(4)]
    del made
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_kept() -> None:
    """A process that was asked to keeps what it freed: the next temporaries cost next to no page
    faults.
    """
    kept, returned = (
        int(
            subprocess.run(
                [sys.executable, "-c", CHURN, word],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
        )
        for word in ("keep", "return")
    )
    assert kept < 1_000 < returned, (kept, returned)
