"""Learners on several machines, each with the actors that feed it (``--cluster
learners_at=actors``).
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from equipoise import files
from equipoise.errors import WorkerFailed
from equipoise.record import checkpoint
from equipoise.runtime.cluster.placing import cells, check_learners
from equipoise.runtime.messages import Cut
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS
from tests.runtime import machines
from tests.runtime.test_cluster import pids

pytestmark = pytest.mark.timeout(300)
SITES = {"site 0": ["learner 1", "actor 1", "actor 3"]}


def blue_of(folder, algorithm="ppo", learners=2, **options):
    return machines.blue_of(folder, "CartPole-v1", algorithm, learners=learners, **options)


def here(blue):
    return machines.finish(ProcessRuntime(blue))


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["impala", "ppo"])
def test_two_learners_on_two_machines_have_the_bits_of_one_machine(tmp_path, algorithm):
    found, now = machines.finish(machines.on_machines(blue_of(tmp_path / "far", algorithm), SITES))
    wanted, before = here(blue_of(tmp_path / "near", algorithm))
    assert found == wanted
    assert now.rows["sampled"] == before.rows["sampled"] == 1280 and now.rows["dropped"] == 0
    assert now.sites["site 0"].received > 0


@pytest.mark.thorough
@pytest.mark.parametrize("inference", ["local", "central"])
def test_four_learners_on_four_machines_have_the_bits_of_one(tmp_path, inference):
    """Under central inference each actor steps envs for two learners, and a machine has all that
    share an actor.
    """
    central = {"inference": "central", "inference_workers": 4} if inference == "central" else {}
    blue = blue_of(tmp_path / "far", "impala", 4, **central)
    apart = [
        cell.titles
        for cell in cells(blue, crew(blue, KINDS), learners_at="actors")
        if "learner" in cell.titles[0]
    ]
    sites = {f"site {number}": titles for number, titles in enumerate(apart)}
    found, now = machines.finish(machines.on_machines(blue, sites))
    wanted, before = here(blue_of(tmp_path / "near", "impala", 4, **central))
    assert found == wanted
    assert now.rows["sampled"] == before.rows["sampled"] and now.rows["dropped"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [1, None])
def test_every_row_is_accounted_for(tmp_path, max_lag):
    _, now = machines.finish(
        machines.on_machines(blue_of(tmp_path, "impala", max_lag=max_lag, steps=6400), SITES)
    )
    rows = now.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert rows["sampled"] >= 6400
    assert rows["dropped"] == 0


def until_cut(runtime, blue, save):
    """Run until a checkpoint, keep it where ``save`` is, and stop at once."""
    end = time.monotonic() + machines.LIMIT_S
    while time.monotonic() < end:
        for message in runtime.poll(0.05):
            if isinstance(message, Cut):
                assert message.error is None, message.error
                assert {"learner_1.safetensors", "experience_1.safetensors"} <= message.files.keys()
                meta = files.json_bytes({"version": message.version, "env_steps": message.step})
                whole = message.files | checkpoint.add(
                    checkpoint.aside(save, message.step), checkpoint.META, meta
                )
                checkpoint.complete(save, message.step, whole)
                return
    raise AssertionError("no cut")


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["machines", "one machine"])
def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not_disturbed(tmp_path, to):
    """Also where the learners come to be on other machines than before."""
    given = {"checkpoint_every": 640}
    wanted, _ = here(blue_of(tmp_path / "near", **given))
    blue = blue_of(tmp_path / "far", **given)
    runtime = machines.on_machines(blue, SITES)
    try:
        until_cut(runtime, blue, tmp_path / "far")
    finally:
        runtime.stop()
    source = checkpoint.choose(tmp_path / "far", skipped=[])
    assert source is not None
    again = replace(blue_of(tmp_path / "again", **given), resume=source)
    made = machines.on_machines(again, SITES) if to == "machines" else ProcessRuntime(again)
    found, now = machines.finish(made)
    assert found == wanted
    assert now.rows["inserted"] == now.rows["sampled"] + now.rows["held"]


def poll_until(runtime, end):
    while time.monotonic() < end:
        runtime.poll(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["learner 1", "learner", "site 0"])
def test_where_a_learner_is_lost_the_ring_begins_again(tmp_path, victim):
    nodes = machines.Processes()
    runtime = machines.on_machines(blue_of(tmp_path, steps=2_000_000, max_lag=1), SITES, nodes)
    end = time.monotonic() + machines.LIMIT_S
    try:
        while runtime.stats().version < 3:
            assert time.monotonic() < end
            runtime.poll(0.05)
        if victim == "site 0":
            nodes.kill("site 0")
        else:
            os.kill(pids(victim)[0], signal.SIGKILL)
        with pytest.raises(WorkerFailed) as caught:
            poll_until(runtime, end)
        assert caught.value.vital
        assert not caught.value.final
    finally:
        runtime.stop()


@pytest.mark.thorough
def test_an_actor_beside_a_learner_elsewhere_is_replaced(tmp_path):
    """Its machine has the queue, so that the block it had is dealt again there."""
    runtime = machines.on_machines(blue_of(tmp_path, "impala", steps=60_000, max_lag=1), SITES)
    killed = []

    def each(messages):
        if not killed and runtime.stats().version > 5 and (found := pids("actor 3")):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    _, now = machines.finish(runtime, each)
    assert killed
    rows = now.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.thorough
def test_a_machine_with_a_learner_that_will_be_taken_away_costs_a_checkpoint(tmp_path):
    nodes = machines.Processes()
    runtime = machines.on_machines(
        blue_of(tmp_path, "impala", steps=2_000_000, max_lag=1), SITES, nodes
    )
    end, said = time.monotonic() + machines.LIMIT_S, []
    try:
        while not any(isinstance(one, Cut) for one in said):
            assert time.monotonic() < end, said
            said += runtime.poll(0.05)
            if runtime.stats().version > 3:
                nodes.drained.add("site 0")
        assert any("site 0 has a learner" in getattr(one, "text", "") for one in said)
    finally:
        runtime.stop()


def test_a_cell_is_a_learner_with_the_actors_that_feed_it(tmp_path):
    blue = blue_of(tmp_path)
    found = cells(blue, crew(blue, KINDS), learners_at="actors")
    assert [cell.titles for cell in found] == [
        ("actor 0",),
        ("actor 2",),
        ("learner 1", "actor 1", "actor 3"),
    ]
    assert [cell.actors for cell in found] == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learners": 1}, "learners 2 or more, got one with 1"),
        ({"algorithm": "dqn", "batch": 32}, "a run without a replay"),
        ({"inference": "central"}, "inference_at=actors, got home"),
        ({"balance": "auto", "max_lag": 1}, "--balance off"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, given, said):
    blue = blue_of(tmp_path, **{"algorithm": "impala", **given})
    with pytest.raises(ValueError, match=said) as caught:
        check_learners(blue, "home")
    assert "\n" not in str(caught.value)
