"""Commands that look around: algorithms, recipes, envs, runs; and what a shell needs to complete
them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api
from equipoise.cli import app
from equipoise.programs.program import algorithm_names
from equipoise.recipes import RECIPES
from equipoise.record import listing


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


def out(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refused(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    return str(result.stderr)


def test_every_algorithm_has_a_line() -> None:
    lines = out("algorithms").splitlines()
    assert [line.split()[0] for line in lines] == algorithm_names()
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in lines)


@pytest.mark.thorough
def test_every_recipe_is_listed_and_shown() -> None:
    listed = out("recipes")
    for env, algorithm in RECIPES:
        (line,) = (line for line in listed.splitlines() if line.split()[0] == env)
        assert algorithm in line
        shown = out("recipes", env, "--algorithm", algorithm)
        assert shown.startswith(f"equipoise train {env} --algorithm {algorithm}\n")
        settings = [
            f"{key}={value.strip()}"
            for key, _, value in (line.partition(" = ") for line in shown.splitlines()[1:])
        ]
        settings = [setting.strip() for setting in settings]
        assert api.program(env, algorithm, recipe=False, settings=settings) == api.program(
            env, algorithm, recipe=False, settings=dict(RECIPES[env, algorithm])
        ), "what is shown can be typed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("CartPole-v0",), "no recipe for 'CartPole-v0'; did you mean 'CartPole-v1'?"),
        (("--algorithm", "pppo"), "did you mean 'ppo'?"),
        (("Hopper-v5", "--algorithm", "dqn"), "there are ppo"),
    ],
)
def test_a_recipe_that_there_is_not(words: tuple[str, ...], said: str) -> None:
    assert said in refused("recipes", *words)


def test_envs_are_listed_by_the_ids_that_train_takes() -> None:
    listed = out("envs")
    for group in ("gymnasium (", "equipoise (", "ale_py (", "minigrid (", "pettingzoo ("):
        assert group in listed
    assert out("envs", "cartpole").split() == ["CartPole-v1", "device:cartpole"]
    assert out("envs", "cartpole", "--all").split() == [
        "CartPole-v0",
        "CartPole-v1",
        "device:cartpole",
    ]
    assert "ALE/Pong-v5" in out("envs", "pong").split() and "PongNoFrameskip-v4" not in out(
        "envs", "pong", "--all"
    )
    assert "gymnasium_robotics:FetchReach-v4" in refused("envs", "FetchReach-v4")
    assert "no env with 'xyzzy' in its id" in refused("envs", "xyzzy")


# --------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of PPO and one of IMPALA, of 1,024 steps and with one evaluation each."""
    place = tmp_path_factory.mktemp("runs")
    for name, algorithm, seed in (("a", "ppo", 0), ("b", "ppo", 1), ("deep/er/c", "impala", 0)):
        options: dict[str, Any] = {
            "steps": 1024,
            "evaluate_episodes": 2,
            "envs_per_actor": 4,
            "unroll": 16,
            "recipe": False,
        }
        list(
            api.start(
                "CartPole-v1",
                algorithm,
                on="serial",
                out=place / name,
                actors=1,
                seed=seed,
                **options,
            )
        )
    return place


def names(text: str) -> list[str]:
    return [line.split()[0].rpartition("/")[2] for line in text.splitlines()[1:]]


@pytest.mark.thorough
def test_a_name_is_not_cut_in_a_pipe(made: Path) -> None:
    result = CliRunner().invoke(app, ["runs", str(made)])
    assert {line.split()[0] for line in result.stdout.splitlines()[1:]} == {
        str(made / name) for name in ("a", "b", "deep/er/c")
    }


def test_runs_are_a_table(made: Path) -> None:
    text = out("runs", str(made))
    assert names(text) == ["a", "b", "c"]
    line = text.splitlines()[1].split()
    assert line[1:4] == ["CartPole-v1", "ppo", "completed"] and "1.02k" in line
    assert names(out("runs", str(made), "--sort=-seed"))[0] == "b"
    assert names(out("runs", str(made), "--where", "algorithm=PPO", "--where", "seed>0")) == ["b"]
    assert "no runs" in out("runs", str(made), "--where", "evaluation<0")
    assert names(out("runs", str(made / "a"))) == ["a"]


