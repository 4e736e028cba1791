"""The engine in torch: continuous batching over keys and values that are allocated once.

Live samples are the first ``live`` rows of the cache, so that a step computes with views of it. A
row that ends is filled at once by the last live one, and the next group begins behind the others as
soon as all of its samples fit. All facts about a row (its place, its last token) are columns of one
integer matrix on the host, so a step costs a fixed number of operations. The texts stay where they
are: a row moves, its ``SEAT`` in ``_text`` does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.actors.engine.drawing import I64, draw, sample_keys, torch_log_softmax, uniform
from equipoise.actors.engine.engine import Continuation, OnUpdate, Partial, Sampled
from equipoise.nets import invariant, lora
from equipoise.nets.decoder import Decoder
from equipoise.nets.decoding import pieces
from equipoise.nets.room import AnyRoom, make_room
from equipoise.types.packed import Stop


class NonFiniteLogits(FloatingPointError):
    """The error of a model that draws tokens with nan or infinities as their chances."""


GROUP, INDEX, KEY, START, PLACE, END, TOKEN, SEAT, PROMPT = range(9)
"""Of a live row: its group, index in it and key; the places of its first drawn token, of its last
one (``TOKEN``, the next input) and of the last that it may have; its row of ``_text``; the length
of its prompt, which is less than ``START`` in a continued sample.
"""
# most tokens, padding included, that are computed at once: bounds the memory of activations
PREFILL = 16_384
# most tokens of one prompt that are computed at once; between its parts live samples are drawn
PART = 2_048


@dataclass(frozen=True, slots=True)
class _Group:
    group: int
    prompt: I64
    samples: int
    limit: int
    # of a continued sample: its index, and its ``Continuation.prompt``
    index: int = 0
    asked: int | None = None
    # of a sample that goes on after tokens that were drawn before, the end of ``prompt``
    resumed: Partial | None = None
    given_back: bool = False  # this engine began it

    @property
    def begins(self) -> int:
        """The place of the sample's first token that ``step`` returns."""
        return len(self.prompt) - (0 if self.resumed is None else len(self.resumed.token))


@dataclass(frozen=True, slots=True)
class _Weights:
    """A version's network, joined for decoding."""

    net: Decoder
    decoding: AnyRoom

    @property
    def params(self) -> Mapping[str, Tensor]:
        return dict(self.net.named_parameters())


@dataclass(frozen=True, slots=True)
class Ends:
    """The conditions that end a sample before its limit."""

    eos: Collection[int] = ()  # tokens
    # texts; ``decode`` gives the text of tokens, and each token that has text must be at least one
    # byte of it
    stop: Sequence[str] = ()
    decode: Callable[[Sequence[int]], str] | None = None


