"""Push drawn examples through a door, bound each in time and memory, and keep the smallest that
fails.

A door is a name, a hypothesis strategy of examples that JSON can hold, and an attempt. The attempt
returns when the example worked or was refused in one sentence, and raises otherwise: ``Fault`` for
a wrong outcome, any other exception for a traceback that a user would see. What the harness adds: a
hang, CPU time beyond the door's bound, memory that grows with each try.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import hypothesis
import pytest
from hypothesis import strategies
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS

# Hypothesis's own backend makes most examples by copying parts within one that it drew: of 1,000
# envs 400 were drawn twice, and what one in seventeen should have came in one of sixty. Any backend
# by another name only draws, from the same seeds.
UNMUTATED = "drawn"
AVAILABLE_PROVIDERS[UNMUTATED] = "hypothesis.internal.conjecture.providers.HypothesisProvider"
CASES = Path(__file__).parent / "cases"
PAGE = resource.getpagesize()
# bytes that an attempt may add to this process: more is a MemoryError, and no machine without
# memory
ROOM = 4 << 30


def shares(
    *choices: strategies.SearchStrategy[Any] | tuple[int, strategies.SearchStrategy[Any]],
) -> strategies.SearchStrategy[Any]:
    """Draw from each strategy as often as it stands here, or as its number says.

    ``one_of`` takes one that stands twice for one, and of one that is itself a ``one_of`` each
    branch for another choice.
    """
    counted = [choice if isinstance(choice, tuple) else (1, choice) for choice in choices]
    chosen = [one for count, one in counted for _ in range(count)]
    return strategies.sampled_from(range(len(chosen))).flatmap(lambda i: chosen[i])


class Fault(AssertionError):
    """A wrong outcome. ``kind`` is short and the same for every example of its sort; ``detail``
    says what was seen.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class Hang(BaseException):
    """The attempt took longer than the door allows. No ``except Exception`` on the way may take it
    for an error of its own.
    """


@dataclass(frozen=True, kw_only=True)
class Door:
    """One opening: how examples are drawn, and what is done with one.

    ``hang_s``: wall-clock seconds of one attempt, generous, for what never ends. ``cpu_s``: CPU
    seconds of the attempt's thread (the best of three tries), where the door promises one.
    ``growth_mb``: memory that each of three more tries of the same example may add. ``quick`` and
    ``full``: examples in ``make test`` and in CI. ``prepare``: makes what all attempts share, and
    is not in the time of an attempt.
    """

    name: str
    examples: strategies.SearchStrategy[Any]
    attempt: Callable[[Any], None]
    hang_s: float = 30.0
    cpu_s: float | None = None
    growth_mb: float = 4.0
    quick: int = 30
    full: int = 200
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Planted:
    """A fault that was reported once, put back by a patch, which the net of ``door`` must find in
    its CI budget.

    ``plant`` patches with the monkeypatch that it is given. ``kinds``: parts of which one must be
    in the found fault's key, so that another fault does not pass for this one; empty: any.
    """

    name: str
    door: str
    plant: Callable[[pytest.MonkeyPatch], None]
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A fault with the smallest example that shows it. ``key`` is the same for every example of its
    kind.
    """

    door: str
    key: str
    example: Any
    detail: str

    def keep(self, folder: Path = CASES) -> Path:
        """Write the example as a case: ``test_doors.py`` tries every kept one from then on."""
        text = json.dumps(self.example, indent=1, sort_keys=True) + "\n"
        path = folder / self.door / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def key_of(error: BaseException) -> str:
    """Kind and place of a failure: the fault's own kind, or the exception's type and the innermost
    frame of the package.
    """
    if isinstance(error, Fault):
        return error.kind
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/equipoise/" in frame.filename
    ]
    place = f" in {ours[-1].filename.rpartition('/equipoise/')[2]}:{ours[-1].name}" if ours else ""
    return f"{type(error).__name__}{place}"


def memory_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def bounded(door: Door, example: Any) -> float:
    """Attempt once. Returns the CPU seconds of this thread; raises ``Fault`` where the attempt
    hangs.
    """
    started, main = time.thread_time(), threading.current_thread() is threading.main_thread()

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang

    # pytest-timeout uses the same clock: it gets it back with what is left of its time.
    handler = signal.signal(signal.SIGALRM, ring) if main else None
    left, _ = signal.setitimer(signal.ITIMER_REAL, door.hang_s) if main else (0.0, 0.0)
    began = time.monotonic()
    try:
        door.attempt(example)
    except Hang:
        raise Fault("hang", f"no end after {door.hang_s:g} s") from None
    finally:
        if main:
            signal.setitimer(
                signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)) if left else 0.0
            )
            signal.signal(signal.SIGALRM, handler)
    return time.thread_time() - started


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Let this process, and what it starts, add no more than ``ROOM`` bytes of memory."""
    was = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, was)


