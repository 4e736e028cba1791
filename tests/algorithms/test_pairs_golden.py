"""Losses and gradients of pairs against TRL's trainers (``tools/trl_golden.py`` wrote them)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.algorithms._pairs import PairLearns
from equipoise.algorithms.dpo import DPO
from equipoise.algorithms.reward_model import RewardModel
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import packed_texts
from equipoise.nets.scored import ScoredDecoder
from equipoise.nets.token_logp import token_logp
from equipoise.types import Packed
from tests.algorithms import text
from tests.algorithms.pairs import SHAPE, filled, measured, pairs_of

GOLDEN = json.loads(Path(__file__).with_name("trl_golden.json").read_text())
ROWS = GOLDEN["rows"]


def agrees(algorithm: PairLearns, net: Any, data: Packed, golden: dict[str, Any]) -> None:
    out = text.loss(algorithm, net, data, text.targets(algorithm, net, None, data))
    loss = out.loss / out.count
    assert loss.item() == pytest.approx(golden["loss"], abs=1e-5)
    loss.backward()
    ours = measured({name: x.grad for name, x in net.named_parameters() if x.grad is not None})
    assert ours.keys() == golden["gradient"].keys()
    for name, numbers in golden["gradient"].items():
        assert ours[name] == pytest.approx(numbers, abs=1e-5), name


def referred(groups: Any, values: Any) -> Packed:
    """The pairs with the log-probabilities of TRL's reference."""
    with torch.no_grad():
        logp, _ = token_logp(filled(Decoder(SHAPE), 2), packed_texts(groups))
    return pairs_of(groups, values, logp)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("sigmoid", DPO(beta=0.3)),
        ("ipo", DPO(loss_type="ipo", beta=0.3, length_normalize=True)),
        ("sigmoid_norm", DPO(beta=2.0, length_normalize=True)),
    ],
)
def test_dpo_has_the_loss_and_the_gradient_of_trl(name: str, algorithm: DPO) -> None:
    groups = [(row["prompt_ids"], [row["chosen_ids"], row["rejected_ids"]]) for row in ROWS]
    data = referred(groups, [(1.0, 0.0)] * len(ROWS))
    agrees(algorithm, filled(Decoder(SHAPE), 1), data, GOLDEN["dpo"][name])


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("plain", RewardModel()), ("margin", RewardModel()), ("center", RewardModel(center=0.05))],
)
def test_a_reward_model_has_the_loss_and_the_gradient_of_trl(
    name: str, algorithm: RewardModel
) -> None:
    groups = [(row["prompt_ids"], [row["chosen_ids"], row["rejected_ids"]]) for row in ROWS]
    margins = [row["margin"] if name == "margin" else 0.0 for row in ROWS]
    data = pairs_of(groups, [(1.0, margin) for margin in margins])
    agrees(algorithm, filled(ScoredDecoder(SHAPE), 1), data, GOLDEN["reward"][name])


def test_kto_has_the_loss_and_the_gradient_of_trl() -> None:
    count = len(ROWS)
    groups = [
        (row["prompt_ids"], [row["chosen_ids"], ROWS[(i + 1) % count]["rejected_ids"]])
        for i, row in enumerate(ROWS)
    ]
    data = referred(groups, [(float(i % 3 != 0), 0.0) for i in range(count)])
    algorithm = DPO(loss_type="kto", beta=0.3, desirable_weight=1.3, undesirable_weight=0.7)
    agrees(algorithm, filled(Decoder(SHAPE), 1), data, GOLDEN["kto"]["kto"])
