"""Episodic novelty: pays for observations that came rarely in their episode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from equipoise.facts import KEPT, Help, Range
from equipoise.hints import shortened
from equipoise.nets.heads import at
from equipoise.rewards.hashes import Hashes
from equipoise.rewards.observed import reached
from equipoise.rewards.streams import check_size, in_order, of_all, turns, with_room
from equipoise.rewards.term import Refused, RewardTerm
from equipoise.schema import Array, Schema
from equipoise.types import EnvSpec, Learns, Pool, Trajectory, Tree


@dataclass(kw_only=True, eq=False)
class Episodic(RewardTerm):
    """1 for an observation that came for the first time in its episode, else 0 (episodic counts:
    Raileanu and Rocktaeschel 2020, arXiv:2002.12292; Henaff et al. 2023, arXiv:2306.03236).

    In a product it limits another bonus to an episode's first visits. An observation's number is
    its value or a hash (``Hashes``); each stream keeps a table of counts, which begins again with
    each episode.
    """

    name: ClassVar[str] = "episodic"

    key: Annotated[
        str,
        Help(
            "Key of a Dict observation whose values are counted",
            "`a/b` is key b in key a. Empty counts the whole observation.",
        ),
        KEPT,
    ] = ""
    once: Annotated[
        bool,
        Help("Pay for first visits alone", "Otherwise the n-th visit pays 1 / sqrt(n)."),
    ] = True
    bits: Annotated[
        int,
        Range(1, 20),
        Help(
            "Bits of the hash of an observation",
            "Each env takes 4 * 2^bits bytes, also in checkpoints; all at most 256 MiB. "
            "Discrete observations with at most 2^bits values have no hash.",
        ),
        KEPT,
    ] = 14

    def follow(self, algorithm: Learns) -> None:
        in_order(algorithm, self.name)

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._path = tuple(self.key.split("/")) if self.key else ()
        for key in self._path:
            space = spec.observation
            if not isinstance(space, spaces.Dict) or key not in space.spaces:
                keys = ", ".join(space.spaces) if isinstance(space, spaces.Dict) else "none"
                raise Refused(
                    f"reward.episodic.key: must be a key of the observation ({keys}), got "
                    f"{shortened(self.key)!r}"
                )
            spec = replace(spec, observation=space.spaces[key], mask=())
        self._hashes = Hashes(spec, self.bits, seed, exact=1 << self.bits, mixed=True)
        self._new = torch.zeros(self._hashes.count, dtype=torch.int32)
        self._counts = self._new.new_zeros(0, self._hashes.count)  # [streams, values]
        self._after = self._counts  # of the batch at hand: the counts after it

    def to(self, device: torch.device) -> None:
        self._hashes.to(device)
        self._new, self._counts = self._new.to(device), self._counts.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        stream, values = data.context["stream"], self._hashes(at(data.obs, self._path))
        real = reached(data)
        visits = torch.ones(data.shape, dtype=torch.int64, device=values.device)
        check_size(streams := int(stream.max()) + 1, self._new, "reward.episodic.bits")
        self._after = with_room(self._counts, streams, self._new)
        for windows in turns(data):
            ids = stream[windows]
            visits[:, windows], self._after[ids] = counted(
                values[:, windows], data.first[:-1, windows], real[:, windows], self._after[ids]
            )
        paid = (visits == 1).float() if self.once else visits.float().rsqrt()
        bonus: Tensor = paid * real
        return bonus

    def absorb(self, data: Trajectory, pool: Pool) -> None:
        self._counts = of_all(self._after, data.context["stream"], self._new, pool)
        self._after = self._counts

    def state(self) -> Tree:
        return {"counts": self._counts}

    def schema(self) -> Schema:
        return {"counts": Array((None, self._hashes.count), "int32", low=0, tensor=True)}

    def load(self, state: Tree) -> None:
        self._counts = state["counts"].to(self._new.device, copy=True)
        self._after = self._counts


def counted(values: Tensor, begins: Tensor, real: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return [T, B], how often each row's next observation came in its episode so far, itself
    counted, and the counts [B, values] after the windows.

    ``values`` [T + 1, B]: numbers of observations. ``begins`` [T, B]: the row's observation begins
    an episode, and is counted as one. ``real`` [T, B]: the row's action led to the next one.
    """
    rows, streams = real.shape
    # the observations that count, [T, 2, B] in their order: one that begins an episode, the next
    value = torch.stack([values[:-1], values[1:]], 1)
    there = torch.stack([begins, real], 1)
    episode = begins.cumsum(0).unsqueeze(1).expand_as(value)  # 0: the one before the windows
    column = torch.arange(streams, device=values.device).expand_as(value)
    group = (column * (rows + 1) + episode) * counts.shape[1] + value
    place = _places(torch.where(there, group, -1).flatten()).view_as(value)
    before = counts[column, value].long() * (episode == 0)
    last = there & (episode == begins.sum(0))
    after = torch.where(begins.any(0)[:, None], 0, counts)
    after.index_put_(
        (column[last], value[last]), torch.ones_like(value[last], dtype=counts.dtype), True
    )
    return (place + before + 1)[:, 1], after


def _places(group: Tensor) -> Tensor:
    """Return [n], how many equal numbers stand before each of ``group`` [n]."""
    order = group.argsort(stable=True)
    ranks = torch.arange(len(group), device=group.device)
    grouped = group[order]
    begins = torch.cat([ranks[:1] == 0, grouped[1:] != grouped[:-1]])
    first = torch.where(begins, ranks, 0).cummax(0).values
    return torch.empty_like(ranks).scatter_(0, order, ranks - first)
