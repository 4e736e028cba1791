"""Refusals of what does not go with how rows are made: by streams that answer some at a time, by
envs on a device, generators of text in the learners.
"""

from __future__ import annotations

from equipoise.actors.engine.sim_engine import NAME as SIM
from equipoise.sources.source import task_of
from equipoise.types import Program, learning


def partial_problems(program: Program) -> list[str]:
    """The settings that exclude streams that answer some at a time."""
    place, key, got = (
        program.placement,
        "placement.partial_streams",
        program.placement.partial_streams,
    )
    if not got or not program.actors or program.source.played is None:
        return []
    if got >= place.envs_per_actor:
        return [
            f"{key}: expected 0 to {place.envs_per_actor - 1}, fewer than envs_per_actor, got {got}"
        ]
    target, count = program.env.target, place.group_envs
    if target.startswith("envpool:") and count % got:
        fits = ", ".join(str(n) for n in range(1, count) if count % n == 0)
        return [
            f"{key}: expected a divisor of the {count} envs that are made together with {target}, "
            f"whose answers come in batches of one size ({fits}), got {got}"
        ]
    wrong = {
        f"with {program.env.target}, whose streams are stepped together": program.outside
        or program.env.on_device,
        "with several policies, whose agents act together": len(program.policies) > 1,
    }
    return [f"{key}: expected 0 {why}, got {got}" for why, so in wrong.items() if so]


def device_env_problems(program: Program) -> list[str]:
    """The settings that exclude an env on a device: its rows are tensors, an unroll at a time."""
    source, env, problems = program.source, program.source.played, []
    if env is None or not env.on_device or source.recorded:
        return []
    if program.placement.inference == "central":
        problems.append(
            f"placement.inference: expected local with {env.target}, whose policy acts next to "
            "it on its device, got 'central'"
        )
    if source.on_nonfinite != "stop":
        problems.append(
            f"source.on_nonfinite: expected stop with {env.target}, whose rows are looked at once "
            f"an unroll, got {source.on_nonfinite!r}"
        )
    if source.reported:
        problems.append(
            f"source.metrics: cannot be set with {env.target}, which has no info, got "
            f"{source.reported[0]!r}"
        )
    if len(program.policies) > 1:
        problems.append(
            f"policies: expected one with {env.target}, whose streams are one agent's, got "
            f"{len(program.policies)}"
        )
    return problems


def text_placement_problems(program: Program) -> list[str]:
    """The settings that exclude each other by who generates text, and what is measured of it."""
    place, source, key = program.placement, task_of(program), "placement.text"
    if source is None:
        got = "auto" if "text" in place.auto else place.text
        if got == "apart":
            return []
        return [
            f"{key}: must be left out without a task, since it places generators of text, got {got}"
        ]
    if others := [name for name in place.auto if name != "text"]:
        return [
            f"placement.auto: expected text alone with a task, of which no other setting is "
            f"measured at the start, got {others[0]}; leave {others[0]} at a value"
        ]
    if place.text == "apart" and "text" not in place.auto:
        return []
    policies = learning(program).values()
    shown = "auto" if "text" in place.auto else place.text
    if not all(one.algorithm.reads_rewards for one in policies):
        return [f"{key}: must be apart with an algorithm that draws no samples, got {shown}"]
    if place.text == "apart":
        return []
    elastic, engine = place.text == "elastic", source.engine.partition(":")[0]
    # what a learner generates with are its own weights, whole and of this version
    wrong = {
        f"max_lag=0, since a learner that generates has the newest weights, got {place.max_lag}; "
        "try --max-lag 0": not elastic and place.max_lag != 0,
        "max_lag of at least 1, since a lent device has samples under way while it learns, got 0; "
        "try --max-lag 1, or together": elastic and place.max_lag == 0,
        "balance=off, since lending decides who generates, got auto": (
            elastic and place.balance == "auto"
        ),
        f"placement.shard=none, since a learner generates with whole weights, got {place.shard}": (
            place.shard != "none"
        ),
        f"source.weights=fp32, since a learner generates with its own weights, got "
        f"{source.weights}": source.weights != "fp32",
        f"source.engine=torch, since a learner generates in its own process, got "
        f"{source.engine}": engine != "torch" and not (elastic and engine == SIM),
        f"source.engine=sim:waits=true, whose steps take time that can be measured, got "
        f"{source.engine}": elastic and "waits=false" in source.engine,
        f"source.on_update=keep or recompute, since a sample may go on elsewhere with newer "
        f"weights, got {source.on_update}": elastic and source.on_update == "finish",
        "policy.publish_every=1, since a learner generates with the newest weights": any(
            one.publish_every != 1 for one in policies
        ),
    }
    return [f"{key}={place.text}: must have {why}" for why, so in wrong.items() if so]
