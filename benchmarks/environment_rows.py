"""The environments of ``environments.py`` as data: what is installed for each family, what is run,
and what is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass

# family -> calls of pip install. An env that pins an older Gymnasium is installed without its
# dependencies.
FAMILIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "home-made": (),
    "minigrid": (),  # an extra of ours
    "box2d": (("gymnasium[box2d]",),),
    "highway": (("highway-env",),),
    "crafter": (("crafter",),),
    "robotics": (("gymnasium-robotics", "mujoco<3.4"),),
    "popgym": (("popgym",),),
    "bsuite": (("bsuite",),),
    "mpe": (("mpe2",),),
    "butterfly": (("pymunk",),),
    "anytrading": (("gym-anytrading",),),
    "dm-control": (("shimmy", "dm-control", "mujoco<4"),),
    "old-gym": (("--no-deps", "gym==0.26.2", "gym-notices", "shimmy"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """One environment. ``words``: options of ``train`` besides ENV. ``said``: what is known of it,
    for the page.
    """

    name: str
    target: str
    family: str = "home-made"
    words: tuple[str, ...] = ()
    said: str = ""


HINDSIGHT = ("--algorithm", "sac", "--set", "replay.relabel=0.8")
ENVS = (
    Env(name="highway-env", target="highway_env:highway-fast-v0", family="highway"),
    Env(name="Crafter", target="crafter_env:Crafter", family="crafter"),
    Env(
        name="FetchReach",
        target="gymnasium_robotics:FetchReach-v4",
        family="robotics",
        words=HINDSIGHT,
        said="gymnasium-robotics 1.4.2 makes no Fetch env with MuJoCo 3.17.0 or 4.0.0 "
        "(AssertionError in set_joint_qpos), so "
        "its environment has MuJoCo 3.3.7.",
    ),
    Env(name="LunarLander", target="LunarLander-v3", family="box2d"),
    Env(
        name="BipedalWalker",
        target="BipedalWalker-v3",
        family="box2d",
        said="The finding of `check` is true and upstream's: Box2D 2.3.10 keeps something between "
        "episodes, so the last digits "
        "of an episode, and with them a foot's contact, depend on those before it. Training bears "
        "it.",
    ),
    Env(
        name="POPGym",
        target="popgym:popgym-RepeatPreviousEasy-v0",
        family="popgym",
        said="The task is to remember, which the default network cannot: `--set "
        "algorithm.core=gru` gives it a memory.",
    ),
    Env(name="bsuite catch", target="bsuite_catch:Catch", family="bsuite"),
    Env(name="MiniGrid", target="MiniGrid-Empty-5x5-v0", family="minigrid"),
    Env(name="mpe2", target="mpe2.simple_spread_v3:parallel_env", family="mpe"),
    Env(
        name="pistonball",
        target="pettingzoo:butterfly/pistonball_v6",
        family="butterfly",
        said="Its 20 agents see 457 x 120 x 3 each: 2,560 such images an update, ten times, of "
        "which four minutes of a share "
        "of a core made none. The process that was left was on its way out 10 s after the command.",
    ),
    Env(name="anytrading", target="gym_anytrading:stocks-v0", family="anytrading"),
    Env(
        name="dm_control",
        target="shimmy:dm_control/cartpole-balance-v0",
        family="dm-control",
        said="dm_control 1.0.50 asks for mujoco>=3.17 and fails with 4.0.0 (AttributeError: no "
        "flex_vertedge), so its "
        "environment has 3.17.0.",
    ),
    Env(
        name="old gym",
        target="old_gym_env:wrapped",
        family="old-gym",
        said="The env has the interface before gym 0.26. gym 0.21.0 does not build with today's "
        "setuptools, and the extras of "
        "shimmy 2.0.1 want numpy<2, so gym 0.26.2 and shimmy are installed without dependencies. "
        "The env without the wrapper "
        "(`old_gym_env:make`) is refused by `check` and `train` with the call that wraps it.",
    ),
    Env(name="prints 100 lines a step", target="habits:Chatty"),
    Env(name="a lock and a socket", target="habits:Locked"),
    Env(name="resets in 2 s", target="habits:SlowReset"),
    Env(name="imports in 15 s", target="slow_import:make"),
    Env(name="starts a subprocess", target="habits:Parent"),
    Env(
        name="calls os._exit",
        target="habits:Leaving",
        said="An episode that ends in the very step in which another env of the same actor ends "
        "the process is not counted.",
    ),
    Env(
        name="12 agents of 84 x 84 x 3",
        target="habits:Watchers",
        said="`train` said: has 12 agents, so the defaults are --actors 2 --envs-per-actor 1 "
        "--unroll 64 --batch 2. An update "
        "is 1,536 images, ten times; a share of a core was too little to learn from them.",
    ),
    Env(
        name="waits 100 ms a step",
        target="habits:SlowStep",
        said="Besides the twenty, for the advice of its verdict. Another run of 60 s of such an "
        "env (`equipoise train "
        "tests.envs.starting:Waiting --set env.step_s=0.1`) was told to use more actors: 54 "
        "steps/s with `--actors 8` in place "
        "of 39.",
    ),
)
