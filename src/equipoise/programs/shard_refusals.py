"""Refusals of what does not go with learners that keep a part of each parameter."""

from __future__ import annotations

from torch import nn

from equipoise.nets.block import blocks, parts
from equipoise.types import Frozen, On, Program, learning


def shard_problems(program: Program) -> list[str]:
    """The settings that exclude ``placement.shard``."""
    place, key = program.placement, "placement.shard"
    if place.shard == "none" or place.learners == 1:
        return []
    got, problems = f"got {place.shard!r}", []
    if name := next(
        (name for name, policy in program.policies.items() if isinstance(policy, Frozen)), None
    ):
        problems.append(
            f"{key}: expected none with a frozen policy ({name}), whose past versions learner 0 "
            f"alone keeps, {got}"
        )
    for policy in learning(program).values():
        kind = type(policy.algorithm).__name__
        if policy.replay is not None:
            problems.append(
                f"{key}: expected none with a replay, which {kind} learns from here, {got}"
            )
        elif policy.algorithm.copied_every:
            problems.append(
                f"{key}: expected none with a target network, which {kind} has here "
                f"(target_every), {got}"
            )
    if place.device != "cpu" and place.inference == "central":
        problems.append(
            f"{key}: expected none with central inference on {place.device}, which reads learner "
            f"0's device, {got}"
        )
    return problems


def block_problems(program: Program, net: nn.Module) -> list[str]:
    """The parts of a policy's network without blocks."""
    place, found, problems = program.placement, blocks(net), []
    if place.gradient_checkpointing and not parts(net):
        problems.append(
            "placement.gradient_checkpointing: expected false for a network without blocks, such "
            "as the core gtrxl, the torsos vit and cross and decoders have, got true"
        )
    if place.shard == "tensor" and place.learners > 1 and not any(block.pairs for block in found):
        problems.append(
            "placement.shard: expected none or fsdp for a network without pairs of wide layers, "
            "such as the core gtrxl and the torsos vit and cross have, got 'tensor'"
        )
    return problems


def check_shard_on(program: Program, on: On) -> None:
    """ValueError if the learners have no process each."""
    if program.placement.shard != "none" and program.placement.learners > 1 and on == "serial":
        raise ValueError(
            "placement.shard: expected none with on=serial, or on=process or ray, where each "
            f"learner has a process, got {program.placement.shard!r}"
        )
