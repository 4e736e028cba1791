"""PettingZoo's parallel envs: an agent of an env is a stream, and the streams are dealt to
policies.

A parallel env is stepped as one Gymnasium env (``Joint``), so that seeds, failures, capsules and
resumes are ``LoopEnv``'s; here each agent gets its rows. An agent that dies and comes back in the
same episode of its env:

    env          |  reset  step   step   step   step   step   reset
    obs          |  o0     o1     o2     blank  p0     p1     q0      o2 is the agent's true final observation
    first        |  x                           x             x
    valid        |         x      x                    x              the other rows are not the agent's
    terminated   |                x                    x

A blank observation has what is nearest to 0 in the space, and ones if it is an ``action_mask``.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from equipoise import tree
from equipoise.envs import hints as wrong
from equipoise.envs.base import SyncEnv
from equipoise.envs.families.joint import ACTED, CAME, TERMINATED, TRUNCATED, Joint
from equipoise.envs.loop import LoopEnv
from equipoise.envs.masks import place_of
from equipoise.envs.spaces import ActionForm, observation_spec, timestep
from equipoise.types import Array, DealtEnv, EnvSpec, RunSpec, TimeStep, Tree, agent_streams


def deal(
    agents: Sequence[str], policies: Sequence[str], route: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """{policy: the places of its agents among ``agents``}, in the order of ``policies``.

    An agent goes by its name in ``route``, else by the first pattern ("archer_*") that fits, else
    to "main" or the only policy. ValueError for an idle agent, policy or route.
    """
    given: dict[str, list[int]] = {policy: [] for policy in policies}
    used = set()
    for i, agent in enumerate(agents):
        key = (
            agent
            if agent in route
            else next((pattern for pattern in route if fnmatchcase(agent, pattern)), None)
        )
        used.add(key)
        policy = policies[0] if len(policies) == 1 else "main"
        policy = route[key] if key is not None else policy
        if policy not in given:
            where = (
                f"route.{key}" if key is not None else (f"route: agent {agent!r} has none, so it")
            )
            raise ValueError(
                f"{where}: expected one of the policies {list(policies)}, got {policy!r}"
            )
        given[policy].append(i)
    if idle := [key for key in route if key not in used]:
        raise wrong.unknown("agent", idle[0], agents, f" in route; the env has {', '.join(agents)}")
    if idle := [policy for policy, places in given.items() if not places]:
        raise ValueError(
            f"policies.{idle[0]}: no agent is dealt to it; route.AGENT={idle[0]} does, of "
            f"{', '.join(agents)}"
        )
    return {policy: tuple(places) for policy, places in given.items()}


def dealt(env: SyncEnv, *, policies: Sequence[str], route: Mapping[str, str]) -> DealtEnv:
    """Deal an env's agents to policies; ValueError if one agent has several policies."""
    if isinstance(env, LoopEnv) and isinstance(env.envs[0], Joint):
        with wrong.explained(env.origin[0].target):
            return PettingZooEnv(env, policies=policies, route=route)
    if tuple(policies) != ("main",) or route:
        env.close()
        what = (
            f"the policies {', '.join(policies)}"
            if len(policies) > 1
            else f"the policy {policies[0]!r}"
        )
        raise ValueError(
            f"{env.origin[0].target}: expected a PettingZoo parallel env for {what} and its route, "
            "got an env of one agent, "
            "whose policy is 'main'"
        )
    return SingleEnv(env, "main")


class SingleEnv:
    """``DealtEnv`` of envs with one agent: all streams belong to one policy."""

    def __init__(self, env: SyncEnv, policy: str) -> None:
        self.env, self._policy = env, policy
        self._parts = {policy: env.ts}

    @property
    def spec(self) -> RunSpec:
        return RunSpec(env=self.env.spec, policies={self._policy: self.env.spec})

    @property
    def restarts(self) -> dict[int, str]:
        return self.env.restarts

    @property
    def resumed(self) -> dict[str, int]:
        return self.env.resumed

    def send(self, actions: Mapping[str, Tree]) -> None:
        self.env.send(actions[self._policy], self.env.ts.stream)

    def recv(self) -> Mapping[str, TimeStep] | None:
        return None if self.env.recv() is None else self._parts

    def fds(self) -> tuple[int, ...]:
        return self.env.fds()

    def state(self) -> Tree:
        return self.env.state()

    def load(self, state: Tree) -> None:
        self.env.load(state)

    def close(self) -> None:
        self.env.close()


