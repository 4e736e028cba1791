"""``equipoise forecast``: the files of docs/results/forecasts, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app

FILES = Path(__file__).parents[2] / "docs/results/forecasts"
SMALL = """
[home]
cores = 2
[[nodes]]
count = 2
actors = 2
cores = 2
[work]
unroll = 10
envs = 1
blocks = 4
max_lag = 1
step_us = 100
learn_ms = 1
bytes_per_step = 10
version_bytes = 10
"""


def asked(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["forecast", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


@pytest.mark.parametrize("name", ["seed", "sample-factory"])
def test_the_files_of_landmark_systems_are_read(name: str) -> None:
    code, said = asked(FILES / f"{name}.toml")
    assert code == 0 and "steps/s" in said and "bound by" in said


@pytest.mark.thorough
def test_a_curve_is_a_picture_and_numbers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "cluster.toml"
    file.write_text(SMALL.replace("count = 2", "count = 1").replace("actors = 2", "actors = 3000"))
    code, said = asked(file, "--curve", tmp_path / "curve.svg", "--json")
    assert code == 0, said
    rows = [json.loads(line) for line in said.replace("} {", "}\n{").splitlines()]
    assert [row["actors"] for row in rows] == [3000, 6000]
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")


@pytest.mark.thorough
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    code, said = asked(file)
    assert code == 2 and "expected a cluster file, got none that can be read" in said
    file.write_text("[home\n")
    code, said = asked(file)
    assert code == 2 and "expected TOML, got a file with an error" in said
    file.write_text("home = " + "[" * 3000)
    code, said = asked(file)
    assert (
        code == 2 and "expected TOML, got more levels of lists and tables than can be read" in said
    )
    file.write_text(SMALL.partition("[work]")[0])
    code, said = asked(file)
    assert (
        code == 2 and "expected what the work costs from a run or from [work], got neither" in said
    )
    file.write_text(SMALL)
    code, said = asked(file, "--from", tmp_path)
    assert code == 2 and "got both" in said
    file.write_text(SMALL.replace("[[nodes]]\ncount = 2\nactors = 2\ncores = 2\n", ""))
    code, said = asked(file)
    assert code == 2 and "expected nodes with actors, got none; add [[nodes]]" in said
    file.write_text(SMALL)
    code, said = asked(file, "--curve", tmp_path / "curve.txt")
    assert code == 2 and "expected a file that ends in" in said
