"""A Program as a file: JSON or TOML that a person may write, or the ``run.json`` of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from equipoise import trust
from equipoise.files import (
    LARGEST_JSON,
    json_bytes,
    parse_json,
    parse_toml,
    read_bounded,
    write_atomic,
)
from equipoise.programs.program import from_json, to_json
from equipoise.types import Program

SUFFIXES = (".json", ".toml")


def read_config(file: Path, *, trusted: Sequence[str] = ()) -> Program:
    """Read the Program of a file; ValueError that names the file and what is wrong in it.

    Names ``module:callable`` are imported only if ``trusted`` has them, or if the file is the
    ``run.json`` of a run that this user trained here (``equipoise.trust``).
    """
    if file.is_dir():
        file = file / "run.json"
    data, signature = _data(file), None
    if isinstance(data, dict) and "program" in data:  # a run.json
        data, signature = data["program"], data.get("signature")
    data = trust.renamed(data, trusted)
    names, signed = trust.of_program(data)
    trust.check(names, signed, signature, trusted, file)
    try:
        program = from_json(data)
        # TOML has values that JSON has not, such as a date among the arguments of an env
        to_json(program)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return program


def as_toml(program: Program) -> str:
    """Return a Program as TOML, as ``write_config`` writes it."""
    return tomli_w.dumps(for_toml(to_json(program)))


def write_config(program: Program, file: Path) -> None:
    """Write a Program, whole or not at all; FileExistsError for a file that is there already."""
    suffix = _suffix(file)
    if file.exists():
        raise FileExistsError(
            f"{file}: expected a new file for the settings, got one that is there already"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    data = to_json(program)
    write_atomic(
        file, json_bytes(data) if suffix == ".json" else tomli_w.dumps(for_toml(data)).encode()
    )


def _data(file: Path) -> object:
    suffix = _suffix(file)
    text = read_bounded(file, LARGEST_JSON)
    return parse_json(text, file) if suffix == ".json" else parse_toml(text, file)


def _suffix(file: Path) -> str:
    if file.suffix not in SUFFIXES:
        raise ValueError(
            f"{file}: expected a file that ends in {' or '.join(SUFFIXES)}, got "
            f"{file.suffix or 'no suffix'!r}"
        )
    return file.suffix


def for_toml(value: Any) -> Any:
    """TOML has no None: write "none", and leave out parts that are None."""
    if isinstance(value, dict):
        return {
            key: for_toml(item)
            for key, item in value.items()
            if item is not None or key not in ("replay", "env")
        }
    if isinstance(value, list):
        return [for_toml(item) for item in value]
    return "none" if value is None else value
