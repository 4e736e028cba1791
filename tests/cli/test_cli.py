"""The command line against an api that only notes what it is asked for."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import equipoise
from equipoise.cli import app
from equipoise.errors import WorkerFailed
from equipoise.record.report import Evaluating
from tests.cli.samples import evaluation, program, report, summary

ROOT = Path(__file__).parents[2]


class NothingToDo(ValueError):
    """As the api's."""


class FakeRun:
    """Three reports, then whatever ``end`` says."""

    def __init__(self, end=None, status="completed", leaves_summary=True):
        self.program, self.directory, self.summary = program(), Path("runs/fake"), None
        self.on, self.changes = "process", {}
        self.end, self.status, self.leaves_summary, self.closed = end, status, leaves_summary, False
        self.left = [report(wall_s=0.1), report(wall_s=9.0), report(wall_s=10.0, final=True)]

    def __iter__(self):
        return self

    def __next__(self):
        if self.left:
            return self.left.pop(0)
        self._finish()
        raise self.end if self.end is not None else StopIteration

    def _finish(self):
        self.summary = summary(status=self.status) if self.leaves_summary else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True
        self._finish()


@pytest.fixture
def api(monkeypatch):
    # what a busy machine would decide
    monkeypatch.setattr("equipoise.tuning.sizing.measured", lambda program: None)
    fake = SimpleNamespace(asked={}, run=FakeRun(), refuse=None, made=program())

    def made_program(env, algorithm, *, settings, recipe, **fields):
        fake.asked |= {
            "env": env,
            "algorithm": algorithm,
            "settings": settings,
            "recipe": recipe,
            "fields": fields,
        }
        if fake.refuse is not None:
            raise fake.refuse
        return fake.made

    def run_of(made, order):
        fake.asked |= {
            "program": made,
            "on": order.on,
            "out": order.out,
            "init_from": order.init_from,
        }
        fake.asked |= {
            "init_what": order.init_what,
            "tensorboard": order.tensorboard,
            "report_to": order.report_to,
        }
        fake.asked |= {"cluster": order.cluster, "auto": order.asked}
        return fake.run

    def resume(directory, options, *, tell):
        ours = ("on", "cluster", "settings", "callbacks", "trust")
        fields = {name: value for name, value in options.items() if name not in ours}
        fake.asked |= {"directory": directory, "fields": fields}
        fake.asked |= {name: options[name] for name in ours[:3]}
        if fake.refuse is not None:
            raise fake.refuse
        return fake.run

    def evaluate(directory, asked, tell=None):
        fake.tell = tell
        fake.asked |= {"directory": directory, "options": asdict(asked)}
        if fake.refuse is not None:
            raise fake.refuse
        return evaluation()

    def evaluated(*args, **options):
        return fake.evaluate(*args, **options)

    fake.program, fake.evaluate, fake.NothingToDo = made_program, evaluate, NothingToDo
    from equipoise.api import evaluating, training

    # "runs/old" is no run
    monkeypatch.setattr(training, "like_its_source", lambda program, *_: program)
    monkeypatch.setattr(training, "run_of", run_of)
    monkeypatch.setattr(training, "resumed", resume)
    monkeypatch.setattr(evaluating, "evaluated", evaluated)
    monkeypatch.setattr(equipoise, "api", fake, raising=False)
    return fake


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), prog_name="equipoise")


# -------------------------------------------------------------------------------------------- train


def test_without_options_the_api_is_given_none(api):
    result = run("train", "CartPole-v1")
    assert result.exit_code == 0, result.output
    assert api.asked == {
        "env": "CartPole-v1",
        "algorithm": None,
        "settings": (),
        "recipe": True,
        "fields": {},
        "program": api.made,
        "on": "process",
        "out": None,
        "init_from": None,
        "init_what": "weights",
        "tensorboard": True,
        "report_to": (),
        "cluster": {},
        "auto": [],
    }
    assert api.run.closed


