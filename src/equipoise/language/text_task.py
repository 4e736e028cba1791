"""A task of text as plain data: prompts to learn from, prompts that are held out, and the name of a
reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.language.tokenizers import CharTokenizer
from equipoise.types.packed import Example, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """A ``Task`` (``types/packed.py``) as plain data."""

    name: str
    train: Sequence[Example]
    held_out: Sequence[Example]
    tokenizer: Tokenizer | None = None
    reward: str = ""
    quick: bool = False
    completion: int = 0
    partner: str = ""
    make: Callable[[], object] | None = None
    seats: int = 0
    ready: Callable[[int], None] | None = None
    turns: int = 0
    turn_tokens: int = 0
    notes: tuple[str, ...] = ()  # on its rows, for a person


def letters(examples: Sequence[Example], more: str = "") -> CharTokenizer | None:
    """Return a tokenizer of all letters of prompts, completions, columns and ``more``; None if the
    prompts are messages.
    """
    if not all(isinstance(one.prompt, str) for one in examples):
        return None
    texts = (
        text
        for one in examples
        for text in (one.prompt, one.completion, *one.columns.values())
        if isinstance(text, str)
    )
    return CharTokenizer("".join(sorted({*more, *(one for text in texts for one in text)})))
