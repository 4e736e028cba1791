"""``--on ray`` on a real Ray cluster of several nodes: the bits of one machine, and what becomes of
nodes that are lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_machines import STORE, Machines, accounted, machines, of_runs, until

from equipoise import api
from equipoise.balance.calibrate import Calibrated
from equipoise.balance.model import HOME
from equipoise.errors import WorkerFailed
from equipoise.programs.cluster import Cluster
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.workers.kinds import KINDS
from tests.runtime import losing
from tests.runtime.machines import finish, run_by
from tests.runtime.relay import Relays
from tests.runtime.test_cluster import PROGRAMS

pytest.importorskip("ray", reason="Ray is not installed; make test-ray installs it")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
SIZES: dict[str, Any] = {
    "actors": 4,
    "envs_per_actor": 2,
    "unroll": 8,
    "batch": 8,
    "steps": 1280,
    "evaluate_episodes": 0,
    "max_lag": 0,
    "recipe": False,
}


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
# settings of the cluster, by program
AT: dict[str, dict[str, Any]] = {"central at home": {"inference_at": "home"}}


@pytest.fixture(scope="module")
def there() -> Iterator[Machines]:
    with machines() as made:
        yield made


def train(env: str, algorithm: str, out: Path, on: Any, cluster: Any = None, **options: Any) -> Any:
    run = api.start(env, algorithm, on=on, cluster=cluster, out=out, **SIZES | options)
    notes = [note for report in run for note in report.notes]
    assert run.summary is not None
    return run.summary, notes


@pytest.fixture
def late(seed: int, monkeypatch: Any) -> Iterator[Relays]:
    """The ways between sites and home, on which each chunk takes 0 to 50 ms."""
    from equipoise.runtime.cluster import on_ray

    relays = Relays(0.05, seed)

    class Late(on_ray.RayNodes):
        def start(self, job: Any) -> None:
            super().start(relays.route(job))

    monkeypatch.setattr(on_ray, "RayNodes", Late)
    yield relays
    relays.close()


def has_the_bits_of_one(name: str, seed: int, there: Machines, folder: Path, **more: Any) -> None:
    env, algorithm, options = PROGRAMS[name]
    options = {**options, **more, "seed": seed}
    here, _ = train(env, algorithm, folder / "serial", "serial", **options)
    far, notes = train(
        env, algorithm, folder / "ray", "ray", {**there.settings, **AT.get(name, {})}, **options
    )
    assert far["params_sha256"] == here["params_sha256"], notes
    assert far["rows"]["dropped"] == 0 and accounted(far["rows"])
    until(lambda: not of_runs(), "the processes of the run to end")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_three_nodes_compute_the_bits_of_one(
    name: str, seed: int, there: Machines, tmp_path: Path
) -> None:
    has_the_bits_of_one(name, seed, there, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_slow_network_does_not_change_a_bit(
    name: str, seed: int, there: Machines, late: Relays, tmp_path: Path
) -> None:
    has_the_bits_of_one(name, seed, there, tmp_path, steps=640)
    assert late.passed > 10_000


TEXT: dict[str, Any] = {
    "actors": 3,
    "envs_per_actor": 8,
    "unroll": 1,
    "batch": 64,
    "steps": 1024,
    "recipe": True,
    "settings": ["optimizer.learning_rate=1e-3", "source.samples_at_once=64"],
}


def test_a_text_task_computes_the_bits_of_one_machine(there: Machines, tmp_path: Path) -> None:
    """Also if the machine of a generator is lost, or drained."""
    here, _ = train("sort", "grpo", tmp_path / "process", "process", **TEXT)
    for name in ("left alone", "killed", "drained"):
        run = api.start(
            "sort", "grpo", on="ray", cluster=there.settings, out=tmp_path / name, **SIZES | TEXT
        )
        notes, victim = list[str](), None
        for report in run:
            notes += report.notes
            sites = [site.machine for site in report.sites.values()]
            if name != "left alone" and victim is None and report.updates >= 4:
                victim = next(one for one in there.victims() if one.node_id[:8] in sites)
                there.kill(victim) if name == "killed" else there.drain(victim)
            if (
                name == "drained"
                and victim is not None
                and any(site.moved for site in report.sites.values())
            ):
                there.kill(victim)
                name = "moved"
        if victim is not None:
            there.restore(3)
        assert run.summary is not None and run.summary["params_sha256"] == here["params_sha256"], (
            name,
            notes,
        )
        assert accounted(run.summary["rows"]), run.summary["rows"]
        assert any(
            "generator" in title
            for site in run.summary["sites"].values()
            for title in site["workers"]
        )
        assert name != "drained", notes
    until(lambda: not of_runs(), "the processes of the run to end")


MODEL = "llama:hidden_size=128,num_hidden_layers=4,num_attention_heads=4"
APART: dict[str, dict[str, Any]] = {
    "whole": {},
    "fsdp": {"settings": [*TEXT["settings"], "placement.shard=fsdp"]},
    "adapters": {"model": MODEL, "settings": [*TEXT["settings"], "source.lora=4"]},
}


@pytest.mark.parametrize("learned", APART)
def test_scorers_and_a_learner_on_nodes_of_their_own_have_the_bits_of_one_machine(
    learned: str, there: Machines, tmp_path: Path
) -> None:
    """With adapters these alone cross: once for each version and machine."""
    options = TEXT | {"actors": 2, "learners": 2} | APART[learned]
    here, _ = train("sort", "grpo", tmp_path / "process", "process", **options)
    node = there.add(does="score")
    cluster = {**there.settings, "learners_at": "actors", "scorer_labels": "does=score"}
    try:
        options |= {"settings": [*options["settings"], "source.scorers=2"]}
        far, notes = train("sort", "grpo", tmp_path / "ray", "ray", cluster, **options)
    finally:
        there.cluster.remove_node(node)
    assert far["params_sha256"] == here["params_sha256"], notes
    assert accounted(far["rows"]) and far["rows"]["dropped"] == 0
    at = {title: one["machine"] for one in far["sites"].values() for title in one["workers"]}
    assert at["scorer 0"] == at["scorer 1"] == node.node_id[:8]
    assert at["learner 1"] == at["generator 1"] != at["generator 0"]
    if learned == "adapters":
        (file,) = (tmp_path / "ray" / "checkpoints").glob("*/weights.safetensors")
        (alone,) = (one for one in far["sites"].values() if "generator 0" in one["workers"])
        assert alone["sent"] <= 1.2 * far["updates"] * file.stat().st_size
    until(lambda: not of_runs(), "the processes of the run to end")


def test_a_node_of_generators_killed_and_one_drained_make_no_learner_wait(
    there: Machines, tmp_path: Path
) -> None:
    from equipoise.runtime.cluster.on_ray import RayNodes

    nodes = RayNodes(Cluster(address=there.settings["address"]))

    def node(name: str) -> Any:
        return next(one for one in there.victims() if one.node_id[:8] == nodes.where(name))

    try:
        runtime = run_by(RemoteCrew(losing.endless(tmp_path), nodes, losing.SITES))
        losing.check(
            *losing.loses(
                runtime, lambda name: there.kill(node(name)), lambda name: there.drain(node(name))
            )
        )
    finally:
        nodes.disconnect()
        there.restore(3)
    until(lambda: not of_runs(), "the processes of the run to end")


def test_generators_without_a_machine_begin_on_one_that_joins(
    there: Machines, tmp_path: Path
) -> None:
    """The others write without them. So it is if a machine is lost and another joins later."""
    from equipoise.runtime.cluster.on_ray import RayNodes

    blue, write = losing.endless(tmp_path), {"does": "write"}
    node, then = there.add(**write), dict[str, Any]()
    address = there.settings["address"]
    nodes = RayNodes(Cluster(address=address, home_actors=0, labels=write, autoscale=True))

    def each(messages: Any) -> None:
        now = runtime.stats()
        late, others = now.ticks[3], min(now.ticks[:3])
        if "joined" not in then and others > 0 and now.version >= 10:
            assert late == 0 and nodes.waits() == {"site 1": 1}
            then["joined"] = there.add(**write)
        elif "lost" not in then and late > 0:
            then["lost"] = now
            there.kill(node)
        elif (
            "lost" in then
            and "replaced" not in then
            and nodes.waits()
            and now.version >= then["lost"].version + 10
        ):
            assert nodes.waits() == {"site 0": 3}
            then["replaced"] = there.add(**write)

    def over() -> bool:
        now = runtime.stats()
        return "replaced" in then and min(now.ticks[:3]) > max(then["lost"].ticks[:3])

    try:
        sites = nodes.deal(blue, KINDS)
        assert sites["site 1"] == ("generator 3",) and len(sites["site 0"]) == 3
        runtime = run_by(RemoteCrew(blue, nodes, sites))
        _, stats = finish(runtime, each, over)
    finally:
        nodes.disconnect()
        for name in {"joined", "replaced"} & then.keys():
            there.cluster.remove_node(then[name])
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"], rows
    assert {name: one.lost for name, one in stats.sites.items()} == {"site 0": 1, "site 1": 0}
    until(lambda: not of_runs(), "the processes of the run to end")


def test_a_run_on_one_node_is_one_of_processes(tmp_path: Path, there: Machines) -> None:
    env, algorithm, options = PROGRAMS["ppo"]
    here, _ = train(env, algorithm, tmp_path / "process", "process", **options)
    far, _ = train(
        env, algorithm, tmp_path / "ray", "ray", {**there.settings, "home_actors": 4}, **options
    )
    assert far["params_sha256"] == here["params_sha256"]


def test_the_model_knows_on_which_node_an_actor_is(
    there: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are the question, so a run that waited for cores will do: its rates are not read."""
    monkeypatch.setattr(Calibrated, "doubt", "")
    out = tmp_path / "run"
    summary, _ = train("CartPole-v1", "ppo", out, "ray", there.settings, steps=40_000, max_lag=1)
    known = measured(RunDirectory.open(out))
    assert HOME not in known.ring.at and len(known.ring.at) == 4
    assert (
        len(known.ring.nodes) == len(summary["sites"])
        and sum(node.cores for node in known.ring.nodes) == 4
    )
    assert all("gain" in one for one in summary["remedies"])
    found = api.whatif(out, actors=8)
    assert found.asked is not None and found.asked.steps_per_s > 0.0


