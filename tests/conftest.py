"""What every test gets: shapes checked in ``equipoise.returns``, a seed, a way to wait, and a look
for what it left behind.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

# Before any test imports the package: the annotations of the maths become checks of shape and
# dtype, in tests only.
install_import_hook("equipoise.returns", "beartype.beartype")

hypothesis.settings.register_profile("equipoise", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("equipoise")

GRACE_S = 30.0  # a process that ends may wait for a core
PR_SET_CHILD_SUBREAPER = 36


def pytest_configure() -> None:
    """The same for every way to start us: in a shell's background Ctrl-C is ignored, and children
    inherit that.

    And orphans come to us and not to init, so that a worker whose driver was killed is seen as
    well. Where output goes is a test's own to say: xdist gives its workers 80 columns, and a build
    server says that it is one.
    """
    for name in ("COLUMNS", "CI", "NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Threads of two workers that wait for each other at one core made one test take 10 s instead of
    # half a second.
    torch.set_num_threads(
        max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    )
    # the key of the tests' own runs
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="equipoise-state-")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ.pop("XDG_STATE_HOME"), ignore_errors=True)


# ---------------------------------------------------------------------------------- which tests run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        metavar="N",
        help="Run one in N of the thorough tests and cases, and other ones after each commit.",
    )


def number_of_commit() -> int:
    """Number of commits up to this one, or 0 outside a clone."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make most cases of a parametrised test ``thorough``, so that ``make test`` has a few of each.

    A test that is marked ``few(n)`` keeps its first n; any other keeps the first and the last,
    since neighbours are alike. The house rules keep all: a page that was edited is to be checked.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, of_it in cases.items():
        mark = of_it[0].get_closest_marker("few")
        if mark is not None:
            kept = set(range(mark.args[0]))
        elif name.startswith("tests/house/"):
            continue
        else:
            kept = {0, len(of_it) - 1}
        for place, item in enumerate(of_it):
            if place not in kept:
                item.add_marker("thorough")
    if (one_in := config.getoption("one_in")) > 1:
        turn = number_of_commit()
        thorough = [item for item in items if item.get_closest_marker("thorough")]
        left_out = {item for place, item in enumerate(thorough) if (place + turn) % one_in}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


# ----------------------------------------------------------------------------------------- the seed


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of this test: fixed by its name, or EQUIPOISE_TEST_SEED."""
    return test_seed(request.node.nodeid)


def test_seed(nodeid: str) -> int:
    return int(os.environ.get("EQUIPOISE_TEST_SEED") or zlib.crc32(nodeid.encode()))


test_seed.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def seeded(seed: int) -> None:
    """The global generators, for what draws from them without being asked to."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        report.sections.append(("seed", f"EQUIPOISE_TEST_SEED={test_seed(item.nodeid)}"))


# -------------------------------------------------------------------------------------- the waiting


@pytest.fixture
def deadline() -> Callable[..., None]:
    """``deadline(lambda: condition, seconds=5, what="the actor to end")``: poll until it holds,
    fail when it does not.
    """

    def wait(
        condition: Callable[[], object], seconds: float = 10.0, what: str = "the condition"
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds} s for {what}")
            time.sleep(0.005)

    return wait


# ------------------------------------------------------------------------------ what is left behind


# a cluster's own processes
OF_RAY = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "/site-packages/ray/")


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no process and no segment: neither here, nor under the multiprocessing servers,
    nor as an orphan.
    """
    if sys.platform != "linux":
        yield
        return
    before = {identity(what) for what in descendants() | segments()}
    yield
    end = time.monotonic() + GRACE_S
    # a cluster outlives its tests, with processes that come and go
    rays = request.node.get_closest_marker("ray") is not None
    while left := sorted(
        what
        for what in descendants() | segments()
        if identity(what) not in before and not (rays and any(of_ray in what for of_ray in OF_RAY))
    ):
        assert time.monotonic() < end, f"left behind: {left}"
        gc.collect()
        time.sleep(0.02)


def identity(what: str) -> str:
    """A process by its number alone, since it may take another name."""
    number = what.split(" ", 1)[0]
    return number if number.isdecimal() else what


def descendants() -> set[str]:
    """The living, as "pid command"; the servers that multiprocessing keeps for good left out."""
    from multiprocessing import resource_tracker

    from equipoise.runtime.process import forkserver

    servers = {*forkserver.pids(), getattr(resource_tracker._resource_tracker, "_pid", None)}
    found: set[str] = set()
    parents = [os.getpid()]
    while parents:
        for pid in children(parents.pop()):
            parents.append(pid)
            if pid not in servers and (command := live_command(pid)):
                found.add(f"{pid} {command}")
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:  # it ended while we looked
            continue
    return found


def live_command(pid: int) -> str:
    """Empty for what has ended: a zombie has given back its memory and its files."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""
    name, _, state = stat.partition("(")[2].rpartition(") ")
    # between fork and exec there is no command line
    return "" if state[0] in "ZX" else command[:400] or name


def segments() -> set[str]:
    """Our memory files, and shared memory of ours with a name, whoever made it."""
    found = {entry.name for entry in Path("/dev/shm").glob("equipoise-*")}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:  # the listing's own descriptor
            continue
        if target.startswith("/memfd:equipoise-"):
            found.add(f"fd {fd.name} {target}")
    return found


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch: those of small operations wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
