"""Segments, answers and the split by episode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.rewards.preferences.segments import (
    Answers,
    Segments,
    check,
    cut,
    held_out,
    join,
    leaked,
    split,
)
from tests.rewards.preferences.data import asked, behaviour


def test_segments_never_reach_over_an_end_of_an_episode() -> None:
    episode = torch.tensor([4] * 7 + [5] * 3 + [9] * 1)
    rows = torch.arange(11.0)
    found = cut({"x": rows[:, None]}, rows, episode, rows=3, least=2)
    assert found.mask.sum(1).tolist() == [3, 3, 3] and found.episode.tolist() == [4, 4, 5]
    assert found.obs["x"][..., 0].tolist() == [[0, 1, 2], [3, 4, 5], [7, 8, 9]]
    whole = cut(rows, rows, episode, rows=3)
    assert whole.mask.sum(1).tolist() == [3, 3, 1, 3, 1] and int(whole.mask.sum()) == len(rows)
    assert sorted(whole.action[whole.mask].tolist()) == rows.tolist()
    with pytest.raises(ValueError, match="least must be 1 to rows"):
        cut(rows, rows, episode, rows=3, least=4)


def test_joined_segments_are_the_same_segments() -> None:
    (a, _), (b, _) = behaviour(4, rows=5), behaviour(3, rows=8, seed=1)
    both = join([a, b])
    assert both.mask.shape == (7, 8) and not both.mask[:4, 5:].any()
    again = both.take(torch.arange(4))
    longest = int(a.mask.sum(1).max())
    assert torch.equal(again.obs, a.obs[:, :longest])
    assert torch.equal(again.mask, a.mask[:, :longest])


def test_an_episode_has_one_side_and_the_share_holds() -> None:
    first = held_out(np.arange(20_000), share=0.2, seed=3)
    assert abs(first.mean() - 0.2) < 0.01
    assert np.array_equal(first[500:600], held_out(np.arange(500, 600), share=0.2, seed=3))
    assert (first != held_out(np.arange(20_000), share=0.2, seed=4)).mean() > 0.2
    assert not held_out(np.arange(100), share=0.0, seed=0).any()


def test_no_episode_is_on_both_sides_and_a_planted_leak_is_found() -> None:
    segments, rewards = behaviour(200)
    answers, _ = asked(segments, rewards, 300)
    train, held, mixed = split(answers, segments.episode, share=0.15, seed=0)
    assert mixed == 0 and len(train) + len(held) == 300 and len(held) > 20
    assert leaked(answers, segments.episode, train, held) == []
    planted = torch.cat([train, held[:1]])
    episodes = {int(segments.episode[x[held[0]]]) for x in (answers.left, answers.right)}
    assert set(leaked(answers, segments.episode, planted, held)) == episodes


def test_a_query_about_both_sides_is_left_out() -> None:
    episode = torch.arange(50)
    side = held_out(episode.numpy(), share=0.3, seed=0)
    a, b = int(np.flatnonzero(side)[0]), int(np.flatnonzero(~side)[0])
    answers = Answers(torch.tensor([a, b]), torch.tensor([b, b]), torch.ones(2))
    train, held, mixed = split(answers, episode, share=0.3, seed=0)
    assert (train.tolist(), held.tolist(), mixed) == ([1], [], 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"left": torch.tensor([0, 9])}, "answers.left: must be the index of one of 9 segments"),
        ({"right": torch.tensor([0.0, 1.0])}, "answers.right: must be int64"),
        ({"share": torch.tensor([0.5, torch.nan])}, "leave skipped queries out"),
        ({"share": torch.tensor([0.5, 1.5])}, "answers.share: must be 0 to 1"),
        ({"weight": torch.tensor([-1.0, 1.0])}, "answers.weight: must be 0 to inf"),
        ({"margin": torch.tensor([1.0])}, r"answers.margin: must have shape \[2\]"),
    ],
)
def test_answers_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], said: str) -> None:
    two = torch.tensor([0, 1])
    good = {"left": two, "right": two + 1, "share": torch.ones(2)}
    check(Answers(**good), 9)
    with pytest.raises(ValueError, match=said):
        check(Answers(**(good | change)), 9)


def test_padding_is_cut_when_only_short_segments_are_taken() -> None:
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    x = torch.zeros(3, 3, 2)
    segments = Segments(x, x, mask, torch.arange(3))
    assert segments.take(torch.tensor([0, 1])).obs.shape == (2, 2, 2)
    assert len(segments.take(slice(0, 0))) == 0
