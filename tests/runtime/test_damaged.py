"""Damaged and foreign files: each is named in one sentence, and what a run does not need never
stops it.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import shutil
import struct
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.errors import SPEAKING, Final, WorkerFailed, spoken
from equipoise.files import parse_json, read_json
from equipoise.record import checkpoint, statefile
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.schema import Anything, Each, Items, Maybe, Number, Row, Text, check
from tests.runtime.resuming import command
from tests.runtime.test_resume import files_of, go_on, program, train

pytestmark = pytest.mark.few(2)  # all cases: make test-all


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("damaged") / "run"
    train(program(), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own to damage."""
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "run"))


def newest(run: Path) -> Path:
    return max(
        (run / "checkpoints").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_"))
    )


def rewrite(place: Path, name: str, data: bytes) -> None:
    """Write a file of a checkpoint, with a manifest that agrees."""
    (place / name).write_bytes(data)
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (place / "manifest.json").write_text(json.dumps(manifest))


def change(file: Path, edit: Callable[[Any], Any]) -> bytes:
    data = json.loads(file.read_text())
    return json.dumps(edit(data) or data).encode()


# --------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": 1,\n "b": \xff}', r"line 2: expected JSON, got the byte 0xff, which is no UTF-8"),
        (b'{"a": 1,\n "b": }', r"line 2: expected JSON, got expecting value"),
        (b"[" * 200_000, r"line 1: expected at most 64 levels of lists and objects, got more"),
        (b'{"a":' * 200_000, r"line 1: expected at most 64 levels"),
        (b'{"a": NaN}', "expected JSON, got NaN, which is no number"),
        (
            b'{"a": ' + b"1" * 5000 + b"}",
            "expected JSON, got 1111.*, which has more than 4,300 digits",
        ),
        (b"", "line 1: expected JSON, got nothing"),
        (b" \n", "line 2: expected JSON, got nothing"),
    ],
)
def test_what_is_no_json_is_named_by_file_and_line(data: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=said) as caught:
        read_json(file)
    assert str(caught.value).startswith(str(file)) and len(str(caught.value)) < 500


def test_brackets_within_texts_are_no_levels() -> None:
    assert parse_json(json.dumps(["[" * 1000, '\\"{' * 500]).encode(), "x") == [
        "[" * 1000,
        '\\"{' * 500,
    ]


def test_a_file_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.files.LARGEST_JSON", 1000)
    (tmp_path / "x.json").write_text(json.dumps(list(range(1000))))
    with pytest.raises(ValueError, match=r"x.json: expected at most 1,000 bytes, got"):
        read_json(tmp_path / "x.json")


SCHEMA = {
    "n": Number(0, 9, whole=True),
    "x?": Maybe(Number()),
    "t": Items(Text(3), 2),
    "m": Each(Row((Number(), Anything()))),
}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"n": 10}, r"f.json: n: expected a whole number from 0 to 9, got 10"),
        ({"n": 1.0}, r"n: expected a whole number from 0 to 9, got 1.0"),
        ({"n": True}, r"n: expected a whole number"),
        ({"n": 10**4000}, r"got a whole number of more than 200 digits"),
        ({"x": float("nan")}, r"f.json: x: expected a number, got nan"),
        ({"x": 10**400}, r"f.json: x: expected a number, got a whole number of more"),
        ({"t": ["abcd"]}, r"f.json: t\[0\]: expected a text of at most 3 letters, got 'abcd'"),
        ({"t": ["a"] * 3}, r"t: expected at most 2 items, got 3"),
        ({"m": {"k": [1]}}, r"f.json: m.k: expected 2 items, got 1"),
        ({"m": {"k": ["1", 2]}}, r"m.k\[0\]: expected a number, got '1'"),
        ({"m": []}, r"m: expected a JSON object, got \[\]"),
        ({"y": 1}, r"f.json: y: expected no such key \(known: n, x, t, m\), got one"),
    ],
)
def test_a_schema_names_the_place(value: dict[str, Any], said: str) -> None:
    right = {"n": 3, "x": None, "t": ["abc"], "m": {"k": [1, None]}}
    check(right, SCHEMA, "f.json")
    with pytest.raises(ValueError, match=said):
        check(right | value, SCHEMA, "f.json")
    with pytest.raises(ValueError, match=r"f.json: n: expected a value, got none"):
        check({}, SCHEMA, "f.json")


