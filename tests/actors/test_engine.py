"""The engine draws what the model says, stamps it with the weights that drew it, and a sample
depends on nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine import drawing, torch_engine
from equipoise.actors.engine.engine import OnUpdate, Sampled
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets import decoding
from equipoise.nets.decoder import Decoder
from equipoise.nets.token_logp import token_logp
from equipoise.types.packed import Packed, Stop
from tests.actors.decoders import small_decoder

EOS, SEED, LENGTH = 3, 5, 64
Params = dict[str, torch.Tensor]
Samples = dict[tuple[int, int], Sampled]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small are slower with two threads, and on a busy machine far slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def net() -> Decoder:
    return small_decoder(words=12, length=LENGTH)


def _prompt(group: int) -> list[int]:
    return [1 + group % 5] * (1 + group % 4) + [2]


def _engine(
    net: Decoder, rows: int = 64, kind: type[TorchEngine] = TorchEngine, **settings: Any
) -> TorchEngine:
    given: dict[str, Any] = {"ends": Ends((EOS,)), "seed": SEED, "length": LENGTH} | settings
    return kind(copy.deepcopy(net), rows=rows, **given)


def _submit(engine: TorchEngine, groups: Iterable[int], samples: int = 4, limit: int = 30) -> None:
    for group in groups:
        engine.submit(group, _prompt(group), samples, limit=limit)


def _update(engine: TorchEngine, version: int, params: Mapping[str, torch.Tensor]) -> None:
    """Give it new weights at once."""
    for _ in engine.take(version, params, lambda: True):
        pass


def _run(engine: TorchEngine, before: Callable[[int], None] = lambda step: None) -> Samples:
    """All samples, by group and index; ``before`` each step is told its number."""
    found: Samples = {}
    for step in range(10_000):
        if not engine.live and not engine.waiting:
            return found
        before(step)
        found |= {(one.group, one.index): one for one in engine.step()}
    raise AssertionError("the engine does not end")


def _moved(params: Params, seed: int, far: float = 0.03) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {name: x + far * torch.randn(x.shape, generator=generator) for name, x in params.items()}


def _versions(net: Decoder, count: int) -> dict[int, Params]:
    versions: dict[int, Params] = {0: dict(net.state_dict())}
    for version in range(1, count):
        versions[version] = _moved(versions[version - 1], version)
    return versions


def _packed(samples: list[Sampled]) -> Packed:
    """The samples, each behind a prompt of its own."""
    prompts = [_prompt(one.group) for one in samples]
    sizes = [(len(prompt), len(one.token)) for prompt, one in zip(prompts, samples, strict=True)]
    sample = np.concatenate([np.repeat([-1, i], size) for i, size in enumerate(sizes)])
    n, m = len(sample), len(samples)
    return Packed(
        token=np.concatenate(
            [np.append(prompt, one.token) for prompt, one in zip(prompts, samples, strict=True)]
        ),
        position=np.concatenate([np.arange(sum(size)) for size in sizes]),
        sample=sample,
        chosen=sample >= 0,
        logp=np.zeros(n, np.float32),
        version=np.zeros(n, np.int64),
        reward=np.zeros(n, np.float32),
        prompt=np.array([size[0] for size in sizes]),
        group=np.arange(m),
        stop=np.ones(m, np.int64),
        task=np.zeros(m, np.int64),
        refills=np.zeros(m, np.int64),
    )


@torch.no_grad()
def _errors(
    net: Decoder, versions: dict[int, Params], samples: Samples, temperature: float = 1.0
) -> np.ndarray:
    """|difference| of each token's log-probability from that of its stamped version, by a whole forward without a cache."""  # noqa: E501
    packed, net = _packed(list(samples.values())), copy.deepcopy(net)
    logp, stamp = (
        np.concatenate([getattr(one, name) for one in samples.values()])
        for name in ("logp", "version")
    )
    errors = np.full(len(logp), np.nan)
    for version in np.unique(stamp):
        net.load_state_dict(versions[int(version)])
        whole = token_logp(net, packed, temperature=temperature)[0].numpy()[packed.chosen]
        errors[stamp == version] = np.abs(whole - logp)[stamp == version]
    return errors


