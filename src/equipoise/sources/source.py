"""The questions that a run asks its source of experience, and the one place where the class with
the answers is found.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from equipoise.actors.forward.noise import Noise
from equipoise.envs.failures.capsule import Failures
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded.dataset import Dataset
from equipoise.types import (
    Algorithm,
    Policy,
    Program,
    RunSpec,
    SourceSettings,
    TaskSource,
    learning,
)

if TYPE_CHECKING:
    from equipoise.language.scoring.server import Scoring


class Acting(Protocol):
    """A policy with a network of its own, whose weights are replaced before each evaluation."""

    @property
    def net(self) -> Any: ...


class Exam(Protocol):
    """An evaluation under way."""

    @property
    def returns(self) -> Mapping[str, Sequence[float]]: ...  # by policy, of the episodes that ended
    @property
    def info(self) -> Mapping[str, float | None]: ...
    @property
    def progress(self) -> tuple[int, int, int]: ...  # episodes that ended, episodes in all, steps
    @property
    def done(self) -> bool: ...
    def tick(self) -> object: ...
    def close(self) -> None: ...


class Source(ABC):
    """A source of experience. It is made again wherever it is asked, from the program alone."""

    settings: SourceSettings
    # the kind of worker (``workers/kinds.py``) that makes its rows; "": no worker does
    sampler: ClassVar[str] = ""
    # do its policies write text, which 'equipoise generate' asks for?
    writes: ClassVar[bool] = False

    def __init__(self, program: Program) -> None:
        self.program, self.settings = program, program.source

    # ------------------------------------------------------------------------ before there is a run

    def problems(self) -> list[str]:
        """Return what cannot work in the settings of the source itself."""
        return []

    def policy_problems(self, policy: Policy) -> list[str]:
        """Return what cannot work in a policy that learns from a queue of this source's rows."""
        if not policy.algorithm.needs_task:
            return []
        name = type(policy.algorithm).__name__
        return [f"source.task: expected a task, which {name} learns from, got {self.program.name}"]

    def evaluable(self) -> tuple[Program, list[str]]:
        """Return the program without evaluations that no reward can grade, and notes on that."""
        return self.program, []

    def dataset(self) -> Dataset | None:
        """Find the recorded rows that are learned from, alone or with live rows."""
        return None

    @abstractmethod
    def spec(self, dataset: Dataset | None) -> RunSpec:
        """Look at the env, the rows or the task, to which the networks of all policies are
        fitted.
        """

    def scoring(self) -> Scoring | None:
        """Return what workers that call rewards are given; None if a run has none."""
        return None

    @abstractmethod
    def row(self, learns: Policy, net: Any, spec: Any) -> tuple[RowSpec, Noise]:
        """Lay out a row of a policy with the policy's own ``spec``, and its random numbers."""

    # -------------------------------------------------------------------------------------- records

    @abstractmethod
    def spec_json(self, spec: Any, where: str) -> dict[str, object]:
        """Return what ``spec.json`` holds of a policy's spec."""

    def described(self, dataset: Dataset | None, spec: RunSpec) -> dict[str, object]:
        """The description in ``run.json`` of the rows or the task, for ``check_same``."""
        if dataset is None:
            return {}
        facts = {
            "path": str(dataset.path),
            "episodes": dataset.episodes,
            "steps": dataset.steps,
            "sha256": dataset.sha256(),
        }
        return {"dataset": {"name": dataset.name} | facts}

    def check_same(self, run: Mapping[str, Any], dataset: Dataset | None, spec: RunSpec) -> None:
        """ValueError if a run would go on with other rows or prompts than before."""
        if dataset is not None and (got := dataset.sha256()) != (
            wanted := run["dataset"]["sha256"]
        ):
            raise ValueError(
                f"{dataset.name}: expected the rows that the run began with (sha256 "
                f"{wanted[:12]}...), got others "
                f"({got[:12]}...) in {dataset.path}"
            )

    def notes(self, dataset: Dataset | None, spec: RunSpec) -> list[str]:
        """Return notes, and warnings of a run that is odd although it can be done."""
        return []

    def keep(self, directory: Path) -> None:  # noqa: B027
        """Write into a new run's directory what its policies need when the source has moved."""

    # ----------------------------------------------------------------------- evaluations and alarms

    @abstractmethod
    def acting(self, algorithm: Algorithm, net: Any, noise: Noise) -> Acting:
        """Make a policy that evaluations play."""

    @abstractmethod
    def exam(
        self,
        policies: Mapping[str, Any],
        *,
        episodes: int,
        version: int,
        again: bool,
        failures: Failures | None,
    ) -> Exam:
        """Begin an evaluation of ``version``; ``again``: the second, which confirms a goal."""

    def least_entropy(self, spec: Any) -> float | None:
        """The entropy below which hardly anything is left to chance; None: not known."""
        return None

    def room(self) -> int | None:
        """The samples of text that a worker may draw at once; None: it draws none."""
        return None

    # ---------------------------------------------------------------------- commands for the reader

    @property
    def scores(self) -> bool:
        """Do its policies score texts, so that they write none?"""
        return False

    def play_command(self) -> str:
        """The command that plays the policy of a run {}; "": there is none."""
        return "evaluate {}"


def source_of(program: Program) -> Source:
    """Make the source of a program, of the class that its settings name."""
    pairs = any(policy.algorithm.needs_pairs for policy in learning(program).values())
    named = program.source.of_pairs if pairs else ""
    module, _, name = (named or program.source.behaviour).partition(":")
    made = vars(importlib.import_module(module)).get(name)
    if not (inspect.isclass(made) and issubclass(made, Source)):
        raise TypeError(
            f"{type(program.source).__name__}.behaviour: expected a subclass of Source, got "
            f"{made!r}"
        )
    return made(program)


def task_of(program: Program) -> TaskSource | None:
    """The settings of a run's task of text; None for a run on an env or on recorded rows."""
    return program.source if isinstance(program.source, TaskSource) else None
