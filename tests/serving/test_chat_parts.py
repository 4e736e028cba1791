"""The parts of a stream: those that are written at once have the bytes of all others, in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from equipoise.serving.chat.answers import Answers
from equipoise.serving.chat.wire import Kind, read
from equipoise.serving.chat.writer import Job, Piece, Reply

TEXTS = ("a", '"\\', "\u2028\n\x00\x1f", "é\U0001f600", 'text of cmpl-"', "</script>", "x" * 5_000)


def reply(samples: int = 1) -> Reply:
    job = Job(
        prompts=[[1]], sampling=[], n=samples, limit=9, stop=(), stream=True, with_logprobs=False
    )
    made = Reply(job)
    made.version = "v-1"
    return made


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_an_event_is_that_of_its_object(kind: Kind) -> None:
    prompt: dict[str, Any] = {"prompt": "a"}
    if kind == "chat":
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    asked = read(kind, json.dumps(prompt | options).encode(), 'a "name"')
    answers = Answers(asked, reply(2), str)
    for number in (0, 1, 0):
        for text in TEXTS:
            (part,) = answers.parts([Piece(number, text, None, ())])
            assert part == answers._text(number, text, ())
            said = json.loads(part.removeprefix(b"data: "))["choices"][0]
            assert said["index"] == number
            assert (said["delta"]["content"] if kind == "chat" else said["text"]) == text


def test_pieces_are_written_at_once_only_while_none_waits() -> None:
    async def act() -> None:
        one, at_once, fine = reply(), list[str](), [True]

        def write(piece: Piece) -> bool:
            if fine[0]:
                at_once.append(piece.text)
            return fine[0]

        def add(text: str, finish: str | None = None) -> None:
            one.add(Piece(0, text, finish, ()), "v", 1)

        one.write_at_once = write
        add("a")  # nobody waits yet
        assert [piece.text for piece in await one.next()] == ["a"] and not at_once
        waiting = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        add("b")
        assert at_once == ["b"] and not waiting.done()
        fine[0] = False  # the caller reads slowly
        add("c")
        fine[0] = True
        add("d")  # not before "c"
        assert [piece.text for piece in await waiting] == ["c", "d"]
        waiting = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        add("e", "stop")
        assert at_once == ["b", "e"] and await waiting == [] and one.tokens == 5

    asyncio.run(act())


def test_an_error_in_writing_is_the_replys_own() -> None:
    async def act() -> None:
        one = reply()

        def write(piece: Piece) -> bool:
            raise ValueError("a token without a text")

        one.write_at_once = write
        waiting = asyncio.ensure_future(one.next())
        await asyncio.sleep(0)
        one.add(Piece(0, "a", None, ()), "v", 1)
        with pytest.raises(ValueError, match="without a text"):
            await waiting

    asyncio.run(act())