@pytest.mark.parametrize(
    ("options", "where", "value"),
    [
        ("--algorithm impala", "algorithm", "impala"),
        ("--set algorithm.gamma=0.9 --set env.g=1", "settings", ("algorithm.gamma=0.9", "env.g=1")),
        ("--no-recipe", "recipe", False),
        ("--on serial", "on", "serial"),
        (
            "--on ray --address auto --cluster home_actors=0",
            "cluster",
            {"address": "auto", "home_actors": "0"},
        ),
        ("--out some/where", "out", Path("some/where")),
        ("--init-from runs/old", "init_from", Path("runs/old")),
        ("--init-from runs/old --init-what learner", "init_what", "learner"),
        ("--checkpoint-every 10k", "fields", {"checkpoint_every": 10_000}),
        ("--evaluate-every 20k", "fields", {"evaluate_every": 20_000}),
        ("--metrics success,episode/r", "fields", {"metrics": ("success", "episode/r")}),
        ("--no-tensorboard", "tensorboard", False),
        ("--report-to wandb:ring", "report_to", ["wandb:ring"]),
        ("--actors 4", "fields", {"actors": 4}),
        ("--envs-per-actor 8", "fields", {"envs_per_actor": 8}),
        ("--max-lag 0", "fields", {"max_lag": 0}),
        ("--max-lag none", "settings", ("placement.max_lag=none",)),
        ("--unroll 16", "fields", {"unroll": 16}),
        ("--batch 64", "fields", {"batch": 64}),
        ("--steps 500k", "fields", {"steps": 500_000}),
        ("--seed 0", "fields", {"seed": 0}),
        ("--threads 2", "fields", {"threads": 2}),
        ("--threads auto", "fields", {"threads": "auto"}),
        (
            "--threads auto --set placement.actors=auto --action-mask auto",
            "auto",
            ["actors", "threads"],
        ),
        ("--device cuda:1", "fields", {"device": "cuda:1"}),
        ("--stop-at -95", "fields", {"stop_at": -95.0}),
        ("--stop-at 0", "fields", {"stop_at": 0.0}),
        ("--evaluate-episodes 5", "fields", {"evaluate_episodes": 5}),
    ],
)
def test_every_option_of_train_reaches_the_api(api, options, where, value):
    result = run("train", "CartPole-v1", *options.split())
    assert result.exit_code == 0, result.output
    assert api.asked[where] == value
    if where == "fields":
        assert [type(v) for v in api.asked["fields"].values()] == [type(v) for v in value.values()]


def test_a_run_shows_lines_and_then_the_summary(api):
    lines = run("train", "CartPole-v1").stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["0:00", "0:09", "0:10"]
    assert lines[3] == "Completed: all steps are done."
    assert lines[-1].strip() == "equipoise evaluate runs/fake --video"


def test_quiet_shows_the_summary_alone(api):
    for flag in ("--quiet", "-q"):
        api.run = FakeRun()
        assert (
            run("train", "CartPole-v1", flag).stdout.splitlines()[0]
            == "Completed: all steps are done."
        )


def test_ctrl_c_ends_with_130_after_the_summary(api):
    for api.run in (FakeRun(KeyboardInterrupt(), "interrupted"), FakeRun(None, "interrupted")):
        result = run("train", "CartPole-v1")
        assert result.exit_code == 130
        assert "Interrupted: the run up to here is saved." in result.stdout
        assert "equipoise evaluate runs/fake" in result.stdout
        assert "Traceback" not in result.output
        assert api.run.closed


def test_ctrl_c_while_the_view_is_drawn_closes_the_run(api, monkeypatch):
    api.run = FakeRun(None, "interrupted")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.console.terminal.View.update", interrupt)
    result = run("train", "CartPole-v1")
    assert result.exit_code == 130
    assert api.run.closed
    assert "Interrupted" in result.stdout


def test_ctrl_c_before_there_is_anything_to_sum_up(api):
    api.run = FakeRun(KeyboardInterrupt(), leaves_summary=False)
    assert run("train", "CartPole-v1").exit_code == 130


def test_a_worker_that_fails_shows_its_own_traceback_and_ends_with_1(api):
    text = (
        'Traceback (most recent call last):\n  File "env.py", line 3, in '
        "step\nZeroDivisionError: division by zero\n"
    )
    api.run = FakeRun(WorkerFailed("actor 1", "raised", text), "failed")
    result = run("train", "CartPole-v1")
    assert result.exit_code == 1
    assert result.stderr.strip() == f"{text}equipoise train: actor 1 raised"
    assert "Failed: the weights up to here are saved." in result.stdout


def test_a_worker_that_dies_without_a_word(api):
    api.run = FakeRun(WorkerFailed("actor 1", "died of SIGKILL"), leaves_summary=False)
    result = run("train", "CartPole-v1")
    assert (result.exit_code, result.stderr.strip()) == (
        1,
        "equipoise train: actor 1 died of SIGKILL",
    )


