"""A trained policy as data: ``export`` writes an artifact, or the model of a run on text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from equipoise import tree
from equipoise import trust as trusting
from equipoise.api.playing import Loaded, read_policies, weights_of
from equipoise.api.recorded import recordings
from equipoise.api.writing import export_model, given_base
from equipoise.exporting import artifact as artifacts
from equipoise.exporting import observations
from equipoise.exporting.parity import Parity, Seen
from equipoise.files import is_url, new_folder, parse_json, read_json
from equipoise.hints import raised
from equipoise.programs.program import algorithm_name
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory, params_sha256
from equipoise.record.mirror import local
from equipoise.record.paths import RUN
from equipoise.record.report import step_of
from equipoise.record.summary import SUMMARY
from equipoise.registry import artifacts as bundles
from equipoise.registry.artifacts import REWARD

__all__ = ["Exported", "export"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exported:
    """An artifact, or a model of text."""

    path: Path
    version: str = ""  # the hash of its manifest; "": a model of text
    parity: Parity | None = None  # how far its graph is from torch
    source: str = ""  # the observations on which they were compared
    note: str = ""  # why these were made up
    # precision in which the run acts; the graph and the compared torch policy are fp32
    precision: str = "fp32"

    def __repr__(self) -> str:
        return f"<Exported {self.path}{f', version {self.version[:12]}' if self.version else ''}>"


def export(
    directory: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    policy: str | None = None,
    best: bool = False,
    recorded: str | os.PathLike[str] | None = None,
    rows: int | None = None,
    only: Literal["weights", "adapter"] | None = None,
    trust: Sequence[str] = (),
) -> Exported:
    """Write a trained policy as a folder of data that acts without torch: an artifact.

    The folder holds ``policy.onnx``, weights, spec, ``edge.py`` and hashes. The graph is compared
    with torch on observations. A run on text gives ``config.json`` and ``model.safetensors``
    instead, which ``transformers`` loads. The folder of a reward model is copied.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        to: The new folder.
        policy: The name of one of several policies (default: the first).
        best: Take the weights of the best evaluation.
        recorded: Observations to compare on, as for ``play`` (default: played in the run's env).
        rows: How many of them (default: 10,000, or 2,000 large ones).
        only: ``weights``: write no graph. ``adapter``, of a run with ``lora``: write the adapters
            alone, as ``peft`` loads them (default: the model with the adapters in its weights).
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The artifact: ``exported.path``, ``exported.version``, ``exported.parity``.

    Raises:
        FileExistsError: The folder is there already.
        ValueError: The run has no policy of this name.
        Differs: The graph gives other actions than torch.

    Example:
        >>> eq.export(run.directory, "artifact", rows=100)
        <Exported artifact, version ...>
    """
    if is_url(to):
        raise ValueError(f"{to}: expected a new directory on this machine, got a URL")
    place = Path(to).expanduser()
    if place.exists():
        raise FileExistsError(f"{place}: expected a new directory, got one that is there already")
    with local(directory) as here:
        if (Path(here) / REWARD).is_file():
            return _reward_model(Path(here), place)
        source = weights_of(here, best=best)
        spec = parse_json(checkpoint.read(source, checkpoint.SPEC), source / checkpoint.SPEC)
        if any(
            isinstance(one, Mapping) and "text" in one for one in spec.get("policies", {}).values()
        ):
            with new_folder(place) as aside:
                export_model(here, aside, best=best, adapter=only == "adapter", trust=trust)
            version = checkpoint.identity(place) if (place / REWARD).is_file() else ""
            return Exported(path=place, version=version)
        if base := given_base():
            raise ValueError(f"--base: must be left out without adapters, got {base!r}")
        if only == "adapter":
            raise ValueError(
                f"{directory}: must be a run on text to give adapters, got a policy that acts; "
                "leave out --only"
            )
        loaded = read_policies(here, best=best, trust=trust)
        name = loaded.named(policy)
        one, step = loaded.playable[name], step_of(loaded.meta)
        wanted = observations.wanted_rows(one.spec) if rows is None else rows
        seen, note = _seen(here, loaded, name, recorded, wanted, trust)
        parity = artifacts.write(
            place,
            name,
            one,
            loaded.policies[name],
            step=step,
            lineage=lineage(here, loaded, name),
            seen=seen,
            rows=None if only == "weights" else wanted,
        )
    return Exported(
        path=place,
        version=checkpoint.identity(place),
        parity=parity,
        source=seen.source,
        note=note,
        precision=one.precision,
    )


def _reward_model(here: Path, place: Path) -> Exported:
    """Copy the folder of a reward model."""
    with new_folder(place) as aside:
        bundles.copy(here, bundles.read_manifest(here), aside)
    return Exported(path=place, version=checkpoint.identity(place))


def _seen(
    here: str | os.PathLike[str],
    loaded: Loaded,
    name: str,
    recorded: str | os.PathLike[str] | None,
    rows: int,
    trust: Sequence[str],
) -> tuple[Seen, str]:
    """Observations, and why they had to be made up."""
    spec = loaded.playable[name].spec
    if recorded is not None:
        return observations.recorded(
            (one.obs for one in recordings(recorded, spec)), os.fspath(recorded), rows=rows
        ), ""
    try:
        program = RunDirectory.open(here, trusted=trust).program
        if data := program.source.recorded:
            return observations.recorded(
                (one.obs for one in recordings(data, spec)), f"data set {data}", rows=rows
            ), ""
        if program.outside:  # nobody knows when a world will come
            why = f"the worlds of {program.env.target} are outside; --recorded FILE takes rows"
            return observations.sampled(spec, loaded.policies[name].net, rows=rows), why
        return observations.played(
            program, loaded.policies, name, rows=rows, step=step_of(loaded.meta)
        ), ""
    except (FileNotFoundError, trusting.Untrusted) as error:
        why = str(error)
    except Exception as error:  # the env of a user, or what its package needs, may raise anything
        why = raised(error)
    return observations.sampled(spec, loaded.policies[name].net, rows=rows), why


def lineage(here: str | os.PathLike[str], loaded: Loaded, name: str) -> dict[str, Any]:
    """Where a policy is from: what of it is known."""
    run = _run_of(Path(here))
    said = {} if run is None else read_json(run / RUN)
    versions = said.get("versions", {}) if isinstance(said, Mapping) else {}
    data = said.get("dataset") or {}
    evaluation = loaded.meta.get("evaluation") or _last_evaluation(run, step_of(loaded.meta))
    return {
        "run": None if run is None else run.absolute().name,
        "step": step_of(loaded.meta),
        "data": data.get("sha256"),
        "parent": said.get("parent"),
        "evaluation": {
            key: evaluation[key] for key in ("mean", "std", "episodes") if key in evaluation
        }
        or None,
        "algorithm": algorithm_name(type(loaded.playable[name].algorithm)),
        "params_sha256": params_sha256(tree.named_tensors(loaded.policies[name].net)),
        "commit": said.get("commit"),
        "versions": versions,
    }


def _last_evaluation(run: Path | None, step: int) -> Mapping[str, Any]:
    """The evaluation of a run's last weights; {} if the last weights are of another step."""
    if run is None or not (run / SUMMARY).is_file():
        return {}
    said = read_json(run / SUMMARY)
    last = (
        isinstance(said, Mapping)
        and said.get("status") == "completed"
        and said.get("env_steps") == step
    )
    return (said.get("evaluation") or {}) if last else {}


def _run_of(path: Path) -> Path | None:
    """The run directory that this is, or whose checkpoint this is."""
    return next(
        (one for one in (path, *path.absolute().parents[:3]) if (one / RUN).is_file()), None
    )