# ------------------------------------------------------------------------------- what is not needed


DAMAGE = {
    "garbage": b"{",
    "bytes": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "kind": b"[]",
    "status": b'{"status": 7}',
    "none": None,
}


@pytest.mark.filterwarnings("ignore:.*summary.json.*not needed")
@pytest.mark.parametrize("how", DAMAGE)
def test_a_summary_is_not_needed(how: str, run: Path) -> None:
    before = RunDirectory.open(run).summary()
    assert before is not None
    data = DAMAGE[how]
    (run / "summary.json").unlink() if data is None else (run / "summary.json").write_bytes(data)
    assert api.evaluate(run, episodes=1).episodes == 1
    assert go_on(run)["params_sha256"] == before["params_sha256"]


def test_a_damaged_summary_is_told(run: Path) -> None:
    (run / "summary.json").write_text("{")
    with pytest.warns(
        RuntimeWarning, match=r"summary.json, line 1: expected JSON, .*; the file is not needed"
    ):
        assert RunDirectory.open(run).summary() is None


@pytest.mark.parametrize(
    "damage", [b"\xff\n", b"{\n", b"[]\n", b'{"final": 1}\n', b"[" * 100_000 + b"\n"]
)
def test_a_damaged_line_of_reports_costs_that_line(damage: bytes, run: Path) -> None:
    file = run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], damage, *lines[1:]]))
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: .*expected"):
        RunDirectory.open(run).metrics()
    with pytest.warns(
        RuntimeWarning, match=r"metrics.jsonl, line 2: .*; the damaged part is left out"
    ):
        go_on(run, steps=4096)
    told = [line["env_steps"] for line in RunDirectory.open(run).metrics()]
    assert (
        told[0] == json.loads(lines[0])["env_steps"] and told == sorted(told) and told[-1] == 4096
    )


def test_no_path_leaves_the_reports_open(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a ResourceWarning, too
        never = api.start(resume=run, steps=4096)
        never.close()
        with pytest.raises(StopIteration):
            next(never)
        again = api.start(resume=run, steps=4096)  # the lock is free
        again.close()
        for place in ("equipoise.run.run.start", "equipoise.record.directory.RunDirectory.rewind"):
            with monkeypatch.context() as patch:
                patch.setattr(place, fail)
                with pytest.raises(RuntimeError, match="no"):
                    next(api.start(resume=run, steps=4096))
        gc.collect()
    api.start(resume=run, steps=4096).close()


# ----------------------------------------------------------------------------------- what is needed


RUNS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no policies": (
        lambda r: r["program"].update(policies={}),
        "program.policies: expected at least one policy that learns",
    ),
    "only frozen": (
        lambda r: r["program"].update(policies={"a": {"of": "b"}}),
        "program.policies: expected at least one policy that learns",
    ),
    "negative": (
        lambda r: r["program"]["placement"].update(actors=-1),
        "actors: expected at least 1, got -1",
    ),
    "kind": (
        lambda r: r["program"]["schedule"].update(steps="many"),
        "schedule.steps: expected a whole number, got 'many'",
    ),
    "unroll": (
        lambda r: r["program"]["policies"]["main"].update(unroll=-8),
        "unroll: expected at least 1, got -8",
    ),
    "gamma": (
        lambda r: r["program"]["policies"]["main"]["algorithm"]["fields"].update(gamma=7),
        "gamma: expected .*, got 7",
    ),
    "on": (
        lambda r: r.update(on="moon"),
        "on: expected one of 'serial', 'process', 'ray', got 'moon'",
    ),
    "tensorboard": (
        lambda r: r.update(tensorboard="yes"),
        "tensorboard: expected true or false, got 'yes'",
    ),
    "choices": (
        lambda r: r.update(choices={"forward": []}),
        "choices.forward: expected a JSON object",
    ),
}


