"""``spec.json``: everything needed to play a run's policies if their env cannot be made.

A run directory and each of its checkpoints have one. It holds, for each policy, the algorithm with
its hyper-parameters, the spaces (an action's form follows from its space), where the mask is, which
observations are stacks of frames, and which agents the policy acts for. Statistics of observations
are not in it: they are buffers of the network, so the weights hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from equipoise import tree, trust
from equipoise.actors.playing import FixedPolicy, noise_of
from equipoise.envs import observation_spec, space_json
from equipoise.envs.spaces import action_spec
from equipoise.language import architectures
from equipoise.nets import lora
from equipoise.nets.threads import one_thread
from equipoise.programs.program import algorithm_from_json, algorithm_json
from equipoise.schema import Anything, Each, Flag, Items, Maybe, Number, Schema, Text, check
from equipoise.sources.envs import spec_json
from equipoise.types import Algorithm, EnvSpec, Precision, Stack, TextSpec

FORMAT = 1
COUNT, PLACE = Number(1, 1 << 20, whole=True), Number(0, 1 << 20, whole=True)
SCHEMA: Schema = {
    "format": Number(FORMAT, FORMAT, whole=True),
    "precision": Text(among=get_args(Precision)),
    "signature?": Maybe(Text(64)),
    "artifact?": Anything(),  # of an exported policy
    "policies": Each(
        {
            # each has a reader of its own
            "algorithm": Anything(),
            "observation": Anything(),
            "action": Anything(),
            "learns": Flag(),
            "mask": Items(Text()),
            "stacks": Each({"frames": COUNT, "padding": Text(among=("zero", "first"))}),
            "frame_skip": COUNT,
            "agents": Items(Text()),
            "places": Items(PLACE),
        }
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Playable:
    """One policy of a run."""

    algorithm: Algorithm
    spec: EnvSpec
    learns: bool
    precision: Precision

    def policy(self) -> FixedPolicy:
        """The policy with a fresh network, for ``fill``."""
        # a caller's random numbers stay as they are
        with torch.random.fork_rng(devices=[]), one_thread():
            net = self.algorithm.network(self.spec)
        noise = noise_of(self.algorithm, net, self.spec.action)
        return FixedPolicy(algorithm=self.algorithm, net=net, noise=noise, precision=self.precision)


def policy_json(
    algorithm: Algorithm, spec: EnvSpec, *, learns: bool, where: str
) -> dict[str, object]:
    """One policy as ``spec.json`` has it; UnsupportedSpace for a space that JSON cannot hold."""
    return {
        "algorithm": algorithm_json(algorithm, f"{where}.algorithm"),
        "learns": learns,
        **spec_json(spec, where),
    }


def signed(policies: Mapping[str, object], precision: Precision) -> dict[str, object]:
    """``spec.json`` with these policies, signed if it names code of the user's."""
    data = {"format": FORMAT, "precision": precision, "policies": policies}
    return data | {"signature": trust.signature(data)}


def from_json(
    data: object, file: Path | str, *, trusted: Sequence[str] = ()
) -> dict[str, Playable]:
    """Read the policies of a ``spec.json``; ValueError if it is not such a file.

    ``trusted``: modules and ``module:callable`` that the user vouches for (``trust.py``).
    """
    where = str(file)
    policies = data.get("policies") if isinstance(data, Mapping) else None
    if isinstance(policies, Mapping) and any(
        isinstance(one, Mapping) and "text" in one for one in policies.values()
    ):
        raise ValueError(
            f"{where}: expected a policy that acts in an env, got one that writes: 'equipoise "
            "generate' asks it"
        )
    check_format(data, where)
    said = trust.renamed(check(data, SCHEMA, where), trusted)
    trust.check(*trust.of_program(said), said.get("signature"), trusted, where)
    return {
        name: _policy(one, f"{where}: policies.{name}", said["precision"])
        for name, one in said["policies"].items()
    }


def check_format(data: object, file: Path | str) -> None:
    """ValueError for a ``spec.json`` that a newer version wrote."""
    said = data.get("format") if isinstance(data, Mapping) else None
    if isinstance(said, int) and said > FORMAT:
        raise ValueError(
            f"{file}: format: must be {FORMAT}, got {said}, which a newer version of Equipoise "
            "wrote; install that version or a newer one"
        )


LORA: Schema = {
    "rank?": COUNT,
    "alpha?": Number(0),
    "targets?": Items(Text(), 1000),
}
TEXT: Schema = {
    "model": Each(Anything()),
    "weights": Text(),
    "lora?": LORA,
    "eos": Items(PLACE, 1000),
    "prompt": COUNT,
    "completion": COUNT,
    "alphabet": Text(),
    "chat": Flag(),
    "*": Anything(),
}


def text_spec(data: object, policy: str, where: str) -> TextSpec:
    """The description in ``spec.json`` of a policy that writes text, without its weights;
    ValueError for another policy.
    """
    policies = data.get("policies") if isinstance(data, Mapping) else None
    one = policies.get(policy) if isinstance(policies, Mapping) else None
    if not isinstance(one, Mapping) or "text" not in one:
        raise ValueError(
            f"{where}: policies.{policy}: expected a policy that writes, got another or none"
        )
    said = check(one["text"], TEXT, f"{where}: policies.{policy}.text")
    try:
        architectures.config_of(said["model"])
    except TypeError as error:
        raise ValueError(
            f"{where}: policies.{policy}.text.model: expected a model's fields, got others "
            f"({error})"
        ) from None
    names = ("model", "prompt", "completion", "alphabet", "chat")
    given = {name: said[name] for name in names}
    return TextSpec(**given, lora=said.get("lora", {}), eos=tuple(said["eos"]))


def _policy(data: Mapping[str, Any], where: str, precision: Precision) -> Playable:
    observation, action = (
        space_json.from_json(data[name], f"{where}.{name}") for name in ("observation", "action")
    )
    observation_spec(observation), action_spec(action)
    if not data["places"] or not all(place < len(data["agents"]) for place in data["places"]):
        raise ValueError(
            f"{where}.places: expected places among the {len(data['agents'])} agents, got "
            f"{data['places']}"
        )
    found = observation
    for key in data["mask"]:
        if key not in (inner := tree.branches(found) or {}):
            raise ValueError(
                f"{where}.mask: expected a key of the observation space, one of {sorted(inner)}, "
                f"got {key!r}"
            )
        found = inner[key]
    spec = EnvSpec(
        observation=observation,
        action=action,
        mask=tuple(data["mask"]),
        frame_skip=data["frame_skip"],
        stacks={path: Stack(**stack) for path, stack in data["stacks"].items()},
        agents=tuple(data["agents"]),
        places=tuple(data["places"]),
    )
    algorithm = algorithm_from_json(data["algorithm"], f"{where}.algorithm")
    return Playable(algorithm=algorithm, spec=spec, learns=data["learns"], precision=precision)


def fill(nets: Mapping[str, nn.Module], params: Mapping[str, Tensor], where: str) -> None:
    """Copy all parameters into the networks; ValueError names the first that does not fit."""
    mine = tree.joined({name: tree.named_tensors(net) for name, net in nets.items()})
    for name in sorted({*params, *mine}):
        shapes = [
            tuple(tensors[name].shape) if name in tensors else "none" for tensors in (mine, params)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{where}: parameter {name!r}: expected {shapes[0]} for this env and algorithm, "
                f"got {shapes[1]}"
            )
    for net, given in zip(nets.values(), tree.parted(params, nets.keys()).values(), strict=True):
        lora.check_base(net, given, "weights")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(params[name])
