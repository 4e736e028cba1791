"""Ray: which machines there are, and a Ray actor on each that runs a site. Only this file and
``studies/on_ray.py`` import Ray.

Ray places workers, reports machines that join, leave and are drained, and carries secrets (the keys
of the links are part of a ``SiteJob``). Rows and weights take another way (``sockets.py``), and
workers are supervised by their site, not by Ray.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# a call after the end must not begin a cluster
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# else Ray warns of what a later version will do
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
import ray.exceptions
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from equipoise.errors import WorkerFailed
from equipoise.plans.blueprint import Blueprint
from equipoise.private.ray import draining
from equipoise.programs.cluster import Cluster
from equipoise.programs.limits import check_processes
from equipoise.runtime.cluster import host
from equipoise.runtime.cluster.host import SiteJob
from equipoise.runtime.cluster.placing import (
    Node,
    cells,
    check_inference,
    check_learners,
    check_shards,
    deal,
    fits,
    labels_of,
    placed,
)
from equipoise.workers.kind import Kind, SamplingKind, ServingKind, crew

LOOK_S = 0.25  # between two looks at the sites
NODES_S = 1.0  # between two looks at the machines
REACH_S = 3.0  # to reach the address of a cluster
ANSWER_S = 0.5  # to reach a machine on which a site was lost; the driver waits for it
END_S = 5.0  # from the stop word of a site to its end
NODE_ID = "ray.io/node-id"  # the label that Ray gives each machine
# in Ray's words: this package is not there, or not whole
NOT_MADE = "error raised in its creation task"


@ray.remote(max_restarts=0, max_task_retries=0)
class SiteActor:
    """A process of a machine that runs a site, and supervises its workers."""

    def where(self) -> str:
        """The machine that Ray chose."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, job: SiteJob) -> str:
        return host.run(job)


@dataclass(slots=True)
class _Running:
    """A site that was given a machine."""

    actor: ActorHandle
    ended: ray.ObjectRef[str]  # the result of ``run``
    node: str
    cores: int


