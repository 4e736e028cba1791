"""Scoring: groups in, rewards out; what a function that fails costs."""

from __future__ import annotations

import pytest

from equipoise.errors import RewardsFailed
from equipoise.language.scoring.functions import RewardFunction, Samples, functions
from equipoise.language.scoring.scorer import HereScorer


def group(*completions: str, answer: str = "01") -> Samples:
    count = len(completions)
    return Samples(
        prompts=["10>"] * count,
        completions=completions,
        completion_ids=[[0]] * count,
        ended=[True] * count,
        columns={"answer": [answer] * count},
    )


def always_wrong(completions: list[str]) -> list[float]:
    if "bad" in completions:
        raise OSError("no luck")
    return [1.0] * len(completions)


OWN = [RewardFunction("equipoise.language.scoring.own:answered")]


def test_here_a_group_is_scored_at_once() -> None:
    scorer = HereScorer(OWN)
    scorer.submit(7, group("01", "10"))
    assert scorer.waiting == 1
    (scored,) = scorer.poll()
    assert (scored.key, scored.reward, scored.error) == (7, [1.0, pytest.approx(1 / 3)], "")
    assert scored.parts == {OWN[0].name: scored.reward}
    assert scorer.waiting == 0 and scorer.poll() == []


def test_here_a_failure_costs_its_group_and_three_in_a_row_the_run() -> None:
    scorer = HereScorer(functions(f"{__name__}:always_wrong"))
    for key, text in enumerate(("bad", "good", "bad", "bad")):
        scorer.submit(key, group(text))
    bad, good, *_ = scorer.poll()
    assert bad.reward is None and "OSError: no luck" in bad.error and good.reward == [1.0]
    with pytest.raises(RewardsFailed, match="as the 2 groups before did: OSError: no luck"):
        scorer.submit(4, group("bad"))
