"""What an actor-critic costs when nothing connects its pieces: the yardstick of the process
runtime.

    .venv/bin/python benchmarks/pieces.py [--case cartpole|halfcheetah|pong] [--vector KIND]
    [--streams N] [--unroll T] ...

Core time per env step of three pieces alone, one thread each:

- env: one step of a vector env. CartPole: Gymnasium's native one, or Python envs in turn (sync);
  the actions keep the pole up, as those of a trained policy do, and are replayed, so only ``step``
  is timed (``env_random`` has random actions: more resets, so it is dearer; it is shown and not
  used). HalfCheetah-v5: Python envs in turn, or EnvPool; Pong: ALE's vector env, or EnvPool, 4
  frames a step, no sticky actions; both with random actions.
- act: observations in, actions and their log-probabilities written to the rows of an unroll:
  forward of the policy and a sample; the noise is drawn once an unroll.
- learn: one IMPALA step on [T+1, B]: forward, V-trace targets, policy, value and entropy loss,
  backward, clip by the norm of the gradient, optimiser step.

``bound = cores / (env + act + learn)``: env steps/s if every core were busy with these and with
nothing else. The nets are in ``yardstick.py``: MLP 64-64 tanh for vectors, the Nature CNN in
bfloat16, channels last and compiled for Pong. It imports gymnasium (and ale_py or envpool for their
envs), torch and numpy only, nothing of ours. ``--check`` trains on CartPole with the same functions
and prints the return, so that a fast wrong loss would be seen.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from yardstick import FRAMES, Conv, Net, learn, make_optimizer

Actions = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    vectors: tuple[str, ...]  # the first is the default
    streams: int
    unroll: int
    batch: int
    steps: int  # of all streams, that the env piece takes in one go


CASES = {
    "cartpole": Case(vectors=("native", "sync"), streams=512, unroll=16, batch=512, steps=500),
    "halfcheetah": Case(vectors=("sync", "envpool"), streams=32, unroll=32, batch=64, steps=50),
    "pong": Case(vectors=("ale", "envpool"), streams=128, unroll=20, batch=128, steps=10),
}


# ----------------------------------------------------------------------------------------- the envs


def make_env(case: str, vector: str, streams: int) -> Any:
    if case == "pong" and vector == "ale":
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv(
            game="pong",
            num_envs=streams,
            num_threads=1,
            frameskip=4,
            stack_num=4,
            img_height=84,
            img_width=84,
            grayscale=True,
            repeat_action_probability=0.0,
            noop_max=30,
            reward_clipping=False,
        )
    if vector == "envpool":
        import envpool

        task = {"halfcheetah": "HalfCheetah-v5", "pong": "Pong-v5"}[case]
        return envpool.make(task, env_type="gymnasium", num_envs=streams, num_threads=1)
    mode = {"native": "vector_entry_point", "sync": "sync"}[vector]
    return gymnasium.make_vec(
        {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v5"}[case],
        num_envs=streams,
        vectorization_mode=mode,
    )


def make_net(case: str, compiled: bool = True) -> Net | Conv:
    if case == "pong":
        return Conv(6, compiled=compiled)
    return Net(4, 2) if case == "cartpole" else Net(17, 6, gaussian=True)


def random_actions(case: str, streams: int, steps: int) -> Actions:
    rng = np.random.default_rng(0)
    if case == "halfcheetah":
        return list(rng.uniform(-1, 1, (steps, streams, 6)).astype(np.float32))
    return list(rng.integers(0, 2 if case == "cartpole" else 6, (steps, streams)))


def balancing(vector: str, streams: int, steps: int) -> Actions:
    """Actions that keep the pole up for whole episodes, from a reset with seed 0 on."""
    env = make_env("cartpole", vector, streams)
    obs, _ = env.reset(seed=0)
    actions, falls = [], 0
    for _ in range(steps):
        actions.append((obs @ np.array([0.05, 0.2, 1.0, 0.5], np.float32) > 0).astype(np.int64))
        obs, _, terminated, _, _ = env.step(actions[-1])
        falls += int(terminated.sum())
    env.close()
    if falls > streams * steps / 500:
        raise RuntimeError(
            f"the balancing controller fell {falls} times in {streams * steps} steps"
        )
    return actions


# ---------------------------------------------------------------------------------------- measuring


def keep_memory() -> bool:
    """Ask glibc to keep freed memory: else each learner step gives megabytes back and faults them
    in again, page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    return bool(
        mallopt
        and mallopt(trim_threshold, 1 << 30)
        and mallopt(mmap_threshold, 1 << 30)
        and mallopt(top_pad, 1 << 26)
    )


