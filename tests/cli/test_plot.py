"""Learning curves: the numbers that are drawn, by hand-made reports; the picture is a file that
does not change.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.console.curves import curves, drawn
from equipoise.record.described import labels
from equipoise.record.interval import mean_and_half
from tests.report import made


def write(
    file: Path, rows: list[tuple[int, float | None]], evaluation: tuple[int, float] | None = None
) -> Path:
    """A metrics.jsonl of (env steps, return) each; ``evaluation``: the step that was evaluated,
    told by the last line.
    """
    lines: list[dict[str, Any]] = [
        {
            "env_steps": steps,
            "updates": steps // 10,
            "wall_s": steps / 100,
            "return_mean": value,
            "final": False,
            "metrics": {"entropy": 0.5},
            "info": {"won/last": None},
            "evaluation": None,
        }
        for steps, value in rows
    ]
    if evaluation is not None:
        lines[-1]["evaluation"] = {
            "mean": evaluation[1],
            "env_steps": evaluation[0],
            "version": evaluation[0] // 10,
        }
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_curve_is_the_numbers_of_a_run(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [(0, None), (100, 1.0), (200, 3.0)], evaluation=(150, 9.0))
    (one,) = curves([f"PPO={file}"])
    assert one.name == "PPO" and one.x.tolist() == [100, 200] and one.mean.tolist() == [1.0, 3.0]
    (one,) = curves([str(file)], x="wall")
    assert one.name == "a" and one.x.tolist() == [1.0, 2.0]
    (one,) = curves([str(file)], y="evaluation")
    assert (one.x.tolist(), one.mean.tolist()) == ([150], [9.0]), (
        "at the step whose weights were evaluated"
    )
    (one,) = curves([str(file)], y="learner/entropy", x="updates")
    assert one.x.tolist() == [0, 10, 20]


def test_seeds_are_a_mean_with_an_interval(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [(0, 0.0), (200, 2.0), (400, 4.0)])
    b = write(tmp_path / "b.jsonl", [(100, 3.0), (300, 5.0)])
    (one,) = curves([f"X={a}", f"X={b}"])
    assert (one.x[0], one.x[-1]) == (100, 300), "where both have numbers"
    assert one.mean[0] == 2.0 and one.mean[-1] == 4.0  # (1 + 3) / 2, (3 + 5) / 2
    _, half = mean_and_half([3.0, 5.0])
    assert one.high[-1] - one.mean[-1] == half and np.all(one.low < one.mean)
    with pytest.raises(ValueError, match="expected runs that overlap, got one that begins at 500"):
        curves([f"X={a}", f"X={write(tmp_path / 'c.jsonl', [(500, 1.0), (600, 1.0)])}"])


def test_a_run_of_a_folder_that_shares_no_place_with_the_others_is_left_out_with_a_sentence(
    tmp_path: Path,
) -> None:
    for name, steps in (("a", (100, 200)), ("b", (150, 300)), ("early", (0, 10))):
        made.run(tmp_path / name, reports=1)
        write(tmp_path / name / "metrics.jsonl", [(step, 1.0) for step in steps])
    told: list[str] = []
    (one,) = curves([str(tmp_path)], warned=told)
    assert [file.parent.name for file in one.runs] == ["a", "b"]
    assert told == [
        f"{tmp_path / 'early' / 'metrics.jsonl'}: expected a run with numbers at 150, as the "
        "others of its kind, got one from "
        "0 to 10; the run is left out"
    ]
    with pytest.raises(ValueError, match="expected runs that overlap"):  # the run was named itself
        curves([str(tmp_path / name) for name in ("a", "b", "early")])


def test_the_interval_is_students() -> None:
    mean, half = mean_and_half([1.0, 2.0, 3.0, 4.0])
    # scipy.stats.t.interval(0.95, 3, 2.5, sem)
    assert mean == 2.5 and half == pytest.approx(2.0543, abs=1e-3)
    assert mean_and_half([7.0]) == (7.0, None)
    assert mean_and_half([0.0, 1.0] * 100)[1] == pytest.approx(1.96 * 0.50125 / 200**0.5, rel=1e-3)
    with pytest.raises(ValueError, match="at least one number, got none"):
        mean_and_half([])


@pytest.mark.thorough
def test_the_same_runs_give_the_same_picture(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [(0, None), (100, 1.0), (200, 3.0)])
    again = write(tmp_path / "again.jsonl", [(0, None), (100, 1.0), (200, 3.0)])
    for name in ("one.svg", "two.svg", "three.png"):
        result = CliRunner().invoke(
            app, ["plot", str(file), f"B={file}", f"B={again}", "--out", str(tmp_path / name)]
        )
        assert result.exit_code == 0, result.output
        assert (
            f"wrote {tmp_path / name}" in result.stdout
            and "B: 2 runs, 3 at the end" in result.stdout
        )
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")
    figure = eq.plot(file, x="wall", out=tmp_path / "four.svg")
    assert figure.axes[0].get_xlabel() == "seconds" and (tmp_path / "four.svg").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--y", "learner/entropi"), "did you mean 'learner/entropy'?"),
        (("--y", "info/won/last"), "none has come yet"),
        (("--x", "stepps"), "did you mean 'steps'?"),
        (("--out", "x.gif"), "expected a file that ends in .svg, .png, .pdf"),
    ],
)
def test_what_cannot_be_drawn_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [(100, 1.0)])
    result = CliRunner().invoke(app, ["plot", str(file), *words])
    assert result.exit_code == 2 and said in result.stderr, result.output


def test_a_place_without_runs_is_refused(tmp_path: Path) -> None:
    for place, said in ((tmp_path / "gone", "got none"), (tmp_path, "got a folder without")):
        result = CliRunner().invoke(app, ["plot", str(place)])
        assert result.exit_code == 2 and said in result.stderr


def test_runs_of_other_settings_are_other_curves_and_seeds_are_one(tmp_path: Path) -> None:
    for rate in (0.9, 0.99):
        for seed in (0, 1):
            made.run(tmp_path / f"{rate}/seed_{seed}", seed=seed, gamma=rate)
    found = curves([str(tmp_path)])
    assert [len(one.runs) for one in found] == [2, 2] and len({one.name for one in found}) == 2
    assert all("gamma" in one.name for one in found)


def test_a_run_that_is_named_twice_is_no_second_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        made.run(tmp_path / f"runs/seed_{seed}", seed=seed)
    (tmp_path / "link").symlink_to(tmp_path / "runs/seed_1")
    for again in ("runs", "runs/seed_0", "link"):
        with pytest.raises(ValueError, match="expected each run once in a curve, got it twice"):
            curves([str(tmp_path / "runs"), str(tmp_path / again)])
        with pytest.raises(ValueError, match="expected each run once in a curve, got it twice"):
            curves([f"A={tmp_path / 'runs'}", f"A={tmp_path / again}"])
    assert len(curves([f"A={tmp_path / 'runs'}", f"B={tmp_path / 'runs'}"])) == 2


def test_names_of_curves_tell_them_apart_alike_in_each_process() -> None:
    settings = [
        {"steps": "3000", "episodes": "2", "every": "null", "rate": "0.01"},
        {"steps": "1", "episodes": "0", "every": "null", "rate": "0.001"},
        {"steps": "3000", "episodes": "2", "every": "1000", "rate": "0.001"},
    ]
    assert labels([("A", one) for one in settings]) == [
        "A, steps 3000, every null",
        "A, steps 1, every null",
        "A, steps 3000, every 1000",
    ]
    two = [("A", dict.fromkeys("xyz", value)) for value in "12"]
    assert labels(two) == ["A, x 1, y 1", "A, x 2, y 2"]
    assert labels([("A", {}), ("A", {})]) == ["A #1", "A #2"]


def test_a_curve_of_one_point_is_seen(tmp_path: Path) -> None:
    runs = [
        write(tmp_path / f"{name}.jsonl", [(0, 1.0), (100, 2.0)], evaluation=(50, 9.0 + i))
        for i, name in enumerate("ab")
    ]
    (one,) = curves([f"X={run}" for run in runs], y="evaluation")
    assert one.x.tolist() == [50] and one.mean.tolist() == [9.5]
    (axes,) = drawn([one], y="evaluation").axes
    assert axes.lines and all(
        line.get_marker() not in ("", "None", None) for line in axes.lines[:1]
    )


def test_one_odd_run_of_a_folder_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    for name in "abc":
        made.run(tmp_path / name)
    (tmp_path / "b/metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "b/metrics.jsonl")
    warned: list[str] = []
    (one,) = curves([str(tmp_path)], warned=warned)
    assert len(one.runs) == 2 and len(warned) == 1 and "expected a plain file" in warned[0]
    with pytest.raises(ValueError, match="expected a plain file"):
        curves([str(tmp_path / "b")])
