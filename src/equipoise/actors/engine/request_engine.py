"""The engine of a server: each group has its own sampling, may be cancelled, and its tokens can be
read after each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.actors.engine.drawing import inverse, sample_keys
from equipoise.actors.engine.engine import OnUpdate, Sampled
from equipoise.actors.engine.torch_engine import (
    GROUP,
    INDEX,
    KEY,
    SEAT,
    Ends,
    TorchEngine,
    _Group,
)
from equipoise.nets.decoder import Decoder

COLDEST = 1e-3  # a lower temperature takes the likeliest token


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of a group are drawn.

    ``seed``: the answers depend on it, on ``number`` (of the prompt in its request), on the prompt
    and on the weights alone; None: the engine's seed. ``top``: how many of the likeliest tokens are
    reported.
    """

    temperature: float = 1.0
    top_p: float = 1.0  # draw from the likeliest tokens with this mass
    seed: int | None = None
    number: int = 0
    top: int = 0


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens of one step; ``logp`` is at temperature 1, before ``top_p``.

    ``likeliest``: tokens and their ``logp``, by (group, index), of rows that want them.
    """

    group: Sequence[int] = ()
    index: Sequence[int] = ()
    token: Sequence[int] = ()
    logp: Sequence[float] = ()
    likeliest: Mapping[tuple[int, int], tuple[list[int], list[float]]] = field(default_factory=dict)


NONE = Drawn()
USUAL = Sampling()


class RequestEngine(TorchEngine):
    """A ``TorchEngine`` for requests; samples that run finish with the weights that began them."""

    def __init__(
        self,
        net: Decoder,
        *,
        rows: int,
        length: int,
        eos: Sequence[int],
        seed: int,
        temperature: float = 1.0,
        on_update: OnUpdate = "finish",
    ) -> None:
        """As ``TorchEngine``, without stop strings: the caller looks for them, and cancels."""
        super().__init__(
            net,
            rows=rows,
            length=length,
            ends=Ends(eos),
            seed=seed,
            temperature=temperature,
            on_update=on_update,
        )
        self._asked: dict[int, Sampling] = {}  # of groups that wait
        self._how = np.zeros((3, rows))  # temperature, top_p and top by seat
        self.drawn = NONE

    @property
    def free(self) -> int:
        """The number of rows without a sample, less the rows that waiting groups need."""
        return self._rows.shape[1] - self.live - sum(one.samples for one in self._queue)

    def submit(
        self,
        group: int,
        prompt: Sequence[int],
        samples: int,
        *,
        limit: int,
        sampling: Sampling = USUAL,
    ) -> None:
        super().submit(group, prompt, samples, limit=limit)
        self._asked[group] = sampling

    def step(self) -> list[Sampled]:
        """Take a step of ``TorchEngine``, and set ``drawn`` to its tokens."""
        self.drawn = NONE
        return super().step()

    @torch.inference_mode()
    def cancel(self, group: int, index: int | None = None) -> None:
        """End one sample of a group, or the whole group, without a result; its rows are free."""
        live = self._rows[:, : self.live]
        mine = (live[GROUP] == group) & ((live[INDEX] == index) | (index is None))
        for _ in range(int(mine.sum())):
            self._close(group)
        self._free(np.flatnonzero(mine))
        if index is None and self._asked.pop(group, None) is not None:
            self._queue = type(self._queue)(one for one in self._queue if one.group != group)
            self._open.pop(group, None)

    def clear(self) -> None:
        """End all samples and groups without results, also after an error in a step."""
        self.live, self._next, self._held = 0, None, False
        self._queue.clear()
        self._returned = 0
        self._open.clear()
        self._asked.clear()

    def _begin(self, groups: list[_Group], end: Tensor | None = None) -> Tensor:
        first = self.live
        hidden = super()._begin(groups, end)
        rows = self._rows[:, first : self.live]
        for one in groups:
            how, mine = self._asked.pop(one.group), rows[GROUP] == one.group
            self._how[:, rows[SEAT, mine]] = np.array([[how.temperature], [how.top_p], [how.top]])
            if how.seed is not None:
                index = rows[INDEX, mine]
                rows[KEY, mine] = sample_keys(how.seed, np.full_like(index, how.number), index)
        return hidden

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows[:, : self.live]
        temperature, top_p, top = self._how[:, rows[SEAT]]
        logp, token = torch.log_softmax(logits, -1), logits.argmax(-1)
        if (hot := temperature >= COLDEST).any():
            if (temperature[hot] == 1.0).all():
                chance = logp.exp()
            else:
                heat = self._tensor(np.where(hot, temperature, 1.0)).to(logits.dtype)
                chance = torch.softmax(logits / heat[:, None], -1)
            if (narrow := np.flatnonzero(hot & (top_p < 1.0))).size:
                place = self._tensor(narrow)
                chance[place] = nucleus(chance[place], self._tensor(top_p[narrow]))
            drawn = inverse(chance, self._uniform()).clamp_max(logits.shape[1] - 1)
            token = torch.where(self._tensor(hot), drawn, token)
        found = logp.gather(1, token[:, None])[:, 0]
        self._note(token, found, logp, top)
        return token, found

    def _note(self, token: Tensor, found: Tensor, logp: Tensor, top: NDArray[np.float64]) -> None:
        """Set ``drawn`` to the tokens of a step [live], their ``found`` log-probabilities, and the
        ``top`` [live] likeliest of ``logp`` [live, vocabulary].
        """
        rows = self._rows[:, : self.live]
        group, index = rows[GROUP].tolist(), rows[INDEX].tolist()
        likeliest = {}
        if (wanted := np.flatnonzero(top)).size:
            values, tokens = logp[self._tensor(wanted)].topk(min(int(top.max()), logp.shape[1]))
            for row, ids, logps in zip(wanted, tokens.tolist(), values.tolist(), strict=True):
                most = int(top[row])
                likeliest[group[row], index[row]] = ids[:most], logps[:most]
        self.drawn = Drawn(group, index, token.tolist(), found.tolist(), likeliest)


def nucleus(chance: Tensor, top_p: Tensor) -> Tensor:
    """Return ``chance`` [B, V] with 0 for all but the likeliest tokens, whose mass is at least
    ``top_p`` [B] (Holtzman et al. 2020, arXiv:1904.09751).
    """
    value, place = chance.sort(-1, descending=True)
    before = value.cumsum(-1, dtype=torch.float64) - value
    kept = torch.where(before < top_p[:, None], value, 0.0)
    return torch.zeros_like(chance).scatter_(1, place, kept)
