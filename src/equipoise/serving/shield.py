"""The shield: rules that a decision has to pass, and the safe action that takes the place of a
decision that does not.

| reason | the rule |
|---|---|
| ``outside`` | an observation is farther out of its recorded quantiles than a margin (times their range) |
| ``limits`` | an action is out of the limits that the user gives |
| ``not-finite`` | an action, its propensity or the next recurrent state has nan or an infinity |
| ``failed`` | the model raised an error |
| ``deadline`` | the answer was not there in time |
| ``unlogged`` | an exploring action could not be logged, so the best one is taken |
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.edge import branches, choices, path_of
from equipoise.serving.settings import Rules

Array = np.ndarray
REASONS = ("outside", "limits", "not-finite", "failed", "deadline", "unlogged")


class UnfitRules(ValueError):
    """The error of a user's rules that do not fit the policy, which no other version would mend."""


class Shield:
    """The rules for one version of a policy."""

    def __init__(self, rules: Rules, spec: Mapping[str, Any]) -> None:
        """``UnfitRules`` if a rule does not fit the policy."""
        self.rules = rules
        policy = spec["policies"][spec["artifact"]["policy"]]
        self._action = policy["action"]
        # per array of a mask: its name, and where each choice begins
        self.masks: list[tuple[str, list[int]]] = []
        found: object = policy["observation"]
        for key in policy["mask"]:
            found = (branches(found) or {})[key]
        if policy["mask"]:
            self.masks = [
                (name, list(begins))
                for name, begins in choices(path_of("obs", *policy["mask"]), found, self._action)
            ]
        try:
            self._limits = [
                _limit(value, self._action, name)
                for name, value in (("low", rules.low), ("high", rules.high))
            ]
            self._bounds = _bounds(spec["artifact"].get("quantiles") or {}, rules.margin)
            if rules.safe is not None:
                _like(rules.safe, self._action, "safe action")
        except ValueError as error:
            raise UnfitRules(str(error)) from None

    def outside(self, rows: Mapping[str, Array]) -> Array | None:
        """Which observations [B] are out of their quantiles; None where no rule looks."""
        if not self._bounds:
            return None
        found = [
            ((x := rows[name].reshape(len(rows[name]), -1)) < low) | (x > high)
            for name, (low, high) in self._bounds.items()
        ]
        any_of_them: Array = np.stack([one.any(axis=1) for one in found]).max(axis=0)
        return any_of_them

    def beyond(self, action: object) -> bool:
        """Is an action, as ``env.step`` takes it, out of the user's limits?"""
        low, high = self._limits
        return (low is not None and bool(np.any(action < low))) or (
            high is not None and bool(np.any(action > high))
        )

    def safe(self, rows: Mapping[str, Array], row: int) -> object:
        """The safe action for a row, as JSON has it."""
        if self.rules.safe is not None:
            return self.rules.safe
        firsts: list[int] = []  # the first allowed choice of each part of the action
        for name, begins in self.masks:
            mask = rows[name][row].reshape(-1) != 0
            firsts += [
                int(mask[a:b].argmax())
                for a, b in zip(begins, [*begins[1:], len(mask)], strict=True)
            ]
        return middle(self._action, iter(firsts))


def not_finite(arrays: Sequence[Mapping[str, Array] | None]) -> Array | None:
    """Which rows [B] have nan or an infinity in some array [B, ...]; None if there is no such
    row.
    """
    found = [
        ~fine.reshape(len(x), -1).all(axis=1)
        for named in arrays
        for x in (named or {}).values()
        # vdot: one pass
        if x.dtype.kind == "f"
        and not math.isfinite(np.vdot(x, x))
        and not (fine := np.isfinite(x)).all()
    ]
    return np.stack(found).max(axis=0) if found else None


def _bounds(quantiles: Mapping[str, Any], margin: float | None) -> dict[str, tuple[Array, Array]]:
    """The lowest and highest numbers [n] that each observation may have."""
    if margin is None:
        return {}
    if not quantiles:
        raise ValueError(
            "--margin: expected an artifact with quantiles of its observations, got one without; "
            "export it again"
        )
    found = {}
    for name, one in quantiles.items():
        values = np.asarray(one["values"], np.float64)
        low, high = values[0].reshape(-1), values[-1].reshape(-1)
        found[name] = (low - margin * (high - low), high + margin * (high - low))
    return found


