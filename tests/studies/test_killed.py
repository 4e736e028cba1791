"""A study that is killed, or its trials, goes on to the journal of one that was left alone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from equipoise.studies.journal import decided, read_journal
from tests.studies import halves

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(280)]
SCRIPT = Path(halves.__file__)
KILLS = 2  # of each study


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, object]]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    study = halves.opened(folder, halves.made(folder))
    try:
        study.run()
    finally:
        study.close()
    yield decided(study._journal.entries)
    shutil.rmtree(folder)


def test_the_study_has_all_that_can_be_lost(undisturbed: list[dict[str, object]]) -> None:
    kinds = {str(entry["kind"]) for entry in undisturbed}
    assert kinds == {"start", "go_on", "stop", "result", "end"}
    stopped = [entry["trial"] for entry in undisturbed if entry["kind"] == "stop"]
    with_result = {entry["trial"] for entry in undisturbed if entry["kind"] == "result"}
    assert set(stopped) & with_result and set(stopped) - with_result, "paused, and training"


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_study_goes_on_to_the_same_journal(
    seed: int, undisturbed: list[dict[str, object]], tmp_path: Path
) -> None:
    folder, rng = tmp_path / "study", random.Random(seed)
    victim = ("study", "trial", "both")[seed % 3]
    halves.made(folder)
    for _ in range(KILLS):
        if carried_on(folder, victim, rng):
            break
    else:
        assert carried_on(folder, "none", rng)
    assert decided(read_journal(folder)) == undisturbed


def carried_on(folder: Path, victim: str, rng: random.Random) -> bool:
    """Carry a study on and kill something at some moment -> whether the study has ended."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = rng.randrange(1, 12)
        try:
            for _ in process.stdout:
                left -= 1
                if left == 0 and victim != "none":
                    time.sleep(rng.choice((0.0, rng.random() / 2)))  # a trial begins or trains
                    if victim != "study":
                        kill(rng.choice(trials(process.pid) or [0]))
                    if victim != "trial":
                        kill(process.pid)
        except BaseException:  # the time of the test is over
            process.kill()
            raise
    return process.returncode == 0


def trials(study: int) -> list[int]:
    children = Path(f"/proc/{study}/task/{study}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGKILL)
