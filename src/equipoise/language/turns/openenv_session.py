"""Sessions with an OpenEnv server: WebSockets, each with a world of its own, and a pool of them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from equipoise.files import parse_json
from equipoise.foreign import Foreign
from equipoise.hints import install, said, shortened
from equipoise.language.turns.openenv_fields import LARGEST, LONGEST, Fields, Invalid
from equipoise.language.turns.partner import WrongAnswer

AGAIN_S = 0.05  # between two tries at a server without a free session
CLOSE_S = 1.0
FULL = "CAPACITY_REACHED"  # the code of a server without a free session
INVALID = "VALIDATION_ERROR"  # the code of an action that does not fit the schema
UNABLE = ("FACTORY_ERROR", "SESSION_ERROR", FULL)  # codes of a session that did not begin


class Full(ConnectionError):
    """The error of a server that has no free session."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A server's answer to a reset or a step."""

    observation: Fields
    reward: float
    done: bool


class Session:
    """A WebSocket to a server, with a world of its own."""

    def __init__(
        self, url: str, headers: Mapping[str, str], deadline_s: float, local: bool
    ) -> None:
        """Connect; ConnectionError if there is no server or no free session."""
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ModuleNotFoundError as error:
            raise ImportError(f"{url} needs websockets: {install('openenv')}") from error
        self._errors = (WebSocketException, OSError, EOFError)
        self._deadline_s, self._url = deadline_s, url
        try:
            # entered and never left: ``close`` ends it
            self._socket: Foreign = connect(
                url,
                open_timeout=deadline_s,
                close_timeout=CLOSE_S,
                max_size=LARGEST,
                additional_headers=dict(headers),
                proxy=None if local else True,
            ).__enter__()
        except self._errors as error:
            raise ConnectionError(f"{url}: no connection: {said(error)}") from error
        try:
            kind, data = self._asked({"type": "state"})
            if kind == "error" and (code := str(data.get("code"))) in UNABLE:
                wrong = Full if code == FULL else ConnectionError
                raise wrong(f"{url}: no session: {_words(data)}")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, data: Fields) -> Seen:
        """Reset or step the world; Invalid if the server refuses the action."""
        kind, answer = self._asked({"type": what, "data": data})
        if kind == "error":
            if what == "step" and answer.get("code") == INVALID:
                raise Invalid(_words(answer))
            raise ConnectionError(f"the server's {what} failed: {_words(answer)}")
        seen, reward, done = (answer.get(key) for key in ("observation", "reward", "done"))
        if kind != "observation" or not isinstance(seen, Mapping):
            raise WrongAnswer(f"the server's {what}: must answer with an observation, got {kind!r}")
        if not isinstance(reward, bool | int | float | None):
            raise WrongAnswer(
                f"the server's {what}: the reward must be a number, got {reward!r:.80}"
            )
        if not isinstance(done, bool | None):
            raise WrongAnswer(f"the server's {what}: done must be true or false, got {done!r:.80}")
        return Seen(seen, float(reward or 0.0), bool(done))

    def _asked(self, message: Fields) -> tuple[str, Fields]:
        # a server without a free session may have written why, and closed
        with contextlib.suppress(*self._errors):
            self._socket.send(json.dumps(message))
        try:
            answer = self._socket.recv(timeout=self._deadline_s)
        except TimeoutError as error:
            self.close()  # the answer may still come, and is no answer to what is asked next
            raise TimeoutError(f"the server gave no answer in {self._deadline_s:g} s") from error
        except self._errors as error:
            self.close()
            raise ConnectionError(f"{self._url}: the connection ended: {said(error)}") from error
        found = parse_json(answer if isinstance(answer, bytes) else answer.encode(), self._url)
        if not isinstance(found, Mapping) or not isinstance(found.get("data"), Mapping):
            self.close()
            raise WrongAnswer(
                f"{self._url}: must answer with a type and data as OpenEnv does, got "
                f"{shortened(repr(found), LONGEST)}"
            )
        return str(found.get("type")), found["data"]

    def close(self) -> None:
        """Close it, also while another thread waits for an answer."""
        if getattr(self, "_socket", None) is not None:
            self._socket.close()


class Sessions:
    """The sessions of this process with a server, at most ``most``."""

    def __init__(self, make: Callable[[], Session], most: int, deadline_s: float) -> None:
        self._make, self._most, self._deadline_s = make, most, deadline_s
        self._idle: list[Session] = []
        self._count = 0  # sessions that are idle or taken
        self._freed = threading.Condition()

    def take(self) -> Session:
        """Return a free session; Full if none is free within the deadline."""
        until = time.monotonic() + self._deadline_s
        wrong = Full(f"no session was free in {self._deadline_s:g} s")
        while True:
            with self._freed:
                if self._idle:
                    return self._idle.pop()
                wait = self._count >= self._most
                if wait:
                    self._freed.wait(max(until - time.monotonic(), 0.0))
                else:
                    self._count += 1
            if not wait:
                try:
                    return self._make()
                except Full as error:
                    wrong = error
                    self._dropped()
                    with self._freed:  # another process, or a conversation of this one, has it
                        self._freed.wait(AGAIN_S)
                except BaseException:
                    self._dropped()
                    raise
            if time.monotonic() > until:
                raise wrong

    def give(self, session: Session, *, whole: bool) -> None:
        """Give a session back; ``whole``: it can be used again."""
        if whole:
            with self._freed:
                self._idle.append(session)
                self._freed.notify()
        else:
            session.close()
            self._dropped()

    def _dropped(self) -> None:
        with self._freed:
            self._count -= 1
            self._freed.notify()

    def close(self) -> None:
        """Close the sessions that nobody has taken."""
        with self._freed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        for one in idle:
            one.close()


def _words(data: Fields) -> str:
    """Return a server's words about an error."""
    text = str(data.get("message", ""))
    errors = data.get("errors")
    for one in errors if isinstance(errors, list) else ():
        if isinstance(one, Mapping):
            where = one.get("loc")
            at = ".".join(map(str, where)) if isinstance(where, list) else ""
            text += f"; {at}: {one.get('msg', '')}"
    return shortened(" ".join(text.split()) or str(data.get("code", "an error")), LONGEST)