def _complaints(
    net: Decoder, versions: dict[int, Params], samples: Samples, temperature: float
) -> list[str]:
    """What is wrong with the samples."""
    errors, found = _errors(net, versions, samples, temperature), []
    if errors.mean() > 1e-5 or np.exp(errors).mean() > 1.001:
        found.append("logp")
    ends = [(one.token == EOS).tolist() for one in samples.values()]
    if any(
        any(end[:-1]) or end[-1] != (one.stop == Stop.EOS)
        for end, one in zip(ends, samples.values(), strict=True)
    ):
        found.append("eos")
    return found


def _same(a: Samples, b: Samples, *, bits: bool = False) -> bool:
    def alike(x: Sampled, y: Sampled) -> bool:
        near = np.array_equal if bits else lambda p, q: np.allclose(p, q, atol=1e-5)
        exact = all(
            np.array_equal(getattr(x, name), getattr(y, name))
            for name in ("token", "version", "stop")
        )
        return bool(exact and near(x.logp, y.logp))

    return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)


# ------------------------------------------------------------------------------------ what is drawn


@pytest.mark.few(9)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_logps_are_those_of_a_whole_forward_after_every_update(
    net: Decoder, rows: int, temperature: float
) -> None:
    engine, versions, found = (
        _engine(net, rows, temperature=temperature),
        _versions(net, 3),
        Samples(),
    )
    for version, params in versions.items():
        _update(engine, version, params)
        _submit(engine, range(8 * version, 8 * version + 8), min(rows, 4))
        found |= _run(engine)
    assert {int(v) for one in found.values() for v in one.version} == {0, 1, 2}
    assert max(len(one.token) for one in found.values()) > 8
    assert _complaints(net, versions, found, temperature) == []


def test_pairs_of_tokens_come_as_often_as_softmax_says(net: Decoder) -> None:
    engine = _engine(net, rows=4000, ends=Ends(), temperature=1.3)
    for group in range(5):
        engine.submit(group, [1, 2], 4000, limit=2)
    tokens = np.stack([one.token for one in _run(engine).values()])
    assert tokens.shape == (20_000, 2)
    counts = np.zeros((12, 12))
    np.add.at(counts, tuple(tokens.T), 1)
    texts = torch.tensor([[1, 2, token] for token in range(12)])
    cache = net.cache(12, 3, torch.float32)
    with torch.no_grad():
        first = net.logits(net.prefill(texts[:1, :2], torch.tensor([2]), cache, torch.arange(1)))
        second = net.logits(net.prefill(texts, torch.full((12,), 3), cache, torch.arange(12)))
    wanted = 20_000 * ((first / 1.3).softmax(-1).T * (second / 1.3).softmax(-1)).double().numpy()
    assert ((counts - wanted) ** 2 / wanted).sum() < 199.0  # chi-square of 143 degrees: 99.9 %


def test_a_sample_is_the_same_in_any_batch_row_and_order(net: Decoder) -> None:
    engines = [_engine(net, rows=rows) for rows in (48, 9, 4, 4)]
    orders = [range(12), range(11, -1, -1), range(12), [*range(6, 12), *range(6)]]
    for engine, order in zip(engines, orders, strict=True):
        _submit(engine, order)
    first, *others = map(_run, engines)
    assert len(first) == 48 and all(_same(first, other) for other in others)
    engine = _engine(net, rows=9, seed=SEED + 1)
    _submit(engine, range(12))
    assert not _same(first, _run(engine))


def test_greedy_takes_the_likeliest_token_of_each_step(net: Decoder) -> None:
    engine = _engine(net, greedy=True)
    _submit(engine, range(8), samples=2)
    found = _run(engine)
    for one in found.values():
        text = _prompt(one.group)
        for token in one.token:
            cache = net.cache(1, LENGTH, torch.float32)
            with torch.no_grad():
                logits = net.logits(
                    net.prefill(
                        torch.tensor([text]), torch.tensor([len(text)]), cache, torch.arange(1)
                    )
                )
            assert int(logits.argmax()) == token
            text = [*text, int(token)]
    assert _complaints(net, _versions(net, 1), found, 1.0) == []


