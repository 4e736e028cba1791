"""The chat endpoint of a run that learns from calls, asked by strange callers."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote, unquote

import pytest

from equipoise import api
from equipoise.actors.calls.ledger import REASONS
from equipoise.actors.calls.splicing import Splicer
from equipoise.api.proxied import _like
from equipoise.listening import listen
from equipoise.programs.refusals import check
from equipoise.serving.chat.service import _named
from equipoise.serving.proxy.requests import keys, tool_calls
from equipoise.serving.proxy.server import start_server
from equipoise.sources.calls import TOKEN, Address, Calls
from equipoise.sources.source import source_of
from equipoise.types import CallSource, TaskSource, TextSpec
from equipoise.types.packed import Prompt
from tests.actors.calling import Ring
from tests.serving.chats import BYTES, POSITIONS, Bytes, Chat, net

SPEC = TextSpec(model={}, eos=(BYTES,), prompt=128, completion=POSITIONS - 128, turns=4)
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"


def free_port() -> int:
    with listen("127.0.0.1", 0) as found:
        return int(found.getsockname()[1])


class Proxy(Chat):
    """A server, its worker, and requests to them."""

    def __init__(self, ring: Ring, port: int) -> None:
        self.ring, self.url = ring, f"http://127.0.0.1:{port}"

    def ledger(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("/v1/ledger", method="GET")[1]
        dropped = sum(found["dropped"].values())
        assert found["calls"] == found["learned"] + found["open"] + dropped
        return found

    def chat(self, *messages: Mapping[str, str], **more: Any) -> dict[str, Any]:
        body = ASK | ({"messages": list(messages)} if messages else {}) | more
        status, said, _ = self.ask(CHAT, body)
        assert status == 200, said
        return dict(said)

    def refused(self, path: str, body: Any) -> tuple[int, str]:
        status, said, _ = self.ask(path, body)
        return status, said["error"]["message"]


class Ended(Bytes):
    """Bytes, with a chat template that ends each message."""

    def prompt(self, prompt: Prompt, template: Mapping[str, object] = {}) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        said = [[*self.encode(f"<{one['role']}>{one['content']}"), BYTES] for one in prompt]
        return [*chain.from_iterable(said), *self.encode("<assistant>")]


def opened(tokenizer: Bytes | None = None, **settings: Any) -> tuple[Ring, int]:
    """A worker behind a server, and its port."""
    port, tokenizer = free_port(), tokenizer or Bytes()
    given = {"source.arguments": "alphabet=ab"} | settings
    program = api.program(
        f"proxy:{port}", "grpo", settings=[f"{key}={value}" for key, value in given.items()]
    )
    source = source_of(program)
    assert isinstance(source, Calls)
    limits = {"most": source.settings.conversations, "calls": SPEC.turns}
    splicer = Splicer(tokenizer.decode, tokenizer.eos, POSITIONS)
    ring = Ring(max_lag=None, per_batch=1, spec=SPEC, net=net, splicer=splicer, **limits)
    text: Any = SimpleNamespace(spec=SPEC, tokenizer=tokenizer)
    ring.worker.server = start_server(source, ring.worker, text, net())
    return ring, port


@contextmanager
def proxied(tokenizer: Bytes | None = None, **settings: Any) -> Iterator[Proxy]:
    """A worker that ticks in a thread of its own, and learns, behind a server."""
    ring, port = opened(tokenizer, **settings)
    over, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not over.is_set():
                ring.worker.tick()
                ring.learn()
                ring.worker.inbox.wait(0.001)
            ring.close()
        except BaseException as error:  # for the test's own thread
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield Proxy(ring, port)
    finally:
        over.set()
        thread.join(60)
    assert not failed and not thread.is_alive()
    found = ring.ledger.counts()
    assert found["open"] == 0
    assert found["calls"] == found["learned"] + sum(found[one] for one in REASONS)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with proxied() as found:
        yield found


def test_an_answer_its_conversation_and_its_reward(proxy: Proxy) -> None:
    before = proxy.ledger()
    status, said, headers = proxy.ask(CHAT, ASK | {"model": "gpt-4o-mini"})
    assert status == 200 and said["model"] == "gpt-4o-mini"
    assert said["system_fingerprint"].startswith("version_")
    assert headers["x-conversation"] == said["id"]
    status, found, _ = proxy.ask("/v1/reward", {"id": said["id"], "reward": 0.5})
    assert status == 200 and found == {"id": said["id"], "conversation": said["id"], "answers": 1}
    after = proxy.ledger()
    assert after["calls"] == before["calls"] + 1 and after["refused"] == before["refused"]


def test_names_come_in_the_body_in_metadata_in_headers_or_in_the_path(proxy: Proxy) -> None:
    ways: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        (CHAT, {"conversation": "w0", "group": "g"}, {}),
        (CHAT, {"metadata": {"conversation": "w1", "group": "g", "answer": "42"}}, {}),
        (CHAT, {}, {"X-Conversation": "w2", "X-Group": "g"}),
        (f"/groups/g/conversations/w3{CHAT}", {}, {}),
    ]
    learned = proxy.ledger()["learned"]
    for number, (path, more, headers) in enumerate(ways):
        status, said, found = proxy.ask(path, ASK | more, **headers)
        assert status == 200 and found["x-conversation"] == f"w{number}", said
        assert proxy.ask("/v1/reward", {"id": f"w{number}", "reward": number})[0] == 200
    proxy.until(lambda: proxy.ledger()["learned"] == learned + 4 and bool(proxy.ring.batches))
    assert proxy.ring.batches[-1]["reward"][0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_any_text_is_a_name(proxy: Proxy) -> None:
    names = ("a\r\nSet-Cookie: x", "\u732b", "\u72ac", "a/b", "100%41", "a, b")
    for name in names:
        status, _, found = proxy.ask(CHAT, ASK | {"conversation": name, "group": "any"})
        assert status == 200 and unquote(found["x-conversation"]) == name
        path = f"/conversations/{quote(name, safe='')}{CHAT}"
        status, said, _ = proxy.ask(path, ASK | {"group": "any"})
        assert status == 200
        # both calls are of one conversation
        status, given, _ = proxy.ask("/v1/reward", {"id": said["id"], "reward": 1})
        assert (status, given["conversation"], given["answers"]) == (200, name, 2)
    assert proxy.ask(CHAT, ASK, **{"X-Conversation": "caf\u00e9"})[0] == 200


def test_json_in_texts_may_have_any_depth(proxy: Proxy) -> None:
    deep = "[" * 30_000
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    status, said, _ = proxy.ask(CHAT, ASK | {"messages": [*ASK["messages"], turn]})
    assert status == 400 and "at most 64 levels" in said["error"]["message"]
    assert keys([turn]) != keys([turn | {"tool_calls": []}])
    for body, wrong in (("[" * 30_000, 400), ("[" * 100_000, 413), ('{"a": ' * 3_000, 400)):
        assert proxy.ask(CHAT, body.encode())[0] == wrong
    text = f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>'
    assert tool_calls(text, "7") == (text, [])


def test_streams_and_stop_strings_are_exact_in_the_record(proxy: Proxy) -> None:
    whole = proxy.chat(conversation="s0", logprobs=True, max_tokens=24)
    assert proxy.ask("/v1/reward", {"id": "s0", "reward": 1})[0] == 200
    events = proxy.events(CHAT, ASK | {"conversation": "s1", "stop": ["e", "a"], "max_tokens": 24})
    said = "".join(one["choices"][0]["delta"].get("content") or "" for one in events)
    assert "e" not in said and "a" not in said
    assert {one["id"] for one in events} == {events[0]["id"]}
    status, _, _ = proxy.ask("/v1/reward", {"id": events[0]["id"], "reward": 1})
    assert status == 200
    assert whole["usage"]["completion_tokens"] >= len(whole["choices"][0]["logprobs"]["content"])


def test_n_answers_are_conversations_of_one_group(proxy: Proxy) -> None:
    learned = proxy.ledger()["learned"]
    said = proxy.chat({"role": "user", "content": "n"}, n=4)
    assert len(said["choices"]) == 4
    for number in range(4):
        body = {"id": said["id"], "index": number, "reward": number}
        assert proxy.ask("/v1/reward", body)[0] == 200
    proxy.until(lambda: proxy.ledger()["learned"] == learned + 4)


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        (CHAT, {"messages": []}, 400, "messages: must be a list of messages"),
        (CHAT, [], 400, "body: must be"),
        (
            CHAT,
            {"messages": [{"role": "robot", "content": "x"}]},
            400,
            "messages, message 1: unknown role 'robot'",
        ),
        (CHAT, b"{", 400, "body"),
        (CHAT, ASK | {"model": 3}, 400, "model: must be a name"),
        (CHAT, ASK | {"group": 3}, 400, "group: must be a text"),
        (CHAT, ASK | {"conversation": "c" * 300}, 400, "conversation: must be a text of at most"),
        (CHAT, ASK | {"metadata": [1]}, 400, "metadata: must be an object"),
        (CHAT, ASK | {"tools": [{"name": "f"}]}, 400, "tools: must be a list of functions"),
        (
            CHAT,
            ASK | {"tools": [{"type": "function", "function": {"name": "f"}}]},
            400,
            "tools: must be left out, since the model's chat template shows the model no tools",
        ),
        (CHAT, ASK | {"tool_choice": "required"}, 400, "tool_choice: must be auto or none"),
        (CHAT, ASK | {"frequency_penalty": 1}, 400, "frequency_penalty"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 400}]}, 400, "context"),
        (CHAT, ASK | {"max_tokens": 400}, 400, "max_tokens: must be at most"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "prompt: must be one prompt"),
        ("/v1/completions", {"prompt": [BYTES + 9]}, 400, "prompt: must be tokens from 0"),
        ("/v1/reward", {"reward": 1}, 400, "id"),
        ("/v1/reward", {"id": "nobody", "reward": 1}, 404, "id: must be the id of an answer"),
        ("/v1/reward", {"id": "x", "reward": "much"}, 400, "reward"),
        ("/v1/reward", b'{"id": "x", "reward": NaN}', 400, "body"),
    ],
)
def test_strange_requests_get_one_sentence(
    proxy: Proxy, path: str, body: Any, status: int, sentence: str
) -> None:
    calls = proxy.ledger()["calls"]
    got, said = proxy.refused(path, body)
    assert said.count("messages") < 2 or "a list of messages" in said, said
    assert (got, sentence in said) == (status, True), said
    assert proxy.ledger()["calls"] == calls


@pytest.mark.parametrize(
    ("param", "error", "sentence"),
    [
        ("prompt", "prompt: expected a text", "prompt: expected a text"),
        ("messages", "prompt: expected a text", "messages: expected a text"),
        ("messages", "messages, message 1: unknown role", "messages, message 1: unknown role"),
        ("messages", "the chat template fails", "messages: the chat template fails"),
    ],
)
def test_a_refusal_names_the_field_once(param: str, error: str, sentence: str) -> None:
    assert _named(error, param) == sentence


def test_rewards_that_come_twice_early_or_too_large(proxy: Proxy) -> None:
    said = proxy.chat()
    for reward in (1e39, -1e300):
        assert proxy.refused("/v1/reward", {"id": said["id"], "reward": reward})[0] == 400
    assert "no --reward" in proxy.refused("/v1/reward", {"id": said["id"]})[1]
    assert proxy.ask("/v1/reward", {"id": said["id"], "reward": 1})[0] == 200
    status, sentence = proxy.refused("/v1/reward", {"id": said["id"], "reward": 1})
    assert status == 409 and "has its reward" in sentence


def test_unicode_system_messages_and_parts_of_text(proxy: Proxy) -> None:
    parts = [{"type": "text", "text": "ü"}, {"type": "text", "text": "…"}]
    messages = [{"role": "system", "content": "é"}, {"role": "user", "content": parts}]
    said = proxy.chat(*messages, conversation="ünï 会話")  # type: ignore[arg-type]
    assert proxy.ask("/v1/reward", {"id": "ünï 会話", "reward": 0})[0] == 200
    assert said["choices"][0]["message"]["role"] == "assistant"


def test_a_caller_that_cuts_the_connection_costs_its_answer_alone(proxy: Proxy) -> None:
    before = proxy.ledger()["dropped"]["left"]
    connection = proxy.connection()
    body = json.dumps(ASK | {"max_tokens": 120, "conversation": "cut"})
    connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
    connection.close()
    proxy.until(lambda: proxy.ledger()["dropped"]["left"] > before or proxy.ring.worker.live == 0)
    assert proxy.chat(conversation="cut")["choices"]


def test_two_calls_of_one_conversation_at_once_are_two_samples(proxy: Proxy) -> None:
    first = proxy.chat(conversation="both")["choices"][0]["message"]
    messages = [*ASK["messages"], first, {"role": "user", "content": "on"}]
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(proxy.chat, *messages, conversation="both") for _ in range(2)]
        assert all(one.result()["choices"] for one in asked)
    status, found, _ = proxy.ask("/v1/reward", {"id": "both", "reward": 1})
    assert status == 200 and found["answers"] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_are_sent_back_are_read_as_they_were_drawn(stream: bool) -> None:
    """Its network draws bytes that are no character, so the text that comes back has others."""
    with proxied(Ended()) as proxy:
        messages: list[dict[str, str]] = [*ASK["messages"]]
        prompt: list[int] = []
        for _ in range(SPEC.turns):
            more = {"max_tokens": 12, "messages": messages}
            if stream:
                more["stream_options"] = {"include_usage": True}
                events = proxy.events(CHAT, ASK | more)
                parts = [one["choices"][0]["delta"] for one in events if one["choices"]]
                text = "".join(one.get("content") or "" for one in parts)
                said = events[-1]
            else:
                said = proxy.chat(**more)
                text = said["choices"][0]["message"]["content"]
            prompt = list([*proxy.ring.engine.prompts.values()][-1])
            assert said["usage"]["prompt_tokens"] == len(prompt)
            answer = {"role": "assistant", "content": text}
            messages = [*messages, answer, {"role": "user", "content": "on"}]
        found = proxy.ledger()
        assert (found["forks"], found["spliced"]) == (0, SPEC.turns - 1)
        assert prompt != Ended().prompt(messages[:-2])
        for before, after in pairwise(proxy.ring.engine.prompts.values()):
            assert after[: len(before)] == before


def test_an_endless_agent_is_stopped(proxy: Proxy) -> None:
    for _ in range(SPEC.turns):
        proxy.chat(conversation="endless")
    status, sentence = proxy.refused(CHAT, ASK | {"conversation": "endless"})
    assert status == 429 and "source.turns" in sentence


def test_many_callers_at_once_and_too_many_conversations() -> None:
    with proxied(None, **{"source.conversations": 40}) as proxy:
        with ThreadPoolExecutor(16) as pool:
            found = [pool.submit(proxy.ask, CHAT, ASK) for _ in range(60)]
            statuses = sorted(one.result()[0] for one in found)
        assert statuses == [200] * 40 + [429] * 20
        assert proxy.ask(CHAT, ASK)[2]["retry-after"] == "5"


def test_a_run_that_ends_answers_its_open_callers() -> None:
    with proxied() as proxy:
        body = ASK | {"max_tokens": 120}
        with ThreadPoolExecutor(1) as pool:
            proxy.chat(conversation="open")
            asked = pool.submit(_until_the_end, proxy, body)
            time.sleep(0)
            proxy.until(lambda: proxy.ledger()["calls"] > 1)
            over = pool  # the server closes at the end of this block
    assert over is pool and asked.result() in (200, 503)
    assert proxy.ring.ledger.counts()["ended"] >= 1


@pytest.mark.parametrize("part", ["loop", "server"])
def test_a_web_server_that_fails_ends_its_worker(part: str) -> None:
    ring, port = opened()
    server: Any = ring.worker.server
    fail = server._loop.stop if part == "loop" else server._serving.cancel
    server._loop.call_soon_threadsafe(fail)
    server._thread.join(60)
    assert not server._thread.is_alive()
    with pytest.raises(RuntimeError, match=rf"proxy:{port}: must answer calls as long as the run"):
        ring.worker.tick()
    ring.close()
    listen("127.0.0.1", port).close()  # the address is free again


def _until_the_end(proxy: Proxy, body: Any) -> int:
    try:
        return proxy.ask(CHAT, body)[0]
    except (OSError, http.client.HTTPException):
        return 503


def test_a_deadline_is_a_refusal_that_asks_to_come_again() -> None:
    with proxied(None, **{"source.call_deadline_s": 0.2}) as proxy:
        proxy.ring.max_lag = None
        full = proxy.ring.worker
        full.__class__ = type("Full", (full.__class__,), {"_full": True})  # no room for new ones
        status, said, headers = proxy.ask(CHAT, ASK)
        assert status == 503 and headers["retry-after"] == "5"
        assert "room for a new conversation within 0.2 s" in said["error"]["message"]


def test_other_machines_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    program = api.program("proxy:0.0.0.0:8123", "grpo", settings=["source.arguments=alphabet=ab"])
    source = source_of(program)
    assert isinstance(source, Calls)
    with pytest.raises(ValueError, match=f"proxy:0.0.0.0:8123.*{TOKEN}"):
        source.token()
    monkeypatch.setenv(TOKEN, "0123456789abcdef")
    assert source.token() == "0123456789abcdef"
    with proxied() as proxy:
        assert proxy.ask(CHAT, ASK)[0] == 401
        assert proxy.ask(CHAT, ASK, Authorization="Bearer 0123456789abcdef")[0] == 200


@pytest.mark.parametrize(
    ("task", "address"),
    [("proxy:8000", "http://127.0.0.1:8000/v1"), ("proxy:[::1]:80", "http://[::1]:80/v1")],
)
def test_addresses(task: str, address: str) -> None:
    assert str(Address.of(task)) == address


@pytest.mark.parametrize("task", ["proxy:", "proxy:0", "proxy:99999", "proxy:a b:1", "proxy:x"])
def test_wrong_addresses(task: str) -> None:
    with pytest.raises(ValueError, match=r"source\.task: must be proxy:PORT or proxy:HOST:PORT"):
        Address.of(task)


def test_a_run_that_generates_in_its_learner_becomes_one_that_answers_calls() -> None:
    wanted: list[tuple[Literal["together", "apart"], int]] = [("together", 4), ("apart", 0)]
    for placement, lag in wanted:
        was = api.program(
            "sort",
            "grpo",
            placement=placement,
            max_lag=0,
            settings=["source.scorers=2", "placement.threads=1"],
        )
        assert isinstance(was.source, TaskSource)
        made = _like(was, was.source, "proxy:8123", 10)
        check(made)
        assert (made.placement.text, made.placement.max_lag) == ("apart", lag)
        assert isinstance(made.source, CallSource) and made.source.scorers == 0


def test_settings_of_generators_are_refused() -> None:
    for key, value in (
        ("placement.text", "together"),
        ("placement.text", "auto"),
        ("source.scorers", "1"),
        ("source.history", "render"),
    ):
        given = {"source.arguments": "alphabet=ab", key: value}
        with pytest.raises(ValueError, match=f"{key}: must be .* with proxy:8123.* got {value}"):
            api.program("proxy:8123", "grpo", settings=given)


def test_calls_of_tools_are_read_from_the_answer() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    text, found = tool_calls(f"so: {call}\n{call}", "7")
    assert text == "so:" and [one["id"] for one in found] == ["call_7_0", "call_7_1"]
    assert found[0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    for plain in ("so", "<tool_call>{</tool_call>", "<tool_call>[]</tool_call>"):
        assert tool_calls(plain, "7") == (plain, [])


def test_messages_that_ask_the_same_have_the_same_key() -> None:
    said = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    one = [{"role": "assistant", "content": " x ", "tool_calls": [{"id": "1", "function": said}]}]
    other = [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "x"}],
            "tool_calls": [{"id": "2", "function": {"name": "add", "arguments": '{"b":2,"a":1}'}}],
        }
    ]
    assert keys(one) == keys(other)
    assert keys(one) != keys([{"role": "assistant", "content": "y"}])


def test_openais_client_unchanged(proxy: Proxy) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none")
    said = client.chat.completions.create(model="gpt-4o", **ASK)
    assert said.choices[0].message.role == "assistant"
    client.post("/reward", body={"id": said.id, "reward": 1.0}, cast_to=object)
