"""Fit a reward model to answers: Bradley-Terry over the returns of segments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from equipoise import tree
from equipoise.facts import Help, NonNegativeFloat, PositiveFloat, PositiveInt, Range
from equipoise.returns import preference_loss
from equipoise.rewards.preferences.model import RewardModel
from equipoise.rewards.preferences.segments import Answers, Segments, check, split
from equipoise.seeds import derive_seed
from equipoise.types import Tree

FEW = 20  # held-out answers: below it nothing is measured or calibrated by them
STOPS = 50  # held-out answers: below it they neither stop a fit nor choose its parameters
STEPS = 100  # without a lower held-out loss before the end: passes over few answers have few steps
BINS = 10  # of the calibration error, over chances from 0.5 to 1
TEMPERATURES = torch.logspace(-1.5, 1.5, 301)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Settings of a fit."""

    epochs: Annotated[PositiveInt, Help("Most passes over the answers")] = 60
    patience: Annotated[
        PositiveInt,
        Help("Passes without a lower held-out loss before the end", "At least 100 steps."),
    ] = 6
    batch: Annotated[PositiveInt, Help("Answers of one step")] = 64
    learning_rate: Annotated[PositiveFloat, Help("Step size of Adam")] = 2e-3
    weight_decay: Annotated[NonNegativeFloat, Help("Decay of AdamW")] = 0.01
    held_out: Annotated[
        float, Range(0, 0.5), Help("Share of episodes that no member learns from")
    ] = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How well a model predicts answers; nan if there are none to measure it by."""

    accuracy: float  # of the answers that prefer one side, each by its weight
    ece: float  # expected calibration error of all answers, of ``BINS`` bins
    log_loss: float  # in nats, of all answers
    answers: int


NOTHING = Metrics(accuracy=math.nan, ece=math.nan, log_loss=math.nan, answers=0)


def measure(chance: Tensor, share: Tensor, weight: Tensor | None = None) -> Metrics:
    """Measure chances [Q] that the left segment is preferred against the wanted shares [Q].

    The calibration error takes each query from the side that the model prefers, so that it does not
    depend on which segment is on the left.
    """
    if len(share) == 0:
        return NOTHING
    p, wanted = chance.double(), share.double()
    weight = torch.ones_like(wanted) if weight is None else weight.double()
    decided = weight * (wanted != 0.5)
    right = ((p > 0.5) == (wanted > 0.5)).double()
    confident, got = torch.maximum(p, 1 - p), torch.where(p > 0.5, wanted, 1 - wanted)
    bins = ((confident - 0.5) * 2 * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64, device=p.device)
    gap.index_add_(0, bins, weight * (confident - got))
    p = p.clamp(1e-12, 1 - 1e-12)
    loss = -(wanted * p.log() + (1 - wanted) * (1 - p).log())
    total = float(weight.sum())
    return Metrics(
        accuracy=float((decided * right).sum() / decided.sum()),
        ece=float(gap.abs().sum()) / total if total else math.nan,
        log_loss=float((weight * loss).sum()) / total if total else math.nan,
        answers=len(share),
    )


def evaluate(model: RewardModel, segments: Segments, answers: Answers) -> Metrics:
    """Measure a model by answers, such as new ones before it learns from them."""
    returns = model.all_returns(segments).mean(0)
    chance = model.chance(returns[answers.left] - returns[answers.right])
    return measure(chance, answers.share, answers.weight)


class Fit:
    """A fit under way: ``epoch`` until ``finished``, then ``finish``.

    Each member learns from a bootstrap of the answers: it counts each answer as often as it drew
    it. The split, the bootstraps and the order of the answers depend on the seed and the data
    alone, so a fit that takes ``state`` goes on with the same numbers. An epoch ends with the
    held-out loss, and ``finish`` takes the parameters of the lowest one.
    """

    def __init__(
        self,
        model: RewardModel,
        segments: Segments,
        answers: Answers,
        settings: Fitting | None = None,
        *,
        seed: int,
    ) -> None:
        """ValueError if the answers do not fit the segments, or if no answer is left to learn from
        after the split.
        """
        check(answers, len(segments))
        if len(answers) and not answers.decided:
            raise ValueError(
                f"fit: must have an answer that prefers a side, got {len(answers):,} ties; try "
                "more answers"
            )
        self._model, self._segments, self._seed = model, segments, seed
        self._settings = settings = settings or Fitting()
        train, held, self.mixed = split(
            answers, segments.episode, share=settings.held_out, seed=seed
        )
        if len(train) == 0:
            raise ValueError(
                f"fit: must have answers to learn from, got 0 of {len(answers):,} after the "
                f"split ({len(held):,} held out, {self.mixed:,} about an episode of each side); "
                "try held_out=0"
            )
        self._train, self._held = answers.take(train), answers.take(held)
        # the segments of either side alone, which are evaluated once for all their answers
        self._seen = segments.take(torch.unique(torch.cat([self._train.left, self._train.right])))
        self._unseen, self._held = _compact(segments, self._held)
        model.see(*_rows(self._seen))
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._weight = self._bootstraps()
        self._best = _parameters(model)
        self._lowest, self._waited, self.epochs = math.inf, 0, 0

    @property
    def finished(self) -> bool:
        settings = self._settings
        steps = self._waited * math.ceil(len(self._train) / settings.batch)
        lost = self._waited >= settings.patience and steps >= STEPS
        return self.epochs >= settings.epochs or lost

    def epoch(self) -> float:
        """Make one pass over the answers; return the held-out loss, or that of the pass if too few
        answers are held out.
        """
        data, size = self._train, self._settings.batch
        total = 0.0
        order = torch.randperm(len(data), generator=self._generator(f"epoch {self.epochs}"))
        for part in torch.split(order.to(data.share.device), size):
            batch = data.take(part)
            both = self._segments.take(torch.cat([batch.left, batch.right]))
            left, right = self._model.returns(both).chunk(2, -1)
            loss = preference_loss(
                logit=left - right,
                share=batch.share,
                weight=self._weight[:, part],
                margin=batch.margin,
                noise=self._model.settings.noise,
            ).mean()
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += float(loss.detach()) * len(part) / len(data)
        self.epochs += 1
        if len(self._held) < STOPS:
            self._best = _parameters(self._model)
            return total
        held = float(self._held_loss(torch.ones(1))[0])
        self._waited += 1
        if held < self._lowest:
            self._lowest, self._waited, self._best = held, 0, _parameters(self._model)
        return held

    def finish(self) -> Metrics:
        """Take the best parameters, calibrate the chances, and scale the rewards; return the
        metrics of the held-out answers.

        One parameter, the temperature, is chosen by the loss of the held-out answers (Platt 1999;
        Guo et al. 2017, arXiv:1706.04599). The metrics are of the same answers, so they flatter a
        little.
        """
        model = self._model
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(self._best[name])
            model.temperature.fill_(1.0)
            if len(self._held) >= FEW:
                tried = TEMPERATURES.to(model.temperature.device)
                model.temperature.copy_(tried[self._held_loss(tried).argmin()])
            obs, action = _rows(self._seen)
            model.standardise(model.all_rewards(obs, action))
        return NOTHING if len(self._held) < FEW else evaluate(model, self._unseen, self._held)

    def state(self) -> Tree:
        """Return all that the rest of the fit depends on besides the data: tensors and numbers."""
        names = [name for name, _ in self._model.named_parameters()]
        moments = self._optimizer.state_dict()["state"]
        return {
            "epochs": self.epochs,
            "waited": self._waited,
            "lowest": self._lowest,
            "best": dict(self._best),
            "model": {name: value.clone() for name, value in self._model.state_dict().items()},
            "moments": {
                names[i]: {key: torch.as_tensor(x).clone() for key, x in one.items()}
                for i, one in moments.items()
            },
        }

    def load(self, state: Tree) -> None:
        """Go on from a state of the same data, settings and seed."""
        self.epochs, self._waited = state["epochs"], state["waited"]
        self._lowest, self._best = state["lowest"], dict(state["best"])
        self._model.load_state_dict(state["model"])
        names = [name for name, _ in self._model.named_parameters()]
        whole = self._optimizer.state_dict()
        whole["state"] = {names.index(name): one for name, one in state["moments"].items()}
        self._optimizer.load_state_dict(whole)

    def _generator(self, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self._seed, purpose))

    def _bootstraps(self) -> Tensor:
        """Weights [M, Q] of the answers for each member; a single member takes each answer once."""
        count, members = len(self._train), self._model.settings.members
        weight = self._train.weight
        base = torch.ones(count) if weight is None else weight.cpu().float()
        drawn = torch.ones(members, count)
        if members > 1:
            index = torch.randint(count, (members, count), generator=self._generator("bootstrap"))
            drawn = torch.stack([torch.bincount(one, minlength=count) for one in index])
        return (drawn * base).to(self._train.share.device)

    @torch.no_grad()
    def _held_loss(self, temperature: Tensor) -> Tensor:
        """Return the loss of the held-out answers at each temperature, [K] -> [K]."""
        returns = self._model.all_returns(self._unseen).mean(0)
        logit = returns[self._held.left] - returns[self._held.right]
        return preference_loss(
            logit=logit / temperature[:, None],
            share=self._held.share,
            weight=self._held.weight,
            noise=self._model.settings.noise,
        )


def fit(
    model: RewardModel,
    segments: Segments,
    answers: Answers,
    settings: Fitting | None = None,
    *,
    seed: int,
) -> Metrics:
    """Fit ``model`` to answers about segments, from its present parameters; return the metrics of
    the held-out answers.
    """
    one = Fit(model, segments, answers, settings, seed=seed)
    while not one.finished:
        one.epoch()
    return one.finish()


def _parameters(model: RewardModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _rows(segments: Segments) -> tuple[Tree, Tree]:
    """Return observations and actions of all rows that are no padding, [N, ...]."""
    return tree.index(segments.obs, segments.mask), tree.index(segments.action, segments.mask)


def _compact(segments: Segments, answers: Answers) -> tuple[Segments, Answers]:
    """Return the segments that the answers are about, and the answers about those."""
    used, at = torch.unique(torch.cat([answers.left, answers.right]), return_inverse=True)
    left, right = at.chunk(2)
    return segments.take(used), Answers(left, right, answers.share, answers.weight, answers.margin)
