"""The gate of batch-invariant runs: engine and learner agree to the bit in each update."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.nets import decoding, invariant
from equipoise.nets.hub_decoder import HubConfig
from equipoise.sources import invariance
from equipoise.types import TaskSource
from tests.runtime.test_text import SMALL, trained

MODE = "source.batch_invariant=true"
GATE = "sampling/sampling_logp_difference/mean"


def _gaps(out: Path, **options: Any) -> list[float]:
    """The mean |difference| of each record, which is 0 only if no token differs."""
    settings = [*SMALL["settings"], MODE, *options.pop("settings", ())]
    given: dict[str, Any] = {"steps": 256, "settings": settings}
    trained(out, **given | options)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found = [line["metrics"] for line in lines if GATE in line["metrics"]]
    assert all(one["token_mult_prob_error"] == 1.0 for one in found if one[GATE] == 0.0)
    return [one[GATE] for one in found]


@pytest.mark.parametrize("on", ["serial", pytest.param("process", marks=pytest.mark.thorough)])
def test_engine_and_learner_agree_to_the_bit(on: Any, tmp_path: Path) -> None:
    gaps = _gaps(tmp_path / "run", on=on)
    assert len(gaps) >= 4 and set(gaps) == {0.0}


@pytest.mark.thorough
def test_they_agree_behind_new_weights_in_parts_of_a_batch(tmp_path: Path) -> None:
    more = ["source.on_update=recompute", "algorithm.micro_batch=200"]
    gaps = _gaps(tmp_path / "run", on="process", max_lag=2, actors=2, settings=more, steps=1024)
    assert gaps and set(gaps) == {0.0}


@pytest.mark.thorough
def test_conversations_agree_to_the_bit(tmp_path: Path) -> None:
    gaps = _gaps(tmp_path / "run", on="serial", env="guess")
    assert gaps and set(gaps) == {0.0}


def test_the_gate_finds_an_engine_of_other_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, go_on = invariant.ROWS, decoding.Exact.decode

    def decode(exact: decoding.Exact, *given: Any) -> Any:
        invariant.ROWS = 1
        try:
            return go_on(exact, *given)
        finally:
            invariant.ROWS = right

    monkeypatch.setattr(decoding.Exact, "decode", decode)
    monkeypatch.setattr(decoding.Exact, "check", lambda exact: None)
    gaps = _gaps(tmp_path / "run", on="serial")
    assert min(gaps) > 0.0


REFUSED = {
    "source.lora=4": "source.lora: must be left out with source.batch_invariant",
    "source.engine=sim": "source.engine: must be torch with source.batch_invariant",
    "source.engine=vllm:http://127.0.0.1:1": "source.engine: must be torch with source.batch",
    "source.weights=bf16": "source.weights: must be fp32 with source.batch_invariant",
    "placement.precision=bf16": "placement.precision: must be fp32 with source.batch_invariant",
    "placement.precision=medium": "placement.precision: must be fp32 with source.batch_invariant",
}


@pytest.mark.few(len(REFUSED))
@pytest.mark.parametrize("setting", REFUSED)
def test_what_the_mode_does_not_have_is_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=REFUSED[setting]):
        api.start("sort", out=tmp_path / "run", **{**SMALL, "settings": [MODE, setting]})
    assert not (tmp_path / "run").exists()


def test_an_algorithm_that_draws_nothing_is_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {**SMALL, "settings": [MODE], "algorithm": "sft"}
    with pytest.raises(ValueError, match=r"source.batch_invariant: must be false with an algo"):
        api.start("sort", out=tmp_path / "run", **given)


def test_a_model_of_transformers_is_refused() -> None:
    config = HubConfig(
        model_type="gpt2", vocab_size=9, hidden_size=8, max_position_embeddings=64, fields={}
    )
    source = TaskSource(task="sort", model="gpt2", batch_invariant=True)
    with pytest.raises(ValueError, match="must be false with --model gpt2, which trans"):
        invariance.check(source, config)
    invariance.check(replace(source, batch_invariant=False), config)
