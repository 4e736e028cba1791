"""Capsules: the acts of an env up to its failure, as JSON and arrays, so that it can be done again
(``equipoise reproduce``).

A capsule is a directory that is there whole or not at all::

    capsule.json   which env and stream, how the actions began, what went wrong, the versions of everything
    arrays.npz     actions [n, ...] since then; obs/... [k, ...] the last observations; state/... of a native vector env

The actions may cover a few episodes, including the ignored actions between them.

Nothing in it is a pickle. Names are ours, never an env's: ``KIND-TYPE-WHERE-NN``, at most ``LIMIT``
of one cause in a run.
"""  # noqa: E501

from __future__ import annotations

import errno
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise import foreign, tree, trust
from equipoise.envs.failures.causes import Causes
from equipoise.envs.failures.row_checks import Kind, WrongValue
from equipoise.errors import Final
from equipoise.files import read_json, write_synced
from equipoise.hints import message
from equipoise.schema import Anything, Each, Items, Maybe, Number, Schema, Text, check, described
from equipoise.types import Array, EnvFactory, OnNonfinite, Tree

FORMAT = 2
LIMIT = 20  # capsules of one cause in a run; later ones are only counted
LARGEST = 1 << 30  # bytes of arrays that a reader accepts
# Errors of zipfile and numpy for a member that is no array of numbers, or too large.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    KeyError,
    ValueError,
    RuntimeError,
    MemoryError,
    OverflowError,
)
RECORD, ARRAYS = "capsule.json", "arrays.npz"
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
COUNTED = ("aborted", "clamped", "outside")  # episodes, numbers, rows
KINDS = ("exception", "nonfinite", "invalid", "outside", "cast")


class EnvFailed(Final, RuntimeError):
    """The error of an env that fails however often it is made again."""


class ProcessExhausted(RuntimeError):
    """A process has run out of files or memory; the env may work in a new process."""


def exhausted(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in EXHAUSTED
    )


def _nothing(seconds: float) -> None: ...


@dataclass(slots=True, kw_only=True)
class Failures:
    """The rule for env failures, and how often each kind came: ``counts`` as in ``COUNTED``."""

    on_nonfinite: OnNonfinite = "stop"
    capsules: Path | None = None  # the folder to write to; None: nowhere
    counts: Array = field(default_factory=lambda: np.zeros(len(COUNTED), np.int64))
    causes: Causes = field(default_factory=Causes)  # of the aborted ones
    warned: set[str] = field(default_factory=set)
    # called after each reset of an env with the seconds that it took
    resetting: Callable[[float], object] = _nothing

    def count(self, name: str, by: int = 1) -> None:
        self.counts[COUNTED.index(name)] += by

    def aborted(self, error: Exception) -> None:
        """Count an episode that this error ended."""
        self.count("aborted")
        wrong = error if isinstance(error, WrongValue) else None
        cause = cause_of(
            "exception" if wrong is None else wrong.kind,
            None if wrong is None else wrong.key,
            error,
        )
        self.causes.add(cause, f"{type(error).__name__}: {message(error)}")

    def ends_the_run(self, error: BaseException) -> bool:
        return (
            isinstance(error, WrongValue)
            and error.kind == "nonfinite"
            and self.on_nonfinite == "stop"
        )

    def warn_once(self, error: WrongValue) -> bool:
        """Warn the first time of something odd -> was this the first time?"""
        first = error.key not in self.warned
        if first:
            self.warned.add(error.key)
            warnings.warn(
                f"{error} (reported once; the episode goes on)", RuntimeWarning, stacklevel=2
            )
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How the recorded actions begin.

    seed        a reset with ``seed``
    generator   a reset without one, of an env whose generator is in the state ``generator``, its reset number ``resets``
    birth       the first reset of the env
    state       the arrays ``state``, after which the first action is already sent
    lost        nothing that can be done again
    """  # noqa: E501

    kind: Literal["seed", "generator", "birth", "state", "lost"]
    seed: int | None = None
    generator: dict[str, object] | None = None
    resets: int = 1
    born: int | None = None  # seed of the env's first reset


@dataclass(frozen=True, slots=True, kw_only=True)
class Capsule:
    """One failure. ``streams``: the env's; ``stream``: the failed one, None if not known."""

    env: EnvFactory
    streams: tuple[int, ...]
    stream: int | None
    seed: int  # seed of the run
    start: Start
    kind: Kind
    error: str  # its type
    message: str
    key: str | None  # the key of a wrong value
    # steps of the episode with the failing one (0: the reset), or since ``start`` (vector env)
    step: int
    wrappers: str
    traceback: str
    versions: Mapping[str, str | None]
    actions: Tree  # [n, ...] actions of the stream since ``start``; [n, B, ...] for a vector env
    observations: Tree
    state: Tree


