"""Model files: ``config.json`` and safetensors of Llama, Mistral, Qwen2 and Qwen3, as Hugging
Face's transformers reads and writes them.

Numbers are read into float32, whatever the file has. Nothing is unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from equipoise.files import json_bytes, read_json, write_atomic
from equipoise.hints import hint, shortened
from equipoise.nets.decoder import FAMILIES, Decoder, DecoderConfig
from equipoise.schema import Anything, Maybe, Number, check, described

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SCORERS = {
    family: name.replace("CausalLM", "SequenceClassification")
    for family, name in ARCHITECTURES.items()
}
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
# the properties of the decoder
UNLIKE = {"mlp_bias": False, "use_sliding_window": False, "hidden_act": "silu", "pretraining_tp": 1}
_ROPE = Maybe(
    {
        "rope_theta?": Maybe(Number()),
        "factor?": Number(),
        "low_freq_factor?": Number(),
        "high_freq_factor?": Number(),
        "original_max_position_embeddings?": Number(),
        "*": Anything(),
    }
)
SHAPE = {  # the numbers of config.json that are not sizes
    "rope_parameters?": _ROPE,
    "rope_scaling?": _ROPE,
    "rope_theta?": Maybe(Number()),
    "rms_norm_eps?": Number(),
    "initializer_range?": Number(),
    "*": Anything(),
}
NONE: Mapping[str, int] = {}
FLOAT32 = 4  # bytes
KINDS = ("F64", "F32", "F16", "BF16")  # of numbers of a weight
COUNTS = ("U8", "BOOL", "I32", "I64")  # of buffers, such as masks of old files
SMALL = 1 << 24  # numbers
SHARD = 5 << 30  # bytes of a file of weights that ``write`` writes; more are split
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
IGNORED = ".rotary_emb.inv_freq"  # extra entries of old files, which are computed again


def read_config(directory: Path) -> DecoderConfig:
    """The shape of the model in a directory; ValueError if it is no decoder of this family."""
    path = directory / CONFIG
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected an object, got {type(data).__name__}")
    family = str(data.get("model_type"))
    if family == "mistral" and data.get("sliding_window") is None:
        family = "llama"  # by another name
    if family not in FAMILIES:  # the nearest name is another model
        window = "; mistral is read without a sliding_window" if family == "mistral" else ""
        raise ValueError(
            f"{path}: model_type: expected one of {', '.join(FAMILIES)}, got "
            f"{shortened(family)!r}{window}"
        )
    for name, value in UNLIKE.items():
        if data.get(name, value) != value:
            raise ValueError(
                f"{path}: {name}: expected {value!r}, got {data[name]!r}; the decoder has no other"
            )
    check(data, SHAPE, str(path))
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    scaling = {
        ("rope_type" if name == "type" else name): value
        for name, value in rope.items()
        if name != "rope_theta"
    }
    try:
        sizes = {name: _size(data, name) for name in SIZES}
        heads = sizes["num_attention_heads"]
        head_dim = 128 if family == "qwen3" else sizes["hidden_size"] // max(heads, 1)
        return DecoderConfig(
            family=family,  # type: ignore[arg-type]
            num_key_value_heads=_size(data, "num_key_value_heads", heads),
            head_dim=_size(data, "head_dim", head_dim),
            max_position_embeddings=_size(data, "max_position_embeddings", 2048),
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10_000.0),
            rope_scaling=None if scaling.get("rope_type", "default") == "default" else scaling,
            rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            attention_bias=family == "qwen2" or bool(data.get("attention_bias", False)),
            initializer_range=float(data.get("initializer_range", 0.02)),
            **sizes,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _size(data: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = data.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        got = described(value) if name in data else f"none{hint(name, data)}"
        raise ValueError(f"{name}: expected a whole number, got {got}")
    return value


def load(net: Decoder, directory: Path, fresh: Collection[str] = ()) -> None:
    """Fill a decoder's parameters with those in a directory; ValueError for a parameter that is
    missing, unexpected or of another shape. Parameters named in
    ``fresh`` may be missing.
    """
    params = dict(net.named_parameters())
    missing, head = set(params) - set(fresh), None
    for file in weight_files(directory):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  it is no dict
                    if _unneeded(name, params):
                        head = (file, tensors.get_tensor(name)) if name == HEAD else head
                        continue
                    _check(name, tensors.get_slice(name), params, file)
                    if not (read := tensors.get_tensor(name)).isfinite().all():
                        raise ValueError(f"{file}: {name}: must be finite numbers, got nan or inf")
                    with torch.no_grad():
                        params[name].copy_(read)
                    missing.discard(name)
        except SafetensorError as error:
            raise ValueError(
                f"{file}: expected whole safetensors, got a torn or foreign file ({error})"
            ) from None
    if missing:
        raise ValueError(
            f"{directory}: expected {len(params)} tensors, got all but {len(missing)}, such as "
            f"{min(missing)!r}"
        )
    if head is not None and not fresh and not torch.equal(params[EMBEDDING], head[1].float()):
        raise ValueError(
            f"{head[0]}: {HEAD}: must be the embedding, since {CONFIG} has tie_word_embeddings, "
            "got another; if the head was trained, set tie_word_embeddings to false"
        )


def _unneeded(name: str, params: Mapping[str, Tensor]) -> bool:
    # the head of a vocabulary is the embedding, or one of scores takes its place
    return name.endswith(IGNORED) or (name == HEAD and name not in params)


def _check(name: str, tensor: Any, params: Mapping[str, Tensor], file: Path) -> None:
    if name not in params:
        raise ValueError(
            f"{file}: expected the tensors of {CONFIG}, got {name!r} besides{hint(name, params)}"
        )
    shape, wanted = list(tensor.get_shape()), list(params[name].shape)
    if shape != wanted:
        raise ValueError(
            f"{file}: {name}: expected the shape {wanted} that {CONFIG} gives, got {shape}"
        )
    _check_kind(name, tensor.get_dtype(), file)


def _check_kind(name: str, kind: str, file: Path) -> None:
    if kind not in KINDS:
        raise ValueError(
            f"{file}: {name}: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind}; "
            "quantised files are not read"
        )


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a model: one file, or the files that an index names."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    index = directory / INDEX
    if index.is_file():
        data = read_json(index)
        names = data.get("weight_map") if isinstance(data, dict) else None
        if not isinstance(names, dict) or not names:
            raise ValueError(f"{index}: expected a weight_map from tensors to files, got none")
        files = [directory / str(name) for name in sorted(set(map(str, names.values())))]
        for file in files:
            if file.suffix != ".safetensors":
                raise ValueError(
                    f"{index}: must name safetensors, got {shortened(repr(file.name))}; another "
                    "kind of file may run code when it is read"
                )
            if file.parent != directory or not file.is_file():
                raise ValueError(
                    f"{index}: expected files next to it, got {file.name!r}, which is not there"
                )
        return files
    pickles = sorted(
        file.name for ending in ("*.bin", "*.pt", "*.pth") for file in directory.glob(ending)
    )
    if pickles:
        raise ValueError(
            f"{directory}: expected {WEIGHTS}, got {pickles[0]}, a pickle, which may run any code "
            "when it is read; convert it "
            "with transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
        )
    raise ValueError(f"{directory}: expected {WEIGHTS} or {INDEX}, got neither")


def check_size(make: Callable[[], nn.Module], directory: Path | str = "") -> None:
    """ValueError, before a network has any memory, if its weights are more than the files in a
    directory hold, or than this machine has memory for. ``make``: makes the network; "": its
    weights are in no files.
    """
    try:
        with torch.device("meta"):
            count = sum(one.numel() for one in make().parameters())
    except RuntimeError:  # of more bytes than 64 bits count
        count = 1 << 63
    if directory:
        held = sum(file.stat().st_size for file in weight_files(Path(directory)))
        if count > max(held, SMALL):  # of a small one ``load`` says which tensors are missing
            raise ValueError(
                f"{directory}: must have files with the {count:,} numbers that {CONFIG} asks for, "
                f"got {held:,} bytes"
            )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (needed := count * FLOAT32) > memory:
        raise ValueError(
            f"--model: must fit into the memory of this machine, {memory / 2**30:.0f} GiB, got "
            f"{count:,} weights of {needed / 2**30:,.0f} GiB; try fewer layers or a smaller model"
        )


def check_whole(directory: Path) -> None:
    """ValueError unless every file of weights is there and whole, and has no quantised weights."""
    for file in weight_files(directory):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  it is no dict
                    kind = tensors.get_slice(name).get_dtype()
                    if name.endswith("weight") or kind not in COUNTS:
                        _check_kind(name, kind, file)
        except SafetensorError as error:
            raise ValueError(
                f"{file}: expected whole safetensors, got a torn or foreign file ({error})"
            ) from None


def write(
    directory: Path,
    config: DecoderConfig,
    params: Mapping[str, Tensor],
    *,
    eos: tuple[int, ...] = (),
    special: Mapping[str, int] = NONE,
    scored: bool = False,
) -> None:
    """A directory for ``transformers`` and ``load``: config.json and model.safetensors; ``scored``:
    of a ``ScoredDecoder``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    about = config_json(config, eos, special) | (
        {"architectures": [SCORERS[config.family]], "id2label": {"0": "score"}} if scored else {}
    )
    write_atomic(directory / CONFIG, json_bytes(about))
    parts = shards({name: value.nbytes for name, value in params.items()})
    named = dict[str, str]()
    for number, names in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors" if len(parts) > 1 else WEIGHTS
        named |= dict.fromkeys(names, file)
        tensors = {
            name: params[name].detach().cpu().clone(memory_format=torch.contiguous_format)
            for name in names
        }
        write_atomic(directory / file, save(tensors, metadata={"format": "pt"}))
    if len(parts) > 1:
        size = sum(value.nbytes for value in params.values())
        index = {"metadata": {"total_size": size}, "weight_map": named}
        write_atomic(directory / INDEX, json_bytes(index))


def shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """Return the names of tensors in parts of at most ``SHARD`` bytes, or of one tensor each."""
    parts, total = [list[str]()], 0
    for name, size in sizes.items():
        if parts[-1] and total + size > SHARD:
            parts, total = [*parts, []], 0
        parts[-1].append(name)
        total += size
    return parts


def config_json(
    config: DecoderConfig, eos: tuple[int, ...] = (), special: Mapping[str, int] = NONE
) -> dict[str, object]:
    """The fields of ``config.json``; ``eos``: tokens that end a text; ``special``: others."""
    fields = asdict(config)
    family = fields.pop("family")
    ends = {"eos_token_id": eos[0] if len(eos) == 1 else list(eos)} if eos else {}
    return (
        {
            "architectures": [ARCHITECTURES[family]],
            "model_type": family,
            "hidden_act": "silu",
            "dtype": "float32",
        }
        | fields
        | dict(special)
        | ends
    )
