"""Trials on the machines of a Ray cluster: a Ray actor for each job, which has one process for
trials, as on one machine. The study's folder must be one that all machines have, unless the study
has a URL.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from equipoise.programs.cluster import Cluster
from equipoise.runtime.cluster.on_ray import NOT_MADE, connect
from equipoise.studies.at_url import OwnFolder, SmallFiles, files_of
from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result
from equipoise.studies.local import END_S, Command, LocalExecutor
from equipoise.studies.losses import Losses
from equipoise.studies.settings import STUDY

import ray  # isort: skip  after the module above, which sets what Ray reads when it is imported
import ray.exceptions  # isort: skip

ANSWER_S = 1.0  # that an actor waits for an event


@ray.remote(max_restarts=0, max_task_retries=0)
class TrialActor:
    """A process of a machine that has the process for trials."""

    def __init__(self, command: Command, folder: str) -> None:
        """``folder``: the working directory of the study, if this machine has it."""
        if os.path.isdir(folder):
            os.chdir(folder)
        # Ray gives its workers the module path of the study, which their children do not inherit.
        os.environ["PYTHONPATH"] = os.pathsep.join(one for one in sys.path if one)
        self._executor = LocalExecutor(command, 1)
        self._own: OwnFolder | None = None
        self._error = ""

    def begin(self, job: Job, files: Mapping[str, bytes]) -> None:
        """``files``: the files of a study with a URL."""
        if job.url:
            try:
                self._own = self._own or OwnFolder()
                self._own.write(files)
                self._executor.begin(replace(job, study=self._own.path))
            except OSError as error:  # ``poll`` is what the study hears
                self._error = f"{socket.gethostname()}: must have room for trials, got: {error}"
        elif (job.study / STUDY).is_file():
            self._executor.begin(job)
        else:
            self._error = (
                f"{job.study}: must be a folder that all machines of the cluster share, got none "
                f"on {socket.gethostname()}; try a study with --url URL"
            )

    def stop(self, trial: str) -> None:
        self._executor.stop(trial)

    def poll(self) -> list[Progress | Result]:
        if self._error:
            raise ValueError(self._error)
        return list(self._executor.poll(ANSWER_S))

    def close(self) -> None:
        self._executor.close()
        if self._own is not None:
            self._own.close()


@dataclass(slots=True, eq=False)
class _Slot:
    """An actor, its present job, and its answer that is to come."""

    actor: Any
    answer: ray.ObjectRef[list[Progress | Result]]
    job: Job | None = None
    begun: bool = False  # has it a machine?


class RayExecutor:
    """At most ``jobs`` actors, each with ``cores`` and ``gpus`` of its machine. ``command`` starts
    a process for trials.
    """

    def __init__(
        self, command: Command, jobs: int, *, cluster: Cluster, cores: int = 1, gpus: int = 0
    ) -> None:
        """Connect to the cluster; ValueError in one sentence if there is none, or if no machine of
        it has room for a trial.
        """
        self._command, self._jobs, self._cores = command, jobs, cores
        self._ours = not ray.is_initialized()  # else it is the caller's, which connected before
        if self._ours:
            connect(cluster.address)
        self._options: dict[str, object] = {"num_cpus": cores, "num_gpus": gpus}
        if cluster.labels:
            self._options["label_selector"] = dict(cluster.labels)
        if not cluster.autoscale:
            try:
                check_room(ray.nodes(), cores, gpus, cluster.labels)
            except ValueError:
                self._disconnect()
                raise
        self._slots: list[_Slot] = []
        self._waiting: list[Job] = []
        self._losses = Losses()
        self._small: SmallFiles | None = None  # of the trials of a study with a URL

    def begin(self, job: Job) -> None:
        self._losses.begin(job.trial)
        self._waiting.append(replace(job, study=job.study.absolute()))
        self._assign()

    def stop(self, trial: str) -> None:
        self._waiting = [job for job in self._waiting if job.trial != trial]
        for slot in self._slots:
            if slot.job is not None and slot.job.trial == trial:
                slot.actor.stop.remote(trial)
                slot.job = None  # its next one waits for the end of this one there
        self._assign()

    def poll(self, timeout_s: float) -> Sequence[Progress | Result]:
        if not ray.is_initialized():
            raise RuntimeError("Ray: must be connected while the study runs, got disconnected")
        slots = {slot.answer: slot for slot in self._slots}
        if not slots:
            return []
        done, _ = ray.wait(list(slots), num_returns=1, timeout=timeout_s)
        found: list[Progress | Result] = []
        for answer in done:
            slot = slots[answer]
            try:
                events = ray.get(answer)
            except ray.exceptions.RayActorError as error:
                found += self._lost(slot, error)
                continue
            except ray.exceptions.RayTaskError as error:
                raise ValueError(str(error.cause)) from None
            slot.answer, slot.begun = slot.actor.poll.remote(), True
            for event in events:
                if slot.job is None or event.trial != slot.job.trial:
                    continue  # of a trial that was stopped meanwhile
                if isinstance(event, Progress):
                    self._losses.reach(event.trial, event.steps)
                else:
                    self._fetch(slot.job)
                    slot.job = None
                    event = replace(
                        event, core_seconds=round(event.seconds * self._cores, 3)
                    )  # they are held for as long
                found.append(event)
        self._assign()
        if self._small is not None:
            self._small.warn()
        return found

    def close(self) -> None:
        self._waiting.clear()
        slots, self._slots = self._slots, []
        if self._small is not None:
            self._small.close()
            self._small = None
        if not ray.is_initialized():
            return
        if slots:
            ends = [slot.actor.close.remote() for slot in slots]
            ray.wait(ends, num_returns=len(ends), timeout=END_S)
        for slot in slots:
            ray.kill(slot.actor)
        self._disconnect()

    def _assign(self) -> None:
        idle = [slot for slot in self._slots if slot.job is None]
        # An idle actor takes the job of one that still waits for the cores which it holds.
        for slot in [slot for slot in self._slots if not slot.begun][: len(idle)]:
            if slot.job is not None:
                ray.kill(slot.actor)
                self._slots.remove(slot)
                self._waiting.append(slot.job)
        while self._waiting and (idle or len(self._slots) < self._jobs):
            if idle:
                slot = idle.pop()
            else:
                actor = TrialActor.options(**self._options).remote(self._command, os.getcwd())  # type: ignore[attr-defined]
                slot = _Slot(actor, actor.poll.remote())
                self._slots.append(slot)
            slot.job = self._waiting.pop(0)
            slot.actor.begin.remote(slot.job, files_of(slot.job) if slot.job.url else {})

    def _lost(self, slot: _Slot, error: Exception) -> list[Result]:
        """An actor is gone, with its machine or alone: its job begins again elsewhere."""
        self._slots.remove(slot)
        if NOT_MADE in str(error):
            why = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"executor: must find on each machine what this one has, got there: {why}"
            )
        if slot.job is None:
            return []
        how = f"was lost with its Ray actor ({type(error).__name__})"
        result = self._losses.lose(slot.job, how)
        if result is not None:
            return [result]
        self._waiting.append(slot.job)
        return []

    def _fetch(self, job: Job) -> None:
        """Fetch the small files of a trial of a study with a URL into the study's directory."""
        if job.remote is not None:
            self._small = self._small or SmallFiles()
            self._small.fetch(job.remote, job.directory)

    def _disconnect(self) -> None:
        if self._ours:
            self._ours = False
            ray.shutdown()


def check_room(
    nodes: Sequence[Mapping[str, Any]], cores: int, gpus: int, labels: Mapping[str, str]
) -> None:
    """ValueError if no living machine of the cluster can have a trial."""
    fit = [
        one["Resources"]
        for one in nodes
        if one["Alive"] and labels.items() <= (one.get("Labels") or {}).items()
    ]
    if not any(one.get("CPU", 0) >= cores and one.get("GPU", 0) >= gpus for one in fit):
        most = ", ".join(f"{one.get('CPU', 0):g} and {one.get('GPU', 0):g}" for one in fit[:8])
        where = f" with the labels {dict(labels)}" if labels else ""
        raise ValueError(
            f"executor: must have a machine{where} with {cores} cores and {gpus} GPUs for each "
            f"trial, got {most or 'none'}; try fewer actors"
        )
