"""Reward models from preferences: how well they predict answers, how few answers they need, and
their speed.

    .venv/bin/python benchmarks/feedback.py accuracy     # 5,000 pairs of a known reward
    .venv/bin/python benchmarks/feedback.py faults       # the same with ties, skips and errors
    .venv/bin/python benchmarks/feedback.py labels       # answers needed: disagreement and random
    .venv/bin/python benchmarks/feedback.py speed        # ns of a row, beside one of SAC's learner
    .venv/bin/python benchmarks/feedback.py imitation --python VENV/bin/python
    .venv/bin/python benchmarks/feedback.py sac          # and ppo, turning, catch, demonstrations,
                                                         # gail: policies (feedback_control.py)

The rows are Pendulum's (three numbers and a torque), in segments of 25 to 50 steps. A synthetic
teacher answers by the true rewards. Bayes accuracy is that of a judge who knows the teacher's own
chances; a model's accuracy is the expected one on 5,000 fresh pairs, so that neither has the luck
of the draw. Seconds are of CPU, of one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from feedback_control import CASES
from torch import Tensor

from equipoise import api
from equipoise.device_envs.pendulum import Pendulum
from equipoise.plans.plan import plan_run
from equipoise.rewards.preferences.fit import Fit, Fitting, fit, measure
from equipoise.rewards.preferences.model import RewardModel, RewardNets
from equipoise.rewards.preferences.queries import (
    chosen_pairs,
    disagreement,
    information,
    random_pairs,
)
from equipoise.rewards.preferences.segments import Answers, Segments, held_out
from equipoise.rewards.preferences.teacher import (
    Teacher,
    bayes_accuracy,
    expected_accuracy,
)
from equipoise.tuning.updates import random_batch

STEPS, LONGEST, SHORTEST = 200, 50, 25
FRESH = 5_000  # pairs that a model is judged by
FRESH_FROM = 10**6  # numbers of their episodes


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Segments with their true rewards [S, T]."""

    segments: Segments
    rewards: np.ndarray

    def returns(self, teacher: Teacher) -> np.ndarray:
        return teacher.returns(self.rewards, self.segments.mask.numpy())


def behaviour(episodes: int, *, seed: int, first: int = 0) -> Behaviour:
    """Play Pendulum by a policy for each episode, from torques at random to one that pumps energy;
    cut four segments from each.
    """
    generator = torch.Generator().manual_seed(seed)
    env = Pendulum()
    draw = torch.rand(episodes, 6, generator=generator)
    state = env.begin(draw[:, :2])
    pump, hold, wild, bias = (draw[:, i, None] for i in (2, 3, 4, 5))
    seen: list[tuple[Tensor, ...]] = []
    for _ in range(STEPS):
        obs = env.observe(state)
        cos, sin, speed = obs.split(1, -1)
        upright = (cos > 0.8).float()
        wanted = (1 - upright) * pump * 2 * speed.sign() - upright * hold * (12 * sin + 3 * speed)
        noise = torch.randn(episodes, 1, generator=generator)
        action = (wanted + 3 * wild.square() * noise + (bias - 0.5)).clamp(-2, 2)
        state, reward, _ = env.advance(state, action)
        seen.append((obs, action, reward))
    obs, action, reward = (torch.stack(x, 1) for x in zip(*seen, strict=True))
    parts = STEPS // LONGEST
    size = torch.randint(SHORTEST, LONGEST + 1, (episodes * parts,), generator=generator)
    mask = torch.arange(LONGEST) < size[:, None]
    episode = first + torch.arange(episodes).repeat_interleave(parts)
    return Behaviour(
        Segments(obs.reshape(-1, LONGEST, 3), action.reshape(-1, LONGEST, 1), mask, episode),
        reward.reshape(-1, LONGEST).double().numpy(),
    )


def make_model(seed: int, settings: RewardNets) -> RewardModel:
    torch.manual_seed(seed)
    env = Pendulum()
    return RewardModel(env.observation, env.action, settings)


@dataclass(frozen=True, slots=True)
class Test:
    """Fresh pairs with the teacher's chances, to judge models by."""

    data: Behaviour
    pairs: np.ndarray
    teacher: Teacher
    answers: Answers
    chance: np.ndarray  # of the pairs that a side is preferred in
    decided: np.ndarray


def make_test(teacher: Teacher, *, seed: int) -> Test:
    data = behaviour(400, seed=seed + 1000, first=FRESH_FROM)
    pairs = random_pairs(FRESH, np.zeros(len(data.segments), np.bool_), seed=seed)
    answers, given, tie = ask(teacher, data, pairs, seed=seed)
    left, right = data.returns(teacher)[pairs[given]].T
    chance = teacher.chance(left, right)
    return Test(data, pairs[given], teacher, answers, chance[~tie], ~tie)


