"""An env's failure costs its own episode, names itself, and leaves a capsule that does it again."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from equipoise.envs import make
from equipoise.envs.failures import capsule as capsules
from equipoise.envs.failures.capsule import COUNTED, LIMIT, EnvFailed, Failures, read
from equipoise.envs.failures.reproduce import reproduce
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.loop import Log
from equipoise.envs.toys.ruler import Ledger, verify
from equipoise.seeds import stream_seed
from equipoise.types import EnvFactory
from tests.envs import faulty
from tests.envs.faulty import Counted
from tests.envs.rolling import rows, unrolls

HERE = "tests.envs.faulty"
T, F = True, False


def env_of(
    name: str,
    streams: int = 4,
    *,
    on_nonfinite: Any = "drop",
    path: Path | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> Any:
    failures = Failures(on_nonfinite=on_nonfinite, capsules=path)
    return make(
        EnvFactory(target=f"{HERE}:{name}", kwargs=kwargs),
        streams=np.arange(streams),
        seed=seed,
        failures=failures,
    )


def play(env: Any, steps: int) -> dict[str, Any]:
    return rows(env, np.random.default_rng(0).integers(0, 2, (steps, len(env.ts.stream))))


def counts(env: Any) -> dict[str, int]:
    return dict(zip(COUNTED, env.failures.counts.tolist(), strict=True))


def written(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.exists() else []


@pytest.fixture
def counted() -> Any:
    Counted.made.clear()
    yield Counted.made
    Counted.made.clear()


# ----------------------------------------------------------------------------------------- the rows


def test_a_raising_step_costs_its_own_episode_only(counted: Any) -> None:
    env = env_of("Counted", 3, at=3)
    got = play(env, 5)
    first, again = stream_seed(0, 1), stream_seed(0, 1, 1)
    assert first != again
    assert got["obs"][:, 1].tolist() == [
        [np.float32(s), t]
        for s, t in [(first, 0), (first, 1), (first, 2), (again, 0), (again, 1), (again, 2)]
    ]
    assert got["valid"][:, 1].tolist() == [F, T, T, F, T, T]
    assert got["first"][:, 1].tolist() == [T, F, F, T, F, F]
    assert got["reward"][:, 1].tolist() == [0, 1, 1, 0, 1, 1]
    assert not got["terminated"].any() and not got["truncated"].any()
    for other in (0, 2):
        assert got["obs"][:, other, 1].tolist() == [0, 1, 2, 3, 4, 5], "stepped once a row"
        assert (
            got["valid"][:, other].tolist() == [F, T, T, T, T, T]
            and got["first"][1:, other].any() == F
        )
    assert [one.steps for one in counted] == [5, 3, 5, 2] and counts(env)["aborted"] == 1


@pytest.mark.parametrize(
    "how",
    [
        "raise",
        "shape",
        "text",
        "nothing",
        "ragged",
        "nan",
        "reward nan",
        "reward text",
        "reward [1]",
    ],
)
def test_the_others_rows_are_as_without_the_failure(how: str) -> None:
    """Stream by stream: the rows of a batch in which envs fail are those that
    each env gives alone.
    """
    together = play(env_of("Faulty", 5, how=how), 120)
    for stream in range(5):
        failures = Failures(on_nonfinite="drop")
        factory = EnvFactory(target=f"{HERE}:Faulty", kwargs={"how": how})
        alone = play(make(factory, streams=np.array([stream]), seed=0, failures=failures), 120)
        for name in ("obs", "reward", "first", "valid", "truncated"):
            np.testing.assert_array_equal(together[name][:, [stream]], alone[name], err_msg=name)
    seams = together["first"][1:] & ~together["valid"][1:]
    ended = (together["terminated"] | together["truncated"])[:-1]
    assert (
        (seams & ~ended).sum() > 5
        and np.isfinite(together["obs"]).all()
        and np.isfinite(together["reward"]).all()
    )
    assert (together["reward"][1:][seams] == 0).all() and (together["valid"][1:] == ~seams).all()


def test_a_failing_reset_costs_nothing_but_is_counted(tmp_path: Path) -> None:
    env = env_of("Faulty", 2, how="raise", on_reset=3, length=4, path=tmp_path)
    got = play(env, 40)
    assert counts(env)["aborted"] >= 4 and len(written(tmp_path)) == counts(env)["aborted"]
    seam = got["first"] & ~got["valid"]
    assert (seam[1:] == (got["terminated"] | got["truncated"])[:-1]).all(), (
        "rows as if the reset had worked"
    )


def test_the_first_reset_may_fail_too() -> None:
    env = env_of("Faulty", 2, how="raise", on_reset=1)  # and so does every one after it
    with pytest.raises(
        EnvFailed,
        match=r"Faulty.*stream 0 failed 3 times in a row .* RuntimeError: the reactor is leaking",
    ):
        env.recv()


@pytest.mark.parametrize("name", ["Faulty", "BadEnd"])
def test_an_env_that_never_works_is_given_up(name: str) -> None:
    env = env_of(name, 2, how="raise", every=1)
    with pytest.raises(EnvFailed, match="3 times in a row"):
        play(env, 10)


def test_an_env_that_works_a_little_is_not_given_up() -> None:
    env = env_of("Counted", 2, at=2)
    play(env, 100)
    assert counts(env)["aborted"] == 50


def test_the_rebuilt_env_must_be_alike(monkeypatch: pytest.MonkeyPatch, counted: Any) -> None:
    env = env_of("Counted", 2, at=2)
    env.recv()
    monkeypatch.setattr(Counted, "action_space", spaces.Discrete(3))
    env.envs[1].action_space = env.envs[0].action_space = spaces.Discrete(2)
    with pytest.raises(EnvFailed, match="all streams of a worker need the same spaces"):
        play_on(env, 5)


def play_on(env: Any, steps: int) -> None:
    for _ in range(steps):
        env.send(np.zeros(len(env.ts.stream), int), env.ts.stream)
        env.recv()


def test_without_anybody_to_count_it_is_raised() -> None:
    with pytest.raises(
        WrongValue, match=r"Faulty.*stream 2: obs: expected float32 \[2\], got float32 \[3\]"
    ):
        play(
            make(
                EnvFactory(target=f"{HERE}:Faulty", kwargs={"how": "shape"}),
                streams=np.array([2]),
                seed=0,
            ),
            100,
        )


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [1, 7, 32])
def test_the_ruler_proves_the_rows_around_aborted_episodes(steps: int) -> None:
    ledger, env = Ledger(), env_of("FaultyRuler", 12)
    for trajectory in unrolls(env, steps, 600 // steps):
        assert verify(trajectory, ledger, fails=faulty.fails) == []
    assert counts(env)["aborted"] > 100
    assert verify(trajectory, fails=None) != []


@pytest.mark.parametrize("field", ["mask", "bootstrap", "first", "reward"])
def test_a_planted_fault_at_an_aborted_row_is_found(field: str) -> None:
    trajectory = next(unrolls(env_of("FaultyRuler", 12), 60, 1))
    at = np.argwhere(faulty.fails(*(trajectory.obs[:-1, :, k].astype(int) for k in range(3))))[0]
    row = (at[0] + 1, at[1]) if field == "first" else at
    value = getattr(trajectory, field).copy()
    value[tuple(row)] = 1.0 if field == "reward" else not value[tuple(row)]
    assert verify(dataclasses.replace(trajectory, **{field: value}), fails=faulty.fails) != []


def test_a_window_that_ends_before_a_step_that_raises() -> None:
    """It shows the observation of before again, and its rows are no steps."""
    whole = next(unrolls(env_of("FaultyRuler", 12), 60, 1))
    places = [whole.obs[:-1, :, k].astype(int) for k in range(3)]
    # the next episode has another number
    row, stream = np.argwhere(faulty.fails(*places) & (places[1] > 0))[0]
    steps = ("action", "reward", "mask", "bootstrap", "version")
    cut = dataclasses.replace(
        whole,
        context={key: value[[stream]] for key, value in whole.context.items()},
        **{name: getattr(whole, name)[: row + 1, [stream]] for name in steps},
        **{
            name: getattr(whole, name)[[*range(row + 1), row]][:, [stream]]
            for name in ("obs", "first")
        },
    )
    assert not cut.mask[row, 0] and verify(cut, fails=faulty.fails, oldest=0) == []
    assert verify(cut, fails=faulty.fails) != []


# ------------------------------------------------------------------------------------- the capsules


SHOWN = {
    "raise": ("exception", None, "the reactor is leaking"),
    "shape": ("invalid", "obs", "expected float32 [2], got float32 [3]"),
    "text": ("invalid", "obs", "expected float32 [2], got <U4 []"),
    "nothing": ("invalid", "obs", "expected float32 [2], got None of NoneType"),
    "ragged": ("invalid", "obs", "expected float32 [2], got [[0.0], 1.0] of list"),
    "nan": ("nonfinite", "obs", "expected a finite number, got nan at [1]"),
    "inf": ("nonfinite", "obs", "expected a finite number, got inf at [0]"),
    "reward nan": ("nonfinite", "reward", "expected a finite number, got nan"),
    "reward text": ("invalid", "reward", "expected a number, got 'much' of str"),
    "reward [1]": ("invalid", "reward", "expected a number, got [1.0] of list"),
}


@pytest.mark.parametrize(
    ("how", "span"), [*((how, 1) for how in SHOWN), ("raise", 20), ("nan", 1000)]
)
def test_a_failure_names_itself_and_its_capsule_replays(
    how: str, span: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "SPAN", span)
    kind, key, said = SHOWN[how]
    env = env_of("Faulty", 3, how=how, length=8, path=tmp_path)
    play(env, 90)
    assert len(written(tmp_path)) == min(counts(env)["aborted"], LIMIT) > 5
    starts = set()
    for path in written(tmp_path):
        got = read(path)
        assert (got.kind, got.key) == (kind, key) and said in got.message
        assert key is None or re.match(
            rf"<?Faulty[^,]*, stream {got.stream}: {key}: expected", got.message
        ), got.message
        assert got.step <= len(got.actions) and len(got.observations) == min(got.step, 32)
        played = reproduce(got)
        assert played.same and played.steps == len(got.actions), (path, played)
        starts.add(got.start.kind)
    assert starts == ({"seed", "generator"} if span < 1000 else {"seed"})


@pytest.mark.parametrize(
    ("how", "key"),
    [("key", "obs"), ("discrete", "obs/which"), ("nan", "obs/box"), ("shape", "obs/box")],
)
def test_keys_of_dicts_are_named(how: str, key: str, tmp_path: Path) -> None:
    env = env_of("Named", 3, how=how, path=tmp_path)
    got = play(env, 60)
    assert got["obs"]["which"].min() >= 1 and got["obs"]["which"].max() <= 3
    for path in written(tmp_path):
        assert (
            read(path).key == key
            and set(read(path).observations) <= {"box", "which"}
            and reproduce(read(path)).same
        )
    assert written(tmp_path)


@pytest.mark.parametrize(("how", "span"), [("shape", 1), ("raise", 10), ("nan", 1000)])
def test_only_the_tenth_reset_is_wrong(
    how: str, span: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "SPAN", span)
    env = env_of("Faulty", 1, how=how, on_reset=10, length=2, path=tmp_path)
    play(env, 29)
    (path,) = written(tmp_path)
    assert (
        read(path).step == 0
        and read(path).start.resets == {1: 10, 10: 9, 1000: 1}[span]
        and reproduce(read(path)).same
    )


def test_a_list_that_can_be_cast_is_no_failure(tmp_path: Path) -> None:
    right, cast = (
        play(env_of("Faulty", 2, how="none"), 100),
        play(env_of("Faulty", 2, how="list", path=tmp_path), 100),
    )
    np.testing.assert_array_equal(right["obs"], cast["obs"])
    assert not written(tmp_path)


def test_a_reset_that_gives_a_list_once_is_told(tmp_path: Path) -> None:
    env = env_of("Faulty", 3, how="list", on_reset=30, length=4, path=tmp_path)
    with pytest.warns(
        RuntimeWarning,
        match=r"stream \d: obs: expected float32 \[2\], got a list of float64 .*reported once",
    ):
        play(env, 200)
    (path,) = written(tmp_path)
    assert (
        counts(env) == {"aborted": 0, "clamped": 0, "outside": 3}
        and read(path).kind == "cast"
        and reproduce(read(path)).same
    )


def test_a_reset_out_of_its_box_is_always_told(tmp_path: Path) -> None:
    env = env_of("Faulty", 3, how="outside", on_reset=30, length=4, path=tmp_path)
    with pytest.warns(RuntimeWarning, match="got 1.5 at"):
        play(env, 200)
    assert counts(env)["outside"] == 3 and all(
        reproduce(read(path)).same for path in written(tmp_path)
    )


@pytest.mark.parametrize("every", [1, 16])
def test_a_value_out_of_its_box_is_told_and_the_episode_goes_on(every: int, tmp_path: Path) -> None:
    """Looked for in each step in which an episode begins, and in one of ``every`` others."""
    env = env_of("Faulty", 2, how="outside", path=tmp_path)
    env.checks.every = every
    with pytest.warns(
        RuntimeWarning, match=r"stream \d: obs: expected values from -1.0 to 1.0, got 1.5 at \[1\]"
    ) as warned:
        got = play(env, 600)
    found = int((got["obs"] > 1).sum())
    assert len(warned) == 1 and counts(env)["aborted"] == counts(env)["clamped"] == 0
    assert (
        counts(env)["outside"] == found > 30
        if every == 1
        else 0 < counts(env)["outside"] < found / 3
    )
    assert all(reproduce(read(path)).same for path in written(tmp_path)[:3])


def test_a_capsule_is_json_and_arrays(tmp_path: Path) -> None:
    play(env_of("BadEnd", 3, how="raise", path=tmp_path), 100)
    for path in written(tmp_path):
        assert sorted(file.name for file in path.iterdir()) == ["arrays.npz", "capsule.json"]
        assert re.fullmatch(r"exception-RuntimeError-faulty.py-\d+-\d\d", path.name)
        data = json.loads((path / "capsule.json").read_text())
        assert (
            data["env"]
            == {"target": f"{HERE}:BadEnd", "kwargs": {"how": "raise"}, "action_mask": "auto"}
            and "BadEnd" in data["wrappers"]
        )
        assert {"python", "equipoise", "gymnasium", "numpy"} <= data["versions"].keys()
        assert (
            "faulty.py" in data["traceback"]
            and "its close raised OSError: the door is stuck" in data["traceback"]
        )
        with np.load(path / "arrays.npz", allow_pickle=False) as arrays:
            assert set(arrays.files) == {"actions", "obs"} and all(
                arrays[name].dtype.kind in "if" for name in arrays.files
            )


def test_no_more_than_twenty_of_a_cause(tmp_path: Path) -> None:
    env, other = (
        env_of("Faulty", 4, path=tmp_path, every=10),
        env_of("Faulty", 4, path=tmp_path, every=10, seed=1),
    )
    play(env, 100)
    play(other, 100)
    assert len(written(tmp_path)) == LIMIT and counts(env)["aborted"] > LIMIT


def test_a_full_disk_costs_the_capsule_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capsules, "write_synced", full)
    env = env_of("Faulty", 4, path=tmp_path)
    with pytest.warns(RuntimeWarning, match="no capsule of RuntimeError: .*No space left"):
        play(env, 60)
    assert counts(env)["aborted"] > 1 and written(tmp_path) == []


def test_long_episodes_keep_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing grows with the length of an episode; what is too long says that it cannot be played
    again.
    """
    monkeypatch.setattr(Log, "ACTIONS", 100 * (16 + 128))
    env = env_of("Counted", 2, at=500, path=tmp_path)
    play(env, 499)
    assert len(env.log._actions) < 140
    play_on(env, 2)
    (path,) = written(tmp_path)
    with pytest.raises(ValueError, match="holds all actions"):
        reproduce(read(path))


