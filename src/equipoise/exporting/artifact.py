"""An artifact: a folder with the graph of a policy, its weights, spec, runtime and hashes; written
aside, named last.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise import edge, tree
from equipoise.actors.playing import FixedPolicy
from equipoise.envs import space_json
from equipoise.exporting.graph import PolicyGraph, onnx_bytes
from equipoise.exporting.observations import quantiles
from equipoise.exporting.parity import Parity, Seen, compare
from equipoise.files import plain, sync_directory, write_synced
from equipoise.record import checkpoint, playable
from equipoise.record.playable import Playable
from equipoise.tree import ArraySpec

MANIFEST, GRAPH, WEIGHTS, SPEC, EDGE = (
    "manifest.json",
    "policy.onnx",
    "weights.safetensors",
    "spec.json",
    "edge.py",
)


def write(
    to: Path,
    name: str,
    one: Playable,
    policy: FixedPolicy,
    *,
    step: int = 0,
    lineage: Mapping[str, Any],
    seen: Seen,
    rows: int | None,
) -> Parity | None:
    """Write the artifact of a policy as the new folder ``to``, once its graph agrees with torch on
    ``seen``.

    ``step``: of the run, by which it explores; ``rows``: how many are compared; None: no graph, but
    weights alone, which torch can serve. FileExistsError if there is something already; ``Differs``
    if the graph is wrong.
    """
    if to.exists():
        raise FileExistsError(
            f"{to}: expected a new directory for the artifact, got one that is there already"
        )
    module, files, parity = (
        PolicyGraph(policy, one.spec),
        {WEIGHTS: checkpoint.weights_bytes(tree.named_tensors(policy.net))},
        None,
    )
    spec = spec_json(name, one, policy, module, step=step)
    about: dict[str, Any] = {"lineage": dict(lineage)}
    if rows is not None:
        files |= {GRAPH: onnx_bytes(module), EDGE: Path(edge.__file__).read_bytes()}
        edge.check_model(files[GRAPH], to / GRAPH)
        played = edge.Artifact(files[GRAPH], spec, version="")
        parity = compare(played, module, seen, rows=rows)
        about["parity"] = asdict(parity) | {"source": seen.source}
    if (found := quantiles(seen, one.spec.mask)) is not None:
        about["quantiles"] = found
    spec["artifact"] |= about
    _publish(to, files | {SPEC: _json(spec)})
    return parity


def _publish(to: Path, files: Mapping[str, bytes]) -> None:
    """Write the files and their manifest into a folder aside, and give it its name."""
    to.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        for file, data in files.items():
            write_synced(aside / file, data)
        entries = {
            file: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for file, data in files.items()
        }
        write_synced(aside / MANIFEST, _json({"format": edge.FORMAT, "files": entries}))
        sync_directory(aside)
        aside.chmod(0o755)
        aside.rename(to)
        sync_directory(to.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _json(data: Any) -> bytes:
    return (json.dumps(plain(data), indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def spec_json(
    name: str, one: Playable, policy: FixedPolicy, graph: PolicyGraph, *, step: int
) -> dict[str, Any]:
    """``spec.json``: the policy as a run has it, and the facts that a reader of the graph needs."""
    inputs, explore = (
        _described(graph.signature.inputs),
        policy.algorithm.explore(np.arange(1), 1, step),
    )
    about = {
        "format": edge.FORMAT,
        "policy": name,
        "inputs": inputs,
        "outputs": _described(tree.named("action", graph.signature.action)),
        "noise": {
            "fresh": policy.noise.fresh,
            "held": policy.noise.held,
            "every": policy.noise.every,
        },
        "state": {path: inputs[path] for path in tree.named("state", graph.signature.state)},
        "explore": {
            path: leaf[0].tolist() for path, leaf in tree.named("explore", explore).items()
        },
        "propensity": graph.propensity,
        "onnxruntime": edge.LOWEST,
        "rows": {path: inputs[path] for path in tree.named("obs", graph.signature.obs)},
        "action": forms(one.spec.action),
    }
    policies = {
        name: playable.policy_json(
            one.algorithm, one.spec, learns=one.learns, where=f"policies.{name}"
        )
    }
    return playable.signed(policies, "fp32") | {"artifact": about}


def _described(specs: Mapping[str, ArraySpec]) -> dict[str, object]:
    return {path: {"dtype": s.dtype, "shape": list(s.shape)} for path, s in specs.items()}


def forms(space: spaces.Space[object]) -> dict[str, Any]:
    """{name: the dtype of that output, and the bounds that it is clipped to, before ``env.step``
    takes it}.
    """
    found: dict[str, Any] = {}
    for place, one in tree.items(tree.parts(space), "action"):
        said = space_json.to_json(one, place)
        found[place] = {"dtype": str(one.dtype), "shape": list(one.shape or ())}
        found[place] |= {key: said[key] for key in ("low", "high") if isinstance(one, spaces.Box)}
    return found
