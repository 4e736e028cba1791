"""SAME_STEP, where a truncated episode's last observation is shown and its reset held back: beside
the rows of NEXT_STEP.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from equipoise import tree
from equipoise.actors.recorder import Recorder
from equipoise.envs import Ruler, adapter, final
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.failures import capsule
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.failures.reproduce import reproduce
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.masks import KEY, VectorInfoMask
from equipoise.envs.toys import ruler
from equipoise.types import EnvSpec
from tests.envs.rolling import Scripted, env_of, rows
from tests.envs.same import SameRuler
from tests.envs.test_resume import play

HERE = "tests.envs.same:SameRuler"
T, F = True, False


def test_truth_table():
    """Stream 0: episodes of 2 (terminated), 1 (truncated), 3 (both); stream 1: 1 (truncated), 3
    (both), 2 (terminated).
    """
    env = env_of("tests.envs.rolling:two_scripted", 2, mode="SameStep")
    got = rows(env, np.zeros((9, 2), int))
    one, other = ({name: value[:, i].tolist() for name, value in got.items()} for i in (0, 1))
    assert other["obs"] == [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
        [1, 2],
        [1, 2],
        [2, 0],
        [2, 1],
        [3, 0],
        [3, 1],
    ]
    assert other["reward"] == [0, 1, 0, 11, 12, 0, 13, 21, 22, 31]
    assert other["terminated"] == [F, F, F, F, F, F, T, F, T, F]
    assert other["truncated"] == [F, T, F, F, F, F, T, F, F, T]
    assert other["first"] == [T, F, T, F, F, F, T, F, T, F]
    assert other["valid"] == [F, T, F, T, T, F, T, T, T, T]
    assert one["obs"] == [
        [0, 0],
        [0, 1],
        [0, 1],
        [1, 0],
        [1, 1],
        [2, 0],
        [2, 1],
        [2, 2],
        [3, 0],
        [3, 1],
    ]
    assert one["reward"] == [0, 1, 0, 2, 11, 0, 21, 22, 23, 31]
    assert one["terminated"] == [F, F, F, T, F, F, F, F, T, F]
    assert one["truncated"] == [F, F, F, F, T, F, F, F, T, F]
    assert one["first"] == [T, F, F, T, F, T, F, F, T, F]
    assert one["valid"] == [F, T, F, T, T, F, T, T, T, T]
    assert env.spec.notes == ()


def test_an_episode_that_begins_as_another_is_held_begins_in_both_rows():
    """Its first observation is seen twice, from an empty state each time."""
    env = GymnasiumEnv(SameRuler(num_envs=8), streams=np.arange(8), seed=0)
    got = rows(env, np.zeros((300, 8), int))
    held = ~got["valid"] & (got["obs"] == np.roll(got["obs"], 1, 0)).all(-1)
    held[0] = False
    again = held & np.roll(got["first"], 1, 0)
    assert again.any() and (held & ~again).any()
    assert (got["first"] == (got["obs"][..., 2] == 0)).all()


def unheld(got: dict[str, Any], stream: int) -> list[list[Any]]:
    """The rows of a stream as NEXT_STEP has them, but for what follows a termination: [reward,
    terminated, truncated, obs].
    """
    said = []
    for t in range(1, len(got["valid"])):
        terminated, truncated = (
            bool(got["terminated"][t, stream]),
            bool(got["truncated"][t, stream]),
        )
        if got["valid"][t, stream]:
            # whose value nobody asks for
            obs = None if terminated else got["obs"][t, stream].tolist()
            said.append([float(got["reward"][t, stream]), terminated, truncated, obs])
        elif (
            got["first"][t, stream]
            and not (got["obs"][t, stream] == got["obs"][t - 1, stream]).all()
        ):
            said.append([0.0, False, False, got["obs"][t, stream].tolist()])  # a seam
        else:
            assert not (got["reward"][t, stream] or terminated or truncated)
            assert (got["obs"][t, stream] == got["obs"][t - 1, stream]).all()
    return said


def after_terminations(said: list[list[Any]]) -> list[list[Any]]:
    """NEXT_STEP's rows without the seams after terminations, which SAME_STEP does not have."""
    return [
        row
        for before, row in zip([None, *said], said, strict=False)
        if before is None or not before[1]
    ]


