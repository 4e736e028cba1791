"""Equipoise from Python: ``train``, ``evaluate``, ``load``, ``collect``, ``check``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise import recipes, tree
from equipoise.actors.recorder import Recorder
from equipoise.envs import observation_spec
from equipoise.envs.check import STEPS, check_env
from equipoise.envs.check import Report as CheckReport
from equipoise.envs.checks import described
from equipoise.envs.masks import counted
from equipoise.envs.spaces import ActionForm, member
from equipoise.experience import dataset as datasets
from equipoise.experience.dataset import Dataset
from equipoise.nets.precision import autocast
from equipoise.runtime import blueprint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.directory import RunDirectory, load_checkpoint, params_sha256
from equipoise.runtime.exam import STREAMS, evaluating, evaluator, gave_up, load_networks, networks, result
from equipoise.runtime.measure import choose
from equipoise.runtime.program import algorithm_class, algorithm_name
from equipoise.runtime.refusals import check as check_program
from equipoise.runtime.refusals import check_read, check_replays, check_resume
from equipoise.runtime.report import Evaluating, Evaluation, step_of
from equipoise.runtime.run import On, Run
from equipoise.runtime.settings import (
    Settings,
    apply_settings,
    check_env_given_once,
    convert,
    env_of,
    field_types,
    hint,
    pairs,
    setting_types,
)
from equipoise.types import Algorithm, AskedInference, EnvFactory, Frozen, Policy, Program, Replay, Tree, learning

__all__ = ["Player", "check", "collect", "evaluate", "load", "program", "resume", "train"]

_OF_POLICY = ("unroll", "batch", "publish_every")


def program(
    env: str | Callable[..., Any],
    algorithm: str | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Settings = (),
    recipe: bool = True,
    policies: Mapping[str, str | Algorithm | Policy | Frozen] | Sequence[str] = (),
    **fields: Any,
) -> Program:
    """A checked ``Program``: the recipe for this env and algorithm where there is one, with ``fields`` and ``settings``.

    ``policies`` are several, of an env of several agents: each the name of an algorithm, an ``Algorithm`` (both with the unroll
    and the batch of the others), a ``Policy``, or ``Frozen``; or texts like "NAME=ppo" and "NAME=past:OTHER". The field
    ``route`` says which agents are whose. ``algorithm``, by default "ppo", is then one of theirs: whose recipe is taken.

    ``env`` is a target (see ``equipoise.envs.make``) or a function at the top of a module; ``fields`` are those of
    ``Program``, of its policy ``unroll``, ``batch``, ``publish_every``, and of its env ``action_mask``; None means "not given"
    except for ``max_lag``; they may be texts, as on the command line. ``env_kwargs`` are laid over those of the recipe, as
    ``env.KEY`` among the settings is. ``settings`` are texts like ``"algorithm.gamma=0.98"``,
    or a dict of such keys. What both say they have to say alike. A batch that is not given is one unroll of every stream.
    """
    check_env_given_once(settings, env_kwargs)
    target = env if isinstance(env, str) else _target(env)
    name = algorithm or "ppo"
    made = recipes.find(target, name) if recipe else None
    base = made() if made else _default(target, name)
    given = _read({k: v for k, v in fields.items() if v is not None or k == "max_lag"}, base, (*_OF_POLICY, "action_mask"))
    of_policy = {k: given.pop(k) for k in _OF_POLICY if k in given}
    mask = given.pop("action_mask", base.env.action_mask)
    factory = EnvFactory(target=target, kwargs={**base.env.kwargs, **(env_kwargs or {})}, action_mask=mask)
    base = dataclasses.replace(base, env=factory, **given)
    one = dataclasses.replace(next(iter(learning(base).values())), **of_policy)
    asked = dict(policies) if isinstance(policies, Mapping) else _read_policies(policies)
    if asked and algorithm is not None and algorithm_class(algorithm) not in (theirs := _algorithms(asked.values())):
        names = ", ".join(sorted(map(algorithm_name, theirs)))
        raise ValueError(f"algorithm: expected one that a policy has ({names}), since there are policies, got {algorithm!r}")
    said = {name: _policy(given, one) for name, given in (asked or {"main": one}).items()}
    set_, before = pairs(settings), dataclasses.replace(base, policies=said)
    check_replays(before, [key for key, _ in set_])
    base = apply_settings(before, settings)
    _agree({**given, **of_policy}, base, set_)
    envs, whole = base.actors * base.envs_per_actor, any(isinstance(given, Policy) for given in asked.values())
    if envs and not whole and "batch" not in of_policy and not any(_sets_batch(key) for key, _ in set_):
        for name, policy in learning(base).items():
            if policy.replay is not None:
                continue
            idle = base.max_lag is not None and envs > policy.batch * (base.max_lag + 1)  # some actors always would be
            if made is None or policy.batch % base.envs_per_actor or idle:
                said = {**base.policies, name: dataclasses.replace(policy, batch=envs)}
                base = dataclasses.replace(base, policies=said)
    check_program(base)
    check_read(base, [key for key, _ in set_])
    return base


def measurable(env: str | Callable[..., Any], algorithm: str | None = None, **options: Any) -> Program:
    """``program`` with central inference, so that it may have that's settings too; where that cannot be, with local.

    ValueError where there are such settings, and central cannot be.
    """
    try:
        return program(env, algorithm, inference="central", **options)
    except ValueError:
        if any(name.startswith("inference_") for name in (*options, *(key for key, _ in pairs(options.get("settings", ()))))):
            raise
        return program(env, algorithm, **options)


def _read(fields: Mapping[str, Any], base: Program, also: Sequence[str] = ()) -> dict[str, Any]:
    """Fields of a ``Program``, and of ``also``, in their types; TypeError for a name that is none of them."""
    settable = setting_types(base)
    kinds = field_types(Program) | {name: settable[name] for name in also}
    for name in sorted(fields.keys() - kinds.keys()):
        if (key := f"algorithm.{name}") in settable:
            raise TypeError(f"{name!r} is the algorithm's: expected settings={{{key!r}: {fields[name]!r}}}")
        raise TypeError(f"unknown option {name!r}{hint(name, kinds)}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in fields.items()}
    return {name: value if name in ("env", "policies") else convert(value, kinds[name], name) for name, value in plain.items()}


def _agree(given: Mapping[str, Any], base: Program, settings: Sequence[tuple[str, Any]]) -> None:
    """ValueError where an option and a setting say different things of one field."""
    one = next(iter(learning(base).values()))
    for key, _ in settings:
        name = key.removeprefix("policy.")
        if name in given and (now := getattr(one if name in _OF_POLICY else base, name)) != given[name]:
            raise ValueError(f"{name}: expected to be given once, got {given[name]!r} and, by the setting {key}, {now!r}")


def _algorithms(policies: Iterable[Any]) -> set[type[Algorithm]]:
    """The classes of those that learn."""
    named = (given.algorithm if isinstance(given, Policy) else given for given in policies if not isinstance(given, Frozen))
    return {algorithm_class(one) if isinstance(one, str) else type(one) for one in named}


def _sets_batch(key: str) -> bool:
    return key in ("batch", "policy.batch") or (key.startswith("policies.") and key.endswith(".batch"))


def _read_policies(texts: Sequence[str]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, what in map(_read_policy, texts):
        if name in read:
            raise ValueError(f"policy {name!r}: expected to be given once, got {read[name]!r} and {what!r}")
        read[name] = what
    return read


def _read_policy(text: str) -> tuple[str, str | Frozen]:
    """Of "NAME=ppo" or "NAME=past:OTHER"."""
    name, separator, what = (part.strip() for part in text.partition("="))
    if not (name and separator and what):
        raise ValueError(f"policy {text!r}: expected NAME=ALGORITHM or NAME=past:OTHER, such as opponent=past:main")
    kind, _, other = what.partition(":")
    return name, Frozen(of=other) if kind == "past" else what


def _policy(given: str | Algorithm | Policy | Frozen, like: Policy) -> Policy | Frozen:
    """What stands for a policy, with the sizes of ``like`` where it has none."""
    if isinstance(given, Policy | Frozen):
        return given
    if isinstance(given, str):
        same = algorithm_class(given) is type(like.algorithm)  # the recipe's settings fit
        given = like.algorithm if same else algorithm_class(given)()
    return dataclasses.replace(like, algorithm=given)


def check(
    env: str | Callable[..., Any],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Settings = (),
    steps: int = STEPS,
    seed: int = 0,
) -> CheckReport:
    """What is wrong with an env, and what it will cost: ``report.ok``, ``report.findings``, ``report.facts``.

    ``env``, ``env_kwargs`` and, in ``settings``, ``env.*`` and ``action_mask`` are those of ``program``; ``steps`` go into each
    of several walks.
    """
    target = env if isinstance(env, str) else _target(env)
    return check_env(env_of(target, settings, env_kwargs), steps=steps, seed=seed)


def _target(function: Callable[..., Any]) -> str:
    if not hasattr(function, "__qualname__") and hasattr(function, "step") and hasattr(function, "reset"):
        raise TypeError(
            f"expected what makes an env, since every worker makes its own, got {function}, which is made already; "
            "give its id, its class, or a function at the top of a module that returns it"
        )
    if not hasattr(function, "__qualname__"):
        raise TypeError(f"expected a target such as 'CartPole-v1' or a function that makes an env, got {function!r}")
    name = f"{function.__module__}:{function.__qualname__}"
    if "<" in name:
        raise ValueError(f"expected a function at the top of a module, so that workers can import it, got {name}")
    return name


def _default(target: str, algorithm: str) -> Program:
    """What a run without a recipe starts from."""
    cls = algorithm_class(algorithm)
    if cls.needs_replay:
        return _default_replay(target, algorithm, cls)
    unroll, max_lag = {"ppo": (64, 0), "a3c": (8, None)}.get(algorithm, (64, 1))
    return Program(
        env=EnvFactory(target=target),
        policies={"main": Policy(algorithm=cls(), unroll=unroll, batch=32)},
        actors=2,
        envs_per_actor=16,
        max_lag=max_lag,
    )


def _default_replay(target: str, algorithm: str, cls: type[Algorithm]) -> Program:
    """The same of one that learns from a replay: four streams, an update a step, and DQN's customs; what is distributed."""
    if algorithm in ("apex_dqn", "r2d2"):
        return _default_prioritized(target, algorithm, cls)
    unroll, batch, capacity = {"dqn": (4, 32, 100_000)}.get(algorithm, (1, 256, 1_000_000))
    policy = Policy(algorithm=cls(), unroll=unroll, batch=batch, replay=Replay(capacity=capacity, updates=4))
    return Program(env=EnvFactory(target=target), policies={"main": policy}, actors=1, envs_per_actor=4, max_lag=1)


