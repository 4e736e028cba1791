"""Python envs, one a stream: what ``state`` keeps of each and what ``load`` makes of it."""

import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equipoise import tree
from equipoise.envs.base import SENT
from equipoise.envs.restore import record, resume
from tests.envs.rolling import env_of

SINGLE = "tests.envs.single"
STEPS, B = 200, 3
NEEDS = {"ALE/": "ale_py", "'atari'": "cv2"} | dict.fromkeys(
    ("HalfCheetah", "Hopper", "Ant", "Reacher"), "mujoco"
)
LOCOMOTION = ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Reacher-v5"]
GREY = {"obs_type": "grayscale", "max_episode_steps": 28}
CASES = [
    ("exact", "python:CartPole-v1", {"max_episode_steps": 23}),
    ("exact", "python:Acrobot-v1", {"max_episode_steps": 60}),
    ("exact", "python:Pendulum-v1", {"max_episode_steps": 45}),
    ("exact", "python:MountainCar-v0", {"max_episode_steps": 70}),
    ("exact", "MountainCarContinuous-v0", {"max_episode_steps": 70}),
    *[("exact", name, {"max_episode_steps": 70}) for name in LOCOMOTION],
    ("exact", "python:ale_py:ALE/Pong-v5", {"max_episode_steps": 28}),
    ("exact", "python:ALE/Pong-v5", {"max_num_frames_per_episode": 112}),
    (
        "exact",
        "python:ALE/Breakout-v5",
        {"max_num_frames_per_episode": 112, "repeat_action_probability": 0.5, "noop_max": 4},
    ),
    (
        "exact",
        "python:ALE/Breakout-v5",
        {"max_num_frames_per_episode": 112, "repeat_action_probability": 0.0},
    ),
    (
        "exact",
        "python:ale_py:ALE/Breakout-v5",
        GREY | {"frameskip": (2, 5), "repeat_action_probability": 0.5},
    ),
    ("exact", "python:equipoise/Catch-v0", {}),
    ("exact", "python:equipoise/BitFlip-v0", {"bits": 5}),
    ("exact", "python:equipoise/TMaze-v0", {"length": 3}),
    ("exact", "python:equipoise/RepeatFirst-v0", {"delay": 3}),
    ("exact", "python:equipoise/Ruler-v0", {}),
    ("exact", f"{SINGLE}:Named", {}),
    ("exact", f"{SINGLE}:Offering", {}),
    (
        "exact",
        f"{SINGLE}:wrapped",
        {"id": "Acrobot-v1", "around": "known", "stack": 3, "max_episode_steps": 30},
    ),
    (
        "exact",
        f"{SINGLE}:wrapped",
        {"id": "Pendulum-v1", "around": "norm", "max_episode_steps": 30},
    ),
    (
        "exact",
        f"{SINGLE}:wrapped",
        {
            "id": "ALE/Breakout-v5",
            "around": "atari",
            "frameskip": 1,
            "stack": 2,
            "max_episode_steps": 112,
        },
    ),
    ("replay", f"{SINGLE}:Walk", {}),
    ("replay", f"{SINGLE}:Endless", {}),
    ("replay", f"{SINGLE}:wrapped", {"id": "CartPole-v1", "around": "fog"}),
    ("replay", f"{SINGLE}:wrapped", {"id": "Hopper-v5", "around": "fog"}),
    (
        "replay",
        f"{SINGLE}:wrapped",
        {"id": "ALE/Pong-v5", "around": "fog", "max_episode_steps": 28},
    ),
    ("replay", "Taxi-v4", {"max_episode_steps": 40}),
]


def needs(target, kwargs):
    said = f"{target} {kwargs}"
    for word, module in NEEDS.items():
        if word in said and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if "ALE/" in said:
        import ale_py  # noqa: F401  # registers the ids, which a callable does not


def random_actions(env, steps, seed=0):
    """[steps, B, ...]"""
    space, rng = env.spec.action, np.random.default_rng(seed)
    shape = (steps, *env.action.shape)
    if hasattr(space, "n"):
        return space.start + rng.integers(0, space.n, shape)
    return rng.uniform(space.low, space.high, shape).astype(np.float32)


