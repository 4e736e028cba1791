"""An exported policy on numpy and onnxruntime alone: observations in, actions out. One file, which
each artifact brings along.

    python edge.py ARTIFACT < observations.jsonl        prints an action a line

    from edge import EdgePolicy
    policy = EdgePolicy("ARTIFACT", log="decisions.jsonl")
    action = policy.act(obs, first=True)                an episode begins; then policy.act(obs)

An artifact is a folder: ``policy.onnx``, ``spec.json``, ``weights.safetensors``, this file, and
``manifest.json`` with the SHA-256 of each. ``Artifact`` checks and loads one and keeps nothing
between calls; ``EdgePolicy`` keeps sessions.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import math
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
LOWEST = "1.20"  # of onnxruntime: every graph loads in it
NEEDED = ("policy.onnx", "spec.json")
LARGEST_JSON = 64 << 20  # bytes
# of a file in an artifact: in its folder, and nowhere else
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ORT_TYPES = {"float": "float32", "double": "float64"}
LONGEST = 1000  # characters of an error that is printed
KEPT = 256  # batch sizes whose constant inputs are kept

Array = np.ndarray


# ------------------------------------------------------------------------------------- the artifact


class Artifact:
    """A policy that was checked and loaded. It has no state: any number of threads may call it.

    Arrays are named as the graph names its inputs and outputs: ``obs`` or ``obs/PATH``,
    ``state/PATH``, ``action`` or ``action/PATH``; the first axis of each is the batch.

    ``propensity`` is the kind of number whose logarithm is ``logp``: "probability", "density", or
    "none" if actions are deterministic.
    """

    def __init__(
        self,
        model: bytes | None,
        spec: Mapping[str, Any],
        *,
        version: str,
        threads: int = 1,
        where: str = "spec.json",
    ) -> None:
        """Load a graph; ``open`` reads and checks the files of an artifact. None: a subclass runs
        the policy.
        """
        self.version, self.spec = version, spec
        try:
            about = spec["artifact"]
            policy = spec["policies"][about["policy"]]
            self.propensity: str = about["propensity"]
            self._noise = {name: int(about["noise"][name]) for name in ("fresh", "held", "every")}
            self._explore: dict[str, Any] = dict(about["explore"])
            self._observation, self._action = policy["observation"], policy["action"]
            inputs = {
                name: (tuple(one["shape"]), np.dtype(one["dtype"]))
                for name, one in about["inputs"].items()
            }
            self._rows = {name: inputs[name] for name in about["rows"]}
            self._state = {
                name: (one.get("initial", 0), *inputs[name]) for name, one in about["state"].items()
            }
            self._kinds = {name: inputs[name][1] for name in self._explore}
            if inputs["noise"][0] != (self._noise["fresh"] + self._noise["held"],):
                raise ValueError(f"noise of {self._noise} for an input of {inputs['noise'][0]}")
            self._forms = {name: Form.read(one) for name, one in about["action"].items()}
            found: Any = self._observation
            for key in policy["mask"]:
                found = branches(found)[key]  # type: ignore[index]
            place = path_of("obs", *policy["mask"])
            masks = list(choices(place, found, self._action)) if policy["mask"] else []
            self._reader = Reader(self._observation, self._rows, masks)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{where}: expected what 'equipoise export' writes, got {what}"
            ) from error
        self._constant: dict[int, dict[str, Array]] = {}
        if model is None:
            return
        import onnxruntime  # not for a caller that only checks hashes

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        # it would print names from the graph, which an error also has
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own kinds, of which there are a dozen
            found = f"onnxruntime {onnxruntime.__version__}; it needs {LOWEST} or newer"
            raise ValueError(
                f"policy.onnx: expected a graph that onnxruntime loads, got {error} ({found})"
            ) from error
        got = {
            one.name: (_dtype(one.type), list(one.shape[1:])) for one in self._session.get_inputs()
        }
        if got != (
            wanted := {name: (str(dtype), list(shape)) for name, (shape, dtype) in inputs.items()}
        ):
            raise ValueError(
                f"policy.onnx: expected the inputs that spec.json names, {wanted}, got {got}"
            )
        self._outputs = [one.name for one in self._session.get_outputs()]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, threads: int = 1) -> Artifact:
        """Check every file of an artifact and load it.

        ValueError names the file that is damaged, lies outside of the folder, keeps data elsewhere
        or has custom operators.
        """
        (version, files), place = verified(Path(path)), Path(path) / "spec.json"
        check_model(files["policy.onnx"], Path(path) / "policy.onnx")
        return cls(
            files["policy.onnx"],
            _json(files["spec.json"], place),
            version=version,
            threads=threads,
            where=str(place),
        )

    def read(self, obs: Any) -> tuple[dict[str, Array], bool]:
        """As ``Reader.read``."""
        return self._reader.read(obs)

    def asked(self, line: Any) -> tuple[Any, dict[str, Any]]:
        """Read {"obs": ..., "session": "a", "first": true}, or an observation itself -> (the
        observation, the rest).
        """
        space = branches(self._observation) or {}
        if not isinstance(line, dict) or "obs" not in line or line.keys() == space.keys():
            return line, {}
        kinds = {"session": str, "first": bool}
        for key, value in line.items():
            if key != "obs" and not isinstance(value, kinds.get(key, ())):
                raise ValueError(
                    f'expected {{"obs": ..., "session": "a", "first": true}}, got {key!r}: '
                    f"{value!r}"
                )
        return line["obs"], {key: line[key] for key in kinds if key in line}

    def initial(self, count: int) -> dict[str, Array]:
        """The recurrent state [count, ...] of streams at the beginning of an episode, by name; {}
        without a memory.
        """
        return {
            name: np.full((count, *shape), value, dtype)
            for name, (value, shape, dtype) in self._state.items()
        }

    def draw(self, seed: int, streams: Any, rows: Any) -> Array:
        """The noise [B, k] of row ``rows`` [B] of ``streams`` [B]: a pure function of (seed,
        stream, row), as in training.
        """
        fresh, held, every = self._noise["fresh"], self._noise["held"], self._noise["every"]
        streams, rows = np.asarray(streams, np.int64), np.asarray(rows, np.int64)
        noise = uniform(seed, streams, rows, fresh)
        return (
            np.concatenate([noise, uniform(seed, streams, rows // every, held, fresh)], 1)
            if held
            else noise
        )

    def run(
        self,
        rows: Mapping[str, Array],
        first: Array,
        state: Mapping[str, Array],
        noise: Array | None,
        deterministic: Array,
        explore: Mapping[str, Array] | None = None,
    ) -> tuple[dict[str, Array], Array | None, dict[str, Array]]:
        """One batch: rows as ``read`` gives them, first [B] bool, state and noise [B, k] as above,
        deterministic [B] bool.

        -> (actions by name, log propensity [B] of each or None, the next state). Rows with
        ``deterministic`` get the policy's best action, whose ``logp`` is 0. ``noise`` None: all
        rows are deterministic. ``explore``: in place of the artifact's.
        """
        constant = self.constants(len(first))
        given = {
            **constant,
            **rows,
            **state,
            **(explore or {}),
            "first": first,
            "deterministic": deterministic,
        }
        if noise is not None:
            given["noise"] = noise
        elif not deterministic.all():
            raise ValueError(
                "noise: expected numbers for the rows that are not deterministic, got none"
            )
        out = dict(zip(self._outputs, self._session.run(self._outputs, given), strict=True))
        logp = out.pop("logp", None)
        following = {
            f"state/{name[5:]}": out.pop(name) for name in self._outputs if name.startswith("next/")
        }
        return out, logp, following

    def constants(self, count: int) -> dict[str, Array]:
        """Inputs [count, ...] that a caller need not give: how much is explored, and noise for rows
        that draw nothing.
        """
        if (found := self._constant.get(count)) is None:
            if len(self._constant) >= KEPT:
                self._constant.clear()
            found = {
                name: np.repeat(np.array([value], self._kinds[name]), count, 0)
                for name, value in self._explore.items()
            }
            found["noise"] = np.full(
                (count, self._noise["fresh"] + self._noise["held"]), 0.5, np.float32
            )
            self._constant[count] = found
        return found

    def action(self, raw: Mapping[str, Array], row: int | None = None) -> Any:
        """The argument of ``env.step``: of one row, or (None) of all as a vector env takes them.
        ``plain`` makes JSON of it.
        """
        return self._formed(self._action, raw, "action", row)

    def _formed(self, space: Any, raw: Mapping[str, Array], place: str, row: int | None) -> Any:
        if (inner := branches(space)) is not None:
            parts = {
                key: self._formed(one, raw, f"{place}/{escaped(key)}", row)
                for key, one in inner.items()
            }
            return parts if space["type"] == "Dict" else tuple(parts.values())
        return self._forms[place](raw[place] if row is None else raw[place][row])


class Reader:
    """The judge of every observation, whether a caller, a file or a request brings it."""

    def __init__(
        self,
        observation: Any,
        rows: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        masks: list[tuple[str, Array]],
    ) -> None:
        """``observation``: the space as JSON, without what matters only of a Box. ``rows``: shape
        and dtype of each array by name. ``masks``: each array of a mask by name, and where its
        choices begin.
        """
        self._observation, self._rows, self._masks = observation, rows, masks
        self._ranges: list[tuple[str, Array, Array]] = []
        for name, low, high in ranges("obs", observation):
            self._ranges.append((name, np.array(low, rows[name][1]), np.array(high, rows[name][1])))

    def read(self, obs: Any) -> tuple[dict[str, Array], bool]:
        """Read an observation, or a batch of them with one more axis in front -> (rows [B, ...] by
        name, was it a single one).

        ValueError with the path, the expected value and the given one: another shape, dtype or key,
        a number that is not finite or not in a space of whole numbers, a mask that allows nothing
        or holds more than 0 and 1.
        """
        rows: dict[str, Array] = {}
        self._collect(self._observation, obs, "obs", rows)
        shapes = {name: x.shape for name, x in rows.items()}
        if all(shape == self._rows[name][0] for name, shape in shapes.items()):
            single, rows = True, {name: x[None] for name, x in rows.items()}
        else:
            single, counts = False, [shape[:1] for shape in shapes.values()]
            # then the other parts are at fault
            alone = any(shape == self._rows[name][0] for name, shape in shapes.items())
            for name, got in shapes.items():
                one = self._rows[name][0]
                batch = (
                    len(got) > len(one)
                    and got[0] > 0
                    and got[1:] == one
                    and got[:1] == max(counts[::-1], key=counts.count)
                )
                if not (got == one if alone else batch):
                    raise ValueError(
                        f"{name}: expected shape {list(one)}, or a batch [B, ...] of it in all "
                        f"parts, got {list(got)}"
                    )
        for name, x in rows.items():
            # a sum is faster
            if (
                x.dtype.kind == "f"
                and not math.isfinite(np.vdot(x, x))
                and not np.isfinite(x).all()
            ):
                row = int((~np.isfinite(x.reshape(len(x), -1)).all(1)).argmax())
                value = x[row][~np.isfinite(x[row])].flat[0]
                raise ValueError(f"{name}: expected finite numbers, got {value}{_of(row, x)}")
        for name, begins in self._masks:
            x = rows[name].reshape(len(rows[name]), -1)
            if (odd := (x != 0) & (x != 1)).any():
                raise ValueError(
                    f"{name}: expected a mask of 0 and 1, got "
                    f"{x[odd][0]}{_of(int(odd.any(1).argmax()), x)}"
                )
            if not (allowed := np.logical_or.reduceat(x != 0, begins, axis=1).all(1)).all():
                raise ValueError(
                    f"{name}: expected at least one action allowed, got "
                    f"none{_of(int(allowed.argmin()), x)}"
                )
        for name, low, high in self._ranges:
            x = rows[name]
            if (odd := (x < low) | (x > high)).any():
                row, *place = np.argwhere(odd)[0].tolist()
                lowest, highest = (
                    np.broadcast_to(one, x.shape[1:])[tuple(place)] for one in (low, high)
                )
                at = f" at {place}" if place else ""
                raise ValueError(
                    f"{name}: expected {lowest} to {highest}{at}, got "
                    f"{x[(row, *place)]}{_of(row, x)}"
                )
        return rows, single

    def _collect(self, space: Any, value: Any, place: str, rows: dict[str, Array]) -> None:
        if (inner := branches(space)) is None:
            rows[place] = _array(value, *self._rows[place], place)
            return
        if (
            space["type"] == "Tuple"
            and isinstance(value, tuple | list)
            and len(value) == len(inner)
        ):
            value = dict(zip(inner, value, strict=True))
        if not isinstance(value, Mapping):
            got = f"{len(value)} parts" if isinstance(value, tuple | list) else type(value).__name__
            raise ValueError(f"{place}: expected the keys {list(inner)}, got {got}")
        if value.keys() != inner.keys():
            missing, extra = (
                # a caller may send any number of keys, of any length
                sorted(str(key)[:80] for key in keys)[:10]
                for keys in (inner.keys() - value.keys(), value.keys() - inner.keys())
            )
            near = (
                difflib.get_close_matches(extra[0], [key[:80] for key in list(inner)[:100]], 1)
                if extra
                else []
            )
            said = f"; did you mean {near[0]!r} by {extra[0]!r}?" if near else ""
            got = " and ".join([f"{w} {k}" for w, k in (("not", missing), ("also", extra)) if k])
            raise ValueError(f"{place}: expected the keys {list(inner)}, got {got}{said}")
        for key, one in inner.items():
            self._collect(one, value[key], f"{place}/{escaped(key)}", rows)


@dataclass(frozen=True, slots=True)
class Form:
    """From an output of the graph to an env's action: clipped to ``low`` and ``high``, in the env's
    dtype.
    """

    dtype: Any
    low: Any
    high: Any

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> Form:
        low, high = (
            None if about.get(key) is None else np.array(about[key], about["dtype"])
            for key in ("low", "high")
        )
        return cls(np.dtype(about["dtype"]), low, high)

    def __call__(self, x: Any) -> Any:
        if self.low is None:
            return x.astype(self.dtype)
        return np.minimum(np.maximum(x, self.low), self.high).astype(self.dtype)


# ------------------------------------------------------------------------------------------- spaces


def branches(space: Any) -> dict[str, Any] | None:
    """The parts of a Dict, or of a Tuple by "0", "1", ..., as ``spec.json`` has them; None for any
    other space.
    """
    if space["type"] == "Dict":
        return dict(space["spaces"])
    return (
        {str(i): one for i, one in enumerate(space["spaces"])} if space["type"] == "Tuple" else None
    )


def escaped(key: str) -> str:
    """A key as a part of a path, whose parts are joined by '/': '~' as '~0', '/' as '~1', the empty
    key as '~'.
    """
    return key.replace("~", "~0").replace("/", "~1") or "~"


def path_of(*keys: str) -> str:
    """The path of the leaf at these keys."""
    return "/".join(map(escaped, keys))


def ranges(name: str, space: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, lowest, highest) of every Discrete, MultiDiscrete and MultiBinary in a space."""
    for key, one in (branches(space) or {}).items():
        yield from ranges(f"{name}/{escaped(key)}", one)
    if space["type"] in ("Discrete", "MultiDiscrete"):
        start = np.array(space["start"])
        yield (
            name,
            start,
            start + (np.array(space["n"] if space["type"] == "Discrete" else space["nvec"]) - 1),
        )
    elif space["type"] == "MultiBinary":
        yield name, 0, 1


