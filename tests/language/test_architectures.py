"""Models of many architectures: ours where it fits, else the module of transformers, with the same
log-probabilities in engine and learner, and files that transformers loads.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.algorithms.token_ppo import TokenPPO
from equipoise.language import adapters, architectures, files, models
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets import hub_decoder, lora, precision
from equipoise.nets.block import parts, recompute
from equipoise.nets.decoder import Decoder
from equipoise.nets.hub_decoder import HubConfig, HubDecoder
from equipoise.nets.layout import Layout
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp
from equipoise.types import TextSpec
from tests.runtime.test_text import SMALL, finished, shown

transformers = pytest.importorskip("transformers")

TOKENIZER = CharTokenizer("012>")
COMMON: dict[str, Any] = {
    "vocab_size": TOKENIZER.size,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "eos_token_id": TOKENIZER.eos[0],
    "bos_token_id": None,
    "pad_token_id": TOKENIZER.pad,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"vocab_size": TOKENIZER.size + 1},  # its tokenizer adds a token
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 16, "head_dim": 8},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "phi3": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "mixtral": EXPERTS | {"head_dim": 8},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "decoder_sparse_step": 1,
    },
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
    "cohere": {"logit_scale": 0.25},
    "phi": {},
}
RANK4: dict[str, Any] = {"rank": 4, "alpha": 8.0}
OURS = ("llama", "qwen2", "qwen3")


def model_in(place: Path, kind: str, max_shard_size: str = "5GB", **changes: Any) -> Any:
    """A model of random weights, written by transformers, with the tokenizer of ``sort``."""
    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model(kind, **COMMON | KINDS[kind] | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(place, max_shard_size=max_shard_size)
    TOKENIZER.save(place)
    return model


def network(place: Path) -> Decoder:
    found = models.find(str(place))
    return architectures.build(asdict(found.config), str(place))


def loaded(place: Path, like: dict[str, Any]) -> Any:
    """transformers' own model; eager where a kernel would leave a soft cap out."""
    how = {"attn_implementation": "eager"} if "gemma2" in str(like) else {}
    return transformers.AutoModelForCausalLM.from_pretrained(place, **how).eval()


def logp_of(model: Any, token: list[int]) -> torch.Tensor:
    """Log-probabilities of each token after the first."""
    with torch.no_grad():
        said = model(torch.tensor([token])).logits[0].float().log_softmax(-1)
    return said[:-1].gather(1, torch.tensor(token[1:])[:, None])[:, 0]


