"""The page of a suite: the same kept cells make the same bytes, and every cell is in it."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest

from equipoise.report.suite import _scores, suite_markdown, suite_page
from equipoise.studies import statistics
from equipoise.studies.kept import Kept, keep, read_kept
from equipoise.studies.suite import Suite
from tests.report.test_page import whole
from tests.studies import made_suite as made

SCORES = {"ppo": (400.0, -100.0, -900.0), "sac": (80.0, -300.0, -200.0)}  # by env


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Suite:
    return made.suite(tmp_path_factory.mktemp("suite"))


def kept_of(suite: Suite, absent=()) -> dict[str, Kept]:
    """Kept cells with scores that differ by env, algorithm and seed."""
    return {
        cell.name: Kept(
            name=cell.name,
            env=cell.env,
            algorithm=cell.algorithm,
            seed=cell.seed,
            status="completed",
            score=SCORES[cell.algorithm][suite.envs.index(cell.env)] + 10 * cell.seed,
            std=4.0,
            episodes=20,
            steps=2_000,
            seconds=61.4,
            settings_sha256="ab" * 32,
            equipoise="0.1.0",
            commit=None,
            machine="Linux <6>, 2 cores",
            curve=((100, 1_000, 2_000), (0.0, 5.0 + cell.seed, 9.0)),
        )
        for cell in suite.cells
        if cell.name not in absent
    }


def test_the_page_is_whole_and_has_every_cell(suite):
    seen = whole(suite_page(suite, kept_of(suite)))
    for cell in suite.cells:
        assert cell.name in seen.texts
        assert cell.env in seen.texts and cell.algorithm in seen.texts
    assert "18 of 18 cells are kept." in seen.text and "Missing" not in seen.text
    # a figure of each env, and one of the profiles
    assert sum(tag == "figure" for tag in seen.tags) == len(suite.envs) + 1
    assert seen.text.count("Linux <6>, 2 cores") == len(suite.cells)


def test_the_markdown_has_every_cell_and_its_tables_have_equal_rows(suite):
    text = suite_markdown(suite, kept_of(suite))
    for cell in suite.cells:
        assert f"| {cell.name} | completed |" in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 5
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    assert "https://example.org/\\<scores\\>" in text and "table 1 \\| a\\_b" in text


def test_the_order_in_which_cells_were_made_changes_no_byte(suite, tmp_path):
    order = np.random.default_rng(0).permutation(len(suite.cells)).tolist()
    pages = []
    for turn, places in enumerate((range(len(suite.cells)), order)):
        folder = tmp_path / str(turn)
        for i in places:
            run = tmp_path / f"run{i}"
            if not run.exists():
                made.run(run, suite.cells[i], score=SCORES[suite.cells[i].algorithm][0] + i)
            keep(run, folder)
        kept = read_kept(folder, suite)
        assert len(kept) == len(suite.cells)
        pages.append((suite_page(suite, kept), suite_markdown(suite, kept)))
        shuffled = dict(reversed(kept.items()))
        pages.append((suite_page(suite, shuffled), suite_markdown(suite, shuffled)))
    assert len(set(pages)) == 1
    shutil.rmtree(tmp_path)


def test_a_page_made_twice_has_the_same_intervals(tmp_path):
    suite = made.suite(tmp_path, made.TEXT.replace("seeds = 3", "seeds = 9"))
    draw = np.random.default_rng(5)
    kept = {
        name: dataclasses.replace(one, score=float(draw.normal(0, 300)))
        for name, one in kept_of(suite).items()
    }
    assert suite_markdown(suite, kept) == suite_markdown(suite, kept)
    assert suite_page(suite, kept) == suite_page(suite, kept)


def test_another_score_changes_the_page(suite):
    kept = kept_of(suite)
    other = kept_of(suite) | {"Acrobot-v1.sac.1": kept["Acrobot-v1.sac.2"]}
    assert suite_page(suite, kept) != suite_page(suite, other)
    assert suite_markdown(suite, kept) != suite_markdown(suite, other)


def test_missing_cells_are_named_and_the_page_needs_none(suite):
    absent = ["CartPole-v1.ppo.1", "Pendulum-v1.sac.0", "Pendulum-v1.sac.1", "Pendulum-v1.sac.2"]
    kept = kept_of(suite, absent)
    for text in (whole(suite_page(suite, kept)).text, suite_markdown(suite, kept)):
        assert f"14 of 18 cells are kept. Missing: {', '.join(absent)}." in text
    assert "| Pendulum-v1 | sac | not published | — | 0 of 3 | — | — |" in suite_markdown(
        suite, kept
    )
    for few in ({}, {"CartPole-v1.ppo.1": kept_of(suite)["CartPole-v1.ppo.1"]}):
        seen = whole(suite_page(suite, few))
        assert f"{len(few)} of 18 cells are kept. Missing: CartPole-v1.ppo.0" in seen.text
        assert "nan" not in suite_markdown(suite, few)


def row(text, *cells):
    """The cells of the one row of Markdown that begins with these."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(cells)} |")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