@pytest.mark.parametrize("error", [EOFError("the file ended"), RuntimeError("a bug")])
def test_an_unforeseen_error_is_not_taken_for_an_interrupt(api, error, monkeypatch):
    monkeypatch.setattr("equipoise.hints._of_a_user", lambda file: False)
    api.run = FakeRun(error)
    assert run("train", "CartPole-v1").exception is error


def test_an_error_that_nobody_foresaw_keeps_its_traceback(api, monkeypatch):
    monkeypatch.setattr("equipoise.hints._of_a_user", lambda file: False)
    api.run = FakeRun(RuntimeError("a bug"))
    result = run("train", "CartPole-v1")
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.parametrize(
    "error",
    [ValueError("unknown env id 'X'; did you mean 'Y'?"), ImportError("no extra"), OSError("full")],
)
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_what_a_user_can_put_right_is_one_line_and_2(api, command, error):
    api.refuse = error
    result = run(command, "X")
    said = result.stderr.partition(" [equipoise help ")[0].rstrip()
    assert (result.exit_code, said, result.stdout) == (
        2,
        f"equipoise {command}: {error}",
        "",
    )
    debugged = run(command, "X", "--debug")
    assert debugged.exception is error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "train",
            "equipoise train: must have ENV, such as CartPole-v1, or --config FILE, got neither",
        ),
        (
            "train A --actor 2",
            "equipoise train: no such option '--actor'; did you mean '--actors'? See 'equipoise "
            "train --help'.",
        ),
        (
            "train A --maxlag 2",
            "equipoise train: no such option '--maxlag'; did you mean '--max-lag'? See",
        ),
        (
            "train A --norecipe",
            "equipoise train: no such option '--norecipe'; did you mean '--no-recipe'? See",
        ),
        (
            "train A --acting-precision bf16",
            "equipoise train: no such option '--acting-precision'; it is a setting: --set "
            "placement.acting_precision=... See",
        ),
        (
            "train A --inference-workers 2",
            "it is a setting: --set placement.inference_workers=... See 'equipoise train --help'.",
        ),
        (
            "train A --xyzzy",
            "equipoise train: no such option '--xyzzy'. See 'equipoise train --help'.",
        ),
        ("train A -z", "equipoise train: no such option '-z'. See"),
        ("train A B", "equipoise train: got unexpected extra argument"),
        (
            "train A --set algorithm.gamma 0.9",
            "got unexpected extra argument(s) (0.9); did you mean '--set algorithm.gamma=0.9'?",
        ),
        ("help gamma", "no such command or topic 'gamma'; topics: settings, env,"),
        ("help atri", "no such command or topic 'atri'; did you mean 'atari'?"),
        ("help trian", "no such command 'trian'; did you mean 'train'?"),
        (
            "train A --actors two",
            "equipoise train: --actors: expected a whole number or auto, got 'two'",
        ),
        (
            "train A --stop-at high",
            "equipoise train: --stop-at: expected a number or none, got 'high'",
        ),
        (
            "evaluate A --episodes 1.5",
            "equipoise evaluate: --episodes: expected a whole number, got '1.5'",
        ),
        ("train A --seed", "equipoise train: option '--seed' requires an argument."),
        (
            "train A --on proces",
            "--on: expected one of 'serial', 'process', 'ray', got 'proces' (did you mean "
            "'process'?)",
        ),
        (
            "train A --max-lag some",
            "equipoise train: --max-lag: expected a whole number or none, got 'some'",
        ),
        (
            "train A --steps many",
            "--steps: expected a whole number, got 'many' (64, 500k, 1M, 500MiB and 2GB are some)",
        ),
        ("evaluate", "equipoise evaluate: missing argument 'DIR|URL'."),
        (
            "evaluate A --episode 3",
            "equipoise evaluate: no such option '--episode'; did you mean '--episodes'?",
        ),
        (
            "resume A --algorithm ppo",
            "resume: no such option '--algorithm'; it is one of 'train', and a resume keeps it: "
            "'train",
        ),
        ("resume A --stepz 3", "resume: no such option '--stepz'; did you mean '--steps'?"),
        ("trian A", "equipoise: no such command 'trian'; did you mean 'train'? See"),
        (
            "sac A",
            "equipoise: no such command 'sac'; it is an algorithm: 'train ENV --algorithm sac'. "
            "See",
        ),
        (
            "zzz A",
            "equipoise: no such command 'zzz'; valid: algorithms, chaos, check, clips, "
            "collect, completion, doctor,",
        ),
        ("--verson", "equipoise: no such option '--verson'; did you mean '--version'?"),
    ],
)
def test_what_was_typed_wrong_is_one_line_that_names_the_nearest(api, arguments, message):
    result = run(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'?"),
        ("CartPole-v1 --algorithm pppo", "unknown algorithm 'pppo'; did you mean 'ppo'?"),
        (
            "CartPole-v1 --set algorithm.gama=1",
            "unknown setting 'algorithm.gama'; did you mean 'algorithm.gamma'?",
        ),
        ("CartPole-v1 --set algorithm.gamma=x", "algorithm.gamma: expected a number, got 'x'"),
        ("CartPole-v1 --actors 0", "actors: expected at least 1, got 0"),
    ],
)
def test_the_real_api_names_the_nearest_too(arguments, message, tmp_path, monkeypatch):
    pytest.importorskip("equipoise.api")
    monkeypatch.chdir(tmp_path)
    result = run("train", *arguments.split())
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert os.listdir(tmp_path) == []


