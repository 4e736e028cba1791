"""Runs under attack: the matrix of ``equipoise chaos``,
and what takes longer than one of its rows.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.chaos.attack import Attack
from equipoise.chaos.faults import FAULTS
from equipoise.chaos.ledger import COUNTS, Ledger
from equipoise.chaos.matrix import chosen, inflict, lines, matrix
from tests.conftest import descendants
from tests.runtime.killing import killing

pytestmark = pytest.mark.skipif(
    not Path("/proc").is_dir(), reason="workers are found in Linux's /proc"
)


@pytest.mark.thorough
def test_a_run_whose_actors_are_killed_proves_its_rows() -> None:
    """One row of the matrix, for every run of the tests."""
    result = inflict(chosen(["kill-actor"])[0], 0.0)
    assert result.passed, lines(result)
    assert result.rows is not None and result.rows.proven > 1000 and result.rows.lost == 0
    assert result.recovery_s is not None and 0 < result.recovery_s < 60


def test_a_fault_that_nobody_knows_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="kill-actor"):
        chosen(["kil-actor"])


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault(fault: Any) -> None:
    said: list[str] = []
    assert all(result.passed for result in matrix([fault], 4.0, said.append)), said


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_under_central_inference(fault: Any) -> None:
    said: list[str] = []
    assert all(result.passed for result in matrix([fault], 4.0, said.append, "central")), said


# ------------------------------------------------------------------------------ the ledger can fail


def windows(start: int, *, t: int = 0, number: int = 0, rows: int = 4, stream: int = 0) -> Any:
    """One window of the ruler's rows, as an actor would have written it."""
    import torch

    from equipoise.envs.toys import ruler
    from equipoise.types import Trajectory

    obs, reward, mask, bootstrap, noise = [], [], [], [], []
    for _ in range(rows):
        length, terminates, _ = ruler.episode(stream, number)
        seam, action = t == length, 3
        obs.append((stream, number, t, 0))
        reward.append(0.0 if seam else float(ruler.reward(number, t, action)))
        mask.append(not seam)
        bootstrap.append(bool(seam or not (t + 1 == length and terminates)))
        noise.append((action + 0.5) / ruler.ACTIONS)
        number, t = (number + 1, 0) if seam else (number, t + 1)
    obs.append((stream, number, t, 0))
    observed = torch.tensor(obs, dtype=torch.float32)[:, None]
    column = {
        "reward": torch.tensor(reward),
        "mask": torch.tensor(mask),
        "bootstrap": torch.tensor(bootstrap),
    }
    return Trajectory(
        obs=observed,
        first=observed[..., 2] == 0,
        action=torch.full((rows, 1), 3),
        behaviour={
            "seen": observed[:-1, :, 2],
            "noise": torch.tensor(noise)[:, None],
            "updates": torch.zeros(rows, 1),
        },
        version=torch.zeros(rows, 1, dtype=torch.int64),
        state={"seen": observed[0, :, 2]},
        context={"stream": torch.tensor([stream]), "start": torch.tensor([start])},
        **{key: value[:, None] for key, value in column.items()},
    )


def after(*entered: Any, replayed: bool = False) -> dict[str, int]:
    ledger = Ledger(1)
    for data in entered:
        ledger.enter(data, aborts=False, replayed=replayed)
    return dict(zip(COUNTS, ledger.counts.tolist(), strict=True))


def following(data: Any, start: int) -> Any:
    """The window that goes on where ``data`` ends."""
    stream, number, t, _ = data.obs[-1, 0].tolist()
    return windows(start, number=int(number), t=int(t), stream=int(stream))


def test_the_ledger_sees_what_is_wrong() -> None:
    first = windows(0)
    second = following(first, 4)
    third = following(second, 8)
    fine = dict.fromkeys(COUNTS, 0)
    assert after(first, second, third) == fine | {"rows": 12}
    assert after(first, third, second) == fine | {"rows": 12}, (
        "a place that was dealt anew comes late"
    )
    assert after(first, second, second) == fine | {"rows": 12, "duplicated": 4}
    assert after(first, windows(9)) == fine | {"rows": 8, "missing": 4}, (
        "a successor begins a new episode after a gap"
    )
    assert after(first, third)["missing"] == 4
    assert after(first, third)["orphans"] == (third.obs[0, 0, 2] != 0)
    assert after(first, windows(4, number=7))["torn"] == 1, "it goes on elsewhere"
    for field in ("reward", "mask", "bootstrap", "first", "version"):
        torn = windows(0)
        value = getattr(torn, field)
        value[1] = ~value[1] if field != "reward" and field != "version" else value[1] + 1
        assert after(torn)["torn"] > 0, field


