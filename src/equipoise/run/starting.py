"""The place that starts a run's workers, and the driver's requests to them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from equipoise import phases
from equipoise.hints import install
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.cluster import read_cluster
from equipoise.runtime.messages import Cut, Message
from equipoise.runtime.stats import RunStats
from equipoise.types import On, WeightStore
from equipoise.workers.kind import Kind
from equipoise.workers.kinds import KINDS

if TYPE_CHECKING:
    from equipoise.runtime.cluster.on_ray import RayNodes


class Runtime(Protocol):
    """The driver's interface to a runtime; it reads nothing of a runtime's memory."""

    @property
    def done(self) -> bool: ...  # learned to the end, and saved
    # the workers' messages: records, notes and cuts; may raise WorkerFailed
    def poll(self, timeout_s: float) -> list[Message]: ...
    # ask for a cut after the next version; ``last``: no other follows
    def hold(self, *, last: bool = False) -> None: ...
    def release(self, cut: Cut) -> None: ...  # the run goes on
    # the driver has the weights that were offered: the run goes on
    def examined(self, version: int) -> None: ...
    def stats(self) -> RunStats: ...  # also after ``stop``
    @property
    def version(self) -> int: ...  # the newest, which costs less to ask for than ``stats``
    # this number of actors acts on, and rows grow no older
    def limit(self, actors: int, max_lag: int | None) -> None: ...
    def weights(self, policy: str) -> WeightStore: ...
    def stop(self) -> None: ...  # end every worker


def connected(on: On, cluster: Mapping[str, Any]) -> RayNodes | None:
    """Connect to the cluster of a run on Ray; None for one elsewhere. ``cluster``: settings
    (``Cluster``) by name.

    ValueError if a setting makes no sense, or there is no such cluster.
    """
    if on != "ray":
        if given := ", ".join(f"{name}={value}" for name, value in cluster.items()):
            raise ValueError(
                f"{', '.join(cluster)}: expected no settings of a cluster with --on {on}, got "
                f"{given}; use --on ray"
            )
        return None
    settings = read_cluster(cluster)
    check_packages(on)
    phases.say("connecting to Ray")
    from equipoise.runtime.cluster.on_ray import RayNodes

    return RayNodes(settings)


def check_packages(on: str) -> None:
    """Raise ValueError if a package that a run on Ray needs is not installed."""
    missing = [name for name in ("ray", "zmq") if on == "ray" and find_spec(name) is None]
    if missing:
        raise ValueError(
            f"on: expected the packages of the extra 'ray', found no {' and no '.join(missing)}; "
            f"{install('ray')}"
        )


def start(
    blue: Blueprint, on: On, kinds: Sequence[Kind] = KINDS, nodes: RayNodes | None = None
) -> Runtime:
    """Build the workers of a run at their places. ``kinds``: further kinds besides, or
    instead of, ours.

    ``nodes``: the machines of the cluster, with ``on="ray"``.
    """
    if on == "serial":
        from equipoise.runtime.serial import SerialRuntime

        return SerialRuntime(blue, kinds)
    if on == "process":
        from equipoise.runtime.process.process import ProcessRuntime

        return ProcessRuntime(blue, kinds)
    if on == "ray":
        from equipoise.runtime.cluster.remote_crew import RemoteCrew
        from equipoise.runtime.process.process import ProcessRuntime

        assert nodes is not None
        remote = RemoteCrew(blue, nodes, nodes.deal(blue, kinds), kinds)
        return ProcessRuntime(remote.blue, remote.kinds, remote)
    raise ValueError(f"expected on='serial', 'process' or 'ray', got {on!r}")
