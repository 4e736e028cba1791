"""The measured costs of a run, its plans, and the forecast of a plan.

A plan divides the devices of a run among four kinds of work: generating samples, learning from
them, scoring them by a reward model, and computing the log-probabilities of a reference.

========  ==========================================================================================
together  all devices generate an update's samples, then all of them learn
apart     some generate while the others learn; samples are at most ``max_lag`` versions old
elastic   apart, and devices of the learners are lent to generation while that pays (``lending.py``)
========  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Kind = Literal["together", "apart", "elastic"]
Part = Literal["generation", "long tail", "reward", "learning", "publishing", "switching"]
PARTS: tuple[Part, ...] = (
    "generation",
    "long tail",
    "reward",
    "learning",
    "publishing",
    "switching",
)
MOST_DEVICES, MOST_LAG = 4096, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured costs: speeds of one device in tokens/s, times in seconds."""

    samples: int  # samples of an update
    group: int = 1  # samples of one prompt
    prompt: float = 0.0  # tokens of a prompt, mean
    # tokens of observed samples; there should be several times as many as in an update, so that the
    # longest ones are among them
    lengths: Sequence[int]
    # tokens/s of a device by the number of samples that it draws at once
    decode: Mapping[int, float]
    prefill: float = math.inf  # tokens/s of prompts
    train: float  # tokens/s of a device that learns; prompts count
    at_once: int  # most samples that a device draws at once
    # tokens whose keys and values fit on a device; a group begins if its samples fit at their mean
    # length
    room: float = math.inf
    publish_s: float = 0.0  # time in which the learners publish weights, for each update
    take_s: float = 0.0  # time in which a generator takes new weights and draws nothing
    switch_s: float = 0.0  # time in which a device changes between generating and learning
    reward_s: float = 0.0  # time from the last sample of a batch to its last reward
    score: float = 0.0  # tokens/s of a reward model on a device; 0: none
    reference: float = 0.0  # tokens/s of a reference on a device; 0: none

    def __post_init__(self) -> None:
        counts = {"samples": self.samples, "group": self.group, "at_once": self.at_once}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}: must be at least 1, got {count}")
        if self.samples % self.group:
            raise ValueError(
                f"samples: must be a multiple of group={self.group}, got {self.samples}"
            )
        if self.group > self.at_once:
            raise ValueError(f"at_once: must be at least group={self.group}, got {self.at_once}")
        if not len(self.lengths) or min(self.lengths) < 1:
            raise ValueError("lengths: must be tokens of samples, at least 1 each, got fewer")
        if not self.decode or min(self.decode) < 1 or min(self.decode.values()) <= 0:
            raise ValueError(
                "decode: must be tokens/s above 0 by the number of samples, such as {1: 30, 64: "
                f"1500}}, got {dict(self.decode)}"
            )
        for name, value in {"train": self.train, "prefill": self.prefill}.items():
            if not value > 0:
                raise ValueError(f"{name}: must be tokens/s above 0, got {value}")
        if not self.room > 0:
            raise ValueError(f"room: must be above 0, got {self.room}")
        for name, value in {
            "prompt": self.prompt,
            "publish_s": self.publish_s,
            "take_s": self.take_s,
            "switch_s": self.switch_s,
            "reward_s": self.reward_s,
            "score": self.score,
            "reference": self.reference,
        }.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: must be at least 0, got {value}")

    @property
    def mean(self) -> float:
        """Mean tokens of a sample."""
        return float(np.mean(self.lengths))

    def grown(self, factor: float) -> Costs:
        """Return the same costs with lengths that are ``factor`` times as long."""
        return replace(self, lengths=[max(round(one * factor), 1) for one in self.lengths])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Numbers of devices for each kind of work."""

    kind: Kind
    generate: int
    learn: int
    max_lag: int = 0
    score: int = 0  # 0: the learning devices do this
    reference: int = 0  # 0: the learning devices do this

    def __post_init__(self) -> None:
        for name, value in {"generate": self.generate, "learn": self.learn}.items():
            if not 1 <= value <= MOST_DEVICES:
                raise ValueError(f"{name}: must be 1 to {MOST_DEVICES:,} devices, got {value}")
        if not 0 <= self.max_lag <= MOST_LAG:
            raise ValueError(f"max_lag: must be 0 to {MOST_LAG}, got {self.max_lag}")
        if self.kind == "together" and (self.max_lag or self.generate != self.learn):
            raise ValueError(
                "together: must have max_lag=0 and the same devices to generate and to learn, got "
                f"max_lag={self.max_lag}, {self.generate} and {self.learn}"
            )
        if self.kind == "elastic" and self.learn + self.generate < 3:
            raise ValueError(
                "elastic: must have at least 3 devices, so that one can be lent, got "
                f"{self.learn + self.generate}; try apart"
            )

    @property
    def devices(self) -> int:
        both = self.generate if self.kind == "together" else self.generate + self.learn
        return both + self.score + self.reference

    @property
    def name(self) -> str:
        if self.kind == "together":
            return f"together on {self.generate}"
        rest = "".join(
            f", {count} {work}"
            for work, count in (("score", self.score), ("hold the reference", self.reference))
            if count
        )
        lag = f" at max_lag {self.max_lag}"
        return f"{self.kind}: {self.generate} generate, {self.learn} learn{rest}{lag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of one plan."""

    plan: Plan
    seconds: float  # seconds of an update
    generators_idle: float  # share of their time in which they draw nothing
    learners_idle: float  # share of their time in which they wait for samples
    lag: float  # staleness in versions, mean over tokens
    # seconds of an update by what the learners do or wait for; their sum is ``seconds``
    spent: Mapping[Part, float]
    # devices that generate and that learn; of an elastic plan without lent devices
    devices: tuple[int, int]

    @property
    def bound(self) -> Part:
        """The part that takes most of an update."""
        return max(PARTS, key=lambda part: self.spent[part])
