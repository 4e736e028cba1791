"""Adapters as files in peft's format: ``adapter_config.json`` and ``adapter_model.safetensors``.

``PeftModel.from_pretrained(base, DIR)`` loads them. The metadata of the safetensors has the hash of
the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from equipoise.files import check_plain, json_bytes, read_json, write_atomic
from equipoise.hints import shortened
from equipoise.language.models import COMMIT
from equipoise.nets import lora
from equipoise.schema import Anything, Flag, Items, Number, Text, check
from equipoise.types import TaskSource, TextSpec

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # begins the names of peft's tensors
SCHEMA = {  # plain LoRA; peft's variants are refused
    "peft_type": Text(among=("LORA",)),
    "r": Number(1, 1 << 20, whole=True),
    "lora_alpha": Number(0, lora.MOST_ALPHA),
    "target_modules": Items(Text()),
    "bias?": Text(among=("none",)),
    "fan_in_fan_out?": Flag(),  # follows from the kind of layer
    "init_lora_weights?": Anything(),
    "*": Anything(),
}
VARIANTS = (  # of peft 0.21: each computes something else, or learns more
    "use_dora",
    "use_rslora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "exclude_modules",
    "target_parameters",
    "trainable_token_indices",
)
# first values of adapters that change the base as well, until peft converts them
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
Net = TypeVar("Net", bound=nn.Module)


def write(directory: Path, net: nn.Module, base: str) -> None:
    """Write the adapters of a network; ``base``: the name of the model that they belong to.

    ValueError if the network has none.
    """
    layers = lora.layers_of(net)
    if not layers:
        raise ValueError(
            "export: must be a run with adapters (--lora RANK) to write them alone, got a run in "
            "which the whole model learns; leave out --only"
        )
    directory.mkdir(parents=True, exist_ok=True)
    first = next(iter(layers.values()))
    rank = len(first.lora_A)
    # of the hub's names alone: a folder's may have an @
    name, _, revision = base.partition("@") if COMMIT.fullmatch(base) else (base, "", "")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "revision": revision or None,
        "r": rank,
        "lora_alpha": first.scale * rank,
        "target_modules": [one.removeprefix("module.") for one in _targets(net, list(layers))],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(isinstance(one, lora.LoraConv1D) for one in layers.values()),
        "inference_mode": True,
    }
    write_atomic(directory / CONFIG, json_bytes(config))
    tensors = {name: x.detach().cpu().clone() for name, x in _named(layers).items()}
    digest = bytes(dict(net.named_buffers())[lora.BASE].tolist()).hex()
    write_atomic(directory / WEIGHTS, save(tensors, metadata={"format": "pt", lora.BASE: digest}))


def settings_of(source: TaskSource) -> dict[str, object]:
    """Return the fields of a run's ``Lora``; {} if the whole model learns."""
    if source.adapter:
        return read_settings(Path(source.adapter).expanduser())
    if source.lora is None:
        return {}
    return {"rank": source.lora, "alpha": source.lora_alpha, "targets": source.lora_targets}


def add_adapters(net: Net, spec: TextSpec, learned: Sequence[str] = ()) -> Net:
    """Add the adapters of a spec to a network, in place; ``learned``: modules that learn whole."""
    lora.add_adapters(net, spec.lora, learned)
    if spec.adapter:
        load(net, Path(spec.adapter).expanduser())
    return net


def read_settings(directory: Path) -> dict[str, object]:
    """Return the fields of the ``Lora`` in an adapter's folder; ValueError for another kind."""
    file = directory / CONFIG
    if not file.is_file():
        raise ValueError(f"{directory}: must be a folder with {CONFIG} and {WEIGHTS}, got another")
    config = check(read_json(file), SCHEMA, str(file))
    for name in VARIANTS:
        if config.get(name):
            raise ValueError(
                f"{file}: {name}: must be false or empty, got {config[name]!r}; only plain LoRA is "
                "read, so merge the adapter with peft (merge_and_unload) and name the model"
            )
    first = config.get("init_lora_weights")
    if isinstance(first, str) and first.lower().startswith(CHANGES_BASE):
        raise ValueError(
            f"{file}: init_lora_weights: must leave the base as it is, got "
            f"{shortened(repr(first))}, which changes it; convert the adapter with peft "
            "(save_pretrained with path_initial_model_for_weight_conversion)"
        )
    targets = tuple(config["target_modules"])
    return {"rank": config["r"], "alpha": float(config["lora_alpha"]), "targets": targets}


def base_name(directory: Path) -> str:
    """Return the name of the base in an adapter's folder, which is not opened; "" without one."""
    config = read_json(directory / CONFIG)
    return str(config.get("base_model_name_or_path") or "") if isinstance(config, dict) else ""


def base_sha256(directory: Path) -> str:
    """Return the hash of the base that adapters of ours name; "" for those of others."""
    file = directory / WEIGHTS
    try:
        check_plain(file)
        with safe_open(file, "pt") as opened:
            return str((opened.metadata() or {}).get(lora.BASE, ""))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: must be whole safetensors, got {error}") from None


def load(net: nn.Module, directory: Path) -> None:
    """Fill the adapters of a network from a folder; ValueError if they do not fit."""
    file, wanted = directory / WEIGHTS, _named(lora.layers_of(net))
    try:
        check_plain(file)
        with safe_open(file, "pt") as opened:
            digest = (opened.metadata() or {}).get(lora.BASE, "")
            names = opened.keys()
            shapes = {name: opened.get_slice(name).get_shape() for name in names}
            _check_shapes(wanted, shapes, file)
            found = {name: opened.get_tensor(name) for name in wanted}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: must be whole safetensors, got {error}") from None
    if digest:
        try:
            number = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)
        except ValueError:
            number = torch.zeros(0, dtype=torch.uint8)
        lora.check_base(net, {lora.BASE: number}, str(file))
    for name, x in found.items():
        if not x.is_floating_point() or not x.isfinite().all():
            raise ValueError(
                f"{file}: {name}: must hold finite numbers of a kind of float, got others "
                f"({x.dtype})"
            )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


def _check_shapes(
    wanted: Mapping[str, Tensor], found: Mapping[str, Sequence[int]], file: Path
) -> None:
    for name in sorted({*wanted, *found}):
        mine = tuple(wanted[name].shape) if name in wanted else "none"
        other = tuple(found[name]) if name in found else "none"
        if mine != other:
            got = shortened(str(other))
            raise ValueError(f"{file}: {shortened(name)}: must have the shape {mine}, got {got}")


def _named(layers: dict[str, lora.LoraLinear]) -> dict[str, Tensor]:
    """Return the adapters by peft's names."""
    return {
        f"{PREFIX}{name.removeprefix('module.')}.{kind}.weight": x
        for name, layer in layers.items()
        for kind, x in ((lora.A, layer.lora_A), (lora.B, layer.lora_B))
    }


def _targets(net: nn.Module, layers: list[str]) -> list[str]:
    """Return the ends of the layers' names, or the whole names if other layers also end so."""
    ends = sorted({name.rpartition(".")[2] for name in layers})
    meant = [
        name
        for name, module in net.named_modules()
        if (lora.adaptable(module) or name in layers) and name.rpartition(".")[2] in ends
    ]
    return ends if sorted(meant) == sorted(layers) else sorted(layers)
