"""``equipoise check`` as it is typed: what it prints, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise
from equipoise.cli import app
from equipoise.console import checking
from equipoise.console.checking import CheckLine
from equipoise.console.findings import lines
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.report import Report, Times
from equipoise.envs.check.supervise import Progress
from tests.envs.planted import NotFinite

ROOT = Path(__file__).parents[2]
FAULTY = "tests.envs.planted"
DEADLY = "tests.envs.deadly"

NAN = Finding(
    severity="error",
    what="obs/speed is not finite",
    where="step 17",
    seen="expected finite numbers, got nan at [2]",
    cost="One such number reaches the loss.",
    times=1984,
)
LISTS = Finding(
    severity="note",
    what="obs is a list",
    where="reset(seed)",
    seen="got list",
    cost="A conversion.",
)


def run(*arguments):
    return CliRunner().invoke(app, ["check", *arguments, "--steps", "100"], prog_name="equipoise")


def test_a_healthy_env_is_said_to_be_ok_and_what_it_is():
    result = run("CartPole-v1")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:5] == [
        "CartPole-v1: ok",
        "",
        "  observation  Box (4,) float32",
        "  action       Discrete of 2",
        "  autoreset    NEXT_STEP: where terminated is True the return ends; where only truncated "
        "is, the",
    ]
    assert (
        "\n  step         mean " in result.stdout
        and "(100 of them), 2 envs at once\n" in result.stdout
    )
    assert result.stderr == ""


def test_an_error_ends_with_1_and_says_what_where_and_the_cost():
    result = run(f"{FAULTY}:NotFinite")
    assert result.exit_code == 1
    first, _, *finding = result.stdout.splitlines()
    assert first == "tests.envs.planted:NotFinite: 1 error"
    assert finding[0].startswith("error  obs is not finite (") and finding[0].endswith(" times)")
    assert finding[1] == "       step 17: expected finite numbers, got nan at [2]"
    assert finding[2].startswith("       It would reach the loss and from there every weight")


def test_a_note_ends_with_0():
    result = run(f"{FAULTY}:OneForTrue")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "tests.envs.planted:OneForTrue: 1 note"


def test_arguments_and_the_seed_reach_the_env():
    result = run(f"{FAULTY}:ThatAction", "--set", "env.which=one", "--seed", "3")
    assert "there is only one action" in result.stdout
    assert "time limit 7 steps" in " ".join(
        run("CartPole-v1", "--set", "env.max_episode_steps=7").stdout.split()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPol-v1"], "unknown env id 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (
            [f"{FAULTY}:Soun"],
            "unknown env 'Soun' in module 'tests.envs.planted'; did you mean 'Sound'?",
        ),
        (
            ["CartPole-v1", "--set", "env.max_steps=3"],
            "takes no argument 'max_steps' (did you mean 'max_episode_steps'?)",
        ),
        (
            ["CartPole-v1", "--set", "algorithm.gamma=1"],
            "unknown setting 'algorithm.gamma'; settings here are the env's",
        ),
        (["CartPole-v1", "--set", "max_steps"], "setting 'max_steps': expected KEY=VALUE"),
        (["CartPole-v1", "--seed", "two"], "--seed: expected a whole number, got 'two'"),
        (["CartPole-v1", "--seconds", "0"], "seconds: expected a number above 0, got 0"),
        (["CartPole-v1", "--seconds", "-1"], "seconds: expected a number above 0, got -1"),
        (["CartPole-v1", "--seconds", "inf"], "seconds: expected a number above 0, got inf"),
        (["CartPole-v1", "--seconds", "abc"], "--seconds: expected a number, got 'abc'"),
        (["CartPole-v1", "--sed", "2"], "no such option '--sed'; did you mean '--seed'?"),
    ],
)
def test_what_cannot_be_is_one_line_and_2(arguments, message):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_too_few_steps():
    result = CliRunner().invoke(
        app, ["check", "CartPole-v1", "--steps", "2"], prog_name="equipoise"
    )
    assert (result.exit_code, result.stderr) == (
        2,
        "equipoise check: steps: expected at least 10, got 2 [equipoise help env]\n",
    )


def test_it_does_without_torch():
    code = (
        "import sys; sys.argv = ['equipoise', 'check', 'CartPole-v1', '--steps', '20']; from "
        "equipoise.cli import main\n"
    )
    code += "try: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "False"), done.stderr


def test_a_death_of_the_env_is_an_error_and_the_command_lives():
    result = run(f"{DEADLY}:ExitsAtSeven")
    assert (
        result.exit_code == 1 and result.stdout.splitlines()[2] == "error  step() ends its process"
    )
    text = " ".join(result.stdout.split())
    assert "left out the first walk from step 7 on; a fresh env with the same seed;" in text
    assert text.endswith("(its process ended)")


def test_two_agents():
    pytest.importorskip("pettingzoo")
    result = run("tests.envs.games:Duel")
    assert (
        result.exit_code == 0
        and "\n  agent left   Box (2,) float32 -> Discrete of 3\n" in result.stdout
    ), result.output


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_no_process_and_ctrl_c_keeps_the_report(
    number, code, tmp_path, deadline
):
    file = tmp_path / "pid"
    main = "from equipoise.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        main,
        "check",
        f"{DEADLY}:SaysItsPid",
        "--set",
        f"env.file={file}",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            deadline(
                lambda: file.exists() and file.read_text(), seconds=60, what="the env's third step"
            )
            running.send_signal(number)
            out, error = running.communicate(timeout=30)
        finally:
            running.kill()
    assert running.returncode == code
    if number == signal.SIGINT:
        text = " ".join(out.split())
        assert (
            text.startswith(f"{DEADLY}:SaysItsPid: 1 note note obs is no numpy array")
            and error == ""
        )
        assert "left out the first walk from step " in text and text.endswith(
            "the first env seeded again (interrupted)"
        )
    else:
        assert (out, error) == ("", "equipoise check: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


STATE = Progress(
    probe="the first walk",
    where="step 412",
    steps=1500,
    call_s=3.2,
    spent_s=12.4,
    seconds=60.0,
    findings=2,
)


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(checking.time, "monotonic", lambda: now[0])
    line = CheckLine()
    for _ in range(24):  # 12 s
        now[0] += 0.5
        line(STATE)
    line.warn("a \x1b[31mwarning")
    line.clear()
    said = "12 of 60 s  the first walk: step 412 of 1,500 (3 s in it), 2 findings\n"
    assert capsys.readouterr() == ("", said * 2 + "warning: a warning\n")


def test_progress_at_a_terminal_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = CheckLine()
    line(STATE)
    line(STATE)  # too soon
    line.clear()
    line.clear()
    said = capsys.readouterr().err
    assert (
        said
        == "\r\x1b[K12 of 60 s  the first walk: step 412 of 1,500 (3 s in it), 2 findings\r\x1b[K"
    )


def test_the_lines_of_a_report():
    times = Times(mean=2e-5, p50=1.5e-5, p99=0.0025, max=1.25, count=1500)
    facts = {"observation": "Box (3,) float32", "episodes": "word " * 30}
    text = lines(
        Report(
            target="my:env", findings=(NAN, LISTS, LISTS), facts=facts, step_s=times, reset_s=times
        )
    )
    assert text[:8] == [
        "my:env: 1 error, 2 notes",
        "",
        "error  obs/speed is not finite (1,984 times)",
        "       step 17: expected finite numbers, got nan at [2]",
        "       One such number reaches the loss.",
        "",
        "note   obs is a list",
        "       reset(seed): got list",
    ]
    assert text[-2:] == [
        "  step         mean 20 us, p50 15 us, p99 2.5 ms, max 1.25 s (1,500 of them)",
        "  reset        mean 20 us, p50 15 us, p99 2.5 ms, max 1.25 s (1,500 of them)",
    ]
    assert max(map(len, text)) <= 100
    assert [line[:15] for line in text if "word" in line] == ["  episodes     ", " " * 15]


def test_a_report_with_parts_left_out_is_not_called_ok():
    text = lines(
        Report(target="my:env", findings=(), facts={}, left_out=("a", "b"), why="interrupted")
    )
    assert text == [
        "my:env: nothing found in what was looked at",
        "",
        "  left out     a; b (interrupted)",
    ]


def test_from_python():
    assert equipoise.check("CartPole-v1", steps=50).ok
    assert not equipoise.check(f"{FAULTY}:NotFinite", steps=50).ok
    assert (
        equipoise.check("CartPole-v1", settings=["env.max_episode_steps=9"], steps=50)
        .facts["episodes"]
        .endswith("limit 9 steps")
    )
    with pytest.raises(ValueError, match="must be at the top of a module"):
        equipoise.check(lambda size=5: NotFinite())