def answer(env, action):
    env.send(action, env.ts.stream)
    return row(env.recv())


def row(ts):
    return tree.map(np.array, ts.rows())


def same(got, expected):
    for name, leaf in tree.items(expected):
        np.testing.assert_array_equal(dict(tree.items(got))[name], leaf, err_msg=name)


def through_a_file(state):
    """What safetensors keeps: named plain arrays."""
    flat = dict(tree.items(state))
    file = io.BytesIO()
    np.savez(file, **{name.replace("/", "|"): leaf for name, leaf in flat.items()})
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype.kind in "biuf" for name in arrays)
        return tree.nest({name.replace("|", "/"): arrays[name] for name in arrays})


def fresh(target, kwargs, seed=2):
    """One stream of ALE, whose seeded reset loads the game anew, else B."""
    return env_of(target, 1 if "ALE/" in f"{target} {kwargs}" else B, seed, **kwargs)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "target", "kwargs"), CASES, ids=[f"{k}-{t}-{n}" for n, (k, t, _) in enumerate(CASES)]
)
def test_it_goes_on(kind, target, kwargs):
    """States taken at the reset, in the middle, at an end (before its seam), on a seam, and after
    200 steps; each is loaded into an env of another seed, the rows after it equal those of the env
    that went on.
    """
    needs(target, kwargs)
    steps, after = (60, 30) if "ALE" in f"{target} {kwargs}" else (STEPS, 70)
    env = fresh(target, kwargs, seed=1)
    assert env.spec.resume == kind
    actions = random_actions(env, 2 * steps)
    told, states, wanted = [row(env.recv())], {}, {"reset", "middle", "end", "seam", "late"}
    for t in range(2 * steps + 1):
        last = told[-1]
        is_now = {
            "reset": t == 0,
            "end": t > 20 and (last["terminated"] | last["truncated"]).any(),
            "seam": t > 20 and last["first"].any(),
            "middle": t == 47,
            "late": t == steps,
        }
        for name in [name for name in wanted if is_now[name] and t <= steps]:
            states[name, t] = through_a_file(env.state())
            wanted.remove(name)
        if t < 2 * steps:
            told.append(answer(env, actions[t]))
    assert not wanted or "Endless" in target
    for (name, t), state in states.items():
        other = fresh(target, kwargs)
        other.recv()
        for action in random_actions(env, t % 3, 5):
            answer(other, action)
        other.load(state)
        assert (
            other.resumed == {"exact": 0, "replay": 0, "restart": 0} | {kind: len(other.envs)}
            and not other.restarted.any()
        ), name
        same(row(other.ts), told[t])
        for n in range(t, t + (steps if name == "late" else after)):
            same(answer(other, actions[n]), told[n + 1])
        other.close()
    env.close()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "kwargs"),
    [
        ("python:CartPole-v1", {}),
        (f"{SINGLE}:Endless", {}),
        ("python:ale_py:ALE/Pong-v5", GREY | {"frameskip": 1, "repeat_action_probability": 0.5}),
    ],
)
def test_resumed_again_and_again(target, kwargs):
    """A state of an env that was itself resumed is as good as one of the first, also between send
    and recv.
    """
    needs(target, kwargs)
    env = fresh(target, kwargs, seed=1)
    actions = random_actions(env, 150 if "ALE" in target else 700)
    env.recv()
    other = fresh(target, kwargs)
    other.recv()
    for t, action in enumerate(actions):
        if t in (1, 2, 30, 63, 64, 140, 301, 550, 699):
            state = through_a_file(other.state()) if t > 2 else through_a_file(env.state())
            other.close()
            other = fresh(target, kwargs, seed=t)
            other.load(state)
        env.send(action, env.ts.stream)
        if t >= 1:
            other.send(action, other.ts.stream)
            if t % 100 == 50:
                state = other.state()
                assert state["phase"] == SENT
                other = fresh(target, kwargs, seed=t)
                other.load(state)
            other.recv()
        env.recv()
        if t >= 1:
            same(row(other.ts), row(env.ts))


