"""Worker processes are started with a policy of waiting for threads, unless the user has one."""

from __future__ import annotations

import os

import pytest

from equipoise.runtime.process import forkserver


@pytest.mark.parametrize("said", [None, "ACTIVE"])
def test_threads_of_workers_sleep_while_they_wait(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", said)
    found = list[str | None]()
    monkeypatch.setattr(
        "multiprocessing.forkserver.ensure_running",
        lambda: found.append(os.environ.get("OMP_WAIT_POLICY")),
    )
    before = dict(os.environ)
    forkserver.prepare()
    assert found == [said or "PASSIVE"] and dict(os.environ) == before
