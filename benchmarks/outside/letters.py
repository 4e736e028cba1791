"""A task without a right answer, of 30 letters: a model that nobody trained ends a completion with
a chance of 1 in 32.
"""

from __future__ import annotations

import random

from equipoise.language.tasks import ANSWERED, TextTask
from equipoise.language.tokenizers import CharTokenizer
from equipoise.types import Example

LETTERS = "abcdefghijklmnopqrstuvwxyz0123"


def task() -> TextTask:
    draw = random.Random(0)
    rows = [
        Example(prompt="".join(draw.choices(LETTERS, k=16)), columns={"answer": "a"})
        for _ in range(512)
    ]
    return TextTask(
        name="letters",
        train=rows[:-8],
        held_out=rows[-8:],
        tokenizer=CharTokenizer(LETTERS),
        reward=ANSWERED,
        quick=True,
        completion=256,
    )
