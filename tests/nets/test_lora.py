"""Adapters: they alone learn, off they are nothing, and merged they say the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import tree
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.learners.target import Target
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.packing import packed_texts
from equipoise.nets.scored import ScoredDecoder
from equipoise.nets.token_logp import token_logp
from equipoise.types import TextSpec
from equipoise.weights.store import WeightPlan

RANK4: dict[str, Any] = {"rank": 4, "alpha": 8.0}
SHAPE: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
DATA = packed_texts([([1, 2, 3], [[4, 5, 6, 0], [7, 0]]), ([2], [[8, 8, 1]])])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain(family: str = "qwen2", kind: type[Decoder] = Decoder, **more: Any) -> Decoder:
    torch.manual_seed(3)
    bias = {"attention_bias": True} if family == "qwen2" else {}
    return kind(DecoderConfig(family=family, **SHAPE | bias | more))  # type: ignore[arg-type]


def moved(net: Decoder, std: float = 0.1) -> Decoder:
    """The network after its adapters have learned something."""
    torch.manual_seed(9)
    for layer in lora.layers_of(net).values():
        nn.init.normal_(layer.lora_B, std=std)
    return net


def logp(net: Decoder) -> torch.Tensor:
    with torch.no_grad():
        return token_logp(net, DATA)[0]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_adapters_off_are_the_base_to_the_bit_and_merged_are_as_apart(family: str) -> None:
    base = plain(family)
    before = logp(base)
    net = lora.add_adapters(base, RANK4)
    assert torch.equal(logp(net), before)
    moved(net)
    assert not torch.allclose(logp(net), before, atol=1e-3)
    merged = lora.merged(net)
    torch.testing.assert_close(logp(merged), logp(net), atol=1e-5, rtol=0)
    assert tree.named_tensors(merged).keys() == tree.named_tensors(plain(family)).keys()
    assert not lora.layers_of(merged)


def test_only_adapters_are_parameters_and_are_saved() -> None:
    net = plain()
    names, full = set(dict(net.named_parameters())), sum(x.nbytes for x in net.parameters())
    lora.add_adapters(net, {**RANK4, "targets": ("q_proj", "v_proj")})
    kept = tree.named_tensors(net)
    assert kept.keys() == dict(net.named_parameters()).keys() | {lora.BASE}
    assert {name.rpartition(".")[2] for name in kept} == {"lora_A", "lora_B", "sha256"}
    assert all(".q_proj." in name or ".v_proj." in name for name in kept if name != lora.BASE)
    assert lora.base(net).keys() == names
    assert sum(x.nbytes for x in kept.values()) < 0.1 * full


def test_a_publish_takes_a_twentieth_of_the_bytes() -> None:
    wide: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 688}
    net = Decoder(DecoderConfig(**SHAPE | wide))
    full = WeightPlan(tree.named_tensors(net)).flat
    lora.add_adapters(net, RANK4)
    assert WeightPlan(tree.named_tensors(net)).flat < 0.05 * full


def test_a_copy_and_a_target_share_the_base() -> None:
    net = moved(lora.add_adapters(plain(), RANK4))
    target = Target(net, every=1 << 40, tau=1.0)
    for other in (lora.copied(net), target.net):
        mine = lora.base(net)
        assert all(x is mine[name] for name, x in lora.base(other).items())
        assert not {id(x) for x in other.parameters()} & {id(x) for x in net.parameters()}
    merged = dict(lora.merged(net).named_parameters())
    embedding = "model.embed_tokens.weight"
    assert merged[embedding].data_ptr() == lora.base(net)[embedding].data_ptr()
    changed = "model.layers.0.self_attn.q_proj.weight"
    assert merged[changed].data_ptr() != lora.base(net)[changed].data_ptr()


def test_a_critic_of_its_own_shares_the_base_too() -> None:
    spec = TextSpec(model=SHAPE, eos=(0,), prompt=8, completion=8, lora=RANK4)
    net: Any = TokenPPO(critic="own").network(spec)
    assert net.critic.body.model.embed_tokens.weight is net.model.embed_tokens.weight
    assert net.critic.body.model.layers[0].mlp.up_proj.lora_A.requires_grad


def test_a_reward_models_head_learns_whole() -> None:
    net = lora.add_adapters(plain(kind=ScoredDecoder), RANK4, learned=("score",))
    assert "score.weight" in dict(net.named_parameters())
    assert "score.weight" not in lora.base(net)


def descended(net: Decoder, steps: int = 3, rate: float = 0.1) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = -token_logp(net, DATA)[0].sum()
        loss.backward()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for one in net.parameters():
                assert one.grad is not None
                one.sub_(rate * one.grad)
                one.grad = None
    return losses


def test_learning_moves_the_adapters_and_not_a_bit_of_the_base() -> None:
    net = lora.add_adapters(plain("qwen3"), RANK4)
    before = {name: x.clone() for name, x in lora.base(net).items()}
    first = {name: x.clone() for name, x in tree.named_tensors(net).items()}
    losses = descended(net)
    assert losses[-1] < losses[0]
    assert all(torch.equal(x, before[name]) for name, x in lora.base(net).items())
    still = [name for name, x in tree.named_tensors(net).items() if torch.equal(x, first[name])]
    assert still == [lora.BASE]


def test_the_gradient_is_that_of_the_merged_weights() -> None:
    net = moved(lora.add_adapters(plain(), RANK4))
    whole = lora.merged(net)
    (-token_logp(net, DATA)[0].sum()).backward()
    (-token_logp(whole, DATA)[0].sum()).backward()
    dense = dict(whole.named_parameters())
    for name, layer in lora.layers_of(net).items():
        full = dense[f"{name}.weight"].grad
        assert full is not None and layer.lora_A.grad is not None and layer.lora_B.grad is not None
        found = layer.scale * layer.lora_B.detach().T @ full
        torch.testing.assert_close(layer.lora_A.grad, found, atol=1e-4, rtol=1e-4)
        found = layer.scale * full @ layer.lora_A.detach().T
        torch.testing.assert_close(layer.lora_B.grad, found, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------- the engine


class Deaf(TorchEngine):
    """A planted bug: the version is taken, the adapters are not (verl#7495)."""

    def _values(self, params: Mapping[str, torch.Tensor]) -> Any:
        return super()._values({name: x * 0 for name, x in params.items()})


def difference(kind: type[TorchEngine], *, running: bool) -> float:
    """The largest difference between the engine's log-probabilities after an update and the
    learner's.
    """
    net = lora.add_adapters(plain(), RANK4)
    own = copy.deepcopy(net)
    engine = kind(own, rows=8, length=32, ends=Ends(()), seed=1, on_update="recompute")
    losses = descended(net)
    assert losses[-1] < losses[0]
    engine.submit(0, [1, 2, 3], 4, limit=6)
    if running:
        engine.step()
    for _ in engine.take(5, tree.named_tensors(net), lambda: True):
        pass
    worst = 0.0
    while engine.live or engine.waiting:
        for done in engine.step():
            data = packed_texts([([1, 2, 3], [done.token.tolist()])])
            with torch.no_grad():
                found = token_logp(net, data)[0][3:].numpy()
            assert engine.version == 5
            mine = done.version == 5
            worst = max(worst, float(abs(found - done.logp)[mine].max()))
    return worst


@pytest.mark.parametrize("running", [False, True])
def test_after_an_update_the_engine_draws_by_the_adapters(running: bool) -> None:
    assert difference(TorchEngine, running=running) < 1e-5
    assert difference(Deaf, running=running) > 0.05  # the planted bug is seen


def test_an_engine_refuses_the_adapters_of_another_base() -> None:
    net, other = (
        lora.add_adapters(plain(rope_theta=x, initializer_range=y), RANK4)
        for x, y in ((1e4, 0.2), (1e4, 0.1))
    )
    engine = TorchEngine(net, rows=2, length=16, ends=Ends(()), seed=1)
    with pytest.raises(ValueError, match=r"update: must be adapters of this base .* of another"):
        engine.take(1, tree.named_tensors(other), lambda: True)


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": 25}, "source.lora: must be at most 24, the smaller side of "),
        ({"targets": ("q_projs",)}, "which matches none; did you mean 'q_proj'"),
        ({"targets": ("q_proj", "lm_head")}, "got 'lm_head', which matches none"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match="source.lora") as error:
        lora.add_adapters(plain(tie_word_embeddings=False), {**RANK4, **settings})
    assert said in str(error.value)


def test_targets_are_ends_of_names_or_patterns() -> None:
    net = plain()
    assert len(lora.targets(net, ())) == 14
    assert list(lora.targets(net, ("layers.1.mlp.up_proj",))) == ["model.layers.1.mlp.up_proj"]
    assert len(lora.targets(net, ("*.self_attn.*",))) == 8
