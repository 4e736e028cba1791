"""``eq.train`` trains, shows the run and returns its result; ``eq.start`` is an iterator that says
so if it is dropped.
"""

from __future__ import annotations

import functools
import gc
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest

import equipoise as eq
from equipoise.algorithms import DQN, PPO
from equipoise.api import NothingToDo, training
from equipoise.errors import WorkerFailed
from equipoise.record.directory import RunDirectory
from equipoise.types import learning


def gamma(made: Any) -> float:
    return cast(float, cast(Any, learning(made)["main"].algorithm).gamma)


# ------------------------------------------------------------------------------------------- result


def test_a_result_is_one_line_and_has_what_the_run_has(trained: eq.Result) -> None:
    assert str(trained) == (
        f"completed: 2,048 steps, return {trained.return_mean:.1f}, {trained.directory}"
    )
    assert repr(trained) == f"<Result {trained}>"
    assert trained.status == "completed" == trained.summary["status"] and trained.steps == 2048
    html = trained._repr_html_()
    assert html.startswith("<table>") and "<svg" in html and "2,048" in html
    rows = trained.metrics
    assert rows[-1]["env_steps"] == 2048 and "metrics/entropy" in rows[-1]
    assert all(not isinstance(value, dict | list) for row in rows for value in row.values())


