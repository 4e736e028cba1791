"""Kept cells: a finished run becomes one small file; a bad file costs itself alone."""

from __future__ import annotations

import fcntl
import json
import os

import pytest

import equipoise as eq
from equipoise.studies import kept as module
from equipoise.studies.kept import LARGEST_FILE, MOST_POINTS, keep, missing, read_kept
from equipoise.studies.suite import Suite
from tests.studies import made_suite as made


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Suite:
    return made.suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture
def run(tmp_path, suite):
    """The finished run of the suite's first cell."""
    return made.run(tmp_path / "run", suite.cells[0], score=481.5)


def test_a_finished_run_is_kept_and_read_back(run, tmp_path, suite):
    file = keep(run, tmp_path / "kept")
    assert file == tmp_path / "kept" / "CartPole-v1.ppo.0.json"
    notes: list[str] = []
    one = read_kept(tmp_path / "kept", suite, notes=notes)["CartPole-v1.ppo.0"]
    assert notes == []
    assert (one.env, one.algorithm, one.seed, one.status) == ("CartPole-v1", "ppo", 0, "completed")
    assert (one.score, one.std, one.episodes) == (481.5, 5.25, 20)
    assert (one.steps, one.seconds) == (2_000, 12.346)
    assert (one.equipoise, one.commit) == (eq.__version__, "0123456789abcdef")
    steps, returns = one.curve
    assert steps == tuple(range(200, 2_001, 100)), "the first report has no return"
    assert returns[-1] == pytest.approx(481.5 + 1 / 3, rel=1e-5)


def test_the_file_has_no_name_of_a_machine_and_the_same_run_gives_the_same_bytes(run, tmp_path):
    one, two = keep(run, tmp_path / "a"), keep(run, tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()
    assert "secret-host" not in one.read_text() and str(tmp_path) not in one.read_text()
    assert keep(run, tmp_path / "a") == one, "kept again: replaced"


def test_missing_cells_are_those_without_a_file_that_counts(run, tmp_path, suite):
    folder = tmp_path / "kept"
    assert missing(suite, folder) == list(suite.cells), "no folder yet"
    file = keep(run, folder)
    assert missing(suite, folder) == list(suite.cells[1:])
    file.write_text(file.read_text()[:-20])
    assert missing(suite, folder) == list(suite.cells)


def edited(run, name="summary.json", **changes):
    file = run / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def dropped_end(run):
    made.write_lines(run, made.lines_of(run)[:-1])


def earlier_evaluation(run):
    """The run was cut off in its last evaluation; an earlier one is in its files."""
    lines = made.lines_of(run)
    lines[-1]["evaluation"]["env_steps"] -= 100
    made.write_lines(run, lines)


@pytest.mark.few(99)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: edited(run, status="failed"), "ended as 'failed'"),
        (lambda run: edited(run, status="interrupted"), "ended as 'interrupted'"),
        (lambda run: edited(run, status="alarmed"), "ended as 'alarmed'"),
        (lambda run: edited(run, evaluation=None), "without its last evaluation"),
        (lambda run: edited(run, evaluations={"asked": 3, "made": 2}), "of earlier weights"),
        (lambda run: edited(run, evaluation={"mean": None, "std": 0.0, "episodes": 0}), "mean: ex"),
        (lambda run: edited(run, wall_s="long"), "summary.json: wall_s: expected a number"),
        (lambda run: edited(run, "run.json", host=[1]), "run.json: host: expected a JSON object"),
        (lambda run: (run / "summary.json").unlink(), "without a summary"),
        (lambda run: (run / "summary.json").write_text("{"), "without a summary"),
        (dropped_end, "without its last evaluation"),
        (earlier_evaluation, "whose last evaluation is of earlier weights"),
        (lambda run: (run / "metrics.jsonl").unlink(), "without its last evaluation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_is_not_finished_is_no_kept_cell(run, tmp_path, damage, said):
    damage(run)
    with pytest.raises(ValueError) as error:
        keep(run, tmp_path / "kept")
    assert said in str(error.value) and str(run) in str(error.value)
    assert not (tmp_path / "kept").exists()


def test_a_run_that_is_still_running_is_no_kept_cell(run, tmp_path):
    handle = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="that is still running"):
            keep(run, tmp_path / "kept")
    finally:
        os.close(handle)
    keep(run, tmp_path / "kept")


def test_a_solved_run_counts_with_the_evaluation_that_solved_it(tmp_path, suite):
    run = made.run(tmp_path / "run", suite.cells[0], status="solved")
    earlier_evaluation(run)
    keep(run, tmp_path / "kept")
    assert len(missing(suite, tmp_path / "kept")) == len(suite.cells) - 1


@pytest.mark.thorough
def test_a_curve_of_a_million_points_becomes_one_of_two_hundred():
    lines = [
        {"env_steps": 17 * i, "updates": 0, "return_mean": -1 / 3 * i} for i in range(1_000_000)
    ]
    curve = module._curve(lines)
    assert len(curve["steps"]) == len(curve["returns"]) == MOST_POINTS
    assert (curve["steps"][0], curve["steps"][-1]) == (0, 17 * 999_999)
    assert curve["steps"] == sorted(set(curve["steps"]))


def test_many_points_and_ten_thousand_episodes_fit_into_the_file(tmp_path, suite):
    evaluation = {"mean": 1 / 3, "std": 2 / 3, "episodes": 10_000, "info": {"a": [0.1] * 10_000}}
    run = made.run(tmp_path / "run", suite.cells[0], points=2_000, evaluation=evaluation)
    file = keep(run, tmp_path / "kept")
    assert file.stat().st_size <= LARGEST_FILE // 2, "room for longer settings"
    one = read_kept(tmp_path / "kept", suite)["CartPole-v1.ppo.0"]
    assert one.episodes == 10_000 and len(one.curve[0]) == MOST_POINTS
    assert one.curve[0][-1] == 200_000


