"""Weights arrive whole, in order, and to each reader in its own copy: in the host's memory, and on a device."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.weights.device import LONGEST, CudaIpc, DeviceWeights
from equipoise.weights.store import BUFFERS, Weights
from tests.weights import sharing
from tests.weights.sharing import Memfd, between_processes, params, store, whole

linux = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for a device is found in /proc")
KINDS = [pytest.param(None, id="host"), pytest.param(Memfd(), id="device", marks=linux)]
CUDA = pytest.param(CudaIpc(), "cuda", id="cuda", marks=pytest.mark.gpu)
PLACES = [pytest.param(None, "cpu", id="host"), pytest.param(Memfd(), "cpu", id="device", marks=linux), CUDA]


@pytest.mark.parametrize("share", KINDS)
def test_nothing_is_there_before_the_first_publish_and_nothing_newer_after_a_fetch(share: Any) -> None:
    weights = store(share)
    assert weights.fetch() is None and weights.version == -1
    weights.publish(5, params(5))
    got = weights.fetch()
    assert got is not None and got[0] == 5 == weights.version and whole(got[1], 5)
    assert {name: (x.shape, x.dtype) for name, x in got[1].items()} == {n: (x.shape, x.dtype) for n, x in params(0).items()}
    assert weights.fetch(5) is None
    weights.publish(6, params(6))
    assert weights.fetch(5) is not None


@pytest.mark.parametrize("share", KINDS)
def test_handles_have_copies_of_their_own(share: Any) -> None:
    weights = store(share)
    other = weights.handle()
    weights.publish(1, params(1))
    mine = weights.fetch()
    weights.publish(2, params(2))
    theirs = other.fetch()
    assert mine is not None and theirs is not None
    assert float(mine[1]["w"][0, 0]) == 1 and float(theirs[1]["w"][0, 0]) == 2


@pytest.mark.parametrize("share", KINDS)
def test_no_copy_is_torn_while_a_publisher_writes_without_pause(share: Any) -> None:
    weights = store(share, size=50_000)
    reader, stop = weights.handle(), threading.Event()

    def publish() -> None:
        version = 1
        while not stop.is_set():
            weights.publish(version, params(version, 50_000))
            version += 1

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        seen = 0
        version = -1
        while seen < 200:
            if (got := reader.fetch(version)) is None:
                continue
            assert got[0] > version
            version, tensors = got
            assert whole(tensors, version), f"torn at {version}"
            seen += 1
    finally:
        stop.set()
        writer.join()


class Slow(Memfd):
    """A device that is done with a copy only when it is waited for."""

    def __init__(self) -> None:
        self.under_way: Callable[[], None] | None = None

    def wait(self, device: torch.device) -> None:
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            under_way()


def test_a_copy_that_a_publisher_crossed_is_taken_again(monkeypatch: Any) -> None:
    """The publisher laps the reader in the middle of its copy: the torn copy is not handed out."""
    weights = store(None)
    weights.publish(1, params(1))
    reader = weights.handle()
    real = np.copyto
    lapped: list[bool] = []

    def copy_slowly(target: Any, source: Any, **kwargs: Any) -> None:
        real(target[: len(target) // 2], source[: len(source) // 2], **kwargs)
        if not lapped:
            lapped.append(True)
            for version in range(2, 2 + BUFFERS):
                weights.publish(version, params(version))
        real(target[len(target) // 2 :], source[len(source) // 2 :], **kwargs)

    monkeypatch.setattr(np, "copyto", copy_slowly)
    got = reader.fetch()
    assert got is not None and whole(got[1], got[0]) and got[0] == 1 + BUFFERS


@linux
def test_a_copy_on_a_device_is_done_before_it_is_judged() -> None:
    """The same while the reader waits for its device."""
    share = Slow()
    weights = store(share)
    weights.publish(1, params(1))
    reader = weights.handle()
    assert isinstance(reader, DeviceWeights) and reader.fetch() is not None
    weights.publish(2, params(2))

    def second_half() -> None:
        for version in range(3, 3 + BUFFERS):
            weights.publish(version, params(version))
        source, half = reader._theirs[2], len(reader._copy) // 2
        reader._copy[half:] = source[half:]

    share.under_way = second_half
    got = reader.fetch(1)
    assert got is not None and whole(got[1], got[0]) and got[0] == 2 + BUFFERS


@linux
def test_a_version_is_out_only_when_the_device_is_done_with_it() -> None:
    share = Slow()
    weights = store(share)
    weights.publish(1, params(1))
    seen: list[Any] = []
    share.under_way = lambda: seen.append((weights.version, weights.handle().fetch(1)))
    weights.publish(2, params(2))
    assert seen == [(1, None)] and weights.version == 2


@linux
def test_until_the_first_version_on_the_device_there_are_the_hosts() -> None:
    weights = store(Memfd())
    assert isinstance(weights, DeviceWeights)
    reader = weights.handle()
    weights._host.publish(7, params(7))
    got = reader.fetch()
    assert got is not None and got[0] == 7 == reader.version and whole(got[1], 7)
    weights.publish(8, params(8))
    weights._host.publish(9, params(9))
    got = reader.fetch(7)
    assert got is not None and got[0] == 8 == reader.version and whole(got[1], 8)
    assert reader.fetch(8) is None


@linux
def test_a_publisher_in_place_of_another_has_buffers_of_its_own(monkeypatch: Any) -> None:
    """A reader attaches to them, its tensors stay where they are; what it copies while they come is not handed out."""
    first = store(Memfd())
    reader, second = first.handle(), first.handle()
    assert isinstance(reader, DeviceWeights)
    for version in (1, 2, 3, 4):
        first.publish(version, params(version))
    got = reader.fetch()
    assert got is not None and got[0] == 4
    where = {name: x.data_ptr() for name, x in got[1].items()}
    real = reader._read
    copied: list[int] = []

    def read(i: int) -> Any:
        if not copied:
            second.publish(5, params(5))  # the buffers that this reader will look for are not yet written
        copied.append(i)
        return real(i)

    first.publish(6, params(6))
    monkeypatch.setattr(reader, "_read", read)
    assert reader.fetch(4) == (5, got[1]) and whole(got[1], 5) and len(copied) == 2
    assert {name: x.data_ptr() for name, x in got[1].items()} == where and reader._attached == 2


@linux
def test_a_handle_without_an_end_is_refused() -> None:
    class Long(Memfd):
        def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
            return super().allocate(nbytes, device)[0], b"x" * (LONGEST + 1)

    with pytest.raises(ValueError, match=f"expected at most {LONGEST} bytes, got {LONGEST + 1}"):
        store(Long()).publish(1, params(1))


# ------------------------------------------------------------------------------------------------------ between processes

SPAWN = multiprocessing.get_context("spawn")
SIZE = 20_000


@contextmanager
def publishing(weights: Weights | DeviceWeights, device: str, first: int = 1) -> Iterator[None]:
    process = SPAWN.Process(target=sharing.publish, args=(weights, SIZE, device, first))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def reading(weights: Weights | DeviceWeights, device: str) -> Any:
    process = SPAWN.Process(target=sharing.read, args=(weights, 100, device))
    process.start()
    return process


def close(weights: Any) -> None:
    for memory in {weights._memory, getattr(weights, "_host", weights)._memory}:
        memory.close()


@pytest.mark.parametrize(("share", "device"), PLACES)
def test_processes_read_what_another_publishes_and_so_do_their_successors(share: Any, device: str, deadline: Any) -> None:
    before = named_files()
    weights = between_processes(share, SIZE)
    with publishing(weights, device):
        readers = [reading(weights, device), reading(weights, device)]
        deadline(lambda: readers[0].exitcode is not None, 120, "a reader")
        readers.append(reading(weights, device))
        for process in readers:
            process.join(120)
    ended = [process.exitcode for process in readers]
    for process in readers:
        process.kill()
        process.join()
    close(weights)
    assert ended == [0, 0, 0]
    assert named_files() <= before


@pytest.mark.parametrize(("share", "device"), PLACES)
def test_a_reader_goes_on_with_the_publisher_in_place_of_one_that_was_killed(share: Any, device: str, deadline: Any) -> None:
    weights = between_processes(share, SIZE)
    reader, version = weights.handle(), 0

    def one() -> bool:
        nonlocal version
        if (got := reader.fetch(version)) is None:
            return False
        assert got[0] > version and whole(got[1], got[0])
        version = got[0]
        return True

    for first in (1, 1_000_000):
        with publishing(weights, device, first):
            deadline(lambda first=first: one() and version >= first + 100, 120, f"version {first} and more")
    assert not isinstance(reader, DeviceWeights) or reader._attached == 2
    close(weights)


def named_files() -> set[str]:
    """Of torch's in shared memory."""
    return {path.name for path in Path("/dev/shm").glob("torch_*")} if sys.platform == "linux" else set()
