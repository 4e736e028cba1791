"""What is advised for rings whose costs are known,
and how a ring follows from a changed Program.
"""

from dataclasses import replace

import pytest

from equipoise import api
from equipoise.balance.calibrate import beyond, calibrate, changed, unpredictable
from equipoise.balance.model import predict
from equipoise.balance.remedies import advice, cause, remedies
from equipoise.balance.shares import Shares

SECONDS = 100.0


def program(algorithm="impala", **options):
    given = {
        "actors": 4,
        "envs_per_actor": 4,
        "unroll": 10,
        "batch": 16,
        "max_lag": 1,
        "recipe": False,
    }
    return api.program("CartPole-v1", algorithm, **given | options)


def measured(one, *, block_s, learn_s, rate=None, behind=1.0, cpu=0.0):
    """What workers say that sleep so long for a block and for a batch; ``rate``:
    batches a second.
    """
    of, places = one.placement.actors, 4 * ((one.placement.max_lag or 1) + 1)
    rate = rate or (
        1.0 / max(block_s, learn_s) if behind == 1.0 else places / of / (block_s * behind)
    )
    found = {}
    for k in range(of):
        blocks = (
            rate * SECONDS
            if behind == 1.0
            else SECONDS / (block_s * behind) * (1 if k == 0 else (places - 1) / (of - 1))
        )
        took = blocks * block_s * (behind if k == 0 else 1.0)
        found[f"actor {k}"] = Shares(
            worked=took,
            asleep=took * (1 - cpu),
            blocked=SECONDS - took,
            done=blocks,
            kind="actor",
            side="sampling",
        )
    took = rate * SECONDS * learn_s
    found["learner"] = Shares(
        worked=took,
        asleep=took,
        starved=SECONDS - took,
        done=rate * SECONDS,
        kind="learner",
        side="learning",
    )
    return found


def known(one, **options):
    made = calibrate(one, measured(one, **options), cores=2)
    assert made is not None and made.fit == pytest.approx(1.0, abs=0.06)
    return made


def test_actors_that_sleep_are_helped_by_more_actors():
    found = remedies(known(program(), block_s=0.1, learn_s=0.01))
    more = next(one for one in found if one.change == "--actors 8")
    assert more.gain == pytest.approx(2 * 0.1 / 0.11, rel=0.05), "the 8 places of a lag of 1"
    assert more.low < more.gain < more.high and "8 processes that step envs" in more.costs
    free = remedies(known(program(max_lag=None), block_s=0.1, learn_s=0.01))
    assert free[0].change == "--actors 16" and free[0].gain == pytest.approx(4.0, rel=0.05)


def test_a_learner_that_sleeps_is_helped_by_learners_and_not_by_actors():
    found = remedies(known(program(), block_s=0.02, learn_s=0.1))
    assert found[0].change == "--learners 2" and found[0].gain == pytest.approx(
        100 / 54, rel=0.05
    ), "and 4 ms for the sums"
    assert not any("--actors" in one.change for one in found)


def test_lockstep_is_helped_by_a_lag():
    one = program(max_lag=0)
    found = remedies(known(one, block_s=0.1, learn_s=0.1, rate=5.0))
    lag = next(remedy for remedy in found if remedy.change == "--max-lag 1")
    assert lag.gain == pytest.approx(2.0, rel=0.05) and lag.costs == "rows up to 1 version old"


def test_a_slow_actor_is_named():
    found = remedies(known(program(), block_s=0.01, learn_s=0.01, behind=20.0))
    assert found[0].change == "actor 0 as fast as the others" and found[0].gain > 10
    assert any(one.change == "--max-lag none" for one in found)


def test_nothing_helps_where_all_is_busy():
    assert "no change of one setting" in advice([])


def test_what_is_refused_is_not_advised():
    def refuse(made):
        if made.placement.actors > 4:
            raise ValueError("no memory")

    found = remedies(known(program(), block_s=0.1, learn_s=0.01), allowed=refuse)
    assert found and not any("--actors" in one.change for one in found)


def test_too_little_is_not_judged():
    one = program()
    few = {
        name: replace(shares, done=0.5)
        for name, shares in measured(one, block_s=0.1, learn_s=0.01).items()
    }
    assert calibrate(one, few, cores=2) is None
    assert calibrate(one, {}, cores=2) is None


def test_a_ring_follows_its_program():
    made = known(program(), block_s=0.1, learn_s=0.04)
    ring = changed(made, program(unroll=20, batch=32, actors=6))
    assert (ring.steps, ring.per_batch, len(ring.actors)) == (80, 8, 6)
    assert ring.actors[5].seconds == pytest.approx(0.2)
    assert ring.learn[0].seconds == pytest.approx(0.04 * 4)
    two = changed(made, program(learners=2))
    assert [work.seconds for work in two.learn] == pytest.approx([0.024, 0.024])


def test_updates_of_a_replay_are_the_learner_s_work():
    one = program("dqn", batch=32, settings=["replay.updates=8"])
    made = known(one, block_s=0.01, learn_s=0.1)
    ring = changed(made, program("dqn", batch=32, settings=["replay.updates=2"]))
    assert ring.learn[0].seconds == pytest.approx(0.1 / 4)


