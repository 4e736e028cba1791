"""Atari: one spec on every backend, and two of them bit for bit the same."""

import importlib.util

import numpy as np
import pytest

from equipoise.envs.check.check import check_env
from equipoise.envs.families.atari import AtariSpec, padding, shrink
from equipoise.envs.making import resolve
from equipoise.envs.restore import resume
from equipoise.types import EnvFactory
from tests.envs.rolling import env_of, rows
from tests.envs.test_resume_python import answer, same, through_a_file

pytest.importorskip("ale_py", reason="ALE is not installed (extra atari)")

FAST = {"noop_max": 1, "max_num_frames_per_episode": 400}
MADE = [
    {},
    {"episodic_life": True, "stack_padding": "first", "repeat_action_probability": 0.0},
    {"frameskip": 1, "img_height": 210, "img_width": 160, "stack_num": 1, "use_fire_reset": False},
    {
        "frameskip": 3,
        "grayscale": False,
        "maxpool": False,
        "full_action_space": True,
        "img_height": 64,
        "img_width": 96,
    },
]


@pytest.mark.few(1)
@pytest.mark.parametrize("made", MADE, ids=range(len(MADE)))
@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_golden_the_two_backends_agree_bit_for_bit(game, made):
    """Sticky frames, flickering screens, lost lives, cuts amid a step, and the first rows of every
    episode included.
    """
    native, python = (
        env_of(f"{where}ALE/{game}-v5", [3, 8], 1, **FAST | made) for where in ("", "python:")
    )
    assert (
        native.spec.observation == python.spec.observation
        and native.spec.action == python.spec.action
    )
    assert (
        native.spec.settings == python.spec.settings
        and native.spec.frame_skip == python.spec.frame_skip
    )
    actions = np.random.default_rng(0).integers(0, native.spec.action.n, (150, 2))
    one, other = rows(native, actions), rows(python, actions)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    if made.get("frameskip") != 1:
        assert (one["terminated"] | one["truncated"]).sum() > 1
    assert len(np.unique(one["obs"])) > 3


def test_rewards_are_raw_and_streams_are_themselves():
    """Space Invaders pays 5 and more;
    a stream's rows do not depend on who else is in the worker.
    """
    env = env_of("ALE/SpaceInvaders-v5", [0, 5], 2)
    actions = np.random.default_rng(1).integers(0, env.spec.action.n, (120, 2))
    both, alone = rows(env, actions), rows(env_of("ALE/SpaceInvaders-v5", [5], 2), actions[:, 1:])
    assert both["reward"].max() >= 5
    np.testing.assert_array_equal(both["obs"][:, 1:], alone["obs"])
    assert (both["obs"][:, 0] != both["obs"][:, 1]).any()


@pytest.mark.parametrize(
    "target", ["ALE/Breakout-v5", "python:ALE/Breakout-v5", "envpool:Breakout-v5"]
)
@pytest.mark.parametrize("kind", ["zero", "first"])
def test_stack_padding(target, kind):
    if target.startswith("envpool") and importlib.util.find_spec("envpool") is None:
        pytest.skip("EnvPool is not installed")
    seen = rows(env_of(target, 2, 1, **FAST | {"stack_padding": kind}), np.ones((150, 2), int))
    begun = np.argwhere(seen["first"][:-4])
    assert len(begun) > 3
    for t, b in begun:
        for age in range(4):
            stack = seen["obs"][t + age, b]
            before = stack[: 3 - age]
            assert stack[3 - age].any()
            assert (before == (stack[3 - age] if kind == "first" else 0)).all()
            np.testing.assert_array_equal(stack[3 - age], seen["obs"][t, b, 3])


@pytest.mark.thorough
def test_the_spec_is_told():
    env = env_of("ALE/Pong-v5", 1, repeat_action_probability=0, frameskip=2, stack_padding="first")
    assert env.spec.settings == (
        "Atari: sticky 0, no-ops below 30, FIRE after a reset, 2 frames a step, the last two "
        "pooled, at most 108,000 frames, "
        "lives are not episodes, 84x84 grey, stack of 4 padded with its first frame, the game's "
        "actions, rewards raw"
    )
    assert env.spec.frame_skip == 2
    report = check_env(EnvFactory(target="ALE/Pong-v5"), steps=60)
    assert report.facts["settings"] == str(AtariSpec())


def test_it_renders_for_a_video():
    """What a policy sees and what a person sees; arguments of the vector env do no harm."""
    game = resolve("ALE/Pong-v5")(render_mode="rgb_array", num_threads=2, stack_num=3)
    obs, _ = game.reset(seed=1)
    assert obs.shape == (3, 84, 84) and game.render().shape == (210, 160, 3)
    assert "rgb_array" in game.metadata["render_modes"]


@pytest.mark.thorough
def test_no_ops_are_drawn():
    """Without them every episode of Pong begins with the same screen."""
    for target in ("ALE/Pong-v5", "python:ALE/Pong-v5"):
        kinds = [
            len(
                np.unique(
                    rows(env_of(target, 6, 3, noop_max=n), np.zeros((1, 6), int))["obs"][0], axis=0
                )
            )
            for n in (1, 30)
        ]
        assert kinds[0] == 1 and kinds[1] > 1


