"""Rewards of text that fail now and then, or always."""

from __future__ import annotations

from typing import Any

from equipoise.language.scoring.own import answered

_calls = [0]


def sometimes(
    completions: list[str], *, answer: list[str], ended: list[bool], **columns: Any
) -> list[float]:
    """The built-in reward; every fifth group it raises."""
    _calls[0] += 1
    if _calls[0] % 5 == 0:
        raise KeyError("no such word")
    return answered(completions, answer=answer, ended=ended)


def never(completions: list[str], **columns: Any) -> list[float]:
    """One number too few."""
    return [0.0] * (len(completions) - 1)


async def later(completions: list[str], *, answer: list[str], ended: list[bool]) -> list[float]:
    return answered(completions, answer=answer, ended=ended)
