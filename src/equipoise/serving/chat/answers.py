"""Answers as JSON of OpenAI's API: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from equipoise.language.tokenizers import STRANGE
from equipoise.serving.chat.wire import Asked
from equipoise.serving.chat.writer import Piece, Reply, TokenLogp

Json = dict[str, object]
OBJECTS = {"chat": "chat.completion", "completions": "text_completion"}
DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode


class Answers:
    """The JSON of one answer."""

    def __init__(self, asked: Asked, reply: Reply, token: Callable[[int], str]) -> None:
        """``token`` returns the text of one token."""
        self._asked, self._reply, self._token = asked, reply, token
        # by choice: letters of the tokens with log-probabilities so far
        self._letters = [0] * reply.job.samples
        # by choice: the bytes of an event before and after its text
        self._frames = dict[int, tuple[bytes, bytes]]()

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """Return the whole answer, of all pieces."""
        choices = list[Json]()
        for number in range(self._reply.job.samples):
            mine = [one for one in pieces if one.choice == number]
            text = "".join(one.text for one in mine)
            logprobs = [token for one in mine for token in one.logprobs]
            content: Json = {"text": text}
            if self._asked.kind == "chat":
                content = {"message": {"role": "assistant", "content": text, "refusal": None}}
            choices.append(
                self._choice(number, content, logprobs)
                | {"finish_reason": next(one.finish for one in mine if one.finish)}
            )
        return encode(self._head(self._object) | {"choices": choices, "usage": self._usage()})

    def first(self) -> Iterator[bytes]:
        """Return the events before the text: the role of each choice of a chat."""
        if self._asked.kind == "chat":
            for number in range(self._reply.job.samples):
                delta: Json = {"delta": {"role": "assistant", "content": ""}}
                yield self._event([self._choice(number, delta) | {"finish_reason": None}])

    def parts(self, pieces: Sequence[Piece]) -> Iterator[bytes]:
        """Return the events of pieces."""
        chat = self._asked.kind == "chat"
        for one in pieces:
            if one.text and self._asked.logprobs is None:
                before, after = self._frames.get(one.choice) or self._frame(one.choice)
                yield before + encode(one.text) + after
            elif one.text or one.logprobs:
                yield self._text(one.choice, one.text, one.logprobs)
            if one.finish:
                last: Json = {"delta": {}} if chat else {"text": ""}
                yield self._event([self._choice(one.choice, last) | {"finish_reason": one.finish}])

    def _text(self, number: int, text: str, logprobs: Sequence[TokenLogp]) -> bytes:
        chat = self._asked.kind == "chat"
        content: Json = {"delta": {"content": text}} if chat else {"text": text}
        made = self._choice(number, content, logprobs)
        return self._event([made | {"finish_reason": None}])

    def _frame(self, number: int) -> tuple[bytes, bytes]:
        """Make the event of a choice once: its later ones differ in their text alone."""
        mark = f"text of {self._asked.answer}"
        before, _, after = self._text(number, mark, ()).partition(encode(mark))
        self._frames[number] = before, after
        return before, after

    def last(self) -> Iterator[bytes]:
        """Return the events after the text."""
        if self._asked.usage:
            yield self._event([], self._usage())
        yield DONE

    @property
    def _object(self) -> str:
        return OBJECTS[self._asked.kind]

    def _head(self, name: str) -> Json:
        asked = self._asked
        return {
            "id": asked.answer,
            "object": name,
            "created": asked.created,
            "model": asked.model,
            "system_fingerprint": self._reply.version,
        }

    def _event(self, choices: Sequence[Json], usage: Json | None = None) -> bytes:
        chat = self._asked.kind == "chat"
        head = self._head("chat.completion.chunk" if chat else self._object)
        more: Json = {"usage": usage} if self._asked.usage else {}
        return b"data: " + encode(head | {"choices": choices} | more) + b"\n\n"

    def _choice(self, number: int, content: Json, logprobs: Sequence[TokenLogp] = ()) -> Json:
        found: Json | None = None
        if self._asked.logprobs is not None:
            chat = self._asked.kind == "chat"
            found = self._chat_logprobs(logprobs) if chat else self._logprobs(number, logprobs)
        return {"index": number} | content | {"logprobs": found}

    def _chat_logprobs(self, logprobs: Sequence[TokenLogp]) -> Json:
        return {
            "content": [
                self._named(one.token, one.logp)
                | {"top_logprobs": [self._named(*pair) for pair in one.likeliest]}
                for one in logprobs
            ],
            "refusal": None,
        }

    def _named(self, token: int, logp: float) -> Json:
        text = self._token(token)
        # bytes of a token that is only a part of a character are unknown
        torn = STRANGE in text
        return {"token": text, "logprob": logp, "bytes": None if torn else list(text.encode())}

    def _logprobs(self, number: int, logprobs: Sequence[TokenLogp]) -> Json:
        texts, offsets = [self._token(one.token) for one in logprobs], list[int]()
        for text in texts:
            offsets.append(self._letters[number])
            self._letters[number] += len(text)
        top = [{self._token(token): logp for token, logp in one.likeliest} for one in logprobs]
        return {
            "tokens": texts,
            "token_logprobs": [one.logp for one in logprobs],
            "top_logprobs": top if self._asked.logprobs else None,
            "text_offset": offsets,
        }

    def _usage(self) -> Json:
        return self._used(sum(map(len, self._reply.job.prompts)))

    def _used(self, prompt: int) -> Json:
        written = self._reply.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
