"""The run directory: what it holds, that a crash leaves the old or the new, and that damage is
found by name.
"""

import json
import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import files
from equipoise.balance.shares import Shares
from equipoise.record import checkpoint, origin
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import RunDirectory, params_sha256
from equipoise.record.report import Evaluation, Report
from equipoise.record.schemas import SUMMARY_KEYS
from tests.runtime.test_program import Toy, program


def report(**fields):
    given = {
        "wall_s": 1.5,
        "env_steps": 2048,
        "taken": 2048,
        "frames": 8192,
        "updates": 2,
        "steps_per_s": 1000.0,
        "updates_per_s": 1.0,
        "episodes": 3,
        "return_mean": 21.0,
        "length_mean": 21.0,
        "lag_mean": 0.5,
        "lag_max": 1,
        "balance": {"actor 0": Shares(worked=1.0), "learner": Shares(worked=0.5, starved=0.5)},
        "cause": "Balanced",
        "verdict": "Balanced.",
        "remaining_s": 9.0,
        "metrics": {"entropy": 0.69},
    }
    return Report(**(given | fields))


def summary(**fields):
    given = {
        "status": "completed",
        "printed": {},
        "sites": {},
        "refused": {},
        "env_steps": 2048,
        "taken": 2048,
        "frames": 8192,
        "updates": 2,
        "wall_s": 1.5,
        "steps_per_s": 1000.0,
        "updates_per_s": 1.0,
        "episodes": 3,
        "return_mean": 21.0,
        "lag": {"mean": 0.5, "max": 1},
        "acting": {"weights": "fp32", "forward": {"main": "lean"}, "error": {}},
        "evaluation": Evaluation(mean=1.0, std=0.0, episodes=20, env_steps=2048, version=2),
        "best_evaluation": None,
        "balance": {"learner": {"worked": 1.0, "preempted": 0.0, "starved": 0.0, "blocked": 0.0}},
        "cause": "Balanced",
        "verdict": "Balanced.",
        "remedies": [],
        "solved_at_s": None,
        "evaluations": {"asked": 0, "made": 0},
        "params_sha256": "0" * 64,
        "rows": {"inserted": 10, "sampled": 8, "dropped": 1, "held": 1},
        "notes": [],
        "info": {"x/last": None, "x/mean": 0.5},
        "failures": {},
        "aborted": {},
        "alarms": [],
        "governor": None,
        "lending": None,
    }
    return given | fields


META = {"version": 1, "env_steps": 64}


def params(scale=1.0):
    return {
        "torso.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) * scale,
        "log_std": torch.tensor(-0.5),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "count": torch.tensor([7], dtype=torch.int64),
        "mask": torch.tensor([True, False]),
    }


# ---------------------------------------------------------------------------------------- the files


def test_the_commit_that_a_run_is_started_in_is_read_without_git(tmp_path):
    assert origin.commit(tmp_path) is None
    git, work, one, other = (
        tmp_path / "main" / ".git",
        tmp_path / "work" / "deeper",
        "1" * 40,
        "2" * 40,
    )
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert origin.commit(git.parent) is None  # nothing is committed
    (git / "packed-refs").write_text(
        f"# pack-refs\n{other} refs/heads/other\n{one} refs/heads/main\n"
    )
    assert origin.commit(git.parent) == one
    (git / "refs" / "heads" / "main").write_text(f"{other}\n")
    assert origin.commit(git.parent) == other
    work.mkdir(parents=True)
    (git / "worktrees" / "work").mkdir(parents=True)
    (git / "worktrees" / "work" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "work" / "commondir").write_text("../..\n")
    (work.parent / ".git").write_text(f"gitdir: {git}/worktrees/work\n")
    assert origin.commit(work) == other
    (git / "worktrees" / "work" / "HEAD").write_text(f"{one}\n")  # of no branch
    assert origin.commit(work) == one


