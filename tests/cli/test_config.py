"""``--config``, ``--save-config`` and ``--seeds``: all settings in a file, and as many runs as
seeds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api
from equipoise.cli import app
from equipoise.files import parse_toml
from equipoise.programs.config_file import read_config, write_config
from equipoise.record.directory import RunDirectory
from equipoise.studies.tuned import found
from equipoise.tuning.choice import read_choices

TINY = (
    "--steps",
    "512",
    "--evaluate-episodes",
    "1",
    "--envs-per-actor",
    "4",
    "--unroll",
    "16",
    "--actors",
    "1",
    "--no-recipe",
)
HEAD = "[source.env]\ntarget='CartPole-v1'\n[policies.main]\n"


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    return str(result.stderr)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        ("CartPole-v1", "ppo"),
        ("Pendulum-v1", "sac"),
        ("ALE/Pong-v5", "impala"),
        ("equipoise/TMaze-v0", "r2d2"),
    ],
)
def test_a_program_comes_back_from_its_file(
    env: str, algorithm: str, suffix: str, tmp_path: Path
) -> None:
    made = api.program(env, algorithm, max_lag=None, settings=["evaluation.stop_at=3.5"])
    write_config(made, tmp_path / f"made{suffix}")
    assert read_config(tmp_path / f"made{suffix}") == made
    with pytest.raises(FileExistsError, match="expected a new file"):
        write_config(made, tmp_path / f"made{suffix}")


@pytest.mark.thorough
def test_a_saved_config_trains_the_same_and_options_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "made.toml"
    assert call("train", "CartPole-v1", *TINY, "--save-config", str(file)).exit_code == 0
    assert not (tmp_path / "runs").exists()
    config = ("train", "--config", str(file), "--on", "serial", "--quiet")
    assert call(*config, "--out", str(tmp_path / "a")).exit_code == 0
    assert (
        call(
            "train", "CartPole-v1", *TINY, "--on", "serial", "--quiet", "--out", str(tmp_path / "b")
        ).exit_code
        == 0
    )
    a, b = (RunDirectory.open(tmp_path / name) for name in "ab")
    assert a.program == b.program and a.summary()["params_sha256"] == b.summary()["params_sha256"]  # type: ignore[index]
    words = (
        "--seed",
        "7",
        "--unroll",
        "8",
        "--set",
        "algorithm.gamma=0.5",
        "--action-mask",
        "none",
    )
    assert call(*config, *words, "--out", str(tmp_path / "c")).exit_code == 0
    c = RunDirectory.open(tmp_path / "c").program
    main: Any = c.policies["main"]
    assert (c.schedule.seed, main.unroll, main.algorithm.gamma, c.env.action_mask) == (
        7,
        8,
        0.5,
        "none",
    )
    assert (
        call(
            "train",
            "--config",
            str(tmp_path / "c"),
            "--on",
            "serial",
            "-q",
            "--out",
            str(tmp_path / "d"),
        ).exit_code
        == 0
    )
    assert RunDirectory.open(tmp_path / "d").program == c, "a run is a config as well"


def test_what_a_file_names_is_imported_only_where_the_user_vouched(tmp_path: Path) -> None:
    made = api.program("tests.envs.telling:Wandering", "ppo", settings=["algorithm.epochs=1"])
    write_config(made, tmp_path / "made.toml")
    assert "If you trust it: --trust tests.envs.telling:Wandering" in refused(
        "train", "--config", str(tmp_path / "made.toml")
    )
    assert read_config(tmp_path / "made.toml", trusted=["tests.envs.telling"]) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[source", "expected TOML, got a file with an error:"),
        ("", "expected the keys ['source', 'policies']"),
        (f"{HEAD}unrol=3", "unknown key 'unrol'; did you mean 'unroll'?"),
        (f"{HEAD}unroll=-3\nbatch=1\nalgorithm.name='ppo'", "unroll: expected at least 1, got -3"),
        (f"{HEAD}unroll='x'\nbatch=1\nalgorithm.name='ppo'", "a whole number, got 'x'"),
        (f"{HEAD}unroll=3\nbatch=1\nalgorithm.name='pppo'", "did you mean 'ppo'?"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "made.toml").write_text(text)
    found = refused("train", "--config", str(tmp_path / "made.toml"))
    assert said in found


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[" * 3000, "expected TOML, got more levels of lists and tables than can be read"),
        ("9" * 5000, "expected TOML, got a file with an error: Exceeds the limit"),
        ("2020-01-01", "env.render_mode: expected a value that JSON can hold"),
        ("inf", "env.render_mode: expected a value that JSON can hold"),
    ],
)
def test_what_toml_can_say_and_a_program_cannot_is_refused_with_the_file(
    value: str, said: str, tmp_path: Path
) -> None:
    write_config(
        api.program("CartPole-v1", "ppo", env_kwargs={"render_mode": "here"}),
        file := tmp_path / "made.toml",
    )
    file.write_text(file.read_text().replace('"here"', value))
    with pytest.raises(ValueError, match=f"^{file}: {said}"):
        read_config(file)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    write_config(api.program("CartPole-v1"), file)
    assert "expected nothing besides it for that, got ENV, --algorithm" in refused(
        "train", "CartPole-v1", "--config", str(file), "--algorithm", "ppo"
    )
    assert "must have ENV, such as CartPole-v1, or --config FILE, got neither" in refused("train")
    assert "expected a plain file, got none" in refused(
        "train", "--config", str(tmp_path / "gone.toml")
    )
    assert "expected a file that ends in .json or .toml, got '.yaml'" in refused(
        "train", "--config", str(tmp_path / "x.yaml")
    )
    assert "--seeds: expected at least 1, got 0" in refused("train", "CartPole-v1", "--seeds", "0")
    assert "--seeds: expected a whole number, got 'x'" in refused(
        "train", "CartPole-v1", "--seeds", "x"
    )
    assert "--jobs: expected at least 1" in refused(
        "train", "CartPole-v1", "--seeds", "2", "--jobs", "0"
    )


# -------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "expected JSON"), ('{"threads": {"value": 2}}', "why"), ("3", "expected a JSON object")],
)
def test_a_wrong_record_of_choices_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_choices(tmp_path / "made.json")
    assert "made.json" in str(error.value)


@pytest.mark.thorough
def test_seeds_are_runs_with_one_summary(tmp_path: Path) -> None:
    words = [
        "train",
        "CartPole-v1",
        *TINY,
        "--on",
        "serial",
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--seed",
        "5",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", *words, "--out", str(tmp_path / "all")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trials = tmp_path / "all" / "trials"
    runs = {name: RunDirectory.open(trials / name) for name in ("seed_5", "seed_6")}
    assert [run.program.schedule.seed for run in runs.values()] == [5, 6]
    history = found(tmp_path / "all").history
    means = [run.summary()["evaluation"]["mean"] for run in runs.values()]  # type: ignore[index]
    assert {one.name: one.score for one in history} == dict(zip(runs, means, strict=True))
    assert "(95 % interval of the mean) over 2 seeds" in done.stdout
    chosen = json.loads((tmp_path / "all" / "choices.json").read_text())
    assert set(chosen) == {"precision", "threads"} and all(one["why"] for one in chosen.values())
    for run in runs.values():
        kept = run.run["choices"]
        assert {name: kept[name] for name in chosen} == chosen and "forward" in kept, (
            "what was chosen once for all of them"
        )


@pytest.mark.thorough
def test_an_interrupt_saves_all_of_them(tmp_path: Path, deadline: Any) -> None:
    words = [
        "train",
        "CartPole-v1",
        "--on",
        "serial",
        "--seeds",
        "3",
        "--jobs",
        "2",
        "--steps",
        "100M",
        "--evaluate-episodes",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *words, "--out", str(tmp_path / "all")],
        stdout=subprocess.PIPE,
        text=True,
    )
    trials = tmp_path / "all" / "trials"
    files = [trials / f"seed_{seed}" / "metrics.jsonl" for seed in range(2)]
    try:
        deadline(
            lambda: all(file.is_file() and file.stat().st_size for file in files),
            120.0,
            "both runs",
        )
        os.kill(process.pid, signal.SIGINT)  # to the one process: it tells the others
        text = process.communicate(timeout=120)[0]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, text
    for file in files:
        summary = RunDirectory.open(file.parent).summary()
        assert summary is not None and summary["status"] == "interrupted"
    assert not (trials / "seed_2").exists(), "what had not begun does not begin"


@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 20_000 + " = 1", "[a" + ' . "a"' * 20_000 + "]", "x = {a" + ".'b'" * 64 + "=1}"],
)
def test_a_key_of_many_parts_is_refused_at_once(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "deep.toml").write_text(f"# a line\n{text}\n")
    began = time.monotonic()
    with pytest.raises(ValueError, match="line 2 has a key of more than 64 parts"):
        read_config(file)
    assert time.monotonic() - began < 5.0  # tomllib takes 18 s for 20,000 parts


def test_many_dots_that_are_no_key_are_read() -> None:
    text = f"{'.'.join('a' * 64)} = 1\nlist = [{'0.5, ' * 5_000}]\ntext = '{'a, b. ' * 5_000}'\n"
    found = parse_toml(text.encode(), "file")
    assert len(found["list"]) == 5_000 and len(found["text"]) == 30_000
