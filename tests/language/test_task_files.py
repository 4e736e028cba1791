"""Task files: rows of JSONL and parquet, verl's among them, and what is wrong with a row."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.language import task_files, tasks
from equipoise.language.text_task import TextTask
from equipoise.types.packed import Example

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is 2 + 3?"},
]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": MESSAGES,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "train", "index": 7},
}


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def test_texts_messages_and_columns(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "a.jsonl",
        {"prompt": "2 + 3 =", "answer": 5},
        "",
        {"prompt": MESSAGES, "level": [1]},
    )
    assert task_files.read(path) == [
        Example(prompt="2 + 3 =", columns={"answer": 5, "level": None}),
        Example(prompt=MESSAGES, columns={"answer": None, "level": [1]}),
    ]


def test_a_completion_is_no_column(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": "5"}]
    path = jsonl(
        tmp_path / "a.jsonl",
        {"prompt": "a", "completion": "5"},
        {"prompt": MESSAGES, "completion": said},
    )
    assert [(one.completion, one.columns) for one in task_files.read(path)] == [
        ("5", {}),
        ("5", {}),
    ]


def test_a_conversation_is_parted_before_the_first_answer(tmp_path: Path) -> None:
    said = [
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes"},
    ]
    both = [{"messages": [*MESSAGES, *said], "level": 1}, {"prompt": MESSAGES, "completion": said}]
    one, two = task_files.read(jsonl(tmp_path / "a.jsonl", *both))
    assert (one.prompt, one.turns, one.columns) == (MESSAGES, said, {"level": 1})
    assert (two.prompt, two.turns, two.completion) == (MESSAGES, said, "")
    single = {"messages": [*MESSAGES, said[0]], "prompt": None, "completion": None}
    (single_read,) = task_files.read(jsonl(tmp_path / "b.jsonl", single))
    assert (single_read.completion, single_read.turns) == ("5", ())


ANSWER = {"role": "assistant", "content": "5"}


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"messages": []}, "expected a question and then an answer of the assistant, got none"),
        ({"messages": [*MESSAGES]}, "expected a question and then an answer"),
        ({"messages": [ANSWER]}, "and then an answer of the assistant, got assistant"),
        ({"messages": [3, ANSWER]}, "message 1: expected texts 'role' and 'content', got 3"),
        (
            {"messages": [*MESSAGES, ANSWER, *MESSAGES]},
            "the first and the last are the assistant's",
        ),
        ({"messages": [*MESSAGES, ANSWER], "completion": "5"}, "got messages with one"),
        ({"prompt": "a", "completion": [ANSWER, ANSWER]}, "a prompt of messages, .* got a text"),
        ({"prompt": [*MESSAGES, ANSWER], "completion": [ANSWER, ANSWER]}, "begins the assistant's"),
        ({"prompt": MESSAGES, "completion": []}, "expected a text, or messages, got"),
    ],
)
def test_conversations_that_are_none(row: dict[str, object], wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=wrong):
        task_files.read(jsonl(tmp_path / "a.jsonl", row))


def test_verl_is_read_from_parquet_as_from_jsonl(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.Table.from_pylist([VERL, VERL]), tmp_path / "a.parquet")
    one, two = task_files.read(tmp_path / "a.parquet")
    assert one == two == task_files.read(jsonl(tmp_path / "a.jsonl", VERL))[0]
    assert one.prompt == MESSAGES
    assert one.columns["ground_truth"] == "5" and one.columns["data_source"] == "openai/gsm8k"
    assert (
        one.columns["reward_model"] == VERL["reward_model"]
        and one.columns["extra_info"] == VERL["extra_info"]
    )


def test_a_table_becomes_what_json_has(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    row = {
        "prompt": "a",
        "at": datetime.datetime(2026, 1, 2, 3),
        "price": decimal.Decimal("1.50"),
        "x": [{"y": 0.5}],
    }
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    (one,) = task_files.read(tmp_path / "a.parquet")
    assert one.columns == {"at": "2026-01-02T03:00:00", "price": "1.50", "x": [{"y": 0.5}]}
    parquet.write_table(
        arrow.Table.from_pylist([{"prompt": "a", "image": {"bytes": b"png"}}]),
        tmp_path / "b.parquet",
    )
    with pytest.raises(
        ValueError, match=r"b.parquet, row 1: image: expected texts, numbers.*got bytes"
    ):
        task_files.read(tmp_path / "b.parquet")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"torn.parquet: expected a parquet file, got"):
        task_files.read(tmp_path / "torn.parquet")


def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ImportError,
        match=r"a parquet file needs pyarrow: (pip install|install its extra 'language')",
    ):
        task_files.read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt": "a"', "a.jsonl, line 2: expected JSON, got"),
        ('["prompt"]', "line 2: expected an object with a prompt, got list"),
        (
            {"promt": "a", "answer": 1},
            "line 2: expected a column 'prompt', got promt, answer; rename 'promt'",
        ),
        ({"question": "a", "answer": 1}, "got question, answer; rename 'question'"),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            "got user; a question alone is a 'prompt'",
        ),
        ({}, "expected a column 'prompt', got none$"),
        ({"prompt": ""}, "line 2: prompt: expected a text or messages, got an empty one"),
        ({"prompt": 5}, "expected a text or messages, got 5"),
        (
            {"prompt": [{"role": "user"}]},
            "message 1: expected texts 'role' and 'content', got {'role': 'user'}",
        ),
        (
            {"prompt": [{"role": "usr", "content": ""}]},
            "message 1: unknown role 'usr'; did you mean 'user'",
        ),
        ({"prompt": "a", "ended": 1}, "expected another name than 'ended'"),
        (
            {"prompt": "a", "completion": 5},
            "completion: expected a text, or messages, got 5",
        ),
    ],
)
@pytest.mark.few(12)
def test_a_row_that_is_wrong_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        task_files.read(jsonl(tmp_path / "a.jsonl", {"prompt": "fine"}, row))


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl")
    with pytest.raises(
        ValueError,
        match=r"trian.jsonl: expected a file of prompts, got none; did you mean 'train.jsonl'",
    ):
        task_files.read(tmp_path / "trian.jsonl")
    with pytest.raises(ValueError, match="expected at least one line with a prompt, got none"):
        task_files.read(tmp_path / "train.jsonl")
    for name, said in (
        ("a.csv", r"got .csv; write a line of JSON for each row"),
        ("a", "got none; write a line"),
        ("a.JSONL", r"got .JSONL; rename it to 'a.jsonl'"),
        ("a.ndjson", "got .ndjson; rename it to 'a.jsonl'"),
        ("a.Parquet", "got .Parquet; rename it to 'a.parquet'"),
    ):
        with pytest.raises(
            ValueError, match=f"expected a file that ends in .jsonl or .parquet, {said}"
        ):
            task_files.read(tmp_path / name)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("folder", "a folder"), ("pipe", "another kind of file"), ("link", "a link to no file")],
)
def test_a_name_of_no_plain_file_is_no_misspelling_of_itself(
    kind: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to("away"),
    }[kind]()
    with pytest.raises(ValueError, match=f"a.jsonl: expected a plain file of prompts, got {said}$"):
        task_files.read(path)


def test_a_task_of_a_file_holds_out_a_part_or_another_file(tmp_path: Path) -> None:
    path = str(jsonl(tmp_path / "a.jsonl", *({"prompt": str(i)} for i in range(30))))
    task = tasks.make(path, seed=1)
    assert (len(task.train), len(task.held_out), task.reward) == (27, 3, "")
    assert task.tokenizer is not None and task.tokenizer.size == 10 + 2
    assert {one.prompt for one in (*task.train, *task.held_out)} == {str(i) for i in range(30)}
    assert task == tasks.make(path, seed=1) != tasks.make(path, seed=2)
    other = jsonl(tmp_path / "b.jsonl", {"prompt": "x"})
    both = tasks.make(path, seed=1, arguments={"held_out": str(other)})
    assert (len(both.train), [one.prompt for one in both.held_out]) == (30, ["x"])
    with pytest.raises(ValueError, match="unknown argument 'heldout'; did you mean 'held_out'"):
        tasks.make(path, seed=1, arguments={"heldout": "b.jsonl"})
    more = jsonl(tmp_path / "c.jsonl", *({"prompt": str(i), "answer": "é"} for i in range(3)))
    with pytest.raises(ValueError, match="expected the columns of .*, got none named 'answer'"):
        tasks.make(str(more), seed=1, arguments={"held_out": str(other)})
    with pytest.raises(
        ValueError, match="held_out: expected a file that ends in .jsonl or .parquet, got 5"
    ):
        tasks.make(path, seed=1, arguments={"held_out": 5})
    with pytest.raises(
        ValueError,
        match="expected at least 2 prompts, .*, got 1; .* source.arguments=held_out=FILE",
    ):
        tasks.make(str(other), seed=1)


def rows(count: int, seed: int = -1) -> list[dict[str, Any]]:
    return [{"prompt": f"{i}", "seed": seed} for i in range(count)]


def made() -> TextTask:
    return TextTask(name="mine", train=[Example(prompt="a")], held_out=[Example(prompt="b")])


def nothing() -> int:
    return 5


def test_a_task_of_a_callable() -> None:
    task = tasks.make(f"{__name__}:rows", seed=4, arguments={"count": 20})
    assert (len(task.train), len(task.held_out), task.train[0].columns) == (18, 2, {"seed": 4})
    assert tasks.make(f"{__name__}:made", seed=0) == made()
    with pytest.raises(ValueError, match="expected a TextTask or rows with a prompt, got int 5"):
        tasks.make(f"{__name__}:nothing", seed=0)
    with pytest.raises(
        ValueError, match="expected its arguments .*missing a required argument: 'count'"
    ):
        tasks.make(f"{__name__}:rows", seed=4)
    with pytest.raises(ValueError, match="unknown argument 'cuont'; did you mean 'count'"):
        tasks.make(f"{__name__}:rows", seed=4, arguments={"cuont": 20})
    with pytest.raises(ValueError, match="unknown function 'rwos'; did you mean 'rows'"):
        tasks.make(f"{__name__}:rwos", seed=0)


def test_arguments_of_a_task_as_texts() -> None:
    given = tasks.arguments(
        ["size=20", "share = 0.5", "deep=true", "held_out=a b.jsonl", "empty=", "of=[1, 2]"]
    )
    assert given == {
        "size": 20,
        "share": 0.5,
        "deep": True,
        "held_out": "a b.jsonl",
        "empty": "",
        "of": [1, 2],
    }
    for wrong, said in (
        ("size", "expected KEY=VALUE"),
        ("a b=1", "expected KEY=VALUE"),
        ("size=3", "expected size once"),
    ):
        with pytest.raises(ValueError, match=f"source.arguments: {said}"):
            tasks.arguments(["size=20", wrong])


def test_an_unknown_task(tmp_path: Path) -> None:
    for name, said in (
        ("srot", "unknown task 'srot'; did you mean 'sort'.*others are FILE.jsonl"),
        (
            str(jsonl(tmp_path / "a.txt")),
            r"ends in .jsonl or .parquet, got .txt; write a line of JSON for each row",
        ),
        ("nowhere_at_all:f", "task 'nowhere_at_all:f': no module 'nowhere_at_all'"),
    ):
        with pytest.raises(ValueError, match=said):
            tasks.make(name, seed=0)
    with pytest.raises(ValueError, match="task 'sort': unknown argument 'digits'"):
        tasks.make("sort", seed=0, arguments={"digits": 7})