def ask(
    teacher: Teacher, data: Behaviour, pairs: np.ndarray, *, seed: int
) -> tuple[Answers, np.ndarray, np.ndarray]:
    """The answers that were given, which were (of all), and which are ties (of the given)."""
    returns = data.returns(teacher)
    share, given = teacher.answer(returns[pairs[:, 0]], returns[pairs[:, 1]], seed=seed)
    left, right = torch.from_numpy(pairs[given]).unbind(1)
    answers = Answers(left.contiguous(), right.contiguous(), torch.from_numpy(share[given]))
    return answers, given, share[given] == 0.5


def judged(model: RewardModel, test: Test) -> dict[str, float]:
    """Accuracy, Bayes accuracy, calibration error and correlation on fresh pairs and rows."""
    segments = test.data.segments
    returns = model.all_returns(segments).mean(0)
    left, right = torch.from_numpy(test.pairs).unbind(1)
    chance = model.chance(returns[left] - returns[right])
    found = measure(chance, test.answers.share)
    mean, _ = model.rewards(segments.obs, segments.action)
    rows = segments.mask.numpy()
    true = test.data.rewards[rows]
    return {
        "bayes": bayes_accuracy(test.chance),
        "accuracy": expected_accuracy(test.chance, chance.numpy()[test.decided]),
        "ece": found.ece,
        "correlation": float(np.corrcoef(mean.numpy()[rows], true)[0, 1]),
        "temperature": float(model.temperature),
    }


def spread(data: Behaviour) -> float:
    return float(data.returns(Teacher()).std())


def accuracy(
    seed: int, *, pairs: int = 5_000, nets: RewardNets, fitting: Fitting, faults: bool = False
) -> dict[str, float]:
    data = behaviour(1000, seed=seed)
    side = held_out(data.segments.episode.numpy(), share=fitting.held_out, seed=seed)
    teacher = Teacher(rationality=5.0, scale=spread(data))
    chosen = random_pairs(pairs, side, seed=seed)
    if faults:
        a, b = data.returns(teacher)[chosen].T
        skip = float(np.quantile(np.maximum(a, b), 0.1))
        equal = float(np.quantile(np.abs(a - b)[np.maximum(a, b) >= skip], 0.3))
        teacher = Teacher(rationality=5.0, scale=teacher.scale, error=0.2, skip=skip, equal=equal)
    test = make_test(teacher, seed=seed)
    answers, _, tie = ask(teacher, data, chosen, seed=seed + 1)
    model = make_model(seed, nets)
    began = time.process_time()
    held = fit(model, data.segments, answers, fitting, seed=seed)
    cpu_s = time.process_time() - began
    return {
        "answers": len(answers),
        "ties": float(tie.mean()),
        **judged(model, test),
        "held_out_accuracy": held.accuracy,
        "held_out_ece": held.ece,
        "cpu_s": cpu_s,
    }


def needed(
    how: str, seed: int, *, sizes: Sequence[int], below: float, nets: RewardNets, fitting: Fitting
) -> dict[str, object]:
    """Answers until the accuracy is at least Bayes - ``below``, asked in rounds up to ``sizes``; a
    straight line between two sizes, inf if it is never reached.
    """
    data = behaviour(500, seed=seed)
    side = held_out(data.segments.episode.numpy(), share=fitting.held_out, seed=seed)
    teacher = Teacher(rationality=5.0, scale=spread(data))
    test = make_test(teacher, seed=seed)
    asked = np.empty((0, 2), np.int64)
    model = make_model(seed, nets)
    curve: list[tuple[int, float]] = []

    def score(pairs: np.ndarray) -> Tensor:
        returns = model.all_returns(data.segments)
        left, right = torch.from_numpy(pairs).unbind(1)
        chance = model.chance(returns[:, left] - returns[:, right])
        return disagreement(chance) if how == "disagreement" else information(chance)

    for number, size in enumerate(sizes):
        count = size - len(asked)
        if how == "random" or number == 0:  # nothing has been learned yet
            new = random_pairs(count, side, seed=seed * 100 + number, asked=asked)
        else:
            new = chosen_pairs(count, side, score, seed=seed * 100 + number, asked=asked)
        asked = np.concatenate([asked, new])
        answers, _, _ = ask(teacher, data, asked, seed=seed)
        model = make_model(seed, nets)
        fit(model, data.segments, answers, fitting, seed=seed)
        found = judged(model, test)
        curve.append((size, found["accuracy"] - found["bayes"] + below))
        if curve[-1][1] >= 0:
            break
    (a, low), (b, high) = [(0, curve[0][1]), *curve][-2:]
    reached = a + (b - a) * low / (low - high) if high >= 0 > low else float(b)
    gaps = {str(size): round(gap - below, 4) for size, gap in curve}
    return {"how": how, "seed": seed, "answers": reached if high >= 0 else np.inf, "gaps": gaps}