@pytest.mark.thorough
def test_the_held_action_of_sticky_games(monkeypatch):
    """ALE's own state lacks it. A state a step, so that many of them come while another action is
    held.
    """
    needs("ALE/", {})
    monkeypatch.setattr(record, "ROOM", 8)
    made = {"frameskip": 1, "repeat_action_probability": 0.3}
    env, other = (
        env_of("python:ALE/Pong-v5", 1, 1, **made),
        env_of("python:ALE/Pong-v5", 1, 2, **made),
    )
    actions = random_actions(env, 160)
    env.recv(), other.recv()
    states, told, consoles = [], [], []
    for t, action in enumerate(actions):
        if 80 <= t < 150:
            states.append(env.state())
        told.append(answer(env, action))
        consoles.append(resume.emulator(env.envs[0].unwrapped))
    forgotten = 0
    for t, state in enumerate(states, 80):
        other.load(state)
        same(answer(other, actions[t]), told[t])
        bare = other.envs[0].unwrapped
        np.testing.assert_array_equal(resume.emulator(bare), consoles[t])
        bare.ale.reset_game()
        resume.restore(other.envs[0], state["env"]["0"]["exact"])  # without ``hold``
        bare.step(actions[t][0])
        forgotten += not np.array_equal(resume.emulator(bare), consoles[t])
    assert forgotten > 5  # else this test proves nothing


# ---------------------------------------------------------------------------------------- restarted


@pytest.mark.parametrize("limit", [1.0, 99.0])  # taken again the episode ends early; it does not
@pytest.mark.parametrize("sent", [False, True])
def test_what_cannot_be_replayed_restarts_and_says_so(sent, limit):
    """Stream 1 draws from a generator that nobody seeds; the others go on as if nothing had
    happened.
    """
    target, made = f"{SINGLE}:Haunted", {"limit": limit}
    env = fresh(target, made, seed=1)
    assert env.spec.resume == "replay"
    actions = random_actions(env, 90)
    env.recv()
    for t in range(40):
        ts = row(env.ts) if t == 0 else answer(env, actions[t])
    while ts["first"][1] or ts["terminated"][1]:  # noise must have had a say
        ts = answer(env, actions[40])
    if sent:
        env.send(actions[41], env.ts.stream)
    other = fresh(target, made)
    other.load(through_a_file(env.state()))
    assert other.resumed == {"exact": 0, "replay": 2, "restart": 1}
    assert other.restarted.tolist() == [False, True, False]
    assert list(other.restarts) == [1] and "another row" in other.restarts[1]
    again = fresh(target, made)
    if not sent:
        same(row(other.ts), ts)  # what was told stays told
        again.load(through_a_file(other.state()))  # a checkpoint straight after the resume
        env.send(actions[41], env.ts.stream)
        for one in (other, again):
            one.send(actions[41], one.ts.stream)
    else:
        again.load(through_a_file(other.state()))
    expected = row(env.recv())
    for one in (other, again):
        got = row(one.recv())
        said = {name: got[name][1].item() for name in got if name != "obs"}
        assert said == {
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "first": True,
            "valid": False,
        }
        assert got["obs"]["n"][1] == 0
        for name, leaf in tree.items(expected):
            np.testing.assert_array_equal(
                dict(tree.items(got))[name][[0, 2]], leaf[[0, 2]], err_msg=name
            )
    got = answer(other, actions[42])
    # an ordinary episode
    assert got["valid"][1] and not got["first"][1] and got["obs"]["n"][1] == 1
    other.load({})
    assert other.resumed == {"exact": 0, "replay": 0, "restart": 3} and other.restarted.all()
    assert other.recv().first.all()


def test_a_memory_longer_than_an_episode_is_noticed_by_the_reward():
    env = env_of(f"{SINGLE}:Remembering", 1, 1)
    actions = random_actions(env, 60)
    env.recv()
    for action in actions:
        answer(env, action)
        if env.envs[0].unwrapped.bonus and env.ts.valid[0] and not env.ts.terminated[0]:
            break
    assert env.ts.valid[0] and not env.ts.terminated[0]
    other = env_of(f"{SINGLE}:Remembering", 1, 2)
    other.load(env.state())
    assert other.resumed["restart"] == 1