def env_piece(
    case: str, vector: str, streams: int, actions: Actions, *, replayed: bool = False
) -> Callable[[], int]:
    """``replayed``: the actions belong to the rows from a reset on. Else the env goes on for ever,
    over its own resets.
    """
    env = make_env(case, vector, streams)
    env.reset(seed=0) if vector != "envpool" else env.reset()

    def run() -> int:
        if replayed:
            env.reset(seed=0)
        for a in actions:
            env.step(a)
        return len(actions) * streams

    return run


def act_piece(case: str, streams: int, unroll: int) -> Callable[[], int]:
    net = make_net(case)
    rows = net.rows(unroll, streams)
    view = observations(case, streams)  # where an env leaves them

    def run() -> int:
        with torch.inference_mode():
            weights, noise = net.frozen(), net.noise(unroll, streams)
            for t, (row, action, logp) in enumerate(zip(rows.obs, rows.action, rows.logp)):
                row.copy_(view)
                net.act(weights, row, noise[t], action, logp)
                action.numpy()
        return unroll * streams

    return run


def learn_piece(case: str, unroll: int, batch: int, optimizer: str) -> Callable[[], int]:
    net = make_net(case)
    rows = net.rows(unroll, batch)
    rows.obs.copy_(observations(case, (unroll + 1) * batch).view(rows.obs.shape))
    rows.action.random_(2) if case == "cartpole" else rows.action.random_(
        6
    ) if case == "pong" else rows.action.normal_()
    rows.logp.fill_(-1.0)
    rows.reward.fill_(1.0)
    rows.mask.bernoulli_(0.99)
    rows.bootstrap.bernoulli_(0.99)
    opt = make_optimizer(net, optimizer)
    opt.param_groups[0]["lr"] = 1e-9  # the same work for ever: the data never change

    def run() -> int:
        learn(net, opt, rows)
        return unroll * batch

    return run


def observations(case: str, rows: int) -> torch.Tensor:
    if case == "pong":
        return torch.randint(0, 256, (rows, *FRAMES), dtype=torch.uint8)
    return torch.randn(rows, 4 if case == "cartpole" else 17) * 0.1


