"""Kinds of workers that test lending: one lends the learners' devices at random moments, and
learners that write down what they learn from.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

from equipoise.actors.engine.engine import Continuing, Sampled
from equipoise.balance.placement.lending import Gains, Lender, Move
from equipoise.learners.worker import LearnerWorker
from equipoise.sources.prompts import Text
from equipoise.types import StateReader, StateWriter, Tick
from equipoise.workers.elastic import ElasticKind
from equipoise.workers.generator import GeneratorKind
from equipoise.workers.kind import Job, Kind, Site
from equipoise.workers.kinds import KINDS
from equipoise.workers.lending import lending

EVERY_S = (0.002, 0.12)  # between two switches
STEP_S = 0.01  # that a step of a generator takes longer
NOTES = "learned_{rank}.jsonl"


class Never(Lender):
    """Leaves the decision to others."""

    def look(self, gains: Gains) -> Move:
        return 0


class Often(Lender):
    """Lends and takes back by the number of gains seen in a row, whatever they are."""

    def look(self, gains: Gains) -> Move:
        self._seen.append(gains)
        if len(self._seen) < 1 + self.lent:
            return 0
        return self._switch(-1 if self.lent else 1)


class Noting(ElasticKind):
    """A learner that appends a line for each update that it makes."""

    rule: type[Lender] = Never

    def lender(self) -> Lender:
        return self.rule(most=1)

    def learner(self, job: Job, site: Site) -> LearnerWorker:
        worker = super().learner(job, site)
        (line,) = worker.lines.values()
        learner: Any = line.learner
        file = Path(job.blueprint.directory).parent / NOTES.format(rank=job.index)
        step = learner.step

        def noted(batch: Any) -> Any:
            behaviour, version = batch.data.behaviour, learner.version
            stamps = np.asarray(behaviour["version"])[np.asarray(behaviour["chosen"])]
            line = {
                "version": version,
                "groups": np.asarray(batch.data.context["group"]).tolist(),
                "oldest": int(stamps.min()),
                "newest": int(stamps.max()),
            }
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            return step(batch)

        learner.step = noted
        return worker


class Slow(GeneratorKind):
    """A generator that the learner waits for, on any machine."""

    def engine(self, job: Job, site: Site, text: Text) -> Continuing:
        engine: Any = super().engine(job, site, text)
        step = engine.step

        def slept() -> list[Sampled]:
            time.sleep(STEP_S)
            done: list[Sampled] = step()
            return done

        engine.step = slept
        return cast("Continuing", engine)


class SwitchingOften(Noting):
    """The same for a run in one thread, in which time decides nothing."""

    rule = Often


class Switch:
    """Lends and takes back at random moments."""

    ready = Tick.STARVED

    def __init__(self, job: Job) -> None:
        words = lending(job.shared)
        assert words is not None
        self._words, self._draw = words, random.Random(job.blueprint.program.schedule.seed)
        self._next = time.perf_counter() + 0.5

    def tick(self) -> Tick:
        if (now := time.perf_counter()) < self._next:
            return Tick.STARVED
        self._next = now + self._draw.uniform(*EVERY_S)
        self._words.switch(not self._words.lent)
        return Tick.WORKED

    def save(self, to: StateWriter) -> None:
        to.put({})

    def load(self, source: StateReader) -> None: ...

    def close(self) -> None: ...


class Switching(Kind):
    """The worker that switches."""

    name = "switch"

    def count(self, blue: Any) -> int:
        return 1

    def build(self, job: Job, site: Site) -> Switch:
        return Switch(job)


OTHERS = tuple(one for one in KINDS if not isinstance(one, ElasticKind | GeneratorKind))
OFTEN = (*OTHERS, GeneratorKind(), SwitchingOften())
WITH = (*OTHERS, Slow(), Noting(), Switching())


def learned(run: Path, learners: int = 1) -> list[dict[str, Any]]:
    """The updates that led to the last weights, in order: an update that was made again counts as
    it was made the last time.
    """
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for rank in range(learners):
        for text in (run / NOTES.format(rank=rank)).read_text().splitlines():
            line = json.loads(text)
            found[line["version"], rank] = line
    return [found[key] for key in sorted(found)]


def complaints(run: Path, *, group: int, max_lag: int, learners: int = 1) -> list[str]:
    """What is wrong with what a run learned from."""
    lines, wrong = learned(run, learners), []
    groups = [one for line in lines for one in line["groups"]]
    if sorted(groups) != sorted(list(range(len(groups) // group)) * group):
        wrong.append("a sample was left out, or learned from twice")
    for line in lines:
        if not 0 <= line["version"] - line["oldest"] <= max_lag:
            wrong.append(f"a token of version {line['oldest']} at {line['version']}")
        if line["newest"] > line["version"]:
            wrong.append(f"a token of the future at {line['version']}")
    return wrong
