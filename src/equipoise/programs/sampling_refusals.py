"""Refusals of what does not go with how rows are made: by streams that answer some at a time, by
envs on a device.
"""

from __future__ import annotations

from equipoise.types import Program


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