def test_a_learner_goes_to_the_node_of_the_actors_that_feed_it(
    there: Machines, tmp_path: Path
) -> None:
    """And back home with a resume."""
    env, algorithm, options = PROGRAMS["two learners"]
    whole, _ = train(env, algorithm, tmp_path / "whole", "serial", **options)
    settings = [*options.get("settings", ()), "schedule.schedule_steps=1280"]
    part, _ = train(
        env,
        algorithm,
        tmp_path / "part",
        "ray",
        {**there.settings, "learners_at": "actors"},
        **options | {"steps": 640, "settings": settings},
    )
    assert any("learner 1" in site["workers"] for site in part["sites"].values()), part["sites"]
    run = api.start(resume=tmp_path / "part", steps=1280, cluster={"learners_at": "home"})
    for _ in run:
        pass
    assert run.summary is not None
    assert not any("learner 1" in site["workers"] for site in run.summary["sites"].values())
    assert run.summary["params_sha256"] == whole["params_sha256"]


def test_a_shard_goes_to_the_node_of_the_actors_that_feed_it(
    there: Machines, tmp_path: Path
) -> None:
    """And back home with a resume."""
    settings = [
        "replay.shards=2",
        "replay.starts_at=128",
        "replay.capacity=2000",
        "algorithm.hidden=[16]",
    ]
    options: dict[str, Any] = {
        "batch": 16,
        "unroll": 4,
        "settings": [*settings, "schedule.schedule_steps=960"],
    }
    whole, _ = train(
        "CartPole-v1", "apex_dqn", tmp_path / "whole", "serial", **options | {"steps": 960}
    )
    part, _ = train(
        "CartPole-v1",
        "apex_dqn",
        tmp_path / "part",
        "ray",
        {**there.settings, "shards_at": "actors"},
        **options | {"steps": 480},
    )
    away = {title for site in part["sites"].values() for title in site["workers"]}
    assert {"shard 0", "shard 1"} <= away, part["sites"]
    run = api.start(resume=tmp_path / "part", steps=960, cluster={"shards_at": "home"})
    for _ in run:
        pass
    assert run.summary is not None
    assert not any("shard 0" in site["workers"] for site in run.summary["sites"].values())
    assert run.summary["params_sha256"] == whole["params_sha256"]


