"""The interface between a generator and its engine, whatever library computes in the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.types.packed import Stop

# the fate of keys and values that older weights have computed
OnUpdate = Literal["keep", "recompute", "finish"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The facts of a sample of several turns besides its tokens."""

    chosen: NDArray[np.bool_]  # [L]; False: a token of the partner's
    reward: float | None  # the sum of its turns; None: the partner failed
    messages: Sequence[Mapping[str, object]]  # the turns and the answers, without the prompt
    turns: int
    retokenized: int  # turns whose text has other tokens
    failure: str = ""  # of the partner
    # [L], the number of the prefix that a token was read after; None: each turn is appended
    part: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sample that has ended: its ``L`` tokens, with the EOS or the stop string, without the
    prompt. In a conversation the partner's tokens are among them.
    """

    group: int
    index: int  # within its group
    token: NDArray[np.int64]  # [L]
    # [L], of drawing the token, at the temperature used; 0 if it was not drawn
    logp: NDArray[np.float32]
    version: NDArray[np.int64]  # [L], of the weights that drew it; -1 if it was not drawn
    stop: Stop
    conversation: Conversation | None = None  # None: a sample of one turn
    given_back: int = 0  # how often its memory was taken for older samples
    kv_load: float = math.nan  # as it ended, of the engine's memory of keys and values: 0 to 1

    @property
    def drawn(self) -> int:
        """The number of drawn tokens."""
        return len(self.token) if self.conversation is None else int(self.conversation.chosen.sum())


@dataclass(frozen=True, slots=True)
class Continuation:
    """A sample to continue: all its tokens so far, and its limit of further tokens."""

    group: int
    index: int
    text: Sequence[int]  # the prompt and the tokens so far
    # the tokens of ``text`` before the sample's first: draws are counted from there on; below 0 if
    # the sample has more tokens than ``text`` shows
    prompt: int
    limit: int  # at least 1


@dataclass(frozen=True, slots=True)
class Partial:
    """A sample that has not ended: its ``L`` tokens so far, as in ``Sampled``. It can go on in
    another engine.
    """

    group: int
    index: int  # within its group
    token: NDArray[np.int64]  # [L]
    logp: NDArray[np.float32]  # [L]
    version: NDArray[np.int64]  # [L]

    @classmethod
    def waiting(cls, group: int, index: int) -> Partial:
        """A sample that has not begun."""
        none = np.zeros(0, np.int64)
        return cls(group, index, none, np.zeros(0, np.float32), none)


class Engine(Protocol):
    """Draws groups of samples, each group of one prompt.

    A sample depends on the seed, its group and index, the prompt and the weights. It does not
    depend on which engine draws it nor on what else is drawn at the same time (to the bit if the
    logits agree to the bit).
    """

    @property
    def version(self) -> int:
        """The version of the weights that draw."""

    @property
    def live(self) -> int:
        """The number of samples that are being drawn."""

    @property
    def waiting(self) -> int:
        """The number of groups that have not begun."""

    @property
    def away(self) -> int:
        """The number of open samples that wait for a partner's answer."""

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        """Add a group of ``samples`` samples, of at most ``limit`` tokens each. Groups begin in the
        order of submission.
        """

    def step(self) -> list[Sampled]:
        """Draw one token of every live sample; return the samples that it ended."""

    def take(
        self, version: int, params: Mapping[str, Tensor], whole: Callable[[], bool]
    ) -> Iterator[None]:
        """Take new weights a part at a time, with as many steps between two parts as the caller
        likes.

        The old weights draw until the last part is there, and go on if ``params`` are not ``whole``
        then. If no sample is drawn or waits all is one part, which takes the place of the old
        weights: if it is not whole, a step needs others first.
        """

    def close(self) -> None:
        """Give back all that the engine holds outside this process's memory."""


class Continuing(Engine, Protocol):
    """An engine that can continue samples after their end."""

    def go_on(self, rest: Continuation) -> None:
        """Continue a sample; ``step`` returns it again, with the new tokens alone.

        Continued samples begin before new groups, in the order of their calls. A token depends on
        its place in the text as if the sample had never ended.
        """


@runtime_checkable
class HandsOver(Continuing, Protocol):
    """An engine whose samples can go on in another engine before they have ended."""

    def withdraw(self, groups: Collection[int]) -> list[Partial]:
        """Stop drawing the samples of these groups, also of groups that have not begun, and return
        them.
        """

    def resume(self, sample: Partial, prompt: Sequence[int], *, limit: int) -> None:
        """Go on with a sample of another engine, of at most ``limit`` tokens in all; ``step``
        returns it as one sample. Resumed samples begin before new groups.

        The further tokens are drawn with the same random numbers as in the other engine.
        """
