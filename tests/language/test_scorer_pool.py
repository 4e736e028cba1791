"""Scoring in processes: what it costs when a function raises, hangs or dies, and what is left of
its process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import RewardsFailed
from equipoise.language.capsule_files import LIMIT
from equipoise.language.scoring import capsules
from equipoise.language.scoring.functions import RewardFunction, Samples, functions
from equipoise.language.scoring.pool import MOST_KILLED, ProcessScorer
from equipoise.language.scoring.replay import replay
from equipoise.language.scoring.scorer import Scored
from equipoise.trust import Untrusted

HERE = "tests.language.wrong_rewards"
WAIT_S = 60.0  # for a process to start, on a machine with other work
Make = Callable[..., ProcessScorer]


def group(*completions: str, **columns: Any) -> Samples:
    count = len(completions)
    return Samples(
        prompts=["?"] * count,
        completions=completions,
        completion_ids=[[0]] * count,
        ended=[True] * count,
        columns=columns,
    )


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ProcessScorer] = []

    def scorer(names: str, **options: Any) -> ProcessScorer:
        made.append(
            ProcessScorer(
                functions(",".join(f"{HERE}:{name}" for name in names.split(","))), **options
            )
        )
        return made[-1]

    yield scorer
    for one in made:
        one.close()


@pytest.fixture
def scores(deadline: Callable[..., None]) -> Callable[..., list[Scored]]:
    """Poll until ``count`` groups are scored."""

    def wait(scorer: ProcessScorer, count: int) -> list[Scored]:
        found: list[Scored] = []

        def enough() -> bool:
            found.extend(scorer.poll())
            return len(found) >= count

        deadline(enough, WAIT_S, f"{count} groups")
        return found

    return wait


def test_several_functions_are_weighted(make: Make, scores: Any) -> None:
    scorer = make("length,later")
    scorer.submit(5, group("a", "abc", bonus=[0.5, None]))
    assert scorer.waiting == 1
    (scored,) = scores(scorer, 1)
    assert (scored.key, scored.reward, scored.error) == (5, [1.5, 3.0], "")
    assert scored.parts == {f"{HERE}:length": [1.0, 3.0], f"{HERE}:later": [0.5, None]}
    assert scorer.waiting == 0


def test_two_processes_share_the_groups_and_load_no_torch(make: Make, scores: Any) -> None:
    scorer = make("torch_is_there", processes=2)
    for key in range(20):
        scorer.submit(key, group("a"))
    scored = scores(scorer, 20)
    assert {one.key for one in scored} == set(range(20)) and {
        tuple(one.reward or ()) for one in scored
    } == {(0.0,)}


def test_a_process_that_does_not_read_blocks_nobody(make: Make, scores: Any, deadline: Any) -> None:
    scorer, large = make("length"), "x" * (8 << 20)  # more than a socket takes
    deadline(lambda: (scorer.poll(), scorer._processes[0].ready)[1], WAIT_S, "the process to start")
    pid = scorer._processes[0]._popen.pid
    os.kill(pid, signal.SIGSTOP)
    scorer.submit(0, group(large))
    assert scorer.poll() == [] and scorer.waiting == 1
    os.kill(pid, signal.SIGCONT)
    assert scores(scorer, 1)[0].reward == [float(len(large))]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("raise", "OSError: no luck"),
        ("nan", "expected a finite number or None, got nan for completion 0"),
        ("short", "expected 2 rewards, one for each completion, got 1"),
        ("exit", "SystemExit: 3"),
        ("kill", "ended, by itself or by the system"),
        ("hang", "took more than 0.2 s for one group"),
        ("hang with a child", "took more than 0.2 s for one group"),
        ("hold the lock", "took more than 0.2 s for one group"),
    ],
)
@pytest.mark.few(8)
@pytest.mark.filterwarnings("ignore:a process of reward functions was killed:RuntimeWarning")
def test_a_failure_costs_its_group_alone(
    bad: str, said: str, make: Make, scores: Any, tmp_path: Path
) -> None:
    scorer = make("obeys", capsules=tmp_path, deadline_s=0.2 if "took" in said else 60.0)
    scorer.submit(0, group(bad, "fine", answer=[1, {"a": [2.5]}]))
    (lost,) = scores(scorer, 1)
    assert lost.reward is None and said in lost.error and f"{HERE}:obeys" in lost.error
    assert lost.capsule is not None and lost.capsule.parent == tmp_path
    kept = json.loads(lost.capsule.read_text())
    assert kept["samples"]["completions"] == [bad, "fine"] and kept["samples"]["columns"] == {
        "answer": [1, {"a": [2.5]}]
    }
    assert kept["reward"] == f"{HERE}:obeys" and said in kept["error"]


@pytest.mark.filterwarnings("ignore:a process of reward functions was killed:RuntimeWarning")
def test_the_next_group_is_scored_after_a_failure(make: Make, scores: Any) -> None:
    scorer = make("obeys")
    for key, text in enumerate(("raise", "raise", "fine", "raise", "kill", "fine")):
        scorer.submit(key, group(text))
    assert [(one.key, one.reward) for one in scores(scorer, 6)] == [
        (0, None),
        (1, None),
        (2, [1.0]),
        (3, None),
        (4, None),
        (5, [1.0]),
    ]


@pytest.mark.parametrize("idle", [False, True])
def test_a_process_that_is_killed_from_outside_costs_nothing(
    idle: bool, make: Make, scores: Any, deadline: Any, tmp_path: Path
) -> None:
    scorer = make("obeys", capsules=tmp_path)
    if not idle:
        scorer.submit(7, group("sleep", "fine"))
    first = scorer._processes[0]
    deadline(
        lambda: (scorer.poll(), first.ready and (idle or bool(first.at)))[1], WAIT_S, "the process"
    )
    os.kill(first._popen.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="a process of reward functions was killed"):
        deadline(lambda: (scorer.poll(), scorer._processes[0] is not first)[1], WAIT_S, "another")
    if idle:
        scorer.submit(7, group("sleep", "fine"))
    (one,) = scores(scorer, 1)
    assert (one.key, one.reward, one.error) == (7, [1.0, 1.0], "")
    assert scorer.waiting == 0 and not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:a process of reward functions was killed:RuntimeWarning")
def test_processes_that_are_killed_before_any_group_end_the_run(make: Make, deadline: Any) -> None:
    scorer, killed = make("obeys"), set[int]()

    def kill() -> bool:
        scorer.poll()
        if (pid := scorer._processes[0]._popen.pid) not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return False

    with pytest.raises(RewardsFailed, match="a process of reward functions ended"):
        deadline(kill, WAIT_S, "the end")
    assert len(killed) == MOST_KILLED + 1


def test_a_function_that_reads_standard_input_gets_nothing(make: Make, scores: Any) -> None:
    scorer = make("obeys")
    scorer.submit(0, group("read"))
    assert scores(scorer, 1)[0].reward == [0.0]


def test_three_failures_in_a_row_end_the_run(make: Make, scores: Any) -> None:
    scorer = make("obeys")
    for key in range(3):
        scorer.submit(key, group("raise"))
    with pytest.raises(RewardsFailed, match="as the 2 groups before did: OSError: no luck"):
        scores(scorer, 3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lenght", "unknown function 'lenght'; did you mean 'length'"),
        ("NEVER_S", "expected a function, got float"),
    ],
)
def test_a_function_that_cannot_be_imported_ends_the_run(
    name: str, said: str, make: Make, scores: Any
) -> None:
    with pytest.raises(RewardsFailed, match=said):
        scores(make(name), 1)


def test_a_column_that_json_cannot_say_is_named(make: Make) -> None:
    with pytest.raises(
        ValueError, match="column 'when' of the task: expected a value that JSON can hold"
    ):
        make("length").submit(0, group("a", fine=[1], when=[object()]))


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="reward_processes: expected at least 1, got 0"):
        ProcessScorer([RewardFunction("m:f")], processes=0)
    with pytest.raises(ValueError, match="reward_deadline_s: expected more than 0 seconds, got 0"):
        ProcessScorer([RewardFunction("m:f")], deadline_s=0)


def test_closing_ends_a_function_that_hangs_and_what_it_started(make: Make, deadline: Any) -> None:
    scorer = make("obeys")
    scorer.submit(0, group("hang with a child"))
    deadline(
        lambda: (scorer.poll(), any(one.at for one in scorer._processes))[1],
        WAIT_S,
        "the function to be called",
    )
    scorer.close()  # conftest looks for what is left


PARENT = """
import sys, time
from equipoise.language.scoring.functions import RewardFunction
from equipoise.language.scoring.pool import ProcessScorer
from tests.language.test_scorer_pool import HERE, group
scorer = ProcessScorer([RewardFunction(f"{HERE}:obeys")])
scorer.submit(0, group("hold the lock"))
while scorer._queue:
    scorer.poll()
    time.sleep(0.01)