@pytest.mark.few(3)
@pytest.mark.parametrize(("score", "result"), [(483.91, "met"), (483.89, "below"), (500, "met")])
def test_a_score_is_met_if_it_is_not_below_the_published_mean_minus_one_sd(suite, score, result):
    kept = kept_of(suite)
    for name in [name for name in kept if name.startswith("CartPole-v1.ppo")]:
        kept[name] = dataclasses.replace(kept[name], score=score)
    text = suite_markdown(suite, kept)
    assert row(text, "CartPole-v1", "ppo")[2] == result
    assert row(text, "CartPole-v1", "ppo")[-1] == "490.0 ± 6.1 (n=3)"
    assert row(text, "CartPole-v1", "sac")[2] == "met", "90 without an sd: 90 is not below"
    assert row(text, "Acrobot-v1", "sac")[2] == "not published"


def test_a_score_of_the_table_is_the_mean_over_seeds_with_student_s_interval(suite):
    text = suite_markdown(suite, kept_of(suite))
    assert row(text, "Acrobot-v1", "ppo")[4:6] == ["3 of 3", "-90.0 ± 24.8"]


def test_scores_are_normalised_and_only_seeds_that_every_env_has_are_compared(suite):
    scores = _scores(suite, kept_of(suite, ["Acrobot-v1.sac.1"]))
    assert scores["ppo"].shape == (3, 2), "Pendulum has no scale"
    assert scores["ppo"][0] == pytest.approx([380 / 480, 400 / 425])
    assert scores["sac"].shape == (2, 2)
    assert scores["sac"][1] == pytest.approx([80 / 480, 220 / 425]), "seed 2"
    assert "sac" not in _scores(suite, kept_of(suite, [f"Acrobot-v1.sac.{i}" for i in range(3)]))


def test_aggregates_are_those_of_the_statistics(suite):
    kept = kept_of(suite)
    scores, text = _scores(suite, kept), suite_markdown(suite, kept)
    found = row(text, "ppo", "3", "2")
    assert found[3].startswith(f"{statistics.iqm(scores['ppo']):.3f} (")
    assert found[6].startswith(f"{statistics.optimality_gap(scores['ppo']):.3f} (")
    assert row(text, "ppo", "sac")[2] == "1.000 (1.000 to 1.000)"
    assert "Envs without a scale, which are left out: Pendulum-v1." in text


@pytest.mark.thorough
def test_a_suite_with_the_most_cells_has_a_page_of_bounded_size(tmp_path):
    envs = [f"Env{i}-v0" for i in range(60)]
    listed = ", ".join(f'"{env}"' for env in envs)
    text = f'name = "x"\nenvs = [{listed}]\nalgorithms = ["a2c", "dqn", "ppo", "sac", "td3"]\n'
    text += "steps = 9\nseeds = 6\n"
    text += "".join(f'[env."{env}"]\nrandom = 0.0\nbest = 1.0\n' for env in envs)
    suite = made.suite(tmp_path, text)
    draw = np.random.default_rng(0)
    first = next(iter(kept_of(made.suite(tmp_path)).values()))
    kept = {
        cell.name: dataclasses.replace(
            first,
            name=cell.name,
            env=cell.env,
            algorithm=cell.algorithm,
            seed=cell.seed,
            score=float(draw.random()),
            curve=(tuple(range(1, 201)), tuple(draw.normal(0, 1e3, 200).tolist())),
        )
        for cell in suite.cells
    }
    assert len(kept) == 1_800
    whole(suite_page(suite, kept))
