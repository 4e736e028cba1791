"""The door of prompts: files and rows that people bring, read, split, and made into tokens by a
chat template.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from equipoise import files
from equipoise.language import task_files, tasks
from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import HubTokenizer
from equipoise.sources import prompts as texts
from equipoise.types.packed import Example
from tests.outside.harness import Door, Fault, Planted, shares

HALVES = ["\ud83e", "\udd28x", "a\udcff"]
WHOLE = st.one_of(
    st.sampled_from(
        [
            "a",
            "b",
            " a ",
            "a  b",
            "a b",
            "caf\u00e9",
            "cafe\u0301",
            "\U0001f928",
            "\u2028",
            "\x00",
            "<model>",
            "a" * 300,
        ]
    ),
    st.text(max_size=6),
)
TEXTS = shares(WHOLE, WHOLE, WHOLE, st.sampled_from(HALVES))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**30, 10**400, 1e308, -0.0]),
    st.just([]),
    st.just({}),
)
ROLES = st.sampled_from(
    ["system", "user", "user", "user", "assistant", "tool", "developer", "human", "", None, 5]
)
PARTS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["text", "text", "image_url"]), "text": TEXTS}
        ),
        ODD,
        TEXTS,
    ),
    max_size=3,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {
                    "name": shares(TEXTS, ODD),
                    "arguments": st.one_of(ODD, st.sampled_from(['{"x": 1}', "{", "[]", ""])),
                }
            )
        }
    ),
    max_size=2,
)
MESSAGE = shares(
    st.fixed_dictionaries(
        {"role": ROLES, "content": shares(TEXTS, TEXTS, PARTS, ODD)},
        optional={"tool_calls": CALLS, "name": TEXTS},
    ),
    ODD,
)
PROMPTS = shares(TEXTS, TEXTS, st.lists(MESSAGE, max_size=3), ODD)
TOOLS = st.one_of(
    ODD,
    st.sampled_from(["[", "[]", '[{"function": {"name": "b"}}]']),
    st.just([{"function": {"name": "b"}}]),
)
ROW = shares(
    st.fixed_dictionaries(
        {"prompt": PROMPTS},
        optional={
            "answer": shares(TEXTS, ODD),
            "completion": shares(TEXTS, ODD, st.lists(MESSAGE, max_size=2)),
            "tools": TOOLS,
            "chat_template_kwargs": st.one_of(
                ODD, st.just({"enable_thinking": True}), st.just({"tokenize": 1})
            ),
            "reward_model": st.one_of(ODD, st.just({"ground_truth": "1"})),
            "ended": ODD,
        },
    ),
    st.fixed_dictionaries({"question": TEXTS}),
    ODD,
)
PLAIN = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["a", "b", "c", " a", "a b", "a  b"])}, optional={"answer": ODD}
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": WHOLE}
)
LISTED = st.sampled_from([None, '[{"function": {"name": "b"}}]', [{"function": {"name": "b"}}]])
CHATS = st.fixed_dictionaries(
    {"prompt": st.lists(TURN, min_size=1, max_size=3)}, optional={"tools": LISTED}
)
WORDS = st.sampled_from(
    [
        "",
        " ",
        "{",
        '{"prompt": "a"',
        "NaN",
        '{"prompt": "a", "x": NaN}',
        '{"prompt": "a", "x": 1e999}',
        "[" * 70,
    ]
)


@st.composite
def lines(draw: Any) -> list[str]:
    """Lines of JSONL: most of them rows of one sort, so that whole files are read; in some one that
    may be wrong.
    """
    rows = draw(
        st.lists(draw(st.sampled_from([PLAIN, PLAIN, CHATS, CHATS, ROW])), min_size=1, max_size=8)
    )
    if draw(st.integers(0, 3)) == 0:
        rows.append(draw(ROW))
    rows += draw(st.lists(st.sampled_from(rows), max_size=4))  # again
    escaped = draw(st.booleans())
    said = [
        json.dumps(
            row, ensure_ascii=escaped or any(half in repr(row) for half in ("\\ud", "\\ude"))
        )
        for row in rows
    ]
    return said + draw(st.lists(WORDS, max_size=1 if draw(st.integers(0, 3)) == 0 else 0))


EXAMPLES = st.fixed_dictionaries(
    {
        "lines": lines(),
        "held_out": st.one_of(st.none(), st.none(), lines()),
        "seed": st.integers(0, 3),
        "mark": st.booleans(),
        "ending": st.sampled_from(["\n", "\r\n"]),
        "called": st.booleans(),
    }
)
CHAT = (
    "{% if tools %}{{ tools[0].function.name }} {% endif %}{% for m in messages %}<{{ m.role }}> "
    "{{ m.content.strip() }} <end> "
    "{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)


@functools.cache
def chat() -> HubTokenizer:
    """A small tokenizer with a chat template."""
    from tests.language.test_tokenizers import words

    return HubTokenizer(words(Path(tempfile.mkdtemp(prefix="equipoise-words-")), template=CHAT))


def given(rows: Sequence[Any]) -> Sequence[Any]:
    """A task of a function of the user's."""
    return rows


