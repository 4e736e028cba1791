"""Equipoise from Python: ``train``, ``evaluate``, ``load``, ``check``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise import recipes, tree
from equipoise.actors.evaluator import load_params
from equipoise.envs import observation_spec
from equipoise.envs.check import STEPS, check_env
from equipoise.envs.check import Report as CheckReport
from equipoise.envs.spaces import ActionForm
from equipoise.runtime import build
from equipoise.runtime.directory import RunDirectory, load_checkpoint
from equipoise.runtime.exam import evaluator
from equipoise.runtime.program import algorithm_class, apply_settings, check_resume
from equipoise.runtime.program import check as check_program
from equipoise.runtime.report import Evaluation
from equipoise.runtime.run import On, Run
from equipoise.runtime.settings import env_arguments, hint
from equipoise.types import EnvFactory, EnvSpec, Policy, Program, Tree, unroll_rows

__all__ = ["Player", "check", "evaluate", "load", "program", "resume", "train"]

_OF_POLICY = ("unroll", "batch", "publish_every")


def program(
    env: str | Callable[..., Any],
    algorithm: str = "ppo",
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    recipe: bool = True,
    **fields: Any,
) -> Program:
    """A checked ``Program``: the recipe for this env and algorithm where there is one, then ``fields``, then ``settings``.

    ``env`` is a target (see ``equipoise.envs.make``) or a function at the top of a module; ``fields`` are those of
    ``Program`` and, of its policy, ``unroll``, ``batch``, ``publish_every``; None means "not given" except for ``max_lag``;
    ``settings`` are texts like ``"algorithm.gamma=0.98"``. A batch that is not given is one unroll of every stream.
    """
    target = env if isinstance(env, str) else _target(env)
    made = recipes.find(target, algorithm) if recipe else None
    base = made() if made else _default(target, algorithm)
    given = {k: v for k, v in fields.items() if v is not None or k == "max_lag"}
    of_policy = {k: given.pop(k) for k in _OF_POLICY if k in given}
    if wrong := given.keys() - {f.name for f in dataclasses.fields(Program)}:
        name = min(wrong)
        raise TypeError(f"unknown option {name!r}{hint(name, [*_OF_POLICY, *(f.name for f in dataclasses.fields(Program))])}")
    base = dataclasses.replace(base, env=EnvFactory(target=target, kwargs=dict(env_kwargs or base.env.kwargs)), **given)
    base = dataclasses.replace(base, policies={"main": dataclasses.replace(base.policies["main"], **of_policy)})
    base = apply_settings(base, settings)
    policy = base.policies["main"]
    if "batch" not in of_policy and not any(s.partition("=")[0].strip() in ("policy.batch", "batch") for s in settings):
        streams = base.actors * base.envs_per_actor
        idle = base.max_lag is not None and streams > policy.batch * (base.max_lag + 1)  # some actors always would be
        if made is None or policy.batch % base.envs_per_actor or idle:
            policy = dataclasses.replace(policy, batch=streams)
    base = dataclasses.replace(base, policies={"main": policy})
    check_program(base)
    return base


def check(
    env: str | Callable[..., Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    steps: int = STEPS,
    seed: int = 0,
) -> CheckReport:
    """What is wrong with an env, and what it will cost: ``report.ok``, ``report.findings``, ``report.facts``.

    ``env``, ``env_kwargs`` and the ``env.*`` of ``settings`` are those of ``program``; ``steps`` go into each of several walks.
    """
    target = env if isinstance(env, str) else _target(env)
    kwargs = {**(env_kwargs or {}), **env_arguments(settings)}
    return check_env(EnvFactory(target=target, kwargs=kwargs), steps=steps, seed=seed)


def _target(function: Callable[..., Any]) -> str:
    if not hasattr(function, "__qualname__"):
        raise TypeError(f"expected a target such as 'CartPole-v1' or a function that makes an env, got {function!r}")
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name:
        raise ValueError(f"expected a function at the top of a module, so that workers can import it, got {name}")
    return name


def _default(target: str, algorithm: str) -> Program:
    """What a run without a recipe starts from."""
    cls = algorithm_class(algorithm)
    unroll, max_lag = {"ppo": (64, 0), "a3c": (8, None)}.get(algorithm, (64, 1))
    return Program(
        env=EnvFactory(target=target),
        policies={"main": Policy(algorithm=cls(), unroll=unroll, batch=32)},
        actors=2,
        envs_per_actor=16,
        max_lag=max_lag,
    )


def train(
    env: str | Callable[..., Any] | Program,
    algorithm: str = "ppo",
    *,
    on: On = "process",
    out: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Train and iterate over its reports: ``for report in eq.train("CartPole-v1"): ...``.

    ``options`` are those of ``program``. The run directory is ``run.directory``; ``run.close()`` after leaving the loop early
    stops the run, saves it and writes the summary. ``init_from`` is a run whose weights (and nothing else) are the first ones.
    """
    if isinstance(env, Program) and options:
        raise TypeError(f"a Program says everything itself; got {', '.join(sorted(options))} besides")
    made = env if isinstance(env, Program) else program(env, algorithm, **options)
    weights = None if init_from is None else _weights(init_from)
    return Run(made, on=on, out=None if out is None else Path(out), weights=weights)


def _weights(directory: str | os.PathLike[str]) -> Path:
    run = RunDirectory.open(directory)
    checkpoint = run.result_checkpoint()
    if checkpoint is None:
        raise FileNotFoundError(f"{run.path}: expected a checkpoint in it, got none; has the run ended?")
    return checkpoint


class NothingToDo(ValueError):
    """A resume of a run that has reached what it was told to."""