def test_metrics_are_a_data_frame_if_pandas_is_there(
    trained: eq.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pandas:
        DataFrame = tuple
        __spec__ = object()

    monkeypatch.setitem(sys.modules, "pandas", cast(Any, Pandas))
    assert isinstance(trained.metrics, tuple) and trained.metrics[0]["env_steps"]


def test_a_result_resumes_in_its_directory(small: dict[str, Any]) -> None:
    first = eq.train("CartPole-v1", **small)
    more = first.resume(steps=4_096, progress=False)
    assert more.steps == 4096 and more.directory == first.directory and first.steps == 2048
    with pytest.raises(NothingToDo):
        more.resume(progress=False)
    with pytest.raises(TypeError, match="unknown option 'stepps'; did you mean 'steps'"):
        more.resume(**cast(Any, {"stepps": 1}))
    again = eq.train("CartPole-v1", or_resume=True, **{**small, "steps": 4_096})
    assert again.steps == 4096, "a run that is complete is its own result"


def test_progress_false_is_silent_and_true_is_lines(
    small: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    eq.train("CartPole-v1", **small)
    assert capfd.readouterr() == ("", "")
    eq.train("CartPole-v1", **{**small, "out": tmp_path / "b", "progress": True})
    said = capfd.readouterr().out
    assert "Completed: all steps are done." in said and "100 %" in said


# ---------------------------------------------------------------------------------- early endings


class Stops(eq.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_report(self, report: Any) -> None:
        if report.env_steps:
            raise self.error


def test_ctrl_c_saves_the_run_and_is_raised_again(small: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        eq.train("CartPole-v1", callbacks=[Stops(KeyboardInterrupt())], **{**small, "steps": 10**8})
    (note,) = caught.value.__notes__
    assert note == f"The run is saved; go on with eq.resume({str(small['out'])!r})."
    assert (RunDirectory.open(small["out"]).summary() or {})["status"] == "interrupted"
    steps = RunDirectory.open(small["out"]).whole_checkpoint().meta["env_steps"]
    assert eq.resume(small["out"], steps=steps + 1024, progress=False).status == "completed"


@pytest.mark.thorough
def test_a_worker_that_fails_is_raised(small: dict[str, Any]) -> None:
    with pytest.raises(WorkerFailed) as caught:
        eq.train(
            "tests.envs.faulty:Faulty",
            env_kwargs={"how": "nan", "every": 20},
            **{**small, "on": "process", "steps": 100_000},
        )
    assert str(small["out"]) in caught.value.__notes__[0]


def test_a_run_that_is_never_iterated_warns_when_it_is_dropped(small: dict[str, Any]) -> None:
    del small["progress"]
    run = eq.start("CartPole-v1", **small)
    with pytest.warns(RuntimeWarning, match=r"was never iterated, so it has trained nothing; tr"):
        del run  # nothing else holds it, so no collection of garbage is needed


@pytest.mark.parametrize("how", ["closed", "entered", "iterated"])
def test_a_run_that_was_closed_or_iterated_does_not(how: str, small: dict[str, Any]) -> None:
    del small["progress"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = eq.start("CartPole-v1", **small)
        if how == "entered":
            with run:
                pass
        elif how == "iterated":
            next(run)
        run.close()
        assert list(run) == []
        del run
        gc.collect()


@pytest.mark.thorough
def test_at_the_end_of_a_script_it_is_told(tmp_path: Path) -> None:
    code = (
        "import equipoise as eq\n"
        "used = eq.start('CartPole-v1', on='serial', out='used'); next(used)\n"
        "left = eq.start('CartPole-v1', on='serial', out='left')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "the run in left was never iterated" in done.stderr and "in used" not in done.stderr


# -------------------------------------------------------------------------------- algorithms, envs


def test_fields_that_an_instance_is_given_win_and_others_are_the_recipes() -> None:
    plain = learning(eq.program("CartPole-v1", "ppo"))["main"]
    default = PPO()
    tuned = [
        name
        for name in ("gamma", "lambda_", "clip", "entropy", "epochs", "minibatches")
        if getattr(plain.algorithm, name) != getattr(default, name)
    ]
    assert tuned, "the recipe differs from the defaults"
    made = learning(eq.program("CartPole-v1", PPO(gamma=0.5)))["main"]
    assert cast(Any, made.algorithm).gamma == 0.5
    assert all(
        getattr(made.algorithm, key) == getattr(plain.algorithm, key)
        for key in tuned
        if key != "gamma"
    )
    name = tuned[0]
    given = PPO(**{name: getattr(default, name)})
    made = learning(eq.program("CartPole-v1", given))["main"]
    assert getattr(made.algorithm, name) == getattr(default, name), (
        "a default that is written wins over the recipe also"
    )


def test_a_class_is_its_name() -> None:
    assert eq.program("CartPole-v1", DQN) == eq.program("CartPole-v1", "dqn")
    assert eq.program("CartPole-v1", eq.algorithms.PPO) == eq.program("CartPole-v1", "ppo")
    assert eq.program("CartPole-v1", PPO()) == eq.program("CartPole-v1", "ppo")


@pytest.mark.parametrize("name", dir(eq.algorithms))
def test_every_algorithm_is_an_object(name: str) -> None:
    """A whole instance, as ``dataclasses.replace`` makes one, is read back field by field."""
    cls = getattr(eq.algorithms, name)
    env = "sort" if cls.needs_task else "Pendulum-v1" if name in ("SAC", "TQC") else "CartPole-v1"
    if cls.needs_dataset:
        pytest.skip("needs a data set")
    made = learning(eq.program(env, cls(epochs=1)))["main"]
    assert type(made.algorithm) is cls


def test_what_is_no_algorithm_is_refused() -> None:
    wrong: Any
    for wrong in (3, dict, object()):
        with pytest.raises(TypeError, match="algorithm: must be a name such as 'ppo', or a class"):
            eq.program("CartPole-v1", wrong)
    with pytest.raises(ValueError, match=r"algorithm.gamma: must be given once, got 0.5 by algor"):
        eq.program("CartPole-v1", PPO(gamma=0.5), settings={"algorithm.gamma": 0.6})
    with pytest.raises(AttributeError, match="no attribute 'PP0'; it has A2C"):
        _ = getattr(eq.algorithms, "PP0")  # noqa: B009  # mypy finds it written plainly


class Local(gymnasium.Env[Any, Any]):
    """An env class at the top of a module."""


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def test_an_env_is_an_id_a_class_or_a_function() -> None:
    assert eq.program(Local).env.target == f"{__name__}:Local"
    assert eq.program(make_env).env.target == f"{__name__}:make_env"
    made = eq.program("CartPole-v1", env_kwargs={"max_episode_steps": 9})
    assert made.env.kwargs == {"max_episode_steps": 9}


def test_what_makes_no_env_is_refused_with_the_fix() -> None:
    class Inner(Local): ...

    env = make_env()
    cases: list[tuple[Any, type[Exception], str]] = [
        (env, TypeError, r"env: must be what makes an env.*its class, or a function.*env_kwargs"),
        (gymnasium.spec("CartPole-v1"), TypeError, "give 'CartPole-v1', and its arguments"),
        (lambda: env, ValueError, "must be at the top of a module.*define it with 'def'"),
        (Inner, ValueError, "must be at the top of a module"),
        (functools.partial(make_env), TypeError, "define a function that calls it"),
        (7, TypeError, "must be a function or a class that workers import by its name, got 7"),
    ]
    for wrong, kind, said in cases:
        with pytest.raises(kind, match=said):
            eq.program(wrong)
    env.close()
    with pytest.raises(TypeError, match="must have an env, such as 'CartPole-v1', or a task"):
        eq.program()
    with pytest.raises(TypeError, match="resume='runs/x': must stand without env and algorithm"):
        eq.start("CartPole-v1", resume="runs/x")


def test_an_object_that_its_name_does_not_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_env
    monkeypatch.setitem(globals(), "make_env", lambda: None)
    with pytest.raises(ValueError, match="got another object of that name"):
        eq.program(made)


# --------------------------------------------------------------------------------------------- text


def judge(completions: list[str], **_: object) -> list[float]:
    return [float(len(one)) for one in completions]


def test_a_task_is_text_and_its_reward_a_function() -> None:
    made = eq.program(task="sort", reward=judge)
    assert cast(Any, made.source).reward == f"{__name__}:judge"
    assert type(learning(made)["main"].algorithm).__name__ == "GRPO"
    both = eq.program(task="sort", algorithm="rloo", reward=[judge, "my.rewards:length"])
    assert cast(Any, both.source).reward == f"{__name__}:judge,my.rewards:length"
    with pytest.raises(TypeError, match="must have an env or a task, got 'sort' and task='sort'"):
        eq.program("sort", task="sort")
    with pytest.raises(ValueError, match="reward: must be at the top of a module"):
        eq.program(task="sort", reward=lambda **_: [0.0])


def test_a_reward_of_a_script_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "__module__", "__main__")
    with pytest.raises(ValueError, match="put it into a file such as rewards.py, and write 'from"):
        eq.program(task="sort", reward=judge)


@pytest.mark.thorough
def test_text_trains(small: dict[str, Any]) -> None:
    result = eq.train(task="sort", reward=judge, model="tiny", **{**small, "steps": 256})
    assert result.status == "completed"


# --------------------------------------------------------------------------------------- mistakes


def test_an_unknown_option_is_answered_with_the_nearest_of_all() -> None:
    for wrong, near in (("outt", "out"), ("trusted", "trust"), ("actor", "actors")):
        with pytest.raises(TypeError, match=f"unknown option {wrong!r}; did you mean '{near}'"):
            eq.train("CartPole-v1", **cast(Any, {wrong: 1}))


def test_what_python_takes_apart_is_what_the_types_say() -> None:
    assert {"out", "on", "callbacks", "trust"} <= {*training.OF_ORDER}
    from equipoise.api.options import ResumeOptions

    named = ResumeOptions.__annotations__.keys()
    assert {*training.OF_RESUME} <= named


@pytest.mark.parametrize(
    "change",
    [{"info": 3}, {"metrics": [1]}, {"evaluation": 3}, {"evaluation": {}}, {"return_mean": "x"}],
    ids=str,
)
def test_a_report_of_another_form_is_named_by_its_line(
    change: dict[str, Any], trained: eq.Result, tmp_path: Path
) -> None:
    shutil.copytree(trained.directory, copied := tmp_path / "copied")
    result = eq.Result(directory=copied, summary=trained.summary)
    lines = (file := copied / "metrics.jsonl").read_text().splitlines()
    file.write_text("\n".join([json.dumps(json.loads(lines[0]) | change), *lines[1:], ""]))
    for read in (lambda: result.metrics, result._repr_html_):
        with pytest.raises(ValueError, match=rf"metrics\.jsonl, line 1: {next(iter(change))}"):
            read()


def test_a_report_without_tables_is_a_row(trained: eq.Result, tmp_path: Path) -> None:
    shutil.copytree(trained.directory, copied := tmp_path / "copied")
    result = eq.Result(directory=copied, summary=trained.summary)
    bare = {"env_steps": 7, "updates": 1, "final": False}
    (copied / "metrics.jsonl").write_text(json.dumps(bare) + "\n")
    assert next(iter(result.metrics)) == bare | {"evaluation": None}
    assert "return over" not in result._repr_html_()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"episodes": 1.5}, "episodes: expected a whole number, got 1.5"),
        ({"episodes": None}, "episodes: expected a whole number, got None"),
        ({"episodes": 0}, "episodes: expected at least 1, got 0"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
        ({"seed": None}, "seed: expected a whole number, got None"),
        ({"seed": 2**70}, "seed: .*the largest is"),
        *(({name: "no"}, f"{name}: must be True") for name in ("deterministic", "best", "video")),
    ],
    ids=str,
)
def test_odd_arguments_of_an_evaluation_are_named(
    given: dict[str, Any], said: str, trained: eq.Result
) -> None:
    for ask in (trained.evaluate, trained.load):
        if not {"episodes", "deterministic", "video"} & given.keys() or ask == trained.evaluate:
            with pytest.raises((TypeError, ValueError), match=said):
                ask(**given)
