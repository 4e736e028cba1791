"""The reward model of a run of ``--reward preferences``, taken out of its newest checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from equipoise import schema
from equipoise.envs import space_json
from equipoise.facts import facts, values_of
from equipoise.files import new_folder, parse_json, read_json
from equipoise.record import checkpoint, paths, statefile
from equipoise.record.directory import CHECKPOINTS
from equipoise.record.report import step_of
from equipoise.registry.artifacts import REWARD
from equipoise.registry.reward_models import DIGITS
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences import stored
from equipoise.rewards.preferences.fit import Metrics
from equipoise.rewards.preferences.model import RewardNets
from equipoise.rewards.preferences.term import Preferences
from equipoise.types import EnvSpec

FOLDER = "reward_models"  # in a run: folders of its reward models, by checkpoint
TERM = "preferences"
TRIES = 3  # attempts to read a checkpoint
# settings that the networks and the term have in common
SHARED = tuple(one.name for one in fields(RewardNets) if one.name in facts(Preferences))
PROGRAM: schema.Schema = {
    "program": {"policies": schema.Each({"*": schema.Anything()}), "*": schema.Anything()},
    "*": schema.Anything(),
}
OWN: schema.Schema = {  # the state of the term
    "fitted": schema.Flag(),
    "model": schema.Each(schema.Anything()),
    "numbers": schema.Each(schema.Number()),
    "*": schema.Anything(),
}
SPACES: schema.Schema = {
    "observation": schema.Anything(),
    "action": schema.Anything(),
    "mask": schema.Items(schema.Text(), 32),
    "*": schema.Anything(),
}


def of_run(run: Path, to: Path | None = None) -> Path:
    """Write the reward model of a run's newest checkpoint as a folder; return the folder.

    The run has ``--reward preferences``. ``to``: a new folder (default: one in the run). Nothing
    that the run names is imported or opened. ValueError if there is no reward model.
    """
    file = run / paths.RUN
    described = schema.check(read_json(file), PROGRAM, str(file))["program"]
    name, given = _preferences(described["policies"], run)
    source, data, spec = _newest(run)
    folder = to or run / FOLDER / checkpoint.identity(source.path)[:DIGITS]
    if to is None and (folder / REWARD).is_file():
        return folder
    where = source.path / checkpoint.LEARNER
    learner = statefile.parse(data, where)
    own = _at(learner, ("learners", name, "terms", TERM, "own"), where)
    own = schema.check(own, OWN, f"{where}: {TERM}")
    if not own["fitted"]:
        raise ValueError(
            f"{run}: must be a run whose reward model was fitted, got one that waits for its first "
            f"answers, at step {step_of(source.meta):,}"
        )
    spec_file = source.path / checkpoint.SPEC
    about = schema.check(
        _at(parse_json(spec, spec_file), ("policies", name), spec_file), SPACES, str(spec_file)
    )
    observation, action = (
        space_json.from_json(about[key], f"{spec_file}: {key}") for key in ("observation", "action")
    )
    observed = Observed(EnvSpec(observation=observation, action=action, mask=tuple(about["mask"])))
    model = stored.made(observed.space, action, given, own["model"], str(where))
    numbers = own["numbers"]
    metrics = Metrics(
        accuracy=numbers.get("held_out_accuracy", float("nan")),
        ece=numbers.get("held_out_ece", float("nan")),
        log_loss=float("nan"),
        answers=0,
    )
    lineage = {"run": run.absolute().name, "step": step_of(source.meta)}
    with new_folder(folder, present=REWARD if to is None else "") as aside:
        labels = int(numbers.get("labels", 0))
        stored.write(aside, model, metrics, labels=labels, lineage=lineage)
    return folder


def _newest(run: Path) -> tuple[checkpoint.Source, bytes, bytes]:
    """Return the newest whole checkpoint, its learner's state and its spec.json.

    A run that still trains may remove a checkpoint while it is read, so there are several attempts.
    """
    why = ""
    for _ in range(TRIES):
        skipped = list[str]()
        source = checkpoint.choose(run / CHECKPOINTS, skipped=skipped)
        if source is None:
            why = f"none: {skipped[0]}" if skipped else "none; wait until the run has saved one"
            continue
        try:
            return source, source.read(checkpoint.LEARNER), source.read(checkpoint.SPEC)
        except (OSError, ValueError) as error:
            why = f"a damaged one: {error}"
    raise ValueError(f"{run}: must be a run with a whole checkpoint, got {why}")


def _preferences(policies: Mapping[str, Mapping[str, object]], run: Path) -> tuple[str, RewardNets]:
    """Return the policy that learns from preferences, and the networks of its reward model."""
    usual = asdict(RewardNets()) | {
        key: value for key, value in values_of(Preferences()).items() if key in SHARED
    }
    for name, one in policies.items():
        rewards = one.get("rewards")
        terms = rewards.get("terms") if isinstance(rewards, Mapping) else None
        if isinstance(terms, Mapping) and isinstance(found := terms.get(TERM), Mapping):
            given = usual | {key: found[key] for key in SHARED if key in found}
            given = json.loads(json.dumps(given))  # tuples as lists
            return name, stored.nets_of(given, f"{run / paths.RUN}: reward.{TERM}")
    raise ValueError(
        f"{run}: must be a run of reward_model or of --reward preferences, got one without a "
        "reward model; 'equipoise export RUN DIR' writes a policy"
    )


def _at(data: object, keys: Sequence[str], where: Path) -> object:
    for key in keys:
        if not isinstance(data, Mapping) or key not in data:
            raise ValueError(f"{where}: must have {'.'.join(keys)}, got nothing at {key!r}")
        data = data[key]
    return data