def timed(run: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Microseconds per env step: (of core time, of wall time)."""
    run()
    steps, cpu, wall = 0, time.process_time(), time.perf_counter()
    while (took := time.perf_counter() - wall) < seconds:
        steps += run()
    return (time.process_time() - cpu) / steps * 1e6, took / steps * 1e6


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Rounds of all pieces in turn; the median of each."""
    steps = CASES[a.case].steps
    random = random_actions(a.case, a.streams, steps)
    pieces = {
        "env": env_piece(a.case, a.vector, a.streams, random),
        "act": act_piece(a.case, a.streams, a.unroll),
        "learn": learn_piece(a.case, a.unroll, a.batch, a.optimizer),
    }
    if a.case == "cartpole":
        pieces["env_random"] = pieces["env"]
        pieces["env"] = env_piece(
            a.case, a.vector, a.streams, balancing(a.vector, a.streams, steps), replayed=True
        )
    core: dict[str, list[float]] = {name: [] for name in pieces}
    wall: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(a.rounds):
        for name, run in pieces.items():
            c, w = timed(run, a.seconds)
            core[name].append(c)
            wall[name].append(w)
    median = {name: statistics.median(values) for name, values in core.items()}
    median_wall = {name: statistics.median(values) for name, values in wall.items()}
    total = median["env"] + median["act"] + median["learn"]
    return {
        "benchmark": "pieces",
        "value": round(a.cores * 1e6 / total),  # the bound, env steps/s
        "core_us_per_step": {name: round(v, 4) for name, v in median.items()},
        "wall_us_per_step": {name: round(v, 4) for name, v in median_wall.items()},
        # slowest round / fastest: the machine's noise
        "spread": {name: round(max(v) / min(v), 3) for name, v in core.items()},
        "cores": a.cores,
        "case": a.case,
        "vector": a.vector,
        "streams": a.streams,
        "unroll": a.unroll,
        "batch": a.batch,
        "optimizer": a.optimizer,
        "rounds": a.rounds,
        "seconds": a.seconds,
        "allocator": a.allocator,
        "versions": {
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "python": platform.python_version(),
        },
    }


# ---------------------------------------------------------------------------------------- the check


def check(a: argparse.Namespace) -> dict[str, Any]:
    """Train with these very functions in one loop, on-policy, for ``--check`` env steps."""
    torch.manual_seed(0)
    env, net = make_env("cartpole", a.vector, a.streams), make_net("cartpole")
    rows = net.rows(a.unroll, a.streams)
    opt = make_optimizer(net, a.optimizer)
    obs, _ = env.reset(seed=0)
    done, returns, finished = np.zeros(a.streams, bool), np.zeros(a.streams), []
    steps, start = 0, time.perf_counter()
    while steps < a.check:
        with torch.inference_mode():
            weights, noise = net.frozen(), net.noise(a.unroll, a.streams)
            for t in range(a.unroll):
                rows.obs[t] = torch.from_numpy(obs)
                net.act(weights, rows.obs[t], noise[t], rows.action[t], rows.logp[t])
                obs, reward, terminated, truncated, _ = env.step(rows.action[t].numpy())
                rows.mask[t] = torch.from_numpy(~done)
                rows.reward[t] = torch.from_numpy(reward.astype(np.float32))
                rows.bootstrap[t] = torch.from_numpy(~terminated)
                returns += reward
                done = terminated | truncated
                finished += returns[done].tolist()
                returns[done] = 0.0
            rows.obs[-1] = torch.from_numpy(obs)
        learn(net, opt, rows)
        steps += a.unroll * a.streams
    took = time.perf_counter() - start
    last = finished[-500:]
    return {
        "check": "one loop, one core",
        "steps_per_s": round(steps / took),
        "steps": steps,
        "seconds": round(took, 1),
        "return_first_500": round(statistics.fmean(finished[:500]), 1),
        "return_last_500": round(statistics.fmean(last), 1),
        "learns": statistics.fmean(last) >= 195,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=tuple(CASES), default="cartpole")
    parser.add_argument(
        "--vector",
        choices=sorted({v for c in CASES.values() for v in c.vectors}),
        help="the kind of env",
    )
    parser.add_argument("--streams", type=int, help="envs of one actor, so the rows of one act")
    parser.add_argument("--unroll", type=int, help="T")
    parser.add_argument("--batch", type=int, help="unrolls of one learner step, B")
    parser.add_argument("--optimizer", choices=("adam", "rmsprop"), default="adam")
    parser.add_argument(
        "--allocator",
        choices=("keep", "default"),
        default="keep",
        help="keep: glibc gives no memory back",
    )
    parser.add_argument("--cores", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each piece in each round")
    parser.add_argument(
        "--check",
        type=int,
        default=0,
        metavar="STEPS",
        help="instead: train that long, show the return",
    )
    a = parser.parse_args()
    case = CASES[a.case]
    a.vector = a.vector or case.vectors[0]
    if a.vector not in case.vectors:
        parser.error(
            f"--vector: of {a.case} expected one of {', '.join(case.vectors)}, got {a.vector}"
        )
    if a.check and a.case != "cartpole":
        parser.error(f"--check: expected --case cartpole, got {a.case}")
    for name in ("streams", "unroll", "batch"):
        setattr(a, name, getattr(a, name) or getattr(case, name))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if a.allocator == "keep" and not keep_memory():
        print(
            "note: no mallopt here, so memory is returned and faulted in again; learn is slower "
            "for it",
            file=sys.stderr,
        )
    if a.check:
        result = check(a)
        print(json.dumps(result), flush=True)
        return 0 if result["learns"] else 1
    result = measure(a)
    print(json.dumps(result), flush=True)
    worst = max(
        w / c
        for w, c in zip(result["wall_us_per_step"].values(), result["core_us_per_step"].values())
    )
    if worst > 1.05 or max(result["spread"].values()) > 1.2:
        print(
            "note: others used these cores meanwhile (see wall against core time, and spread)",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
