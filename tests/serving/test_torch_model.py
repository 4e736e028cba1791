"""The torch backend says what the graph says, needs no graph and no env, and trusts no code that
its user does not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.client import Client
from equipoise.edge import Artifact
from equipoise.registry import Registry
from equipoise.serving.backend import load
from tests.artifacts import artifact
from tests.serving.servers import OBS, serving


def without_graph(folder: Path, kind: str) -> Path:
    """An artifact of a policy that ONNX cannot say."""
    made = artifact(folder, kind)
    (made / "policy.onnx").unlink()
    manifest = json.loads((made / "manifest.json").read_text())
    del manifest["files"]["policy.onnx"]
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["lstm", "mask", "box", "mlp"])
def test_it_says_what_the_graph_says(kind: str, tmp_path: Path) -> None:
    graph, model = (
        Artifact.open(artifact(tmp_path / "a", kind)),
        load(without_graph(tmp_path / "b", kind), "torch"),
    )
    assert model.version == hashlib.sha256((tmp_path / "b/manifest.json").read_bytes()).hexdigest()
    rng, count = np.random.default_rng(0), 32
    rows: dict[str, Any] = {
        name: rng.normal(size=(count, *shape)).astype(dtype)
        if dtype.kind == "f"
        else np.ones((count, *shape), dtype)
        for name, (shape, dtype) in graph._rows.items()
    }
    first, deterministic = rng.random(count) < 0.3, rng.random(count) < 0.5
    states, noise = [graph.initial(count)] * 2, graph.draw(1, np.arange(count), np.zeros(count))
    for _ in range(3):
        told = [
            one.run(rows, first, state, noise, deterministic)
            for one, state in zip((graph, model), states, strict=True)
        ]
        (actions, logp, _), (others, other_logp, _) = told
        for name, x in actions.items():
            np.testing.assert_allclose(others[name], x, atol=1e-4)
        assert (logp is None) == (other_logp is None)
        if logp is not None and other_logp is not None:
            np.testing.assert_allclose(other_logp, logp, atol=1e-4)
        states = [said[2] for said in told]
        for name, x in states[0].items():
            np.testing.assert_allclose(states[1][name], x, atol=1e-4)


def test_what_it_does_not_trust(tmp_path: Path) -> None:
    made = without_graph(tmp_path / "a", "mlp")
    spec = json.loads((made / "spec.json").read_text())
    (made / "spec.json").write_text(json.dumps(spec | {"extra": 1}))
    with pytest.raises(ValueError, match=r"spec.json: expected \d+ bytes|SHA-256"):
        load(made, "torch")
    with pytest.raises(ValueError, match="policy.onnx"):
        load(without_graph(tmp_path / "b", "mlp"))


@pytest.mark.thorough
def test_it_is_served(tmp_path: Path) -> None:
    made = Registry(tmp_path / "registry", create=True)
    made.alias("lstm", "champion", made.add(without_graph(tmp_path / "a", "lstm"), "lstm"))
    graph = Artifact.open(artifact(tmp_path / "b", "lstm"))
    with (
        serving(tmp_path, "lstm", "--backend", "torch") as running,
        Client(running.url) as client,
        client.episode() as episode,
    ):
        state, always = graph.initial(1), np.array([True])
        for t in range(3):
            rows, _ = graph.read(OBS)
            raw, _, state = graph.run(rows, np.array([t == 0]), state, None, always)
            assert episode.act(OBS).action == raw["action"][0]