def cpu_ns(run: Callable[[], object], *, times: int) -> float:
    began = time.process_time_ns()
    for _ in range(times):
        run()
    return (time.process_time_ns() - began) / times


def speed(rounds: int, nets: RewardNets) -> dict[str, float]:
    """CPU ns of the reward of a row and of a row of SAC's learner, both of Pendulum and in batches
    of 256, in turn; the share is the median of the rounds.
    """
    blue = plan_run(api.program("Pendulum-v1", "sac", recipe=False, threads=1))
    (name, *_) = blue.learns
    learner = blue.learner(name, blue.network(name))
    batch = random_batch(blue, name, learner.net)
    count = math.prod(batch.data.shape)
    model, data = make_model(0, nets), behaviour(2, seed=0)
    obs, action = (x.flatten(0, 1)[:256] for x in (data.segments.obs, data.segments.action))
    took = []

    def update() -> None:
        learner.step(batch)
        learner.settle()

    for number in range(rounds + 1):
        ours = cpu_ns(lambda: model.rewards(obs, action), times=100) / len(obs)
        sac = cpu_ns(update, times=20) / count
        if number:  # the first round allocates
            took.append((ours, sac, ours / sac))
    ours, sac, share = (statistics.median(one) for one in zip(*took, strict=True))
    return {"ns_row": ours, "ns_row_sac": sac, "rows_sac": count, "share": share}


def imitation(python: str, rounds: int, nets: RewardNets) -> dict[str, object]:
    """CPU of a pair of two segments of 50 rows, three members, batches of 64: a pass of the package
    imitation over ours, in turn; above 1 ours is faster.
    """
    script = Path(__file__).with_name("peers") / "run_imitation.py"
    data = behaviour(300, seed=0)
    whole = torch.ones_like(data.segments.mask)
    segments = Segments(data.segments.obs, data.segments.action, whole, data.segments.episode)
    pairs = torch.from_numpy(random_pairs(1024, np.zeros(len(segments), np.bool_), seed=0))
    answers = Answers(pairs[:, 0].contiguous(), pairs[:, 1].contiguous(), torch.ones(len(pairs)))
    ratios, took = [], []
    for _ in range(rounds):
        words = [python, str(script), "128", "50", str(nets.members)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        out = subprocess.run(
            words, env=env, capture_output=True, text=True, check=True, timeout=500
        ).stdout
        theirs = float(json.loads(out.splitlines()[-1])["cpu_us"])
        one = Fit(make_model(0, nets), segments, answers, Fitting(held_out=0.0), seed=0)
        ours = cpu_ns(one.epoch, times=1) / len(answers) / 1000
        ratios.append(theirs / ours)
        took.append((ours, theirs))
    return {"ratio": statistics.median(ratios), "ratios": ratios, "us_ours_theirs": took}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "case", choices=("accuracy", "faults", "labels", "speed", "imitation", *CASES)
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed, of policies")
    parser.add_argument("--folder", default="", help="of policies: keep runs, and go on from them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--how", default="random,disagreement", help="of labels; also information")
    parser.add_argument("--sizes", default="25,50,100,150,200,300,400,600", help="of labels")
    parser.add_argument("--pairs", type=int, default=5_000, help="of accuracy and faults")
    parser.add_argument("--hidden", default="64,64")
    parser.add_argument("--noise", type=float, default=0.0, help="share that the model expects")
    parser.add_argument("--python", default=sys.executable, help="of imitation")
    a = parser.parse_args()
    torch.set_num_threads(1)
    hidden = tuple(int(one) for one in a.hidden.split(","))
    nets, fitting = RewardNets(hidden=hidden, noise=a.noise), Fitting()
    if a.case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(a.first, a.first + a.seeds):
                numbers = CASES[a.case](Path(a.folder or folder), seed)
                print(json.dumps({"case": a.case, "seed": seed, **numbers}), flush=True)
    elif a.case == "speed":
        print(json.dumps(speed(a.rounds, nets)))
    elif a.case == "imitation":
        print(json.dumps(imitation(a.python, a.rounds, nets)))
    elif a.case == "labels":
        sizes = [int(one) for one in a.sizes.split(",")]
        answers: dict[str, list[float]] = {how: [] for how in a.how.split(",")}
        for seed in range(a.seeds):
            for how, some in answers.items():
                found = needed(how, seed, sizes=sizes, below=0.03, nets=nets, fitting=fitting)
                print(json.dumps(found), flush=True)
                some.append(float(str(found["answers"])))
        medians = {how: statistics.median(some) for how, some in answers.items()}
        ratios = {how: one / next(iter(medians.values())) for how, one in medians.items()}
        print(json.dumps({"ratio_to_the_first": ratios}))
    else:
        for seed in range(a.seeds):
            one = accuracy(
                seed, pairs=a.pairs, nets=nets, fitting=fitting, faults=a.case == "faults"
            )
            print(json.dumps({k: round(v, 4) for k, v in one.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
