"""The space of a study: the settings that differ between its trials, each with its range."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Value = int | float | str | bool
Settings = Mapping[str, Value]  # by key, such as "optimizer.learning_rate"
Scale = Literal["uniform", "log"]

MOST_KEYS, MOST_CHOICES, MOST_CELLS = 64, 256, 100_000
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"(?:(?P<scale>\w+):)?(?P<low>{NUMBER})\.\.(?P<high>{NUMBER})")
KEY = re.compile(r"[A-Za-z_][\w.]{0,99}")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few values."""

    key: str
    values: tuple[Value, ...]

    def at(self, share: float) -> Value:
        """Return the value at a share in [0, 1) of the range."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def share(self, value: Value) -> float:
        """Return the share in [0, 1] of the range at which the value lies."""
        return (self.index(value) + 0.5) / len(self.values)

    def index(self, value: Value) -> int:
        """Return the place of a value; ValueError for one that is not among them."""
        return [*map(_typed, self.values)].index(_typed(value))

    def holds(self, value: Value) -> bool:
        return _typed(value) in map(_typed, self.values)

    def grid(self, points: int) -> list[Value]:
        return list(self.values)

    def __str__(self) -> str:
        return f"{self.key}={','.join(map(_text, self.values))}"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole numbers if both bounds are."""

    key: str
    low: float
    high: float
    scale: Scale = "uniform"
    whole: bool = False

    def at(self, share: float) -> Value:
        """Return the value at a share in [0, 1] of the range, within its bounds."""
        if share <= 0 or share >= 1:  # exactly, whatever the logarithm rounds to
            return self.clipped(self.low if share <= 0 else self.high)
        low, high = self._bounds()
        value = low + (high - low) * share
        value = math.exp(value) if self.scale == "log" else value
        return self.clipped(value)

    def share(self, value: Value) -> float:
        """Return the share in [0, 1] of the range at which the value lies."""
        low, high = self._bounds()
        number = float(value)
        there = (math.log(number) if self.scale == "log" else number) - low
        return min(max(there / (high - low), 0.0), 1.0)

    def clipped(self, value: float) -> Value:
        """Return the nearest value of the range."""
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else float(value)

    def holds(self, value: Value) -> bool:
        if isinstance(value, bool | str) or not self.low <= value <= self.high:
            return False
        return not self.whole or value == int(value)

    def grid(self, points: int) -> list[Value]:
        shares = np.linspace(0.0, 1.0, points) if points > 1 else [0.5]
        return list(dict.fromkeys(self.at(float(share)) for share in shares))

    def __str__(self) -> str:
        low, high = (f"{round(x)}" if self.whole else repr(float(x)) for x in (self.low, self.high))
        return f"{self.key}={self.scale}:{low}..{high}"

    def _bounds(self) -> tuple[float, float]:
        # Half a step beyond whole bounds, so that they are as likely as the others.
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.scale != "log":
            return low, high
        return math.log(max(low, 0.5) if self.whole else low), math.log(high)