@pytest.mark.parametrize("target", ["ALE/Pong-v5", "python:ALE/Pong-v5", "envpool:Pong-v5"])
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"sticky": 0.1}, "takes no argument 'sticky'"),
        ({"frame_skip": 2}, "did you mean 'frameskip'"),
        ({"frameskip": 0}, "frameskip: expected at least 1, got 0"),
        ({"reward_clipping": True}, "set rewards.clip=1 instead"),
        ({"repeat_action_probability": 1.0}, "expected 0 to below 1"),
        ({"stack_padding": "black"}, "expected one of zero, first, got 'black'"),
        ({"stack_padding": "frist"}, "got 'frist'; did you mean 'first'?"),
        (
            {"use_fire_reset": "off"},
            "use_fire_reset: expected true or false, got 'off'; did you mean false?",
        ),
        ({"episodic_life": "False "}, "expected true or false, got 'False '; did you mean false?"),
        ({"maxpool": 1}, "maxpool: expected true or false, got 1; did you mean true?"),
        ({"grayscale": None}, "grayscale: expected true or false, got None"),
        ({"full_action_space": "maybe"}, "full_action_space: expected true or false, got 'maybe'"),
        ({"frameskip": "4"}, "frameskip: expected a whole number, got '4'; did you mean 4?"),
        ({"noop_max": True}, "noop_max: expected a whole number, got True"),
        (
            {"max_num_frames_per_episode": 1e5},
            "expected a whole number, got 100000.0; did you mean 100000?",
        ),
        (
            {"repeat_action_probability": "0.25"},
            "expected a number, got '0.25'; did you mean 0.25?",
        ),
        ({"stack_padding": 0}, "stack_padding: expected a text, got 0"),
        ({"num_threads": "2"}, "num_threads: expected a whole number, got '2'; did you mean 2?"),
    ],
)
def test_what_is_wrong_is_said(target, kwargs, said):
    if target.startswith("envpool"):
        pytest.importorskip("envpool")
    with pytest.raises(ValueError) as error:
        env_of(target, **kwargs)
    assert said in str(error.value) and target in str(error.value)


def test_envpool_is_made_with_the_spec():
    pytest.importorskip("envpool")
    env = env_of(
        "envpool:Pong-v5",
        2,
        img_height=42,
        img_width=42,
        stack_num=2,
        frameskip=2,
        full_action_space=True,
    )
    assert (
        env.spec.observation.shape == (2, 42, 42)
        and env.spec.action.n == 18
        and env.spec.frame_skip == 2
    )
    assert (
        env.env.spec.config.repeat_action_probability == 0.25
        and env.env.spec.config.max_episode_steps == 54_000
    )
    assert any("FIRE" in note for note in env.spec.notes)
    for kwargs, said in (
        ({"maxpool": False}, "always pools"),
        ({"grayscale": False}, "colours"),
        ({"noop_max": 0}, "noop_max"),
    ):
        with pytest.raises(ValueError, match=said):
            env_of("envpool:Pong-v5", **kwargs)


@pytest.mark.thorough
def test_what_was_pressed_after_a_reset_is_held():
    """The FIRE of a sticky game may still be held at the first step; a state from before that step
    knows it.
    """
    made = {
        "repeat_action_probability": 0.7,
        "frameskip": 1,
        "noop_max": 1,
        "max_num_frames_per_episode": 2,
    }
    env, other = (env_of("python:ALE/Pong-v5", 1, seed, **made) for seed in (1, 2))
    ts, _ = env.recv(), other.recv()
    held = 0
    for action in np.zeros((60, 1), int):
        begins, state = bool(ts.first[0]), through_a_file(env.state())
        told, ts = answer(env, action), env.ts
        if not begins:
            continue
        console = resume.emulator(env.envs[0].unwrapped)
        other.load(state)
        same(answer(other, action), told)
        bare = other.envs[0].unwrapped
        np.testing.assert_array_equal(resume.emulator(bare), console)
        bare.ale.reset_game()
        resume.restore(other.envs[0], state["env"]["0"]["exact"])  # without ``hold``
        bare.step(0)
        held += not np.array_equal(resume.emulator(bare), console)
    assert held > 2  # else this test proves nothing


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(84, 84), (210, 160), (70, 80), (1, 1), (64, 96)])
def test_shrink_averages_areas(size):
    image = np.random.default_rng(0).integers(0, 256, (210, 160, 3)).astype(np.uint8)
    # [m, n], every row 1
    shares = [
        np.repeat(np.eye(n), m, 0).reshape(m, n, n).mean(1) for n, m in zip(image.shape, size)
    ]
    means = np.einsum("hi,ijc,wj->hwc", shares[0], image.astype(float), shares[1])
    got = shrink(image, *size)
    assert got.dtype == np.uint8 and got.shape == (*size, 3)
    assert np.abs(got - means).max() <= 0.5001
    np.testing.assert_array_equal(shrink(image[..., 1], *size), got[..., 1])


def test_padding_is_none_where_there_is_nothing_to_mend():
    assert padding(AtariSpec(), "zero", 3) is None
    assert padding(AtariSpec(stack_padding="first", stack_num=1), "zero", 3) is None
