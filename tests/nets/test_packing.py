"""Slots become packed tokens, and packed tokens are cut, with nothing lost and nothing of one
sample in another.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.nets.packing import groups_of, pack, shuffled, take, under_budget
from equipoise.types import PACKED_SAMPLES, PACKED_TOKENS, Batch, Packed, Trajectory

P, C = 5, 4


def slots(groups: list[tuple[int, list[int]]], lost: tuple[int, ...] = ()) -> Trajectory:
    """``groups``: (tokens of the prompt, tokens of each sample); token numbers say where they are
    from.
    """
    samples = [
        (g, asked, length) for g, (asked, lengths) in enumerate(groups) for length in lengths
    ]
    count = len(samples)
    group, asked, length = (torch.tensor(x) for x in zip(*samples, strict=True))
    number = torch.arange(count)
    token = 1000 * (number[:, None] + 1) + torch.arange(C)
    mask = ~torch.isin(group, torch.tensor(lost, dtype=torch.int64))
    return Trajectory(
        obs={},
        first=torch.ones(2, count, dtype=torch.bool),
        action={"token": token[None]},
        behaviour={
            "logp": -token[None].float(),
            "version": 7 + token[None] % 1000,
            "length": length[None],
            "stop": (1 + number % 2)[None],
            "chosen": (torch.arange(C) < length[:, None])[None],
        },
        reward=(number + 0.5)[None].float(),
        mask=mask[None],
        bootstrap=torch.zeros(1, count, dtype=torch.bool),
        version=torch.full((1, count), 7),
        state={},
        context={
            "stream": number,
            "start": number * 0,
            "task": 50 + group,
            "group": 90 + group,
            "refills": group % 2,
            "prompt_length": asked,
            "prompt": 100 * (group[:, None] + 1) + torch.arange(P),
        },
    )


def packed(groups: list[tuple[int, list[int]]], lost: tuple[int, ...] = ()) -> Packed:
    return pack(slots(groups, lost))


def test_a_groups_prompt_stands_once_before_its_samples() -> None:
    data = packed([(2, [3, 1]), (1, [2])])
    assert data.token.tolist() == [100, 101, 1000, 1001, 1002, 2000, 200, 3000, 3001]
    assert data.position.tolist() == [0, 1, 2, 3, 4, 2, 0, 1, 2]
    assert data.sample.tolist() == [-1, -1, 0, 0, 0, 1, -1, 2, 2]
    assert data.chosen.tolist() == [False, False, True, True, True, True, False, True, True]
    assert data.logp.tolist() == [0, 0, -1000, -1001, -1002, -2000, 0, -3000, -3001]
    assert data.version.tolist() == [-1, -1, 7, 8, 9, 7, -1, 7, 8]
    assert data.reward.tolist() == [0, 0, 0, 0, 0.5, 1.5, 0, 0, 2.5]
    assert [getattr(data, name).tolist() for name in PACKED_SAMPLES] == [
        [2, 2, 1],
        [0, 0, 1],
        [1, 2, 1],
        [50, 50, 51],
        [0, 0, 1],
    ]
    assert groups_of(data).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_a_group_that_was_lost_is_left_out() -> None:
    data = packed([(2, [3, 1]), (1, [2])], lost=(0,))
    assert (
        data.token.tolist() == [200, 3000, 3001]
        and data.group.tolist() == [0]
        and data.sample.tolist() == [-1, 0, 0]
    )


def test_where_all_are_lost_there_is_a_sample_that_nothing_is_learned_from() -> None:
    data = packed([(2, [3, 1])], lost=(0,))
    assert len(data.token) == 5 and not data.chosen.any()


def of(data: Packed) -> Batch:
    keys = torch.zeros(len(data.group), 2).numpy()
    return Batch(
        data=data,
        keys=keys,
        weight=torch.ones(len(data.group)),
        targets={"again": data.token.clone()},
    )


def seen(data: Packed) -> set[tuple[Any, ...]]:
    """What every sample is, with its prompt."""
    found = set()
    group = groups_of(data)
    for sample in range(len(data.group)):
        mine = (data.sample == sample) | ((data.sample < 0) & (group == data.group[sample]))
        found.add(
            tuple(
                tuple(getattr(data, name)[mine].tolist())
                for name in PACKED_TOKENS
                if name != "sample"
            )
            + tuple(int(getattr(data, name)[sample]) for name in PACKED_SAMPLES if name != "group")
        )
    return found


GROUPS = [(2, [3, 1, 4]), (5, [2]), (1, [1, 1, 1, 4]), (3, [4, 4])]


@pytest.mark.parametrize("budget", [1, 6, 9, 14, 20])
def test_cut_under_a_budget_every_sample_is_there_once_with_its_prompt(budget: int) -> None:
    batch = of(packed(GROUPS))
    parts = under_budget(batch, budget)
    assert len(parts) > 1
    found = [seen(part.data) for part in parts]
    assert set.union(*found) == seen(batch.data) and sum(map(len, found)) == 10
    for part in parts:
        assert torch.equal(part.targets["again"], part.data.token)
        assert (
            part.data.group[0] == 0
            and (part.data.group.diff() >= 0).all()
            and (part.data.group.diff() <= 1).all()
        )
        assert len(part.data.token) <= budget or len(part.data.group) == 1


@pytest.mark.parametrize("budget", [0, 36])
def test_what_fits_is_not_copied(budget: int) -> None:
    batch = of(packed(GROUPS))
    (only,) = under_budget(batch, budget)
    assert only is batch


def test_shuffled_parts_are_of_whole_groups() -> None:
    batch = of(packed(GROUPS))
    parts = list(shuffled(batch, 2, torch.Generator().manual_seed(0)))
    assert sorted(task for part in parts for task in set(part.data.task.tolist())) == [
        50,
        51,
        52,
        53,
    ]
    assert set.union(*(seen(part.data) for part in parts)) == seen(batch.data)


def test_where_groups_are_fewer_than_parts_the_others_have_no_weight() -> None:
    parts = list(shuffled(of(packed([(2, [3, 1])])), 2, torch.Generator().manual_seed(0)))
    assert len(parts) == 2 and parts[0].data.chosen.any()
    assert not parts[1].data.chosen.any() and not parts[1].targets["again"].any()


def test_a_piece_of_a_group_has_its_prompt() -> None:
    cut = take(of(packed(GROUPS)), [torch.tensor([2]), torch.tensor([8, 9])]).data
    assert cut.token.tolist() == [
        100,
        101,
        3000,
        3001,
        3002,
        3003,
        400,
        401,
        402,
        *range(9000, 9004),
        *range(10000, 10004),
    ]
    assert cut.sample.tolist() == [
        -1,
        -1,
        0,
        0,
        0,
        0,
        -1,
        -1,
        -1,
        1,
        1,
        1,
        1,
        2,
        2,
        2,
        2,
    ] and cut.group.tolist() == [0, 1, 1]
