"""Weights arrive whole, in order, and to each reader in its own copy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from equipoise.weights.store import BUFFERS, WeightPlan, Weights


class Heap:
    def __init__(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)


def params(value: float, size: int = 1000) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size, 7), value), "steps": torch.full((3,), int(value), dtype=torch.int64)}


def store(size: int = 1000) -> Weights:
    plan = WeightPlan(params(0, size))
    return Weights(plan, Heap(plan.nbytes))


def test_nothing_is_there_before_the_first_publish_and_nothing_newer_after_a_fetch() -> None:
    weights = store()
    assert weights.fetch() is None
    weights.publish(5, params(5))
    got = weights.fetch()
    assert got is not None and got[0] == 5 and bool((got[1]["w"] == 5).all()) and got[1]["steps"].tolist() == [5, 5, 5]
    assert weights.fetch(5) is None
    weights.publish(6, params(6))
    assert weights.fetch(5) is not None


def test_handles_have_copies_of_their_own() -> None:
    weights = store()
    other = weights.handle()
    weights.publish(1, params(1))
    mine = weights.fetch()
    weights.publish(2, params(2))
    theirs = other.fetch()
    assert mine is not None and theirs is not None
    assert float(mine[1]["w"][0, 0]) == 1 and float(theirs[1]["w"][0, 0]) == 2


def test_no_copy_is_torn_while_a_publisher_writes_without_pause() -> None:
    weights = store(size=50_000)
    reader, stop = weights.handle(), threading.Event()

    def publish() -> None:
        version = 1
        while not stop.is_set():
            weights.publish(version, params(version, 50_000))
            version += 1

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        seen = 0
        version = -1
        while seen < 200:
            if (got := reader.fetch(version)) is None:
                continue
            assert got[0] > version
            version, tensors = got
            assert bool((tensors["w"] == version).all()) and bool((tensors["steps"] == version).all()), f"torn at {version}"
            seen += 1
    finally:
        stop.set()
        writer.join()


def test_a_copy_that_a_publisher_crossed_is_taken_again(monkeypatch: Any) -> None:
    """The publisher laps the reader in the middle of its copy: the torn copy is not handed out."""
    weights = store()
    weights.publish(1, params(1))
    reader = weights.handle()
    real = np.copyto
    lapped: list[bool] = []

    def copy_slowly(target: Any, source: Any, **kwargs: Any) -> None:
        real(target[: len(target) // 2], source[: len(source) // 2], **kwargs)
        if not lapped:
            lapped.append(True)
            for version in range(2, 2 + BUFFERS):
                weights.publish(version, params(version))
        real(target[len(target) // 2 :], source[len(source) // 2 :], **kwargs)

    monkeypatch.setattr(np, "copyto", copy_slowly)
    got = reader.fetch()
    assert got is not None and bool((got[1]["w"] == got[0]).all()) and got[0] == 1 + BUFFERS
