"""What flows through a run: how full its stores are, how old what is used is, bytes, and what
processes take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.histograms import SECONDS
from equipoise.runtime import gpus
from equipoise.runtime import usage as usages
from equipoise.runtime.gpus import Gpus
from equipoise.runtime.usage import DRIVER, Usages, usage

TINY: dict[str, Any] = {"steps": 512, "evaluate_episodes": 0, "recipe": False, "envs_per_actor": 4}


@pytest.mark.few(1)
@pytest.mark.parametrize(("on", "max_lag"), [("serial", 0), ("process", 2)])
def test_histograms_of_a_run_agree_with_its_lag(on: Any, max_lag: int, tmp_path: Path) -> None:
    run = api.start(
        "CartPole-v1",
        "impala",
        on=on,
        max_lag=max_lag,
        actors=2,
        out=tmp_path / "run",
        batch=8,
        unroll=8,
        **TINY,
    )
    reports = list(run)
    summary: Any = run.summary
    versions = {int(end): n for end, n in summary["lag"]["versions"].items()}
    assert sum(versions.values()) == summary["updates"] * 8, "every window of every update"
    assert max(versions) == summary["lag"]["max"] <= max_lag
    assert sum(end * n for end, n in versions.items()) / sum(versions.values()) == pytest.approx(
        summary["lag"]["mean"]
    )
    assert sum(summary["lag"]["seconds"].values()) == sum(versions.values())
    # A block of each actor; the last batch may be withheld until the run has ended.
    assert sum(summary["lag"]["loop"].values()) in (
        summary["updates"] * 2,
        summary["updates"] * 2 - 2,
    )
    assert max(float(end) for end in summary["lag"]["loop"]) < 2 * summary["wall_s"] + SECONDS[0]
    recorded = [report for report in reports if report.recorded and not report.final]
    assert sum(sum(report.lags.get("versions", {}).values()) for report in recorded) == sum(
        versions.values()
    )
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert lines[-1]["lags"]["versions"] == summary["lag"]["versions"]


def test_bytes_and_occupancy_follow_from_the_rows(tmp_path: Path) -> None:
    run = api.start(
        "CartPole-v1",
        "dqn",
        on="serial",
        out=tmp_path / "run",
        settings=["replay.starts_at=64", "replay.capacity=256"],
        **TINY,
    )
    *_, last = list(run)
    rows, batch = run.summary["rows"], run.program.policies["main"].batch  # type: ignore[index,union-attr]
    each = last.moved["written"] / rows["inserted"]
    assert 40 < each < 200, (
        "bytes of a row of CartPole: four floats, an action, a reward, flags, a version"
    )
    assert last.moved["read"] == pytest.approx(rows["sampled"] * each, abs=1)
    assert last.moved["batches"] >= last.updates * batch * each * 0.5 and last.moved["weights"] > 0
    assert last.occupancy.keys() == {"queue", "replay"} and last.occupancy["replay"] == 1.0, (
        "512 rows in room for 256"
    )


def test_shards_are_as_full_as_their_rows(tmp_path: Path) -> None:
    run = api.start(
        "CartPole-v1",
        "apex_dqn",
        on="serial",
        out=tmp_path / "run",
        actors=2,
        settings=["replay.starts_at=64", "replay.capacity=4096", "replay.shards=2"],
        **TINY,
    )
    *_, last = list(run)
    assert set(last.occupancy) == {"queue", "shard 0", "shard 1"}
    assert all(0.05 < last.occupancy[f"shard {k}"] < 0.2 for k in range(2)), "some 500 of 4096 rows"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel does not tell")
def test_usage_is_what_the_process_took() -> None:
    code = (
        "x = bytearray(64 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('there', "
        "flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = usage(child.pid)
        assert found is not None and 64 << 20 < found.rss < 128 << 20
        child.communicate("\n")
    assert usage(child.pid) is None
    mine, began = usage(os.getpid()), time.process_time()
    assert mine is not None and abs(mine.cpu_s - began) < 0.5 + 0.1 * began


def test_processes_are_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = list[int](), [50.0]

    def found(pid: int) -> usages.Usage:
        asked.append(pid)
        return usages.Usage(1.0, pid, pid)

    monkeypatch.setattr(usages, "usage", found)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    read = Usages()
    for step in np.linspace(0, 2.2, 23):
        now[0] = 50.0 + step
        assert read({"actor 0": 7} if step < 2 else {}) == {"actor 0": usages.Usage(1.0, 7, 7)}, (
            "the last that was seen"
        )
    assert asked == [7, 7]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel does not tell")
@pytest.mark.thorough
def test_a_run_tells_the_usage_of_its_processes(tmp_path: Path) -> None:
    run = api.start("CartPole-v1", "impala", on="process", actors=1, out=tmp_path / "run", **TINY)
    *_, last = list(run)
    assert last.usage.keys() == {DRIVER, "learner", "actor 0"}
    assert all(one["rss"] > 10 << 20 and one["cpu_s"] >= 0 for one in last.usage.values())


class Nvml(ModuleType):
    """As ``pynvml`` with two GPUs, of which one does not tell its power."""

    class NVMLError(Exception): ...

    class NVMLError_NotSupported(NVMLError): ...

    def __init__(self, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.driver, self.reads, self.lost = driver, 0, False

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        self.reads += 1
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.lost and index == 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(used=1 << 30, total=8 << 30)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:
        return SimpleNamespace(gpu=50, memory=25)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu == 1:
            raise self.NVMLError_NotSupported
        return 250_000


def test_gpus_tell_what_they_can_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, now = Nvml(), [50.0]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    read = Gpus("cuda:1")
    one = {"busy": 0.5, "memory_busy": 0.25, "used": 1 << 30, "total": 8 << 30}
    assert read() == read() == {"gpu 0": one | {"power_w": 250.0}, "gpu 1": one} and nvml.reads == 1
    nvml.lost, now[0] = True, 51.0
    assert read().keys() == {"gpu 0"}, "nothing of a GPU that is lost, and no error"


def test_nothing_is_said_of_gpus_that_are_not_used_or_do_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert Gpus("cpu")() == {}
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(driver=False))
    assert Gpus("cuda")() == {}
    monkeypatch.delitem(sys.modules, "pynvml")
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    assert Gpus("cuda")() == {}
