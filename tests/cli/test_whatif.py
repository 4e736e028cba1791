"""``equipoise whatif``: predictions from a run that was made, and from files that are not as they
should be.
"""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from tests.cli.samples import short_run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run with a lag of 1, whose records are many."""
    return short_run(tmp_path_factory.mktemp("runs") / "run", steps=20_000, max_lag=1)


def asked(*words):
    found = CliRunner().invoke(app, ["whatif", *map(str, words)])
    return found.exit_code, " ".join(found.output.split())


@pytest.mark.thorough
def test_without_changes_it_says_what_would_help(run):
    code, said = asked(run)
    assert code == 0 and "measured:" in said and "versions, mean over rows" in said
    assert ("what would help" in said) or ("No change of one setting" in said)
    found = eq.whatif(run)
    assert found.measured > 0 and found.change is None
    assert all(one.gain >= 1.05 for one in found.remedies)


def test_with_changes_it_predicts(run):
    code, said = asked(run, "--max-lag", 0)
    assert (
        code == 0 and "changed: placement.max_lag 1 -> 0" in said and "lag: 0.00 versions" in said
    )
    found = eq.whatif(run, max_lag=0)
    assert found.change is not None and found.change.gain <= 1.02, "in lockstep nothing is faster"
    assert found.change.low < found.change.gain < found.change.high
    code, said = asked(run, "--actors", 4, "--set", "algorithm.entropy=0.02", "--json")
    assert code == 2 and "algorithm.entropy: the model does not cover a change of it" in said
    code, said = asked(run, "--actors", 4, "--json")
    assert code == 0 and json.loads(said)["changes"] == {"placement.actors": [2, 4]}


def test_what_workers_did_before_the_first_update_does_not_count(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    slow = {
        title: row | {"worked": 1000.0, "done": 0.0} for title, row in lines[0]["balance"].items()
    }
    starts = [lines[0] | {"updates": 0, "env_steps": 0, "balance": slow} for _ in range(2)]
    (other / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in (*starts, *lines))
    )
    assert measured(RunDirectory.open(other)) == measured(RunDirectory.open(run))


def test_the_machines_of_actors_are_read(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    sites = {
        "site 0": {"machine": "m", "workers": ["actor 1"]},
        "site 1": {"machine": "", "workers": ["actor 0"]},
    }
    (other / "metrics.jsonl").write_text(
        "".join(json.dumps(line | {"sites": sites}) + "\n" for line in lines)
    )
    (other / "run.json").write_text(
        json.dumps(json.loads((run / "run.json").read_text()) | {"on": "ray"})
    )
    assert measured(RunDirectory.open(other)).ring.at == (1, 0), (
        "one without a machine is at its site"
    )
    assert asked(other)[0] == 0


def test_the_parts_of_the_work_are_read_and_added_up(run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    assert measured(RunDirectory.open(other)).writes == 0.0, "no replay"
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    for line in lines:  # half of what the learner computes
        learner = line["balance"]["learner"]
        learner["parts"]["insert"] = (learner["worked"] - learner["asleep"]) / 2
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert measured(RunDirectory.open(other)).writes == pytest.approx(0.5)


def test_what_cannot_be_is_refused(run):
    code, said = asked(run, "--batch", 12)
    assert code == 2 and "batch" in said and "multiple" in said
    code, said = asked(run, "--actrs", 4)
    assert code == 2 and "--actors" in said


@pytest.mark.thorough
def test_files_that_say_too_little(run, tmp_path):
    code, said = asked(tmp_path / "none")
    assert code == 2 and "expected a run directory" in said
    other = tmp_path / "other"
    shutil.copytree(run, other)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]

    def write(found):
        (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))

    write([])
    code, said = asked(other)
    assert code == 2 and "expected records, got none" in said
    write(
        [
            line
            | {"balance": {title: row | {"done": 0.0} for title, row in line["balance"].items()}}
            for line in lines
        ]
    )
    code, said = asked(other)
    assert code == 2 and "let the run go on" in said
    for row in lines[1]["balance"].values():
        del row["done"]
    write(lines)
    code, said = asked(other)
    assert code == 2 and "got no done: another wrote it" in said
    lines[1]["balance"] = {"learner": "much"}
    write(lines)
    code, said = asked(other)
    assert code == 2 and "learner" in said
    shutil.copy(run / "metrics.jsonl", other)
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    write([line | {"sites": {"site 0": {"machine": 7, "workers": []}}} for line in lines])
    code, said = asked(other)
    assert code == 2 and "sites" in said and "a text of at most 100 letters" in said
    write(
        [line | {"sites": {"site 0": {"machine": "m", "workers": ["learner"]}}} for line in lines]
    )
    code, said = asked(other)
    assert (
        code == 2
        and "expected a run whose actors alone are on other machines, got learner on another "
        "machine"
        in said
    )
    made = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(made | {"on": "serial"}))
    code, said = asked(other)
    assert code == 2 and "expected a run on processes, got one on serial" in said
