"""The task of ``lm_kills.py``, for every system alike: a reward function with the signature of TRL,
and the other side of a conversation. Both write down what they were asked. It imports no library
but Python's own.

A line of the log (the file that ``LM_KILLS_LOG`` names) is one JSON object, written at once:

    {"event": "scored",  "process": PID, "ids": [ID of each sample]}
    {"event": "trained", "process": PID, "update": N, "ids": [ID of each sample]}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

SLEEP_S = 0.01  # of a group of samples: a reward takes time
TALKS = 605  # rows of a conversation, of which a system may hold some out


def log(event: str, **fields: Any) -> None:
    """Append one line. A kill leaves the line out, or leaves it whole."""
    line = json.dumps({"event": event, "process": os.getpid(), **fields}) + "\n"
    file = os.open(os.environ["LM_KILLS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def reward(completions: Sequence[str], id: Sequence[str], answer: Sequence[str], **_: Any) -> Any:
    """The share of the answer's letters that stand at their place."""
    time.sleep(SLEEP_S * len(set(id)))
    log("scored", ids=list(id))
    return [
        sum(a == b for a, b in zip(text, right, strict=False)) / len(right)
        for text, right in zip(completions, answer, strict=True)
    ]


class Count:
    """Asks for the last digit of a number, in at most three turns. The end is logged."""

    def reset(self, row: Mapping[str, object]) -> str:
        self._id, self._turns = str(row["id"]), 0
        return f"{self._id}?"

    def step(self, text: str) -> tuple[str | None, float]:
        time.sleep(SLEEP_S)
        self._turns += 1
        right = text[:1] == self._id[-1]
        if right or self._turns == 3:
            log("scored", ids=[self._id])
            return None, float(right)
        return "!", 0.0

    @staticmethod
    def rows() -> list[dict[str, object]]:
        return [{"id": str(number)} for number in range(1000, 1000 + TALKS)]
