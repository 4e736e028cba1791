"""Verdicts on runs on text: what each picture of generators, rewards and learner must be called."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from equipoise.balance.shares import Shares
from equipoise.balance.text_verdict import KEPT, SENTENCES, TextRun, live_samples, text_verdict
from equipoise.balance.verdict import Cause, Setup, verdict


def generator(
    worked: float = 0.0,
    starved: float = 0.0,
    blocked: float = 0.0,
    fetch: float = 0.0,
    steps: float = 100.0,
) -> Shares:
    """10 s of a generator: ten groups in ``steps`` steps."""
    return Shares(
        worked=worked,
        starved=starved,
        blocked=blocked,
        done=10.0,
        parts={"fetch": fetch, "decode": worked - fetch},
        counts={"decode": steps},
        kind="generator",
        side="sampling",
    )


def learner(worked: float, starved: float = 0.0, publish: float = 0.0) -> Shares:
    return Shares(
        worked=worked, starved=starved, done=10.0, parts={"publish": publish}, side="learning"
    )


# 10 groups of 8 samples of 20 tokens in 100 steps: 16 samples at once
WRITING = TextRun(group=8, length=20.0, room=16, max_lag=1)
CASES: dict[str, tuple[Shares, Shares, TextRun, str, list[str]]] = {
    "the generators draw all the while": (
        generator(worked=10),
        learner(4, starved=6),
        WRITING,
        "Generation-bound",
        ["60 %", "more generators (--actors)"],
    ),
    "most samples have ended": (
        generator(worked=10, steps=1000.0),
        learner(4, starved=6),
        WRITING,
        "Long tail",
        ["draws 1.6 samples at once, of 16", "60 %", "raise --max-lag above 1"],
    ),
    "most samples have ended, in turn": (
        generator(worked=5, blocked=5, steps=1000.0),
        learner(5, starved=5),
        TextRun(group=8, length=20.0, room=16, max_lag=0),
        "Long tail",
        ["raise --max-lag above 0"],
    ),
    "most samples have ended, and the lag is free": (
        generator(worked=10, steps=1000.0),
        learner(4, starved=6),
        TextRun(group=8, length=20.0, room=16, max_lag=None),
        "Long tail",
        ["use smaller batches, so that"],
    ),
    "keys and values fill the memory": (
        generator(worked=10, steps=1000.0),
        learner(4, starved=6),
        replace(WRITING, kv_load=0.85, given_back=0.125),
        "KV memory",
        [
            "draws 1.6 samples at once, of 16",
            "fill 85 %",
            "given back 0.12 times",
            "raise source.kv_tokens",
        ],
    ),
    "keys and values fill the memory, and all samples are drawn": (
        generator(worked=10),
        learner(4, starved=6),
        replace(WRITING, kv_load=0.85),
        "Generation-bound",
        ["60 %"],
    ),
    "keys and values leave most of the memory": (
        generator(worked=10, steps=1000.0),
        learner(4, starved=6),
        replace(WRITING, kv_load=0.3),
        "Long tail",
        ["draws 1.6 samples at once"],
    ),
    "rewards are late": (
        generator(worked=4, starved=6),
        learner(4, starved=6),
        WRITING,
        "Reward-bound",
        ["wait 60 % of the time for rewards", "make the reward functions faster"],
    ),
    "the learner is slow": (
        generator(worked=4, blocked=6),
        learner(10),
        WRITING,
        "Learning-bound",
        ["wait 60 % of the time for the learner", "fewer generators"],
    ),
    "publishing is slow": (
        generator(worked=8, blocked=2, fetch=0.5),
        learner(10, publish=3.0),
        WRITING,
        "Publish-bound",
        ["30 % of the learner's time", "5 % of the generators'", "source.weights=bf16"],
    ),
    "taking weights is slow": (
        generator(worked=10, fetch=4.0),
        learner(5, starved=5),
        WRITING,
        "Publish-bound",
        ["40 % of the generators'"],
    ),
    "devices are lent": (
        generator(worked=10),
        learner(9, starved=1),
        TextRun(group=8, length=20.0, room=16, lent=2),
        "Lent",
        ["2 of the learners' devices generate", "waits 10 %"],
    ),
    "both are busy": (generator(worked=10), learner(10), WRITING, "Balanced", []),
    "both wait in turn": (
        generator(worked=5, blocked=5),
        learner(5, starved=5),
        TextRun(group=8, length=20.0, room=16, max_lag=0),
        "Lockstep",
        ["--max-lag"],
    ),
    "nothing is known about lengths": (
        generator(worked=10, steps=1000.0),
        learner(4, starved=6),
        TextRun(group=8, length=None, room=16),
        "Generation-bound",
        [],
    ),
}


def judged(one: Shares, other: Shares, writing: TextRun, advice: str | None = None) -> str:
    balance = {"generator 0": one, "learner": other}
    found = verdict(balance, Setup(max_lag=writing.max_lag))
    return text_verdict(found, balance, writing, advice=advice).sentence


@pytest.mark.parametrize("name", CASES)
def test_a_picture_has_its_name(name: str) -> None:
    one, other, writing, cause, said = CASES[name]
    sentence = judged(one, other, writing)
    assert sentence.startswith(cause) and sentence.endswith("."), sentence
    assert all(part in sentence for part in said), sentence


def test_what_the_model_advises_stands_where_generators_help() -> None:
    one, other, writing, _, _ = CASES["the generators draw all the while"]
    assert judged(one, other, writing, "--actors 4 would do").endswith("; --actors 4 would do.")
    one, other, writing, _, _ = CASES["rewards are late"]
    assert "--actors" not in judged(one, other, writing, "--actors 4 would do")


def test_waits_for_cores_and_single_threads_are_named_as_for_envs() -> None:
    one, other = generator(worked=10), learner(4, starved=6)
    balance = {"generator 0": one, "learner": other}
    for setup in (Setup(one_thread=True), Setup(offline=True)):
        found = verdict(balance, setup)
        assert text_verdict(found, balance, WRITING) == found and found.cause in KEPT
    early = verdict({}, Setup())
    assert text_verdict(early, {}, WRITING) == early


def test_samples_at_once_are_tokens_over_steps() -> None:
    balance = {f"generator {number}": generator(worked=10) for number in range(3)}
    assert live_samples(balance, WRITING) == 16.0
    assert live_samples({}, WRITING) is None


def test_every_sentence_is_of_a_cause() -> None:
    assert set(SENTENCES) <= set(get_args(Cause))
    assert {cause for _, _, _, cause, _ in CASES.values()} >= set(SENTENCES)


def both(
    drawing: float,
    learning: float,
    *,
    publish: float = 0.0,
    preempted: float = 0.0,
    starved: float = 0.0,
    steps: float = 100.0,
) -> dict[str, Shares]:
    """10 s of a learner that generates."""
    return {
        "learner": Shares(
            worked=drawing + learning + publish,
            preempted=preempted,
            starved=starved,
            done=10.0,
            parts={"decode": drawing, "loss": learning, "publish": publish, "fetch": 0.0},
            counts={"decode": steps},
            side="learning",
        )
    }


@pytest.mark.parametrize(
    ("balance", "cause", "said"),
    [
        (both(7, 3), "Generation-bound", "draws samples 70 % of the time, and learns 30 %"),
        (both(7, 3, steps=1000.0), "Long tail", "draws 1.6 samples at once, of 16"),
        (both(3, 7), "Learning-bound", "learns 70 % of the time"),
        (both(3, 3, starved=4.0), "Reward-bound", "waits 40 % of the time for rewards"),
        (both(4, 4, publish=2.0), "Publish-bound", "20 % of the learner's time"),
        (both(4, 4, preempted=2.0), "CPU-bound", "wait 20 % of the time for a core"),
    ],
)
def test_a_learner_that_generates_has_verdicts_of_its_own(
    balance: dict[str, Shares], cause: str, said: str
) -> None:
    run = TextRun(group=8, length=20.0, room=16, max_lag=0, together=True)
    found = text_verdict(verdict(balance, Setup()), balance, run)
    assert found.cause == cause and said in found.sentence, found.sentence


def test_a_memory_that_is_full_holds_a_learner_that_generates() -> None:
    balance = both(7, 3, steps=1000.0)
    run = TextRun(group=8, length=20.0, room=16, together=True, kv_load=0.9, given_back=0.25)
    found = text_verdict(verdict(balance, Setup()), balance, run)
    assert found.cause == "KV memory" and "given back 0.25 times" in found.sentence


def test_a_learner_that_has_just_begun_to_generate_is_not_judged() -> None:
    balance = {"learner": Shares(worked=1.0, done=1.0, side="learning")}
    found = verdict(balance, Setup())
    run = TextRun(group=8, length=20.0, room=16, together=True)
    assert text_verdict(found, balance, run) == found
