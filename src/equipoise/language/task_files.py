"""Task files: prompts with the arguments of their rewards, from JSONL and parquet.

A row has a ``prompt``, as a text or as messages ``{"role", "content"}``. A ``completion``, if there
is one, is what ``sft`` learns: a text, or the messages that follow, of which it learns the
assistant's. ``messages`` in place of both are parted before the assistant's first one. All other
columns go to the rewards by their names; if a row lacks a column of another row, its value is None.
Next to messages the columns ``tools`` and
``chat_template_kwargs`` are also arguments of the chat template. verl's files are such rows: the
``ground_truth`` in their ``reward_model`` also becomes a column.
"""

from __future__ import annotations

import datetime
import decimal
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from equipoise import foreign
from equipoise.files import BOM, DEEPEST_JSON, LARGEST_JSON, MOST_DIGITS, parse_json
from equipoise.hints import hint, install, nearest, shortened
from equipoise.language import messages
from equipoise.types.packed import Example, Prompt

SUFFIXES = (".jsonl", ".parquet")
HALF = re.compile("[\ud800-\udfff]")  # of a character
# arguments of rewards, so no names of columns
RESERVED = ("prompts", "completions", "completion_ids", "ended")
# numbered rows, where they are from and what a row is called in errors -> examples
ReadRows = Callable[[Iterable[tuple[int, object]], str, str], list[Example]]


def read(path: Path, rows: ReadRows | None = None) -> list[Example]:
    """The rows of a file; ValueError names the line or the row that is wrong.

    ``rows`` makes examples of them; None: ``examples``.
    """
    rows = examples if rows is None else rows
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: {wrong_end(path)}")
    if not path.is_file():
        if os.path.lexists(path):
            kind = (
                "a folder"
                if path.is_dir()
                else "a link to no file"
                if path.is_symlink()
                else "another kind of file"
            )
            raise ValueError(f"{path}: expected a plain file of prompts, got {kind}")
        there = (
            [one.name for one in path.parent.glob("*") if one.suffix in SUFFIXES]
            if path.parent.is_dir()
            else []
        )
        raise ValueError(
            f"{path}: expected a file of prompts, got none"
            + (hint(path.name, there) if there else "")
        )
    if path.suffix == ".jsonl":
        return rows(_lines(path), str(path), "line")
    return rows(_table(path), str(path), "row")


def wrong_end(path: Path) -> str:
    """The fault in the end of a name, and how to turn such a file into a file of prompts."""
    fix = (
        "; write a line of JSON for each row, such as pandas' to_json(orient='records', lines=True)"
    )
    if path.suffix.lower() in (*SUFFIXES, ".ndjson", ".jsonlines"):
        fix = (
            "; rename it to "
            f"{path.with_suffix('.parquet' if path.suffix.lower() == '.parquet' else '.jsonl').name!r}"  # noqa: E501
        )
    return f"expected a file that ends in {' or '.join(SUFFIXES)}, got {path.suffix or 'none'}{fix}"


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST_JSON + 1):
            number += 1
            if len(line) > LARGEST_JSON:
                raise ValueError(
                    f"{path}, line {number}: expected at most {LARGEST_JSON:,} bytes, got more"
                )
            if line := line.removeprefix(BOM).strip():
                yield number, parse_json(line, path, number)


def _table(path: Path) -> Iterator[tuple[int, object]]:
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
                    yield number, row
    except (ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: expected a parquet file, got {str(error).partition(chr(10))[0]}"
        ) from error


