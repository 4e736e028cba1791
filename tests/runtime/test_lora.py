"""Adapters on the ring: they alone are published and saved, with the same bits wherever it runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from equipoise import api
from equipoise.api.served_text import of_run
from equipoise.api.writing import base_at, writer
from equipoise.cli.app import app
from equipoise.language import adapters, files
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.record import checkpoint
from tests.runtime.test_text import SMALL, finished, shown

STEPS = 512
RATE = ["optimizer.learning_rate=2e-2", "source.samples_at_once=64"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sorts nothing, with the tokenizer of ``sort``."""
    place = tmp_path_factory.mktemp("base") / "model"
    tokenizer = CharTokenizer("012>")
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": tokenizer.size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }
    net = Decoder(DecoderConfig(family="qwen3", **shape))
    files.write(place, net.config, dict(net.named_parameters()), eos=tokenizer.eos)
    tokenizer.save(place)
    return place


def trained(out: Path, base: Path, settings: tuple[str, ...] = (), **options: Any) -> Any:
    given = SMALL | {"steps": STEPS, "model": str(base), "lora": 4} | options
    given["settings"] = [*RATE, *settings]
    return finished(api.start("sort", out=out, **given))


def digest(base: Path) -> str:
    return hashlib.sha256((base / files.WEIGHTS).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def alone(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("alone") / "run"
    before = digest(base)
    found = trained(place, base, on="serial")
    assert digest(base) == before
    return found | {"place": place}


@pytest.mark.thorough
def test_the_gate_holds_while_the_adapters_learn(alone: Any) -> None:
    assert abs(shown(alone["place"], "token_mult_prob_error") - 1.0) < 1e-4
    assert shown(alone["place"], "grad_norm/all") > 0.0
    _, _, net = writer(alone["place"])
    assert all(float(one.lora_B.detach().abs().max()) > 0 for one in lora.layers_of(net).values())


@pytest.mark.thorough
def test_the_same_bits_wherever_it_runs(alone: Any, base: Path, tmp_path: Path) -> None:
    found = trained(tmp_path / "run", base, on="process")
    assert found["params_sha256"] == alone["params_sha256"]


@pytest.mark.thorough
def test_a_run_that_goes_on_ends_in_the_same_bits(alone: Any, base: Path, tmp_path: Path) -> None:
    half = f"schedule.schedule_steps={STEPS}"
    trained(tmp_path / "run", base, (half,), on="serial", steps=STEPS // 2)
    whole = finished(api.start(resume=tmp_path / "run", on="process", steps=STEPS))
    assert whole["params_sha256"] == alone["params_sha256"]


@pytest.mark.thorough
def test_checkpoints_have_the_adapters_alone(alone: Any) -> None:
    newest = checkpoint.latest(alone["place"] / "checkpoints")
    assert newest is not None
    kept = checkpoint.load(newest)[0]
    assert {name.rpartition(".")[2] for name in kept} == {"lora_A", "lora_B", "sha256"}


@pytest.mark.thorough
def test_the_model_of_adapters_may_have_moved(alone: Any, base: Path, tmp_path: Path) -> None:
    place, wanted = alone["place"], api.generate(alone["place"], ["201102>"], greedy=True)
    other = tmp_path / "other"
    shutil.copytree(base, other)
    net = Decoder(files.read_config(base))
    files.write(other, net.config, dict(net.named_parameters()), eos=(4,))
    moved = base.rename(tmp_path / "moved")
    try:
        with pytest.raises(ValueError, match=rf"at {base}, got none .*name its folder with --base"):
            api.generate(place, ["201102>"])
        with base_at(str(moved)):
            assert api.generate(place, ["201102>"], greedy=True) == wanted
            api.export(place, tmp_path / "merged")
        assert of_run(place, "", "", (), str(moved)).positions == 64
        command = ["export", str(place), str(tmp_path / "apart"), "--only", "adapter"]
        ran = CliRunner().invoke(app, [*command, "--base", str(moved)])
        assert ran.exit_code == 0, ran.output
        said = json.loads((tmp_path / "apart" / adapters.CONFIG).read_text())
        assert said["base_model_name_or_path"] == str(moved)
        with base_at(str(base)), pytest.raises(ValueError, match="--base: must be the folder of a"):
            api.generate(place, ["201102>"])
        with base_at(str(other)), pytest.raises(ValueError, match="must be adapters of this base"):
            api.generate(place, ["201102>"])
    finally:
        moved.rename(base)


@pytest.mark.thorough
def test_merged_and_apart_say_the_same(alone: Any, base: Path, tmp_path: Path) -> None:
    api.export(alone["place"], tmp_path / "merged")
    api.export(alone["place"], tmp_path / "apart", only="adapter")
    merged = Decoder(files.read_config(tmp_path / "merged"))
    files.load(merged, tmp_path / "merged")
    net = Decoder(files.read_config(base))
    files.load(net, base)
    lora.add_adapters(net, adapters.read_settings(tmp_path / "apart"))
    adapters.load(net, tmp_path / "apart")
    for name, layer in lora.layers_of(net).items():
        mine = dict(merged.named_parameters())[f"{name}.weight"]
        torch.testing.assert_close(layer.merged(), mine, atol=0, rtol=0)
    said = json.loads((tmp_path / "apart" / adapters.CONFIG).read_text())
    assert said["base_model_name_or_path"] == str(base)
    assert len(load_file(tmp_path / "apart" / adapters.WEIGHTS)) == 2 * 14
    answers = [api.generate(alone["place"], ["201102>"], greedy=True)[0].text]
    answers.append(trained_on(tmp_path, base))
    assert answers[0] == answers[1]


def trained_on(tmp_path: Path, base: Path) -> str:
    """The greedy answer of a run that begins with the exported adapter, at a rate of 0."""
    settings = ("optimizer.learning_rate=0", f"source.adapter={tmp_path / 'apart'}")
    trained(tmp_path / "next", base, settings, lora=None, on="serial", steps=64)
    return api.generate(tmp_path / "next", ["201102>"], greedy=True)[0].text


@pytest.mark.thorough
def test_the_base_must_be_there_and_the_same(alone: Any, base: Path, tmp_path: Path) -> None:
    trained(tmp_path / "run", base, on="serial", steps=64)
    kept = (base / files.WEIGHTS).read_bytes()
    try:
        net = Decoder(files.read_config(base))
        files.write(base, net.config, dict(net.named_parameters()), eos=(4,))
        for act in (
            lambda: api.generate(tmp_path / "run", ["201102>"]),
            lambda: finished(api.start(resume=tmp_path / "run", on="serial", steps=128)),
            lambda: trained(tmp_path / "on", base, init_from=tmp_path / "run", on="serial"),
        ):
            with pytest.raises(ValueError, match="must be adapters of this base"):
                act()
    finally:
        (base / files.WEIGHTS).write_bytes(kept)


@pytest.mark.thorough
@pytest.mark.parametrize("more", [("algorithm.beta=0.1",), ("algorithm.critic=own",)])
def test_a_reference_and_a_critic_learn_with_adapters(
    more: Any, base: Path, tmp_path: Path
) -> None:
    algorithm = "token_ppo" if "critic" in more[0] else "grpo"
    trained(tmp_path / "run", base, more, algorithm=algorithm, on="serial", steps=128)
    if algorithm == "grpo":
        lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
        kl = [json.loads(line)["metrics"]["kl"] for line in lines]
        assert kl[0] < 1e-9 < kl[-1]  # the reference is the base
