"""The engine without a model: its lengths, log-probabilities and times are as stated, and a run
with many of them is a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import api
from equipoise.actors.engine.engine import Engine, Sampled
from equipoise.actors.engine.sim_engine import Latency, SimEngine, ends, latency
from equipoise.types.packed import Stop

EOS, VOCABULARY = 3, 12


class Clock:
    """A clock that a sleep puts forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def engine(clock: Clock, rows: int = 64, **model: Any) -> SimEngine:
    return SimEngine(
        Latency(**model),
        rows=rows,
        vocabulary=VOCABULARY,
        eos=EOS,
        seed=5,
        clock=clock,
        sleep=clock.sleep,
    )


def drawn(one: Engine) -> Iterator[Sampled]:
    while one.live or one.waiting:
        yield from one.step()


def test_samples_are_those_of_its_policy() -> None:
    one = engine(Clock(), rows=800, median=40)
    one.submit(0, [1], 800, limit=400)
    samples = list(drawn(one))
    lengths = np.array([len(sample.token) for sample in samples])
    assert np.median(lengths) == pytest.approx(40, rel=0.15)
    assert np.std(np.log(lengths)) == pytest.approx(1.0, rel=0.1)
    assert {sample.stop for sample in samples} == {Stop.EOS, Stop.LENGTH}
    assert lengths.max() == 400
    for sample in samples[:20]:
        for count, (token, logp) in enumerate(zip(sample.token, sample.logp, strict=True), 1):
            end = ends(Latency(median=40), count)
            chance = end if token == EOS else (1 - end) / (VOCABULARY - 1)
            assert logp == pytest.approx(math.log(chance), rel=1e-5)
    tokens = np.concatenate([sample.token for sample in samples])
    others = np.bincount(tokens[tokens != EOS], minlength=VOCABULARY)
    assert others[EOS] == 0
    assert others.max() < 1.15 * others[others > 0].min()


def test_the_chances_of_all_lengths_sum_to_one() -> None:
    for model in (Latency(median=3), Latency(median=50, sigma=0.2)):
        left, total = 1.0, 0.0
        for count in range(1, 20_000):
            end = ends(model, count)
            assert 0 <= end <= 1
            total, left = total + left * end, left * (1 - end)
        assert total == pytest.approx(1.0, abs=1e-6)


def test_a_sample_depends_on_nothing_that_is_drawn_beside_it() -> None:
    alone, among = engine(Clock()), engine(Clock())
    alone.submit(7, [1], 2, limit=50)
    for group in (3, 7, 9):
        among.submit(group, [1], 2, limit=50)
    wanted = {(one.group, one.index): one.token.tolist() for one in drawn(alone)}
    found = {(one.group, one.index): one.token.tolist() for one in drawn(among)}
    assert wanted == {key: tokens for key, tokens in found.items() if key[0] == 7}


def test_steps_take_the_time_of_the_model() -> None:
    clock = Clock()
    one = engine(clock, rows=4, step_s=1.0, sample_s=0.25, prefill=10, take_s=0.5, median=1e6)
    one.submit(0, [1] * 20, 4, limit=100)
    one.submit(1, [1], 4, limit=100)
    one.step()
    assert clock.now == pytest.approx(1.0 + 4 * 0.25 + 2.0)
    assert (one.live, one.waiting) == (4, 1)  # no room for the second group
    one.step()
    assert clock.now == pytest.approx(6.0)
    list(one.take(3, {}, lambda: True))
    one.step()
    assert clock.now == pytest.approx(8.5)


def test_an_engine_that_does_not_wait_draws_when_the_time_is_over() -> None:
    clock = Clock()
    one = engine(clock, step_s=1.0, sample_s=0.0, prefill=1e9, median=1e6, waits=False)
    one.submit(0, [1], 2, limit=2)
    assert one.step() == [] and clock.now == 0.0
    list(one.take(1, {}, lambda: True))  # comes while the step is under way
    clock.now = 0.99
    assert one.step() == []
    clock.now = 1.01
    assert one.step() == []  # the first token is there, and no sample has ended
    assert one.step() == []
    clock.now = 2.1
    assert [sample.version.tolist() for sample in one.step()] == [[0, 1], [0, 1]]


def test_a_long_step_is_slept_in_parts_so_that_a_worker_can_end() -> None:
    clock = Clock()
    long = engine(clock, step_s=11.0, sample_s=0.0)
    long.submit(0, [0], 1, limit=1)
    assert [len(long.step()) for _ in range(3)] == [0, 0, 1]
    assert clock.now == pytest.approx(11.0, abs=1e-3)


def test_weights_that_were_rewritten_are_not_taken() -> None:
    one = engine(Clock())
    list(one.take(4, {}, lambda: False))
    assert one.version == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vim", "engine: must be sim or sim:step_s=0.02"),
        ("sim:steps=1", "sim: must have a known setting, got 'steps'"),
        ("sim:step_s=x", "sim: step_s: must be a number, got 'x'"),
        ("sim:waits=1", "sim: waits: must be true or false, got '1'"),
        ("sim:median=0", "sim: median: must be at least 1, got 0.0"),
        ("sim:step_s=nan", "sim: step_s: must be at least 0, got nan"),
        ("sim:sample_s=1e300", "sim: sample_s: must be at most 1, got"),
        ("sim:take_s=1e9", "sim: step_s and take_s: must be at most 60"),
    ],
)
def test_wrong_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        latency(name)


def test_names_give_a_latency_model() -> None:
    assert latency("sim") == Latency()
    assert latency("sim:median=40,waits=false") == Latency(median=40, waits=False)


def trained(out: Path, engine: str, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "algorithm": "grpo",
        "max_lag": 1,
        "evaluate_episodes": 0,
        "tensorboard": False,
        "max_completion_length": 8,
        "settings": [f"source.engine={engine}"],
    }
    run = api.start("sort", out=out, **given | options)
    with run:
        for _ in run:
            pass
    assert run.summary is not None and run.summary["status"] == "completed", run.summary
    return dict(run.summary)


@pytest.mark.thorough
def test_64_devices_take_turns_in_one_thread(tmp_path: Path) -> None:
    name = "sim:step_s=0.2,sample_s=0,median=4,waits=false"
    summary = trained(tmp_path / "run", name, on="serial", actors=64, batch=512, steps=2048)
    rows = summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert summary["updates"] == 4
    # 64 devices side by side: one after the other they would take 64 times 0.2 s for a token
    record = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert record["tokens_per_s"] > 64 * 8 / 0.2 / 10


@pytest.mark.thorough
def test_a_run_in_processes_draws_by_the_latency_model(tmp_path: Path) -> None:
    summary = trained(
        tmp_path / "run", "sim:step_s=0.01,median=4", on="process", actors=2, batch=64, steps=512
    )
    assert summary["updates"] == 8


def test_a_wrong_engine_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="source.engine: sim: must have a known setting, got 'step'"
    ):
        trained(tmp_path / "run", "sim:step=1", batch=64, steps=64)
