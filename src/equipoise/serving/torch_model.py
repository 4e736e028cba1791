"""A policy in torch, for policies that ONNX cannot express: it calls its algorithm as ``Playing``
does, in batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as read_tensors
from torch import Tensor

from equipoise import tree
from equipoise.actors.playing import FixedPolicy
from equipoise.edge import Artifact, verified
from equipoise.files import parse_json
from equipoise.nets.precision import autocast
from equipoise.record import playable

SPEC, WEIGHTS = "spec.json", "weights.safetensors"
Array = np.ndarray


class TorchModel(Artifact):
    """An artifact whose network is built again and filled with its weights; ``policy.onnx`` is not
    needed.
    """

    policy: FixedPolicy

    @classmethod
    def load(cls, path: Path, *, threads: int = 1, trusted: Sequence[str] = ()) -> TorchModel:
        """Check an artifact and build its policy. ``trusted``: code of the user that its spec may
        name (``trust.py``).
        """
        version, files = verified(path, (SPEC, WEIGHTS))
        spec = parse_json(files[SPEC], path / SPEC)
        model = cls(None, spec, version=version, where=str(path / SPEC))
        name = spec["artifact"]["policy"]
        said = {key: value for key, value in spec.items() if key != "artifact"}
        one = playable.from_json(said, path / SPEC, trusted=trusted)[name]
        policy = one.policy()
        playable.fill({name: policy.net}, read_tensors(files[WEIGHTS]), str(path / WEIGHTS))
        policy.net.eval()
        torch.set_num_threads(threads)
        model.policy = policy
        return model

    def run(
        self,
        rows: Mapping[str, Array],
        first: Array,
        state: Mapping[str, Array],
        noise: Array | None,
        deterministic: Array,
        explore: Mapping[str, Array] | None = None,
    ) -> tuple[dict[str, Array], Array | None, dict[str, Array]]:
        """As ``Artifact.run``."""
        algorithm, net = self.policy.algorithm, self.policy.net
        given = {**self.constants(len(first)), **rows, **state, **(explore or {})}
        if noise is not None:
            given["noise"] = noise
        tensors = {name: torch.from_numpy(np.array(x)) for name, x in given.items()}
        obs, before, exploring = (
            tree.within(root, tensors) for root in ("obs", "state", "explore")
        )
        begins, certain = torch.from_numpy(first.copy()), torch.from_numpy(deterministic.copy())
        with torch.inference_mode(), autocast(self.policy.precision):
            action, after = algorithm.best(net, obs, begins, before)
            logp = None
            if self.propensity != "none":
                logp = torch.zeros(len(first))
            if not deterministic.all():
                drawn, _, drawn_after = algorithm.act(
                    net, obs, begins, before, explore=exploring, noise=tensors["noise"]
                )
                likely = algorithm.propensity(net, obs, begins, before, drawn, explore=exploring)

                def chosen(one: Tensor, other: Tensor) -> Tensor:
                    return torch.where(certain.view(-1, *[1] * (one.ndim - 1)), one, other)

                action, after = (
                    tree.map(chosen, action, drawn),
                    tree.map(chosen, after, drawn_after),
                )
                logp = None if logp is None or likely is None else chosen(logp, likely.float())
        out, following = (
            tree.named(root, tree.numpy_views(branch))
            for root, branch in (("action", action), ("state", after))
        )
        return out, None if logp is None else logp.numpy(), following
