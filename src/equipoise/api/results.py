"""Train or resume a run to its end: ``train``, ``resume`` and their ``Result``."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from equipoise.api.evaluating import evaluate
from equipoise.api.options import (
    Place,
    ResumeOptions,
    RunOptions,
    TrainOptions,
    check_shapes,
    expanded,
)
from equipoise.api.playing import Player, load
from equipoise.api.programs import Chosen, Env
from equipoise.api.training import NothingToDo, begun, resumed
from equipoise.console.ending import Ending
from equipoise.console.place import in_notebook, number, say
from equipoise.files import is_url
from equipoise.programs.settings import Settings
from equipoise.record.directory import RunDirectory
from equipoise.record.report import Evaluation, step_of
from equipoise.report.figures import thinned
from equipoise.report.markup import Html, figure_number, tag
from equipoise.run.run import Run
from equipoise.types import Program

if TYPE_CHECKING:
    from types import TracebackType

    from equipoise.console.notebook import NotebookView
    from equipoise.console.terminal import View

__all__ = ["Result", "resume", "train"]

Line = Mapping[str, Any]  # a summary, or a line of metrics.jsonl
CURVE = 260, 60  # width and height of the curve of ``_repr_html_``


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The outcome of a run: its policy, its numbers, and its directory.

    Attributes:
        directory: The run's directory, which holds all that is known of it.
        summary: The content of its ``summary.json``.

    Example:
        >>> run.status
        'completed'
        >>> player = run.load()
    """

    directory: Path
    summary: Line

    def __str__(self) -> str:
        reached = number(self.return_mean)
        return f"{self.status}: {self.steps:,} steps, return {reached}, {self.directory}"

    def __repr__(self) -> str:
        return f"<Result {self}>"

    @property
    def status(self) -> str:
        """How the run ended: "completed", "solved", "interrupted" or "alarmed"."""
        return str(self.summary["status"])

    @property
    def steps(self) -> int:
        """Env steps that were learned from; updates of a run on recorded data."""
        return step_of(self.summary)

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last 100 episodes of training, or None without an episode."""
        return cast("float | None", self.summary["return_mean"])

    def load(self, policy: str | None = None, *, best: bool = False, seed: int = 0) -> Player:
        """Load the trained policy.

        Args:
            policy: The name of one of several policies (default: the first).
            best: Take the weights of the best evaluation.
            seed: Seed of the actions that ``act(..., deterministic=False)`` draws.

        Returns:
            The policy: ``action = player.act(observation)``.

        Raises:
            FileNotFoundError: There is no checkpoint, or with ``best`` no evaluation.
            ValueError: The run has no policy of this name.

        Example:
            >>> run.load().act(np.zeros(4)) in (0, 1)
            True
        """
        return load(self.directory, policy, best=best, seed=seed)

    def evaluate(
        self,
        *,
        episodes: int = 20,
        deterministic: bool = True,
        seed: int = 0,
        best: bool = False,
        video: bool = False,
        settings: Settings = (),
    ) -> Evaluation:
        """Play fresh episodes with the trained policy.

        Args:
            episodes: How many episodes.
            deterministic: Take the likeliest actions, and do not draw them.
            seed: Seed of the episodes.
            best: Take the weights of the best evaluation.
            video: Write a video of one episode into the run's ``videos/``.
            settings: Arguments of the env that differ from those of training: ``env.KEY``.

        Returns:
            The returns: ``evaluation.mean``, ``evaluation.std``.

        Raises:
            ValueError: A value cannot be, or the env failed in every episode.

        Example:
            >>> run.evaluate(episodes=2).episodes
            2
        """
        return evaluate(
            self.directory,
            episodes=episodes,
            deterministic=deterministic,
            seed=seed,
            best=best,
            video=video,
            settings=settings,
        )

    def report(self, out: Place = "report.html") -> Path:
        """Write one HTML page about the run: its curves, its bottleneck, its workers, its settings.

        Args:
            out: The page, a .html file; an earlier report is replaced, no other file is.

        Returns:
            The path of the page.

        Raises:
            ValueError: ``out`` does not end in .html, or is another file that is there already.

        Example:
            >>> run.report("page.html").name
            'page.html'
        """
        from equipoise.report.page import check_out, page, write  # they load rich
        from equipoise.report.runs import read

        check_out(file := Path(out))
        runs, _ = read([self.directory])
        write(file, page(runs))
        return file

    @property
    def metrics(self) -> Any:
        """The run's numbers over its steps, a row for each recorded report.

        Returns:
            A ``pandas.DataFrame`` if pandas is installed, or else a list of dicts.

        Example:
            >>> run.metrics[-1]["env_steps"] == run.steps
            True
        """
        rows = [_row(line) for line in RunDirectory.open(self.directory).metrics()]
        if importlib.util.find_spec("pandas") is None:
            return rows
        return importlib.import_module("pandas").DataFrame(rows)

    def resume(self, **options: Unpack[ResumeOptions]) -> Result:
        """Go on with the run, in the same directory.

        Args:
            options: ``steps`` extends the run; other settings change, as for ``resume``.

        Returns:
            The new result.

        Raises:
            NothingToDo: The run has reached its steps, and ``steps`` is not higher.
            ValueError: A setting cannot change.

        Example:
            >>> run.resume(steps=3_000, progress=False).steps >= 3_000
            True
        """
        return resume(self.directory, **options)

    def _repr_html_(self) -> str:
        """The result as a small table with the curve of the return, for a notebook."""
        rows = {
            "status": self.status,
            "steps": f"{self.steps:,}",
            "return": number(self.return_mean),
        }
        if (evaluation := self.summary["evaluation"]) is not None:
            rows["evaluation"] = (
                f"{number(evaluation['mean'])} ± {number(evaluation['std'])} over "
                f"{evaluation['episodes']} episodes"
            )
        rows["directory"] = str(self.directory)
        cells = [tag("tr", tag("th", key), tag("td", value)) for key, value in rows.items()]
        lines = RunDirectory.open(self.directory).metrics()
        if (curve := _curve(lines)) is not None:
            cells.append(tag("tr", tag("th", "return over steps"), tag("td", curve)))
        return tag("table", *cells)


def _row(line: Line) -> dict[str, object]:
    """The numbers of a recorded report in one row."""
    row: dict[str, object] = {
        key: value for key, value in line.items() if isinstance(value, int | float | str | None)
    }
    for room in ("metrics", "info"):
        row |= {f"{room}/{name}": value for name, value in line.get(room, {}).items()}
    evaluation = line.get("evaluation")
    return row | {"evaluation": None if evaluation is None else evaluation["mean"]}


def _curve(lines: Sequence[Line]) -> Html | None:
    """The return over the steps as SVG; None without two points."""
    points = [
        (step_of(line), line["return_mean"])
        for line in lines
        if line.get("return_mean") is not None
    ]
    if len(points) < 2:
        return None
    steps, returns = np.array(points, np.float64).T
    x, y = thinned(steps, returns, CURVE[0])
    (left, right), (low, high) = (x.min(), x.max()), (y.min(), y.max())
    across = CURVE[0] * (x - left) / max(right - left, 1e-9)
    down = 2 + (CURVE[1] - 4) * (high - y) / max(high - low, 1e-9)
    path = "L".join(f"{figure_number(a)} {figure_number(b)}" for a, b in zip(across, down))
    return tag(
        "svg",
        tag("path", d=f"M{path}", fill="none", stroke="currentColor", stroke_width=1.5),
        width=CURVE[0],
        height=CURVE[1],
        viewBox=f"0 0 {CURVE[0]} {CURVE[1]}",
        role="img",
        aria_label=f"return over steps, from {number(low)} to {number(high)}",
    )


@expanded(TrainOptions)
def train(
    env: Env | Program | None = None,
    algorithm: Chosen | None = None,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train a policy on an env to the end of the run, and show the run while it trains.

    The run is shown as a live view in a terminal, as one picture in a cell of a notebook, and as a
    line every five seconds elsewhere. Ctrl-C saves the run, and raises KeyboardInterrupt again; in
    a notebook the stop button returns the result instead, whose status is "interrupted".

    Args:
        env: A Gymnasium id such as "CartPole-v1"; a class of envs or a function that makes one,
            which workers import by name (one of your script or notebook is sent to them); or a
            ``Program``. Arguments of the env are ``env_kwargs``. With ``task``, a text task, there
            is no env.
        algorithm: A name such as "ppo", a class such as ``eq.algorithms.PPO``, or an instance such
            as ``PPO(gamma=0.98)``: the fields that you give win over those of a recipe, all others
            are the recipe's, or the defaults (default: "ppo", or "grpo" for a task).
        options: Settings; each is listed below. None leaves a setting as it is, except for
            ``max_lag``.

    Returns:
        The result: ``result.status``, ``result.load()``, ``result.resume(steps=...)``.

    Raises:
        TypeError: An option is unknown, or the env is an instance.
        ValueError: A value cannot be, or two settings contradict each other.
        WorkerFailed: A worker of the run failed; the weights up to there are saved.
        KeyboardInterrupt: You pressed Ctrl-C in a script; the run is saved.

    Example:
        >>> from equipoise.algorithms import PPO
        >>> result = eq.train("CartPole-v1", PPO(gamma=0.98), **small)
        >>> print(result)
        completed: 2,048 steps, return ..., ...
        >>> player = result.load()
    """
    check_shapes(options)
    progress = options.get("progress", True)
    rest: dict[str, object] = {key: value for key, value in options.items() if key != "progress"}
    out = options.get("out")
    try:
        run = begun(env, algorithm, cast(RunOptions, rest), tell=_tell(progress))
    except NothingToDo:
        if not options.get("or_resume") or out is None or is_url(out):
            raise
        return _result(Path(out))
    return shown(run, progress=progress)


