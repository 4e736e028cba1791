"""Questions for samples between the generators of an elastic run."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors.lending import Lending, Seat, Taker


def seat(words: Lending, group: int) -> Seat:
    other = 1 - group
    return words.seat(group, cast("Any", None), [Taker(other, np.array([other]), 2)])


def lent() -> Lending:
    specs = Lending.specs(2)
    return Lending(tree.views(specs, np.zeros(tree.nbytes(specs), np.uint8).data))


def test_each_question_is_answered_once() -> None:
    words = lent()
    asks, answers = seat(words, 0), seat(words, 1)
    assert answers.asked() is None
    for _ in range(3):
        asks.ask(True)
        asks.ask(True)
        taker = answers.asked()
        assert taker is not None and taker.group == 0
        answers.answer(taker)
        assert answers.asked() is None
        asks.ask(False)
        assert answers.asked() is None


@pytest.mark.parametrize("asking", [True, False])
def test_the_question_of_a_successor_is_a_new_one(asking: bool) -> None:
    words = lent()
    asks, answers = seat(words, 0), seat(words, 1)
    asks.ask(True)
    taker = answers.asked()
    assert taker is not None
    answers.answer(taker)
    asks.ask(asking)
    successor = seat(words, 0)
    assert answers.asked() is None
    successor.ask(True)
    assert answers.asked() is taker
