"""Reward functions: what they are told, what is done with what they give, and what the built-in one
gives.
"""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.language.scoring.functions import (
    RewardFunction,
    Samples,
    WrongReward,
    call,
    functions,
    load,
    spoken,
    total,
)
from equipoise.language.scoring.own import answered


def samples(*completions: Any, **columns: Any) -> Samples:
    count = len(completions)
    return Samples(
        prompts=["p"] * count,
        completions=completions,
        completion_ids=[[1, 2]] * count,
        ended=[True] * count,
        columns=columns,
    )


def test_functions_are_called_as_trl_calls_them() -> None:
    seen: dict[str, Any] = {}

    def reward(
        prompts: Any, completions: Any, completion_ids: Any, **columns: Any
    ) -> list[float | None]:
        seen.update(columns, prompts=prompts, completion_ids=completion_ids)
        return [len(one) for one in completions]

    assert call(reward, samples("a", "bc", level=[3, 4])) == [1.0, 2.0]
    assert seen == {
        "level": [3, 4],
        "prompts": ["p", "p"],
        "completion_ids": [[1, 2], [1, 2]],
        "ended": [True, True],
    }


def test_a_function_is_told_only_what_it_names() -> None:
    assert call(
        lambda completions: [None if one == "a" else True for one in completions], samples("a", "b")
    ) == [None, 1.0]


def test_async_functions_are_waited_for() -> None:
    async def reward(completions: Any, **_: Any) -> list[float]:
        return [0.5] * len(completions)

    assert call(reward, samples("a")) == [0.5]


def test_a_missing_column_is_named_with_the_nearest() -> None:
    def reward(completions: Any, answr: Any) -> list[float]:
        return []

    with pytest.raises(
        WrongReward, match="expected a column 'answr' in the task, got none; did you mean 'answer'"
    ):
        call(reward, samples("a", answer=["x"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([float("nan"), 1.0], "got nan for completion 0"),
        ([1.0, float("inf")], "got inf for completion 1"),
        ([1.0], "expected 2 rewards, one for each completion, got 1"),
        ([1.0, "2"], "got '2' for completion 1"),
        (1.0, "expected a list of 2 rewards, one for each completion, got float"),
        ({"a": 1.0, "b": 2.0}, "got dict"),
    ],
)
@pytest.mark.few(6)
def test_what_is_no_reward_is_refused(given: Any, said: str) -> None:
    with pytest.raises(WrongReward, match=said):
        call(lambda **_: given, samples("a", "b"))


def test_the_sum_is_weighted_and_leaves_none_out() -> None:
    both = [RewardFunction("m:a", 2.0), RewardFunction("m:b", -1.0)]
    assert total(both, {"m:a": [1.0, None, 3.0], "m:b": [4.0, 5.0, None]}) == [-2.0, -5.0, 6.0]
    # no function grades the second
    assert total(both, {"m:a": [1.0, None], "m:b": [1.0, None]}) == [1.0, None]
    with pytest.raises(WrongReward, match="expected a finite sum"):
        total([RewardFunction("m:a", 1e300)], {"m:a": [1e30]})


def test_reward_models_that_disagree_pay_less_with_caution() -> None:
    three = [RewardFunction("run:a", 0.5), RewardFunction("run:b", 0.5), RewardFunction("m:f", 2.0)]
    parts: dict[str, list[float | None]] = {
        "run:a": [1.0, 3.0, None],
        "run:b": [1.0, 1.0, 4.0],
        "m:f": [1.0, 1.0, 1.0],
    }
    assert total(three, parts) == [3.0, 4.0, 4.0]
    # the deviation of 3 and 1 is 1; a single model has none
    assert total(three, parts, caution=0.5) == [3.0, 3.5, 4.0]


def test_names_and_weights() -> None:
    assert functions("m:a, n.o:b") == [RewardFunction("m:a"), RewardFunction("n.o:b")]
    assert functions("m:a,m:b", (1, 0.5))[1] == RewardFunction("m:b", 0.5)
    assert functions("m:a + 0.5*m:b") == functions("m:a,m:b", (1, 0.5))
    for names, weights, said in (
        ("m", (), "expected module:function.*got 'm'"),
        ("m:a,", (), "got 'nothing'"),
        ("m:a,m:a", (), "got 'm:a' twice"),
        ("2*m:a", (3,), "reward_weights: must be empty .*, got 2[*]m:a"),
        ("m:a*m:b", (), "expected module:function.*got 'm:a[*]m:b'"),
        ("env+m:a", (), "expected module:function.*got 'env'"),
        ("m:a", (1, 2), "expected 1 numbers, one for each reward function, got 2"),
        ("m:a", (float("nan"),), "expected finite numbers, got nan"),
    ):
        with pytest.raises(ValueError, match=said):
            functions(names, weights)


def test_a_function_is_found_by_name() -> None:
    assert load("equipoise.language.scoring.own:answered") is answered
    with pytest.raises(ValueError, match="unknown function 'answred'; did you mean 'answered'"):
        load("equipoise.language.scoring.own:answred")
    with pytest.raises(ValueError, match="no module 'nowhere_at_all'"):
        load("nowhere_at_all:f")
    with pytest.raises(ValueError, match="expected a function, got str"):
        load("equipoise.language.scoring.own:__name__")


@pytest.mark.parametrize(
    ("text", "ended", "reward"),
    [
        ("012", True, 1.0),
        ("012", False, 3 / 4),  # the end is to be learned
        ("02", True, 1 / 4),  # too short: the end stands at the wrong place
        ("0122", True, 3 / 5),
        ("210", True, 2 / 4),
        ("", True, 0.0),
        ("012\N{REPLACEMENT CHARACTER}", True, 3 / 5),  # a pad was sampled
    ],
)
@pytest.mark.few(7)
def test_the_reward_of_built_in_tasks(text: str, ended: bool, reward: float) -> None:
    for completion in (text, spoken([{"role": "user", "content": "?"}], text)):
        assert answered([completion], answer=["012"], ended=[ended], other=[1]) == [
            pytest.approx(reward)
        ]
