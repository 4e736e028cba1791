"""The places of the tokens of a ``Packed`` in the batches of attention.

Letters: ``N`` tokens, ``M`` samples, ``G`` groups, ``H`` query heads, ``K`` key heads. A *sequence*
is a prompt or a sample: rows that lie one behind the other. A token sees the earlier tokens of its
sequence and itself; a token of a sample also sees its prompt. A conversation in parts has a
sequence for each part, so below each part counts as a sample.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.nets.tiling import Texts, Tiling
from equipoise.types import Array, Tree
from equipoise.types.packed import Packed

WASTE = 0.25  # most padding in a batch of sequences, as a share
SMALL = 2048  # tokens of padding that cost less than another batch
SHORT = 128  # tokens of a group, on average, up to which it is faster as one sequence with a mask


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences padded at their ends to one length."""

    count: int
    length: int
    # [count * length] the row of each place; of padding, that of the sequence's last token
    rows: Tensor
    real: Tensor | None  # [count, length] False: padding; None: there is none


@dataclass(frozen=True, slots=True)
class Split:
    """Causal attention within all sequences, and from the samples of groups to prompts."""

    causal: tuple[Batch, ...]
    place: Tensor  # [N] the place of each row in the batches of ``causal``, one behind the other
    queries: tuple[Batch, ...]
    prompts: tuple[Batch, ...]  # the keys of each batch of ``queries``
    sampled: Tensor  # [S] rows with a prompt before them
    sampled_place: Tensor  # [S] their places in ``queries``
    prompted: Tensor  # [R] rows of prompts with samples behind them
    prompted_place: Tensor  # [R] their places in ``prompts``


@dataclass(frozen=True, slots=True)
class Whole:
    """Groups as one sequence each, and which earlier tokens each token sees."""

    groups: tuple[Batch, ...]
    # [count or 1, length, length] float32: 0 if the key is seen, else -inf
    masks: tuple[Tensor, ...]
    place: Tensor  # [N] the place of each row in ``groups``

    def heads(self, batch: Batch, heads: int, key_heads: int) -> tuple[Tensor, Tensor]:
        """Indices into x [N * heads, D] that make [K, count, H / K, length, D] of queries and [K,
        count, length, D] of keys.
        """
        rows = batch.rows.view(batch.count, batch.length)
        shared = heads // key_heads
        head = torch.arange(heads, device=rows.device).view(key_heads, 1, shared, 1)
        queries = rows.unsqueeze(1) * heads + head
        return queries.view(-1), (
            rows * key_heads + torch.arange(key_heads, device=rows.device).view(-1, 1, 1)
        ).view(-1)

    def places(self, heads: int, key_heads: int) -> tuple[Tensor, Tensor]:
        """The inverses: where row n's head h is, [N * H] and [N * K]."""
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        bases = [0, 0]
        for batch in self.groups:
            size = batch.count * batch.length
            at = torch.arange(size, device=self.place.device).view(batch.count, batch.length)
            group, token = at // batch.length, at % batch.length
            for n, total in enumerate((heads, key_heads)):
                shared = total // key_heads
                head = torch.arange(total, device=at.device)
                key, inner = head // shared, head % shared
                where = (
                    (key * batch.count + group.unsqueeze(-1)) * shared + inner
                ) * batch.length + token.unsqueeze(-1)
                found[n].append(where.view(size, total) + bases[n])
                bases[n] += size * total
        queries, keys = (torch.cat(parts).index_select(0, self.place).view(-1) for parts in found)
        return queries, keys


@dataclass(frozen=True, slots=True)
class Varlen:
    """Sequences one behind the other, as ``varlen_attn`` takes them."""

    keys: Tensor  # rows of the keys of each sequence, the prompt's before a sample's
    starts: Tensor  # [sequences + 1] int32, where a sequence's queries begin
    key_starts: Tensor  # [sequences + 1] int32, where its keys begin
    longest: int  # queries
    longest_keys: int