def test_a_change_that_the_model_does_not_know_is_refused():
    made = known(program(), block_s=0.1, learn_s=0.04)
    with pytest.raises(ValueError, match=r"^placement\.threads: the model does not cover"):
        changed(made, program(threads=2))
    assert unpredictable(program(), program(settings=["algorithm.hidden=[512]"])) == [
        "algorithm.hidden"
    ]
    assert unpredictable(program(), program(steps=10, seed=3)) == []


def test_learners_of_several_wait_for_sums_whatever_their_number():
    """Twice the learners have half the rows each, and the same sums; one alone has none."""
    one = program(learners=2)
    took = Shares(
        worked=90.0,
        asleep=50.0,
        parts={"all-reduce": 50.0},
        starved=10.0,
        done=1000.0,
        kind="learner",
        side="learning",
    )
    balance = measured(one, block_s=0.01, learn_s=0.1)
    made = calibrate(one, balance | {"learner": took, "learner 1": took}, cores=8)
    assert made is not None and made.sums == pytest.approx(0.05)
    four, alone = (changed(made, program(learners=count)).learn[0] for count in (4, 1))
    assert four.sleep_s == pytest.approx(0.05) and alone.sleep_s == pytest.approx(0.0, abs=1e-9)
    assert alone.cpu_s == pytest.approx(0.04 * 4 / 3) and four.cpu_s == pytest.approx(
        alone.cpu_s * (0.5 + 0.5 / 4)
    )
    again = replace(made, program=program(), ring=changed(made, program()), sums=0.0)
    assert changed(again, one).learn[0].cpu_s == pytest.approx(0.04)


def test_what_the_model_does_not_know_is_said_of_every_room():
    one = program()
    other = api.program(
        "Acrobot-v1",
        "impala",
        actors=4,
        envs_per_actor=4,
        unroll=10,
        batch=16,
        max_lag=1,
        recipe=False,
    )
    assert "source.env" in unpredictable(one, other)
    free = program(max_lag=None)
    assert unpredictable(free, program(max_lag=None, settings=["policy.publish_every=2"])) == [
        "policy.publish_every"
    ]
    dqn = {"algorithm": "dqn", "batch": 32}
    two = program(**dqn, settings=["replay.shards=2"])
    assert unpredictable(program(**dqn), two) == ["replay.shards, from one or to one"]
    assert unpredictable(two, program(**dqn, settings=["replay.shards=4"])) == []


def test_a_faster_learner_does_not_make_faster_shards():
    one = program("dqn", batch=32, settings=["replay.shards=2"])
    balance = measured(one, block_s=0.01, learn_s=0.02, rate=10.0)
    shard = Shares(worked=99.0, asleep=99.0, starved=1.0, done=1000.0, kind="shard", side="keeping")
    made = calibrate(one, balance | {"shard 0": shard, "shard 1": shard}, cores=8)
    assert made is not None and cause(made) == "shards"
    found = {remedy.change: remedy.gain for remedy in remedies(made)}
    assert found["--set replay.shards=4"] > 1.5 and "a learner twice as fast" not in found


def test_actors_on_other_machines_have_cores_there():
    """At home eight actors that compute share two cores; on two machines each has one."""
    one = program(actors=8, max_lag=None)
    computes = {
        f"actor {k}": Shares(worked=SECONDS, done=100.0, kind="actor", side="sampling")
        for k in range(8)
    }
    learner = Shares(worked=10.0, starved=90.0, done=200.0, kind="learner", side="learning")
    away = {f"actor {k}": f"m{k % 2}" for k in range(8)}
    found = calibrate(one, computes | {"learner": learner}, cores=2, machines=away)
    assert found is not None and found.fit == pytest.approx(1.0, abs=0.05)
    assert found.ring.at == (0, 1) * 4 and [node.cores for node in found.ring.nodes] == [4, 4]
    at_home = calibrate(one, computes | {"learner": learner}, cores=2)
    assert at_home is not None and at_home.outcome.steps_per_s < 0.5 * found.outcome.steps_per_s
    more = changed(found, program(actors=11, max_lag=None))
    assert more.at == (0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0) and [node.cores for node in more.nodes] == [
        6,
        5,
    ]
    serves = Shares(worked=SECONDS, done=800.0, kind="inference", side="sampling", serves=True)
    acted = calibrate(
        one,
        computes | {"inference 0": serves, "learner": learner},
        cores=2,
        machines=dict.fromkeys(away, "m") | {"inference 0": "m"},
    )
    assert acted is not None and [node.cores for node in acted.ring.nodes] == [9]
    fewer = changed(found, program(actors=1, max_lag=None))
    assert fewer.at == (0,) and len(fewer.nodes) == 1


