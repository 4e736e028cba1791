"""``study.toml``: the settings of a study and the program of its trials."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

from equipoise import trust
from equipoise.facts import Flag, Help, Range
from equipoise.files import (
    LARGEST_JSON,
    is_url,
    json_bytes,
    parse_toml,
    read_bounded,
    write_atomic,
)
from equipoise.hints import hint
from equipoise.types import WHAT, WHERE, On

if TYPE_CHECKING:
    from equipoise.studies.space import Space
    from equipoise.types import Program

STUDY, TRIALS, BEST, CHOICES = "study.toml", "trials", "best.toml", "choices.json"
PROOF = "study_signature"  # that this user wrote the code and the machines that a study names
PROGRAMS = "programs"  # of trials that do not share one: the cells of a suite
MOST_TRIALS, MOST_JOBS, MOST_CONFIRMED = 100_000, 1024, 100


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """The settings of a study, besides its program."""

    space: Annotated[
        tuple[str, ...],
        Help("Setting to search: LOW..HIGH, log:LOW..HIGH, A,B,C"),
        Flag(WHAT, "KEY=VALUES"),
    ] = ()
    trials: Annotated[
        int,
        Range(1, MOST_TRIALS),
        Help("Settings to try; members of a population"),
        Flag(WHAT, "N"),
    ] = 20
    strategy: Annotated[str, Help("Strategy; 'tune strategies' lists them"), Flag(WHAT, "NAME")] = (
        "asha"
    )
    strategy_settings: Annotated[
        tuple[str, ...],
        Help("Setting of the strategy; repeatable"),
        Flag(WHAT, "KEY=VALUE", name="strategy-set"),
    ] = ()
    confirm: Annotated[
        int,
        Range(0, MOST_CONFIRMED),
        Help("Fresh seeds to train the best settings on at the end"),
        Flag(WHAT, "N"),
    ] = 3
    jobs: Annotated[int, Range(1, MOST_JOBS), Help("Trials at the same time"), Flag(WHERE, "J")] = 1
    on: Annotated[
        On, Help("One thread, or processes, for each trial"), Flag(WHERE, "serial|process|ray")
    ] = "serial"
    executor: Annotated[
        Literal["local", "ray"],
        Help("Trials on this machine, or on a Ray cluster"),
        Flag(WHERE, "local|ray"),
    ] = "local"
    url: Annotated[
        str,
        Help("URL for copies of the trials; no shared folder is needed"),
        Flag(WHERE, "URL"),
    ] = ""
    seed: Annotated[int, Range(0, (1 << 63) - 1)] = 0
    cluster: tuple[str, ...] = ()  # settings of a Ray cluster, such as "address=auto"
    init_from: str = ""  # a run or a checkpoint that each trial takes its first weights from
    init_what: str = "weights"
    tensorboard: bool = False  # for each trial
    report_to: tuple[str, ...] = ()  # of each trial
    suite: str = ""  # the name of the suite that the trials are cells of

    def whole(self, steps: int) -> int:
        """Return the env steps of a whole trial; those of cells differ, and one stretch is all."""
        return 1 if self.suite else steps

    def __post_init__(self) -> None:
        from equipoise.programs.ranges import out_of_range

        if wrong := out_of_range(self):
            raise ValueError(wrong[0])
        if self.url and not is_url(self.url):
            raise ValueError(f"url: must be a URL such as s3://bucket/study, got {self.url!r}")
        runs = max(self.trials, self.confirm)  # with seeds of their own, from this one on
        if self.seed >= (1 << 63) - runs:
            raise ValueError(f"seed: must be at most 2**63 - 1 - {runs}, got {self.seed}")
        self.parsed()  # an error in the space is found at once

    def parsed(self) -> Space:
        from equipoise.studies.space import read_space

        return read_space(self.space)


def write_study(
    folder: Path,
    settings: StudySettings,
    program: Program | None,
    asked: str,
    chosen: Mapping[str, object],
) -> None:
    """Write ``study.toml`` into a new folder, and what was measured for all trials before it.

    ``program``: None for a suite. ``asked``: the hash of the program before settings were measured.
    """
    import tomli_w

    from equipoise.programs.config_file import for_toml
    from equipoise.programs.program import to_json

    written: dict[str, object] = {"study": asdict(settings) | {"program_sha256": asked}}
    if program is not None:
        data = written["program"] = for_toml(to_json(program))
        if (signature := trust.signature(data)) is not None:  # of what a reader finds
            written["signature"] = signature
    written |= _proof(settings)
    write_atomic(folder / CHOICES, json_bytes(chosen))
    write_atomic(folder / STUDY, tomli_w.dumps(written).encode())


def write_cluster(folder: Path, cluster: Sequence[str]) -> None:
    """Write other settings of the Ray cluster into ``study.toml``."""
    import tomli_w

    data = parse_toml(read_bounded(folder / STUDY, LARGEST_JSON), folder / STUDY)
    data["study"]["cluster"] = list(cluster)
    data |= _proof(replace(read_study(folder), cluster=tuple(cluster)))
    write_atomic(folder / STUDY, tomli_w.dumps(data).encode())


def _named(settings: StudySettings) -> list[tuple[str, str]]:
    """Return the code that the space of a study names, and the places it would connect to."""
    places = [("URL", settings.url)] if settings.url else []
    cluster = dict(one.partition("=")[::2] for one in settings.cluster)
    return [*settings.parsed().named, *places, *trust.of_cluster(cluster)]


def _signed(settings: StudySettings) -> dict[str, object]:
    """Return what a proof is about."""
    return {"space": settings.space, "url": settings.url, "cluster": settings.cluster}


def _proof(settings: StudySettings) -> dict[str, str]:
    names = _named(settings)
    proof = trust.sign(names, _signed(settings), make=True) if names else None
    return {} if proof is None else {PROOF: proof}


def check_trust(folder: Path, settings: StudySettings, trusted: Sequence[str]) -> None:
    """Raise ``Untrusted`` if a study names code in its space, a URL or a cluster's address, and
    neither a proof in its file nor ``trusted`` allows it.
    """
    if names := _named(settings):
        data = parse_toml(read_bounded(folder / STUDY, LARGEST_JSON), folder / STUDY)
        trust.check(names, _signed(settings), data.get(PROOF), trusted, folder / STUDY)


def read_study(folder: Path) -> StudySettings:
    """Return the settings of a study directory; its program is not read and nothing that it names
    is imported. ValueError in one sentence for anything that is no study.
    """
    from equipoise.programs.settings import convert

    file, data = folder / STUDY, _table(folder)
    known = {one.name: one for one in fields(StudySettings)}
    given = {key: value for key, value in data.items() if key != "program_sha256"}
    for key in given:
        if key not in known:
            raise ValueError(f"{file}: unknown setting {key!r} in [study]{hint(key, known)}")
    kinds = get_type_hints(StudySettings)
    make: Callable[..., StudySettings] = StudySettings
    typed: dict[str, object] = {
        key: convert(value, kinds[key], f"{file}: {key}") for key, value in given.items()
    }
    if "strategy" not in typed:
        raise ValueError(f"{file}: must name a strategy in [study], got none")
    try:
        return make(**typed)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def read_hash(folder: Path) -> str:
    """Return the hash of a study's program, as its file has it."""
    return str(_table(folder).get("program_sha256"))


def _table(folder: Path) -> Mapping[str, object]:
    file = folder / STUDY
    if not file.is_file():
        raise ValueError(
            f"{folder}: must be a study directory, got one without {STUDY}; 'equipoise tune ENV' "
            "makes one"
        )
    data = parse_toml(read_bounded(file, LARGEST_JSON), file).get("study")
    if not isinstance(data, Mapping):
        raise ValueError(f"{file}: must have a table [study], got none")
    return data


def program_hash(program: Program) -> str:
    """Return the hash of a program, which differs for a study of another program."""
    from equipoise.programs.program import to_json

    return hashlib.sha256(json_bytes(to_json(program))).hexdigest()[:16]
