"""Reports to Weights & Biases (the extra ``wandb``, imported when a run asks for it)."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from equipoise.hints import install

PROJECT, ID = "project", "id"


def load() -> ModuleType:
    """The package, or an ImportError with the install command."""
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ImportError(
            f"--wandb needs the package wandb: {install('wandb')} ({error})"
        ) from error


def new(project: str) -> dict[str, str]:
    """The part of run.json that lets a resume continue the same W&B run."""
    if not project.strip():
        raise ValueError("wandb: expected the name of a project, got an empty one")
    return {PROJECT: project, ID: secrets.token_hex(4)}


def another(known: Mapping[str, str]) -> dict[str, str]:
    """The same for a copy of the run, which is another W&B run."""
    return {**known, ID: secrets.token_hex(4)}


class WandbLog:
    """One W&B run, whose step is the env step; a rewound run logs only steps that it has not.

    ``told``: the last step that it has already.
    """

    def __init__(
        self,
        known: Mapping[str, str],
        directory: Path,
        config: Mapping[str, object],
        *,
        told: int = -1,
    ) -> None:
        wandb = load()
        self._told, self._after = told, told
        try:
            self._run = wandb.init(
                project=known[PROJECT],
                id=known[ID],
                name=directory.name,
                dir=str(directory),
                config=dict(config),
                # the terminal is the live view's
                resume="allow",
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise ValueError(
                f"wandb: no run begins in project {known[PROJECT]!r}: {error}"
            ) from error

    def write(self, values: Mapping[str, float], step: int) -> None:
        if step > self._after:
            self._told = step
            self._run.log(dict(values), step=step)

    def rewind(self) -> None:
        """The run goes back: the following steps are already logged, up to the last logged step."""
        self._after = self._told

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
