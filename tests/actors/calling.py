"""A worker of calls on a real queue and a real engine, without a web server, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from equipoise import tree
from equipoise.actors.calls.ledger import Ledger
from equipoise.actors.calls.records import Limits, Names
from equipoise.actors.calls.splicing import Splicer
from equipoise.actors.calls.worker import Call, CallParts, CallWorker
from equipoise.actors.engine.call_engine import CallEngine
from equipoise.actors.engine.engine import Sampled
from equipoise.actors.episodes import Episodes
from equipoise.actors.generator import PARTS, Writing
from equipoise.clock import Clock
from equipoise.experience.queue.queue import Plan, Queue
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.sources.graders import Ungraded
from equipoise.sources.text import sample_row
from equipoise.types import Stop, TextSpec, stream_ids
from tests.actors.decoders import small_decoder
from tests.experience.test_queue import Heap

WORDS, LENGTH, END, GROUP, ROWS = 16, 96, 0, 4, 32
SPEC = TextSpec(model={}, eos=(END,), prompt=32, completion=LENGTH - 32, turns=8)
SMALL = partial(small_decoder, words=WORDS, length=LENGTH)
Drawn = tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]


class Weights:
    """Weights that change a little with each version."""

    def __init__(self, net: Any) -> None:
        self.version, self._net = 0, net

    def publish(self) -> None:
        torch.manual_seed(self.version)
        with torch.no_grad():
            for x in self._net.parameters():
                x += 0.01 * torch.randn_like(x)
        self.version += 1

    def look(self, newer_than: int = -1) -> Any:
        version = self.version
        params = dict(self._net.named_parameters())
        found = version, params, lambda: self.version == version
        return found if version > newer_than else None


class Engine(CallEngine):
    """An engine that keeps what it drew, besides and before anybody else reads it."""

    def __init__(self, net: Any, spec: TextSpec) -> None:
        length = spec.prompt + spec.completion
        super().__init__(net, rows=ROWS, length=length, eos=spec.eos, seed=1, on_update="keep")
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.samples: dict[tuple[int, int], Sampled] = {}

    def submit(
        self, group: int, prompt: Sequence[int], samples: int, *, limit: int, sampling: Any = None
    ) -> None:
        self.prompts[group] = tuple(prompt)
        super().submit(group, prompt, samples, limit=limit, sampling=sampling)

    def step(self) -> list[Sampled]:
        ended = super().step()
        self.samples |= {(one.group, one.index): one for one in ended}
        return ended


class Worker(CallWorker):
    """A worker that keeps where the answers of each block are."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.spans: dict[int, list[list[tuple[int, int]]]] = {}  # by block

    def _commit_block(self, block: Any, slots: Any) -> None:
        rows = [[] if row is None else list(row.spans) for row in block.rows]
        super()._commit_block(block, slots)
        assert self._sequence is not None
        self.spans[self._sequence] = rows


class Agent:
    """The listener of a call."""

    def __init__(self, prompt: Sequence[int], limit: int = 6, samples: int = 1, **names: Any):
        self.token_ids: list[list[int]] = [[] for _ in range(samples)]
        self.stopped: list[Stop | None] = [None] * samples
        self.failed: tuple[int, str] | None = None
        self.stop_at: int | None = None
        self.call = Call(
            prompt=list(prompt),
            samples=samples,
            limit=limit,
            names=Names(**({"id": f"chatcmpl-{id(self)}"} | names)),
            listener=self,
        )

    def token(
        self, index: int, token: int, logp: float, likeliest: Any, version: int, stop: Stop | None
    ) -> bool:
        self.token_ids[index].append(token)
        said = token == self.stop_at
        self.stopped[index] = Stop.TEXT if said else stop
        return said

    def ended(self, index: int) -> tuple[Sequence[Mapping[str, object]], str]:
        return [], ""

    def flush(self) -> None: ...

    def fail(self, status: int, sentence: str) -> None:
        self.failed = status, sentence

    @property
    def done(self) -> bool:
        return self.failed is not None or None not in self.stopped


