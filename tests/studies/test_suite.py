"""A suite file: the cells that it names, and one sentence for everything odd in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

import equipoise as eq
from equipoise.programs.program import to_json
from equipoise.record.described import settings_of
from equipoise.studies import suite as module
from equipoise.studies.suite import cell_name, read_suite, trained_key
from equipoise.trust import Untrusted
from tests.studies.made_suite import TEXT, suite

EXAMPLES = sorted((Path(__file__).parents[2] / "docs/results/suites").glob("*.toml"))


def test_a_suite_has_a_cell_for_each_env_algorithm_and_seed_in_order(tmp_path):
    found = suite(tmp_path)
    assert [cell.name for cell in found.cells[:4]] == [
        "CartPole-v1.ppo.0",
        "CartPole-v1.ppo.1",
        "CartPole-v1.ppo.2",
        "CartPole-v1.sac.0",
    ]
    assert len(found.cells) == 18 == len({cell.name for cell in found.cells})
    assert found.seeds == (0, 1, 2)
    assert found.scales == {"CartPole-v1": (20.0, 500.0), "Acrobot-v1": (-500.0, -75.0)}
    published = found.published["CartPole-v1", "ppo"]
    assert (published.mean, published.sd, published.n) == (490.0, 6.1, 3)
    assert published.bound == pytest.approx(483.9)
    assert found.published["CartPole-v1", "sac"].bound == 90.0, "no sd"


def test_settings_of_a_cell_come_before_those_of_its_algorithm_its_env_and_the_suite(tmp_path):
    text = TEXT.replace(
        "settings.policy.unroll",
        "steps = 7\nsettings.optimizer.learning_rate = 2e-3\nsettings.policy.unroll",
    )
    text = text.replace('"1e-3"', "5e-3\nsettings.placement.envs_per_actor = 8\nsteps = 9")
    cells = {cell.name: cell for cell in suite(tmp_path, text).cells}
    settings = cells["CartPole-v1.ppo.2"].settings
    assert settings == {
        "evaluation.episodes": 20,
        "placement.envs_per_actor": 4,
        "schedule.steps": 7,
        "optimizer.learning_rate": 2e-3,
        "policy.unroll": 64,
        "algorithm.hidden": [32, 32],
        "schedule.seed": 2,
    }
    assert cells["Acrobot-v1.ppo.0"].settings["schedule.steps"] == 3_000
    of_sac = cells["Acrobot-v1.sac.0"].settings
    assert of_sac["schedule.steps"] == 9, "the algorithm's come before the env's"
    assert (of_sac["optimizer.learning_rate"], of_sac["placement.envs_per_actor"]) == (5e-3, 8)


def test_settings_are_as_a_run_records_them_so_that_a_kept_cell_can_be_compared(tmp_path):
    for cell in suite(tmp_path).cells:
        trained = settings_of(to_json(eq.program(cell.env, cell.algorithm, settings=cell.settings)))
        for key, value in cell.settings.items():
            assert trained[trained_key(key)] == value, (cell.name, key)
    assert trained["optimizer.learning_rate"] == 1e-3, "a text in the file"


def test_names_of_settings_may_be_those_of_the_command_line(tmp_path):
    text = (
        TEXT.replace("settings.placement.envs_per_actor = 4", "settings.unroll = 5")
        .replace('[algorithm.sac]\nsettings.optimizer.learning_rate = "1e-3"', "")
        .replace("settings.policy.unroll = 64", "settings.env.gravity = 9")
    )
    cell = suite(tmp_path, text).cells[0]
    assert cell.settings["unroll"] == 5 and cell.settings["env.gravity"] == 9
    trained = settings_of(to_json(eq.program(cell.env, cell.algorithm, settings=cell.settings)))
    assert (trained["policy.unroll"], trained["source.env.kwargs.gravity"]) == (5, 9)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_can_be_read_and_every_cell_is_a_program(file):
    found = read_suite(file)
    assert found.name == file.stem and len(found.cells) >= 12
    for cell in found.cells:
        eq.program(cell.env, cell.algorithm, settings=cell.settings)


def test_there_are_two_examples_with_published_values():
    assert len(EXAMPLES) == 2
    assert all(read_suite(file).published for file in EXAMPLES)


# ------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    "names",
    [("ALE/Pong-v5", "ppo", 0), ("../../etc/x", "ppo", 0), ("a" * 300, "ppo", 1), ("", "", 0),
     ("C:\\x", "a+b", 2), (".hidden", "ppo", 0), ("mine:Env", "mine:Algorithm", 0)],
)  # fmt: skip
def test_a_cell_s_name_is_safe_for_every_file_system(names):
    name = cell_name(*names)
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert 0 < len(name) <= 100 and name[0] not in ".-"
    assert name != cell_name(names[0].replace("/", "-"), *names[1:]) or "/" not in names[0]


# -------------------------------------------------------------------------------------------- odd

ODD = [
    "", "x" * 2000, "a\nb", "\x1b[31m", "../up", "/etc/passwd", "~", -1, 0, 1.5, 10**30, 1e300,
    float("nan"), float("inf"), -float("inf"), True, False, [], [[]], ["a", "a"], [1, 1], ["", 3],
    [-1], [True], list(range(3000)), {}, {"a": 1}, {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
    {"": ""}, {"schedule.seed": 1}, {"placement.actors": "auto"}, {"nothing.here": 1},
]  # fmt: skip


def places(value, path=()):
    """The path of every value of a suite, tables included."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))