def test_what_the_model_does_not_know_on_other_machines():
    balance = measured(program(), block_s=0.1, learn_s=0.01)
    balance["learner 1"] = balance["learner"]
    assert "learner 1 on another machine" in beyond(balance, {"learner 1": "m"})
    assert calibrate(program(), balance, cores=2, machines={"learner 1": "m"}) is None
    serves = Shares(worked=1.0, done=1.0, kind="inference", side="sampling", serves=True)
    assert "central inference" in beyond(balance | {"inference 0": serves}, {"actor 0": "m"})
    assert not beyond(
        balance | {"inference 0": serves},
        {f"actor {k}": "m" for k in range(4)} | {"inference 0": "m"},
    )
    assert not beyond(balance | {"inference 0": serves}, {})


def test_what_no_work_explains_in_lockstep_is_the_turning_and_a_lag_hides_it():
    """Blocks of 0.1 s, batches of 0.05 s, and 0.05 s of each round that nobody worked."""
    one = program(max_lag=0)
    found = calibrate(one, measured(one, block_s=0.1, learn_s=0.05, rate=1 / 0.2), cores=2)
    assert found is not None and found.ring.handover_s == pytest.approx(0.05, abs=0.002)
    assert found.fit == pytest.approx(1.0, abs=0.01) and found.unexplained == pytest.approx(
        0.25, abs=0.01
    )
    assert predict(
        changed(found, program(max_lag=1))
    ).steps_per_s / found.measured == pytest.approx(2.0, rel=0.05)
    behind = calibrate(one, measured(one, block_s=0.05, learn_s=0.1, rate=1 / 0.2), cores=2)
    assert behind is not None
    assert predict(
        changed(behind, program(max_lag=1))
    ).steps_per_s / behind.measured == pytest.approx(2.0, rel=0.05)


def crowded(one, *, block_s, learn_s, others):
    """In lockstep: what workers say that have so much to do, and wait ``others`` times as long for
    cores of other processes.
    """
    rounds = SECONDS / ((block_s + learn_s) * (1 + others))
    spent = {"actor": block_s * rounds, "learner": learn_s * rounds}
    found = {
        f"actor {k}": Shares(
            worked=spent["actor"],
            preempted=spent["actor"] * others,
            blocked=SECONDS - spent["actor"] * (1 + others),
            done=rounds,
            kind="actor",
            side="sampling",
        )
        for k in range(one.placement.actors)
    }
    found["learner"] = Shares(
        worked=spent["learner"],
        preempted=spent["learner"] * others,
        starved=SECONDS - spent["learner"] * (1 + others),
        done=rounds,
        kind="learner",
        side="learning",
    )
    return found


@pytest.mark.parametrize("others", [0.0, 0.3, 0.9])
@pytest.mark.parametrize(("block_s", "learn_s"), [(0.1, 0.1), (0.02, 0.1), (0.1, 0.02)])
def test_waiting_for_cores_that_others_have_is_no_lockstep(others, block_s, learn_s):
    """A lag gains what it would with these cores, whatever else ran on them."""
    one = program(max_lag=0)
    found = calibrate(one, crowded(one, block_s=block_s, learn_s=learn_s, others=others), cores=8)
    assert found is not None and not found.doubt
    assert found.missing == pytest.approx(others / (1 + others), abs=0.05)
    gains = {one.change: one.gain for one in remedies(found)}
    truth = (block_s + learn_s) / max(block_s, learn_s)
    assert gains["--max-lag 1"] == pytest.approx(truth, rel=0.1)
    if others:
        times = [
            one.low < truth < one.high for one in remedies(found) if one.change == "--max-lag 1"
        ]
        assert times == [True]


def test_nothing_is_predicted_where_others_had_the_cores_most_of_the_time():
    one = program(max_lag=0)
    found = calibrate(one, crowded(one, block_s=0.1, learn_s=0.1, others=2.0), cores=8)
    assert found is not None and "other processes had the cores for 67% of the time" in found.doubt


def test_cores_that_its_own_workers_share_are_not_missing():
    """4 actors and a learner on a core: the model knows why they wait."""
    one = program(max_lag=0)
    rounds = SECONDS / 0.5  # 4 actors x 0.1 s in turn on one core, then 0.1 s of the learner
    found = {
        f"actor {k}": Shares(
            worked=0.1 * rounds,
            preempted=0.3 * rounds,
            blocked=0.1 * rounds,
            done=rounds,
            kind="actor",
            side="sampling",
        )
        for k in range(4)
    }
    found["learner"] = Shares(
        worked=0.1 * rounds, starved=0.4 * rounds, done=rounds, kind="learner", side="learning"
    )
    made = calibrate(one, found, cores=1)
    assert made is not None and made.missing < 0.1 and not made.doubt


def test_a_lag_gains_no_more_than_the_sides_wait_for_each_other():
    """The learner waits for 9 % of the time: with none of it, it is 1.1 times as fast."""
    one = program(max_lag=0)
    found = calibrate(one, measured(one, block_s=0.01, learn_s=0.05, rate=0.91 / 0.05), cores=8)
    assert found is not None and found.overlap == pytest.approx(1 / 0.91, abs=0.01)
    assert next((one.gain for one in remedies(found) if one.change == "--max-lag 1"), 1.0) <= 1.1
