"""The command line. Nothing heavy is imported here before a command runs: ``equipoise --help``
answers at once.

Numbers arrive as texts and are read like those of ``--set``: 500k is a number, and an error says
what came.

Exit codes:

- 0: done, or nothing left to do.
- 1: a worker or a user's code failed; a check found an error; a replay failed in the same way.
- 2: the command line, a setting or a file is wrong; the message names the fix.
- 3: a replay did not fail in the same way.
- 4: an alarm ended the run (``--on-alarm stop``).
- 130: interrupted by Ctrl-C; 143: by SIGTERM. A run that has begun is saved, and ``resume``
  continues it.

If a pipe is closed early (``| head -1``), only its output is lost: the command runs to its end and
keeps its exit code.
"""

from __future__ import annotations

import os
import sys
import warnings

from equipoise.cli import (
    about,
    algorithms,
    chaos,
    check,
    clips,
    collect,
    completion,
    doctor,
    envs,
    evaluate,
    export,
    feedback,
    forecast,
    generate,
    label,
    plot,
    probe,
    proxy,
    recipes,
    registry,
    report,
    reproduce,
    resume,
    runs,
    serve,
    study,
    trace,
    train,
    tune,
    watch,
    whatif,
)
from equipoise.cli.app import app
from equipoise.console.help import one_line
from equipoise.console.unread import outlive_readers

__all__ = [
    "about",
    "algorithms",
    "app",
    "chaos",
    "check",
    "clips",
    "collect",
    "completion",
    "doctor",
    "envs",
    "evaluate",
    "export",
    "feedback",
    "forecast",
    "generate",
    "label",
    "main",
    "plot",
    "probe",
    "proxy",
    "recipes",
    "registry",
    "report",
    "reproduce",
    "resume",
    "runs",
    "serve",
    "study",
    "trace",
    "train",
    "tune",
    "watch",
    "whatif",
]


def look_here_last() -> None:
    """Let ``my_envs:make_env`` be found where the command is typed, after all that is installed.

    A random.py of the user's must not take the place of Python's, which torch imports.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):  # by python -c and -m
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


def main() -> None:
    outlive_readers()
    look_here_last()
    warnings.formatwarning = one_line
    if "_EQUIPOISE_COMPLETE" in os.environ:  # the shell asks, as `equipoise completion` told it to
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    app(prog_name="equipoise")
