"""The rows of the matrix, as data: what runs, with which options, and what is compared with what.

The settings of the peers, and ours, are the fastest of a few that were tried on two cores; an
expert may find faster ones, and those of the peers are options of the scripts in ``peers/``. One
pass over the data everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from equipoise.nets.precision import native_bf16
from equipoise.types import Precision

PRECISION: Precision = (
    "bf16" if native_bf16() else "fp32"
)  # of rows with convolutions: no processor is asked for numbers that it emulates

SINGLE = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "MKL", "OPENBLAS")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    case: str
    kind: Literal["ours", "bound", "peer"]
    # ours: arguments of `equipoise train`; bound: of pieces.py, after "OF" the row whose sizes it
    # takes; a script
    command: str
    what: str
    venv: str | None = None  # of peers/setup.sh; None: our own
    env: dict[str, str] = field(default_factory=dict)  # of the process
    warmup: float = 0.0  # seconds at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    ours: str
    peers: tuple[str, ...]  # the best of these
    target: float


SHARED = "--max-lag 1 --set algorithm.shared=true"  # one torso, as in the peers and in pieces.py
LONG = "--steps 1000G"  # fewer where envs are slow: a run reports 200 times, or every 50,000 steps

ROWS: dict[str, Row] = {
    # ---------------------------------------------------------------------------------- CartPole-v1
    "cartpole-native": Row(
        case="cartpole",
        kind="ours",
        what="Gymnasium's native vector env",
        command=f"CartPole-v1 --actors 1 --envs-per-actor 512 --unroll 16 --batch 512 {SHARED} "
        f"{LONG}",
    ),
    "cartpole-bound": Row(
        case="cartpole",
        kind="bound",
        what="2 cores / (env + act + learn)",
        command="OF cartpole-native",
    ),
    "cartpole-sf-serial": Row(
        case="cartpole",
        kind="peer",
        venv="sf",
        command="run_sf.py cartpole serial",
        what="Sample Factory, serial, one EnvPool of 256, batch 8192; threads as it chooses",
    ),
    "cartpole-sf-serial-1": Row(
        case="cartpole",
        kind="peer",
        venv="sf",
        command="run_sf.py cartpole serial",
        env=SINGLE,
        what="the same with OMP_NUM_THREADS=1: better where two cores are not its alone",
    ),
    "cartpole-envpool": Row(
        case="cartpole",
        kind="ours",
        what="EnvPool's CartPole",
        command="envpool:CartPole-v1 --actors 1 --envs-per-actor 512 --unroll 16 --batch 512 "
        f"{SHARED} {LONG}",
    ),
    "cartpole-python": Row(
        case="cartpole",
        kind="ours",
        what="Python envs",
        command="python:CartPole-v1 --actors 2 --envs-per-actor 128 --unroll 32 --batch 256 "
        f"{SHARED} {LONG}",
    ),
    "cartpole-puffer": Row(
        case="cartpole",
        kind="peer",
        venv="puffer",
        command="run_puffer.py cartpole",
        what="PufferLib, serial, 128 Python envs",
    ),
    "cartpole-sf-async": Row(
        case="cartpole",
        kind="peer",
        venv="sf",
        command="run_sf.py cartpole async",
        what="Sample Factory, two workers x 128 Python envs",
    ),
    "cartpole-sb3": Row(
        case="cartpole",
        kind="peer",
        venv="sb3",
        command="run_sb3.py cartpole",
        what="Stable-Baselines3 PPO, DummyVecEnv 8, batch 2048",
    ),
    "cartpole-rllib": Row(
        case="cartpole",
        kind="peer",
        venv="rllib",
        command="run_rllib.py cartpole",
        what="RLlib IMPALA, two runners x 64, a batch of at least 2000",
    ),
    "cartpole-torchrl": Row(
        case="cartpole",
        kind="peer",
        venv="torchrl",
        command="run_torchrl.py cartpole",
        what="TorchRL PPO, two collectors x 8, batch 2048",
    ),
    # ------------------------------------------------------------------------------- HalfCheetah-v5
    "halfcheetah": Row(
        case="halfcheetah",
        kind="ours",
        what="Gymnasium's env, one a stream, two actors x 64",
        command=f"HalfCheetah-v5 --actors 2 --envs-per-actor 64 --unroll 32 --batch 128 {SHARED} "
        "--steps 4M",
    ),
    "halfcheetah-bound": Row(
        case="halfcheetah",
        kind="bound",
        what="2 cores / (env + act + learn)",
        command="--case halfcheetah OF halfcheetah",
    ),
    "halfcheetah-sf-async": Row(
        case="halfcheetah",
        kind="peer",
        venv="sf",
        command="run_sf.py halfcheetah async",
        what="Sample Factory, two workers x 16 Python envs, batch 1024",
    ),
    "halfcheetah-sf-serial": Row(
        case="halfcheetah",
        kind="peer",
        venv="sf",
        command="run_sf.py halfcheetah serial",
        what="Sample Factory, serial, one EnvPool of 64, batch 4096",
    ),
    "halfcheetah-sb3": Row(
        case="halfcheetah",
        kind="peer",
        venv="sb3",
        command="run_sb3.py halfcheetah",
        what="Stable-Baselines3 PPO, DummyVecEnv 8, batch 2048",
    ),
    "halfcheetah-rllib": Row(
        case="halfcheetah",
        kind="peer",
        venv="rllib",
        command="run_rllib.py halfcheetah",
        what="RLlib IMPALA, two runners x 16, a batch of at least 1024",
    ),
    "halfcheetah-puffer": Row(
        case="halfcheetah",
        kind="peer",
        venv="puffer",
        command="run_puffer.py halfcheetah",
        what="PufferLib, two workers x 32 envs, minibatch 2048",
    ),
    "halfcheetah-torchrl": Row(
        case="halfcheetah",
        kind="peer",
        venv="torchrl",
        command="run_torchrl.py halfcheetah",
        what="TorchRL PPO, two collectors x 8, batch 2048",
    ),
    # -------------------------------------------------------------------------------- Pong, 84x84x4
    "pong": Row(
        case="pong",
        kind="ours",
        what=f"ALE's vector env, {PRECISION}, compiled, channels last",
        warmup=40,
        command=f"ALE/Pong-v5 --set env.repeat_action_probability=0 --precision {PRECISION} --set "
        "placement.compile=true "
        "--threads 1 --actors 2 --envs-per-actor 128 --unroll 20 --batch 128 --max-lag 1 --steps "
        "2M",
    ),
    "pong-bound": Row(
        case="pong",
        kind="bound",
        what="2 cores / (env + act + learn)",
        command="--case pong OF pong",
    ),
    "pong-lean": Row(
        case="pong",
        kind="peer",
        command="run_lean.py pong",
        what="a PPO loop in one file with the same levers, EnvPool 64 x 32, two minibatches",
    ),
    "pong-sf-serial": Row(
        case="pong",
        kind="peer",
        venv="sf",
        command="run_sf.py pong serial",
        what="Sample Factory, serial, one EnvPool of 64, batch 1024",
    ),
    "pong-sf-async": Row(
        case="pong",
        kind="peer",
        venv="sf",
        command="run_sf.py pong async",
        what="Sample Factory, two workers x 8 Python envs, batch 1024",
    ),
    "pong-sb3": Row(
        case="pong",
        kind="peer",
        venv="sb3",
        command="run_sb3.py pong",
        what="Stable-Baselines3 PPO, DummyVecEnv 8, batch 256",
    ),
    "pong-rllib": Row(
        case="pong",
        kind="peer",
        venv="rllib",
        command="run_rllib.py pong",
        what="RLlib IMPALA, a runner x 8, a batch of at least 512",
    ),
    "pong-puffer": Row(
        case="pong",
        kind="peer",
        venv="puffer",
        command="run_puffer.py pong",
        what="PufferLib, two workers x 8 envs, minibatch 1024",
    ),
}

RATIOS = (
    Ratio(ours="cartpole-native", peers=("cartpole-bound",), target=0.65),
    Ratio(ours="cartpole-native", peers=("cartpole-sf-serial", "cartpole-sf-serial-1"), target=4.0),
    Ratio(
        ours="cartpole-envpool", peers=("cartpole-sf-serial", "cartpole-sf-serial-1"), target=4.0
    ),
    Ratio(
        ours="cartpole-python",
        target=2.2,
        peers=(
            "cartpole-puffer",
            "cartpole-sf-async",
            "cartpole-sb3",
            "cartpole-rllib",
            "cartpole-torchrl",
        ),
    ),
    Ratio(ours="halfcheetah", peers=("halfcheetah-bound",), target=0.65),
    Ratio(
        ours="halfcheetah",
        target=2.0,
        peers=tuple(
            f"halfcheetah-{p}"
            for p in ("sf-async", "sf-serial", "sb3", "rllib", "puffer", "torchrl")
        ),
    ),
    Ratio(ours="pong", peers=("pong-bound",), target=0.65),
    Ratio(ours="pong", peers=("pong-lean",), target=1.0),
    Ratio(
        ours="pong",
        peers=tuple(f"pong-{p}" for p in ("sf-serial", "sf-async", "sb3", "rllib", "puffer")),
        target=2.5,
    ),
)
