"""A worker's start imports nothing of torch's compiler, which costs one to four seconds and which
nothing there asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.tuning.choice import Choice

LOCAL: dict[str, Any] = {"settings": []}
CENTRAL: dict[str, Any] = {"settings": ["optimizer.name=rmsprop"], "inference": "central"}
REPLAY: dict[str, Any] = {"settings": ["replay.capacity=4000", "replay.starts_at=200"]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "forward", "options"),
    [
        ("NotingIMPALA", "lean", LOCAL),
        ("NotingIMPALA", "torch", CENTRAL),
        ("NotingSAC", "lean", REPLAY),
    ],
)
def test_neither_acts_nor_updates_import_the_compiler(
    algorithm: str,
    forward: Any,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "equipoise.tuning.forward.choose",
        lambda *_, **__: Choice(value=forward, why="the test says so"),
    )
    (notes := tmp_path / "notes").mkdir()
    settings = [*options["settings"], f"algorithm.path={notes}"]
    run = api.start(
        "tests.runtime.noting:Noting",
        f"tests.runtime.noting:{algorithm}",
        env_kwargs={"path": str(notes)},
        actors=1,
        envs_per_actor=2,
        unroll=8,
        steps=2_000,
        max_lag=1,
        evaluate_episodes=0,
        recipe=False,
        out=tmp_path / "run",
        **{**options, "settings": settings},
    )
    for _ in run:
        pass
    found = {path.name: path.read_text() for path in notes.iterdir()}
    assert found == {"env": "", "learner": ""} | ({"acting": ""} if "inference" in options else {})
