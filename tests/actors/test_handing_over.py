"""Samples go on in another engine as if nothing had happened."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine.engine import HandsOver, Partial, Sampled
from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.actors.engine.sim_engine import Latency, SimEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder
from equipoise.types import Stop
from tests.actors.decoders import small_decoder
from tests.actors.test_engine import EOS, LENGTH, SEED, _errors, _moved, _prompt, _run, _update

LIMIT = 30
GROUPS, SAMPLES = range(5), 4


@pytest.fixture(scope="module")
def net() -> Decoder:
    torch.set_num_threads(1)
    return small_decoder(words=12, length=LENGTH)


def ours(net: Decoder, rows: int = 12, **settings: Any) -> TorchEngine:
    given: dict[str, Any] = {"ends": Ends((EOS,)), "seed": SEED, "length": LENGTH} | settings
    return TorchEngine(copy.deepcopy(net), rows=rows, **given)


def simulated(net: Decoder, rows: int = 12) -> SimEngine:
    model = Latency(median=12, step_s=0.0, sample_s=0.0)
    return SimEngine(model, rows=rows, vocabulary=12, eos=EOS, seed=SEED)


def submitted(engine: Any) -> Any:
    for group in GROUPS:
        engine.submit(group, _prompt(group), SAMPLES, limit=LIMIT)
    return engine


def moved_on(
    engine: HandsOver, other: HandsOver, every: int
) -> tuple[dict[tuple[int, int], Sampled], int]:
    """All samples of an engine whose open samples move to another, and back, every some steps."""
    found: dict[tuple[int, int], Sampled] = {}
    moves = 0
    for step in range(1, 10_000):
        if not engine.live and not engine.waiting:
            return found, moves
        found |= {(one.group, one.index): one for one in engine.step()}
        if step % every == 0:
            partial = engine.withdraw(GROUPS)
            assert not engine.live and not engine.waiting
            assert not engine.step(), "nothing is left behind"
            engine, other = other, engine
            for one in partial:
                engine.resume(one, _prompt(one.group), limit=LIMIT)
            moves += len(partial)
    raise AssertionError("the engines do not end")


@pytest.mark.parametrize("make", [ours, simulated])
@pytest.mark.parametrize("every", [2, 7])
def test_samples_that_move_are_those_that_would_have_been_drawn(
    make: Any, every: int, net: Decoder
) -> None:
    alone = _run(submitted(make(net)))
    found, moves = moved_on(submitted(make(net)), make(net, rows=20), every)
    assert moves > 20 and found.keys() == alone.keys()
    for key, one in found.items():
        assert one.token.tolist() == alone[key].token.tolist() and one.stop == alone[key].stop
        np.testing.assert_allclose(one.logp, alone[key].logp, atol=1e-5)
        assert (one.version == 0).all() and len(one.version) == len(one.logp) == len(one.token)


@pytest.mark.parametrize("make", [ours, simulated])
def test_some_groups_move_and_the_others_stay(make: Any, net: Decoder) -> None:
    alone = _run(submitted(make(net)))
    engine, other = submitted(make(net)), make(net)
    found: dict[tuple[int, int], Sampled] = {}
    for step in range(1000):
        found |= {(one.group, one.index): one for each in (engine, other) for one in each.step()}
        for at, (here, there) in enumerate(((engine, other), (other, engine))):
            groups = {step % 5, (step + 2) % 5} if (step + at) % 2 else set()
            partial = here.withdraw(groups)
            assert {one.group for one in partial} <= groups
            for one in partial:
                there.resume(one, _prompt(one.group), limit=LIMIT)
        if not any(one.live or one.waiting for one in (engine, other)):
            break
    assert {key: one.token.tolist() for key, one in found.items()} == {
        key: one.token.tolist() for key, one in alone.items()
    }


def test_each_token_is_stamped_with_the_weights_that_drew_it(net: Decoder) -> None:
    versions = {0: dict(net.state_dict()), 1: _moved(dict(net.state_dict()), 1)}
    engine = submitted(ours(net))
    for _ in range(6):
        engine.step()
    other = ours(net)
    _update(other, 1, versions[1])
    partial = engine.withdraw(GROUPS)
    for one in partial:
        other.resume(one, _prompt(one.group), limit=LIMIT)
    found = _run(other)
    both = [one for one in found.values() if len(set(one.version.tolist())) == 2]
    assert len(both) >= 5 and all(np.diff(one.version).min() >= 0 for one in both)
    assert _errors(net, versions, found).max() < 1e-4


def test_a_stop_string_may_begin_before_the_move(net: Decoder) -> None:
    def decode(tokens: Any) -> str:
        return "".join("abcdefghijkl"[one] for one in tokens)

    # of two letters that follow each other in samples of this net
    alone = _run(submitted(ours(net)))
    texts = [decode(one.token.tolist()) for one in alone.values()]
    pairs = [text[i : i + 2] for text in texts for i in range(2, len(text) - 2)]
    common = max(set(pairs), key=pairs.count)
    ends = Ends((EOS,), (common,), decode)
    wanted = _run(submitted(ours(net, ends=ends)))
    assert sum(one.stop == Stop.TEXT for one in wanted.values()) >= 3
    found, _ = moved_on(submitted(ours(net, ends=ends)), ours(net, ends=ends), 3)
    assert {key: one.token.tolist() for key, one in found.items()} == {
        key: one.token.tolist() for key, one in wanted.items()
    }


def test_a_long_text_moves_while_it_is_computed_in_parts(
    net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _run(submitted(ours(net)))
    monkeypatch.setattr("equipoise.actors.engine.torch_engine.PART", 3)
    found, _ = moved_on(submitted(ours(net)), ours(net), 150)
    assert {key: one.token.tolist() for key, one in found.items()} == {
        key: one.token.tolist() for key, one in alone.items()
    }


def test_adapters_go_on_merged(net: Decoder) -> None:
    adapted = lora.copied(net)
    found, _ = moved_on(submitted(ours(adapted)), ours(adapted), 5)
    assert len(found) == len(GROUPS) * SAMPLES


def test_samples_of_a_conversation_do_not_move(net: Decoder) -> None:
    from equipoise.actors.engine.conversing import Conversing

    assert isinstance(ours(net), HandsOver) and not hasattr(Conversing, "withdraw")


def test_a_sample_without_room_is_refused(net: Decoder) -> None:
    none = np.zeros(LIMIT, np.int64)
    sample = Partial(0, 0, none, none.astype(np.float32), none)
    with pytest.raises(ValueError, match="expected 1 to"):
        ours(net).resume(sample, _prompt(0), limit=LIMIT)
    with pytest.raises(ValueError, match="must be above 30 tokens, got 30"):
        simulated(net).resume(sample, _prompt(0), limit=LIMIT)


def test_an_engine_of_requests_forgets_all(net: Decoder) -> None:
    engine = RequestEngine(copy.deepcopy(net), rows=8, length=LENGTH, eos=(EOS,), seed=SEED)
    engine.submit(0, _prompt(0), 2, limit=LIMIT)
    engine.step()
    engine.clear()
    assert not engine.live and not engine.waiting and not engine.step()
