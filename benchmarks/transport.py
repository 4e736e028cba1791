"""What a block of rows costs on its way between two machines: as a Ray object, as a message over
ZeroMQ; and stacked frames.

    .venv/bin/python benchmarks/transport.py [--mib 0.06 0.29 1 4 38] [--turns 5] [--seconds 2]
    [--page FILE.md] .venv/bin/python benchmarks/transport.py --frames [--streams 8] [--unroll 20]

The first needs Ray. Two raylets on this machine, with an actor each; one sends blocks of random
bytes, the other copies them into memory that it has, as the proxy does, and says so; four blocks
are under way at most.

- object: ``home.take.remote(block)``: what is above 100 KB goes through the object stores of both
  nodes, less inside the call.
- message: the project's own link (``runtime/cluster/sockets.py``), encrypted by CURVE, which Ray's
  objects are not.
- bare: the same messages over ZeroMQ without keys, to know what encryption costs.

CPU: utime + stime in /proc of all processes of this benchmark and of Ray, over the blocks of a
turn. The ways take turns on the same two actors, A B A B; figures are medians of the turns. What
Ray's own processes take while nothing is sent is printed, and is part of both.

``--frames`` needs no Ray: bytes of an env step on the wire and CPU of a block of an Atari env's
rows, whole as they lie in a slot, and with each frame once (``experience/queue/unstacked.py``),
without the link.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

UNDER_WAY = 4  # blocks
MIB = 1 << 20
LIMIT_S = 120.0
WAYS = ("object", "message", "bare")


# ----------------------------------------------------------------------------------- the two actors


class Bare:
    """A link without keys, of either end."""

    def __init__(self, address: str = "") -> None:
        """``address``: of the other end; empty: listen."""
        import zmq

        self.socket: Any = zmq.Context(io_threads=1).socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.port = 0 if address else self.socket.bind_to_random_port("tcp://127.0.0.1")
        if address:
            self.socket.connect(f"tcp://{address}")

    def collect(self) -> None: ...

    def send(self, head: bytes, body: Any) -> bool:
        import zmq

        try:
            self.socket.send_multipart([head, body], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> tuple[Any, Any] | None:
        import zmq

        try:
            head, body = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return head.bytes, body.buffer


class Home:
    """Takes blocks."""

    def __init__(self, nbytes: int) -> None:
        self._slot = np.zeros(nbytes, np.uint8)
        self._listener: Any = None
        self._bare: Any = None

    def take(self, block: Any) -> int:
        np.copyto(self._slot[: len(block)], block)
        return len(block)

    def listen(self) -> tuple[int, Any, Any]:
        """Open a listener -> its port, and the keys that a site needs."""
        from equipoise.curve import Keys
        from equipoise.runtime.cluster.frames import Kind
        from equipoise.runtime.cluster.line import Line
        from equipoise.runtime.cluster.sockets import Listener
        from equipoise.runtime.cluster.wire import BOTH, Tally

        keys, sites = Keys.made(), Keys.made()
        most = {Kind.ROWS: len(self._slot), **BOTH}
        self._listener = Listener("127.0.0.1", keys, sites.public, most, Tally())
        self._line = Line(self._listener.end("site", 1), most)
        self._line.begin(1, 0.0)
        return self._listener.port, keys.public, sites

    def listen_bare(self) -> int:
        self._bare = Bare()
        port: int = self._bare.port
        return port

    def receive(self, way: str, count: int) -> int:
        """Take so many messages, and say so for each."""
        from equipoise.runtime.cluster.frames import Grant

        said, got = Grant().head(1, 1), 0
        listener, socket = self._bare, self._bare.socket
        if way == "message":
            listener, socket = self._listener, self._listener._socket.socket
        while got < count:
            if not socket.poll(LIMIT_S * 1000):
                raise TimeoutError(f"expected {count} messages, got {got}")
            listener.collect()
            if way == "message":
                while (frame := self._line.receive(0.0)) is not None:
                    self.take(np.frombuffer(frame.message.body, np.uint8))
                    got += 1
                    self._line.send(Grant())
                continue
            while (found := self._bare.receive()) is not None:
                self.take(np.frombuffer(found[1], np.uint8))
                got += 1
                assert self._bare.send(said, b"")
        return got


class Away:
    """Sends blocks."""

    def __init__(self, home: Any, nbytes: int) -> None:
        self._home, self._block = home, np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)

    def connect(self, port: int, public: Any, keys: Any, bare: int) -> None:
        from equipoise.runtime.cluster.frames import Kind, Rows
        from equipoise.runtime.cluster.line import Line
        from equipoise.runtime.cluster.sockets import SiteLink
        from equipoise.runtime.cluster.wire import BOTH

        link = SiteLink("site", 1, f"127.0.0.1:{port}", public, keys)
        self._line = Line(link, {Kind.GRANT: 0, **BOTH})
        other = Bare(f"127.0.0.1:{bare}")
        self._links: dict[str, tuple[Any, Any]] = {
            "message": (link, link._socket.socket),
            "bare": (other, other.socket),
        }
        deadline = time.monotonic() + LIMIT_S
        for one, socket in self._links.values():
            while not one.send(Rows().head(1, 1), b""):
                assert time.monotonic() < deadline, "no connection"
                time.sleep(0.01)
            while one.receive() is None:
                assert socket.poll(LIMIT_S * 1000), "no answer"

    def object(self, count: int, nbytes: int) -> float:
        import ray

        block, waits, began = self._block[:nbytes], list[Any](), time.monotonic()
        for _ in range(count):
            if len(waits) == UNDER_WAY:
                ray.get(waits.pop(0))
            waits.append(self._home.take.remote(block))
        ray.get(waits)
        return time.monotonic() - began

    def message(self, count: int, nbytes: int, way: str = "message") -> float:
        from equipoise.runtime.cluster.frames import Rows

        head, (link, socket) = Rows().head(1, 1), self._links[way]
        block, waits, sent, began = self._block[:nbytes], 0, 0, time.monotonic()
        while sent < count or waits:
            if sent < count and waits < UNDER_WAY:
                if way == "message":
                    self._line.send(Rows(body=block.data))
                else:
                    assert link.send(head, block)
                sent, waits = sent + 1, waits + 1
                continue
            if not socket.poll(LIMIT_S * 1000):
                raise TimeoutError(f"no word of {waits} messages")
            while (link.receive() if way == "bare" else self._line.receive(0.0)) is not None:
                waits -= 1
        return time.monotonic() - began

    def bare(self, count: int, nbytes: int) -> float:
        return self.message(count, nbytes, "bare")


# ----------------------------------------------------------------------------------------- CPU time


def family(session: str) -> list[int]:
    """This process, those of the Ray session, and their descendants."""
    parents: dict[int, int] = {}
    mine = {os.getpid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
                if session.encode() in (entry / "cmdline").read_bytes():
                    mine.add(int(entry.name))
            # it has ended, or is another user's
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sorted(mine)


def cpu_s(pids: list[int]) -> dict[int, float]:
    """utime + stime by process, of those that live."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