print(scorer._processes[0]._popen.pid, flush=True)
time.sleep(600)
"""


def test_processes_end_with_a_killed_parent(deadline: Any) -> None:
    """Also while a function holds Python's lock, so that no thread of the process can see it."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists() or sys.platform != "linux"
        parent.send_signal(signal.SIGKILL)
    # conftest fails where the child is left behind; it is the child of the tests now


def test_a_capsule_replays_only_where_somebody_vouches(
    make: Make, scores: Any, tmp_path: Path
) -> None:
    scorer = make("obeys", capsules=tmp_path)
    scorer.submit(0, group("raise", "fine"))
    path = scores(scorer, 1)[0].capsule
    done = replay(path)  # signed: this user's own run wrote it
    assert "OSError: no luck" in done.now and done.then in done.now and done.given is None
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps({**json.loads(path.read_text()), "signature": None}))
    with pytest.raises(Untrusted, match=f"reward '{HERE}:obeys' would be imported from"):
        replay(foreign)
    assert "no luck" in replay(foreign, [HERE]).now


def test_a_replay_shows_what_was_mended(tmp_path: Path) -> None:
    samples = group("ab", "c")
    path = capsules.write(
        tmp_path,
        capsules.RewardCapsule(
            reward=f"{HERE}:length", error="OSError: then", deadline_s=None, samples=samples
        ),
    )
    assert path is not None
    done = replay(path)
    assert (done.then, done.now, done.given) == ("OSError: then", "", [2.0, 1.0])


