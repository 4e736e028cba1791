"""Worlds of an OpenEnv server as partners of conversations, by the server's own protocol.

``GET URL/schema`` has the JSON schemas of actions and observations. A WebSocket at ``URL/ws`` is a
session with a world of its own: {"type": "reset" or "step", "data": ...} is answered by {"type":
"observation", "data": {"observation", "reward", "done"}} or by {"type": "error", "data":
{"message", "code"}}. A session plays one conversation at a time, and is used again after it.

A turn's text is the one text of the action, or the field that the argument ``action`` names; with
``action=json`` the text is the whole action. The message is the one text of the observation, or the
field that ``observation`` names; with ``observation=json`` it is the whole observation. Steps'
rewards are added up, and ``done`` ends the conversation. An action that the server finds invalid is
answered with the server's words, and has no reward.

======== ==================================================================== =========
argument                                                                      default
======== ==================================================================== =========
rows     conversations that begin differently: ``reset`` gets seed=0, 1, ...  64
resets   a JSONL file in their place: each line has the arguments of a reset  none
sessions sessions at once, shared by the generators and an evaluation         16
chat     the prompt is messages; false: a text                                true
system   a message of the system before the first observation                 none
public   true: connect to a server on another machine without a token         false
======== ==================================================================== =========
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from equipoise.access import is_local, read_token
from equipoise.files import parse_json
from equipoise.foreign import Foreign
from equipoise.hints import hint, said, shortened
from equipoise.language.turns import openings
from equipoise.language.turns.openenv_fields import (
    OURS,
    TOKEN,
    WHOLE,
    Fields,
    Invalid,
    address,
    chosen,
    fields_of,
    number,
    read_schema,
    required,
)
from equipoise.language.turns.openenv_session import Full, Seen, Session, Sessions
from equipoise.language.turns.partner import Partner, WrongAnswer
from equipoise.types.packed import Example, Prompt

PREFIX = "openenv:"
ROWS, SESSIONS = 64, 16
STRANGE = "\N{REPLACEMENT CHARACTER}"
MOST_ROWS, MOST_SESSIONS = 1_000_000, 1024
READING = 4  # sessions that read the first observations


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A server, and how its actions and observations become text."""

    name: str
    base: str  # http(s)://host[:port][/path]
    deadline_s: float
    headers: Mapping[str, str]
    action: str  # a field's name, or WHOLE
    kinds: Mapping[str, frozenset[str]]  # JSON types of each field of an action
    observation: str
    resets: Sequence[Fields]
    seats: int
    chat: bool
    system: str
    _sessions: list[Sessions] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, target: str, given: Mapping[str, object], deadline_s: float) -> World:
        """Ask the server that ``openenv:URL`` names for its schemas; ValueError for anything that
        does not fit.
        """
        at = f"task {target!r}"
        known: dict[str, object] = {
            "action": "",
            "observation": "",
            "rows": ROWS,
            "resets": "",
            "sessions": SESSIONS,
            "chat": True,
            "system": "",
            "public": False,
        }
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"{at}: unknown argument {key!r}{hint(key, known)}")
            kind = type(known[key])
            if type(value) is not kind:
                word = {str: "a text", int: "a whole number", bool: "true or false"}[kind]
                raise ValueError(f"{at}: {key}: must be {word}, got {value!r:.80}")
        how: dict[str, Foreign] = known | dict(given)
        for key, most in (("rows", MOST_ROWS), ("sessions", MOST_SESSIONS)):
            if not 1 <= how[key] <= most:
                raise ValueError(f"{at}: {key}: must be 1 to {most:,}, got {how[key]:,}")
        base, local = address(target.removeprefix(PREFIX), at)
        token = read_token(TOKEN, None, at)
        if not local and token is None and not how["public"]:
            raise ValueError(
                f"{at}: must be a server on this machine, or have a token in {TOKEN}, got a server "
                "elsewhere; source.arguments=public=true connects without a token"
            )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        schema = read_schema(base, headers, deadline_s, local)
        action, seen = fields_of(schema["action"]), fields_of(schema["observation"])
        return cls(
            name=target,
            base=base,
            deadline_s=deadline_s,
            headers=headers,
            action=chosen("action", how["action"], action, required(schema["action"]), at),
            kinds=action,
            observation=chosen("observation", how["observation"], seen, (), at),
            resets=_resets(how["resets"], at)
            if how["resets"]
            else [{"seed": seed} for seed in range(how["rows"])],
            seats=how["sessions"],
            chat=how["chat"],
            system=how["system"],
        )

    def session(self) -> Session:
        """Open a session."""
        at = f"ws{self.base.removeprefix('http')}/ws"
        local = is_local(urlsplit(self.base).hostname or "")
        return Session(at, self.headers, self.deadline_s, local)

    def partner(self) -> Partner:
        """Return the partner of a new conversation."""
        if not self._sessions:  # of this process, made at the first conversation
            self._sessions.append(Sessions(self.session, self.seats, self.deadline_s))
        return Conversation(self, self._sessions[0])

    def ready(self, processes: int) -> None:
        """Open as many sessions as a run may use; ValueError if the server has fewer, or if they
        are fewer than the generators and the evaluation, which each hold one at least.
        """
        if self.seats < processes:
            raise ValueError(
                f"task {self.name!r}: sessions: must be at least {processes}, one for each "
                f"generator and one for evaluations, got {self.seats}; --evaluate-episodes 0 "
                "evaluates nothing"
            )
        opened = list[Session]()
        try:
            for _ in range(self.seats):
                opened.append(self.session())
        except Full as error:
            raise ValueError(
                f"task {self.name!r}: must have {self.seats} sessions at once, got "
                f"{len(opened)} ({said(error)}); start the server with max_concurrent_envs="
                f"{self.seats}, or ask for fewer: source.arguments=sessions={max(len(opened), 1)}"
            ) from error
        except (ConnectionError, WrongAnswer, TimeoutError) as error:
            raise ValueError(
                f"task {self.name!r}: must open sessions, got {said(error)}"
            ) from error
        finally:
            for one in opened:
                one.close()

    def examples(self) -> list[Example]:
        """Return the rows with their first observations as prompts."""
        rows = [{"reset": dict(one)} for one in self.resets]
        sessions = Sessions(self.session, min(READING, self.seats), self.deadline_s)
        at = f"task {self.name!r}"
        try:
            found = openings.examples(
                lambda: Conversation(self, sessions), rows, at, self.deadline_s, at_once=READING
            )
            again = Conversation(self, sessions)
            try:
                same = again.reset(rows[0]) == found[0].prompt
            finally:
                again.end()
            if not same:
                raise ValueError(
                    f"{at}: its reset must begin in the same way with the same arguments, since "
                    f"conversations are compared that begin alike, got two beginnings with "
                    f"{rows[0]['reset']}; resets=FILE.jsonl gives arguments that decide it"
                )
            return found
        finally:
            sessions.close()

    def to_action(self, text: str) -> Fields:
        """Return a turn's text as an action; Invalid if it is none."""
        if self.action == WHOLE:
            try:
                found = parse_json(text.encode(errors="replace"), "action")
            except ValueError as error:
                raise Invalid(f"the action must be a JSON object: {error}") from None
            if not isinstance(found, dict):
                raise Invalid(f"the action must be a JSON object, got {type(found).__name__}")
            return found
        kinds = self.kinds[self.action]
        value: object = text
        if "string" not in kinds:
            value = number(text.strip(), kinds, self.action)
        return {self.action: value}

    def to_text(self, observation: Fields) -> str:
        """Return an observation as the text of a message; WrongAnswer if it has none."""
        if self.observation == WHOLE:
            return json.dumps({key: value for key, value in observation.items() if key not in OURS})
        if self.observation not in observation:
            raise WrongAnswer(
                f"the server's observation: must have {self.observation!r}, got "
                f"{shortened(', '.join(map(str, observation)) or 'no field')}"
            )
        found = observation[self.observation]
        return found if isinstance(found, str) else json.dumps(found)


