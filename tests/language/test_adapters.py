"""Files of adapters: peft reads what is written, and what is another kind is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from equipoise.language import adapters, files
from equipoise.nets import lora
from equipoise.types import TaskSource
from tests.nets.test_lora import RANK4, logp, moved, plain


def written(place: Path, **settings: Any) -> Any:
    net = moved(lora.add_adapters(plain(), RANK4 | settings))
    adapters.write(place, net, "BASE")
    return net


def test_adapters_are_read_as_they_were_written(tmp_path: Path) -> None:
    net = written(tmp_path, targets=("q_proj", "*.1.mlp.*"))
    again = lora.add_adapters(plain(), adapters.read_settings(tmp_path))
    adapters.load(again, tmp_path)
    assert torch.equal(logp(again), logp(net))
    source = TaskSource(task="sort", adapter=str(tmp_path))
    assert adapters.settings_of(source) == adapters.read_settings(tmp_path)


def test_the_files_are_pefts(tmp_path: Path) -> None:
    written(tmp_path, targets=("q_proj", "v_proj"))
    said = json.loads((tmp_path / adapters.CONFIG).read_text())
    assert said["target_modules"] == ["q_proj", "v_proj"] and said["r"] == 4
    assert said["lora_alpha"] == 8.0 and said["base_model_name_or_path"] == "BASE"
    tensors = load_file(tmp_path / adapters.WEIGHTS)
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    assert tensors[name].shape == (24, 4) and len(tensors) == 8


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft with a newer transformers
def test_peft_says_the_same(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    net = written(tmp_path / "adapter")
    files.write(tmp_path / "base", net.config, lora.base(net), eos=(0,))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    token = torch.tensor([[1, 2, 3, 4, 5, 6, 0]])
    with torch.no_grad():
        said = model(token).logits.log_softmax(-1)[0, 2:-1].gather(1, token[0, 3:, None])[:, 0]
    torch.testing.assert_close(said, logp(net)[3:7], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_dora": True}, "use_dora: must be false or empty, got True"),
        (
            {"modules_to_save": ["lm_head"]},
            "modules_to_save: must be false or empty, got",
        ),
        ({"lora_bias": True}, "lora_bias: must be false"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices: must be false or empty"),
        ({"init_lora_weights": "pissa_niter_4"}, "must leave the base as it is, got 'pissa_niter"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"r": 0}, "r: "),
        ({"target_modules": "all-linear"}, "target_modules"),
    ],
)
def test_another_kind_is_refused_with_its_field(changes: Any, said: str, tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / adapters.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ValueError, match="adapter_config.json") as error:
        adapters.read_settings(tmp_path)
    assert said in str(error.value)


def test_an_adapter_of_another_base_or_shape_or_a_torn_one_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ValueError, match=r"must be adapters of this base .* got adapters of anoth"):
        adapters.load(lora.add_adapters(plain(initializer_range=0.1), RANK4), tmp_path)
    with pytest.raises(ValueError, match=r"lora_A.weight: must have the shape \(2, 80\), got"):
        adapters.load(lora.add_adapters(plain(), {**RANK4, "rank": 2}), tmp_path)
    file = tmp_path / adapters.WEIGHTS
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="must be whole safetensors, got"):
        adapters.load(lora.add_adapters(plain(), RANK4), tmp_path)
    with pytest.raises(ValueError, match="must be a folder with adapter_config.json"):
        adapters.read_settings(tmp_path / "none")


def test_adapters_that_are_no_numbers_or_no_plain_file_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    net, file = lora.add_adapters(plain(), RANK4), tmp_path / adapters.WEIGHTS
    tensors = load_file(file)
    name = min(tensors)
    for wrong in (torch.full_like(tensors[name], torch.nan), tensors[name].int()):
        save_file(tensors | {name: wrong}, file)
        with pytest.raises(ValueError, match=f"{name}: must hold finite numbers"):
            adapters.load(net, tmp_path)
    save_file(tensors | {"x" * 5000: torch.zeros(1)}, file)
    with pytest.raises(
        ValueError, match=r"xxx\.\.\.: must have the shape none, got \(1,\)"
    ) as said:
        adapters.load(net, tmp_path)
    assert len(str(said.value)) < 400
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="expected a plain file, got another kind"):
        adapters.load(net, tmp_path)


def test_a_scale_whose_products_are_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source.lora_alpha: must be at most 1e"):
        lora.add_adapters(plain(), RANK4 | {"alpha": 1e300})
    written(tmp_path)
    file = tmp_path / adapters.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 1e300}))
    with pytest.raises(ValueError, match="lora_alpha: expected a number from 0 to"):
        adapters.read_settings(tmp_path)


def test_a_run_without_adapters_has_none_to_write(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a run with adapters"):
        adapters.write(tmp_path / "none", plain(), "")
    assert not (tmp_path / "none").exists()
