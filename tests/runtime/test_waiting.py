"""Worker processes are started with a policy of waiting for threads, unless the user has one."""

from __future__ import annotations

import os

import pytest

from equipoise.runtime.process import forkserver


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, "20000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
    ],
)
def test_threads_of_workers_spin_shortly_while_they_wait(
    said: dict[str, str], wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    found = list[str | None]()
    monkeypatch.setattr(
        "multiprocessing.forkserver.ensure_running",
        lambda: found.append(os.environ.get("GOMP_SPINCOUNT")),
    )
    before = dict(os.environ)
    forkserver.prepare()
    assert found == [wanted] and dict(os.environ) == before
