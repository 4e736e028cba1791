"""An engine without a network: it draws random tokens, and takes the time of a latency model.

It stands for a device that this machine does not have, so that the rest of a run (queue, lag,
rewards, weights) can be tried with many devices. The policy ignores the weights: lengths are
lognormal, so the end token has the chance that a length is ``t`` if it is at least ``t``. All other
tokens are equally likely.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from equipoise.actors.engine.drawing import sample_keys, uniform
from equipoise.actors.engine.engine import Continuation, Partial, Sampled
from equipoise.hints import hint, shortened
from equipoise.types.packed import Stop

NAME = "sim"  # begins its name as a setting
MOST_S = 60.0  # longest step
MOST_SAMPLE_S = 1.0  # most that a sample adds to it
SLEEP_S = 5.0  # longest sleep, so that a worker soon sees that it is to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Settings of a simulated device: its seconds, and the lengths of its samples in tokens."""

    median: float = 100.0  # median of the lognormal lengths
    sigma: float = 1.0  # their deviation in the logarithm
    step_s: float = 0.02  # a step takes step_s + sample_s * samples
    sample_s: float = 5e-5
    prefill: float = 20_000.0  # tokens/s of prompts
    take_s: float = 0.0  # new weights make the next step longer by this
    # does ``step`` sleep until its end? Otherwise it returns at once, with nothing until then, so
    # that several engines can run in one thread
    waits: bool = True

    def __post_init__(self) -> None:
        for name, value, least in (
            ("median", self.median, 1.0),
            ("sigma", self.sigma, 1e-3),
            ("prefill", self.prefill, 1.0),
            ("step_s", self.step_s, 0.0),
            ("sample_s", self.sample_s, 0.0),
            ("take_s", self.take_s, 0.0),
        ):
            if not least <= value < math.inf:
                raise ValueError(f"{NAME}: {name}: must be at least {least:g}, got {value}")
        if max(self.step_s, self.take_s) > MOST_S:
            raise ValueError(
                f"{NAME}: step_s and take_s: must be at most {MOST_S:g}, got {self.step_s} and "
                f"{self.take_s}"
            )
        if self.sample_s > MOST_SAMPLE_S:
            raise ValueError(
                f"{NAME}: sample_s: must be at most {MOST_SAMPLE_S:g}, got {self.sample_s:g}"
            )


def latency(name: str) -> Latency:
    """Read a setting: ``sim``, or ``sim:step_s=0.01,median=40``."""
    kind, _, rest = name.partition(":")
    if kind != NAME:
        raise ValueError(f"engine: must be {NAME} or {NAME}:step_s=0.02,..., got {name!r}")
    known = {one.name: one.default for one in fields(Latency)}
    given: dict[str, float | bool] = {}
    for part in filter(None, rest.split(",")):
        key, _, text = part.partition("=")
        if (usual := known.get(key, MISSING)) is MISSING:
            got = f"{shortened(repr(key))}{hint(key, known)}"
            raise ValueError(f"{NAME}: must have a known setting, got {got}")
        try:
            given[key] = (
                {"true": True, "false": False}[text] if isinstance(usual, bool) else float(text)
            )
        except (KeyError, ValueError):
            wanted = "true or false" if isinstance(usual, bool) else "a number"
            raise ValueError(f"{NAME}: {key}: must be {wanted}, got {text!r}") from None
    return Latency(**given)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Row:
    group: int
    index: int
    key: NDArray[np.int64]  # [1]
    limit: int
    before: int  # tokens of the sample that are not in ``token``
    token: list[int]
    logp: list[float]
    version: list[int]


