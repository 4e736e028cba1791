"""Text in a queue's slots as ``Packed`` tokens, and packed tokens cut into parts.

A slot has a row for each sample of a group, since a run counts samples; the tokens of a sample lie
along an axis of its leaves, whose length is the most tokens of a sample. ``pack`` leaves out what
is not there, and keeps a group's prompt once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from equipoise import tree
from equipoise.types import (
    PACKED_SAMPLES,
    PACKED_TOKENS,
    Batch,
    Packed,
    Stop,
    Trajectory,
    by_field,
)


def pack(data: Trajectory) -> Packed:
    """The samples of a batch of slots, T = 1. A sample with ``mask`` False is left out: its group
    was lost.

    ``action``: token [1, B, C]; ``behaviour``: logp, version and chosen [1, B, C], length and stop
    [1, B]; ``context``: prompt [B, P], prompt_length, task, group and refills [B], and of
    conversations retokenized [B]. Conversations whose history is rendered again have also
    ``behaviour`` part [1, B, C].
    """
    there = data.mask[0]
    # one sample without a chosen token, so that a step has something to go over
    if not there.any():
        there = torch.zeros_like(there)
        there[0] = True
    which = there.nonzero().squeeze(-1)
    behaviour = {name: x[0, which] for name, x in data.behaviour.items()}
    context = {name: x[which] for name, x in data.context.items()}
    token, prompt = data.action["token"][0, which], context["prompt"]
    samples, most_prompt, most = len(which), prompt.shape[1], token.shape[1]
    group = torch.unique_consecutive(context["group"], return_inverse=True)[1]
    first = torch.ones(samples, dtype=torch.bool, device=group.device)
    first[1:] = group[1:] != group[:-1]
    place = torch.arange(most_prompt + most, device=group.device)
    asked, length = context["prompt_length"], behaviour["length"]
    in_prompt = (place < asked[:, None]) & first[:, None]
    after = place - most_prompt  # of the sample
    in_sample = (after >= 0) & (after < length[:, None])
    kept = in_prompt | in_sample

    def laid(x: Tensor, fill: float = 0) -> Tensor:
        """Numbers [M, C] of samples, with ``fill`` for the prompts' tokens."""
        return torch.cat([x.new_full((samples, most_prompt), fill), x], 1)[kept]

    number = torch.arange(samples, device=group.device)
    last = torch.zeros_like(token, dtype=torch.float32)
    last[number, (length - 1).clamp(min=0)] = data.reward[0, which]
    chosen = behaviour["chosen"] & data.mask[0, which][:, None]
    part = behaviour.get("part")
    if part is not None:  # each part stands behind the prompt
        new = torch.ones_like(part, dtype=torch.bool)
        new[:, 1:] = part[:, 1:] != part[:, :-1]
        at = torch.arange(most, device=group.device)
        begun = torch.where(new, at, 0).cummax(1).values
        after = torch.cat([after[:most_prompt].expand(samples, -1), at - begun], 1)
    return Packed(
        token=torch.cat([prompt, token], 1)[kept],
        position=torch.where(in_sample, after + asked[:, None], place)[kept],
        sample=torch.where(in_sample, number[:, None], -1)[kept],
        chosen=laid(chosen),
        logp=laid(behaviour["logp"]),
        version=laid(behaviour["version"], -1),
        reward=laid(last),
        prompt=asked,
        group=group,
        stop=behaviour["stop"],
        task=context["task"],
        refills=context["refills"],
        longest=most,
        retokenized=context.get("retokenized"),
        given_back=context.get("given_back"),
        kv_load=context.get("kv_load"),
        part=None if part is None else laid(part),
    )