def _limit(value: object, action: Mapping[str, Any], name: str) -> Array | None:
    if value is None:
        return None
    if action["type"] != "Box":
        raise ValueError(
            f"--{name}: expected a policy whose action is a Box, got a {action['type']}"
        )
    try:
        limit = np.asarray(value, np.float64)
        np.broadcast_to(limit, action["shape"])
    except (ValueError, TypeError):
        raise ValueError(
            f"--{name}: expected a number, or lists of shape {action['shape']}, got {value!r}"
        ) from None
    return limit


def _like(value: object, action: Mapping[str, object], place: str) -> None:
    """ValueError if a value is no action of this space."""
    if (inner := branches(action)) is not None:
        keyed = (
            value
            if action["type"] == "Dict"
            else dict(zip(inner, value, strict=False))
            if isinstance(value, list)
            else None
        )
        if not isinstance(keyed, Mapping) or keyed.keys() != inner.keys():
            raise ValueError(
                f"{place}: expected a {action['type']} of {list(inner)}, got {value!r}"
            )
        for key, one in inner.items():
            _like(keyed[key], one, f"{place}/{key}")
        return
    shape = _shape(action)
    try:
        got = np.asarray(value, np.float64).shape
    except (ValueError, TypeError):
        got = None
    if got != shape:
        raise ValueError(f"{place}: expected numbers of shape {list(shape)}, got {value!r}")
    x, (low, high) = np.asarray(value, np.float64), _ends(action, shape)
    whole = action["type"] == "Box" or bool((x == np.floor(x)).all())
    if not whole or not bool(((x >= low) & (x <= high)).all()):
        numbers = "numbers" if action["type"] == "Box" else "whole numbers"
        raise ValueError(
            f"{place}: expected {numbers} from {low.tolist()} to {high.tolist()}, got {value!r}"
        )


def _ends(action: Mapping[str, object], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The lowest and the highest action of a space without parts."""
    kind = action["type"]
    if kind == "Box":
        low, high = (
            np.broadcast_to(np.asarray(action[end], np.float64), shape) for end in ("low", "high")
        )
        return low, high
    if kind == "MultiBinary":
        return np.zeros(shape), np.ones(shape)
    start = np.asarray(action["start"], np.float64)
    return start, start + np.asarray(action["n" if kind == "Discrete" else "nvec"], np.float64) - 1


def _shape(action: Mapping[str, Any]) -> tuple[int, ...]:
    kind = action["type"]
    if kind == "Box":
        return tuple(action["shape"])
    return (
        ()
        if kind == "Discrete"
        else np.shape(action["nvec"])
        if kind == "MultiDiscrete"
        else tuple(np.atleast_1d(action["n"]))
    )


def middle(action: Mapping[str, Any], firsts: Iterator[int]) -> object:
    """The middle of a space, as JSON has it; ``firsts``: the values of its choices, instead of
    their lowest ones.
    """
    if (inner := branches(action)) is not None:
        parts = {key: middle(one, firsts) for key, one in inner.items()}
        return parts if action["type"] == "Dict" else list(parts.values())
    kind, shape = action["type"], _shape(action)
    if kind == "Discrete":
        return next(firsts, 0) + action["start"]
    if kind == "MultiDiscrete":
        picked = np.array([next(firsts, 0) for _ in range(int(np.prod(shape)))]).reshape(
            shape
        ) + np.asarray(action["start"])
        return picked.tolist()
    if kind == "MultiBinary":
        return np.zeros(shape, int).tolist()
    low, high = _ends(action, shape)
    with np.errstate(invalid="ignore"):  # inf - inf
        mid = np.where(
            np.isfinite(low) & np.isfinite(high), (low + high) / 2, np.clip(0.0, low, high)
        )
    return mid.astype(action["dtype"]).tolist()
