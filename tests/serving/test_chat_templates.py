"""Chat templates that do not end, or that fill the memory: they cost their prompt alone."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise.actors.calls.inbox import Inbox
from equipoise.language.tokenizers import HubTokenizer
from equipoise.serving.chat import templates
from equipoise.serving.chat.templates import Exceeded, Templates
from tests.language.test_tokenizers import CHAT, words
from tests.serving.chats import chatting, model

pytestmark = pytest.mark.thorough  # each starts a process that imports transformers
ENDLESS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}"
)
POWER = "{{ 9 ** (9 ** 9) }}"  # one instruction of Python
MEMORY = (
    "{% set x = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set x.t = x.t ~ x.t %}"
    "{% endfor %}{{ x.t }}"
)
# only if the message asks for it
SOME = "{% if messages[-1].content == 'a a' %}" + ENDLESS + "{% endif %}" + CHAT
ASK: Any = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2}


def tokenizer(to: Path, template: str) -> HubTokenizer:
    return HubTokenizer(words(to, template=template))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "CPU_S", 1)


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Hold this many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        pytest.skip(f"at most {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    try:
        yield
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def children() -> list[str]:
    """The processes of templates that this process has."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = one.read_bytes().decode(errors="replace")
            status = (one.parent / "status").read_text()
        except OSError:  # it has ended
            continue
        if "chat.templates" in text and f"\nPPid:\t{os.getpid()}\n" in status:
            found.append(text)
    return found


def test_a_template_gives_the_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    odd = "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    read = tokenizer(tmp_path, odd + CHAT)
    asked = [{"role": "user", "content": "a b"}]
    made = Templates(read.directory)
    try:
        assert made(asked, {}) == read.prompt(asked)
        with pytest.raises(ValueError, match="no tools"):
            made([{"role": "tool", "content": "a"}], {})
        assert made(asked, {}) == read.prompt(asked) and len(children()) == 1
    finally:
        made.close()
    assert not children()
    with pytest.raises(Exceeded, match="before the end of the server"):
        made(asked, {})


@pytest.mark.parametrize(
    ("template", "said"),
    [(ENDLESS, "within 1 s of"), (MEMORY, "1 GiB of memory, got"), (POWER, "does not end")],
)
def test_a_template_is_bounded(quick: None, tmp_path: Path, template: str, said: str) -> None:
    made = Templates(tokenizer(tmp_path, template).directory)
    try:
        with pytest.raises(ValueError, match=said):
            made(ASK["messages"], {})
    finally:
        made.close()


def test_a_server_with_more_than_1024_connections_reads_templates(tmp_path: Path) -> None:
    read = tokenizer(tmp_path, CHAT)
    with descriptors(1100):
        chats, inbox = Templates(read.directory), Inbox()
        assert min(inbox.fds()) > 1023
        inbox.put(lambda: None)
        inbox.wait(30)
        assert inbox.do()
        asked = [{"role": "user", "content": "a b"}]
        assert chats(asked, {}) == read.prompt(asked)
        chats.close()
        inbox.close()


def test_an_endless_template_holds_up_no_other_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "CPU_S", 500)  # it would go on for ever
    read = tokenizer(tmp_path, SOME)
    answers = list[Any]()
    with chatting(model(tokenizer=read), context=64) as chat:
        hung = ASK | {"messages": [{"role": "user", "content": "a a"}]}
        caller = threading.Thread(
            target=lambda: answers.append(chat.ask("/v1/chat/completions", hung))
        )
        caller.start()
        chat.until(lambda: chat.service.open == 1)
        for _ in range(3):
            assert chat.ask("/v1/chat/completions", ASK)[0] == 200
            assert chat.ask("/v1/completions", {"prompt": "a b", "max_tokens": 2})[0] == 200
        began = time.monotonic()
    caller.join(60)
    assert not caller.is_alive() and time.monotonic() - began < 30
    assert not children()


def test_a_prompt_beyond_its_time_is_refused_and_the_next_is_read(
    quick: None, tmp_path: Path
) -> None:
    with chatting(model(tokenizer=tokenizer(tmp_path, SOME)), context=64) as chat:
        hung = ASK | {"messages": [{"role": "user", "content": "a a"}]}
        status, said, _ = chat.ask("/v1/chat/completions", hung)
        assert status == 400 and "within 1 s of processor time" in said["error"]["message"]
        assert chat.ask("/v1/chat/completions", ASK)[0] == 200
        chat.until(lambda: chat.service.open == 0)