class Ring:
    """A worker and a learner over one queue."""

    def __init__(
        self,
        *,
        max_lag: int | None = 1,
        per_batch: int = 2,
        spec: TextSpec = SPEC,
        net: Callable[[], Any] = SMALL,
        splicer: Splicer | None = None,
        **limits: Any,
    ) -> None:
        self.plan = Plan(
            rows={"main": sample_row(spec)},
            unroll=1,
            batch=per_batch * GROUP,
            block=GROUP,
            envs=GROUP,
            max_lag=max_lag,
        )
        self.max_lag, self.weights, self.engine = max_lag, Weights(net()), Engine(net(), spec)
        self._memory = Heap(self.plan.nbytes)
        self._free, self._full = [LocalChannel() for _ in range(self.plan.channels)], LocalChannel()
        self.queue, self.learner = self._queue(), self._queue()
        self.queue.fill()
        self.ledger = Ledger(tree.zeros(Ledger.specs))
        self.cut = 0
        usual = {"group": GROUP, "most": 10_000, "calls": 8, "reward_s": 60.0, "group_s": 60.0}
        self.worker = Worker(
            self.engine,
            CallParts(
                writing=Writing(
                    prompts=(),  # type: ignore[arg-type]  # it reads none
                    grader=Ungraded(),
                    policy="main",
                    at_once=ROWS,
                    limit=LENGTH,
                    number=lambda block: block,
                    order=lambda block, refills: 0,
                    refills=0,
                ),
                ledger=self.ledger,
                limits=Limits(**(usual | limits)),
                grader=None,
                filler=spec.eos[0],
                max_lag=max_lag,
                per_batch=per_batch,
                most_ready=self.plan.blocks,
                alone=True,
                cut=lambda: self.cut,
                splicer=splicer,
            ),
            blocks=self.queue,
            weights=self.weights,
            episodes=Episodes(GROUP, Heap(tree.nbytes(Episodes.layout()))),
            streams=stream_ids(0, GROUP),
            clock=Clock(PARTS),
            note=lambda text: None,
        )
        self.batches: list[Any] = []  # what the learner got, as copies
        self.ages: list[int] = []  # of tokens, in versions, as they are learned from

    def _queue(self) -> Queue:
        return Queue(self.plan, self._memory, free=self._free, full=self._full)

    def ask(self, prompt: Sequence[int], **more: Any) -> Agent:
        """Leave a call in the worker's inbox."""
        one = Agent(prompt, **more)
        self.worker.inbox.put(lambda: self.worker.ask(one.call))
        return one

    def answered(self, prompt: Sequence[int], **more: Any) -> Agent:
        """Call, and tick until the answer is whole."""
        one = self.ask(prompt, **more)
        for _ in range(1000):
            if one.done:
                return one
            self.worker.tick()
        raise AssertionError("no answer in 1,000 ticks")

    def learn(self) -> bool:
        """Take a batch, check its tokens' ages, and publish the next version."""
        if (keys := self.learner.take()) is None:
            return False
        data = self.learner.batches(keys)["main"].data
        chosen = data.behaviour["chosen"][0] & data.mask[0][:, None]
        self.ages += (self.weights.version - data.behaviour["version"][0][chosen]).tolist()
        self.batches.append(tree.map(lambda x: x.clone(), vars_of(data)))
        self.weights.publish()
        self.learner.finish(keys)
        return True

    def settle(self, ticks: int = 50) -> None:
        """Tick and learn."""
        for _ in range(ticks):
            self.worker.tick()
            self.learn()

    def close(self) -> None:
        self.worker.close()


def vars_of(data: Any) -> dict[str, Any]:
    names = ("action", "behaviour", "context", "mask", "reward", "version")
    return {name: getattr(data, name) for name in names}


def learned(ring: Ring) -> list[tuple[tuple[int, ...], Drawn, float]]:
    """(tokens before it, its drawn tokens, reward) of each answer that was learned from."""
    found = []
    for data in ring.batches:
        behaviour = {name: x[0].numpy() for name, x in data["behaviour"].items()}
        token, context = data["action"]["token"][0].numpy(), data["context"]
        for i in range(token.shape[0]):
            if not data["mask"][0, i]:
                continue
            asked = context["prompt"][i, : int(context["prompt_length"][i])].tolist()
            chosen, version = behaviour["chosen"][i], behaviour["version"][i]
            spans = ring.worker.spans[int(context["group"][i])]
            row = i % GROUP  # of its block
            for first, last in spans[row] if row < len(spans) else ():
                begin, end = first - len(asked), last - len(asked)
                if not chosen[begin:end].all():
                    assert not chosen[begin:end].any()
                    continue
                drawn = (
                    tuple(token[i, begin:end].tolist()),
                    tuple(behaviour["logp"][i, begin:end].tolist()),
                    tuple(version[begin:end].tolist()),
                )
                before = (*asked, *token[i, :begin].tolist())
                found.append((before, drawn, float(data["reward"][0, i])))
    return found
