"""Reward models that are fitted to the answers in a store of clips."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch

from equipoise import phases, schema
from equipoise.api.programs import Env, program
from equipoise.facts import Help, PositiveInt, facts
from equipoise.feedback import Store
from equipoise.files import local_path, new_folder, plain
from equipoise.hints import hint
from equipoise.nets.threads import one_thread
from equipoise.programs.ranges import out_of_range
from equipoise.programs.settings import Settings, convert, pairs
from equipoise.record import paths
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences import stored
from equipoise.rewards.preferences.asking import HELD_OUT, SPLIT
from equipoise.rewards.preferences.clips import Clips, Labels
from equipoise.rewards.preferences.fit import Fitting, fit
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.segments import Answers, split
from equipoise.seeds import derive_seed
from equipoise.sources.source import source_of
from equipoise.types import EnvSpec, Program

__all__ = ["FittedReward", "fit_reward_model"]


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
    with new_folder(to) as aside:
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
