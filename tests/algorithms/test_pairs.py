"""Losses of pairs written out, ties and noise, and cuts of a step that keep pairs whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.algorithms.dpo import DPO
from equipoise.algorithms.reward_model import RewardModel
from equipoise.learners.minibatch import micro_batches
from equipoise.nets.decoder import Decoder
from equipoise.nets.scored import ScoredDecoder
from equipoise.types import Packed
from tests.algorithms import text
from tests.algorithms.pairs import SHAPE, filled, pairs_of

GROUPS = [([1, 2], [[3, 8], [4, 5, 8]]), ([2], [[7, 7, 1, 8], [6, 8]]), ([3, 3], [[1, 8], [2, 8]])]
VALUES = [(1.0, 0.0), (0.5, 0.0), (1.0, 0.4)]


def data_of(values: Any = VALUES) -> Packed:
    data = pairs_of(GROUPS, values)
    logp = -torch.rand(len(data.token), generator=torch.Generator().manual_seed(0))
    return replace(data, logp=torch.where(data.chosen, logp, 0.0))


def sums(algorithm: DPO, net: Decoder, data: Packed) -> tuple[list[float], list[float]]:
    """The log-ratio of each sample, and its tokens, one token at a time."""
    with torch.no_grad():
        logits = (net.hidden(data) @ net.head.t()).double().log_softmax(1)
    ratios, lengths, last = [0.0] * len(data.prompt), [0.0] * len(data.prompt), -1
    for n, sample in enumerate(data.sample.tolist()):
        if sample >= 0:
            first = data.position[n] == data.prompt[sample]
            prompt = int((data.sample[:n] < 0).nonzero()[-1]) if first else last
            ratios[sample] += float(logits[prompt, data.token[n]]) - float(data.logp[n])
            lengths[sample] += 1
        last = n
    return ratios, lengths


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "algorithm",
    [
        DPO(beta=0.4, label_smoothing=0.2),
        DPO(beta=0.4, label_smoothing=0.2, length_normalize=True),
        DPO(loss_type="ipo", beta=0.4),
        DPO(loss_type="ipo", beta=0.4, label_smoothing=0.1),
    ],
)
def test_a_loss_is_the_formula_written_out(algorithm: DPO) -> None:
    net, data = filled(Decoder(SHAPE), 1), data_of()
    ratios, lengths = sums(algorithm, net, data)
    if algorithm.length_normalize:
        ratios = [ratio / length for ratio, length in zip(ratios, lengths, strict=True)]
    wanted = 0.0
    for pair, (label, _) in enumerate(VALUES):
        gap, e = ratios[2 * pair] - ratios[2 * pair + 1], algorithm.label_smoothing
        p = label * (1 - e) + (1 - label) * e
        if algorithm.loss_type == "ipo":
            wanted += (gap - (2 * p - 1) / (2 * algorithm.beta)) ** 2
        else:
            z = algorithm.beta * gap
            wanted -= p * math.log(sigmoid(z)) + (1 - p) * math.log(sigmoid(-z))
    out = text.loss(algorithm, net, data, {})
    assert out.loss.item() == pytest.approx(wanted, rel=1e-5) and int(out.count) == 3
    means = text.means([out])
    gaps = [ratios[0] - ratios[1], ratios[2] - ratios[3], ratios[4] - ratios[5]]
    right = (gaps[0] > 0) + 0.5 + (gaps[2] > 0)  # the second is a tie
    assert means["rewards/accuracies"] == pytest.approx(right / 3)
    assert means["rewards/margins"] == pytest.approx(algorithm.beta * sum(gaps) / 3, rel=1e-4)


def test_a_reward_model_learns_ties_as_halves_and_margins() -> None:
    algorithm, net = RewardModel(label_smoothing=0.1, center=0.2), filled(ScoredDecoder(SHAPE), 1)
    data = data_of()
    r = net.scores(data).tolist()
    wanted = 0.0
    for pair, (label, margin) in enumerate(VALUES):
        chosen, rejected = r[2 * pair], r[2 * pair + 1]
        z, p = chosen - rejected - margin, 0.9 * label + 0.1 * (1 - label)
        wanted -= p * math.log(sigmoid(z)) + (1 - p) * math.log(sigmoid(-z))
        wanted += 0.2 * (chosen + rejected) ** 2
    out = text.loss(algorithm, net, data, {})
    assert out.loss.item() == pytest.approx(wanted, rel=1e-5)


ALL = {
    "dpo": (DPO(micro_batch=6), Decoder),
    "kto": (DPO(loss_type="kto", micro_batch=6), Decoder),
    "reward": (RewardModel(micro_batch=6), ScoredDecoder),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ALL)
def test_parts_of_a_step_keep_pairs_whole_and_add_up(name: str) -> None:
    algorithm, cls = ALL[name]
    net, data = filled(cls(SHAPE), 1), data_of()
    made = text.targets(algorithm, net, None, data)
    parts = micro_batches(text.batch(data, made), algorithm.part_tokens, whole=True)
    assert [len(part.data.group) for part in parts] == [2, 2, 2]
    whole = text.loss(algorithm, net, data, made)
    cut = [text.loss(algorithm, net, part.data, part.targets) for part in parts]
    assert sum(out.loss.item() for out in cut) == pytest.approx(whole.loss.item(), rel=1e-5)
    assert sum(int(out.count) for out in cut) == int(whole.count) == 3
    torn = micro_batches(text.batch(data, made), algorithm.part_tokens)
    assert any(len(part.data.group) % 2 for part in torn)  # what ``whole`` is for


def test_a_pair_that_does_not_count_has_no_gradient() -> None:
    data = data_of()
    none: Tensor = torch.zeros_like(data.chosen)
    out = text.loss(DPO(), filled(Decoder(SHAPE), 1), replace(data, chosen=none), {})
    assert int(out.count) == 0 and out.loss.item() == 0.0
    out.loss.backward()


def test_settings_that_kto_does_not_read_are_refused() -> None:
    said = DPO(loss_type="kto", label_smoothing=0.1).refused(1)
    assert said == "algorithm.label_smoothing: must be left out with algorithm.loss_type=kto"
    assert DPO(loss_type="ipo", label_smoothing=0.1).refused(1) is None