def test_create_writes_a_run_json_that_open_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["equipoise", "train"])
    given = program(Toy(gamma=0.5, clip=float("inf")), actors=2, seed=3)
    with RunDirectory.create(
        tmp_path / "a" / "run", given, on="serial", extra={"env_notes": ["a note"]}
    ) as made:
        run = json.loads((made.path / "run.json").read_text())
    assert {
        "program",
        "on",
        "argv",
        "started",
        "seeds",
        "versions",
        "commit",
        "host",
        "env_notes",
        "tensorboard",
        "trackers",
        "signature",
    } == set(run)
    assert run["argv"] == ["equipoise", "train"]
    assert run["env_notes"] == ["a note"]
    assert run["on"] == "serial"
    assert run["seeds"] == {"program": 3}
    assert run["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert run["versions"]["torch"] == torch.__version__
    assert set(run["versions"]) >= {"python", "torch", "numpy", "gymnasium", "equipoise"}
    assert run["host"]["cores"] >= 1
    assert (run["tensorboard"], run["trackers"]) == (True, [])
    opened = RunDirectory.open(made.path)
    assert opened.program == given
    assert opened.run == run
    assert opened.summary() is None
    assert opened.metrics() == []
    assert (made.path / "run.json").stat().st_mode & 0o077 == 0o044


def test_the_default_name_says_what_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = program(seed=7, env=program().env.__class__(target="../odd module:ALE/Pong-v5"))
    first, second = RunDirectory.create(None, given), RunDirectory.create(None, given)
    assert first.path.parent == second.path.parent == Path("runs")
    assert first.path != second.path
    assert first.path.name.startswith("odd-module-ALE-Pong-v5-tests.runtime.test_program-Toy-7-2")
    assert set(first.path.name) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
    )
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("there", "error", "message"),
    [
        (
            "run.json",
            FileExistsError,
            "expected a new or an empty directory .*, got one that holds a run",
        ),
        ("thesis.tex", FileExistsError, "got one that holds thesis.tex"),
        (None, NotADirectoryError, "expected a directory to write the run into, got a file"),
    ],
)
def test_what_is_there_already_is_never_written_into(tmp_path, there, error, message):
    path = tmp_path / "run"
    if there is None:
        path.write_text("x")
    else:
        path.mkdir()
        (path / there).write_text("x")
    with pytest.raises(error, match=message):
        RunDirectory.create(path, program())
    assert (path if there is None else path / there).read_text() == "x"
    assert there is None or os.listdir(path) == [there]


def test_an_empty_directory_is_welcome_and_a_failed_program_leaves_none(tmp_path):
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", program()).close()
    with pytest.raises(ValueError, match="expected a value that JSON can hold"):
        RunDirectory.create(tmp_path / "never", program(Toy(gamma=math.nan)))
    assert not (tmp_path / "never").exists()


def test_every_report_is_a_line_at_once_and_nan_is_null(tmp_path):
    with RunDirectory.create(tmp_path / "run", program()) as made:
        made.write_report(report())
        bad = {"loss": math.nan, "entropy": math.inf, "kl": np.float32(0.25)}
        made.write_report(report(return_mean=math.nan, metrics=bad, final=True))
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()  # before close
    assert len(lines) == 2
    first, last = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert set(first) == set(Report.__dataclass_fields__)
    parts = {
        "asleep": 0.0,
        "parts": {},
        "counts": {},
        "done": 0.0,
        "kind": "",
        "side": "beside",
        "serves": False,
    }
    assert (
        first["balance"]["learner"]
        == {"worked": 0.5, "preempted": 0.0, "starved": 0.5, "blocked": 0.0} | parts
    )
    assert first["final"] is False
    assert last["return_mean"] is None
    assert last["metrics"] == {"loss": None, "entropy": None, "kl": 0.25}
    assert RunDirectory.open(made.path).metrics() == [first, last]


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    with RunDirectory.create(tmp_path / "run", program()) as made:
        made.write_report(report())
    with (made.path / "metrics.jsonl").open("a") as file:
        file.write('{"wall_s": 2')
    assert [line["wall_s"] for line in made.metrics()] == [1.5]