class Layout:
    """The groups of a ``Packed``, made once for all layers."""

    def __init__(self, prompts: Array, lengths: Array, group: Array, device: torch.device) -> None:
        """Lengths of prompts [G] and samples [M], and groups of samples [M], ascending; int64."""
        self.prompts, self.lengths, self.group, self.device = prompts, lengths, group, device
        tokens = np.bincount(group, lengths, len(prompts)).astype(np.int64)
        self.tokens = tokens  # [G] of samples
        self.begins = np.cumsum(prompts + tokens) - prompts - tokens  # [G] rows
        before = np.cumsum(lengths) - lengths
        # [M] rows
        self.starts = (self.begins + prompts - (np.cumsum(tokens) - tokens))[group] + before
        self.count = int((prompts + tokens).sum())
        self.cached: dict[tuple[int, int], Tree] = {}  # indices for H and K heads

    @classmethod
    def of(cls, data: Packed) -> Layout:
        """The layout of groups of samples; ValueError if samples and tokens disagree."""
        columns = (data.sample, data.prompt, data.group)
        sample, prompt, group = (
            np.asarray(x.cpu() if isinstance(x, Tensor) else x) for x in columns
        )
        lengths = np.bincount(sample[sample >= 0], minlength=len(prompt))
        new = np.diff(group, prepend=-1) > 0
        of_group = np.cumsum(new) - 1
        prompts = prompt[new]
        if len(lengths) != len(prompt) or prompts.sum() + lengths.sum() != len(sample):
            raise ValueError(
                f"packed tokens: expected {prompts.sum()} of prompts and samples "
                f"0..{len(prompt) - 1}, got "
                f"{(sample < 0).sum()} of prompts and samples up to {sample.max(initial=-1)}"
            )
        device = data.token.device if isinstance(data.token, Tensor) else torch.device("cpu")
        if data.part is not None:  # each part of a sample is a sequence of its own
            part = np.asarray(data.part.cpu() if isinstance(data.part, Tensor) else data.part)
            inside = sample >= 0
            mine, part = sample[inside], part[inside]
            first = np.ones(len(mine), bool)
            first[1:] = (mine[1:] != mine[:-1]) | (part[1:] != part[:-1])
            lengths = np.bincount(np.cumsum(first) - 1, minlength=first.sum())
            of_group = of_group[mine[first]]
        return cls(prompts, lengths, of_group, device)

    @classmethod
    def plain(cls, lengths: Sequence[int], device: torch.device) -> Layout:
        """The layout of texts one behind the other that share nothing."""
        none = np.zeros(0, np.int64)
        return cls(np.asarray(lengths, np.int64), none, none, device)

    @functools.cached_property
    def short(self) -> bool:
        """Are groups so short that a mask costs less than sequences by themselves?"""
        sizes = self.prompts + self.tokens
        return len(self.lengths) > len(sizes) and int((sizes * sizes).sum()) <= SHORT * self.count

    @functools.cached_property
    def previous(self) -> Tensor:
        """[N] the row before each token in its text; its own at a text's beginning."""
        previous = np.arange(-1, self.count - 1)
        begins = self.begins[self.prompts > 0]
        previous[begins] = begins
        last = self.begins + self.prompts - 1
        there = self.lengths > 0
        previous[self.starts[there]] = np.where(
            self.prompts[self.group] > 0, last[self.group], self.starts
        )[there]
        return self._tensor(previous)

    @functools.cached_property
    def split(self) -> Split:
        first = np.concatenate([self.begins, self.starts])
        size = np.concatenate([self.prompts, self.lengths])
        first, size = first[size > 0], size[size > 0]
        causal, place = self._batches(first, size, alike(size))
        asked = np.flatnonzero((self.tokens > 0) & (self.prompts > 0))
        tokens, prompts, begins = self.tokens[asked], self.prompts[asked], self.begins[asked]
        cut = alike(tokens, prompts)
        queries, sampled = self._batches(begins + prompts, tokens, cut)
        keys, prompted = self._batches(begins, prompts, cut)
        rows, key_rows = np.flatnonzero(sampled >= 0), np.flatnonzero(prompted >= 0)
        to = self._tensor
        return Split(
            causal,
            to(place),
            queries,
            keys,
            to(rows),
            to(sampled[rows]),
            to(key_rows),
            to(prompted[key_rows]),
        )

    @functools.cached_property
    def tiling(self) -> Tiling:
        """The tiles of all texts: of each prompt, and of each prompt with a sample behind it."""
        shared = self.prompts[self.group]
        first = np.concatenate([self.begins, self.starts])  # row of each text's first query
        own = np.concatenate([self.prompts, self.lengths])  # queries of each text
        before = np.concatenate([np.zeros_like(self.prompts), shared])
        rows = first.repeat(own) + np.arange(self.count) - (own.cumsum() - own).repeat(own)
        of = np.arange(len(own)).repeat(own)
        text, position = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        text[rows], position[rows] = of, rows - first[of] + before[of]
        texts = Texts(
            base=np.concatenate([self.begins, self.begins[self.group]]),
            prompt=np.concatenate([self.prompts, shared]),
            start=first,
            last=before + own - 1,
        )
        return Tiling.of(text, position, texts, self.device)

    @functools.cached_property
    def whole(self) -> Whole:
        size = self.prompts + self.tokens
        there = np.flatnonzero(size > 0)
        cut = alike(size[there])
        groups, place = self._batches(self.begins[there], size[there], cut)
        number = np.full(self.count, -1)  # of each row's sample
        before = np.cumsum(self.lengths) - self.lengths
        rows = np.repeat(self.starts - before, self.lengths) + np.arange(self.lengths.sum())
        number[rows] = np.repeat(np.arange(len(self.lengths)), self.lengths)
        numbers = self._tensor(number)
        masks = []
        for batch in groups:
            sample = numbers.index_select(0, batch.rows).view(batch.count, batch.length)
            # -1: the prompt; alike in groups that are alike
            sample = torch.where(sample < 0, -1, sample - sample[:, -1:] - 2)
            if batch.real is None and bool((sample == sample[0]).all()):
                sample = sample[:1]
            key = sample.unsqueeze(1)
            seen = ((key == -1) | (key == sample.unsqueeze(2))).tril()
            masks.append(
                torch.zeros(seen.shape, device=self.device).masked_fill_(~seen, -torch.inf)
            )
        return Whole(groups, tuple(masks), self._tensor(place))

    @functools.cached_property
    def varlen(self) -> Varlen:
        first = np.concatenate([self.begins, self.starts])
        queries = np.concatenate([self.prompts, self.lengths])
        shared = np.concatenate([np.zeros_like(self.prompts), self.prompts[self.group]])
        origin = np.concatenate([self.begins, self.begins[self.group]])
        order = np.argsort(first, kind="stable")
        order = order[queries[order] > 0]
        first, queries, shared, origin = (x[order] for x in (first, queries, shared, origin))
        columns = zip(*(x.tolist() for x in (origin, shared, first, queries)))
        keys = [np.r_[o : o + s, f : f + n] for o, s, f, n in columns]
        starts, key_starts = (
            np.concatenate([[0], np.cumsum(x)]).astype(np.int32)
            for x in (queries, queries + shared)
        )
        to = self._tensor
        return Varlen(
            to(np.concatenate(keys)),
            to(starts),
            to(key_starts),
            int(queries.max()),
            int((queries + shared).max()),
        )

    def _batches(
        self, first: Array, size: Array, cut: list[Array]
    ) -> tuple[tuple[Batch, ...], Array]:
        """Batches of sequences, and the place of each row in them, -1 for none."""
        place, found, base = np.full(self.count, -1), [], 0
        for part in cut:
            at = np.arange(size[part].max())
            real = at < size[part, None]
            rows = first[part, None] + np.minimum(at, size[part, None] - 1)
            place[rows[real]] = base + np.flatnonzero(real)
            base += rows.size
            count, length = rows.shape
            found.append(
                Batch(
                    count,
                    length,
                    self._tensor(rows.ravel()),
                    None if real.all() else self._tensor(real),
                )
            )
        return tuple(found), place

    def _tensor(self, x: Array) -> Tensor:
        return torch.as_tensor(x, device=self.device)


def alike(*sizes: Array, small: int | None = None) -> list[Array]:
    """Indices of sequences in few batches of like length, the longest first."""
    small = SMALL if small is None else small
    if not len(sizes[0]):
        return []
    order = np.lexsort(tuple(-size for size in reversed(sizes)))
    size = sizes[0][order]
    if size[0] * len(size) - size.sum() <= small:
        return [order]
    batches, start, total = [], 0, 0
    for at, one in enumerate(size.tolist()):
        padding = int(size[start]) * (at - start + 1) - total - one
        if padding > small and padding > WASTE * (total + one):
            batches.append(order[start:at])
            start, total = at, 0
        total += one
    return [*batches, order[start:]]