def agrees(place: Path, kind: str) -> None:
    """The learner, the engine and transformers give the same log-probabilities."""
    net, theirs = network(place), loaded(place, {"kind": kind})
    assert isinstance(net, HubDecoder) == (kind not in OURS)
    prompts = [[0, 1, 2, 3], [2, 2]]
    engine = TorchEngine(network(place), rows=8, length=14, ends=Ends((4,)), seed=2)
    for group, prompt in enumerate(prompts):
        engine.submit(group, prompt, 3, limit=10)
    done = []
    while engine.live or engine.waiting:
        done += engine.step()
    done.sort(key=lambda one: (one.group, one.index))
    groups = [[one.token.tolist() for one in done if one.group == n] for n in (0, 1)]
    data = packed_texts(list(zip(prompts, groups, strict=True)))
    logp, _ = token_logp(net, data)
    learner = logp.detach()[torch.as_tensor(data.chosen)].numpy()
    drawn = np.concatenate([one.logp for one in done])
    np.testing.assert_allclose(learner, drawn, atol=1e-5)
    wanted = [
        logp_of(theirs, prompts[one.group] + one.token.tolist())[-len(one.token) :].numpy()
        for one in done
    ]
    np.testing.assert_allclose(np.concatenate(wanted), learner, atol=1e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize("shard", ["5GB", "8KB"])
@pytest.mark.parametrize("kind", KINDS)
def test_engine_learner_and_transformers_agree(kind: str, shard: str, tmp_path: Path) -> None:
    model_in(tmp_path, kind, max_shard_size=shard)
    assert len([*tmp_path.glob("*.safetensors")]) == 1 or shard == "8KB"
    agrees(tmp_path, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_loaded_drawn_from_learned_and_saved(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    model_in(place, kind)
    agrees(place, kind)
    out, saved = tmp_path / "run", tmp_path / "saved"
    given = SMALL | {"steps": 640, "model": str(place), "max_completion_length": 8}
    finished(api.start("sort", out=out, on="serial", **given))
    decoder = "equipoise" if kind in OURS else "transformers"
    assert json.loads((out / "run.json").read_text())["decoder"] == decoder
    assert abs(shown(out, "token_mult_prob_error") - 1.0) < 1e-4
    api.export(out, saved)
    agrees(saved, kind)
    before, after = (loaded(one, {"kind": kind}).state_dict() for one in (place, saved))
    assert before.keys() == after.keys()
    assert any(not torch.equal(x, after[name]) for name, x in before.items())
    text = api.generate(out, ["201102>"], greedy=True)[0]
    assert text.tokens > 0


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft with a newer transformers
@pytest.mark.parametrize("kind", ["mixtral", "gpt2", "gemma2", "phi3"])
def test_adapters_on_a_module_of_transformers(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    model_in(place, kind)
    before = (place / files.WEIGHTS).read_bytes()
    given = SMALL | {"steps": 128, "model": str(place), "lora": 4}
    given["settings"] = ["optimizer.learning_rate=0.05", "source.samples_at_once=64"]
    finished(api.start("sort", out=tmp_path / "run", on="serial", **given))
    assert abs(shown(tmp_path / "run", "token_mult_prob_error") - 1.0) < 1e-4
    assert shown(tmp_path / "run", "grad_norm/all") > 0.0
    assert (place / files.WEIGHTS).read_bytes() == before
    api.export(tmp_path / "run", tmp_path / "saved")
    agrees(tmp_path / "saved", kind)
    api.export(tmp_path / "run", tmp_path / "apart", only="adapter")
    net = lora.add_adapters(network(place), adapters.read_settings(tmp_path / "apart"))
    adapters.load(net, tmp_path / "apart")
    assert (
        lora.layers_of(net).keys()
        == lora.layers_of(lora.add_adapters(network(place), RANK4)).keys()
    )
    data = packed_texts([([0, 1, 2], [[2, 2, 1, 4], [1, 4]])])
    found, wanted = (token_logp(one, data)[0] for one in (net, network(tmp_path / "saved")))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    peft = pytest.importorskip("peft")
    theirs = peft.PeftModel.from_pretrained(loaded(place, {"kind": kind}), tmp_path / "apart")
    torch.testing.assert_close(
        logp_of(theirs, [0, 1, 2, 2, 2, 1, 4])[2:], found.detach()[3:7], atol=1e-5, rtol=0
    )


def test_adapters_on_layers_of_gpt2(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    data = packed_texts([([0, 1], [[2, 2, 1, 0], [1]]), ([3], [[0, 0]])])
    base = token_logp(network(tmp_path), data)[0].detach()
    net = lora.add_adapters(network(tmp_path), RANK4)
    assert torch.equal(token_logp(net, data)[0].detach(), base)  # off: the base, to the bit
    ends = {name.rpartition(".")[2] for name in lora.layers_of(net)}
    assert ends == {"c_attn", "c_proj", "c_fc"}
    (-token_logp(net, data)[0].sum()).backward()
    for one in lora.layers_of(net).values():
        assert one.lora_B.grad is not None and one.lora_B.grad.abs().max() > 0
        torch.nn.init.normal_(one.lora_B, std=0.1)
    apart, merged = token_logp(net, data)[0].detach(), lora.merged(net)
    assert (apart - base).abs().max() > 1e-3
    torch.testing.assert_close(token_logp(merged, data)[0].detach(), apart, atol=1e-5, rtol=0)
    layer = lora.layers_of(net)["module.transformer.h.0.attn.c_attn"]
    assert torch.equal(layer.merged(slice(3, 9)), layer.merged()[3:9])
    assert lora.layers_of(merged) == {}
    adapters.write(tmp_path / "apart", net, "BASE")
    again = lora.add_adapters(network(tmp_path), adapters.read_settings(tmp_path / "apart"))
    adapters.load(again, tmp_path / "apart")
    assert torch.equal(token_logp(again, data)[0].detach(), apart)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_layers_are_computed_again_with_the_same_gradients(kind: str, tmp_path: Path) -> None:
    model_in(tmp_path, kind)
    data = packed_texts([([0, 1, 2, 3], [[2, 2, 1, 0], [1]]), ([3], [[0, 0]])])
    plain, again = network(tmp_path), network(tmp_path)
    recompute(again)
    assert len(parts(again)) == 2
    kept = list[int]()
    for net in (plain, again):
        sizes = list[int]()

        def noted(x: torch.Tensor) -> torch.Tensor:
            sizes.append(x.nbytes)  # noqa: B023
            return x

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda x: x):
            loss = -token_logp(net, data)[0].sum()
        loss.backward()
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]
    for (name, x), y in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert x.grad is None or (y.grad is not None and torch.equal(x.grad, y.grad)), name


def test_a_critic_of_its_own_has_layers_of_its_own(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    model = asdict(models.find(str(tmp_path)).config)
    spec = TextSpec(model=model, weights=str(tmp_path), eos=(4,), prompt=8, completion=8)
    net: Any = TokenPPO(critic="own").network(spec)
    found = parts(net)
    assert len(found) == len({*map(id, found)}) == 4
    recompute(net)
    data = packed_texts([([0, 1], [[2, 2, 1], [1]])])
    layout = Layout.of(data)
    (net.critic(data, layout).sum() - token_logp(net, data)[0].sum()).backward()
    assert net.module.transformer.h[0].mlp.c_fc.weight.grad is not None


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mixtral"])
def test_a_group_in_one_row_is_as_its_samples_apart(kind: str, tmp_path: Path) -> None:
    model_in(tmp_path, kind)
    net = network(tmp_path)
    assert isinstance(net, HubDecoder) and net.packs
    data = packed_texts([([0, 1, 2, 3], [[2, 2, 1, 0], [1], [3, 3]]), ([3], [[0, 0]])])
    layout = Layout.of(data)
    assert hub_decoder._worth_a_mask(layout, 32)
    together, apart = net._groups(data, layout), net._each(data, layout)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    assert torch.equal(net.hidden(data), together)


def test_a_module_without_positions_takes_each_sample_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_in(tmp_path, "gpt2")
    run = HubDecoder.run

    def deaf(self: HubDecoder, token: Any, position: Any = None, *more: Any) -> Any:
        return run(self, token, None if len(more) < 2 else position, *more)

    monkeypatch.setattr(HubDecoder, "run", deaf)
    net = network(tmp_path)
    assert isinstance(net, HubDecoder) and not net.packs
    monkeypatch.undo()
    data = packed_texts([([0, 1, 2, 3], [[2, 2, 1, 0], [1]])])
    wanted = token_logp(network(tmp_path), data)[0]
    torch.testing.assert_close(token_logp(net, data)[0], wanted, atol=1e-5, rtol=0)


def test_bf16_is_near(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    net, data = network(tmp_path), packed_texts([([0, 1, 2, 3], [[2, 2, 1, 0], [1]])])
    exact = token_logp(net, data)[0]
    with precision.autocast("bf16"):
        rounded = token_logp(net, data)[0]
        each = net._each(data, Layout.of(data)) if isinstance(net, HubDecoder) else None
    assert each is not None and torch.isfinite(each).all()
    assert 0 < (rounded - exact).abs().max() < 0.2
    (-rounded.sum()).backward()
    assert all(x.grad is None or x.grad.dtype == torch.float32 for x in net.parameters())


def test_the_module_sees_nothing_of_another_sample(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    net = network(tmp_path)
    both = packed_texts([([0, 1], [[2, 2, 1, 0], [1]]), ([3], [[0, 0]])])
    found = token_logp(net, both)[0].detach().numpy()
    for prompt, sample, at in (([0, 1], [2, 2, 1, 0], 2), ([0, 1], [1], 6), ([3], [0, 0], 8)):
        alone = token_logp(net, packed_texts([(prompt, [sample])]))[0].detach().numpy()
        np.testing.assert_allclose(found[at : at + len(sample)], alone[len(prompt) :], atol=1e-6)


def test_new_weights_that_come_while_it_draws_are_drawn_from(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    net = network(tmp_path)
    engine = TorchEngine(
        network(tmp_path), rows=4, length=16, ends=Ends(()), seed=2, on_update="recompute"
    )
    with torch.no_grad():
        for x in net.parameters():
            x.add_(0.05 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    engine.submit(0, [0, 1, 2], 3, limit=10)
    engine.step()
    done = []
    for part, _ in enumerate(engine.take(7, tree.named_tensors(net), lambda: True)):
        done += engine.step() if part < 4 else []
    while engine.live:
        done += engine.step()
    assert {7} < {version for one in done for version in one.version.tolist()}
    for one in done:
        data = packed_texts([([0, 1, 2], [one.token.tolist()])])
        logp = token_logp(net, data)[0][3:].detach().numpy()
        now = one.version == 7
        np.testing.assert_allclose(logp[now], one.logp[now], atol=1e-5)
        assert abs(logp - one.logp)[~now].max() > 1e-3  # by the weights before


# -------------------------------------------------------------------------------------- bad input


def refused(place: Path) -> str:
    with pytest.raises(ValueError, match=str(place)) as error:
        network(place)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_code_of_the_folder_is_not_run(tmp_path: Path) -> None:
    data = {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "own.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(data))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
    said = refused(tmp_path)
    assert "must be a causal language model of transformers, got 'mine'" in said
    assert "code of the model's folder is not run" in said


KERNEL = "somebody/kernel"  # a repository of the hub with code


def changed(place: Path, **changes: object) -> None:
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_code_of_the_hub_that_a_config_names_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedModel

    asked = list[object]()
    kept = PreTrainedModel._check_and_adjust_attn_implementation

    def told(self: Any, name: str | None, *args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return kept(self, None if name == KERNEL else name, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", told)
    model_in(tmp_path, "gpt2")
    changed(tmp_path, attn_implementation=KERNEL, experts_implementation=KERNEL)
    network(tmp_path)
    assert asked
    assert KERNEL not in asked


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_layer": 10**9}, "n_layer: must be at most 1,024, got 1000000000"),
        ({"text_config": {"num_experts": 10**9}}, "num_experts: must be at most 16,384"),
        ({"quantization_config": {"quant_method": "x"}}, "quantised weights are not read"),
    ],
)
def test_counts_and_quantised_weights_are_refused_before_a_module_is_made(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    model_in(tmp_path, "gpt2")
    changed(tmp_path, **changes)
    assert said in refused(tmp_path)


def test_a_shape_that_cannot_be_computed_is_one_sentence(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    changed(tmp_path, n_head=0)
    assert "must be of a shape that transformers computes, got another: integer" in refused(
        tmp_path
    )
    changed(tmp_path, n_head=4, n_embd=1 << 24)
    assert "must have files with the" in refused(tmp_path)


def test_a_kind_of_positions_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    model_in(tmp_path, "llama")
    changed(tmp_path, rope_parameters=None, rope_scaling={"rope_type": ["linear"], "factor": 2.0})
    assert "must be of a shape that transformers computes" in refused(tmp_path)


def test_a_torn_shard_is_named(tmp_path: Path) -> None:
    model = model_in(tmp_path, "gpt2")
    (tmp_path / files.WEIGHTS).unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    network(tmp_path)
    kept = shards[1].read_bytes()
    shards[1].write_bytes(kept[: len(kept) // 2])
    assert f"{shards[1].name}: expected whole safetensors, got a torn" in refused(tmp_path)
    shards[1].unlink()
    assert "which is not there" in refused(tmp_path)


def test_missing_tensors_and_pickles_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model_in(tmp_path, "gpt2")
    tensors = load_file(tmp_path / files.WEIGHTS)
    gone = next(name for name in tensors if "attn.c_attn.weight" in name)
    del tensors[gone]
    save_file(tensors, tmp_path / files.WEIGHTS, metadata={"format": "pt"})
    assert "must have every tensor of its config.json, got all but 1" in refused(tmp_path)
    (tmp_path / files.WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    assert "a pickle, which may run any code" in refused(tmp_path)


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=6, hidden_size=16, num_hidden_layers=1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert "must be a causal model of keys and values" in refused(tmp_path)


def test_a_wrong_head_is_found(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    net = network(tmp_path)
    assert isinstance(net, HubDecoder)
    net.config = HubConfig(
        model_type="gpt2",
        vocab_size=6,
        hidden_size=32,
        max_position_embeddings=64,
        fields={"final_logit_softcapping": 0.5},
    )
    with pytest.raises(ValueError, match="logits that differ by"):
        net.check("here")


def test_texts_are_as_long_as_a_sliding_window(tmp_path: Path) -> None:
    model_in(tmp_path, "gemma2")
    assert models.find(str(tmp_path)).config.max_position_embeddings == 16


# ------------------------------------------------------------------------------- a head of scores

PAIRS = """{"prompt": "01>", "chosen": "01", "rejected": "10"}
{"prompt": "10>", "chosen": "01", "rejected": "10"}
{"prompt": "20>", "chosen": "02", "rejected": "20"}
{"prompt": "21>", "chosen": "12", "rejected": "21"}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gpt2", "phi3", "qwen3_moe"])
@pytest.mark.parametrize("rank", [None, 4])
def test_a_reward_model_of_transformers(kind: str, rank: int | None, tmp_path: Path) -> None:
    place, pairs = tmp_path / "model", tmp_path / "pairs.jsonl"
    model_in(place, kind)
    pairs.write_text(PAIRS)
    given: Any = {"model": str(place), "batch": 8, "actors": 1, "max_lag": 0, "lora": rank}
    given |= {"evaluate_episodes": 0, "steps": 160, "tensorboard": False}
    rate = ["optimizer.learning_rate=2e-2"]
    run = tmp_path / "run"
    finished(api.start(str(pairs), algorithm="reward_model", out=run, settings=rate, **given))
    found = api.score(run, ["01>", "01>"], ["01", "10"], raw=True)
    assert found[0] > found[1] + 0.5
    api.export(run, tmp_path / "saved")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    for text, score in zip(("01>01", "01>10"), found, strict=True):
        token = torch.tensor([[*TOKENIZER.encode(text), *TOKENIZER.eos]])
        said = theirs.score(theirs.base_model(token).last_hidden_state)[0, -1]
        assert float(said.detach()) == pytest.approx(score, abs=1e-4)


def test_a_head_of_scores_is_new_only_if_it_may_be(tmp_path: Path) -> None:
    model_in(tmp_path, "gpt2")
    config = asdict(models.find(str(tmp_path)).config)
    net = architectures.build_scored(config, str(tmp_path), fresh=True)
    data = packed_texts([([0, 1, 2], [[2, 1, 4], [3, 4]])])
    assert net.scores(data).shape == (2,)
    with pytest.raises(ValueError, match="got all but 1, such as score.weight"):
        architectures.build_scored(config, str(tmp_path))
    with pytest.raises(ValueError, match="a head of scores .* got one without"):
        architectures.build_scored(config | {"model_type": "olmoe", "fields": COMMON}, "")


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_large_models_are_written_in_parts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_in(tmp_path / "model", kind)
    net = network(tmp_path / "model")
    monkeypatch.setattr(hub_decoder, "SHARD", 20_000)
    monkeypatch.setattr(files, "SHARD", 20_000)
    saved = tmp_path / "saved"
    if isinstance(net, HubDecoder):
        net.write(saved)
    else:
        files.write(saved, net.config, dict(net.named_parameters()))
    shards = [file.stat().st_size for file in saved.glob("model-*.safetensors")]
    assert len(shards) > 1 and max(shards) < 24_000  # with the names in the header
    again = network(saved)
    for (name, x), y in zip(net.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(x, y), name
    logp = logp_of(loaded(saved, {"kind": kind}), [0, 1, 2, 3])
    data = packed_texts([([0], [[1, 2, 3]])])
    torch.testing.assert_close(token_logp(net, data)[0][1:].detach(), logp, atol=1e-5, rtol=0)
