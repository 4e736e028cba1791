"""Batch-invariant mode: a token has the same bits in the engine and in the learner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from equipoise.actors.engine import torch_engine
from equipoise.actors.engine.engine import OnUpdate, Sampled
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.nets import decoding, invariant, tiling, token_logp
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.packing import packed_texts
from equipoise.types.packed import Packed

LENGTH = 96
PROMPTS = [1, 5, 32, 33, 50, 7, 8, 64, 3]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small are far slower with two threads on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _net(family: str = "llama", keys: int = 2, size: int = 8, hidden: int = 20) -> Decoder:
    torch.manual_seed(0)
    net = Decoder(
        DecoderConfig(
            family=family,  # type: ignore[arg-type]
            vocab_size=37,
            hidden_size=hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=keys,
            head_dim=size,
            intermediate_size=36,
            max_position_embeddings=LENGTH,
            initializer_range=0.3,
            attention_bias=family == "qwen2",
            tie_word_embeddings=family != "llama",
        )
    )
    net.batch_invariant = True
    return net


def _engine(net: Decoder, rows: int, on_update: OnUpdate = "keep") -> TorchEngine:
    return TorchEngine(
        copy.deepcopy(net),
        rows=rows,
        length=LENGTH,
        ends=Ends((0,)),
        seed=1,
        temperature=0.9,
        on_update=on_update,
    )


def _drawn(net: Decoder, rows: int, lengths: list[int], samples: int = 3) -> list[Sampled]:
    """Samples of prompts of these lengths, in an engine of ``rows`` rows."""
    engine = _engine(net, rows)
    for group, length in enumerate(lengths):
        engine.submit(group, _prompt(group, length), samples, limit=LENGTH - length)
    found = list[Sampled]()
    while engine.live or engine.waiting:
        found += engine.step()
    return sorted(found, key=lambda one: (one.group, one.index))


def _prompt(group: int, length: int) -> list[int]:
    return np.random.default_rng(group).integers(1, 37, length).tolist()


def _learned(
    net: Decoder, lengths: list[int], samples: list[Sampled]
) -> tuple[Packed, torch.Tensor]:
    data = packed_texts(
        [
            (
                _prompt(group, length),
                [one.token.tolist() for one in samples if one.group == group],
            )
            for group, length in enumerate(lengths)
        ]
    )
    logp, _ = token_logp.token_logp(net, data, temperature=0.9)
    return data, logp


def _gap(net: Decoder, rows: int, lengths: list[int]) -> float:
    """The greatest difference of the engine's and the learner's log-probabilities."""
    return _between(net, lengths, _drawn(net, rows, lengths))


def _between(net: Decoder, lengths: list[int], samples: list[Sampled]) -> float:
    data, logp = _learned(net, lengths, samples)
    drawn = np.concatenate([one.logp for one in samples])
    return float(np.abs(logp.detach().numpy()[data.chosen.numpy()] - drawn).max())


SHAPES = [  # family, key heads, size of a head, hidden size
    ("llama", 4, 6, 20),
    ("qwen2", 1, 8, 33),
    ("qwen3", 2, 16, 64),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("family", "keys", "size", "hidden"), SHAPES)
def test_the_learner_has_the_bits_of_the_engine(
    family: str, keys: int, size: int, hidden: int
) -> None:
    net = _net(family, keys, size, hidden)
    assert _gap(net, 7, PROMPTS) == 0.0
    net.batch_invariant = False
    assert 0.0 < _gap(net, 7, PROMPTS) < 1e-4  # so the mode is the reason


def test_the_bits_do_not_depend_on_threads() -> None:
    net = _net()
    samples = _drawn(net, 4, [5, 33])
    _, one = _learned(net, [5, 33], samples)
    torch.set_num_threads(2)
    _, two = _learned(net, [5, 33], samples)
    assert torch.get_num_threads() == 2
    assert torch.equal(one, two)


def test_a_sample_is_the_same_whatever_is_drawn_with_it() -> None:
    net = _net()
    alone, many = _drawn(net, 3, PROMPTS[:5]), _drawn(net, 15, PROMPTS[:5])
    for one, other in zip(alone, many, strict=True):
        assert np.array_equal(one.token, other.token)
        assert np.array_equal(one.logp, other.logp)


def test_a_long_prompt_in_parts_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "PART", 9)
    assert _gap(_net(), 7, [50, 9, 10, 64, 27]) == 0.0


def test_keys_that_are_computed_again_have_the_same_bits() -> None:
    net = _net()
    engine = _engine(net, 6, on_update="recompute")
    for group, length in enumerate([40, 3]):
        engine.submit(group, _prompt(group, length), 3, limit=LENGTH - length)
    found = list[Sampled]()
    for step in range(LENGTH):
        if step % 5 == 2:
            for _ in engine.take(0, dict(net.named_parameters()), lambda: True):
                pass
        found += engine.step() if engine.live or engine.waiting else []
    assert _between(net, [40, 3], sorted(found, key=lambda one: (one.group, one.index))) == 0.0


def test_the_gradient_is_that_of_the_plain_layers() -> None:
    net = _net("qwen2", 2, 8, 24).double()
    samples = _drawn(net, 6, [5, 33])
    found = list[torch.Tensor]()
    for mode in (True, False):
        net.batch_invariant = mode
        net.zero_grad()
        _, logp = _learned(net, [5, 33], samples)
        (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert found[0].abs().max() > 0.1
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def _other_rows(patch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows, which MKL computes otherwise than larger ones."""
    patch.setattr(invariant, "ROWS", 3)


def _other_tiles(patch: pytest.MonkeyPatch) -> None:
    """Tiles of eight keys, whose sums are added in another order."""
    for module in (tiling, invariant):
        patch.setattr(module, "KEYS", 8)


def _no_padding(patch: pytest.MonkeyPatch) -> None:
    """As many rows as there are: ``silu`` computes the last ones otherwise."""
    patch.setattr(invariant, "padded", lambda x: x)
    patch.setattr(invariant, "_linear", torch.nn.functional.linear)


PLANTED = (_other_rows, _other_tiles, _no_padding)


@pytest.mark.few(3)
@pytest.mark.parametrize("plant", PLANTED)
def test_an_engine_of_other_blocks_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _net("llama", 2, 8, 64)
    with monkeypatch.context() as patch:
        patch.setattr(decoding.Exact, "check", lambda exact: None)
        plant(patch)
        samples = _drawn(net, 3, PROMPTS)
    assert _between(net, PROMPTS, samples) > 0.0


def test_an_engine_refuses_a_machine_whose_sums_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _no_padding(monkeypatch)
    with pytest.raises(RuntimeError, match=r"source.batch_invariant: must be false on this"):
        _engine(_net("llama", 2, 8, 64), 3)
