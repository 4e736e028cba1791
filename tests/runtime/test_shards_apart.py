"""Replay shards on several machines, each with the actors that feed it (``--cluster
shards_at=actors``).
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from equipoise import files
from equipoise.errors import WorkerFailed
from equipoise.record import checkpoint, statefile
from equipoise.runtime.cluster.placing import cells, check_shards
from equipoise.runtime.messages import Cut
from equipoise.runtime.process.process import ProcessRuntime
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS
from tests.runtime import machines
from tests.runtime.test_cluster import pids

pytestmark = pytest.mark.timeout(300)
SITES = {"site 0": ["shard 1", "actor 1", "actor 3"]}
BOTH = {"site 0": ["shard 0", "actor 0", "actor 2"], "site 1": ["shard 1", "actor 1", "actor 3"]}
SETTINGS = [
    "replay.shards=2",
    "replay.selector=prioritized",
    "replay.capacity=400",
    "replay.starts_at=128",
    "replay.updates=2",
    "algorithm.hidden=[16]",
    "algorithm.n_step=2",
]
FATES = ("kept", "overwritten", "lost")


def blue_of(folder, algorithm="apex_dqn", settings=(), env="CartPole-v1", **options):
    given = {"unroll": 4, "batch": 16, "steps": 960, "settings": [*SETTINGS, *settings]}
    return machines.blue_of(folder, env, algorithm, **given | options)


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """What the run is on one machine: its parameters, and its last statistics."""
    return machines.finish(ProcessRuntime(blue_of(tmp_path_factory.mktemp("near"))))


def fates(now):
    return {name: now.rows[name] for name in ("sampled", "dropped", *FATES)}


def are_accounted_for(rows):
    """A shard keeps whole blocks, so a little more than its part of ``replay.capacity``."""
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]
    assert rows["sampled"] == sum(rows[name] for name in FATES)
    assert 0 < rows["kept"] <= 416


@pytest.mark.thorough
@pytest.mark.parametrize("sites", [SITES, BOTH], ids=["one away", "both away"])
def test_shards_on_other_machines_have_the_bits_of_one_machine(tmp_path, near, sites):
    found, now = machines.finish(machines.on_machines(blue_of(tmp_path), sites))
    wanted, before = near
    assert found == wanted
    assert fates(now) == fates(before)
    assert now.rows["overwritten"] > 0


@pytest.mark.thorough
def test_it_is_the_run_of_one_thread(tmp_path, near):
    assert machines.finish(machines.ONE_MACHINE["serial"](blue_of(tmp_path)))[0] == near[0]


@pytest.mark.thorough
def test_rows_do_not_cross(tmp_path):
    """Rows of 1,200 bytes stay, all 512 of a round; 16 of them are drawn. What workers count takes
    bytes as time passes.

    The last version is not waited for: its checkpoint brings all rows home, if the run does not end
    before they are there.
    """
    sizes = {
        "env": "tests.envs.wide:Wide",
        "envs_per_actor": 8,
        "unroll": 64,
        "steps": 10_240,
        "settings": ["replay.updates=1", "replay.capacity=8000"],
    }
    received = {}
    for name, sites in (
        ("shards away", BOTH),
        ("shards at home", {"site 0": BOTH["site 0"][1:], "site 1": BOTH["site 1"][1:]}),
    ):
        blue = blue_of(tmp_path / name, **sizes)
        runtime = machines.on_machines(blue, sites)

        def count(_, name=name, blue=blue, runtime=runtime):
            now = runtime.stats()
            if now.version < blue.updates:
                received[name] = sum(site.received for site in now.sites.values())

        machines.finish(runtime, count)
    assert 0 < received["shards away"] < received["shards at home"] / 4, received


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [1, None])
def test_every_row_is_accounted_for(tmp_path, max_lag):
    _, now = machines.finish(
        machines.on_machines(blue_of(tmp_path, max_lag=max_lag, steps=6400), BOTH)
    )
    are_accounted_for(now.rows)
    assert now.rows["sampled"] >= 6400
    assert now.rows["dropped"] == now.rows["lost"] == 0


def until_cut(runtime, save):
    """Run until a checkpoint is whole, keep it where ``save`` is, and stop at once."""
    end, first = time.monotonic() + machines.LIMIT_S, None
    while time.monotonic() < end:
        for message in runtime.poll(0.05):
            if not isinstance(message, Cut):
                continue
            assert message.error is None, message.error
            if message.more:
                first = message
                runtime.release(message)
                continue
            assert (
                first is not None
                and {"shard_0.safetensors", "shard_1.safetensors"} <= message.files.keys()
            )
            meta = files.json_bytes({"version": message.version, "env_steps": message.step})
            named = checkpoint.add(checkpoint.aside(save, message.step), checkpoint.META, meta)
            checkpoint.complete(
                save, message.step, first.files | message.files | named, message.segments
            )
            return
    raise AssertionError("no cut")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("one", "two"), [(SITES, SITES), (BOTH, None), (None, BOTH)], ids=["there", "home", "away"]
)
def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not_disturbed(tmp_path, near, one, two):
    """Also where the shards come to be on other machines than before."""
    wanted, before = near
    blue = blue_of(tmp_path, checkpoint_every=480)
    runtime = machines.on_machines(blue, one) if one else ProcessRuntime(blue)
    try:
        until_cut(runtime, tmp_path)
    finally:
        runtime.stop()
    source = checkpoint.choose(tmp_path, skipped=[])
    assert source is not None and {name.split("/")[0] for name in source.segments} == {
        "shard_0",
        "shard_1",
    }
    again = replace(blue, resume=source)
    found, now = machines.finish(machines.on_machines(again, two) if two else ProcessRuntime(again))
    assert found == wanted
    assert fates(now) == fates(before)
    checkpoint.latest(tmp_path, whole=True, skipped=(skipped := []))
    assert not skipped


@pytest.mark.thorough
def test_rows_that_wait_for_a_shard_are_in_a_checkpoint(tmp_path):
    """With a lag of two rounds some are complete at a cut, and no shard has them."""
    blue = blue_of(tmp_path, max_lag=2, checkpoint_every=480, steps=1920)
    runtime = machines.on_machines(blue, BOTH)
    try:
        until_cut(runtime, tmp_path)
    finally:
        runtime.stop()
    source = checkpoint.choose(tmp_path, skipped=[])
    assert source is not None
    blocks = statefile.parse(source.read("experience.safetensors"), source.path)["blocks"].values()
    assert blocks, "nothing waited"
    for block in blocks:
        assert all((fields["context"]["start"] >= 0).all() for fields in block.values()), (
            "a mark, and no rows"
        )
    _, now = machines.finish(machines.on_machines(replace(blue, resume=source), BOTH))
    are_accounted_for(now.rows)


def until(runtime, holds, each=lambda: None):
    end, said = time.monotonic() + machines.LIMIT_S, []
    while not holds(said):
        assert time.monotonic() < end, said
        said += runtime.poll(0.05)
        each()
    return said


@pytest.mark.thorough
def test_where_a_machine_with_a_shard_is_lost_the_ring_begins_again(tmp_path):
    nodes = machines.Processes()
    runtime = machines.on_machines(blue_of(tmp_path, steps=2_000_000, max_lag=1), SITES, nodes)
    try:
        until(runtime, lambda said: runtime.stats().version > 5)
        nodes.kill("site 0")
        with pytest.raises(WorkerFailed, match="and a shard with it") as caught:
            until(runtime, lambda said: False)
        assert caught.value.vital
        assert not caught.value.final
    finally:
        runtime.stop()


@pytest.mark.thorough
def test_a_machine_with_a_shard_that_will_be_taken_away_costs_a_checkpoint(tmp_path):
    nodes = machines.Processes()
    runtime = machines.on_machines(blue_of(tmp_path, steps=2_000_000, max_lag=1), SITES, nodes)
    try:
        until(runtime, lambda said: runtime.stats().version > 3)
        nodes.drained.add("site 0")
        said = until(runtime, lambda said: any(isinstance(one, Cut) for one in said))
        assert any("site 0 has a shard" in getattr(one, "text", "") for one in said)
    finally:
        runtime.stop()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "victim",
    ["shard 1", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("proxy", "actor 3"))],
)
def test_a_worker_that_is_killed_is_replaced_and_every_row_is_accounted_for(tmp_path, victim):
    """A dead shard's rows are lost, as on one machine; a dead proxy's blocks begin anew."""
    runtime = machines.on_machines(blue_of(tmp_path, steps=8000, max_lag=1), SITES)
    killed = []

    def each(messages):
        if not killed and runtime.stats().version > 30 and (found := pids(victim)):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    _, now = machines.finish(runtime, each)
    assert killed
    are_accounted_for(now.rows)
    assert (now.rows["lost"] > 0) == (victim == "shard 1")


def test_a_cell_is_a_shard_with_the_actors_that_feed_it(tmp_path):
    blue = blue_of(tmp_path)
    found = cells(blue, crew(blue, KINDS), shards_at="actors")
    assert [set(cell.titles) for cell in found] == [set(BOTH["site 0"]), set(BOTH["site 1"])]
    assert [(cell.actors, cell.cores) for cell in found] == [(2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"algorithm": "impala", "settings": None},
            "replay.shards=2 or more, got one without a replay",
        ),
        ({"settings": ["replay.shards=1"]}, "replay.shards=2 or more, got one with 1"),
        ({"learners": 2, "settings": ["replay.shards=4"]}, "learners 1, got one with 2"),
        ({"settings": ["replay.file=ROWS"]}, "a replay in memory, got one with replay.file"),
        ({"inference": "central"}, "inference_at=actors, got home"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, given, said):
    if given.get("settings", ()) is None:
        blue = machines.blue_of(tmp_path, "CartPole-v1", given["algorithm"])
    else:
        named = [one.replace("ROWS", str(tmp_path / "rows")) for one in given.get("settings", ())]
        blue = blue_of(tmp_path, **given | {"settings": named})
    with pytest.raises(ValueError, match=said) as caught:
        check_shards(blue, "home")
    assert "\n" not in str(caught.value)