def test_logs_forget_what_is_over() -> None:
    env = env_of("Faulty", 4, how="none", length=10)
    play(env, 3 * Log.SPAN)
    assert len(env.log._actions) < Log.SPAN + 64


# ------------------------------------------------------------------------------------- not a number


@pytest.mark.parametrize("how", ["nan", "inf", "reward nan", "reward inf"])
@pytest.mark.parametrize("target", ["Faulty", "in_sync"])
def test_stop_ends_the_run(how: str, target: str, tmp_path: Path) -> None:
    env = env_of(target, 3, how=how, on_nonfinite="stop", path=tmp_path)
    key = "reward" if "reward" in how else "obs"
    with pytest.raises(
        WrongValue, match=rf"stream \d: {key}: expected a finite number, got (nan|-?inf)"
    ) as error:
        play(env, 100)
    (path,) = written(tmp_path)
    assert error.value.__notes__ == [f"capsule: {path}"] and reproduce(read(path)).same


@pytest.mark.parametrize("how", ["nan", "inf", "reward nan", "reward inf"])
@pytest.mark.parametrize("target", ["Faulty", "in_sync"])
def test_clamp_makes_it_finite(how: str, target: str, tmp_path: Path) -> None:
    right = play(env_of(target, 3, how="none"), 100)
    env = env_of(target, 3, how=how, on_nonfinite="clamp", path=tmp_path)
    got = play(env, 100)
    wrong = (got["obs"] != right["obs"]).any(-1) | (got["reward"] != right["reward"])
    assert wrong.sum() > 5 and counts(env)["clamped"] >= wrong.sum() and counts(env)["aborted"] == 0
    np.testing.assert_array_equal(got["valid"], right["valid"])
    if how == "nan":
        assert (got["obs"][wrong] == 0).all()
    if how == "inf":
        assert (got["obs"][wrong] == [1, -1]).all()
    if how == "reward inf":
        assert (got["reward"][wrong] == np.finfo(np.float32).max).all()
    assert written(tmp_path) == []


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("how", ["nan", "reward inf"])
def test_drop_masks_a_vector_envs_stream_until_its_next_episode(
    how: str, mode: str, tmp_path: Path
) -> None:
    right = play(env_of("in_sync", 3, how="none", length=12, mode=mode), 150)
    env = env_of("in_sync", 3, how=how, length=12, every=40, mode=mode, path=tmp_path)
    got = play(env, 150)
    masked = ~got["valid"] & right["valid"]
    assert masked.sum() > 30 and counts(env)["aborted"] > 3
    for name in ("reward", "first", "valid", "terminated", "truncated", "obs"):
        np.testing.assert_array_equal(got[name][~masked], right[name][~masked], err_msg=name)
    ended = right["terminated"] | right["truncated"]
    for stream in range(3):
        hidden = False
        for t in range(1, 151):
            if ended[t - 1, stream]:
                hidden = False
            hidden = hidden or bool(masked[t, stream])
            assert hidden == bool(masked[t, stream]), "masked up to the next episode, no gap"
    for name, value in (("reward", 0), ("terminated", F), ("truncated", F), ("first", T)):
        assert (got[name][masked] == value).all(), name
    assert np.isfinite(got["obs"]).all() and all(
        reproduce(read(path)).same for path in written(tmp_path)
    )


