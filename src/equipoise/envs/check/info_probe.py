"""A short walk before a run: do the metrics that it is to report appear in the env's ``info``?"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from equipoise.envs.check.drawn import Drawn
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.making import make
from equipoise.hints import nearest
from equipoise.types import EnvFactory

STEPS, EPISODES, SECONDS = 2000, 2, 2.0  # limits of a walk


def unseen(factory: EnvFactory, names: Sequence[str], *, seed: int) -> list[str]:
    """A sentence for each name that did not appear (yet), with the nearest; NoNumber for another
    type.
    """
    env = make(
        factory,
        streams=np.arange(1),
        seed=seed,
        failures=Failures(on_nonfinite="drop"),
        metrics=names,
    )
    assert env.infos is not None
    seen = env.infos.seen = set[str]()
    drawn = Drawn(env, STEPS, seed)
    until = time.monotonic() + SECONDS
    steps = episodes = 0
    try:
        ts = env.recv()
        while (
            steps < STEPS
            and episodes < EPISODES
            and time.monotonic() < until
            and not seen.issuperset(names)
        ):
            env.send(drawn(steps, ts), ts.stream)
            ts = env.recv()
            steps += 1
            episodes += int(ts.terminated[0] or ts.truncated[0])
    finally:
        env.close()
    walk = f"{steps:,} random steps ({episodes} episode{'' if episodes == 1 else 's'} ended)"
    return [
        f"warning: metrics: no {name!r} in the env's info within {walk}; {said(name, seen)}"
        for name in names
        if name not in seen
    ]


def said(name: str, seen: set[str]) -> str:
    if not seen:
        return "it had nothing"
    near = nearest(name, seen)
    return (f"did you mean {near!r}? " if near else "") + f"it had {', '.join(sorted(seen))}"