@dataclass(slots=True)
class PolicyRows:
    """The rows of one policy: n agents of each of E envs, env by env."""

    ts: TimeStep  # a TimeStep of arrays [E n, ...]
    form: ActionForm
    columns: Array  # [n, size] of the joint action
    pairs: list[tuple[Array, Array]]  # an agent's rows [E, ...]: to, from
    places: Array  # [n]

    def rows(self, array: Array) -> Array:
        return array.reshape(-1, len(self.places))


class PettingZooEnv:
    """``DealtEnv`` of parallel envs; the agents of one policy need the same spaces."""

    def __init__(self, loop: LoopEnv, *, policies: Sequence[str], route: Mapping[str, str]) -> None:
        self.loop = loop
        joint = loop.envs[0]
        assert isinstance(joint, Joint)
        dealt = deal(joint.names, policies, route)
        self.sides = {policy: self._side(joint, policy, places) for policy, places in dealt.items()}
        specs = {policy: self._spec(joint, places) for policy, places in dealt.items()}
        self.spec = RunSpec(env=replace(loop.spec, agents=joint.names, places=()), policies=specs)
        self._action = np.zeros((len(loop.envs), joint.numbers), np.float64)
        self.restarts: dict[int, str] = {}
        self.resumed: dict[str, int] = {}  # envs, not streams
        self._parts: dict[str, TimeStep] = {policy: side.ts for policy, side in self.sides.items()}

    def _spec(self, joint: Joint, places: tuple[int, ...]) -> EnvSpec:
        """The spec of the policy of these agents, which have the same spaces."""
        name = joint.names[places[0]]
        observation, action = joint.observations[name], joint.actions[name]
        mask = place_of(self.loop.origin[0].action_mask, observation, action)
        return replace(
            self.loop.spec,
            observation=observation,
            action=action,
            mask=mask,
            agents=joint.names,
            places=places,
        )

    def _side(self, joint: Joint, policy: str, places: tuple[int, ...]) -> PolicyRows:
        names = [joint.names[place] for place in places]
        for what, of in (("observation", joint.observations), ("action", joint.actions)):
            for name in names[1:]:
                if of[name] != of[names[0]]:
                    raise ValueError(
                        f"policies.{policy}: expected agents with the same {what} space, got "
                        f"{of[names[0]]} of {names[0]!r} "
                        f"and {of[name]} of {name!r}; give them policies of their own (route), or "
                        "pad the spaces"
                    )
        count = len(self.loop.envs)
        streams = agent_streams(self.loop.ts.stream, len(joint.names), places)
        ts, _ = timestep(observation_spec(joint.observations[names[0]]), streams)
        pairs: list[tuple[Array, Array]] = []
        for k, name in enumerate(names):
            to, source = tree.leaves(ts.obs), tree.leaves(self.loop.ts.obs["agents"][name])
            pairs += [
                (x.reshape(count, len(names), *x.shape[1:])[:, k], y)
                for x, y in zip(to, source, strict=True)
            ]
        columns = [np.arange(joint.numbers)[joint.parts[place][0]] for place in places]
        return PolicyRows(
            ts=ts,
            form=ActionForm(joint.actions[names[0]], len(streams)),
            columns=np.stack(columns),
            pairs=pairs,
            places=np.array(places),
        )

    # ------------------------------------------------------------------------------------ as an Env

    def send(self, actions: Mapping[str, Tree]) -> None:
        """``actions`` [B, ...] by policy, for all streams."""
        for policy, side in self.sides.items():
            self._action[:, side.columns] = np.asarray(side.form(actions[policy])).reshape(
                -1, *side.columns.shape
            )
        self.loop.send(self._action, self.loop.ts.stream)

    def recv(self) -> Mapping[str, TimeStep]:
        self.loop.recv()
        self._deal()
        return self._parts

    def fds(self) -> tuple[int, ...]:
        return self.loop.fds()

    def _deal(self) -> None:
        rows = self.loop.ts
        flags = rows.obs["flags"]
        for side in self.sides.values():
            ts, places = side.ts, side.places
            for to, source in side.pairs:
                np.copyto(to, source)
            side.rows(ts.reward)[:] = rows.obs["reward"][:, places]
            side.rows(ts.valid)[:] = flags[:, ACTED, places]
            side.rows(ts.terminated)[:] = flags[:, TERMINATED, places]
            side.rows(ts.truncated)[:] = flags[:, TRUNCATED, places]
            np.logical_or(rows.first[:, None], flags[:, CAME, places], out=side.rows(ts.first))

    def state(self) -> Tree:
        return self.loop.state()

    def load(self, state: Tree) -> None:
        self.loop.load(state)
        if state:
            self._deal()
        agents = len(self.spec.env.agents)
        self.resumed = self.loop.resumed
        # reported for an env's first stream
        self.restarts = {env * agents: why for env, why in self.loop.restarts.items()}

    def close(self) -> None:
        self.loop.close()
