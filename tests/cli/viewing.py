"""A process that shows the live view until a key ends it, for tests with a terminal: 3 raises an
error, 4 ends the view.
"""

from __future__ import annotations

import sys
import time

from equipoise.balance.shares import Shares
from equipoise.console.pages import ALARMS, REMEDIES
from equipoise.console.terminal import View
from equipoise.record.report import Report
from equipoise.types import Algorithm, EnvFactory, EnvSource, Placement, Policy, Program, Schedule


class Toy(Algorithm):
    def network(self, spec): ...
    def act(self, net, obs, first, state, *, explore, noise): ...
    def best(self, net, obs, first, state): ...
    def loss(self, net, target_net, batch, *, group, step, rng): ...


PROGRAM = Program(
    source=EnvSource(env=EnvFactory(target="CartPole-v1")),
    policies={"main": Policy(algorithm=Toy(), unroll=32, batch=128)},
    placement=Placement(),
    schedule=Schedule(),
)


def report(wall_s: float) -> Report:
    balance = {
        "actor 0": Shares(worked=6, blocked=4, side="sampling"),
        "learner": Shares(worked=4, starved=6, side="learning"),
    }
    return Report(
        wall_s=wall_s,
        env_steps=1,
        frames=1,
        updates=1,
        steps_per_s=1.0,
        updates_per_s=1.0,
        episodes=0,
        return_mean=None,
        length_mean=None,
        lag_mean=0.0,
        lag_max=0,
        balance=balance,
        cause="Too early to say",
        verdict="Too early to say.",
        remaining_s=None,
    )


if __name__ == "__main__":
    began = time.monotonic()
    with View(PROGRAM, on=sys.argv[1]) as view:
        while view._shown.page != ALARMS:
            view.update(report(time.monotonic() - began))
            if view._shown.page == REMEDIES:
                raise RuntimeError("planted")
            time.sleep(0.02)
    print("the end")
