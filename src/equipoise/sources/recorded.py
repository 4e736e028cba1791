"""Recorded experience alone: rows of a data set. Nothing acts, and an env is made for evaluations
if for anything.
"""

from __future__ import annotations

import shlex

from equipoise.envs.masks import place_of
from equipoise.experience.recorded.dataset import Dataset
from equipoise.sources.envs import Envs
from equipoise.types import EnvSpec, RecordedSource, RunSpec


class Recorded(Envs):
    """Rows of a data set, whose policies may be played in an env."""

    settings: RecordedSource
    sampler = ""

    def problems(self) -> list[str]:
        if not self.settings.dataset:
            return ["source.dataset: expected a data set, by its id or directory, got ''"]
        if self.settings.env is None and (episodes := self.program.evaluation.episodes):
            return [f"evaluation.episodes: expected 0 without an env, got {episodes}"]
        return []

    def spec(self, dataset: Dataset | None) -> RunSpec:
        """The spec of the env; if no env will be made, that of the data set."""
        env = self.settings.env
        if dataset is None or (env is not None and self.program.evaluation.episodes):
            return super().spec(dataset)
        mask = place_of(
            "auto" if env is None else env.action_mask, dataset.observation, dataset.action
        )
        spec = EnvSpec(
            observation=dataset.observation, action=dataset.action, mask=mask, stacks=dataset.stacks
        )
        return RunSpec(env=spec, policies=dict.fromkeys(self.program.policies, spec))

    def notes(self, dataset: Dataset | None, spec: RunSpec) -> list[str]:
        played, found = (
            self.settings.env is not None and not self.program.evaluation.episodes,
            list[str](),
        )
        if (
            dataset is not None
            and played
            and dataset.env
            and _id(dataset.env) != _id(self.program.name)
        ):
            found.append(
                f"warning: {dataset.name} is of {dataset.env}, not of {self.program.name}, which "
                "is never made: "
                "there are neither actors nor evaluations"
            )
        return found + super().notes(dataset, spec)

    def play_command(self) -> str:
        return (
            f"evaluate {{}} --recorded {shlex.quote(self.settings.dataset)}"
            if self.settings.env is None
            else "evaluate {}"
        )


def _id(target: str) -> str:
    """A target without the module that it is found in."""
    return target.rpartition(":")[2]
