"""A version that fails in any way costs the aliases that name it, with alarms; the champion answers
and follows its alias.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise.client import Client
from equipoise.registry import Registry
from equipoise.serving.messages import Refused
from equipoise.serving.settings import Rules
from equipoise.serving.trial import Exceeded, Trial
from equipoise.serving.versions import Versions
from tests.artifacts import artifact
from tests.serving.broken import BREAK, broken
from tests.serving.servers import OBS, serving

OTHERS = ("candidate", "previous", "shadow")
KINDS = [*BREAK, "other spaces", "no right to read", "removed while loading"]
PASSED: set[str] = set()  # good versions, tried once for all tests
SAYS = {
    "wrong shape": "Reshape",
    # a second of processor time, or ten of a machine whose cores others have
    "endless": "in a process of its own within",
    "2 GB": "bytes of memory",
    "2 GB file": "bytes of memory",
    "external data": "external data",
    "custom operator": "com.example",
    "nan weights": "finite numbers",
    "missing field": "spec.json: expected what 'equipoise export' writes",
    "torn file": "expected the SHA-256",
    "other spaces": "actions",
    "no right to read": "Permission denied",
    "removed while loading": "expected",
}


class Source:
    """A registry of good versions a and b, and a bad one that is broken in its own way."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.folder, self.paths, self.set = (
            kind,
            folder,
            dict[str, Path](),
            dict[str, str](),
        )
        self.good = [self._put(artifact(folder / f"good-{seed}", "mlp", seed)) for seed in (0, 1)]
        if kind in BREAK:
            self.bad, path = broken(folder / "bad", kind)
            self.paths[self.bad] = path
        else:
            self.bad = self._put(
                artifact(folder / "bad", "box" if kind == "other spaces" else "mlp", 2)
            )

    def _put(self, path: Path) -> str:
        version = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
        self.paths[version] = path
        return version

    def revision(self, name: str) -> Any:
        return str(self.set)

    def aliases(self, name: str) -> dict[str, str]:
        return dict(self.set)

    def resolve(self, name: str, version: str) -> tuple[str, Path]:
        path = self.paths[version]
        if version == self.bad and self.kind == "no right to read":
            raise PermissionError(13, "Permission denied", str(path))
        if version == self.bad and self.kind == "removed while loading":
            shutil.copytree(path, gone := self.folder / f"gone-{time.monotonic_ns()}")
            shutil.rmtree(gone)
            return version, gone
        return version, path


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(240):  # of 2 GB files, beside other tests
        while not true():
            await asyncio.sleep(0.005)


@contextmanager
def started(source: Source) -> Iterator[Versions]:
    versions = Versions(source, "p", Rules(), trial=Trial(cpu_s=1, memory=1 << 29, _passed=PASSED))
    versions.start()
    try:
        yield versions
    finally:
        versions.stop(20)
    assert versions.trial is not None and all(
        child.poll() is not None for child in versions.trial._children
    )


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_version_that_fails_costs_its_aliases_alone(kind: str, tmp_path: Path) -> None:
    source = Source(tmp_path, kind)
    a, b, bad = *source.good, source.bad

    async def follow() -> None:
        source.set = {"champion": a, **dict.fromkeys(OTHERS, bad)}
        with started(source) as versions:  # the server starts, whatever the others are
            champion = lambda: versions.find(None).digest  # noqa: E731
            assert champion() == a
            versions.follow(asyncio.get_running_loop())
            await until(lambda: all(f"{alias}: " in str(versions.alarm) for alias in OTHERS))
            assert SAYS[kind] in str(versions.alarm) and "champion: " not in str(versions.alarm)
            assert versions.now.shadow is None
            if kind != "other spaces":  # those who name it know its spaces
                assert list(versions.now.by_alias) == ["champion"]
            source.set["champion"] = b  # followed though the others are broken
            await until(lambda: champion() == b)
            source.set["champion"] = bad  # the last good one goes on
            await until(lambda: "champion: " in str(versions.alarm))
            assert champion() == b
            source.set = {"champion": a}  # the ordinary repair
            await until(lambda: champion() == a and versions.alarm is None)
        source.set = {"champion": bad, "previous": a}
        with started(source) as versions:
            if kind != "other spaces":
                assert champion() == a, (
                    "at a start the previous one takes the place of a broken champion"
                )
                assert "champion: " in str(versions.alarm) and SAYS[kind] in str(versions.alarm)

    asyncio.run(follow())


def test_a_start_without_a_good_champion(tmp_path: Path) -> None:
    """Other aliases are served, and requests of the champion get 503 with the reason; without any
    the start says why.
    """
    source = Source(tmp_path, "wrong shape")
    source.set = {"champion": source.bad, "candidate": source.good[0]}

    async def follow() -> None:
        with started(source) as versions:
            assert versions.find("candidate").digest == source.good[0]
            for name in (None, "champion"):
                with pytest.raises(
                    Refused,
                    match="expected a champion that can be served, got none: champion: .*Reshape",
                ) as no:
                    versions.find(name)
                assert no.value.status == 503
            versions.follow(asyncio.get_running_loop())
            source.set["champion"] = source.good[1]
            await until(lambda: "champion" in versions.now.by_alias)
            assert versions.find(None).digest == source.good[1] and versions.alarm is None

    asyncio.run(follow())
    source.set = {"champion": source.bad}
    versions = Versions(source, "p", Rules(), trial=Trial(_passed=PASSED))
    with pytest.raises(
        ValueError, match="p: expected a version that can be served, got none: champion: .*Reshape"
    ):
        versions.start()
    versions = Versions(source, "p", Rules(low=0), trial=Trial(_passed=PASSED))
    source.set = {"champion": source.good[0]}
    with pytest.raises(ValueError, match="expected a policy whose action is a Box"):
        versions.start()


