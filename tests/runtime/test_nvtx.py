"""Parts of workers for NVIDIA's profilers, on a stand-in for ``torch.cuda.nvtx``: ranges where
foreseen, marks elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from equipoise import api
from equipoise.tracing import NvtxClock

ASKED: dict[str, Any] = {
    "steps": 512,
    "envs_per_actor": 4,
    "evaluate_episodes": 0,
    "recipe": False,
    "tensorboard": False,
}
ADDED = ("fetch", "reset", "insert", "all-reduce")  # within other parts


class Nvtx:
    """What was called: ("start", name), ("end", name of that range), ("mark", name)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._open: dict[int, str] = {}

    def range_start(self, name: str) -> int:
        number = len(self.calls)
        self._open[number] = name
        self.calls.append(("start", name))
        return number

    def range_end(self, number: int) -> None:
        self.calls.append(("end", self._open.pop(number)))  # KeyError for a range that is closed

    def mark(self, name: str) -> None:
        self.calls.append(("mark", name))

    @property
    def open(self) -> list[str]:
        return list(self._open.values())


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Nvtx:
    made = Nvtx()
    for name in ("range_start", "range_end", "mark"):
        monkeypatch.setattr(torch.cuda.nvtx, name, getattr(made, name))
    monkeypatch.setattr(torch.version, "cuda", "12.0")
    return made


def test_a_part_is_a_range_where_it_was_foreseen_and_a_mark_at_its_end_elsewhere() -> None:
    seen = Nvtx()
    clock = NvtxClock(("look", "loss", "sum"), None, None, nvtx=seen, title="a")
    clock.begin()
    clock.lap("look", "loss")
    clock.add("sum", 0.5)
    clock.lap("loss")
    assert seen.calls == [
        ("mark", "a/look"),
        ("start", "a/loss"),
        ("mark", "a/sum"),
        ("end", "a/loss"),
    ]
    seen.calls.clear()
    clock.begin("look")
    clock.begin("loss")  # the tick before ended without its part
    clock.lap("look")
    assert seen.calls == [
        ("start", "a/look"),
        ("end", "a/look"),
        ("start", "a/loss"),
        ("mark", "a/look"),
        ("end", "a/loss"),
    ]
    assert seen.open == []


@pytest.mark.parametrize(
    "options", [{"algorithm": "ppo"}, {"algorithm": "dqn", "settings": ["replay.starts_at=100"]}]
)
def test_every_part_of_a_run_is_shown_once(options: dict[str, Any], nvtx: Nvtx) -> None:
    settings = [*options.get("settings", ()), "placement.nvtx=true"]
    *_, last = api.start(
        "CartPole-v1", options["algorithm"], on="serial", settings=settings, **ASKED
    )
    parts = {
        f"{worker}/{part}": n
        for worker, one in last.balance.items()
        for part, n in one.counts.items()
        if part not in ADDED
    }
    calls = Counter(nvtx.calls)
    assert {name: calls["end", name] + calls["mark", name] for name in parts} == parts
    for part in ("targets", "loss", "backward", "publish"):
        assert calls["end", f"learner/{part}"] == parts[f"learner/{part}"] > 0, (
            "the learner's step is foreseen"
        )
    assert calls["mark", "actor 0/env"] > 50 and nvtx.open == []


def test_a_worker_without_torch_shows_nothing(nvtx: Nvtx) -> None:
    *_, last = api.start(
        "CartPole-v1",
        "ppo",
        on="serial",
        inference="central",
        settings=["placement.nvtx=true"],
        **ASKED,
    )
    assert last.balance["actor 0"].counts["env"] > 50
    assert {name.partition("/")[0] for _, name in nvtx.calls} == {"inference 0", "learner"}


def test_without_the_setting_nothing_is_called(nvtx: Nvtx) -> None:
    list(api.start("CartPole-v1", "ppo", on="serial", **ASKED))
    assert nvtx.calls == []


def test_where_it_cannot_be_it_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(
        ValueError,
        match=r"^placement\.nvtx: expected false, since this torch has no CUDA, got true; [^\n]*$",
    ):
        api.start("CartPole-v1", "ppo", on="serial", settings=["placement.nvtx=true"], **ASKED)
    monkeypatch.setattr(torch.version, "cuda", "12.0")
    with pytest.raises(
        ValueError, match=r"placement\.nvtx: expected false with placement\.trace_s=1.*, got true"
    ):
        api.start(
            "CartPole-v1",
            "ppo",
            on="serial",
            settings=["placement.nvtx=true", "placement.trace_s=1"],
            **ASKED,
        )
