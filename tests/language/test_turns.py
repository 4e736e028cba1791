"""Partners, their tasks, and the tokens between two turns."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.language import tasks
from equipoise.language.tokenizers import SENTINEL, CharTokenizer, HubTokenizer
from equipoise.language.turns import own, partner, steps, tools
from equipoise.language.turns.steps import Failure, PartnersFailed, Steps
from tests.language.test_tokenizers import words

WAIT_S = 60.0
ASKED = [{"role": "user", "content": "a"}]
CHAT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<model> {% endif %}"
)
CHAT = CHAT.replace("<{{ m.role }}>", "{{ '<user>' if m.role == 'user' else '<model>' }}")


# ------------------------------------------------------------------------------------ our own tasks


def test_halving_finds_every_number_and_no_policy_needs_fewer_guesses() -> None:
    game = own.Guess()
    answer: str | None = None
    reward = 0.0
    for row in own.guesses():
        low, high = 0, len(own.NUMBERS)
        assert game.reset(row) == "?"
        for _ in range(own.GUESSES):
            answer, reward = game.step(own.NUMBERS[(low + high) // 2])
            if answer is None:
                break
            low, high = (low, (low + high) // 2) if answer == "<" else ((low + high) // 2 + 1, high)
        assert (answer, reward) == (None, 1.0)
    assert len(own.NUMBERS) == 2**own.GUESSES - 1
    assert game.step("x") == game.step("ab") == game.step("") == ("?", 0.0)


def test_tools_answer_calls_and_judge_answers() -> None:
    tool: Any = own.Calculator()

    def called(text: str) -> tuple[str | None, float]:
        """The tool's answer to a first turn."""
        assert tool.reset({"question": "12*13", "answer": "156"}) == "12*13"
        answer: tuple[str | None, float] = tool.step(text)
        return answer

    assert called("#12*13") == ("=156", 0.5) and tool.step("156") == (None, 0.5)
    # right characters of the call count, but of the first one alone
    assert called("#12*1") == ("=12", 5 / 14) and tool.step("#12*13") == ("=156", 0.0)
    assert called("#") == ("?", 1 / 14) and called("#3-5")[0] == "=-2"
    assert all(called(f"#{one}")[0] == "?" for one in ("1**9", "2*", "9999*9", "1*2*3"))
    assert called("156") == (None, 0.0)  # without the tool
    for text, reward in (("15", 0.25), ("1567", 0.3), ("", 0.0)):
        assert called("#")[0] == "?" and tool.step(text) == (None, reward)
    table: Any = own.Lookup()
    table.reset({"question": "bob", "answer": str(own.number("bob"))})
    assert table.step("#bob") == (f"={own.number('bob')}", 0.5)
    assert table.step("#nobody") == ("?", 0.0)
    assert len({own.number(name) for name in own.PEOPLE}) == len(own.PEOPLE)


@pytest.mark.parametrize("name", sorted(tasks.CONVERSATIONS))
def test_our_own_tasks_fit_their_limits(name: str) -> None:
    task = tasks.built_in(name, 1)
    assert task.tokenizer is not None and task.quick and task.turns
    for one in [*task.train, *task.held_out]:
        assert partner.load(task.partner)().reset(one.columns) == one.prompt
        if name == "guess":
            assert task.completion >= 2 * own.GUESSES - 1
            continue
        said = str(one.columns["answer"])
        assert len(f"#{one.prompt}.") <= task.turn_tokens
        best = f"#{one.prompt}.={said}{said}."  # a point for each end
        task.tokenizer.encode(best.replace(".", ""))
        assert len(best) <= task.completion and task.turns >= 2


# ------------------------------------------------------------------------------- a user's partners


class Counts:
    """A partner of a user's."""

    def reset(self, row: Mapping[str, object]) -> list[dict[str, object]]:
        return [{"role": "user", "content": f"count to {row['most']}"}]

    def step(self, text: str) -> tuple[str, float]:
        return text, 0.0

    @classmethod
    def rows(cls, most: int = 20) -> list[dict[str, object]]:
        return [{"most": one} for one in range(most)]


