"""The process that runs a site: it supervises the workers of one machine, and carries what they write to home."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.errors import WorkerFailed
from equipoise.experience.queue.outbound import block_bytes
from equipoise.record import checkpoint
from equipoise.runtime import build
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.cluster.parts import parts
from equipoise.runtime.cluster.proxy_worker import Home, all_stacks_of, stacks_of
from equipoise.runtime.cluster.site import SiteEnd
from equipoise.runtime.cluster.sockets import SiteLink
from equipoise.runtime.cluster.stepping import Asker
from equipoise.runtime.cluster.wire import WORDS
from equipoise.runtime.ipc import Event, Segment
from equipoise.runtime.messages import Failed, HandedOver, Message, Note, Saved, to_json
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.crew import Crew, Died, ring
from equipoise.runtime.process.handles import Carried
from equipoise.types import Tick
from equipoise.workers.kind import Kind, Member

IDLE_S = 0.05  # how long a site looks at nothing, unless something comes


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJob:
    """Everything that a site is given."""

    name: str
    incarnation: int
    blueprint: Blueprint
    kinds: tuple[Kind, ...]
    members: tuple[Member, ...]  # of the whole run
    titles: tuple[str, ...]  # of those that work here
    home: Home
    lives: Mapping[str, int]  # how many processes of each worker had begun before, on any machine
    counted: Mapping[int, bytes]  # what home knows of the parts of these workers


class SiteHost:
    """``step`` until ``over``; ``close`` leaves no process."""

    def __init__(self, job: SiteJob, scratch: Path) -> None:
        """``scratch``: a folder of this machine, for files that go home."""
        self._job, self.over, self._step = job, "", 0
        self._handing: int | None = None  # the number of the cut in which the workers here save, to go on elsewhere
        self._handed_in = 0  # the session in which they do
        self._missing: set[str] = set()  # those that have not done so
        (scratch / "logs").mkdir()
        mine = tuple(member for member in job.members if member.title in job.titles)
        torch = {member.kind.torch for member in mine}
        forkserver.prepare(torch=True in torch, central=False in torch)
        self._blue = blue = replace(job.blueprint, directory=str(scratch / "checkpoints"), logs=str(scratch / "logs"))
        self._shared, self._board, segment = build.lay_out(blue, job.kinds, Segment, _no_channel, site=mine)
        rows = {title: self._board.row(title) for title in job.titles}
        groups = {group for member in mine for group in member.kind.groups(blue, member.index)}
        places = {
            number: place for number, place in parts(blue, self._shared, rows, job.members).items() if place.of(job.titles)
        }  # fmt: skip
        written = {group for member in mine if member.kind.writes for group in member.kind.groups(blue, member.index)}
        exchange, stacks = self._shared.exchange, all_stacks_of(blue)
        askers = {group: Asker(exchange, group, stacks) for group in groups - written if exchange is not None}
        for number, data in job.counted.items():
            places[number].part.write(data)
        of_group = {
            group: [number for number, place in places.items() if group == place.group or (
                group in written and place.group is None and place.of(self._workers(group))
            )] for group in groups
        }  # fmt: skip
        self._carrier = Event()
        self._crew = Crew(blue, mine, self._shared, self._board, [segment, self._carrier], lives=job.lives)
        weights = [policy.weights for policy in self._shared.policies.values()]
        largest = max(WORDS, block_bytes(self._shared.outbound[0].plan), *(one.nbytes for one in weights))
        address = f"{job.home.address}:{job.home.port}"
        keys = job.home.keys.public, job.home.sites
        self._link = SiteLink(
            job.name, job.incarnation, address, *keys, largest, groups=len(groups), silent_s=job.home.silent_s
        )  # fmt: skip
        self.end = SiteEnd(
            job.name, job.incarnation, self._link, self._shared.outbound, weights,
            {number: place.part for number, place in places.items()}, of_group, digest=job.home.digest,
            cut=self._cut, ended=self._ended, stacks=stacks_of(blue), silent_s=job.home.silent_s, askers=askers,
        )  # fmt: skip
        self._askers, self._crew.elsewhere = askers, self._carrier
        self._crew.start([Carried(outbound, self._carrier) for outbound in self._shared.outbound])

    def _workers(self, group: int) -> set[str]:
        """The titles of the workers that step this group or act for it."""
        return {one.title for one in self._job.members if group in one.kind.groups(self._blue, one.index)}

    def step(self, timeout_s: float = IDLE_S) -> None:
        """Wait at most ``timeout_s`` for something to do, and do it."""
        try:
            for title, said in self._crew.poll(timeout_s, self._carrier.fd, self._link.fd):
                self._said(title, said)
        except WorkerFailed as error:
            self._failed(error)
        with suppress(BlockingIOError):
            self._carrier.clear()
        while self.end.tick(time.monotonic()) is Tick.WORKED:
            ring(self._crew.bells, self._job.titles, always=False)
        if self._handing is not None and self._handed_in != self.end.sessions:
            self._handing = None  # home may not have got all of it, and may have got none: once more
        if self.end.leaving and self._handing is None and self.end.joined and self.end.idle and not self._crew.absent:
            self._hand_over()

    def _hand_over(self) -> None:
        """Let all workers here save what they are: they wait for places, and will get none."""
        self._handing, self._missing = int(self._board.cut["save"][0]) + 1, set(self._job.titles)
        self._handed_in = self.end.sessions
        for asker in self._askers.values():
            asker.hold(self._handing)
        self._save(self._handing, self._step)

    def _save(self, number: int, step: int) -> None:
        checkpoint.begin(Path(self._blue.directory), step)
        self._board.cut["step"][0], self._board.cut["save"][0] = step, number
        ring(self._crew.bells, self._job.titles)

    def _said(self, title: str, said: Message | Died) -> None:
        """Pass on what a worker said. The files of a checkpoint go first."""
        if isinstance(said, Died):
            return
        if isinstance(said, Saved) and self._handing is not None:
            self._handed_over(title, said)
            return
        if isinstance(said, Saved):
            self.end.files(title, self._read(said), then=to_json(said))
        else:
            self.end.say(title, to_json(said))

    def _read(self, said: Saved) -> dict[str, bytes]:
        return {name: checkpoint.read_aside(Path(self._blue.directory), self._step, name) for name in said.files}

    def _handed_over(self, title: str, said: Saved) -> None:
        """Send a worker's files; the last worker's are followed by the word that all are there."""
        if said.cut != self._handing or title not in self._missing:
            return  # of a cut that home gave up
        if said.error is not None:
            self.end.say(title, to_json(Note(text=f"warning: {title} could not be handed over: {said.error}")))
            return
        self._missing.discard(title)
        if not self._missing:
            self.end.count()
        self.end.files(title, self._read(said), then=None if self._missing else to_json(HandedOver(site=self._job.name)))

    def _failed(self, error: WorkerFailed) -> None:
        """A worker here cannot be replaced, so the run cannot go on: home ends it with the same words."""
        said = Failed(error=error.cause, text=error.traceback_text, final=error.final, said=error.reason)
        self.end.say(error.worker, to_json(said))
        self.over = f"{error.worker} {error.reason}"

    def _cut(self, number: int, step: int) -> None:
        """Home's workers save for a cut: those here do, too."""
        if number > self._board.cut["save"][0] and self._handing is None:
            self._step = step
            self._save(number, step)

    def _ended(self, why: str) -> None:
        self.over = why or "home ended it"

    def close(self) -> None:
        self._crew.stop()
        self._link.close()


def _no_channel() -> Any:
    raise AssertionError("a machine without a queue has no channels")


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
