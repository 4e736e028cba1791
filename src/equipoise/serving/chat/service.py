"""The service: it turns checked requests into replies, bounds how many wait, and follows newer
weights.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from equipoise.hints import said, shortened
from equipoise.language.messages import read_prompt
from equipoise.language.task_files import plain
from equipoise.serving.chat.model import Model, check_finite
from equipoise.serving.chat.served_model import AnswerWriter, ServedModel
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.wire import Asked, Denied
from equipoise.serving.chat.writer import Job, Reply
from equipoise.serving.metrics import Metrics
from equipoise.serving.store import Store
from equipoise.types.packed import Prompt

log = logging.getLogger("equipoise.serving")
FOLLOW_S = 0.5  # seconds between two looks for newer weights
CHATS = 2  # chat templates that are rendered at the same time
LETTERS = 32  # most letters of a prompt for each token of the context
T = TypeVar("T")


class Service:
    """A model that answers."""

    def __init__(
        self,
        model: Model,
        settings: TextSettings,
        *,
        rows: int,
        seed: int,
        deadline_s: float,
        store: Store | None = None,
        engines: int = 1,
    ) -> None:
        """``rows``: choices that are drawn at the same time; ``deadline_s``: seconds of an answer;
        ``store``: keeps a record of each answer; ``engines``: how many must fit into memory. A
        running event loop is needed.
        """
        self.rows, self._queue, self._settings = rows, settings.queue, settings
        self._deadline_s, self._seed, self._store = deadline_s, seed, store
        self._loop = asyncio.get_running_loop()
        self.served = self._make_served(model, engines)
        self._answers = dict[Reply, tuple[ServedModel, Asked]]()  # the open ones
        # tokenizing a long prompt and loading weights take time: a thread for each; chat templates
        # may take longer, and hold up no texts
        self._chats = ThreadPoolExecutor(CHATS, "chats")
        self._reader, self._loader = (
            ThreadPoolExecutor(1, name) for name in ("prompts", "weights")
        )
        self.open = 0  # choices that were asked for and have not ended
        self.closed_tokens = 0  # that closed engines have drawn
        self._unread = self._unfit = ""  # why newer weights cannot be read, or served
        self._seen = model.version  # the newest version that was offered
        self.draining = False
        self.metrics = Metrics()
        self.metrics.gauges = self._gauges

    def _make_served(self, model: Model, engines: int) -> ServedModel:
        rows, seed = self.rows, self._seed
        return ServedModel(model, self._settings, self._loop, rows=rows, seed=seed, engines=engines)

    @property
    def model(self) -> Model:
        """The model that answers if a request names none."""
        return self.served.model

    @property
    def context(self) -> int:
        return self.served.context

    @property
    def writer(self) -> AnswerWriter:
        return self.served.writer

    @property
    def names(self) -> Sequence[str]:
        """The names that a request may have."""
        return [self.model.name]

    def described(self) -> Mapping[str, str]:
        """Return the models that are listed, with the version of each."""
        return {self.model.name: self.writer.version}

    async def find(self, name: str) -> ServedModel:
        """Return the version of a name; ``Denied`` if it cannot be served."""
        return self.served

    def model_of(self, reply: Reply) -> Model:
        """Return the model of an open answer."""
        return self._answers[reply][0].model

    def start(self) -> None:
        self.writer.start()
        self._chats.submit(self.served.prepare)

    def close(self) -> None:
        self.served.close()
        for one in (self._reader, self._chats, self._loader):
            one.shutdown(wait=True, cancel_futures=True)

    # ---------------------------------------------------------------------------------- the answers

    async def ask(self, asked: Asked) -> Reply:
        """Begin an answer; ``Denied`` if that is impossible. Call ``end`` when it is over."""
        samples = len(asked.prompts) * asked.n
        if asked.n > self.rows:
            raise Denied(400, f"n: must be at most {self.rows} (--batch), got {asked.n}", "n")
        self._check_room(samples)
        ends = self._loop.time() + self._deadline_s
        late = Denied(
            504,
            f"deadline: must have an answer within {self._deadline_s:g} s, got none; "
            "try a smaller max_tokens",
        )
        self.open += samples
        served: ServedModel | None = None
        try:
            async with asyncio.timeout_at(ends):
                served = await self.find(asked.model)
                served.open += samples
                pool = self._chats if asked.kind == "chat" else self._reader
                job = await self._run(pool, functools.partial(self._job, asked, served))
        except BaseException as error:
            self.open -= samples
            if served is not None:
                served.open -= samples
            raise late if isinstance(error, TimeoutError) else error from None
        reply = Reply(job)
        reply.timer = self._loop.call_at(ends, reply.fail, late)
        self._answers[reply] = served, asked
        served.writer.write(reply)
        return reply

    def end(self, reply: Reply) -> None:
        """Count a reply as over; free its rows if it is not whole."""
        served, asked = self._answers.pop(reply)
        self.open -= reply.job.samples
        served.open -= reply.job.samples
        if reply.timer is not None:
            reply.timer.cancel()
        if reply.left:
            served.writer.cancel(reply)
        if self._store is not None:
            prompt = sum(map(len, reply.job.prompts))
            row = (asked.answer, asked.model, reply.version, prompt, reply.tokens, not reply.left)
            self._store.put("answers", (*row, time.time()))

    def _check_room(self, samples: int) -> None:
        most = self.rows + self._queue
        if samples > most:
            raise Denied(
                400,
                f"n: must ask for at most {most:,} answers (--batch and --queue), got {samples:,}",
                "n",
            )
        if self.open + samples > most:
            raise Denied(
                429, f"queue: must have room for {samples:,} more, got {self.open:,} of {most:,}; "
                "try again later", None, "queue_full",
            )  # fmt: skip

    def _run(self, pool: ThreadPoolExecutor, act: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(pool, act)

    def _job(self, asked: Asked, served: ServedModel) -> Job:
        """Turn the prompts into tokens, in the thread for prompts."""
        param = "messages" if asked.kind == "chat" else "prompt"
        model, context = served.model, served.context
        prompts = [self._tokens(one, param, served, asked.template) for one in asked.prompts]
        longest = max(map(len, prompts))
        if longest >= context:
            raise _too_long(param, f"{context - 1:,} tokens, the context less one", f"{longest:,}")
        if asked.limit is not None and longest + asked.limit > context:
            raise _too_long(
                "max_tokens",
                f"{context - longest:,} tokens, the rest of the context after this prompt",
                f"{asked.limit:,}",
            )
        limit = asked.limit or min(model.limit, context - longest)
        how = [asked.sampling(number, model.temperature) for number in range(len(prompts))]
        stop = model.stop if asked.stop is None else asked.stop
        with_logprobs = asked.logprobs is not None
        return Job(
            prompts=prompts, sampling=how, n=asked.n, limit=limit, stop=stop, stream=asked.stream,
            with_logprobs=with_logprobs,
        )  # fmt: skip

    def _tokens(
        self, prompt: object, param: str, served: ServedModel, template: Mapping[str, object]
    ) -> Sequence[int]:
        size = served.model.net.config.vocab_size
        if param == "prompt" and isinstance(prompt, list):
            tokens = cast("list[int]", prompt)
            if wrong := [one for one in tokens if not 0 <= one < size]:
                raise Denied(
                    400, f"prompt: must be tokens from 0 to {size - 1:,}, got {wrong[0]:,}", param
                )
            return tokens
        try:
            asked: Prompt = read_prompt(plain(prompt, param), param)
            letters = _letters(asked)
            if letters > LETTERS * served.context:
                raise _too_long(
                    param,
                    f"{served.context - 1:,} tokens, the context less one",
                    f"a text of {letters:,} letters",
                )
            tokens = served.prompt(asked, template)
        except ValueError as error:
            chat = "; try /v1/completions" if "no chat template" in str(error) else ""
            raise Denied(400, f"{_named(shortened(str(error), 400), param)}{chat}", param) from None
        if not tokens:
            raise Denied(400, f"{param}: must have at least 1 token, got none", param)
        return tokens

    # -------------------------------------------------------------------------------- newer weights

    async def follow(self) -> None:
        """Offer newer weights to the writer, if the model has a source of them."""
        while (source := self.model.source) is not None:
            await asyncio.sleep(FOLLOW_S)
            try:
                find = functools.partial(source.newer, self._seen)
                found = await self._run(self._loader, find)
            except Exception as error:  # also of torch, such as a lack of memory
                if (why := said(error)) != self._unread:
                    log.warning("newer weights cannot be read", extra={"why": why})
                self._unread = why
                continue
            self._unread = ""
            if found is None:
                continue
            version, params = found
            try:
                check_finite(version, params)
            except ValueError as error:
                self._refused(str(error))
                continue
            self._seen, self._unfit = version, ""
            log.info("newer weights", extra={"version": version})
            self.writer.offer(version, params, self._refused)

    def _refused(self, why: str) -> None:
        if why != self._unfit:
            log.warning("newer weights cannot be served", extra={"why": why})
        self._unfit = why

    @property
    def drawn(self) -> int:
        """The number of tokens that were drawn."""
        return self.writer.drawn

    @property
    def live(self) -> int:
        """The number of choices that are being written."""
        return self.writer.live

    @property
    def _alarms(self) -> list[str]:
        unwritten = None if self._store is None else self._store.alarm
        return [one for one in (self._unread, self._unfit, unwritten) if one]

    # ------------------------------------------------------------------------------------ the state

    def state(self) -> dict[str, object]:
        """Return the answer of ``/readyz``."""
        return {
            "ready": True,
            "model": self.model.name,
            "version": self.writer.version,
            "live": self.live,
            "open": self.open,
            "alarms": self._alarms,
        }

    def _gauges(self) -> dict[str, tuple[str, float]]:
        return {
            "equipoise_tokens_total": ("Tokens that were drawn.", self.drawn),
            "equipoise_answers_live": ("Answers that are being written.", self.live),
            "equipoise_answers_open": ("Answers that were asked for.", self.open),
            "equipoise_alarms": ("Alarms.", len(self._alarms)),
        }


def _too_long(param: str, most: str, got: str) -> Denied:
    sentence = f"{param}: must be at most {most}, got {got}"
    return Denied(400, sentence, param, "context_length_exceeded")


def _named(error: str, param: str) -> str:
    """Return the sentence of an error with the field of the request as its beginning, once: readers
    of prompts begin with one of their own.
    """
    for name in (param, "prompt"):
        if error.startswith((f"{name}:", f"{name},")):
            return f"{param}{error.removeprefix(name)}"
    return f"{param}: {error}"


def _letters(value: object) -> int:
    """Return the letters of all texts in a prompt, since a chat template may write any of them."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value
    return sum(map(_letters, inner)) if isinstance(inner, Iterable) else 0