def _default_prioritized(target: str, algorithm: str, cls: type[Algorithm]) -> Program:
    """Free-running actors; windows of R2D2 begin every half of the rows that they are learned from."""
    if algorithm == "apex_dqn":
        unroll, batch, replay = 16, 128, Replay(capacity=1_000_000, selector="prioritized", updates=4)
    else:
        unroll, batch, replay = 40, 32, Replay(capacity=500_000, selector="prioritized", alpha=0.9, beta=0.6)
    policy = Policy(algorithm=cls(), unroll=unroll, batch=batch, replay=replay)
    return Program(env=EnvFactory(target=target), policies={"main": policy}, actors=2, envs_per_actor=16, max_lag=None)


def train(
    env: str | Callable[..., Any] | Program,
    algorithm: str | None = None,
    *,
    on: On = "process",
    out: str | os.PathLike[str] | None = None,
    init_from: str | os.PathLike[str] | None = None,
    tensorboard: bool = True,
    wandb: str | None = None,
    inference: str | None = None,
    tell: Callable[[str], object] = lambda text: None,
    **options: Any,
) -> Run:
    """Train and iterate over its reports: ``for report in eq.train("CartPole-v1"): ...``.

    ``options`` are those of ``program``. The run directory is ``run.directory``; ``run.close()`` after leaving the loop early
    stops the run, saves it and writes the summary. ``init_from`` is a run whose weights (and nothing else) are the first ones.
    ``tensorboard``: are event files written; ``wandb``: a Weights & Biases project that the run reports to as well.
    ``inference``: "local", "central", or "auto", which measures both for some seconds and says so to ``tell``.
    """
    asked: AskedInference | None = None if inference is None else convert(inference, AskedInference, "inference")
    if asked is not None and asked != "auto":
        options["inference"] = asked
    besides = [*(["algorithm"] if algorithm is not None else []), *sorted(options)]
    if isinstance(env, Program) and besides:
        raise TypeError(f"a Program says everything itself; got {', '.join(besides)} besides")
    if isinstance(env, Program):
        made = env
    else:
        made = (measurable if asked == "auto" else program)(env, algorithm, **options)
    weights = None if init_from is None else _weights(init_from)
    made, chosen = choose(made, on=on, tell=tell) if asked == "auto" else (made, {})
    return Run(
        made,
        on=on,
        out=None if out is None else Path(out),
        weights=weights,
        tensorboard=tensorboard,
        wandb=wandb,
        chosen=chosen,
    )


