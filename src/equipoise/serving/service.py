"""The service: requests in, decisions out, whatever they travel by. Everything here runs in the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from equipoise.serving import bounds
from equipoise.serving.batching import Ask, Batch, Batcher, Choice, Turn
from equipoise.serving.messages import LATEST_MS, Act, Decision, Outcome, Refused, arrays
from equipoise.serving.metrics import Metrics
from equipoise.serving.sessions import Episode, Sessions, Track
from equipoise.serving.store import Store
from equipoise.serving.version import Version
from equipoise.serving.versions import SERVED, Versions
from equipoise.serving.waiting import Turns

STORED_S = 30.0  # an outcome that is not in the file by then is refused

Reply = Callable[[list[Decision]], None]


@dataclass(slots=True)
class About:
    """The facts of a request that its answer and its record need."""

    reply: Reply
    unit: str | None
    session: str | None
    shadow: Track | None  # of the episode
    unlogged: bool


class Service:
    """One policy, served."""

    def __init__(
        self,
        versions: Versions,
        store: Store,
        sessions: Sessions,
        *,
        seed: int,
        batch: int = 64,
        deadline_ms: float | None = None,
    ) -> None:
        """``deadline_ms``: the deadline of requests without their own."""
        self.versions, self.store, self.sessions, self.metrics = (
            versions,
            store,
            sessions,
            Metrics(),
        )
        self._deadline_ms = deadline_ms
        self.batcher = Batcher(most=batch, seed=seed, done=self._done)
        self._run, self._count = secrets.token_hex(6), count()
        self.metrics.gauges = self._gauges
        self.draining = False
        self._loop = asyncio.get_running_loop()
        self.told = Turns()  # outcomes that are stored, or not
        # when each was answered, on the monotonic clock
        self._unrecorded: list[tuple[Ask, list[Decision], float]] = []

    # ------------------------------------------------------------------------------------- requests

    def act(self, request: Act, reply: Reply) -> None:
        """Decide for one observation; ``reply`` is called once, with one decision. Refused if the
        request cannot be met.
        """
        name = request.session
        episode = self.sessions.find(name) if name is not None and not request.first else None
        version = self.versions.find(request.version) if episode is None else episode.main.version
        asked = request.version
        if (
            episode is not None
            and asked is not None
            and asked not in SERVED
            and not version.digest.startswith(asked)
        ):
            raise Refused(
                409,
                f"version: expected {version.digest[:12]}, with which the episode of {name!r} "
                f"began, got {asked!r}",
            )
        rows, single = self.read(version, request.obs)
        if not single:
            raise Refused(
                400,
                "obs: expected one observation, got a batch of them; /v2/models/NAME/infer takes "
                "batches",
            )
        self.ask(
            version,
            rows,
            reply,
            session=name,
            episode=episode,
            unit=request.unit,
            deterministic=request.deterministic,
            deadline_ms=request.deadline_ms,
        )
        if request.done and name is not None:
            self.sessions.end(name)

    def read(self, version: Version, obs: object) -> tuple[Mapping[str, Any], bool]:
        """Return the rows of an observation; Refused (400) with the path, the expected value and
        the value that came.
        """
        try:
            return version.model.read(arrays(obs))
        except (ValueError, RecursionError) as error:
            raise Refused(400, str(error)) from None

    def ask(
        self,
        version: Version,
        rows: Mapping[str, Any],
        reply: Reply,
        *,
        session: str | None,
        episode: Episode | None,
        unit: str | None = None,
        deterministic: bool = True,
        deadline_ms: float | None = None,
    ) -> None:
        """Ask a version for decisions on rows [n, ...] that were read. ``episode`` None with a
        ``session``: one begins.
        """
        if session is None and version.recurrent:
            raise Refused(
                400,
                "session: expected the name of an episode, since this policy has a memory, got "
                "none",
            )
        first, n = episode is None, len(next(iter(rows.values())))
        now = self.versions.now
        shadow = now.shadow if version is now.by_alias.get("champion") else None
        if session is not None and episode is None:
            episode = self.sessions.begin(session, version, shadow)
        if episode is not None:
            stream, step, track = episode.stream, episode.step, episode.main
            episode.step += 1
            if (shadowed := episode.shadow) is not None:
                shadowed.waiting += 1
        else:
            stream, step, track, shadowed = next(self.sessions.streams), 0, None, None
            for _ in range(n - 1):
                next(self.sessions.streams)
        unlogged = not deterministic and self.store.alarm is not None
        limit = self.limit_ms(deadline_ms)
        ask = Ask(
            version,
            rows,
            self._answer,
            Turn(stream, step, track, first),
            n=n,
            deterministic=deterministic or unlogged,
            deadline=None if limit is None else time.monotonic() + limit / 1000,
            about=About(reply, session if unit is None else unit, session, shadowed, unlogged),
        )
        self.batcher.submit(ask)

    def limit_ms(self, asked: float | None) -> float | None:
        """The deadline of a request that asks for this one, in ms after its arrival; None: none."""
        if asked is None:
            return self._deadline_ms
        if not asked > 0 or asked > LATEST_MS:
            raise Refused(
                400,
                f"deadline_ms: expected a time above 0 and of at most {LATEST_MS:,} ms, got "
                f"{asked}",
            )
        return asked

    def outcome(self, outcomes: list[Outcome], written: Callable[[bool], None]) -> None:
        """Store all outcomes or none; the writer's thread calls ``written``. Refused (501, 507) if
        that is impossible.
        """
        if self.store.path is None:
            raise Refused(
                501,
                "outcome: expected a server with a file for decisions (--decisions FILE), got one "
                "without",
            )
        now = time.time()
        rows = [
            (one.id, one.reward, _json(one), now if one.time is None else one.time)
            for one in outcomes
        ]
        if not self.store.put("outcomes", *rows, written=written):
            raise Refused(507, f"outcome: expected room for it, got none: {self.store.alarm}")

    async def stored(self, outcomes: list[Outcome]) -> None:
        """Store all outcomes or no outcome, and wait until they are in the file; Refused (501, 507)
        if they cannot be.
        """
        loop = asyncio.get_running_loop()
        written: asyncio.Future[bool] = loop.create_future()

        def told(fine: bool) -> None:  # in the writer's thread
            # the loop is closed, which it may be at any moment; the writer goes on
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.told.add, written, fine)

        self.outcome(outcomes, told)
        try:
            fine = await asyncio.wait_for(asyncio.shield(written), STORED_S)
        except TimeoutError:
            fine = False if self.store.drop(told) else await written
        if not fine:
            raise Refused(
                507,
                "outcome: expected room for it, got none: "
                f"{self.store.alarm or 'the disk is slow'}",
            )

    def end(self, session: str) -> None:
        if not self.sessions.end(session):
            self.sessions.find(session)  # which refuses

    @property
    def ready(self) -> bool:
        """Are requests taken, and is there a champion that answers them?"""
        return not self.draining and "champion" in self.versions.now.by_alias

    def state(self) -> dict[str, Any]:
        """The body of /readyz."""
        now = self.versions.now
        alarms = [
            bounds.in_utf8(alarm)
            for alarm in (self.store.alarm, self.versions.alarm)
            if alarm is not None
        ]
        return {
            "ready": self.ready,
            "policy": self.versions.policy,
            "versions": {alias: version.digest for alias, version in now.by_alias.items()},
            "sessions": len(self.sessions),
            "alarms": alarms,
        }

    # -------------------------------------------------------------------------------------- answers

    def _answer(self, ask: Ask, choices: list[Choice]) -> None:
        """Answer now; the record can wait for the loop's next turn."""
        about: About = ask.about
        kind, unlogged = ask.version.model.propensity, "unlogged" if about.unlogged else None
        decisions = [
            Decision(
                id=f"{self._run}-{next(self._count):x}",
                action=action,
                version=ask.version.digest,
                propensity=propensity,
                kind=kind,
                deterministic=deterministic,
                session=about.session,
                fallback=reason or unlogged,
            )
            for action, propensity, deterministic, reason in choices
        ]
        about.reply(decisions)
        if not self._unrecorded:
            self._loop.call_soon(self.record)
        self._unrecorded.append((ask, decisions, time.monotonic()))

    def record(self) -> None:
        """Count and store what was answered, and ask the shadow."""
        unrecorded, self._unrecorded = self._unrecorded, []
        now = time.time()
        for ask, decisions, answered in unrecorded:
            about: About = ask.about
            self.metrics.seconds.add(answered - ask.arrived)
            for i, one in enumerate(decisions):
                self.metrics.decisions[one.version, one.fallback or "policy"] += 1
                rows = (
                    ask.rows if ask.n == 1 else {name: x[i : i + 1] for name, x in ask.rows.items()}
                )
                self.store.put(
                    "decisions",
                    (
                        one.id,
                        about.unit,
                        about.session,
                        ask.step,
                        self.versions.policy,
                        one.version,
                        one.deterministic,
                        one.propensity,
                        one.kind,
                        one.fallback,
                        now,
                        one.action,
                        rows,
                    ),
                )
            self._shadow(ask, decisions)

    def _shadow(self, ask: Ask, decisions: list[Decision]) -> None:
        """Let the shadow also answer, some time later."""
        about: About = ask.about
        track, champion, shadow = (
            about.shadow,
            self.versions.now.by_alias.get("champion"),
            self.versions.now.shadow,
        )
        if track is not None:
            shadow = track.version
        elif (
            shadow is None
            or shadow.recurrent
            or ask.version is not champion
            or about.session is not None
        ):
            return

        def compare(other: Ask, choices: list[Choice]) -> None:
            for decision, (action, propensity, _, _) in zip(decisions, choices, strict=True):
                self.metrics.shadows[
                    other.version.digest, "same" if action == decision.action else "other"
                ] += 1
                self.store.put(
                    "shadows", (decision.id, other.version.digest, propensity, time.time(), action)
                )

        other = Ask(
            shadow,
            ask.rows,
            compare,
            Turn(ask.stream, ask.step, track, ask.first),
            n=ask.n,
            deterministic=ask.deterministic,
        )
        if (track is not None and track.gap) or not self.batcher.shadow(other):
            self.metrics.shadows[shadow.digest, "dropped"] += 1
            if track is not None:
                track.drop()

    def _done(self, batch: Batch) -> None:
        self.metrics.rows.add(len(batch.first))

    def _gauges(self) -> dict[str, tuple[str, float]]:
        store, versions = self.store, self.versions
        return {
            "equipoise_sessions": ("Open episodes.", len(self.sessions)),
            "equipoise_sessions_expired_total": (
                "Episodes that were ended for want of requests.",
                self.sessions.expired,
            ),
            "equipoise_swaps_total": ("Times that the champion was swapped.", versions.swaps),
            "equipoise_rows_waiting": ("Requests that wait for the model.", len(self.batcher)),
            "equipoise_records_waiting": ("Records that wait for the disk.", store.waiting),
            "equipoise_records_written_total": (
                "Decisions, outcomes and shadow answers in the file.",
                store.written,
            ),
            "equipoise_records_lost_total": ("Records that could not be written.", store.lost),
            "equipoise_alarms": (
                "1 where something is wrong: /readyz says what.",
                float(bool(self.state()["alarms"])),
            ),
        }


def _json(outcome: Outcome) -> str | None:
    """The data of an outcome as JSON; Refused (400) if a field has a value of msgpack that JSON
    does not have.
    """
    for name, value in (("reward", outcome.reward), ("time", outcome.time), ("data", outcome.data)):
        if value is not None and (odd := bounds.unsayable(value)) is not None:
            raise Refused(400, f"{name}: expected a value that JSON can hold, got {odd}")
    return (
        None
        if outcome.data is None
        else msgspec.json.format(msgspec.json.encode(outcome.data), indent=0).decode()
    )
