"""Runs on text and folders of models, served: versions, adapters, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import api
from equipoise.api.served_text import of_model, of_run, version_of
from equipoise.record import checkpoint
from tests.language.test_tokenizers import CHAT, words
from tests.serving.chats import chatting
from tests.serving.test_run import asked

PROMPT = "201102>"
SMALL: dict[str, Any] = {
    "algorithm": "sft",
    "batch": 32,
    "steps": 64,
    "evaluate_episodes": 0,
    "tensorboard": False,
    "on": "serial",
}


def trained(out: Path, **options: Any) -> Path:
    with api.start("sort", out=out, **SMALL | {"model": "tiny"} | options) as run:
        for _ in run:
            pass
    return out


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("first") / "sort")


@pytest.fixture
def run(first: Path, tmp_path: Path) -> Path:
    return shutil.copytree(first, tmp_path / "sort")


def newer(run: Path, step: int) -> Path:
    """Keep other weights under a later step."""
    place = next(path for _, path in checkpoint.steps(run / "checkpoints"))
    params, meta = checkpoint.load(place)
    spec = json.loads(checkpoint.read(place, checkpoint.SPEC))
    torch.manual_seed(step)
    others = {
        name: x + 0.1 * torch.randn_like(x) if x.is_floating_point() else x
        for name, x in params.items()
    }
    return checkpoint.save(run / "checkpoints", step, others, meta | {"env_steps": step}, spec)


def greedy(place: Path) -> str:
    (answer,) = api.generate(place, [PROMPT], greedy=True)
    return answer.text


def completed(url: str, **more: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0} | more
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[str, str]]:
    """``equipoise serve`` -> its line, and its URL; it must end well."""
    command = [sys.executable, "-m", "equipoise", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield line, found[0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.thorough
def test_a_run_is_served_and_its_newer_weights_are_followed(run: Path) -> None:
    with serving(run, "--context", "64") as (line, url):
        said = completed(url)
        place = next(path for _, path in checkpoint.steps(run / "checkpoints"))
        assert line.startswith(f"serving sort ({version_of(place)}) at ")
        assert said["system_fingerprint"] == version_of(place) and said["model"] == "sort"
        assert said["choices"][0]["text"] == greedy(run)
        later = newer(run, 1000)
        end = time.monotonic() + 60
        while completed(url)["system_fingerprint"] != version_of(later):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert completed(url)["choices"][0]["text"] == greedy(run) != said["choices"][0]["text"]


@pytest.mark.thorough
def test_the_folder_of_a_model_is_served(run: Path, tmp_path: Path) -> None:
    api.export(run, tmp_path / "model")
    with serving(tmp_path / "model", "--model-name", "mine", "--context", "64") as (line, url):
        assert line.startswith("serving mine (")
        said = completed(url, max_tokens=8)
        assert said["choices"][0]["text"] == greedy(run)
        assert f"({said['system_fingerprint']})" in line


def test_a_kept_version_is_served_and_stays(run: Path) -> None:
    later = newer(run, 1000)
    model = of_run(run, "step_64", "", ())
    assert model.version.startswith("step_64-") and model.source is None
    assert of_run(run, "", "", ()).version == version_of(later)


def test_newer_weights_are_found_once(run: Path) -> None:
    source = of_run(run, "", "", ()).source
    assert source is not None and source.newer("any") is None  # nothing changed
    later = newer(run, 1000)
    found = source.newer("any")
    assert found is not None and found[0] == version_of(later)
    assert source.newer(found[0]) is None


@pytest.mark.parametrize("name", ["weights.safetensors", "manifest.json"])
def test_newer_weights_that_are_torn_are_an_alarm_until_they_are_whole(
    run: Path, name: str
) -> None:
    model = of_run(run, "", "", ())
    assert model.source is not None
    file = newer(run, 1000) / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older checkpoint that others take instead
        for _ in range(2):
            with pytest.raises(ValueError, match=f"step_1000.*{name}"):
                model.source.newer(model.version)
    file.write_bytes(whole)
    found = model.source.newer(model.version)
    assert found is not None and found[0] == version_of(file.parent)


@pytest.mark.thorough
def test_adapters_are_served_and_followed(run: Path, tmp_path: Path) -> None:
    api.export(run, tmp_path / "model")
    adapted = trained(tmp_path / "adapted", model=str(tmp_path / "model"), lora=4)
    with chatting(of_run(adapted, "", "", ()), context=64) as chat:

        def text() -> str:
            return chat.text(PROMPT, temperature=0, model="adapted")

        assert text() == greedy(adapted)
        later = newer(adapted, 1000)
        chat.until(lambda: chat.service.writer.version == version_of(later))
        assert text() == greedy(adapted)


@pytest.mark.thorough
def test_a_chat_is_read_by_the_models_own_template(tmp_path: Path) -> None:
    place = words(tmp_path / "model", template=CHAT)
    config = {
        "model_type": "llama",
        "vocab_size": 8,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    }
    (place / "config.json").write_text(json.dumps(config))
    from safetensors.torch import save_file

    from equipoise.language import architectures
    from equipoise.nets.decoder import Decoder, DecoderConfig

    shape = architectures.read_config(place)
    assert isinstance(shape, DecoderConfig)
    torch.manual_seed(0)
    save_file(dict(Decoder(shape).named_parameters()), place / "model.safetensors")
    with chatting(of_model(place, "")) as chat:
        asked = [{"role": "user", "content": "a b"}]
        body = {"messages": asked, "temperature": 0, "max_tokens": 9}
        status, said, _ = chat.ask("/v1/chat/completions", body)
        assert status == 200, said
        assert said["usage"]["prompt_tokens"] == 4
        text = chat.text("<user> a b <model>", temperature=0, max_tokens=9, model="model")
        assert said["choices"][0]["message"]["content"] == text
        status, said, _ = chat.ask("/v1/chat/completions", {"messages": asked * 11})
        assert status == 400 and "at most 31 tokens" in said["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--uds", "x"), "--uds: must be left out for a language model, got one"),
        (("--decisions", "no/such/file"), "expected a file for decisions that can be written"),
        (("--policy", "main"), "--policy: must be left out for a language model"),
        (("--low", "0"), "--low: must be left out for a language model"),
        (("--version", "step_1"), "--version: must be a kept checkpoint of"),
        (("--context", "1000"), "--context: must be at most 512, the model's positions, got 1,000"),
        (("--host", "0.0.0.0"), "must have a token"),
        (("--port", "none"), "expected a port"),
        (("--batch", "0"), "--batch: expected 1 to 4096, got 0"),
        (("--queue", "0"), "--queue: expected 1 to 1e+06, got 0"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    first: Path, words: tuple[str, ...], said: str
) -> None:
    code, output = asked(str(first), *words)
    assert code == 2 and said in output, output


def test_folders_that_are_no_model_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    for place, said in (
        (str(tmp_path), "adapter_model.safetensors: must be whole safetensors"),
        ("registry:sort@champion", "must be a registry's folder (equipoise serve DIR --policy"),
    ):
        code, output = asked(place)
        assert code == 2 and said in output, output
    (tmp_path / "adapter_config.json").rename(tmp_path / "config.json")
    code, output = asked(str(tmp_path))
    assert code == 2 and output.count("\n") == 2 and "config.json" in output, output


def test_a_policy_takes_no_options_of_a_language_model(tmp_path: Path) -> None:
    code, output = asked(str(tmp_path), "--context", "100")
    assert code == 2 and "--context: must be left out for a policy" in output, output