def resume(directory: str | os.PathLike[str], *, on: On | None = None, settings: Sequence[str] = (), **fields: Any) -> Run:
    """Go on with a run from its newest whole checkpoint; iterate over it as over ``train``.

    ``fields`` are those of ``Program`` and ``settings`` texts like ``"algorithm.entropy=0"`` that are to change: ``steps`` and
    ``stop_at`` extend a run that has ended (its schedules keep the length that they had). What the saved state would not fit
    is refused. Raises ``NothingToDo`` where the run is complete already.
    """
    run = RunDirectory.open(directory)
    given = {key: value for key, value in fields.items() if value is not None}
    if wrong := given.keys() - {f.name for f in dataclasses.fields(Program)}:
        name = min(wrong)
        raise TypeError(f"unknown option {name!r}{hint(name, [f.name for f in dataclasses.fields(Program)])}")
    made = apply_settings(dataclasses.replace(run.program, **given), settings)
    if made.steps != run.program.steps and made.schedule_steps is None:
        made = dataclasses.replace(made, schedule_steps=run.program.steps)
    check_resume(run.program, made)
    source, summary = run.latest_checkpoint(whole=True), run.summary()
    check_program(made)
    if source is not None:
        at = int(load_checkpoint(source)[1]["env_steps"])
        solved = summary is not None and summary["status"] == "solved" and made.stop_at == run.program.stop_at
        if solved and made.steps <= run.program.steps:
            raise NothingToDo(f"{run.path} is solved: nothing to do; --stop-at RETURN or more --steps goes on")
        if given.get("steps", at) < at:
            raise ValueError(f"{run.path}: steps: expected more than the {at:,} that are done, got {given['steps']:,}")
        if at >= made.steps and summary is not None:  # without one it was killed between its last step and its last word
            raise NothingToDo(f"{run.path} is complete at step {at:,}: nothing to do; --steps N beyond {at} goes on")
    return Run(made, on=on or run.run["on"], resume=run)


class Player:
    """A trained policy: one observation in, one action out, or a batch of each. It keeps a recurrent policy's state."""

    def __init__(self, made: Program, spec: EnvSpec, params: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        self.program, self.spec, self.meta = made, spec, meta
        self._algorithm = made.policies["main"].algorithm
        self._net: Any = build.network(made, spec)
        load_params(self._net, params)
        self._state: Tree | None = None
        self._rng = torch.Generator().manual_seed(made.seed)

    def reset(self) -> None:
        """The next observation begins an episode."""
        self._state = None

    def act(self, obs: Tree, *, deterministic: bool = True) -> Any:
        """The action for an observation of the env's space, or for a batch of them (one more axis in front)."""
        rows = tree.map(lambda s, x: np.asarray(x, s.dtype), observation_spec(self.spec.observation), obs)
        single = _is_single(observation_spec(self.spec.observation), rows)
        batch = tree.torch_views(tree.map(lambda x: np.ascontiguousarray(x[None] if single else x), rows))
        count = len(tree.leaves(batch)[0])
        first = torch.full((count,), self._state is None)
        state = self._net.initial_state(count) if self._state is None else self._state
        with torch.inference_mode():
            if deterministic:
                action, self._state = self._algorithm.best(self._net, batch, first, state)
            else:
                noise = torch.rand((count, build.noise_columns(self._algorithm, self.spec.action)), generator=self._rng).clamp_(
                    1e-7, 1 - 1e-7
                )
                explore = self._algorithm.explore(np.arange(count), count, 0)
                action, _, self._state = self._algorithm.act(self._net, batch, first, state, explore=explore, noise=noise)
        done = ActionForm(self.spec.action, count)(action.numpy())  # clipped as in training
        return done[0] if single else done


def _is_single(specs: Tree, rows: Tree) -> bool:
    extra = {x.ndim - len(s.shape) for s, x in zip(tree.leaves(specs), tree.leaves(rows), strict=True)}
    if extra not in ({0}, {1}):
        shapes = {path: tuple(x.shape) for path, x in tree.items(rows)}
        raise ValueError(f"expected an observation of shape {dict(tree.items(specs))} or a batch of them, got {shapes}")
    return extra == {0}


def load(directory: str | os.PathLike[str]) -> Player:
    """The policy of a run directory: the weights that solved it, else the newest."""
    run = RunDirectory.open(directory)
    params, meta = load_checkpoint(_weights(directory))
    return Player(run.program, build.blueprint(run.program).spec, params, meta)


def evaluate(
    directory: str | os.PathLike[str], *, episodes: int = 20, deterministic: bool = True, seed: int = 0, video: bool = False
) -> Evaluation:
    """Fresh episodes of a run's newest checkpoint; ``video`` also writes one to the run's ``videos/``."""
    if episodes < 1:
        raise ValueError(f"expected at least one episode, got {episodes}")
    player = load(directory)
    blue = build.blueprint(player.program)
    exam = evaluator(
        blue, player._net, episodes=episodes, seed=build.derive_seed(seed, "evaluate"), deterministic=deterministic
    )
    try:
        while not exam.done:
            exam.tick()
    finally:
        exam.close()
    if video:
        from equipoise.console.video import record

        folder = RunDirectory.open(directory).videos
        player.reset()
        record(player.program.env, lambda obs: player.act(obs, deterministic=deterministic), folder / "evaluation.mp4")
    returns = np.array(exam.returns or [np.nan])  # every episode was aborted
    version = int(player.meta["version"])
    steps = version * unroll_rows(player.program.policies["main"])
    return Evaluation(
        mean=float(returns.mean()), std=float(returns.std()), episodes=len(exam.returns), env_steps=steps, version=version
    )
