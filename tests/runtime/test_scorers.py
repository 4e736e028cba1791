"""Scorers as workers of a run: the bits of one machine wherever they are, and what becomes of a
scorer, or a machine of scorers, that is lost.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.experience.queue.tokens import LocalChannel
from equipoise.plans.plan import plan_run
from equipoise.programs.cluster import Cluster
from equipoise.record import checkpoint
from equipoise.runtime import build
from equipoise.runtime.cluster.placing import Node, cells, deal
from equipoise.runtime.cluster.remote_crew import _in_hand
from equipoise.runtime.ipc import Heap
from equipoise.runtime.messages import Note
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS
from tests.runtime.machines import ONE_MACHINE, Processes, finish, on_machines
from tests.runtime.test_cluster import pids
from tests.runtime.test_text_on_machines import TEXT, blue

AWAY = {"site 0": ["generator 1"], "site 1": ["scorer 0"], "site 2": ["scorer 1"]}


def scored(folder: Path, **options: Any) -> Any:
    settings = [*TEXT["settings"], "source.scorers=2"]
    return blue(folder, **{"actors": 2, "settings": settings} | options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a run whose generators score themselves."""
    made = blue(tmp_path_factory.mktemp("alone"), actors=2)
    return finish(ONE_MACHINE["serial"](made))[0]


@pytest.mark.parametrize(
    "on",
    ["serial", *(pytest.param(on, marks=pytest.mark.thorough) for on in ("process", "machines"))],
)
def test_rewards_come_from_scorers_with_the_bits_of_generators(
    on: str, alone: Any, tmp_path: Path
) -> None:
    made = scored(tmp_path)
    runtime = on_machines(made, AWAY) if on == "machines" else ONE_MACHINE[on](made)
    there, stats = finish(runtime)
    assert there == alone
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["held"] and rows["dropped"] == 0


@pytest.mark.thorough
def test_a_scorer_that_is_killed_is_replaced(alone: Any, tmp_path: Path) -> None:
    runtime, killed = ONE_MACHINE["process"](scored(tmp_path)), list[int]()

    def each(messages: Any) -> None:
        now = runtime.stats()
        if len(killed) < 2 and now.version >= 4 * (len(killed) + 1):
            (pid,) = pids(f"scorer {len(killed)}")
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    there, stats = finish(runtime, each)
    assert len(killed) == 2 and there == alone and stats.rows["dropped"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["killed", "drained"])