def choices(name: str, mask: Any, action: Any) -> Iterator[tuple[str, Array]]:
    """(name, where each choice begins [k]) of every array of a mask."""
    counts = (
        [action["n"]] if action["type"] == "Discrete" else np.ravel(action.get("nvec", [])).tolist()
    )
    if (masks := branches(mask)) is None:
        yield name, np.cumsum([0, *counts[:-1]])
        return
    inner = branches(action)
    for j, (key, one) in enumerate(masks.items()):
        part = {"type": "Discrete", "n": counts[j]} if inner is None else inner[key]
        yield from choices(f"{name}/{escaped(key)}", one, part)


def _array(value: Any, shape: tuple[int, ...], dtype: np.dtype, place: str) -> Array:
    try:
        x = np.asarray(value)
    # RuntimeError: of a tensor with a gradient
    except (ValueError, TypeError, OverflowError, RuntimeError):
        got = (
            "lists of different lengths"
            if isinstance(value, list | tuple)
            else type(value).__name__
        )
        raise ValueError(f"{place}: expected {dtype} {list(shape)}, got {got}") from None
    if not x.size and 0 in shape and x.dtype.kind in "fiub":
        front = shape[: shape.index(0) + 1]  # lists end at the first axis without elements
        if x.shape[-len(shape) :] != shape and x.shape[-len(front) :] == front:
            x = x.reshape(*x.shape[: -len(front)], *shape)
        x = x.astype(dtype)
    if x.dtype == dtype:
        return np.ascontiguousarray(x).reshape(x.shape)
    # nothing overflows: as usual
    if x.dtype.kind == dtype.kind == "f" and dtype.itemsize >= 4 and float(np.vdot(x, x)) < 1e38:
        return x.astype(dtype, order="C")
    fits = x.dtype.kind in ("fiub" if dtype.kind == "f" else "iub")
    if fits and dtype.kind != "f" and x.size:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not low <= int(x.min()) <= int(x.max()) <= high:
            raise ValueError(
                f"{place}: expected numbers from {low} to {high}, got {x.min()} to {x.max()}"
            )
    if not fits:
        raise ValueError(f"{place}: expected {dtype} {list(shape)}, got {_described(x)}")
    with np.errstate(over="ignore"):  # an infinite value is refused with its place
        return x.astype(dtype, order="C")


