"""A policy of behaviour cloning that goes on in another algorithm: its torso and its head become
that one's actor.

Values, critics and temperatures, which a clone has not learned, begin untrained. So the first
updates change these alone (``value_warmup``), and the policy stays as it was cloned until they are
of use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.facts import values_of
from equipoise.files import parse_json
from equipoise.record import checkpoint
from equipoise.types import Algorithm, Program, learning

CLONE = "bc"
# settings in which the clone's and the policy's networks must agree
SHAPE = ("hidden", "activation", "torso", "squash", "normalize_obs", "clip_obs")
# updates of the value alone before the policy learns, unless the user sets a number
ON_POLICY, WITH_REPLAY = 10, 5_000
BEND = 1.4  # of a mean within its bounds: tanh(1.4 x) is nearest to x there


def clone_of(source: Path) -> Mapping[str, Any] | None:
    """The settings of a checkpoint whose only policy was cloned; None for other checkpoints."""
    if checkpoint.SPEC not in checkpoint.manifest(source)[0]:
        return None
    said = parse_json(checkpoint.read(source, checkpoint.SPEC), source / checkpoint.SPEC)
    policies = said.get("policies") if isinstance(said, dict) else None
    if not isinstance(policies, dict) or len(policies) != 1:
        return None
    (policy,) = policies.values()
    algorithm = policy.get("algorithm") if isinstance(policy, dict) else None
    if not isinstance(algorithm, dict) or algorithm.get("name") != CLONE:
        return None
    fields = algorithm.get("fields")
    return fields if isinstance(fields, dict) else None


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__name__.lower()


def adopted(program: Program, source: Path, given: Collection[str]) -> tuple[Program, str]:
    """The program with a clone's network and a warm-up of its value, and a sentence; "": no clone.

    ``given``: keys of settings that the user set, which stay.
    """
    was, policies = clone_of(source), learning(program)
    if was is None or len(policies) != 1:
        return program, ""
    ((name, policy),) = policies.items()
    now = policy.algorithm
    if _name(now) == CLONE:
        return program, ""
    wanted = {key: _as(was[key]) for key in SHAPE if key in was} | {"sde_every": 0}
    wanted["value_warmup"] = WITH_REPLAY if now.needs_replay else ON_POLICY
    mine = values_of(now)
    changed: dict[str, Any] = {
        key: value
        for key, value in wanted.items()
        if key in mine and mine[key] != value and f"algorithm.{key}" not in given
    }
    if not changed:
        return program, ""
    made = replace(policy, algorithm=replace(now, **changed))
    said = " ".join(f"algorithm.{key}={_text(value)}" for key, value in changed.items())
    return replace(
        program, policies={**program.policies, name: made}
    ), f"goes on from a clone with {said}"


def _as(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def params(
    program: Program, nets: Mapping[str, nn.Module], source: Path, given: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """The parameters for these networks: those ``given``; of a clone its policy, the rest fresh.

    ValueError if the policy's network differs in a setting that its shapes do not show.
    """
    was = clone_of(source)
    if was is None or len(nets) != 1:
        return given
    (net,), (policy, *_) = nets.values(), learning(program).values()
    now: Algorithm = policy.algorithm
    if _name(now) == CLONE:
        return given
    has = values_of(now)
    for key in SHAPE[:-1]:
        if key in was and key in has and has[key] != _as(was[key]):
            raise ValueError(
                f"{source}: expected algorithm.{key}={_text(_as(was[key]))}, as the cloned policy "
                f"has, got {_text(has[key])}; --set "
                f"algorithm.{key}={_text(_as(was[key]))} is what fits"
            )
    mine = tree.named_tensors(net)
    actor: dict[str, Tensor] = {
        name: x
        for name, x in given.items()
        if name.startswith(("torso.", "policy_head.", "log_std", "norm."))
    }
    if "actor.head.weight" in mine:
        if was.get("normalize_obs"):
            raise ValueError(
                f"{source}: expected a clone with algorithm.normalize_obs=false for {_name(now)}, "
                "got one with true"
            )
        actor = _behind_tanh(net, actor, squashed=bool(was.get("squash")))
    return {**mine, **actor}


def _behind_tanh(net: Any, policy: Mapping[str, Tensor], *, squashed: bool) -> dict[str, Tensor]:
    """The clone's torso and head as an actor whose means go through tanh into the bounds; exact if
    they did in the clone.
    """
    found = {
        name.replace("torso.", "actor.body.", 1): x
        for name, x in policy.items()
        if name.startswith("torso.")
    }
    weight, bias, log_std = (
        policy["policy_head.weight"],
        policy["policy_head.bias"],
        policy.get("log_std"),
    )
    if log_std is not None and len(bias) == net.bounds.size:
        half, middle = (one.on(bias.device) for one in (net.bounds._half, net.bounds._middle))
        if not squashed:
            weight, bias, log_std = (
                BEND * weight / half[:, None],
                BEND * (bias - middle) / half,
                log_std - half.log(),
            )
        # mean and deviation of each number, which no state changes
        if len(net.actor.head.bias) == 2 * len(bias):
            weight, bias = torch.cat([weight, torch.zeros_like(weight)]), torch.cat([bias, log_std])
    return found | {"actor.head.weight": weight, "actor.head.bias": bias}
