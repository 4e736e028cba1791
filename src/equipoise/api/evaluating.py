"""Fresh episodes of a trained policy, counted or kept: ``evaluate``, ``collect``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial

from equipoise import tree
from equipoise.actors.recorder import Recorder
from equipoise.api.playing import load
from equipoise.experience import dataset as datasets
from equipoise.experience.dataset import Dataset
from equipoise.runtime.directory import RunDirectory, params_sha256
from equipoise.runtime.exam import STREAMS, evaluating, evaluator, gave_up, result
from equipoise.runtime.program import algorithm_name
from equipoise.runtime.report import Evaluating, Evaluation, step_of
from equipoise.seeds import derive_seed

__all__ = ["collect", "evaluate"]


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
        player._blue, player._nets, episodes=episodes, seed=derive_seed(seed, "evaluate"),
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
        blue, player._nets, episodes=episodes, seed=derive_seed(seed, "collect"), deterministic=deterministic,
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
