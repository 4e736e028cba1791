"""``spec.json`` of a run that begins (``record/playable.py`` reads it), and the description of its
source in ``run.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import algorithm_json
from equipoise.record import checkpoint
from equipoise.record.playable import signed
from equipoise.registry.reward_models import weights_sha256
from equipoise.sources.source import source_of
from equipoise.types import Program


def to_json(blue: Blueprint) -> dict[str, object]:
    """Write the policies of a run as ``spec.json``; UnsupportedSpace for a space that JSON cannot
    hold.
    """
    source, policies = source_of(blue.program), {}
    for name, role in blue.roles.items():
        where = f"policies.{name}"
        said = {
            "algorithm": algorithm_json(role.algorithm, f"{where}.algorithm"),
            "learns": role.frozen is None,
        }
        policies[name] = said | source.spec_json(role.spec, where)
    return signed(policies, blue.program.placement.precision)


def described(blue: Blueprint) -> dict[str, object]:
    """The description in ``run.json`` of the rows or the task, of the checkpoint that the run
    begins with, and of the weights of its reward models.
    """
    parent: dict[str, object] = (
        {} if blue.weights is None else {"parent": checkpoint.identity(Path(blue.weights))}
    )
    if models := {name: weights_sha256(name) for name in blue.program.reward_models}:
        parent |= {"reward_models": models}
    return parent | source_of(blue.program).described(blue.dataset, blue.spec)


def check_reward_models(run: Mapping[str, dict[str, str]], program: Program) -> None:
    """ValueError if a reward model has other weights than when the run began."""
    for name, before in run.get("reward_models", {}).items():
        if name in program.reward_models and (now := weights_sha256(name)) != before:
            raise ValueError(
                f"reward {name!r}: must be the reward model that the run began with (sha256 "
                f"{before[:12]}...), got another ({now[:12]}...)"
            )