def test_settings_that_do_not_fit_into_the_file_are_refused(run, tmp_path):
    file = run / "run.json"
    whole = json.loads(file.read_text())
    whole["program"]["source"]["env"]["kwargs"] = {"map": "x" * LARGEST_FILE}
    file.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="must fit into 30,000 bytes as a cell, got 3"):
        keep(run, tmp_path / "kept")


@pytest.mark.few(99)
@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("steps = 2_000", "steps = 2_001", "schedule.steps: must be 2001 as in the suite"),
        ("envs_per_actor = 4", "envs_per_actor = 8", "envs_per_actor: must be 8 as in the suite"),
        ("[32, 32]", "[32, 33]", "must be [32, 33] as in the suite, got [32, 32]"),
        ('on = "serial"', "episodes = 7\non = \"serial\"", "evaluation.episodes: must be 7"),
        ('on = "serial"', 'on = "process"', "on: must be 'process', got 'serial'"),
    ],
)  # fmt: skip
def test_a_cell_with_other_settings_than_the_suite_s_is_left_out_with_a_note(
    run, tmp_path, was, now, said
):
    keep(run, tmp_path / "kept")
    other = made.suite(tmp_path, made.TEXT.replace(was, now))
    notes: list[str] = []
    assert read_kept(tmp_path / "kept", other, notes=notes) == {}
    assert len(notes) == 1 and said in notes[0]
    assert "CartPole-v1.ppo.0.json" in notes[0] and notes[0].endswith("; the file is left out")


def test_published_values_and_other_seeds_do_not_concern_a_kept_cell(run, tmp_path):
    keep(run, tmp_path / "kept")
    text = made.TEXT.replace("seeds = 3", "seeds = [7, 0]").replace("490.0", "491.0")
    assert list(read_kept(tmp_path / "kept", made.suite(tmp_path, text))) == ["CartPole-v1.ppo.0"]


ODD = [
    None, "", "x", "\ud800", "\x1b[31m", -1, 0, 1.5, 10**40, True, [], {}, [1], {"a": 1},
    [3, 2, 1], list(range(1_000)), "y" * 400,
]  # fmt: skip


def test_an_odd_file_costs_itself_alone(tmp_path, suite):
    folder = tmp_path / "kept"
    good = [keep(made.run(tmp_path / f"{i}", suite.cells[i]), folder) for i in (0, 1)]
    whole = json.loads(good[0].read_text())
    odd = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5_000, b" " * (LARGEST_FILE + 1)]
    odd.append(json.dumps(whole).replace('"mean": 100.0', '"mean": NaN').encode())
    odd.append(json.dumps(whole).replace('"mean": 100.0', '"mean": 1e999').encode())
    unknown_to_the_suite = json.dumps(whole).replace('"policy.batch": ', '"policy.batch": 1')
    odd.append(unknown_to_the_suite.encode())
    curve = {"steps": [1, 2, 2], "returns": [0.0] * 3}
    odd.append(json.dumps(whole | {"curve": curve}).encode())
    odd.append(json.dumps(whole | {"another": 1}).encode())
    odd += [json.dumps({k: v for k, v in whole.items() if k != key}).encode() for key in whole]
    fits = 0
    changed = [json.dumps(whole | {key: x}).encode() for key in whole for x in ODD]
    for i, data in enumerate([*odd, *changed]):
        good[0].write_bytes(data)
        notes: list[str] = []
        found = read_kept(folder, suite, notes=notes)
        fits += len(found) == 2
        assert "CartPole-v1.ppo.1" in found
        assert len(found) + len(notes) == 2 and (i >= len(odd) or notes), data[:200]
        for note in notes:
            assert str(good[0]) in note and note.isprintable() and len(note) < 600
    assert 0 < fits < 30, "a few odd values are as good as others, such as no commit"


def test_what_is_no_plain_file_costs_itself_alone(tmp_path, suite):
    folder = tmp_path / "kept"
    keep(made.run(tmp_path / "1", suite.cells[1]), folder)
    (folder / "CartPole-v1.ppo.0.json").mkdir()
    os.mkfifo(folder / "CartPole-v1.ppo.2.json")
    (folder / "stray.json").write_text("{")
    notes: list[str] = []
    assert list(read_kept(folder, suite, notes=notes)) == ["CartPole-v1.ppo.1"]
    assert len(notes) == 2


def test_a_file_under_another_cell_s_name_is_left_out(run, tmp_path, suite):
    file = keep(run, tmp_path / "kept")
    file.rename(file.with_name("CartPole-v1.ppo.1.json"))
    notes: list[str] = []
    assert read_kept(tmp_path / "kept", suite, notes=notes) == {}
    assert "name: must be 'CartPole-v1.ppo.1', got 'CartPole-v1.ppo.0'" in notes[0]


@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_a_run_of_a_cell_is_kept_and_counts_for_its_suite(tmp_path):
    text = made.TEXT.replace("2_000", "1_024").replace("seeds = 3", "seeds = [3]")
    suite = made.suite(tmp_path, text)
    cell = suite.cells[0]
    program = eq.program(cell.env, cell.algorithm, settings=cell.settings)
    eq.train(program, on=cell.on, out=tmp_path / "run")
    keep(tmp_path / "run", tmp_path / "kept")
    notes: list[str] = []
    assert list(read_kept(tmp_path / "kept", suite, notes=notes)) == [cell.name]
    assert notes == []
