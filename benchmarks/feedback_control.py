"""Policies that learn from preferences or demonstrations, beside those of the true rewards.

    .venv/bin/python benchmarks/feedback.py CASE --seeds 3 --folder DIR

==============  =============================================================  ==============
case            the policy learns from                                         wanted
==============  =============================================================  ==============
sac             Pendulum, 700 labels of which 10 % are wrong                   share >= 0.85
ppo             Pendulum, 1,500 labels, likewise                               share >= 0.7
turning         Pendulum, 500 labels for turning over, which no env rewards    turned >= 0.9
catch           Catch from pixels, 400 labels                                  share >= 0.8
demonstrations  Pendulum, 350 labels and ten demonstrations                    share >= 0.85
gail            Pendulum, 20 demonstrations                                    share >= 0.8
==============  =============================================================  ==============

``share``: of what the true rewards gain over random actions in the same steps, or of what the
demonstrations do. ``turned``: share of episodes that turn over three times or more. With
``--folder`` the runs are kept, and a run that is there is not done again. ``demonstrations`` and
``gail`` are shown episodes of the policy of ``sac`` with the true rewards.

Both runs of ``catch`` have an entropy bonus: the learned reward changes, and a policy without the
bonus stops exploring before the reward is right. Its reward model sees the principal components of
the pictures (``reward.pictures=components``), which need fewer labels than a CNN here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import feedback_envs
import numpy as np

from equipoise import api
from equipoise.experience.recorded import dataset as datasets

EPISODES = 50  # of an evaluation
SYNTHETIC = ("reward.teacher=synthetic", "reward.error=0.1")  # a tenth of the answers are wrong


@dataclass(frozen=True, slots=True)
class Task:
    """What both runs have."""

    env: str
    algorithm: str
    steps: int
    settings: tuple[str, ...] = ()
    recipe: bool = True


SAC = Task("Pendulum-v1", "sac", 10_000, ("algorithm.hidden=64,64", "policy.batch=128"))
PPO = Task("Pendulum-v1", "ppo", 100_000)
CATCH = Task(
    "feedback_envs:catch",
    "ppo",
    60_000,
    ("placement.envs_per_actor=8", "algorithm.entropy=0.02"),
    recipe=False,
)


def done(folder: Path, name: str, task: Task, seed: int, reward: str, more: Sequence[str]) -> Path:
    """Train, unless the run is there; return its folder."""
    out = folder / f"{name}-{seed}"
    if not (out / "summary.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        api.train(
            task.env,
            task.algorithm,
            recipe=task.recipe,
            reward=reward,
            steps=task.steps,
            seed=seed,
            on="serial",
            evaluate_episodes=EPISODES,
            out=out,
            settings=[*task.settings, *more],
            progress=False,
        )
    return out


def with_labels(folder: Path, name: str, task: Task, seed: int, more: Sequence[str]) -> Path:
    store = folder / f"{name}-{seed}-store"
    if not (folder / f"{name}-{seed}" / "summary.json").exists():
        shutil.rmtree(store, ignore_errors=True)
    return done(
        folder, name, task, seed, "preferences", [*SYNTHETIC, f"reward.store={store}", *more]
    )


def evaluated(run: Path) -> float:
    """The mean return at the end of a run."""
    return float(json.loads((run / "summary.json").read_text())["evaluation"]["mean"])


def labels(run: Path) -> float:
    last = (run / "metrics.jsonl").read_text().splitlines()[-1]
    return float(json.loads(last)["metrics"].get("preferences_labels", 0))


def at_random(task: Task, episodes: int = 200) -> float:
    """The mean return of actions at random."""
    import gymnasium

    env = feedback_envs.catch() if task is CATCH else gymnasium.make(task.env)
    total = 0.0
    env.action_space.seed(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            over = terminated or truncated
    return total / episodes


def shared(true: Path, learned: Path, task: Task) -> dict[str, float]:
    low, high, found = at_random(task), evaluated(true), evaluated(learned)
    return {
        "random": low,
        "true": high,
        "learned": found,
        "labels": labels(learned),
        "share": (found - low) / (high - low),
    }


def by_labels(name: str, task: Task, *more: str) -> Callable[[Path, int], dict[str, float]]:
    def case(folder: Path, seed: int) -> dict[str, float]:
        true = done(folder, f"{name}-true", task, seed, "env", [])
        return shared(true, with_labels(folder, name, task, seed, more), task)

    return case


def turning(folder: Path, seed: int) -> dict[str, float]:
    more = ("reward.labels=500", "reward.score=feedback_envs:turns", "reward.error=0")
    run = with_labels(folder, "turning", SAC, seed, more)
    played = [feedback_envs.turns(obs) for obs in episodes(run, folder, EPISODES, seed)]
    return {
        "labels": labels(run),
        "turned": float(np.mean(np.array(played) >= 3)),
        "turns": float(np.mean(played)),
    }


def episodes(run: Path, folder: Path, count: int, seed: int) -> list[np.ndarray]:
    """The observations of episodes of a run's policy."""
    return [one.obs for one in datasets.find(shown(run, folder, count, seed))]


def shown(run: Path, folder: Path, count: int, seed: int) -> str:
    """The place of a data set of episodes of a run's policy."""
    place = folder / f"{run.name}-{count}"
    if not place.exists():
        api.collect(run, place, episodes=count, deterministic=True, seed=seed)
    return str(place)


def demonstrations(folder: Path, seed: int) -> dict[str, float]:
    true = done(folder, "sac-true", SAC, seed, "env", [])
    data = shown(true, folder, 10, seed)
    more = ("reward.labels=350", f"reward.demonstrations={data}")
    return shared(true, with_labels(folder, "demonstrations", SAC, seed, more), SAC)


def gail(folder: Path, seed: int) -> dict[str, float]:
    true = done(folder, "sac-true", SAC, seed, "env", [])
    more = [f"reward.demonstrations={shown(true, folder, 20, seed)}"]
    return shared(true, done(folder, "gail", SAC, seed, "gail", more), SAC)


CASES: Mapping[str, Callable[[Path, int], dict[str, float]]] = {
    "sac": by_labels("sac", SAC),
    "ppo": by_labels("ppo", PPO, "reward.labels=1500", "reward.queries=100"),
    "turning": turning,
    "catch": by_labels(
        "catch",
        CATCH,
        "reward.labels=400",
        "reward.queries=25",
        "reward.pictures=components",
    ),
    "demonstrations": demonstrations,
    "gail": gail,
}
