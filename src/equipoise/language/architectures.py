"""The choice of a model's decoder: our own for its families, else the module of transformers.

No code of the model's folder is run, and no weights but safetensors are read.
"""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.files import read_json
from equipoise.hints import hint, install, shortened
from equipoise.language import files
from equipoise.nets.decoder import FAMILIES, ROPE_TYPES, Decoder, DecoderConfig
from equipoise.nets.hub_decoder import FAMILY, HubConfig, HubDecoder, check_counts, sketched
from equipoise.nets.scored import SCORE, HubScored, ScoredDecoder, Scores
from equipoise.types.packed import Fields

OURS, THEIRS = "equipoise", "transformers"
NAMES = {  # of config.json: a size, and its other names
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "n_ctx"),
    "vocab_size": (),
}
ADAPTER = "adapter_config.json"
POSITIONS = 2048  # if config.json has none


def read_config(directory: Path) -> DecoderConfig | HubConfig:
    """Return the shape of the model in a directory; ValueError if neither decoder computes it."""
    if (found := directory / ADAPTER).is_file() and not (directory / files.CONFIG).exists():
        said = read_json(found)
        base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
        raise ValueError(
            f"{directory}: must be a model, got an adapter of {shortened(str(base))!r}; name that "
            f"model and --set source.adapter={directory}"
        )
    data = read_json(directory / files.CONFIG)
    if isinstance(data, dict):
        check_counts(data, f"{directory / files.CONFIG}: ")
    if not isinstance(data, dict) or is_own(data):
        return files.read_config(directory)
    return hub_config(data, directory / files.CONFIG)


def is_own(data: Fields) -> bool:
    """Return whether our decoder computes the model of this config.json."""
    kind = data.get("model_type")
    if kind != "mistral" and kind not in FAMILIES:
        return False
    if kind == "mistral" and data.get("sliding_window") is not None:
        return False
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    form = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    unlike = any(data.get(name, value) != value for name, value in files.UNLIKE.items())
    return not unlike and (form is None or (isinstance(form, str) and form in ROPE_TYPES))


def hub_config(data: Fields, file: Path) -> HubConfig:
    """Return the shape of a model of transformers; ValueError if it has no such model."""
    kind = data.get("model_type")
    try:
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as named,
        )
    except ModuleNotFoundError:
        raise ValueError(
            f"{file}: model_type: must be one of {', '.join(FAMILIES)} without transformers, got "
            f"{shortened(str(kind))!r}; {install('language')}"
        ) from None
    if not isinstance(kind, str) or kind not in named:
        own = "; code of the model's folder is not run" if "auto_map" in data else ""
        raise ValueError(
            f"{file}: model_type: must be a causal language model of transformers, got "
            f"{shortened(str(kind))!r}{hint(str(kind), named)}{own}"
        )
    sizes = {name: _size(data, name, file) for name in NAMES}
    window = data.get("sliding_window")
    if isinstance(window, int) and not isinstance(window, bool) and window > 0:
        sizes["max_position_embeddings"] = min(sizes["max_position_embeddings"], window)
    fields = {name: value for name, value in data.items() if name not in ("auto_map", "model_type")}
    fields = json.loads(json.dumps(fields))
    try:
        return HubConfig(
            model_type=kind,
            vocab_size=sizes["vocab_size"],
            hidden_size=sizes["hidden_size"],
            max_position_embeddings=sizes["max_position_embeddings"],
            fields=fields,
        )
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _size(data: Fields, name: str, file: Path) -> int:
    for one in (name, *NAMES[name]):
        value = data.get(one)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if name == "max_position_embeddings":
        return POSITIONS
    raise ValueError(f"{file}: {name}: must be a whole number above 0, got {data.get(name)!r}")


def config_of(model: Fields) -> DecoderConfig | HubConfig:
    """Return the shape of a ``TextSpec.model``; TypeError for other fields."""
    return HubConfig(**model) if model.get("family") == FAMILY else DecoderConfig(**model)


def decoder_of(config: DecoderConfig | HubConfig) -> str:
    """Return the library whose decoder computes this shape."""
    return THEIRS if isinstance(config, HubConfig) else OURS


def build(model: Fields, weights: str) -> Decoder:
    """Return the network of a ``TextSpec``; ``weights``: their directory, or "" for random ones."""
    config, directory = config_of(model), Path(weights)
    if isinstance(config, HubConfig):
        if weights:
            files.check_whole(directory)
        files.check_size(lambda: sketched(config, weights or "--model"), weights)
        return HubDecoder(config, directory if weights else None)
    files.check_size(lambda: Decoder(config), weights)
    net = Decoder(config)
    if weights:
        files.load(net, directory)
    return net


def build_scored(model: Fields, weights: str, *, fresh: bool = False) -> Scores:
    """Return the network of a reward model; ``weights``: as ``build``; ``fresh``: the head may be
    missing there.
    """
    config, directory = config_of(model), Path(weights)
    if isinstance(config, HubConfig):
        if weights:
            files.check_whole(directory)
        files.check_size(lambda: sketched(config, weights or "--model"), weights)
        return HubScored(config, directory if weights else None, (SCORE,) if fresh else ())
    files.check_size(lambda: ScoredDecoder(config), weights)
    net = ScoredDecoder(config)
    if weights:
        files.load(net, directory, fresh=(SCORE,) if fresh else ())
    return net
