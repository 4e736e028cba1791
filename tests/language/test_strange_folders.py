"""Folders that are nearly models: each is refused in one sentence, or read as it is meant."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from equipoise.language import architectures, files, tasks
from equipoise.nets.decoder import Decoder
from equipoise.sources import prompts
from equipoise.types import TaskSource
from tests.language.test_architectures import changed, model_in

pytest.importorskip("transformers")

BOTH = ("llama", "gpt2")  # one of our decoder, one of transformers
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind."""
    place = tmp_path_factory.mktemp("models")
    for kind in BOTH:
        model_in(place / kind, kind)
    return place


def opened(place: Path) -> Decoder:
    """The network of a run on ``sort`` with the model in ``place``."""
    model, _ = prompts.model_of(
        TaskSource(task="sort", model=str(place)), tasks.make("sort", seed=0)
    )
    return architectures.build(asdict(model.config), str(model.directory))


def tensors(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Change:
    def made(place: Path) -> None:
        file = place / files.WEIGHTS
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return made


def inner(found: dict[str, Tensor]) -> str:
    """The name of a matrix in the first layer."""
    return next(name for name in sorted(found) if ".0." in name and found[name].ndim == 2)


def cast(dtype: torch.dtype) -> Change:
    def changed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        return found | {inner(found): found[inner(found)].to(dtype)}

    return tensors(changed)


def sharded(edit: Callable[[Path, dict[str, Any]], object]) -> Change:
    """Weights in two files; ``edit`` changes them and the index."""

    def made(place: Path) -> None:
        found = load_file(place / files.WEIGHTS)
        (place / files.WEIGHTS).unlink()
        half, weight_map = sorted(found)[: len(found) // 2], dict[str, Any]()
        for file in ("a.safetensors", "b.safetensors"):
            part = {name: x for name, x in found.items() if (name in half) == (file[0] == "a")}
            save_file(part, place / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        edit(place, weight_map)
        (place / files.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return made


def pointed(name: object) -> Change:
    """An index whose first tensor is in the file ``name``."""
    return sharded(lambda place, found: found.update({min(found): name}))


def settings(**changes: object) -> Change:
    def made(place: Path) -> None:
        changed(place, **changes)

    return made


def adapter(place: Path) -> None:
    (place / files.CONFIG).unlink()
    said = {"peft_type": "LORA", "base_model_name_or_path": "some/base"}
    (place / "adapter_config.json").write_text(json.dumps(said))


def code(place: Path) -> None:
    said = {"auto_map": {"AutoTokenizer": ["own.T", None]}, "tokenizer_class": "T"}
    (place / "tokenizer_config.json").write_text(json.dumps(said))
    (place / "own.py").write_text("raise SystemExit('it ran')")


def pickled(place: Path, found: dict[str, Any]) -> None:
    torch.save({"x": torch.ones(1)}, place / "a.bin")
    found.update({name: "a.bin" for name, file in found.items() if file[0] == "a"})


def bent_head(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return found | {"lm_head.weight": found["model.embed_tokens.weight"] * 2}


def without_end(place: Path) -> None:
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (place / "generation_config.json").unlink()


def without_tokenizer(place: Path) -> None:
    for file in place.glob("tokenizer*"):
        file.unlink()


def pipe(place: Path) -> None:
    (place / files.CONFIG).unlink()
    os.mkfifo(place / files.CONFIG)


def torn(place: Path, found: dict[str, Any]) -> None:
    (place / "b.safetensors").write_bytes(b"")


WRONG: dict[str, tuple[Change, str]] = {
    "float8": (cast(torch.float8_e4m3fn), "got F8_E4M3; quantised files are not read"),
    "whole numbers": (cast(torch.int8), "got I8; quantised files are not read"),
    "complex": (cast(torch.complex64), "got C64; quantised files are not read"),
    "nan": (tensors(lambda x: {n: y * torch.nan for n, y in x.items()}), "must be finite numbers"),
    "one more": (tensors(lambda x: x | {"v_head.weight": torch.ones(3)}), "besides"),
    "one less": (
        tensors(lambda x: {n: y for n, y in x.items() if n != inner(x)}),
        "got all but 1, such as",
    ),
    "turned": (
        tensors(lambda x: {n: y.T.contiguous() if y.ndim == 2 else y for n, y in x.items()}),
        "the shape",
    ),
    "quantised": (settings(quantization_config={"quant_method": "fp8"}), "quantised weights are"),
    "quantised by name": (settings(quantization_config="bnb"), "quantised weights are not read"),
    "unknown": (settings(model_type="qwen9"), "got 'qwen9'; did you mean"),
    "kind of kinds": (settings(model_type=["llama"]), "must be a causal language model of trans"),
    "huge": (settings(vocab_size=1 << 23), "must have files with the"),
    "few tokens": (settings(vocab_size=3), "expected a vocab_size of at least the tokenizer's 6"),
    "far end": (
        lambda place: (place / "generation_config.json").write_text('{"eos_token_id": 999}'),
        "must have ends below 6, its vocabulary, got 999 in generation_config.json",
    ),
    "no end": (without_end, "expected a tokenizer with a token that ends a text"),
    "adapter": (adapter, "must be a model, got an adapter of 'some/base'"),
    "code": (code, "got one with code of its own, which is not run"),
    "no tokenizer": (
        without_tokenizer,
        "expected one with a tokenizer",
    ),
    "pickle in the index": (sharded(pickled), "must name safetensors, got 'a.bin'"),
    "above": (pointed("../a.safetensors"), "expected files next to it, got 'a.safetensors'"),
    "elsewhere": (pointed("/etc/passwd"), "must name safetensors, got 'passwd'"),
    "a number": (pointed(5), "must name safetensors, got '5'"),
    "torn shard": (sharded(torn), "b.safetensors: expected whole safetensors, got a torn"),
    "same shard twice": (
        sharded(lambda place, _: shutil.copy(place / "a.safetensors", place / "b.safetensors")),
        "got all but",
    ),
    "a pipe": (
        pipe,
        "expected a plain file, got another kind",
    ),
}
ALL = [pytest.param(name, kind, id=f"{name}, {kind}") for name in WRONG for kind in BOTH]


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "kind"), ALL)
def test_a_strange_folder_is_refused_in_one_sentence(
    name: str, kind: str, kept: Path, tmp_path: Path
) -> None:
    if (name, kind) == ("code", "gpt2"):
        pytest.skip("transformers has a tokenizer of this kind, so no code is asked for")
    change, said = WRONG[name]
    place = Path(shutil.copytree(kept / kind, tmp_path / "model"))
    change(place)
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        opened(place)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def linked(place: Path) -> None:
    """The folder as the hub's cache has it: links to files elsewhere."""
    blobs = place.parent / "blobs"
    blobs.mkdir()
    for file in [*place.iterdir()]:
        file.rename(blobs / file.name)
        file.symlink_to(os.path.relpath(blobs / file.name, place))


def twice(found: dict[str, Tensor]) -> dict[str, Tensor]:
    name = next(name for name in found if name.endswith(("embed_tokens.weight", "wte.weight")))
    return found | {"lm_head.weight": found[name].clone()}


def tied_twice(place: Path) -> None:
    changed(place, tie_word_embeddings=True)
    tensors(twice)(place)


RIGHT: dict[str, Change] = {
    "links": linked,
    "shards": sharded(lambda place, found: None),
    "half precision": tensors(lambda x: {name: y.bfloat16() for name, y in x.items()}),
    "double precision": tensors(lambda x: {name: y.double() for name, y in x.items()}),
    "tied weights twice": tied_twice,
    "no window": settings(sliding_window=0),
    "dropout": settings(attention_dropout=0.5, resid_pdrop=0.9, use_cache=False),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("kind", BOTH)
def test_an_unusual_folder_is_read(name: str, kind: str, kept: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(kept / kind, tmp_path / "model"))
    RIGHT[name](place)
    assert all(x.dtype == torch.float32 for x in opened(place).parameters())


def test_a_head_that_is_not_the_embedding_it_is_tied_to_is_refused(
    kept: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(kept / "llama", tmp_path / "model"))
    changed(place, tie_word_embeddings=True)
    tensors(bent_head)(place)
    with pytest.raises(ValueError, match=r"lm_head.weight: must be the embedding, since config"):
        opened(place)
