"""Preferences with two learners: each has the rows of both, and the reward of one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.algorithms.ppo import PPO
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.row_gather import gathered, kept_rows
from equipoise.rewards.terms import Terms, built
from equipoise.types import Batch, Rewards, Trajectory
from tests.algorithms.items import DISCRETE, batch, drawn, generator, network
from tests.conftest import descendants
from tests.learners.several import share, streams_of, together
from tests.rewards.preferences.test_loop import REPLAY, SYNTHETIC, content, finish, program

pytestmark = pytest.mark.usefixtures("one_thread")
LONG, STREAMS, UPDATES = 6, 8, 8
SETTINGS: dict[str, Any] = {
    "teacher": "synthetic",
    "segment": 4,
    "every": 2 * LONG * STREAMS,
    "first": 10,
    "queries": 6,
    "labels": 30,
    "hidden": (8,),
}


def batches() -> list[Batch]:
    made = []
    for n in range(UPDATES):
        data = drawn(DISCRETE, LONG, STREAMS, n)
        logp = -torch.rand(data.shape, generator=generator(n))
        context = {"stream": torch.arange(STREAMS), "start": torch.full((STREAMS,), n * LONG)}
        behaviour = {"logp": logp, "value": logp}
        made.append(batch(replace(data, behaviour=behaviour, context=context)))
    return made


def terms(store: Path) -> Terms:
    rewards = Rewards(sum="preferences", terms={"preferences": SETTINGS | {"store": str(store)}})
    return built(rewards, PPO(), DISCRETE, 5)


def learner(terms: Terms, net: Any, given: list[Batch], **more: Any) -> Learner:
    made = Learner(
        PPO(hidden=(16,), epochs=1, minibatches=1),
        net,
        rewards=Rewards(sum="preferences"),
        terms=terms,
        schedule_updates=99,
        seed=3,
        batch=STREAMS,
        **more,
    )
    for one in given:
        made.collect(one.data)
        made.step(one)
    return made


def test_rows_of_two_learners_are_put_together_in_the_order_of_their_streams() -> None:
    data = batches()[0].data
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # learner r has the streams s mod 2 = r
    every: tuple[Any, ...] = (slice(None), order)
    fields = {
        name: tree.map(lambda x, at=(order if name == "context" else every): x[at], field)
        for name, field in replace(data, state={}).fields().items()
    }
    mixed = Trajectory(**fields)

    def work(rank: int, pool: Any) -> Any:
        mine = kept_rows(streams_of(mixed, slice(4 * rank, 4 * rank + 4)))
        return gathered([mine], pool), gathered([], pool)

    for found, none in together(2, work):
        assert none is None
        for one, other in zip(
            tree.leaves(found.fields()),
            tree.leaves(tree.on_host(replace(data, state={}).fields())),
            strict=True,
        ):
            assert one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.thorough
def test_two_learners_have_the_reward_of_one(tmp_path: Path) -> None:
    given = batches()
    # by one thread: torch has one seed
    nets = [network(PPO(hidden=(16,), epochs=1, minibatches=1), DISCRETE, 0) for _ in range(3)]
    shared = [terms(tmp_path / name) for name in ("one", "two", "two")]

    def work(rank: int, pool: Any) -> Learner:
        mine = [share(one, rank, 2) for one in given]
        return learner(shared[1 + rank], nets[1 + rank], mine, parameters=Flat(pool))

    one = learner(shared[0], nets[0], given)
    two = together(2, work)
    assert content(tmp_path / "two") == content(tmp_path / "one")
    states = [made.state()["terms"]["preferences"]["own"] for made in (one, *two)]
    assert states[0]["fitted"] and states[0]["rounds"] == UPDATES // 2
    for path, wanted in tree.items(states[0]):
        for state in states[1:]:
            found = dict(tree.items(state))[path]
            if path == "numbers/kl":  # of the policy, whose sums are in another order
                np.testing.assert_allclose(found, wanted, rtol=1e-4)
            elif path != "run":
                assert np.array_equal(np.asarray(found), np.asarray(wanted)), path
    for name, wanted in one.params().items():
        assert torch.equal(two[0].params()[name], two[1].params()[name])
        torch.testing.assert_close(two[0].params()[name], wanted, rtol=1e-4, atol=1e-5)


def two(
    folder: Path, out: str, steps: int = 384, on: Any = "serial", algorithm: str = "ppo"
) -> Any:
    settings = (*SYNTHETIC, *(REPLAY if algorithm == "sac" else ()))
    sizes: dict[str, Any] = {"learners": 2, "actors": 2, "envs_per_actor": 2}
    one = program(folder / f"store-{out}", steps, *settings, algorithm=algorithm, **sizes)
    return api.start(one, on=on, out=folder / out)


@pytest.mark.thorough
def test_a_run_with_two_learners_goes_on_and_loses_a_learner(tmp_path: Path) -> None:
    whole = finish(two(tmp_path, "whole"))
    finish(two(tmp_path, "half", 192))
    assert finish(api.start(resume=tmp_path / "half", steps=384)) == whole
    run, killed = two(tmp_path, "process", on="process"), list[int]()
    for report in run:
        if not killed and report.metrics.get("preferences_labels", 0) >= 12:
            killed += [int(one.split()[0]) for one in descendants() if one.endswith("learner 1")]
            os.kill(killed[0], signal.SIGKILL)
    assert killed and run.summary["params_sha256"] == whole
    for name in ("process", "half"):
        assert content(tmp_path / f"store-{name}") == content(tmp_path / "store-whole")


@pytest.mark.thorough
def test_two_learners_with_a_replay_each_are_the_same_in_processes(tmp_path: Path) -> None:
    found = [finish(two(tmp_path, on, on=on, algorithm="sac")) for on in ("serial", "process")]
    assert found[0] == found[1]
    assert content(tmp_path / "store-serial") == content(tmp_path / "store-process")
    assert len(content(tmp_path / "store-serial")[1]) >= 16
