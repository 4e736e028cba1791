"""Long prompts, computed in parts: the same samples, drawn beside others, of one version."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.actors.engine import torch_engine
from equipoise.actors.engine.engine import Continuation, OnUpdate, Sampled
from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp
from tests.actors.decoders import small_decoder

LONG, SHORT = [1, 2, 4, 5] * 5, [2, 1]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch_engine, "PART", 6)
    yield
    torch.set_num_threads(threads)


def hub_decoder() -> Decoder:
    pytest.importorskip("transformers")
    from equipoise.nets.hub_decoder import HubConfig, HubDecoder

    fields: Any = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return HubDecoder(
        HubConfig(
            model_type="gpt2",
            vocab_size=12,
            hidden_size=16,
            max_position_embeddings=64,
            fields=fields | {"vocab_size": 12, "n_positions": 64},
        )
    )


def net_of(kind: str) -> Decoder:
    torch.manual_seed(2)
    return hub_decoder() if kind == "transformers" else small_decoder(words=12, length=64)


def engine_of(net: Decoder, **settings: Any) -> TorchEngine:
    given: dict[str, Any] = {"rows": 6, "length": 40, "ends": Ends(()), "seed": 5} | settings
    return TorchEngine(deepcopy(net), **given)


def run(engine: TorchEngine) -> list[Sampled]:
    found = list[Sampled]()
    for _ in range(1_000):
        if not engine.live and not engine.waiting:
            return sorted(found, key=lambda one: (one.group, one.index))
        found += engine.step()
    raise AssertionError("the engine does not end")


def agrees(net: Decoder, one: Sampled, prompt: list[int]) -> None:
    logp = token_logp(net, packed_texts([(prompt, [one.token.tolist()])]))[0].detach().numpy()
    np.testing.assert_allclose(logp[len(prompt) :], one.logp, atol=1e-5)


@pytest.mark.parametrize("kind", ["ours", "transformers"])
def test_a_long_prompt_is_computed_beside_others_and_begins_in_order(kind: str) -> None:
    net = net_of(kind)
    engine = engine_of(net)
    for group, prompt in enumerate((SHORT, LONG, SHORT, LONG)):
        engine.submit(group, prompt, 2, limit=8)
    engine.step()
    assert (engine.live, engine.waiting) == (2, 3)
    for _ in range(3):
        engine.step()
    assert (engine.live, engine.waiting) == (2, 3)  # three of four parts, and tokens of group 0
    engine.step()
    assert (engine.live, engine.waiting) == (4, 2)  # it is drawn, and the next waits for a step
    engine.step()
    assert (engine.live, engine.waiting) == (6, 1)
    done = run(engine)
    assert [(one.group, one.index) for one in done] == [(g, i) for g in range(4) for i in (0, 1)]
    for one in done:
        agrees(net, one, LONG if one.group % 2 else SHORT)


def test_the_rows_of_a_long_group_may_be_all_of_them() -> None:
    net = net_of("ours")
    engine = engine_of(net)
    engine.submit(0, LONG, 6, limit=8)
    done = run(engine)
    assert len(done) == 6
    for one in done:
        agrees(net, one, LONG)


@pytest.mark.parametrize("on_update", ["keep", "recompute", "finish"])
@pytest.mark.parametrize("kind", ["ours", "transformers"])
def test_weights_that_come_amid_a_long_prompt_compute_all_of_it(
    kind: str, on_update: OnUpdate
) -> None:
    net = net_of(kind)
    engine = engine_of(net, on_update=on_update)
    engine.submit(0, SHORT, 1, limit=20)
    engine.submit(1, LONG, 1, limit=8)
    for _ in range(3):
        engine.step()
    with torch.no_grad():
        for x in net.parameters():
            x.add_(0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    for _ in engine.take(3, tree.named_tensors(net), lambda: True):
        pass
    _, one = run(engine)
    assert set(one.version.tolist()) == {3}
    agrees(net, one, LONG)


def test_running_long_texts_are_computed_again_in_parts() -> None:
    net = net_of("ours")
    engine = engine_of(net, on_update="recompute")
    engine.submit(0, LONG, 3, limit=8)
    engine.submit(1, SHORT, 2, limit=16)
    while engine.live < 5:
        engine.step()
    with torch.no_grad():
        for x in net.parameters():
            x.mul_(1.1)
    for _ in engine.take(3, tree.named_tensors(net), lambda: True):
        pass
    for one in run(engine):
        logp = (
            token_logp(
                net, packed_texts([(LONG if one.group == 0 else SHORT, [one.token.tolist()])])
            )[0]
            .detach()
            .numpy()[-len(one.token) :]
        )
        now = one.version == 3
        assert now.any()
        np.testing.assert_allclose(logp[now], one.logp[now], atol=1e-5)


def test_a_continued_sample_waits_for_a_prompt_that_has_begun_and_is_before_others() -> None:
    net = net_of("ours")
    engine = engine_of(net, rows=8)
    engine.submit(0, LONG, 2, limit=8)
    engine.submit(1, SHORT, 2, limit=8)
    engine.step()
    for index in (0, 1):
        engine.go_on(Continuation(7, index, LONG if index else SHORT, 2, 4))
    found = run(engine)
    assert [(one.group, one.index) for one in found] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (7, 0),
        (7, 1),
    ]
    ends = {(one.group, one.index): one for one in found}
    agrees(net, ends[0, 1], LONG)
    agrees(net, ends[7, 0], SHORT)
    agrees(net, ends[7, 1], LONG)


def test_a_cancelled_long_prompt_leaves_nothing_behind() -> None:
    net = net_of("ours")
    engine = RequestEngine(deepcopy(net), rows=4, length=40, eos=(), seed=1)
    engine.submit(0, LONG, 4, limit=8)
    engine.step()
    assert engine.free == 0
    engine.cancel(0)
    assert (engine.free, engine.waiting) == (4, 0)
    engine.submit(1, LONG, 1, limit=8)
    (one,) = run(engine)
    agrees(net, one, LONG)
