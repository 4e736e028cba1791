"""Generators with one memory for the keys and values of all samples: the bits of room for each, and
its load in reports and in the verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from tests.runtime.test_text import SMALL, finished, shown

# texts of up to 7 + 60 tokens, 5 pages of 16
LONG: dict[str, Any] = SMALL | {"batch": 32, "steps": 96, "max_completion_length": 60}


def trained(out: Path, *settings: str, env: str = "reverse_add", **options: Any) -> dict[str, Any]:
    given = [*SMALL["settings"], *settings]
    return finished(api.start(env, out=out, **LONG | options | {"settings": given}))


@pytest.mark.parametrize("options", [{}, {"placement": "together"}], ids=["apart", "together"])
def test_a_sample_is_the_same_with_little_memory(options: dict[str, Any], tmp_path: Path) -> None:
    exact = "source.batch_invariant=true"
    wanted = trained(tmp_path / "room", exact, on="serial")
    found = trained(tmp_path / "run", exact, "source.kv_tokens=96", on="serial", **options)
    assert found["params_sha256"] == wanted["params_sha256"]
    assert shown(tmp_path / "run", "kv/given_back") > 0
    assert 0.5 < shown(tmp_path / "run", "kv/load") <= 1
    assert shown(tmp_path / "run", "sampling/sampling_logp_difference/mean") == 0


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 2])
def test_processes_give_samples_back_and_lose_none(max_lag: int, tmp_path: Path) -> None:
    found = {
        on: trained(tmp_path / on, "source.kv_tokens=96", on=on, max_lag=max_lag, steps=640)
        for on in ("serial", "process")
    }
    assert all(shown(tmp_path / on, "kv/given_back") > 0 for on in found)
    same = found["serial"]["params_sha256"] == found["process"]["params_sha256"]
    assert same or max_lag
    assert 1.0 <= shown(tmp_path / "process", "token_mult_prob_error") < 1.01


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_conversations_take_turns_in_a_small_memory(on: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", "source.kv_tokens=128", env="guess", on=on, max_completion_length=80)


@pytest.mark.thorough
def test_the_memory_may_be_chosen_by_that_of_the_machine(tmp_path: Path) -> None:
    for placement in ("apart", "together"):
        place = tmp_path / placement
        summary = trained(place, "source.kv_tokens=auto", on="serial", placement=placement)
        (said,) = [note for note in summary["notes"] if "source.kv_tokens=auto" in note]
        # of each of the 32 samples, since a machine has that
        assert f"which is {32 * 80:,} tokens" in said
        assert shown(place, "kv/given_back") == 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, r"source\.kv_tokens: must be at least 80, the longest .*\(67 tokens\) .*16, got 79; "),
    ({"algorithm": "sft"}, r"kv_tokens: must be 0 with an algorithm that draws no tokens, got 79"),
    ({"engine": "sim"}, r"kv_tokens: must be 0 with source\.engine=sim, which has its own memory"),
    ({"settings": ["source.kv_tokens=-1"]}, r"kv_tokens: expected .*at least 0"),
    ({"settings": ["source.kv_tokens=some"]}, r"kv_tokens: expected .*auto"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_cannot_work_is_one_sentence(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    options = LONG | given
    options["settings"] = ["source.kv_tokens=79", *given.get("settings", ())]
    with pytest.raises(ValueError, match=words) as caught:
        api.start("sort", out=tmp_path / "run", **options)
    assert "\n" not in str(caught.value)


def test_no_more_memory_is_taken_than_samples_can_use(tmp_path: Path) -> None:
    huge, none = "source.kv_tokens=9000000000000000", "source.batch_invariant=true"
    found = trained(tmp_path / "run", huge, none, on="serial", steps=32)
    assert found["rows"]["sampled"] == 32


@pytest.mark.parametrize("kv", [0, 9 * 10**15])
def test_keys_and_values_that_do_not_fit_are_refused_before_a_worker_begins(
    kv: int, tmp_path: Path
) -> None:
    settings = ["source.samples_at_once=1000000000000", f"source.kv_tokens={kv}"]
    words = r"source\.samples_at_once: expected a run that fits in .* got 1,000,000,000,000, .*keys"
    with pytest.raises(ValueError, match=words) as caught:
        api.start("sort", out=tmp_path / "run", **LONG | {"max_lag": None, "settings": settings})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("before", "now"), [(0, 96), (96, 0)])
def test_a_resume_neither_begins_nor_ends_a_shared_memory(
    before: int, now: int, tmp_path: Path
) -> None:
    trained(tmp_path / "run", f"source.kv_tokens={before}", on="serial", steps=32)
    with pytest.raises(ValueError, match=rf"kv_tokens: expected .*, got {now}; for the other"):
        api.resume(tmp_path / "run", on="serial", settings=[f"source.kv_tokens={now}"])
    assert (tmp_path / "run" / "summary.json").exists()