class RayNodes:
    """``Nodes`` of a Ray cluster. ``disconnect`` after the run."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect to the cluster; ValueError in one line if there is no cluster, or no cluster that
        this process can use.
        """
        self.cluster = cluster
        self._ours = not ray.is_initialized()  # else it is the caller's, which connected before
        if self._ours:
            connect(cluster.address)
        self.address: str = ray.util.get_node_ip_address()
        self.silent_s = cluster.link_deadline_s
        self._home: str = ray.get_runtime_context().get_node_id()
        self._running: dict[str, _Running] = {}
        self._waiting: dict[str, SiteJob] = {}
        self._wanted: dict[str, str] = {}  # the machine that a site had, or is to have
        self._looked = self._placed = self._drained_at = 0.0
        self._drained: set[str] = set()
        # machines on which a site ended: Ray finds only after 15 s that such a machine is gone
        self._doubted: set[str] = set()
        # actors for sites that wait, until Ray has a machine for them; and their ``where``
        self._asked: dict[str, tuple[ActorHandle, ray.ObjectRef[str]]] = {}

    def nodes(self) -> list[Node]:
        """The machines that live, according to Ray and, if a site ended there, to their own
        answers; home first.
        """
        used: dict[str, float] = {}
        for one in self._running.values():
            used[one.node] = used.get(one.node, 0.0) + one.cores
        leaving, alive = draining(), [one for one in ray.nodes() if one["Alive"]]
        doubted = [one for one in alive if one["NodeID"] in self._doubted]
        self._doubted = {
            one["NodeID"]
            for one in doubted
            if not _answers(one["NodeManagerAddress"], one["NodeManagerPort"])
        }
        found = [
            Node(
                name=one["NodeID"],
                cores=one["Resources"].get("CPU", 0.0),
                used=used.get(one["NodeID"], 0.0),
                labels=one.get("Labels") or {},
                home=one["NodeID"] == self._home,
                draining=one["NodeID"] in leaving,
            )
            for one in alive
            if one["NodeID"] not in self._doubted
        ]
        return sorted(found, key=lambda node: (not node.home, node.name))

    def settings(self, blue: Blueprint, kinds: Sequence[Kind]) -> dict[str, object]:
        """The settings of the cluster, for run.json; ValueError if it has no room for such a
        run.
        """
        self.deal(blue, kinds)
        return asdict(self.cluster)

    def deal(self, blue: Blueprint, kinds: Sequence[Kind]) -> Mapping[str, tuple[str, ...]]:
        """Deal a run's workers to the machines that there are -> the titles of each site;
        ValueError if there is no room.
        """
        at, learning = self.cluster.inference_at, blue.learners * blue.program.placement.threads
        members = crew(blue, kinds)
        if at == "home":
            check_inference(blue)
            learning += blue.inferences
        if self.cluster.learners_at == "actors":
            check_learners(blue, at)
            learning = blue.program.placement.threads
        if self.cluster.shards_at == "actors":
            check_shards(blue, at)
        run = cells(blue, members, at, self.cluster.learners_at, self.cluster.shards_at)
        dealt = deal(run, learning, self.nodes(), self.cluster)
        titles = {title for site in dealt.sites.values() for title in site}
        away = [
            member
            for member in members
            if member.title in titles and isinstance(member.kind, SamplingKind)
        ]
        servers = sum(isinstance(member.kind, ServingKind) for member in away)
        check_processes(blue.program, away=len(away) - servers, servers_away=servers)
        self._wanted = dict(dealt.nodes)
        return dealt.sites

    def start(self, job: SiteJob) -> None:
        if (before := self._running.pop(job.name, None)) is not None:
            ray.kill(before.actor)
        if (asked := self._asked.pop(job.name, None)) is not None:
            ray.kill(asked[0])
        self._waiting[job.name] = job
        self._place()

    def _place(self) -> None:
        """Start the sites for which there is a machine with room. With an autoscaler, ask for
        machines for the others.
        """
        self._placed = time.monotonic()
        self._take_asked()
        if not self._asked:  # else Ray decides who gets room
            self._deal_waiting()
        if self.cluster.autoscale:
            self._ask()

    def _deal_waiting(self) -> None:
        by_name = {node.name: node for node in self.nodes()}

        def begin(name: str, node: Node) -> None:
            cores = self._waiting[name].cores
            by_name[node.name] = replace(node, used=node.used + cores)
            strategy = NodeAffinitySchedulingStrategy(node.name, soft=False)
            made = SiteActor.options(  # type: ignore[attr-defined]
                num_cpus=cores, scheduling_strategy=strategy, name=None
            ).remote()
            self._begin(name, made, node.name)

        for name, job in sorted(self._waiting.items()):
            node = by_name.get(self._wanted.get(name, ""))
            if node is not None and fits(node, self._labels(job)) and node.free >= job.cores:
                begin(name, node)
        for scores in (False, True):
            waiting = {
                name: job.cores for name, job in self._waiting.items() if job.scores == scores
            }
            labels = labels_of(self.cluster, scores=scores)
            for name, node_name in placed(waiting, list(by_name.values()), labels).items():
                begin(name, by_name[node_name])

    def _labels(self, job: SiteJob) -> Mapping[str, str]:
        return labels_of(self.cluster, scores=job.scores)

    def _begin(self, name: str, made: ActorHandle, node: str) -> None:
        job = self._waiting.pop(name)
        self._wanted[name] = node
        self._running[name] = _Running(made, made.run.remote(job), node, job.cores)

    def _ask(self) -> None:
        """Make an actor for each site that waits. Ray places it on a machine other than home as
        soon as one has room, and an autoscaler adds machines for actors that wait.

        ``request_resources`` would not do: it counts the cores in use as free, and what was
        requested outlives this process.
        """
        for name, job in self._waiting.items():
            if name not in self._asked:
                made = SiteActor.options(  # type: ignore[attr-defined]
                    num_cpus=job.cores,
                    label_selector={**self._labels(job), NODE_ID: f"!{self._home}"},
                    name=None,
                ).remote()
                self._asked[name] = made, made.where.remote()

    def _take_asked(self) -> None:
        """Start the sites that Ray has found a machine for."""
        names = {where: name for name, (_, where) in self._asked.items()}
        done, _ = ray.wait(list(names), num_returns=len(names), timeout=0) if names else ([], [])
        for where in done:
            made, _ = self._asked.pop(name := names[where])
            try:
                node = ray.get(where)
            except (
                ray.exceptions.RayActorError,
                ray.exceptions.ActorUnschedulableError,
            ) as error:
                if NOT_MADE in str(error):
                    raise self._missing(name, _last_line(error), "") from error
                continue  # its machine is gone, and it waits again
            self._begin(name, made, node)

    def waits(self) -> Mapping[str, int]:
        """The sites that no machine has room for, and the cores that each needs."""
        return {name: job.cores for name, job in self._waiting.items()}

    def leaving(self) -> Collection[str]:
        """The sites on machines that are drained."""
        drained = self._looked_for_drains()
        return [name for name, one in self._running.items() if one.node in drained]

    def home_leaves(self) -> bool:
        return self._home in self._looked_for_drains()

    def _looked_for_drains(self) -> set[str]:
        """The machines that are about to be taken away, as of the last look."""
        now = time.monotonic()
        if now - self._drained_at >= NODES_S and ray.is_initialized():
            self._drained_at, self._drained = now, draining()
        return self._drained

    def where(self, name: str) -> str:
        """The machine of a site, in short; empty while it has no machine."""
        return self._running[name].node[:8] if name in self._running else ""

    def ended(self) -> Mapping[str, str]:
        """Sites whose process or machine is gone, according to Ray."""
        now = time.monotonic()
        if self._waiting and now - self._placed >= NODES_S:
            self._place()
        if now - self._looked < LOOK_S or not self._running:
            return {}
        self._looked = now
        names = {one.ended: name for name, one in self._running.items()}
        done, _ = ray.wait(list(names), num_returns=len(names), timeout=0)
        found = {}
        for reference in done:
            name = names[reference]
            found[name] = self._how(name, reference)
            self._doubted.add(self._running.pop(name).node)
        return found

    def _how(self, name: str, reference: ray.ObjectRef[str]) -> str:
        """Why a site has ended; ``WorkerFailed`` if it would end so again."""
        try:
            why: str = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError):
                raise self._missing(name, str(cause), self.where(name)) from error
            return f"raised {type(cause).__name__}: {cause}"
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
            if NOT_MADE in str(error):
                raise self._missing(name, _last_line(error), self.where(name)) from error
            return f"was lost with its machine ({type(error).__name__})"
        return f"ended: {why}" if why else "ended"

    def _missing(self, name: str, what: str, machine: str) -> WorkerFailed:
        where = f"machine {machine}" if machine else "the machine that was added"
        said = f"could not begin on {where}: {what}; install there what this machine has"
        return WorkerFailed(name, said, final=True)

    def close(self) -> None:
        """End all sites. They have their messages; processes that do not end are killed."""
        self._waiting = {}
        asked, self._asked = self._asked, {}
        running, self._running = self._running, {}
        if not ray.is_initialized():  # the cluster is gone, and the sites with it
            return
        if running:
            references = [one.ended for one in running.values()]
            ray.wait(references, num_returns=len(references), timeout=END_S)
        for actor in [
            *(one.actor for one in running.values()),
            *(one for one, _ in asked.values()),
        ]:
            ray.kill(actor)

    def disconnect(self) -> None:
        """Leave the cluster, or end it if it was begun for this run."""
        self.close()
        if self._ours:
            self._ours = False
            ray.shutdown()


