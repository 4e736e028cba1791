"""Forecasts of clusters whose rates follow from arithmetic, and cluster files that are wrong."""

import copy

import pytest

from equipoise.balance.forecast import forecast, read

GOOD = {
    "home": {"cores": 8, "mbit": 1000},
    "nodes": [
        {
            "count": 4,
            "actors": 2,
            "cores": 2,
            "latency_ms": 0,
            "mbit": 1000,
            "dollars_per_hour": 0.9,
        }
    ],
    "work": {
        "unroll": 100,
        "envs": 1,
        "blocks": 8,
        "max_lag": 1,
        "step_us": 1000,
        "learn_ms": 10,
        "bytes_per_step": 100,
        "version_bytes": 1000,
    },
}


def changed(**rooms):
    made = copy.deepcopy(GOOD)
    for room, values in rooms.items():
        (made[room][0] if room == "nodes" else made[room]).update(values)
    return made


def found(data):
    cluster, ring, sizes = read(data, "cluster.toml")
    assert ring is not None and sizes is not None
    return forecast(ring, cluster, sizes)


def test_actors_that_are_the_limit():
    one = found(GOOD)
    assert one.actors == 8 and one.bound == "the actors"
    assert one.steps_per_s == pytest.approx(8 / 0.001, rel=0.03)
    assert one.dollars_per_million == pytest.approx(4 * 0.9 / 3600 / one.steps_per_s * 1e6)
    assert found(changed(nodes={"speed": 2.0})).steps_per_s == pytest.approx(16 / 0.001, rel=0.05)
    assert found(changed(nodes={"cores": 1})).steps_per_s == pytest.approx(4 / 0.001, rel=0.05), (
        "two actors share a core"
    )


def test_a_learner_that_is_the_limit():
    one = found(changed(work={"learn_ms": 400}))
    assert one.bound == "the learner" and one.steps_per_s == pytest.approx(800 / 0.4, rel=0.03)
    assert found(
        changed(work={"learn_ms": 400}, home={"learner_speed": 2})
    ).steps_per_s == pytest.approx(800 / 0.2, rel=0.03)


def test_a_link_that_is_the_limit():
    # 10 MB a block: 0.08 s on home's link
    one = found(changed(work={"bytes_per_step": 100_000, "max_lag": 4, "step_us": 10}))
    assert one.bound == "home's link" and one.steps_per_s == pytest.approx(100 / 0.08, rel=0.1)
    assert one.home_mbit == pytest.approx(one.steps_per_s * 0.8, rel=0.01)


def test_large_weights_go_once_to_each_node():
    # 0.1 s on a link, and for four nodes 0.4 s on home's
    one = found(changed(work={"version_bytes": 12_500_000}))
    assert one.steps_per_s < 0.6 * found(GOOD).steps_per_s


def test_nodes_that_are_lost_cost_what_was_begun_there():
    assert (
        found(changed(nodes={"lost_per_hour": 3600, "back_s": 1.0})).steps_per_s
        < 0.75 * found(GOOD).steps_per_s
    )


def test_latency_costs_what_a_token_takes():
    slow = found(changed(nodes={"latency_ms": 50}))
    assert slow.steps_per_s < 0.8 * found(GOOD).steps_per_s


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            changed(home={"cores": 0}),
            r"cluster.toml: home.cores: expected a whole number from 1 to 100,000, got 0",
        ),
        (
            changed(nodes={"latency_ms": -1}),
            r"nodes\[0\].latency_ms: expected a number from 0 .*, got -1",
        ),
        (changed(home={"core": 2}), r"home.core: expected no such key \(known: cores, speed"),
        (changed(work={"max_lag": "some"}), r"work.max_lag: expected"),
        ({"nodes": []}, r"home: expected a value, got none"),
        (changed(nodes={"actors": 1.5}), r"nodes\[0\].actors: expected a whole number"),
    ],
)
def test_a_wrong_file_is_a_sentence(data, said):
    with pytest.raises(ValueError, match=said):
        read(data, "cluster.toml")
