"""Runs on text whose generators draw in servers of vLLM's interface: the same bits as in one
process, and what a server's faults cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.actors.engine.server_engine import EngineFailed
from equipoise.errors import WorkerFailed, spoken
from equipoise.language.architectures import config_of
from equipoise.language.models import find
from equipoise.language.tasks import make
from equipoise.nets.decoder import DecoderConfig
from equipoise.run.run import Run
from tests.actors.vllm_process import Process, served


@pytest.fixture
def sorting(tmp_path: Path) -> Iterator[Callable[..., list[Process]]]:
    """Return a function that starts servers of the model ``tiny`` for the task ``sort``."""
    tokenizer = make("sort", seed=1, arguments={}).tokenizer
    assert tokenizer is not None
    config = config_of(asdict(find("tiny", tokenizer.size).config))
    assert isinstance(config, DecoderConfig)
    with ExitStack() as held:
        yield lambda *arguments, count=1: held.enter_context(
            served(tmp_path, config, tuple(tokenizer.eos), *arguments, count=count)
        )


def settings(processes: list[Process], *more: str) -> list[str]:
    urls = ",".join(one.url for one in processes)
    return [f"source.engine=vllm:{urls}", "source.engine_versions=0.33", *more]


def start(out: Path, set_: list[str], **options: Any) -> Run:
    given: dict[str, Any] = {
        "algorithm": "grpo",
        "model": "tiny",
        "seed": 3,
        "batch": 64,
        "steps": 256,
        "max_lag": 0,
        "on": "serial",
        "evaluate_episodes": 0,
        "tensorboard": False,
        "settings": set_,
    }
    return api.start("sort", out=out, **given | options)


def trained(out: Path, set_: list[str], **options: Any) -> dict[str, Any]:
    with start(out, set_, **options) as run:
        for _ in run:
            pass
    assert run.summary is not None
    return dict(run.summary)


def end(run: Run, process: Process) -> None:
    """Kill a server at the first report, and follow the run to its end."""
    for _ in run:
        process.kill()


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_over_a_server_has_the_bits_of_one_process(
    tmp_path: Path, sorting: Callable[..., list[Process]]
) -> None:
    here = trained(tmp_path / "here", [])
    there = trained(tmp_path / "there", settings(sorting()))
    assert there["updates"] == 4 and lines(tmp_path / "there")[-1]["metrics"]["grad_norm/all"] > 0
    assert here["params_sha256"] == there["params_sha256"]


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_two_generators_with_a_server_each_have_the_bits_of_two_in_processes(
    tmp_path: Path, sorting: Callable[..., list[Process]], on: str
) -> None:
    given: dict[str, Any] = {"actors": 2, "batch": 128, "steps": 512}
    here = trained(tmp_path / "here", [], **given)
    there = trained(tmp_path / "there", settings(sorting(count=2)), on=on, **given)
    assert here["params_sha256"] == there["params_sha256"]


def test_a_run_whose_server_is_killed_goes_on_with_the_other(
    tmp_path: Path, sorting: Callable[..., list[Process]]
) -> None:
    processes = sorting(count=2)
    with start(tmp_path / "run", settings(processes), max_lag=1, steps=4096) as run:
        end(run, processes[0])
    assert run.summary is not None
    summary = dict(run.summary)
    rows = summary["rows"]
    assert summary["status"] == "completed" and summary["updates"] == 64
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert summary["lag"]["max"] <= 1
    assert any("begin again on another server" in note for note in summary["notes"]), summary
    # the learner's own gate: what drew is what it published
    gate = [one["metrics"].get("token_mult_prob_error", 1.0) for one in lines(tmp_path / "run")]
    assert max(gate) < 1.001 and len(gate) > 1


@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_run_without_a_server_ends_with_one_sentence(
    tmp_path: Path, sorting: Callable[..., list[Process]], on: str
) -> None:
    (process,) = sorting()
    said = "no server is left to draw samples: vllm at http"
    with (
        pytest.raises((EngineFailed, WorkerFailed), match=said) as got,
        start(tmp_path / "run", settings([process]), on=on, steps=40_960) as run,
    ):
        end(run, process)
    assert spoken(got.value).startswith("source.engine: no server is left")


def test_servers_that_cannot_serve_are_refused_before_the_run(
    tmp_path: Path, sorting: Callable[..., list[Process]]
) -> None:
    (process,) = sorting("--length", "9")
    for set_, said, options in (
        (settings([process]), r"source.engine: vllm at http://.* has room for 9 tokens", {}),
        (settings([process])[:1], "is version '0.33.0', tested are 0.32", {}),
        (settings([process]), "placement.actors: must be at most 1", {"actors": 2, "batch": 128}),
        (["source.engine=vllm:http://10.0.0.1:1"], "must have a token", {}),
        (["source.engine=vllm:http://127.0.0.1:1"], "could not be asked for /version", {}),
    ):
        with pytest.raises(ValueError, match=said):
            trained(tmp_path / "run", set_, **options)
        assert not (tmp_path / "run").exists()
