"""A look at an env before its first step: spaces, the adapter's notes, the objects that have to
reach a worker process, and the facts.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError

import numpy as np
from gymnasium import spaces

from equipoise import tree
from equipoise.envs import final
from equipoise.envs.adapter import GymnasiumEnv
from equipoise.envs.base import SyncEnv
from equipoise.envs.check.agents import judge_agents
from equipoise.envs.check.findings import Findings, judge_spaces
from equipoise.envs.families.joint import Joint
from equipoise.envs.families.turns import turns_of

HELD = (
    "SAME_STEP: where terminated is True the return ends; where only truncated is, the value of "
    "the last observation is "
    "added, and all streams of a worker wait one row for it"
)
NEXT = (
    "NEXT_STEP: where terminated is True the return ends; where only truncated is, the value of "
    "the last observation is added"
)
RESUMES = {
    "exact": "exact: an episode goes on where it was, bit for bit",
    "replay": "replay: an episode is played again up to where it was",
    "restart": "restart: the run goes on, with a new episode in each env",
}


def look(found: Findings, made: SyncEnv, joint: Joint | None) -> dict[str, str]:
    """Judge what is known without a step; return the facts. ``joint``: an env of several agents."""
    spec, facts = made.spec, {}
    if joint is None:
        judge_spaces(found, spec.observation, spec.action)
    else:
        judge_agents(found, joint)
    for name, space in (("observation_space", spec.observation), ("action_space", spec.action)):
        try:
            # as it is sent to a worker process
            ForkingPickler.dumps(space)
        except (PicklingError, AttributeError, TypeError) as error:
            cost = "Only --on serial can train on it: every worker process needs the spaces."
            found.error(
                f"{name} cannot be pickled",
                name,
                f"expected a space that can be sent, got: {error}",
                cost,
            )
    for note in spec.notes:
        if note != final.UNKNOWN:  # the walk decides
            found.note(
                note,
                "the adapter",
                "what an env of this kind does",
                "It concerns only the rows that it names.",
            )
    if joint is None:
        facts["observation"], facts["action"] = (
            observation_of(spec.observation),
            action_of(spec.action),
        )
    else:
        for name in joint.names:
            facts[f"agent {name}"] = (
                f"{observation_of(joint.observations[name])} -> {action_of(joint.actions[name])}"
            )
        if turns := turns_of(joint.env):
            facts["turns"] = f"its agents act in turns (AEC): {turns}, as in training"
    if spec.mask:
        facts["action mask"] = tree.path_of("obs", *spec.mask)
    facts["autoreset"] = HELD if is_same_step(made) else NEXT
    facts["resume"] = RESUMES[spec.resume]
    if spec.settings:
        facts["settings"] = spec.settings
    return facts


def observation_of(space: spaces.Space[object]) -> str:
    return "; ".join(
        described(one) if place == "obs" else f"{place.removeprefix('obs/')} {described(one)}"
        for place, one in tree.items(tree.parts(space), "obs")
    )


def action_of(space: spaces.Space[object]) -> str:
    return "; ".join(
        f"{place.partition('/')[2]} {described(one, cast=False)}".lstrip()
        for place, one in tree.items(tree.parts(space), "action")
    )


def described(space: spaces.Space[object], *, cast: bool = True) -> str:
    if isinstance(space, spaces.Discrete):
        return f"Discrete of {space.n}" + (f" from {space.start}" if space.start else "")
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete of {space.nvec.tolist()}" + (
            f" from {space.start.tolist()}" if space.start.any() else ""
        )
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary {tuple(space.shape or ())}"
    said = f"Box {tuple(space.shape or ())} {space.dtype}"
    return said + (", cast to float32 at every step" if cast and space.dtype == np.float64 else "")


def is_same_step(made: SyncEnv) -> bool:
    return isinstance(made, GymnasiumEnv) and made.same_step
