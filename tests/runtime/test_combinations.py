"""Settings that exclude or need each other: one check reads the facts of all fields, and the
sentences are whole.
"""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass, replace
from typing import Annotated, Any

import pytest

from equipoise import api
from equipoise.facts import Excludes, Needs, Read, facts
from equipoise.programs import fields
from equipoise.programs.combinations import combination_problems
from equipoise.programs.refusals import check
from equipoise.types import EvaluationSettings, Placement, Program


def program(algorithm: str = "impala", **settings: Any) -> Program:
    return api.program("CartPole-v1", algorithm, recipe=False, **settings)


def with_placement(**changes: Any) -> Program:
    made = program(actors=2, max_lag=1)
    return replace(made, placement=replace(made.placement, **changes))


def test_a_field_excludes_and_needs() -> None:
    @dataclass(frozen=True)
    class Own(EvaluationSettings):
        pause: Annotated[
            int,
            Excludes("every", 3, why="with every={}, which has no pauses"),
            Needs("episodes", why="of 1"),
        ] = 0

    made = replace(program(), evaluation=Own(pause=2, every=3, episodes=0))
    assert [one for one in combination_problems(made) if "pause" in one] == [
        "evaluation.pause: expected 0 with every=3, which has no pauses, got 2",
        "evaluation.pause: expected evaluation.episodes of 1, got 0",
    ]
    assert combination_problems(replace(made, evaluation=Own(every=3, episodes=5))) == []


@pytest.mark.parametrize("kind", [Read, Excludes, Needs])
def test_a_misspelt_setting_of_a_fact_is_told_at_once(kind: Any) -> None:
    """Also while the field has its default."""
    pause = ("pause", Annotated[int, kind("episode", why="of 1")], 0)
    own: Any = make_dataclass("Own", [pause], bases=(EvaluationSettings,), frozen=True)
    with pytest.raises(
        ValueError,
        match=r"^evaluation.pause: expected a field of the same class, .* in "
        rf"{kind.__name__}\(...\), got 'episode'; did you mean 'episodes'",
    ):
        combination_problems(replace(program(), evaluation=own()))


def test_every_other_setting_of_a_fact_is_there() -> None:
    """A mistyped name would exclude nothing, without a word."""
    found = 0
    for _, cls in fields.rooms(replay=True):
        for fact in facts(cls).values():
            for one in (*fact.excludes, *fact.needs):
                found += 1
                assert one.setting in facts(cls) or one.setting == "source.task", (
                    fact.name,
                    one.setting,
                )
                assert one.why and not one.why.endswith(".")
    assert found > 15


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"shard": "fsdp", "learners": 2, "compile": True},
            "shard: expected none with placement.compile, whose",
        ),
        (
            {"shard": "fsdp", "learners": 2, "device": "cuda", "precision": "fp16"},
            "shard: expected none with precision fp16",
        ),
        (
            {"graphs": True, "learners": 2, "device": "cuda"},
            "graphs: expected false with 2 learners, whose sums",
        ),
        (
            {"balance": "auto", "inference": "central"},
            "balance: expected off with inference=central, whose .*, got 'auto'",
        ),
        (
            {"nvtx": True, "trace_s": 5.0},
            "nvtx: expected false with placement.trace_s=5.0, which keeps .*, got true",
        ),
    ],
)
def test_what_cannot_go_together_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"placement\.{sentence}"):
        check(with_placement(**changes))


def test_what_nothing_reads_excludes_nothing() -> None:
    assert combination_problems(with_placement(shard="fsdp", compile=True)) == []


def test_every_choice_is_checked() -> None:
    """Of each field with a ``Literal``, by the one function that checks ranges."""
    with pytest.raises(
        ValueError, match=r"evaluation\.on_alarm: expected one of warn, stop, got 'shout'"
    ):
        check(replace(program(), evaluation=EvaluationSettings(on_alarm="shout")))  # type: ignore[arg-type]
    assert Placement().balance == "off"
