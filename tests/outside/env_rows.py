"""Rows that prove themselves: what reached a learner, held against what the envs gave, stream by
stream, row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.outside.env_law import Book, Row


def proven(said: dict[str, Any], batches: list[Any], book: Book) -> list[str]:
    """What is wrong, as sentences; [] where each row of each batch is what the env gave."""
    wrong: list[str] = []
    for data in batches:
        steps, count = data.reward.shape
        for b in range(count):
            stream, start = int(data.context["stream"][b]), int(data.context["start"][b])
            rows = book.rows.get(stream, [])
            for t in range(steps + 1):
                place = f"of stream {stream}, row {start + t}"
                if start + t >= len(rows):
                    wrong.append(f"number {place}: expected {len(rows)} rows at most")
                    break
                wrong += compared(
                    data,
                    t,
                    b,
                    rows[start + t],
                    rows[start + t + 1] if t < steps and start + t + 1 < len(rows) else None,
                    place,
                )
            if len(wrong) > 8:
                return wrong
    return wrong


def compared(data: Any, t: int, b: int, now: Row, then: Row | None, place: str) -> list[str]:
    wrong: list[str] = []
    if bool(data.first[t, b]) != now.first:
        wrong.append(f"first {place}: expected {now.first}, got {bool(data.first[t, b])}")
    if now.obs is not None and (now.valid or now.first):
        wrong += observed("obs", at(data.obs, t, b), now.obs, place)
    if then is None:
        return wrong
    if bool(data.mask[t, b]) != then.valid:
        return [*wrong, f"mask {place}: expected {then.valid}, got {bool(data.mask[t, b])}"]
    if not then.valid:
        return wrong
    if not np.isclose(float(data.reward[t, b]), then.reward, rtol=1e-6, atol=0):
        wrong.append(f"reward {place}: expected {then.reward}, got {float(data.reward[t, b])}")
    if bool(data.bootstrap[t, b]) == then.terminated:
        wrong.append(f"bootstrap {place}: expected {not then.terminated}, got {then.terminated}")
    if then.action is not None:
        wrong += acted("action", at(data.action, t, b), then.action, place)
    return wrong


def at(tree: Any, t: int, b: int) -> Any:
    return (
        {key: at(one, t, b) for key, one in tree.items()}
        if isinstance(tree, dict)
        else np.asarray(tree[t, b])
    )


def observed(key: str, got: Any, given: Any, place: str) -> list[str]:
    """An observation beside the one that the env gave: the same keys and values, in the dtype of
    the rows.
    """
    if isinstance(got, dict):
        if not isinstance(given, dict) or not got.keys() <= given.keys():
            keys = sorted(given) if isinstance(given, dict) else type(given).__name__
            return [f"{key} {place}: expected the keys {keys}, got {sorted(got)}"]
        return [
            text
            for name in got
            for text in observed(f"{key}/{name}", got[name], given[name], place)
        ]
    if given is None or isinstance(given, dict):
        return [f"{key} {place}: expected what no row can hold, got {got}"]
    wanted = np.asarray(given)
    try:
        with np.errstate(all="ignore"):
            same = wanted.reshape(got.shape).astype(got.dtype)
    except (TypeError, ValueError):
        return [f"{key} {place}: expected {wanted.dtype} {wanted.shape}, got {got}"]
    return (
        []
        if np.array_equal(same, got)
        else [f"{key} {place}: expected {same.tolist()}, got {got.tolist()}"]
    )


def acted(key: str, got: Any, taken: Any, place: str) -> list[str]:
    """Whole numbers as they are; a Box's are clipped on the way to the env."""
    if isinstance(got, dict):
        return [
            text for name in got for text in acted(f"{key}/{name}", got[name], taken[name], place)
        ]
    if got.dtype.kind == "f" or np.array_equal(np.ravel(got), np.ravel(np.asarray(taken))):
        return []
    return [f"{key} {place}: expected {np.asarray(taken).tolist()}, got {got.tolist()}"]
