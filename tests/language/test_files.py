"""Model files: what transformers reads and writes, both ways; and what is no model."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from equipoise.language import files
from equipoise.nets.decoder import Decoder, DecoderConfig

SHAPE = dict(
    vocab_size=64,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    intermediate_size=80,
    max_position_embeddings=256,
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = [
    dict(family="llama", rope_theta=5e5, rope_scaling=LLAMA3),
    dict(family="llama", tie_word_embeddings=False, attention_bias=True),
    dict(family="llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    dict(family="qwen2", attention_bias=True, tie_word_embeddings=False),
    dict(family="qwen3", rope_theta=1e6, head_dim=16),
]


def make(**changes):
    torch.manual_seed(0)
    net = Decoder(DecoderConfig(**{**SHAPE, **changes}))
    for name, parameter in net.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return net


def write(net, directory, **more):
    files.write(directory, net.config, dict(net.named_parameters()), **more)


def whole(net, token):
    """Log-probabilities [T, V] of one text."""
    cache = net.cache(1, len(token))
    hidden = [
        net.prefill(token[None, :t], torch.tensor([t]), cache, torch.tensor([0]))
        for t in range(1, len(token) + 1)
    ]
    return net.logits(torch.cat(hidden)).log_softmax(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m['family']}-{len(m)}")
def test_transformers_computes_the_same_both_ways_through_disk(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    net, token = make(**model), torch.randint(0, 64, (100,))
    write(net, tmp_path / "ours", eos=(1, 2))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32
    )
    assert type(theirs).__name__ == files.ARCHITECTURES[model["family"]]
    assert theirs.config.eos_token_id == [1, 2]
    with torch.no_grad():
        want = theirs(token[None]).logits[0].log_softmax(-1)
        torch.testing.assert_close(whole(net, token), want, atol=1e-5, rtol=1e-5)
        for parameter in theirs.parameters():
            parameter.mul_(1.01)
        want = theirs(token[None]).logits[0].log_softmax(-1)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="50KB")
    assert (tmp_path / "theirs" / files.INDEX).is_file()  # several files
    config = files.read_config(tmp_path / "theirs")
    assert config == net.config
    again = Decoder(config)
    files.load(again, tmp_path / "theirs")
    torch.testing.assert_close(whole(again, token), want, atol=1e-5, rtol=1e-5)


def test_half_precision_is_read_into_float32(tmp_path):
    net = make()
    write(net.bfloat16(), tmp_path)
    again = Decoder(net.config)
    files.load(again, tmp_path)
    for name, parameter in again.named_parameters():
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter, net.get_parameter(name).float(), rtol=0, atol=0)


def test_what_old_and_tied_files_have_besides_is_left_out(tmp_path):
    net = make()
    write(net, tmp_path)
    tensors = load_file(tmp_path / files.WEIGHTS)
    more = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    more["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(6)
    save_file(tensors | more, tmp_path / files.WEIGHTS)
    files.load(Decoder(net.config), tmp_path)


def changed(directory, change):
    tensors = load_file(directory / files.WEIGHTS)
    change(tensors)
    save_file(tensors, directory / files.WEIGHTS)


def tear(directory):
    data = (directory / files.WEIGHTS).read_bytes()
    (directory / files.WEIGHTS).write_bytes(data[: len(data) // 2])


def pickled(directory):
    (directory / files.WEIGHTS).rename(directory / "pytorch_model.bin")


def sharded(directory):
    (directory / files.WEIGHTS).unlink()
    (directory / files.INDEX).write_text(
        json.dumps({"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}})
    )


NORM = "model.norm.weight"
WRONG = {
    "torn": (tear, r"model.safetensors: expected whole safetensors, got a torn"),
    "a pickle": (
        pickled,
        r"expected model.safetensors, got pytorch_model.bin, a pickle, .*save_pretrained",
    ),
    "none": (
        lambda d: (d / files.WEIGHTS).unlink(),
        r"expected model.safetensors or .*index.json, got neither",
    ),
    "elsewhere": (sharded, r"index.json: expected files next to it, got 'elsewhere.safetensors'"),
    "missing": (
        lambda d: changed(d, lambda t: t.pop(NORM)),
        r"expected 29 tensors, got all but 1, such as 'model.norm.weight'",
    ),
    "too many": (
        lambda d: changed(d, lambda t: t.update({"model.norms.weight": torch.zeros(2)})),
        r"got 'model.norms.weight' besides; did you mean 'model.norm.weight'",
    ),
    "misshapen": (
        lambda d: changed(d, lambda t: t.update({NORM: torch.zeros(47)})),
        r"model.norm.weight: expected the shape \[48\] that config.json gives, got \[47\]",
    ),
    "quantised": (
        lambda d: changed(d, lambda t: t.update({NORM: torch.zeros(48, dtype=torch.int8)})),
        r"model.norm.weight: expected F64, F32, F16 or BF16, got I8",
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    write(make(), directory)
    return directory


@pytest.mark.few(8)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_weights_is_said_in_a_line(name, written, tmp_path):
    change, said = WRONG[name]
    directory = shutil.copytree(written, tmp_path / "model")
    change(directory)
    with pytest.raises(ValueError, match=said):
        files.load(make(), directory)


CONFIGS = [
    # no other is near
    (
        {"model_type": "qwen3_moe"},
        r"model_type: expected one of llama, qwen2, qwen3, got 'qwen3_moe'$",
    ),
    (
        {"model_type": "mistral", "sliding_window": 4096},
        r"got 'mistral'; mistral is read without a sliding_window",
    ),
    ({"use_sliding_window": True}, r"use_sliding_window: expected False, got True"),
    ({"hidden_size": "48"}, r"hidden_size: expected a whole number, got '48'"),
    (
        {"num_key_value_heads": 3},
        r"expected a divisor of num_attention_heads=4, got 3; the nearest is",
    ),
    (
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        r"rope_scaling: expected a known rope_type, got 'yarn'",
    ),
    ({"rope_scaling": {"type": "linear"}}, r"rope_scaling: expected 'factor'"),
    ({"vocab_size": 0}, r"vocab_size: expected more than 0, got 0"),
    ({"num_attention_heads": 0}, r"num_attention_heads: expected more than 0, got 0"),
    ({"head_dim": "16"}, r"head_dim: expected a whole number, got '16'"),
    (
        {"rope_theta": 10**400},
        r"rope_theta: expected a number, got a whole number of more than 200 digits",
    ),
    ({"num_hidden_layers": 10**9}, r"num_hidden_layers: must be at most 1,024, got 1000000000"),
    ({"hidden_size": 10**400}, r"hidden_size: must be at most 16,777,216, got 1000"),
    ({"rope_theta": 1e-300}, r"rope_theta: must be from 1 to 1e\+12, got 1e-300"),
    (
        {"rope_scaling": LLAMA3 | {"factor": 1e308}},
        r"rope_scaling: factor: must be from 1e-06 to 1e\+06, got 1e\+308",
    ),
    (
        {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
        r"low_freq_factor: must differ from high_freq_factor, got 1",
    ),
    ({"rms_norm_eps": None}, r"rms_norm_eps: expected a number, got None"),
    ({"initializer_range": [0.02]}, r"initializer_range: expected a number, got \[0.02\]"),
    ({"rope_parameters": "llama3"}, r"rope_parameters: expected a JSON object, got 'llama3'"),
    (
        {"rope_scaling": {"type": "linear", "factor": 10**400}},
        r"rope_scaling.factor: expected a number, got a whole number",
    ),
]


def test_mistral_without_a_window_is_llama(written, tmp_path):
    data = json.loads((written / files.CONFIG).read_text())
    (tmp_path / files.CONFIG).write_text(
        json.dumps(data | {"model_type": "mistral", "sliding_window": None})
    )
    assert files.read_config(tmp_path).family == "llama"


@pytest.mark.few(16)
@pytest.mark.parametrize(("change", "said"), CONFIGS)
def test_what_is_wrong_with_a_config_is_said_in_a_line(change, said, written, tmp_path):
    data = json.loads((written / files.CONFIG).read_text())
    (tmp_path / files.CONFIG).write_text(json.dumps(data | change))
    with pytest.raises(ValueError, match=rf"config.json: .*{said}") as refused:
        files.read_config(tmp_path)
    assert str(refused.value).count(files.CONFIG) == 1


def test_a_network_larger_than_its_files_gets_no_memory(written):
    config = DecoderConfig(**SHAPE | {"hidden_size": 1 << 24})
    with pytest.raises(ValueError, match=r"must have files with the [\d,]+ numbers"):
        files.check_size(lambda: Decoder(config), written)
    with pytest.raises(ValueError, match="must fit into the memory of this machine"):
        files.check_size(lambda: Decoder(config))
    files.check_size(lambda: Decoder(DecoderConfig(**SHAPE)), written)


def test_weights_that_are_no_numbers_are_refused(written, tmp_path):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / files.WEIGHTS)
    name = min(tensors)
    tensors[name][0] = torch.nan
    save_file(tensors, tmp_path / files.WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"{name}: must be finite numbers, got nan or inf"):
        files.load(Decoder(files.read_config(tmp_path)), tmp_path)