def test_a_log_that_fills_up_often(monkeypatch):
    monkeypatch.setattr(record, "ROOM", 4)
    env, other = fresh(f"{SINGLE}:Walk", {}, 1), fresh(f"{SINGLE}:Walk", {})
    env.recv(), other.recv()
    for action in random_actions(env, 300):
        answer(env, action)
        other.load(env.state())
        assert other.resumed["replay"] == B
        same(row(other.ts), row(env.ts))
    assert len(env._past._log) < 300


def test_an_episode_too_long_is_not_kept(monkeypatch):
    monkeypatch.setattr(record, "ROOM", 4)
    monkeypatch.setattr(record, "LONGEST", 256)
    env = env_of(f"{SINGLE}:Endless", B, 1)
    actions = random_actions(env, 700)
    env.recv()
    for t, action in enumerate(actions[:600]):
        answer(env, action)
        if t == 20:
            other = fresh(f"{SINGLE}:Endless", {})
            other.load(env.state())
            assert other.resumed["replay"] == B
            same(row(other.ts), row(env.ts))
    assert len(env._past._log) == 256
    other = fresh(f"{SINGLE}:Endless", {})
    other.load(through_a_file(env.state()))
    assert other.restarted.tolist() == [True, False, False] and "too long" in other.restarts[0]
    for action in actions[600:]:
        expected, got = answer(env, action), answer(other, action)
        for name, leaf in tree.items(expected):
            np.testing.assert_array_equal(dict(tree.items(got))[name][1:], leaf[1:], err_msg=name)


# ------------------------------------------------------------------------------------------ refused


def changed(state, path, value):
    flat = dict(tree.items(state))
    assert any(name == path or name.startswith(f"{path}/") for name in flat), sorted(flat)
    flat = {
        name: leaf
        for name, leaf in flat.items()
        if name != path and not name.startswith(f"{path}/")
    }
    return tree.nest(flat | ({} if value is None else {path: value}))


CARTPOLE, WALK = "python:CartPole-v1", f"{SINGLE}:Walk"


@pytest.mark.parametrize(
    ("target", "path", "value", "said"),
    [
        (
            CARTPOLE,
            "env/1/exact/env/state",
            np.zeros(3),
            r"state of CartPoleEnv.state: expected shape \(4,\), got \(3,\)",
        ),
        (CARTPOLE, "env/1/exact/env", None, "state without 'state'"),
        (
            CARTPOLE,
            "env/1/exact/wrappers/0.TimeLimit/_elapsed_steps",
            np.zeros(2),
            r"_elapsed_steps: expected shape \(\)",
        ),
        (CARTPOLE, "env/1/exact/wrappers", None, "state without 'wrappers'"),
        (CARTPOLE, "env/1/exact/np_random", None, "state without 'np_random'"),
        (CARTPOLE, "env/1", None, r"state of streams \['0', '2'\]: expected those of \[0, 1, 2\]"),
        (
            CARTPOLE,
            "rows/obs",
            np.zeros((2, 4)),
            r"state of obs: expected float32 \[3, 4\], got .* \[2, 4\]",
        ),
        (CARTPOLE, "rows/valid", None, "state without 'valid'"),
        (
            CARTPOLE,
            "action",
            np.zeros((3, 2)),
            r"state of action: expected int64 \[3\], got .* \[3, 2\]",
        ),
        (
            WALK,
            "env/1/replay/actions",
            np.zeros((7, 3), np.float32),
            r"actions: expected \[n, 2\] float32, got \(7, 3\)",
        ),
        (WALK, "env/1/replay/actions", np.zeros((7, 2)), "float32, got .* float64"),
        (WALK, "env/1/replay", None, "state of streams"),
        (
            "Hopper-v5",
            "env/1/exact/env/integration",
            np.zeros(3),
            r"HopperEnv.data.integration: expected shape .* got \(3,\)",
        ),
        (
            "Hopper-v5",
            "env/1/exact/env/qpos",
            np.zeros(3),
            r"HopperEnv.data.qpos: expected shape \(6,\), got \(3,\)",
        ),
        ("Hopper-v5", "env/1/exact/env/xpos", None, "state without 'xpos'"),
        (
            "python:ALE/Pong-v5",
            "env/0/exact/env/ale",
            np.zeros(9, np.uint8),
            r"ale: ALE cannot read it \(shape \(9,\)\)",
        ),
        ("python:ALE/Pong-v5", "env/0/exact/held", None, "state without 'held'"),
        (
            "python:ALE/Pong-v5",
            "env/0/exact/held/actions",
            np.zeros((4, 1), int),
            r"expected \[n\] int64",
        ),
    ],
)
def test_what_does_not_fit_is_named(target, path, value, said):
    needs(target, {})
    env = fresh(target, {}, seed=1)
    for action in (None, *random_actions(env, 5)):
        env.recv() if action is None else answer(env, action)
    state = env.state()
    other = fresh(target, {})
    with pytest.raises(ValueError, match=said):
        other.load(changed(state, path, value))
    other.load(state)  # and nothing of it stays
    same(answer(other, action), answer(env, action))


