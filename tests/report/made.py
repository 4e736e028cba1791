"""Run directories as a run writes them, made without one: a random walk of returns, shares of time,
a few evaluations.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import equipoise

STATES = ("worked", "preempted", "starved", "blocked")
CAUSES = ("Too early to say", "Sampling-bound", "Learning-bound")
VERDICTS = (
    "Too early to say.",
    "Sampling-bound: the learner waits 60 % of the time for experience; add actors or envs per "
    "actor.",
    "Learning-bound: the actors wait 40 % of the time for the learner; use fewer actors or a "
    "faster device.",
)


def program(**settings: Any) -> dict[str, Any]:
    """A program as run.json has it; ``settings``: env, algorithm, seed, actors, gamma."""
    at = {
        "env": "CartPole-v1",
        "algorithm": "ppo",
        "seed": 0,
        "actors": 2,
        "gamma": 0.99,
    } | settings
    return {
        "source": {"env": {"target": at["env"], "kwargs": {}}, "metrics": []},
        "policies": {
            "main": {
                "algorithm": {
                    "name": at["algorithm"],
                    "fields": {"gamma": at["gamma"], "hidden": [64, 64]},
                },
                "optimizer": {"name": "adam", "learning_rate": 3e-4},
                "unroll": 64,
                "batch": 32,
                "replay": None,
            }
        },
        "placement": {"actors": at["actors"], "envs_per_actor": 16, "max_lag": 1},
        "route": {},
        "schedule": {"steps": 100_000, "seed": at["seed"]},
        "evaluation": {"episodes": 20},
    }


def seconds(kind: str, side: str, draw: random.Random, length: float) -> dict[str, Any]:
    """A worker's time of ``length`` seconds, cut at random into the four states."""
    parts = [draw.random() ** 2 for _ in STATES]
    whole = {state: length * part / sum(parts) for state, part in zip(STATES, parts, strict=True)}
    names = {
        "actor": ("env", "write", "act"),
        "learner": ("sample", "copy", "loss", "backward", "optimiser", "publish"),
    }
    spent = {name: whole["worked"] * draw.random() / 6 for name in names.get(kind, ())}
    return whole | {"asleep": 0.0, "kind": kind, "side": side, "serves": False, "parts": spent}


def ages(draw: random.Random) -> dict[str, dict[str, int]]:
    """Histograms of the age of 32 windows and of one way round."""
    versions = {str(n): draw.randrange(20) for n in range(4)}
    return {"versions": versions, "seconds": {"0.04": 20, "0.1": 12}, "loop": {"0.063": 1}}


def used(i: int, actors: int) -> dict[str, dict[str, float]]:
    """What the processes have used by report ``i``: an actor half of a core and 100 MB, the learner
    200 MB and more.
    """
    found = {f"actor {n}": {"cpu_s": 1.0 * i, "rss": 100_000_000} for n in range(actors)}
    return found | {"learner": {"cpu_s": 1.5 * i, "rss": 200_000_000 + i * 1_000_000}}


def line(
    i: int, draw: random.Random, *, actors: int = 2, final: bool = False, **said: Any
) -> dict[str, Any]:
    """Report ``i`` of a run: 1,000 env steps and two seconds each."""
    workers = {f"actor {n}": seconds("actor", "sampling", draw, 2.0) for n in range(actors)}
    workers |= {"learner": seconds("learner", "learning", draw, 2.0)}
    said_so = 0 if i < 3 else 1 + i // 8 % 2
    evaluation = {
        "mean": 9.0 * i,
        "std": 3.0,
        "episodes": 20,
        "env_steps": 1000 * i - 100,
        "version": 10 * i,
    }
    return {
        "wall_s": 2.0 * i,
        "env_steps": 1000 * i,
        "updates": 10 * i,
        "steps_per_s": 450.0 + 100 * draw.random(),
        "updates_per_s": 5.0,
        "return_mean": None if i < 2 else 20 + 10 * i * draw.random(),
        "lag_mean": draw.random(),
        "lag_max": 1,
        "balance": workers,
        "cause": CAUSES[said_so],
        "verdict": VERDICTS[said_so],
        "notes": [],
        "metrics": {"entropy": 0.6 / i, "loss": math.sin(i)},
        "info": {},
        "final": final,
        "evaluation": evaluation if i % 5 == 0 else None,
        "lags": ages(draw),
        "usage": used(i, actors),
    } | said


def run(
    place: Path,
    *,
    reports: int = 20,
    summary: bool = True,
    actors: int = 2,
    said: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run directory; ``said``: laid over its summary. Without ``summary`` it is one that was
    killed.
    """
    draw = random.Random(repr((place.name, sorted(settings.items()))))
    place.mkdir(parents=True)
    whole = {
        "program": program(actors=actors, **settings),
        "on": "process",
        "versions": {"equipoise": equipoise.__version__},
        "host": {"name": "vm", "cores": 2},
    }
    (place / "run.json").write_text(json.dumps(whole))
    lines = [line(i, draw, actors=actors) for i in range(1, reports + 1)]
    if lines and summary:
        lines.append(lines[-1] | {"final": True})
    write_lines(place, lines)
    if summary:
        keys = (
            "wall_s",
            "env_steps",
            "updates",
            "steps_per_s",
            "updates_per_s",
            "return_mean",
            "balance",
            "cause",
            "verdict",
        )
        last = lines[-1] if lines else line(1, draw)
        told = {key: last[key] for key in keys} | {
            "status": "completed",
            "notes": [],
            "lag": {"mean": 0.5, "max": 1, **ages(draw)},
            "best_evaluation": None,
            "evaluation": {"mean": 100.0, "std": 5.0, "episodes": 20},
            "rows": {"inserted": 20_000, "sampled": 20_000, "dropped": 0},
        }
        (place / "summary.json").write_text(json.dumps(told | (said or {})))
    return place


def write_lines(place: Path, lines: list[dict[str, Any]]) -> None:
    (place / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
