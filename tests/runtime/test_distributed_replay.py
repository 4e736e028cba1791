"""Ape-X and R2D2 in runs: the stored states are what the actors had; what is refused; what begins
when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from equipoise import api, tree
from equipoise.algorithms.r2d2 import R2D2
from equipoise.errors import WorkerFailed
from equipoise.plans.beginning import Fresh
from equipoise.run.beginnings import Services
from equipoise.run.run import Run
from equipoise.types import Batch, LossOutput, Optimizer, Policy, Program

UNROLL = 5


@dataclass(frozen=True, kw_only=True)
class Recomputing(R2D2):
    """Its loss computes every stored state again, from the one an unroll before it, with the
    weights of its version.
    """

    default_optimizer: ClassVar[Optimizer] = replace(R2D2.default_optimizer, learning_rate=0.01)

    planted: bool = False  # a state is taken for that of the unroll after
    # by version; all of these are of this process: the learner's
    weights: ClassVar[dict[int, Any]] = {}
    stored: ClassVar[dict[tuple[int, int], Any]] = {}  # states by stream and row
    # by where they end: what was seen in them, and their version
    unrolls: ClassVar[dict[tuple[int, int], Any]] = {}
    proven: ClassVar[set[tuple[int, int]]] = set()

    def loss(
        self, net: Any, target_net: Any, batch: Batch, *, group: str, step: float, rng: Any
    ) -> LossOutput | None:
        # once a version
        self.weights[len(self.weights)] = {
            name: x.clone() for name, x in tree.named_tensors(net).items()
        }
        data, shift = batch.data, UNROLL if self.planted else 0
        for b in range(data.shape[1]):
            stream, start = int(data.context["stream"][b]), int(data.context["start"][b])
            self.stored[stream, start + shift] = tree.map(
                lambda x, b=b: x[b : b + 1].clone(), data.state
            )
            versions = set(data.version[:UNROLL, b].tolist())
            assert len(versions) == 1, "an unroll is of one version"
            self.unrolls[stream, start + UNROLL] = (
                data.obs[:UNROLL, b : b + 1].clone(),
                data.first[:UNROLL, b : b + 1].clone(),
                versions.pop(),
            )
        self.prove(net)
        out = super().loss(net, target_net, batch, group=group, step=step, rng=rng)
        assert out is not None
        proven = torch.tensor(float(len(self.proven)))
        return replace(out, metrics=out.metrics | {"proven": (proven, torch.tensor(1.0))})

    def prove(self, net: Any) -> None:
        for stream, row in (self.stored.keys() & self.unrolls.keys()) - self.proven:
            if (before := self.stored.get((stream, row - UNROLL))) is None:
                continue
            obs, first, version = self.unrolls[stream, row]
            with torch.no_grad():
                _, after = torch.func.functional_call(
                    _Unroll(net), _named(self.weights[version]), (obs, first, before)
                )
            for mine, its in zip(
                tree.leaves(self.stored[stream, row]), tree.leaves(after), strict=True
            ):
                torch.testing.assert_close(
                    mine, its, msg=lambda text: f"the stored state is another: {text}"
                )
            self.proven.add((stream, row))


class _Unroll(torch.nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, *args: Any) -> Any:
        return self.net.unroll(*args)


def _named(weights: Any) -> Any:
    return {f"net.{name}": x for name, x in weights.items()}


def program(algorithm: R2D2, **options: Any) -> Program:
    given = {
        "actors": 4,
        "envs_per_actor": 2,
        "unroll": UNROLL,
        "batch": 8,
        "steps": 3000,
        "evaluate_episodes": 0,
    }
    made = api.program(
        "CartPole-v1", "r2d2", recipe=False, **given | options, settings={"replay.starts_at": 200}
    )
    policy = made.policies["main"]
    assert isinstance(policy, Policy)
    return replace(made, policies={"main": replace(policy, algorithm=algorithm)})


SMALL: dict[str, Any] = {"hidden": (8,), "core_size": 8, "burn_in": 5, "length": 5, "n_step": 2}


def proven(algorithm: Recomputing, on: Any, path: Any, **options: Any) -> float:
    for kept in (Recomputing.weights, Recomputing.stored, Recomputing.unrolls, Recomputing.proven):
        kept.clear()
    with Run(program(algorithm, **options), Fresh(out=path), Services(on=on)) as run:
        *_, last = run
    return last.metrics["proven"]


@pytest.mark.thorough
@pytest.mark.parametrize(("on", "max_lag"), [("serial", 0), ("serial", None), ("process", None)])
def test_with_four_actors_every_stored_state_is_the_recomputed_one(
    on: Any, max_lag: int | None, tmp_path: Any
) -> None:
    assert proven(Recomputing(**SMALL), on, tmp_path / "run", max_lag=max_lag) > 100


def test_a_state_of_another_unroll_is_caught(tmp_path: Any) -> None:
    with pytest.raises((AssertionError, WorkerFailed), match="the stored state is another"):
        proven(Recomputing(planted=True, **SMALL), "serial", tmp_path / "run", max_lag=0)


@pytest.mark.parametrize("algorithm", ["apex_dqn", "r2d2"])
def test_updates_begin_with_the_first_whole_item(algorithm: str, tmp_path: Any) -> None:
    """However little ``starts_at`` asks for."""
    small = ["algorithm.hidden=[8]", "replay.starts_at=0", "replay.updates=1"]
    small += (
        ["algorithm.burn_in=4", "algorithm.length=8", "algorithm.core_size=8"]
        if algorithm == "r2d2"
        else []
    )
    made = api.program(
        "CartPole-v1",
        algorithm,
        recipe=False,
        actors=2,
        envs_per_actor=2,
        unroll=2,
        batch=4,
        max_lag=0,
        steps=200,
        evaluate_episodes=0,
        settings=small,
    )
    with Run(made, Fresh(out=tmp_path / "run"), Services(on="serial")) as run:
        for _ in run:
            pass
    rounds = {"apex_dqn": 2, "r2d2": 9}[algorithm]  # windows of 4 and 17 rows
    assert run.summary is not None and run.summary["updates"] == 200 // 8 - (rounds - 1)
