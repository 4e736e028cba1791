"""Is it the same work? What every row of a case has to have done, and what our own run says that it
did.

    .venv/bin/python benchmarks/work.py RUN-DIRECTORY        # prints our own ``work`` as the peers' scripts print theirs

A peer's script reports what it really had: the env and the shape of its observations, the trained
tensors, optimiser steps and their rows, how far the parameters moved. ``broken`` compares that with
the case; a row that broke it has no figure.
"""  # noqa: E501

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# how far the measured passes may be from what was asked: rows are in flight at both ends of a
# window
PASSES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """``envs``: each name that counts as the env of the case, and how it differs, if at all, for a
    footnote.
    """

    envs: Mapping[str, str]
    observation: tuple[int, ...]  # of one, in any order of the axes
    actions: int
    parameters: int
    net: str
    frame_skip: int = 1
    sticky: float | None = None
    passes: float = 1.0
    notes: Mapping[str, str] = field(default_factory=dict)


V4 = "HalfCheetah-v4: the same physics, observations and rewards as v5 (its Gymnasium has no v5)"
CONTRACTS = {
    "cartpole": Contract(
        envs={"CartPole-v1": "", "envpool:CartPole-v1": "EnvPool's CartPole-v1 (C++)"},
        observation=(4,),
        actions=2,
        parameters=4675,
        net="MLP 64-64 tanh, one torso for policy and value",
    ),
    "halfcheetah": Contract(
        envs={
            "HalfCheetah-v5": "",
            "HalfCheetah-v4": V4,
            "envpool:HalfCheetah-v5": "EnvPool's HalfCheetah-v5 (C++)",
            "envpool:HalfCheetah-v4": "EnvPool's HalfCheetah-v4 (C++)",
        },
        observation=(17,),
        actions=6,
        parameters=5773,
        net="MLP 64-64 tanh, one torso for policy and value, a log std an action",
    ),
    "pong": Contract(
        envs={"ALE/Pong-v5": "", "envpool:Pong-v5": "EnvPool's Pong-v5 (the same emulator in C++)"},
        observation=(4, 84, 84),
        actions=6,
        parameters=1_687_719,
        frame_skip=4,
        sticky=0.0,
        net="Nature CNN, 4 stacked frames of 84 x 84, one torso",
    ),
}


def broken(contract: Contract, work: Mapping[str, Any]) -> list[str]:
    """Every way in which ``work`` is not that of the case, as a sentence each; none: it is the same
    work.
    """
    found = []

    def same(name: str, expected: Any, got: Any) -> None:
        if expected != got:
            found.append(f"{name}: expected {expected}, got {got}")

    if work["env"] not in contract.envs:
        found.append(f"env: expected one of {', '.join(contract.envs)}, got {work['env']}")
    same("frame_skip", contract.frame_skip, work["frame_skip"])
    same("sticky actions", contract.sticky, work["sticky"])
    same("observation", sorted(contract.observation), sorted(work["observation"]))
    same("actions", contract.actions, work["actions"])
    same("parameters", contract.parameters, work["parameters"])
    if not abs(work["passes"] / contract.passes - 1) <= PASSES:
        found.append(
            f"passes: expected {contract.passes:g} +- {PASSES:.0%}, got {work['passes']:g}"
        )
    if not work["updates"] > 0:
        found.append(f"updates: expected optimiser steps in the window, got {work['updates']}")
    if not (math.isfinite(work["moved"]) and work["moved"] > 0):
        found.append(
            f"parameters moved by {work['moved']}: expected a finite distance above 0; was "
            "learning off?"
        )
    return found


def differences(contract: Contract, work: Mapping[str, Any]) -> list[str]:
    """What is accepted and has to be said beside the figure."""
    said = [contract.envs.get(work["env"], "")]
    if work["precision"] != "fp32":
        said.append(f"precision {work['precision']}")
    return [text for text in said if text]


def ours(directory: Path) -> dict[str, Any]:
    """The work of a finished run, from its directory."""
    import equipoise
    from equipoise.plans.roles import network
    from equipoise.record.directory import RunDirectory
    from equipoise.types import RunSpec, learning

    player = equipoise.load(directory)
    program = RunDirectory.open(directory).program
    policy = learning(program)["main"]
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    first = dict(
        network(
            program, RunSpec(env=player.spec, policies={"main": player.spec}), "main"
        ).named_parameters()
    )
    last = dict(player.policy.net.named_parameters())
    action = player.spec.action
    rows = (
        summary["updates"] * policy.unroll * policy.batch * getattr(policy.algorithm, "epochs", 1)
    )
    moved = math.sqrt(
        sum(float((last[name] - p).double().square().sum()) for name, p in first.items())
    )
    return {
        "env": program.env.target.removeprefix("python:"),
        "frame_skip": round(summary["frames"] / summary["env_steps"]),
        "sticky": sticky(program.env.target, program.env.kwargs),
        "observation": list(player.spec.observation.shape or ()),
        "actions": int(getattr(action, "n", 0)) or int((action.shape or (0,))[0]),
        "parameters": sum(p.numel() for p in first.values()),
        "shapes": sorted((list(p.shape) for p in first.values()), reverse=True),
        "precision": getattr(program, "precision", "fp32"),
        "passes": round(rows / summary["env_steps"], 3),
        "updates": summary["updates"],
        "moved": moved,
    }


def sticky(target: str, kwargs: Mapping[str, Any]) -> float | None:
    """The probability that an Atari env repeats the last action; None for an env that has no such
    thing.
    """
    if "Pong" not in target:
        return None
    return float(kwargs.get("sticky", kwargs.get("repeat_action_probability", 0.25)))


if __name__ == "__main__":
    print(json.dumps({"value": 1, "work": ours(Path(sys.argv[1]))}))