def plain(value: object, where: str, depth: int = 0) -> object:
    """A value as JSON has it, whole: times and decimal numbers become texts."""
    if isinstance(value, str):
        return whole(value, where)
    value = foreign.listed(value)
    if isinstance(value, int) and value.bit_length() > 3 * MOST_DIGITS:  # a digit has 3.3 bits
        raise ValueError(
            f"{where}: expected a number of at most {MOST_DIGITS * 9 // 10:,} digits, got a longer "
            "one"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"{where}: expected a finite number, got {value}; leave it out, or write null"
        )
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > DEEPEST_JSON:
        raise ValueError(
            f"{where}: expected at most {DEEPEST_JSON} levels of lists and objects, got more"
        )
    if isinstance(value, Mapping):
        return {
            whole(str(name), where): plain(one, where, depth + 1) for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(one, where, depth + 1) for one in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise ValueError(
        f"{where}: expected texts, numbers, lists and objects of them, got {type(value).__name__}"
    )


def whole(text: str, where: str) -> str:
    """The text; ValueError if it has half a character, which UTF-8 cannot encode."""
    if not text.isascii() and (half := HALF.search(text)) is not None:
        raise ValueError(
            f"{where}: expected whole characters, got half of one, {half[0]!a}, at character "
            f"{half.start() + 1} (a text cut by "
            "UTF-16 units, within an emoji?); remove it, or cut by whole characters"
        )
    return text


def examples(rows: Iterable[tuple[int, object]], where: str, what: str) -> list[Example]:
    """Examples of numbered rows; ``where`` they are from and ``what`` a row is called in errors."""
    made, names = [], dict[str, None]()
    for number, row in rows:
        at = f"{where}, {what} {number}"
        if not isinstance(row, Mapping):
            raise ValueError(f"{at}: expected an object with a prompt, got {type(row).__name__}")
        row = {whole(str(name), at): plain(value, f"{at}: {name}") for name, value in row.items()}
        row = _parted(row, at)
        if "prompt" not in row:
            raise ValueError(f"{at}: expected a column 'prompt', got {_listed(row)}")
        if taken := [name for name in RESERVED if name in row]:
            raise ValueError(
                f"{at}: expected another name than {taken[0]!r}, which is a name of the rewards' "
                "own arguments"
            )
        columns = {
            name: value for name, value in row.items() if name not in ("prompt", "completion")
        }
        model = columns.get("reward_model")
        if isinstance(model, Mapping) and "ground_truth" in model:
            columns.setdefault("ground_truth", model["ground_truth"])
        names.update(dict.fromkeys(columns))
        prompt = messages.read_prompt(row["prompt"], f"{at}: prompt")
        template = {} if isinstance(prompt, str) else messages.template(row, at)
        completion, turns = _completion(row.get("completion"), prompt, f"{at}: completion")
        made.append((prompt, columns, completion, turns, template, at))
    if not made:
        raise ValueError(f"{where}: expected at least one {what} with a prompt, got none")
    return [
        Example(
            prompt=prompt,
            columns={name: columns.get(name) for name in names},
            completion=completion,
            turns=turns,
            template=template,
            at=at,
        )
        for prompt, columns, completion, turns, template, at in made
    ]


def _parted(row: dict[str, object], at: str) -> dict[str, object]:
    """The row with the messages of a conversation as its prompt and its completion."""
    said = row.get("messages")
    # a table has the columns of all rows, with nulls
    if row.get("prompt") is not None or not isinstance(said, list):
        return row
    if row.get("completion") is not None:
        raise ValueError(
            f"{at}: expected 'messages', or a prompt and a completion, got messages with one"
        )
    roles = [one.get("role") if isinstance(one, Mapping) else None for one in said]
    if "assistant" not in roles[1:] or roles[0] == "assistant":
        raise ValueError(
            f"{at}: messages: expected a question and then an answer of the assistant, got "
            f"{shortened(', '.join(str(one) for one in roles)) or 'none'}; a question alone is a "
            "'prompt'"
        )
    first = roles.index("assistant")
    ours = ("messages", "prompt", "completion")
    others = {name: value for name, value in row.items() if name not in ours}
    return {"prompt": said[:first], "completion": said[first:]} | others


def _listed(row: Mapping[str, object]) -> str:
    near = nearest("prompt", row) or next(
        (name for name in ("question", "problem", "input") if name in row), None
    )
    return (shortened(", ".join(row)) if row else "none") + (
        f"; rename {near!r}, if that is it" if near else ""
    )


def _completion(
    value: object, prompt: Prompt, at: str
) -> tuple[str, Sequence[Mapping[str, object]]]:
    """The wanted completion: a text, or messages that begin and end with the assistant's."""
    if value is None or isinstance(value, str):
        return value or "", ()
    if not (isinstance(value, list) and value):
        raise ValueError(f"{at}: expected a text, or messages, got {shortened(repr(value))}")
    said = [
        messages.read_message(one, f"{at}, message {i + 1}" if len(value) > 1 else at)
        for i, one in enumerate(value)
    ]
    roles = [str(one["role"]) for one in said]
    if roles[0] != "assistant" or roles[-1] != "assistant":
        raise ValueError(
            f"{at}: expected messages of which the first and the last are the assistant's, got "
            f"{shortened(', '.join(roles))}"
        )
    if len(said) == 1 and "tool_calls" not in said[0]:
        return str(said[0]["content"]), ()
    if isinstance(prompt, str) or prompt[-1]["role"] == "assistant":
        got = "a text" if isinstance(prompt, str) else "one that begins the assistant's answer"
        raise ValueError(
            f"{at}: a conversation has a prompt of messages, of which the last is answered, got "
            f"{got}"
        )
    return "", said
