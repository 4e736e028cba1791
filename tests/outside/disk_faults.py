"""Do something with a fault at each of its file operations: ``python -m tests.outside.disk_faults
SUBJECT FAULT FOLDER``.

A process of its own, since it forks. Prints a JSON line for each n: what a reader sees after the
n-th file operation went wrong, what was raised, and what is seen once it was done again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import edge, trust
from equipoise.envs.failures import capsule
from equipoise.files import append_whole, read_json, write_atomic
from equipoise.language.scoring import capsules
from equipoise.language.scoring.functions import Samples
from equipoise.record import checkpoint
from equipoise.record.mirror import Store
from equipoise.registry import keeping
from equipoise.types import EnvFactory
from tests.outside.disk import KILLED, Disk
from tests.registry import killing
from tests.registry.made import artifact as made_artifact


@dataclass(frozen=True)
class Subject:
    """``prepare`` what is there before, ``act`` on it, and look at what a reader sees: it must be
    the old or the new.

    ``lasts``: once ``act`` has returned, a power cut leaves the new. ``parts``: it does several
    things, each as a whole, so what lies between the old and the new is as good.
    """

    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    seen: Callable[[Path], Any]
    lasts: bool = True
    parts: bool = False


def put(folder: Path, step: int, word: str) -> None:
    """A checkpoint of two files; the act that fails removes what lies aside."""
    place = checkpoint.begin(folder, step)
    try:
        files = checkpoint.add(place, checkpoint.WEIGHTS, word.encode() * 1000)
        files |= checkpoint.add(place, checkpoint.META, b'{"version": 1, "env_steps": 2}')
        checkpoint.complete(folder, step, files)
    except OSError:
        checkpoint.abandon(folder, step)
        raise


def put_three(folder: Path) -> None:
    for step in (1, 2, 3):
        put(folder, step, f"{step}xx")


def newest(folder: Path) -> Any:
    found = checkpoint.latest(folder)
    return (
        None
        if found is None
        else [found.name.removeprefix("."), checkpoint.read(found, checkpoint.WEIGHTS)[:3].decode()]
    )


def aged(folder: Path) -> Any:
    """The newest whole checkpoint, whatever is left of older ones. ".step_2.old" is step 2, set
    aside for a moment.
    """
    return None if (found := newest(folder)) is None else [found[0].removesuffix(".old"), found[1]]


def appended(folder: Path) -> None:
    with (folder / "lines").open("ab", buffering=0) as file:
        append_whole(file, b"new" * 200 + b"\n", folder / "lines")
        os.fsync(file.fileno())


def whole_lines(folder: Path) -> list[str]:
    """The whole lines: a reader leaves out one that has no end."""
    return [line[:3] for line in (folder / "lines").read_text().split("\n")[:-1]]


def key(folder: Path) -> Any:
    os.environ["XDG_STATE_HOME"] = str(folder)
    path = trust.key_path()
    assert path is not None
    return (
        "key"
        if path.exists() and len(path.read_bytes()) == trust.KEY_BYTES
        else path.exists() or None
    )


def make_key(folder: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(folder)
    path = trust.key_path()
    assert path is not None
    if not path.exists():
        trust._make(path)


def publish(folder: Path) -> None:
    from equipoise.exporting import artifact  # which loads torch

    artifact._publish(folder / "artifact", {"a.bin": b"1" * 5000, "spec.json": b"{}"})


def published(folder: Path) -> Any:
    path = folder / "artifact"
    return sorted(file.name for file in path.iterdir()) if path.is_dir() else None


def write_capsule(folder: Path) -> None:
    """Of an env and of a reward. What cannot be written costs the capsule, with a warning."""
    of_env = capsule.Capsule(
        env=EnvFactory(target="CartPole-v1"),
        streams=(0,),
        stream=0,
        seed=0,
        start=capsule.Start(kind="birth"),
        kind="exception",
        error="KeyError",
        message="",
        key=None,
        step=0,
        wrappers="",
        traceback="",
        versions={},
        actions=np.zeros(3),
        observations={},
        state={},
    )
    samples = Samples(
        prompts=["p"], completions=["c"], completion_ids=[[1]], ended=[True], columns={}
    )
    of_reward = capsules.RewardCapsule(reward="m:f", error="e", deadline_s=None, samples=samples)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        places = capsule.write(folder, of_env, KeyError("x")), capsules.write(folder, of_reward)
    if None in places:
        assert told, "a capsule that could not be written is told"
        raise OSError(str(told[0].message))


def readable_capsules(folder: Path) -> Any:
    """How many of each kind can be read; a second one of a cause is as good as the first."""
    envs = [capsule.read(path, ["CartPole-v1"]) for path in folder.glob("exception-*")]
    rewards = [capsules.read(path, ("m:f",)) for path in folder.glob("reward-*")]
    return [bool(envs), bool(rewards)]


def log_a_decision(folder: Path) -> None:
    """The robot acts on, whatever becomes of its log."""
    policy = object.__new__(edge.EdgePolicy)
    policy.lost, policy._log = (
        0,
        os.open(folder / "lines", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644),
    )
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        policy._keep({"new": "x" * 500})
    os.close(policy._log)
    if policy.lost:
        raise OSError("counted as lost")


def decisions(folder: Path) -> list[str]:
    """The whole lines. A half one of a killed process has an end of its own, and readers leave it
    out.
    """
    found = (folder / "lines").read_text().split("\n")[:-1]
    return [
        line[2:5] if line.endswith("}") else line for line in found if line.endswith(("}", "old"))
    ]


def mirror(folder: Path) -> None:
    Store(f"file://{folder / 'there'}").put(folder / "source", "room/copy")


def mirrored(folder: Path) -> Any:
    path = folder / "there" / "room" / "copy"
    return path.read_bytes().decode()[:3] + f" {path.stat().st_size}" if path.exists() else None


def prepare_mirror(folder: Path) -> None:
    (folder / "source").write_bytes(b"old" * 100)
    mirror(folder)
    (folder / "source").write_bytes(b"new" * 10_000)


def of_registry(name: str) -> Subject:
    """One scenario of the registry's own kills, whose readers and operations are the same."""
    prepare, act = killing.SCENARIOS[name]
    return Subject(
        lambda folder: prepare(folder / "registry", folder.parent / "made"),
        lambda folder: act(folder / "registry", folder.parent / "made"),
        lambda folder: killing.seen(folder / "registry"),
        lasts=name != "gc",
        parts=name == "gc",
    )


