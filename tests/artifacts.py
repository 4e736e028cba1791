"""Artifacts of untrained policies for tests: real exports, each made once a process."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from equipoise.exporting import artifact as artifacts
from equipoise.exporting.observations import sampled
from equipoise.programs.program import algorithm_from_json
from equipoise.record.playable import Playable
from equipoise.types import EnvSpec

BOX = spaces.Box(-10.0, 10.0, (4,), np.float32)
MASKED = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(3)})
KINDS: dict[str, tuple[str, dict[str, Any], EnvSpec]] = {
    "mlp": ("ppo", {}, EnvSpec(observation=BOX, action=spaces.Discrete(3))),
    "lstm": (
        "ppo",
        {"core": "lstm", "core_size": 8},
        EnvSpec(observation=BOX, action=spaces.Discrete(3)),
    ),
    "mask": (
        "ppo",
        {},
        EnvSpec(observation=MASKED, action=spaces.Discrete(3), mask=("action_mask",)),
    ),
    "box": (
        "ppo",
        {"normalize_obs": True},
        EnvSpec(observation=BOX, action=spaces.Box(-2.0, 2.0, (2,), np.float32)),
    ),
    "dqn": ("dqn", {"hidden": [16]}, EnvSpec(observation=BOX, action=spaces.Discrete(3))),
}


def untrained(algorithm: str, fields: dict[str, Any], spec: EnvSpec, seed: int = 0) -> Any:
    """(playable, policy) of a network from random weights."""
    made = algorithm_from_json({"name": algorithm, "fields": fields}, "algorithm")
    one = Playable(algorithm=made, spec=spec, learns=True, precision="fp32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = made.network(spec)
    policy = one.policy()
    policy.net.load_state_dict(net.state_dict())
    # the policy's head begins near 0, so that all untrained policies would act alike
    with torch.no_grad():
        head = getattr(policy.net, "policy_head", None)
        if head is not None:
            head.weight.mul_(100.0)
    return one, policy


def artifact(folder: Path, kind: str = "mlp", seed: int = 0) -> Path:
    """An artifact of a kind of ``KINDS`` as ``folder``; another ``seed`` is another version of the
    policy.
    """
    shutil.copytree(_made(kind, seed), folder)
    return folder


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="equipoise-artifacts-")


@functools.cache
def _made(kind: str, seed: int) -> Path:
    one, policy = untrained(*KINDS[kind], seed=seed)
    place = Path(_kept().name) / f"{kind}-{seed}"
    seen = sampled(one.spec, policy.net, rows=64)
    artifacts.write(
        place, "main", one, policy, lineage={"algorithm": KINDS[kind][0]}, seen=seen, rows=64
    )
    return place
