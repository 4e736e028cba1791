"""Reproduce a capsule's failure: the env is made, brought to where the episode began, and given the
same actions.

The state that Gymnasium's generator carries from one episode to the next is restored. An env that
counts resets is reset as often before. Anything else that it keeps is lost, and ``Reproduction``
then reports that nothing was raised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from equipoise import tree
from equipoise.envs.base import SyncEnv
from equipoise.envs.failures.capsule import Capsule
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.loop import LoopEnv
from equipoise.envs.making import make
from equipoise.hints import message
from equipoise.types import Tree

# most resets before the episode: a foreign capsule must end
MOST_RESETS = 100_000


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The outcome: the exception, if there was one, and whether it equals the capsule's."""

    error: Exception | None
    same: bool
    steps: int  # steps done, the failing one included


def reproduce(capsule: Capsule) -> Reproduction:
    """Play the capsule here; if the episode alone raises nothing, also the resets before it."""
    if capsule.start.kind == "lost":
        raise ValueError(
            "expected a capsule that holds all actions since its env was in a known state, got one "
            "of an env that had been "
            "running for too long, or whose generator is not numpy's; its observations, message "
            "and traceback are all there is"
        )
    attempt = play(replace(capsule, start=replace(capsule.start, resets=1)))
    if attempt.same or not 1 < capsule.start.resets <= MOST_RESETS:
        return attempt
    again = play(capsule)
    return again if again.same else attempt


def play(capsule: Capsule) -> Reproduction:
    steps = 0
    env: SyncEnv | None = None
    try:
        env = make(capsule.env, streams=np.array(capsule.streams), seed=capsule.seed)
        actions = steps_of(capsule, env)
        if isinstance(env, LoopEnv):
            env.begin_as(capsule.start)
            env.strict = capsule.kind == "cast"
            actions = [tree.map(lambda x: x[None], action) for action in actions]
        env.checks.every = 1
        if capsule.start.kind == "state":
            env.load(capsule.state)
            steps = 1
            receive(env, actions[0])  # this action was sent already
        else:
            env.recv()
        for action in actions[steps:]:
            steps += 1
            env.send(action, env.ts.stream)
            receive(env, action)
    except Exception as error:
        return Reproduction(error, is_same(capsule, error), steps)
    finally:
        if env is not None:
            env.close()
    return Reproduction(None, False, steps)


def receive(env: SyncEnv, action: Tree) -> None:
    """Receive the outcome of an action; a held row takes any action and uses no action of the
    capsule.
    """
    env.recv()
    while env.holding:
        env.send(action, env.ts.stream)
        env.recv()


def steps_of(capsule: Capsule, env: SyncEnv) -> list[Tree]:
    """The recorded actions one by one; ValueError if they are not of this env's form."""
    given = tree.leaves(capsule.actions)
    if not given or not len(given[0]):
        return []
    actions = tree.like(env.action, dict(tree.items(capsule.actions)))
    return [tree.index(actions, n) for n in range(len(given[0]))]


def is_same(capsule: Capsule, error: Exception) -> bool:
    """Is it the same failure, by type and kind and key, or message without addresses?"""
    if type(error).__name__ != capsule.error:
        return False
    if isinstance(error, WrongValue):
        return (error.kind, error.key) == (capsule.kind, capsule.key)
    return capsule.kind == "exception" and without_addresses(message(error)) == without_addresses(
        capsule.message
    )


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+", "0x", text)
