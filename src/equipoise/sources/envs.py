"""Live experience: envs that actors step, alone or with the recorded rows of a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from equipoise import phases, tree
from equipoise.actors.evaluator import Evaluator
from equipoise.actors.forward.noise import Noise
from equipoise.actors.playing import FixedPolicy, noise_of
from equipoise.actors.recorder import Recorder
from equipoise.envs import make, observation_spec, space_json
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.goals import Goals
from equipoise.envs.maker import EnvMaker
from equipoise.experience.layout import RowSpec
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.recorded.dataset import Dataset
from equipoise.learners.learner import cut_by_rows
from equipoise.rewards.terms import notes
from equipoise.seeds import derive_seed
from equipoise.sources.source import Source
from equipoise.tree import ArraySpec
from equipoise.types import Algorithm, EnvSpec, Policy, Program, RunSpec, Tree, learning

STREAMS = 100  # most envs of an evaluation
LITTLE = 0.05  # of the greatest entropy of discrete actions
NARROW = -3.0  # nats of one number of a Box: a deviation of 0.012


class Envs(Source):
    """Envs, in which policies act."""

    sampler = "actor"

    def dataset(self) -> Dataset | None:
        beside = (
            policy.replay.dataset
            for policy in learning(self.program).values()
            if policy.replay is not None
        )
        name = self.program.source.recorded or next(beside, "")
        return datasets.find(name) if name else None

    def spec(self, dataset: Dataset | None) -> RunSpec:
        program = self.program
        phases.say(f"making an env of {program.name} to look at it")
        env = env_maker(program)(
            streams=np.arange(1),
            seed=program.schedule.seed,
            answers=min(program.placement.partial_streams, 1),
        )
        made = env.spec
        env.close()
        if any(
            policy.replay is not None and policy.replay.relabel
            for policy in learning(program).values()
        ):
            _alone(made, "replay.relabel")
            goals(program).close()  # refused now, before there is a directory
        if dataset is not None:
            _alone(made, "replay.dataset")
            dataset.fits(made.env.observation, made.env.action)
        return made

    def row(self, learns: Policy, net: Any, spec: EnvSpec) -> tuple[RowSpec, Noise]:
        algorithm: Any = learns.algorithm
        program, place = self.program, self.program.placement
        cut_by_rows(algorithm, net, learns.batch * len(spec.places) // place.learners)
        noise = noise_of(algorithm, net, spec.action)
        obs_row = observation_spec(spec.observation)
        state = net.initial_state(1)
        with torch.inference_mode():
            acted = algorithm.act(
                net,
                tree.torch_views(tree.zeros(tree.prepend(obs_row, 1))),
                torch.ones(1, dtype=torch.bool),
                state,
                explore=algorithm.explore(
                    np.zeros(1, np.int64), max(program.actors, 1) * place.envs_per_actor, 0
                ),
                noise=torch.full((1, noise.columns), 0.5),
            )
        if not isinstance(acted, tuple) or len(acted) != 3:
            got = f"a tuple of {len(acted)}" if isinstance(acted, tuple) else type(acted).__name__
            raise ValueError(
                f"expected {type(algorithm).__name__}.act() to return action, behaviour, state, "
                f"got {got}"
            )
        action, behaviour, after = acted
        wanted, got = tree.spec(state), tree.spec(after)
        if wanted != got:
            raise ValueError(
                f"expected act() to return a state like initial_state(): {wanted}, got {got}"
            )
        row = RowSpec(
            obs=obs_row,
            action=_one(action),
            behaviour=_one(behaviour),
            state=_one(state),
            context={"stream": ArraySpec((), "int64"), "start": ArraySpec((), "int64")},
            columns=len(spec.places),
        )
        return row, noise

    def spec_json(self, spec: EnvSpec, where: str) -> dict[str, object]:
        return spec_json(spec, where)

    def notes(self, dataset: Dataset | None, spec: RunSpec) -> list[str]:
        found = [
            note for policy in learning(self.program).values() for note in notes(policy.rewards)
        ]
        if dataset is None:
            return found
        alone = self.program.actors == 0
        for policy in learning(self.program).values():
            assert policy.replay is not None
            items = policy.batch if alone else policy.replay.recorded(policy.batch)
            if items > dataset.steps:
                found.append(
                    f"warning: batch: {items:,} items of a batch are of {dataset.name}, which has "
                    f"{dataset.steps:,} "
                    "rows: each comes again and again in one batch"
                )
        return found

    def acting(self, algorithm: Algorithm, net: Any, noise: Noise) -> FixedPolicy:
        return FixedPolicy(
            algorithm=algorithm, net=net, noise=noise, precision=self.program.placement.precision
        )

    def exam(
        self,
        policies: Mapping[str, FixedPolicy],
        *,
        episodes: int,
        version: int,
        again: bool,
        failures: Failures | None,
    ) -> Evaluator:
        # By the version: the same episodes, however many evaluations there were before it.
        seed = derive_seed(
            self.program.schedule.seed, f"evaluation {version}{' again' if again else ''}"
        )
        return evaluator(self.program, policies, episodes=episodes, seed=seed, failures=failures)

    def least_entropy(self, spec: EnvSpec) -> float | None:
        return least_entropy(spec.action)


def spec_json(spec: EnvSpec, where: str) -> dict[str, object]:
    """The spec of an env's policy for ``spec.json``; UnsupportedSpace if JSON cannot hold it."""
    return {
        "observation": space_json.to_json(spec.observation, f"{where}.observation"),
        "action": space_json.to_json(spec.action, f"{where}.action"),
        "mask": list(spec.mask),
        "stacks": {path: asdict(stack) for path, stack in spec.stacks.items()},
        "frame_skip": spec.frame_skip,
        "agents": list(spec.agents),
        "places": list(spec.places),
    }


