"""Machines that are processes of this one: sites as a run has them on others, and a driver for the
runtime alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise import api
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint
from equipoise.runtime.cluster import host
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.runtime.ipc import Lifeline
from equipoise.runtime.messages import Cut, Message
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.runtime.serial import SerialRuntime

LIMIT_S = 240.0


def run_site(job: host.SiteJob, lifeline: Lifeline) -> None:
    why = host.run(job, ended=lifeline.cut)
    print(f"{job.name}: {why}", file=sys.stderr)


class Processes:
    """``Nodes``: each site in a process of this machine. ``route`` changes the way that a site
    takes to home.
    """

    address = "127.0.0.1"
    silent_s = 5.0

    def __init__(self, route: Callable[[host.SiteJob], host.SiteJob] = lambda job: job) -> None:
        self._route, self._lifeline = route, Lifeline()
        self.sites: dict[str, Any] = {}
        self.drained: set[str] = set()  # sites whose machine will be taken away
        self.home_drained = False

    def start(self, job: host.SiteJob) -> None:
        made = multiprocessing.get_context("spawn").Process(
            target=run_site, args=(self._route(job), self._lifeline), name=job.name
        )
        made.start()
        # it was handed over
        if (before := self.sites.get(job.name)) is not None and before.exitcode is None:
            self.kill(job.name)
        self.drained.discard(job.name)
        self.sites[job.name] = made

    def ended(self) -> Mapping[str, str]:
        return {
            name: f"ended with {one.exitcode}"
            for name, one in self.sites.items()
            if one.exitcode is not None
        }

    def leaving(self) -> set[str]:
        return self.drained

    def home_leaves(self) -> bool:
        return self.home_drained

    def waits(self) -> Mapping[str, int]:
        return {}

    def where(self, name: str) -> str:
        return str(self.sites[name].pid)

    def kill(self, name: str) -> None:
        """The machine is gone, with all that runs on it."""
        os.kill(self.sites[name].pid, signal.SIGKILL)
        self.sites[name].join()

    def close(self) -> None:
        self._lifeline.close()
        for one in self.sites.values():
            one.join(30)
            if one.exitcode is None:
                one.kill()
                one.join()


def finish(
    runtime: Any,
    each: Callable[[list[Message]], object] = lambda messages: None,
    until: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, str], Any]:
    """Run to the end, or ``until`` -> the hash of each policy, and the last statistics."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while not runtime.done and not until():
            assert time.monotonic() < deadline, f"not done; {runtime.stats()}"
            messages = runtime.poll(0.05)
            each(messages)
            for message in messages:
                if isinstance(message, Cut):
                    if message.error is not None:
                        checkpoint.abandon(Path(runtime._blue.directory), message.step)
                    runtime.release(message)
        now = runtime.stats()
        names = runtime._blue.roles
        found = {name: checkpoint.params_sha256(runtime.weights(name).fetch()[1]) for name in names}
        return found, now
    finally:
        runtime.stop()


def blue_of(folder: Path, env: str, algorithm: str, **options: Any) -> Blueprint:
    given: dict[str, Any] = {
        "actors": 4,
        "envs_per_actor": 2,
        "unroll": 8,
        "batch": 8,
        "steps": 1280,
        "evaluate_episodes": 0,
        "max_lag": 0,
        "recipe": False,
    }
    made = plan_run(api.program(env, algorithm, **given | options))
    folder.mkdir(parents=True, exist_ok=True)
    return replace(made, directory=str(folder))


def run_by(remote: RemoteCrew) -> ProcessRuntime:
    return ProcessRuntime(remote.blue, remote.kinds, remote)


def on_machines(
    blue: Any, sites: Mapping[str, Sequence[str]], nodes: Processes | None = None
) -> ProcessRuntime:
    return run_by(RemoteCrew(blue, nodes or Processes(), sites))


ONE_MACHINE: Mapping[str, Callable[[Any], Any]] = {
    "serial": SerialRuntime,
    "process": ProcessRuntime,
}
