"""Pictures of the live view of a real run, at 80 and at 140 columns: ``python tools/live_view.py
docs/pictures``.

Trains CartPole with IMPALA on two actors in a terminal of tmux, presses keys there, and saves what
the terminal shows in the middle of the run as SVG: the ring, and the workers with the parts of
their work.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

COMMAND = "equipoise train CartPole-v1 --algorithm impala --actors 2 --max-lag 1"
# columns, lines, keys
PICTURES = {"live-view": (80, 36, ""), "live-view-wide": (140, 32, "p")}
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
DRAWN_AFTER_S, LONGEST_S = 25.0, 120.0  # of the run; until the picture has come


def tmux(socket: str, *words: str) -> str:
    return subprocess.run(
        ["tmux", "-L", socket, *words], check=True, capture_output=True, text=True
    ).stdout


def shown(columns: int, lines: int, keys: str, place: Path) -> str:
    """What a terminal shows in the middle of a run, with the codes of its colours."""
    words = [
        sys.executable,
        "-m",
        *shlex.split(COMMAND),
        "--steps",
        "3M",
        "--out",
        str(place / "run"),
    ]
    socket = f"equipoise-{place.name}"
    size = ["-x", str(columns), "-y", str(lines)]
    tmux(
        socket,
        "-f",
        "/dev/null",
        "new-session",
        "-d",
        *size,
        f"NO_COLOR= COLORTERM=truecolor {shlex.join(words)}",
    )
    try:
        began, text = time.monotonic(), ""
        while time.monotonic() - began < LONGEST_S:
            text = tmux(socket, "capture-pane", "-p", "-e")
            if time.monotonic() - began > DRAWN_AFTER_S and "Ctrl-C" in text:
                if not keys:  # what was printed before the picture stands above it
                    return text[text.index("\x1b[1mequipoise") :].rstrip("\n")
                tmux(socket, "send-keys", keys)
                keys = ""
            time.sleep(1.0)
        raise TimeoutError(f"expected a picture within {LONGEST_S:.0f} s, got:\n{text}")
    finally:
        tmux(socket, "kill-server")


def main(folder: Path) -> None:
    for name, (columns, lines, keys) in PICTURES.items():
        console = Console(
            record=True,
            width=columns,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        with tempfile.TemporaryDirectory(prefix="view-") as place:
            console.print(Text.from_ansi(shown(columns, lines, keys, Path(place))), soft_wrap=True)
        for dress, theme in THEMES.items():
            drawn = console.export_svg(title=COMMAND, theme=theme, clear=False)
            (folder / f"{name}-{dress}.svg").write_text(drawn, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
