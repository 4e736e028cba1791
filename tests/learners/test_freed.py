"""A learner that dies between the end of its batch and the word for it, and whose successor dies in
the next step.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise import tree
from equipoise.learners.learner import Learner
from equipoise.learners.meeting import Seat, SharedMeeting
from equipoise.learners.pool import ALONE
from equipoise.learners.worker import LearnerWorker, PolicyLearner
from tests.experience.test_take_over import begun, marks
from tests.learners.test_learner import Quadratic
from tests.learners.test_meeting import Noted


class Rows:
    """Experience of a queue alone."""

    def __init__(self, queue: Any) -> None:
        self.sample, self.finish = queue.sample, queue.finish

    def learned(self, keys: Any, priority: Any) -> None: ...

    def adopt(self, keys: Any) -> None: ...


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_a_batch_that_nobody_learned_from_is_not_thrown_away(max_lag: int | None) -> None:
    # version 1 is made, and its batch is finished; a batch of marks 2, 3 is complete
    line = begun(max_lag)
    words: Any = tree.zeros(SharedMeeting.specs(2))
    words["done"][:] = 2
    words["freed"][:] = 1, 0  # learner 1 was killed after ``finish``, before ``freed``
    words["passed"][0] = 1

    def successor() -> LearnerWorker:
        """What the driver does for a lost learner,
        and the successor with what the other gives it.
        """
        words["life"][0] += 1
        words["fresh"][1] = 1
        words["seen"][:] = words["life"][0]
        line.driver.orphaned()
        line.learner = line.attach()
        meeting = SharedMeeting(
            words,
            Seat(rank=1, size=2, fresh=True),
            ring=lambda: None,
            pulse=lambda: None,
            dump=lambda state: b"",
            parse=lambda data: None,
        )
        meeting.pool = ALONE
        learner = Learner(
            Quadratic(), Quadratic().network(None), schedule_updates=9, seed=0, batch=6
        )
        weights: Any = Noted()
        weights.version = 99
        experience: Any = Rows(line.learner)
        one = PolicyLearner(
            learner=learner, experience=experience, batch=4, weights=weights, publish_every=1
        )
        worker = LearnerWorker(
            {"main": one},
            queue=line.learner,
            updates=9,
            record_every=9,
            record=lambda record: None,
            meeting=meeting,
        )
        state: Any = worker._replicated()
        state["learners"]["main"]["version"] = 1

        def hand_over(_: Any) -> Any:
            words["fresh"][1] = 0
            return state

        meeting.hand_over = hand_over  # type: ignore[method-assign,assignment]
        worker._meet_again()
        assert line.driver.reconcile()
        return worker

    first = successor()
    assert first.version == 1 and not first._unfinished
    # the successor takes the batch of version 2, and is killed before it has made it
    assert marks(line.batch()) == [2, 3]
    second = successor()
    assert not second._unfinished and line.driver.stats()["held"] > 0
    assert marks(line.batch()) == [2, 3]
