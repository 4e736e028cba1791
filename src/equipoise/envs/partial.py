"""Envs whose streams answer some at a time: Python envs with a thread each, and the queue that
hands their rows on.

``recv`` returns the rows of the streams that have answered (``TimeStep.answered``), as soon as at
most N - ``answers`` of all N streams are still under way. The other streams carry no information:
reward 0, not ``valid``, not ``first``, no end, the observation of before. The first ``recv``
returns the reset of all streams. ``send`` takes the actions of any streams that have answered.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.envs.base import RESUMES, SyncEnv
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.families.joint import Joint
from equipoise.envs.families.pettingzoo import SingleEnv
from equipoise.envs.loop import LoopEnv
from equipoise.envs.making import make
from equipoise.envs.spaces import observation_spec, timestep
from equipoise.types import REMOTE, Array, EnvFactory, TimeStep, Tree

WAIT_S = 0.005  # in which ``recv`` waits for answers, before its caller has its turn again
END_S = 5.0  # in which the threads of steps under way are to end, once the env is closed
SETTING = "placement.partial_streams"


def make_partial(
    factory: EnvFactory,
    *,
    streams: Array,
    seed: int,
    answers: int,
    failures: Failures | None = None,
    metrics: Sequence[str] = (),
) -> Any:
    """As ``making.make``, with some streams answering at a time; ValueError if it cannot."""
    target = factory.target
    if factory.on_device or target.startswith(REMOTE):
        raise ValueError(
            f"{SETTING}: expected 0 with {target}, whose streams are stepped together, got "
            f"{answers}"
        )
    if target.startswith("envpool:"):
        from equipoise.envs.families.pool import make_pool

        env = make_pool(
            target.removeprefix("envpool:"),
            dict(factory.kwargs),
            streams=streams,
            seed=seed,
            action_mask=factory.action_mask,
            answers=answers,
        )
        env.failures, env.origin = failures, (factory, seed)
        if metrics:
            env.watch(metrics)
        return env
    one = replace(factory, target=f"python:{target.removeprefix('python:')}")
    rule = None if failures is None else LockedFailures.of(failures)
    envs = list[SyncEnv]()
    try:
        for stream in np.asarray(streams, np.int64):
            envs.append(make(one, streams=stream[None], seed=seed, failures=rule, metrics=metrics))
            if isinstance(envs[0], LoopEnv) and isinstance(envs[0].envs[0], Joint):
                raise ValueError(
                    f"{SETTING}: expected 0 with {target}, whose agents act together, got {answers}"
                )
        return ThreadedEnv(envs, answers=answers)
    except BaseException:
        for made in envs:
            made.close()
        raise


@dataclass(slots=True, kw_only=True)
class LockedFailures(Failures):
    """The rule for the failures of envs that are stepped by several threads."""

    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, rule: Failures) -> LockedFailures:
        """The same rule without the time of resets, which several threads share."""
        return cls(
            on_nonfinite=rule.on_nonfinite,
            capsules=rule.capsules,
            counts=rule.counts,
            causes=rule.causes,
            warned=rule.warned,
        )

    def count(self, name: str, by: int = 1) -> None:
        with self.lock:
            Failures.count(self, name, by)

    def aborted(self, error: Exception) -> None:
        with self.lock:
            Failures.aborted(self, error)

    def warn_once(self, error: WrongValue) -> bool:
        with self.lock:
            return Failures.warn_once(self, error)


class ThreadedEnv:
    """An ``Env`` over envs of one stream each, every one stepped by a thread of its own.

    It pays if a step waits or computes outside Python.
    """

    def __init__(self, envs: Sequence[SyncEnv], *, answers: int) -> None:
        self.envs, self._answers = list(envs), answers
        self.spec = self.envs[0].spec
        streams = np.concatenate([env.ts.stream for env in self.envs])
        ts, _ = timestep(observation_spec(self.spec.observation), streams)
        told = self.envs[0].ts.info
        info = None if told is None else np.full((len(streams), told.shape[1]), np.nan)
        self._answered = np.zeros(len(streams), np.bool_)
        self.ts = replace(ts, answered=self._answered, info=info)
        self._said = [
            self.ts.reward,
            self.ts.terminated,
            self.ts.truncated,
            self.ts.first,
            self.ts.valid,
            self._answered,
        ]
        self._copies = [list(_copies(self.ts, i, env.ts)) for i, env in enumerate(self.envs)]
        self._places = {int(stream): i for i, stream in enumerate(streams)}
        self.restarted, self.restarts, self.resumed = (
            np.zeros(len(streams), np.bool_),
            dict[int, str](),
            dict[str, int](),
        )
        # answers that ``recv`` has not returned yet
        self._came: deque[tuple[int, BaseException | None]] = deque()
        # streams with an action or a reset under way, whose answer was not returned
        self._under_way = 0
        self._wanted = len(self.envs)  # as many answers as the next ``recv`` waits for
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._jobs: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self.envs]
        self._threads = [
            threading.Thread(
                target=self._serve, args=(i,), name=f"env of stream {stream}", daemon=True
            )
            for i, stream in enumerate(streams)
        ]
        for thread in self._threads:
            thread.start()
        self._reset()

    def _reset(self) -> None:
        self._under_way = self._wanted = len(self.envs)
        for jobs in self._jobs:
            jobs.put(None)

    def _serve(self, i: int) -> None:
        """Step the env of one stream, in its thread: None is its reset."""
        env, jobs = self.envs[i], self._jobs[i]
        while (job := jobs.get()) is not _END:
            error: BaseException | None = None
            try:
                if job is not None:
                    env.send(job, env.ts.stream)
                env.recv()
            except BaseException as raised:  # the actor's thread raises it
                error = raised
            self._came.append((i, error))
            if len(self._came) >= self._wanted or error is not None:
                with suppress(BlockingIOError):  # it is full, and wakes the waiting thread
                    os.write(self._write, b"\0")

    # ------------------------------------------------------------------------------------ as an Env

    def send(self, action: Tree, stream: Array) -> None:
        """action [n, ...] for the streams [n], which have all answered."""
        for k, one in enumerate(stream.tolist()):
            self._jobs[self._places[one]].put(tree.index(action, slice(k, k + 1)))
        self._under_way += len(stream)
        self._wanted = self._enough()

    def recv(self) -> TimeStep | None:
        """The rows of the streams that have answered; None while they are too few."""
        if not self._wait(self._wanted, WAIT_S * 1000):
            return None
        for array in self._said:
            array.fill(0)
        if self.ts.info is not None:
            self.ts.info.fill(np.nan)
        for _ in range(len(self._came)):
            i, error = self._came.popleft()
            if error is not None:
                raise error
            for to, of in self._copies[i]:
                np.copyto(to, of)
            self._answered[i] = True
            self._under_way -= 1
        self._wanted = self._enough()
        return self.ts

    def _wait(self, wanted: int, wait_ms: float | None) -> bool:
        """Wait for ``wanted`` answers -> are they there?"""
        if len(self._came) < wanted:
            self._poll.poll(wait_ms)
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        return len(self._came) >= wanted

    def _enough(self) -> int:
        """Return how many answers to wait for: at least one, and all but N - ``answers``."""
        slow = len(self.envs) - self._answers
        return max(min(1, self._under_way), self._under_way - slow)

    def fds(self) -> tuple[int, ...]:
        return (self._read,)

    def _settle(self) -> None:
        """Wait until no step is under way: the answers are returned later."""
        self._wanted = self._under_way
        while not self._wait(self._under_way, WAIT_S * 1000):
            pass

    def state(self) -> Tree:
        """The state that the next rows depend on, after the steps under way; {} if a resume starts
        again.
        """
        if self.spec.resume == "restart":
            return {}
        self._settle()
        came = np.zeros(len(self.envs), np.bool_)
        came[[i for i, _ in self._came]] = True
        return {"came": came, "envs": {str(i): env.state() for i, env in enumerate(self.envs)}}

    def load(self, state: Tree) -> None:
        """As ``SyncEnv.load``; a stream whose answer was not returned yet still has it."""
        self._settle()
        came, self._came = self._came, deque()
        for _, error in came:
            if error is not None:
                raise error
        for i, env in enumerate(self.envs):
            env.load(state["envs"][str(i)] if state else {})
        if state:
            self._came.extend((int(i), None) for i in np.flatnonzero(state["came"]))
            self._under_way = len(self._came)
            self._wanted = self._enough()
        else:
            self._reset()
        self.restarted = np.array([env.restarted[0] for env in self.envs])
        self.restarts = {stream: why for env in self.envs for stream, why in env.restarts.items()}
        self.resumed = {kind: sum(env.resumed[kind] for env in self.envs) for kind in RESUMES}

    def close(self) -> None:
        if not self._threads:
            return
        for jobs in self._jobs:
            jobs.put(_END)
        for thread in self._threads:
            thread.join(END_S)
        alive = [thread.is_alive() for thread in self._threads]
        self._threads = []
        for env, stepping in zip(self.envs, alive, strict=True):
            if not stepping:  # else the process ends with it
                env.close()
        if not any(alive):
            os.close(self._read)
            os.close(self._write)


_END = object()


def _copies(ts: TimeStep, i: int, one: TimeStep) -> Iterator[tuple[Array, Array]]:
    """The pairs (to, from) of arrays by which an answer of stream i gets into the rows."""
    for to, of in zip(tree.leaves(ts.rows()), tree.leaves(one.rows()), strict=True):
        yield to[i : i + 1], of
    if ts.info is not None:
        yield ts.info[i : i + 1], one.info


class PartialEnv(SingleEnv):
    """``DealtEnv`` whose actions are {"action": [n, ...], "stream": [n]} of some streams."""

    def send(self, actions: Mapping[str, Tree]) -> None:
        some = actions[self._policy]
        if len(some["stream"]):
            self.env.send(some["action"], some["stream"])
