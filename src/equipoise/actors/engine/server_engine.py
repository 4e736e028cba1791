"""The engine of servers: samples are drawn by vLLM, in other processes.

A group is one request, in a thread of its own. New weights are written into a folder, and each
server loads them while its samples are held; then it must compute the log-probabilities that the
weights have, before any of its samples is handed on. A server that dies, hangs or answers with
something else costs what it had in flight: those groups begin again on another server. It is asked
again with each update.

The generator's thread owns every field. Threads of requests, of updates and of signs of life only
put into the inbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from equipoise.actors.engine.drawing import I64, group_keys, index_keys
from equipoise.actors.engine.engine import Continuation, OnUpdate, Sampled
from equipoise.actors.engine.sent_weights import F64, Proof, SentWeights
from equipoise.actors.engine.vllm import Draws, Server, ServerFailed, Written
from equipoise.errors import Final
from equipoise.nets.decoder import Decoder
from equipoise.types.packed import Stop

WAIT_S = 0.02  # of a step in which nothing comes
LOOK_S = 0.005  # between two looks at an update
LIFE_S = 2.0  # between two signs of life
T = TypeVar("T")
XARGS = "equipoise"  # group's key, index and length of the prompt, of a sample that continues


class EngineFailed(Final, RuntimeError):
    """The error of a run whose servers all failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How samples are drawn."""

    seed: int
    eos: Sequence[int]
    length: int  # most tokens of a prompt and its sample
    stop: Sequence[str] = ()
    temperature: float = 1.0
    on_update: OnUpdate = "keep"
    # are no samples under way when weights come? Then all groups are queued before the first token,
    # so that they are drawn side by side as in one process
    lockstep: bool = False
    versions: Sequence[str] = ()  # of vLLM that are accepted


@dataclass(frozen=True, slots=True)
class _Ask:
    number: int  # of its submission
    group: int
    index: int  # of the first sample
    samples: int
    draws: Draws


@dataclass(frozen=True, slots=True)
class _Flight:
    """A request under way."""

    ask: _Ask
    version: int  # of the server's weights when it was sent


@dataclass(slots=True, eq=False)
class _ServerState:
    """A server and what it does."""

    server: Server
    proof: Proof = field(default_factory=Proof)
    version: int = -1
    why: str = "has no weights yet"  # it draws nothing; "": it draws
    updating: bool = False  # it is sent nothing
    unproven: bool = False  # its answers are held back, in ``late``
    flights: dict[int, _Flight] = field(default_factory=dict)
    late: list[tuple[_Flight, list[Written]]] = field(default_factory=list)
    heard: float = 0.0  # time of its last answer, or of a request while it had none

    @property
    def samples(self) -> int:
        return sum(one.ask.samples for one in self.flights.values())


@dataclass(frozen=True, slots=True)
class _Message:
    """What a thread has to tell of a server: a finished request, or that it failed."""

    state: _ServerState
    flight: int = -1
    written: list[Written] | None = None
    failed: str = ""


class ServerEngine:
    """An ``Engine`` on servers of vLLM."""

    def __init__(
        self,
        servers: Sequence[Server],
        net: Decoder,
        how: Drawing,
        *,
        folder: str = "",
        note: Callable[[str], object] = lambda text: None,
    ) -> None:
        """``net``: the engine's own, of which servers get copies. ``folder``: of the weights."""
        self._how, self._note = how, note
        self._states = [_ServerState(one) for one in servers]
        self._vocabulary = net.config.vocab_size
        self._weights = SentWeights(net, folder, length=how.length, seed=how.seed)
        self._run = token_hex(6)  # begins the labels of this engine's weights
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._queue: deque[_Ask] = deque()
        self._asked = self._flights = 0
        self._closed = threading.Event()
        self.version, self.restarted = 0, 0  # samples that began again on another server
        for state in self._states:
            threading.Thread(target=self._watch, args=(state,), name="life", daemon=True).start()

    @property
    def live(self) -> int:
        late = sum(one.ask.samples for state in self._states for one, _ in state.late)
        return late + sum(state.samples for state in self._states)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def away(self) -> int:
        return 0

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        key = int(group_keys(self._how.seed, np.array([group]))[0])
        self._ask(group, 0, samples, self._draws(prompt, samples, limit, key))

    def go_on(self, rest: Continuation) -> None:
        group = group_keys(self._how.seed, np.array([rest.group]))
        key = index_keys(group, np.array([rest.index]))
        # vLLM draws from the seed again in each request; the sample has more tokens in each, also
        # where its text is rendered again and is shorter
        turn = int(index_keys(key, np.array([len(rest.text) - rest.prompt]))[0])
        extra = {XARGS: [int(group[0]), rest.index, rest.prompt]}
        self._ask(rest.group, rest.index, 1, self._draws(rest.text, 1, rest.limit, turn, extra))

    def _draws(
        self,
        text: Sequence[int],
        samples: int,
        limit: int,
        seed: int,
        extra: Mapping[str, Sequence[int]] | None = None,
    ) -> Draws:
        tokens, how = list(text), self._how
        if not tokens or min(tokens) < 0 or max(tokens) >= self._vocabulary:
            raise ValueError(f"prompt: must be tokens from 0 to {self._vocabulary - 1:,}")
        if samples < 1 or limit < 1 or len(tokens) + limit > how.length:
            raise ValueError(
                f"prompt and sample: must be at most {how.length:,} tokens, at least 1 of a sample"
                f", got {samples} of {len(tokens):,} and {limit:,}"
            )
        return Draws(
            text=tokens, samples=samples, limit=limit, temperature=how.temperature, seed=seed,
            eos=how.eos, stop=how.stop, salt="", extra=extra or {},
        )  # fmt: skip

    def _ask(self, group: int, index: int, samples: int, draws: Draws) -> None:
        self._asked += 1
        self._queue.append(_Ask(self._asked, group, index, samples, draws))

    def step(self) -> list[Sampled]:
        """Send what waits, and wait ``WAIT_S`` for samples that have ended."""
        self._send()
        return self._read(WAIT_S) if self.live else []

    def take(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        """Write the weights and let every server load them; see ``Engine``."""
        written = _Thread(partial(self._weights.write, version, params))
        while written.running(LOOK_S):
            yield
        folder, logps = written.result()
        if not whole():
            return
        updates = dict[_ServerState, _Thread[None]]()
        for state in self._states:
            state.updating = True
        while len(updates) < len(self._states) or any(
            one.running(LOOK_S) for one in updates.values()
        ):
            for state in self._states:
                # with ``finish`` samples end before new weights come
                if state not in updates and not (state.flights and self._how.on_update == "finish"):
                    state.unproven = True
                    updates[state] = _Thread(partial(self._update, state, folder, logps, version))
            yield
        for state, update in updates.items():
            state.updating = state.unproven = False
            try:
                update.result()
            except ServerFailed as error:
                self._fail(state, str(error))
            else:
                if state.why and state.version >= 0:
                    self._note(f"{state.server}: draws again")
                state.why, state.version = "", version
        self._alive()
        self.version = version

    def close(self) -> None:
        self._closed.set()
        for state in self._states:
            state.server.cut()
        self._weights.close()

    # ------------------------------------------------------------------------------ the exchanges

    def _update(self, state: _ServerState, folder: Path, logps: F64, version: int) -> None:
        """Give a server new weights, and prove that it has them; in a thread."""
        server, how = state.server, self._how
        if state.why:
            server.alive()
            server.check(how.versions, how.length, "finish" if how.lockstep else how.on_update)
        server.pause(finish=False)
        server.load(str(folder), self._label(version))
        if how.on_update == "recompute":
            server.forget()
        server.resume()
        got = server.logps(self._weights.probe, self._label(version))
        if complaint := state.proof.complaint(logps, got):
            raise ServerFailed(complaint)

    def _label(self, version: int) -> str:
        return f"{self._run}-{version}"

    def _send(self) -> None:
        """Send the groups that wait to the servers with the fewest samples."""
        able = [state for state in self._states if not state.why and not state.updating]
        if not self._queue or not able:
            return
        wave = self._how.lockstep and not self.live
        if wave:
            able = [state for state in able if self._told(state, lambda to: to.pause(finish=False))]
        while self._queue and able:
            state = min(able, key=lambda one: one.samples)
            accepted = self._fly(state, self._queue.popleft())
            if wave:
                accepted.wait()  # also set if the request fails
        if wave:
            for state in able:
                self._told(state, Server.resume)
        self._alive()

    def _told(self, state: _ServerState, act: Callable[[Server], None]) -> bool:
        try:
            act(state.server)
        except ServerFailed as error:
            self._fail(state, str(error))
        return not state.why

    def _fly(self, state: _ServerState, ask: _Ask) -> threading.Event:
        self._flights += 1
        number, accepted = self._flights, threading.Event()
        if not state.flights:
            state.heard = time.monotonic()
        state.flights[number] = _Flight(ask, state.version)
        draws = replace(ask.draws, salt=self._label(state.version))

        def heard() -> None:
            state.heard = time.monotonic()
            accepted.set()

        def fly() -> None:
            try:
                written = state.server.draw(draws, self._vocabulary, heard)
                self._inbox.put(_Message(state, number, written))
            except ServerFailed as error:
                self._inbox.put(_Message(state, number, failed=str(error)))
            finally:
                accepted.set()

        threading.Thread(target=fly, name="request", daemon=True).start()
        return accepted

    def _watch(self, state: _ServerState) -> None:
        """Ask for signs of life, in a thread."""
        while not self._closed.wait(LIFE_S):
            if state.why:
                continue
            if state.unproven or not state.flights:  # samples are held, or there are none
                state.heard = time.monotonic()
            try:
                state.server.alive()
                if time.monotonic() - state.heard > (most := state.server.deadline_s):
                    raise ServerFailed(f"has drawn no token for {most:g} s")
            except ServerFailed as error:
                self._inbox.put(_Message(state, failed=str(error)))

    # --------------------------------------------------------------------------------- the answers

    def _read(self, seconds: float) -> list[Sampled]:
        """Read the inbox; wait for a first message."""
        done = list[Sampled]()
        for state in self._states:
            if state.late and not state.unproven:
                late, state.late = state.late, []
                for one, written in late:
                    done += self._sampled(state, one, written)
        until = time.monotonic() + (0.0 if done else seconds)
        while True:
            try:
                message = self._inbox.get(timeout=max(until - time.monotonic(), 0.0))
            except Empty:
                return done
            until = 0.0
            state, flight = message.state, message.state.flights.get(message.flight)
            if state.why or (flight is None and message.flight >= 0):
                continue  # of a server that has failed since
            if message.written is None or flight is None:
                self._fail(state, message.failed)
                self._alive()
                continue
            del state.flights[message.flight]
            if state.unproven:
                state.late.append((flight, message.written))
            else:
                done += self._sampled(state, flight, message.written)

    def _sampled(
        self, state: _ServerState, flight: _Flight, written: Sequence[Written]
    ) -> list[Sampled]:
        ask = flight.ask
        try:
            return [
                Sampled(
                    ask.group,
                    ask.index + number,
                    np.array(one.token, np.int64),
                    np.array(one.logp, np.float32),
                    self._versions(state, flight, one),
                    self._stop(one, ask.draws),
                )
                for number, one in enumerate(written)
            ]
        except ServerFailed as error:
            state.flights[0] = flight  # it begins again with the others
            self._fail(state, str(error))
            self._alive()
            return []

    def _versions(self, state: _ServerState, flight: _Flight, one: Written) -> I64:
        if not state.server.spans:
            return np.full(len(one.token), flight.version, np.int64)
        version = np.full(len(one.token), -1, np.int64)
        for start, end, label in one.labels:
            run, _, number = label.rpartition("-")
            if run != self._run or not number.isdecimal() or int(number) > state.version:
                raise ServerFailed(
                    f"drew with weights {label!r:.40} that this generator did not send; does "
                    "another one use the same server?"
                )
            version[start:end] = int(number)
        if (version < 0).any():
            raise ServerFailed("answered without the weights of each token (weight_versions)")
        return version

    def _stop(self, one: Written, draws: Draws) -> Stop:
        if one.finish == "length":
            if len(one.token) < draws.limit:
                raise ServerFailed(f"ended a sample at {len(one.token)} of {draws.limit} tokens")
            return Stop.LENGTH
        if isinstance(one.reason, str):
            return Stop.TEXT
        if one.token[-1] not in draws.eos:
            raise ServerFailed(f"ended a sample by token {one.token[-1]}, which is no end")
        return Stop.EOS

    def _fail(self, state: _ServerState, why: str) -> None:
        """Use a server no more until the next update; begin its samples again on others."""
        if state.why:
            state.why = why
            return
        state.why = why
        asks = [one.ask for one in (*state.flights.values(), *(late for late, _ in state.late))]
        state.flights, state.late = {}, []
        state.server.cut()
        self._queue.extendleft(sorted(asks, key=lambda one: -one.number))
        self.restarted += (samples := sum(one.samples for one in asks))
        self._note(
            f"warning: {state.server} {why}; {samples} samples begin again on another server "
            f"({self.restarted} in all)"
        )

    def _alive(self) -> None:
        """EngineFailed if no server is left."""
        if all(state.why for state in self._states):
            self.close()
            which = "; ".join(f"{state.server} {state.why}" for state in self._states)
            raise EngineFailed(f"source.engine: no server is left to draw samples: {which}")


class _Thread(Generic[T]):
    """A function in a thread, which ends with the process."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="update", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._act())
        except BaseException as error:  # raised where the result is read
            self._error = error

    def running(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for its end -> does it run?"""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._found[0]
