"""One run under attack: started from the command line, with workers found by name, and judged by
the run directory.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from equipoise.chaos.beats import Beats
from equipoise.chaos.ledger import COUNTS
from equipoise.experience.replay.mailbox import LEDGER
from equipoise.record.checkpoint import latest
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.record.report import repeatable
from equipoise.types import Inference, learning
from equipoise.workers.kinds import KINDS

ACTORS, ENVS, UNROLL = 2, 8, 8
DEADLINE_S = 3.0  # a worker whose tick takes longer hangs
CHECKPOINT_EVERY = 5120  # steps, 40 updates
POLL_S = 0.01
# a worker's, in ps
TITLE = re.compile(rf"equipoise ({'|'.join(kind.name for kind in KINDS)}|proxy)( \d+)?")
# for a run that was asked to leave: a last checkpoint, and workers that do not answer
LEAVE_S = 60.0
# all workers of a killed driver have ended by the first, Python's servers by the second
GONE_S, SERVERS_GONE_S = 2.0, 20.0
FAR_GONE_S = 5.0  # the same of workers on other machines, which hear of it over their link


class Wrong(Exception):
    """The reason why a row of the matrix fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The fate of the rows of a run."""

    proven: int = 0  # proven by the ledger
    lost: int = 0
    duplicated: int = 0
    torn: int = 0
    dropped: int = 0  # rows of unrolls whose actor died, and of shards that died
    aborted: int = 0  # episodes that an env failure cost


class Nodes(Protocol):
    """Other machines of a run, played on this one so that their processes can be found."""

    @property
    def words(self) -> Sequence[str]:
        """The arguments of `equipoise train`, so that it runs there."""

    def pids(self) -> Collection[int]:
        """The living processes of sites and their workers."""


class Attack:
    """``place``: an empty directory; ``nodes``: where the actors are, or None for this machine.

    Leaving the ``with`` block ends every process of the run.
    """

    def __init__(
        self,
        place: Path,
        *,
        limit_s: float,
        inference: Inference = "local",
        nodes: Nodes | None = None,
    ) -> None:
        self.inference: Inference = inference
        self._nodes = nodes
        self.out, self.flag = place / "run", place / "trouble"
        self._printed = bytearray()
        self._until = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self.sessions: list[int] = []  # one for each command
        self.began_at = math.inf  # when the first fault began
        # may blocks be taken away from actors that live on? Their episodes go on, with a gap
        self.severs = False
        self._beats_file = place / "beats"
        self.beats = Beats.create(self._beats_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ------------------------------------------------------------------------------------- commands

    def train(
        self,
        *settings: str,
        before: str = "",
        algorithm: str = "Ruling",
        max_lag: str = "1",
        actors: int = ACTORS,
        updates: int = 50,
    ) -> None:
        """Train on the ruler, proving every row, until asked to leave; ``before``: Python code."""
        options = {
            "--algorithm": f"equipoise.chaos.ruling:{algorithm}",
            "--actors": actors,
            "--envs-per-actor": ENVS,
            "--unroll": UNROLL,
            "--max-lag": max_lag,
            "--inference": self.inference,
            "--steps": "30M",
            "--evaluate-episodes": 0,
            "--checkpoint-every": CHECKPOINT_EVERY,
            "--out": self.out,
        }
        given = [
            f"algorithm.streams={actors * ENVS}",
            f"algorithm.beats={self._beats_file}",
            f"placement.deadline_s={DEADLINE_S}",
            f"env.flag={self.flag}",
            *settings,
        ]
        words = ["train", "equipoise.chaos.envs:Faulty", "--no-recipe"]
        words += [str(word) for option in options.items() for word in option]
        words += () if self._nodes is None else self._nodes.words
        words += [word for text in given for word in ("--set", text)]
        self._run(words, before)
        self.updates(updates)

    def resume(self) -> None:
        self._run(["resume", str(self.out)])
        self.updates(50)

    def _run(self, words: Sequence[str], before: str = "") -> None:
        code = f"{before}\nfrom equipoise.cli import main\nmain()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *words, "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        self.sessions.append(self._process.pid)

    def _listen(self, printed: IO[bytes]) -> None:
        """Read the output to its end; into no file, since the run's disk may be full."""
        with printed:
            while data := os.read(printed.fileno(), 65536):
                self._printed += data

    def end(self) -> None:
        """Wait until all workers are there again, then send SIGTERM, which saves the whole run."""
        self.whole()
        self.updates(50)
        self.terminate()

    def whole(self) -> None:
        """Wait until all workers are there."""
        program = RunDirectory.open(self.out).program
        expected = program.placement.learners + program.actors + (self._nodes is not None)
        expected += sum(
            one.replay.shards for one in learning(program).values() if one.replay is not None
        )
        if program.placement.inference == "central":
            expected += program.placement.inference_workers
        self.wait(lambda: len(self.workers()) == expected, "all workers to be there")

    def terminate(self) -> None:
        process = self._living()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the run did not leave within {LEAVE_S:.0f} s of SIGTERM") from None
        if code != 143:
            raise Wrong(f"expected exit code 143 after SIGTERM, got {code}; {self.said()}")
        self.gone()

    def kill(self) -> None:
        """Send SIGKILL to every process left of any command."""
        for session in self.sessions:
            for pid in members(session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def gone(self) -> None:
        """Check that nothing of the run is left."""
        began = time.monotonic()
        while True:
            near = [command(pid) for session in self.sessions for pid in members(session)]
            far = [command(pid) for pid in self._far()]
            if not near and not far:
                return
            limit_s = (
                GONE_S
                if any(name.startswith("equipoise ") for name in near)
                else FAR_GONE_S
                if far
                else SERVERS_GONE_S
            )
            if time.monotonic() - began > limit_s:
                raise Wrong(f"left behind after {limit_s:.0f} s: {', '.join(near + far)}")
            time.sleep(POLL_S)

    def _far(self) -> Collection[int]:
        return () if self._nodes is None else self._nodes.pids()

    # -------------------------------------------------------------------------------------- waiting

    def wait(self, condition: Callable[[], object], what: str) -> None:
        while not condition():
            self._living()
            if time.monotonic() > self._until:
                raise Wrong(
                    f"waited for {what} until the limit of {self._limit_s:.0f} s; {self.said()}"
                )
            time.sleep(POLL_S)

    def go_on(self, seconds: float) -> None:
        """Let the run go on for so long."""
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= end, f"{seconds:.1f} s to pass")

    def updates(self, n: int) -> None:
        """Wait until the learner has made n more updates."""
        due = self.beats.count + n
        self.wait(lambda: self.beats.count >= due, f"{n} updates")

    def _living(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise Wrong(f"the run ended by itself with exit code {code}; {self.said()}")
        return self._process

    def said(self) -> str:
        """The first row that does not prove itself, or the last line that the run printed."""
        text = self._printed.decode(errors="replace").strip().splitlines()
        lines = [line for line in text if line.startswith("chaos: ")][:1] or text[-1:]
        return f"it said: {lines[0][:300]}" if lines else "it said nothing"

    # --------------------------------------------------------------------------------------- faults

    def begin(self) -> None:
        """Note that the fault is there from now on."""
        self.began_at = min(self.began_at, time.monotonic())

    def trouble(self, on: bool) -> None:
        """Set or clear the flag file that makes the envs fail."""
        if on:
            self.begin()
            self.flag.touch()
        else:
            self.flag.unlink()

    def workers(self) -> dict[str, int]:
        """{"actor 0": pid, ...}: the living workers of this command, without the driver."""
        found = {}
        for pid in (*members(self.sessions[-1]), *self._far()):
            name = command(pid)
            if TITLE.fullmatch(name):
                found[name.removeprefix("equipoise ")] = pid
        return found

    def signal(self, worker: str, number: signal.Signals) -> int:
        """Send a signal to a worker -> the pid."""
        self.wait(lambda: worker in self.workers(), f"{worker} to be there")
        pid = self.workers()[worker]
        self.begin()
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(pid, number)
        return pid

    def replaced(self, worker: str, pid: int) -> None:
        """Wait until another process is that worker and the learner goes on."""
        self.wait(lambda: self.workers().get(worker, pid) != pid, f"{worker} to be replaced")
        self.updates(10)

    def kill_driver(self) -> None:
        """Kill the driver and all workers at once."""
        self.begin()
        self._living()
        self.kill()

    def limit_files(self, size: int) -> None:
        """Limit every file that a process of the run writes to ``size`` bytes; -1: no limit."""
        self.begin()
        for pid in members(self.sessions[-1]):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))

    # -------------------------------------------------------------------------------------- judging

    def newest(self) -> Path | None:
        return latest(self.out / "checkpoints", whole=True)

    def recorded(self) -> int:
        """Count the reports that show progress."""
        return len(repeatable(RunDirectory.open(self.out).metrics()))

    @property
    def summary(self) -> dict[str, Any]:
        summary = RunDirectory.open(self.out).summary()
        if summary is None:
            raise Wrong(f"no summary; {self.said()}")
        return summary

    def resumed_at(self) -> int:
        """The step that the last resume went on from, which it writes with its first report."""

        def steps() -> list[int]:
            run = json.loads((self.out / "run.json").read_text())
            return [int(at["step"]) for at in run.get("resumed", [])]

        self.wait(steps, "the resume's first report")
        return steps()[-1]

    def noted(self, text: str) -> int:
        """Count the notes of the run with that text."""
        return sum(text in note for note in self.summary["notes"])

    def rows(self) -> Rows:
        """Compare the queue's (or shards') counts with the ledger's, after a whole checkpoint."""
        source, summary = self.newest(), self.summary
        if source is None:
            raise Wrong(f"no whole checkpoint; {self.said()}")
        params, meta = load_checkpoint(source)
        counts = dict(zip(COUNTS, params["ledger.counts"].tolist(), strict=True))
        queue = summary["rows"]
        unaccounted = abs(queue["inserted"] - queue["sampled"] - queue["dropped"] - queue["held"])
        # the fate of sampled rows
        in_shards = {name: queue[name] for name in LEDGER if name in queue}
        if in_shards:
            unaccounted += abs(queue["sampled"] - sum(in_shards.values()))
        # not if publishes are lost: the summary counts what was published
        elif summary["env_steps"] == meta["env_steps"]:
            unaccounted += abs(queue["sampled"] - counts["rows"])
        # a gap in a stream that no dead actor explains
        vanished = max(counts["missing"] - queue["dropped"], 0)
        if counts["orphans"] and not self.severs:
            raise Wrong(
                f"{counts['orphans']} windows begin within an episode whose rows before them never "
                "came"
            )
        return Rows(
            proven=counts["rows"],
            lost=unaccounted + vanished,
            duplicated=counts["duplicated"],
            torn=counts["torn"],
            dropped=queue["dropped"] + in_shards.get("lost", 0),
            aborted=counts["aborted"],
        )


def members(session: int) -> list[int]:
    """The living processes of a session: all workers of a command and their servers."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, _, at = (entry / "stat").read_text().rpartition(") ")[2].split()[:4]
        except OSError:  # it ended while we looked
            continue
        if int(at) == session and state not in "ZX":
            found.append(int(entry.name))
    return found


def command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:  # it ended while we looked
        return ""
