"""Reward models: fitted to a store of clips, taken out of a run, and found by their names."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import torch

from equipoise import phases, schema
from equipoise.api.programs import Env, program
from equipoise.envs import space_json
from equipoise.facts import Help, PositiveInt, facts, values_of
from equipoise.feedback import Store
from equipoise.files import local_path, parse_json, plain, read_json, sync_directory
from equipoise.hints import hint
from equipoise.language.stores import UPTO, is_store, last_row
from equipoise.nets.threads import one_thread
from equipoise.programs.ranges import out_of_range
from equipoise.programs.settings import Settings, apply_settings, convert, pairs
from equipoise.record import checkpoint, paths, statefile
from equipoise.record.directory import CHECKPOINTS
from equipoise.record.report import step_of
from equipoise.registry import ALIASES
from equipoise.registry.artifacts import REWARD
from equipoise.registry.reward_models import DIGITS, at_version, place
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences import stored
from equipoise.rewards.preferences.asking import HELD_OUT, SPLIT
from equipoise.rewards.preferences.clips import Clips, Labels
from equipoise.rewards.preferences.fit import Fitting, Metrics, fit
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.segments import Answers, split
from equipoise.rewards.preferences.term import Preferences
from equipoise.seeds import derive_seed
from equipoise.sources.source import source_of
from equipoise.sums import REGISTRY, RUN, with_models
from equipoise.types import EnvSpec, Policy, Program

__all__ = ["FittedReward", "fit_reward_model"]

FOLDER = "reward_models"  # in a run: folders of its reward models, by checkpoint
TERM = "preferences"
TRIES = 3  # attempts to read a checkpoint
# settings that the networks and the term have in common
SHARED = tuple(one.name for one in fields(RewardNets) if one.name in facts(Preferences))
# ends of names: a version or a checkpoint's folder; an alias or a slash
PINNED = re.compile(rf"(/{FOLDER}/|@)[0-9a-f]{{{DIGITS}}}$")
ALIAS = re.compile(rf"@({'|'.join(ALIASES)})$|/+$")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """The least answers for a fit."""

    first: Annotated[PositiveInt, Help("Answers that a fit needs")] = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedReward:
    """A reward model that was fitted to a store of clips.

    Example:
        >>> eq.fit_reward_model("labels", "Pendulum-v1")  # doctest: +SKIP
        <FittedReward runs/... of 700 answers>
    """

    path: Path
    version: str  # of the folder, as an artifact
    accuracy: float  # of held-out answers; nan: too few are held out
    ece: float  # expected calibration error of held-out answers
    labels: int  # answers that the fit had
    held_out: int
    left_out: int  # answers that compare a held-out episode with another one

    def __repr__(self) -> str:
        return f"<FittedReward {self.path} of {self.labels:,} answers>"


def fit_reward_model(
    store: str | os.PathLike[str],
    env: Env,
    *,
    out: str | os.PathLike[str] | None = None,
    seed: int = 0,
    settings: Settings = (),
) -> FittedReward:
    """Fit a reward model to the answers in a store of clips, and write it as a new folder.

    Args:
        store: Folder of the store of preferences.
        env: The env of the clips, as for ``train``; it gives the spaces, and is not stepped.
        out: The new folder (default: runs/ENV-reward_model-SEED-TIME).
        seed: Seed of the first weights.
        settings: ``algorithm.KEY`` of the networks and the fit, and ``env.KEY`` of the env.

    Returns:
        The reward model: ``fitted.path``, ``fitted.accuracy``, ``fitted.ece``, ``fitted.labels``.

    Raises:
        FileExistsError: The folder is there already.
        ValueError: The store has too few answers about clips of this env, or is damaged.

    Example:
        >>> eq.fit_reward_model("labels", "Pendulum-v1", out="speed")  # doctest: +SKIP
        <FittedReward speed of 700 answers>
    """
    nets, fitting, enough, of_env = _parsed(settings)
    folder = local_path(store)
    if out is not None and (there := local_path(out).expanduser()).exists():
        raise FileExistsError(f"{there}: must be a new folder, got one that is there already")
    with Store.open(folder) as opened:
        made = program(env, "ppo", recipe=False, seed=seed, settings=of_env)
        spec = _only_spec(made)
        upto = opened.last_row()
        labels, answers = _labels(opened, spec, upto, made.name)
    _check_enough(answers, enough.first, folder)
    segments = labels.segments()
    train, held, left_out = split(answers, segments.episode, share=fitting.held_out, seed=SPLIT)
    if not len(train):  # all episodes are held out, so hold out none
        fitting, held = replace(fitting, held_out=0.0), held[:0]
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "reward model"))
        observed = Observed(spec)
        model = RewardModel(observed.space, spec.action, nets)
        phases.say(f"fitting a reward model to {len(answers):,} answers")
        metrics = fit(model, segments, answers, fitting, seed=SPLIT)
    lineage = {"store": str(folder), "row": upto, "env": made.name, "seed": seed}
    to = Path(out).expanduser() if out is not None else paths.named(made.name, "reward_model", seed)
    with aside_of(to) as aside:
        manifest = stored.write(aside, model, metrics, labels=len(answers), lineage=lineage)
    return FittedReward(
        path=to,
        version=manifest.version,
        accuracy=metrics.accuracy,
        ece=metrics.ece,
        labels=len(answers),
        held_out=len(held),
        left_out=left_out,
    )


def _parsed(settings: Settings) -> tuple[RewardNets, Fitting, Enough, dict[str, object]]:
    """Return the networks, the fit, the least answers and the settings of the env."""
    known = {
        f"algorithm.{name}": fact
        for cls in (RewardNets, Fitting, Enough)
        for name, fact in facts(cls).items()
    }
    given = dict(pairs(settings))
    of_env = {key: value for key, value in given.items() if key.startswith("env.")}
    if unknown := [key for key in given if key not in known and key not in of_env]:
        raise ValueError(
            f"unknown setting {unknown[0]!r} of a reward model{hint(unknown[0], known)}"
        )
    values = {"held_out": HELD_OUT} | {
        key.partition(".")[2]: convert(value, known[key].kind, key)
        for key, value in given.items()
        if key in known
    }
    nets = RewardNets(**{name: values[name] for name in facts(RewardNets) if name in values})
    fitting = Fitting(**{name: values[name] for name in facts(Fitting) if name in values})
    enough = Enough(**{name: values[name] for name in facts(Enough) if name in values})
    for problem in (
        one for part in (nets, fitting, enough) for one in out_of_range(part, "algorithm.")
    ):
        raise ValueError(problem)
    schema.check(plain(asdict(nets)), stored.NETS, "algorithm")  # the bounds of stored models
    return nets, fitting, enough, of_env


def _only_spec(made: Program) -> EnvSpec:
    """Return the spec of an env of one policy."""
    spec: EnvSpec = next(iter(source_of(made).spec(None).policies.values()))
    return spec


def _labels(store: Store, spec: EnvSpec, upto: int, env: str) -> tuple[Labels, Answers]:
    """Return the answers of a store about clips of an env; ValueError if they are about texts or of
    another env.
    """
    kinds = [one.kind for one in store.queries()]
    if "clip" not in kinds and kinds:
        raise ValueError(
            f"{store.path}: must have queries about clips of {env}, got {len(kinds):,} about "
            f"texts; try without the env: equipoise train --dataset {store.path} --algorithm "
            "reward_model --model DIR"
        )
    clips = Clips(Observed(spec).space, spec.action)
    clips.check(store)
    labels = Labels(clips)
    return labels, labels.read(store, upto)


def _check_enough(answers: Answers, first: int, store: Path) -> None:
    weight = torch.ones_like(answers.share) if answers.weight is None else answers.weight
    if (count := int((weight > 0).sum())) < first:
        raise ValueError(
            f"{store}: must have {first:,} answers or more that compare two clips, got {count:,}; "
            "let people answer more, or try --set algorithm.first=N"
        )
    if not bool(((answers.share != 0.5) & (weight > 0)).any()):
        raise ValueError(
            f"{store}: must have answers that prefer a side, got {count:,} ties; a reward model "
            "learns nothing from ties alone"
        )


# ---------------------------------------------------------------------------------------- of a run


def of_run(run: Path, to: Path | None = None) -> Path:
    """Write the reward model in the newest checkpoint of a run of ``--reward preferences``; return
    its folder.

    ``to``: a new folder (default: one in the run). Nothing that the run names is imported or
    opened. ValueError if there is no reward model.
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
    with aside_of(folder, shared=to is None) as aside:
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