def _described(x: Array) -> str:
    return (
        f"{x.dtype} {list(x.shape)}"
        if x.dtype.kind in "fiubc"
        else f"{type(x.flat[0]).__name__}"
        if x.size
        else "nothing"
    )


def _of(row: int, rows: Array) -> str:
    return f" in row {row}" if len(rows) > 1 else ""


# -------------------------------------------------------------------------------------------- noise


def uniform(seed: int, stream: Array, row: Array, columns: int, skip: int = 0) -> Array:
    """[B, columns] float32 strictly inside (0, 1), by counter: the numbers that actors draw
    (SplitMix64's finaliser).
    """
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed], np.int64).view(np.uint64) + ODD[0])
        x = _mix(row.astype(np.uint64) * ODD[0] + stream.astype(np.uint64) * ODD[1] + key)
        x = _mix(x[:, None] + np.arange(skip + 1, skip + columns + 1, dtype=np.uint64) * ODD[2])
    top = (x >> np.uint64(41)).astype(np.float32)
    top += np.float32(0.5)
    top *= np.float32(2.0**-23)
    return top


ODD = [np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03)]


def _mix(x: Array) -> Array:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


# ------------------------------------------------------------------------------------------- checks


def verified(path: Path, needed: tuple[str, ...] = NEEDED) -> tuple[str, dict[str, bytes]]:
    """Check the hashes of all files of an artifact -> (its version, the bytes of the files that
    playing needs).
    """
    place = path / "manifest.json"
    try:
        if place.exists() and not place.is_file():
            raise OSError("no plain file of that name")
        with place.open("rb") as stream:
            said = stream.read(LARGEST_JSON + 1)  # no more is read of what nothing vouches for
    except OSError as error:
        raise ValueError(
            f"{path}: expected an artifact, a folder with manifest.json, got "
            f"{error.strerror or error}"
        ) from error
    manifest = _json(said, place)
    files = (
        manifest.get("files")
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT
        else None
    )
    if not isinstance(files, dict) or not all(isinstance(one, dict) for one in files.values()):
        raise ValueError(
            f'{place}: expected {{"format": {FORMAT}, "files": {{...}}}}, got another manifest'
        )
    found = {}
    for name in sorted({*files, *needed}):
        file = path / name
        if not NAME.fullmatch(name) or file.is_symlink():
            raise ValueError(
                f"{place}: expected names of files in the artifact's folder, got {name!r}"
            )
        if name not in files:
            raise ValueError(
                f"{place}: expected {name} among the files, got {sorted(files)}; torch can serve "
                "weights alone"
            )
        if not file.is_file():
            raise ValueError(f"{file}: expected a file, since the manifest names it, got none")
        size, wanted = files[name].get("size"), files[name].get("sha256")
        if (there := file.stat().st_size) != size or (
            name.endswith(".json") and there > LARGEST_JSON
        ):
            raise ValueError(
                f"{file}: expected {size} bytes, got {there} (JSON: at most {LARGEST_JSON})"
            )
        if name in needed:
            found[name] = file.read_bytes()  # the hashed bytes are the used bytes
            got = hashlib.sha256(found[name]).hexdigest()
        else:
            with file.open("rb") as stream:
                got = hashlib.file_digest(stream, "sha256").hexdigest()
        if got != wanted:
            raise ValueError(f"{file}: expected the SHA-256 {wanted}, got {got}")
    return hashlib.sha256(said).hexdigest(), found