@pytest.mark.parametrize("what", ["nan", "reward"])
def test_the_seam_of_a_dropped_episode(what: str) -> None:
    """Stream 0: t 0 1 2 3 4 5 | 0 ...; its third step is not a number."""
    env = env_of("FaultyVector", 2, wrong=[[0, 3, what]])
    got = play(env, 8)
    assert got["obs"][:, 0, 0].round(2).tolist() == [
        0,
        np.float32(0.01),
        np.float32(0.02),
        0,
        0,
        0,
        0,
        np.float32(0.01),
        np.float32(0.02),
    ]
    assert got["valid"][:, 0].tolist() == [F, T, T, F, F, F, F, T, T]
    assert got["first"][:, 0].tolist() == [T, F, F, T, T, T, T, F, F]
    assert not (got["terminated"] | got["truncated"])[:, 0].any() and got["reward"][
        :, 0
    ].tolist() == [
        0,
        1,
        1,
        0,
        0,
        0,
        0,
        1,
        1,
    ]
    assert got["valid"][:, 1].tolist() == [F, T, T, T, T, T, T, F, T] and got["terminated"][
        :, 1
    ].tolist() == [
        F,
        F,
        F,
        F,
        F,
        F,
        T,
        F,
        F,
    ]


def test_on_the_last_row_only_that_row_is_lost() -> None:
    env = env_of("FaultyVector", 1, wrong=[[0, 5, "nan"]])
    got = play(env, 7)
    assert got["valid"][:, 0].tolist() == [F, T, T, T, T, F, F, T] and not got["terminated"].any()
    assert got["obs"][5:, 0, 0].tolist() == [0, 0, np.float32(0.01)]


