"""Worlds of an OpenEnv server: text to actions, observations to messages, sessions, and servers
that do not do what the protocol says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from equipoise.language import tasks
from equipoise.language.turns import openenv_fields
from equipoise.language.turns.openenv import Conversation, World
from equipoise.language.turns.openenv_fields import Invalid, number
from equipoise.language.turns.openenv_session import Full, Sessions
from equipoise.language.turns.partner import Dialogue, WrongAnswer, settled

pytest.importorskip("websockets")
from tests.language.openenv_server import TEXT, WORDS, Server, seen, serving

WAIT_S = 30.0
PLAIN: dict[str, object] = {"chat": False, "rows": 6, "sessions": 4}


def world(server: Server, deadline_s: float = WAIT_S, **given: Any) -> World:
    return World.of(server.url, {**PLAIN, **given}, deadline_s)


def talk(one: World, row: Mapping[str, object]) -> Any:
    found: Any = one.partner()
    found.prompt = found.reset(row)
    return found


def until(true: Any) -> None:
    ends = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_server_is_a_task_of_its_resets() -> None:
    with serving() as server:
        task = tasks.make(server.url, seed=1, arguments=PLAIN)
        until(lambda: not server.open)
        rows: list[Any] = [*task.train, *task.held_out]
        assert {one.columns["reset"]["seed"] for one in rows} == {*range(6)}
        assert (len(task.train), len(task.held_out), task.seats) == (5, 1, 4)
        for one in rows:
            assert one.prompt == f"{'abc'[one.columns['reset']['seed'] % 3]}>"
        chat = tasks.make(server.url, seed=1, arguments={"rows": 2, "system": "play"})
        assert chat.train[0].prompt[0] == {"role": "system", "content": "play"}
        assert chat.tokenizer is None


def test_steps_are_played_and_their_rewards_given() -> None:
    with serving() as server:
        one = world(server)
        found = talk(one, {"reset": {"seed": 1}})
        assert found.prompt == "b>" and found.step("b") == (".", 1.0) == found.step("b")
        assert found.step("c") == (None, 0.0)
        with pytest.raises(ConnectionError, match="the conversation is over"):
            found.step("b")
        found.end()
        again = talk(one, {"reset": {"seed": 0}})  # in the same session
        assert again.prompt == "a>" and server.open == server.most == 1
        again.end()
        again.end()


def test_a_text_goes_where_it_is_told() -> None:
    fields = {"properties": {"move": TEXT, "why": TEXT, "count": {"type": "integer"}}}
    with serving(action=fields, observation={"properties": {**WORDS, "hint": TEXT}}) as server:
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, r"action must have one text, got move \(string\), why \(string\), count"),
            ({"action": "move"}, r"observation must have one text, got text .*observation=FIELD"),
            ({"action": "mvoe"}, "unknown field 'mvoe'; did you mean 'move'"),
        ]
        for given, wrong in cases:
            with pytest.raises(ValueError, match=wrong):
                world(server, **given)
        one = world(server, action="move", observation="text")
        assert one.to_action("x") == {"move": "x"}
        assert one.to_text({"text": "hi", "n": 1}) == "hi"
        assert one.to_text({"text": [1, None]}) == "[1, null]"
        with pytest.raises(WrongAnswer, match="must have 'text', got n"):
            one.to_text({"n": 1})
        whole = world(server, action="json", observation="json")
        assert whole.to_action('{"move": "x", "count": 2}') == {"move": "x", "count": 2}
        assert whole.to_text({"text": "a", "reward": 1, "done": False}) == '{"text": "a"}'
        for text in ("x", "[1]", "", '{"a": '):
            with pytest.raises(openenv_fields.Invalid, match="the action must be a JSON object"):
                whole.to_action(text)
        count = world(server, action="count", observation="text")
        assert count.to_action(" 12\n") == {"count": 12}
        for text in ("1.5", "one", "", "1e999", "nan", "[1]"):
            with pytest.raises(openenv_fields.Invalid, match="count must be integer, got"):
                count.to_action(text)


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"anyOf": [TEXT, {"type": "null"}]}, {"string", "null"}),
        ({"$ref": "#/$defs/Move"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": [1, 2]}, set()),
        ({"$ref": "#/$defs/Loop"}, set()),
        (7, set()),
    ],
)
def test_types_of_a_field(schema: object, kinds: set[str]) -> None:
    defined = {"Move": {"enum": ["up", "down"]}, "Loop": {"$ref": "#/$defs/Loop"}}
    found = openenv_fields.fields_of({"properties": {"a": schema, "done": {}}, "$defs": defined})
    assert found == {"a": frozenset(kinds)}


@pytest.mark.parametrize(("chat", "said"), [(False, ("a?", "\n")), (True, ("a\ufffd", ""))])
def test_a_world_may_repeat_a_turn_without_a_character(chat: bool, said: tuple[str, str]) -> None:
    with serving(answer=lambda *given: seen(given[2]["data"].get("move", "go"))) as server:
        found = talk(world(server, chat=chat), {"reset": {}})
        assert (found.step("a\ufffd")[0], found.step("")[0]) == said
        found.end()


def test_an_invalid_action_is_answered_with_the_servers_words() -> None:
    with serving() as server:
        found = talk(world(server, action="json"), {"reset": {"seed": 0}})
        assert found.step('{"mov": 1}') == ("Invalid message; move: Field required", 0.0)
        assert found.step("no JSON")[0].startswith("the action must be a JSON object")
        assert found.step('{"move": "a"}') == (".", 1.0)
        found.end()


def test_actions_that_no_server_takes_are_answered() -> None:
    kinds = frozenset({"integer", "number"})
    for text in ("9" * 400, "[" * 5_000, "inf", "nan", "", "\u0663x"):
        with pytest.raises(Invalid, match="move must be integer or number"):
            number(text, kinds, "move")
    assert number("9" * 40, kinds, "move") == int("9" * 40)
    with serving() as server:
        one = world(server, action="json")
        for text in ("[" * 5_000, '{"move": NaN}', '{"move": ' * 5_000, '{"move": 1e999}'):
            with pytest.raises(Invalid, match="the action must be a JSON object"):
                one.to_action(text)


@pytest.mark.parametrize("answer", [seen("other"), None])
def test_a_conversation_that_fails_at_its_reset_gives_its_session_back(answer: object) -> None:
    with serving(answer=lambda *given: answer, sessions=1) as server:
        one = world(server, 0.3, rows=1, sessions=1)
        for _ in range(3):
            talks = Dialogue(one.partner, {"reset": {}}, "first")
            with pytest.raises((WrongAnswer, TimeoutError), match=r"another one|no answer"):
                talks.step("a", settled)
            assert talks.ends
            talks.end(settled)
        assert server.most == 1


def test_a_conversation_that_ends_while_it_waits_for_a_session_takes_none() -> None:
    with serving() as server:
        one = world(server, sessions=1)
        pool = Sessions(one.session, 1, WAIT_S)
        first, waits, errors = pool.take(), Conversation(one, pool), list[str]()

        def reset() -> None:
            try:
                waits.reset({"reset": {}})
            except ConnectionError as error:
                errors.append(str(error))

        thread = threading.Thread(target=reset)
        thread.start()
        waits.end()
        pool.give(first, whole=True)
        thread.join(WAIT_S)
        assert errors == ["the conversation is over"] and pool.take() is first
        first.close()


def test_a_step_that_fails_takes_its_session_with_it() -> None:
    with serving() as server:
        one = world(server)
        found = talk(one, {"reset": {"seed": 0}})
        with pytest.raises(ConnectionError, match="the server's step failed: broken"):
            found.step("boom")
        found.end()
        until(lambda: not server.open)
        talk(one, {"reset": {"seed": 0}}).end()
        assert server.most == 1


def hangs(server: Server, connection: Any, given: Mapping[str, Any], state: Any) -> object:
    return seen("a") if given["type"] == "reset" else None


def test_a_server_that_hangs_is_left_and_end_frees_a_waiting_thread() -> None:
    with serving(answer=hangs) as server:
        found = talk(world(server, 0.2, rows=1), {"reset": {"seed": 0}})
        with pytest.raises(TimeoutError, match="gave no answer in 0.2 s"):
            found.step("a")
        found.end()
        slow = talk(world(server, rows=1), {"reset": {"seed": 0}})
        errors: list[BaseException] = []

        def step() -> None:
            try:
                slow.step("a")
            except ConnectionError as error:
                errors.append(error)

        thread = threading.Thread(target=step)
        thread.start()
        until(lambda: slow._busy)
        slow.end()  # as after a late step
        thread.join(WAIT_S)
        assert len(errors) == 1 and "connection ended" in str(errors[0])


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("garbage", "line 1"),
        ("[]", "must answer with a type and data"),
        ({"type": "observation"}, "must answer with a type and data"),
        ({"type": "state", "data": {}}, "must answer with an observation, got 'state'"),
        (seen("a", "much"), "the reward must be a number, got 'much'"),
        (seen("a", 0, "yes"), "done must be true or false, got 'yes'"),
        (seen("a", 0, True), "must begin an episode, got one that is done"),
        ({"type": "observation", "data": {"observation": {}}}, "must have 'text', got no field"),
    ],
)
def test_answers_that_are_none(answer: object, wrong: str) -> None:
    with serving(answer=lambda *given: answer) as server, pytest.raises(ValueError, match=wrong):
        talk(world(server), {"reset": {}})


def test_rows_that_begin_differently_each_time_are_refused() -> None:
    def counts(server: Server, *given: object) -> object:
        return seen(f"start {len(server.resets)}")

    wrong = "must begin in the same way with the same arguments"
    with serving(answer=counts) as server, pytest.raises(ValueError, match=wrong):
        tasks.make(server.url, seed=1, arguments=PLAIN)


def test_a_reset_that_hangs_ends_the_reading_of_a_task() -> None:
    wrong = r"row \d: must have a prompt, got .*0.2 s"
    with serving(answer=lambda *given: None) as server, pytest.raises(ValueError, match=wrong):
        tasks.make(server.url, seed=1, arguments=PLAIN, deadline_s=0.2)


def test_sessions_are_shared_and_waited_for() -> None:
    with serving(sessions=2) as server:
        one = world(server, 0.3, sessions=2)
        one.ready(2)
        until(lambda: not server.open)
        pool = Sessions(one.session, 2, 0.3)
        first, second = pool.take(), pool.take()
        with pytest.raises(Full, match="no session was free"):
            pool.take()
        with pytest.raises(Full, match="at capacity"):  # of another process
            Sessions(one.session, 1, 0.3).take()
        pool.give(first, whole=True)
        assert pool.take() is first
        pool.give(second, whole=False)
        pool.give(first, whole=True)
        pool.close()
        until(lambda: not server.open)
        with pytest.raises(ValueError, match=r"must have 3 sessions at once, got 2 .*sessions=2"):
            world(server, sessions=3).ready(1)
        with pytest.raises(ValueError, match="sessions: must be at least 3"):
            one.ready(3)


def test_resets_may_be_in_a_file(tmp_path: Any) -> None:
    file = tmp_path / "resets.jsonl"
    file.write_text('{"seed": 7}\n\n{"seed": 8, "level": "hard"}\n')
    with serving() as server:
        one = world(server, resets=str(file))
        assert list(one.resets) == [{"seed": 7}, {"seed": 8, "level": "hard"}]
        file.write_text("[1]")
        with pytest.raises(ValueError, match="line 1: must be an object"):
            world(server, resets=str(file))
        with pytest.raises(ValueError, match="must be a JSONL file, got no file"):
            world(server, resets=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"rows": 0}, "rows: must be 1 to 1,000,000, got 0"),
        ({"rows": True}, "rows: must be a whole number, got True"),
        ({"sessions": 4096}, "sessions: must be 1 to 1,024"),
        ({"chat": "no"}, "chat: must be true or false"),
        ({"acton": "move"}, "unknown argument 'acton'; did you mean 'action'"),
    ],
)
def test_arguments_that_are_none(given: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        World.of("openenv:http://127.0.0.1:1", given, 1.0)


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("", "must be openenv:URL"),
        ("ftp://127.0.0.1", "must be openenv:URL"),
        ("http://127.0.0.1:99999", "must be openenv:URL with a URL, .* got .*Port out of range"),
        ("http://me@127.0.0.1", "with a URL without a user"),
        ("http://127.0.0.1/?token=1", "with a URL without a query and a fragment"),
        ("http://127.0.0.1/a b", "with a URL without spaces"),
        ("http://example.org", "must be a server on this machine, or have a token in EQUIPOISE_OP"),
        ("127.0.0.1:1", "127.0.0.1:1/schema: must be the schema of an OpenEnv server"),
    ],
)
def test_urls_that_are_no_server(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        World.of(f"openenv:{url}", {}, 1.0)


@pytest.mark.parametrize("schema", [[], {"action": {}}, {"action": {"properties": 3}}, "x"])
def test_a_schema_of_something_else_is_refused(schema: object) -> None:
    with serving() as server:
        server.schema = schema
        with pytest.raises(ValueError, match="must have a JSON schema"):
            world(server)


def test_a_token_is_sent_and_stays_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_OPENENV_TOKEN", "t" * 16)
    with serving() as server:
        talk(world(server), {"reset": {"seed": 0}}).end()
        assert server.headers == [f"Bearer {'t' * 16}"] * 2
