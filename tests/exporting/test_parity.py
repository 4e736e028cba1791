"""An exported graph says what torch says: every algorithm that acts in envs, every family of spaces, over sequences with seams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import tree
from equipoise.actors.playing import FixedPolicy
from equipoise.exporting import artifact as artifacts
from equipoise.exporting.observations import sampled
from equipoise.record.playable import Playable
from equipoise.learners.pool import ALONE
from tests.artifacts import untrained
from tests.exporting.cases import CASES

ROWS = 300


def made(name: str) -> tuple[Playable, FixedPolicy]:
    """A policy of random weights, with statistics of observations where it has some."""
    one, policy = untrained(*CASES[name])
    with torch.no_grad():
        for parameter in policy.net.parameters():  # biases, deviations: nothing stays as it was at the start
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    if hasattr(policy.net, "absorb"):
        seen = sampled(one.spec, policy.net, rows=200, seed=3)
        obs = tree.map(lambda x: x * 3 + 1 if x.dtype.kind == "f" else x, seen.obs)
        policy.net.absorb(tree.torch_views(obs), torch.ones(seen.first.shape, dtype=torch.bool), ALONE)
    return one, policy


def exported(name: str, to: Path, rows: int) -> Any:
    one, policy = made(name)
    seen = sampled(one.spec, policy.net, rows=rows, seed=1)
    return artifacts.write(to, "main", one, policy, lineage={}, seen=seen, rows=rows)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_the_graph_says_what_torch_says(name: str, tmp_path: Path) -> None:
    parity = exported(name, tmp_path / "out", ROWS)
    print(name, parity)
    assert parity.equal >= 0.999 and parity.likely >= 0.999 and parity.state <= 1e-4 and np.isfinite(parity.logp)
    assert parity.rows >= 1.3 * ROWS