def test_capsules_of_one_function_are_bounded(tmp_path: Path) -> None:
    one = capsules.RewardCapsule(reward="m:f", error="e", deadline_s=1.0, samples=group("a"))
    written = [capsules.write(tmp_path, one) for _ in range(LIMIT + 2)]
    assert len({path for path in written if path}) == LIMIT and written[-1] is None
    assert len(list(tmp_path.iterdir())) == LIMIT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format: expected a whole number from 1 to 1, got 2"),
        ({"reward": "../x:f"}, "reward: expected module:function, got '../x:f'"),
        (
            {"samples": {**group("a").to_json(), "columns": {"b": [1, 2]}}},
            "samples.b: expected 1 items.*got 2",
        ),
        ({"samples": {}}, "samples"),
    ],
)
@pytest.mark.few(4)
def test_a_damaged_capsule_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = capsules.write(
        tmp_path,
        capsules.RewardCapsule(reward="m:f", error="e", deadline_s=1.0, samples=group("a")),
    )
    assert path is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=said):
        capsules.read(path, ("m",))


def test_a_deadline_is_of_the_function_and_not_of_the_machine(
    make: Make, scores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that waits for a core is not late: others have the machine."""
    began = time.monotonic()
    monkeypatch.setattr(
        "equipoise.language.scoring.pool.cores.waited_s", lambda pid: time.monotonic() - began
    )
    scorer = make("obeys", deadline_s=0.05)
    scorer.submit(0, group("sleep"))
    (one,) = scores(scorer, 1)
    assert one.reward == [1.0], one.error