class Empty(Counts):
    def reset(self, row: Mapping[str, object]) -> Any:
        return ""


class Exits(Counts):
    def reset(self, row: Mapping[str, object]) -> Any:
        sys.exit(3)


class Endless(Counts):
    @classmethod
    def rows(cls, most: int = 20) -> Any:
        return ({"most": one} for one in itertools.count())


class Quits(Counts):
    @classmethod
    def rows(cls, most: int = 20) -> Any:
        sys.exit(4)


class Alike(Counts):
    """All conversations begin with the same words."""

    def reset(self, row: Mapping[str, object]) -> Any:
        return "which number?"


class Deaf:
    def reset(self, row: object) -> str:
        return "a"


def test_a_class_is_a_task_of_its_rows() -> None:
    name = f"{__name__}:Counts"
    task = tasks.make(name, seed=1, arguments={"most": 30})
    assert (len(task.train), len(task.held_out)) == (27, 3) and task.partner == name
    assert task.tokenizer is None and not task.quick and task.reward == ""
    assert task.train[0].prompt == Counts().reset(task.train[0].columns)
    rows = {one.columns["most"] for one in (*task.train, *task.held_out)}
    assert rows == {*range(30)}
    assert tasks.make(name, seed=2).held_out != tasks.make(name, seed=3).held_out


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("Empty", {}, "row 1: must have a prompt, got .*reset: expected a text or messages"),
        ("Counts", {"most": 1}, "must have at least 2 rows, got 1"),
        ("Counts", {"mots": 1}, "unknown argument 'mots'; did you mean 'most'"),
        ("Exits", {}, "row 1: must have a prompt, got SystemExit: 3"),
        ("Quits", {}, "expected rows, got SystemExit: 4"),
        ("Endless", {}, "must have at most 1,000 rows, got more"),
    ],
)
def test_a_class_that_is_no_task(
    name: str, arguments: dict[str, object], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MOST_ROWS", 1000)
    with pytest.raises(ValueError, match=wrong):
        tasks.make(f"{__name__}:{name}", seed=1, arguments=arguments)


def test_conversations_may_all_begin_alike() -> None:
    task = tasks.make(f"{__name__}:Alike", seed=1)
    assert (len(task.train), len(task.held_out)) == (18, 2)
    assert task.tokenizer is not None and task.tokenizer.encode("Any text\n")


def test_a_partner_has_two_methods() -> None:
    with pytest.raises(ValueError, match="must be a class with the methods reset and step"):
        partner.load(f"{__name__}:Deaf")


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (None, "must return \\(answer, reward\\), got None"),
        ("ab", "must return \\(answer, reward\\)"),
        (("a", "1"), "the reward must be a finite number"),
        ((3, 0.0), "the answer must be a text or messages or None, got int"),
        (([{"role": "asistant", "content": "a"}], 0), "unknown role 'asistant'"),
        (([{"role": "assistant", "content": "a"}], 0), "no message of the assistant"),
        (([{"role": "user", "content": "é" * 60}], 0), "at most 100 bytes"),
        ((["a"] * 10**6, 0), "at most 100 bytes"),
        (("é" * 51, 0), "at most 100 bytes, got 102"),
        (("\ud800", 0), "expected whole characters, got half of one"),
        (([{"role": "user", "content": "a", "more": object()}], 0), "got object"),
        (([{"role": "user", "content": "a", "more": math.nan}], 0), "got nan"),
    ],
)
def test_answers_that_are_none(value: object, wrong: str) -> None:
    with pytest.raises(partner.WrongAnswer, match=wrong):
        partner.answer(value, chat=True, most=100)


def test_an_answer_of_many_levels_is_none() -> None:
    deep: object = "a"
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(partner.WrongAnswer, match="at most 64 levels"):
        partner.answer(([{"role": "user", "content": deep}], 0), chat=True, most=10_000)


def test_an_answer_of_text_is_the_users_message() -> None:
    found = partner.answer(("ä" * 50, True), chat=True, most=100)
    assert found == partner.Answer([{"role": "user", "content": "ä" * 50}], 1.0)
    assert partner.answer(("a", 1), chat=False, most=100) == partner.Answer("a", 1.0)
    assert partner.answer([None, -2], chat=False, most=100) == partner.Answer(None, -2.0)


