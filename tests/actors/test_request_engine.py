"""The engine of a server: sampling of each request, cancelled rows, tokens step by step."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from equipoise.actors.engine.request_engine import RequestEngine, Sampling, nucleus
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets.decoder import Decoder
from tests.actors.decoders import small_decoder

EOS, LENGTH = 3, 48


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def net() -> Decoder:
    return small_decoder(words=12, length=LENGTH)


def engine_of(net: Decoder, rows: int = 8) -> RequestEngine:
    return RequestEngine(copy.deepcopy(net), rows=rows, length=LENGTH, eos=(EOS,), seed=5)


def run(engine: RequestEngine) -> dict[tuple[int, int], list[int]]:
    """All tokens of all samples, as they are read step by step."""
    found: dict[tuple[int, int], list[int]] = {}
    while engine.live or engine.waiting:
        ended = engine.step()
        drawn = engine.drawn
        for group, index, token in zip(drawn.group, drawn.index, drawn.token, strict=True):
            found.setdefault((group, index), []).append(token)
        for one in ended:
            mine = found[one.group, one.index]  # without those of steps before
            assert one.token.tolist()[-len(mine) :] == mine
    return found


def test_without_settings_it_draws_what_the_engine_of_training_draws(net: Decoder) -> None:
    usual = TorchEngine(copy.deepcopy(net), rows=8, length=LENGTH, ends=Ends((EOS,)), seed=5)
    engine = engine_of(net)
    for group in range(5):
        for one in (usual, engine):
            one.submit(group, [1, 2], 3, limit=20)
    wanted: dict[tuple[int, int], list[int]] = {}
    while usual.live or usual.waiting:
        wanted |= {(one.group, one.index): one.token.tolist() for one in usual.step()}
    assert run(engine) == wanted and len(wanted) == 15


def test_each_group_has_its_own_sampling(net: Decoder) -> None:
    """Greedy samples are equal and those of a seed are drawn again, whatever else is drawn."""
    engine = engine_of(net, rows=16)
    engine.submit(0, [1, 2], 3, limit=20, sampling=Sampling(temperature=0))
    engine.submit(1, [1, 2], 3, limit=20, sampling=Sampling(seed=9))
    engine.submit(2, [1, 2], 3, limit=20, sampling=Sampling(temperature=2.0))
    first = run(engine)
    engine.submit(7, [1, 2], 1, limit=20, sampling=Sampling(top_p=1e-9))
    engine.submit(8, [1, 2], 3, limit=20, sampling=Sampling(seed=9))
    engine.submit(9, [1, 2], 3, limit=20, sampling=Sampling(seed=9, number=1))
    second = run(engine)
    assert first[0, 0] == first[0, 1] == first[0, 2] == second[7, 0]
    assert len({tuple(first[1, i]) for i in range(3)}) == 3
    assert [first[1, i] for i in range(3)] == [second[8, i] for i in range(3)]
    assert [first[1, i] for i in range(3)] != [second[9, i] for i in range(3)]


def test_temperature_and_nucleus_have_their_chances(net: Decoder) -> None:
    engine = engine_of(net, rows=512)
    counts = {}
    wanted = {}
    with torch.no_grad():
        cache = net.cache(1, LENGTH, torch.float32)
        hidden = net.prefill(torch.tensor([[1, 2]]), torch.tensor([2]), cache, torch.arange(1))
        logits = net.logits(hidden)[0]
    for group, (temperature, top_p) in enumerate([(1.0, 1.0), (2.0, 1.0), (0.7, 0.6)]):
        sampling = Sampling(temperature=temperature, top_p=top_p)
        engine.submit(group, [1, 2], 512, limit=1, sampling=sampling)
        drawn = run(engine)
        tokens = [one[0] for one in drawn.values()]
        counts[group] = np.bincount(tokens, minlength=12) / 512
        chance = torch.softmax(logits / temperature, -1)
        if top_p < 1:
            chance = nucleus(chance[None], torch.tensor([top_p]))[0]
            assert 1 < int((chance > 0).sum()) < 12
            chance = chance / chance.sum()
        wanted[group] = chance.numpy()
    for group, count in counts.items():
        assert np.abs(count - wanted[group]).max() < 0.08, group
        assert (count[wanted[group] == 0] == 0).all()


def test_a_nucleus_is_the_smallest_set_with_the_mass() -> None:
    chance = torch.tensor([[0.1, 0.5, 0.4], [0.2, 0.2, 0.6]])
    kept = nucleus(chance, torch.tensor([0.7, 0.6], dtype=torch.float64))
    assert kept.gt(0).tolist() == [[False, True, True], [False, False, True]]


def test_a_cancelled_group_leaves_its_rows_to_others_and_changes_none(net: Decoder) -> None:
    alone = engine_of(net)
    for group in (0, 2, 3):
        alone.submit(group, [1, 2 + group], 2, limit=20)
    wanted = run(alone)
    engine = engine_of(net)
    for group in range(4):
        engine.submit(group, [1, 2 + group], 2, limit=20)
    engine.submit(4, [5], 8, limit=20)  # it waits
    engine.step()
    assert engine.waiting == 1 and engine.free == -8
    engine.cancel(1)
    engine.cancel(4)
    assert engine.live <= 6 and engine.waiting == 0 and engine.free >= 2
    rest = {key: one for key, one in run(engine).items() if key[0] in (0, 2, 3)}
    assert all(wanted[key][-len(one) :] == one for key, one in rest.items())
    engine.cancel(1)  # once more
    engine.submit(1, [1], 8, limit=2)
    assert len(run(engine)) == 8


def test_one_sample_of_a_group_is_cancelled(net: Decoder) -> None:
    engine = engine_of(net)
    engine.submit(0, [1, 2], 3, limit=20, sampling=Sampling(temperature=0))
    engine.step()
    engine.cancel(0, 1)
    found = run(engine)
    assert set(found) == {(0, 0), (0, 2)} and found[0, 0] == found[0, 2]
    engine.submit(0, [1], 1, limit=1)  # the group has ended


def test_the_likeliest_tokens_come_with_their_chances(net: Decoder) -> None:
    engine = engine_of(net)
    engine.submit(0, [1, 2], 1, limit=5, sampling=Sampling(temperature=0, top=3))
    engine.submit(1, [1, 2], 1, limit=5, sampling=Sampling(temperature=0))
    engine.step()
    tokens, logps = engine.drawn.likeliest[0, 0]
    assert len(tokens) == 3 and (1, 0) not in engine.drawn.likeliest
    assert tokens[0] == engine.drawn.token[0] and logps[0] == engine.drawn.logp[0]
    assert logps == sorted(logps, reverse=True)


def test_weights_that_come_before_a_group_begins_do_not_change_within_its_samples(
    net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample runs when the first part comes; one does when the last part comes."""
    monkeypatch.setattr("equipoise.nets.decoding.PIECE", 32)
    engine = engine_of(net)
    engine.submit(0, [1, 2], 2, limit=30, sampling=Sampling(temperature=0))
    newer = {name: x + 0.3 for name, x in net.named_parameters()}
    coming = engine.take(1, newer, lambda: True)
    next(coming)
    versions = [tuple(np.unique(one.version)) for one in engine.step()]
    for _ in coming:
        pass
    while engine.live or engine.waiting:
        versions += [tuple(np.unique(one.version)) for one in engine.step()]
    assert versions == [(0,)] * 2


def test_it_goes_on_after_an_error(net: Decoder) -> None:
    engine = engine_of(net)
    engine.submit(0, [1, 2], 2, limit=30)
    engine.step()
    engine.submit(1, [1, 2], 8, limit=30)
    engine.clear()
    assert engine.live == engine.waiting == 0 and engine.free == 8
    engine.submit(0, [1, 2], 8, limit=3)
    assert len(run(engine)) == 8
