"""Agreement between annotators: Krippendorff's alpha, errors of each annotator by the EM of Dawid
and Skene, and weights for training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.feedback.records import MIRRORED, Answer, Choice, Query

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
# The classes of a preference in their order; "cannot_tell" is a missing value.
CLASSES: tuple[Choice, ...] = ("left", "equal", "right")
# the share of an answer that prefers the left side
SHARES: Mapping[Choice, float] = {"left": 1.0, "equal": 0.5, "right": 0.0}
SPAMMER_BELOW = 0.2  # of Youden's J; an annotator who errs in 30 % of answers has 0.4 or more
JUDGED_FROM = 20  # answers of an annotator
SMOOTHING = 0.5  # pseudo-answers for each cell of a confusion matrix
MOST_STEPS, TOLERANCE = 500, 1e-6  # of the EM


def alpha(ratings: Floats, level: Literal["nominal", "ordinal"] = "nominal") -> float:
    """Return Krippendorff's alpha of ratings [annotators, queries]; nan is a missing value.

    1 is full agreement, 0 is that of chance. nan if no query has two ratings, or all ratings are
    equal. Source: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).
    """
    values = np.unique(ratings[~np.isnan(ratings)])
    counts = (ratings[:, :, None] == values).sum(0).astype(np.float64)  # [queries, values]
    counts = counts[counts.sum(1) > 1]
    totals = counts.sum(0)
    if len(counts) == 0 or (totals > 0).sum() < 2:
        return float("nan")
    if level == "nominal":
        distance = 1.0 - np.eye(len(values))
    else:
        ranks = np.cumsum(totals) - totals / 2
        distance = (ranks[:, None] - ranks) ** 2
    each = counts.sum(1)
    # Every annotator's rating is paired with those of the others; a rating is no pair of itself.
    observed = float(np.sum(np.einsum("qc,ck,qk->q", counts, distance, counts) / (each - 1)))
    expected = float(totals @ distance @ totals / (totals.sum() - 1))
    return 1.0 - observed / expected


@dataclass(frozen=True, slots=True)
class Fit:
    """What the EM found.

    ``posterior``: probabilities of each query's right answer [queries, classes]. ``confusion``:
    probabilities of each annotator's answer given the right one [annotators, classes, classes].
    ``prior``: probabilities of the right answers [classes]. ``error``: share of each annotator's
    answers that are wrong [annotators]. ``youden``: for each annotator, how much the answers depend
    on the right side: 1 for no error, 0 for answers at random, below 0 for exchanged sides
    [annotators].
    """

    posterior: Floats
    confusion: Floats
    prior: Floats
    error: Floats
    youden: Floats
    answers: Ints

    @property
    def spammers(self) -> NDArray[np.bool_]:
        """Annotators with a Youden's J below 0.2 in at least 20 answers [annotators]."""
        return (self.youden < SPAMMER_BELOW) & (self.answers >= JUDGED_FROM)


def dawid_skene(
    query: Ints, annotator: Ints, choice: Ints, known: Mapping[int, int] | None = None
) -> Fit:
    """Fit the errors of annotators and the right answers to answers [answers], which are numbers of
    queries, annotators and classes.

    ``known``: the class of gold queries. Source: Dawid and Skene, Maximum Likelihood Estimation of
    Observer Error-Rates Using the EM Algorithm (1979), with pseudo-counts of 0.5.
    """
    queries, annotators, classes = int(query.max()) + 1, int(annotator.max()) + 1, len(CLASSES)
    golds = np.array(sorted(known or {}), dtype=np.int64)
    truths = np.array([(known or {})[int(one)] for one in golds], dtype=np.int64)
    votes = np.zeros((queries, classes))
    np.add.at(votes, (query, choice), 1.0)
    posterior: Floats = (votes + 1e-3) / (votes + 1e-3).sum(1, keepdims=True)
    confusion: Floats = np.zeros((annotators, classes, classes))
    prior: Floats = np.zeros(classes)
    every = np.arange(classes)
    # Each answer belongs to a cell and a place for each class that may be right.
    cell = ((annotator[:, None] * classes + every) * classes + choice[:, None]).ravel()
    place = (query[:, None] * classes + every).ravel()
    for _ in range(MOST_STEPS):
        posterior[golds] = np.eye(classes)[truths]
        soft = np.bincount(cell, posterior[query].ravel(), annotators * classes**2)
        confusion = SMOOTHING + soft.astype(np.float64).reshape(annotators, classes, classes)
        confusion /= confusion.sum(2, keepdims=True)
        prior = np.mean(posterior, axis=0, dtype=np.float64)
        logs = np.bincount(place, np.log(confusion.ravel()[cell]), queries * classes)
        logs = logs.reshape(queries, classes) + np.log(np.maximum(prior, 1e-12))
        new: Floats = np.exp(logs - logs.max(1, keepdims=True))
        new /= new.sum(1, keepdims=True)
        new[golds] = np.eye(classes)[truths]
        moved = float(np.abs(new - posterior).max())
        posterior = new
        if moved < TOLERANCE:
            break
    number = np.bincount(annotator, minlength=annotators)
    right = np.bincount(annotator, posterior[query, choice], annotators)
    left, last = 0, classes - 1
    youden = 0.5 * (
        confusion[:, left, left]
        - confusion[:, last, left]
        + confusion[:, last, last]
        - confusion[:, left, last]
    )
    error = 1 - right / np.maximum(number, 1)
    return Fit(posterior, confusion, prior, error, youden, number)