def test_a_run_goes_on_elsewhere_to_the_same_bits(there: Machines, tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS["impala, lstm"]
    whole, _ = train(env, algorithm, tmp_path / "whole", "serial", **options)
    train(
        env,
        algorithm,
        tmp_path / "part",
        "ray",
        there.settings,
        **options
        | {"steps": 640, "settings": [*options["settings"], "schedule.schedule_steps=1280"]},
    )
    run = api.start(resume=tmp_path / "part", steps=1280, cluster={"home_actors": 2})
    for _ in run:
        pass
    assert run.summary is not None
    assert run.summary["params_sha256"] == whole["params_sha256"]


def test_nodes_that_are_killed_are_replaced_and_every_row_is_accounted_for(
    there: Machines, tmp_path: Path
) -> None:
    run = api.start(
        "CartPole-v1",
        "impala",
        on="ray",
        cluster=there.settings,
        out=tmp_path / "run",
        **SIZES | {"steps": 150_000, "max_lag": 1, "actors": 4},
    )
    notes, killed = list[str](), 0
    for report in run:
        notes += report.notes
        if report.updates >= 500 * (killed + 1) and killed < 2:
            there.kill(there.victims()[killed])
            killed += 1
            there.restore(3)
    assert run.summary is not None and run.summary["status"] == "completed", run.summary
    assert killed == 2
    assert sum("its workers begin anew" in note for note in notes) >= 1, notes
    assert accounted(run.summary["rows"]), run.summary["rows"]
    until(lambda: not of_runs(), "the processes of the run to end")


def test_a_machine_on_which_a_site_ended_is_asked_whether_it_is_there(there: Machines) -> None:
    """Ray says for up to 15 s of a killed one that it lives, and a site that begins there waits for
    as long.
    """
    from equipoise.runtime.cluster.on_ray import RayNodes

    nodes = RayNodes(Cluster(address=there.settings["address"]))
    try:
        gone, kept, *_ = (node.node_id for node in there.victims())
        nodes._doubted = {gone, kept}
        assert {gone, kept} <= {node.name for node in nodes.nodes()} and not nodes._doubted
        there.kill(next(node for node in there.victims() if node.node_id == gone))
        nodes._doubted = {gone, kept}
        left = {node.name for node in nodes.nodes()}
        assert kept in left and gone not in left
    finally:
        nodes.disconnect()
        there.restore(3)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("ppo", 3),
        ("impala, lstm", 60),
        ("central at home", 25),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("central", 30), ("two learners", 11))
        ),
    ],
)
def test_a_node_that_is_drained_hands_over_and_then_may_be_killed(
    name: str, moment: int, there: Machines, tmp_path: Path
) -> None:
    """At ``max_lag=0`` the run has the bits of one that was left alone."""
    env, algorithm, options = PROGRAMS[name]
    options = options | {"steps": 12_800}
    here, _ = train(env, algorithm, tmp_path / "serial", "serial", **options)
    cluster = {**there.settings, **AT.get(name, {})}
    run = api.start(
        env, algorithm, on="ray", cluster=cluster, out=tmp_path / "run", **SIZES | options
    )
    notes, drained, left, moving = list[str](), None, None, 0
    for report in run:
        notes += report.notes
        if drained is None and report.updates >= moment:
            sites = [site.machine for site in report.sites.values() if site.machine]
            drained = left = next(one for one in there.victims() if one.node_id[:8] in sites)
            # two, where another machine was gone before its site spoke
            moving = sites.count(drained.node_id[:8])
            there.drain(drained)
        if left is not None and sum(site.moved for site in report.sites.values()) == moving:
            there.kill(left)
            left = None
    there.restore(3)
    assert run.summary is not None and run.summary["params_sha256"] == here["params_sha256"], notes
    found = run.summary["sites"].values()
    assert (sum(site["moved"] for site in found), sum(site["lost"] for site in found)) == (
        moving,
        0,
    ), notes
    assert run.summary["rows"]["dropped"] == 0 and accounted(run.summary["rows"])
    until(lambda: not of_runs(), "the processes of the run to end")


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        ({"address": "127.0.0.1:1"}, {}, "no server answers there"),
        ({"address": "nowhere"}, {}, "address"),
        ({"labels": "tier=spot"}, {}, "labels: expected machines with the label 'tier'"),
        ({"home_actors": 0}, {"actors": 40, "batch": 80}, "actors: expected at most 9"),
        ({"homeactors": 0}, {}, "did you mean 'home_actors'?"),
        ({"home_actors": 9}, {}, "the nearest is 4"),
        ({"link_deadline_s": 0.1}, {}, "link_deadline_s: expected 2 to 3600"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    cluster: Any, options: Any, said: str, there: Machines, tmp_path: Path
) -> None:
    given = {"address": there.cluster.address} | cluster
    with pytest.raises(ValueError, match=said.replace("?", r"\?")) as caught:
        train("CartPole-v1", "ppo", tmp_path / "run", "ray", given, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_node_without_the_envs_package_is_said_in_one_line(
    there: Machines, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text(
        "import os, gymnasium\nif 'ONLY_HERE' not in os.environ:\n"
        "    raise ModuleNotFoundError(\"No module named 'only_here'\", name='only_here')\n"
        "def make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    script = (
        "import sys\nfrom equipoise import api\n"
        f"if __name__ == '__main__':\n    sys.path.insert(0, {str(tmp_path)!r})\n"
        f"    run = api.start('only_here:make', 'ppo', on='ray', cluster={there.settings!r}, "
        f"out={str(tmp_path / 'run')!r},"
        f" **{SIZES!r})\n    list(run)\n"
    )
    (tmp_path / "main.py").write_text(script)
    command = [sys.executable, str(tmp_path / "main.py")]
    given = {**os.environ, "ONLY_HERE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=given
    )
    assert done.returncode
    assert "only_here" in done.stderr and "install there" in done.stderr, done.stderr


def test_a_node_without_this_package_is_said_in_one_line(there: Machines, tmp_path: Path) -> None:
    """Ray gives workers the module path of the driver, so that here the package is kept from them
    by hand.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\nclass Absent:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'equipoise':\n"
        "            raise ModuleNotFoundError(\"No module named 'equipoise'\", name='equipoise')\n\n"  # noqa: E501
        "sys.meta_path.insert(0, Absent())\n"
    )
    node = there.cluster.add_node(
        num_cpus=4,
        object_store_memory=STORE,
        labels={"kept": "bare"},
        env_vars={"PYTHONPATH": str(tmp_path)},
    )
    try:
        with pytest.raises(
            WorkerFailed, match="No module named 'equipoise'; install there what this machine has"
        ) as caught:
            train(
                "CartPole-v1",
                "ppo",
                tmp_path / "run",
                "ray",
                there.settings | {"labels": "kept=bare"},
            )
        assert "\n" not in str(caught.value)
    finally:
        there.cluster.remove_node(node)
    until(lambda: not of_runs(), "the processes of the run to end")