# -------------------------------------------------------------------------------------------- tools


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    if b == 13:
        raise ValueError("13 is bad luck")
    if b == 14:
        raise OSError("no disk")
    return a + b


class Adds(tools.Tools):
    functions = (add,)

    def score(self, text: str) -> float:
        return float(text == self.row["answer"])

    @classmethod
    def rows(cls) -> list[dict[str, object]]:
        asked = [{"role": "user", "content": "2 + 3?"}]
        return [{"prompt": asked, "answer": "5", "tools": tools.schemas([add])}] * 3


def called(text: str) -> object:
    tool = Adds()
    tool.reset({"prompt": ASKED, "answer": "5"})
    found = partner.answer(tool.step(text), chat=True, most=1000)
    if found.messages is None:
        return found.reward
    assert not isinstance(found.messages, str)
    return [one["content"] for one in found.messages]


def test_calls_of_tools_are_run() -> None:
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    two = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert called(f"I think {one}{two}") == ["5", "3"]
    assert called("5") == 1.0 and called("6") == called("<tool_call>") == 0.0
    assert len(called(two * 50)) == tools.MOST_CALLS  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("{", "tool_call"),
        ("[1]", "must be an object with a name"),
        ('{"name": "ad"}', "unknown name 'ad'; did you mean 'add'"),
        ('{"name": "add", "arguments": 3}', "arguments: must be an object"),
        ('{"name": "add", "arguments": {"c": 3}}', "arguments of add: missing"),
        ('{"name": "add", "arguments": {"a": 1, "b": 13}}', "13 is bad luck"),
    ],
)
def test_a_call_that_cannot_be_run_is_answered_with_its_error(call: str, said: str) -> None:
    asked: Any = called(f"<tool_call>{call}</tool_call>")
    (found,) = asked
    assert found.startswith('{"error": ') and said in json.loads(found)["error"], found


def test_a_tool_that_breaks_costs_its_conversation() -> None:
    with pytest.raises(OSError, match="no disk"):
        called('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 14}}</tool_call>')


def test_tools_are_arguments_of_the_chat_template() -> None:
    task = tasks.make(f"{__name__}:Adds", seed=1)
    given: Any = task.train[0].template["tools"]
    (tool,) = given
    assert tool["function"] == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a"],
        },
    }


# ------------------------------------------------------------------------------------------ threads


def results(pool: Steps, count: int) -> dict[int, object]:
    found: dict[int, object] = {}
    ends = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < ends
        found |= dict(pool.poll())
        time.sleep(0.002)
    return found


def test_steps_run_side_by_side_and_wake_their_reader() -> None:
    pool, met = Steps(WAIT_S), threading.Barrier(8)
    for key in range(8):
        pool.submit(key, lambda settle, key=key: (met.wait(WAIT_S), key)[1])  # type: ignore[misc]
    assert results(pool, 8) == {key: key for key in range(8)} and pool.waiting == 0
    pool.close()


def test_a_step_that_hangs_takes_no_thread_from_others() -> None:
    pool, free = Steps(0.2, threads=2), threading.Event()
    for key in range(2):
        pool.submit(key, lambda settle: free.wait(WAIT_S))
    pool.submit(2, lambda settle: "answered")
    found = results(pool, 3)
    assert found[2] == "answered" and found[0] == found[1] == Failure("took more than 0.2 s")
    free.set()  # what comes late is nobody's
    time.sleep(0.05)
    assert pool.poll() == []
    pool.close()


def test_steps_that_hang_for_ever_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MOST_LEFT", 3)
    pool, free = Steps(0.05, threads=8), threading.Event()
    for key in range(8):
        pool.submit(key, lambda settle: free.wait(WAIT_S))
    with pytest.raises(PartnersFailed, match="got 4 that still run after 0.05 s each; try"):
        results(pool, 8)
    free.set()
    pool.close()


