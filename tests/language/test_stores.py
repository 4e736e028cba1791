"""A store of texts as a task of pairs: a pair of each answered query, by annotators' weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.api.pinning import pinned, pinned_like
from equipoise.feedback import Choice, Store
from equipoise.feedback.items import text_bytes
from equipoise.feedback.records import GivenAnswer, Pair
from equipoise.language import preferences, stores, tasks
from tests.rewards.preferences.answered import clips

SHAPE = "llama:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,max_position_embeddings=24"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)


def texts(folder: str, answers: dict[str, dict[int, Choice]], count: int = 40) -> Store:
    """A store of ``count`` pairs "a" and "b"; ``answers``: by annotator, of pairs by number."""
    store = Store.create(folder)
    store.import_pairs(
        [
            Pair(
                text_bytes(f"q{number}="),
                text_bytes("aa"),
                text_bytes("b"),
                tuple(
                    GivenAnswer(name, given[number])
                    for name, given in answers.items()
                    if number in given
                ),
            )
            for number in range(count)
        ]
    )
    return store


def rows_of(folder: str, upto: int | None = None) -> dict[str, Any]:
    return {row["prompt"]: row for _, row in stores.rows(folder, upto)}  # type: ignore[index]


def test_a_row_has_the_share_of_the_answers_that_prefer_the_chosen_one() -> None:
    answers: dict[str, dict[int, Choice]] = {
        "ann": {0: "left", 1: "right", 2: "equal", 3: "cannot_tell", 4: "left"},
        "ben": {0: "left", 4: "right"},
        "eve": {4: "left"},
    }
    texts("./store", answers, 6).close()
    found = rows_of("./store")
    assert found.keys() == {"q0=", "q1=", "q2=", "q4="}
    assert [found[f"q{n}="]["chosen"] for n in (0, 1, 4)] == ["aa", "b", "aa"]
    assert [found[f"q{n}="]["share"] for n in (0, 1, 2)] == [1.0, 1.0, 0.5]
    assert found["q4="]["share"] == pytest.approx(2 / 3)
    assert rows_of("./store", 3).keys() == {"q0=", "q1="}
    ((number, row), *_) = stores.rows("./store", None)
    (example,) = preferences.examples([(number, row)], "store", "query")
    assert example.columns["share"] == 1.0 and not example.columns["tie"]


def test_a_repeat_counts_for_its_annotator_alone() -> None:
    given: list[tuple[str, Choice]] = [("ann", "left"), ("ben", "left"), ("ann", "right")]
    answers = tuple(GivenAnswer(*one) for one in given)
    sides = text_bytes("aa"), text_bytes("b")
    with Store.create("./store") as store:
        store.import_pairs([Pair(text_bytes(f"q{n}="), *sides, answers) for n in range(2)])
    assert {row["share"] for row in rows_of("./store").values()} == {1.0}


def test_a_spammer_counts_for_nothing() -> None:
    right: dict[int, Choice] = dict.fromkeys(range(40), "left")
    spam: dict[int, Choice] = {n: "left" if n % 2 else "right" for n in range(40)}
    texts("./store", {"ann": right, "ben": right, "spammer": spam}).close()
    found = rows_of("./store")
    assert {row["share"] for row in found.values()} == {1.0}


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ({}, "must have 2 answered queries about texts or more, got 0"),
        ({"ann": {0: "left"}}, "must have 2 answered queries about texts or more, got 1"),
        ({"ann": dict.fromkeys(range(9), "equal")}, "must have answers that prefer a side, got 9"),
    ],
)
def test_a_store_with_nothing_to_learn_is_refused(answers: Any, sentence: str) -> None:
    texts("./store", answers).close()
    with pytest.raises(ValueError, match=rf"^\./store: {sentence}"):
        tasks.make("./store", seed=0, rows=preferences.examples)


def test_what_is_no_store_of_texts_is_refused() -> None:
    clips(Path("clips"), 60)
    with pytest.raises(ValueError, match=r"about texts, got \d+ about clips; name their env"):
        eq.train("clips", "reward_model", model=SHAPE, out="run")
    texts("./store", {"ann": {0: "left", 1: "right"}}).close()
    for upto in ("x", -1, True, 1.5):
        with pytest.raises(ValueError, match="upto: must be a row of answers"):
            tasks.make("./store", seed=0, arguments={"upto": upto}, rows=preferences.examples)
    with pytest.raises(ValueError, match="unknown argument 'held_out'"):
        tasks.make("./store", seed=0, arguments={"held_out": "x"}, rows=preferences.examples)
    # a name without a slash, which trust.py takes for no path, is not opened
    assert not stores.is_store("store") and stores.as_path("store") == "./store"
    assert stores.as_path("sort") == "sort" and stores.as_path("./store") == "./store"
    Path("store/feedback.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match=r"store/feedback\.sqlite"):
        tasks.make("./store", seed=0, rows=preferences.examples)
    assert not Path("run").exists()


def test_a_share_in_a_file_must_be_a_half_to_1() -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    for share in (0.4, 1.1, "x", True):
        with pytest.raises(ValueError, match="share: must be 0.5 to 1"):
            preferences.examples([(1, row | {"share": share})], "file", "line")


@pytest.mark.thorough
def test_a_run_keeps_the_answers_that_it_began_with() -> None:
    left: dict[int, Choice] = {n: "left" if n % 3 else "equal" for n in range(30)}
    store = texts("./store", {"ann": left})
    options: Any = {
        "model": SHAPE,
        "batch": 8,
        "actors": 1,
        "max_lag": 0,
        "evaluate_episodes": 0,
        "settings": {"optimizer.learning_rate": 1e-3, "schedule.schedule_steps": 128},
    }
    asked = eq.program("store", "reward_model", steps=64, **options)
    fixed = pinned(asked, Path)
    assert pinned(fixed, Path) == fixed == pinned_like(asked, fixed) != asked
    whole = eq.train(asked, out="whole", on="serial")
    store.import_pairs(
        [
            Pair(
                text_bytes("more="),
                text_bytes("aa"),
                text_bytes("b"),
                (GivenAnswer("ann", "right"),),
            )
        ]
    )
    store.close()
    said = json.loads(Path("whole/run.json").read_text())
    assert said["program"]["source"]["arguments"] == ["upto=30"]
    eq.resume("whole", steps=128)
    again = eq.train(
        eq.program("store", "reward_model", steps=128, **options), out="new", on="serial"
    )
    assert json.loads(Path("new/run.json").read_text())["program"]["source"]["arguments"] == [
        "upto=31"
    ]
    assert again.summary["params_sha256"] != whole.summary["params_sha256"]
    score = eq.score("whole", ["q1="] * 2, ["aa", "b"])
    assert len(score) == 2