def test_the_ledger_of_a_replay_sees_a_window_that_came_with_other_rows() -> None:
    first = windows(0)
    second = following(first, 4)
    third = following(second, 8)
    fine = dict.fromkeys(COUNTS, 0)
    assert after(third, first, third, second, first, replayed=True) == fine | {"rows": 20}
    assert after(first, windows(0, number=7), replayed=True)["torn"] == 1, (
        "the same row number, and another episode"
    )
    assert after(first, windows(4, number=7), replayed=True)["torn"] == 1, "it goes on elsewhere"


def entered(ledger: Any, batches: list[list[Any]], pool: Any) -> Any:
    """The ledger, into which one of several learners, or one alone, entered its windows, a batch at
    a time.
    """
    from equipoise import tree
    from equipoise.types import TRAJECTORY_STREAMS, Trajectory

    def joined(windows: list[Any]) -> Any:
        import torch

        def together(name: str) -> Any:
            axis = 0 if name in TRAJECTORY_STREAMS else 1
            return tree.map(
                lambda *xs: torch.cat(xs, axis), *[getattr(data, name) for data in windows]
            )

        return Trajectory(**{name: together(name) for name in Trajectory.__slots__})

    for windows_ in batches:
        data, before = joined(windows_), ledger.counts.clone()
        ledger.enter(data, aborts=False)
        ledger.merge(data, before, pool)
    return ledger


def test_learners_that_enter_their_streams_have_one_ledger() -> None:
    """Also where a stream is not in every batch, and where one learner sees what is wrong."""
    import torch

    from equipoise.learners.pool import ALONE
    from tests.learners.several import together

    first = [windows(0, stream=stream) for stream in range(4)]
    second = [following(data, 4) for data in first]
    for data in second:
        data.version[:], data.behaviour["updates"][:] = 1, 1
    gap = windows(9, stream=3)
    shares = [
        # a window of stream 1 comes twice
        [[first[0], first[1]], [second[1]], [second[0], second[1]]],
        [[first[2]], [first[3], second[2]], [gap]],
    ]
    whole = entered(Ledger(5), [one + other for one, other in zip(*shares, strict=True)], ALONE)
    counts = dict(zip(COUNTS, whole.counts.tolist(), strict=True))
    assert counts["rows"] == 36 and counts["duplicated"] == 4 and counts["missing"] == 4, counts
    for part in together(2, lambda rank, pool: entered(Ledger(5), shares[rank], pool)):
        for name, buffer in whole.named_buffers():
            assert torch.equal(dict(part.named_buffers())[name], buffer), name


# --------------------------------------------------------------------------------------- acceptance


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_half_of_the_actors_killed_every_five_seconds_and_one_stopped(tmp_path: Path) -> None:
    with Attack(tmp_path, limit_s=300.0) as attack:
        attack.train(actors=4)
        end = time.monotonic() + 60.0
        n = 0
        while time.monotonic() < end:
            chosen_now = [f"actor {(2 * n + i) % 4}" for i in range(2)]
            pids = [attack.signal(name, signal.SIGKILL) for name in chosen_now]
            for name, pid in zip(chosen_now, pids, strict=True):
                attack.replaced(name, pid)
            attack.go_on(5.0)
            n += 1
        attack.replaced("actor 3", attack.signal("actor 3", signal.SIGSTOP))
        attack.wait(lambda: len(attack.workers()) == 5, "four actors and the learner")
        attack.end()
        rows, queue = attack.rows(), attack.summary["rows"]
    assert queue["inserted"] == queue["sampled"] + queue["dropped"] + queue["held"]
    assert (rows.lost, rows.duplicated, rows.torn) == (0, 0, 0) and rows.proven > 10_000


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_driver_killed_at_twenty_moments_leaves_nothing(tmp_path: Path, seed: int) -> None:
    """From the moment that its first worker is there, and without its workers."""
    draw = random.Random(seed)
    for moment in range(20):
        place = tmp_path / str(moment)
        place.mkdir()
        with Attack(place, limit_s=60.0) as attack:
            attack.train(updates=0)
            attack.wait(attack.workers, "a worker")
            attack.go_on(draw.uniform(0.0, 2.0))
            os.kill(attack.sessions[-1], signal.SIGKILL)
            attack.gone()
            assert not maps(), "somebody maps the segment"
            assert not list(Path("/dev/shm").glob("equipoise-*"))