def packed_texts(groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Packed:
    """Texts as ``Packed`` tokens that nobody drew: a prompt and its completions for each group."""
    token, position, sample, rows = list[int](), list[int](), list[int](), list[list[int]]()
    for number, (prompt, completions) in enumerate(groups):
        token += prompt
        position += range(len(prompt))
        sample += [-1] * len(prompt)
        for one in completions:
            token += one
            position += range(len(prompt), len(prompt) + len(one))
            sample += [len(rows)] * len(one)
            rows.append([len(prompt), number, int(Stop.EOS), number, 0])
    numbers = torch.tensor(sample)
    nothing, about = torch.zeros(len(token)), torch.tensor(rows)
    return Packed(
        token=torch.tensor(token),
        position=torch.tensor(position),
        sample=numbers,
        chosen=numbers >= 0,
        logp=nothing,
        version=torch.where(numbers >= 0, 0, -1),
        reward=nothing,
        prompt=about[:, 0],
        group=about[:, 1],
        stop=about[:, 2],
        task=about[:, 3],
        refills=about[:, 4],
    )


def in_parts(numbers: Sequence[int], sizes: Sequence[int], most: int) -> list[list[int]]:
    """The numbers in parts whose sizes add up to at most ``most``, or of one number."""
    parts, total = list[list[int]](), 0
    for number, size in zip(numbers, sizes, strict=True):
        if not parts or total + size > most:
            parts, total = [*parts, []], 0
        parts[-1].append(number)
        total += size
    return parts


def groups_of(data: Packed) -> Tensor:
    """[N] int64, the group of each token, that of a prompt's included."""
    begins = (data.sample < 0) & (data.position == 0)  # a prompt has a token at least
    group: Tensor = begins.cumsum(0) - 1
    return group


def take(batch: Batch, pieces: Sequence[Tensor]) -> Batch:
    """The samples of these pieces as a batch: each piece [m] int64 is of one group, whose prompt
    stands before them.

    The leaves of ``targets`` are [N].
    """
    data: Packed = batch.data
    of = groups_of(data)
    parts, numbers = list[Tensor](), list[Tensor]()
    for piece in pieces:
        mine = of == data.group[piece[0]]
        parts.append(
            (mine & ((data.sample < 0) | torch.isin(data.sample, piece))).nonzero().squeeze(-1)
        )
        numbers.append(piece)
    token, sample = torch.cat(parts), torch.cat(numbers)
    # the last one: a prompt
    new = torch.full((len(data.group) + 1,), -1, dtype=torch.int64, device=token.device)
    new[sample] = torch.arange(len(sample), device=token.device)
    given = by_field(data)
    made = {name: given[name][token] for name in PACKED_TOKENS} | {
        name: given[name][sample] for name in PACKED_SAMPLES
    }
    counts = torch.tensor([len(piece) for piece in pieces], device=token.device)
    made |= {
        "sample": new[made["sample"]],
        "group": torch.repeat_interleave(torch.arange(len(pieces), device=token.device), counts),
    }
    return replace(
        batch,
        data=Packed(
            **made,
            longest=data.longest,
            retokenized=None if data.retokenized is None else data.retokenized[sample],
            given_back=None if data.given_back is None else data.given_back[sample],
            kv_load=None if data.kv_load is None else data.kv_load[sample],
            part=None if data.part is None else data.part[token],
        ),
        targets=tree.map(lambda x: x[token], batch.targets),
    )


def shuffled(batch: Batch, count: int, rng: torch.Generator) -> Iterator[Batch]:
    """``count`` random, disjoint parts of whole groups. If groups were lost there may be fewer than
    parts: then some parts are of no weight, so that all learners take as many steps.
    """
    groups = int(batch.data.group[-1]) + 1
    order = torch.randperm(groups, generator=rng, device=rng.device)
    for part in order.tensor_split(count):
        if len(part):
            yield take(
                batch,
                [(batch.data.group == group).nonzero().squeeze(-1) for group in part.tolist()],
            )
        else:
            one = take(batch, [(batch.data.group == 0).nonzero().squeeze(-1)])
            none = replace(one.data, chosen=torch.zeros_like(one.data.chosen))
            yield replace(one, data=none, targets=tree.map(torch.zeros_like, one.targets))


def under_budget(batch: Batch, tokens: int, *, whole: bool = False) -> list[Batch]:
    """The batch in parts of at most ``tokens`` tokens, in order; a sample with its prompt is never
    cut, however long, and with ``whole`` no group is.

    The batch itself if it fits, or where ``tokens`` is 0.
    """
    data: Packed = batch.data
    if tokens == 0 or len(data.token) <= tokens:
        return [batch]
    length = torch.bincount(data.sample[data.sample >= 0], minlength=len(data.group)).tolist()
    asked, group = data.prompt.tolist(), data.group.tolist()
    of_group = Counter[int]()
    for number, tokens_of in zip(group, length, strict=True):
        of_group[number] += tokens_of
    parts, pieces, size = list[list[list[int]]](), list[list[int]](), 0
    for sample in range(len(group)):
        opens = not pieces or group[pieces[-1][-1]] != group[sample]
        more = of_group[group[sample]] if whole else length[sample]
        if pieces and (opens or not whole) and size + more + asked[sample] * opens > tokens:
            parts.append(pieces)
            pieces, size, opens = [], 0, True
        if opens:
            pieces.append([])
        pieces[-1].append(sample)
        size += length[sample] + asked[sample] * opens
    parts.append(pieces)
    device = data.token.device
    return [take(batch, [torch.tensor(piece, device=device) for piece in part]) for part in parts]
