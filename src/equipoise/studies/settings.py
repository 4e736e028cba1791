"""``study.toml``: everything that a study was asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from equipoise import trust
from equipoise.files import LARGEST_JSON, json_bytes, parse_toml, read_bounded, write_atomic
from equipoise.hints import hint
from equipoise.programs.config_file import for_toml
from equipoise.programs.program import to_json
from equipoise.programs.settings import convert
from equipoise.studies.space import Space, read_space
from equipoise.types import Program

STUDY, TRIALS, BEST, CHOICES = "study.toml", "trials", "best.toml", "choices.json"
PROGRAMS = "programs"  # of trials that do not share one: the cells of a suite
MOST_TRIALS, MOST_JOBS = 100_000, 1024


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """The settings of a study, besides its program."""

    strategy: str  # a name in ``strategies/``, or "module:Class"
    strategy_settings: tuple[str, ...] = ()  # such as "reduction=4"
    space: tuple[str, ...] = ()  # such as "optimizer.learning_rate=log:1e-5..1e-2"
    trials: int = 1
    jobs: int = 1
    confirm: int = 0  # fresh seeds that the best settings are trained on once more
    seed: int = 0
    on: str = "serial"  # where the workers of a trial run
    executor: str = "local"  # where trials run: on this machine, or on a Ray cluster
    cluster: tuple[str, ...] = ()  # of trials with on="ray": settings such as "address=auto"
    init_from: str = ""  # a run or a checkpoint that each trial takes its first weights from
    init_what: str = "weights"
    tensorboard: bool = False  # for each trial
    wandb: str = ""
    suite: str = ""  # the name of the suite that the trials are cells of

    def __post_init__(self) -> None:
        for name, value, most in (
            ("trials", self.trials, MOST_TRIALS),
            ("jobs", self.jobs, MOST_JOBS),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name}: must be from 1 to {most:,}, got {value:,}")
        if not 0 <= self.confirm <= 100:
            raise ValueError(f"confirm: must be from 0 to 100, got {self.confirm:,}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed: must be from 0 to 2**63 - 1, got {self.seed}")
        self.parsed()  # an error in the space is found at once

    def parsed(self) -> Space:
        return read_space(self.space)


def write_study(
    folder: Path,
    settings: StudySettings,
    program: Program | None,
    asked: str,
    chosen: Mapping[str, object],
) -> None:
    """Write ``study.toml`` into a new folder, and what was measured for all trials before it.

    ``program``: None for a suite. ``asked``: the hash of the program before measured settings had
    values.
    """
    written: dict[str, object] = {"study": asdict(settings) | {"program_sha256": asked}}
    if program is not None:
        data = written["program"] = for_toml(to_json(program))
        if (signature := trust.signature(data)) is not None:  # of what a reader finds
            written["signature"] = signature
    write_atomic(folder / CHOICES, json_bytes(chosen))
    write_atomic(folder / STUDY, tomli_w.dumps(written).encode())


def read_study(folder: Path) -> StudySettings:
    """Return the settings of a study directory; its program is not read and nothing that it names
    is imported. ValueError in one sentence for anything that is no study.
    """
    file = folder / STUDY
    if not file.is_file():
        raise ValueError(
            f"{folder}: must be a study directory, got one without {STUDY}; 'equipoise tune ENV' "
            "makes one"
        )
    data = parse_toml(read_bounded(file, LARGEST_JSON), file).get("study")
    if not isinstance(data, Mapping):
        raise ValueError(f"{file}: must have a table [study], got none")
    known = {one.name: one for one in fields(StudySettings)}
    given = {key: value for key, value in data.items() if key != "program_sha256"}
    for key in given:
        if key not in known:
            raise ValueError(f"{file}: unknown setting {key!r} in [study]{hint(key, known)}")
    kinds = get_type_hints(StudySettings)
    typed: dict[str, Any] = {
        key: convert(value, kinds[key], f"{file}: {key}") for key, value in given.items()
    }
    if "strategy" not in typed:
        raise ValueError(f"{file}: must name a strategy in [study], got none")
    try:
        return StudySettings(**typed)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def program_hash(program: Program) -> str:
    """Return the hash of a program, by which a study is told from one of another program."""
    return hashlib.sha256(json_bytes(to_json(program))).hexdigest()[:16]
