"""A small suite, and run directories of its cells as a run writes them, made without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.programs.program import to_json
from equipoise.studies.suite import Cell, Suite, read_suite

TEXT = """
name = "small"
envs = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"]
algorithms = ["ppo", "sac"]
seeds = 3
steps = 2_000
on = "serial"
settings.placement.envs_per_actor = 4

[env."CartPole-v1"]
random = 20.0
best = 500.0

[env."Acrobot-v1"]
random = -500.0
best = -75.0
steps = 3_000

[algorithm.sac]
settings.optimizer.learning_rate = "1e-3"

[cell."CartPole-v1".ppo]
settings.policy.unroll = 64
settings.algorithm.hidden = [32, 32]
published = { mean = 490.0, sd = 6.1, n = 3, source = "Others 2020, table 1 | a_b" }

[cell."CartPole-v1".sac]
published = { mean = 90.0, n = 1, source = "https://example.org/<scores>" }
"""


def suite(folder: Path, text: str = TEXT) -> Suite:
    """The suite of a text, read from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "suite.toml"
    file.write_text(text)
    return read_suite(file)


def run(place: Path, cell: Cell, *, score: float = 100.0, points: int = 20, **summary: Any) -> Path:
    """The directory of a finished run of a cell; ``summary``: laid over its summary."""
    place.mkdir(parents=True)
    program = eq.program(cell.env, cell.algorithm, settings=cell.settings)
    whole = {
        "program": to_json(program),
        "on": cell.on,
        "versions": {"equipoise": eq.__version__},
        "commit": "0123456789abcdef",
        "host": {"name": "secret-host", "platform": "Linux-6", "machine": "x86_64", "cores": 2},
    }
    (place / "run.json").write_text(json.dumps(whole))
    evaluation = {"mean": score, "std": 5.25, "episodes": 20}
    lines: list[dict[str, object]] = [
        {
            "env_steps": 100 * i,
            "updates": i,
            "final": False,
            "return_mean": None if i < 2 else score * i / points + 1 / 3,
            "evaluation": None,
        }
        for i in range(1, points + 1)
    ]
    of_last = evaluation | {"env_steps": lines[-1]["env_steps"], "version": points}
    lines.append(lines[-1] | {"final": True, "evaluation": of_last})
    write_lines(place, lines)
    told = {
        "status": "completed",
        "env_steps": 100 * points,
        "updates": points,
        "wall_s": 12.3456,
        "evaluation": evaluation,
        "evaluations": {"asked": 0, "made": 0},
    }
    (place / "summary.json").write_text(json.dumps(told | summary))
    return place


def lines_of(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]


def write_lines(place: Path, lines: list[dict[str, Any]]) -> None:
    (place / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
