"""A served language model: OpenAI's requests and answers, bounds, versions, callers that leave."""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from equipoise.actors.engine.request_engine import RequestEngine, Sampling
from equipoise.types.packed import Prompt
from tests.serving import chats
from tests.serving.chats import Bytes, Chat, Versions, chatting

ASK = {"model": "bytes", "prompt": "abc"}
CHAT = {"model": "bytes", "messages": [{"role": "user", "content": "Hi ☂"}]}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    with chatting() as found:
        yield found


def said(chat: Chat, path: str, body: dict[str, Any]) -> Any:
    status, answer, _ = chat.ask(path, body)
    assert status == 200, answer
    return answer


def test_a_completion_has_what_openais_clients_read(chat: Chat) -> None:
    found = said(chat, COMPLETIONS, ASK | {"temperature": 0, "max_tokens": 5, "n": 2})
    assert found["object"] == "text_completion" and found["id"].startswith("cmpl-")
    assert found["model"] == "bytes" and found["system_fingerprint"] == "v0"
    one, two = found["choices"]
    assert (one["index"], two["index"]) == (0, 1) and one["text"] == two["text"]
    assert one["finish_reason"] == "length" and one["logprobs"] is None
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13}
    assert abs(found["created"] - time.time()) < 100


def test_a_chat_is_the_completion_of_its_template(chat: Chat) -> None:
    more = {"temperature": 0, "max_completion_tokens": 9}
    found = said(chat, CHATS, CHAT | more)
    text = chat.text("<user>Hi ☂<>", temperature=0, max_tokens=9)
    (choice,) = found["choices"]
    assert found["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " ☂"}]
    same = said(chat, CHATS, {"messages": [{"role": "user", "content": parts}]} | more)
    assert same["choices"] == found["choices"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_a_stream_is_the_answer_in_parts(chat: Chat, path: str) -> None:
    body = (ASK if path == COMPLETIONS else CHAT) | {"seed": 7, "n": 3, "max_tokens": 60}
    whole = said(chat, path, body)
    *events, usage = chat.events(path, body | {"stream_options": {"include_usage": True}})
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert all(one["usage"] is None for one in events)
    assert {one["system_fingerprint"] for one in events} == {"v0"}
    assert len({one["id"] for one in events}) == 1
    texts, ends = ["", "", ""], {}
    for one in events:
        (choice,) = one["choices"]
        delta = choice.get("delta", choice)
        assert choice["index"] not in ends
        texts[choice["index"]] += delta.get("content", delta.get("text", ""))
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["finish_reason"]
    for choice in whole["choices"]:
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        assert texts[choice["index"]] == text
        assert ends[choice["index"]] == choice["finish_reason"]
    assert len({*texts}) == 3
    if path == CHATS:
        assert [one["choices"][0]["delta"].get("role") for one in events[:3]] == ["assistant"] * 3


def test_a_seed_draws_the_same_again_and_no_seed_draws_others(chat: Chat) -> None:
    seeded = [chat.text("abc", seed=-5, max_tokens=30) for _ in range(2)]
    others = [chat.text("abc", max_tokens=30) for _ in range(2)]
    assert seeded[0] == seeded[1] and len({*seeded, *others}) == 3
    narrow = chat.text("abc", top_p=1e-6, max_tokens=30)
    assert narrow == chat.text("abc", temperature=0, max_tokens=30)


def test_prompts_are_texts_or_tokens_or_lists_of_them(chat: Chat) -> None:
    more = {"temperature": 0, "max_tokens": 8}
    wanted = [chat.text(one, **more) for one in ("abc", "xyz")]
    for prompt in (["abc", "xyz"], [list(b"abc"), list(b"xyz")]):
        found = said(chat, COMPLETIONS, {"prompt": prompt} | more)
        assert [one["text"] for one in found["choices"]] == wanted
    assert chat.text(list(b"abc"), **more) == wanted[0]


def test_a_stop_string_ends_the_answer_before_it(chat: Chat) -> None:
    whole = chat.text("abc", temperature=0, max_tokens=60)
    at = 20
    stop = whole[at : at + 3]
    at = whole.index(stop)
    for body in ({"stop": stop}, {"stop": ["never there", stop, whole[at : at + 5]]}):
        asked = ASK | {"temperature": 0, "max_tokens": 60} | body
        (choice,) = said(chat, COMPLETIONS, asked)["choices"]
        assert choice["text"] == whole[:at] and choice["finish_reason"] == "stop"
        events = chat.events(COMPLETIONS, asked)
        assert "".join(one["choices"][0]["text"] for one in events) == whole[:at]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
    chat.until(lambda: chat.service.writer.live == 0)


def test_log_probabilities_are_those_of_the_model(chat: Chat) -> None:
    asked = {"temperature": 0, "max_tokens": 4}
    found = said(chat, COMPLETIONS, ASK | asked | {"logprobs": 3})["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == 4
    net = chats.net()
    cache = net.cache(1, 8, torch.float32)
    with torch.no_grad():
        hidden = net.prefill(
            torch.tensor([list(b"abc")]), torch.tensor([3]), cache, torch.arange(1)
        )
        logp = net.logits(hidden)[0].log_softmax(-1)
    assert abs(found["token_logprobs"][0] - float(logp.max())) < 1e-4
    assert max(found["top_logprobs"][0].values()) == found["token_logprobs"][0]
    hot = said(chat, CHATS, CHAT | asked | {"logprobs": True, "top_logprobs": 2})
    content = hot["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(one["top_logprobs"]) == 2 for one in content)
    assert content[0]["top_logprobs"][0]["logprob"] == content[0]["logprob"]
    events = chat.events(CHATS, CHAT | asked | {"logprobs": True, "top_logprobs": 2})
    streamed = [
        mark
        for one in events
        for mark in (one["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


def test_the_model_is_listed_and_others_are_not_found(chat: Chat) -> None:
    status, found, _ = chat.ask("/v1/models", method="GET")
    assert status == 200 and [one["id"] for one in found["data"]] == ["bytes"]
    assert chat.ask("/v1/models/bytes", method="GET")[1]["object"] == "model"
    for path, body, method in (
        ("/v1/models/byte", None, "GET"),
        (COMPLETIONS, ASK | {"model": "byte"}, "POST"),
        (CHATS, CHAT | {"model": "gpt-4o"}, "POST"),
    ):
        status, found, _ = chat.ask(path, body, method)
        assert status == 404 and found["error"]["code"] == "model_not_found"
        assert found["error"]["param"] == "model" and "'bytes'" in found["error"]["message"]


ODD = [
    (COMPLETIONS, b"", None),
    (COMPLETIONS, b"[]", None),
    (COMPLETIONS, b"{" * 5000, None),
    (COMPLETIONS, b'{"prompt": "\xff"}', None),
    (COMPLETIONS, b'{"prompt": "a\\ud800"}', None),
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [True, 1]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", [1]]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": [258]}, "prompt"),
    (COMPLETIONS, {"prompt": [1 << 70]}, "prompt"),
    (COMPLETIONS, b'{"prompt": [' + b"9" * 4000 + b"]}", "prompt"),
    (COMPLETIONS, b'{"prompt": "a", "temperature": 1e999}', "temperature"),
    (COMPLETIONS, ASK | {"stop": [["a"]]}, "stop"),
    (COMPLETIONS, ASK | {"logit_bias": {"5": 1}}, "logit_bias"),
    (COMPLETIONS, ASK | {"stream": "yes"}, "stream"),
    (COMPLETIONS, {"prompt": ["a"] * 129}, "prompt"),
    (COMPLETIONS, ASK | {"max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, ASK | {"max_tokens": 1.5}, "max_tokens"),
    (COMPLETIONS, ASK | {"max_tokens": 254}, "max_tokens"),
    (COMPLETIONS, ASK | {"temperature": -1}, "temperature"),
    (COMPLETIONS, ASK | {"temperature": "hot"}, "temperature"),
    (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', None),
    (COMPLETIONS, ASK | {"top_p": 0}, "top_p"),
    (COMPLETIONS, ASK | {"n": 0}, "n"),
    (COMPLETIONS, ASK | {"n": 9}, "n"),
    (COMPLETIONS, ASK | {"stop": ["a"] * 5}, "stop"),
    (COMPLETIONS, ASK | {"stop": ""}, "stop"),
    (COMPLETIONS, ASK | {"stop": "a" * 257}, "stop"),
    (COMPLETIONS, ASK | {"seed": 1 << 63}, "seed"),
    (COMPLETIONS, ASK | {"logprobs": 6}, "logprobs"),
    (COMPLETIONS, ASK | {"echo": True}, "echo"),
    (COMPLETIONS, ASK | {"best_of": 3}, "best_of"),
    (COMPLETIONS, ASK | {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, ASK | {"maxtokens": 3}, "maxtokens"),
    (COMPLETIONS, ASK | {"frequency_penalty": 0.5}, "frequency_penalty"),
    (CHATS, {}, "messages"),
    (CHATS, {"messages": "Hi"}, "messages"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": ["Hi"]}, "messages"),
    (CHATS, {"messages": [{"role": "king", "content": "Hi"}]}, "messages"),
    (CHATS, {"messages": [{"role": "user"}]}, "messages"),
    (CHATS, {"messages": [{"role": "user", "content": 3}]}, "messages"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    (CHATS, CHAT | {"tools": [{"type": "function"}]}, "tools"),
    (CHATS, CHAT | {"functions": [{}]}, "functions"),
    (CHATS, CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
    (CHATS, CHAT | {"top_logprobs": 3}, "top_logprobs"),
    (CHATS, CHAT | {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    (CHATS, CHAT | {"prompt": "a"}, "prompt"),
]


@pytest.mark.parametrize(("path", "body", "param"), ODD)
def test_odd_requests_are_refused_with_one_sentence(
    chat: Chat, path: str, body: Any, param: str | None
) -> None:
    status, found, _ = chat.ask(path, body)
    assert 400 <= status < 500, (status, found)
    error = found["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"].count("\n") == 0
    assert error["param"] == param, error


def test_fields_without_an_effect_are_taken(chat: Chat) -> None:
    neutral = {
        "user": "x",
        "metadata": {"a": "b"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "stop": None,
        "seed": None,
        "stream": False,
        "n": None,
    }
    said(chat, COMPLETIONS, ASK | neutral | {"echo": False, "best_of": 1, "suffix": None})
    said(chat, CHATS, CHAT | neutral | {"tools": [], "response_format": {"type": "text"}})


def test_a_long_prompt_is_refused_with_both_numbers(chat: Chat) -> None:
    for prompt, got in (("a" * 300, "300"), ("a" * 40_000, "40,000 letters")):
        status, found, _ = chat.ask(COMPLETIONS, {"prompt": prompt})
        assert status == 400 and found["error"]["code"] == "context_length_exceeded"
        assert "255" in found["error"]["message"] and got in found["error"]["message"]
    message = {"role": "user", "content": "a", "name": ["a" * 40_000]}
    status, found, _ = chat.ask(CHATS, {"messages": [message]})
    assert status == 400 and "40,005 letters" in found["error"]["message"]
    status, found, _ = chat.ask(COMPLETIONS, {"prompt": "a" * 200, "max_tokens": 100})
    assert (
        status == 400 and "56" in found["error"]["message"] and "100" in found["error"]["message"]
    )
    # without a number an answer has what is left
    assert said(chat, COMPLETIONS, {"prompt": "a" * 254})["usage"]["completion_tokens"] <= 2


def test_a_body_is_bounded(chat: Chat) -> None:
    assert chat.ask(COMPLETIONS, {"prompt": "a" * (1 << 20)})[0] == 413
    assert chat.ask(COMPLETIONS, {"prompt": [0] * 200_000})[0] == 413
    assert chat.ask(COMPLETIONS, ASK, **{"Content-Type": "application/msgpack"})[0] == 415
    assert chat.ask(COMPLETIONS, ASK, **{"Content-Encoding": "gzip"})[0] == 415


def test_a_model_without_a_template_answers_completions_alone() -> None:
    with chatting(chats.model(tokenizer=Bytes(chats=False))) as chat:
        status, found, _ = chat.ask(CHATS, CHAT)
        assert status == 400 and "/v1/completions" in found["error"]["message"]
        assert chat.text("abc")


def test_a_token_and_the_names_of_hosts_and_pages_are_asked_for() -> None:
    token = "0123456789abcdef"
    with chatting(token=token) as chat:
        status, found, _ = chat.ask(COMPLETIONS, ASK)
        assert status == 401 and found["error"]["type"] == "authentication_error"
        assert chat.ask(COMPLETIONS, ASK, Authorization=f"Bearer {token}")[0] == 200
        assert chat.ask("/v1/models", method="GET")[0] == 401
        assert chat.ask("/readyz", method="GET")[1] == {"ready": True}
        fine = {"Authorization": f"Bearer {token}"}
        assert chat.ask(COMPLETIONS, ASK, **fine, Host="evil.example")[0] == 403
        assert chat.ask(COMPLETIONS, ASK, **fine, Origin="http://evil.example")[0] == 403
        assert chat.ask("/readyz", method="GET", **fine)[1]["version"] == "v0"
        assert b"equipoise_tokens_total" in chat.ask("/metrics", method="GET", **fine)[1]
        assert chat.ask("/healthz", method="GET")[0] == 200


# ------------------------------------------------------------------------------------ many requests


def stream(chat: Chat, body: dict[str, Any], path: str = COMPLETIONS) -> socket.socket:
    """A connection whose stream has begun."""
    data = json.dumps(body | {"stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", chat.port), 60)
    connection.sendall(head.encode() + data)
    return connection


LONG = {"prompt": "a", "max_tokens": 255, "logprobs": None}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes a while for a step, as that of a large model, and never ends a text."""
    usual = RequestEngine.step

    def step(self: RequestEngine) -> Any:
        time.sleep(0.02)
        self._ends[:] = False
        return usual(self)

    monkeypatch.setattr(RequestEngine, "step", step)


def test_a_caller_that_leaves_frees_its_rows_at_once(slow: None) -> None:
    with chatting(rows=4) as chat:
        leavers = [stream(chat, LONG | {"n": 2}) for _ in range(2)]
        assert leavers[0].recv(15) == b"HTTP/1.1 200 OK"
        chat.until(lambda: chat.service.writer.live == 4)
        waiting = stream(chat, LONG | {"n": 4})
        chat.until(lambda: chat.service.open == 8)
        drawn = chat.service.writer.drawn
        waiting.close()  # before it began
        chat.until(lambda: chat.service.open == 4)
        for one in leavers:
            one.close()
        chat.until(lambda: chat.service.writer.live == chat.service.open == 0)
        assert chat.service.writer.drawn - drawn < 4 * 200
        assert len(chat.text("abc", max_tokens=3)) > 0


def test_requests_beyond_the_queue_are_asked_to_come_again(slow: None) -> None:
    with chatting(rows=2, queue=1) as chat:
        first = [stream(chat, LONG) for _ in range(3)]
        chat.until(lambda: chat.service.open == 3)
        status, found, headers = chat.ask(COMPLETIONS, ASK)
        assert status == 429 and headers["retry-after"] == "1"
        assert found["error"]["type"] == "rate_limit_error"
        assert chat.ask(COMPLETIONS, ASK | {"prompt": ["a"] * 4})[0] == 400  # it never fits
        for one in first:
            one.close()
        chat.until(lambda: chat.service.open == 0)
        assert chat.ask(COMPLETIONS, ASK | {"max_tokens": 2})[0] == 200


def test_an_answer_has_a_deadline(slow: None) -> None:
    with chatting(deadline_s=0.5) as chat:
        status, found, _ = chat.ask(COMPLETIONS, LONG)
        assert status == 504 and found["error"]["type"] == "server_error"
        with stream(chat, LONG) as connection:
            got = b""
            while part := connection.recv(1 << 16):
                got += part
                if b"0\r\n\r\n" in got:
                    break
        assert got.startswith(b"HTTP/1.1 200") and b'data: {"error":' in got
        assert b"[DONE]" not in got
        chat.until(lambda: chat.service.writer.live == chat.service.open == 0)


class Waits(Bytes):
    """A tokenizer whose chat template takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def prompt(self, prompt: Prompt, template: Mapping[str, object] = {}) -> list[int]:
        if not isinstance(prompt, str):
            self.free.wait(60)
        return super().prompt(prompt, template)


def test_prompts_that_take_long_are_within_the_deadline() -> None:
    waits = Waits()
    with chatting(chats.model(tokenizer=waits), deadline_s=0.5) as chat:
        with stream(chat, CHAT, CHATS) as first:
            chat.until(lambda: chat.service.open == 1)
            status, found, _ = chat.ask(CHATS, CHAT)
            assert status == 504 and "within 0.5 s" in found["error"]["message"]
            assert first.recv(12) == b"HTTP/1.1 504"
            # a text does not wait for chat templates
            assert chat.ask(COMPLETIONS, ASK)[0] == 200
        chat.until(lambda: chat.service.open == 0)
        waits.free.set()


def test_prompts_that_take_long_are_within_the_queue() -> None:
    waits = Waits()
    with chatting(chats.model(tokenizer=waits), rows=1, queue=1) as chat:
        some = [stream(chat, CHAT | {"max_tokens": 1}, CHATS) for _ in range(2)]
        chat.until(lambda: chat.service.open == 2)
        assert chat.ask(COMPLETIONS, ASK)[0] == 429
        waits.free.set()
        for one in some:
            with one:
                assert one.recv(12) == b"HTTP/1.1 200"


def test_open_answers_end_before_the_server(slow: None) -> None:
    with chatting() as chat:
        connection = stream(chat, LONG | {"max_tokens": 30})
        got = connection.recv(1 << 16)
        assert b"[DONE]" not in got
    with connection:
        while part := connection.recv(1 << 16):
            got += part
    assert got.count(b'"finish_reason":"length"') == 1 and b"data: [DONE]" in got


def test_the_server_goes_on_after_an_error_of_the_engine(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RequestEngine, logits: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(RequestEngine, "_draw", broken)
        status, found, _ = chat.ask(COMPLETIONS, ASK)
    assert status == 500 and "no memory" in found["error"]["message"]
    assert chat.text("abc")


# ----------------------------------------------------------------------------------------- versions


def answers(version: int, prompt: str, limit: int) -> str:
    """The greedy answer of a version, by an engine of its own."""
    engine = RequestEngine(chats.net(version), rows=1, length=256, eos=Bytes.eos, seed=0)
    engine.submit(0, list(prompt.encode()), 1, limit=limit, sampling=Sampling(temperature=0))
    (done,) = [one for _ in range(limit) if engine.live or engine.waiting for one in engine.step()]
    return Bytes().decode(done.token.tolist())


def swapped(chat: Chat, version: str) -> None:
    chat.until(lambda: chat.service.writer.version == version)


def alarmed(chat: Chat, word: str) -> None:
    """Wait for an alarm with this word."""
    chat.until(lambda: word in "".join(chat.ask("/readyz", method="GET")[1]["alarms"]))


@pytest.mark.parametrize("swaps", [4, pytest.param(50, marks=pytest.mark.thorough)])
def test_swaps_under_load_lose_no_answer_and_mix_no_versions(
    swaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights come in many parts, as those of a large model."""
    monkeypatch.setattr("equipoise.nets.decoding.PIECE", 128)
    monkeypatch.setattr("equipoise.nets.decoding.OUTPUTS", 4)
    monkeypatch.setattr("equipoise.serving.chat.writer.HELD_S", 2e-4)
    source, kinds = Versions(), 5
    weights = {one: dict(chats.net(one).named_parameters()) for one in range(kinds)}
    prompts = [f"ask {i}" for i in range(4)]
    right = {(one, prompt): answers(one, prompt, 20) for one in range(kinds) for prompt in prompts}
    assert len(set(right.values())) == len(right)
    with chatting(chats.model(net=copy.deepcopy(chats.net(0)), source=source), rows=6) as chat:
        wrong: list[Any] = []
        seen: set[str] = set()
        over = threading.Event()

        def ask(number: int) -> None:
            turn = 0
            while not over.is_set():
                turn += 1
                some = prompts if turn % 3 == 0 else [prompts[(turn + number) % 4]]
                body = {"prompt": some, "temperature": 0, "max_tokens": 20}
                try:
                    if number % 2:
                        events = chat.events(COMPLETIONS, body)
                        version = {one["system_fingerprint"] for one in events}
                        texts = [""] * len(some)
                        for one in events:
                            texts[one["choices"][0]["index"]] += one["choices"][0]["text"]
                    else:
                        answer = said(chat, COMPLETIONS, body)
                        version = {answer["system_fingerprint"]}
                        texts = [one["text"] for one in answer["choices"]]
                    (name,) = version
                    seen.add(name)
                    kind = int(name.removeprefix("v")) % kinds
                    if texts != [right[kind, prompt] for prompt in some]:
                        wrong.append((name, texts))
                except Exception as error:
                    wrong.append(error)

        callers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for one in callers:
            one.start()
        for swap in range(1, swaps + 1):
            chat.service.writer.offer(f"v{swap}", weights[swap % kinds], wrong.append)
            swapped(chat, f"v{swap}")
        over.set()
        for one in callers:
            one.join(60)
        assert not wrong, wrong[0]
        assert len(seen) > swaps // 4


def test_newer_weights_are_followed_and_bad_ones_are_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("equipoise.serving.chat.service.FOLLOW_S", 0.02)
    source = Versions()
    with chatting(chats.model(source=source)) as chat:

        def state() -> Any:
            return chat.ask("/readyz", method="GET")[1]

        good = dict(chats.net(1).named_parameters())
        source.now = "v1", good
        chat.until(lambda: state()["version"] == "v1")
        assert state()["alarms"] == []
        wrongs = {
            "v2": {name: torch.full_like(x, torch.nan) for name, x in good.items()},
            "v3": {name: x[:1] for name, x in good.items()},
            "v4": {},
        }
        for name, params in wrongs.items():
            source.now = name, params
            word = {"v2": "finite", "v3": "expected [", "v4": "every parameter"}[name]
            alarmed(chat, word)
            assert state()["version"] == "v1"
        for error in (OSError("the disk is gone"), RuntimeError("no memory")):
            source.error = error
            alarmed(chat, str(error))
        source.error = None  # what is read again is no alarm, but the last version still is
        chat.until(lambda: len(found := state()["alarms"]) == 1 and "every parameter" in found[0])
        source.now = "v5", dict(chats.net(2).named_parameters())
        chat.until(lambda: state()["version"] == "v5" and not state()["alarms"])
        wanted = answers(2, "abc", 20)
        assert chat.text("abc", temperature=0, max_tokens=20) == wanted


def test_only_the_newest_of_the_weights_that_wait_is_kept(slow: None) -> None:
    with chatting(rows=1) as chat, stream(chat, LONG):
        chat.until(lambda: chat.service.writer.live == 1)
        kept = list[weakref.ref[torch.Tensor]]()
        for number in range(1, 5):
            params = dict(chats.net(number).named_parameters())
            kept.append(weakref.ref(next(iter(params.values()))))
            chat.service.writer.offer(f"v{number}", params, lambda why: None)
            del params
        # the first ones are copied already, and the last ones wait
        chat.until(lambda: sum(one() is not None for one in kept) <= 2)
