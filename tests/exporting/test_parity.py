"""An exported graph says what torch says: every algorithm, every family of spaces, over sequences
with their seams.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.actors.playing import FixedPolicy
from equipoise.edge import Artifact
from equipoise.exporting import artifact as artifacts
from equipoise.exporting.graph import PolicyGraph, onnx_bytes
from equipoise.exporting.observations import sampled
from equipoise.exporting.parity import Differs, compare
from equipoise.learners.pool import ALONE
from equipoise.nets.core import Core
from equipoise.record.playable import Playable
from tests.artifacts import KINDS, artifact, untrained
from tests.exporting.cases import CASES, LATER

ROWS = 300


def made(name: str) -> tuple[Playable, FixedPolicy]:
    """A policy of random weights, with statistics of observations where it has some."""
    one, policy = untrained(*CASES[name])
    with torch.no_grad():
        # biases, deviations: nothing stays as it was at the start
        for parameter in policy.net.parameters():
            parameter.add_(
                0.05
                * torch.randn(
                    parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
                )
            )
    if hasattr(policy.net, "absorb"):
        seen = sampled(one.spec, policy.net, rows=200, seed=3)
        obs = tree.map(lambda x: x * 3 + 1 if x.dtype.kind == "f" else x, seen.obs)
        policy.net.absorb(
            tree.torch_views(obs), torch.ones(seen.first.shape, dtype=torch.bool), ALONE
        )
    return one, policy


def exported(name: str, to: Path, rows: int) -> Any:
    one, policy = made(name)
    seen = sampled(one.spec, policy.net, rows=rows, seed=1)
    return artifacts.write(to, "main", one, policy, step=LATER, lineage={}, seen=seen, rows=rows)


# Graphs of which another case has the like; the slow test has them all.
ALIKE = {
    "a2c",
    "appo",
    "apex_dqn",
    "impala gru",
    "r2d2 gru",
    "td3 random",
    "td3 without noise",
    "tqc",
    "multidiscrete masked by a tuple",
}


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ALIKE])
def test_the_graph_says_what_torch_says(name: str, tmp_path: Path) -> None:
    parity = exported(name, tmp_path / "out", ROWS)
    assert (
        parity.equal >= 0.999
        and parity.likely >= 0.999
        and parity.state <= 1e-4
        and np.isfinite(parity.logp)
    )
    assert parity.rows >= 1.3 * ROWS


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_graph_says_what_torch_says_on_ten_thousand_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # small batches on fewer rows
    monkeypatch.setattr("equipoise.exporting.parity.BATCHES", {1: 20, 2: 20, 7: 10, 64: 1})
    parity = exported(name, tmp_path / "out", 10_000)
    assert (
        parity.rows >= 10_000
        and parity.equal >= 0.999
        and parity.likely >= 0.999
        and parity.logp <= 1e-4
    )


# ----------------------------------------------------------------------------------------- refusals


def wrong_step(order: str) -> Any:
    """``Core.step`` of a GRU as an exporter might write it wrongly."""

    def step(self: Core, x: Any, first: Any, state: Any) -> Any:
        w_ih, w_hh, b_ih, b_hh = self._parameters_of_rnn()
        h = (
            torch.where(first.unsqueeze(1), 0.0, state["h"])
            if order != "without a reset"
            else state["h"]
        )
        one, two, new = torch.nn.functional.linear(x, w_ih, b_ih).chunk(3, 1)
        h_one, h_two, h_new = torch.nn.functional.linear(h, w_hh, b_hh).chunk(3, 1)
        r, z = (one + h_one).sigmoid(), (two + h_two).sigmoid()
        if order == "z before r":
            r, z = z, r
        if order == "reset before the product":  # ONNX's linear_before_reset=0
            h_new = torch.nn.functional.linear(r * h, *(p[2 * self.size :] for p in (w_hh, b_hh)))
        h = torch.lerp((new + r * h_new).tanh(), h, z)
        return h, {"h": h}

    return step


@pytest.mark.thorough
@pytest.mark.parametrize(
    "order", ["reset before the product", "z before r", "right", "without a reset"]
)
def test_a_gru_that_is_written_wrongly_is_refused(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = onnx_bytes

    def planted(graph: Any) -> bytes:
        with monkeypatch.context() as patched:
            patched.setattr(Core, "step", wrong_step(order))
            return right(graph)

    monkeypatch.setattr(artifacts, "onnx_bytes", planted)
    if order == "right":
        assert exported("impala gru", tmp_path / "out", ROWS).equal == 1
        return
    with pytest.raises(
        Differs,
        match=r"policy.onnx: expected torch's recurrent state, got one that is .* away, in batches "
        r"of 1",
    ):
        exported("impala gru", tmp_path / "out", ROWS)
    assert not any(tmp_path.iterdir())  # nothing is left of it


@pytest.mark.parametrize("what", ["action", "logp", "nan"])
def test_a_graph_with_other_answers_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, policy = made("ppo")
    seen = sampled(one.spec, policy.net, rows=64)
    place = artifact(tmp_path / "right", "mlp")
    graph, right = PolicyGraph(untrained(*KINDS["mlp"])[1], one.spec), Artifact.open(place)
    run = Artifact.run

    def wrong(self: Artifact, *given: Any) -> Any:
        action, logp, state = run(self, *given)
        action = (
            {name: np.where(np.arange(len(x)) % 2, x, (x + 1) % 3) for name, x in action.items()}
            if what == "action"
            else action
        )
        return action, np.asarray(logp) + {"logp": 2e-4, "nan": np.nan}.get(what, 0.0), state

    assert compare(right, graph, seen, rows=64).equal == 1
    monkeypatch.setattr(Artifact, "run", wrong)
    with pytest.raises(
        Differs,
        match="expected torch's actions"
        if what == "action"
        else "expected torch's log propensities",
    ):
        compare(right, graph, seen, rows=64)