def maps() -> list[str]:
    """Processes below this one that map a segment of a run."""
    return [
        d
        for d in descendants()
        if "memfd:equipoise-" in (Path("/proc") / d.split()[0] / "maps").read_text()
    ]


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_short_episodes_cost_no_memory_and_no_files(tmp_path: Path) -> None:
    """10^6 episodes of one to five steps after a warm-up of a quarter of a million: every process
    keeps its size.
    """
    run = api.start(
        "equipoise/Ruler-v0",
        "impala",
        out=tmp_path / "run",
        env_kwargs={"longest": 5},
        actors=2,
        envs_per_actor=32,
        unroll=16,
        max_lag=1,
        steps=10**8,
        checkpoint_every=0,
        evaluate_episodes=0,
    )
    seen: dict[str, list[tuple[int, float, int]]] = {}
    for report in run:
        if report.episodes > 250_000:
            workers = {
                d.split(" ", 1)[1]: int(d.split()[0])
                for d in descendants()
                if " equipoise " in d and "multiprocessing" not in d
            }
            for name, pid in {**workers, "driver": os.getpid()}.items():
                seen.setdefault(name, []).append(
                    (report.episodes, rss_mb(pid), len(os.listdir(f"/proc/{pid}/fd")))
                )
        if report.episodes > 1_250_000:
            break
    run.close()
    assert set(seen) == {"driver", "equipoise learner", "equipoise actor 0", "equipoise actor 1"}
    for name, samples in seen.items():
        episodes, memory, files = np.array(samples).T
        assert len(samples) > 10
        slope = float(np.polyfit(episodes / 100_000, memory, 1)[0])
        assert slope < 1.0, (
            f"{name}: {slope:.2f} MB per 100,000 episodes, {memory[0]:.0f} to {memory[-1]:.0f} MB"
        )
        assert files.max() - files.min() <= (3 if name == "driver" else 0), (
            f"{name}: {files.min()} to {files.max()} open files"
        )


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# --------------------------------------------------------------------------- killed again and again

REPLAY = ("replay.capacity=10000", "replay.starts_at=500")
SPOT: dict[str, Any] = {
    "impala": ("actor 0", "impala", {}),
    "appo": ("actor 1", "appo", {}),
    "a3c": ("actor 0", "a3c", {}),
    "dqn": ("actor 0", "dqn", {"settings": REPLAY}),
    "r2d2": ("actor 0", "r2d2", {"settings": REPLAY}),
    "inference": ("inference 0", "impala", {"inference": "central"}),
    "env worker": ("actor 0", "impala", {"inference": "central"}),
    "shard": ("shard 0", "dqn", {"settings": (*REPLAY, "replay.shards=2")}),
    "learner": ("learner", "impala", {"checkpoint_every": 2000}),
}


@pytest.mark.chaos
@pytest.mark.parametrize("case", SPOT)
def test_a_worker_that_is_killed_every_two_seconds_does_not_end_the_run(
    case: str, tmp_path: Path
) -> None:
    """For half a minute, as where machines are lent for moments; then it is left alone, and the run
    learns on.
    """
    worker, algorithm, options = SPOT[case]
    killed: set[int] = set()
    given = {"actors": 2, "envs_per_actor": 4, "evaluate_episodes": 0, "recipe": False, **options}
    run = api.start("CartPole-v1", algorithm, out=tmp_path / "run", steps=10**9, **given)
    end, after = time.monotonic() + 30, None
    with run, killing(worker, killed, times=15, every_s=2.0):
        for report in run:
            if time.monotonic() > end and len(killed) >= 5:
                after = report.updates if after is None else after
                if report.updates > after:
                    break
    assert len(killed) >= 5