# ----------------------------------------------------------------------------------------- evaluate


def test_evaluate_prints_the_return(api):
    result = run("evaluate", "runs/x")
    assert result.exit_code == 0
    assert (
        result.stdout
        == "return 487.2 +/- 20.1 over 20 episodes (deterministic policy, weights of step 120,000)\n"  # noqa: E501
    )
    assert api.asked["directory"] == Path("runs/x")
    assert api.asked["options"] == {
        "episodes": 20,
        "deterministic": True,
        "seed": 0,
        "best": False,
        "video": False,
        "settings": {},
        "trust": (),
    }


def test_evaluate_prints_the_return_of_each_policy(api):
    api.evaluate = lambda *_, **__: evaluation(policies={"main": 500.0, "rival": -1.25})
    assert run("evaluate", "runs/x").stdout.splitlines()[1:] == ["  main 500.0", "  rival -1.2"]


def test_every_option_of_evaluate_reaches_the_api(api):
    result = run(
        "evaluate",
        "my runs/x",
        "--episodes",
        "5",
        "--stochastic",
        "--seed",
        "3",
        "--best",
        "--video",
    )
    assert api.asked["options"] == {
        "episodes": 5,
        "deterministic": False,
        "seed": 3,
        "best": True,
        "video": True,
        "settings": {},
        "trust": (),
    }
    assert "(stochastic policy" in result.stdout
    assert "video in 'my runs/x/videos'" in result.stdout


