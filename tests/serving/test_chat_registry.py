"""Language models of a registry: whole models and adapters as versions, aliases, swaps, audit."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from equipoise import api
from equipoise.api.text_versions import Registered
from equipoise.cli import app
from equipoise.language import adapters, files, versions
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.registry import Registry, reward_models
from equipoise.serving.chat.model import Model
from equipoise.serving.chat.service import Service
from equipoise.serving.chat.settings import TextSettings
from equipoise.serving.chat.versions import VersionedService
from equipoise.serving.store import Store
from tests.serving.chats import Chat, chatting
from tests.serving.test_chat_run import completed, greedy, serving, trained
from tests.serving.test_run import asked

LETTERS = CharTokenizer("abcdefgh")
PROMPT = "abc"


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def net(seed: int, hidden: int = 16) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(
        DecoderConfig(
            family="llama",
            vocab_size=LETTERS.size,
            hidden_size=hidden,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=16,
            max_position_embeddings=64,
            initializer_range=0.6,
            tie_word_embeddings=False,
        )
    )


def model(name: str, seed: int, hidden: int = 16) -> Path:
    """Write the folder of a model."""
    made, to = net(seed, hidden), Path(name)
    params = dict(made.named_parameters())
    files.write(to, made.config, params, eos=LETTERS.eos, special=LETTERS.special)
    LETTERS.save(to)
    return to


def adapter(name: str, base: int, seed: int) -> Path:
    """Write the folder of adapters of the model of seed ``base``."""
    made = lora.add_adapters(net(base), {"rank": 2, "alpha": 8.0})
    torch.manual_seed(seed)
    with torch.no_grad():
        for layer in lora.layers_of(made).values():
            layer.lora_B.normal_()
    adapters.write(Path(name), made, "/some/where")
    LETTERS.save(Path(name))
    return Path(name)


def run(*words: str, expected: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == expected, done.output
    return done.stdout if expected == 0 else done.stderr


def add(place: Path, *more: str) -> str:
    """Add a version -> its name."""
    said: str = json.loads(run("registry", "add", str(place), "letters", "--json", *more))[
        "version"
    ]
    return said


@contextmanager
def served(store: Store | None = None, **given: Any) -> Iterator[tuple[Chat, VersionedService]]:
    source = Registered(Registry("registry"), "letters", **given)

    def make(settings: TextSettings, **how: Any) -> Service:
        return VersionedService(source, settings, store=store, **how)

    with chatting(make=make) as chat:
        assert isinstance(chat.service, VersionedService)
        yield chat, chat.service


def answer(chat: Chat, name: str | None = None, **more: Any) -> tuple[str, str]:
    """(text, version) of the likeliest answer."""
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, **more}
    status, said, _ = chat.ask("/v1/completions", body | ({"model": name} if name else {}))
    assert status == 200, said
    assert said["model"] == name or name is None
    return said["choices"][0]["text"], said["system_fingerprint"]


def test_versions_are_served_by_alias_and_by_digits() -> None:
    first = add(model("one", 1), "--alias", "champion")
    second = add(model("two", 2, hidden=24), "--alias", "candidate")
    assert run("registry", "list").splitlines()[1].split()[-2:] == ["language", "model"]
    with served() as (chat, service):
        status, said, _ = chat.ask("/v1/models", method="GET")
        assert [(one["id"], one["version"]) for one in said["data"]] == [
            ("letters", first[:12]),
            ("letters@champion", first[:12]),
            ("letters@candidate", second[:12]),
        ]
        mine, other = answer(chat), answer(chat, "letters@candidate")
        assert mine[0] != other[0] and (mine[1], other[1]) == (first[:12], second[:12])
        for name in ("letters", "champion", first, first[:12], f"letters@{first[:12]}"):
            assert answer(chat, name) == mine
        for name in ("candidate", second):
            assert answer(chat, name) == other
        status, said, _ = chat.ask("/v1/completions", {"prompt": "a", "model": "letters@shadow"})
        assert status == 404 and "must be one of letters, champion" in said["error"]["message"]
        assert service.state()["loaded"] == [first[:12], second[:12]]
        assert chat.ask("/v1/models/letters@candidate", method="GET")[1]["version"] == second[:12]


def test_a_champion_is_swapped_and_rolled_back_while_answers_are_written() -> None:
    registry = [add(model(f"m{seed}", seed)) for seed in (1, 2)]
    to = Registry("registry")
    to.alias("letters", "champion", registry[0])
    with served() as (chat, service):
        texts = {registry[0][:12]: answer(chat)[0]}
        assert service.served.writer.version == registry[0][:12]
        seen, wrong, over = dict(texts), list[Any](), threading.Event()

        def swapped(number: int) -> bool:
            return service.swaps > number

        def client() -> None:
            while not over.is_set():
                text, version = answer(chat)
                if seen.setdefault(version, text) != text:
                    wrong.append((version, text))

        clients = [threading.Thread(target=client) for _ in range(4)]
        for one in clients:
            one.start()
        try:
            for number in range(3):
                to.alias("letters", "champion", registry[(number + 1) % 2])
                chat.until(partial(swapped, number))
            to.rollback("letters")
            chat.until(lambda: service.swaps == 4)
        finally:
            over.set()
            for one in clients:
                one.join()
        assert not wrong and set(seen) == {one[:12] for one in registry}
        chat.until(lambda: service.state()["loaded"] == [service.model.version])


def test_adapters_name_their_base_by_its_hash() -> None:
    base = add(model("base", 1))
    tuned = add(adapter("tuned", 1, 5), "--alias", "champion")
    lineage = Registry("registry").show("letters", tuned)["lineage"]
    assert lineage["base"] == {
        "weights": versions.weights_sha256(net(1)),
        "model": "/some/where",
    }
    with served() as (chat, _):
        text, version = answer(chat)
        assert version == tuned[:12]
    merged = lora.add_adapters(net(1), {"rank": 2, "alpha": 8.0})
    adapters.load(merged, Path("tuned"))
    whole = Model(
        name="letters", version="x", net=lora.merged(merged), tokenizer=LETTERS, positions=64,
        limit=12,
    )  # fmt: skip
    with chatting(whole) as chat:
        assert answer(chat)[0] == text != ""
    # the base has no alias, and an adapter's lineage names it
    (row,) = Registry("registry").gc(older_than_s=0, dry=True) or ("none",)
    assert row == "none"
    shutil.rmtree(Path("registry/artifacts") / base)
    with pytest.raises(ValueError, match="adapters whose base is here, got none in registry"):
        Registered(Registry("registry"), "letters").load(tuned)
    assert Registered(Registry("registry"), "letters", "base").load(tuned).version == tuned[:12]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "adapters whose base is here, got none in registry (sha256 "),
        (("--base", "other"), "must be adapters of this base (sha256 "),
        (("--base", "nowhere"), "config.json"),
    ],
)
def test_an_adapter_without_its_base_is_one_sentence(words: tuple[str, ...], said: str) -> None:
    model("other", 2)
    error = run("registry", "add", str(adapter("tuned", 1, 5)), "letters", *words, expected=2)
    assert said in error and error.count("\n") <= 2, error
    assert not Registry("registry").names()
    assert not [one for one in Path("registry/artifacts").glob(".*") if one.is_dir()]


def test_a_model_that_does_not_load_is_refused() -> None:
    place = model("one", 1)
    weights = (place / files.WEIGHTS).read_bytes()
    for data, said in ((weights[:-8], "torn"), (b"", "torn")):
        (place / files.WEIGHTS).write_bytes(data)
        assert said in run("registry", "add", str(place), "letters", expected=2)
    (place / files.WEIGHTS).unlink()
    (place / "pytorch_model.bin").write_bytes(b"x")
    assert "a pickle" in run("registry", "add", str(place), "letters", expected=2)
    assert not Registry("registry").names()


def test_a_version_that_cannot_be_served_costs_its_alias_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("equipoise.serving.chat.versions.AGAIN_S", 0.2)
    first = add(model("one", 1), "--alias", "champion")
    second = add(model("two", 2))
    file = Path("registry/artifacts") / second / files.WEIGHTS
    whole = file.read_bytes()
    with served() as (chat, service):
        Registry("registry").alias("letters", "candidate", second)
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        chat.until(lambda: "candidate" in service.state()["versions"])  # type: ignore[operator]
        body = {"prompt": PROMPT, "model": "letters@candidate"}
        status, said, _ = chat.ask("/v1/completions", body)
        assert status == 503 and "the file is damaged" in said["error"]["message"], said
        assert "candidate: " in str(service.state()["alarms"])
        assert answer(chat)[1] == first[:12]
        file.write_bytes(whole)
        end = time.monotonic() + 30
        while chat.ask("/v1/completions", body)[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert service.state()["alarms"] == []


def test_each_answer_is_kept_with_its_version() -> None:
    first = add(model("one", 1), "--alias", "champion")
    second = add(model("two", 2), "--alias", "candidate")
    store = Store(Path("letters.decisions"))
    with served(store) as (chat, _):
        answer(chat)
        answer(chat, "letters@candidate", max_tokens=3)
    store.close()
    with sqlite3.connect("letters.decisions") as file:
        rows = file.execute("SELECT model, version, prompt_tokens, whole FROM answers").fetchall()
    assert rows == [
        ("letters", first[:12], 3, 1),
        ("letters@candidate", second[:12], 3, 1),
    ]


def test_a_policy_and_a_language_model_are_not_confused() -> None:
    add(model("one", 1), "--alias", "champion")
    code, said = asked("registry", "--policy", "letters", "--model-name", "x")
    assert code == 2 and "--model-name: must be left out for a registry" in said
    code, said = asked("one", "--base", "one")
    assert code == 2 and "--base: must be left out without adapters" in said
    code, said = asked(str(adapter("tuned", 1, 5)))
    assert code == 2 and "name its folder with --base DIR" in said, said
    code, said = asked("tuned", "--base", str(model("other", 2)))
    assert code == 2 and "must be adapters of this base" in said, said
    with pytest.raises(ValueError, match="reward_model.json, got a language model"):
        reward_models.place("registry:letters")


@pytest.mark.thorough
def test_runs_become_versions_and_are_served_by_the_command() -> None:
    whole = trained(Path("whole").absolute())
    api.export(whole, "base")
    adapted = trained(Path("adapted").absolute(), model=str(Path("base").absolute()), lora=4)
    first = add(whole, "--alias", "champion")
    second = add(adapted, "--alias", "candidate")
    shown = run("registry", "show", "letters", second)
    assert "adapter_model.safetensors" in shown and "run: adapted" in shown
    with serving("registry", "--policy", "letters", "--context", "64") as (line, url):
        assert line.startswith(f"serving letters ({first[:12]}) at ")
        said = completed(url)
        assert said["choices"][0]["text"] == greedy(whole)
        said = completed(url, model="letters@candidate")
        assert said["choices"][0]["text"] == greedy(adapted)
        assert said["system_fingerprint"] == second[:12]
    with sqlite3.connect("letters.decisions") as file:
        assert file.execute("SELECT version FROM answers").fetchall() == [
            (first[:12],),
            (second[:12],),
        ]