def test_runs_are_json(made: Path, tmp_path: Path) -> None:
    listed = json.loads(out("runs", str(made), "--json", "--sort=-seed"))
    assert [Path(one["name"]).name for one in listed] == ["b", "a", "c"] and set(listed[0]) == {
        *listing.COLUMNS,
        "settings",
    }
    one = listed[0]
    assert (
        one["steps"] == 1024
        and one["steps_per_s"] > 0
        and one["verdict"] == "One thread"
        and one["size"] > 10_000
    )
    assert json.loads(out("runs", str(tmp_path), "--json")) == [], "no runs are an empty list"
    assert json.loads(out("runs", "show", str(made / "b"), "--json"))["seed"] == one["seed"]
    shown = [line.split(maxsplit=1) for line in out("runs", "show", str(made / "b")).splitlines()]
    values = {key: rest for key, *rest in shown}
    assert values["name"] == [str(made / "b")]
    assert values["changed"][0].startswith("20"), "a date, not seconds"
    assert len(values["wall_s"][0]) <= 9, "not 17 digits"


def test_settings_sort_and_choose_runs(made: Path) -> None:
    gamma = {"a": 0.99, "b": "odd", "c": None}  # a number, a text, and a run that has none
    rows = [
        replace(row, settings={"algorithm.gamma": gamma[row.path.name], "on": "serial"})
        for row in listing.rows(made)
    ]
    for conditions, sort, wanted in (
        ([], "algorithm.gamma", ["a", "b", "c"]),
        ([], "-algorithm.gamma", ["b", "a", "c"]),
        (["algorithm.gamma=99e-2"], "name", ["a"]),
        (["algorithm.gamma=none"], "name", ["c"]),
        (["on=SERIAL", "algorithm.gamma=odd"], "name", ["b"]),
    ):
        assert [row.path.name for row in listing.chosen(rows, conditions, sort)] == wanted, (
            conditions,
            sort,
        )
    with pytest.raises(ValueError, match="expected a column of numbers, got 'algorithm.gamma'"):
        listing.chosen(rows, ["algorithm.gamma>1"], "name")
    assert (
        names(out("runs", str(made), "--where", "policy.unroll<17", "--sort=-schedule.seed"))[0]
        == "b"
    )
    assert "unknown column 'algorithm.gama'; did you mean 'algorithm.gamma'?" in refused(
        "runs", str(made), "--sort", "algorithm.gama"
    )


def test_the_size_of_a_run_counts_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(bytes(1000))
    (tmp_path / "two").write_bytes(bytes(10))
    os.link(tmp_path / "a" / "one", tmp_path / "again")
    (tmp_path / "elsewhere").symlink_to("/")
    assert listing.size_of(tmp_path) == 1010, "nor is a link followed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sort", "return"), "unknown column 'return'; did you mean 'return_mean'?"),
        (("--where", "seed"), "expected KEY=VALUE"),
        (("--where", "sead=1"), "did you mean 'seed'?"),
        (("--where", "seed>x"), "expected a number after '>', got 'x'"),
        (("--where", "env>3"), "expected a column of numbers, got 'env'"),
    ],
)
def test_what_no_table_has_is_refused(words: tuple[str, ...], said: str, made: Path) -> None:
    assert said in refused("runs", str(made), *words)


