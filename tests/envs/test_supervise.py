"""``supervise``: an env that ends, crashes, hangs, dawdles or prints is a finding, and its process
is gone.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise import cores
from equipoise.envs.check import places
from equipoise.envs.check import report as names
from equipoise.envs.check import supervise as supervising
from equipoise.envs.check.check import check_env
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.places import Frame, env_frame
from equipoise.envs.check.report import Report
from equipoise.envs.check.supervise import Progress, supervise
from equipoise.types import EnvFactory

DEADLY = "tests.envs.deadly"
SITE = "/usr/lib/python3/site-packages"
ROOT = Path(__file__).parents[2]
LATER = (names.AGAIN, names.BESIDE, names.ANEW)


def checked(name: str, seconds: float = 30.0, steps: int = 60, **kwargs: Any) -> Report:
    target = name if ":" in name else f"{DEADLY}:{name}"
    return supervise(EnvFactory(target=target, kwargs=kwargs), steps=steps, seconds=seconds)


def only(report: Report, severity: str = "error") -> Finding:
    (finding,) = (finding for finding in report.findings if finding.severity == severity)
    return finding


@pytest.mark.parametrize(
    ("name", "what", "where", "seen"),
    [
        (
            "ExitsAtSeven",
            "step() ends its process",
            "step 7 (the first walk)",
            "exited with code 3 at tests/envs/deadly.py:",
        ),
        (
            "Crashes",
            "step() crashes its process",
            "step 7 (the first walk)",
            "killed by SIGSEGV at tests/envs/deadly.py:",
        ),
        (
            "Killed",
            "reset(): its process is killed",
            "reset(seed) (the first walk)",
            "killed by SIGKILL, by the env itself",
        ),
    ],
)
def test_a_death_names_the_call_and_the_line(name: str, what: str, where: str, seen: str) -> None:
    report = checked(name)
    finding = only(report)
    assert (finding.what, finding.where) == (what, where)
    assert seen in finding.seen and "third such death" in finding.cost
    first = f"{names.FIRST} from step 7 on" if "step" in what else names.FIRST
    assert (report.left_out, report.why) == ((first, *LATER), names.DIED)
    assert report.facts["observation"] == "Box (3,) float32"
    if "tests/envs" in seen:
        line = finding.seen.partition("deadly.py:")[2].partition(",")[0]
        assert "os._exit(3)" in deadly(line) or "string_at(0)" in deadly(line)


def deadly(line: str) -> str:
    return (Path(__file__).with_name("deadly.py")).read_text().splitlines()[int(line) - 1]


def test_the_last_words_of_a_process_that_crashed() -> None:
    report = checked("Crashes")
    assert "the last line it printed: 'about to read from nowhere'" in only(report).seen
    assert only(report, "note").what == "the env prints"


def test_a_constructor_that_ends_its_process() -> None:
    report = checked("DiesWhenMade")
    finding = only(report)
    assert (finding.what, finding.where) == ("the constructor ends its process", names.MAKING)
    assert "exited with code 0 at tests/envs/deadly.py" in finding.seen
    assert (report.left_out, report.why) == ((names.ALL,), names.DIED)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "call", "line"),
    [("HangsInReset", "reset", "time.sleep(60)"), ("HangsInStep", "step", "pass")],
)
def test_a_call_that_does_not_return(name: str, call: str, line: str) -> None:
    """HangsInStep is deaf to SIGTERM, too; ``nothing_left_behind`` looks for its process."""
    began = time.monotonic()
    report = checked(name, seconds=2.0)
    assert time.monotonic() - began < 20
    finding = only(report)
    assert finding.what == f"{call}() does not return" and "none in " in finding.seen
    at = finding.seen.partition("deadly.py:")[2].partition(",")[0]
    assert deadly(at).strip() in (line, "while True:")
    assert report.why == names.HUNG and report.left_out[-1] == names.ANEW


@pytest.mark.thorough
def test_a_slow_env_is_stepped_less_often_and_the_report_says_so() -> None:
    report = checked("Slow", seconds=3.0, steps=1500)
    assert report.ok and report.findings == ()
    first, rest = report.left_out
    steps = int(first.removeprefix(f"{names.FIRST} from step ").removesuffix(" on"))
    assert 1 < steps < 80  # 0.4 of 2.7 s, at 0.02 s
    assert (
        rest.startswith("the walks after the first one from step ") and report.why == names.TIME_UP
    )
    assert "bit for bit (" in report.facts["seeds"]


@pytest.mark.thorough
def test_a_call_that_is_merely_slow_does_not_hang() -> None:
    """The first of several ends of 0.7 s is under way when the second that the
    check has is over.
    """
    report = checked("SlowToClose", seconds=1.0)
    assert report.findings == () and report.facts["observation"] == "Box (3,) float32"


def test_in_this_process_the_time_is_kept_between_calls() -> None:
    report = check_env(EnvFactory(target=f"{DEADLY}:Slow", kwargs={"step_s": 0.002}), seconds=0.8)
    assert (
        report.ok
        and report.left_out[0].startswith(f"{names.FIRST} from step ")
        and report.why == names.TIME_UP
    )


@pytest.mark.thorough
def test_where_the_time_is_short_a_reset_is_tried_early() -> None:
    """No episode ends, and without the hurry the first reset without a seed would come before step
    1200.
    """
    report = check_env(EnvFactory(target=f"{DEADLY}:SlowAndUnseeded"), seconds=4.0)
    finding = only(report)
    assert finding.what == "reset() without a seed takes a new generator"
    assert 1 < int(finding.where.removeprefix("reset() before step ")) < 1200


def test_what_an_env_prints_is_counted() -> None:
    report = checked("Prints")
    note = only(report, "note")
    assert note.what == "the env prints" and "the first: 'stepping " in note.seen
    assert int(note.seen.partition("got ")[2].partition(" ")[0]) == 5 * 60  # five walks of 60 steps
    assert report.ok and report.left_out == ()


def test_a_report_from_a_child_is_the_one_made_here() -> None:
    factory = EnvFactory(target="tests.envs.planted:NotFinite")
    ours, childs = check_env(factory, steps=60), supervise(factory, steps=60)
    assert childs.findings == ours.findings and childs.facts == ours.facts and not childs.ok
    assert childs.step_s is not None and childs.step_s.count == 60


@pytest.mark.parametrize(
    ("name", "what", "where", "seen"),
    [
        (
            "DoubtsWhenMade",
            "the env cannot be made: AssertionError",
            "the constructor",
            "assert boards == 2",
        ),
        (
            "RaisesWhenMade",
            "the env cannot be made: ValueError",
            "the constructor",
            "of that size (tests/envs/deadly.py:",
        ),
        ("Quits", "step() raises SystemExit", "step 1", "enough (tests/envs/deadly.py:"),
        (
            "tests.envs.planted:RaisesAtSeven",
            "step() raises ZeroDivisionError",
            "step 7",
            "in RaisesAtSeven.step)",
        ),
    ],
)
def test_an_exception_names_its_line(name: str, what: str, where: str, seen: str) -> None:
    report = checked(name)
    finding = only(report)
    assert (finding.what, finding.where) == (what, where) and seen in finding.seen
    assert report.why == names.BROKEN


def test_the_line_is_the_envs_own() -> None:
    """Innermost last: the env, what it calls, and machinery that calls back."""
    env, helper, package = (
        Frame("/home/me/envs/a.py", 1, "f"),
        Frame("/home/me/help.py", 2, "g"),
        Frame(f"{SITE}/b/c.py", 3, "h"),
    )
    machinery = [
        Frame(f"{places.GYMNASIUM}/core.py", 4, "i"),
        Frame(f"{places.OURS}/envs/loop.py", 5, "j"),
        Frame("<string>", 6, "k"),
    ]
    frames = [env, helper, package, *machinery]
    assert env_frame(frames, "/home/me/envs") is env
    assert env_frame(frames, f"{SITE}/b") is package
    assert env_frame(frames) is helper
    assert env_frame(frames[2:]) is package
    assert env_frame(machinery) is None
    toy = Frame(f"{places.TOYS}/catch.py", 7, "l")
    classic = Frame(f"{places.GYMNASIUM}/envs/classic_control/cartpole.py", 8, "m")
    assert env_frame([toy]) is toy and env_frame([classic, *machinery]) is classic


def test_a_dump_of_machinery_names_its_innermost_line() -> None:
    head = "Current thread 0x1 (most recent call first):"
    library, env = (
        f'  File "{places.STDLIB}/selectors.py", line 415 in select',
        '  File "/home/me/a.py", line 3 in step',
    )
    assert supervising.at_line(supervising.State()) == ""
    assert (
        supervising.at_line(supervising.State(stack=[head, library, env]))
        == " at /home/me/a.py:3, in step"
    )
    newest = supervising.State(stack=["Fatal error", head, env, head, library])
    assert supervising.at_line(newest).endswith("/selectors.py:415, in select")


def test_ctrl_c_is_told_also_where_nothing_is_left_out() -> None:
    whole = Report(target="a:b", findings=(), facts={})
    state = supervising.State(report=whole.json())
    assert (
        supervising.finished(EnvFactory(target="a:b"), state, names.INTERRUPTED).why
        == names.INTERRUPTED
    )
    assert supervising.finished(EnvFactory(target="a:b"), state, names.TIME_UP).why == ""


def test_a_line_without_an_end_is_read_in_parts() -> None:
    taken: list[bytes] = []
    supervising.reading(io.BytesIO(b"a" * 10 + b"\nb"), taken.append, 4).join()
    assert taken == [b"aaaa", b"aaaa", b"aa\n", b"b"]


def test_a_crash_when_the_env_is_closed_comes_after_all_walks() -> None:
    report = checked("CrashesWhenClosed")
    finding = only(report)
    assert (finding.what, finding.where) == ("close() crashes its process", names.CLOSING)
    assert report.left_out == () and report.facts["seeds"].endswith("bit for bit")


def test_a_long_message_is_cut() -> None:
    finding = only(check_env(EnvFactory(target=f"{DEADLY}:RaisesAtLength")))
    assert len(finding.seen) < 600 and " ... (tests/envs/deadly.py:" in finding.seen


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError", 1),
        ("\ndef make(:\n", "SyntaxError", 2),
    ],
)
def test_a_module_that_cannot_be_imported(
    text: str, what: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"broken_{what}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    finding = only(check_env(EnvFactory(target=f"broken_{what}:make")))
    assert (
        finding.what == f"the env cannot be made: {what}"
        and f"broken_{what}.py:{line}, in " in finding.seen
    )


def test_an_exception_when_the_env_is_closed() -> None:
    note = only(checked("RaisesWhenClosed"), "note")
    assert note.what == "close() raises OSError" and "RaisesWhenClosed.close)" in note.seen


def test_what_make_refuses_is_raised_here() -> None:
    with pytest.raises(ValueError, match="did you mean 'CartPole-v1'") as refused:
        checked("gymnasium:CartPol-v1")
    assert "Traceback" in refused.value.__notes__[0]
    with pytest.raises(ValueError, match="expected a number above 0, got 0"):
        checked("Slow", seconds=0)
    with pytest.raises(ValueError, match="expected a number above 0, got inf"):
        checked("Slow", seconds=float("inf"))


def test_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Progress] = []
    factory = EnvFactory(target=f"{DEADLY}:Slow", kwargs={"step_s": 0.002})
    supervise(factory, steps=60, seconds=30, show=shown.append)
    assert {names.FIRST, names.AGAIN, names.BESIDE} <= {one.probe for one in shown}
    walking = [one for one in shown if one.probe == names.FIRST and one.where.startswith("step ")]
    assert walking and walking[0].steps == 60 and 0 <= walking[0].spent_s < 30


def test_a_process_that_the_env_started_is_ended_too(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    file.touch()
    checked("LeavesAChild", file=str(file))


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.findings and progress.where.startswith("step "):
            raise KeyboardInterrupt

    factory = EnvFactory(target=f"{DEADLY}:ReturnsLists")
    report = supervise(factory, steps=1500, seconds=60, show=interrupt)
    assert only(report, "note").what == "obs is no numpy array"
    assert report.why == names.INTERRUPTED
    assert (
        report.left_out[0].startswith(f"{names.FIRST} from step ") and report.left_out[1:] == LATER
    )


def test_a_child_ends_with_its_parent(tmp_path: Path, deadline: Any) -> None:
    """The parent is killed, and the env hangs."""
    file = tmp_path / "pid"
    code = (
        "from equipoise.envs.check.supervise import supervise\nfrom equipoise.types import "
        "EnvFactory\n"
        f"supervise(EnvFactory(target={DEADLY + ':SaysItsPid'!r}, kwargs={{'file': "
        f"{str(file)!r}}}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        deadline(lambda: file.exists() and file.read_text(), seconds=30, what="the env")
    finally:
        parent.kill()
        parent.wait()
    deadline(lambda: not alive(int(file.read_text())), what="the child to end")


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_child_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "START", "import time; time.sleep(60)")
    monkeypatch.setattr(supervising, "START_S", 0.2)
    with pytest.raises(OSError, match="to start within 0 s, got nothing from it"):
        checked("Slow")


@pytest.mark.parametrize("busy_s", [0.0, 3.0])
def test_the_time_that_the_machine_gave_no_core_is_not_the_envs(
    busy_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for a core does not hang, and its time is not up."""
    began = time.monotonic()
    monkeypatch.setattr(cores, "waited_s", lambda pid: min(time.monotonic() - began, busy_s))
    state = supervising.State(ready_at=began, where="reset()", since=began)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            why = supervising.watch(child, state, 0.2, lambda progress: None, lambda text: None)
            assert why == names.TIME_UP and time.monotonic() - began > busy_s + 0.2
            state.since -= supervising.HANG_S - 1e-6 if not busy_s else 0.0
            assert bool(supervising.hang(state)) == (not busy_s)
        finally:
            child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's scheduler statistics")
def test_a_process_that_shares_its_core_waited_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}])\nprint(flush=True)\nwhile True: pass"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for one in both:
            assert one.stdout is not None and one.stdout.readline()
        until = time.monotonic() + 60.0
        while min(cores.waited_s(one.pid) for one in both) < 0.05:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        for one in both:
            one.kill()
            with one:
                pass
    assert cores.waited_s(both[0].pid) == 0.0, "it is no more"
