"""How long a replay stands still while it is saved: 10^6 items, a writer at a fixed rate, one save
after the other.

    python benchmarks/replay_pause.py
    python benchmarks/replay_pause.py --frames --items 100000 --rate 2000

Rows are those of HalfCheetah (17 + 6 floats) or, with ``--frames``, stacks of four frames of 84 x
84, each kept once. Blocks of rows come through the queue as an actor's do, when they are due; after
each the learner samples once and gives priorities back. A save is what a learner does in a cut (a
copy of what is small), what its thread writes, and the driver's part, which in a run of several
processes is another's. The first save writes every row, and so do those with ``--whole``; the
others what is new.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.experience.layout import RowSpec
from equipoise.experience.queue.queue import Plan, Queue
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.experience.replay.feed import ReplayFeed
from equipoise.experience.replay.journal import Journal
from equipoise.experience.replay.plan import ReplayPlan
from equipoise.experience.replay.replay import Replay
from equipoise.record import checkpoint, statefile
from equipoise.runtime.ipc import Heap
from equipoise.tree import ArraySpec
from equipoise.types import ReplaySettings as Settings
from equipoise.types import Stack, Trajectory, stream_ids

UNROLL, STREAMS, BATCH = 16, 8, 256
KEPT = 3
DRIVER = "the driver's part"


def replay(args: argparse.Namespace, folder: Path) -> Replay:
    context = {"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")}
    obs, action = ArraySpec((17,), "float32"), ArraySpec((6,), "float32")
    if args.frames:
        obs, action = ArraySpec((4, 84, 84), "uint8"), ArraySpec((), "int64")
    row = RowSpec(obs=obs, action=action, behaviour={}, state={}, context=context)
    inbox = Plan(
        rows={"main": row}, unroll=UNROLL, batch=STREAMS, block=STREAMS, envs=STREAMS, max_lag=1
    )
    queue = Queue(
        inbox,
        Heap("bench", inbox.nbytes),
        free=[LocalChannel() for _ in range(inbox.channels)],
        full=LocalChannel(),
    )
    queue.fill()
    settings = Settings(
        capacity=args.items,
        starts_at=args.items - 3 * UNROLL * STREAMS,
        selector=args.selector,
        file=args.file,
    )
    plan = ReplayPlan(
        settings=settings,
        row=row,
        unroll=UNROLL,
        window=1,
        block=STREAMS,
        actors=1,
        span=STREAMS,
        rounds=10**6,
        stacks={"": Stack(frames=4, padding="first")} if args.frames else {},
    )
    return Replay(plan, ReplayFeed(queue, begins=plan.begins), "main", seed=0, folder=folder)


class Writer:
    """An actor whose rows cost nothing but their copy into the slot."""

    def __init__(self, experience: Replay) -> None:
        self._streams, self.row = stream_ids(0, STREAMS), 0
        self._inbox: Any = experience._rounds.inbox
        self._data: Trajectory | None = None

    def write(self) -> bool:
        slots = self._inbox.reserve(self._streams)
        if slots is None:
            return False
        slot = slots["main"]
        if self._data is None:
            rng = np.random.default_rng(0)
            self._data = tree.map(
                lambda x: (rng.random(x.shape) * 200).astype(x.dtype), _arrays(slot.data)
            )
        tree.copy(_arrays(slot.data), self._data)
        slot.data.mask[:] = slot.data.bootstrap[:] = True
        slot.data.first[:] = False
        slot.data.context["stream"][:], slot.data.context["start"][:] = self._streams, self.row
        self.row += UNROLL
        self._inbox.commit(slots)
        return True


def _arrays(data: Trajectory) -> Any:
    return {"obs": data.obs, "action": data.action, "reward": data.reward}


class Watch:
    """The longest call of each kind, ms: by the clock, and less what our threads waited for a core
    meanwhile (Linux).
    """

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.own: dict[str, float] = {}

    def _times(self) -> tuple[float, dict[str, float]]:
        """Now, and every thread's waiting so far: also of that which may have the interpreter when
        it is made to wait.
        """
        waited = {}
        for task in os.listdir("/proc/self/task"):
            with suppress(OSError), open(f"/proc/self/task/{task}/schedstat") as file:
                waited[task] = 1e-6 * int(file.read().split()[1])
        return 1e3 * time.perf_counter(), waited

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began, waited = self._times()
        yield
        now, so_far = self._times()
        self.longest[name] = max(self.longest.get(name, 0.0), now - began)
        lost = sum(so_far[task] - waited[task] for task in waited.keys() & so_far.keys())
        self.own[name] = max(self.own.get(name, 0.0), now - began - lost)


def learn(made: Replay, watch: Watch) -> bool:
    """A round, if there is one that may be taken, and its update."""
    with watch.of("sample"):
        batch = made.sample(BATCH)
    if batch is None:
        return False
    with watch.of("learned"):
        made.learned(batch.keys, np.abs(batch.data.reward[0].numpy()))
        made.finish(batch.keys)
    return True


def files(place: Path, state: Any, inbox: bytes) -> Callable[[Any], Any]:
    def write(chunks: Any) -> Any:
        made = checkpoint.add(
            place, checkpoint.REPLAY, statefile.dump({"replay": state, "chunks": chunks})
        )
        made |= checkpoint.add(place, "experience.safetensors", inbox) | checkpoint.add(
            place, checkpoint.LEARNER, b"-"
        )
        return (
            made
            | checkpoint.add(place, checkpoint.WEIGHTS, b"-")
            | checkpoint.add(place, checkpoint.META, b"{}")
        )

    return write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=10_000.0, help="rows/s")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--selector", choices=["uniform", "prioritized", "fifo"], default="prioritized"
    )
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--whole", action="store_true", help="every save writes every row")
    parser.add_argument("--never", action="store_true", help="the same without a save")
    parser.add_argument("--file", default="", help="a folder for the ring")
    parser.add_argument("--out", default=None, help="where the checkpoints lie for the time being")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        print(json.dumps(measure(args, Path(folder))))


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    made = replay(args, directory / checkpoint.SEGMENTS)
    writer, watch = Writer(made), Watch()
    while made.ring.blocks[0] <= made.ring.held:  # full
        writer.write()
        made.sample(BATCH) if made.ring.blocks[0] < made._plan.begins - 1 else learn(made, watch)
    watch.longest.clear()
    watch.own.clear()
    began = due = time.perf_counter()
    rows, saves, waited, saving, since = 0, list[dict[str, float]](), 0.0, False, 0.0
    while (now := time.perf_counter()) - began < args.seconds:
        if now >= due:
            with watch.of("insert"):
                if writer.write():
                    due += UNROLL * STREAMS / args.rate
                    rows += UNROLL * STREAMS
            waited = max(waited, 1e3 * (time.perf_counter() - due))  # how far the rows are behind
        busy = learn(made, watch)
        assert made.journal is not None
        if not saving and not args.never and made._rounds.owed == 0:
            step = len(saves)
            place, since, saving = checkpoint.begin(directory, step), now, True
            with watch.of("cut"):
                made.journal.begin(
                    files(place, made.state(), statefile.dump(made._rounds.inbox.state()))
                )
        elif saving and (saved := made.journal.poll()) is not None:
            assert saved.error is None, saved.error
            with watch.of(DRIVER):
                checkpoint.complete(directory, len(saves), saved.files, saved.segments)
                checkpoint.retain(directory, KEPT)
            saves.append({"seconds": round(time.perf_counter() - since, 2), "rows": rows})
            saving = False
            if args.whole:
                made.journal.stop()
                made.journal = Journal(made.ring, directory / checkpoint.SEGMENTS)
        if not busy:
            time.sleep(2e-4)
    assert made.journal is not None
    made.journal.stop()
    longest, own = (
        {name: round(ms, 1) for name, ms in sorted(of.items())} for of in (watch.longest, watch.own)
    )
    return {
        "longest_pause_ms": max(ms for name, ms in longest.items() if name != DRIVER),
        "with_cores_ms": max(ms for name, ms in own.items() if name != DRIVER),
        "longest": longest,
        "with_cores": own,
        "behind_ms": round(waited, 1),
        "rows_per_s": round(rows / args.seconds),
        "saves": len(saves),
        "save_s": [save["seconds"] for save in saves][:10],
        "ring_mb": round(len(made.selector) * _row_bytes(made) / 1e6),
        "load": round(os.getloadavg()[0], 1),
    }


def _row_bytes(made: Replay) -> float:
    return made.ring.block_nbytes / (UNROLL * STREAMS)


if __name__ == "__main__":
    main()