def test_the_summary_has_exactly_the_keys_of_the_design(tmp_path):
    made = RunDirectory.create(tmp_path / "run", program())
    written = made.write_summary(summary(return_mean=math.nan))
    assert written == json.loads((made.path / "summary.json").read_text()) == made.summary()
    assert list(written) == list(SUMMARY_KEYS)
    assert set(SUMMARY_KEYS) == {
        "env_steps",
        "taken",
        "frames",
        "updates",
        "wall_s",
        "steps_per_s",
        "updates_per_s",
        "episodes",
        "return_mean",
        "evaluation",
        "lag",
        "balance",
        "cause",
        "verdict",
        "solved_at_s",
        "params_sha256",
        "status",
        "rows",
        "notes",
        "failures",
        "info",
        "acting",
        "aborted",
        "printed",
        "refused",
        "best_evaluation",
        "sites",
        "remedies",
        "alarms",
        "governor",
        "lending",
        "evaluations",
    }
    assert written["evaluation"] == {"mean": 1.0, "std": 0.0, "episodes": 20}
    assert written["balance"] == {
        "learner": {"worked": 1.0, "preempted": 0.0, "starved": 0.0, "blocked": 0.0}
    }
    assert written["return_mean"] is None
    with pytest.raises(ValueError, match=r"unknown key 'env_step'; did you mean 'env_steps'\?"):
        made.write_summary(summary(env_step=1))
    with pytest.raises(ValueError, match=r"got none named \['verdict'\]"):
        made.write_summary({key: value for key, value in summary().items() if key != "verdict"})
    with pytest.raises(ValueError, match="expected a status of .*, got 'done'"):
        made.write_summary(summary(status="done"))
    made.close()


