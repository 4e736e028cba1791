"""Algorithms and families of spaces whose graphs are compared with torch."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium import spaces

from equipoise.types import EnvSpec, Stack

BOX = spaces.Box(-10.0, 10.0, (4,), np.float32)
THREE, PUSH = (
    spaces.Discrete(3),
    spaces.Box(-2.0, np.array([2.0, 5.0], np.float32), (2,), np.float32),
)
SHIFTED = spaces.Discrete(3, start=5)
MANY = spaces.MultiDiscrete([3, 2, 4], start=[0, 1, -2])
EVEN = spaces.MultiDiscrete(np.full((2, 2), 2))
BITS = spaces.MultiBinary([2, 2])
WIDE = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
JOINT = spaces.Dict(
    OrderedDict(
        go=spaces.Discrete(4, start=1),
        push=PUSH,
        more=spaces.Tuple((MANY, spaces.Box(0.0, 1.0, (1,), np.float32))),
    )
)
JOINT_MASK = spaces.Dict(
    {"go": spaces.MultiBinary(4), "more": spaces.Dict({"0": spaces.MultiBinary(9)})}
)
NESTED = spaces.Dict(
    OrderedDict(
        z=spaces.Discrete(3, start=-1),
        a=spaces.Tuple((BOX, spaces.MultiDiscrete([2, 5]))),
        bits=spaces.MultiBinary(3),
        scalar=spaces.Box(-1.0, 1.0, (), np.float64),
        small=spaces.Box(0, 9, (2, 2), np.int16),
    )
)
SCREENS = spaces.Box(0, 255, (4, 42, 42), np.uint8)
PICTURE = spaces.Dict(
    {
        "eye": spaces.Box(0, 255, (12, 10, 3), np.uint8),
        "speed": spaces.Box(-9.0, 9.0, (2,), np.float32),
    }
)


def masked(action: Any, mask: Any, seen: Any = BOX) -> EnvSpec:
    observation = spaces.Dict({"obs": seen, "action_mask": mask})
    return EnvSpec(observation=observation, action=action, mask=("action_mask",))


def of(action: Any, observation: Any = BOX, **more: Any) -> EnvSpec:
    return EnvSpec(observation=observation, action=action, **more)


Case = tuple[str, dict[str, Any], EnvSpec]
LATER = 1_000_000  # step of the exports: random steps are over, epsilon is what it ends with
LSTM, GRU, NORM = (
    {"core": "lstm", "core_size": 16},
    {"core": "gru", "core_size": 16},
    {"normalize_obs": True},
)
CASES: dict[str, Case] = {
    # those of `make test` first
    "ppo gru normalised box": ("ppo", GRU | NORM, of(PUSH)),
    "ppo joint masked": ("ppo", {}, masked(JOINT, JOINT_MASK)),
    "td3": ("td3", {"hidden": [32], "noise": 0.8}, of(PUSH)),  # most actions are clipped
    "r2d2 lstm masked": ("r2d2", LSTM, masked(SHIFTED, spaces.MultiBinary(3))),
    # every algorithm
    "ppo": ("ppo", {}, of(THREE)),
    "a2c": ("a2c", {}, of(THREE)),
    "a3c lstm": ("a3c", LSTM, of(THREE)),
    "appo": ("appo", {}, of(MANY)),
    "impala gru": ("impala", GRU, of(THREE)),
    "dqn": ("dqn", {}, of(THREE)),
    "dqn c51 dueling": ("dqn", {"distribution": "c51", "dueling": True}, of(SHIFTED)),
    "dqn masked": ("dqn", {}, masked(THREE, spaces.Box(0.0, 1.0, (3,), np.float32))),
    "qr_dqn": ("qr_dqn", {}, of(THREE)),
    "r2d2 gru": ("r2d2", GRU, of(THREE)),
    "apex_dqn": ("apex_dqn", {}, of(THREE)),
    "sac": ("sac", {}, of(PUSH)),
    "sac random": ("sac", {"random_steps": LATER + 1}, of(PUSH)),
    "sac sde": ("sac", {"sde_every": 3, "hidden": [16]}, of(PUSH)),
    "sac discrete random": (
        "sac",
        {"random_steps": LATER + 1},
        masked(SHIFTED, spaces.MultiBinary(3)),
    ),
    "sac discrete masked": ("sac", {}, masked(SHIFTED, spaces.MultiBinary(3))),
    "td3 random": (
        "td3",
        {"random_steps": LATER + 1},
        of(spaces.Box(-1.0, 1.0, (2, 2), np.float64)),
    ),
    "td3 without noise": ("td3", {"noise": 0.0}, of(PUSH)),
    "tqc": ("tqc", {}, of(PUSH)),
    "crossq": ("crossq", {"critic_hidden": [32]}, of(PUSH)),
    "bc": ("bc", NORM, of(JOINT)),
    # every family of spaces
    "multidiscrete": ("ppo", {}, of(MANY)),
    "multidiscrete even": ("ppo", {}, of(EVEN)),
    "multidiscrete masked": ("ppo", {}, masked(MANY, spaces.MultiBinary(9))),
    "multidiscrete masked by a tuple": (
        "ppo",
        {},
        masked(MANY, spaces.Tuple([spaces.MultiBinary(n) for n in (3, 2, 4)])),
    ),
    "multibinary": ("ppo", {}, of(BITS)),
    "unbounded box": ("ppo", {}, of(WIDE)),
    "squashed box": ("ppo", {"squash": True, "log_std": -0.5}, of(PUSH)),
    "ppo sde": ("ppo", {"sde_every": 4, "hidden": [8]}, of(PUSH)),
    "joint": ("ppo", {"squash": True}, of(spaces.Dict({"push": PUSH, "bits": BITS}))),
    "nested observations": ("ppo", NORM | LSTM, of(THREE, NESTED)),
    "nested observations, masked": ("ppo", NORM, masked(THREE, spaces.MultiBinary(3), NESTED)),
    "discrete observations": ("dqn", {}, of(THREE, spaces.Discrete(6, start=2))),
    "stacks": (
        "ppo",
        {},
        of(
            THREE,
            spaces.Box(-1, 1, (4, 3), np.float32),
            stacks={"": Stack(frames=4, padding="zero")},
        ),
    ),
    "screens": (
        "ppo",
        {"torso": "nature"},
        of(THREE, SCREENS, stacks={"": Stack(frames=4, padding="first")}),
    ),
    "screens, latents": ("dqn", {"torso": "vae"}, of(THREE, SCREENS)),
    "screens, r2d2": ("r2d2", {"torso": "nature"} | LSTM, of(THREE, SCREENS)),
    "pictures beside numbers": ("impala", {"torso": "resnet"} | GRU, of(THREE, PICTURE)),
}