# ----------------------------------------------------------------------------- while weights change


def _updated(
    net: Decoder, on_update: OnUpdate, kind: type[TorchEngine] = TorchEngine, **settings: Any
) -> tuple[Samples, dict[int, Params]]:
    """Samples drawn while weights change at every fourth step."""
    engine, versions = _engine(net, 16, kind, on_update=on_update, **settings), _versions(net, 12)
    _submit(engine, range(16), limit=40)

    def update(step: int) -> None:
        if step % 4 == 3 and step // 4 + 1 in versions:
            _update(engine, step // 4 + 1, versions[step // 4 + 1])

    return _run(engine, update), versions


def test_with_recompute_each_logp_is_that_of_its_stamped_version(net: Decoder) -> None:
    found, versions = _updated(net, "recompute")
    assert max(len(np.unique(one.version)) for one in found.values()) >= 5
    assert all((np.diff(one.version) >= 0).all() for one in found.values())
    assert _complaints(net, versions, found, 1.0) == []


def test_with_keep_a_logp_differs_where_older_weights_made_keys_and_values(net: Decoder) -> None:
    found, versions = _updated(net, "keep")
    fresh = {key: one for key, one in found.items() if len(np.unique(one.version)) == 1}
    spanning = {key: one for key, one in found.items() if key not in fresh}
    assert _complaints(net, versions, fresh, 1.0) == []
    assert 1e-4 < _errors(net, versions, spanning).mean() < 0.5


@pytest.mark.parametrize("on_update", ["keep", "recompute"])
def test_weights_that_come_part_by_part_draw_when_all_are_there(
    net: Decoder, on_update: OnUpdate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample is drawn as with an update at once, at the moment of its last part; those that
    were rewritten never draw.
    """
    monkeypatch.setattr(decoding, "OUTPUTS", 5)
    monkeypatch.setattr(decoding, "PIECE", 32)
    versions, last = _versions(net, 3), dict[int, int]()
    engine, at_once = (_engine(net, 16, on_update=on_update) for _ in range(2))
    torn = {name: torch.full_like(x, torch.nan) for name, x in versions[0].items()}

    def parts() -> Iterator[None]:
        yield from engine.take(9, torn, lambda: False)
        for version in (1, 2):
            yield from engine.take(version, versions[version], lambda: True)
            last[version] = step

    coming, step = parts(), 0
    found: dict[TorchEngine, Samples] = {engine: {}, at_once: {}}
    for one in (engine, at_once):
        _submit(one, range(12))
    while engine.live or engine.waiting:
        found[engine] |= {(one.group, one.index): one for one in engine.step()}
        step += 1
        for _ in range(6):
            next(coming, None)
    for step in range(10_000):
        for version, when in last.items():
            if when == step:
                _update(at_once, version, versions[version])
        if not at_once.live and not at_once.waiting:
            break
        found[at_once] |= {(one.group, one.index): one for one in at_once.step()}
    assert (
        last[1] > 10 and last[2] > last[1] + 5 and len(found[engine]) == 48 == len(found[at_once])
    )
    for key, mine in found[engine].items():
        other = found[at_once][key]
        assert np.array_equal(mine.token, other.token) and np.array_equal(
            mine.version, other.version
        )
        assert np.array_equal(mine.logp, other.logp)
    assert {int(version) for mine in found[engine].values() for version in mine.version} == {
        0,
        1,
        2,
    }


def test_with_finish_each_sample_has_one_version_and_the_update_comes(net: Decoder) -> None:
    engine, versions = _engine(net, 16, on_update="finish"), _versions(net, 3)
    _submit(engine, range(8))
    found = {(one.group, one.index): one for one in engine.step()}
    waiting = engine.waiting
    assert waiting > 0
    _update(engine, 1, versions[1])
    _update(engine, 2, versions[2])  # the newest counts
    assert engine.version == 0
    while engine.live:
        found |= {(one.group, one.index): one for one in engine.step()}
        assert engine.waiting == waiting
    found |= _run(engine)
    assert len(found) == 32 and {tuple(np.unique(one.version)) for one in found.values()} == {
        (0,),
        (2,),
    }
    assert engine.version == 2 and _complaints(net, versions, found, 1.0) == []


def test_with_finish_no_group_begins_with_older_weights_than_those_that_waited(
    net: Decoder,
) -> None:
    """The first new weights wait for a running sample; others come part by part while a group is
    there that needs the first.
    """
    engine, versions = _engine(net, 16, on_update="finish"), _versions(net, 3)
    _submit(engine, [0])
    found = {(one.group, one.index): one for one in engine.step()}
    _update(engine, 1, versions[1])
    _submit(engine, [1])
    coming = engine.take(2, versions[2], lambda: True)
    for _ in coming:
        found |= {(one.group, one.index): one for one in engine.step()}
    found |= _run(engine)
    first = {
        group: {int(one.version[0]) for key, one in found.items() if key[0] == group}
        for group in (0, 1)
    }
    assert first == {0: {0}, 1: {2}} and _complaints(net, versions, found, 1.0) == []


class _Stale(TorchEngine):
    def take(self, version: int, params: Any, whole: Callable[[], bool]) -> Iterator[None]:
        return super().take(version, dict(self._now.params), whole)


class _Late(TorchEngine):
    def take(self, version: int, params: Any, whole: Callable[[], bool]) -> Iterator[None]:
        yield from super().take(version, params, whole)
        self.version -= 1


class _Shifted(TorchEngine):
    def _prefill(self, text: Any, lengths: Any, rows: Any) -> Any:
        return super()._prefill(text, lengths - 1, rows)


class _Padded(TorchEngine):
    def step(self) -> list[Sampled]:  # EOS is taken for padding and cut
        return [
            replace(one, token=one.token[:-1], logp=one.logp[:-1], version=one.version[:-1])
            if one.stop == Stop.EOS and len(one.token) > 1
            else one
            for one in super().step()
        ]


class _OneSided(TorchEngine):
    def step(self) -> list[Sampled]:
        def draw(logits: Any, temperature: float, number: Any, *rest: Any) -> Any:
            token, _ = right(logits, temperature, number, *rest)
            return token, logits.log_softmax(-1).gather(1, token[:, None])[:, 0]

        right = drawing.draw
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_engine, "draw", draw)
            return super().step()


BUGS = {
    "stale weights after an update": (_Stale, "logp"),
    "temperature on one side only": (_OneSided, "logp"),
    "logits shifted by one": (_Shifted, "logp"),
    "PAD = EOS": (_Padded, "eos"),
    "stamps one late": (_Late, "logp"),
}


@pytest.mark.few(9)
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(net: Decoder, bug: str) -> None:
    kind, complaint = BUGS[bug]
    found, versions = _updated(net, "recompute", kind, temperature=1.3)
    assert _complaints(net, versions, found, 1.3) == [complaint]


# --------------------------------------------------------------------------------------------- ends


def test_limits_and_eos_end_a_sample(net: Decoder) -> None:
    engine = _engine(net)
    _submit(engine, range(8), limit=3)
    found = _run(engine)
    assert {one.stop for one in found.values()} == {Stop.EOS, Stop.LENGTH}
    assert all(len(one.token) == 3 for one in found.values() if one.stop == Stop.LENGTH)
    assert all(one.token[-1] == EOS for one in found.values() if one.stop == Stop.EOS)
    engine.submit(90, [1] * 60, 2, limit=4)  # to the last place of the cache
    assert all(len(one.token) <= 4 for one in _run(engine).values())


def test_stop_strings_end_a_sample_with_the_token_that_completes_them(net: Decoder) -> None:
    letters = "abcdefghijkl"
    plain = _engine(net, 16)
    stopping = _engine(
        net,
        16,
        ends=Ends((EOS,), ("ba", "ee"), lambda drawn: "".join(letters[token] for token in drawn)),
    )
    for engine in (plain, stopping):
        _submit(engine, range(20))
    whole, found = _run(plain), _run(stopping)
    ends = 0
    for key, one in whole.items():
        text = "".join(letters[token] for token in one.token)
        places = [text.find(stop) + 2 for stop in ("ba", "ee") if stop in text]
        kept = min(places, default=len(text))
        stop = Stop.TEXT if places and (kept < len(text) or one.stop == Stop.LENGTH) else one.stop
        assert np.array_equal(found[key].token, one.token[:kept]) and found[key].stop == stop
        ends += stop == Stop.TEXT
    assert ends > 5


# --------------------------------------------------------------------------------------- bad inputs


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"temperature": 0.0},
            "temperature: expected a number above 0, got 0.0; for the likeliest token: greedy=True",
        ),
        ({"ends": Ends((12,))}, "eos: expected tokens below 12, the model's vocabulary, got 12"),
        (
            {"length": 65},
            "rows and length: expected at least 1 row of 2 to 64 tokens .*, got 64 of 65",
        ),
        (
            {"ends": Ends((EOS,), ("x",))},
            "stop: expected a decode function with the stop strings, got none",
        ),
        ({"on_update": "keeps"}, "on_update: expected one of keep, recompute, finish, got 'keeps'"),
    ],
)
def test_bad_settings_are_told_in_a_line(
    net: Decoder, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _engine(net, **settings)


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("prompt", "samples", "limit", "words"),
    [
        ([], 1, 1, "group 9: expected a prompt of tokens from 0 to 11, got no token"),
        ([1, 12], 1, 1, "group 9: expected a prompt of tokens from 0 to 11, got 1 to 12"),
        (
            [1] * 60,
            1,
            5,
            "group 9: expected 1 to 64 tokens \\(length\\) of prompt and sample, got 60 and 5",
        ),
        ([1], 65, 1, "group 9: expected 1 to 64 samples \\(rows\\), got 65"),
        ([1], 1, 0, "group 9: expected 1 to 64 tokens"),
    ],
)
def test_bad_groups_are_told_in_a_line(
    net: Decoder, prompt: list[int], samples: int, limit: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _engine(net).submit(9, prompt, samples, limit=limit)


def test_a_group_that_is_open_and_an_update_that_lacks_a_parameter_are_refused(
    net: Decoder,
) -> None:
    engine = _engine(net)
    engine.submit(1, [1], 1, limit=1)
    with pytest.raises(ValueError, match="group 1: expected a group that is not being drawn"):
        engine.submit(1, [1], 1, limit=1)
    params = dict(net.named_parameters())
    name = next(iter(params))
    del params[name]
    with pytest.raises(ValueError, match=f"got none named '{name}'"):
        _update(engine, 1, params)
    with pytest.raises(ValueError, match=rf"{name}: expected \[12, 16\], got \[1\]"):
        _update(engine, 1, params | {name: torch.ones(1)})
    _update(engine, 3, params | {name: torch.full((12, 16), torch.nan)})
    with pytest.raises(
        FloatingPointError, match="got nan or infinities from version 3 of the weights"
    ):
        engine.step()


def test_long_prompts_begin_a_few_at_a_time(net: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    first, few = _engine(net), _engine(net)
    for engine in (first, few):
        _submit(engine, range(12))
    whole = _run(first)
    monkeypatch.setattr(torch_engine, "PREFILL", 8)
    found = {(one.group, one.index): one for one in few.step()}
    assert few.waiting > 8
    assert _same(whole, found | _run(few))


@pytest.mark.parametrize("part", [torch_engine.PART, 1], ids=["whole", "in parts"])
def test_an_engine_that_gave_its_memory_back_draws_the_same(
    part: int, net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "PART", part)
    wanted, engine = _engine(net), _engine(net)
    _submit(engine, range(4))
    with pytest.raises(RuntimeError, match="without open samples, got 4 groups"):
        engine.give_back()
    _run(engine)
    engine.give_back()
    for one in (wanted, engine):
        _submit(one, range(4, 12), samples=8)
    expected, found = _run(wanted), _run(engine)
    assert found.keys() == expected.keys() and len(found) == 64
    for key, sample in expected.items():
        assert sample.token.tolist() == found[key].token.tolist()
        assert sample.logp.tolist() == found[key].logp.tolist()