def test_the_status_of_a_run_without_a_summary(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "a", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (found,) = listing.rows(tmp_path)
    assert found.status == "killed" and found.steps == 1024 and found.verdict == "One thread", (
        "by its last report"
    )
    fd = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        (found,) = listing.rows(tmp_path)
        assert found.status == "running"
        assert (
            "which runs" in refused("runs", "rm", str(tmp_path), "--yes")
            and (tmp_path / "run").exists()
        )
    finally:
        os.close(fd)


def test_a_damaged_run_costs_no_other_its_line(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "runs")
    (tmp_path / "runs" / "a" / "run.json").write_text('{"program": {"source": 3}}')
    (tmp_path / "runs" / "b" / "summary.json").write_text("{")
    result = call("runs", str(tmp_path / "runs"))
    assert (
        result.exit_code == 0
        and names(result.stdout) == ["b", "c"]
        and "warning: " in result.stderr
    )


def test_a_folder_that_may_not_be_looked_into_costs_no_run_its_line(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "runs")
    (closed := tmp_path / "runs" / "aa").mkdir()
    there = Path.is_file

    def is_file(path: Path, **given: Any) -> bool:
        if path.parent == closed:  # its names may be read, and nothing behind them
            raise PermissionError(13, "Permission denied", str(path))
        return there(path, **given)

    monkeypatch.setattr(Path, "is_file", is_file)
    result = call("runs", str(tmp_path / "runs"))
    assert result.exit_code == 0 and names(result.stdout) == ["a", "b", "c"]
    assert f"{closed}: expected a folder that can be read, got: Permission denied" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(
    "words", ["evaluate", "check", "collect --dataset a/b-v0", "generate --prompt x"]
)
def test_a_seed_below_0_is_no_fault_of_the_env(words: str, made: Path) -> None:
    place = ["CartPole-v1"] if words == "check" else [str(made / "a")]
    result = call(*words.split()[:1], *place, *words.split()[1:], "--seed", "-1")
    assert result.exit_code == 2 and "--seed: expected at least 0, got -1" in " ".join(
        result.stderr.split()
    )


def test_conditions_that_no_run_fits_are_said(made: Path) -> None:
    result = call("runs", str(made), "--where", "steps>1", "--where", "status=done")
    assert (
        result.stdout
        == "no runs: none of 3 runs fits --where 'steps>1' and --where 'status=done'\n"
    )


@pytest.mark.parametrize(
    "summary",
    ["{", '{"status": "lost"}', '{"status": "completed", "env_steps": 1e999}', "pipe", "folder"],
)
def test_a_summary_that_cannot_be_read_is_damage(made: Path, tmp_path: Path, summary: str) -> None:
    shutil.copytree(made / "a", tmp_path / "run")
    file = tmp_path / "run" / "summary.json"
    file.unlink()
    if summary == "pipe":
        os.mkfifo(file)
    elif summary == "folder":
        file.mkdir()
    else:
        file.write_text(summary)
    result = call("runs", str(tmp_path))
    assert (
        "damaged" in result.stdout
        and "killed" not in result.stdout
        and f"warning: {file}" in " ".join(result.stderr.split())
    )
    assert (
        not out("runs", "rm", str(tmp_path), "--where", "status=killed", "--yes") and file.exists()
    )


def test_a_damaged_report_costs_no_run_its_line(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "a", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"env_steps": 10')
    (found,) = listing.rows(tmp_path)
    assert found.steps == 1024


def test_where_no_run_can_be_read_nobody_is_told_to_make_one(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "a", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    result = call("runs", str(tmp_path))
    assert "makes one" not in result.stdout and "warning: " in result.stderr


def test_runs_are_removed_after_a_question(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "runs")
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    assert "must have --yes" in refused("runs", "rm", str(tmp_path / "runs"))
    assert "removed 2 runs" in out(
        "runs", "rm", str(tmp_path / "runs"), "--where", "algorithm=ppo", "--yes"
    )
    assert (
        names(out("runs", str(tmp_path / "runs"))) == ["c"]
        and (tmp_path / "runs" / "notes.txt").exists()
    )


def test_no_runs_are_no_error_and_a_wrong_folder_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no runs; 'equipoise train ENV' makes one" in out("runs")
    assert "expected a folder with runs, got none" in refused("runs", "nowhere")
    assert "no runs" in out("runs", ".")


# --------------------------------------------------------------------------------------- completion


def completed(*words: str) -> list[str]:
    env = {
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_EQUIPOISE_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-m", "equipoise"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert set(completed("equipoise", "re")) == {
        *("resume", "report", "recipes", "reproduce", "registry")
    }
    assert completed("equipoise", "train", "--save") == ["--save-config"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_takes_the_script(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(out("completion", shell))
    check = {"bash": "complete -p equipoise", "zsh": "echo $_comps[equipoise]"}[shell]
    first = "" if shell == "bash" else "autoload -U compinit; compinit -u; "
    done = subprocess.run(
        [program, "-c", f'{first}eval "$(cat {script})"; {check}'],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert done.returncode == 0 and "_equipoise_completion" in done.stdout, done


def test_another_shell_is_refused() -> None:
    assert "expected one of bash, zsh, fish, got 'bsh'; did you mean 'bash'?" in refused(
        "completion", "bsh"
    )
