"""The model against rings whose rates follow from arithmetic."""

from dataclasses import replace

import pytest

from equipoise.balance.model import Node, Ring, Work, predict

ENV, LEARN = Work(cpu_s=0.0, sleep_s=0.1), Work(cpu_s=0.0, sleep_s=0.05)
RING = Ring(steps=100, per_batch=4, max_lag=0, actors=(ENV,) * 4, learn=(LEARN,), cores=2)


def rate(**changes):
    return predict(replace(RING, **changes)).steps_per_s


def test_in_lockstep_acting_and_learning_follow_each_other():
    found = predict(RING)
    assert found.steps_per_s == pytest.approx(400 / 0.15, rel=0.01)
    assert found.lag == 0.0
    assert found.workers["actor 0"].blocked == pytest.approx(1 / 3, abs=0.02)
    assert found.workers["learner"].starved == pytest.approx(2 / 3, abs=0.02)


@pytest.mark.parametrize("max_lag", [1, 2, None])
def test_with_a_lag_they_overlap(max_lag):
    assert rate(max_lag=max_lag) == pytest.approx(400 / 0.1, rel=0.02)
    assert rate(max_lag=max_lag, learn=(LEARN.times(4),)) == pytest.approx(400 / 0.2, rel=0.02)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_lag_is_bounded_where_actors_are_many(max_lag):
    found = predict(replace(RING, actors=(ENV,) * 32, max_lag=max_lag, learn=(LEARN.times(4),)))
    assert max_lag - 1 <= found.lag <= max_lag


def test_more_actors_than_a_batch_has_blocks_wait_in_lockstep():
    assert rate(actors=(ENV,) * 8) == pytest.approx(400 / 0.15, rel=0.01)
    assert rate(actors=(ENV,) * 8, max_lag=1) == pytest.approx(800 / 0.15, rel=0.05), (
        "a place is written and learned from"
    )


def test_a_straggler_holds_up_those_that_are_in_order_and_not_the_others():
    slow = (*RING.actors[1:], ENV.times(20))
    assert rate(actors=slow, max_lag=1) == pytest.approx(800 / 2.05, rel=0.05), (
        "all places, once for each of its blocks"
    )
    assert rate(actors=slow, max_lag=None, learn=(LEARN.times(0.01),)) == pytest.approx(
        100 * (3 / 0.1 + 1 / 2.0), rel=0.05
    )


def test_in_lockstep_each_actor_has_its_share_of_the_blocks():
    """Who is fast does not take a block of who is slow: the blocks of a run do not depend on the
    order of arrival.
    """
    pair = (ENV, ENV.times(10))
    assert rate(actors=pair, max_lag=0) == pytest.approx(400 / (2 * 1.0 + 0.05), rel=0.01)
    assert rate(actors=pair, max_lag=1) > 1.5 * 400 / (2 * 1.0 + 0.05)


def test_cores_are_shared():
    busy = Work(cpu_s=0.1)
    ring = {"actors": (busy,) * 4, "learn": (busy,), "max_lag": 1}
    assert rate(**ring) == pytest.approx(400 / (5 * 0.1 / 2), rel=0.05)
    assert rate(**ring, cores=8) == pytest.approx(400 / 0.1, rel=0.05)
    found = predict(replace(RING, **ring)).workers["actor 0"]
    assert found.worked + found.preempted == pytest.approx(1.0, abs=0.02)
    assert found.preempted == pytest.approx(0.6, abs=0.05)


def test_a_learner_of_two_threads_has_two_cores():
    threads = replace(Work(cpu_s=0.1), threads=2)
    assert rate(learn=(threads,), actors=(Work(cpu_s=1e-6),) * 4) == pytest.approx(
        400 / 0.1, rel=0.01
    )
    assert rate(learn=(threads,), actors=(Work(cpu_s=1e-6),) * 4, cores=1) == pytest.approx(
        400 / 0.2, rel=0.01
    )


