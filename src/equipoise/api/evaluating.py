"""Fresh episodes of a trained policy, counted or kept: ``evaluate``, ``collect``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from equipoise import tree
from equipoise.actors.evaluator import Evaluator
from equipoise.actors.recorder import Recorder
from equipoise.api.options import check_flags
from equipoise.api.playing import Loaded, Player, read_policies, weights_of
from equipoise.api.writing import writer
from equipoise.envs.spaces import differ
from equipoise.experience.recorded import dataset as datasets
from equipoise.experience.recorded.dataset import Dataset
from equipoise.files import is_url
from equipoise.nets.threads import one_thread
from equipoise.programs.program import algorithm_name
from equipoise.programs.settings import Settings, apply_settings, at_least, pairs
from equipoise.record.checkpoint import read_meta
from equipoise.record.directory import RunDirectory, params_sha256
from equipoise.record.mirror import local
from equipoise.record.report import Evaluating, Evaluation, step_of
from equipoise.run.evaluation_schedule import evaluating, gave_up, result
from equipoise.seeds import derive_seed
from equipoise.sources.envs import STREAMS, evaluator
from equipoise.sources.source import source_of
from equipoise.sources.text import Writer, texts_of
from equipoise.types import Program, learning

__all__ = ["collect", "evaluate"]


def evaluate(
    directory: str | os.PathLike[str],
    *,
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    best: bool = False,
    video: bool = False,
    settings: Settings = (),
    trust: Sequence[str] = (),
) -> Evaluation:
    """Play fresh episodes with the trained policy of a run, or answer held-out prompts.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        episodes: How many episodes, or prompts.
        deterministic: Take the likeliest actions, and do not draw them.
        seed: Seed of the episodes.
        best: Take the weights of the best evaluation.
        video: Write a video of one episode into the run's ``videos/``.
        settings: Arguments of the env that differ from those of training: ``env.KEY``.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The returns: ``evaluation.mean``, ``evaluation.std``.

    Raises:
        FileNotFoundError: There is no run, or no checkpoint.
        ValueError: A value cannot be, the env has other spaces, or it failed in every episode.

    Example:
        >>> eq.evaluate(run.directory, episodes=2)
        <Evaluation ... over 2 episodes, step 2,048>
    """
    asked = Asked(
        episodes=at_least(episodes, "episodes"),
        deterministic=deterministic,
        seed=at_least(seed, "seed", 0),
        best=best,
        video=video,
        settings=dict(pairs(settings)),
        trust=trust,
    )
    return evaluated(directory, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parameters of ``evaluate``, besides the run."""

    episodes: int
    deterministic: bool
    seed: int = 0
    best: bool = False
    video: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    trust: Sequence[str] = ()


def evaluated(
    directory: str | os.PathLike[str],
    asked: Asked,
    tell: Callable[[Evaluating], object] = lambda progress: None,
) -> Evaluation:
    """Evaluate as ``evaluate`` does; ``tell`` is called after every step with the progress."""
    episodes, best, video, trust = asked.episodes, asked.best, asked.video, asked.trust
    deterministic, settings, seed = asked.deterministic, asked.settings, asked.seed
    check_flags(deterministic=deterministic, best=best, video=video)
    if is_url(directory):
        if video:
            raise ValueError(
                f"{directory}: video: expected a local run directory, which the video is written "
                "into, got a URL"
            )
        with local(directory) as here:
            return evaluated(here, asked, tell)
    program = RunDirectory.open(directory, trusted=trust).program
    if other := [key for key in settings if not key.startswith("env.")]:
        raise ValueError(
            f"{other[0]}: expected env.KEY, an argument of the env, since a policy is evaluated as "
            "it is"
        )
    if settings and program.source.played is None:
        raise ValueError(f"{directory}: expected a run with an env for env.KEY, got one without")
    program = apply_settings(program, settings)
    if source_of(program).writes:
        if video:
            raise ValueError(
                f"{directory}: video: expected a policy that acts in an env, got one that writes "
                "text"
            )
        if not deterministic:
            raise ValueError(
                f"{directory}: expected greedy answers of a policy that writes text; 'equipoise "
                "generate' draws some"
            )
        return _examined(directory, episodes=episodes, best=best, trust=trust, tell=tell)
    loaded = read_policies(directory, best=best, trust=trust)
    spec, step = loaded.playable[loaded.first].spec, step_of(loaded.meta)
    if video and len(spec.agents) > 1:
        raise ValueError(
            "video: expected an env of one agent, got one of " + ", ".join(spec.agents)
        )
    if video and program.env.on_device:
        raise ValueError(
            f"video: expected an env that draws itself, got {program.env.target}, whose states are "
            "tensors"
        )
    exam = evaluator(
        program,
        loaded.policies,
        episodes=episodes,
        seed=derive_seed(seed, "evaluate"),
        step=None if deterministic else step,
    )
    try:
        check_env_fits(program, exam, loaded)
        # rows are few: more threads would wait for each other, long where cores are busy
        with one_thread():
            while not exam.done:
                exam.tick()
                tell(evaluating(exam))
    finally:
        exam.close()
    meta = loaded.meta
    returns = result(
        exam, learns=loaded.learns, env_steps=int(meta["env_steps"]), version=int(meta["version"])
    )
    if not returns.episodes:
        raise ValueError(
            f"{directory}: {gave_up(episodes)}; 'equipoise check {program.env.target}' may say why"
        )
    if video:
        from equipoise.console.video import record

        folder = RunDirectory.found(directory).videos
        player = Player(loaded.policies[loaded.first], spec, meta=meta, seed=seed)
        play = partial(player.act, deterministic=deterministic)
        record(
            program.env, play, folder / f"evaluation-step_{step}.mp4", seed=seed, begin=player.reset
        )
    return returns


