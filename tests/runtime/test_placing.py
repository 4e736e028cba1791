"""Which machine does which work: pure functions, and the errors in one line."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.api import training
from equipoise.facts import facts
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.programs.cluster import Cluster, read_cluster
from equipoise.runtime.cluster.placing import (
    Cell,
    Node,
    cells,
    check_inference,
    deal,
    placed,
)
from equipoise.types import Inference
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS


@cache
def blue_of(inference: Inference = "local", workers: int = 1) -> Blueprint:
    settings = [f"placement.inference_workers={workers}"] if inference == "central" else []
    return plan_run(
        api.program(
            "CartPole-v1",
            "ppo",
            actors=6,
            envs_per_actor=2,
            unroll=8,
            batch=12,
            recipe=False,
            inference=inference,
            settings=settings,
        )
    )


def cells_of(*given: Any, at: Any = "actors") -> list[Cell]:
    blue = blue_of(*given)
    return cells(blue, crew(blue, KINDS), at)


def nodes(home: int, *others: int, **options: Any) -> list[Node]:
    return [
        Node(name="home", cores=home, home=True),
        *(Node(name=f"n{i}", cores=c, **options) for i, c in enumerate(others)),
    ]


def test_an_actor_is_a_cell_and_those_that_share_an_inference_worker_are_one() -> None:
    assert [cell.titles for cell in cells_of()] == [(f"actor {n}",) for n in range(6)]
    three = [
        (*(f"actor {n}" for n in range(first, first + 3)), f"inference {first // 3}")
        for first in (0, 3)
    ]
    assert [(set(cell.titles), cell.actors) for cell in cells_of("central", 2)] == [
        (set(one), 3) for one in three
    ]


def test_where_home_acts_an_inference_worker_is_in_no_cell() -> None:
    assert [cell.titles for cell in cells_of("central", 2, at="home")] == [
        (f"actor {n}",) for n in range(6)
    ]
    check_inference(blue_of("central", 1))
    with pytest.raises(
        ValueError,
        match=r"cluster\.inference_at=home: expected a run with --inference central, got one with "
        r"local",
    ):
        check_inference(blue_of())


def test_home_keeps_what_it_has_cores_for_and_the_rest_goes_where_most_are_free() -> None:
    dealt = deal(cells_of(), 1, nodes(4, 1, 3), Cluster())
    assert dealt.sites == {"site 0": ("actor 2", "actor 3", "actor 5"), "site 1": ("actor 4",)}
    assert dealt.nodes == {"site 0": "n1", "site 1": "n0"}


def test_all_that_is_away_is_somewhere_once_whatever_the_order_of_the_machines(seed: int) -> None:
    chance, refused = random.Random(seed), list[tuple[bool, str]]()
    for _ in range(200):
        run = cells_of(*chance.choice([(), ("central", 2), ("central", 3)]))
        there = nodes(
            chance.randrange(1, 9), *(chance.randrange(1, 9) for _ in range(chance.randrange(1, 5)))
        )
        cluster = Cluster(autoscale=chance.random() < 0.5)
        try:
            dealt = deal(run, 1, there, cluster)
        except ValueError as error:
            refused.append((cluster.autoscale, str(error)))
            continue
        away = [title for titles in dealt.sites.values() for title in titles]
        assert len(away) == len(set(away))
        for cell in run:  # what shares memory shares a machine
            assert (
                sum(not set(cell.titles).isdisjoint(titles) for titles in dealt.sites.values()) <= 1
            )
        for site, name in dealt.nodes.items():
            assert len(dealt.sites[site]) <= next(node for node in there if node.name == name).cores
        chance.shuffle(there)
        assert deal(run, 1, there, cluster) == dealt
    assert refused and not any(
        autoscale or "add machines" not in text for autoscale, text in refused
    )


@pytest.mark.parametrize(
    ("there", "cluster", "said"),
    [
        (nodes(2, 2, 2), {"home_actors": 0}, "actors: expected at most 4"),
        (nodes(2, 9), {"home_actors": 7}, "the nearest is 6"),
        (
            nodes(2, 9),
            {"home_actors": 6, "shards_at": "actors"},
            "home_actors: expected fewer than all 6 actors",
        ),
        (nodes(2), {"home_actors": 1}, "home_actors: expected 6"),
        (
            nodes(2, 9),
            {"labels": {"tier": "spot"}},
            "labels: expected machines with the label 'tier'",
        ),
        (
            nodes(2, 9, labels={"tier": "spot"}),
            {"labels": {"tier": "sport"}},
            "did you mean 'spot'?",
        ),
    ],
)
def test_what_has_no_room_is_refused_in_one_line(there: Any, cluster: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        deal(cells_of(), 1, there, Cluster(**cluster))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_workers_that_share_memory_and_have_no_room_are_named() -> None:
    """How many actors would do depends on who shares memory with them, so no number is promised."""
    with pytest.raises(
        ValueError,
        match=r"a machine with 4 free cores for actor 0, .*found none; free cores .*: 2, 3; use "
        r"fewer",
    ):
        deal(cells_of("central", 2), 1, nodes(1, 2, 3), Cluster(home_actors=0))


def test_a_learner_has_a_core_for_each_of_its_threads() -> None:
    blue = plan_run(
        api.program(
            "CartPole-v1",
            "ppo",
            actors=4,
            envs_per_actor=2,
            batch=8,
            learners=2,
            threads=3,
            recipe=False,
        )
    )
    apart = cells(blue, crew(blue, KINDS), learners_at="actors")[-1]
    assert apart.cores == 3 + apart.actors and len(apart.titles) == 1 + apart.actors


def test_a_machine_that_will_be_taken_away_gets_nothing() -> None:
    there = [*nodes(2, 9, draining=True), Node(name="n1", cores=6)]
    assert set(deal(cells_of(), 1, there, Cluster(home_actors=0)).nodes.values()) == {"n1"}
    assert placed({"site 0": 6, "site 1": 1}, there, {}) == {"site 0": "n1"}


def test_the_help_and_the_page_have_each_setting_of_a_cluster() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/cluster.md").read_text()
    for name, fact in facts(Cluster).items():
        assert fact.help and (f"--cluster {name}=" in page or f"--{name} " in page), name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"inference_at": "learner"},
            "cluster.inference_at: expected one of 'actors', 'home', got 'learner'",
        ),
        (
            {"labels": "tier=spot,tier=fast"},
            "cluster.labels: expected each label once, got 'tier' twice",
        ),
        ({"link_deadline_s": "inf"}, "cluster.link_deadline_s: expected 2 to 3600, got inf"),
        (
            {"labels": "tier"},
            "cluster.labels: expected KEY=VALUE, with commas between several, got 'tier'",
        ),
        ({"home_actors": "-1"}, "cluster.home_actors: expected at least 0, got -1"),
        ({"link_deadline_s": "1"}, "cluster.link_deadline_s: expected 2 to 3600, got 1.0"),
        ({"homeactors": "1"}, "did you mean 'home_actors'?"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_cluster(given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("NoSuch-v1", {}, "NoSuch-v1"),
        ("CartPole-v1", {"batch": 7}, "a multiple of envs_per_actor"),
        ("CartPole-v1", {"out": "."}, "a new or an empty directory"),
    ],
)
def test_what_needs_no_cluster_is_refused_before_one_is_begun(
    env: str, options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected(*_: Any) -> None:
        raise AssertionError("a cluster takes 20 s")

    monkeypatch.setattr(training, "connected", connected)
    (tmp_path / "file").touch()
    out = tmp_path if options.get("out") else tmp_path / "run"
    with pytest.raises((ValueError, OSError), match=said):
        api.start(env, "ppo", on="ray", **options | {"out": out})
