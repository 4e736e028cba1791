"""What the scripts here share: their options, the window that is measured, and the one line that
each prints last.

Runs in the environment of every peer, so it needs torch, NumPy and what they have in common of
Gymnasium, nothing else.
"""

import argparse
import importlib.metadata
import json
import time

ENVS = {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v5", "pong": "ALE/Pong-v5"}


def options(doc, cases, **defaults):
    """``defaults``: further options with a number each; 0 stands for what the script chooses by the
    case.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("case", choices=cases)
    parser.add_argument("--seconds", type=float, default=30, help="the window")
    parser.add_argument("--warmup", type=float, default=10)
    for name, default in defaults.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser


class Window:
    """From the first mark after the warm-up to the first that is ``seconds`` later; marks stand
    between whole iterations.
    """

    def __init__(self, a):
        self.seconds, self.warmup, self.start = a.seconds, a.warmup, time.time()
        self.first = self.last = None

    def mark(self, env_steps, updates):
        """``updates``: optimiser steps so far. True once the window is full."""
        now = time.time()
        if self.first is None:
            if now - self.start >= self.warmup and updates:
                self.first = (now, env_steps, updates)
            return False
        self.last = (now, env_steps, updates)
        return now - self.first[0] >= self.seconds and env_steps > self.first[1]


class Parameters:
    """The trained tensors by name, as they were when this was made and as they are now."""

    def __init__(self, named):
        self.now = dict(named)
        self.before = {name: p.detach().clone() for name, p in self.now.items()}

    def moved(self, now=None):
        """Euclidean distance from the first values."""
        now = now or self.now
        return (
            sum(
                float((now[name].detach() - p).double().square().sum())
                for name, p in self.before.items()
            )
            ** 0.5
        )

    def shapes(self):
        return sorted((list(p.shape) for p in self.before.values()), reverse=True)

    def count(self):
        return sum(p.numel() for p in self.before.values())


def pong(stack):
    """One Python env of the work that all do: no sticky actions, 4 frames a step, 84 x 84 grey,
    stacked with ``stack``.
    """
    import ale_py.env
    import gymnasium as gym

    if hasattr(gym, "register_envs"):
        gym.register_envs(ale_py)
    if "ALE/Pong-v5" in gym.registry:
        env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    else:  # Gymnasium before 1.0 and this ale_py do not know each other
        env = ale_py.env.AtariEnv("pong", frameskip=1, repeat_action_probability=0.0)
        env.spec = type(gym.spec("CartPole-v1"))("PongNoFrameskip-v4")
    return stack(gym.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=84), 4)


def emit(
    a,
    distribution,
    window,
    parameters,
    *,
    env,
    observation,
    actions,
    minibatch,
    after=None,
    frame_skip=1,
    sticky=None,
    precision="fp32",
    **settings,
):
    """The result. ``observation``: the shape of one; ``minibatch``: rows of an optimiser step;
    ``after``: the last weights.
    """
    (t0, s0, u0), (t1, s1, u1) = window.first, window.last
    steps, updates = s1 - s0, u1 - u0
    work = {
        "env": env,
        "frame_skip": frame_skip,
        "sticky": sticky,
        "observation": [int(n) for n in observation],
        "actions": int(actions),
        "parameters": parameters.count(),
        "shapes": parameters.shapes(),
        "precision": precision,
        "passes": round(updates * minibatch / steps, 3),
        "updates": updates,
        "moved": parameters.moved(after),
    }
    result = {
        "peer": distribution,
        "version": importlib.metadata.version(distribution),
        "value": round(steps / (t1 - t0), 1),
        "measured_s": round(t1 - t0, 1),
        "work": work,
        "settings": {**vars(a), **settings},
    }
    print(json.dumps(result), flush=True)
