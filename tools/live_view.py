"""The live view of a real run as an SVG: ``python tools/live_view.py docs/live-view.svg``.

Trains CartPole with IMPALA on two actors, draws what a terminal would have shown in the middle of the run, and saves that.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from equipoise import api
from equipoise.console.picture import WIDTH, History, picture

STEPS = 400_000
DRAWN_AT = 0.6  # of the steps


def main(target: Path) -> None:
    console = Console(record=True, width=WIDTH + 2, file=io.StringIO(), force_terminal=True)
    history, drawn = History(), None
    with tempfile.TemporaryDirectory(prefix="equipoise-view-") as place:
        run = api.train(
            "CartPole-v1", "impala", actors=2, max_lag=1, steps=STEPS, evaluate_episodes=5, out=Path(place) / "run",
            tensorboard=False,
        )  # fmt: skip
        with run:
            for report in run:
                history.add(report)
                if drawn is None and report.recorded and report.env_steps >= DRAWN_AT * STEPS:
                    drawn = picture(report, run.program, history, on=run.on)
    assert drawn is not None
    console.print(drawn)
    target.write_text(
        console.export_svg(title="equipoise train CartPole-v1 --algorithm impala --actors 2 --max-lag 1"), "utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