def test_a_file_that_cannot_be_replaced_keeps_its_old_content(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    files.write_atomic(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["summary.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: "{", "run.json, line 1: expected JSON, got"),
        (lambda run: json.dumps([]), "run.json: expected a JSON object with the key 'program'"),
        (
            lambda run: json.dumps({**run, "program": {**run["program"], "actorz": 1}}),
            "run.json: program: unknown key 'actorz'",
        ),
    ],
)
def test_a_run_json_that_is_wrong_is_named(tmp_path, change, message):
    RunDirectory.create(tmp_path / "run", program()).close()
    file = tmp_path / "run" / "run.json"
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(ValueError, match=message):
        RunDirectory.open(tmp_path / "run")


def test_a_directory_that_is_no_run_names_the_nearest_that_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the runs/ of the checkout is none of its business
    with pytest.raises(
        FileNotFoundError, match=r"expected .* with a run.json, got no directory; 'equipoise train"
    ):
        RunDirectory.open(tmp_path / "CartPole-1")
    RunDirectory.create(tmp_path / "CartPole-ppo-1", program()).close()
    RunDirectory.create(tmp_path / "Acrobot-ppo-1", program()).close()
    with pytest.raises(
        FileNotFoundError, match=r"got no directory; did you mean '.*CartPole-ppo-1'\?"
    ):
        RunDirectory.open(tmp_path / "CartPole-1")
    with pytest.raises(FileNotFoundError, match="got one without"):
        RunDirectory.open(tmp_path)


def test_what_was_opened_is_not_written_to(tmp_path):
    RunDirectory.create(tmp_path / "run", program()).close()
    with pytest.raises(ValueError, match="got one that was opened"):
        RunDirectory.open(tmp_path / "run").write_report(report())


def scalars_of(path, **options):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(path), **options)
    events.Reload()
    return {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_draws_what_is_finite(tmp_path):
    """As TensorBoard's own reader sees it."""
    with RunDirectory.create(tmp_path / "run", program()) as made:
        made.write_report(report(info={"won/last": 0.5, "won/mean": None}))
        drawn = scalars_of(made.path)  # before close
        made.write_report(
            report(env_steps=4096, return_mean=None, metrics={"entropy": math.nan}, final=True)
        )
    assert drawn["speed/steps_per_s"] == [(2048, 1000.0)]
    drawn = scalars_of(made.path)
    assert drawn["speed/steps_per_s"] == [(2048, 1000.0), (4096, 1000.0)]
    assert drawn["episodes/return_mean"] == [(2048, 21.0)]
    assert [step for step, _ in drawn["learner/entropy"]] == [2048]
    assert drawn["info/won/last"] == [(2048, 0.5)]
    assert drawn["balance/learner/starved"] == [(2048, 0.5), (4096, 0.5)]
    assert not {"evaluation/mean", "info/won/mean"} & set(drawn)


def test_every_checksum_of_an_event_file_is_right(tmp_path):
    """Readers that look at them (TensorBoard's fast one) drop a record with a wrong one."""
    summary_reader = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    with RunDirectory.create(tmp_path / "run", program()) as made:
        for step in range(1, 300):  # varints of one, two and three bytes
            made.write_report(report(env_steps=step * 100))
    (file,) = made.path.glob("events.*")
    reader = summary_reader.PyRecordReader_New(str(file))
    for _ in range(300):  # a version, and 299 reports
        reader.GetNext()  # raises where a checksum is wrong
    with pytest.raises(Exception, match="No more events"):
        reader.GetNext()


def test_a_resume_draws_no_step_twice(tmp_path):
    with RunDirectory.create(tmp_path / "run", program()) as made:
        for step in (1000, 2000, 3000):
            made.write_report(report(env_steps=step, return_mean=1.0))
    again = RunDirectory.open(made.path)
    again.go_on(program(), on="serial", step=2000, changes={})
    for step in (3000, 4000):
        again.write_report(report(env_steps=step, return_mean=2.0))
    again.close()
    assert len(list(made.path.glob("events.*"))) == 2
    assert scalars_of(made.path)["episodes/return_mean"] == [
        (1000, 1.0),
        (2000, 1.0),
        (3000, 2.0),
        (4000, 2.0),
    ]


def test_event_files_can_be_left_out(tmp_path):
    with RunDirectory.create(tmp_path / "run", program(), tensorboard=False) as made:
        made.write_report(report())
    again = RunDirectory.open(made.path)
    again.go_on(program(), on="serial", step=2048, changes={})
    again.write_report(report())
    again.close()
    assert not list(made.path.glob("events.*"))


def test_a_full_disk_leaves_whole_records(tmp_path):
    with RunDirectory.create(tmp_path / "run", program()) as made:
        made.write_report(report())
        (file,) = made.path.glob("events.*")
        size, whole = file.stat().st_size, made._events._file

        class Full:
            def write(self, data):
                return whole.write(data[:10])

            def __getattr__(self, name):
                return getattr(whole, name)

        made._events._file = Full()
        with pytest.raises(OSError, match="only 10 of"):
            made.write_report(report(env_steps=4096))
        assert file.stat().st_size == size


# -------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_there_and_back(tmp_path):
    made = RunDirectory.create(tmp_path / "run", program())
    given = params()
    path = made.save_checkpoint(2048, given, META | {"version": 2, "lag": math.nan})
    assert path == tmp_path / "run" / "checkpoints" / "step_2048"
    assert sorted(os.listdir(path)) == ["manifest.json", "meta.json", "weights.safetensors"]
    loaded, meta = load_checkpoint(path)
    assert meta == {"version": 2, "env_steps": 64, "lag": None}
    assert set(loaded) == set(given)
    for name, tensor in given.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)
    assert params_sha256(loaded) == params_sha256(given)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (
        manifest["files"]["weights.safetensors"]["size"]
        == (path / "weights.safetensors").stat().st_size
    )
    made.close()


def test_parameters_that_are_views_of_one_buffer_are_saved(tmp_path):
    flat = torch.arange(10.0)
    given = {
        "a": flat[:4].view(2, 2),
        "b": flat[4:],
        "tied": flat[:4].view(2, 2).T,
        "grad": torch.ones(2, requires_grad=True),
    }
    loaded, _ = load_checkpoint(checkpoint.save(tmp_path / "c", 1, given, META))
    assert torch.equal(loaded["b"], flat[4:])
    assert torch.equal(loaded["tied"], flat[:4].view(2, 2).T)


def test_the_newest_checkpoint_that_verifies_is_the_latest(tmp_path):
    made = RunDirectory.create(tmp_path / "run", program())
    assert made.latest_checkpoint() is None
    paths = {
        step: made.save_checkpoint(step, params(step), META | {"step": step})
        for step in (900, 1000, 20_000)
    }
    assert made.latest_checkpoint() == paths[20_000]  # by number, not by name
    (paths[20_000] / "meta.json").write_text("{}")
    with pytest.warns(
        RuntimeWarning, match="step_20000/meta.json: expected .* bytes .*step_1000 is taken instead"
    ):
        assert made.latest_checkpoint() == paths[1000]
    shutil.rmtree(paths[20_000])
    (paths[1000] / "manifest.json").unlink()
    with pytest.warns(RuntimeWarning, match="step_1000/manifest.json"):
        assert made.latest_checkpoint() == paths[900]
    shutil.rmtree(paths[1000])
    shutil.copytree(paths[900], paths[900].with_name(".step_99999.new"))
    shutil.copytree(paths[900], paths[900].with_name("step_x"))
    assert made.latest_checkpoint() == paths[900]
    shutil.rmtree(paths[900])
    assert made.latest_checkpoint() is None
    made.close()


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def point_outside(path):
    manifest = json.loads(path.read_text())
    manifest["files"]["../secret"] = manifest["files"].pop("meta.json")
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("weights.safetensors", flip, "weights.safetensors: expected sha256"),
        ("meta.json", flip, "meta.json: expected sha256"),
        (
            "weights.safetensors",
            lambda p: p.write_bytes(p.read_bytes()[:-1]),
            r"weights.safetensors: expected \d+ bytes",
        ),
        ("weights.safetensors", lambda p: p.unlink(), "weights.safetensors: expected a plain file"),
        (
            "meta.json",
            lambda p: (p.rename(p.parent / "x"), p.symlink_to(p.parent / "x")),
            "meta.json: expected a plain file",
        ),
        ("manifest.json", lambda p: p.write_text("{"), "manifest.json, line 1: expected JSON"),
        ("manifest.json", lambda p: p.write_text("{}"), "manifest.json: expected the files"),
        ("manifest.json", point_outside, "manifest.json: expected the files"),
    ],
)
def test_damage_is_refused_and_the_file_named(tmp_path, file, damage, message):
    path = checkpoint.save(tmp_path / "c", 5, params(), META)
    load_checkpoint(path)
    damage(path / file)
    with pytest.raises(ValueError, match=message) as caught:
        load_checkpoint(path)
    assert str(path / file) in str(caught.value)
    assert checkpoint.latest(tmp_path / "c") is None


