"""Who saves when, and what a cut comes to: the state machine alone, without workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.record import checkpoint
from equipoise.runtime.cut import CutCoordinator
from equipoise.runtime.messages import (
    Cut,
    CutBegun,
    Failed,
    Note,
    Record,
    Saved,
    Written,
    from_json,
    to_json,
)
from equipoise.workers.actor import ActorKind
from equipoise.workers.kind import Member
from equipoise.workers.learner import LearnerKind
from equipoise.workers.shard import ShardKind

NAMES = ("asked", "begun", "save", "save_last", "step", "released", "closed")


class Run:
    """A learner, two actors and a shard that are told when to save."""

    def __init__(self, directory: Path) -> None:
        self.words = {name: np.zeros(1, np.int64) for name in NAMES}
        self.woken: list[str] = []
        members = [
            Member(LearnerKind(), 0),
            Member(ActorKind(), 0),
            Member(ActorKind(), 1),
            Member(ShardKind(), 0),
        ]
        self.cuts = CutCoordinator(
            self.words, members, directory=directory, steps=lambda v: 10 * v, wake=self.woken.extend
        )
        self.others = ["actor 0", "actor 1", "shard 0"]

    def begin(self, version: int, **options: Any) -> None:
        self.words["begun"][0] += 1
        self.cuts.begun(version, **options)

    def saved(self, title: str, **options: Any) -> None:
        self.cuts.saved(title, Saved(cut=int(self.words["begun"][0]), **options))

    @property
    def now(self) -> dict[str, int]:
        return {name: int(word[0]) for name, word in self.words.items()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_learner_saves_last_and_goes_on_when_the_driver_is_done(
    run: Run, tmp_path: Path
) -> None:
    run.cuts.hold()
    assert run.now["asked"] == 1
    run.begin(3)
    assert checkpoint.aside(tmp_path, 30).is_dir() and run.now["step"] == 30
    assert run.woken == run.others and (run.now["save"], run.now["save_last"]) == (1, 0)
    for title in run.others:
        assert run.now["save_last"] == 0 and not run.cuts.ready()
        run.saved(title, files={title: {}})
    assert (
        run.woken == [*run.others, "learner"] and run.now["save_last"] == 1 and not run.cuts.ready()
    )
    run.saved("learner", files={"l": {}})
    (cut,) = run.cuts.ready()
    assert (cut.step, cut.version, cut.more, cut.error) == (30, 3, False, None)
    assert cut.files.keys() == {*run.others, "l"} and not run.cuts.ready(), "once"
    assert run.now["released"] == 0
    run.cuts.release(cut)
    assert run.now["released"] == run.now["closed"] == 1 and run.woken[-1] == "learner"


def test_what_is_written_later_comes_as_a_second_cut(run: Run) -> None:
    run.begin(1)
    for title in run.others:
        run.saved(title, more=title == "shard 0")
    # before the learner has saved
    run.cuts.written("shard 0", Written(cut=1, files={"s": {}}, segments={"shard_0/a": {}}))
    run.saved("learner", more=True)
    (cut,) = run.cuts.ready()
    assert cut.more and not cut.late
    run.cuts.release(cut)
    assert run.now["released"] == 1 and run.now["closed"] == 0, "no other cut until it is whole"
    assert not run.cuts.ready()
    run.cuts.written("learner", Written(cut=1, files={"l": {}}, error="full"))
    (rest,) = run.cuts.ready()
    assert (
        rest.late
        and rest.files == {"s": {}, "l": {}}
        and rest.segments == {"shard_0/a": {}}
        and rest.error == "full"
    )
    run.cuts.release(rest)
    assert run.now["closed"] == 1


def test_an_error_gives_the_cut_up_once_the_others_hold_still(run: Run) -> None:
    run.begin(1)
    run.saved("actor 0", error="disk full")
    run.saved("shard 0", more=True)
    assert not run.cuts.ready(), "actor 1 is still to hold still"
    run.saved("actor 1")
    (cut,) = run.cuts.ready()
    assert cut.error == "disk full" and not cut.more, "what the shard still writes is for nobody"
    assert run.now["save_last"] == 0
    run.cuts.release(cut)
    run.begin(2)
    run.cuts.saved("actor 0", Saved(cut=1))
    run.cuts.written("shard 0", Written(cut=1))
    assert not run.cuts.ready(), "neither counts for the next cut"


def test_a_cut_waits_for_no_worker_that_died(run: Run) -> None:
    run.begin(1)
    run.cuts.lost("actor 1", "was killed by SIGKILL")
    (cut,) = run.cuts.ready()
    assert cut.error == "actor 1 was killed by SIGKILL meanwhile"
    run.cuts.release(cut)
    run.begin(2)
    for title in [*run.others, "learner"]:
        run.saved(title, more=title == "shard 0")
    run.cuts.release(run.cuts.ready()[0])
    run.cuts.lost("actor 0", "died")
    assert not run.cuts.ready(), "it had written all"
    run.cuts.lost("shard 0", "died")
    (rest,) = run.cuts.ready()
    assert rest.late and rest.error == "shard 0 died meanwhile"


def test_there_is_no_cut_while_something_stands_in_the_way(run: Run, tmp_path: Path) -> None:
    run.begin(1, obstacle="actor 0 is being replaced")
    (cut,) = run.cuts.ready()
    assert (
        cut.error == "actor 0 is being replaced"
        and run.now["save"] == 0
        and not list(tmp_path.iterdir())
    )


@pytest.mark.parametrize(
    "message",
    [
        Record(
            version=3,
            at=1.5,
            lag_mean=0.5,
            lag_max=2,
            metrics={"loss": 1.0},
            episodes=4,
            return_mean=None,
            length_mean=2.0,
            aborted=0,
            info={"x/last": None},
        ),
        Note(text="warning: a"),
        Failed(error="ValueError", text="...", final=True),
        CutBegun(version=2),
        Saved(cut=1, files={"a": {"size": 1, "sha256": "b"}}, more=True),
        Written(cut=1, segments={"a": {"size": 1, "sha256": "b"}}, error="e"),
        Cut(step=8, version=2, late=True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_crosses_a_pipe_as_json(message: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(message)))) == message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"message": "Nod"}, "expected one of Record, .*, got 'Nod'"),
        ({"message": "Note"}, "fields of a Note"),
        ({"message": []}, "expected one of Record"),
    ],
)
def test_what_is_no_message_is_refused(data: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(data)