def test_a_seam_that_is_no_number_hides_its_episode() -> None:
    env = env_of("FaultyVector", 1, wrong=[[0, 6, "nan"]])
    got = play(env, 13)
    assert (
        got["valid"][:, 0].tolist() == [F, T, T, T, T, T, *[F] * 7, T]
        and got["terminated"][:, 0].tolist().index(T) == 5
    )


@pytest.mark.parametrize("step", [3, 255, 256, 257, 700])
def test_a_native_envs_capsule_replays_however_old_it_is(step: int, tmp_path: Path) -> None:
    env = env_of("FaultyVector", 2, wrong=[[1, step, "nan"]], path=tmp_path)
    play(env, step + 5)
    (path,) = written(tmp_path)
    got = read(path)
    assert got.start.kind == ("birth" if step <= 256 else "state") and len(got.actions) <= 257
    assert reproduce(got).same


@pytest.mark.parametrize("at", [7, 300])
def test_a_vector_envs_exception_is_raised_and_replays(at: int, tmp_path: Path) -> None:
    env = env_of("FaultyVector", 2, raise_at=at, path=tmp_path)
    with pytest.raises(RuntimeError, match="all at once") as error:
        play(env, 400)
    (path,) = written(tmp_path)
    assert (
        str(path) in error.value.__notes__[0]
        and read(path).stream is None
        and reproduce(read(path)).same
    )


