"""The service of calls: checked requests become calls of the worker, within bounds."""

from __future__ import annotations

import asyncio
from time import monotonic

from equipoise.actors.calls.ledger import REASONS
from equipoise.actors.calls.records import NotPossible
from equipoise.actors.calls.worker import OVER, CallWorker
from equipoise.serving.chat.model import Model
from equipoise.serving.chat.served_model import ServedModel
from equipoise.serving.chat.service import Service
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.wire import Asked, Denied
from equipoise.serving.chat.writer import Job, Reply
from equipoise.serving.proxy.call_writer import CallJob, CallWriter, busy
from equipoise.serving.proxy.requests import AskedCall, Reward

REWARD_S = 60.0  # that the worker may take to note a reward


class CallService(Service):
    """The model of a run, whose answers are learned from."""

    call_writer: CallWriter

    def __init__(
        self,
        model: Model,
        worker: CallWorker,
        *,
        rows: int,
        context: int,
        queue: int,
        turn: int,
        deadline_s: float,
    ) -> None:
        """``queue``: answers that may wait or be drawn; ``turn``: most tokens of an answer, 0: no
        limit.
        """
        self._worker, self._turn = worker, turn
        self._most, self._call_s = queue, deadline_s
        settings = TextSettings(context=context, queue=queue, device="")
        super().__init__(model, settings, rows=rows, seed=0, deadline_s=deadline_s)

    def _make_served(self, model: Model, engines: int) -> ServedModel:
        self.call_writer = CallWriter(self._worker, model.tokenizer.decode, self._loop)
        return ServedModel(
            model, self._settings, self._loop, rows=self.rows, seed=0, writer=self.call_writer
        )

    async def ask(self, asked: Asked) -> Reply:
        self._check_open()
        try:
            reply = await super().ask(asked)
        except BaseException:
            self._worker.inbox.put(self._worker.refuse)
            raise
        if reply.timer is not None:  # one that tells a call that waits from a slow one
            reply.timer.cancel()
            left = reply.timer.when() - self._loop.time()
            reply.timer = self._loop.call_later(left, self._late, reply)
        return reply

    def _check_open(self) -> None:
        if self.call_writer.over:
            raise busy(503, OVER)

    def _late(self, reply: Reply) -> None:
        no = busy(
            503,
            f"run: must have room for a new conversation within {self._call_s:g} s, got none; the "
            "learner has enough for now",
        )
        if self.call_writer.call_of(reply).begun:
            no = Denied(
                504,
                f"deadline: must have an answer within {self._call_s:g} s, got none; try a "
                "smaller max_tokens",
            )
        reply.fail(no)

    def end(self, reply: Reply) -> None:
        super().end(reply)
        self.call_writer.forget(reply)

    def _check_room(self, samples: int) -> None:
        if self.open + samples > self._most:
            raise Denied(
                429,
                f"queue: must have room for {samples:,} more, got {self.open:,} of {self._most:,} "
                "(source.call_queue); try again later",
                None,
                "queue_full",
            )

    def _job(self, asked: Asked, served: ServedModel) -> Job:
        assert isinstance(asked, AskedCall)
        job = super()._job(asked, served)
        if asked.tooled:
            (prompt,) = asked.prompts
            if list(self._tokens(prompt, "messages", served, {})) == list(job.prompts[0]):
                raise Denied(
                    400,
                    "tools: must be left out, since the model's chat template shows the model no "
                    f"tools, got {len(asked.template['tools'])}; try a template with tools",  # type: ignore[arg-type]
                    "tools",
                )
        limit = job.limit if not self._turn else min(job.limit, self._turn)
        return CallJob(
            prompts=job.prompts, sampling=job.sampling, n=job.n, limit=limit, stop=job.stop,
            stream=job.stream, with_logprobs=job.with_logprobs, asked=asked,
        )  # fmt: skip

    async def reward(self, given: Reward) -> dict[str, object]:
        """Give a conversation its reward; ``Denied`` if it takes none."""
        self._check_open()
        name = given.id if given.index is None else f"{given.id}:{given.index}"
        conversations = self._worker.conversations
        try:
            async with asyncio.timeout(REWARD_S):
                one = await self.call_writer.do(
                    lambda: conversations.reward(name, given.reward, monotonic())
                )
        except NotPossible as no:
            raise Denied(no.status, no.sentence, "id") from None
        except TimeoutError:
            raise busy(503, "reward: must be noted by the run, got no sign of it") from None
        return {"id": given.id, "conversation": one.name, "answers": one.answers}

    def ledger(self) -> dict[str, object]:
        """Return the counts of answers, with the meaning of each reason."""
        counts = self._worker.ledger.counts()
        return {
            "calls": counts["calls"],
            "learned": counts["learned"],
            "open": counts["open"],
            "dropped": {name: counts[name] for name in REASONS},
            "reasons": dict(REASONS),
            "conversations": {
                "begun": counts["conversations"],
                "open": len(self._worker.conversations),
            },
            **{
                name: counts[name]
                for name in ("samples", "spliced", "forks", "overridden", "refused")
            },
            "version": self._worker.version,
        }

    def _gauges(self) -> dict[str, tuple[str, float]]:
        counts = self._worker.ledger.counts()
        return super()._gauges() | {
            f"equipoise_calls_{name}": (f"Answers of the ledger: {name}.", number)
            for name, number in counts.items()
        }
