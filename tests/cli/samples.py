"""A program, reports and a summary as a run would give them, and a short run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise import api
from equipoise.balance.shares import Shares
from equipoise.programs.fields import alter
from equipoise.record.report import Evaluation, Report
from equipoise.types import Algorithm, EnvFactory, EnvSource, Placement, Policy, Program, Schedule


@dataclass(frozen=True, kw_only=True)
class Toy(Algorithm):
    gamma: float = 0.99

    def network(self, spec): ...
    def act(self, net, obs, first, state, *, explore, noise): ...
    def best(self, net, obs, first, state): ...
    def loss(self, net, target_net, batch, *, group, step, rng): ...


BALANCE = {
    "actor 0": Shares(worked=6, preempted=0.5, blocked=3.5, side="sampling"),
    "actor 1": Shares(worked=9, starved=1, side="sampling"),
    "learner": Shares(worked=3.8, starved=6.2, side="learning"),
}
VERDICT = (
    "Sampling-bound: the learner waits 62 % of the time for experience; add actors or envs "
    "per actor."
)


def program(**fields: Any) -> Program:
    made = Program(
        source=EnvSource(env=EnvFactory(target="CartPole-v1")),
        policies={"main": Policy(algorithm=Toy(), unroll=32, batch=128)},
        placement=Placement(actors=2, envs_per_actor=64, max_lag=1),
        schedule=Schedule(steps=500_000),
    )
    return alter(made, **fields)


def report(**fields: Any) -> Report:
    given: dict[str, Any] = {
        "wall_s": 72.3,
        "env_steps": 210_000,
        "taken": 214_000,
        "frames": 210_000,
        "updates": 51,
        "steps_per_s": 123_456.7,
        "updates_per_s": 82.1,
        "episodes": 1203,
        "return_mean": 215.3,
        "length_mean": 215.3,
        "lag_mean": 0.4,
        "lag_max": 1,
        "balance": BALANCE,
        "cause": "Sampling-bound",
        "verdict": VERDICT,
        "remaining_s": 170.0,
    }
    return Report(**(given | fields))


def evaluation(**fields: Any) -> Evaluation:
    given: dict[str, Any] = {
        "mean": 487.25,
        "std": 20.1,
        "episodes": 20,
        "env_steps": 120_000,
        "version": 3,
    }
    return Evaluation(**(given | fields))


def short_run(out: Path, *, steps: int, max_lag: int) -> Path:
    """A run of IMPALA on ``process`` with some records, for commands that read what workers
    measured.
    """
    made = api.start(
        "CartPole-v1",
        "impala",
        steps=steps,
        actors=2,
        envs_per_actor=8,
        unroll=8,
        batch=16,
        max_lag=max_lag,
        recipe=False,
        evaluate_episodes=0,
        tensorboard=False,
        settings=["algorithm.hidden=[16]"],
        out=out,
    )
    for _ in made:
        pass
    return out


def summary(**fields: Any) -> dict[str, Any]:
    """As it is read back from summary.json."""
    return {
        "status": "completed",
        "env_steps": 210_000,
        "taken": 214_000,
        "frames": 210_000,
        "updates": 51,
        "wall_s": 72.3,
        "steps_per_s": 2904.6,
        "printed": {},
        "sites": {},
        "refused": {},
        "alarms": [],
        "governor": None,
        "lending": None,
        "updates_per_s": 0.7,
        "episodes": 1203,
        "return_mean": 215.3,
        "info": {},
        "evaluation": {"mean": 487.25, "std": 20.1, "episodes": 20},
        "best_evaluation": None,
        "lag": {"mean": 0.4, "max": 1},
        "acting": {"weights": "fp32", "forward": {"main": "lean"}, "error": {}},
        "balance": {
            name: {
                "worked": s.worked,
                "preempted": s.preempted,
                "starved": s.starved,
                "blocked": s.blocked,
            }
            for name, s in BALANCE.items()
        },
        "cause": "Sampling-bound",
        "verdict": VERDICT,
        "remedies": [],
        "solved_at_s": None,
        "params_sha256": "0" * 64,
        "failures": {},
        "aborted": {},
        "notes": [],
        "rows": {"inserted": 10, "sampled": 8, "dropped": 1, "held": 1},
    } | fields