@contextmanager
def aside_of(to: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a folder to write into; it is renamed to ``to`` at the end. ``shared``: another process
    may write the same folder at once.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    except OSError as error:
        raise OSError(
            f"{to}: must be a folder that can be made, got {error.strerror!r} at {error.filename}"
        ) from None
    try:
        yield aside
        aside.chmod(0o755)
        try:
            aside.rename(to)
        except OSError:
            if not (shared and (to / REWARD).is_file()):
                raise
        sync_directory(to.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


# ------------------------------------------------------------------------------ names in a program


def pinned(made: Program, found: Callable[[str], Path]) -> Program:
    """Return the program with its reward models and answers pinned.

    A version replaces an alias, the folder of a reward model replaces a run, and a store gets its
    newest row. ``found`` returns the folder of a run's reward model.
    """

    def fixed(name: str) -> str:
        if name.startswith(REGISTRY):
            place(name)
            return at_version(name)
        folder = found(name.removeprefix(RUN))
        return name if folder == Path(name.removeprefix(RUN)).expanduser() else f"{RUN}{folder}"

    if is_store(task := _task(made)) and not (given := _row_of(made)):
        given = [f"{UPTO}={last_row(task)}"]
        made = apply_settings(made, {"source.arguments": given})
    return _with_models(made, fixed)


def _task(made: Program) -> str:
    """Return the task of a program; "" if it has none."""
    return str(values_of(made.source).get("task", ""))


def _row_of(made: Program) -> list[str]:
    """Return the argument of a store with the last row of answers to read; [] if there is none."""
    given = values_of(made.source).get("arguments", ())
    return [one for one in given if one.startswith(f"{UPTO}=")]


def _with_models(made: Program, change: Callable[[str], str]) -> Program:
    """Return the program with the names of its reward models changed."""
    if not made.reward_models:
        return made
    if made.source.reward_models:
        sums = {key: str(values_of(made.source)[key]) for key in ("reward", "gold")}
        return apply_settings(
            made,
            {f"source.{key}": with_models(text, change) for key, text in sums.items() if text},
        )
    policies = {
        name: replace(one, rewards=replace(one.rewards, sum=with_models(one.rewards.sum, change)))
        if isinstance(one, Policy)
        else one
        for name, one in made.policies.items()
    }
    return replace(made, policies=policies)


def pinned_like(made: Program, was: Program) -> Program:
    """Return the program pinned as ``was``: with its versions of reward models that are named by an
    alias or a run, and with its row of the store.
    """
    if is_store(task := _task(made)) and task == _task(was) and not _row_of(made):
        made = apply_settings(made, {"source.arguments": _row_of(was)})
    table = {PINNED.sub("", name): name for name in was.reward_models}
    return _with_models(
        made,
        lambda name: name if PINNED.search(name) else table.get(ALIAS.sub("", name), name),
    )
