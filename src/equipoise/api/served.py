"""Artifacts for ``equipoise serve`` without a registry: a run is exported into its own folder at
the first start; an earlier export is served as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.api.exporting import export
from equipoise.files import parse_json
from equipoise.hints import hint, shortened
from equipoise.record import checkpoint, paths, playable
from equipoise.record.directory import RunDirectory
from equipoise.registry import artifacts
from equipoise.registry.reading import POLICY
from equipoise.schema import Anything, Each, Schema, Text, check

SERVED = "served"  # the folder of a run with its artifacts and decisions
ARTIFACT: Schema = {
    "artifact": {
        "policy": Text(),
        "lineage": {"step?": checkpoint.COUNT, "*": Anything()},
        "*": Anything(),
    },
    "*": Anything(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An artifact to serve."""

    artifact: Path
    policy: str
    step: int  # of the run whose weights it has
    fresh: bool = False  # was it exported just now?
    note: str = ""  # why the observations of its comparison were made up
    goes_on: bool = False  # does its run still train?

    @property
    def version(self) -> str:
        return checkpoint.identity(self.artifact)


def of_artifact(artifact: Path, policy: str | None, again: str = "export it again") -> Served:
    """An artifact as it is; ValueError if a file is damaged, or it has no policy of this name.

    ``again``: the end of the sentence on a damaged file.
    """
    try:
        wrong = artifacts.problems(artifact, checkpoint.identity(artifact))
    except OSError as error:
        wrong = [f"{artifact}: must be a whole artifact, got one without {checkpoint.MANIFEST}"]
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
    if wrong:
        raise ValueError(f"{wrong[0]}; remove {artifact} and {again}")
    said = _spec(artifact)
    about = check(said, ARTIFACT, file := str(artifact / checkpoint.SPEC))["artifact"]
    if about["policy"] not in said["policies"]:
        raise ValueError(
            f"{file}: artifact.policy: must be one of its policies, got {about['policy']!r}"
        )
    if policy not in (None, name := about["policy"]):
        raise ValueError(f"--policy: must be {name!r}, which {artifact} has, got {policy!r}")
    return Served(artifact=artifact, policy=name, step=about["lineage"].get("step", 0))


def of_run(
    directory: Path,
    policy: str | None,
    *,
    graph: bool,
    trust: Sequence[str],
    begins: Callable[[str], None],
) -> Served:
    """Return the artifact of the weights that ``export`` takes, in the run's folder ``served``;
    export it first if it is not there.

    ``graph``: as for ``export``; ``begins`` gets the name of the policy before it is exported.
    ValueError if the run has several policies and none is named, and for a run on text.
    """
    source = RunDirectory.found(directory).result_checkpoint()
    goes_on = paths.is_locked(directory)
    if source is None:
        when = (
            "the run goes on and writes one in a while"
            if goes_on
            else "try 'equipoise train' again"
        )
        raise ValueError(f"{directory}: must be a run with a checkpoint, got none; {when}")
    name = _named(directory, _spec(source)["policies"], policy)
    made = f"{name}-{source.name}-{checkpoint.identity(source)[:8]}{'' if graph else '-torch'}"
    to, note = directory / SERVED / made, ""
    for place in (to.parent, to):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            got = f"a link to {os.readlink(place)}" if place.is_symlink() else "another file"
            raise ValueError(
                f"{place}: must be a folder of the run, got {got}; remove it and start again"
            )
    if fresh := not to.exists():
        begins(name)
        try:
            note = export(
                directory, to, policy=name, only=None if graph else "weights", trust=trust
            ).note
        except OSError:
            if not to.exists():  # else another start was faster
                raise
    found = of_artifact(to, name, "start again")
    return Served(
        artifact=to, policy=name, step=found.step, fresh=fresh, note=note, goes_on=goes_on
    )


def _spec(place: Path) -> dict[str, Any]:
    file = place / checkpoint.SPEC
    said = parse_json(checkpoint.read(place, checkpoint.SPEC), file)
    playable.check_format(said, file)
    found: dict[str, Any] = check(
        said, {"policies": Each({"*": Anything()}), "*": Anything()}, str(file)
    )
    if wrong := [name for name in found["policies"] if not POLICY.fullmatch(name)]:
        raise ValueError(
            f"{file}: policies: must have names of letters, digits, '.', '_' and '-', which name "
            f"files, got {shortened(repr(wrong[0]), 80)}; export a run of your own"
        )
    return found


def _named(directory: Path, found: Mapping[str, Mapping[str, object]], policy: str | None) -> str:
    """The name ``policy``, or the name of the only policy that learns."""
    if any("text" in one for one in found.values()):
        raise ValueError(
            f"{directory}: must be a run whose policy acts in an env, got one that writes text; "
            f"'equipoise generate {directory}' asks it, and 'equipoise export {directory} DIR' "
            "gives its model to servers of language models"
        )
    if policy is not None:
        if policy not in found:
            raise ValueError(
                f"--policy: must be a policy of {directory}, got {policy!r}{hint(policy, found)}"
            )
        return policy
    several = [name for name, one in found.items() if one.get("learns")] or list(found)
    if not several:
        raise ValueError(f"{directory}: must be a run with a policy, got none")
    if len(several) > 1:
        raise ValueError(
            f"--policy: must name one of the policies of {directory}, {', '.join(several)}, got "
            f"none; try --policy {several[0]}"
        )
    return several[0]