def plainly(one: Example) -> str:
    """What a row asks, told in another way than the program's: all texts of it, without white space
    at the ends.
    """
    prompt = (
        one.prompt
        if isinstance(one.prompt, str)
        else "|".join(f"{m['role']} {str(m['content']).strip()}" for m in one.prompt)
    )
    # with other tools it asks another thing
    return f"{prompt.strip()} {json.dumps(one.template.get('tools'), sort_keys=True)}"


def check(task: TextTask) -> None:
    if both := {plainly(one) for one in task.train} & {plainly(one) for one in task.held_out}:
        raise Fault("a held-out prompt is learned from", repr(sorted(both)[:3]))
    try:
        json.dumps(
            [
                [one.prompt, dict(one.columns), one.completion]
                for one in (*task.train, *task.held_out)
            ],
            ensure_ascii=False,
        ).encode()
    except UnicodeEncodeError as error:
        raise Fault("half a character passes", str(error)) from None
    mixed = any(not isinstance(one.prompt, str) for one in (*task.train, *task.held_out))
    if mixed != (task.tokenizer is None):
        raise Fault("letters", "a tokenizer of letters is for texts alone")
    notes: list[str] = []
    tokens = texts.fitting(task.train, task.tokenizer or chat(), 100, {}, notes).tokens
    if len(tokens) < len(task.train) and not any(
        "are left out, the first" in note for note in notes
    ):
        raise Fault("rows are left out in silence")


def attempt(example: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="equipoise-prompts-") as folder:
        place = Path(folder)
        for name in ("lines", "held_out"):
            if example[name] is not None:
                mark = files.BOM if example["mark"] else b""
                data = example["ending"].join(example[name]).encode(errors="surrogatepass")
                (place / f"{name}.jsonl").write_bytes(b"\xef\xbb\xbf" * bool(mark) + data)
        arguments = (
            {} if example["held_out"] is None else {"held_out": str(place / "held_out.jsonl")}
        )
        try:
            if example["called"] and example["held_out"] is None:
                rows = [
                    json.loads(line)
                    for line in example["lines"]
                    if line.startswith("{") and line.endswith("}")
                ]
                check(
                    tasks.make(f"{__name__}:given", seed=example["seed"], arguments={"rows": rows})
                )
            else:
                check(
                    tasks.make(
                        str(place / "lines.jsonl"), seed=example["seed"], arguments=arguments
                    )
                )
        except ValueError as error:
            said = str(error)
            if "BOM" in said:
                raise Fault("a mark of byte order is refused", said) from error
            if ".jsonl" not in said and "task " not in said:
                raise Fault("an error without a place", said) from error
            if "expected JSON" in said and ", line " not in said:
                raise Fault("an error without its line", said) from error
            if len(said.replace(folder, "")) > 600 or "\n" in said or not said.isprintable():
                raise Fault("an error that is no sentence", said) from error


def by_rows(patch: pytest.MonkeyPatch) -> None:
    """Hold rows out, whatever they ask."""

    def split(
        examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        first = max(round(share * len(examples)), 1)
        return [*examples[:first]], [*examples[first:]]

    patch.setattr(tasks, "split", split)
    patch.setattr(tasks, "apart", lambda task: task)


def halves(patch: pytest.MonkeyPatch) -> None:
    """Read half a letter as a letter."""
    patch.setattr(task_files, "whole", lambda text, where: text)


def marks(patch: pytest.MonkeyPatch) -> None:
    """Take a mark of byte order for text."""
    patch.setattr(files, "BOM", b"\x00none")
    patch.setattr(task_files, "BOM", b"\x00none")


DOORS = [Door(name="prompts", examples=EXAMPLES, attempt=attempt, quick=40, full=400)]
PLANTED = [
    Planted("prompts are held out by their rows", "prompts", by_rows, kinds=("held-out",)),
    Planted("half a character passes", "prompts", halves, kinds=("half",)),
    Planted("a mark of byte order is refused", "prompts", marks, kinds=("mark",)),
]
