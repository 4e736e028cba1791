"""Ids that a user may type for an env of another package, or of another time: their meaning
here.
"""

from __future__ import annotations

import re

from equipoise import foreign
from equipoise.envs.hints import importable

ATARI = re.findall(  # the names of ids, without a version
    r"\w+",
    "Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone "
    "BeamRider Berzerk Bowling "
    "Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack "
    "DoubleDunk ElevatorAction Enduro "
    "FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape "
    "Kangaroo Krull KungFuMaster "
    "MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid "
    "RoadRunner Robotank "
    "Seaquest Skiing Solaris SpaceInvaders StarGunner Surround Tennis TimePilot Tutankham UpNDown "
    "Venture VideoPinball "
    "WizardOfWor YarsRevenge Zaxxon",
)
OLD_ATARI = re.compile(
    r"(?:ALE/)?(?P<game>[A-Za-z]+?)(?P<ram>-ram)?(?P<kind>NoFrameskip|Deterministic)?-v\d+"
)

# (prefix of an id, the module whose import registers it, the package for pip)
PACKAGES = (
    (
        r"Fetch|HandReach|HandManipulate|AdroitHand|PointMaze|AntMaze|FrankaKitchen",
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    (
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|u-turn|lane-keeping)(-fast|-ActionRepeat|-multi"
        r"-agent|-parked|-continuous|-oval|-large)*-v\d",
        "highway_env",
        "highway-env",
    ),
    (r"popgym-", "popgym", "popgym"),
    (r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip)", "panda_gym", "panda-gym"),
    (r"(stocks|forex)-v\d", "gym_anytrading", "gym-anytrading"),
    (r"(dm_control|bsuite)/", "shimmy", "shimmy[dm-control,bsuite]"),
    (r"FlappyBird", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    (r"MiniWorld-", "miniworld", "miniworld"),
    (r"Vizdoom", "vizdoom.gymnasium_wrapper", "vizdoom"),
    (r"MiniHack-", "minihack", "minihack"),
    (r"NetHack", "nle", "nle"),
    (r"Meta-World/", "metaworld", "metaworld"),
    (
        r"(mo-|deep-sea-treasure|resource-gathering|four-room|minecart)",
        "mo_gymnasium",
        "mo-gymnasium",
    ),
    (r"QuadX|Rocket-Landing|PyFlyt/", "PyFlyt.gym_envs", "pyflyt"),
    (r"CityLearn|gym_examples/", "gym_examples", "gym-examples"),
)
# Old gym's: (an id begins so, what to do)
OLD_GYM = (
    (
        r"Crafter",
        "Crafter has old gym's interface: write a function that returns a gymnasium.Env around "
        "crafter.Env()",
    ),
    (
        r"SuperMarioBros",
        "it has old gym's interface: a function of yours that returns "
        "shimmy.GymV21CompatibilityV0(env=...)",
    ),
    (
        r"procgen-",
        "it has old gym's interface: a function of yours that returns "
        "shimmy.GymV21CompatibilityV0(env=...)",
    ),
    (
        r"\w+(BulletEnv|PyBulletEnv)-v\d",
        "it has old gym's interface; Gymnasium's own are Ant-v5, Hopper-v5 and others",
    ),
)
TURNED = {"LunarLanderContinuous-v2": "LunarLander-v3 with --set env.continuous=true"}


def meant_by(env_id: str) -> str:
    """The end of an error about an unregistered id; "" if the id gives no hint."""
    if (old := OLD_ATARI.fullmatch(env_id)) is not None and (
        game := _game(old["game"])
    ) is not None:
        how = (
            "; without sticky actions: --set env.repeat_action_probability=0" if old["kind"] else ""
        )
        return f"; did you mean 'ALE/{game}-v5'?" + (
            f" It shows pixels{how}" if old["ram"] or how else ""
        )
    if agents := _of_pettingzoo(env_id):
        return f"; did you mean {agents}?"
    if env_id in TURNED:
        return f"; it is {TURNED[env_id]}"
    for begins, module, package in PACKAGES:
        if re.match(begins, env_id) is None:
            continue
        there = "" if importable(module.partition(".")[0]) else f", after pip install {package!r}"
        return (
            f"; did you mean '{module}:{env_id}'{there}? An id is known once its package is "
            "imported"
        )
    return next((f": {said}" for begins, said in OLD_GYM if re.match(begins, env_id)), "")


def not_installed(module: str, env_id: str) -> str:
    """How to install a package of envs that cannot be found; "" for any other module."""
    top = module.partition(".")[0]
    package = next(
        (package for _, known, package in PACKAGES if known.partition(".")[0] == top), ""
    )
    if package:
        return f"expected the package of {top!r}, got none installed: pip install {package!r}"
    return next((said for begins, said in OLD_GYM if re.match(begins, env_id)), "")


def removed(entry_point: object) -> bool:
    """Is it what Gymnasium registers for an env that it no longer has: a function that raises?"""
    return callable(entry_point) and foreign.optional(entry_point, "__module__") == "gymnasium.envs"


def _of_pettingzoo(env_id: str) -> str:
    """The target of ``pistonball_v6`` and the like; "" if it is not an id of PettingZoo."""
    name, _, version = env_id.rpartition(".")[2].rpartition("_v")
    if not name or not version.isdecimal():
        return ""
    if re.match(r"simple(_|$)", name):  # PettingZoo has moved them
        return f"'mpe2.{name}_v{version}:parallel_env', after pip install 'mpe2'"
    if not importable("pettingzoo"):
        return ""
    from pettingzoo import parallel_registry

    found = next(
        (
            one
            for one in parallel_registry
            if re.sub(r"[-_]v\d+$", "", one.rpartition("/")[2]) == name
        ),
        "",
    )
    return f"'pettingzoo:{found}'" if found else ""


def _game(name: str) -> str | None:
    return next((game for game in ATARI if game.lower() == name.lower()), None)
