"""Conversations: what a partner writes is given, what the policy writes is drawn as the model says,
and a partner that fails costs its conversation alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine import conversing
from equipoise.actors.engine.conversing import Bounds, ConversationSettings, Conversing
from equipoise.actors.engine.engine import Continuation, Sampled
from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.engine.sim_engine import SimEngine, latency
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.algorithms.grpo import GRPO
from equipoise.language.tokenizers import CharTokenizer
from equipoise.language.turns.steps import PartnersFailed
from equipoise.learners.pool import ALONE
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import pack
from equipoise.nets.token_logp import token_logp
from equipoise.types import Batch, Example, Stop, Trajectory
from tests.actors.decoders import small_decoder

TOKENS = CharTokenizer("abcdefgh<>")
LENGTH, LIMIT, SEED = 64, 40, 7
WAIT_S = 60.0  # for a result on a busy machine
Samples = dict[tuple[int, int], Sampled]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def net() -> Decoder:
    return small_decoder(words=TOKENS.size, length=LENGTH)


class Echo:
    """Answers each turn with its length in signs, three times."""

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, row: Mapping[str, object]) -> str:
        self.row = row
        return "ab"

    def step(self, text: str) -> tuple[str | None, float]:
        self.turns += 1
        return (None if self.turns == 3 else "<" * (1 + len(text) % 3)), 0.25


def engine_of(
    net: Decoder,
    make: Callable[[], Any] = Echo,
    rows: int = 8,
    kind: Callable[..., TorchEngine] = TorchEngine,
    **settings: Any,
) -> Conversing:
    bounds = Bounds(turns=6, turn_tokens=8, answer_bytes=1000, step_s=WAIT_S)
    talk = ConversationSettings(
        make=make,
        tokenizer=TOKENS,
        template={},
        bounds=bounds,
        row=lambda group: Example(prompt="ab", columns={"number": group}),
    )
    inner = kind(net, rows=rows, length=LENGTH, ends=Ends(TOKENS.eos), seed=SEED)
    return Conversing(inner, replace(talk, **settings))


def told(engine: Conversing, groups: int = 4, samples: int = 2) -> Samples:
    """All conversations, by group and index."""
    for group in range(groups):
        engine.submit(group, TOKENS.encode("ab"), samples, limit=LIMIT)
    found: Samples = {}
    ends = time.monotonic() + WAIT_S
    try:
        while engine.live or engine.waiting:
            assert time.monotonic() < ends
            found |= {(one.group, one.index): one for one in engine.step()}
            if engine.away:
                time.sleep(0.0005)
    finally:
        engine.close()
    assert len(found) == groups * samples
    return found


def test_a_conversation_counts_how_often_its_turns_were_given_back(net: Decoder) -> None:
    back = list[int]()

    class Counted(PagedEngine):
        def step(self) -> list[Sampled]:
            found = super().step()
            back.extend(one.given_back for one in found)
            return found

    found = told(engine_of(net, kind=partial(Counted, kv_tokens=64)), groups=6, samples=3)
    assert sum(one.given_back for one in found.values()) == sum(back) > 0
    assert all(0 <= one.kv_load <= 1 for one in found.values())


def trajectory(samples: Samples, reward: float = 1.0) -> Trajectory:
    """The samples as a generator writes them, in groups of 2."""
    order = [samples[key] for key in sorted(samples)]
    count = len(order)
    token, logp, version, chosen = (
        torch.zeros((1, count, LIMIT), dtype=kind)
        for kind in (torch.int64, torch.float32, torch.int64, torch.bool)
    )
    for i, one in enumerate(order):
        assert one.conversation is not None
        size = len(one.token)
        token[0, i, :size] = torch.tensor(one.token)
        logp[0, i, :size], version[0, i, :size] = torch.tensor(one.logp), torch.tensor(one.version)
        chosen[0, i, :size] = torch.tensor(one.conversation.chosen)
    number = torch.tensor([one.group for one in order])
    rewards = torch.arange(count, dtype=torch.float32)[None] * reward
    flags = torch.ones((1, count), dtype=torch.bool)
    return Trajectory(
        obs={},
        action={"token": token},
        behaviour={
            "logp": logp,
            "version": version,
            "chosen": chosen,
            "length": torch.tensor([[len(one.token) for one in order]]),
            "stop": torch.tensor([[int(one.stop) for one in order]]),
        },
        reward=rewards,
        mask=flags,
        bootstrap=~flags,
        first=flags,
        version=torch.zeros((1, count), dtype=torch.int64),
        state={},
        context={
            "prompt": torch.tensor([TOKENS.encode("ab")] * count),
            "prompt_length": torch.full((count,), 2),
            "task": number,
            "group": number,
            "refills": torch.zeros_like(number),
            "retokenized": torch.zeros_like(number),
        },
    )


def test_a_conversation_is_one_sample_of_drawn_and_given_tokens(net: Decoder) -> None:
    found = told(engine_of(net, quick=True))
    several = [
        one
        for one in found.values()
        if one.conversation is not None and one.conversation.turns == 3
    ]
    assert several
    for one in several:
        assert (
            one.conversation is not None
            and one.stop == Stop.EOS
            and one.conversation.reward == 0.75
        )
        chosen = one.conversation.chosen
        given = TOKENS.decode(one.token[~chosen].tolist())
        answers = [m["content"] for m in one.conversation.messages if m["role"] == "user"]
        assert given == "".join(map(str, answers)) and set(given) == {"<"}
        assert chosen[0] and chosen[-1] and (one.logp[~chosen] == 0).all()
        assert (one.version[~chosen] == -1).all() and (one.version[chosen] == 0).all()
        assert one.drawn == chosen.sum() < len(one.token)


@pytest.mark.parametrize("quick", [True, False])
def test_drawn_tokens_have_the_probabilities_of_a_whole_forward(net: Decoder, quick: bool) -> None:
    data = pack(trajectory(told(engine_of(net, quick=quick))))
    assert (~data.chosen & (data.sample >= 0)).sum() > 10
    with torch.no_grad():
        logp = token_logp(net, data)[0]
    assert (logp - data.logp)[data.chosen].abs().max() < 1e-5


def test_given_tokens_have_no_gradient(net: Decoder) -> None:
    """The gradient at the logits of a given token is exactly 0, and another text of the same given
    tokens' place changes the loss only through what the policy saw.
    """
    data = pack(trajectory(told(engine_of(net, quick=True))))
    net.requires_grad_(True)
    size = len(data.token)
    hidden = torch.randn(size, 16, requires_grad=True)
    logp, entropy = token_logp(net, data, hidden=hidden)
    algorithm = GRPO(entropy=0.1)
    targets = algorithm.targets(net, net, data, rng=torch.Generator(), pool=ALONE)
    batch = Batch(
        data=data, keys=np.zeros((0, 2), np.int64), weight=torch.ones(size), targets=targets
    )
    out = algorithm.policy_loss(logp, entropy, batch)
    out.loss.backward()
    assert hidden.grad is not None
    # the hidden state before a token is what it is drawn from
    before = torch.roll(data.chosen, -1)
    sample = torch.roll(data.sample, -1)
    first = torch.zeros(size, dtype=torch.bool)  # the prompt's last token, before all samples
    first[:-1] = (data.sample[:-1] < 0) & (data.sample[1:] >= 0)
    within = (sample == data.sample) & (data.sample >= 0)
    learned = (within & before) | first
    assert (hidden.grad[~learned] == 0).all() and (hidden.grad[learned] != 0).any(1).sum() > 10
    assert not targets["kept"][~data.chosen].any() and (logp[~data.chosen] == 0).all()
    assert out.metrics["completions/turns"][0] > len(data.prompt)


def test_a_conversation_is_the_same_whatever_is_drawn_beside_it(net: Decoder) -> None:
    alone = told(engine_of(net, rows=2, quick=True))
    for rows, quick in ((8, True), (3, False), (8, False)):
        for key, one in told(engine_of(net, rows=rows, quick=quick)).items():
            assert one.token.tolist() == alone[key].token.tolist()
            assert np.allclose(one.logp, alone[key].logp, atol=1e-5)


def test_in_lockstep_the_bits_do_not_depend_on_the_time_of_answers(net: Decoder) -> None:
    class Slow(Echo):
        def step(self, text: str) -> tuple[str | None, float]:
            time.sleep(0.02 * (len(text) % 3) if self.wait else 0.0)
            return super().step(text)

        wait = True

    class Fast(Slow):
        wait = False

    first, second = (told(engine_of(net, make, lockstep=True)) for make in (Slow, Fast))
    assert all(np.array_equal(first[key].logp, second[key].logp) for key in first)


def test_a_sample_that_goes_on_draws_as_if_it_had_not_ended(net: Decoder) -> None:
    whole = TorchEngine(net, rows=2, length=LENGTH, ends=Ends(), seed=SEED)
    parts = TorchEngine(net, rows=2, length=LENGTH, ends=Ends(), seed=SEED)
    whole.submit(3, [0, 1], 2, limit=12)
    parts.submit(3, [0, 1], 2, limit=5)
    wanted: dict[int, list[int]] = {}
    while whole.live or whole.waiting:
        wanted |= {one.index: one.token.tolist() for one in whole.step()}
    found: dict[int, list[int]] = {0: [], 1: []}
    while parts.live or parts.waiting:
        for one in parts.step():
            found[one.index] += one.token.tolist()
            if len(found[one.index]) < 12:
                text = [0, 1, *found[one.index]]
                parts.go_on(Continuation(3, one.index, text, 2, min(5, 14 - len(text))))
    assert found == wanted


def test_samples_that_go_on_begin_before_new_groups(net: Decoder) -> None:
    for place in (2, 0, -3):  # of the sample in its text: below 1 if that was rendered again
        engine = TorchEngine(net, rows=2, length=LENGTH, ends=Ends(), seed=SEED)
        for group in range(3):
            engine.submit(group, [0, 1], 2, limit=2)
        for _ in range(3):
            ended = [one for _ in range(2) for one in engine.step()]
            assert [one.group for one in ended] == [0, 0]
            for one in ended:
                engine.go_on(Continuation(0, one.index, [0, 1, *one.token.tolist()], place, 2))
        order = [one.group for _ in range(6) for one in engine.step()]
        assert order == [0, 0, 1, 1, 2, 2] and engine.live == engine.waiting == 0


class Halt(BaseException):
    """An error that is no Exception, as that of a panic in a library."""


class Unreadable(list[object]):
    """A list that cannot be read."""

    def __len__(self) -> int:
        raise RuntimeError("closed")


class Bad(Echo):
    """Fails as the row asks, in the second turn."""

    kind = ""
    hangs = threading.Event()

    def step(self, text: str) -> Any:
        if self.row["number"] == 0 and self.turns == 1:
            if self.kind == "hangs":
                Bad.hangs.wait(WAIT_S)
            if self.kind == "raises":
                raise KeyError("nothing here")
            if self.kind == "exits":
                raise SystemExit(3)
            if self.kind == "halts":
                raise Halt("panic")
            garbage: dict[str, Any] = {
                "number": 3,
                "nan": ("<", float("nan")),
                "messages": ([{"role": "user", "content": "<"}], 0.0),
                "letters": ("no letter of the alphabet", 0.0),
                "empty": ("", 0.0),
                "megabytes": ("<" * 5_000_000, 0.0),
                "big": ("<", 10**400),
                "unreadable": Unreadable(),
            }
            if self.kind in garbage:
                return garbage[self.kind]
        return super().step(text)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("hangs", "took more than 0.3 s"),
        ("raises", "KeyError"),
        ("exits", "SystemExit"),
        ("number", "step: must return"),
        ("nan", "finite number, got nan"),
        ("messages", "must be a text or None"),
        ("letters", "expected one of"),
        ("empty", "got an empty one"),
        ("megabytes", "at most 1,000 bytes, got 5,000,000"),
        ("big", "finite number, got int"),
        ("halts", "Halt: panic"),
        ("unreadable", "got RuntimeError: closed"),
    ],
)
def test_a_partner_that_fails_costs_its_conversation_alone(
    net: Decoder, kind: str, said: str
) -> None:
    bounds = Bounds(turns=6, turn_tokens=8, answer_bytes=1000, step_s=0.3)
    if kind != "hangs":
        bounds = replace(bounds, step_s=WAIT_S)
    make = type("Kind", (Bad,), {"kind": kind})
    found = told(engine_of(net, make, bounds=bounds))
    for (group, _), one in found.items():
        assert one.conversation is not None
        # a busy machine may also be late for others
        if group == 0 and one.conversation.turns > 1:
            assert one.stop == Stop.FAILED and one.conversation.reward is None
            assert said in one.conversation.failure, one.conversation.failure
        elif kind != "hangs":
            assert one.conversation.failure == "" and one.conversation.reward is not None
    Bad.hangs.set()
    Bad.hangs.clear()


def test_a_partner_that_always_fails_ends_the_run(
    net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never(Echo):
        def step(self, text: str) -> tuple[str | None, float]:
            raise OSError("no net")

    monkeypatch.setattr(conversing, "FAILED_IN_A_ROW", 5)
    with pytest.raises(PartnersFailed, match="failed in 5 conversations .* OSError: no net"):
        told(engine_of(net, Never))


def test_rewards_without_a_finite_sum_cost_their_conversation(net: Decoder) -> None:
    class Rich(Echo):
        def step(self, text: str) -> tuple[str | None, float]:
            return super().step(text)[0], 3e38

    done = [
        one.conversation
        for one in told(engine_of(net, Rich)).values()
        if one.conversation is not None
    ]
    assert all("finite sum, got 6e+38" in one.failure for one in done if one.turns > 1)
    assert any(one.turns > 1 for one in done)


def test_conversations_end_at_their_bounds(net: Decoder) -> None:
    class Endless(Echo):
        def step(self, text: str) -> tuple[str | None, float]:
            return "<<<", 0.5

    turns = told(engine_of(net, Endless, quick=True))
    assert all(one.stop == Stop.LENGTH and len(one.token) <= LIMIT for one in turns.values())
    assert all(
        one.conversation is not None and one.conversation.turns <= 6 for one in turns.values()
    )
    bounds = Bounds(turns=100, turn_tokens=3, answer_bytes=1000, step_s=WAIT_S)
    tokens = told(engine_of(net, Endless, quick=True, bounds=bounds))
    for one in tokens.values():
        assert one.conversation is not None and one.stop == Stop.LENGTH
        assert LIMIT - 6 < len(one.token) <= LIMIT and one.conversation.chosen[-1]
        drawn = np.split(
            one.conversation.chosen, np.flatnonzero(np.diff(one.conversation.chosen)) + 1
        )
        assert max(len(part) for part in drawn if part[0]) <= 3


class Waits(Echo):
    """A tool of 50 ms."""

    def step(self, text: str) -> tuple[str | None, float]:
        time.sleep(0.05)
        return super().step(text)


class Async(Echo):
    async def step(self, text: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(0.001)
        return Echo.step(self, text)


def test_async_partners_answer(net: Decoder) -> None:
    found, wanted = told(engine_of(net, Async)), told(engine_of(net, quick=True))
    assert {key: one.token.tolist() for key, one in found.items()} == {
        key: one.token.tolist() for key, one in wanted.items()
    }


def test_others_are_drawn_while_a_conversation_waits() -> None:
    model = latency("sim:step_s=0.002,median=8,sigma=0.5")
    inner = SimEngine(model, rows=16, vocabulary=TOKENS.size - 1, eos=TOKENS.eos[0], seed=1)
    talk = ConversationSettings(
        make=Waits,
        tokenizer=TOKENS,
        template={},
        bounds=Bounds(turns=6, turn_tokens=30, answer_bytes=1000, step_s=WAIT_S),
        row=lambda group: Example(prompt="ab"),
    )
    engine = Conversing(inner, talk)
    for group in range(50):
        engine.submit(group, [0, 1], 1, limit=100)
    both = 0  # steps that draw while conversations wait
    ends = time.monotonic() + WAIT_S
    while engine.live or engine.waiting:
        assert time.monotonic() < ends
        both += inner.live > 0 and engine.away > 0
        engine.step()
    engine.close()
    assert both > 20
