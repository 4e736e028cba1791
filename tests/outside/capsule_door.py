"""Capsules from elsewhere: ``reproduce`` reads one whose JSON and arrays were changed, with and
without ``--trust``.

Every outcome is one of the command's exit codes, and a refusal is one line. A module that the
capsule names and that the user did not vouch for is never imported.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from equipoise import trust
from equipoise.cli.reproduce import reproduce
from equipoise.envs import make
from equipoise.envs.failures import capsule as capsules
from equipoise.envs.failures.capsule import Failures
from equipoise.types import EnvFactory
from tests.outside.harness import Door, Fault, Planted
from tests.outside.runs_door import ODD_VALUES, change, text_of

TRUSTED = "tests.envs.faulty"
BAIT = "bait_of_a_capsule"  # a module that nothing may import
TARGETS = (
    f"{BAIT}:Env",
    f"python:{BAIT}:Env",
    f"{BAIT}:Env-v0",
    f"{BAIT}",
    f"{TRUSTED}:{BAIT}",
    f"{TRUSTED}.{BAIT}:Env",
    f"{TRUSTED}:np",
    "GymV26Environment-v0",
    "GymV21Environment-v0",
    f"envpool:{BAIT}",
    f"pettingzoo:{BAIT}",
    f"pettingzoo:../{BAIT}",
    f"equipoise.envs:{BAIT}",
    "equipoise.envs:Catch",
    "equipoise.envs:CatchVector",
    "CartPole-v1",
    f"{TRUSTED}:Faulty.reset",
    "os:system",
    "remote:tcp://127.0.0.1:1",
    "ALE/Pong-v5",
    "",
    ":",
    "a:b:c",
)
KWARGS: list[dict[str, Any]] = [
    {"how": "none"},
    {"env": f"{BAIT}:Env"},
    {"env_id": f"{BAIT}:Env-v0"},
    {"make_kwargs": {"id": f"{BAIT}:E"}},
    {"self": 1},
    {"num_envs": -1},
    {"stream": "x"},
    {"\ud800": 1},
    {"wrappers": [f"{BAIT}:Env"]},
    {"render_mode": "human "},
    {"every": 0},
]
ARRAYS: dict[str, Any] = {
    "scalar": np.array(1),
    "empty": np.zeros((0,), np.int64),
    "nothing": np.zeros((3, 0)),
    "floats": np.full(9, np.nan),
    "deep": np.zeros((2, 3, 4), np.int8),
    "bool": np.ones(4, bool),
    "wide": np.full(9, 1 << 62),
    "text": np.array(["a"]),
    "time": np.array(["2020"], "M8[Y]"),
    "one": np.zeros(1, np.int64),
    "record": np.zeros(2, [("a", int)]),
}
# what each part is where nothing is wrong, and what it may be
PARTS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "target": (None, st.sampled_from(TARGETS)),
    "kwargs": (None, st.sampled_from(KWARGS)),
    "mask": (
        None,
        st.sampled_from([f"{BAIT}:mask", "info", "observation", "none", "\ud800", "a/b"]),
    ),
    "changes": (
        [],
        st.lists(
            st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=4), ODD_VALUES),
            min_size=1,
            max_size=2,
        ),
    ),
    "arrays": (
        {},
        st.dictionaries(
            st.sampled_from(
                [
                    "actions",
                    "actions/0",
                    "actions/a",
                    "obs",
                    "obs/x",
                    "state",
                    "state/x",
                    "",
                    "a~b",
                    "../x",
                ]
            ),
            st.none() | st.sampled_from(sorted(ARRAYS)),
            min_size=1,
            max_size=2,
        ),
    ),
    "zip": ("", st.sampled_from(["cut", "bytes", "none", "object", "sparse"])),
}
TRUST = st.sampled_from(
    [[], [TRUSTED], [TRUSTED], [TRUSTED], [f"{TRUSTED}:Faulty"], [f"{BAIT}={TRUSTED}"], ["="], [""]]
)


@st.composite
def examples(draw: st.DrawFn) -> dict[str, Any]:
    """A capsule with a few parts wrong: the first of many would be all that is ever refused."""
    wrong = draw(st.permutations(sorted(PARTS)))[: draw(st.sampled_from([0, 1, 1, 1, 1, 2, 2, 6]))]
    said = {name: draw(drawn) if name in wrong else right for name, (right, drawn) in PARTS.items()}
    return said | {"trust": draw(TRUST)}


@functools.cache
def base() -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A folder with the bait on the path of modules, and a capsule's JSON and arrays, signed."""
    place = Path(tempfile.mkdtemp(prefix="equipoise-door-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / f"{BAIT}.py").write_text("import equipoise\nclass Env: pass\n")
    env = make(
        EnvFactory(target=f"{TRUSTED}:Faulty"),
        streams=np.array([3]),
        seed=0,
        failures=Failures(capsules=place / "c"),
    )
    env.recv()
    while not (place / "c").is_dir() or not list((place / "c").glob("[!.]*")):
        env.send(np.zeros(1, int), env.ts.stream)
        env.recv()
    env.close()
    made = next((place / "c").iterdir())
    with np.load(made / "arrays.npz") as file:
        return place, json.loads((made / "capsule.json").read_text()), dict(file)


def write_arrays(path: Path, example: dict[str, Any], flat: dict[str, Any]) -> None:
    for name, kind in example["arrays"].items():
        flat.pop(name, None)
        if kind is not None:
            flat[name] = ARRAYS[kind]
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in flat.items():
            one = io.BytesIO()
            np.save(one, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", one.getvalue())
        if example["zip"] == "object":
            one = io.BytesIO()
            np.save(one, np.array([None, {}], object), allow_pickle=True)
            archive.writestr("obs/odd.npy", one.getvalue())
    data = path.read_bytes()
    if example["zip"] == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif example["zip"] == "bytes":
        path.write_bytes(data[: len(data) // 3] + bytes(range(64)) + data[len(data) // 3 + 64 :])
    elif example["zip"] == "none":
        path.unlink()
    elif example["zip"] == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 32)


def attempt(example: dict[str, Any]) -> None:
    place, data, flat = base()
    env = dict(data["env"])
    for key, given in (("target", "target"), ("kwargs", "kwargs"), ("action_mask", "mask")):
        if example[given] is not None:
            env[key] = example[given]
    said: Any = data | {"env": env}
    for path, to in example["changes"]:
        said = change(said, path, to)
    folder = Path(tempfile.mkdtemp(dir=place))
    out, err = io.StringIO(), io.StringIO()
    sys.path.insert(0, str(place))
    try:
        (folder / "capsule.json").write_text(text_of(said))
        write_arrays(folder / "arrays.npz", example, dict(flat))
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            reproduce(folder, False, example["trust"], False)
        raise Fault("no exit code", out.getvalue()[-300:])
    except SystemExit as end:
        if BAIT in sys.modules:
            raise Fault(
                "a module was imported that nobody vouched for", json.dumps(said["env"])
            ) from None
        lines = err.getvalue().strip().splitlines()
        if end.code == 2 and (len(lines) != 1 or not lines[0].startswith("equipoise reproduce: ")):
            raise Fault("a refusal that is no line", err.getvalue()[:500]) from None
        if end.code not in (1, 2, 3):
            raise Fault("an odd exit code", f"{end.code}: {err.getvalue()[:300]}") from None
        # half of a letter would end a real terminal's line
        (out.getvalue() + err.getvalue()).encode()
    finally:
        sys.path.remove(str(place))
        sys.modules.pop(BAIT, None)
        shutil.rmtree(folder, ignore_errors=True)


def imports_what_it_names(patch: pytest.MonkeyPatch) -> None:
    """A capsule's env was imported before anyone was asked."""
    patch.setattr(trust, "check", lambda *_: None)


def believes_the_parts(patch: pytest.MonkeyPatch) -> None:
    """Arrays that are no actions, and streams that are none, were a TypeError or an IndexError of
    the command.
    """
    patch.setattr(capsules, "_need", lambda *_: None)


DOORS = [
    Door(
        name="capsule",
        examples=examples(),
        attempt=attempt,
        hang_s=10.0,
        prepare=base,
        growth_mb=8.0,
        quick=20,
        full=300,
    )
]
PLANTED = [
    Planted(
        "what a capsule names is imported", "capsule", imports_what_it_names, kinds=("imported",)
    ),
    Planted("the parts of a capsule are believed", "capsule", believes_the_parts, kinds=("Error",)),
]