def sync(mode: AutoresetMode, kind: Any = SyncVectorEnv) -> Any:
    return kind([lambda s=s: Ruler(stream=s) for s in range(6)], autoreset_mode=mode)


MAKERS = {
    "sync": lambda: sync(AutoresetMode.SAME_STEP),
    "async": lambda: sync(AutoresetMode.SAME_STEP, AsyncVectorEnv),
    "rows": lambda: SameRuler(num_envs=6),
    "objects": lambda: SameRuler(num_envs=6, form="objects"),
    "old": lambda: SameRuler(num_envs=6, form="old"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_rows_are_those_of_next_step(name):
    streams, actions = np.arange(6), np.zeros((400, 6), int)
    theirs = GymnasiumEnv(sync(AutoresetMode.NEXT_STEP), streams=streams, seed=0)
    ours = GymnasiumEnv(MAKERS[name](), streams=streams, seed=0)
    assert ours.spec.notes == (() if name in ("sync", "async") else (final.UNKNOWN,))
    expected, got = rows(theirs, actions), rows(ours, actions)
    assert ours.spec.notes == ()
    ours.close()
    cuts = 0
    for stream in range(6):
        wanted, mine = after_terminations(unheld(expected, stream)), unheld(got, stream)
        assert len(mine) > 150 and mine == wanted[: len(mine)]
        cuts += sum(row[2] and not row[1] for row in mine)
    assert cuts > 50


def test_no_env_is_stepped_for_a_hold():
    env = GymnasiumEnv(inner := SameRuler(num_envs=3), streams=np.arange(3), seed=0)
    got = rows(env, np.zeros((100, 3), int))
    held = (~got["valid"][1:]).all(1)
    assert inner.calls == 100 - held.sum() and held.sum() > 5
    assert (got["valid"][1:].any(1) == got["valid"][1:].all(1)).all(), (
        "a row is all streams' or nobody's"
    )


@pytest.mark.parametrize(("form", "streams"), [("none", [0, 2]), ("some", [1, 3])])
def test_without_a_final_observation_a_truncation_is_a_termination_and_that_is_said(form, streams):
    """Of ``some`` envs only those that give one are held."""
    env = GymnasiumEnv(
        SameRuler(num_envs=2, streams=streams, form=form), streams=np.arange(2), seed=0
    )
    with pytest.warns(
        RuntimeWarning, match=r"treated as termination: expected info\['final_obs'\]"
    ) as said:
        got = rows(env, np.zeros((100, 2), int))
    assert len(said) == 1 and env.spec.notes == (final.TRUNCATION,)
    assert got["valid"][1:].all() and (got["first"][1:] == got["terminated"][1:]).all()
    assert (got["terminated"] & got["truncated"]).any()


def test_some_final_observations():
    env = GymnasiumEnv(SameRuler(num_envs=2, form="some"), streams=np.arange(2), seed=0)
    with pytest.warns(RuntimeWarning):
        got = rows(env, np.zeros((200, 2), int))
    alone = got["truncated"] & ~got["terminated"]
    assert alone[:, 0].any() and not alone[:, 1].any() and env.spec.notes == (final.TRUNCATION,)


def test_a_final_observation_of_another_shape_is_refused():
    env = GymnasiumEnv(SameRuler(num_envs=2, form="narrow"), streams=np.arange(2), seed=0)
    with pytest.raises(
        WrongValue, match=r"stream 0: info/final_obs: expected float32 \[3\], got float32 \[2\]"
    ):
        rows(env, np.zeros((100, 2), int))


def test_dicts_and_scalars():
    """As objects, and in rows; only what was asked for is written."""
    target = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.int64)}
    objects = np.full(3, None, object)
    objects[1] = {"a": np.array([1.0, 2.0]), "b": 7}
    assert final.read(target, {"final_obs": objects}, np.array([T, T, F])).tolist() == [F, T, F]
    assert target["a"].tolist() == [[0, 0], [1, 2], [0, 0]] and target["b"].tolist() == [0, 7, 0]
    whole = {"a": np.full((3, 2), 5.0), "b": np.full(3, 9)}
    assert final.read(target, {"final_obs": whole}, np.array([T, F, F])).tolist() == [T, F, F]
    assert target["a"].tolist() == [[5, 5], [1, 2], [0, 0]] and target["b"].tolist() == [9, 7, 0]
    assert not final.read(target, {}, np.array([T, T, T])).any()