@pytest.mark.parametrize("what", RUNS)
@pytest.mark.parametrize("command", [api.evaluate, api.resume])
def test_a_run_json_that_cannot_be_is_named(what: str, command: Any, run: Path) -> None:
    edit, said = RUNS[what]
    (run / "run.json").write_bytes(change(run / "run.json", edit))
    with pytest.raises(ValueError, match=rf"run.json: .*{said}"):
        command(run)


def test_a_checkpoint_that_is_lost_says_why_in_the_error(run: Path) -> None:
    for place in (run / "checkpoints").glob("step_*"):
        (place / "learner.safetensors").write_bytes(b"x")
    with pytest.raises(
        ValueError,
        match=r"whole checkpoint to go on from, got none; .*learner.safetensors: expected .* bytes",
    ):
        api.start(resume=run, steps=4096)


def tensors(header: dict[str, Any] | bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


HEADERS = {
    "length 2^62": tensors(b"{}", 1 << 62),
    "length 4 TiB": tensors(b"{}", 4 << 40),
    "tensor of 4 TiB": tensors(
        {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}
    ),
    "tensor of 2^62": tensors(
        {"w": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}}
    ),
    "overflow": tensors(
        {"w": {"dtype": "F32", "shape": [1 << 63, 1 << 63], "data_offsets": [0, 4]}}
    ),
    "negative": tensors({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}),
    "deep": tensors(b"[" * 200_000),
    "list": tensors(b"[]"),
    "empty": b"",
}


@pytest.mark.parametrize("how", HEADERS)
@pytest.mark.parametrize("name", ["weights.safetensors", "learner.safetensors"])
def test_a_safetensors_header_that_lies_is_one_sentence(how: str, name: str, run: Path) -> None:
    rewrite(newest(run), name, HEADERS[how])
    read = (
        (lambda: load_checkpoint(newest(run)))
        if name == "weights.safetensors"
        else lambda: go_on(run, steps=4096)
    )
    with pytest.raises(ValueError, match=rf"{name}.*: expected") as caught:
        read()
    assert "\n" not in str(caught.value)


def worse(node: Any) -> Any:
    """Every number 10^30 and every text of another kind."""
    if isinstance(node, dict):
        return {key: worse(value) for key, value in node.items()}
    if isinstance(node, list):
        return [worse(value) for value in node]
    return 10**30 if isinstance(node, int | float) else ["text"] if isinstance(node, str) else node


DRIVERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "everything": (worse, "driver.json: "),
    "version": (
        lambda d: d["reporter"]["record"].update(version=10**30),
        "reporter.record.version: expected a whole number",
    ),
    "later": (
        lambda d: d["reporter"]["record"].update(version=10**6),
        "reporter.record.version: expected a whole number",
    ),
    "notes": (lambda d: d["reporter"].update(notes=[7]), r"reporter.notes\[0\]: expected a text"),
    "wall": (
        lambda d: d["reporter"].update(wall_s=-1),
        "reporter.wall_s: expected a number from 0",
    ),
    "missing": (
        lambda d: d["reporter"].pop("lag") and None,
        "reporter.lag: expected a value, got none",
    ),
    "exam": (
        lambda d: d["evaluations"].update(made="3"),
        "evaluations.made: expected a whole number",
    ),
    "list": (lambda d: [d], "driver.json: expected a JSON object"),
}


@pytest.mark.parametrize("what", DRIVERS)
def test_every_value_of_the_drivers_state_is_looked_at(what: str, run: Path) -> None:
    edit, said = DRIVERS[what]
    rewrite(newest(run), "driver.json", change(newest(run) / "driver.json", edit))
    with pytest.raises(ValueError, match=rf"driver.json: .*{said.removeprefix('driver.json: ')}"):
        go_on(run, steps=4096)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda m: m.update(version=-1), "meta.json: version: expected a whole number from 0"),
        (lambda m: m.update(version=10**30), "meta.json: version: expected a whole number from 0"),
        (lambda m: m.pop("env_steps") and None, "meta.json: env_steps: expected a value, got none"),
        (lambda m: [m], "meta.json: expected a JSON object"),
    ],
)
def test_every_value_of_meta_json_is_looked_at(
    edit: Callable[[Any], Any], said: str, run: Path
) -> None:
    rewrite(newest(run), "meta.json", change(newest(run) / "meta.json", edit))
    with pytest.raises(ValueError, match=said):
        api.start(resume=run, steps=4096)


