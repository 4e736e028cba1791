"""Built-in tasks: their inputs, their answers, and which of them are held out."""

from __future__ import annotations

import pytest

from equipoise.language.scoring.functions import load
from equipoise.language.tasks import BUILT_IN, built_in


@pytest.mark.parametrize(
    ("name", "inputs"), [("sort", 729), ("reverse_add", 10_000), ("copy", 1092)]
)
@pytest.mark.few(3)
def test_three_quarters_are_trained_and_the_others_held_out(name: str, inputs: int) -> None:
    task = built_in(name, seed=3)
    train, held_out = ({one.prompt for one in part} for part in (task.train, task.held_out))
    assert len(train) == len(task.train) == round(0.75 * inputs)
    assert len(held_out) == inputs - len(train) and not train & held_out
    if name == "sort":
        assert all(
            [one.prompt for one in part] == sorted(str(one.prompt) for one in part)
            for part in (task.train, task.held_out)
        )
    assert task == built_in(name, seed=3)
    assert task.held_out != built_in(name, seed=4).held_out


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.few(3)
def test_the_answer_fits_and_has_the_whole_reward(name: str) -> None:
    task = built_in(name, seed=0)
    assert task.tokenizer is not None
    reward = load(task.reward)
    for one in task.held_out[:200]:
        tokens = task.tokenizer.encode(one.completion)
        assert len(tokens) + len(task.tokenizer.eos) < task.completion
        assert task.tokenizer.decode(task.tokenizer.prompt(one.prompt)) == one.prompt
        assert reward(
            completions=[one.completion], ended=[True], answer=[one.columns["answer"]]
        ) == [1.0]


def test_what_the_answers_are() -> None:
    def answers(name: str) -> dict[str, str]:
        task = built_in(name, seed=0)
        return {str(one.prompt): one.completion for one in (*task.train, *task.held_out)}

    assert answers("sort")["201102>"] == "001122"
    assert answers("reverse_add")["58+64="] == "221" and answers("reverse_add")["07+05="] == "210"
    assert answers("copy")["abca>"] == "abca" and answers("copy")["c>"] == "c"


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown task 'srot'; did you mean 'sort'"):
        built_in("srot", seed=0)
