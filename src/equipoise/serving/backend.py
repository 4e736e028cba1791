"""The server's interface to a loaded artifact, and its loaders: ONNX Runtime, or torch for policies
that ONNX cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from equipoise.serving.settings import Backend

Array = np.ndarray


class Model(Protocol):
    """A loaded artifact without state of its own; ``equipoise.edge.Artifact`` describes each
    method.
    """

    version: str
    spec: Any
    propensity: str

    def read(self, obs: object) -> tuple[dict[str, Array], bool]: ...

    def initial(self, count: int) -> dict[str, Array]: ...

    def draw(self, seed: int, streams: object, rows: object) -> Array: ...

    def run(
        self,
        rows: Mapping[str, Array],
        first: Array,
        state: Mapping[str, Array],
        noise: Array | None,
        deterministic: Array,
    ) -> tuple[dict[str, Array], Array | None, dict[str, Array]]: ...

    def action(self, raw: Mapping[str, Array], row: int | None = None) -> object: ...


def load(
    path: Path, backend: Backend = "onnx", *, threads: int = 1, trusted: Sequence[str] = ()
) -> Model:
    """Check and load an artifact; ValueError names the file that is damaged or not to be trusted.

    ``trusted``: code that its spec may name, for torch.
    """
    if backend == "torch":
        from equipoise.serving.torch_model import TorchModel

        return TorchModel.load(path, threads=threads, trusted=trusted)
    from equipoise.edge import Artifact

    return Artifact.open(path, threads=threads)
