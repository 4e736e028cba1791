"""A Ray cluster of several raylets on this machine, and what tests do to its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

STORE = 80_000_000  # bytes of a node's object store
LIMIT_S = 120.0


class Machines:
    """A head, which is home, and nodes for actors."""

    def __init__(self, cores: int = 3, nodes: int = 3) -> None:
        from ray.cluster_utils import Cluster

        args = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": STORE}
        self.cluster = Cluster(initialize_head=True, head_node_args=args)
        self.cores = cores
        self.restore(nodes)

    def add(self, **labels: str) -> Any:
        """One more node."""
        return self.cluster.add_node(num_cpus=self.cores, object_store_memory=STORE, labels=labels or None)

    def restore(self, count: int) -> None:
        """So many nodes besides the head."""
        while len(self.cluster.worker_nodes) < count:
            self.add()

    def victims(self) -> list[Any]:
        """The nodes that may be lost: neither the head nor the driver's, which Ray chooses."""
        import ray

        home = ray.get_runtime_context().get_node_id()
        return sorted((node for node in self.cluster.worker_nodes if node.node_id != home), key=lambda node: str(node.node_id))

    def kill(self, node: Any) -> None:
        """The machine is gone at once, with all that runs on it."""
        self.cluster.remove_node(node, allow_graceful=False)

    def drain(self, node: Any, deadline_s: float = 60.0) -> None:
        """The machine will be taken away, as a spot market says."""
        from ray._private.worker import global_worker
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until_ms = int((time.time() + deadline_s) * 1000)
        accepted, why = global_worker.gcs_client.drain_node(node.node_id, reason, "a test", until_ms)
        assert accepted, why

    @property
    def settings(self) -> dict[str, Any]:
        """For ``cluster=`` of a run: all actors are on the nodes."""
        return {"address": self.cluster.address, "home_actors": 0}

    def close(self) -> None:
        self.cluster.shutdown()


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
    """The processes of workers by their number: what a run must not leave."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                title = file.read().replace(b"\\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if title.startswith("equipoise ") and any(kind in title for kind in ("actor", "learner", "proxy", "inference")):
            found[int(pid)] = title
    return found


def accounted(rows: Mapping[str, int]) -> bool:
    return rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
