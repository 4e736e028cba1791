"""A Ray cluster of several raylets on this machine,
and what tests and benchmarks do to its nodes.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from equipoise.chaos.attack import command

STORE = 80_000_000  # bytes of a node's object store
LIMIT_S = 120.0
MARK = "EQUIPOISE_MACHINES"  # in the environment of all processes of a cluster: which one
# The title of a process leaves its environment in /proc. Ray would begin workers with a niceness of
# 15: on a busy machine all sites would starve next to home.
SETTINGS = {"SPT_NOENV": "1", "RAY_worker_niceness": "0"}
SITE = "ray::SiteActor"  # the beginning of the title of the process of a site
_NUMBERS = itertools.count()


def processes() -> list[int]:
    return [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]


def marked(mark: str) -> dict[int, str]:
    """The living processes with this in their environment -> pid: title."""
    found = dict[int, str]()
    for pid in processes():
        with suppress(OSError):  # it ended while we looked, or is another user's
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and (
                title := command(pid)
            ):
                found[pid] = title
    return found


def parents() -> dict[int, int]:
    """The parent of each process."""
    found = {}
    for pid in processes():
        with suppress(OSError):  # it ended while we looked
            found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return found


def below(roots: Collection[int]) -> list[int]:
    """The processes that these have begun, and theirs."""
    children = parents()
    found = [pid for pid, parent in children.items() if parent in roots]
    for pid in found:  # which grows
        found += [child for child, parent in children.items() if parent == pid]
    return found


class Machines:
    """A head, which is home, and nodes for actors."""

    def __init__(self, cores: int = 3, nodes: int = 3) -> None:
        from ray.cluster_utils import Cluster

        self._mark = f"{MARK}={os.getpid()}.{next(_NUMBERS)}"
        os.environ[MARK] = self._mark.partition("=")[2]
        os.environ.update(SETTINGS)
        args = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
        self.cluster = Cluster(initialize_head=True, head_node_args=args)
        self.cores = cores
        self.restore(nodes)

    def add(self, **labels: str) -> Any:
        """One more node."""
        return self.cluster.add_node(
            num_cpus=self.cores, object_store_memory=STORE, labels=labels or None
        )

    def restore(self, count: int) -> None:
        """So many nodes besides the head."""
        while len(self.cluster.worker_nodes) < count:
            self.add()

    def victims(self) -> list[Any]:
        """The nodes that may be lost: neither the head nor the driver's, which Ray chooses."""
        import ray

        home = ray.get_runtime_context().get_node_id()
        return sorted(
            (node for node in self.cluster.worker_nodes if node.node_id != home),
            key=lambda node: str(node.node_id),
        )

    def kill(self, node: Any, *, leave_workers: bool = False) -> None:
        """The machine is gone at once, with all that runs on it; or its daemon alone."""
        workers = [] if leave_workers else self._of(node)
        self.cluster.remove_node(node, allow_graceful=False)
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _of(self, node: Any) -> list[int]:
        """The processes that a node's daemon has begun, and theirs."""
        return below({one.process.pid for one in node.all_processes["raylet"]})

    def used(self) -> list[Any]:
        """The nodes that have sites."""
        titles = marked(self._mark)
        return [
            node
            for node in self.victims()
            if any(titles.get(pid, "").startswith(SITE) for pid in self._of(node))
        ]

    def signal_site(self, number: signal.Signals, pid: int | None = None) -> int:
        """Send a signal to the process of some site, or this one -> its pid."""
        if pid is None:
            pid = min(pid for pid, title in marked(self._mark).items() if title.startswith(SITE))
        os.kill(pid, number)
        return pid

    def join(self) -> None:
        """Connect this process, which drains and looks where it is."""
        import ray

        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def drain(self, node: Any, deadline_s: float = 60.0) -> None:
        """The machine will be taken away, as a spot market says."""
        from ray._private.worker import global_worker
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until_ms = int((time.time() + deadline_s) * 1000)
        accepted, why = global_worker.gcs_client.drain_node(
            node.node_id, reason, "a test", until_ms
        )
        assert accepted, why

    @property
    def settings(self) -> dict[str, Any]:
        """For ``cluster=`` of a run: all actors are on the nodes."""
        return {"address": self.cluster.address, "home_actors": 0}

    @property
    def words(self) -> list[str]:
        """The same for a command."""
        return ["--on", "ray", "--address", self.cluster.address, "--cluster", "home_actors=0"]

    def pids(self) -> list[int]:
        """The processes of sites and their workers."""
        return [
            pid
            for pid, title in marked(self._mark).items()
            if title.startswith(("equipoise ", SITE))
        ]

    def close(self) -> None:
        import ray

        ray.shutdown()  # where this process joined
        self.cluster.shutdown()
        for name in (MARK, *SETTINGS):
            os.environ.pop(name, None)


@contextmanager
def machines(cores: int = 3, nodes: int = 3) -> Iterator[Machines]:
    made = Machines(cores, nodes)
    try:
        yield made
    finally:
        made.close()


def until(true: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Poll until it is true; fails after the limit."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.1)


def of_runs() -> dict[int, str]:
    """The processes of workers by their number, of all runs that this process has started: what a
    run must not leave.
    """
    titles = {pid: command(pid) for pid in below({os.getpid()})}
    return {pid: title for pid, title in titles.items() if title.startswith("equipoise ")}


def accounted(rows: Mapping[str, int]) -> bool:
    return rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