def test_a_state_keeps_who_is_waiting() -> None:
    env, other = (env_of("FaultyVector", 2, wrong=[[0, 3, "nan"]]) for _ in range(2))
    play(env, 4)
    other.load(env.state())
    b = other.ts
    for _ in range(5):
        for one in (env, other):
            one.send(np.zeros(2, int), one.ts.stream)
        a, b = env.recv(), other.recv()
        np.testing.assert_array_equal(a.obs, b.obs)
        assert a.valid.tolist() == b.valid.tolist() and a.first.tolist() == b.first.tolist()
    assert b.valid.all()


def test_numbers_too_large_to_square_are_fine() -> None:
    env = make(EnvFactory(target="tests.envs.faulty:Counted"), streams=np.arange(1), seed=0)
    env.recv()
    env.ts.obs[:] = 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert env.checks.fine() and env.checks.wrong() == []
    env.ts.obs[0, 0] = np.nan
    assert not env.checks.fine() and env.checks.wrong()[0].kind == "nonfinite"


# -------------------------------------------------------------------------- capsules from elsewhere


@pytest.fixture
def one(tmp_path: Path) -> Path:
    play(env_of("Faulty", 1, path=tmp_path), 60)
    return written(tmp_path)[0]


CHANGES: dict[str, tuple[Any, str]] = {
    "format": (1, "format: expected 2"),
    "env": ("CartPole-v1", "env: expected a JSON object, got 'CartPole-v1'"),
    "env.target": ("../../etc/passwd", "env.target: expected a name, no path"),
    "env.target ": (
        "os:system('x')",
        "env.target: expected a Gymnasium id, module:id or module:callable",
    ),
    "streams": ([-1], r"streams\[0\]: expected a whole number from 0"),
    "stream": (7, r"stream: expected one of \[0\] or null, got 7"),
    "seed": (-3, "seed: expected a whole number from 0"),
    "kind": ("virus", "kind: expected one of 'exception', 'nonfinite'"),
    "step": ("4", "step: expected a whole number from 0 .*, got '4'"),
    "start": ({"kind": "seed"}, "start.seed: expected a value, got none"),
    "start.kind": ("elsewhere", "start.kind: expected one of 'seed'"),
    "message": (None, "message: expected a text"),
    "pickle": ("gASV", "pickle: expected no such key"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_is_looked_at(name: str, one: Path) -> None:
    value, said = CHANGES[name]
    data = json.loads((one / "capsule.json").read_text())
    *parents, last = name.strip().split(".")
    (data[parents[0]] if parents else data)[last] = value
    (one / "capsule.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said):
        read(one)


@pytest.mark.parametrize("name", ["format", "start", "actions"])
def test_nothing_may_be_missing(name: str, one: Path) -> None:
    if name == "actions":
        np.savez(one / "arrays.npz", other=np.zeros(1))
    else:
        data = json.loads((one / "capsule.json").read_text())
        del data[name]
        (one / "capsule.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"{name}"):
        read(one)


def test_objects_links_and_garbage_are_refused(one: Path, tmp_path: Path) -> None:
    np.savez(one / "arrays.npz", actions=np.array([{}]))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read(one)
    np.savez(one / "arrays.npz", actions=np.array(["a"]))
    with pytest.raises(ValueError, match="expected numbers in 'actions'"):
        read(one)
    (one / "arrays.npz").write_bytes(b"PK not really")
    with pytest.raises(ValueError, match=r"expected numpy's npz|pickle"):
        read(one)
    with zipfile.ZipFile(one / "arrays.npz", "w") as archive:
        archive.writestr("../../actions.npy", b"x")
    with pytest.raises(ValueError):
        read(one)
    (one / "arrays.npz").unlink()
    with pytest.raises(FileNotFoundError, match="got no arrays.npz"):
        read(one)
    (one / "arrays.npz").symlink_to(tmp_path / "capsule.json")
    (tmp_path / "capsule.json").write_text("{")
    with pytest.raises(ValueError, match="got a link"):
        read(one)
    with pytest.raises(FileNotFoundError, match="expected a capsule"):
        read(tmp_path / "nowhere")


def test_a_generator_state_that_is_none_is_a_failed_replay(one: Path) -> None:
    broken = dataclasses.replace(
        read(one), start=capsules.Start(kind="generator", generator={"bit_generator": "PCG64"})
    )
    played = reproduce(broken)
    assert not played.same and "PCG64" in str(played.error)


def test_an_env_that_was_put_right_does_not_reproduce(one: Path) -> None:
    mended = dataclasses.replace(
        read(one), env=EnvFactory(target=f"{HERE}:Faulty", kwargs={"how": "none"})
    )
    assert reproduce(mended).error is None
    other = dataclasses.replace(read(one), message="something else")
    assert reproduce(other).error is not None and not reproduce(other).same