def test_a_server_ends_once_no_thread_is_inside_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that comes back from onnxruntime while the process ends would abort it."""
    source, inside, leave = Source(tmp_path, "wrong shape"), threading.Event(), threading.Event()
    source.set = {"champion": source.good[0]}

    def slow(*given: Any, **more: Any) -> Any:
        inside.set()
        assert leave.wait(60)
        raise ValueError("it took long")

    async def follow() -> None:
        with started(source) as versions:
            versions.follow(asyncio.get_running_loop())
            monkeypatch.setattr("equipoise.serving.versions.load", slow)
            source.set["candidate"] = source.good[1]
            await until(inside.is_set)
            threading.Timer(0.3, leave.set).start()
        assert leave.is_set()
        assert not [one.name for one in threading.enumerate() if one.name.startswith("version")]

    asyncio.run(follow())


def test_a_registry_that_cannot_be_read_and_errors_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(tmp_path, "wrong shape")
    a, b = source.good
    source.set = {"champion": a}

    class Odd(RuntimeError):
        pass

    def fails(*_: Any, **__: Any) -> Any:
        raise Odd("of a\nkind\x1b[2J")

    async def follow() -> None:
        with started(source) as versions:
            versions.follow(asyncio.get_running_loop())
            with monkeypatch.context() as patch:
                patch.setattr(source, "revision", fails)
                await until(lambda: versions.alarm == "registry: Odd: of a kind\x1b[2J")
                assert versions.find(None).digest == a
            await until(lambda: versions.alarm is None)
            with monkeypatch.context() as patch:
                patch.setattr("equipoise.serving.versions.load", fails)
                source.set["shadow"] = b
                await until(lambda: "shadow: Odd: " in str(versions.alarm))
            source.set = {"champion": b}
            await until(lambda: versions.find(None).digest == b)
            source.set = {}
            await until(
                lambda: versions.alarm == "champion: expected an alias that is set, got none"
            )
            assert versions.find(None).digest == b

    asyncio.run(follow())


@pytest.mark.thorough
def test_an_endless_version_is_not_tried_again_at_once(tmp_path: Path) -> None:
    """It took a second of processor time, so for ten times as long nothing is spent on it, whatever
    moves.
    """
    source = Source(tmp_path, "endless")
    version, source.set = source.bad, {"champion": source.good[0], "candidate": source.bad}

    async def follow() -> None:
        with started(source) as versions:
            versions.follow(asyncio.get_running_loop())
            await until(lambda: "candidate: " in str(versions.alarm))
            attempt = versions._attempts[version]
            assert isinstance(attempt.error, Exceeded) and attempt.again - attempt.began > 10
            source.set = {"champion": source.good[1], "shadow": version}
            await until(
                lambda: (
                    versions.find(None).digest == source.good[1]
                    and "shadow: " in str(versions.alarm)
                )
            )
            assert versions._attempts[version] is attempt

    asyncio.run(follow())


def test_a_trial_loads_no_torch_and_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, sys\nfrom equipoise.serving import trial\nsys.argv = ['', "
        "'onnx']\ntrial.main()\n"
        "print(json.dumps(sorted({'torch', 'ray', 'gymnasium'} & sys.modules.keys())))"
    )
    folder = artifact(tmp_path / "good", "mlp")
    asked = json.dumps(
        {"path": str(folder), "trusted": [], "batch": 64, "cpu_s": 20, "memory": 1 << 30}
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    version = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert done.stdout == json.dumps({"version": version}) + "[]\n"
    trial = Trial()
    trial.prepare()
    spare = trial._spare
    assert spare is not None and spare.stdin is not None and spare.stdout is not None
    spare.stdin.close()  # as when the parent is killed
    assert spare.wait(60) == 0 and spare.stdout.read() == b""
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")  # nothing of this folder is imported
    monkeypatch.chdir(tmp_path)
    trial(folder, version)
    trial.close()
    with pytest.raises(ValueError, match="got one that ends"):
        trial(folder, "another")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["wrong shape", "endless"])
def test_a_server_with_a_broken_candidate_follows_and_starts_again(
    kind: str, tmp_path: Path
) -> None:
    made = Registry(tmp_path / "registry", create=True)
    a, b = (made.add(artifact(tmp_path / f"good-{seed}", "mlp", seed), "mlp") for seed in (0, 1))
    bad = made.add(broken(tmp_path / "bad", kind)[1], "mlp")
    made.alias("mlp", "champion", a)
    for _ in range(2):
        made.alias("mlp", "candidate", None)
        with (
            serving(tmp_path, "mlp", "--trial-time", "1") as running,
            Client(running.url) as client,
        ):
            end = time.monotonic() + 60
            made.alias("mlp", "candidate", bad)
            for version in (b, a):
                made.alias("mlp", "champion", version)
                while client.act(OBS).version != version:
                    assert time.monotonic() < end
            while not any("candidate: " in alarm for alarm in client.state()["alarms"]):
                assert time.monotonic() < end
            made.alias("mlp", "champion", bad)
            while not any("champion: " in alarm for alarm in client.state()["alarms"]):
                assert time.monotonic() < end
                assert client.act(OBS).version == a
        with (
            serving(tmp_path, "mlp", "--trial-time", "1") as running,
            Client(running.url) as client,
        ):
            assert client.act(OBS).version == a and client.state()["ready"]
            made.rollback("mlp")
