"""Weights arrive whole, in order, and to each reader in its own copy: in the host's memory, and on
a device.
"""

from __future__ import annotations

import inspect
import mmap
import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing import reductions

from equipoise import tree
from equipoise.runtime.ipc import Segment
from equipoise.runtime.process import forkserver
from equipoise.weights.device import LONGEST, CudaIpc, DeviceWeights
from equipoise.weights.store import BUFFERS, WeightPlan, Weights
from tests.weights import sharing
from tests.weights.sharing import Heap, Memfd, between_processes, params, store, whole

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="the stand-in for a device is found in /proc"
)
KINDS = [pytest.param(None, id="host"), pytest.param(Memfd(), id="device", marks=linux)]
CUDA = pytest.param(CudaIpc(), "cuda", id="cuda", marks=pytest.mark.gpu)
PLACES = [
    pytest.param(None, "cpu", id="host"),
    pytest.param(Memfd(), "cpu", id="device", marks=linux),
    CUDA,
]


@pytest.mark.parametrize("share", KINDS)
def test_nothing_is_there_before_the_first_publish_and_nothing_newer_after_a_fetch(
    share: Any,
) -> None:
    weights = store(share)
    assert weights.fetch() is None and weights.version == -1
    weights.publish(5, params(5))
    got = weights.fetch()
    assert got is not None and got[0] == 5 == weights.version and whole(got[1], 5)
    assert {name: (x.shape, x.dtype) for name, x in got[1].items()} == {
        n: (x.shape, x.dtype) for n, x in params(0).items()
    }
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


@pytest.mark.few(1)
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
def test_a_handle_without_an_end_is_refused() -> None:
    class Long(Memfd):
        def allocate(self, nbytes: int, device: torch.device) -> tuple[torch.Tensor, bytes]:
            return super().allocate(nbytes, device)[0], b"x" * (LONGEST + 1)

    with pytest.raises(ValueError, match=f"expected at most {LONGEST} bytes, got {LONGEST + 1}"):
        store(Long()).publish(1, params(1))


@linux
def test_memory_that_is_not_of_these_weights_is_refused() -> None:
    class Small(Memfd):
        def attach(self, handle: bytes) -> torch.Tensor:
            return super().attach(handle)[:-64]

    weights = store(Small())
    weights.publish(1, params(1))
    with pytest.raises(ValueError, match="expected weights of 3 x .* bytes, got .* in all"):
        weights.fetch()


@linux
def test_cudas_handle_is_told_as_torch_gave_it_and_leaves_no_file(monkeypatch: Any) -> None:
    """Without a GPU: with torch's two calls in place of CUDA's. Each argument comes back under its
    name.
    """
    file = Path(f"/dev/shm/torch_equipoise_{os.getpid()}")
    file.touch()
    names = list(inspect.signature(reductions.rebuild_cuda_tensor).parameters)
    sent = (
        torch.Tensor,
        torch.Size([192]),
        (1,),
        0,
        torch.UntypedStorage,
        torch.uint8,
        0,
        bytes(range(65)),
        192,
        512,
        False,
        f"/{file.name}".encode(),
        3,
        bytes(64),
        True,
    )
    found: list[Any] = []

    def attach(*given: Any) -> torch.Tensor:
        found.append(given)
        if len(found) > 1:
            raise RuntimeError("CUDA error: operation not supported")
        return torch.empty(192, dtype=torch.uint8)

    monkeypatch.setattr(reductions, "reduce_tensor", lambda tensor: (attach, sent))
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", attach)
    memory, handle = CudaIpc().allocate(192, torch.device("cpu"))
    assert memory.shape == (192,) and len(handle) < LONGEST and not file.exists()
    attached = CudaIpc().attach(handle)
    assert attached.shape == (192,) and attached.dtype == torch.uint8
    assert dict(zip(names, found[0], strict=True)) == dict(zip(names, sent, strict=True))
    assert [type(x) for x in found[0][6:]] == [type(x) for x in sent[6:]]
    with pytest.raises(RuntimeError, match="not supported") as caught:
        CudaIpc().attach(handle)
    assert "inference=local needs none" in caught.value.__notes__[0]


# -------------------------------------------------------------------------------- between processes

SIZE = 5_000


@pytest.fixture
def processes() -> Any:
    """As a run starts them."""
    forkserver.prepare()
    return multiprocessing.get_context("forkserver")