def test_a_machine_of_scorers_that_is_lost_costs_no_sample(
    way: str, alone: Any, tmp_path: Path
) -> None:
    nodes, done, notes = Processes(), list[int](), list[str]()
    runtime = on_machines(scored(tmp_path), AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if not done and runtime.stats().version >= 4:
            done.append(1)
            nodes.kill("site 1") if way == "killed" else nodes.drained.add("site 1")

    there, stats = finish(runtime, each)
    site = stats.sites["site 1"]
    assert (site.lost, site.moved) == ((1, 0) if way == "killed" else (0, 1)), notes
    assert there == alone and stats.rows["dropped"] == 0


def test_a_run_with_scorers_goes_on_without_any(tmp_path: Path) -> None:
    """They are no part of what a run computes."""
    options: dict[str, Any] = {"evaluate_episodes": 0, "tensorboard": False, "max_lag": 0}
    settings = [*TEXT["settings"], "schedule.schedule_steps=512"]

    def run(out: str, **given: Any) -> Any:
        made = api.start("sort", algorithm="grpo", batch=64, out=tmp_path / out, **options | given)
        return ended(made)

    def ended(made: Any) -> Any:
        for _ in made:
            pass
        assert made.summary is not None
        return made.summary["params_sha256"]

    whole = run("whole", on="serial", steps=512, settings=settings)
    run("part", on="serial", steps=256, settings=[*settings, "source.scorers=1"])
    part = api.start(
        resume=tmp_path / "part", on="serial", steps=512, settings=["source.scorers=0"]
    )
    assert ended(part) == whole


def test_a_site_s_learner_goes_on_with_its_own_queue(tmp_path: Path) -> None:
    """Not with that of learner 0, dealt anew to two: then its blocks would have other numbers."""
    settings = [*TEXT["settings"], "schedule.schedule_steps=512"]
    options: dict[str, Any] = {"actors": 2, "learners": 2, "steps": 256, "settings": settings}
    run = api.start(
        "sort",
        algorithm="grpo",
        batch=64,
        on="serial",
        out=tmp_path / "run",
        tensorboard=False,
        evaluate_episodes=0,
        max_lag=0,
        **options,
    )
    for _ in run:
        pass
    source = checkpoint.choose(tmp_path / "run" / "checkpoints", skipped=[])
    assert source is not None
    made = replace(blue(tmp_path / "again", **options | {"steps": 512}), apart=True)
    mine = tuple(one for one in crew(made, KINDS) if one.title in ("learner 1", "generator 1"))
    names = [name for one in crew(made, KINDS) for name in one.files]
    there = replace(made, resume=_in_hand(source, [*names, *source.kept], mine))
    shared, _, _ = build.lay_out(there, KINDS, Heap, LocalChannel, site=mine)
    begun = shared.queues[1].counters[0] // 4
    assert begun.tolist() == [16, 17, 18, 19]  # four updates of four blocks each


LABELLED = [("a", {"gpu": "1"}), ("b", dict[str, str]())]


def test_a_scorer_is_a_cell_and_may_have_machines_of_its_own(tmp_path: Path) -> None:
    made = scored(tmp_path, actors=3)
    run = cells(made, crew(made, KINDS))
    assert [cell.titles for cell in run] == [
        *((f"generator {n}",) for n in range(3)),
        ("scorer 0",),
        ("scorer 1",),
    ]
    there = [Node(name="home", cores=2, home=True)]
    there += [Node(name=f"n{n}", cores=4, labels={"does": "write"}) for n in range(2)]
    there += [Node(name="n2", cores=2, labels={"does": "score"})]
    apart = deal(run, 1, there, Cluster(scorer_labels={"does": "score"}))
    at = {title: apart.nodes[site] for site, titles in apart.sites.items() for title in titles}
    assert at["scorer 0"] == at["scorer 1"] == "n2" and len(at) == 5
    both = Cluster(labels={"does": "write"}, scorer_labels={"does": "score"})
    apart = deal(run, 1, there, both)
    at = {title: apart.nodes[site] for site, titles in apart.sites.items() for title in titles}
    assert {at[f"generator {n}"] for n in range(3)} == {"n0", "n1"} and at["scorer 1"] == "n2"
    mixed = deal(run, 1, there, Cluster(home_actors=0))
    assert sum(len(titles) for titles in mixed.sites.values()) == 5
    # the others leave it to them, whatever the names of the machines are
    for name in ("a", "z"):
        three = [replace(one, cores=2, labels={}) for one in there[1:3]]
        three += [there[0], Node(name=name, cores=2, labels={"does": "score"})]
        apart = deal(run, 1, three, Cluster(scorer_labels={"does": "score"}, home_actors=0))
        at = {title: apart.nodes[site] for site, titles in apart.sites.items() for title in titles}
        assert at["scorer 0"] == at["scorer 1"] == name and len(at) == 5
    # and scorers leave the machines of generators to them
    two = [Node(name=name, cores=2, labels={"cpu": "1"} | more) for name, more in LABELLED]
    wanted = Cluster(labels={"gpu": "1"}, scorer_labels={"cpu": "1"}, home_actors=0)
    made = scored(tmp_path / "two", actors=2)
    apart = deal(cells(made, crew(made, KINDS)), 1, [there[0], *two], wanted)
    at = {title: apart.nodes[site] for site, titles in apart.sites.items() for title in titles}
    assert at["generator 0"] == at["generator 1"] == "a" and at["scorer 0"] == at["scorer 1"] == "b"


@pytest.mark.parametrize(
    ("labels", "cores", "said"),
    [
        ("scores", 2, "scorer_labels: expected a machine with does=scores, found none; did you"),
        ("score", 1, "source.scorers: expected at most 1, for which machines with the labels"),
    ],
)
def test_scorers_without_room_are_refused_in_one_line(
    labels: str, cores: int, said: str, tmp_path: Path
) -> None:
    made = scored(tmp_path)
    there = [Node(name="home", cores=9, home=True)]
    there += [Node(name="n0", cores=cores, labels={"does": "score"})]
    with pytest.raises(ValueError) as caught:
        deal(cells(made, crew(made, KINDS)), 1, there, Cluster(scorer_labels={"does": labels}))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_scorers_wait_for_a_machine_of_an_autoscaler(tmp_path: Path) -> None:
    made = scored(tmp_path)
    there = [Node(name="home", cores=9, home=True)]
    wanted = Cluster(scorer_labels={"does": "score"}, autoscale=True)
    dealt = deal(cells(made, crew(made, KINDS)), 1, there, wanted)
    assert dealt.sites == {"site 0": ("scorer 0", "scorer 1")} and not dealt.nodes


@pytest.mark.parametrize(
    ("env", "algorithm", "options", "said"),
    [
        ("sort", "sft", {}, "source.scorers: must be 0 for an algorithm that reads no rewards"),
        ("guess", "grpo", {}, "source.scorers: must be 0 for a task whose partner gives all"),
    ],
)
def test_scorers_that_would_have_nothing_to_do_are_refused(
    env: str, algorithm: str, options: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        plan_run(api.program(env, algorithm, settings=["source.scorers=2"], **options))


def test_keys_are_not_printed(tmp_path: Path) -> None:
    made = scored(tmp_path)
    assert made.scoring is not None
    secret = made.scoring.scorers.secret
    assert repr(secret) not in repr(made) and repr(secret) not in repr(replace(made, apart=True))
