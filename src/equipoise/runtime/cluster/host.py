"""The process that runs a site: it supervises the workers of one machine, and carries what they
write to home.
"""

from __future__ import annotations

import mmap
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from equipoise.errors import WorkerFailed
from equipoise.files import write_synced
from equipoise.plans.blueprint import Blueprint
from equipoise.publishing import check_order
from equipoise.record import checkpoint
from equipoise.record.checkpoint import Source
from equipoise.runtime import build
from equipoise.runtime.cluster.blocks import SiteBlocks
from equipoise.runtime.cluster.keeping import RemoteLearner, SiteShards
from equipoise.runtime.cluster.parts import SiteParts, parts
from equipoise.runtime.cluster.placing import groups_of_shard
from equipoise.runtime.cluster.proxy_worker import Home, stacks_of
from equipoise.runtime.cluster.site import SiteEnd
from equipoise.runtime.cluster.sockets import SiteLink
from equipoise.runtime.cluster.stepping import RemoteInference, SiteSteps
from equipoise.runtime.cluster.weights import SiteWeights
from equipoise.runtime.ipc import Channels, Event, Segment
from equipoise.runtime.messages import (
    Failed,
    HandedOver,
    Lost,
    Message,
    Note,
    Saved,
    Written,
    to_json,
)
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.crew import Crew, Died, ring
from equipoise.runtime.process.handles import Queues, SiteSlots
from equipoise.types import Tick
from equipoise.workers.kind import (
    KeepingKind,
    Kind,
    LearningKind,
    Member,
    Movable,
    Placed,
    Torchless,
    stepped,
    written,
)

IDLE_S = 0.05  # how long a site looks at nothing, unless something comes


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJob:
    """Everything that a site is given."""

    name: str
    incarnation: int
    blueprint: Blueprint
    kinds: tuple[Kind, ...]
    members: tuple[Member, ...]  # of the whole run
    titles: tuple[str, ...]  # of the workers here
    home: Home
    lives: Mapping[str, int]  # how many processes of each worker had begun before, on any machine
    counted: Mapping[int, bytes]  # home's copies of these workers' parts
    # rows of its shards; empty: the name alone is taken
    segments: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """One for each thread that its workers compute with."""
        return sum(one.threads(self.blueprint) for one in self.members if one.title in self.titles)

    @property
    def scores(self) -> bool:
        """Are its workers scorers, which may have machines of their own?"""
        mine = [one for one in self.members if one.title in self.titles]
        return all(isinstance(one.kind, Placed) for one in mine)


