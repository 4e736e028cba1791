"""``edge.py``: what it is given, what it answers, what it keeps;
beside a policy that torch plays.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import edge
from equipoise.actors.forward.noise import Noise
from equipoise.api import Player
from equipoise.edge import Artifact, EdgePolicy, Reader
from equipoise.exporting.observations import sampled
from tests.artifacts import KINDS, artifact, untrained

ROBOTS = Path(__file__).parents[2] / "docs/guides/robots.md"
META = {"env_steps": 0, "version": 0}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "policy"


def rows(kind: str, count: int, streams: int = 1, seed: int = 5) -> list[Any]:
    """Observations, one of each row of one stream as an env gives it."""
    one, policy = untrained(*KINDS[kind])
    seen = sampled(one.spec, policy.net, rows=16 * count, seed=seed).obs

    def at(leaf: Any, t: int) -> Any:
        return (
            {key: at(inner, t) for key, inner in leaf.items()}
            if isinstance(leaf, dict)
            else leaf[t, 0]
        )

    return [at(seen, t) for t in range(count)]


@pytest.mark.few(1)
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_it_acts_as_a_loaded_policy_does(kind: str, deterministic: bool, place: Path) -> None:
    one, policy = untrained(*KINDS[kind])
    player, edged = (
        Player(policy, one.spec, meta=META, seed=7),
        EdgePolicy(artifact(place, kind), seed=7),
    )
    for t, obs in enumerate(rows(kind, 30)):
        if t % 11 == 0:
            player.reset()
            edged.reset()
        wanted, got = (
            player.act(obs, deterministic=deterministic),
            edged.act(obs, deterministic=deterministic),
        )
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert np.asarray(got).dtype == np.asarray(wanted).dtype


def test_its_noise_is_that_of_training(place: Path) -> None:
    played = Artifact.open(artifact(place))
    streams, at = np.array([0, 3, 1 << 40]), np.array([0, 9, 77])
    for noise in (Noise(2), Noise(1, held=3, every=4)):
        played._noise = {"fresh": noise.fresh, "held": noise.held, "every": noise.every}
        np.testing.assert_array_equal(
            played.draw(-3, streams, at), noise.draw(-3, streams, at, 1)[0]
        )


@pytest.mark.thorough
def test_interleaved_sessions_are_those_played_alone(place: Path) -> None:
    obs = {name: rows("lstm", 12, seed=seed) for seed, name in enumerate(("7", "robot", "x" * 40))}
    artifact(place, "lstm")
    together = EdgePolicy(place)
    mixed: dict[str, list[Any]] = {name: [] for name in obs}
    for t in range(12):
        for name in obs:
            decision = together.decide(
                obs[name][t], session=name, first=t == 6, deterministic=False, unit=f"user {name}"
            )
            mixed[name].append((int(decision.action), decision.propensity))
            assert decision.unit == f"user {name}" and 0 < (decision.propensity or 0) < 1
    for name, seen in obs.items():
        alone = EdgePolicy(place)
        said = [
            alone.decide(one, session=name, first=t == 6, deterministic=False)
            for t, one in enumerate(seen)
        ]
        assert mixed[name] == [(int(one.action), one.propensity) for one in said]
    alike = EdgePolicy(place)
    drawn = {
        name: tuple(
            int(alike.act(ROW, session=name, first=True, deterministic=False)) for _ in range(20)
        )
        for name in obs
    }
    assert len(set(drawn.values())) == 3  # each session has noise of its own
    together.forget("7")
    assert (int(together.act(obs["7"][0], session="7", deterministic=False)), mixed["7"][0][0]) in {
        (n, n) for n in range(3)
    }


def test_a_batch_is_its_rows(place: Path) -> None:
    played, batch = Artifact.open(artifact(place, "mask")), rows("mask", 6)
    whole = {key: np.stack([one[key] for one in batch]) for key in batch[0]}
    read, single = played.read(whole)
    best = np.array([True, False] * 3)
    noise = played.draw(1, np.arange(6), np.zeros(6))
    action, logp, _ = played.run(read, np.ones(6, bool), {}, noise, best)
    assert not single and logp is not None and (logp[best] == 0).all() and (logp[~best] < 0).all()
    for i, one in enumerate(batch):
        row, single = played.read(one)
        alone, _, _ = played.run(row, np.ones(1, bool), {}, noise[i : i + 1], best[i : i + 1])
        assert (
            single
            and played.action(alone, 0) == played.action(action, i) == played.action(action)[i]
        )
    with pytest.raises(
        ValueError,
        match="noise: expected numbers for the rows that are not deterministic, got none",
    ):
        played.run(read, np.ones(6, bool), {}, None, best)


ROW = [0.0, 1.0, 2.0, 3.0]
WRONG: list[tuple[str, Any, str]] = [
    (
        "mlp",
        [0.0, 1.0],
        r"obs: expected shape \[4\], or a batch \[B, ...\] of it in all parts, got \[2\]",
    ),
    ("mlp", [[[0.0] * 4]], r"obs: expected shape \[4\], .* got \[1, 1, 4\]"),
    ("mlp", np.zeros((0, 4)), r"obs: expected shape \[4\], .* got \[0, 4\]"),
    ("mlp", [0.0, np.nan, 0.0, 0.0], "obs: expected finite numbers, got nan"),
    ("mlp", [ROW, [0.0, np.inf, 0.0, 0.0]], "obs: expected finite numbers, got inf in row 1"),
    ("mlp", [1e300, 0.0, 0.0, 0.0], "obs: expected finite numbers, got inf"),
    ("mlp", ["a", "b", "c", "d"], r"obs: expected float32 \[4\], got str"),
    ("mlp", None, r"obs: expected float32 \[4\], got NoneType"),
    ("mlp", [[1.0], [1.0, 2.0]], r"obs: expected float32 \[4\], got lists of different lengths"),
    ("mlp", [1j] * 4, r"obs: expected float32 \[4\], got complex128 \[4\]"),
    ("mask", ROW, r"obs: expected the keys \['action_mask', 'obs'\], got 4 parts"),
    ("mask", 3, r"obs: expected the keys \['action_mask', 'obs'\], got int"),
    ("mask", {"obs": ROW}, r"obs: expected the keys .*, got not \['action_mask'\]"),
    (
        "mask",
        {"obs": ROW, "action_mas": [1, 1, 1]},
        r"and also \['action_mas'\]; did you mean 'action_mask' by 'action_mas'\?",
    ),
    (
        "mask",
        {"obs": ROW, "action_mask": [0, 0, 0]},
        "obs/action_mask: expected at least one action allowed, got none",
    ),
    (
        "mask",
        {"obs": ROW, "action_mask": [1, 2, 0]},
        "obs/action_mask: expected a mask of 0 and 1, got 2",
    ),
    (
        "mask",
        {"obs": ROW, "action_mask": [1, -1, 0]},
        "obs/action_mask: expected a mask of 0 and 1, got -1",
    ),
    ("mask", {"obs": [ROW] * 2, "action_mask": [[1, 1, 1], [0, 0, 0]]}, "got none in row 1"),
    (
        "mask",
        {"obs": [ROW] * 2, "action_mask": [[1, 1, 1]] * 3},
        r"obs/action_mask: expected shape \[3\], or a batch",
    ),
    (
        "mask",
        {"obs": ROW, "action_mask": [0.5, 1, 1]},
        r"obs/action_mask: expected int8 \[3\], got float64 \[3\]",
    ),
    (
        "mask",
        {"obs": ROW, "action_mask": [300, 1, 1]},
        "obs/action_mask: expected numbers from -128 to 127, got 1 to 300",
    ),
]


@pytest.mark.parametrize("odd", ["a", "b", "c"])
@pytest.mark.parametrize("count", [1, 3, 0])
def test_the_part_with_another_batch_than_the_others_is_named(odd: str, count: int) -> None:
    space = {"type": "Dict", "spaces": [[key, {"type": "Box"}] for key in "abc"]}
    reader = Reader(space, {f"obs/{key}": ((4,), np.dtype(np.float32)) for key in "abc"}, [])
    with pytest.raises(
        ValueError, match=rf"obs/{odd}: expected shape \[4\], .* got \[{count}, 4\]"
    ):
        reader.read({key: np.zeros((count if key == odd else 2, 4), np.float32) for key in "abc"})


@pytest.mark.parametrize(("kind", "obs", "said"), WRONG)
def test_what_is_no_observation_is_refused_where_it_stands(
    kind: str, obs: Any, said: str, place: Path
) -> None:
    played = Artifact.open(artifact(place, kind))
    with pytest.raises(ValueError, match=said):
        played.read(obs)


def test_what_means_the_same_is_read(place: Path) -> None:
    played = Artifact.open(artifact(place, "mask"))
    for obs, mask in (
        (np.array(ROW), [True, False, True]),
        (ROW, (1, 0, 1)),
        ([0, 1, 2, 3], np.array([1, 0, 1], np.uint64)),
    ):
        read, single = played.read({"action_mask": mask, "obs": obs})
        assert single and {name: (x.dtype.name, x.tolist()) for name, x in read.items()} == {
            "obs/obs": ("float32", [ROW]),
            "obs/action_mask": ("int8", [[1, 0, 1]]),
        }


@pytest.mark.thorough
def test_decisions_are_logged_and_a_full_disk_does_not_stop_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = place.parent / "log.jsonl"
    policy = EdgePolicy(artifact(place, "box"), log=log)
    first = policy.decide(ROW, session="a", unit="user 3", deterministic=False)
    policy.act(ROW, session="a")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["id"] for one in lines] == [first.id, lines[1]["id"]] and lines[0]["id"] != lines[
        1
    ]["id"]
    said = lines[0]
    assert (said["unit"], said["version"], said["first"], said["obs"]) == (
        "user 3",
        policy.artifact.version,
        True,
        {"obs": ROW},
    )
    assert (
        said["propensity"] == first.propensity
        and said["action"] == first.action.tolist()
        and not said["deterministic"]
    )
    # the best action of a Box has no density
    assert lines[1]["propensity"] is None and not lines[1]["first"]
    before, write = log.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    with pytest.warns(RuntimeWarning, match="could not be written to the log"):
        assert policy.act(ROW, session="a") is not None
    assert policy.lost == 1 and log.read_bytes() == before
    policy.close()


def test_half_of_a_line_that_a_killed_process_left_spoils_no_other(place: Path) -> None:
    log = place.parent / "log.jsonl"
    log.write_text('{"id": "a"}\n{"id": "b')
    EdgePolicy(artifact(place), log=log).act(ROW)
    lines = log.read_text().splitlines()
    assert lines[:2] == ['{"id": "a"}', '{"id": "b'] and json.loads(lines[2])["obs"] == {"obs": ROW}


@pytest.mark.thorough
def test_an_action_that_is_not_finite_is_not_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, run = EdgePolicy(artifact(place, "box")), Artifact.run
    right = policy.decide(ROW, deterministic=False)
    broken = [np.array([[0.0, np.nan]], np.float32)]

    def wrong(self: Artifact, *given: Any) -> Any:
        action, logp, state = run(self, *given)
        return (action if not broken else {"action": broken.pop()}), logp, state

    monkeypatch.setattr(Artifact, "run", wrong)
    with pytest.raises(
        ValueError, match=r"action: expected finite numbers of the policy, got \[0.0, nan\]"
    ):
        policy.decide(ROW, deterministic=False)
    again = EdgePolicy(place)
    assert again.decide(ROW, deterministic=False).propensity == right.propensity
    assert (
        policy.decide(ROW, deterministic=False).propensity
        == again.decide(ROW, deterministic=False).propensity
    )


def test_bounds_of_a_box_are_read_as_they_are_written() -> None:
    form = edge.Form.read({"dtype": "float64", "low": ["-inf", 0.0], "high": 1.0})
    clipped = form(np.array([-1e9, -3.0], np.float32))
    assert (
        clipped.tolist() == [-1e9, 0.0]
        and clipped.dtype == np.float64
        and form(np.array([7.0, 0.5])).tolist() == [1.0, 0.5]
    )


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ``sys.path`` with numpy and onnxruntime, and no other package."""
    folder = tmp_path_factory.mktemp("alone")
    for name in ("numpy", "onnxruntime"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None
        package = Path(found.origin).parent
        for one in (package, package.with_name(f"{name}.libs")):
            if one.is_dir():
                (folder / one.name).symlink_to(one)
    return folder


def run_alone(alone: Path, place: Path, lines: str, *more: str) -> subprocess.CompletedProcess[str]:
    """``python edge.py`` of an artifact, in a Python that has no other packages."""
    code = f"""import runpy, sys
sys.path.append({str(alone)!r})
sys.argv = ["edge.py", *sys.argv[1:]]
try:
    runpy.run_path({str(place / "edge.py")!r}, run_name="__main__")
finally:
    print("loaded", *{{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names, file=sys.stderr)
"""  # noqa: E501
    given = [sys.executable, "-S", "-E", "-c", code, str(place), *more]
    return subprocess.run(
        given,
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=place.parent,
        check=False,
    )


def test_it_runs_where_there_is_neither_torch_nor_equipoise(alone: Path, place: Path) -> None:
    artifact(place, "mask")
    obs = {"obs": [0, 1, 2, 3], "action_mask": [0, 0, 1]}
    given = [obs, {"obs": obs | {"action_mask": [1, 0, 0]}, "session": "a", "first": True}]
    lines = "".join(json.dumps(one) + "\n" for one in given)
    ran = run_alone(alone, place, lines, "--log", "log.jsonl", "--draw")
    assert ran.stdout == "2\n0\n" and ran.returncode == 0, ran.stderr
    loaded = set(ran.stderr.splitlines()[-1].split())
    assert {"loaded", "numpy", "onnxruntime"} <= loaded and not loaded & {
        "torch",
        "equipoise",
        "gymnasium",
        "onnx",
    }
    assert [
        json.loads(line)["unit"] for line in (place.parent / "log.jsonl").read_text().splitlines()
    ] == ["0", "a"]


def test_the_loop_of_the_page_for_robots_runs(alone: Path, place: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", ROBOTS.read_text(), re.MULTILINE | re.DOTALL)
    around = f"""import sys
sys.path.append({str(alone)!r})
rows = 5
def running():
    return rows > 0
def sensors():
    return [0.1] * 4
def move(action):
    global rows
    rows -= 1
    return rows == 3
"""
    code = f"{around}{block}\npolicy.close()"
    artifact(place)
    ran = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code],
        cwd=place.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [
        json.loads(line) for line in (place.parent / "decisions.jsonl").read_text().splitlines()
    ]
    assert [one["first"] for one in lines] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1, 2, 3]", r"edge.py: line 2: obs: expected shape \[4\]"),
        ("[NaN, 0, 0, 0]", "edge.py: line 2: obs: expected finite numbers, got nan"),
        ("[" * 100_000, "edge.py: line 2: expected an observation as JSON"),
        ("nonsense", "edge.py: line 2: expected an observation as JSON, got 'nonsense"),
        ('{"obs": [0, 1, 2, 3], "sesion": "a"}', "edge.py: line 2: expected .*, got 'sesion': 'a'"),
        ('{"obs": [0, 1, 2, 3], "session": 3}', "edge.py: line 2: expected .*, got 'session': 3"),
    ],
)
def test_the_command_says_which_line_is_wrong(
    line: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"[0, 1, 2, 3]\n{line}\n[0, 1, 2, 3]\n"))
    assert edge.main([str(artifact(place))]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and re.search(said, err), "a wrong line costs itself alone"


def test_the_command_says_what_is_wrong(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact(place, "mlp")
    for lines, said in (
        ("\n[0, 0, 0]\n", "line 2: obs: expected shape [4]"),
        ("hello\n", "line 1: expected an observation as JSON, got 'hello"),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert edge.main([str(place)]) == 1 and said in capsys.readouterr().err
    assert edge.main([str(place), "--log", str(tmp_path / "none" / "log")]) == 2
    assert "none/log" in capsys.readouterr().err
    with pytest.raises(ValueError, match="session: expected a text, got 3"):
        EdgePolicy(place).act([0.0] * 4, session=3)  # type: ignore[arg-type]
