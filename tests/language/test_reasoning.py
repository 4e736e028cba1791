"""Tasks of reasoning-gym: questions from a seed, and its own score."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from equipoise.language import tasks
from equipoise.language.scoring.functions import Samples, call, load

SMALL = {"size": 20, "held_out": 5, "max_terms": 3}


@pytest.mark.thorough  # the import of reasoning-gym takes seconds
def test_questions_of_a_seed_and_their_score() -> None:
    pytest.importorskip("reasoning_gym")
    task = tasks.make("reasoning_gym:chain_sum", seed=3, arguments=SMALL)
    assert (len(task.train), len(task.held_out)) == (20, 5) and task == tasks.make(
        "reasoning_gym:chain_sum", seed=3, arguments=SMALL
    )
    assert task.train != tasks.make("reasoning_gym:chain_sum", seed=4, arguments=SMALL).train
    one = task.held_out[0]
    assert task.tokenizer is not None
    assert task.tokenizer.decode(task.tokenizer.prompt(one.prompt)) == one.prompt
    texts = [
        one.completion,
        f"so <answer> {one.completion} </answer>",
        "nothing",
        f"{one.completion} or so",
    ]
    columns = {name: [value] * len(texts) for name, value in one.columns.items()}
    count = len(texts)
    samples = Samples(
        prompts=[one.prompt] * count,
        completions=texts,
        completion_ids=[[]] * count,
        ended=[True] * count,
        columns=columns,
    )
    given: Any = call(load(task.reward), samples)
    assert given[:3] == [1.0, 1.0, 0.0] and 0 < given[3] < 1


@pytest.mark.thorough
def test_no_question_that_is_held_out_is_learned() -> None:
    pytest.importorskip("reasoning_gym")
    # of 200 that there are
    few = {"size": 300, "held_out": 50, "min_terms": 2, "max_terms": 2, "max_digits": 1}
    task = tasks.make("reasoning_gym:chain_sum", seed=3, arguments=few)
    assert len(task.held_out) == 50 and 0 < len(task.train) < 300
    assert not {one.prompt for one in task.train} & {one.prompt for one in task.held_out}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("chain_smu", {}, "unknown task 'reasoning_gym:chain_smu'; did you mean 'chain_sum'"),
        ("chain_sum", {"max_term": 3}, "unknown argument 'max_term'; did you mean 'max_terms'"),
        ("chain_sum", {"size": 0}, "size: expected at least 1 question, got 0"),
        ("chain_sum", {"allow_negation": "no"}, "allow_negation: expected true or false, got 'no'"),
        ("chain_sum", {"seed": "x"}, "seed: expected a whole number, got 'x'"),
        ("chain_sum", {"held_out": "5k"}, "held_out: expected at least 1 question, got '5k'"),
        ("chain_sum", {"min_terms": 9, "max_terms": 3}, "expected other settings than .*max_terms"),
    ],
)
def test_what_is_wrong_is_named(name: str, arguments: dict[str, Any], said: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=said):
        tasks.make(f"reasoning_gym:{name}", seed=0, arguments=arguments)


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match="task 'reasoning_gym:chain_sum' needs reasoning-gym: "):
        tasks.make("reasoning_gym:chain_sum", seed=0)
