"""A run directory at a URL: whole or not there, and a store that fails. At ``file://``, and on S3
as moto's server plays it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import moto_server
import pytest

pytest.importorskip("fsspec")

from equipoise import api
from equipoise.api.training import _again
from equipoise.record import checkpoint as checkpoints
from equipoise.record import paths
from equipoise.record.directory import RunDirectory
from equipoise.record.mirror import Mirror, Store, _row_name, fetch, holds

# --------------------------------------------------------------------------------------- the stores


@pytest.fixture(scope="module", params=["file", "s3"])
def store(request, tmp_path_factory):
    """The URL of an empty store."""
    if request.param == "file":
        yield f"file://{tmp_path_factory.mktemp('store')}"
        return
    if missing := moto_server.missing():
        pytest.skip(f"S3 is not tried without {missing}; make setup installs it")
    with moto_server.s3("equipoise") as url:
        yield url


@pytest.mark.thorough
def test_a_later_server_is_asked_at_its_own_port():
    """Where tests of several stores take turns, each S3 is a new server."""
    if missing := moto_server.missing():
        pytest.skip(f"S3 is not tried without {missing}; make setup installs it")
    for _ in range(2):
        with moto_server.s3("equipoise") as url:
            assert holds(f"{url}/run") == "nothing"


NUMBERS = itertools.count()


@pytest.fixture
def url(store):
    """A place of its own for a run."""
    return f"{store}/run{next(NUMBERS)}"


def sha256(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def checkpoint(
    directory: Path, step: int, content: bytes = b"state", rows: dict[str, bytes] | None = None
) -> Path:
    """Write a whole checkpoint of a run, whose replay has these segments at the moment."""
    place = directory / "checkpoints" / f"step_{step}"
    place.mkdir(parents=True)
    (directory / "run.json").write_text("{}")
    files = {}
    for name in ("weights.safetensors", "meta.json", "learner.safetensors"):
        (place / name).write_bytes(content)
        files[name] = sha256(content)
    for name, data in (rows or {}).items():
        file = directory / "checkpoints/replay" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(data)
    segments = {name: sha256(data) for name, data in (rows or {}).items()}
    aside = place / "aside"
    aside.write_text(json.dumps({"step": step, "files": files, "segments": segments}))
    aside.rename(place / "manifest.json")
    return place


def mirrored(directory: Path, url: str) -> None:
    mirror = Mirror(directory, url)
    assert mirror.finish(200)
    mirror.close()


def named_rows(store: Store) -> dict[str, int]:
    """The rows that manifests at a URL name."""
    found: dict[str, int] = {}
    for step in store.steps("checkpoints"):
        said = json.loads(store.read(f"checkpoints/{step}/manifest.json"))
        found |= {_row_name(name, entry): entry["size"] for name, entry in said["segments"].items()}
    return found


# ------------------------------------------------------------------------------- whole or not there


@pytest.mark.thorough
def test_a_damaged_newer_checkpoint_gives_the_older(tmp_path, url):
    checkpoint(tmp_path / "run", 1)
    checkpoint(tmp_path / "run", 2)
    mirrored(tmp_path / "run", url)
    assert holds(url) == "a run"
    store = Store(url)
    with store.fs.open(store.at("checkpoints/step_2/learner.safetensors"), "wb") as file:
        file.write(b"stat")
    found = fetch(url, tmp_path)
    assert (found / "checkpoints/step_1/learner.safetensors").read_bytes() == b"state"


def peek(store: Store, name: str) -> bytes | None:
    """What a file holds now; None where there is none, or it is replaced faster than it is read."""
    with contextlib.suppress(OSError):
        return store.read(name)
    return None


def halves(store: Store) -> list[str]:
    """What a reader finds wrong with any checkpoint that has its manifest before and after."""
    wrong = []
    for step in store.steps("checkpoints"):
        manifest = f"checkpoints/{step}/manifest.json"
        if (before := peek(store, manifest)) is None:
            continue  # removed meanwhile
        said = json.loads(before)
        files = {f"checkpoints/{step}/{name}": entry for name, entry in said["files"].items()}
        files |= {_row_name(name, entry): entry for name, entry in said["segments"].items()}
        found = [
            name
            for name, entry in files.items()
            if (data := peek(store, name)) is None or sha256(data) != entry
        ]
        if found and peek(store, manifest) == before:
            wrong += found
    return wrong


@pytest.mark.thorough
def test_a_reader_never_sees_a_half_checkpoint(tmp_path, url, seed):
    """It looks at random moments, while checkpoints come, replace each other and go."""
    over, wrong, looks = threading.Event(), list[str](), 0
    chance = random.Random(seed)

    def look():
        nonlocal looks
        store = Store(url)
        while not over.is_set():
            wrong.extend(halves(store))
            looks += bool(store.steps("checkpoints"))
            time.sleep(chance.random() * 0.005)

    reader = threading.Thread(target=look)
    reader.start()
    mirror = Mirror(tmp_path / "run", url)
    rows = b""
    try:
        for n in range(200):
            if n > 13 and looks > 10:
                break
            rows += bytes([n]) * 50_000
            step = n // 2  # each is replaced by another one of the same step
            shutil.rmtree(tmp_path / f"run/checkpoints/step_{step}", ignore_errors=True)
            checkpoint(
                tmp_path / "run",
                step,
                bytes([n]) * 200_000,
                {f"segment_{n // 5}.rows": rows[n // 5 * 250_000 :]},
            )
            shutil.rmtree(tmp_path / f"run/checkpoints/step_{step - 3}", ignore_errors=True)
            assert mirror.finish(200)
    finally:
        over.set()
        reader.join()
        mirror.close()
    assert wrong == [] and looks > 10
    assert Store(url).rows() == named_rows(Store(url))


class Package(Exception):
    """What the package of a store raises of its own, as botocore does at a 412."""


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    store, left = Store(f"file://{tmp_path}"), [0]
    (tmp_path / "metrics.jsonl").write_bytes(b"whole")
    plain = store.fs.open

    @contextlib.contextmanager
    def replaced(*arguments):
        with plain(*arguments) as file:
            yield file
            left[0] -= 1
            if left[0] >= 0:
                raise Package("PreconditionFailed")

    monkeypatch.setattr(store.fs, "open", replaced)
    for often in (0, 2):
        left[0] = often
        assert store.read("metrics.jsonl") == b"whole"
        left[0] = often
        store.get("metrics.jsonl", tmp_path / "here", 100)
        assert (tmp_path / "here").read_bytes() == b"whole"
    left[0] = 9
    with pytest.raises(
        OSError, match="metrics.jsonl: expected a file to read, got Package: PreconditionFailed"
    ):
        store.read("metrics.jsonl")


@pytest.mark.few(1)
def test_rows_of_an_earlier_process_are_used_or_removed(tmp_path, url, monkeypatch):
    run, store = tmp_path / "run", Store(url)
    checkpoint(run, 1, rows={"segment_1.rows": b"a" * 10, "main/segment_1.rows": b"m"})
    checkpoint(run, 10, rows={"segment_1.rows": b"a" * 20})
    mirrored(run, url)
    assert len(store.rows()) == 3
    (tmp_path / "note").write_bytes(b"of a user")
    store.put(tmp_path / "note", "checkpoints/replay/note.rows")
    cut = next(name for name, size in store.rows().items() if size == 10)
    store.put(tmp_path / "note", f"{cut}.part")
    # Another process goes on: it has the same files, and knows nothing of what was sent.
    put, sent = Store.put, []
    monkeypatch.setattr(
        Store,
        "put",
        lambda self, file, name, size=None: (sent.append(name), put(self, file, name, size)),
    )
    checkpoint(run, 11, rows={"segment_1.rows": b"a" * 30, "main/segment_1.rows": b"m"})
    checkpoints.retain(run / "checkpoints", 2)
    mirrored(run, url)
    assert store.rows() == named_rows(store) and len(store.rows()) == 3
    assert sorted(store.steps("checkpoints")) == ["step_10", "step_11"]
    # not again what was there
    assert sorted(size for name, size in store.rows().items() if name in sent) == [30]
    assert store.read("checkpoints/replay/note.rows") == b"of a user"


@pytest.mark.thorough
def test_rows_that_were_cut_short_are_sent_again(tmp_path, url):
    run, store = tmp_path / "run", Store(url)
    checkpoint(run, 1, rows={"segment_1.rows": b"a" * 10})
    (name,) = (_row_name("segment_1.rows", sha256(b"a" * 10)),)
    (tmp_path / "cut").write_bytes(b"a" * 5)
    store.put(tmp_path / "cut", name)
    mirrored(run, url)
    assert store.read(name) == b"a" * 10


def test_capsules_are_copied_and_what_is_there_stays(tmp_path, url):
    run, store = tmp_path / "run", Store(url)
    checkpoint(run, 1)
    for name in ("exception-ValueError-01", "exception-ValueError-02", ".capsule-half"):
        (run / "capsules" / name).mkdir(parents=True)
        for file in ("capsule.json", "arrays.npz"):
            (run / "capsules" / name / file).write_bytes(name.encode())
    (tmp_path / "old").write_bytes(b"old")
    store.put(tmp_path / "old", "capsules/exception-ValueError-01/capsule.json")
    mirrored(run, url)
    assert sorted(store.names("capsules")) == ["exception-ValueError-01", "exception-ValueError-02"]
    assert store.read("capsules/exception-ValueError-01/capsule.json") == b"old"
    assert store.read("capsules/exception-ValueError-02/arrays.npz") == b"exception-ValueError-02"


# ------------------------------------------------------------------------------- a store that fails


def test_a_failing_store_is_told_once_and_tried_again(tmp_path, url, monkeypatch):
    said = []
    checkpoint(tmp_path / "run", 1)
    put = Store.put

    def full(self, file, name, size=None):
        if name.endswith("learner.safetensors"):
            raise OSError(28, "No space left on device")
        put(self, file, name, size)

    monkeypatch.setattr(Store, "put", full)
    mirror = Mirror(tmp_path / "run", url)
    assert not mirror.finish(30, said.append) and not mirror.finish(30, said.append)
    assert len(said) == 1 and mirror.failures == 2 and holds(url) == "a beginning"
    monkeypatch.setattr(Store, "put", put)
    assert mirror.finish(30) and holds(url) == "a run"
    mirror.close()


class Faulty:
    """A file system that fails to write: the kind of the fault, and how many it had."""

    def __init__(self, fs, kind):
        self._fs, self._kind, self._opened, self.left, self.faults = fs, kind, 0, 60_000, 0

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def open(self, path, mode, **more):
        file = self._fs.open(path, mode, **more)
        self._opened += "w" in mode
        if "w" in mode and (self._kind == "full" or self._opened % 3 == 0):
            write = file.write
            file.write = lambda data: self._written(write, data)
        return file

    def _written(self, write, data):
        self.left -= len(data)
        if self._kind == "full" and self.left > 0:
            return write(data)
        self.faults += 1
        if self._kind == "error":
            raise OSError(errno.EIO, "the store gave no answer")
        write(data[: len(data) // 2])
        if self._kind == "full":
            raise OSError(errno.ENOSPC, "no room is left")
        return len(data)  # cut in half, and nobody says so


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["error", pytest.param("full", marks=pytest.mark.slow), "half"])
def test_a_store_that_fails_costs_checkpoints_and_not_the_run(tmp_path, url, monkeypatch, kind):
    whole = run_of(out=tmp_path / "whole").summary
    made, faulty = Store.__init__, []

    def broken(self, url):
        made(self, url)
        self.fs = Faulty(self.fs, kind)
        faulty.append(self.fs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "__init__", broken)
    run = run_of(out=url)
    monkeypatch.setattr(Store, "__init__", made)
    assert (
        run.summary["params_sha256"] == whole["params_sha256"]
        and run.summary["status"] == "completed"
    )
    assert any("times the run could not be copied" in note for note in run.summary["notes"])
    assert sum(one.faults for one in faulty) > 1
    assert halves(Store(url)) == []
    mirrored(run.directory, url)  # the store is well again
    found = fetch(url, tmp_path)
    newest = checkpoints.latest(found / "checkpoints", whole=True)
    assert (
        newest.name == checkpoints.latest(run.directory / "checkpoints", whole=True).name
        and halves(Store(url)) == []
    )


# ---------------------------------------------------------------------------------- runs that go on


SIZES = {
    "steps": 8_192,
    "seed": 3,
    "actors": 1,
    "envs_per_actor": 4,
    "unroll": 16,
    "batch": 4,
    "recipe": False,
    "settings": ["schedule.checkpoint_every=2048", "algorithm.hidden=16"],
    "evaluate_episodes": 0,
    "max_lag": 0,
}


def run_of(**options):
    run = api.start("CartPole-v1", "ppo", on="serial", tensorboard=False, **SIZES | options)
    for _ in run:
        pass
    return run


def child(code: str, *args: object, cwd: Path) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    places = os.pathsep.join(str(root / folder) for folder in ("src", "benchmarks", ""))
    command = [
        sys.executable,
        "-c",
        f"import os, sys; from tests.runtime.test_mirror import *; {code}",
        *map(str, args),
    ]
    return subprocess.Popen(command, cwd=cwd, env={**os.environ, "PYTHONPATH": places})


@pytest.mark.thorough
def test_a_killed_run_goes_on_from_its_url_to_the_same_bits(tmp_path, url, monkeypatch):
    """Its own directory is lost with it."""
    elsewhere = tmp_path / "elsewhere"
    whole = run_of(out=tmp_path / "whole").summary
    for place in (tmp_path / "here", elsewhere):
        place.mkdir()
    with child("run_of(out=sys.argv[1])", url, cwd=tmp_path / "here") as run:
        end = time.monotonic() + 120
        while holds(url) != "a run":
            assert time.monotonic() < end and run.poll() is None, "no checkpoint came to the URL"
            time.sleep(0.02)
        run.kill()
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(elsewhere)
    again = run_of(out=url, or_resume=True)
    assert again.summary["params_sha256"] == whole["params_sha256"]
    assert any("resumed at step" in note for note in again.summary["notes"]), again.summary["notes"]
    assert json.loads(Store(url).read("summary.json"))["params_sha256"] == whole["params_sha256"]
    assert len(os.listdir("runs")) == 1
    with pytest.raises(api.NothingToDo, match="complete at step"):
        run_of(out=url, or_resume=True)
    with pytest.raises(
        ValueError,
        match=r"of the same program to go on with, got one with schedule.seed 3 \(now 4\)",
    ):
        run_of(out=url, or_resume=True, seed=4)
    with pytest.raises(FileExistsError, match="got a run; --or-resume goes on with it"):
        run_of(out=url)
    assert len(os.listdir("runs")) == 1, "a resume that is refused leaves no copy"


def test_the_same_command_goes_on_with_a_run_that_was_changed_since():
    def program(*settings, algorithm="ppo", **options):
        return api.program("CartPole-v1", algorithm, recipe=False, settings=settings, **options)

    more, notes = _again(program(steps=2_000), program(steps=1_000), "s3://b/run")
    assert more == {} and len(notes) == 1
    assert notes[0].startswith("the run keeps schedule.steps 2000 (now 1000); ")
    # as "resume --steps 2000" makes it
    longer = program("schedule.schedule_steps=1000", steps=2_000)
    assert _again(longer, program(steps=2_000), "s3://b/run") == ({}, [])
    assert _again(longer, program(steps=3_000), "s3://b/run") == ({"steps": 3_000}, [])
    measured, other = program(actors=3, inference="central"), program(actors=2, seed=5)
    with pytest.raises(ValueError, match=r"got one with schedule.seed 0 \(now 5\)$"):
        _again(measured, other, "s3://b/run")
    more, notes = _again(measured, program("algorithm.entropy=0.5", actors=2), "s3://b/run")
    assert "placement.actors 3 (now 2)" in notes[0] and "algorithm.entropy" in notes[0]
    with pytest.raises(ValueError, match=r"got one with .*algorithm 'ppo' \(now 'a2c'\)"):
        _again(program(), program(algorithm="a2c"), "s3://b/run")


@pytest.mark.thorough
def test_a_job_goes_on_with_the_steps_of_a_resume(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/store"
    monkeypatch.chdir(tmp_path)
    command = {**SIZES, "steps": 4_096, "out": url, "or_resume": True}
    run_of(**command)
    run = api.start(resume=url, steps=12_288)
    next(run)
    run.close()  # the machine is taken away
    assert run.summary["status"] == "interrupted"
    again = run_of(**command)
    assert again.summary["env_steps"] == 12_288 and again.summary["status"] == "completed"
    assert any(
        "the run keeps schedule.steps 12288 (now 4096)" in note for note in again.summary["notes"]
    )
    with pytest.raises(api.NothingToDo):
        run_of(**command)
    assert run_of(**command | {"steps": 14_336}).summary["env_steps"] == 14_336


def killed_at_once(out):
    run = api.start("CartPole-v1", "ppo", on="serial", out=out, **SIZES | {"settings": []})
    next(run)
    os._exit(9)


@pytest.mark.thorough
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    with child("killed_at_once(sys.argv[1])", tmp_path / "run", cwd=tmp_path) as run:
        assert run.wait(250) == 9
    assert holds(tmp_path / "run") == "a beginning"
    left = (tmp_path / "run/run.json").read_bytes()
    lock = paths.lock(tmp_path / "run")
    with pytest.raises(ValueError, match="another process writes now"):
        run_of(out=tmp_path / "run", or_resume=True)
    assert os.listdir(tmp_path) == ["run"]
    os.close(lock)
    again = run_of(out=tmp_path / "run", or_resume=True)
    assert again.summary["status"] == "completed"
    assert any(
        f"what it left is now in {tmp_path}/run.1" in note for note in again.summary["notes"]
    )
    assert (tmp_path / "run.1/run.json").read_bytes() == left
    with pytest.raises(api.NothingToDo):
        run_of(out=tmp_path / "run", or_resume=True)


def test_what_a_run_cannot_go_on_from_is_a_beginning(tmp_path, url):
    run = tmp_path / "run"
    assert holds(run) == holds(url) == "nothing"
    place = checkpoint(run, 1)
    said = json.loads((place / "manifest.json").read_text())
    # of weights alone, as a run leaves that is told to go before its first update
    (place / "learner.safetensors").unlink()
    del said["files"]["learner.safetensors"]
    (place / "manifest.json").write_text(json.dumps(said))
    (run / "summary.json").write_text('{"status": "interrupted"}')
    mirrored(run, url)
    assert holds(run) == holds(url) == "a beginning"
    with pytest.raises(FileExistsError, match="got a beginning; --or-resume"):
        api.start("CartPole-v1", out=url)
    (run / "summary.json").write_text('{"status": "completed"}')
    mirrored(run, url)
    assert holds(run) == holds(url) == "a run"  # which is not begun anew
    (run / "summary.json").unlink()
    checkpoint(run, 2)
    mirrored(run, url)
    assert holds(run) == holds(url) == "a run"


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "mirror"]


def test_a_resume_that_fails_leaves_the_url_and_no_thread(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/store"
    monkeypatch.chdir(tmp_path)
    run = api.start("CartPole-v1", "ppo", on="serial", out=url, **SIZES)
    next(run)
    run.save()
    run.close()
    assert threads() == [] and holds(url) == "a run"
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}

    def fails(self, *args, **more):
        (self.path / "run.json").write_text("{}")
        raise OSError("no room is left")

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "rewind", fails)
        with pytest.raises(OSError, match="no room is left"):
            api.start(resume=url)
    assert threads() == [] and len(os.listdir("runs")) == 1
    assert {
        path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    } == before
    with api.start(resume=url) as again:
        assert threads() == []
        assert any(threads() == ["mirror"] for _ in again)  # from the first report on
        assert again.directory != run.directory
    assert threads() == []


# ----------------------------------------------------------------------------- what is not believed


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path):
    url = f"file://{tmp_path}/store"
    place = checkpoint(tmp_path / "run", 1)
    mirrored(tmp_path / "run", url)
    (tmp_path / "secret").write_bytes(b"s")
    said = json.loads((place / "manifest.json").read_text())
    said["files"]["../../../secret"] = {"sha256": hashlib.sha256(b"s").hexdigest(), "size": 1}
    (tmp_path / "store/checkpoints/step_1/manifest.json").write_text(json.dumps(said))
    (tmp_path / "secret").write_bytes(b"kept")
    with pytest.raises(
        FileNotFoundError, match="expected a whole checkpoint to go on from, got none; .*secret"
    ):
        fetch(url, tmp_path)
    assert (tmp_path / "secret").read_bytes() == b"kept"


def without(monkeypatch, *packages):
    """These packages are not there, and no earlier test had fsspec load them."""
    for protocol in ("s3", "abfs", "sftp"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def test_a_protocol_without_its_package_is_one_line(monkeypatch):
    without(monkeypatch, "s3fs")
    with pytest.raises(
        ValueError, match=r"expected a package for this protocol, got none: .*s3fs.*install .*"
    ):
        Store("s3://bucket/run")


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:SECRET@bucket/run",
        "s3://KEY:SEC/RET+SECRET@bucket/run",
        "https://user:SECRET@host/run",
        "https://SECRET@host/run",
        "simplecache::s3://KEY:SECRET@bucket/run",
        "https://host/run?sig=SECRET",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: api.start("CartPole-v1", out=url, or_resume=True),
        lambda: api.start(resume=url),
        lambda: fetch(url),
    ):
        with pytest.raises(
            ValueError, match="expected a URL without a password, key or token"
        ) as refused:
            use()
        assert "AWS_SECRET_ACCESS_KEY" in str(refused.value) and "\n" not in str(refused.value)
        assert not any(
            part in str(refused.value) for part in ("KEY:", "SEC/", "SECRET@", "=SECRET", "user")
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    ["s3://bucket/run:1@home", "abfs://box@account.dfs.core.windows.net/run", "sftp://me@host/run"],
)
def test_a_url_without_a_secret_is_not_refused_for_one(monkeypatch, url):
    without(monkeypatch, "s3fs", "adlfs", "paramiko")
    with pytest.raises(ValueError, match="expected a package for this protocol"):
        Store(url)


def test_what_a_store_raises_of_its_own_names_the_url(monkeypatch):
    class Unreachable(Exception):
        pass

    def raises(self, name):
        raise Unreachable("no credentials")

    monkeypatch.setattr(Store, "steps", raises)
    monkeypatch.setattr(Store, "has", raises)
    for use in (holds, fetch):
        with pytest.raises(
            OSError,
            match=r"memory://run: expected a store that answers, got Unreachable: no credentials",
        ):
            use("memory://run")