# -------------------------------------------------------------------------------------- the measure


def compare(given: argparse.Namespace) -> list[dict[str, Any]]:
    """In a folder of its own, so that no other cluster of this machine takes
    this one for its own.
    """
    with tempfile.TemporaryDirectory(prefix="rows-") as folder:
        os.environ["RAY_TMPDIR"] = folder
        return _compare(given)


def _compare(given: argparse.Namespace) -> list[dict[str, Any]]:
    import ray
    from ray.cluster_utils import Cluster

    store, most = 1_000_000_000, int(max(given.mib) * MIB)
    here = {
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": store,
        "resources": {"home": 1},
    }
    cluster = Cluster(initialize_head=True, head_node_args=here)
    cluster.add_node(num_cpus=1, object_store_memory=store, resources={"away": 1})
    rows = []
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        session = cluster.head_node.get_session_dir_path().rpartition("/")[2]
        home = (
            ray.remote(Home)
            .options(resources={"home": 1}, num_cpus=0, max_concurrency=2)
            .remote(most)
        )
        away = ray.remote(Away).options(resources={"away": 1}, num_cpus=0).remote(home, most)
        (port, public, keys), bare = ray.get([home.listen.remote(), home.listen_bare.remote()])
        firsts = [home.receive.remote(way, 1) for way in ("message", "bare")]
        ray.get(away.connect.remote(port, public, keys, bare))
        ray.get(firsts)

        def turn(way: str, count: int, nbytes: int) -> tuple[float, float]:
            """-> seconds of CPU and of time."""
            pids = family(session)
            before = cpu_s(pids)
            took = home.receive.remote(way, count) if way != "object" else None
            seconds = ray.get(getattr(away, way).remote(count, nbytes))
            if took is not None:
                assert ray.get(took) == count
            return spent(before, cpu_s(family(session))), seconds

        before = cpu_s(family(session))
        time.sleep(3)
        idle = spent(before, cpu_s(family(session))) / 3
        print(f"Ray's processes while nothing is sent: {idle:.3f} s of CPU a second", flush=True)
        for mib in given.mib:
            nbytes, found = int(mib * MIB), {way: list[tuple[float, float]]() for way in WAYS}
            for way in found:  # to warm up, and to know how many make a turn
                turn(way, UNDER_WAY, nbytes)
            counts = {
                way: max(UNDER_WAY, int(given.seconds * 20 / turn(way, 20, nbytes)[1]))
                for way in found
            }
            for _ in range(given.turns):
                for way, turns in found.items():
                    cpu, seconds = turn(way, counts[way], nbytes)
                    turns.append((1000 * cpu / counts[way], counts[way] / seconds))
            row: dict[str, Any] = {"mib": mib, "idle": idle}
            for way, turns in found.items():
                row[way] = {"cpu_ms": [x for x, _ in turns], "rate": [x for _, x in turns]}
            rows.append(row)
            print(table([row])[-1], flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| MiB | CPU of an object, ms | of a message, ms | of a bare message, ms | object / "
        "message | object / bare "
        "| objects/s | messages/s | bare/s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        spans = [
            f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})"
            for x in (row[way]["cpu_ms"] for way in WAYS)
        ]
        one, *others = (statistics.median(row[way]["cpu_ms"]) for way in WAYS)
        times = [f"{one / other:.1f}" for other in others]
        rates = [f"{statistics.median(row[way]['rate']):,.0f}" for way in WAYS]
        lines.append(f"| {' | '.join([format(row['mib'], 'g'), *spans, *times, *rates])} |")
    return lines