@contextmanager
def publishing(processes: Any, weights: Weights | DeviceWeights, device: str) -> Iterator[None]:
    process = processes.Process(target=sharing.publish, args=(weights, SIZE, device))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def close(weights: Any) -> None:
    for memory in {weights._memory, getattr(weights, "_host", weights)._memory}:
        memory.close()


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "device"), PLACES)
def test_processes_read_what_another_publishes_and_so_do_their_successors(
    processes: Any, share: Any, device: str
) -> None:
    before, ended = named_files(), []
    weights = between_processes(share, SIZE)
    with publishing(processes, weights, device):
        for _ in range(2):
            readers = [
                processes.Process(target=sharing.read, args=(weights, 50, device)) for _ in range(2)
            ]
            for process in readers:
                process.start()
            for process in readers:
                process.join(120)
                process.kill()
                process.join()
                ended.append(process.exitcode)
    close(weights)
    assert ended == [0, 0, 0, 0]
    assert named_files() <= before


def named_files() -> set[str]:
    """Of torch's in shared memory."""
    return (
        {path.name for path in Path("/dev/shm").glob("torch_*")}
        if sys.platform == "linux"
        else set()
    )


def test_who_copies_at_a_pace_of_its_own_learns_that_it_was_too_slow() -> None:
    weights = store(None)
    assert weights.handle().look() is None
    weights.publish(1, params(1))
    found = weights.handle().look()
    assert (
        found is not None
        and found[0] == 1
        and whole(found[1], 1)
        and weights.handle().look(1) is None
    )
    for version in range(2, 1 + BUFFERS):
        weights.publish(version, params(version))
        assert found[2]()
    weights.publish(1 + BUFFERS, params(9))
    assert not found[2]()


@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_weights_may_be_stored_in_half_the_bytes(buffers: int) -> None:
    given = {"w": torch.randn(100, 7), "steps": torch.arange(3)}
    plan = WeightPlan(given, dtype="bfloat16", buffers=buffers)
    assert plan.flat < 0.6 * WeightPlan(given).flat and plan.nbytes > buffers * plan.flat
    weights = Weights(plan, Heap("host", plan.nbytes))
    for version in range(1, 8):
        weights.publish(version, given)
        version_, found = weights.handle().fetch() or (0, {})
        assert (
            version_ == version
            and found["w"].dtype == torch.bfloat16
            and found["steps"].dtype == torch.int64
        )
        assert torch.equal(found["w"], given["w"].bfloat16()) and torch.equal(
            found["steps"], given["steps"]
        )


def test_one_buffer_is_not_enough() -> None:
    with pytest.raises(
        ValueError,
        match="buffers: expected at least 2, since one is read while the other is written, got 1",
    ):
        WeightPlan(params(0), buffers=1)


@pytest.mark.parametrize("share", KINDS)
def test_a_hundredth_of_the_parameters_is_a_hundredth_of_the_bytes(share: Any) -> None:
    """A plan of a part publishes that part of whatever it is given,
    and asks for no other tensor.
    """
    asked = list[str]()

    class Told(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            asked.append(name)
            return super().__getitem__(name)

    net = Told({f"layer{n}": torch.full((64, 64), float(n)) for n in range(100)})
    part = WeightPlan({"layer7": net["layer7"]})
    assert part.flat * 100 == WeightPlan(net).flat
    host = Weights(part, Heap("host", part.nbytes))
    device = Heap("device", tree.nbytes(DeviceWeights.specs(part)))
    weights = host if share is None else DeviceWeights(part, device, host, share)
    asked.clear()
    weights.publish(1, net)
    got = weights.fetch()
    assert (
        asked == ["layer7"]
        and got is not None
        and set(got[1]) == {"layer7"}
        and bool((got[1]["layer7"] == 7).all())
    )


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
def test_no_version_but_the_first_pays_for_new_pages() -> None:
    """A publish of 100 MB once took 40 ms in place of 6 ms, the first time in each buffer."""
    params = {"x": torch.ones(4 << 20)}  # 16 MiB, 4,096 pages a buffer
    plan = WeightPlan(params)
    written = Segment("weights", plan.nbytes)
    read = Segment.__new__(Segment)  # mapped once more, as in another process
    read.name, read.size, read.fd = "weights", written.size, os.dup(written.fd)
    read.buffer = mmap.mmap(read.fd, read.size)
    store, other, mine = Weights(plan, written), Weights(plan, read), torch.ones(4 << 20)
    faults = []
    for version in range(plan.buffers):
        began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        store.publish(version, params)
        found = other.look(version - 1)
        assert found is not None and found[0] == version
        mine.copy_(found[1]["x"])
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
    assert max(faults[1:]) < 128, faults
    read.close()
    written.close()
