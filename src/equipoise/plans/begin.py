"""The start of a new run from a checkpoint of another run: the weights alone, or the learner's
whole state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from equipoise.envs.spaces import action_spec, observation_spec
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.recorded import offline
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.kinds import parameters_of
from equipoise.learners.pool import ALONE, Learners
from equipoise.record import checkpoint, cloned, playable, statefile
from equipoise.rewards.term import RewardTerm
from equipoise.rewards.terms import Terms, built
from equipoise.seeds import policy_seed
from equipoise.sums import ENV
from equipoise.tree import ArraySpec
from equipoise.types import EnvSpec, Program, RunSpec, learning

CHUNK = 1024  # rows of a data set that a term is shown at once
MANY = 1 << 30  # more windows than a batch has


def take(
    program: Program, spec: RunSpec, nets: Mapping[str, nn.Module], source: Path, *, learner: bool
) -> int | None:
    """Copy the weights of a checkpoint into ``nets`` -> the updates that made them, if all of the
    ``learner`` is to follow.

    ValueError if something of it does not fit this run.
    """
    fill(program, nets, source)
    updates = [
        begin_from(new_learner(program, spec, name, nets[name]), source, name)
        for name in learning(program)
        if learner
    ]
    return updates[0] if updates else None


def fill(program: Program, nets: Mapping[str, nn.Module], source: Path) -> None:
    """Copy the weights of a checkpoint into the networks that a run begins with; ValueError if they
    do not fit.
    """
    playable.fill(
        nets, cloned.params(program, nets, source, checkpoint.load(source)[0]), str(source)
    )


def terms(program: Program, spec: RunSpec, name: str) -> Terms:
    """The terms of a policy's rewards, with the same networks wherever they are made."""
    policy = learning(program)[name]
    if policy.rewards.sum == ENV:
        return {}
    seed, mine = policy_seed(program.schedule.seed, "reward", name), spec.policies[name]
    found = built(policy.rewards, policy.algorithm, mine, seed)
    for term in found.values():
        if term.recorded():
            _demonstrate(term, mine)
    return found


def _demonstrate(term: RewardTerm, spec: EnvSpec) -> None:
    """Show a term the rows of its data set; ValueError if they do not fit the policy's env."""
    dataset, number = datasets.find(term.recorded()), ArraySpec((), "int64")
    dataset.fits(spec.observation, spec.action)
    row = RowSpec(
        obs=observation_spec(spec.observation),
        action=action_spec(spec.action),
        behaviour={},
        state={},
        context={"stream": number, "start": number},
    )
    rows = -(-(dataset.steps + dataset.episodes) // CHUNK) * CHUNK
    for block in offline.blocks(dataset, row, spec.stacks, rows=rows, chunk=CHUNK):
        term.demonstrate(block)


def new_learner(
    program: Program,
    spec: RunSpec,
    name: str,
    net: nn.Module,
    *,
    schedule_updates: int = 1,
    seed: int = 0,
    batch: int = MANY,
    pool: Learners = ALONE,
) -> Learner:
    """The learner of a policy, on the program's device; ``batch``: windows of a batch; ``pool``:
    the learners that it learns with.

    Several learners on CUDA have a device each.
    """
    policy, device = learning(program)[name], program.placement.device
    parameters = parameters_of(program.placement.shard, pool)
    if pool.size > 1 and device != "cpu":
        device = f"{device}:{pool.rank}"
    return Learner(
        policy.algorithm,
        net,
        optimizer=policy.optimizer,
        rewards=policy.rewards,
        terms=terms(program, spec, name),
        device=device,
        precision=program.placement.precision,
        schedule_updates=schedule_updates,
        seed=seed,
        batch=batch,
        parameters=parameters,
        weighted=policy.replay is not None and policy.replay.selector == "prioritized",
    )


def begin_from(learner: Learner, source: Path, name: str) -> int:
    """Take the state of a policy's learner from a whole checkpoint -> the updates that it had made.

    ValueError if there is none, or it does not fit.
    """
    place = source / checkpoint.LEARNER
    data = checkpoint.read(source, checkpoint.LEARNER)
    try:
        learner.adopt(statefile.parse(data)["learners"][name])
        return learner.before
    except KeyError as error:
        raise ValueError(
            f"{place}: must have the state of the learner of {name!r}, got none of {error}"
        ) from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{place}: expected a learner that this run can begin from; {error}"
        ) from error