@dataclass(frozen=True, slots=True)
class Reliability:
    """One annotator: number of answers, share of wrong ones by the EM, Youden's J, share of right
    answers to gold queries, share of equal answers to repeats, and share of choices for the side
    that the screen showed on the left. nan: not known, as the error of an annotator with fewer than
    20 answers to gold queries or to queries that others answered.
    """

    answers: int
    error: float
    youden: float
    spammer: bool
    gold: float
    repeats: float
    left_on_screen: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement in a store: alpha of queries with two answers or more (``shared``), annotators by
    name, and by query the probabilities of left, equal and right, which are weights for training.
    """

    nominal: float
    ordinal: float
    shared: int
    annotators: dict[str, Reliability]
    posterior: dict[int, tuple[float, float, float]]


def agreement(answers: Sequence[Answer], gold: Mapping[int, Choice] | None = None) -> Agreement:
    """Return the agreement of the answers of a store; ``gold``: right answers by query.

    Repeats count for an annotator's own consistency alone, and "cannot_tell" counts nowhere.
    """
    gold = gold or {}
    first = evidence(answers)
    names = list(dict.fromkeys(one.annotator for one in answers))
    numbers = list(dict.fromkeys(one.query for one in first))
    if not first:
        nothing = float("nan")
        none = {name: _reliability(answers, name, gold) for name in names}
        return Agreement(nothing, nothing, 0, none, {})
    row = {name: i for i, name in enumerate(names)}
    column = {number: i for i, number in enumerate(numbers)}
    query = np.array([column[one.query] for one in first])
    annotator = np.array([row[one.annotator] for one in first])
    choice = np.array([_class(one.query, one.choice) for one in first])
    known = {column[one]: _class(one, gold[one]) for one in numbers if gold.get(one) in CLASSES}
    fit = dawid_skene(query, annotator, choice, known)
    ratings = np.full((len(names), len(numbers)), np.nan)
    ratings[annotator, query] = choice
    shared = int((np.bincount(query) > 1).sum())
    posterior = {}
    for number, found in zip(numbers, fit.posterior.tolist(), strict=True):
        left, equal, right = found[::-1] if _turned(number) else found
        posterior[number] = (left, equal, right)
    checked = np.isin(query, list(known)) | (np.bincount(query) > 1)[query]
    enough = np.bincount(annotator[checked], minlength=len(names)) >= JUDGED_FROM
    each = {
        name: _reliability(answers, name, gold, (fit, i) if enough[i] else None)
        for name, i in row.items()
    }
    return Agreement(alpha(ratings), alpha(ratings, "ordinal"), shared, each, posterior)


def evidence(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers to learn from: without "cannot_tell", and without repeats, which only
    measure their annotator.
    """
    return [one for one in answers if one.choice in CLASSES and not one.repeat]


def gold_of(queries: Sequence[Query]) -> dict[int, Choice]:
    """Return the right answers of gold queries, by the query's number."""
    return {one.id: one.gold for one in queries if one.gold is not None}


def weights(
    answers: Sequence[Answer], gold: Mapping[int, Choice] | None = None
) -> dict[str, float]:
    """Return the weight of each annotator's answers in training: Youden's J, 0 for a spammer, and
    1 as long as it is not known. ``gold``: right answers by query.
    """
    if not gold and len({one.annotator for one in answers}) < 2:
        return {one.annotator: 1.0 for one in answers}
    return {
        name: 1.0
        if np.isnan(one.youden)
        else 0.0
        if one.spammer
        else float(min(max(one.youden, 0.0), 1.0))
        for name, one in agreement(answers, gold).annotators.items()
    }


def _turned(query: int) -> bool:
    """Is this one of the half of the queries whose sides are exchanged?

    The caller who adds a query chooses its sides. If all put the newer clip on the right, people
    who agree that it is better would seem to agree by chance.
    """
    return hashlib.sha256(str(query).encode()).digest()[0] % 2 == 1


def _class(query: int, choice: Choice) -> int:
    return CLASSES.index(MIRRORED.get(choice, choice) if _turned(query) else choice)


def _reliability(
    answers: Sequence[Answer],
    name: str,
    gold: Mapping[int, Choice],
    fitted: tuple[Fit, int] | None = None,
) -> Reliability:
    own = [one for one in answers if one.annotator == name]
    first = {one.query: one.choice for one in own if not one.repeat}
    sides = [
        (one.choice == "left") != one.swapped
        for one in own
        if one.swapped is not None and one.choice in ("left", "right")
    ]
    golds = [one.choice == gold[one.query] for one in own if one.query in gold]
    repeats = [one.choice == first[one.query] for one in own if one.repeat and one.query in first]
    error, youden, spammer = float("nan"), float("nan"), False
    if fitted is not None:
        fit, row = fitted
        error, youden = float(fit.error[row]), float(fit.youden[row])
        spammer = bool(fit.spammers[row])
    return Reliability(
        len(own), error, youden, spammer, _share(golds), _share(repeats), _share(sides)
    )


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else float("nan")
