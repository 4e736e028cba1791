"""The reward of reasoning-gym's tasks: its own score of an answer, which is made again from seed
and index, like the question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from equipoise.language.scoring.functions import text_of
from equipoise.types.packed import Prompt


def scored(
    completions: Sequence[Prompt],
    *,
    dataset: Sequence[str],
    settings: Sequence[Mapping[str, object]],
    index: Sequence[int],
    **_: object,
) -> list[float]:
    """The score of what stands in ``<answer>``, or of the whole completion without that tag."""
    from reasoning_gym.utils import extract_answer

    scores = []
    for completion, name, given, i in zip(completions, dataset, settings, index, strict=True):
        text = text_of(completion)
        inner = extract_answer(text)
        made = _made(name, json.dumps(given, sort_keys=True))
        scores.append(
            float(made.score_answer(text.strip() if inner is None else inner, entry=made[i]))
        )
    return scores


@lru_cache(maxsize=4)
def _made(name: str, settings: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(settings))
