"""What an env step costs on the wire, against arithmetic by hand."""

from __future__ import annotations

import pytest
from bytes_per_step import allowed, cost

from equipoise import api
from equipoise.experience.queue.outbound import block_bytes
from equipoise.plans.memory_needed import queue_plan
from equipoise.plans.plan import plan_run
from equipoise.runtime.cluster.frames import HEAD


def test_the_rows_of_cartpole_cost_what_their_fields_have() -> None:
    made = api.program(
        "CartPole-v1",
        "impala",
        recipe=False,
        actors=2,
        envs_per_actor=3,
        unroll=10,
        batch=6,
        max_lag=1,
    )
    one = cost(made)
    obs, first = 11 * 4 * 4, 11  # T + 1 rows
    others = 10 * (8 + 4 + 4 + 1 + 1 + 8)  # action, logp, reward, mask, bootstrap, version
    stream = 2 * 8  # the context: stream, start
    block = 3 * (obs + first + others + stream)
    # fields begin at a multiple of 64
    assert one.rows * 30 - HEAD == pytest.approx(block, abs=8 * 64)
    assert one.rows * 30 - HEAD == pytest.approx(block_bytes(queue_plan(plan_run(made))))
    assert one.asked * 30 == 2 * HEAD + 8  # a want, and a grant with one version


def test_a_longer_unroll_and_more_envs_share_what_a_message_costs() -> None:
    def of(envs: int, unroll: int) -> float:
        made = api.program(
            "CartPole-v1",
            "impala",
            recipe=False,
            actors=2,
            envs_per_actor=envs,
            unroll=unroll,
            batch=2 * envs,
            max_lag=1,
        )
        return cost(made).asked

    assert of(1, 16) == 4 * of(1, 64) == 8 * of(2, 64)


@pytest.mark.parametrize(
    ("actors", "said"),
    [(100, ""), (1_000, "expected at most 240"), (10_000, "room for 4,096 blocks")],
)
def test_a_run_says_how_many_actors_it_may_have(actors: int, said: str) -> None:
    why = allowed("CartPole-v1", "impala", actors, envs_per_actor=4)
    assert said in why and bool(said) is bool(why)