SUBJECTS: dict[str, Subject] = {
    "checkpoint": Subject(lambda f: put(f, 1, "one"), lambda f: put(f, 2, "two"), newest),
    "checkpoint again": Subject(lambda f: put(f, 2, "one"), lambda f: put(f, 2, "two"), aged),
    "retain": Subject(put_three, lambda f: checkpoint.retain(f, 1), newest, lasts=False),
    "atomic": Subject(
        lambda f: write_atomic(f / "x.json", b'{"word": "old"}'),
        lambda f: write_atomic(f / "x.json", b'{"word": "new"}'),
        lambda f: read_json(f / "x.json")["word"],
    ),
    "append": Subject(lambda f: (f / "lines").write_text("old\n"), appended, whole_lines),
    "key": Subject(lambda f: None, make_key, key, lasts=False),
    "artifact": Subject(lambda f: None, publish, published),
    "capsules": Subject(lambda f: None, write_capsule, readable_capsules, lasts=False, parts=True),
    "edge log": Subject(
        lambda f: (f / "lines").write_text("old\n"), log_a_decision, decisions, lasts=False
    ),
    "mirror": Subject(prepare_mirror, mirror, mirrored, lasts=False),
    "registry add": of_registry("add"),
    "registry alias": of_registry("alias"),
    "registry rollback": of_registry("rollback"),
    "registry gc": of_registry("gc"),
}


def main(name: str, fault: str, folder: Path) -> None:
    subject = SUBJECTS[name]
    if name.startswith("registry"):
        keeping.LEFT_S = -1.0  # what is left of a killed process is nobody's at once
        for letter in "abcde":
            made_artifact(folder / "made" / letter, letter)
    base, done = folder / "base", folder / "done"
    base.mkdir()
    subject.prepare(base)
    shutil.copytree(base, done, symlinks=True)
    with Disk(done) as disk:
        subject.act(done)
    operations = disk.count
    new = json.loads(json.dumps(subject.seen(done)))
    first = {
        "old": subject.seen(base),
        "new": new,
        "operations": operations,
        "lasts": subject.lasts,
        "parts": subject.parts,
    }
    print(json.dumps(first))
    # a slow disk is slow from the first operation on
    last = {"cut": operations + 1, "slow": 1}.get(fault, operations)
    for nth in range(1, last + 1):
        copy = folder / f"{fault}-{nth}"
        shutil.copytree(base, copy, symlinks=True)
        raised = None
        if fault in ("kill", "cut"):
            if (child := os.fork()) == 0:
                with Disk(copy, fault, nth) as disk:  # type: ignore[arg-type]
                    subject.act(copy)
                    if fault == "cut":  # after the last operation
                        disk.cut()
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            # Names that are drawn and folders that are listed may make one operation more or less.
            raised = None if code == 0 else "killed" if code == KILLED else f"exit code {code}"
        else:
            try:
                with Disk(copy, fault, nth) as disk:  # type: ignore[arg-type]
                    subject.act(copy)
            except OSError as error:
                raised = f"OSError: {error.strerror or error}"
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
        at = disk.done[nth - 1] if fault not in ("kill", "cut") and nth <= len(disk.done) else ""
        seen: Any
        try:
            seen = subject.seen(copy)
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        line: dict[str, Any] = {"nth": nth, "at": at, "raised": raised, "seen": seen}
        try:
            if json.loads(json.dumps(seen)) != new:
                subject.act(copy)
            line["again"] = subject.seen(copy)
        except Exception as error:
            line["again"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
        shutil.rmtree(copy)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
