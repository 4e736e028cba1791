"""Callbacks: objects of a user that hear what a run reports, and may stop it."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise import foreign
from equipoise.hints import hint
from equipoise.record.report import Evaluation, Report

__all__ = ["Callback", "Listeners"]

METHODS = ("on_report", "on_evaluation", "on_checkpoint")


class Callback:
    """A base class of callbacks; each method is optional, and False from it stops the run.

    A run that a callback stops is saved, and its status is "interrupted": ``resume`` goes on with
    it. An exception in a callback ends the run in the same way, and is raised where the run is
    iterated. The methods are called between two reports, in the process and the thread of the
    caller, so the run waits for them. An object of another class that has one of the methods is a
    callback also.

    Example:
        >>> class StopAt(eq.Callback):
        ...     def on_report(self, report):
        ...         return report.env_steps < 1_000
        >>> eq.train("CartPole-v1", callbacks=[StopAt()], **small).status
        'interrupted'
    """

    def on_report(self, report: Report) -> bool | None:
        """Hear a report.

        Args:
            report: The newest report, as ``eq.start`` gives it; several come each second.

        Returns:
            False to stop the run; True or None to go on.
        """

    def on_evaluation(self, evaluation: Evaluation) -> bool | None:
        """Hear an evaluation, once.

        Args:
            evaluation: The returns of its episodes.

        Returns:
            False to stop the run; True or None to go on.
        """

    def on_checkpoint(self, directory: Path) -> bool | None:
        """Hear that a checkpoint is complete.

        Args:
            directory: The checkpoint, which ``eq.load`` and ``init_from`` take.

        Returns:
            False to stop the run; True or None to go on.
        """


class Listeners:
    """The callbacks of a run."""

    def __init__(self, callbacks: Sequence[object]) -> None:
        """TypeError for an object that is no callback."""
        if isinstance(callbacks, str | bytes) or not isinstance(callbacks, Sequence):
            raise TypeError(
                f"callbacks: must be a list of objects, got {callbacks!r}; write "
                "callbacks=[MyCallback()]"
            )
        self._heard: list[tuple[str, dict[str, Callable[[object], object]]]] = [
            (type(one).__name__, _methods(one)) for one in callbacks
        ]
        self._evaluation: Evaluation | None = None
        self.busy = False  # is a callback being called
        self.stopped = False  # did a callback ask the run to stop

    def hear(self, report: Report, written: deque[Path]) -> None:
        """Call the callbacks with a report, and with the new checkpoints; raise any error of
        theirs.
        """
        self.checkpointed(written)
        self._call("on_report", report)
        if report.evaluation is not None and report.evaluation is not self._evaluation:
            self._evaluation = report.evaluation
            self._call("on_evaluation", report.evaluation)

    def checkpointed(self, written: deque[Path]) -> None:
        """Call the callbacks with each new checkpoint, which is taken from ``written``."""
        while written:
            self._call("on_checkpoint", written.popleft())

    def _call(self, method: str, thing: object) -> None:
        self.busy = True
        try:
            for name, methods in self._heard:
                if (called := methods.get(method)) is not None:
                    try:
                        answer = called(thing)
                    except StopIteration as error:  # it would end the run in silence
                        raise RuntimeError(
                            f"callback {name}: {method} raised StopIteration"
                        ) from error
                    if answer is not None and not isinstance(answer, bool | np.bool_):
                        raise TypeError(
                            f"callback {name}: {method} must return True, False or None, got "
                            f"{answer!r}"
                        )
                    self.stopped = self.stopped or (answer is not None and not answer)
        finally:
            self.busy = False


def _methods(one: object) -> dict[str, Callable[[object], object]]:
    """The methods of a callback by name; TypeError for an object that is no callback."""
    if isinstance(one, type):
        raise TypeError(
            f"callbacks: must be objects, got the class {one.__name__}; write {one.__name__}()"
        )
    name = type(one).__name__
    names = [key for key in dir(one) if key.startswith("on_")]
    if unknown := [key for key in names if key not in METHODS]:
        raise TypeError(
            f"callback {name}: unknown method {unknown[0]!r}{hint(unknown[0], METHODS)}"
        )
    if not names:
        wanted = ", ".join(METHODS)
        raise TypeError(
            f"callbacks: an object must have one of the methods {wanted}, got {one!r}; derive its "
            "class from eq.Callback"
        )
    found: dict[str, Callable[[object], object]] = {}
    for key in names:
        method = foreign.attribute(one, key, None)
        if method is None:
            continue
        if not callable(method):
            raise TypeError(f"callback {name}: {key} must be a method, got {method!r}")
        if (
            inspect.iscoroutinefunction(method)
            or inspect.isgeneratorfunction(method)
            or inspect.isasyncgenfunction(method)
        ):
            raise TypeError(
                f"callback {name}: {key} must be a plain method, got one with 'async' or 'yield', "
                "which would not run when it is called"
            )
        try:
            inspect.signature(method).bind(object())
        except ValueError:  # a method of C has no signature
            pass
        except TypeError as error:
            raise TypeError(
                f"callback {name}: {key} must take one argument besides self, got "
                f"{inspect.signature(method)} ({error})"
            ) from None
        found[key] = method
    return found