def _weights(directory: str | os.PathLike[str], *, best: bool = False) -> Path:
    run = RunDirectory.open(directory)
    checkpoint = run.best_checkpoint() if best else run.result_checkpoint()
    if checkpoint is None and best:
        how = "train with --evaluate-every STEPS or --stop-at RETURN"
        raise FileNotFoundError(f"{run.path}: expected the weights of an evaluation, got none; {how}")
    if checkpoint is None:
        raise FileNotFoundError(f"{run.path}: expected a checkpoint in it, got none; has the run ended?")
    return checkpoint


class NothingToDo(ValueError):
    """A resume of a run that has reached what it was told to."""


def resume(directory: str | os.PathLike[str], *, on: On | None = None, settings: Settings = (), **fields: Any) -> Run:
    """Go on with a run from its newest whole checkpoint; iterate over it as over ``train``.

    ``fields`` are those of ``Program`` and ``settings`` texts like ``"algorithm.entropy=0"`` that are to change: ``steps`` and
    ``stop_at`` extend a run that has ended (its schedules keep the length that they had). What the saved state would not fit
    is refused. Raises ``NothingToDo`` where the run is complete already.
    """
    run = RunDirectory.open(directory)
    given = _read({key: value for key, value in fields.items() if value is not None}, run.program)
    check_replays(run.program, [key for key, _ in pairs(settings)])
    made = apply_settings(dataclasses.replace(run.program, **given), settings)
    if made.steps != run.program.steps and made.schedule_steps is None:
        made = dataclasses.replace(made, schedule_steps=run.program.steps)
    check_resume(run.program, made)
    source, summary = run.latest_checkpoint(whole=True), run.summary()
    check_program(made)
    if source is not None:
        at = step_of(load_checkpoint(source)[1])
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

    def __init__(self, blue: Blueprint, name: str, params: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """``params`` are those of all policies of the run, ``name`` is the one that plays."""
        if name not in blue.roles:
            raise ValueError(f"policy {name!r}: expected one of the run{hint(name, blue.roles)}")
        self.program, self.meta = blue.program, meta
        role = blue.roles[name]
        self.spec, self._algorithm, self._noise_columns = role.spec, role.algorithm, role.noise_columns
        self._blue, self._nets = blue, networks(blue)
        load_networks(self._nets, params)
        self._net: Any = self._nets[name]
        self._state: Tree | None = None
        self._rng = torch.Generator().manual_seed(blue.program.seed)

    def reset(self) -> None:
        """The next observation begins an episode."""
        self._state = None

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """The action for an observation of the env's space, or for a batch of them (one more axis in front).

        Where the mask comes from ``info``, the observation is {"obs": ..., "action_mask": ...}: ``envs.masks.InfoMask`` makes
        it. The action is what ``env.step`` takes, of a batch what a vector env's takes. ValueError for what is no observation,
        for a mask that allows nothing, and for another number of rows than a recurrent policy keeps states of.
        """
        specs = observation_spec(self.spec.observation)
        rows = _rows(specs, obs, "obs")
        single = _is_single(specs, rows)
        batch = tree.torch_views(tree.map(lambda x: np.ascontiguousarray(x[None] if single else x), rows))
        count = len(tree.leaves(batch)[0])
        self._look(batch, count)
        first = torch.full((count,), self._state is None)
        state = self._net.initial_state(count) if self._state is None else self._state
        with torch.inference_mode(), autocast(self.program.precision):
            if deterministic:
                action, self._state = self._algorithm.best(self._net, batch, first, state)
            else:
                noise = torch.rand((count, self._noise_columns), generator=self._rng).clamp_(1e-7, 1 - 1e-7)
                explore = self._algorithm.explore(np.arange(count), count, step_of(self.meta))
                action, _, self._state = self._algorithm.act(self._net, batch, first, state, explore=explore, noise=noise)
        form = ActionForm(self.spec.action, count)
        done = form(tree.numpy_views(action))  # clipped as in training
        return form.one(done) if single else form.together(done)

    def _look(self, batch: Tree, count: int) -> None:
        """Can these rows be acted on?"""
        kept = tree.leaves(self._state) if self._state is not None else []
        if kept and len(kept[0]) != count:
            raise ValueError(
                f"obs: expected as many rows as before, {len(kept[0])}, since the policy is recurrent and keeps a state for "
                f"each, got {count}; reset() forgets them"
            )
        if not self.spec.mask:
            return
        mask: Any = tree.numpy_views(batch)
        for key in self.spec.mask:
            mask = mask[key]
        for place, array, begins in counted("/".join(("obs", *self.spec.mask)), mask, self.spec.action):
            allowed = np.logical_or.reduceat(array != 0, begins, axis=1).all(axis=1)
            if not allowed.all():
                row = f" in row {int(allowed.argmin())}" if count > 1 else ""
                raise ValueError(f"{place}: expected at least one action allowed, got none{row}")


def _rows(specs: Tree, obs: Any, place: str) -> Tree:
    """An env's own dicts and tuples as a tree of arrays."""
    if not isinstance(specs, dict):
        try:
            return np.asarray(obs, specs.dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{place}: expected {specs.dtype} {list(specs.shape)}, got {described(obs)}") from error
    try:
        return {key: _rows(inner, member(obs, key), f"{place}/{key}") for key, inner in specs.items()}
    except (KeyError, IndexError, TypeError) as error:
        got = f"the keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else type(obs).__name__
        raise ValueError(f"{place}: expected the keys {sorted(specs)}, got {got}") from error


def _is_single(specs: Tree, rows: Tree) -> bool:
    both = list(zip(tree.leaves(specs), tree.leaves(rows), strict=True))
    if all(x.shape == s.shape for s, x in both):
        return True
    fits = all(x.ndim == len(s.shape) + 1 and x.shape[1:] == s.shape for s, x in both)
    if not fits or len(counts := {len(x) for _, x in both}) > 1 or not min(counts):
        wanted, got = ({path or "obs": list(x.shape) for path, x in tree.items(one)} for one in (specs, rows))
        raise ValueError(f"expected an observation of shape {said(wanted)}, or a batch [B, ...] of them, got {said(got)}")
    return False


def said(shapes: Mapping[str, list[int]]) -> str:
    """By place, where there are several."""
    return str(next(iter(shapes.values()))) if len(shapes) == 1 else str(dict(shapes))


def load(directory: str | os.PathLike[str], policy: str | None = None, *, best: bool = False) -> Player:
    """A policy of a run directory, the first where there are several: the weights that solved it, else the newest.

    ``best``: those of its best evaluation.
    """
    run = RunDirectory.open(directory)
    params, meta = load_checkpoint(_weights(directory, best=best))
    blue = blueprint.blueprint(dataclasses.replace(run.program, device="cpu"), playing=True)  # wherever it was trained
    return Player(blue, next(iter(blue.roles)) if policy is None else policy, params, meta)


def evaluate(
    directory: str | os.PathLike[str],
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    best: bool = False,
    video: bool = False,
    tell: Callable[[Evaluating], object] = lambda progress: None,
) -> Evaluation:
    """Fresh episodes of the weights that ``load`` takes; ``video`` also writes one to the run's ``videos/``.

    ``tell`` is given how far it is after every step.

    ValueError where not one episode came to its end, because the env failed in all of them.
    """
    if episodes < 1:
        raise ValueError(f"expected at least one episode, got {episodes}")
    player = load(directory, best=best)
    if video and len(player.spec.agents) > 1:
        raise ValueError("video: expected an env of one agent, got one of " + ", ".join(player.spec.agents))
    exam = evaluator(
        player._blue, player._nets, episodes=episodes, seed=blueprint.derive_seed(seed, "evaluate"),
        deterministic=deterministic, step=step_of(player.meta),
    )  # fmt: skip
    try:
        while not exam.done:
            exam.tick()
            tell(evaluating(exam))
    finally:
        exam.close()
    version = int(player.meta["version"])
    returns = result(player._blue, exam, version)
    if not returns.episodes:
        raise ValueError(f"{directory}: {gave_up(episodes)}; 'equipoise check {player.program.env.target}' may say why")
    if video:
        from equipoise.console.video import record

        folder = RunDirectory.open(directory).videos
        play = partial(player.act, deterministic=deterministic)
        steps = player._blue.pace.steps(version)
        record(player.program.env, play, folder / f"evaluation-step_{steps}.mp4", seed=seed, begin=player.reset)
    return returns


def collect(
    directory: str | os.PathLike[str],
    dataset: str | os.PathLike[str],
    *,
    episodes: int = 100,
    deterministic: bool = False,
    seed: int = 0,
    best: bool = False,
) -> Dataset:
    """Fresh episodes of the weights that ``load`` takes, saved as a new Minari data set: its id, or a directory of its own.

    An id ends in -vN and lies in Minari's folder; every other ``dataset`` is a path, from the working directory. What was meant
    is said by ``place`` of what this returns.

    Actions are drawn as at the end of training, unless ``deterministic``. ValueError where something is there already, for an
    env of several agents, and where an episode's last observation is not seen.
    """
    if episodes < 1:
        raise ValueError(f"expected at least one episode, got {episodes}")
    name = os.fspath(dataset)
    datasets.writable(name)
    player = load(directory, best=best)
    blue, program = player._blue, player.program
    recorder = Recorder(player.spec, min(episodes, STREAMS))
    exam = evaluator(
        blue, player._nets, episodes=episodes, seed=blueprint.derive_seed(seed, "collect"), deterministic=deterministic,
        step=step_of(player.meta), recorder=recorder,
    )  # fmt: skip

    def play() -> Iterator[datasets.Episode]:
        made = 0
        while not exam.done:
            exam.tick()
            while recorder.done:
                made += 1
                yield datasets.Episode(**recorder.done.popleft())
        if not made:
            raise ValueError(f"{directory}: {gave_up(episodes)}; 'equipoise check {program.env.target}' may say why")

    params = tree.joined({name: tree.named_tensors(net) for name, net in player._nets.items()})
    about = {
        "run": RunDirectory.open(directory).path.absolute().name, "params_sha256": params_sha256(params),
        "step": step_of(player.meta), "deterministic": deterministic, "seed": seed,
        "env": {"target": program.env.target, "kwargs": dict(program.env.kwargs), "action_mask": program.env.action_mask},
        "stacks": {path: dataclasses.asdict(stack) for path, stack in player.spec.stacks.items()},
    }  # fmt: skip
    try:
        return datasets.write(
            name, play(), observation=player.spec.observation, action=player.spec.action, env=program.env,
            algorithm=algorithm_name(type(player._algorithm)), about=about,
        )  # fmt: skip
    finally:
        exam.close()