def _json(data: bytes, place: Path) -> Any:
    try:
        if len(data) > LARGEST_JSON:
            raise ValueError(f"{len(data)} bytes")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place}: expected JSON of at most {LARGEST_JSON} bytes, got {error}"
        ) from error


# The messages of an ONNX file in which tensors or operators stand: {message: {field: message}}
# (onnx.proto3).
MESSAGES = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
DOMAIN = {"opset": 1, "node": 7}  # the field that names a domain of operators


def check_model(data: bytes, place: Path) -> None:
    """ValueError for a graph that reads other files, or has operators that are not ONNX's own."""
    left = [("model", memoryview(data))]
    try:
        while left:
            kind, message = left.pop()
            for field, value in _fields(message):
                inner = MESSAGES.get(kind, {}).get(field)
                if isinstance(value, int) and (inner is not None or field == DOMAIN.get(kind)):
                    raise IndexError
                if field == DOMAIN.get(kind) and bytes(value) not in (b"", b"ai.onnx"):
                    raise ValueError(
                        f"{place}: expected ONNX's own operators, got those of "
                        f"{bytes(value).decode(errors='replace')!r}"
                    )
                if kind == "tensor" and (field == 13 or (field == 14 and value)):
                    raise ValueError(
                        f"{place}: expected all data within the file, got a tensor with external "
                        "data"
                    )
                if inner in ("function", "training"):
                    raise ValueError(f"{place}: expected one plain graph, got one with a {inner}")
                if inner is not None:
                    left.append((inner, value))
    except IndexError as error:
        raise ValueError(f"{place}: expected an ONNX file, got one that cannot be read") from error


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a protobuf message: a number, or the bytes of a text or of a
    message within.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size, at = (
            (8, at)
            if wire == 1
            else (4, at)
            if wire == 5
            else _varint(message, at)
            if wire == 2
            else (end + 1, at)
        )
        if at + size > end:
            raise IndexError
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError


def _dtype(name: str) -> str:
    """numpy's name of one of onnxruntime's types."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return ORT_TYPES.get(inner, inner)


# ----------------------------------------------------------------------------------------- sessions


@dataclass(frozen=True, slots=True)
class Decision:
    """An action with what an evaluation of the policy needs to know of it later."""

    action: Any  # the argument of env.step
    id: str  # unique
    unit: str  # the person or thing that it was decided for
    version: str  # of the artifact
    # probability or density with which the action was drawn; None: the action was no draw
    propensity: float | None
    deterministic: bool
    time: float  # seconds since 1970


@dataclass(slots=True)
class Session:
    """One stream of observations."""

    stream: int
    state: dict[str, Array]
    row: int = 0
    begins: bool = True


class EdgePolicy:
    """A policy with sessions, in one process, for one caller. Each session has a recurrent state
    and noise of its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        seed: int = 0,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        """``log``: a file to which each decision is added, with its observation,
        as a line of JSON.
        """
        self.artifact = Artifact.open(path)
        self.seed, self.lost = seed, 0  # lost: decisions that could not be written to the log
        self._sessions: dict[str, Session] = {}
        self._run, self._count = secrets.token_hex(8), 0
        self._log = (
            None if log is None else os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        )
        if (
            self._log is not None
            and (end := os.lseek(self._log, 0, os.SEEK_END))
            and os.pread(self._log, 1, end - 1) != b"\n"
        ):
            os.write(self._log, b"\n")  # a killed process left half of a line

    def act(
        self, obs: Any, *, session: str = "0", first: bool = False, deterministic: bool = True
    ) -> Any:
        """The action for one observation of the env's space; ``first``: it begins an episode.

        ValueError for what is no observation, and for an action that is not finite; the session
        stays as it was. Not ``deterministic``: drawn as in training, by ``seed``, the session and
        the number of its decision.
        """
        return self.decide(obs, session=session, first=first, deterministic=deterministic).action

    def decide(
        self,
        obs: Any,
        *,
        session: str = "0",
        first: bool = False,
        deterministic: bool = True,
        unit: str | None = None,
    ) -> Decision:
        """``act`` with what a log keeps. ``unit``: the person or thing that the decision is for, by
        default the session.
        """
        artifact = self.artifact
        if not isinstance(session, str):
            raise ValueError(f"session: expected a text, got {session!r}")
        rows, single = artifact.read(obs)
        if not single:
            raise ValueError(
                "obs: expected one observation, got a batch of them; Artifact.run takes batches"
            )
        if (kept := self._sessions.get(session)) is None:
            kept = self._sessions[session] = Session(stream_of(session), artifact.initial(1))
        noise = None if deterministic else artifact.draw(self.seed, [kept.stream], [kept.row])
        begins, best = np.array([first or kept.begins]), np.array([deterministic])
        raw, logp, state = artifact.run(rows, begins, kept.state, noise, best)
        for name, x in raw.items():
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise ValueError(
                    f"{name}: expected finite numbers of the policy, got {x[0].tolist()}"
                )
        kept.state, kept.row, kept.begins, self._count = state, kept.row + 1, False, self._count + 1
        decision = Decision(
            artifact.action(raw, 0),
            f"{self._run}-{self._count}",
            session if unit is None else unit,
            artifact.version,
            propensity(artifact.propensity, logp, 0, deterministic),
            deterministic,
            time.time(),
        )
        if self._log is not None:
            said = asdict(decision) | {
                "action": plain(decision.action),
                "session": session,
                "first": bool(begins[0]),
            }
            said |= {
                "drawn": {name: x[0].tolist() for name, x in raw.items()},
                "obs": {name: x[0].tolist() for name, x in rows.items()},
            }
            self._keep(said)
        return decision

    def _keep(self, said: Mapping[str, Any]) -> None:
        """Add a line to the log: all of it or, on a full disk, nothing. The policy acts on without
        its log.
        """
        assert self._log is not None
        data, end = json.dumps(said).encode() + b"\n", os.lseek(self._log, 0, os.SEEK_END)
        try:
            whole = os.write(self._log, data) == len(data)
        except OSError:
            whole = False
        if not whole:
            os.ftruncate(self._log, end)
            self.lost += 1
            if self.lost == 1:
                warnings.warn(
                    "a decision could not be written to the log; EdgePolicy.lost counts them",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def reset(self, session: str = "0") -> None:
        """The next observation of the session begins an episode."""
        if session in self._sessions:
            self._sessions[session].begins = True

    def forget(self, session: str) -> None:
        """Drop a session: its state and the number of its decisions."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


def propensity(kind: str, logp: Array | None, row: int, deterministic: bool) -> float | None:
    """The probability or density of a row's action, None if there is none; a deterministic choice
    is certain.
    """
    if kind == "density" and deterministic:
        return None
    return None if logp is None else math.exp(min(float(logp[row]), 700.0))


def plain(action: Any) -> Any:
    """An action as JSON has it."""
    if isinstance(action, dict):
        return {key: plain(one) for key, one in action.items()}
    return [plain(one) for one in action] if isinstance(action, tuple) else action.tolist()


def stream_of(session: str) -> int:
    """The stream of a session, which its noise depends on: its number if its name is one, else a
    hash of its name.
    """
    if session.isascii() and session.isdecimal() and len(session) < 19:
        return int(session)
    return int.from_bytes(hashlib.sha256(session.encode()).digest()[:8], "little") >> 1


def main(given: list[str] | None = None) -> int:
    """Read observations from stdin, a line of JSON each, and print the action of each.

    A line that is no observation costs itself alone: stderr names it, and the exit code at the end
    is 1. The exit code is 2 if there is no artifact, or if no process reads the actions.
    """
    parser = argparse.ArgumentParser("edge.py", description=main.__doc__)
    parser.add_argument("artifact", help="Folder that 'equipoise export' wrote")
    parser.add_argument("--log", help="File to add each decision to, as a line of JSON")
    parser.add_argument("--draw", action="store_true", help="Sample actions as in training")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sampling")
    options, wrong = parser.parse_args(given), 0
    try:
        policy = EdgePolicy(options.artifact, seed=options.seed, log=options.log)
        # Bytes that are no UTF-8 belong to their line, so they are read as bytes, if stdin has
        # some.
        for number, line in enumerate(getattr(sys.stdin, "buffer", sys.stdin), 1):
            if not line.strip():
                continue
            try:
                print(
                    json.dumps(plain(_answer(policy, line, deterministic=not options.draw))),
                    flush=True,
                )
            except ValueError as error:
                wrong += 1
                print(f"edge.py: line {number}: {str(error)[:LONGEST]}", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"edge.py: {error}", file=sys.stderr)
        return 2
    return 1 if wrong else 0


def _answer(policy: EdgePolicy, line: str | bytes, *, deterministic: bool) -> Any:
    """The action for a line; ValueError for a line that is no observation."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected an observation as JSON, got {line[:80]!r}: {error}") from error
    obs, how = policy.artifact.asked(said)
    return policy.act(obs, deterministic=deterministic, **how)


if __name__ == "__main__":
    sys.exit(main())
