"""The graph of a policy: ``act``, ``best`` and ``propensity`` of its algorithm as one ONNX file.

    inputs    obs or obs/PATH [B, ...], first [B], state/PATH [B, ...], noise [B, k], explore/PATH [B, ...], deterministic [B]
    outputs   action or action/PATH [B, ...], logp [B] unless there is none, next/PATH [B, ...]

Rows with ``deterministic`` get the action of ``best``, whose logp is 0; other rows get the action
of ``act``.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.actors.playing import FixedPolicy
from equipoise.envs import observation_spec
from equipoise.envs.spaces import action_spec
from equipoise.exporting.decompositions import Decomposed, widen
from equipoise.tree import ArraySpec
from equipoise.types import EnvSpec, Tree

EXAMPLE_ROWS = 3  # of the trace; no dimension of a space is likely to be confused with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The inputs and outputs of a graph: trees whose leaves are ``ArraySpec`` of one row."""

    obs: Tree
    state: Tree
    noise: int  # columns
    explore: Tree
    action: Tree

    @classmethod
    def of(cls, policy: FixedPolicy, spec: EnvSpec) -> Signature:
        row = tree.map(
            lambda s: ArraySpec(s.shape[1:], s.dtype), tree.spec(policy.net.initial_state(1))
        )
        explore = tree.map(
            lambda s: ArraySpec(s.shape[1:], s.dtype),
            tree.spec(policy.algorithm.explore(np.arange(1), 1, 0)),
        )
        return cls(
            obs=observation_spec(spec.observation),
            state=row,
            noise=policy.noise.columns,
            explore=explore,
            action=action_spec(spec.action),
        )

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """By name, in the graph's order."""
        return {
            **tree.named("obs", self.obs),
            "first": ArraySpec((), "bool"),
            **tree.named("state", self.state),
            "noise": ArraySpec((self.noise,), "float32"),
            **tree.named("explore", self.explore),
            "deterministic": ArraySpec((), "bool"),
        }


class PolicyGraph(nn.Module):
    """The module that is exported: tensors in the order of ``Signature.inputs`` -> tensors in the
    order of ``outputs``.
    """

    def __init__(self, policy: FixedPolicy, spec: EnvSpec) -> None:
        super().__init__()
        self.net, self._algorithm, self.signature = (
            policy.net,
            policy.algorithm,
            Signature.of(policy, spec),
        )
        self.outputs: list[str] = []  # names, in order
        boxes = any(isinstance(space, spaces.Box) for space in tree.leaves(tree.parts(spec.action)))
        # the network must not keep a trace's tensors as values that it makes once
        with torch.no_grad():
            self(*self.example(1))
        self.propensity = (
            "none" if "logp" not in self.outputs else "density" if boxes else "probability"
        )

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Zeros for every input; noise in the middle."""
        specs = self.signature.inputs
        zeros = {
            name: torch.zeros((rows, *s.shape), dtype=tree.torch_dtype(s.dtype))
            for name, s in specs.items()
        }
        return tuple((zeros | {"noise": zeros["noise"] + 0.5}).values())

    def _read(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tree, Tree, Tree]:
        """Inputs by name, and the trees of observations, state and exploration."""
        given = dict(zip(self.signature.inputs, tensors, strict=True))
        parts = {
            "obs": self.signature.obs,
            "state": self.signature.state,
            "explore": self.signature.explore,
        }
        obs, state, explore = (tree.like(branch, given, root) for root, branch in parts.items())
        return given, obs, state, explore

    def logp(self, tensors: Sequence[Tensor], action: Mapping[str, Tensor]) -> Tensor | None:
        """The log propensity [B] of actions other than the draws of ``act``; 0 if the best action
        is taken.
        """
        given, obs, state, explore = self._read(tensors)
        taken = tree.like(self.signature.action, action, "action")
        logp = self._algorithm.propensity(
            self.net, obs, given["first"], state, taken, explore=explore
        )
        return None if logp is None else torch.where(given["deterministic"], 0.0, logp)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given, obs, state, explore = self._read(tensors)
        first, noise, deterministic = (given[name] for name in ("first", "noise", "deterministic"))
        best, best_state = self._algorithm.best(self.net, obs, first, state)
        drawn, _, drawn_state = self._algorithm.act(
            self.net, obs, first, state, explore=explore, noise=noise
        )
        logp = self._algorithm.propensity(self.net, obs, first, state, drawn, explore=explore)

        def chosen(one: Tensor, other: Tensor) -> Tensor:
            return torch.where(deterministic.view(-1, *[1] * (one.ndim - 1)), one, other)

        out = tree.named("action", tree.map(chosen, best, drawn))
        out |= {} if logp is None else {"logp": torch.where(deterministic, 0.0, logp)}
        out |= tree.named("next", tree.map(chosen, best_state, drawn_state))
        self.outputs = list(out)
        return tuple(out.values())


def onnx_bytes(module: PolicyGraph) -> bytes:
    """The graph as an ONNX file. ValueError if the exporter cannot express the policy."""
    try:
        model = _model(module)
    except ImportError:
        raise
    except Exception as error:  # of torch's exporter, or of a torso of the user's
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(
            "expected a policy that ONNX can express, got one that its exporter refuses: "
            f"{type(error).__name__}: "
            f"{lines[0] if lines else 'no message'}; without a graph "
            "(export --only weights) torch can serve it (serve RUN --backend torch)"
        ) from error
    model.graph.name = "policy"
    for node in model.graph.node:
        # a state that does not depend on the action
        if node.op_type == "Where" and node.input[1] == node.input[2]:
            node.op_type = "Identity"
            del node.input[2], node.input[0]
    widen(model)
    return model.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _model(module: PolicyGraph) -> Any:
    """An ``onnx.ModelProto``."""
    import onnx_ir as ir
    from onnx_ir.passes import common

    rows, batch = module.eval().example(EXAMPLE_ROWS), torch.export.Dim("batch")
    with torch.no_grad(), quiet():
        with Decomposed():
            traced = torch.export.export(
                module, rows, dynamic_shapes=(tuple({0: batch} for _ in rows),), strict=False
            )
        program = torch.onnx.export(
            traced,
            input_names=list(module.signature.inputs),
            output_names=module.outputs,
            external_data=False,
            verbose=False,
        )
        assert program is not None
        # best, act and propensity each trace the network: the common part is computed once
        tidy = ir.passes.Sequential(
            common.DeduplicateInitializersPass(size_limit=1 << 40),
            common.CommonSubexpressionEliminationPass(),
            common.RemoveUnusedNodesPass(),
            common.ClearMetadataAndDocStringPass(),
        )
        return ir.serde.serialize_model(tidy(program.model).model)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context that mutes the exporter's messages to its developers."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