def test_servers_act_for_one_at_a_time_while_the_other_half_is_stepped():
    act = Work(cpu_s=0.0, sleep_s=0.1)
    ring = {
        "actors": (ENV,) * 2,
        "servers": (act,),
        "max_lag": 2,
        "learn": (Work(cpu_s=0.0, sleep_s=0.01),),
    }
    assert rate(**ring) == pytest.approx(100 / 0.1, rel=0.05)
    assert rate(**ring | {"actors": (ENV,) * 4}) == pytest.approx(100 / 0.1, rel=0.05)
    assert rate(**ring | {"servers": (act,) * 2, "halves": 2}) == pytest.approx(
        2 * 100 / 0.1, rel=0.05
    )
    assert rate(**ring | {"servers": (act,) * 2}) == pytest.approx(2 * 100 / 0.2, rel=0.05)


def test_learners_wait_for_the_slowest():
    assert rate(max_lag=2, learn=(LEARN, LEARN.times(6)), learners=2) == pytest.approx(
        400 / 0.3, rel=0.02
    )


def test_a_ring_that_cannot_turn_has_no_rate():
    """Fewer places than a batch has blocks: nothing is ever learned from."""
    found = predict(replace(RING, actors=(), max_lag=1))
    assert found.steps_per_s == 0.0


def test_a_node_that_is_lost_works_no_more_until_it_is_back():
    """Ten seconds of work and ninety without, again and again."""
    node = Node(cores=4, lost_s=10.0, back_s=90.0)
    actors = (Work(cpu_s=0.0, sleep_s=0.01),) * 4
    found = predict(
        replace(RING, max_lag=1, nodes=(node,), at=(0,) * 4, actors=actors, learn=(ENV,))
    )
    assert 0.04 < found.steps_per_s / (400 / 0.1) < 0.25


def test_rows_of_a_node_are_as_old_as_its_weights():
    """An actor begins with the weights that its node had then, for all of a long block."""
    ring = replace(
        RING,
        max_lag=None,
        per_batch=1,
        actors=(Work(cpu_s=0.0, sleep_s=4.0),) * 4,
        learn=(Work(cpu_s=0.0, sleep_s=1.0),),
    )
    assert (
        predict(replace(ring, nodes=(Node(cores=1),) * 4, at=(0, 1, 2, 3))).lag
        > predict(ring).lag + 1
    )


def test_a_slow_link_and_a_fast_one_carry_a_block_at_once():
    ring = replace(
        RING, max_lag=0, at=(0,) * 4, nodes=(Node(cores=4, version_s=0.8),), home_version_s=0.8
    )
    assert predict(ring).steps_per_s == pytest.approx(400 / (0.8 + 0.1 + 0.05), rel=0.05)


@pytest.mark.parametrize(
    ("at", "each"), [((), 0.2), ((0, 0, 0, 0), 0.4), ((0, 1, 0, 1), 0.2), ((-1, 0, 1, 2), 0.1)]
)
def test_actors_share_the_cores_of_their_own_machine(at, each):
    """Home has two cores and each node one."""
    found = rate(
        max_lag=None,
        at=at,
        nodes=(Node(cores=1),) * 3,
        actors=(Work(cpu_s=0.1),) * 4,
        learn=(Work(cpu_s=0.0),),
    )
    assert found == pytest.approx(400 / each, rel=0.1)


@pytest.mark.parametrize(("actors", "servers"), [(4, 2), (3, 2), (5, 3), (4, 4), (7, 2)])
def test_an_inference_worker_is_where_its_first_actor_is(actors, servers):
    ring = replace(RING, actors=(ENV,) * actors, servers=(ENV,) * servers, at=tuple(range(actors)))
    of = [((actor + 1) * servers - 1) // actors for actor in range(actors)]
    assert [ring.node_of_server(server) for server in range(servers)] == [
        of.index(server) for server in range(servers)
    ]


def test_work_that_takes_no_time_ends():
    """A model that is asked while a run goes on must answer, whatever it is given."""
    nothing = Work(cpu_s=0.0)
    assert rate(actors=(nothing,) * 4, learn=(nothing,), max_lag=1) > 1e6
