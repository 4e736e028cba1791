"""Words that come from another machine are published one by one, in the order of their law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.learners.meeting import SharedMeeting
from equipoise.publishing import publish
from equipoise.runtime.cluster import parts


def test_words_of_a_meeting_are_published_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = SharedMeeting.specs(2)
    here, there = tree.zeros(specs), tree.zeros(specs)
    for number, words in enumerate(SharedMeeting.words_of(here, 1)):
        words[...] = number + 1
    stored = list[int]()

    def store(words: Any, place: Any, value: Any) -> None:
        stored.append(int(np.asarray(value).flat[0]))
        publish(words, place, value)

    monkeypatch.setattr(parts, "publish", store, raising=False)
    parts.Words(*SharedMeeting.words_of(there, 1)).write(
        parts.Words(*SharedMeeting.words_of(here, 1)).read()
    )
    assert stored == list(range(1, 10)), "address and bytes before met, and seen last"
    for one, other in zip(
        SharedMeeting.words_of(here, 1), SharedMeeting.words_of(there, 1), strict=True
    ):
        assert np.array_equal(one, other)
    assert SharedMeeting.words_of(there, 1)[-1].base is not None and int(there["seen"][1]) == 9
    assert not any(words[0].any() for words in there.values() if words.ndim and len(words) == 2), (
        "another learner's words"
    )