def test_evaluate_says_now_and_then_how_far_it_is_but_not_where_it_is_piped_to(api, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        "equipoise.console.terminal.time", SimpleNamespace(monotonic=lambda: now[0])
    )

    def evaluate(directory, asked, tell):
        for step in range(1, 31):
            now[0] += 0.75
            tell(Evaluating(episodes=step // 10, of=3, steps=100 * step, most=100_000))
        return evaluation()

    api.evaluate = evaluate
    result = run("evaluate", "runs/x")
    assert result.stderr.splitlines() == [
        "0:10  evaluating 1 of 3 episodes, step 1,400 (at most 100,000)",
        "0:21  evaluating 2 of 3 episodes, step 2,800 (at most 100,000)",
    ]
    assert result.stdout.startswith("return 487.2 ") and result.stdout.count("\n") == 1


@pytest.mark.parametrize(("options", "told"), [((), True), (("--quiet",), False), (("-q",), False)])
def test_a_quiet_evaluation_says_nothing_of_it(api, options, told):
    run("evaluate", "runs/x", *options)
    assert (api.tell is not None) == told


# --------------------------------------------------------------------------------------------- help


def test_help_is_for_a_newcomer():
    text = run("train", "--help-all").stdout
    for part in (
        "Usage: equipoise train [OPTIONS] [ENV]\n",
        "Train a policy on ENV",
        "What to learn:",
        "Where it runs:",
        "How long:",
        "What comes out:",
        "Examples:",
        "'equipoise algorithms'",
        "a Gymnasium id such as CartPole-v1",
        "  equipoise train CartPole-v1 --stop-at 475        until it is solved\n",
    ):
        assert part in text, part
    assert max(len(line) for line in text.splitlines()) <= 80
    for option in (
        "--algorithm",
        "--set",
        "--on",
        "--actors",
        "--envs-per-actor",
        "--max-lag",
        "--unroll",
        "--batch",
        "--steps",
        "--seed",
        "--threads",
        "--device",
        "--stop-at",
        "--evaluate-episodes",
        "--quiet",
        "--out",
        "--recipe",
        "--no-recipe",
        "--debug",
    ):
        assert f"{option} " in text or f"{option}\n" in text, option


def test_help_lists_what_is_set_by_key_and_with_an_algorithm_its_settings():
    text = " ".join(run("train", "--help-all").stdout.split())
    assert (
        "Other settings, by --set KEY=VALUE: placement.least_actors" in text
        and "placement.least_actors Fewest actors that act" in text
        and "placement.deadline_s Seconds without work until a worker is replaced" in text
    )
    assert "algorithm.gamma Discount" not in text
    for arguments in (("--algorithm", "dqn", "--help-all"), ("--help-all", "--algorithm=dqn")):
        text = " ".join(run("train", *arguments).stdout.split())
        assert "--gamma X Discount factor (0 to 1; default: 0.99)" in text
        assert "--error VALUE Loss function of the TD error (huber or mse; default: huber)" in text
        assert "replay.alpha Exponent of priorities" in text
    assert "replay.alpha" not in run("train", "--algorithm", "ppo", "--help-all").stdout
    unknown = run("train", "--algorithm", "dqnn", "--help")
    assert unknown.exit_code == 2 and "did you mean 'dqn'?" in unknown.stderr


def test_the_two_names_of_the_episodes_of_an_evaluation_name_each_other():
    assert "'evaluate' has --episodes" in " ".join(run("train", "--help-all").stdout.split())
    assert "'train' has --evaluate-episodes" in " ".join(run("evaluate", "--help").stdout.split())


def test_help_in_general():
    for arguments in ([], ["--help"], ["-h"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "train" in result.stdout
        assert "evaluate" in result.stdout
        assert "Start here:\n  equipoise train CartPole-v1 --stop-at 475\n" in result.stdout
    assert (
        "equipoise evaluate runs/NAME --episodes 100 --stochastic"
        in run("evaluate", "--help").stdout
    )


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"equipoise {equipoise.__version__}\n")


HELP = (
    "import sys; sys.argv = ['equipoise', *{arguments}]; from equipoise.cli import main\ntry: "
    "main()\nfinally: {then}"
)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["evaluate", "--help"], ["check", "--help"], ["--version"]],
)
def test_help_imports_nothing_heavy(arguments):
    heavy = {"torch", "gymnasium", "numpy", "rich", "safetensors"}
    code = HELP.format(
        arguments=arguments, then=f"print('HEAVY', sorted({heavy!r} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.bench
def test_help_answers_within_three_tenths_of_a_second():
    import statistics
    import time

    code = HELP.format(arguments=["--help"], then="pass")
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    assert statistics.median(times) <= 0.3, times


# ------------------------------------------------------------------------------------------- resume


def test_resume_passes_on_what_is_to_change(api):
    api.run.changes = {"steps": [1000, 2000]}
    result = run(
        "resume",
        "runs/old",
        "--steps",
        "2k",
        "--set",
        "algorithm.entropy=0",
        "--on",
        "serial",
        "--quiet",
    )
    assert result.exit_code == 0, result.output
    assert api.asked == {
        "directory": Path("runs/old"),
        "on": "serial",
        "settings": ["algorithm.entropy=0"],
        "fields": {"steps": 2000},
        "cluster": {},
    }
    assert "changed: steps 1000 -> 2000" in result.output


def test_a_resume_has_an_option_for_each_setting_that_it_may_change(api):
    result = run(
        "resume", "runs/old", "--threads", "2", "--evaluate-every", "5k", "--stop-at", "-95"
    )
    assert result.exit_code == 0, result.output
    assert api.asked["fields"] == {"threads": 2, "evaluate_every": 5000, "stop_at": -95.0}
    refused = run("resume", "runs/old", "--actors", "2")
    assert refused.exit_code == 2 and "no such option '--actors'" in refused.stderr


def test_a_resume_that_would_do_nothing_says_so(api):
    api.refuse = NothingToDo("runs/old is complete")
    result = run("resume", "runs/old")
    assert (result.exit_code, result.output) == (0, "runs/old is complete\n")


def test_a_resume_that_cannot_be_says_why(api):
    api.refuse = ValueError("cannot change actors")
    result = run("resume", "runs/old")
    assert (
        result.exit_code == 2
        and "equipoise resume: cannot change actors" in result.output + result.stderr
    )


def test_a_preempted_run_has_an_exit_code_of_its_own(api):
    from equipoise.runtime.session import Preempted

    api.run = FakeRun(end=Preempted(), status="interrupted")
    assert run("train", "CartPole-v1", "--quiet").exit_code == 143