# ----------------------------------------------------------------------------------- stacked frames


def frames(given: argparse.Namespace) -> list[str]:
    """A block of rows that show 84 x 84 x 4, before and after."""
    from equipoise import tree
    from equipoise.experience.layout import RowSpec, columns
    from equipoise.experience.queue.outbound import block_bytes, block_views
    from equipoise.experience.queue.queue import Plan
    from equipoise.experience.queue.unstacked import BlockPacker
    from equipoise.tree import ArraySpec
    from equipoise.types import Slot, Stack, Trajectory

    streams, unroll, rng = given.streams, given.unroll, np.random.default_rng(0)
    row = RowSpec(
        obs=ArraySpec((4, 84, 84), "uint8"),
        action=ArraySpec((), "int64"),
        behaviour={"logp": ArraySpec((), "float32")},
        state={},
        context={"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")},
    )
    plan = Plan(
        rows={"main": row},
        unroll=unroll,
        batch=4 * streams,
        block=streams,
        envs=4 * streams,
        max_lag=0,
    )
    blocks, screens = (
        [np.zeros(block_bytes(plan), np.uint8) for _ in range(16)],
        np.zeros((streams, 4, 84, 84), np.uint8),
    )
    for block in blocks:  # as they follow each other; an episode of 1,000 steps ends now and then
        obs = block_views(plan, block)["main"]["obs"]
        obs[0] = screens
        for t in range(1, unroll + 1):
            obs[t, :, :-1], obs[t, :, -1] = (
                obs[t - 1, :, 1:],
                rng.integers(0, 256, (streams, 84, 84), np.uint8),
            )
            obs[t, rng.random(streams) < 1e-3, :-1] = 0
        screens = obs[-1].copy()
    whole = tree.zeros(plan.fields(4 * streams)["main"])
    slot = Slot(
        keys=np.zeros((streams, 2), np.int64),
        data=Trajectory(**columns(whole, streams, 2 * streams)),
    )
    lines = [
        "| a block crosses | bytes an env step | CPU of the sender, ms a block | CPU of the "
        "receiver, ms a block |",
        "| --- | --- | --- | --- |",
    ]
    for name, stacks in (
        ("whole", {}),
        ("each frame once", {"main": {"": Stack(frames=4, padding="zero")}}),
    ):
        here, there = BlockPacker(plan, stacks), BlockPacker(plan, stacks)
        sent, got, sizes, packing, unpacking = (
            here.last(),
            there.last(),
            list[int](),
            list[float](),
            list[float](),
        )
        for turn in range(5):
            for block in blocks:
                began = time.thread_time()
                body = here.pack(block, sent)
                packed = time.thread_time()
                travelled = body.tobytes()
                begun = time.thread_time()
                there.unpack(travelled, {"main": slot}, got)
                if turn:
                    sizes.append(len(travelled))
                    packing.append(1000 * (packed - began))
                    unpacking.append(1000 * (time.thread_time() - begun))
            sent.known = got.known = False  # the first block is not the next of the last one
        steps = statistics.mean(sizes) / (streams * unroll)
        lines.append(
            f"| {name} | {steps:,.0f} | {statistics.median(packing):.2f} | "
            f"{statistics.median(unpacking):.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mib", type=float, nargs="+", default=[0.06, 0.29, 1, 4, 38], help="sizes of blocks"
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of each way")
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long a turn is")
    parser.add_argument("--page", type=Path, help="a page whose table of ways is written anew")
    parser.add_argument("--frames", action="store_true", help="measure stacked frames instead")
    parser.add_argument("--streams", type=int, default=8, help="envs of a block of frames")
    parser.add_argument("--unroll", type=int, default=20, help="rows of a block of frames")
    given = parser.parse_args()
    if given.frames:
        print("\n".join(frames(given)))
        return
    rows = compare(given)
    lines = table(rows)
    print("\n".join(lines))
    if given.page is not None:
        text = given.page.read_text()
        begin = text.index(lines[0])
        end = text.index("\n\n", begin)
        given.page.write_text(text[:begin] + "\n".join(lines) + text[end:])
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