def test_a_state_of_another_kind_of_env_is_refused():
    env, other = env_of(CARTPOLE, 1), env_of(f"{SINGLE}:wrapped", 1, id="CartPole-v1", around="fog")
    env.recv()
    with pytest.raises(ValueError, match="of kind 'exact', but .* is 'replay'"):
        other.load(env.state())


def test_a_state_of_another_game_is_refused():
    needs("ALE/", {})
    env, other = fresh("python:ALE/Pong-v5", {}), fresh("python:ALE/Assault-v5", {})
    env.recv(), other.recv()
    state = env.state()
    kept = state["env"]["0"]["exact"]["held"]["ale"]
    with pytest.raises(ValueError, match="state of AtariEnv.ale: ALE made another of it"):
        env.load(changed(state, "env/0/exact/held/ale", np.append(kept, np.uint8(0))))
    state["rows"] = other.state()["rows"]  # its pictures have another size
    with pytest.raises(ValueError, match="state of AtariEnv.ale: ALE cannot read it"):
        other.load(state)


def test_what_is_no_array_is_refused():
    env = env_of(f"{SINGLE}:Opaque", 1)
    env.recv()
    with pytest.raises(
        TypeError, match="Opaque.np_random is Generator, expected an array or a number"
    ):
        env.state()


# ---------------------------------------------------------------------------------- another process

CHILD = "import sys; from tests.envs.test_resume_python import child; child(sys.argv[1])"
PONG, HAUNTED = "python:ALE/Pong-v5", f"{SINGLE}:Haunted"
ABROAD = dict(
    zip("abcdef", (CARTPOLE, "CartPole-v1", WALK, "HalfCheetah-v5", PONG, HAUNTED), strict=True)
)


def child(folder):
    for name in sorted(path.stem for path in Path(folder).glob("*.npz")):
        with np.load(Path(folder) / f"{name}.npz", allow_pickle=False) as arrays:
            state = tree.nest({key.replace("|", "/"): arrays[key] for key in arrays})
        env = fresh(ABROAD[name], {}, seed=7)
        env.load(state)
        for action in random_actions(env, 60, 9):
            answer(env, action)
        np.savez(
            Path(folder) / f"{name}.out", **dict(tree.items(row(env.ts))), restarted=env.restarted
        )


@pytest.mark.thorough
def test_in_another_process(tmp_path):
    expected = {}
    for name, target in ABROAD.items():
        needs(target, {})
        env = fresh(target, {}, seed=1)
        env.recv()
        for action in random_actions(env, 90):
            answer(env, action)
        flat = dict(tree.items(env.state()))
        np.savez(
            tmp_path / f"{name}.npz", **{key.replace("/", "|"): leaf for key, leaf in flat.items()}
        )
        for action in random_actions(env, 60, 9):
            answer(env, action)
        expected[name] = row(env.ts)
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], cwd=root, check=True, timeout=120)
    for name, rows in expected.items():
        with np.load(tmp_path / f"{name}.out.npz") as got:
            kept = ~got["restarted"]
            assert kept.tolist() == ([True, False, True] if name == "f" else [True] * len(kept)), (
                name
            )
            for key, leaf in tree.items(rows):
                np.testing.assert_array_equal(
                    got[key][kept], leaf[kept], err_msg=f"{ABROAD[name]} {key}"
                )