def changed(path, odd):
    """The suite with another value at a place."""
    data = tomllib.loads(SHORT)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return tomli_w.dumps(data)


SHORT = """
name = "short"
envs = ["CartPole-v1"]
algorithms = ["sac"]
seeds = [1, 5]
steps = 100
on = "serial"
episodes = 3
settings.placement.envs_per_actor = 4

[env."CartPole-v1"]
random = 20.0
best = 500.0
steps = 200
settings.env.gravity = 9.0

[algorithm.sac]
steps = 300
settings.algorithm.hidden = [32, 32]

[cell."CartPole-v1".sac]
steps = 400
settings = { "policy.unroll" = 8 }
published = { mean = 490.0, sd = 6.1, n = 3, source = "Others 2020" }
"""
PLACES = list(places(tomllib.loads(SHORT)))


@pytest.mark.few(6)
@pytest.mark.parametrize("path", PLACES, ids=".".join)
def test_an_odd_value_is_one_sentence_that_names_the_file_or_a_suite_all_the_same(path, tmp_path):
    refused = 0
    for odd in ODD:
        try:
            found = suite(tmp_path, changed(path, odd))
        except ValueError as error:
            refused += 1
            text = str(error)
            assert text.startswith(str(tmp_path / "suite.toml")), text
            assert len(text) < 4000 and text.isprintable(), text
        else:
            assert len(found.cells) <= module.MOST_CELLS
            assert all(cell.settings["schedule.steps"] > 0 for cell in found.cells)
    assert refused >= len(ODD) // 4, "a setting of an env takes most values"


def refusal(tmp_path, text):
    with pytest.raises(ValueError) as error:
        suite(tmp_path, text)
    return str(error.value).removeprefix(f"{tmp_path}/suite.toml")


