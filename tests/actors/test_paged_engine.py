"""The engine with one budget of memory for all samples: what it draws depends on nothing but the
sample, and memory is used as far as it goes.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine.engine import Continuation, Sampled
from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets.decoder import Decoder
from equipoise.nets.pages import PAGE, Pages, pages_of
from tests.actors.decoders import small_decoder

EOS, SEED, LENGTH, WORDS = 3, 5, 96, 12


@pytest.fixture(params=[True, False], ids=["invariant", "plain"])
def net(request: Any) -> Decoder:
    torch.set_num_threads(1)
    made = small_decoder(words=WORDS, length=LENGTH)
    made.batch_invariant = request.param
    return made


def paged(net: Decoder, kv_tokens: int, rows: int = 24, **given: Any) -> PagedEngine:
    settings: dict[str, Any] = {"ends": Ends((EOS,)), "seed": SEED, "length": LENGTH} | given
    return PagedEngine(copy.deepcopy(net), kv_tokens=kv_tokens, rows=rows, **settings)


def plain(net: Decoder, rows: int = 24, **given: Any) -> TorchEngine:
    settings: dict[str, Any] = {"ends": Ends((EOS,)), "seed": SEED, "length": LENGTH} | given
    return TorchEngine(copy.deepcopy(net), rows=rows, **settings)


def prompts(seed: int, groups: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [chance.randrange(4, WORDS) for _ in range(chance.choice([1, 15, 16, 17, 40]))]
        for _ in range(groups)
    ]


def drawn(engine: TorchEngine, asked: list[list[int]], samples: int, limit: int) -> Any:
    """All samples by (group, index), and the most that were live at once."""
    for group, prompt in enumerate(asked):
        engine.submit(group, prompt, samples, limit=limit)
    found, most = dict[tuple[int, int], Sampled](), 0
    for _ in range(5000):
        if not engine.live and not engine.waiting:
            return found, most
        for one in engine.step():
            assert (one.group, one.index) not in found, "drawn twice"
            found[one.group, one.index] = one
        most = max(most, engine.live)
        if isinstance(engine, PagedEngine):
            check(engine)
    raise AssertionError("the engine does not end")


def check(engine: PagedEngine) -> None:
    """Each page is free or has as many users as texts point at it, and the budget holds."""
    pages = engine._pages
    users = np.zeros(pages.total, np.int64)
    for row, count in enumerate(pages._count):
        held = pages._table[row, :count]
        assert len(set(held.tolist())) == count
        users[held] += 1
    assert (users == pages._users).all()
    assert sorted(pages._free) == np.flatnonzero(users == 0).tolist()
    assert 0.0 <= engine.kv_load <= 1.0


def same(one: Sampled, other: Sampled, *, exact: bool) -> None:
    assert one.token.tolist() == other.token.tolist() and one.stop == other.stop
    assert one.version.tolist() == other.version.tolist()
    if exact:
        assert one.logp.tobytes() == other.logp.tobytes()
    else:
        assert np.allclose(one.logp, other.logp, atol=1e-4)


@pytest.mark.parametrize("kv_tokens", [96, 160, 2304])
def test_a_sample_is_the_same_however_little_memory_there_is(net: Decoder, kv_tokens: int) -> None:
    asked = prompts(1, 8)
    wanted, _ = drawn(plain(net), asked, 3, 50)
    engine = paged(net, kv_tokens)
    found, most = drawn(engine, asked, 3, 50)
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        same(found[name], one, exact=net.batch_invariant)
    back = sum(one.given_back for one in found.values())
    assert (back > 0) == (kv_tokens < 2304), back
    # a text of its own length has room for 96: more are drawn at once than such rows would be
    assert most > kv_tokens // LENGTH or kv_tokens == 2304
    assert engine._pages.free == engine._pages.total, "a page is lost"
    assert max(one.kv_load for one in found.values()) > 0.8 or kv_tokens == 2304


def test_the_youngest_is_given_back_and_goes_on_first(net: Decoder) -> None:
    engine = paged(net, 144, ends=Ends(()))
    engine.submit(0, [5] * 30, 1, limit=60)
    for _ in range(20):
        assert not engine.step()
    engine.submit(1, [6] * 10, 1, limit=40)
    engine.submit(2, [7] * 10, 1, limit=40)
    began, ended = list[int](), list[Sampled]()
    while engine.live or engine.waiting:
        ended += engine.step()
        began += [one for one in engine._rows[0, : engine.live].tolist() if one not in began]
    assert began == [0, 1, 2] and [one.group for one in ended] == [0, 1, 2]
    assert [one.given_back for one in ended] == [0, 1, 1]
    assert [len(one.token) for one in ended] == [60, 40, 40]


def test_samples_of_a_group_share_the_pages_of_their_prompt(net: Decoder) -> None:
    engine = paged(net, 10 * PAGE, ends=Ends(()))
    engine.submit(0, [5] * (3 * PAGE + 2), 3, limit=8)
    engine.step()
    assert engine.live == 3 and engine._pages.total - engine._pages.free == 3 + 3
    engine.submit(1, [6] * (4 * PAGE), 3, limit=4)
    engine.step()
    assert engine.live == 3 and engine.waiting == 1, "no page to spare"


def test_a_group_too_large_for_the_budget_begins_with_the_samples_that_fit(net: Decoder) -> None:
    asked = [[5] * 50]
    found, most = drawn(paged(net, 96, ends=Ends(())), asked, 20, 10)
    wanted, _ = drawn(plain(net, ends=Ends(())), asked, 20, 10)
    assert most < 20
    for name, one in wanted.items():
        same(found[name], one, exact=net.batch_invariant)


def test_a_long_prompt_is_computed_in_parts_beside_others(
    net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.actors.engine.torch_engine.PART", 12)
    asked = prompts(3, 8)
    wanted, _ = drawn(plain(net), asked, 3, 40)
    for kv_tokens in (96, 240):
        found, _ = drawn(paged(net, kv_tokens), asked, 3, 40)
        for name, one in wanted.items():
            same(found[name], one, exact=net.batch_invariant)


def test_a_long_sample_that_came_from_another_engine_keeps_its_memory(
    net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.actors.engine.torch_engine.PART", 12)
    asked = [[5] * 10, [6] * 10]
    wanted, _ = drawn(plain(net, ends=Ends(())), asked, 1, 60)
    other = plain(net, ends=Ends(()))
    other.submit(1, asked[1], 1, limit=60)
    for _ in range(30):
        other.step()
    (sample,) = other.withdraw([1])
    # both rows are live when memory ends, and the sample that came is not the youngest
    engine = paged(net, 96, rows=2, ends=Ends(()))
    engine.submit(0, asked[0], 1, limit=60)
    engine.step()
    engine.resume(sample, asked[1], limit=60)
    ended = list[Sampled]()
    while engine.live or engine.waiting:
        ended += engine.step()
        check(engine)
    assert {one.group: one.given_back for one in ended} == {0: 1, 1: 0}
    for one in ended:
        same(one, wanted[one.group, 0], exact=net.batch_invariant)


def test_a_sample_that_was_given_back_goes_on_in_another_engine(net: Decoder) -> None:
    asked = prompts(2, 4)
    wanted, _ = drawn(plain(net, ends=Ends(())), asked, 2, 40)
    engine, other = (paged(net, 112, ends=Ends(())) for _ in range(2))
    for group, prompt in enumerate(asked):
        engine.submit(group, prompt, 2, limit=40)
    ended = list[Sampled]()
    while not engine._returns:
        ended += engine.step()
    for sample in engine.withdraw(range(4)):
        other.resume(sample, asked[sample.group], limit=40)
    assert not engine.live and not engine.waiting and not engine._returns
    assert engine._pages.free == engine._pages.total
    while other.live or other.waiting:
        ended += other.step()
        check(other)
    assert len(ended) == 8 and not other._returns
    for one in ended:
        same(one, wanted[one.group, one.index], exact=net.batch_invariant)


@pytest.mark.parametrize("on_update", ["keep", "recompute", "finish"])
def test_new_weights_come_while_samples_are_given_back(net: Decoder, on_update: Any) -> None:
    engine = paged(net, 128, on_update=on_update, ends=Ends(()))
    asked, found = prompts(4, 6), list[Sampled]()
    for group, prompt in enumerate(asked):
        engine.submit(group, prompt, 2, limit=30)
    params = dict(engine._adapted.named_parameters())
    for version in range(1, 4000):
        found += engine.step()
        check(engine)
        if not engine.live and not engine.waiting:
            break
        if version % 7 == 0:
            moved = {name: x + 0.01 for name, x in params.items()}
            for _ in engine.take(version, moved, lambda: True):
                found += engine.step()
    assert len(found) == 12 and all(len(one.token) == 30 for one in found)
    assert any(one.given_back for one in found)
    for one in found:
        assert (np.diff(one.version) >= 0).all()
        if on_update == "finish":
            assert len(set(one.version.tolist())) == 1


def test_a_sample_that_was_given_back_is_finished_before_new_weights_are_taken(
    net: Decoder,
) -> None:
    engine = paged(net, 96, on_update="finish", ends=Ends(()))
    engine.submit(0, [5] * 30, 1, limit=60)
    engine.submit(1, [6] * 10, 1, limit=40)
    while not engine._returns:
        assert not engine.step()
    params = {name: x + 0.01 for name, x in engine._adapted.named_parameters()}
    for _ in engine.take(1, params, lambda: True):
        pass
    engine.submit(2, [7] * 10, 1, limit=5)
    found = list[Sampled]()
    while engine.live or engine.waiting:
        found += engine.step()
    assert [(one.group, set(one.version.tolist())) for one in found] == [
        (0, {0}),
        (1, {0}),
        (2, {1}),
    ]


def test_a_sample_that_ended_goes_on(net: Decoder) -> None:
    def turns(engine: Any) -> list[list[int]]:
        said = []
        texts = {index: [5, 6, 7] for index in range(4)}
        engine.submit(0, [5, 6, 7], 4, limit=6)
        while engine.live or engine.waiting:
            for one in engine.step():
                text = texts[one.index]
                text += [*one.token.tolist(), 8]
                said.append([one.index, *one.token.tolist()])
                if len(text) < 60:
                    engine.go_on(Continuation(0, one.index, text, 3, 6))
        return sorted(said)

    assert turns(paged(net, 96, ends=Ends(()))) == turns(plain(net, ends=Ends(())))


def test_a_budget_below_one_sample_is_refused(net: Decoder) -> None:
    with pytest.raises(ValueError, match=r"kv_tokens: must be at least 96, .*\(96 tokens\).* 95"):
        paged(net, 95)


def test_pages_are_shared_moved_and_freed() -> None:
    pages = Pages(torch.zeros(1, 8, PAGE, 2, 4), 4, 3 * PAGE)
    zero, tokens = np.zeros(1, np.int64), np.array([2 * PAGE + 3])
    pages.grow(zero, tokens)
    places = pages.places(torch.zeros(3, dtype=torch.int64), torch.tensor([0, PAGE, 2 * PAGE]))
    x = torch.arange(12.0).view(3, 1, 4)
    pages.write(0, places, x, -x)
    pages.share(np.array([0, 0]), np.array([0, 1]), np.array([35, 35]))
    assert pages.free == 8 - 4 and pages_of(35) == 3
    pages.move(np.array([1]), np.array([3]))
    pages.drop(zero)
    key, value = pages.read_text(0, 3, 35)
    assert (key[0, [0, 16, 32]] == x[:, 0]).all() and (value[0, 32] == -x[2, 0]).all()
    slots = torch.tensor([3, 3])
    assert (pages.read_tokens(0, slots, torch.tensor([16, 32]))[0] == x[1:]).all()
    pages.drop(np.array([3]))
    assert pages.free == 8
