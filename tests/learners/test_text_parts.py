"""A step over text in parts is the step over all of it: sums are divided once, by the count of the
whole step.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from equipoise.algorithms.grpo import GRPO
from equipoise.learners.learner import Learner
from equipoise.nets.decoder import DecoderConfig
from equipoise.types import Batch, TextSpec, Trajectory
from tests.nets.test_packing import slots

CONFIG = DecoderConfig(
    vocab_size=20,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=32,
    max_position_embeddings=16,
)
SPEC = TextSpec(model=asdict(CONFIG), eos=(0,), prompt=5, completion=4)


GROUPS = [(2, [3, 1, 4, 2]), (5, [2, 4, 1, 1]), (1, [1, 1, 2, 4]), (3, [4, 4, 3, 2])]


def batch(groups: Any = tuple(GROUPS)) -> Batch:
    data: Trajectory = slots(list(groups))
    token = data.action["token"] % 20
    logp = -torch.rand(token.shape, generator=torch.Generator().manual_seed(1)) * 5
    context = data.context | {"prompt": data.context["prompt"] % 20}
    data = replace(
        data, action={"token": token}, behaviour=data.behaviour | {"logp": logp}, context=context
    )
    return Batch(
        data=data,
        keys=torch.zeros(4 * len(groups), 2).numpy(),
        weight=torch.ones(4 * len(groups)),
        targets={},
    )


def learned(part: int, **options: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    algorithm = GRPO(num_generations=4, micro_batch=part, entropy=0.01, **options)
    learner = Learner(algorithm, algorithm.network(SPEC), schedule_updates=10, seed=0, batch=16)
    out = learner.step(batch())
    for _ in range(2):
        out = learner.step(batch())
    metrics = {name: total / count for name, (total, count) in out.metrics.items()}
    return {name: tensor.clone() for name, tensor in learner.params().items()} | metrics


@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo", "grpo"])
@pytest.mark.parametrize("part", [1, 9, 20, 40])
def test_a_step_in_parts_is_the_whole_step(part: int, loss_type: Any) -> None:
    whole, parted = learned(0, loss_type=loss_type), learned(part, loss_type=loss_type)
    assert whole.keys() == parted.keys()
    for name, value in whole.items():
        torch.testing.assert_close(
            parted[name], value, rtol=1e-4, atol=2e-6, equal_nan=True, msg=name
        )


def test_minibatches_of_text_are_steps_of_their_own() -> None:
    assert not torch.equal(
        *(learned(0, minibatches=n)["model.embed_tokens.weight"] for n in (1, 2))
    )
