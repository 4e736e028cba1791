"""The writer of calls, between the event loop of the web server and the worker that draws: calls go
to the worker's inbox, and pieces of their answers come back to the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from torch import Tensor

from equipoise.actors.calls.records import Names
from equipoise.actors.calls.worker import OVER, Call, CallWorker, Message
from equipoise.serving.chat.text import Text
from equipoise.serving.chat.wire import Denied
from equipoise.serving.chat.writer import FLUSH_S, Failed, Job, Piece, Reply, TokenLogp
from equipoise.serving.proxy.requests import AskedCall, keys, tool_calls
from equipoise.types.packed import Stop

T = TypeVar("T")
RETRY_S = 5  # that a caller is asked to wait
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallJob(Job):
    """The job of a call."""

    asked: AskedCall


def busy(status: int, sentence: str) -> Denied:
    """Return a refusal that asks the caller to try again."""
    no = Denied(status, sentence)
    if status in (429, 503):
        no.headers = ((b"retry-after", b"%d" % RETRY_S),)
    return no


@dataclass(slots=True)
class _Choice:
    text: Text
    fresh: list[int] = field(default_factory=list)  # tokens without a text yet
    said: str = ""  # its whole text
    unsent: str = ""
    logprobs: list[TokenLogp] = field(default_factory=list)
    tokens: int = 0  # that the loop does not count yet
    begun: bool = False


class CallListener:
    """The answers of one call: the ``Listener`` of the worker."""

    def __init__(
        self, reply: Reply, job: CallJob, decode: Decode, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.reply, self._job, self._loop = reply, job, loop
        self._choices = [_Choice(Text(decode, job.stop)) for _ in range(job.n)]
        self._batch: list[tuple[Piece, str, int]] = []
        self._flushed = 0.0
        asked = job.asked
        self._messages: Sequence[Message] = ()
        prompt: object = asked.prompts[0]
        if asked.kind == "chat":
            self._messages = prompt  # type: ignore[assignment]  # checked by the service
        elif not isinstance(prompt, str):
            prompt = decode(job.prompts[0])
        self._prompt = prompt
        known = keys(self._messages)
        history = [
            key
            for key, one in zip(known[::-1], self._messages[::-1], strict=True)
            if one.get("role") == "assistant"
        ]
        self.call = Call(
            prompt=job.prompts[0],
            samples=job.n,
            limit=job.limit,
            names=Names(
                id=f"{'chatcmpl' if asked.kind == 'chat' else 'cmpl'}-{asked.id}",
                conversation=asked.conversation,
                group=asked.group,
                columns=asked.columns,
                history=history,
                fresh=asked.kind == "chat" and not history,
                prompt=prompt,
            ),
            listener=self,
            top=asked.logprobs or 0,
            overridden=asked.temperature is not None
            or asked.top_p != 1.0
            or asked.seed is not None,
        )

    def token(
        self,
        index: int,
        token: int,
        logp: float,
        likeliest: tuple[Sequence[int], Sequence[float]],
        version: int,
        stop: Stop | None,
    ) -> bool:
        choice, job, now = self._choices[index], self._job, perf_counter()
        choice.tokens += 1
        if stop != Stop.EOS:
            choice.fresh.append(token)
            if job.with_logprobs:
                choice.logprobs.append(TokenLogp(token, logp, list(zip(*likeliest, strict=True))))
        # calls of tools are parts of the message that is sent when it is whole
        send = job.stream and not job.asked.tooled
        send = send and (now - self._flushed >= FLUSH_S or not choice.begun)
        if not (job.stop or stop is not None or send):
            return False
        text = choice.text
        new = text.add(choice.fresh, last=stop is not None)
        choice.fresh, choice.said, choice.unsent = [], choice.said + new, choice.unsent + new
        over = stop is not None or text.stopped
        if over or (send and (choice.unsent or choice.logprobs)):
            cut = stop == Stop.LENGTH and not text.stopped
            finish = ("length" if cut else "stop") if over else None
            piece = Piece(index, choice.unsent, finish, choice.logprobs)
            self._batch.append((piece, f"version_{version}", choice.tokens))
            choice.unsent, choice.logprobs, choice.tokens, choice.begun = "", [], 0, True
            self._flushed = now
        return text.stopped

    def ended(self, index: int) -> tuple[Sequence[Message], str]:
        """Return the messages after the first prompt of the conversation, and their key."""
        said, asked = self._choices[index].said, self._job.asked
        first = self.call.turns[index].conversation.prompt
        if asked.kind != "chat":
            begin = len(first) if isinstance(first, str) else 0
            return [{"role": "assistant", "content": f"{self._prompt}{said}"[begin:]}], ""
        message: dict[str, object] = {"role": "assistant", "content": said}
        if asked.tooled:
            text, calls = tool_calls(said, asked.id)
            message |= {"content": text} | ({"tool_calls": calls} if calls else {})
        messages = [*self._messages, message]
        begin = len(first) if isinstance(first, list) else 0
        return messages[begin:], keys(messages)[-1]

    def flush(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._loop.call_soon_threadsafe(self._deliver, batch)

    def _deliver(self, batch: Sequence[tuple[Piece, str, int]]) -> None:
        for piece, version, tokens in batch:
            self.reply.add(piece, version, tokens)

    def fail(self, status: int, sentence: str) -> None:
        self._loop.call_soon_threadsafe(self.reply.fail, busy(status, sentence))


class CallWriter:
    """The writer of a ``Service``, whose engine is in the worker's thread."""

    def __init__(self, worker: CallWorker, decode: Decode, loop: asyncio.AbstractEventLoop) -> None:
        self._worker, self._decode, self._loop = worker, decode, loop
        self._open: dict[Reply, CallListener] = {}
        self.drawn = 0
        self.over = False  # the worker does no more work

    @property
    def version(self) -> str:
        return f"version_{self._worker.version}"

    @property
    def live(self) -> int:
        return self._worker.live

    def start(self) -> None: ...

    def close(self) -> None: ...

    def write(self, reply: Reply) -> None:
        assert isinstance(reply.job, CallJob)
        one = self._open[reply] = CallListener(reply, reply.job, self._decode, self._loop)
        if self.over:
            reply.fail(busy(503, OVER))
        else:
            self._worker.inbox.put(lambda: self._worker.ask(one.call))

    def cancel(self, reply: Reply) -> None:
        one = self._open[reply]
        self._worker.inbox.put(lambda: self._worker.cancel(one.call))

    def forget(self, reply: Reply) -> None:
        """Forget a reply that is over."""
        if (one := self._open.pop(reply, None)) is not None:
            self.drawn += sum(map(len, one.call.token))

    def call_of(self, reply: Reply) -> Call:
        """Return the call of an open reply."""
        return self._open[reply].call

    def offer(self, version: str, params: Mapping[str, Tensor], failed: Failed) -> None:
        raise NotImplementedError("the run itself gives its engine new weights")

    async def do(self, act: Callable[[], T]) -> T:
        """Do something in the worker's thread, and return its result."""
        result: asyncio.Future[T] = self._loop.create_future()

        def done() -> None:
            try:
                found = act()
            except Exception as error:  # raised in the caller's own thread
                self._loop.call_soon_threadsafe(_fail, result, error)
                return
            self._loop.call_soon_threadsafe(_set, result, found)

        self._worker.inbox.put(done)
        return await result


def _set(result: asyncio.Future[T], value: T) -> None:
    if not result.done():
        result.set_result(value)


def _fail(result: asyncio.Future[T], error: Exception) -> None:
    if not result.done():
        result.set_exception(error)