def test_async_steps_that_hang_or_block_cost_themselves() -> None:
    async def hangs() -> None:
        await asyncio.sleep(WAIT_S)

    async def blocks() -> None:
        time.sleep(1.5)

    async def answers(value: int) -> int:
        await asyncio.sleep(0)
        return value

    pool = Steps(0.3)
    pool.submit(0, lambda settle: settle(hangs()))
    assert results(pool, 1) == {0: Failure("took more than 0.3 s")}
    pool.submit(1, lambda settle: settle(blocks()))
    assert isinstance(results(pool, 1)[1], Failure)
    pool.submit(2, lambda settle: settle(answers(5)))
    assert results(pool, 1) == {2: 5}
    pool.close()


def test_an_async_step_that_exits_or_stops_the_loop_costs_itself() -> None:
    async def exits() -> None:
        sys.exit(3)

    async def stops() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(WAIT_S)

    async def answers(value: int) -> int:
        await asyncio.sleep(0.05)
        return value

    pool = Steps(5.0)
    pool.submit(0, lambda settle: settle(answers(5)))
    pool.submit(1, lambda settle: settle(exits()))
    found = results(pool, 2)
    assert found[0] == 5
    assert isinstance(found[1], Failure) and "SystemExit: 3" in found[1].error
    pool.submit(2, lambda settle: settle(stops()))
    assert isinstance(results(pool, 1)[2], Failure)
    ends, key = time.monotonic() + WAIT_S, 3
    while True:  # the stopped loop may still be closing
        pool.submit(key, lambda settle: settle(answers(6)))
        if (last := results(pool, 1)[key]) == 6:
            break
        assert time.monotonic() < ends, last
        key += 1
    pool.close()


# ---------------------------------------------------------------------------- tokens between turns


def test_the_tokens_between_turns_are_those_of_the_template(tmp_path: Path) -> None:
    hub = HubTokenizer(words(tmp_path, template=CHAT))
    hub.check_appends(ASKED)
    answer = [{"role": "user", "content": "b c"}]
    whole = hub.prompt([*ASKED, {"role": "assistant", "content": "c a"}, *answer])
    first, turn = hub.prompt(ASKED), hub.encode("c a")
    end = list(hub.eos)
    assert first + turn + end + hub.between(ASKED, answer, ended=True) == whole
    assert first + turn + hub.between(ASKED, answer, ended=False) == whole
    assert hub.between("a", "b c", ended=True) == hub.encode("b c")
    assert CharTokenizer("ab").between("a", "ba", ended=True) == [1, 0]
    with pytest.raises(ValueError, match="no chat template"):
        CharTokenizer("ab").between("a", answer, ended=True)


@pytest.mark.parametrize(
    "template",
    [
        # drops what an assistant thought, as Qwen3's does
        CHAT.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"),
        # begins a turn with what it does not keep
        CHAT.replace("<model> {% endif %}", "<model> a {% endif %}"),
        # has the last message alone
        CHAT.replace("in messages", "in messages[-1:]"),
    ],
)
def test_a_template_that_changes_earlier_turns_is_refused(template: str, tmp_path: Path) -> None:
    hub = HubTokenizer(words(tmp_path, template=template))
    wrong = "must keep earlier turns as they were written.* try source.history=render"
    with pytest.raises(ValueError, match=wrong):
        hub.check_appends(ASKED)


def test_an_answer_may_have_any_text(tmp_path: Path) -> None:
    hub = HubTokenizer(words(tmp_path, template=CHAT))
    answer = [{"role": "user", "content": f"a {SENTINEL} b"}]
    plain = [{"role": "user", "content": "a c b"}]  # a word that has a token
    found, wanted = (hub.between(ASKED, one, ended=True) for one in (answer, plain))
    assert len(found) == len(wanted) and found[0] == wanted[0] and found[-1] == wanted[-1]


def test_a_template_may_refuse_messages(tmp_path: Path) -> None:
    hub = HubTokenizer(words(tmp_path, template="{{ raise_exception('Never') }}"))
    with pytest.raises(ValueError, match="must take messages of user, got an error: Never"):
        hub.check_appends(ASKED)
    assert list(itertools.chain(hub.between("a", "b", ended=True))) == hub.encode("b")
