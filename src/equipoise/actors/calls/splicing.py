"""Splicing: the drawn tokens of an answer in place of the tokens that the chat template writes.

An agent sends back the text of an answer. The tokens of this text often differ from the drawn ones,
since a text has many tokenizations ("HAV" "ING", "H" "AVING"). So a call that follows an answer by
its messages begins with the answer's own sample, token by token, and goes on with the template's
tokens behind the answer. The policy reads these tokens, and they are learned from.

That is done only if the template wrote what was read, and nothing else:

1. the tokens before the answer equal the prompt of the answer's own call, up to a boundary before
   the last few, which may merge with the answer
2. the template's answer has the text of the drawn tokens, but for white space, and no special token
3. an end, or at least a token of its own, follows the answer

A template that removes reasoning, or an answer that ended with a stop string, fails at 2.
As in NeMo RL's ``_replace_prefix_tokens`` and verifiers' token client, an end that was drawn stands
for the end that the template writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from equipoise.actors.calls.records import Mark
from equipoise.types.packed import Stop

TORN = 4  # most tokens of a character


class Splicer:
    """The parts of a tokenizer that splicing needs."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], eos: Sequence[int], most: int
    ) -> None:
        """``decode`` leaves out special tokens; ``most``: tokens of a prompt and its answer."""
        self._decode, self._eos, self.most = decode, frozenset(eos), most
        self._known = dict[int, bool]()  # which tokens are special

    def splice(
        self, mark: Mark, prompt: Sequence[int], hashes: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the prompt of a call that follows the answer ``mark`` by its messages, with the
        drawn tokens; None if it is another text, or too long. ``hashes``: ``prefixes`` of the
        prompt.
        """
        begin = self._begin(mark, hashes)
        if begin is None:
            return None
        drawn = mark.row.token[slice(*mark.row.spans[mark.row.marks.index(mark)])]
        tail = mark.asked.tail[len(mark.asked.tail) - (mark.asked.length - begin) :]
        text = self._decode([*tail, *(one for one in drawn if one not in self._eos)])
        tokens = range(begin, len(prompt))
        ends = next((i for i in tokens if prompt[i] in self._eos), len(prompt))
        # what the template writes behind an answer that was cut is given
        cut = mark.stop != Stop.EOS
        last = behind = self._behind(prompt, range(begin, ends + 1), text) if cut else -1
        if last < 0:
            if ends == len(prompt) or _solid(self._decode(prompt[begin:ends])) != _solid(text):
                return None
            last, behind = ends, ends if cut else ends + 1  # a drawn end is the template's
        if any(self._special(one) for one in prompt[begin:last]):
            return None
        spliced = [*mark.row.token[: mark.end], *prompt[behind:]]
        return spliced if len(spliced) < self.most else None

    def _behind(self, prompt: Sequence[int], places: range, text: str) -> int:
        """Return the place up to which the tokens from the first place on are ``text``, and behind
        which another character begins; -1 if there is none.
        """

        def between(first: int, last: int) -> str:
            return self._decode(prompt[first:last])

        begin, end = places[0], places[-1]
        near = begin + bisect_right(places, len(text), key=lambda place: len(between(begin, place)))
        # a part of a character may have more letters than all of it
        for place in range(min(near + TORN, end), max(near - TORN, begin) - 1, -1):
            if between(begin, place) == text and text + between(place, end) == between(begin, end):
                return place
        return -1

    def _begin(self, mark: Mark, hashes: Sequence[int]) -> int | None:
        """Return the number of tokens that a prompt and the answer's own prompt begin with; None if
        they differ before the last few.

        A special token never merges, so none of those few is one.
        """
        asked = mark.asked
        for back, known in enumerate(asked.hashes):
            length = asked.length - back
            if length < len(hashes) and hashes[length] == known:
                return length
            if back < len(asked.tail) and self._special(asked.tail[-1 - back]):
                return None
        return None

    def _special(self, token: int) -> bool:
        """Return whether a token has no text. Twice, since a first space may be left out."""
        if token not in self._known:
            self._known[token] = not self._decode([token, token])
        return self._known[token]


def _solid(text: str) -> str:
    """Return a text without white space: a template may add or remove some around an answer, and in
    the JSON of a call.
    """
    return "".join(text.split())
