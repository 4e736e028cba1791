"""JAX envs: what a step costs beyond the library's own jitted loop, and PPO beside one that is a
single program of XLA.

    .venv-jax/bin/python benchmarks/jax_envs.py loops [--ids gymnax/CartPole-v1,...] [--streams
    4096] [--steps 200] [--rounds 5] .venv-jax/bin/python benchmarks/jax_envs.py ppo [--streams 64]
    [--unroll 32] [--steps 1M] [--rounds 3]

``make test-jax`` makes ``.venv-jax``. ``loops`` steps as many streams with the same actions, in
turns, in three ways:

    own   the library's own step and reset, vmapped and jitted, one call a step
    scan  the same as one program of many steps, which leaves no room for a policy of another
    library ours  ``JaxEnv.step``, tensors in and tensors out

The ratios are those of the medians. ``ppo`` learns CartPole by our recipe through ``train``, on one
thread, and by ``peers/fused_ppo.py``. The fused rate is without compilation; ours has the env's in
it, about two seconds. The last column says what our time is spent on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from gymnasium import spaces
from harness import host, table

from equipoise import api
from equipoise.device_envs.naming import make_device_env
from equipoise.programs.settings import convert

IDS = "gymnax/CartPole-v1,brax/ant,playground/CartpoleBalance,craftax/Craftax-Symbolic-v1"
Loop = Callable[[int], None]  # does so many steps


def of_gymnax(name: str, streams: int) -> tuple[Any, Any]:
    import gymnax

    env, params = gymnax.make(name)
    return _like_gymnax(env, params, streams)


def of_craftax(name: str, streams: int) -> tuple[Any, Any]:
    from craftax.craftax_env import make_craftax_env_from_name as make

    env = make(name, auto_reset=True)
    return _like_gymnax(env, env.default_params, streams)


def _like_gymnax(env: Any, params: Any, streams: int) -> tuple[Any, Any]:
    _, state = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(jax.random.key(0), streams), params
    )

    def step(carry: Any, action: Any) -> tuple[Any, Any]:
        key, state = carry
        key, now = jax.random.split(key)
        obs, state, *rows = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(now, streams), state, action, params
        )
        return (key, state), (obs, *rows[:-1])

    return (jax.random.key(1), state), step


def of_brax(name: str, streams: int) -> tuple[Any, Any]:
    from brax import envs

    return _like_brax(envs.create(name, batch_size=streams), jax.random.key(0))


def of_playground(name: str, streams: int) -> tuple[Any, Any]:
    from mujoco_playground import registry, wrapper

    env = registry.load(name, config_overrides={"impl": "jax"})
    return _like_brax(
        wrapper.wrap_for_brax_training(env), jax.random.split(jax.random.key(0), streams)
    )


def _like_brax(env: Any, keys: Any) -> tuple[Any, Any]:
    def step(state: Any, action: Any) -> tuple[Any, Any]:
        state = env.step(state, action)
        return state, (state.obs, state.reward, state.done)

    return jax.jit(env.reset)(keys), step


OWN = {"gymnax": of_gymnax, "craftax": of_craftax, "brax": of_brax, "playground": of_playground}


def loops(name: str, streams: int) -> dict[str, Loop]:
    """The three loops over one env."""
    library, _, env_name = name.partition("/")
    ours = make_device_env(f"jax:{name}", {}, streams=streams)
    carry, step = OWN[library](env_name, streams)
    if isinstance(ours.action, spaces.Discrete):
        action = torch.randint(int(ours.action.n), (streams,))
        theirs = jnp.asarray(action.numpy().astype("int32"))
    else:
        action = torch.rand(streams, *(ours.action.shape or ())) * 2 - 1
        theirs = jnp.asarray(action.numpy())
    once, many = (
        jax.jit(step),
        jax.jit(lambda carry, n: jax.lax.fori_loop(0, n, lambda _, c: step(c, theirs)[0], carry)),
    )
    places = {"own": carry, "scan": carry, "ours": ours.reset(0, torch.arange(streams))[0]}

    def own(steps: int) -> None:
        for _ in range(steps):
            places["own"], rows = once(places["own"], theirs)
            jax.block_until_ready(rows)  # a policy needs them before it acts

    def scanned(steps: int) -> None:
        places["scan"] = jax.block_until_ready(many(places["scan"], steps))

    def stepped(steps: int) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                places["ours"], _ = ours.step(places["ours"], action)

    return {"own": own, "scan": scanned, "ours": stepped}


def compare_loops(args: argparse.Namespace) -> None:
    lines = []
    for name in args.ids.split(","):
        made = loops(name, args.streams)
        for loop in made.values():
            loop(2)  # compiled
        found: dict[str, list[float]] = {key: [] for key in made}
        for _ in range(args.rounds):
            for key, loop in made.items():
                began = time.perf_counter()
                loop(args.steps)
                found[key].append((time.perf_counter() - began) / args.steps)
        median = {key: statistics.median(times) for key, times in found.items()}
        rates = [f"{args.streams / median[key]:,.0f}" for key in made]
        lines.append(
            [
                name,
                *rates,
                f"{median['scan'] / median['own']:.2f}",
                f"{median['ours'] / median['own']:.2f}",
            ]
        )
    print(
        table(
            [
                "env",
                "own steps/s",
                "scan steps/s",
                "ours steps/s",
                "time: scan / own",
                "ours / own",
            ],
            lines,
        )
    )


def ours_ppo(args: argparse.Namespace) -> dict[str, Any]:
    made = api.program(
        "jax:gymnax/CartPole-v1",
        "ppo",
        steps=args.steps,
        unroll=args.unroll,
        batch=args.streams,
        envs_per_actor=args.streams,
        evaluate_episodes=0,
        threads=1,
        checkpoint_every=0,
        precision="fp32",
    )
    with tempfile.TemporaryDirectory() as out:
        with api.start(made, on="serial", out=Path(out) / "run", tensorboard=False) as going:
            for _ in going:
                pass
        assert going.summary is not None
        summary = going.summary
    worked = {name: float(one["worked"]) for name, one in summary["balance"].items()}
    return {
        "steps_per_s": summary["steps_per_s"],
        "worked": worked,
        "parts": summary.get("parts"),
        "wall_s": summary["wall_s"],
    }


def compare_ppo(args: argparse.Namespace) -> None:
    words = ["--streams", args.streams, "--unroll", args.unroll, "--steps", args.steps]
    peer = [sys.executable, str(Path(__file__).parent / "peers" / "fused_ppo.py"), *map(str, words)]
    lines, ratios = [], []
    for _ in range(args.rounds):
        ours = ours_ppo(args)
        fused = json.loads(
            subprocess.run(peer, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        )
        spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in ours["worked"].items())
        lines.append(
            [
                f"{ours['steps_per_s']:,.0f}",
                f"{fused['steps_per_s']:,.0f}",
                spent,
                f"{fused['compile_s']:.1f}",
            ]
        )
        ratios.append(ours["steps_per_s"] / fused["steps_per_s"])
    print(table(["ours steps/s", "fused steps/s", "ours worked", "fused: compile s"], lines))
    print(f"ours / fused = {statistics.median(ratios):.3f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="JAX envs beside their own loops, and PPO beside a fused one"
    )
    parser.add_argument("what", choices=("loops", "ppo"))
    parser.add_argument("--ids", default=IDS)
    parser.add_argument("--streams", type=int)
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--steps", type=lambda text: convert(text, int, "--steps"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    loops = args.what == "loops"
    args.streams = args.streams or (4096 if loops else 64)
    args.steps = args.steps or (200 if loops else 1_000_000)
    print(json.dumps(host()))
    torch.set_num_threads(1)
    (compare_loops if loops else compare_ppo)(args)


if __name__ == "__main__":
    main()
