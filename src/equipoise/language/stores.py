"""Rows of preferences from a store of texts: each answered query is a pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from equipoise.feedback import Answer, Query, Store
from equipoise.feedback.agreement import SHARES, evidence, gold_of, weights
from equipoise.feedback.database import FILE
from equipoise.schema import MOST

LEAST = 2  # answered queries, of which one is held out
UPTO = "upto"  # argument of the task: the last row of answers to read


def is_store(target: str) -> bool:
    """Return whether a task is the path of a store of preferences, with a slash in it.

    A name without a slash is never opened: ``trust.py`` knows paths by their slash.
    """
    return "/" in target and (Path(target) / FILE).exists()


def as_path(target: str) -> str:
    """Return a store's path with a slash in it; return any other task unchanged."""
    return f"./{target}" if is_store(f"./{target}") and "/" not in target else target


def last_row(target: str) -> int:
    """Return the newest row of answers of a store."""
    with Store.open(target) as store:
        return store.last_row()


def rows(target: str, upto: object) -> Iterator[tuple[int, object]]:
    """Yield the number of each answered query about texts, and its row: prompt, chosen, rejected,
    and the share of its answers that prefer the chosen one, weighted by annotator.

    ``upto``: the last row of answers to read; None reads all. ValueError if the store has too few
    answers, or none that prefers a side.
    """
    if upto is not None and (isinstance(upto, bool) or not isinstance(upto, int) or upto < 0):
        raise ValueError(f"task {target!r}: {UPTO}: must be a row of answers, got {upto!r}")
    with Store.open(target) as store:
        queries = store.queries()
        texts = {one.id: one for one in queries if one.kind == "text"}
        if queries and not texts:
            raise ValueError(
                f"{target}: must have queries about texts, got {len(queries):,} about clips; name "
                f"their env: equipoise train ENV --dataset {target} --algorithm reward_model"
            )
        answers = store.answers(upto=MOST if upto is None else upto)
        shares = _shares(answers, weights(answers, gold_of(queries)))
        found = {number: share for number, share in shares.items() if number in texts}
        if len(found) < LEAST:
            raise ValueError(
                f"{target}: must have {LEAST} answered queries about texts or more, got "
                f"{len(found)}; let people answer more"
            )
        if all(share == 0.5 for share in found.values()):
            raise ValueError(
                f"{target}: must have answers that prefer a side, got {len(found):,} ties; a "
                "reward model learns nothing from ties alone"
            )
        for number, share in found.items():
            yield number, _row(store, texts[number], share)


def _shares(answers: list[Answer], by_annotator: dict[str, float]) -> dict[int, float]:
    """Return by query the share of its answers that prefer the left one; a tie is half of each."""
    sums: dict[int, tuple[float, float]] = {}
    for one in evidence(answers):
        if (weight := by_annotator[one.annotator]) > 0:
            left, total = sums.get(one.query, (0.0, 0.0))
            sums[one.query] = left + weight * SHARES[one.choice], total + weight
    return {number: left / total for number, (left, total) in sums.items()}


def _row(store: Store, query: Query, share: float) -> dict[str, object]:
    sides = [store.text(query.left), store.text(query.right)]
    chosen, rejected = sides if share >= 0.5 else sides[::-1]
    prompt = {} if query.prompt is None else {"prompt": store.text(query.prompt)}
    return {**prompt, "chosen": chosen, "rejected": rejected, "share": max(share, 1.0 - share)}
