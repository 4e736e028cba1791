"""Reward models of clips as folders: ``reward_model.json`` with the spaces, the settings of the
networks and the metrics, ``weights.safetensors``, and a manifest with their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from gymnasium import spaces
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from equipoise import schema
from equipoise.envs import space_json
from equipoise.files import json_bytes, parse_json, write_synced
from equipoise.nets.activations import ACTIVATIONS
from equipoise.registry.artifacts import (
    REWARD,
    Manifest,
    problems,
    read_manifest,
    read_plain,
    write_manifest,
)
from equipoise.rewards.preferences.fit import Metrics
from equipoise.rewards.preferences.model import RewardModel, RewardNets

FORMAT = 1
WEIGHTS = "weights.safetensors"
LARGEST = 1 << 30  # bytes of the weights
_SHARE = schema.Maybe(schema.Number(0, 1))
NETS: schema.Schema = {
    "members": schema.Number(1, 64, whole=True),
    "hidden": schema.Items(schema.Number(1, 1 << 16, whole=True), 16),
    "pictures?": schema.Text(among=("cnn", "components")),
    "activation": schema.Text(among=tuple(ACTIVATIONS)),
    "output": schema.Text(among=("linear", "tanh")),
    "reduce": schema.Text(among=("sum", "mean")),
    "noise": schema.Number(0, 0.9),
}
SCHEMA: schema.Schema = {
    "format": schema.Number(FORMAT, FORMAT, whole=True),
    "observation": schema.Anything(),  # space_json checks both spaces
    "action": schema.Anything(),
    "nets": NETS,
    "metrics": {
        "accuracy": _SHARE,
        "ece": _SHARE,
        "log_loss": schema.Maybe(schema.Number(0, schema.MOST)),
        "answers": schema.count(),
        "labels": schema.count(),
    },
    "lineage?": schema.Each(schema.Anything()),
}


def write(
    folder: Path,
    model: RewardModel,
    metrics: Metrics,
    *,
    labels: int,
    lineage: Mapping[str, object],
) -> Manifest:
    """Write a reward model into an empty folder. ``labels``: answers that it was fitted to."""
    about = {
        "format": FORMAT,
        "observation": space_json.to_json(model.observation, "observation"),
        "action": space_json.to_json(model.action, "action"),
        "nets": asdict(model.settings),
        "metrics": asdict(metrics) | {"labels": labels},
        "lineage": dict(lineage),
    }
    tensors = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    write_synced(folder / REWARD, json_bytes(about))
    write_synced(folder / WEIGHTS, save(tensors))
    return write_manifest(folder)


def read(folder: Path) -> RewardModel:
    """Return the reward model of a folder; ValueError if it is damaged, or one of text."""
    for problem in problems(folder, read_manifest(folder).version):
        raise ValueError(problem)
    file = folder / REWARD
    about = parse_json(read_plain(file, 1 << 20), file)
    if isinstance(about, Mapping) and "calibration" in about:
        raise ValueError(
            f"{folder}: must be a reward model of clips of an env, got one of text; try it as the "
            "reward of a run on text"
        )
    about = schema.check(about, SCHEMA, str(file))
    observation, action = (
        space_json.from_json(about[name], f"{file}: {name}") for name in ("observation", "action")
    )
    weights = folder / WEIGHTS
    try:
        tensors = load(read_plain(weights, LARGEST))
    except SafetensorError as error:
        raise ValueError(f"{weights}: must be safetensors, got others: {error}") from None
    return made(observation, action, nets_of(about["nets"], str(file)), tensors, str(weights))


def nets_of(data: object, where: str) -> RewardNets:
    """Return the settings of networks from JSON; ValueError if they are not valid."""
    found = schema.check(data, NETS, where)
    return RewardNets(**found | {"hidden": tuple(found["hidden"])})


def made(
    observation: spaces.Space[object],
    action: spaces.Space[object],
    nets: RewardNets,
    tensors: Mapping[str, Tensor],
    where: str,
) -> RewardModel:
    """Return a reward model with these tensors as its weights; ValueError if they do not fit."""
    try:
        with torch.device("meta"):  # no memory yet, whatever the sizes are
            model = RewardModel(observation, action, nets)
    except RuntimeError as error:
        raise ValueError(
            f"{where}: must have sizes that torch can make, got others: {error}"
        ) from None
    form = schema.like(dict(model.state_dict()), finite=True)
    model.load_state_dict(schema.check(dict(tensors), form, where), assign=True)
    return model.requires_grad_(False)
