"""Artifacts: a folder with the graph of a policy, its weights, spec, runtime and hashes; written aside, named last."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import edge, tree
from equipoise.actors.playing import FixedPolicy
from equipoise.envs.spaces import observation_spec
from equipoise.exporting.graph import PolicyGraph, named, onnx_bytes
from equipoise.files import plain, sync_directory, write_synced
from equipoise.record import checkpoint, playable
from equipoise.record.playable import Playable

MANIFEST, GRAPH, WEIGHTS, SPEC, EDGE = "manifest.json", "policy.onnx", "weights.safetensors", "spec.json", "edge.py"


def write(
    to: Path, name: str, one: Playable, policy: FixedPolicy, *, step: int = 0, lineage: Mapping[str, Any],
    quantiles: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write the artifact of a policy as the new folder ``to``; FileExistsError where there is something already.

    ``step``: of the run, by which it explores.
    """
    if to.exists():
        raise FileExistsError(f"{to}: expected a new directory for the artifact, got one that is there already")
    graph = PolicyGraph(policy, one.spec)
    spec = spec_json(name, one, policy, graph, step=step, lineage=lineage, quantiles=quantiles)
    files = {
        GRAPH: onnx_bytes(graph),
        WEIGHTS: checkpoint.weights_bytes(tree.named_tensors(policy.net)),
        SPEC: _json(spec),
        EDGE: Path(edge.__file__).read_bytes(),
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        for file, data in files.items():
            write_synced(aside / file, data)
        entries = {file: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for file, data in files.items()}
        write_synced(aside / MANIFEST, _json({"format": edge.FORMAT, "files": entries}))
        sync_directory(aside)
        aside.chmod(0o755)
        aside.rename(to)
        sync_directory(to.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return to


def _json(data: Any) -> bytes:
    return (json.dumps(plain(data), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def spec_json(
    name: str, one: Playable, policy: FixedPolicy, graph: PolicyGraph, *, step: int, lineage: Mapping[str, Any],
    quantiles: Mapping[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """``spec.json``: the policy as a run has it, and what a reader of the graph needs."""
    explore = named("explore", policy.algorithm.explore(np.arange(1), 1, step))
    inputs = {path: {"dtype": s.dtype, "shape": list(s.shape)} for path, s in graph.signature.inputs.items()}
    rows = named("obs", observation_spec(one.spec.observation))
    about = {
        "format": edge.FORMAT,
        "policy": name,
        "inputs": inputs,
        "outputs": {path: {"dtype": s.dtype, "shape": list(s.shape)} for path, s in named("action", graph.signature.action).items()},
        "noise": {"fresh": policy.noise.fresh, "held": policy.noise.held, "every": policy.noise.every},
        "state": {path: inputs[path] for path in named("state", graph.signature.state)},
        "explore": {path: leaf[0].item() for path, leaf in explore.items()},
        "propensity": graph.propensity,
        "rows": {path: inputs[path] for path in rows},
        "action": forms(one.spec.action),
        "lineage": dict(lineage),
    }
    if quantiles is not None:
        about["quantiles"] = quantiles
    policies = {name: playable.policy_json(one.algorithm, one.spec, learns=one.learns, where=f"policies.{name}")}
    return playable.signed(policies, "fp32") | {"artifact": about}


def forms(space: spaces.Space[Any]) -> dict[str, Any]:
    """{name: what becomes of that output before ``env.step`` takes it}: its dtype, and the bounds that it is clipped to."""
    leaves: dict[str, Any] = {}

    def add(one: Any, place: str) -> None:
        if (inner := tree.branches(one)) is not None:
            for key, part in inner.items():
                add(part, f"{place}/{key}")
        else:
            said = playable.space_json.to_json(one, place)
            leaves[place] = {"dtype": str(one.dtype), "shape": list(one.shape or ())}
            leaves[place] |= {key: said[key] for key in ("low", "high") if isinstance(one, spaces.Box)}

    add(space, "action")
    return leaves
