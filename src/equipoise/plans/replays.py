"""The pace of a run and the sizes of its replays, as they follow from a Program and the roles of
its policies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from equipoise.experience.replay import codec
from equipoise.experience.replay.plan import ReplayPlan, first_round, share
from equipoise.experience.replay.row_layout import Layout
from equipoise.plans.roles import Pace, Role
from equipoise.types import Policy, Program, RunSpec, learning


def common(program: Program) -> Policy:
    """Any policy that learns, for what they have in common (``refusals.check``)."""
    policy, *_ = learning(program).values()
    return policy


def pace_of(program: Program, roles: Mapping[str, Role]) -> Pace:
    """Return the pace. Steps count envs; a replay and ``starts_at`` count the rows of all agents of
    the policy.

    Policies with replays have one round in common: it brings rows to each of them, and the first
    updates follow the round after which each has ``starts_at`` rows.
    """
    one = common(program)
    if one.replay is None:
        return Pace(rows=one.unroll * one.batch)
    if not program.actors:
        return Pace(rows=1, offline=True)
    steps, begins = one.unroll * program.actors * program.placement.envs_per_actor, 1
    for name, policy in learning(program).items():
        assert policy.replay is not None
        window, rows = policy.algorithm.item_rows or policy.unroll, steps * len(roles[name].places)
        first = first_round(policy.replay.starts_at, rows=rows, unroll=policy.unroll, window=window)
        begins = max(begins, first - -policy.algorithm.warmup_rows // rows)
    return Pace(rows=steps, updates=one.replay.updates, begins=begins)


def room(program: Program, name: str) -> str:
    """The prefix of a setting of this policy; empty if it is the only policy."""
    return f"policies.{name}." if len(program.policies) > 1 else ""


def replays_of(
    program: Program, spec: RunSpec, roles: Mapping[str, Role], pace: Pace
) -> dict[str, ReplayPlan]:
    """The replays of the policies that learn; ValueError if one could hold too little."""
    envs, learners, plans = program.placement.group_envs, program.placement.learners, {}
    for name, policy in learning(program).items() if program.actors else ():
        if policy.replay is None:
            continue
        role, window = roles[name], policy.algorithm.item_rows or policy.unroll
        if program.placement.partial_streams and role.row.state and window > policy.unroll:
            raise ValueError(
                "placement.partial_streams: expected 0 with a recurrent network that learns from "
                f"windows of {window} rows, more than an unroll's {policy.unroll}, since a core "
                f"would see what ends a short one, got {program.placement.partial_streams}"
            )
        try:
            plans[name] = ReplayPlan(
                settings=share(policy.replay, learners),
                row=role.kept,
                stacks=role.stacks,
                unroll=policy.unroll,
                window=window,
                block=envs * len(role.places),
                actors=program.groups // learners,
                learners=learners,
                span=envs * len(spec.env.agents),
                offsets=tuple(role.streams(np.arange(envs)).tolist()),
                rounds=-(-(program.schedule.schedule_steps or program.schedule.steps) // pace.rows),
            )
        except ValueError as error:
            raise ValueError(f"{room(program, name)}{error}") from None
    return plans


def codecs_of(program: Program, roles: Mapping[str, Role]) -> dict[str, str]:
    """The codecs of the rows of all replays, or of a data set alone; ValueError as for
    ``codec.chosen``.
    """
    found: dict[str, str] = {}
    for name, policy in learning(program).items():
        if policy.replay is not None:
            layout = Layout.of(roles[name].kept, roles[name].stacks)
            chosen = codec.chosen(policy.replay.codec, layout.large, layout.small)
            found |= {f"{name}/{path}": one for path, one in chosen.items()}
    return found


def too_small(plan: ReplayPlan, policy: Policy) -> list[str]:
    """List what a replay is too small for."""
    settings = plan.settings
    held = (plan.slots - plan.unroll) * plan.streams
    batch = policy.batch // plan.learners
    live = batch - (settings.recorded(batch) if settings.dataset else 0)
    if live <= held:
        return []
    what = f"memory={settings.memory}" if settings.memory else f"capacity={settings.capacity}"
    return [f"batch: expected at most {held:,} live items, the rows of replay.{what}, got {live:,}"]