class TorchEngine:
    """``Engine`` on a ``Decoder``."""

    def __init__(
        self,
        net: Decoder,
        *,
        rows: int,
        length: int,
        ends: Ends,
        seed: int,
        temperature: float = 1.0,
        greedy: bool = False,
        on_update: OnUpdate = "keep",
    ) -> None:
        """``net``: the engine's own from now on. ``rows``: at most this number of samples is drawn
        at a time; ``length``: the most tokens of a prompt and its sample together.
        ``greedy``: take the likeliest token. ``on_update``: the fate of a running sample's keys and
        values when weights change: ``keep`` the old ones; ``recompute`` them, so that the rest of
        the sample is drawn from exactly the new weights; or ``finish`` running samples before the
        new weights are taken.
        """
        size = net.config.vocab_size
        if not 0 < temperature < float("inf"):
            raise ValueError(
                f"temperature: expected a number above 0, got {temperature}; for the likeliest "
                "token: greedy=True"
            )
        if on_update not in get_args(OnUpdate):
            raise ValueError(
                f"on_update: expected one of {', '.join(get_args(OnUpdate))}, got {on_update!r}"
            )
        if wrong := [token for token in ends.eos if not 0 <= token < size]:
            raise ValueError(
                f"eos: expected tokens below {size:,}, the model's vocabulary, got {wrong[0]:,}"
            )
        if rows < 1 or not 2 <= length <= net.config.max_position_embeddings:
            raise ValueError(
                "rows and length: expected at least 1 row of 2 to "
                f"{net.config.max_position_embeddings:,} tokens "
                f"(max_position_embeddings), got {rows:,} of {length:,}"
            )
        if ends.stop and ends.decode is None:
            raise ValueError("stop: expected a decode function with the stop strings, got none")
        self._length, self._seed, self._temperature = length, seed, temperature
        self._greedy, self._on_update = greedy, on_update
        self._stop, self._decode = tuple(ends.stop), ends.decode
        net = net.eval().requires_grad_(False)
        self._device = net.head.device
        # A network with adapters draws merged, from a copy; its adapters are merged again with each
        # new version.
        self._adapted, self._layers = net, lora.layers_of(net)
        net = lora.merged(net)
        self._now = _Weights(net, self._room(net, rows, length))
        self._log_softmax = invariant.log_softmax if net.batch_invariant else torch_log_softmax
        # memory for the next version's parts while this one draws
        self._spare: _Weights | None = None
        self._ends = np.zeros(size, bool)
        self._ends[list(ends.eos)] = True
        self._rows = np.zeros((9, rows), np.int64)
        self._rows[SEAT] = np.arange(rows)
        # by seat: the prompt and the drawn tokens, with their logp and version
        self._text = np.zeros((rows, length), np.int64)
        self._logp = np.zeros((rows, length), np.float32)
        self._version = np.full((rows, length), -1, np.int64)
        self._queue: deque[_Group] = deque()
        self._returned = 0  # continued samples, at the front of the queue
        # the group in the queue whose long prompt is computed in parts, and its tokens so far
        self._long: _Group | None = None
        self._computed = 0
        self._open: dict[int, int] = {}  # samples of a group that have not ended
        # the spare's version, which waits for running samples to finish
        self._next: int | None = None
        self._held = False  # do groups wait for newer weights than the weights that draw now?
        self.version, self.live = 0, 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def away(self) -> int:
        return 0

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        if group in self._open:
            raise ValueError(
                f"group {group}: expected a group that is not being drawn, got one that is"
            )
        self._queue.append(
            _Group(group, self._checked(group, prompt, samples, limit), samples, limit)
        )
        self._open[group] = samples

    def go_on(self, rest: Continuation) -> None:
        text = self._checked(rest.group, rest.text, 1, rest.limit)
        self._return(_Group(rest.group, text, 1, rest.limit, rest.index, rest.prompt))

    def resume(self, sample: Partial, prompt: Sequence[int], *, limit: int) -> None:
        tokens, left = [*prompt, *sample.token.tolist()], limit - len(sample.token)
        text = self._checked(sample.group, tokens, 1, left)
        self._return(_Group(sample.group, text, 1, left, sample.index, len(prompt), sample))

    def _return(self, one: _Group) -> None:
        """Put a sample before the new groups."""
        first = self._queue[0] if self._queue else None
        begun = first is not None and first is self._long and first.asked is None
        self._queue.insert(self._returned + begun, one)
        self._returned += 1
        self._open[one.group] = self._open.get(one.group, 0) + 1

    @torch.inference_mode()
    def withdraw(self, groups: Collection[int]) -> list[Partial]:
        live, found = self._rows[:, : self.live], list[Partial]()
        mine = np.flatnonzero(np.isin(live[GROUP], list(groups)))
        facts = live[[GROUP, INDEX, START, PLACE, SEAT]][:, mine]
        for group, index, start, place, seat in facts.T.tolist():
            found.append(Partial(group, index, *self._tokens(seat, start, place)))
        stays = deque[_Group]()
        for one in self._queue:
            if one.group not in groups:
                stays.append(one)
                continue
            waits = (Partial.waiting(one.group, one.index + n) for n in range(one.samples))
            found += waits if one.resumed is None else [one.resumed]
            self._returned -= one.asked is not None
            if one is self._long:
                self._forget_long()
        self._queue = stays
        for sample in found:
            self._close(sample.group)
        self._free(mine)
        return found

    def _checked(self, group: int, prompt: Sequence[int], samples: int, limit: int) -> I64:
        tokens = np.asarray(prompt, np.int64)
        at = f"group {group}"
        if (
            tokens.ndim != 1
            or not len(tokens)
            or tokens.min() < 0
            or tokens.max() >= len(self._ends)
        ):
            shown = (
                "no token"
                if not tokens.size
                else f"{tokens.min():,} to {tokens.max():,}, {tokens.ndim} dimensions"
            )
            raise ValueError(
                f"{at}: expected a prompt of tokens from 0 to {len(self._ends) - 1:,}, got {shown}"
            )
        if limit < 1 or len(tokens) + limit > self._length:
            raise ValueError(
                f"{at}: expected 1 to {self._length:,} tokens (length) of prompt and sample, got "
                f"{len(tokens):,} and {limit:,}"
            )
        if not 1 <= samples <= self._rows.shape[1]:
            raise ValueError(
                f"{at}: expected 1 to {self._rows.shape[1]:,} samples (rows), got {samples:,}"
            )
        return tokens

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        self._take_next()
        if not (old := self.live) and self._queue:
            self._now.decoding.have_room()
        hidden = [self._forward(old)] if old else []
        if fresh := self._admitted():
            hidden.append(self._begin(fresh))
        elif self._fits() and (end := self._part()) is not None:
            hidden.append(self._begin([self._popped()], end))
        return self._drawn(torch.cat(hidden) if len(hidden) > 1 else hidden[0]) if hidden else []

    def take(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        self._check(params)
        return self._taking(version, params, whole)

    def close(self) -> None: ...

    # --------------------------------------------- memory, of which each row has its own by default

    def _room(self, net: Decoder, rows: int, length: int) -> AnyRoom:
        return make_room(net, rows, length)

    def _grow(self, rows: I64, tokens: I64) -> None:
        """Give rows memory for ``tokens`` [n] tokens each."""

    def _share(self, source: I64, target: I64, tokens: I64) -> None:
        """Let rows ``target`` begin with the first ``tokens`` [n] tokens of rows ``source``."""
        self._copy(source, target, int(tokens.max()))

    def _move(self, source: I64, target: I64) -> None:
        """Move live rows; the last token is not in the cache yet."""
        self._copy(source, target, int(self._rows[PLACE, source].max()))

    def _drop(self, rows: I64) -> None:
        """Rows have ended."""

    def _forget_long(self) -> None:
        """The prompt that is computed in parts does not begin now."""
        self._long, self._computed = None, 0

    # -------------------------------------------------------------------------------------- weights

    def _check(self, params: Mapping[str, Tensor]) -> None:
        lora.check_base(self._adapted, params, "update")
        for name, parameter in self._adapted.named_parameters():
            if name not in params:
                raise ValueError(
                    f"update: expected every parameter of the model, got none named {name!r}"
                )
            if params[name].shape != parameter.shape:
                raise ValueError(
                    f"update: {name}: expected {list(parameter.shape)}, got "
                    f"{list(params[name].shape)}"
                )

    # --------------------------------------------------------------------------------------- a step

    def _forward(self, live: int) -> Tensor:
        """The hidden states [live, hidden] that the next tokens are drawn from."""
        token, place = self._rows[TOKEN, :live], self._rows[PLACE, :live]
        return self._now.decoding.decode(
            self._tensor(token), self._tensor(place), int(place.min()), int(place.max())
        )

    def _admitted(self) -> list[_Group]:
        """Take groups whose samples all fit behind the live rows, in order; none while an update
        waits, and none from a long prompt on.
        """
        fresh: list[_Group] = []
        room, longest = self._rows.shape[1] - self.live, 0
        while self._fits(room) and len(self._queue[0].prompt) <= PART:
            longest = max(longest, len(self._queue[0].prompt))
            if fresh and longest * (len(fresh) + 1) > PREFILL:
                break
            room -= self._queue[0].samples
            fresh.append(self._popped())
        return fresh

    def _fits(self, room: int | None = None) -> bool:
        """Return whether the next group may begin in ``room`` rows, or in all that are free."""
        room = self._rows.shape[1] - self.live if room is None else room
        may = self._begun_waits or (bool(self._queue) and not self._held)
        return may and self._queue[0].samples <= room

    @property
    def _begun_waits(self) -> bool:
        """Is the next in the queue a sample that was given back?"""
        return bool(self._queue) and self._queue[0].given_back

    def _popped(self) -> _Group:
        """Take the next group out of the queue."""
        group = self._queue.popleft()
        self._returned -= group.asked is not None
        if group is self._long:  # the last row may be a live one from now on
            self._long, self._computed = None, 0
        return group

    def _part(self) -> Tensor | None:
        """Compute the next part of the next group's prompt in the last row, which is free, since
        its samples have room; the hidden state [1, hidden] at its end, or None before.
        """
        if self._long is not self._queue[0]:
            self._long, self._computed = self._queue[0], 0
        text, begin = self._long.prompt, self._computed
        self._computed = min(begin + PART, len(text))
        self._grow(np.array([self._rows.shape[1] - 1]), np.array([self._computed]))
        end = self._extend(text[begin : self._computed], begin, self._rows.shape[1] - 1)
        return end.unsqueeze(0) if self._computed == len(text) else None

    def _begin(self, groups: list[_Group], end: Tensor | None = None) -> Tensor:
        """Open rows for all samples of the groups, compute each prompt once; the hidden states
        [rows, hidden] at its end. ``end``: that of a prompt that is in the last row.
        """
        samples = np.array([one.samples for one in groups])
        of = np.repeat(np.arange(len(groups)), samples)  # group of each new row
        first = self.live + np.cumsum(samples) - samples  # first row of each group
        rows = self._rows[:, self.live : self.live + len(of)]
        lengths = np.array([len(one.prompt) for one in groups])
        rows[GROUP] = np.array([one.group for one in groups])[of]
        rows[INDEX] = np.arange(self.live, self.live + len(of)) - first[of]
        rows[INDEX] += np.array([one.index for one in groups])[of]
        rows[START] = np.array([one.begins for one in groups])[of]
        rows[PROMPT] = np.array(
            [len(one.prompt) if one.asked is None else one.asked for one in groups]
        )[of]
        rows[PLACE] = lengths[of] - 1
        rows[END] = rows[PLACE] + np.array([one.limit for one in groups])[of]
        prompts = np.zeros((len(groups), lengths.max()), np.int64)
        for row, one in enumerate(groups):
            prompts[row, : len(one.prompt)] = one.prompt
        rows[KEY] = sample_keys(self._seed, rows[GROUP], rows[INDEX])
        self._text[rows[SEAT], : prompts.shape[1]] = prompts[of]
        for row, one in zip(first - first[0], groups, strict=True):
            if one.resumed is not None:
                at = rows[SEAT, row], slice(one.begins, len(one.prompt))
                self._logp[at], self._version[at] = one.resumed.logp, one.resumed.version
        self.live += len(of)
        target = np.arange(first[0], self.live)
        source = first[of] if end is None else np.full(len(of), self._rows.shape[1] - 1)
        if end is None:
            self._grow(first, lengths)
            end = self._prefill(prompts, lengths, first)
        self._share(source, target, lengths[of])
        return end[self._tensor(of)]

    def _drawn(self, hidden: Tensor) -> list[Sampled]:
        """Draw a token of each live row and stamp it; return the samples that it ends."""
        rows = self._rows[:, : self.live]
        drawn, logp = self._draw(self._now.decoding.logits(hidden))
        token = rows[TOKEN]
        token[:] = drawn.cpu().numpy()
        rows[PLACE] += 1
        at = rows[SEAT], rows[PLACE]
        self._text[at] = token
        self._logp[at] = found = logp.cpu().numpy()
        self._version[at] = self.version
        if not np.isfinite(found).all():
            raise NonFiniteLogits(
                "engine: expected finite log-probabilities, got nan or infinities from version "
                f"{self.version} of the weights"
                + ("; does the model's file have nan in it?" if self.version == 0 else "")
            )
        ends = self._ends[token] | (rows[PLACE] >= rows[END])
        said = self._stopped(ends) if self._stop else None
        if not ends.any():
            return []
        return self._ended(np.flatnonzero(ends), said)

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return a token of each live row [live] and its log-probability [live]."""
        number = None if self._greedy else self._uniform()
        return draw(logits, self._temperature, number, self._log_softmax)

    def _uniform(self) -> Tensor:
        """Return the uniform number in [0, 1) of each live row's next token [live]."""
        rows = self._rows[:, : self.live]
        return self._tensor(uniform(rows[KEY], rows[PLACE] + 2 - rows[PROMPT]))

    def _stopped(self, ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which live rows end with a stop string [live]; they are marked in ``ends`` too."""
        assert self._decode is not None
        said = np.zeros(self.live, bool)
        # more tokens than a stop string has
        tail = max(len(text.encode()) for text in self._stop) + 16
        for row, (start, place, seat) in enumerate(
            self._rows[:, : self.live][[START, PLACE, SEAT]].T.tolist()
        ):
            text = self._decode(self._text[seat, max(start, place + 1 - tail) : place + 1].tolist())
            said[row] = any(stop in text for stop in self._stop)
        ends |= said
        return said

    def _ended(self, ended: I64, said: NDArray[np.bool_] | None) -> list[Sampled]:
        """Samples of the rows ``ended``, whose places become free."""
        samples = []
        for row, (group, index, _, start, place, _, token, seat, _) in zip(
            ended, self._rows[:, ended].T.tolist(), strict=True
        ):
            stop = (
                Stop.EOS
                if self._ends[token]
                else Stop.TEXT
                if said is not None and said[row]
                else Stop.LENGTH
            )
            samples.append(Sampled(group, index, *self._tokens(seat, start, place), stop))
            self._close(group)
        self._free(ended)
        return samples

    def _tokens(self, seat: int, start: int, place: int) -> tuple[I64, NDArray[np.float32], I64]:
        """The tokens of a row so far, their log-probabilities and versions: copies."""
        at = seat, slice(start, place + 1)
        return self._text[at].copy(), self._logp[at].copy(), self._version[at].copy()

    def _close(self, group: int) -> None:
        """Count one sample of a group as ended."""
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group]

    def _free(self, ended: I64) -> None:
        """Close the rows ``ended`` (ascending), and move the last live rows into their places."""
        self._drop(ended)
        self.live -= len(ended)
        holes = ended[ended < self.live]
        if not len(holes):
            return
        moves = np.ones(len(ended), bool)  # of the rows behind the new end: which live on
        moves[ended[len(holes) :] - self.live] = False
        movers = self.live + np.flatnonzero(moves)
        self._move(movers, holes)
        seats = self._rows[SEAT, holes]
        self._rows[:, holes] = self._rows[:, movers]
        self._rows[SEAT, movers] = seats

    # --------------------------------------------------------------------------- weights and caches

    def give_back(self) -> None:
        """Free the memory of keys and values until a group begins; RuntimeError if samples are
        open.
        """
        if self._open:
            raise RuntimeError(
                f"give_back: expected an engine without open samples, got {len(self._open)} groups"
            )
        self._now.decoding.give_back()

    def make_room(self) -> None:
        """Allocate what weights are put into while others draw, so that the first ones do not wait
        for that.
        """
        if self._spare is None:
            net = deepcopy(self._now.net)
            self._spare = _Weights(net, self._now.decoding.twin(net))

    def _taking(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        # a group that waits now may begin between two parts
        waits = bool(self._open) and self._on_update == "finish"
        # else no part waits for the copy
        aside = bool(self._open) and (waits or self._device.type == "cpu")
        if aside:
            self.make_room()
        target = self._spare if aside and self._spare is not None else self._now
        self._next = None  # a version that waited is of no use any more
        value = self._values(params)
        for name, parameter in target.params.items():
            if self._layers and name.removesuffix(".weight") not in self._layers:
                continue  # the base stays
            for piece in pieces(parameter):
                with torch.no_grad():
                    parameter[piece].copy_(value(name, piece))
                if aside:
                    yield
        if not whole():
            return
        if waits and (self.live or self._begun_waits):
            self._next, self._held = version, True
        else:
            self._turn(version, target)

    def _values(self, params: Mapping[str, Tensor]) -> Callable[[str, slice], Tensor]:
        """The pieces of new weights by name, merged if ``params`` are adapters."""
        if not self._layers:
            return lambda name, piece: params[name][piece]
        with torch.no_grad():
            for name, parameter in self._adapted.named_parameters():
                parameter.copy_(params[name])
        return lambda name, piece: self._layers[name.removesuffix(".weight")].merged(piece)

    def _take_next(self) -> None:
        if self._next is not None and not self.live and not self._begun_waits:
            assert self._spare is not None
            self._turn(self._next, self._spare)

    def _turn(self, version: int, weights: _Weights) -> None:
        """Draw with these weights from now on."""
        if weights is not self._now:
            self._now, self._spare = weights, self._now
        self.version, self._next, self._held = version, None, False
        self._computed = 0  # a prompt's keys and values are of one version
        if self._on_update == "recompute":
            self._recompute()

    @torch.inference_mode()
    def _recompute(self) -> None:
        """Compute the keys and values of all live rows again, the longest first."""
        place, seat = self._rows[PLACE, : self.live], self._rows[SEAT, : self.live]
        order = np.argsort(-place, kind="stable")
        while len(order):
            longest = int(place[order[0]])
            if longest > PART:
                for begin in range(0, longest, PART):
                    text = self._text[seat[order[0]], begin : min(begin + PART, longest)]
                    self._extend(text, begin, int(order[0]))
                order = order[1:]
                continue
            some, order = np.split(order, [max(1, PREFILL // longest)])
            self._prefill(self._text[seat[some], :longest], place[some], some)

    def _prefill(self, text: I64, lengths: I64, rows: I64) -> Tensor:
        return self._now.decoding.prefill(*map(self._tensor, (text, lengths, rows)))

    def _extend(self, text: I64, begin: int, row: int) -> Tensor:
        return self._now.decoding.extend(self._tensor(text), begin, row)

    def _copy(self, source: I64, target: I64, length: int) -> None:
        self._now.decoding.copy(self._tensor(source), self._tensor(target), length)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