# -------------------------------------------------------------------------------------------- write


def write(directory: Path, capsule: Capsule, error: BaseException) -> Path | None:
    """Write the capsule -> its directory; None at the cause's ``LIMIT``, or if the disk is full."""
    cause = cause_of(capsule.kind, capsule.key, error)
    if not (
        free := [n for n in range(1, LIMIT + 1) if not (directory / f"{cause}-{n:02d}").exists()]
    ):
        return None
    aside = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".capsule-", dir=directory))
        aside.chmod(0o755)
        said = {"actions": capsule.actions, "obs": capsule.observations, "state": capsule.state}
        arrays = {path: np.asarray(x) for path, x in tree.items(said)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        write_synced(aside / ARRAYS, buffer.getvalue())
        write_synced(
            aside / RECORD, (json.dumps(to_json(capsule), indent=2, default=repr) + "\n").encode()
        )
        return _named(aside, directory, cause, free)
    except OSError as failed:  # a full disk costs the capsule, not the run
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        warnings.warn(f"no capsule of {capsule.error}: {failed}", RuntimeWarning, stacklevel=2)
        return None


def _named(aside: Path, directory: Path, cause: str, free: list[int]) -> Path | None:
    """Rename to the first free name: no directory replaces a full one of another worker."""
    for n in free:
        target = directory / f"{cause}-{n:02d}"
        try:
            aside.rename(target)
        except OSError:
            if not target.exists():
                raise
        else:
            return target
    shutil.rmtree(aside)
    return None


def cause_of(kind: Kind, key: str | None, error: BaseException) -> str:
    """The key that equal failures share: kind, type and place, without the message."""
    where = key or ""
    if not where and (frames := traceback.extract_tb(error.__traceback__)):
        where = f"{Path(frames[-1].filename).name}-{frames[-1].lineno}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{kind}-{type(error).__name__}-{where}")[:80].strip(
        "-."
    )


