"""A person at the page trains a policy by keys alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equipoise.feedback import Store
from equipoise.record.directory import RunDirectory
from tests.labeling.made import Client
from tests.labeling.test_browser import Served, entered, lease_of, press
from tests.watching import browsing

pytestmark = pytest.mark.browser
LONGEST_S = 180.0  # from the start of the training until the policy has moved, at a load of 3
FIRST = 12  # answers that the first fit needs
MOVED = -8.0  # mean return of an episode; 0 at random, -20 if each action is right
SETTINGS = (f"first={FIRST}", "segment=10", "queries=4", "labels=60", "every=2000", "hidden=16")


@contextmanager
def trained(store: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training in a process, which is interrupted at the end of the block."""
    words = ["tests.labeling.worlds:Signs", "--algorithm", "ppo", "--reward", "preferences"]
    words += ["--set", f"reward.store={store}", "--steps", "100M", "--out", str(out)]
    words += [word for one in SETTINGS for word in ("--set", f"reward.{one}")]
    process = subprocess.Popen([sys.executable, "-m", "equipoise", "train", *words])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()


def reported(out: Path) -> list[tuple[int, float]]:
    """Labels and mean return of each report of the training."""
    if not (out / "metrics.jsonl").exists():
        return []
    return [
        (round(one["metrics"].get("preferences_labels", 0)), one["return_mean"])
        for one in RunDirectory.found(out).metrics()
        if one["return_mean"] is not None
    ]


@pytest.mark.timeout(600)
def test_keys_pressed_in_the_browser_move_a_policy(tmp_path: Path) -> None:
    """The clip in which the curve of right actions is higher is better; the env pays for wrong
    ones.
    """
    place, out = tmp_path / "store", tmp_path / "run"
    with browsing.chromium() as browser, trained(place, out) as training:
        began, answered = time.monotonic(), 0

        def moved() -> bool:
            assert training.poll() is None and time.monotonic() - began < LONGEST_S
            return any(mean < MOVED for _, mean in reported(out))

        while not place.exists():
            assert not moved()
            time.sleep(0.1)
        served = Served(place, ("ann",))
        try:
            client = Client(served.port, served.tokens["ann"])
            window = entered(browser, served.port, served.tokens["ann"])
            with Store(place) as store:
                while not moved():
                    lease, question = lease_of(window), client.question()["question"]
                    if question is None or question["lease"] != lease:
                        time.sleep(0.2)
                        continue
                    right = {
                        side: float(
                            store.segment(question[side]["clip"])["observations"][:, 1].mean()
                        )
                        for side in ("left", "right")
                    }
                    equal = right["left"] == right["right"]
                    press(window, "equal" if equal else max(right, key=right.__getitem__))
                    answered += 1
                assert {one.annotator for one in store.answers()} == {"ann"}
                assert len(store.answers()) == answered
        finally:
            served.kill()
        before = [mean for labels, mean in reported(out) if labels < FIRST / 2]
        assert before and min(before) > MOVED / 3, "the policy moved before the answers"