@pytest.mark.few(99)
@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("steps = 2_000\n", "stepz = 2_000\n", "unknown key 'stepz'; did you mean 'steps'?"),
        ("random = 20.0", "randam = 20.0", "env.CartPole-v1: unknown key 'randam'; did you mean"),
        ("sd = 6.1", "sb = 6.1", "cell.CartPole-v1.ppo.published: unknown key 'sb'"),
        ('[cell."CartPole-v1".sac]', '[cell."CartPole-v2".sac]', "did you mean 'CartPole-v1'?"),
        ('[cell."CartPole-v1".sac]', '[cell."CartPole-v1".td3]', "cell.CartPole-v1: unknown key"),
        ("[algorithm.sac]", "[algorithm.sax]", "algorithm: unknown key 'sax'; "),
        ('["ppo", "sac"]', '["ppo", "sax"]', "algorithms: unknown algorithm 'sax'"),
        ('["ppo", "sac"]', '["ppo", "sac", "grpo"]', "learns from text"),
        ('["ppo", "sac"]', '["ppo", "PPO"]', "must have each name once, got 'PPO' twice"),
        ("seeds = 3", "seeds = [4, 4]", "seeds: must be at least one seed, each once"),
        ("seeds = 3", "seeds = 201", "seeds: expected a whole number from 1 to 200, got 201"),
        ('name = "small"', 'name = "../small"', "name: must be letters, digits, dots"),
        ('"Acrobot-v1", "Pend', '"../Acrobot-v1", "Pend', "envs: must be the name of one, got the"),
        ("random = 20.0", "random = 600.0", "best must be above random (600), got 500"),
        ("random = 20.0", "", "must have random and best, got best alone"),
        ("mean = 490.0", "mean = nan", "published.mean: expected a number from"),
        ("n = 3, ", "", "published.n: expected a value, got none"),
        ("steps = 2_000\n", "", "steps: expected a value, got none"),
        ('on = "serial"', 'on = "spark"', "on: expected one of 'serial', 'process', 'ray'"),
        ("unroll = 64", "unrol = 64", "'policy.unrol'; did you mean 'policy.unroll'?"),
        ("unroll = 64", 'unroll = "many"', "cell CartPole-v1 ppo: policy.unroll: expected"),
        ("policy.unroll = 64", "schedule.steps = 64", "use the suite's key steps"),
        ("envs_per_actor = 4", 'envs_per_actor = "auto"', "must be a value, got auto"),
        ("envs_per_actor = 4", "envs_per_actor = 1979-05-27", "or a list, got datetime.date"),
        ("seeds = 3", "seeds = ", "(at line 5, column 9)"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place_and_the_nearest_name(was, now, said, tmp_path):
    assert TEXT.count(was) == 1
    assert said in refusal(tmp_path, TEXT.replace(was, now))


def test_a_huge_file_a_deep_one_and_no_file_are_refused(tmp_path):
    assert "at most 262,144 bytes" in refusal(tmp_path, TEXT + "#" * (1 << 18))
    plain = TEXT.replace("settings.pl", "#")
    deep = "settings{} = 1\n"
    assert "got a table in a table" in refusal(tmp_path, deep.format(".a" * 50) + plain)
    assert "line 1 has a key of more than 64 parts" in refusal(tmp_path, deep.format(".a" * 999))
    assert "expected TOML" in refusal(tmp_path, TEXT + "\na = " + "[" * 100_000)
    with pytest.raises(ValueError, match="none.toml: expected a plain file, got none"):
        read_suite(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="expected a plain file"):
        read_suite(tmp_path)


def test_counts_are_bounded_also_together(tmp_path):
    envs = ", ".join(f'"E{i}-v0"' for i in range(151))
    text = f'name = "x"\nenvs = [{envs}]\nalgorithms = ["ppo", "sac"]\nsteps = 1\nseeds = 7\n'
    assert "got 302 and 2,114; try several suites" in refusal(tmp_path, text)


def test_code_of_others_is_imported_only_if_the_user_vouches_for_it(tmp_path, monkeypatch):
    (tmp_path / "mine_of_a_suite.py").write_text("raise SystemExit('was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for was, now in (
        ('["ppo", "sac"]', '["ppo", "sac", "mine_of_a_suite:Algorithm"]'),
        ('"Pendulum-v1"]', '"mine_of_a_suite:make"]'),
    ):
        with pytest.raises(Untrusted, match="--trust mine_of_a_suite:"):
            suite(tmp_path, TEXT.replace(was, now))
    file = tmp_path / "suite.toml"
    found = read_suite(file, trusted=["mine_of_a_suite:make"])
    assert found.envs[-1] == "mine_of_a_suite:make", "an env is not imported to read its suite"