def attempt(door: Door, example: Any) -> None:
    """Attempt with every bound of the door; raises what was wrong."""
    door.prepare()
    with limited():
        _attempt(door, example)


def _attempt(door: Door, example: Any) -> None:
    before = memory_mb()
    used = bounded(door, example)
    if door.cpu_s is not None and used > door.cpu_s:
        used = min(used, *(bounded(door, example) for _ in range(2)))
        if used > door.cpu_s:
            raise Fault("slow", f"{used * 1000:.0f} ms of CPU, at most {door.cpu_s * 1000:.0f}")
    if memory_mb() - before > door.growth_mb:
        # Caches and imports grow once. What grows with each try is lost.
        grown = []
        for _ in range(3):
            gc.collect()
            start = memory_mb()
            bounded(door, example)
            gc.collect()
            grown.append(memory_mb() - start)
        if min(grown) > door.growth_mb:
            raise Fault("growth", f"{min(grown):.1f} MB with each try, at most {door.growth_mb:g}")


def drive(
    door: Door,
    *,
    examples: int,
    seed: int = 0,
    known: Collection[str] = (),
    seconds: float | None = None,
    shrink: bool = True,
) -> Found | None:
    """Try drawn examples until one fails in a way that is not in ``known``; ``shrink`` it. None:
    none failed.

    With ``seconds`` no further example is tried once they are over.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    last: list[tuple[str, Any, str]] = []
    seen: set[str] = set()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        backend=UNMUTATED,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else [])],
    )
    @hypothesis.given(door.examples)
    def tried(example: Any) -> None:
        if ends is not None and time.monotonic() > ends and not last:
            return
        if not last:
            if (text := repr(example)) in seen:
                return
            seen.add(text)
        try:
            attempt(door, example)
        except Exception as error:
            key = key_of(error)
            # While it shrinks, only the same kind counts.
            if key in known or (last and last[-1][0] != key):
                return
            last.append((key, example, "".join(traceback.format_exception(error))))
            raise Fault(key) from None

    try:
        tried()
    except Exception:
        if not last:
            raise
        key, example, detail = last[-1]
        return Found(door.name, key, example, detail)
    return None


def fuzz(
    door: Door,
    *,
    seconds: float,
    examples: int,
    seed: int = 0,
    report: Callable[[Found], None] = lambda found: None,
) -> tuple[int, list[Found]]:
    """Drive until the time or the examples are used up, past each kind of fault that was found.

    Returns how many attempts were made, those that shrink a fault among them, and the faults.
    """
    ends, found, asked, attempts = time.monotonic() + seconds, list[Found](), 0, 0

    def counted(example: Any) -> None:
        nonlocal attempts
        attempts += 1
        door.attempt(example)

    counting = dataclasses.replace(door, attempt=counted)
    while asked < examples and time.monotonic() < ends:
        batch, known = min(1000, examples - asked), {one.key for one in found}
        one = drive(
            counting, examples=batch, seed=seed, known=known, seconds=ends - time.monotonic()
        )
        seed, asked = seed + 1_000_003, asked + batch
        if one is not None:
            found.append(one)
            report(one)
    return attempts, found