class SiteHost:
    """``step`` until ``over``; ``close`` leaves no process."""

    def __init__(self, job: SiteJob, scratch: Path) -> None:
        """``scratch``: a folder of this machine, for files that go home."""
        check_order("ray")
        self._job, self.over, self._step = replace(job, segments={}), "", 0
        # the number of the cut in which the workers here save, to go on elsewhere
        self._handing: int | None = None
        self._handed_in = 0  # the session in which they do
        self._missing: set[str] = set()  # the workers that have not done so
        (scratch / "logs").mkdir()
        mine = tuple(member for member in job.members if member.title in job.titles)
        torch = {not isinstance(member.kind, Torchless) for member in mine}
        forkserver.prepare(torch=True in torch, central=False in torch)
        self._blue = blue = replace(
            job.blueprint,
            directory=str(scratch / "checkpoints"),
            logs=str(scratch / "logs"),
            weights=None,
            address=_address_for(job.home),
            resume=_with_rows(job, scratch / "checkpoints"),
        )
        self._sent: dict[str, int] = {}  # bytes of each segment that home was sent in this session
        self._sent_in = 0
        # segments that a checkpoint has named, and others of home's
        self._named = set(job.segments)
        channels = Channels()
        self._shared, self._board, segment = build.lay_out(
            blue, job.kinds, Segment, channels, site=mine
        )
        rows = {title: self._board.row(title) for title in job.titles}
        groups, here = stepped(blue, mine), written(blue, mine)
        every = parts(blue, self._shared, rows, job.members)
        places = {number: place for number, place in every.items() if place.of(job.titles)}
        known = {number: place.part for number, place in every.items() if place.reaches(job.titles)}
        said = {number: place.part for number, place in places.items() if place.heard}
        exchange, stacks = self._shared.exchange, stacks_of(blue)
        inferences = {
            group: RemoteInference(exchange, group, stacks)
            for group in groups - here
            if exchange is not None
        }
        for number, data in job.counted.items():
            places[number].part.write(data)
        of_group = {
            group: [number for number, place in places.items() if place.group == group]
            for group in groups
        }
        for group in here:  # the board goes along with an unroll; with each step it would be much
            titles = self._workers(group)
            of_group[group] += [
                number
                for number, place in places.items()
                if place.group is None and place.of(titles)
            ]
        self._carrier = Event()
        self._crew = Crew(
            blue,
            mine,
            self._shared,
            self._board,
            [segment, self._carrier, *channels.made],
            run=job.members,
            lives=job.lives,
        )
        weights = [policy.weights for policy in self._shared.policies.values()]
        address = f"{job.home.address}:{job.home.port}"
        keys = job.home.keys.public, job.home.sites
        self._link = SiteLink(
            job.name,
            job.incarnation,
            address,
            *keys,
            groups=len(groups),
            silent_s=job.home.silent_s,
        )
        counted = {number: place.part for number, place in places.items() if not place.heard}
        self._parts = SiteParts(counted, of_group, time.monotonic, said, known)
        published = SiteWeights(
            weights,
            asks=not any(isinstance(one.kind, LearningKind) for one in mine),
            follows=any(isinstance(one.kind, Movable) for one in mine),
        )
        learners = {
            one.index: self._remote_learner(one.index)
            for one in mine
            if isinstance(one.kind, KeepingKind)
        }
        self._blocks = SiteBlocks(
            self._shared.outbound,
            stacks,
            published,
            len(weights),
            self._parts.of_group,
            self._shared.waiting,
            {group for index in learners for group in groups_of_shard(blue, index)},
        )
        carried = [
            self._blocks,
            published,
            SiteSteps(inferences, self._parts.changed),
            self._parts,
            SiteShards(learners, self._blocks.taken),
        ]
        self.end = SiteEnd(
            job.name,
            job.incarnation,
            self._link,
            carried,
            digest=job.home.digest,
            cut=self._cut,
            ended=self._ended,
            silent_s=job.home.silent_s,
        )
        self._inferences, self._crew.elsewhere = inferences, self._carrier
        self._queues = Queues(blue, mine, self._crew.bells, self._shared.queues)
        slots = [
            SiteSlots(outbound, self._carrier, self._shared.waiting)
            for outbound in self._shared.outbound
        ]
        self._crew.start([self._queues.by_learner.get(rank, one) for rank, one in enumerate(slots)])

    def _remote_learner(self, index: int) -> RemoteLearner:
        """The site's half of a shard among these workers."""
        policy, number = self._blue.shards[index]
        assert self._shared.waiting is not None
        return RemoteLearner(self._shared.mailboxes[policy][0], number, self._shared.waiting)

    def _workers(self, group: int) -> set[str]:
        """The titles of the workers that step this group or act for it."""
        return {one.title for one in self._job.members if group in one.groups(self._blue)}

    def step(self, timeout_s: float = IDLE_S) -> None:
        """Wait at most ``timeout_s`` for something to do, and do it."""
        # by which the crew sees that its env workers get on
        for group, inference in self._inferences.items():
            self._shared.actors[group].next_row = inference.steps
        try:
            for title, said in self._crew.poll(timeout_s, self._carrier.fd, self._link.fd):
                self._said(title, said)
        except WorkerFailed as error:
            self._failed(error)
        self._queues.reconcile()
        with suppress(BlockingIOError):
            self._carrier.clear()
        worked = True
        while worked:
            worked = self.end.tick(time.monotonic()) is Tick.WORKED
            ring(self._crew.bells, self._job.titles, always=False)
        if self._handing is not None and self._handed_in != self.end.sessions:
            # home may have only a part of it, or nothing: once more
            self._handing = None
        if (
            self.end.leaving
            and self._handing is None
            and self.end.joined
            and self.end.idle
            and not self._crew.absent
        ):
            self._hand_over()

    def _hand_over(self) -> None:
        """Let all workers here save their states: they wait for places, and get no places."""
        self._handing, self._missing = int(self._board.cut["save"][0]) + 1, set(self._job.titles)
        self._handed_in = self.end.sessions
        for inference in self._inferences.values():
            inference.hold(self._handing)
        self._save(self._handing, self._step)

    def _save(self, number: int, step: int) -> None:
        checkpoint.begin(Path(self._blue.directory), step)
        self._board.cut["step"][0], self._board.cut["save"][0] = step, number
        ring(self._crew.bells, self._job.titles)

    def _said(self, title: str, said: Message | Died) -> None:
        """Pass on a worker's message. The files of a checkpoint go first."""
        if isinstance(said, Died):
            self._queues.certain = False
            # a successor has nothing to hand over for that number: once more, when it is there
            self._handing = None
            self.end.say(title, to_json(Lost(how=said.how)))
            return
        if isinstance(said, Saved) and self._handing is not None:
            self._handed_over(title, said)
            return
        if isinstance(said, Saved):
            self.end.send(self._parts.all())
            self.end.files(title, self._read(said), then=to_json(said))
        elif isinstance(said, Written):
            self._written(title, said)
        else:
            self.end.say(title, to_json(said))

    def _written(self, title: str, said: Written) -> None:
        """Send what a shard has written while the run went on: its file, and the rows that no
        checkpoint had before.
        """
        if self._sent_in != self.end.sessions:  # home may not have got all of what was sent before
            self._sent, self._sent_in = {}, self.end.sessions
        try:
            files = self._read(said) if said.error is None else {}
            self.end.late(title, self._step, files, self._rows(said), to_json(said))
        except OSError as error:  # another cut has begun, which gave this one up
            failed = Written(cut=said.cut, error=f"{type(error).__name__}: {error}")
            self.end.late(title, self._step, {}, (), to_json(failed))

    def _rows(self, said: Written) -> Iterator[tuple[str, int, memoryview]]:
        """(segment, first new byte, new bytes), read from the disk as they are sent; files of no
        more use are emptied.
        """
        folder = Path(self._blue.segments)
        for name, entry in said.segments.items():
            first = self._sent.get(name, 0)
            if entry["size"] > first:
                with (folder / name).open("rb") as opened:
                    mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                yield name, first, memoryview(mapped)[first : entry["size"]]
            self._sent[name] = entry["size"]
        mine = {name.rpartition("/")[0] for name in said.segments}
        for name in self._named - said.segments.keys() if said.segments else ():
            if name.rpartition("/")[0] in mine:  # its name stays taken
                self._named.discard(name)
                (folder / name).unlink()  # unsent bytes of it stay mapped
                (folder / name).touch()
        self._named |= said.segments.keys()

    def _read(self, said: Saved | Written) -> dict[str, bytes]:
        return {
            name: checkpoint.read_aside(Path(self._blue.directory), self._step, name)
            for name in said.files
        }

    def _handed_over(self, title: str, said: Saved) -> None:
        """Send a worker's files; the last worker's are followed by the word that all are there."""
        if said.cut != self._handing or title not in self._missing:
            return  # of a cut that home gave up
        if said.error is not None:
            self.end.say(
                title,
                to_json(Note(text=f"warning: {title} could not be handed over: {said.error}")),
            )
            return
        self._missing.discard(title)
        if not self._missing:
            self.end.send(self._parts.all())
        self.end.files(
            title,
            self._read(said),
            then=None if self._missing else to_json(HandedOver(site=self._job.name)),
        )

    def _failed(self, error: WorkerFailed) -> None:
        """A worker here cannot be replaced, so the run cannot go on: home ends it with the same
        words.
        """
        said = Failed(
            error=error.cause, text=error.traceback_text, final=error.final, said=error.reason
        )
        self.end.say(error.worker, to_json(said))
        self.over = f"{error.worker} {error.reason}"

    def _cut(self, number: int, step: int, last: bool) -> None:
        """Home's workers save for a cut: the workers here save also. ``last``: now the learners."""
        if not last:
            self._blocks.bring()
        if last and number == self._board.cut["save"][0]:
            self._board.cut["save_last"][0] = number
            ring(self._crew.bells, self._job.titles)
        elif number > self._board.cut["save"][0] and self._handing is None:
            self._step = step
            for title in self._crew.absent:  # its successor takes this cut for its predecessor's
                self.end.say(title, to_json(Lost(how="was being replaced")))
            self._save(number, step)

    def _ended(self, why: str) -> None:
        self.over = why or "home ended it"

    def close(self) -> None:
        self._crew.stop()
        self._link.close()


def _with_rows(job: SiteJob, folder: Path) -> Source | None:
    """The checkpoint to go on from, with the rows of the shards here, which are written into this
    machine's folder.
    """
    for name, data in job.segments.items():
        file = folder / checkpoint.SEGMENTS / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_synced(file, data)
    source = job.blueprint.resume
    if source is None or not source.segments:
        return source
    return replace(source, path=folder / source.path.name)


def _address_for(home: Home) -> str:
    """The address of this machine towards home. Nothing is sent."""
    with socket.socket(
        socket.AF_INET6 if ":" in home.address else socket.AF_INET, socket.SOCK_DGRAM
    ) as made:
        made.connect((home.address, home.port))
        return str(made.getsockname()[0])


def run(job: SiteJob, ended: Callable[[], bool] = lambda: False) -> str:
    """Run a site to its end -> why it ended."""
    with tempfile.TemporaryDirectory(prefix="equipoise-site-") as scratch:
        host = SiteHost(job, Path(scratch))
        try:
            while not host.over and not ended():
                host.step()
            host.end.tick(time.monotonic())
        finally:
            host.close()
        return host.over