def test_no_checkpoint_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a checkpoint directory"):
        load_checkpoint(tmp_path / "step_1")
    with pytest.raises(ValueError, match="step: expected at least 0"):
        checkpoint.save(tmp_path, -1, params(), {})


def test_the_same_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 5, params(1), META | {"n": 1})
    path = checkpoint.save(tmp_path, 5, params(2), META | {"n": 2})
    loaded, meta = load_checkpoint(path)
    assert meta == META | {"n": 2}
    assert torch.equal(loaded["torso.weight"], params(2)["torso.weight"])
    assert os.listdir(tmp_path) == ["step_5"]


@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step"])
def test_a_failure_at_any_file_operation_leaves_a_checkpoint_that_loads(
    tmp_path, monkeypatch, nth, again
):
    """The nth of every mkdir, fsync and rename fails: what was there before, or what was being
    written, loads; no litter.
    """
    checkpoint.save(tmp_path, 5, params(1), META | {"n": 1})
    count = [0]

    def failing(function):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == nth + 1:
                raise OSError(28, "No space left on device")
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync))
        patch.setattr(Path, "rename", failing(Path.rename))
        patch.setattr(Path, "mkdir", failing(Path.mkdir))
        failed = False
        try:
            checkpoint.save(tmp_path, 5 if again else 6, params(2), META | {"n": 2})
        except OSError:
            failed = True
    assert failed == (count[0] > nth)
    assert (tmp_path / "step_5").is_dir()
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    loaded, meta = load_checkpoint(newest)
    assert torch.equal(loaded["torso.weight"], params(meta["n"])["torso.weight"])
    assert failed or meta == META | {"n": 2}
    checkpoint.save(tmp_path, 7, params(3), META | {"n": 3})
    newest = checkpoint.latest(tmp_path)
    assert newest == tmp_path / "step_7"
    assert not (tmp_path / ".step_6.new").exists()


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    path = checkpoint.save(tmp_path, 5, params(1), META | {"n": 1})
    checkpoint.save(tmp_path, 4, params(0), META | {"n": 0})
    shutil.copytree(path, tmp_path / ".step_5.new")
    path.rename(tmp_path / ".step_5.old")
    (tmp_path / ".step_3.new").mkdir()
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert load_checkpoint(newest)[1] == META | {"n": 1}
    checkpoint.save(tmp_path, 6, params(2), META | {"n": 2})
    assert sorted(os.listdir(tmp_path)) == ["step_4", "step_5", "step_6"]
    assert load_checkpoint(tmp_path / "step_5")[1] == META | {"n": 1}