def env_maker(program: Program) -> EnvMaker:
    """The maker of a program's envs."""
    return EnvMaker(
        env=program.env,
        policies=tuple(program.policies),
        route=program.route,
        metrics=program.source.reported,
    )


def goals(program: Program) -> Goals:
    """Make the rules of other goals, with an env of their own."""
    return Goals(make(program.env, streams=np.arange(1), seed=program.schedule.seed))


def evaluator(
    program: Program,
    policies: Mapping[str, FixedPolicy],
    *,
    episodes: int,
    seed: int,
    failures: Failures | None = None,
    step: int | None = None,
    recorder: Recorder | None = None,
) -> Evaluator:
    """Fresh envs with seeds of their own; all policies play together.

    ``step``: the training step whose exploration is used; None: the likeliest actions. ``failures``
    None: the program's rule, without capsules.
    """
    envs = 1 if program.outside else min(episodes, STREAMS)  # one world more than training has
    costs = Failures(on_nonfinite=program.source.on_nonfinite) if failures is None else failures
    metrics = program.source.reported
    env = env_maker(program)(streams=np.arange(envs), seed=seed, failures=costs, metrics=metrics)
    return Evaluator(
        policies,
        env,
        envs=envs,
        episodes=episodes,
        seed=seed,
        step=step,
        recorder=recorder,
        metrics=metrics,
    )


def least_entropy(action: gymnasium.Space[object]) -> float | None:
    """The entropy below which hardly anything is left to chance; None: not known."""
    if isinstance(action, spaces.Discrete):
        return LITTLE * math.log(max(int(action.n), 2))
    if isinstance(action, spaces.MultiDiscrete):
        return LITTLE * sum(math.log(max(int(n), 2)) for n in action.nvec.reshape(-1))
    if isinstance(action, spaces.Box):
        return NARROW * math.prod(action.shape)
    return None


def _alone(spec: RunSpec, setting: str) -> None:
    if len(spec.env.agents) > 1:
        raise ValueError(
            f"{setting}: expected an env of one agent, got one of {', '.join(spec.env.agents)}"
        )


def _one(batch: Tree) -> Tree:
    return tree.map(lambda s: ArraySpec(s.shape[1:], s.dtype), tree.spec(batch))
