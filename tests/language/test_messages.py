"""Prompts that are messages: contents in parts, tools, the assistant's beginning, and what a
template is given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.language import messages, task_files, tasks
from equipoise.language.scoring.functions import spoken
from equipoise.language.tokenizers import HubTokenizer
from equipoise.types.packed import begun
from tests.language.test_tokenizers import words

USER = {"role": "user", "content": "a"}
# As a chat model's: turns that end, the tools first, and a flag of its own.
CHAT = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}<{{ 'user' if m.role == 'user' else 'model' }}> {{ m.content }} {% if "
    "m.tool_calls %}"
    "{{ m.tool_calls[0].function.arguments.x }} {% endif %}<end> {% endfor %}"
    "{% if add_generation_prompt %}<model>{% if enable_thinking %} c{% endif %}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "b", "parameters": None}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "b", "arguments": '{"x": "c"}'}}],
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    return HubTokenizer(words(tmp_path_factory.mktemp("chat"), template=CHAT))


def row(prompt: Any, **columns: Any) -> Any:
    (made,) = task_files.examples([(1, {"prompt": prompt, **columns})], "a.jsonl", "line")
    return made


def said(chat: HubTokenizer, prompt: Any, **columns: Any) -> str:
    made = row(prompt, **columns)
    return " ".join(chat._read.convert_ids_to_tokens(chat.prompt(made.prompt, made.template)))


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("prompt", "columns", "wanted"),
    [
        ([USER], {}, "<user> a <end> <model>"),
        # gone on with
        ([USER, {"role": "assistant", "content": "b c"}], {}, "<user> a <end> <model> b c"),
        ([USER, {"role": "assistant", "content": ""}], {}, "<user> a <end> <model>"),
        ([{"role": "system", "content": "b"}], {}, "<model> b <end> <model>"),
        (
            [USER, CALL, {"role": "tool", "content": "b"}],
            {},
            "<user> a <end> <model> c <end> <model> b <end> <model>",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
                }
            ],
            {},
            "<user> a b <end> <model>",
        ),
        ([USER], {"tools": [TOOL]}, "b <user> a <end> <model>"),
        ([USER], {"tools": json.dumps([TOOL])}, "b <user> a <end> <model>"),
        ([USER], {"chat_template_kwargs": {"enable_thinking": True}}, "<user> a <end> <model> c"),
        ([USER], {"tools": None, "chat_template_kwargs": None}, "<user> a <end> <model>"),
    ],
)
def test_messages_as_the_template_takes_them(
    chat: HubTokenizer, prompt: Any, columns: Any, wanted: str
) -> None:
    assert said(chat, prompt, **columns) == wanted


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("prompt", "columns", "wanted"),
    [
        ([USER, CALL], {}, "expected a last message that can be answered, got a call of a tool"),
        ([{"role": "assistant", "content": ""}], {}, "expected a message that is answered"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            {},
            "line 1: prompt, message 1: content: expected parts",
        ),
        (
            [{"role": "user", "content": None}],
            {},
            "line 1: prompt, message 1: expected texts 'role' and 'content'",
        ),
        ([{"role": "user", "content": 5}], {}, "content: expected a text, or parts of text, got 5"),
        (
            [USER, CALL | {"tool_calls": [{"function": {}}]}],
            {},
            "tool_calls: expected a function with a name",
        ),
        ([USER], {"tools": "[{"}, "line 1: tools, line 1: expected JSON"),
        ([USER], {"tools": [5]}, "tools: expected a list of objects"),
        ([USER], {"chat_template_kwargs": [1]}, "chat_template_kwargs: expected an object"),
        (
            [USER],
            {"chat_template_kwargs": {"tokenize": False}},
            "expected arguments of the chat template alone, got 'tokenize'",
        ),
    ],
)
def test_what_no_template_takes_is_said(
    chat: HubTokenizer, prompt: Any, columns: Any, wanted: str
) -> None:
    with pytest.raises(ValueError, match=wanted):
        said(chat, prompt, **columns)


def test_what_a_template_raises_is_one_sentence(tmp_path: Path) -> None:
    odd = HubTokenizer(words(tmp_path, template="{{ messages[0].content + 5 }}"))
    with pytest.raises(
        ValueError, match="expected messages that the chat template in .* takes, got user: "
    ):
        odd.prompt([USER])


def test_the_beginning_of_an_answer_is_scored_with_it() -> None:
    prompt = [USER, {"role": "assistant", "content": "<think>"}]
    assert spoken(prompt, " b") == [{"role": "assistant", "content": "<think> b"}] and begun(
        prompt
    ) == ([USER], "<think>")
    assert (
        spoken([USER], "b") == [{"role": "assistant", "content": "b"}] and spoken("a", "b") == "b"
    )


def test_rows_that_ask_the_same() -> None:
    same = [
        "a  b\n",
        "a b",
        [{"role": "user", "content": "a b"}],
        [{"role": "user", "content": [{"type": "text", "text": "a b"}]}],
    ]
    assert len({messages.asked(row(one)) for one in same}) == 1
    assert len({messages.asked(row(one)) for one in ("caf\u00e9", "cafe\u0301")}) == 1
    others = [
        "a b",
        "ab",
        [{"role": "system", "content": "a b"}],
        [USER, {"role": "assistant", "content": "a b"}],
    ]
    assert len({messages.asked(row(one)) for one in others}) == 4
    assert messages.asked(row([USER], tools=[TOOL])) != messages.asked(row([USER]))


def rows_with_repeats() -> list[dict[str, Any]]:
    return [{"prompt": f"{i % 10}", "answer": str(i)} for i in range(100)]


def test_no_prompt_is_both_learned_and_held_out(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows_with_repeats()))
    for name in (str(file), f"{__name__}:rows_with_repeats"):
        for seed in range(4):
            task = tasks.make(name, seed=seed)
            assert (len(task.train), len(task.held_out)) == (90, 10)
            assert not {one.prompt for one in task.train} & {one.prompt for one in task.held_out}
            assert any("100 rows ask 10 different prompts" in note for note in task.notes)
    other = tmp_path / "b.jsonl"
    other.write_text('{"prompt": "3", "answer": ""}\n{"prompt": " 5 ", "answer": ""}\n')
    task = tasks.make(str(file), seed=0, arguments={"held_out": str(other)})
    assert len(task.train) == 80 and {one.prompt for one in task.train}.isdisjoint("35")
    assert "20 of 100 rows of" in task.notes[0] and "a.jsonl, line 4 first" in task.notes[0]
    other.write_text("".join(json.dumps(one) + "\n" for one in rows_with_repeats()))
    with pytest.raises(
        ValueError,
        match="expected rows that ask anything else than the 10 held-out prompts, got none among "
        "100",
    ):
        tasks.make(str(file), seed=0, arguments={"held_out": str(other)})
    other.write_text('{"prompt": "a"}\n' * 20)
    with pytest.raises(
        ValueError, match=r"expected at least 2 prompts, one to be held out, got 1 in 20 rows"
    ):
        tasks.make(str(other), seed=0)
