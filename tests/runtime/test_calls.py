"""A run that learns from calls: agents over HTTP, a worker that is killed, a resume, and a run that
begins with another one's policy.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.actors.calls.ledger import REASONS
from equipoise.language.turns.own import Guess, guesses
from tests.runtime.test_cluster import pids
from tests.serving.test_proxy import free_port

SMALL: dict[str, Any] = {
    "batch": 16,
    "tensorboard": False,
    "model": "llama:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16",
    "max_completion_length": 8,
    "settings": [
        "source.arguments=alphabet=abcdefg<>?",
        "source.group_wait_s=5",
        "source.samples_at_once=16",
    ],
}


def posted(port: int, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise OSError(f"{answer.status}: {said}")
        return said
    finally:
        connection.close()


def played(port: int, number: dict[str, object]) -> None:
    """Play one game, as an agent that knows completions alone."""
    game = Guess()
    text, total, said = game.reset(number), 0.0, {}
    for _ in range(3):
        said = posted(port, "/v1/completions", {"prompt": text, "max_tokens": 1})
        turn = said["choices"][0]["text"]
        answer, reward = game.step(turn)
        total += reward
        if answer is None:
            break
        text += turn.replace("\N{REPLACEMENT CHARACTER}", "") + answer
    posted(port, "/v1/reward", {"id": said["id"], "reward": total})


@contextmanager
def agents(port: int) -> Iterator[list[str]]:
    """Agents that play until the end, whatever happens to the run; yields their errors."""
    over, errors = threading.Event(), list[str]()

    def play(first: int) -> None:
        turn = first
        while not over.is_set():
            turn += 1
            try:
                played(port, guesses()[turn % 7])
            except (OSError, http.client.HTTPException, ValueError) as error:
                errors.append(str(error))
                over.wait(0.05)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    try:
        yield errors
    finally:
        over.set()
        for one in threads:
            one.join(60)
    assert not any(one.is_alive() for one in threads)


def counted(directory: Path) -> dict[str, float]:
    """The ledger of the last report; every answer is in it once."""
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    found = {
        name.removeprefix("calls/"): value
        for name, value in last["metrics"].items()
        if name.startswith("calls/")
    }
    dropped = sum(found[one] for one in REASONS)
    assert found["calls"] == found["learned"] + dropped + found["open"]
    return found


def finished(run: Any) -> Any:
    with run:
        for _ in run:
            pass
    return run.summary


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_agents_over_http_train_a_policy_and_a_resume_goes_on(on: Any, tmp_path: Path) -> None:
    port = free_port()
    with agents(port):
        run = api.start(f"proxy:{port}", "grpo", out=tmp_path / "run", steps=64, on=on, **SMALL)
        assert finished(run)["updates"] == 4
        first = counted(tmp_path / "run")
        assert first["learned"] >= 64
        resumed = finished(api.proxy(tmp_path / "run", steps=128))
        assert resumed["status"] == "completed" and resumed["updates"] == 8
    later = counted(tmp_path / "run")
    assert later["learned"] >= first["learned"] + 64 and later["died"] + later["ended"] >= 0


@pytest.mark.thorough
def test_a_worker_that_is_killed_is_replaced_and_its_answers_are_counted(tmp_path: Path) -> None:
    port, killed = free_port(), 0
    with agents(port) as errors:
        run = api.start(f"proxy:{port}", "grpo", out=tmp_path / "run", steps=512, **SMALL)
        with run:
            for report in run:
                if report.env_steps >= 64 and not killed and (found := pids("caller 0")):
                    os.kill(found[0], signal.SIGKILL)
                    killed = time.monotonic_ns()
    assert killed and run.summary is not None and run.summary["status"] == "completed"
    assert errors  # the callers of the killed process
    assert counted(tmp_path / "run")["died"] > 0


@pytest.mark.thorough
def test_a_run_of_calls_begins_with_another_runs_policy(tmp_path: Path) -> None:
    usual: dict[str, Any] = {
        "steps": 64,
        "evaluate_episodes": 0,
        "on": "serial",
        "tensorboard": False,
    }
    finished(api.start("guess", "grpo", out=tmp_path / "guess", batch=32, **usual))
    port = free_port()
    with agents(port):
        run = api.proxy(
            tmp_path / "guess",
            at=str(port),
            steps=32,
            out=tmp_path / "calls",
            settings=["source.group_wait_s=5"],
            on="serial",
        )
        assert finished(run)["updates"] == 1
    with pytest.raises(ValueError, match="at: must be left out with .*calls"):
        api.proxy(tmp_path / "calls", at="8000")
    # a resume goes on with the limits of the run


def test_a_run_without_a_call_tells_that_it_waits(tmp_path: Path) -> None:
    port, notes = free_port(), list[str]()
    run = api.start(f"proxy:{port}", "grpo", out=tmp_path / "run", steps=64, on="serial", **SMALL)
    with run:
        for report in run:
            notes += report.notes
            assert report.cause == "Waiting for calls"
            if any(f"calls are answered at http://127.0.0.1:{port}/v1" in one for one in notes):
                break
    assert run.summary is not None
    assert run.summary["verdict"].startswith("Waiting for calls: no conversation")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"algorithm": "sft"}, "algorithm: must learn from rewards with proxy:8000, got SFT"),
        ({"actors": 2}, "placement.actors: must be 1 with proxy:8000"),
        ({"evaluate_every": 10}, "evaluation: must be left out with proxy:8000"),
        ({"settings": ["algorithm.refills=1"]}, "algorithm.refills: must be 0 with proxy:8000"),
        ({"settings": ["source.engine=sim:step_s=1"]}, "source.engine: must be torch"),
        ({"settings": ["source.stop=a"]}, "source.stop: must be left out with proxy:8000"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options: Any, sentence: str) -> None:
    algorithm = options.pop("algorithm", "grpo")
    with pytest.raises(ValueError, match=sentence):
        api.start(f"proxy:{8000}", algorithm, out="unused", **options)


def test_a_model_without_a_tokenizer_and_a_taken_address_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--model: must be a model with a tokenizer"):
        api.start(f"proxy:{free_port()}", "grpo", out=tmp_path / "a")
    from equipoise.listening import listen

    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: expected an address"):
            api.start(f"proxy:{port}", "grpo", out=tmp_path / "b", **SMALL)
    assert not [*tmp_path.iterdir()]
