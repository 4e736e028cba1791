"""Rewards of the built-in tasks."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.language.scoring.functions import text_of
from equipoise.types.packed import Prompt


def answered(
    completions: Sequence[Prompt], *, answer: Sequence[str], ended: Sequence[bool], **_: object
) -> list[float]:
    """The share of places that are right, the end being one; 1 for the whole answer alone."""
    return [
        _share(text_of(text), right, end)
        for text, right, end in zip(completions, answer, ended, strict=True)
    ]


def _share(text: str, right: str, ended: bool) -> float:
    places = max(len(text), len(right)) + 1
    same = sum(a == b for a, b in zip(text, right, strict=False))
    return (same + (ended and len(text) == len(right))) / places