def connect(address: str) -> None:
    """Connect this process to a cluster; ValueError in one line if there is none."""
    where = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if where not in ("auto", "local", ""):
        _reach(where)
    include = False if address == "local" else None
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            namespace="equipoise",
            include_dashboard=include,
        )
    except ConnectionError as error:
        raise ValueError(
            f"address: expected a Ray cluster at {address!r}, found none; start one with 'ray "
            "start --head', or use --address local"
        ) from error
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise ValueError(
            f"address: expected a Ray cluster that this process can join at {address!r}, got: "
            f"{text}"
        ) from error


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


def _answers(address: str, port: int) -> bool:
    """Does Ray's daemon listen there?"""
    try:
        socket.create_connection((address, port), ANSWER_S).close()
    except OSError:
        return False
    return True


def _reach(where: str) -> None:
    """ValueError if no server listens at HOST:PORT; Ray itself would try for long."""
    name, _, port = where.rpartition(":")
    if not port.isdecimal() or not name:
        raise ValueError(
            f"address: expected auto, local or HOST:PORT, such as 10.0.0.1:6379, got {where!r}"
        )
    try:
        socket.create_connection((name.strip("[]"), int(port)), REACH_S).close()
    except OSError as error:
        raise ValueError(
            f"address: expected a Ray cluster at {where}, but no server answers there ({error}); "
            "start one with 'ray start --head "
            f"--port {port}' on that machine, or use --address local"
        ) from error
