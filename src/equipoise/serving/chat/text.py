"""The text of drawn tokens: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from equipoise.language.tokenizers import STRANGE

TORN = 3  # most bytes of a character that is not whole, each shown as one STRANGE
WINDOW, CONTEXT = 48, 8  # most tokens that are decoded again; after more, only the last 8 stay


class Text:
    """A text that grows token by token.

    A character of several tokens is returned with its last token. Letters that may begin a stop
    string are held back until it is clear that they do not.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
        self._tokens: list[int] = []
        self._given = 0  # letters of the decoded tokens that were passed on
        self._held = ""  # letters that may begin a stop string
        self.stopped = False  # has a stop string come?

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Add tokens; return the new text, without a stop string. ``last``: no more tokens come."""
        self._tokens += tokens
        text = self._decode(self._tokens)
        end = len(text) if last else len(text) - _torn(text)
        new, self._given = text[self._given : end], max(self._given, end)
        if end == len(text) and len(self._tokens) > WINDOW:
            del self._tokens[:-CONTEXT]
            self._given = len(self._decode(self._tokens))
        return self._until_stop(new, last) if self._stops else new

    def _until_stop(self, new: str, last: bool) -> str:
        held = self._held + new
        found = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        self.stopped = bool(found)
        end = min(found) if found else len(held) - (0 if last else self._begun(held))
        self._held = "" if found else held[end:]
        return held[:end]

    def _begun(self, text: str) -> int:
        """Return how many letters at the end of a text may begin a stop string."""
        lengths = (
            n
            for stop in self._stops
            for n in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:n])
        )
        return max(lengths, default=0)


def _torn(text: str) -> int:
    return min(TORN, len(text) - len(text.rstrip(STRANGE)))