class Choosy(Scripted):
    """Its action mask in ``info`` is that of the episode and the step."""

    def reset(self, **given: Any) -> Any:
        obs, _ = super().reset(**given)
        return obs, {KEY: self.mask()}

    def step(self, action: Any) -> Any:
        *row, _ = super().step(action)
        return *row, {KEY: self.mask()}

    def mask(self) -> Any:
        return np.array([1, self.t % 2, self.episode % 2])


def test_a_mask_out_of_info_comes_with_the_final_observation():
    envs = [Choosy, lambda: Choosy(1)]
    env = GymnasiumEnv(
        VectorInfoMask(SyncVectorEnv(envs, autoreset_mode="SameStep")), streams=np.arange(2), seed=0
    )
    got = rows(env, np.zeros((9, 2), int))
    plain = rows(
        env_of("tests.envs.rolling:two_scripted", 2, mode="SameStep"), np.zeros((9, 2), int)
    )
    assert (got["obs"]["obs"] == plain["obs"]).all()
    number, t = got["obs"]["obs"][..., 0], got["obs"]["obs"][..., 1]
    assert (got["obs"][KEY] == np.stack([np.ones_like(t), t % 2, number % 2], -1)).all()
    assert (got["truncated"] & ~got["terminated"]).sum() > 2


# ------------------------------------------------------------------------- what a run needs besides


def test_exact_resume_at_every_row():
    """Also between a final observation and the reset that is held back."""
    actions = np.random.default_rng(0).integers(0, 8, (60, 5))
    env = env_of(HERE, 5, 1)
    assert env.spec.resume == "exact"
    rows(env, actions[:0])
    whole = play(env, actions)
    env, held = env_of(HERE, 5, 1), 0
    rows(env, actions[:0])
    for n in range(40):
        held += env.holding
        other = env_of(HERE, 5, 2)
        rows(other, actions[: n % 4])
        other.load(env.state())
        np.testing.assert_array_equal(play(other, actions[n:]), whole[n:])
        play(env, actions[n : n + 1])
    assert held > 3


def test_a_restart_forgets_what_is_held():
    env = GymnasiumEnv(sync(AutoresetMode.SAME_STEP), streams=np.arange(6), seed=0)
    env.recv()
    while not env.holding:
        play(env, np.zeros((1, 6), int))
    assert env.state() == {}
    env.load({})
    ts = env.recv()
    assert ts.first.all() and not env.holding and (ts.obs[:, 2] == 0).all()
    env.send(np.zeros(6, int), ts.stream)
    assert env.recv().valid.all()


@pytest.mark.parametrize("kind", ["ends", "resets"])
def test_of_an_aborted_episode_nothing_is_told(kind):
    """Episode 1 is truncated, and so is 2. The last observation of 1 is nan: 1 is lost; or the
    first of 2 is, and 2 is lost.
    """
    stream = next(s for s in range(100) if truncated(s, 1) and truncated(s, 2))
    failures = Failures(on_nonfinite="drop")
    inner = SameRuler(num_envs=2, streams=[stream, 0], nonfinite=stream, resets=kind == "resets")
    env = GymnasiumEnv(inner, streams=np.arange(2), seed=0)
    env.failures = failures
    got = rows(env, np.zeros((120, 2), int))
    number, t = got["obs"][:, 0, 1], got["obs"][:, 0, 2]
    assert np.isfinite(got["obs"]).all() and failures.counts[0] == 1
    length = int(ruler.episode(stream, 1)[0])
    last = got["valid"][:, 0] & (number == 1) & (t == length)
    assert last.any() == (kind == "resets")
    assert (t[got["first"][:, 0]] == 0).all(), "an episode that nothing is told of is not held"
    valid = got["valid"][:, 0]
    assert (valid & (number == 2)).any() == (kind == "ends") and (valid & (number == 3)).any()
    expected = ruler.reward(number - (t == 0), np.where(t > 0, t - 1, 0), 0)
    right = valid & ~got["terminated"][:, 0]
    np.testing.assert_array_equal(got["reward"][right, 0], expected[right])


def truncated(stream: int, number: int) -> bool:
    _, terminates, truncates = ruler.episode(stream, number)
    return bool(truncates and not terminates)