@expanded(ResumeOptions)
def resume(directory: Place, **options: Unpack[ResumeOptions]) -> Result:
    """Go on with a run from its newest whole checkpoint to its end, and show it while it trains.

    ``steps`` and ``stop_at`` extend a run that has ended; its schedules keep the length that they
    had. A setting that the saved state does not fit is refused. ``eq.start(resume=...)`` gives the
    reports one by one instead.

    Args:
        directory: The run, or its URL.
        options: Settings that change; each is listed below.

    Returns:
        The new result.

    Raises:
        NothingToDo: The run is complete.
        TypeError: An option is unknown.
        ValueError: A setting cannot change.
        WorkerFailed: A worker of the run failed; the weights up to there are saved.
        KeyboardInterrupt: You pressed Ctrl-C in a script; the run is saved.

    Example:
        >>> eq.resume(run.directory, steps=4_000, progress=False).status
        'completed'
    """
    progress = options.get("progress", True)
    return shown(resumed(directory, options, tell=_tell(progress)), progress=progress)


def shown(run: Run, *, progress: bool) -> Result:
    """Train to the end with a view, if ``progress``; the result."""
    view: View | NotebookView | Unseen
    ending: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    notebook = in_notebook()
    if not progress:
        view = Unseen()
    elif notebook:
        from equipoise.console.notebook import NotebookView  # rich is loaded by a view alone

        view = NotebookView(run.program, on=run.on)
    else:
        from equipoise.console.terminal import View

        view = View(run.program, on=run.on)
        ending = Ending(view)
    try:
        with ending, run, view:
            for report in run:
                view.update(report)
    except KeyboardInterrupt as error:
        if run.summary is None:  # nothing had begun
            raise
        view.summarise(run.summary, run.directory)
        if not notebook:
            error.add_note(f"The run is saved; go on with eq.resume({str(run.directory)!r}).")
            raise
    except Exception as error:
        if run.summary is not None:
            error.add_note(f"The weights up to here are saved in {run.directory}.")
        raise
    else:
        assert run.summary is not None
        view.summarise(run.summary, run.directory)
    return Result(directory=run.directory, summary=run.summary)


class Unseen:
    """A view that shows nothing."""

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def update(self, report: object) -> None: ...

    def summarise(self, summary: object, directory: object) -> None: ...


def _result(directory: Path) -> Result:
    """The result of a run that has ended before."""
    summary = RunDirectory.open(directory).summary()
    assert summary is not None, "a run that is complete has one"
    return Result(directory=directory, summary=summary)


def _tell(progress: bool) -> Callable[[str], object]:
    """Return the function that prints a sentence on a choice; it prints nothing without a view, and
    in a notebook.
    """
    if not progress or in_notebook():
        return lambda text: None
    return lambda text: say(text, file=sys.stderr)