class SimEngine:
    """An ``Engine`` that takes the time of a latency model."""

    def __init__(
        self,
        model: Latency,
        *,
        rows: int,
        vocabulary: int,
        eos: int,
        seed: int,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``rows``: most samples at a time; ``clock`` and ``sleep``: for tests that do not wait."""
        if rows < 1 or vocabulary < 2 or not 0 <= eos < vocabulary:
            raise ValueError(
                "rows, vocabulary and eos: must be at least 1, at least 2 and a token, got "
                f"{rows}, {vocabulary} and {eos}"
            )
        self._model, self._most, self._seed = model, rows, seed
        self._vocabulary, self._eos = vocabulary, eos
        self._clock, self._sleep = clock, sleep
        self._rows: list[_Row] = []
        self._queue: deque[tuple[int, int, int, int]] = deque()  # group, prompt, samples, limit
        self._returned: deque[Continuation] = deque()
        self._resumed: deque[tuple[Partial, int, int]] = deque()  # with its prompt and its limit
        # the end of the step under way, and the version that draws in it
        self._until: float | None = None
        self._drawing = 0
        self._chances: list[float] = []  # of the end token, by the number of tokens
        self._late_s = 0.0  # seconds of new weights and prompts, added to the next step
        self.version = 0

    @property
    def live(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._returned) + len(self._resumed)

    @property
    def away(self) -> int:
        return 0

    def go_on(self, rest: Continuation) -> None:
        if rest.limit < 1:
            raise ValueError(f"limit: must be at least 1, got {rest.limit}")
        self._returned.append(rest)

    def resume(self, sample: Partial, prompt: Sequence[int], *, limit: int) -> None:
        if limit <= len(sample.token):
            raise ValueError(f"limit: must be above {len(sample.token)} tokens, got {limit}")
        self._resumed.append((sample, len(prompt), limit))

    def withdraw(self, groups: Collection[int]) -> list[Partial]:
        found = [
            Partial(row.group, row.index, *_drawn(row)) for row in self._rows if row.group in groups
        ]
        found += [sample for sample, _, _ in self._resumed if sample.group in groups]
        found += [
            Partial.waiting(group, index)
            for group, _, samples, _ in self._queue
            for index in range(samples)
            if group in groups
        ]
        self._rows = [row for row in self._rows if row.group not in groups]
        self._resumed = deque(one for one in self._resumed if one[0].group not in groups)
        self._queue = deque(one for one in self._queue if one[0] not in groups)
        if not self._rows:
            self._until = None
        return found

    def submit(self, group: int, prompt: Sequence[int], samples: int, *, limit: int) -> None:
        if not 1 <= samples <= self._most or limit < 1:
            raise ValueError(
                f"group {group}: must be 1 to {self._most} samples of at least 1 token, got "
                f"{samples} of {limit}"
            )
        self._queue.append((group, len(prompt), samples, limit))

    def step(self) -> list[Sampled]:
        """Draw one token of every sample; nothing is drawn before the time of the step is over."""
        if self._until is None:
            self._admit()
            if not self._rows:
                return []
            passes = self._model.step_s + self._model.sample_s * len(self._rows) + self._late_s
            self._late_s = 0.0
            self._until, self._drawing = self._clock() + passes, self.version
        if (left := self._until - self._clock()) > 0:
            if not self._model.waits:
                return []
            self._sleep(min(left, SLEEP_S))
            if left > SLEEP_S:
                return []
        self._until = None
        return self._draw()

    def take(
        self, version: int, params: Mapping[str, object], whole: Callable[[], bool]
    ) -> Iterator[None]:
        self._late_s += self._model.take_s
        yield
        if whole():
            self.version = version

    def close(self) -> None: ...

    def _admit(self) -> None:
        """Begin groups whose samples all have room, in order."""
        while self._returned and len(self._rows) < self._most:
            rest = self._returned.popleft()
            self._late_s += len(rest.text) / self._model.prefill
            self._begin(rest.group, rest.index, rest.limit, len(rest.text) - rest.prompt)
        while self._resumed and len(self._rows) < self._most:
            sample, prompt, limit = self._resumed.popleft()
            self._late_s += (prompt + len(sample.token)) / self._model.prefill
            self._begin(sample.group, sample.index, limit, 0)
            row = self._rows[-1]
            row.token, row.logp, row.version = (
                one.tolist() for one in (sample.token, sample.logp, sample.version)
            )
        if self._returned or self._resumed:
            return
        while self._queue and len(self._rows) + self._queue[0][2] <= self._most:
            group, prompt, samples, limit = self._queue.popleft()
            self._late_s += prompt / self._model.prefill
            for index in range(samples):
                self._begin(group, index, limit, 0)

    def _begin(self, group: int, index: int, limit: int, before: int) -> None:
        key = sample_keys(self._seed, np.array([group]), np.array([index]))
        self._rows.append(_Row(group, index, key, limit, before, [], [], []))

    def _draw(self) -> list[Sampled]:
        counts = np.array([len(row.token) + 1 for row in self._rows], np.int64)
        before = np.array([row.before for row in self._rows], np.int64)
        number = uniform(np.concatenate([row.key for row in self._rows]), counts + before)
        for count in range(len(self._chances) + 1, int(counts.max()) + 1):
            self._chances.append(ends(self._model, count))
        done, going = list[Sampled](), list[_Row]()
        for row, count, one in zip(self._rows, counts.tolist(), number.tolist(), strict=True):
            end, others = self._chances[count - 1], self._vocabulary - 1
            if one < end:
                token, logp = self._eos, math.log(end)
            else:
                token = min(int((one - end) / (1 - end) * others), others - 1)
                token, logp = token + (token >= self._eos), math.log((1 - end) / others)
            row.token.append(token)
            row.logp.append(logp)
            row.version.append(self._drawing)
            if token == self._eos or count == row.limit:
                done.append(_sampled(row, Stop.EOS if token == self._eos else Stop.LENGTH))
            else:
                going.append(row)
        self._rows = going
        return done


def ends(model: Latency, count: int) -> float:
    """Return the chance that token number ``count`` (from 1) is the last one of a sample."""

    def longer(than: float) -> float:
        z = math.log(than / model.median) / model.sigma if than > 0 else -math.inf
        return 0.5 * math.erfc(z / math.sqrt(2))

    left = longer(count - 0.5) if count > 1 else 1.0
    # far beyond the median the remaining chance is too small for a float
    return min(max(1 - longer(count + 0.5) / left, 0.0), 1 - 1e-9) if left > 1e-300 else 1 - 1e-9


def _sampled(row: _Row, stop: Stop) -> Sampled:
    return Sampled(
        row.group,
        row.index,
        *_drawn(row),
        stop,
    )


def _drawn(
    row: _Row,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The tokens of a row, their log-probabilities and versions."""
    return (
        np.array(row.token, np.int64),
        np.array(row.logp, np.float32),
        np.array(row.version, np.int64),
    )
