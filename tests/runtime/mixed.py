"""Prompts of mixed difficulty: half of them can be learned, and no sample solves the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from equipoise.language.text_task import TextTask
from equipoise.language.tokenizers import CharTokenizer
from equipoise.types import Example


def rows(letters: str = "0123", length: int = 3) -> TextTask:
    """Repeat the first letter. Where the second is in the later half of ``letters``, nothing is
    right.
    """
    hard = letters[len(letters) // 2 :]

    def examples() -> Iterator[Example]:
        for one in product(letters, repeat=length):
            answer = "none" if one[1] in hard else one[0]
            yield Example(prompt=f"{''.join(one)}>", columns={"answer": answer})

    return TextTask(
        name="mixed",
        train=[*examples()],
        held_out=[],
        tokenizer=CharTokenizer(f"{letters}>"),
        completion=2,
        reward="tests.runtime.mixed:right",
        quick=True,
    )


def right(completions: Sequence[str], *, answer: Sequence[str], **_: Any) -> list[float]:
    return [float(one == wanted) for one, wanted in zip(completions, answer, strict=True)]
