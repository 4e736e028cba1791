"""Task files: prompts with what their rewards are told, from JSONL and parquet.

A row has a ``prompt``, as a text or as messages ``{"role", "content"}``. A ``completion``, where there is one, is what ``sft``
learns. All other columns go to the rewards by their names; where a row lacks one that others have, it is None. verl's files are
such rows: the ``ground_truth`` in their ``reward_model`` becomes a column as well.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.files import LARGEST_JSON, parse_json
from equipoise.hints import hint, install, nearest
from equipoise.types.packed import Example, Prompt

SUFFIXES = (".jsonl", ".parquet")
RESERVED = ("prompts", "completions", "completion_ids", "ended")  # what rewards are told of the samples
ROLES = ("system", "user", "assistant", "tool", "developer")


def read(path: Path) -> list[Example]:
    """The rows of a file; ValueError names the line or the row that is wrong."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a file that ends in {' or '.join(SUFFIXES)}, got {path.suffix or 'none'}")
    if not path.is_file():
        there = [one.name for one in path.parent.glob("*") if one.suffix in SUFFIXES] if path.parent.is_dir() else []
        raise ValueError(f"{path}: expected a file of prompts, got none" + (hint(path.name, there) if there else ""))
    if path.suffix == ".jsonl":
        return examples(_lines(path), str(path), "line")
    return examples(_table(path), str(path), "row")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST_JSON + 1):
            number += 1
            if len(line) > LARGEST_JSON:
                raise ValueError(f"{path}, line {number}: expected at most {LARGEST_JSON:,} bytes, got more")
            if line.strip():
                yield number, parse_json(line.strip(), path, number)


def _table(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise ImportError(f"{path}: a parquet file needs pyarrow: {install('language')}") from error
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: _plain(value, f"{path}, row {number}: {name}") for name, value in row.items()}
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected a parquet file, got {str(error).partition(chr(10))[0]}") from error


def _plain(value: Any, where: str) -> Any:
    """A value of a table as JSON has it: times and decimal numbers become texts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one, where) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, where) for one in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise ValueError(f"{where}: expected texts, numbers, lists and objects of them, got {type(value).__name__}")


def examples(rows: Iterable[tuple[int, Any]], where: str, what: str) -> list[Example]:
    """Examples of numbered rows. ``where`` they are from and ``what`` a row is called there are for errors."""
    made, names = [], dict[str, None]()
    for number, row in rows:
        at = f"{where}, {what} {number}"
        if not isinstance(row, Mapping):
            raise ValueError(f"{at}: expected an object with a prompt, got {type(row).__name__}")
        if "prompt" not in row:
            raise ValueError(f"{at}: expected a column 'prompt', got {_listed(row)}")
        if taken := [name for name in RESERVED if name in row]:
            raise ValueError(f"{at}: expected another name than {taken[0]!r}, which tells rewards about the samples")
        columns = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
        model = columns.get("reward_model")
        if isinstance(model, Mapping) and "ground_truth" in model:
            columns.setdefault("ground_truth", model["ground_truth"])
        names.update(dict.fromkeys(columns))
        made.append((_prompt(row["prompt"], at), columns, _completion(row.get("completion"), at)))
    if not made:
        raise ValueError(f"{where}: expected at least one {what} with a prompt, got none")
    return [
        Example(prompt=prompt, columns={name: columns.get(name) for name in names}, completion=completion)
        for prompt, columns, completion in made
    ]


def _listed(row: Mapping[str, Any]) -> str:
    near = nearest("prompt", row) or next((name for name in ("question", "problem", "input") if name in row), None)
    return (", ".join(map(str, row)) or "none") + (f"; rename {near!r}, if that is it" if near else "")


def _prompt(value: Any, at: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        for i, one in enumerate(value):
            if not (isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)):
                raise ValueError(f"{at}: prompt, message {i + 1}: expected texts 'role' and 'content', got {_short(one)}")
            if one["role"] not in ROLES:
                raise ValueError(f"{at}: prompt, message {i + 1}: unknown role {one['role']!r}{hint(one['role'], ROLES)}")
        return value
    raise ValueError(f"{at}: prompt: expected a text or messages, got {_short(value) if value else 'an empty one'}")


def _completion(value: Any, at: str) -> str:
    """The wanted completion: a text, or the assistant's message alone."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        one = value[0]
        if one.get("role") == "assistant" and isinstance(one.get("content"), str):
            return str(one["content"])
    raise ValueError(f"{at}: completion: expected a text, or one message of the assistant, got {_short(value)}")


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."