def _examined(
    directory: str | os.PathLike[str],
    *,
    episodes: int,
    best: bool,
    trust: Sequence[str],
    tell: Callable[[Evaluating], object],
) -> Evaluation:
    """Held-out prompts of the run's task, answered greedily."""
    program, _, net = writer(directory, best=best, trust=trust)
    name, *_ = learning(program)
    exam = texts_of(program).exam({name: Writer(net)}, episodes=episodes)
    try:
        while not exam.done:
            exam.tick()
            tell(evaluating(exam))
    finally:
        exam.close()
    if not exam.returns[name]:
        raise ValueError(
            f"{directory}: expected graded answers, got none: the reward failed for each of them"
        )
    meta = read_meta(weights_of(directory, best=best))
    return result(
        exam, learns=[name], env_steps=int(meta["env_steps"]), version=int(meta["version"])
    )


def check_env_fits(program: Program, exam: Evaluator, loaded: Loaded) -> None:
    """ValueError if the policies were trained with other spaces than this env has."""
    for name, one in loaded.playable.items():
        made = exam.spec.policies[name]
        if place := differ("observation", made.observation, one.spec.observation) or differ(
            "action", made.action, one.spec.action
        ):
            where, wanted, got = place
            raise ValueError(
                f"{program.env.target}: {where}: expected what the policy {name!r} was trained "
                f"with, {wanted}, got {got}; has the env changed?"
            )


def collect(
    directory: str | os.PathLike[str],
    dataset: str | os.PathLike[str],
    *,
    episodes: int = 100,
    deterministic: bool = False,
    seed: int = 0,
    best: bool = False,
    trust: Sequence[str] = (),
) -> Dataset:
    """Play fresh episodes with the trained policy of a run, and save them as a new Minari data set.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        dataset: An id, which ends in -vN and lies in Minari's folder, or else a path.
        episodes: How many episodes.
        deterministic: Take the likeliest actions, and do not draw them as in training.
        seed: Seed of the episodes.
        best: Take the weights of the best evaluation.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The data set; iterating reads its episodes.

    Raises:
        ValueError: The data set is there already, the env has several agents, or the last
            observation of an episode is not seen.

    Example:
        >>> eq.collect(run.directory, "cartpole-data", episodes=2)
        <Dataset ...: 2 episodes, ... steps>
    """
    episodes, seed = at_least(episodes, "episodes"), at_least(seed, "seed", 0)
    check_flags(deterministic=deterministic, best=best)
    name = os.fspath(dataset)
    program = RunDirectory.open(directory, trusted=trust).program
    loaded = read_policies(directory, best=best, trust=trust)
    played, step = loaded.playable[loaded.first], step_of(loaded.meta)
    # before anything is played
    datasets.writable(name, played.spec.observation, played.spec.action)
    recorder = Recorder(played.spec, min(episodes, STREAMS))
    exam = evaluator(
        program,
        loaded.policies,
        episodes=episodes,
        seed=derive_seed(seed, "collect"),
        step=None if deterministic else step,
        recorder=recorder,
    )

    def play() -> Iterator[datasets.Episode]:
        made = 0
        while not exam.done:
            exam.tick()
            while recorder.done:
                made += 1
                yield datasets.Episode(**recorder.done.popleft())
        if not made:
            raise ValueError(
                f"{directory}: {gave_up(episodes)}; 'equipoise check {program.env.target}' may say "
                "why"
            )

    params = tree.joined(
        {name: tree.named_tensors(policy.net) for name, policy in loaded.policies.items()}
    )
    about = {
        "run": RunDirectory.found(directory).path.absolute().name,
        "params_sha256": params_sha256(params),
        "step": step,
        "deterministic": deterministic,
        "seed": seed,
        "env": {
            "target": program.env.target,
            "kwargs": dict(program.env.kwargs),
            "action_mask": program.env.action_mask,
        },
        "stacks": {path: dataclasses.asdict(stack) for path, stack in played.spec.stacks.items()},
    }
    try:
        check_env_fits(program, exam, loaded)
        return datasets.write(
            name,
            play(),
            observation=played.spec.observation,
            action=played.spec.action,
            env=program.env,
            algorithm=algorithm_name(type(played.algorithm)),
            about=about,
        )
    finally:
        exam.close()
