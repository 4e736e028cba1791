"""An engine computes in the number format of the run: its log-probabilities are the learner's but
for rounding, its weights take half the memory, and small adapters are not rounded away.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import equipoise as eq
from equipoise.actors.engine.engine import OnUpdate, Sampled
from equipoise.actors.engine.paged_engine import PagedEngine
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.algorithms.grpo import GRPO
from equipoise.language import architectures, models
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.decoding import Decoding
from equipoise.nets.packing import packed_texts
from equipoise.nets.precision import autocast
from equipoise.nets.room import rounded
from equipoise.nets.token_logp import token_logp
from equipoise.record.checkpoint import params_sha256
from equipoise.sources.text import texts_of
from equipoise.types import Placement, Policy, Program, TaskSource

LOW = torch.bfloat16
Text = Callable[[int], list[int]]
ENGINES: dict[str, Callable[..., TorchEngine]] = {
    "a row each": TorchEngine,
    "pages": partial(PagedEngine, kv_tokens=2048),
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "tie_word_embeddings": False},
    "qwen2": {"family": "qwen2", "attention_bias": True, "num_key_value_heads": 1},
    "qwen3": {"family": "qwen3", "tie_word_embeddings": False},
}
SHAPE: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}


def decoder(family: str, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(DecoderConfig(**SHAPE | FAMILIES[family]))


def prompt(group: int) -> list[int]:
    return [3 + group, 5, 7, 11][: 1 + group % 4]


def engine_of(net: Decoder, name: str = "a row each", **how: Any) -> TorchEngine:
    given: dict[str, Any] = {"rows": 24, "length": 40, "ends": Ends((0,)), "seed": 3}
    return ENGINES[name](rounded(net, how.pop("precision", "bf16")), **given | how)


def drawn(
    engine: TorchEngine, groups: range = range(5), text: Text = prompt, limit: int = 24
) -> list[Sampled]:
    for group in groups:
        engine.submit(group, text(group), 4, limit=limit)
    found: list[Sampled] = []
    while engine.live or engine.waiting:
        found += engine.step()
    return sorted(found, key=lambda one: (one.group, one.index))


def gap(net: Decoder, samples: list[Sampled], text: Text = prompt) -> float:
    """The mean distance of the engine's log-probabilities from the learner's in bf16."""
    groups = sorted({one.group for one in samples})
    rows = [[one.token.tolist() for one in samples if one.group == group] for group in groups]
    data = packed_texts([(text(group), row) for group, row in zip(groups, rows, strict=True)])
    with torch.no_grad(), autocast("bf16"):
        logp, _ = token_logp(net, data)
    found = np.concatenate([one.logp for one in samples])
    return float(np.abs(logp[torch.as_tensor(data.chosen)].numpy() - found).mean())


@pytest.mark.few(3)
@pytest.mark.parametrize("on_update", ["keep", "recompute", "finish"])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_draws_is_what_the_learner_computes(
    family: str, name: str, on_update: OnUpdate
) -> None:
    net, later = decoder(family), decoder(family, seed=1)
    engine = engine_of(net, name, on_update=on_update)
    samples = drawn(engine)
    assert 0 < gap(net, samples) < 0.03
    assert gap(later, samples) > 0.3
    for _ in engine.take(1, dict(later.named_parameters()), lambda: True):
        pass
    samples = drawn(engine)
    assert {1} == {int(one.version[0]) for one in samples}
    assert 0 < gap(later, samples) < 0.03


@pytest.mark.parametrize("on_update", ["keep", "recompute", "finish"])
@pytest.mark.parametrize("name", ENGINES)
def test_weights_that_come_while_it_draws_are_drawn_from(name: str, on_update: OnUpdate) -> None:
    net, later = decoder("qwen3"), decoder("qwen3", seed=1)
    engine = engine_of(net, name, on_update=on_update)
    for group in range(5):
        engine.submit(group, prompt(group), 4, limit=24)
    found = engine.step()
    for _ in engine.take(1, dict(later.named_parameters()), lambda: True):
        found += engine.step()
    found += drawn(engine, range(5, 7))
    assert len(found) == 28 and all(np.isfinite(one.logp).all() for one in found)
    begun = [one for one in found if (one.version == 1).all()]
    assert begun and gap(later, sorted(begun, key=lambda one: (one.group, one.index))) < 0.03


@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_rounded_and_nothing_else(family: str) -> None:
    net = decoder(family)
    engine = engine_of(net)
    now = engine._now.net
    head = now.head
    for module in now.modules():
        for weight in module.parameters(recurse=False):
            assert weight.dtype == (
                LOW if type(module) is nn.Linear or weight is head else torch.float32
            )
    room = engine._now.decoding
    assert isinstance(room, Decoding) and room._store.dtype == torch.float32
    token = torch.tensor([[3, 5, 7], [4, 5, 0]])
    hidden = engine._now.decoding.prefill(token, torch.tensor([3, 2]), torch.tensor([0, 1]))
    assert hidden.dtype == torch.float32  # also where the embedding is the head
    # evaluations draw with a network that is saved afterwards
    assert all(
        x.dtype == torch.float32 and torch.equal(x, other)
        for x, other in zip(net.parameters(), decoder(family).parameters(), strict=True)
    )


def test_a_long_prompt_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.actors.engine.torch_engine.PART", 5)
    net = decoder("qwen2")
    engine = engine_of(net, rows=4)

    def text(group: int) -> list[int]:
        return [3 + n % 7 for n in range(17)]

    assert 0 < gap(net, drawn(engine, range(1), text, 20), text) < 0.03


def test_adapters_are_not_rounded_away() -> None:
    """An update of adapters may be less than a bf16 weight can hold."""
    net = decoder("llama")
    lora.add_adapters(net, {"rank": 2, "alpha": 4.0})
    with torch.no_grad():
        for layer in lora.layers_of(net).values():
            layer.lora_B.normal_(std=1e-3)
    rounded = engine_of(copy.deepcopy(net), precision="bf16")
    exact = engine_of(net, precision="fp32")
    for one, other in zip(drawn(rounded), drawn(exact), strict=True):
        assert one.token.tolist() == other.token.tolist()
        np.testing.assert_allclose(one.logp, other.logp, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_format_that_a_cpu_lacks_changes_nothing(precision: Any) -> None:
    net = decoder("llama")
    for one, other in zip(
        drawn(engine_of(decoder("llama"), precision=precision)),
        drawn(engine_of(net, precision="fp32")),
        strict=True,
    ):
        assert one.logp.tolist() == other.logp.tolist()


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mixtral", "cohere"])
def test_a_model_that_transformers_computes(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.language.test_architectures import model_in

    model_in(tmp_path, kind)
    net: Decoder = architectures.build(asdict(models.find(str(tmp_path)).config), str(tmp_path))
    engine = engine_of(net, length=14)  # gemma2's window is 16

    def text(group: int) -> list[int]:
        return [0, 1, 2, 3][: 1 + group]

    assert 0 < gap(net, drawn(engine, range(4), text, 8), text) < 0.01
    weights = [x for x in engine._now.net.parameters() if x.dtype == LOW]
    assert weights


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", LOW)])
def test_generators_and_evaluations_compute_in_the_runs_precision(
    precision: Any, dtype: torch.dtype
) -> None:
    algorithm: Any = GRPO()
    program = Program(
        source=TaskSource(task="sort", model="tiny"),
        policies={"main": Policy(algorithm=algorithm, unroll=1, batch=8)},
        placement=Placement(precision=precision),
    )
    source = texts_of(program)
    text = source.text()
    for greedy in (False, True):
        net = architectures.build(text.spec.model, text.spec.weights)
        engine = source.engine(text, algorithm, net, greedy=greedy)
        assert engine._now.net.head.dtype == dtype


def test_what_is_saved_of_a_run_in_bf16_is_float32(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "tiny", "batch": 32, "steps": 64, "actors": 1, "max_lag": 0}
    given |= {"evaluate_episodes": 4, "evaluate_every": 32, "on": "serial", "precision": "bf16"}
    done = eq.train("sort", "grpo", out=tmp_path / "run", tensorboard=False, **given)
    files = [*(tmp_path / "run/checkpoints").rglob("weights.safetensors")]
    assert {file.parent.parent.name for file in files} == {"best", "checkpoints"}
    for file in files:
        assert {x.dtype for x in load_file(file).values()} == {torch.float32}
    last = load_file(tmp_path / "run/checkpoints/step_64/weights.safetensors")
    assert done.summary["params_sha256"] == params_sha256(last)
