"""The engine in torch with one budget of memory for the keys and values of all samples.

A sample takes the memory of its present length (``nets/pages.py``), so as many samples are drawn at
once as fit by that, and the samples of a group share their prompt. Samples begin if their prompt
fits, with a page to spare for each ``SPARE`` samples that may need more.

If live samples grow beyond the budget, the youngest is given back: its memory is freed, its tokens
are kept, and it goes on before any group begins, once there is memory for its text, whose keys and
values are computed again by the weights of that moment. The youngest is the sample with the fewest
drawn tokens, so the sample with the most is never given back and the engine always gets on.

What is drawn for a sample does not depend on when it began or was given back, to the bit if the
logits agree to the bit (``source.batch_invariant``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.actors.engine.drawing import I64
from equipoise.actors.engine.engine import OnUpdate, Partial, Sampled
from equipoise.actors.engine.torch_engine import (
    END,
    GROUP,
    INDEX,
    PLACE,
    PROMPT,
    Ends,
    TorchEngine,
    _Group,
)
from equipoise.nets.decoder import Decoder
from equipoise.nets.hub_decoder import HubDecoder, HubDecoding
from equipoise.nets.pages import PAGE, Pages, pages_of
from equipoise.nets.room import AnyRoom, make_room

SPARE = 4


class Settings(TypedDict, total=False):
    """Further settings of a ``TorchEngine``."""

    ends: Required[Ends]
    seed: Required[int]
    temperature: float
    greedy: bool
    on_update: OnUpdate


class PagedEngine(TorchEngine):
    """``TorchEngine`` with a budget of ``kv_tokens`` tokens for keys and values."""

    def __init__(
        self, net: Decoder, *, kv_tokens: int, rows: int, length: int, **settings: Unpack[Settings]
    ) -> None:
        """``kv_tokens``: at least ``length``, rounded down to whole pages; ``rows``: at most this
        number of samples, as memory allows; ``settings``: as for ``TorchEngine``.
        """
        self._total = kv_tokens // PAGE
        if self._total < pages_of(length):
            raise ValueError(
                f"kv_tokens: must be at least {pages_of(length) * PAGE:,}, the longest prompt with "
                f"its completion ({length:,} tokens) in pages of {PAGE}, got {kv_tokens:,}"
            )
        if isinstance(net, HubDecoder):
            raise ValueError(
                f"kv_tokens: must be 0 with a model that transformers computes, whose cache has "
                f"room for each sample, got {kv_tokens:,}"
            )
        # of the groups that begin in this step: their pages, and the samples that may need more
        self._promised = self._growing = 0
        self._returns = Counter[tuple[int, int]]()  # by (group, index), of open samples
        super().__init__(net, rows=rows, length=length, **settings)

    def _room(self, net: Decoder, rows: int, length: int) -> AnyRoom:
        return make_room(net, rows, length, pages=self._total)

    @property
    def _pages(self) -> Pages:
        decoding = self._now.decoding
        assert not isinstance(decoding, HubDecoding) and decoding.pages is not None
        return decoding.pages

    @property
    def kv_size(self) -> tuple[int, int]:
        """The memory for keys and values: tokens, bytes."""
        return self._total * PAGE, self._pages.store.nbytes

    @property
    def kv_load(self) -> float:
        """The share of the memory for keys and values that is in use, 0 to 1."""
        return 1.0 - self._pages.free / self._total

    # --------------------------------------------------------------------------------------- a step

    def step(self) -> list[Sampled]:
        self._make_way()
        return super().step()

    def _make_way(self) -> None:
        """Give each live row memory for its next token; give samples back until there is enough."""
        while True:
            rows, tokens = np.arange(self.live), self._rows[PLACE, : self.live] + 1
            if int(self._pages.needed(rows, tokens).sum()) <= self._pages.free:
                self._pages.grow(rows, tokens)
                return
            if self._long is not None:  # a prompt that has not begun is the youngest
                self._forget_long()
            else:
                self._give_back(self._youngest())

    def _youngest(self) -> int:
        """The live row with the fewest drawn tokens; of these the last by group and index."""
        rows = self._rows[:, : self.live]
        order = np.lexsort((-rows[INDEX], -rows[GROUP], rows[PLACE] - rows[PROMPT]))
        return int(order[0])

    def _give_back(self, row: int) -> None:
        """Give a sample back: to the front of the queue, with its tokens."""
        group, index, _, start, place, end, _, seat, prompt = self._rows[:, row].tolist()
        one = _Group(
            group,
            self._text[seat, : place + 1].copy(),
            1,
            end - place,
            index=index,
            asked=prompt,
            resumed=Partial(group, index, *self._tokens(seat, start, place)),
            given_back=True,
        )
        self._queue.appendleft(one)
        self._returned += 1
        self._returns[group, index] += 1
        self._free(np.array([row]))

    def withdraw(self, groups: Collection[int]) -> list[Partial]:
        found = super().withdraw(groups)
        for one in found:
            self._returns.pop((one.group, one.index), None)
        return found

    def _forget_long(self) -> None:
        self._pages.drop(np.array([self._rows.shape[1] - 1]))
        super()._forget_long()

    # ------------------------------------------------------------------------------------ beginning

    def _fits(self, room: int | None = None) -> bool:
        return super()._fits(room) and self._affords()

    def _affords(self) -> bool:
        """Is there memory for a sample of the next group, and pages to spare for samples that grow?
        If the memory is enough for only some of its samples, the others stay in the queue.
        """
        one, rows = self._queue[0], np.arange(self.live)
        shared, own, grows = _needs(one)
        if one is self._long:  # some of it is there
            shared -= self._pages.held(self._rows.shape[1] - 1)
        free = self._pages.free - self._promised - shared
        growing = int((self._pages.needed(rows, self._rows[END, : self.live]) > 0).sum())
        growing, few = growing + self._growing, one.samples
        while few and few * own + -(-(growing + few * grows) // SPARE) > free:
            few -= 1
        if not few and (self.live or self._promised):
            return False
        if (few := max(few, 1)) < one.samples:
            self._queue[0] = replace(one, samples=few)
            self._queue.insert(1, replace(one, samples=one.samples - few, index=one.index + few))
            if self._long is one:
                self._long = self._queue[0]
        return True

    def _popped(self) -> _Group:
        one = super()._popped()
        shared, own, grows = _needs(one)
        self._promised += shared + one.samples * own
        self._growing += one.samples * grows
        return one

    def _begin(self, groups: list[_Group], end: Tensor | None = None) -> Tensor:
        hidden = super()._begin(groups, end)
        self._promised = self._growing = 0
        last = self._rows.shape[1] - 1
        if end is not None and self.live <= last:  # no sample took the row of its prompt
            self._pages.drop(np.array([last]))
        return hidden

    def _ended(self, ended: I64, said: NDArray[np.bool_] | None) -> list[Sampled]:
        load = self.kv_load
        return [
            replace(one, given_back=self._returns.pop((one.group, one.index), 0), kv_load=load)
            for one in super()._ended(ended, said)
        ]

    # --------------------------------------------------------------------------------------- memory

    def _grow(self, rows: I64, tokens: I64) -> None:
        self._pages.grow(rows, tokens)

    def _share(self, source: I64, target: I64, tokens: I64) -> None:
        self._pages.share(source, target, tokens)

    def _move(self, source: I64, target: I64) -> None:
        self._pages.move(source, target)

    def _drop(self, rows: I64) -> None:
        self._pages.drop(rows)


def _needs(one: _Group) -> tuple[int, int, int]:
    """The pages that a group's samples share, the pages that each needs at once, and whether it may
    need more (1) or not (0).
    """
    shared = len(one.prompt) // PAGE
    # the last token is not stored
    most = pages_of(len(one.prompt) + one.limit - 1) - shared
    return shared, min(most, 1), int(most > 1)