@pytest.mark.parametrize("size", [-1, True, "7", 10**30])
def test_a_manifest_with_a_wrong_size_is_named(size: Any, run: Path) -> None:
    place = newest(run)
    (place / "manifest.json").write_bytes(
        change(place / "manifest.json", lambda m: m["files"]["meta.json"].update(size=size))
    )
    with pytest.raises(
        ValueError, match=r"manifest.json: meta.json: size: expected a whole number"
    ):
        checkpoint.load(place)


# -------------------------------------------------------------------------------- states of workers


def tampered(state: Any, path: str, value: Any) -> None:
    *rooms, last = path.split("/")
    for room in rooms:
        state = state[room]
    if value is None:
        del state[last]
    elif callable(value):
        state[last] = value(state[last])
    else:
        state[last] = value


def replayed(tmp_path: Path) -> Path:
    made = api.program(
        "CartPole-v1",
        "dqn",
        actors=1,
        envs_per_actor=2,
        unroll=4,
        batch=8,
        steps=256,
        max_lag=0,
        evaluate_episodes=0,
        settings=["replay.starts_at=64", "replay.selector=prioritized", "replay.capacity=1000"],
        recipe=False,
    )
    for _ in api.start(made, on="serial", out=tmp_path / "dqn"):
        pass
    return tmp_path / "dqn"


STATES: dict[str, tuple[str, str, Any, str]] = {
    "version": (
        "learner",
        "learners/main/version",
        10**30,
        r"version: expected a whole number from 0",
    ),
    "nan": (
        "learner",
        "learners/main/groups/all/params",
        lambda x: x * float("nan"),
        r"params: expected .* finite numbers",
    ),
    "shape": (
        "learner",
        "learners/main/groups/all/params",
        lambda x: x[:5],
        r"params: expected a tensor float32 \[\d+\]",
    ),
    "dtype": (
        "learner",
        "learners/main/groups/all/optimizer/exp_avg",
        lambda x: x.double(),
        r"exp_avg: expected a tensor float32",
    ),
    "text": (
        "learner",
        "learners/main/groups/all/params",
        "seven",
        r"params: expected a tensor float32",
    ),
    "missing": ("learner", "learners/main/rng", None, r"rng: expected a value, got none"),
    "lag": ("learner", "lag/sum", -1.0, r"lag.sum: expected a number from 0"),
    "queue": (
        "experience",
        "word",
        lambda x: x - 10**9,
        r"queue.word: expected an array int64 .* from 0",
    ),
    "ready": ("experience", "ready", "now", r"queue.ready: expected an array int64"),
    "start": (
        "actor_0",
        "agent/main/start",
        lambda x: x - 10**9,
        r"start: expected an array int64 .* from 0",
    ),
    "first": (
        "actor_0",
        "agent/main/carry/first",
        lambda x: x[:1],
        r"carry.first: expected an array bool",
    ),
    "obs": (
        "actor_0",
        "agent/main/carry/obs",
        lambda x: x[:1],
        r"carry.obs.*: expected rows of 4 streams",
    ),
    "ticks": (
        "actor_0",
        "agent/main/episodes/shared/ticks",
        lambda x: x * 0 - 1,
        r"ticks: expected an array int64 .* from 0",
    ),
    "rows": (
        "actor_0",
        "env/rows/reward",
        lambda x: x.astype("float64"),
        r"state of reward: expected float32",
    ),
    "phase": (
        "actor_0",
        "env/phase",
        lambda x: x * 0 + 7,
        r"state of phase: expected 1 or 2, got 7",
    ),
}