Parameter = Choice | Range


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters of a search, in the order in which they were given."""

    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        keys = [one.key for one in self.parameters]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f"space: must give each setting once, got {twice!r} twice; remove one")

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def named(self) -> list[tuple[str, str]]:
        """Texts by which a setting may name code or a file (``equipoise.trust``)."""
        return [
            ("setting", value)
            for one in self.parameters
            if isinstance(one, Choice)
            for value in one.values
            if isinstance(value, str) and (":" in value or one.key.startswith("env."))
        ]

    def sample(self, rng: np.random.Generator) -> Settings:
        return self.at(rng.random(len(self)).tolist())

    def at(self, shares: Sequence[float]) -> Settings:
        """Return the settings at a point of the unit cube."""
        return {one.key: one.at(float(share)) for one, share in zip(self.parameters, shares)}

    def shares(self, settings: Mapping[str, Value]) -> list[float]:
        """Return the point of the unit cube at which these settings lie."""
        return [one.share(settings[one.key]) for one in self.parameters]

    def holds(self, settings: Mapping[str, Value]) -> bool:
        return settings.keys() == {one.key for one in self.parameters} and all(
            one.holds(settings[one.key]) for one in self.parameters
        )

    def grid(self, points: int) -> list[Settings]:
        """Return every combination, with ``points`` values of each range; ValueError for more than
        100,000.
        """
        values = [one.grid(points) for one in self.parameters]
        if (count := math.prod(len(one) for one in values)) > MOST_CELLS:
            raise ValueError(f"space: must have at most {MOST_CELLS:,} combinations, got {count:,}")
        keys = [one.key for one in self.parameters]
        return [dict(zip(keys, chosen)) for chosen in itertools.product(*values)]


def read_space(texts: Sequence[str]) -> Space:
    """Return the space that texts such as ``optimizer.learning_rate=log:1e-5..1e-2`` and
    ``algorithm.gamma=0.95,0.99`` describe; ValueError with the text for one that makes no sense.
    """
    if len(texts) > MOST_KEYS:
        raise ValueError(f"space: must have at most {MOST_KEYS} settings, got {len(texts):,}")
    return Space(tuple(read_parameter(text) for text in texts))


def read_parameter(text: str) -> Parameter:
    key, equals, given = text.partition("=")
    key, given, shown = key.strip(), given.strip(), text if len(text) <= 80 else f"{text[:80]}..."
    if not equals or not KEY.fullmatch(key) or not given:
        raise ValueError(
            f"space: must be KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=A,B,C, got {shown!r}"
        )
    # 1...5 may mean 1. to 5 and 1 to .5
    if "..." not in given and (found := RANGE.fullmatch(given)) is not None:
        return _range(key, found, shown)
    if ".." in given:
        raise ValueError(f"space: must have two numbers around '..', got {shown!r}")
    values = tuple(_value(one.strip(), shown) for one in given.split(","))
    if len(values) > MOST_CHOICES:
        raise ValueError(
            f"space: must have at most {MOST_CHOICES} values of a setting, got {len(values):,} of "
            f"{key}"
        )
    if len({*map(_typed, values)}) < len(values):
        raise ValueError(f"space: must name each value once, got {shown!r}")
    return Choice(key, values)


def _range(key: str, found: re.Match[str], shown: str) -> Range:
    scale = found["scale"] or "uniform"
    if scale not in ("uniform", "log", "int"):
        raise ValueError(f"space: the scale must be log, uniform or int, got {shown!r}")
    whole = all(re.fullmatch(r"[-+]?\d+", found[name]) for name in ("low", "high"))
    if scale == "int" and not whole:
        raise ValueError(f"space: bounds of int must be whole numbers, got {shown!r}")
    low, high = float(found["low"]), float(found["high"])
    prefix = f"{scale}:" if found["scale"] else ""
    if not (math.isfinite(high - low) and low < high):
        raise ValueError(
            f"space: the lower bound must be below the upper one, got {shown!r}; "
            f"try {key}={prefix}{found['high']}..{found['low']}"
            if math.isfinite(low) and low > high
            else f"space: bounds must be two different finite numbers, got {shown!r}"
        )
    if scale == "log" and low <= 0:
        raise ValueError(f"space: the lower bound of log must be above 0, got {shown!r}")
    return Range(key, low, high, "log" if scale == "log" else "uniform", whole)


def _typed(value: Value) -> tuple[bool, Value]:
    """Return a value so that true and 1 are two values."""
    return isinstance(value, bool), value


def _value(text: str, shown: str) -> Value:
    if not text:
        raise ValueError(f"space: must have no empty value, got {shown!r}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"space: values must be finite, got {shown!r}")
    return value if isinstance(value, int | float | str | bool) else text


def _text(value: Value) -> str:
    """Return a value as ``read_parameter`` reads it: quoted if it would be read as another."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        plain = _value(value.strip(), value) == value
    except ValueError:
        plain = False
    return value if plain else json.dumps(value)


def setting_texts(given: Mapping[str, object] | Sequence[str]) -> tuple[str, ...]:
    """Return the settings of a space or a strategy as texts KEY=VALUE, lists as KEY=A,B,C."""
    if isinstance(given, str):
        raise TypeError(f"must be a mapping, or a list of texts KEY=VALUE, got the text {given!r}")
    if not isinstance(given, Mapping):
        return tuple(given)
    return tuple(
        f"{key}={','.join(map(str, value))}"
        if isinstance(value, Sequence) and not isinstance(value, str)
        else f"{key}={value}"
        for key, value in given.items()
    )
