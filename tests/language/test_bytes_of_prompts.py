"""Bytes that files of prompts have: marks of byte order, halves of characters, numbers that no
float holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.files import parse_json, read_json
from equipoise.language import task_files
from equipoise.language.tokenizers import CharTokenizer

BOM = b"\xef\xbb\xbf"


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(
        BOM + b'{"prompt": "a"}\r\n' + BOM + b"\r\n\r\n" + BOM + b'{"prompt": "b"}\r\n'
    )
    assert [one.prompt for one in task_files.read(file)] == ["a", "b"]
    (tmp_path / "a.json").write_bytes(BOM + b'{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": NaN}', "x.json, line 1: expected JSON, got NaN, which is no number"),
        (
            b'{"NaN": 1,\n"a": [1,\n-Infinity]}',
            "x.json, line 3: expected JSON, got -Infinity, which is no number",
        ),
        (
            b'{"a": "1e999",\n"b": 1e999}',
            "x.json, line 2: expected JSON, got 1e999, which is too large for a number",
        ),
        (
            b"[\n-" + b"9" * 5000 + b"]",
            r"x.json, line 2: expected JSON, got -9999.*\.\.\., which has more than 4,300 digits",
        ),
        (b"[1" + b"0" * 400 + b".0]", "which is too large for a number"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_line(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(data, "x.json")


def test_numbers_that_are_long_and_fine() -> None:
    assert parse_json(b"[1e300, 1e-999, -1E+20, " + b"1" * 400 + b', "1e999"]', "x.json") == [
        1e300,
        0.0,
        -1e20,
        int("1" * 400),
        "1e999",
    ]
    assert parse_json(b"[NaN, 1e999]", "x.json", finite=False)[1] == float("inf")


@pytest.mark.few(7)
@pytest.mark.parametrize(
    "row",
    [
        r'{"prompt": "\ud83e 1"}',
        r'{"prompt": "a", "answer": ["b", "\udd28"]}',
        r'{"prompt": "a", "\ud83e": 1}',
        r'{"prompt": "a", "completion": "\ud83e"}',
        r'{"prompt": [{"role": "user", "content": "\udd28\ud83e"}]}',
        r'{"prompt": "a", "x": {"y": {"\ud83e": 1}}}',
        r'{"prompt": [{"role": "user", "content": [{"type": "text", "text": "\ud83e"}]}]}',
    ],
)
def test_half_a_character_is_refused_with_its_line(row: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "\\ud83e\\udd28 whole"}\n' + row)
    with pytest.raises(
        ValueError, match=r"a.jsonl, line 2.*: expected whole characters, got half of one"
    ) as said:
        task_files.read(file)
    str(said.value).encode()


def test_no_tokenizer_is_made_of_half_a_character() -> None:
    with pytest.raises(ValueError, match="alphabet: expected whole characters"):
        CharTokenizer("ab\ud83e")


def test_rows_of_a_callable_are_looked_at_as_a_file_s() -> None:
    deep: list[object] = []
    deep.append(deep)
    for value, said in (
        (deep, "at most 64 levels"),
        (10**5000, "digits, got a longer one"),
        (b"x", "got bytes"),
        ("\udc80", "half"),
        (float("nan"), "x: expected a finite number, got nan"),
        ({"a": [float("-inf")]}, "x: expected a finite number, got -inf"),
    ):
        with pytest.raises(ValueError, match=f"task, row 1.*{said}"):
            task_files.examples([(1, {"prompt": "a", "x": value})], "task", "row")