class Conversation:
    """The partner of one conversation: a session's world."""

    def __init__(self, world: World, sessions: Sessions) -> None:
        self._world, self._sessions = world, sessions
        self._session: Session | None = None
        self._busy = self._over = False  # a request is under way; the conversation has ended
        self._lock = threading.Lock()

    def reset(self, row: Mapping[str, object]) -> Prompt:
        """Begin a world with the arguments in the column ``reset``."""
        given: Foreign = row["reset"]
        taken = self._sessions.take()
        with self._lock:
            if not self._over:
                self._session = taken
        if self._session is not taken:  # it ended while it waited for a session
            self._sessions.give(taken, whole=True)
        seen = self._asked("reset", given)
        if seen.done:
            raise WrongAnswer("the server's reset: must begin an episode, got one that is done")
        text = self._world.to_text(seen.observation)
        if not self._world.chat:
            return _readable(text)
        system = [{"role": "system", "content": self._world.system}] if self._world.system else []
        return [*system, {"role": "user", "content": text}]

    def step(self, text: str) -> tuple[Prompt | None, float]:
        """Do a turn's action in the world."""
        try:
            seen = self._asked("step", self._world.to_action(text))
        except Invalid as error:
            return str(error), 0.0
        if seen.done:
            self.end()
            return None, seen.reward
        answer = self._world.to_text(seen.observation)
        return answer if self._world.chat else _readable(answer), seen.reward

    def end(self) -> None:
        """Give the session back; close it if it waits for an answer."""
        with self._lock:
            session, self._session, self._over = self._session, None, True
        if session is not None:
            self._sessions.give(session, whole=not self._busy)

    def _asked(self, what: str, data: Fields) -> Seen:
        session = self._session
        if session is None:
            raise ConnectionError("the conversation is over")
        self._busy = True  # it stays so after an error, and the session is not used again
        try:
            seen = session.ask(what, data)
        except Invalid:
            self._busy = False
            raise
        self._busy = False
        return seen


def _readable(text: str) -> str:
    """Return a text with a token at least, and each with a character: a world may repeat a turn
    without one.
    """
    return text.replace(STRANGE, "?") or "\n"


def _resets(file: str, at: str) -> list[Fields]:
    """Read the arguments of resets from a JSONL file."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"{at}: resets: must be a JSONL file, got no file {os.fspath(path)!r}")
    rows = list[Fields]()
    with path.open("rb") as opened:
        for line_number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            row = parse_json(line, f"{path}, line {line_number}")
            if not isinstance(row, dict):
                raise ValueError(
                    f"{path}, line {line_number}: must be an object with the arguments of a reset, "
                    f"got {type(row).__name__}"
                )
            rows.append(row)
            if len(rows) > MOST_ROWS:
                raise ValueError(f"{path}: must have at most {MOST_ROWS:,} lines, got more")
    return rows
