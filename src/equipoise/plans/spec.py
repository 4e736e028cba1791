"""``spec.json`` of a run that begins (``record/playable.py`` reads it), and the description of its
source in ``run.json``.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.plans.blueprint import Blueprint
from equipoise.programs.program import algorithm_json
from equipoise.record import checkpoint
from equipoise.record.playable import signed
from equipoise.sources.source import source_of


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
    """The description in ``run.json`` of the rows or the task, and of the checkpoint that the run
    begins with.
    """
    parent = {} if blue.weights is None else {"parent": checkpoint.identity(Path(blue.weights))}
    return parent | source_of(blue.program).described(blue.dataset, blue.spec)
