"""Show a run to its end, and turn its outcome into an exit code."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from equipoise.console.help import fail

if TYPE_CHECKING:
    from equipoise.console.starting import Starting
    from equipoise.console.terminal import View
    from equipoise.record.prometheus import Endpoint
    from equipoise.run.run import Run


ALARMED = 4  # the exit code of a run that an alarm ended


def show(
    run: Run, view: View, command: str, start: Starting, endpoint: Endpoint | None = None
) -> int:
    """Show a run of ``command`` to its end; returns the exit code. ``start`` ends once envs are
    stepped.

    ``endpoint``: is told every report, and closed.
    """
    from equipoise.balance.verdict import WAITING
    from equipoise.console.aside import prints_aside
    from equipoise.console.ending import Ending
    from equipoise.envs.failures.capsule import EnvFailed
    from equipoise.envs.failures.row_checks import WrongValue
    from equipoise.envs.infos import NoNumber
    from equipoise.errors import CannotStart, DirectoryLost, WorkerFailed, spoken
    from equipoise.hints import in_code_of_a_user, raised, trace
    from equipoise.record.directory import LOGS
    from equipoise.runtime.session import Preempted

    failed: WorkerFailed | None = None
    said = ""
    interrupted = preempted = False
    try:
        # The view is left first: closing the run takes a moment and may print.
        aside = prints_aside(run.directory / LOGS, view.console)
        with (
            nullcontext() if endpoint is None else endpoint,
            aside as keep_small,
            Ending(view),
            run,
            view,
        ):
            for report in run:
                view.update(report)
                if endpoint is not None:
                    endpoint.update(report)
                keep_small()
                # serial workers are in the way of reports, unless agents are waited for
                waits = report.cause == WAITING.cause
                if report.taken or report.updates or run.on != "serial" or waits:
                    start.end()
    except KeyboardInterrupt as error:
        interrupted, preempted = True, isinstance(error, Preempted)
    except WorkerFailed as error:
        failed, said = error, error.sentence
    except (EnvFailed, WrongValue, NoNumber) as error:  # on serial
        if not isinstance(
            error if error.__cause__ is None else error.__cause__, WrongValue | NoNumber
        ):
            raise  # the env's own exception: its traceback says where
        said = str(error)
    except (CannotStart, DirectoryLost) as error:
        fail(str(error), f"equipoise {command}")
    except Exception as error:  # on serial: a user's code may raise anything
        if not (said := spoken(error)):
            if not in_code_of_a_user(error):
                raise
            print(f"\n{trace(error)}".rstrip(), file=sys.stderr)
            said = raised(error)
    if run.summary is not None:
        view.summarise(run.summary, run.directory)
        interrupted = interrupted or run.summary["status"] == "interrupted"
    elif interrupted and command == "resume":
        print(f"equipoise {command}: interrupted, and the run is as it was", file=sys.stderr)
    if said:
        fail(said, f"equipoise {command}", code=1)
    if failed is not None:
        print(f"\n{failed.traceback_text}".rstrip(), file=sys.stderr)
        print(
            f"equipoise {command}: {failed.worker} {failed.reason}{_because(failed.cause)}",
            file=sys.stderr,
        )
        return 1
    if preempted:
        return 143
    if run.summary is not None and run.summary["status"] == "alarmed":
        print(
            f"equipoise {command}: ended by --on-alarm stop: {run.summary['alarms'][-1]['name']}",
            file=sys.stderr,
        )
        return ALARMED
    return 130 if interrupted else 0


def _because(cause: str) -> str:
    return f": {cause}" if cause else ""
