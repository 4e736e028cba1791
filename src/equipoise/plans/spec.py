"""``spec.json`` of a run that begins (see ``record/playable.py``, which reads it)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import algorithm_json
from equipoise.record.playable import policy_json, signed
from equipoise.types import TextSpec


def to_json(blue: Blueprint) -> dict[str, Any]:
    """Write the policies of a run as ``spec.json``; UnsupportedSpace for a space that JSON cannot say."""
    policies = {}
    for name, role in blue.roles.items():
        spec, where = role.spec, f"policies.{name}"
        if isinstance(spec, TextSpec):
            policies[name] = {
                "algorithm": algorithm_json(role.algorithm, f"{where}.algorithm"), "learns": True, "text": asdict(spec),
            }  # fmt: skip
            continue
        policies[name] = policy_json(role.algorithm, spec, learns=role.frozen is None, where=where)
    return signed(policies, blue.program.placement.precision)