def test_everything_is_synced_before_the_rename_and_the_name_after(tmp_path, monkeypatch):
    log = []
    real_fsync, real_rename = os.fsync, Path.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (log.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), real_fsync(fd)),
    )
    monkeypatch.setattr(
        Path,
        "rename",
        lambda self, to: (log.append(f"{self.name} -> {to.name}"), real_rename(self, to))[1],
    )
    checkpoint.save(tmp_path / "c", 5, params(), {})
    assert log == [
        tmp_path.name,
        "weights.safetensors",
        "meta.json",
        "manifest.json",
        ".step_5.new",
        ".step_5.new -> step_5",
        "c",
    ]


# --------------------------------------------------------------------------------------------- hash


def test_the_hash_is_of_names_dtypes_shapes_and_bytes_alone():
    given = params()
    same = {name: given[name].clone() for name in reversed(list(given))}
    assert params_sha256(given) == params_sha256(same)
    turned = torch.arange(6.0).reshape(2, 3).T
    assert params_sha256({"a": turned}) == params_sha256({"a": turned.contiguous()})
    different = [
        {**given, "log_std": torch.tensor(-0.5000001)},
        {**given, "torso.weight": given["torso.weight"].reshape(3, 2)},
        {**given, "count": given["count"].view(torch.float64)},
        {
            ("torso.bias" if name == "torso.weight" else name): tensor
            for name, tensor in given.items()
        },
        {name: tensor for name, tensor in given.items() if name != "mask"},
        {**given, "log_std": torch.tensor([-0.5])},
    ]
    hashes = {params_sha256(p) for p in [given, *different]}
    assert len(hashes) == 7
    assert params_sha256({"a": torch.tensor([0.0])}) != params_sha256({"a": torch.tensor([-0.0])})
    assert params_sha256({}) == params_sha256({})
    assert len(params_sha256(given)) == 64


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path):
    """A superuser's rename would take the place of /dev/null for every program."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="must be a file to write, got a device or a pipe"):
        files.write_atomic(pipe, b"text")
    assert pipe.is_fifo() and [one.name for one in tmp_path.iterdir()] == ["pipe"]