def test_a_capsule_has_what_reached_the_env(tmp_path):
    """The actions of held rows did not; the replay holds where the run held."""
    stream = next(s for s in range(100) if truncated(s, 0) and truncated(s, 1))
    env = env_of(HERE, [stream, 0], nonfinite=stream)
    env.failures = Failures(on_nonfinite="stop", capsules=tmp_path)
    with pytest.raises(WrongValue, match="finite"):
        rows(env, np.random.default_rng(0).integers(0, 8, (200, 2)))
    (path,) = tmp_path.iterdir()
    made = capsule.read(path)
    assert made.start.kind == "birth" and len(made.actions) == env.env.calls == made.step
    again = reproduce(made)
    assert again.same and again.steps == env.env.calls


@pytest.mark.parametrize("every", range(1, 9))
def test_a_capsule_from_a_state_on_has_what_reached_the_env(every, tmp_path, monkeypatch):
    """Also where the first step from there is one after which the env is held."""
    monkeypatch.setattr(adapter, "EXACT_ACTIONS", every)
    stream = next(s for s in range(100) if truncated(s, 0) and truncated(s, 1))
    env = env_of(HERE, [stream, 0, 1, 2], nonfinite=stream)
    env.failures = Failures(on_nonfinite="stop", capsules=tmp_path)
    with pytest.raises(WrongValue, match="finite"):
        rows(env, np.random.default_rng(0).integers(0, 8, (200, 4)))
    (path,) = tmp_path.iterdir()
    made = capsule.read(path)
    assert made.start.kind == "state" and reproduce(made).same


def test_a_capsule_of_a_reset_that_was_held_back(tmp_path):
    stream = next(s for s in range(100) if truncated(s, 0) and truncated(s, 1))
    env = env_of(HERE, [stream, 0], nonfinite=stream, resets=True)
    env.failures = Failures(on_nonfinite="stop", capsules=tmp_path)
    with pytest.raises(WrongValue, match="finite"):
        rows(env, np.zeros((200, 2), int))
    (path,) = tmp_path.iterdir()
    assert reproduce(capsule.read(path)).same


class Counted(gymnasium.Env[Any, Any]):
    """Episodes of stream + 2 steps that a clock ends; ``info`` has t."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"t": 99}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == self.length, {"t": self.t}


def counted(mode: AutoresetMode) -> Any:
    envs = [lambda: Counted(2), lambda: Counted(5)]
    return GymnasiumEnv(SyncVectorEnv(envs, autoreset_mode=mode), streams=np.arange(2), seed=0)


def test_numbers_of_info_stand_in_the_row_that_they_are_of():
    env = counted(AutoresetMode.SAME_STEP)
    env.watch(("t",))
    env.recv()
    seen = []
    for _ in range(40):
        env.send(np.zeros(2, int), env.ts.stream)
        ts = env.recv()
        assert (ts.info[ts.valid, 0] == ts.obs[ts.valid, 0]).all() and np.isnan(
            ts.info[~ts.valid]
        ).all()
        seen.append(ts.valid.all())
    assert 0 < sum(seen) < 40


def test_a_record_has_no_row_whose_action_was_ignored():
    """Episodes as NEXT_STEP's, action beside outcome."""
    episodes = []
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        env = counted(mode)
        recorder = Recorder(EnvSpec(observation=env.spec.observation, action=env.spec.action), 2)
        for _ in range(60):
            ts = env.recv()
            recorder.step(ts, np.ones(2, bool))
            action = (ts.obs[:, 0] % 2).astype(int)
            recorder.acted(action)
            env.send(action, ts.stream)
        by_length: dict[int, list[Any]] = {2: [], 5: []}
        for one in recorder.done:
            by_length[len(one["reward"])].append(one)
        episodes.append(by_length)
    for length in (2, 5):
        few = min(len(each[length]) for each in episodes)
        assert few > 5
        for one, other in zip(*(each[length][:few] for each in episodes), strict=True):
            tree.map(np.testing.assert_array_equal, one, other)
            assert (
                one["action"].tolist() == [t % 2 for t in range(length)]
                and len(one["obs"]) == length + 1
            )


def test_what_is_known_needs_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows(env_of("tests.envs.rolling:two_scripted", 2, mode="SameStep"), np.zeros((20, 2), int))
