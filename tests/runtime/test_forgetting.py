"""An evaluation far below the best one is said when it happens, and in the summary."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces

from equipoise import api
from equipoise.algorithms.impala import IMPALA
from equipoise.record.report import Evaluation
from equipoise.run.forgetting import Evaluations
from equipoise.schema import check


def entered(*means: float, std: float = 5.0) -> tuple[Evaluations, list[str | None]]:
    evaluations = Evaluations()
    said = [
        evaluations.enter(
            Evaluation(mean=mean, std=std, episodes=20, env_steps=1000 * n, version=n)
        )
        for n, mean in enumerate(means, start=1)
    ]
    return evaluations, said


def test_a_far_fall_is_said_once_for_each_best_evaluation() -> None:
    evaluations, said = entered(22, 500, 480, 350, 200, 490, 300, 501, 300)
    assert [text is not None for text in said] == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    assert said[3] == (
        "warning: the evaluation fell to 350.0 at step 4,000, far below the best one, 500.0 at "
        "step 2,000, whose weights are "
        "kept (equipoise evaluate DIR --best)"
    )
    best = {"mean": 501, "std": 5.0, "episodes": 20, "env_steps": 8000}
    assert evaluations.summary() == best | {"fallen": True}


@pytest.mark.parametrize(
    ("means", "std", "fallen"),
    [
        ((20, 500, 410), 5.0, False),  # less than a fifth of what was learned
        ((20, 500, 400), 5.0, True),
        ((20, 500, 400), 400.0, False),  # may be chance
        ((-500, -80, -100), 5.0, False),
        ((-500, -80, -170), 5.0, True),
        ((500, 480), 5.0, True),  # began with weights that had learned
        ((500,), 5.0, False),
    ],
)
def test_far_is_a_share_of_what_was_learned_and_more_than_chance(
    means: Any, std: float, fallen: bool
) -> None:
    evaluations, said = entered(*means, std=std)
    best = evaluations.summary()
    assert (
        best is not None
        and evaluations.fallen == fallen == (said[-1] is not None) == best["fallen"]
    )


def test_the_best_of_many_equal_evaluations_is_luck() -> None:
    """Forty draws of one policy, of which the best and the worst are 3.5 deviations of a difference
    apart.
    """
    deviation = 1.0 / math.sqrt(20) * math.sqrt(2)
    evaluations, said = entered(
        4.0, *[7.0] * 37, 7.0 + 1.75 * deviation, 7.0 - 1.75 * deviation, std=1.0
    )
    assert said == [None] * 40 and not evaluations.fallen
    evaluations, said = entered(4.0, 7.0 + 1.75 * deviation, 7.0 - 1.75 * deviation, std=1.0)
    assert said[-1] is not None, "of two it is no luck"


def test_a_resumed_run_does_not_tell_a_fall_again() -> None:
    evaluations, _ = entered(22, 500, 300)
    again = Evaluations()
    again.load(
        json.loads(
            json.dumps(
                {
                    k: asdict(v) if isinstance(v, Evaluation) else v
                    for k, v in evaluations.state().items()
                }
            )
        )
    )
    assert (
        again.enter(Evaluation(mean=200.0, std=5.0, episodes=20, env_steps=4000, version=4)) is None
    )
    assert again.fallen and again.count == 4


def test_a_resumed_run_remembers_its_best_evaluation() -> None:
    evaluations, _ = entered(22, 500, 480)
    plain = {
        name: asdict(one) if isinstance(one, Evaluation) else one
        for name, one in evaluations.state().items()
    }
    state = json.loads(json.dumps(plain))
    check(state, Evaluations.schema(3), "driver.json")
    again = Evaluations()
    again.load(state)
    assert (
        again.enter(Evaluation(mean=100.0, std=5.0, episodes=20, env_steps=4000, version=4))
        is not None
    )


class Right(gymnasium.Env[Any, Any]):
    """Pays 1 for action 1; an episode is one step."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, float(action), True, False, {}


@dataclass(frozen=True, kw_only=True)
class Forgetful(IMPALA):
    """Acts well until its parameters have moved, and badly afterwards."""

    def best(self, net: Any, obs: Any, first: Any, state: Any) -> Any:
        moved = bool(net.value_head.bias.detach().any())
        return torch.full((len(first),), int(not moved)), state


def test_a_run_that_forgets_says_so_also_after_a_resume(tmp_path: Path) -> None:
    made = api.program(
        Right,
        f"{__name__}:Forgetful",
        recipe=False,
        actors=1,
        envs_per_actor=4,
        unroll=4,
        steps=64,
        max_lag=0,
        settings=[
            "evaluation.episodes=4",
            "optimizer.learning_rate=0",
            "optimizer.schedule=constant",
        ],
    )
    for _ in (run := api.start(made, on="serial", out=tmp_path / "run", tensorboard=False)):
        pass
    assert run.summary is not None and run.summary["evaluation"]["mean"] == 1.0
    best = run.summary["best_evaluation"]
    assert best["mean"] == 1.0 and not best["fallen"], "also where the last one is the best"
    for _ in (
        run := api.start(
            resume=tmp_path / "run", steps=640, settings=["optimizer.learning_rate=0.1"]
        )
    ):
        pass
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (
        summary["evaluation"]["mean"] == 0.0
        and summary["best_evaluation"]["mean"] == 1.0
        and summary["best_evaluation"]["fallen"]
    )
    assert any(
        "the evaluation fell to 0.0" in note and "the best one, 1.0" in note
        for note in summary["notes"]
    )
