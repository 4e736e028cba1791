"""Answers to calls, with the calls of tools in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from equipoise.actors.calls.worker import Call
from equipoise.foreign import Foreign
from equipoise.serving.chat.answers import Answers, Json, encode
from equipoise.serving.chat.wire import Asked
from equipoise.serving.chat.writer import Piece, Reply
from equipoise.serving.proxy.requests import tool_calls

decode = msgspec.json.Decoder().decode


class CallAnswers(Answers):
    """The JSON of one answer."""

    def __init__(self, asked: Asked, reply: Reply, token: Callable[[int], str], call: Call) -> None:
        """``token`` returns the text of one token."""
        super().__init__(asked, reply, token)
        self._call = call

    def _usage(self) -> Json:
        """Count the tokens that were read, drawn ones of earlier answers among them."""
        prompt = len(self._call.turns[0].prompt) if self._call.turns else len(self._call.prompt)
        return self._used(prompt)

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        body = super().whole(pieces)
        if "tools" not in self._asked.template:
            return body
        said: Foreign = decode(body)
        for one in said["choices"]:
            text, calls = tool_calls(one["message"]["content"], self._asked.id)
            if calls:
                one["message"] |= {"content": text or None, "tool_calls": calls}
                one["finish_reason"] = "tool_calls"
        return encode(said)

    def parts(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        if "tools" not in self._asked.template:
            yield from super().parts(pieces)
            return
        for piece in pieces:  # each is a whole message
            text, calls = tool_calls(piece.text, self._asked.id)
            if not calls:
                yield from super().parts([piece])
                continue
            numbered = [{"index": i} | one for i, one in enumerate(calls)]
            delta: Json = {"delta": {"content": text or None, "tool_calls": numbered}}
            made = self._choice(piece.choice, delta, piece.logprobs)
            yield self._event([made | {"finish_reason": None}])
            last = self._choice(piece.choice, {"delta": {}})
            yield self._event([last | {"finish_reason": "tool_calls"}])