def to_json(capsule: Capsule) -> dict[str, object]:
    env = {
        "target": capsule.env.target,
        "kwargs": dict(capsule.env.kwargs),
        "action_mask": capsule.env.action_mask,
    }
    names, signed = trust.of_env(env)
    return {
        "format": FORMAT,
        "env": env,
        "signature": trust.sign(names, signed, make=True) if names else None,
        "streams": list(capsule.streams),
        "stream": capsule.stream,
        "seed": capsule.seed,
        "start": asdict(capsule.start),
        "kind": capsule.kind,
        "error": capsule.error,
        "message": capsule.message,
        "key": capsule.key,
        "step": capsule.step,
        "wrappers": capsule.wrappers,
        "traceback": capsule.traceback,
        "versions": dict(capsule.versions),
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def versions(env: object) -> dict[str, str | None]:
    """Versions of the packages that decide how ``env`` behaves, its own included."""
    module = type(foreign.optional(env, "unwrapped", env)).__module__.partition(".")[0]
    names = dict.fromkeys(("equipoise", "gymnasium", "numpy", module))
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


# --------------------------------------------------------------------------------------------- read


def read(path: Path, trusted: Sequence[str] = ()) -> Capsule:
    """Read a capsule and check all of it; ValueError names what is wrong.

    ``trusted``: modules and ``module:callable`` that the user vouches for (``trust.py``).
    """
    directory = path.parent if path.name == RECORD else path
    for name in (RECORD, ARRAYS):
        file = directory / name
        if not file.is_file():
            raise FileNotFoundError(
                f"{directory}: expected a capsule, a directory with {RECORD} and {ARRAYS}, got no "
                f"{name}"
            )
        if file.is_symlink():
            raise ValueError(f"{file}: expected a file, got a link to {os.readlink(file)}")
    data = trust.renamed(read_json(directory / RECORD), trusted)
    arrays = read_arrays(directory / ARRAYS)
    capsule = _capsule(data, arrays, directory / RECORD)
    names, signed = trust.of_env(data["env"])
    trust.check(names, signed, data.get("signature"), trusted, directory / RECORD)
    return capsule


NATURAL = Number(0, (1 << 63) - 1, whole=True)
SCHEMA: dict[str, Schema] = {
    "format": Number(whole=True),
    "env": {"target": Text(1000), "kwargs": Each(Anything()), "action_mask": Text(1000)},
    "signature?": Maybe(Text(64)),
    "streams": Items(NATURAL),
    "stream": Maybe(NATURAL),
    "seed": NATURAL,
    "start": {
        "kind": Text(among=("seed", "generator", "birth", "state", "lost")),
        "seed": Maybe(NATURAL),
        "generator": Maybe(Each(Anything())),
        "resets": NATURAL,
        "born": Maybe(NATURAL),
    },
    "kind": Text(among=KINDS),
    "error": Text(),
    "message": Text(),
    "key": Maybe(Text()),
    "step": NATURAL,
    "wrappers": Text(),
    "traceback": Text(),
    "versions": Each(Maybe(Text())),
    "written": Text(),
}
TARGET = re.compile(r"(python:|envpool:)?([A-Za-z_][\w.]*:)?[\w./-]+")


def _capsule(data: Any, arrays: dict[str, Array], file: Path) -> Capsule:
    if isinstance(data, dict):
        _need(
            data.get("format") == FORMAT,
            file,
            "format",
            f"{FORMAT}, since this is equipoise {_version('equipoise')}",
            data.get("format"),
        )
    check(data, SCHEMA, str(file))
    target, streams, start = data["env"]["target"], data["streams"], data["start"]
    rows = {np.shape(x)[:1] for x in tree.leaves(arrays.get("actions", ()))}
    id_of = "a Gymnasium id, module:id or module:callable"
    one_of = f"one of {streams} or null"
    path = ".." in target or "/." in target or target[:1] == "/"
    for right, name, expected, got in (
        (TARGET.fullmatch(target), "env.target", id_of, target),
        (not path, "env.target", "a name, no path", target),
        (streams, "streams", "at least one stream", streams),
        (data["stream"] in (None, *streams), "stream", one_of, data["stream"]),
        *(
            (start["kind"] != kind or start[kind] is not None, f"start.{kind}", f"a {kind}", None)
            for kind in ("seed", "generator")
        ),
        ("actions" in arrays, ARRAYS, "an array 'actions'", f"{sorted(arrays)}"),
        (
            len(rows) == 1 and rows != {()},
            ARRAYS,
            "as many actions of each part, [n, ...]",
            f"{sorted(rows)}",
        ),
        (
            start["kind"] != "state" or "state" in arrays,
            ARRAYS,
            "arrays state/...",
            f"{sorted(arrays)}",
        ),
    ):
        _need(right, file, name, expected, got)
    return Capsule(
        env=EnvFactory(
            target=target, kwargs=data["env"]["kwargs"], action_mask=data["env"]["action_mask"]
        ),
        streams=tuple(streams),
        stream=data["stream"],
        seed=data["seed"],
        start=Start(**start),
        kind=data["kind"],
        error=data["error"],
        message=data["message"],
        key=data["key"],
        step=data["step"],
        wrappers=data["wrappers"],
        traceback=data["traceback"],
        versions=data["versions"],
        actions=arrays["actions"],
        observations=arrays.get("obs", {}),
        state=arrays.get("state", {}),
    )


def _need(right: object, file: Path, name: str, expected: str, got: object) -> None:
    if not right:
        raise ValueError(f"{file}: {name}: expected {expected}, got {described(got)}")


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an npz file: numbers only, of a bounded size, in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
            names = archive.namelist()  # as they are, since numpy takes "a.npy" for "a"
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: expected numpy's npz, got {error}") from error
    if total > LARGEST:
        raise ValueError(f"{path}: expected at most {LARGEST} bytes of arrays, got {total}")
    flat, name = dict[str, Array](), ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in names:
                flat[name.removesuffix(".npy")] = file[name]
    except DAMAGED as error:
        got = str(error) or type(error).__name__
        raise ValueError(
            f"{path}: {name.removesuffix('.npy')}: expected an array of numbers, got {got[:500]}"
        ) from error
    for name, array in flat.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ValueError(
                f"{path}: expected numbers in {name!r}, got "
                f"{foreign.optional(array, 'dtype', type(array).__name__)}"
            )
    try:
        return tree.nest(flat)  # type: ignore[no-any-return]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