@pytest.mark.parametrize("what", STATES)
def test_every_state_of_a_worker_is_looked_at_before_the_run_begins(what: str, run: Path) -> None:
    """Nothing is lost: the checkpoints and the reports are as they were."""
    file, path, value, said = STATES[what]
    refused(run, file, path, value, said)


REPLAYS: dict[str, tuple[str, Any, str]] = {
    "rounds": ("replay/rounds", -3, r"replay.rounds: expected a whole number from 0"),
    "mass": (
        "replay/selector/mass",
        lambda x: x * float("nan"),
        r"selector.mass: expected an array float64",
    ),
    "in": (
        "replay/selector/in",
        lambda x: x.astype("int64"),
        r"selector.in: expected an array bool",
    ),
    "blocks": (
        "replay/ring/blocks",
        lambda x: x * 0 - 1,
        r"blocks: expected an array int64 .* from 0",
    ),
    "window": ("replay/ring/window", 77, r"replay, window: expected 1 as in this program, got 77"),
    "age": ("replay/ring/age", lambda x: x.astype("float32"), r"replay.age: expected an array"),
}


@pytest.mark.parametrize("what", REPLAYS)
def test_every_state_of_a_replay_is_looked_at_before_the_run_begins(
    what: str, tmp_path: Path
) -> None:
    path, value, said = REPLAYS[what]
    refused(replayed(tmp_path), "replay", path, value, said)


def refused(run: Path, file: str, path: str, value: Any, said: str) -> None:
    place = newest(run)
    state = statefile.parse((place / f"{file}.safetensors").read_bytes())
    tampered(state, path, value)
    rewrite(place, f"{file}.safetensors", statefile.dump(state))
    before = sorted(str(one) for one in run.rglob("*")), (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        ValueError, match=rf"{file}.safetensors: this run cannot go on from it: .*{said}"
    ):
        go_on(run, steps=8192)
    after = sorted(str(one) for one in run.rglob("*")), (run / "metrics.jsonl").read_bytes()
    assert [one for one in before[0] if "summary" not in one and "events" not in one] == [
        one for one in after[0] if "summary" not in one and "events" not in one
    ]


def test_each_error_that_ends_a_run_is_told_in_its_own_sentence() -> None:
    """A replacement would fail in the same way, so its message is for the user."""
    own = {"NoNumber", "EnvFailed", "WrongValue"}  # ``cli/show.py`` tells these
    kinds, found = [Final], set[str]()
    for name in ("workers.kinds", "experience.recorded.dataset", "language.tasks"):
        importlib.import_module(f"equipoise.{name}")
    while kinds:
        below = kinds.pop().__subclasses__()
        kinds += below
        found |= {one.__name__ for one in below if one.__module__.startswith("equipoise.")}
    assert {"CannotResume", "EngineFailed", "Faulty"} <= found and found - own <= set(SPEAKING)


def test_an_error_of_an_env_with_the_name_of_one_of_ours_is_the_env_s() -> None:
    class Damaged(Exception): ...

    told = "Traceback ...\nmy_env.Damaged: hull gone\n\nequipoise.errors.EnvFailed: step"
    assert spoken(Damaged("hull gone")) == ""
    assert spoken(WorkerFailed("actor 0", "raised", told)) == ""
    told = "Traceback ...\nequipoise.errors.Damaged: a file; remove it"
    assert spoken(WorkerFailed("actor 0", "raised", told)) == "a file; remove it"


@pytest.mark.thorough
def test_a_worker_that_cannot_go_on_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    train(program(), tmp_path / "run", "process")
    place = next((tmp_path / "run/checkpoints").glob("step_2048"))
    rewrite(place, "learner.safetensors", (place / "learner.safetensors").read_bytes()[:4000])
    for other in (tmp_path / "run/checkpoints").glob("step_*"):
        if other != place:
            shutil.rmtree(other)
    before = files_of(tmp_path / "run")
    words = command("resume", str(tmp_path / "run"), "--steps", "4096")
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "nothing was changed" in said, said
    assert "Traceback" not in said and "weights up to here are saved" not in said, said
    assert files_of(tmp_path / "run") == before
