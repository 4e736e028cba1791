"""A run over machines that are processes: the bits of one machine, and what becomes of a machine
that is lost.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from equipoise.runtime.cluster.host import SiteJob
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.runtime.messages import Cut, Note, Relayed
from tests.runtime.machines import ONE_MACHINE, Processes, blue_of, finish, on_machines, run_by

AWAY = {"site 0": ["actor 1"], "site 1": ["actor 2", "actor 3"]}
ALL_AWAY = {"site 0": ["actor 0", "actor 1"], "site 1": ["actor 2", "actor 3"]}
SMALL = ["algorithm.hidden=16"]
PROGRAMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": (
        "CartPole-v1",
        "ppo",
        {"settings": [*SMALL, "algorithm.epochs=2", "algorithm.normalize_obs=true"]},
    ),
    "impala, lstm": (
        "CartPole-v1",
        "impala",
        {"settings": [*SMALL, "algorithm.core=lstm", "algorithm.core_size=8"]},
    ),
    "dqn": ("CartPole-v1", "dqn", {"settings": [*SMALL, "replay.starts_at=64"]}),
    "sac": ("Pendulum-v1", "sac", {"settings": [*SMALL, "replay.starts_at=64"]}),
    "two learners": (
        "CartPole-v1",
        "ppo",
        {"learners": 2, "settings": [*SMALL, "algorithm.epochs=2"]},
    ),
    "central at home": (
        "CartPole-v1",
        "impala",
        {
            "inference": "central",
            "settings": [*SMALL, "algorithm.core=lstm", "algorithm.core_size=8"],
        },
    ),
    "central": (
        "CartPole-v1",
        "ppo",
        {"inference": "central", "settings": [*SMALL, "placement.inference_workers=2"]},
    ),
}


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("name", PROGRAMS)
def test_three_machines_compute_the_bits_of_one(name: str, tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS[name]
    sites: Any = AWAY
    if name == "central":  # an inference worker acts for whole actors: those of one machine
        sites = {"site 0": ["actor 2", "actor 3", "inference 1"]}
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    there, stats = finish(
        on_machines(blue_of(tmp_path / "cluster", env, algorithm, **options), sites)
    )
    assert there == here
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["held"] and rows["dropped"] == 0


@pytest.mark.thorough
def test_frames_that_cross_once_are_the_frames_that_the_actors_saw(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    here, _ = finish(
        ONE_MACHINE["serial"](blue_of(tmp_path / "serial", "ALE/Pong-v5", "impala", steps=640))
    )
    blue = blue_of(tmp_path / "cluster", "ALE/Pong-v5", "impala", steps=640)
    assert all(role.spec.stacks for role in blue.learns.values())
    there, stats = finish(on_machines(blue, ALL_AWAY))
    assert there == here and stats.rows["dropped"] == 0


@pytest.mark.thorough
def test_strangers_at_home_s_port_are_counted_and_change_nothing(tmp_path: Path) -> None:
    """The bits of a run to which nobody else speaks."""
    env, algorithm, options = PROGRAMS["impala, lstm"]
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    blue = blue_of(tmp_path / "cluster", env, algorithm, **options)
    remote, notes = RemoteCrew(blue, Processes(), AWAY), list[str]()
    runtime = run_by(remote)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if not runtime.done and runtime.stats().version > 0:
            with socket.create_connection(("127.0.0.1", remote.home.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")

    there, stats = finish(runtime, each)
    assert there == here and stats.rows["dropped"] == 0
    assert stats.refused.keys() == {"no ZeroMQ"} and stats.refused["no ZeroMQ"] >= 1
    assert notes.count("warning: the link to other machines refuses what it gets: no ZeroMQ") == 1


@pytest.mark.thorough
def test_a_machine_that_is_lost_is_replaced_and_every_row_is_accounted_for(tmp_path: Path) -> None:
    nodes, notes, killed = Processes(), list[str](), list[int]()
    blue = blue_of(tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=12_800, settings=SMALL)
    runtime = on_machines(blue, ALL_AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        stats = runtime.stats()
        if len(killed) < 2 and stats.version >= 20 + 40 * len(killed) and min(stats.ticks) > 0:
            killed.append(runtime.stats().version)
            nodes.kill(f"site {len(killed) - 1}")

    _, stats = finish(runtime, each)
    assert len(killed) == 2
    for name in ALL_AWAY:
        assert any(f"{name} ended with" in note and "begin anew" in note for note in notes), notes
    assert {name: site.lost for name, site in stats.sites.items()} == {"site 0": 1, "site 1": 1}
    rows = stats.rows
    assert (
        rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"] and rows["dropped"] > 0
    )


class EndsAtOnce(Processes):
    """The first machine that a site gets is gone before the site can say a word."""

    def start(self, job: SiteJob) -> None:
        super().start(job)
        if job.incarnation == 1:
            self.kill(job.name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ppo", "central at home"])
def test_a_machine_that_was_never_there_changes_no_bit(name: str, tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS[name]
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    notes = list[str]()
    runtime = on_machines(
        blue_of(tmp_path / "cluster", env, algorithm, **options), AWAY, EndsAtOnce()
    )
    there, stats = finish(
        runtime,
        lambda messages: notes.extend(one.text for one in messages if isinstance(one, Note)),
    )
    assert there == here and stats.rows["dropped"] == 0
    assert {site.lost for site in stats.sites.values()} == {0}
    for site in AWAY:
        assert f"warning: {site} ended with -9; its workers begin on another machine" in notes


def drained(name: str, max_lag: int, moment: int, folder: Path, **options: Any) -> None:
    """Drain a machine at this version: nothing is lost, and with ``max_lag=0`` the run has the bits
    of one left alone.
    """
    env, algorithm, given = PROGRAMS[name]
    away: Any = {"site 0": ["actor 2", "actor 3", "inference 1"]} if name == "central" else AWAY
    if max_lag:  # nobody waits for an actor that moves, but where all of them do
        away = {"site 0": [f"actor {n}" for n in range(4)]}
    options = given | options | {"max_lag": max_lag}
    nodes, moved, seen = Processes(), list[str](), list[int]()
    runtime = on_machines(blue_of(folder / "cluster", env, algorithm, **options), away, nodes)

    def each(messages: Any) -> None:
        moved.extend(
            m.text for m in messages if isinstance(m, Note) and "will be taken away" in m.text
        )
        if runtime.stats().version >= moment and not seen:
            seen.append(1)
            nodes.drained.add(max(away))

    there, stats = finish(runtime, each)
    assert moved
    assert stats.rows["dropped"] == 0
    site = stats.sites[max(away)]
    assert (site.moved, site.lost) == (1, 0) and site.received > site.sent / 100 > 0
    if max_lag == 0:
        here, _ = finish(
            ONE_MACHINE["serial"](blue_of(folder / "serial", env, algorithm, **options))
        )
        assert there == here


class LosesTheWord(RemoteCrew):
    """The proxy dies as it passes on that a machine has handed its workers over."""

    lost = 0

    def _take(self, title: str, message: Any) -> Iterator[tuple[str, Any]]:
        if (
            isinstance(message, Relayed)
            and message.said.get("message") == "HandedOver"
            and not self.lost
        ):
            self.lost += 1
            os.kill(pids("proxy")[0], signal.SIGKILL)
        else:
            yield from super()._take(title, message)


@pytest.mark.thorough
def test_workers_are_handed_over_once_more_where_the_proxy_dies_meanwhile(tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS["impala, lstm"]
    # another machine may lose the unrolls under way there, rightly
    nodes, away = Processes(), {"site 1": AWAY["site 1"]}
    remote = LosesTheWord(blue_of(tmp_path / "cluster", env, algorithm, **options), nodes, away)
    runtime = run_by(remote)

    def each(messages: Any) -> None:
        stats = runtime.stats()
        if stats.version >= 8 and not stats.sites["site 1"].moved:
            nodes.drained.add("site 1")

    there, stats = finish(runtime, each)
    assert remote.lost == 1 and (stats.sites["site 1"].moved, stats.sites["site 1"].lost) == (1, 0)
    assert stats.rows["dropped"] == 0
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    assert there == here


@pytest.mark.thorough
def test_workers_are_handed_over_once_more_where_one_of_them_dies_meanwhile(tmp_path: Path) -> None:
    """Its successor knows nothing of the hand-over under way, which would wait for it until the
    machine is gone.
    """
    flag, nodes = tmp_path / "flag", Processes()
    blue = blue_of(
        tmp_path / "run",
        "tests.runtime.saving_env:KilledWhileSaving",
        "ppo",
        checkpoint_every=0,
        max_lag=1,
        steps=25_600,
        settings=[*SMALL, f"env.flag={flag}"],
    )
    runtime = on_machines(blue, AWAY, nodes)

    def each(messages: Any) -> None:
        stats = runtime.stats()
        if stats.version >= 8 and not nodes.drained and not stats.sites["site 1"].moved:
            flag.touch()
            nodes.drained.add("site 1")

    _, stats = finish(runtime, each)
    assert not flag.exists()
    assert (stats.sites["site 1"].moved, stats.sites["site 1"].lost) == (1, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "max_lag"),
    [
        ("ppo", 0),
        ("impala, lstm", 0),
        ("ppo", 1),
        ("dqn", 0),
        ("central", 0),
        ("two learners", 0),
        ("central at home", 0),
        pytest.param("central at home", 1, marks=pytest.mark.chaos),
    ],
)
def test_a_machine_that_is_drained_hands_its_workers_over_and_nothing_is_lost(
    name: str, max_lag: int, tmp_path: Path
) -> None:
    drained(name, max_lag, 8, tmp_path)


@pytest.mark.chaos
@pytest.mark.parametrize("max_lag", [0, 1])
@pytest.mark.parametrize("number", range(10))
def test_a_machine_may_be_drained_at_any_moment(
    number: int, max_lag: int, seed: int, tmp_path: Path
) -> None:
    drained("impala, lstm", max_lag, random.Random(seed).randrange(60), tmp_path, steps=5120)


@pytest.mark.thorough
def test_a_checkpoint_is_made_when_home_will_be_taken_away(tmp_path: Path) -> None:
    nodes, notes, cuts = Processes(), list[str](), list[Cut]()
    runtime = on_machines(blue_of(tmp_path, "CartPole-v1", "ppo", settings=SMALL), AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        cuts.extend(message for message in messages if isinstance(message, Cut))
        nodes.home_drained = nodes.home_drained or runtime.stats().version >= 4

    finish(runtime, each)
    assert sum("machine will be taken away: a checkpoint" in note for note in notes) == 1, notes
    assert len(cuts) == 2 and cuts[0].version < cuts[1].version and cuts[0].error is None, cuts
    assert {"learner.safetensors", "actor_3.safetensors"} <= cuts[0].files.keys()


def pids(title: str) -> list[int]:
    """The processes with a worker's title that come from this one, on whatever machine of the run
    they are.
    """
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if words == f"equipoise {title}" and os.getpid() in above(int(name)):
                found.append(int(name))
    return found


def above(pid: int) -> list[int]:
    """The parent of a process, its parent, and so on."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


@pytest.mark.thorough
def test_a_proxy_that_is_killed_is_replaced_and_the_sites_go_on(tmp_path: Path) -> None:
    notes, killed, before, after = (
        list[str](),
        list[int](),
        dict[str, list[int]](),
        dict[str, list[int]](),
    )
    blue = blue_of(tmp_path, "CartPole-v1", "ppo", max_lag=1, steps=25_600, settings=SMALL)
    runtime = on_machines(blue, ALL_AWAY)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        stats = runtime.stats()
        # each acts: some may be ahead of others
        due = stats.version >= 20 + 100 * len(killed) and min(stats.ticks) > 0
        if len(killed) < 2 and due and len(proxies := pids("proxy")) == 1:
            if proxies[0] in killed:
                return
            before.update({f"actor {n}": pids(f"actor {n}") for n in range(4)})
            killed.append(proxies[0])
            os.kill(proxies[0], signal.SIGKILL)
        elif len(killed) == 2 and not after and runtime.stats().version >= 250:
            after.update({f"actor {n}": pids(f"actor {n}") for n in range(4)})

    _, stats = finish(runtime, each)
    assert len(killed) == 2 and sum("proxy was killed by SIGKILL" in note for note in notes) == 2, (
        notes
    )
    assert after == before, "the same processes"
    assert all(site.lost == 0 for site in stats.sites.values())
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.thorough
def test_a_machine_that_falls_silent_is_fenced_and_its_actors_go_on(tmp_path: Path) -> None:
    """Stopped for longer than the deadline, as behind a link that is down. The others are learned
    from meanwhile.
    """
    nodes, notes, stopped = Processes(), list[str](), list[float]()
    nodes.silent_s = 2.0
    blue = blue_of(
        tmp_path,
        "CartPole-v1",
        "impala",
        max_lag=1,
        steps=6_400_000,
        checkpoint_every=0,
        settings=SMALL,
    )
    runtime = on_machines(blue, ALL_AWAY, nodes)
    at, before, during, kept = dict[str, int](), list[int](), list[int](), list[Any]()

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        version = runtime.stats().version
        # it acts: the others may be ahead of it
        if not stopped and version >= 40 and runtime.stats().ticks[0] > 0:
            before.extend(pids("actor 0"))
            os.kill(nodes.sites["site 0"].pid, signal.SIGSTOP)
            stopped.append(time.monotonic())
        elif stopped and not at and any("site 0 is out of reach" in note for note in notes):
            at["fenced"] = version
        elif at and "back" not in at and version >= at["fenced"] + 20:  # learned without it
            during.append(version)
            os.kill(nodes.sites["site 0"].pid, signal.SIGCONT)
            at["back"] = runtime.stats().ticks[0]
        elif "back" in at and "again" not in at and runtime.stats().ticks[0] > at["back"] + 64:
            at["again"] = version
            assert pids("actor 0") == before
            runtime.hold(last=True)
        if any(isinstance(message, Cut) for message in messages):
            kept.append(runtime.stats())  # nobody writes
        runtime.done |= bool(kept)

    finish(runtime, each)
    assert {"fenced", "back", "again"} <= at.keys(), (at, notes)
    assert all(site.lost == 0 for site in kept[0].sites.values())
    rows = kept[0].rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.thorough
def test_where_home_acts_a_lost_session_costs_nothing(tmp_path: Path) -> None:
    """The proxy is killed, and a machine falls silent: the same envs go on with the step that was
    under way.
    """
    nodes, did, notes = Processes(), list[str](), list[str]()
    nodes.silent_s = 2.0
    env, algorithm, options = PROGRAMS["central at home"]
    options = options | {"steps": 2560}
    runtime = on_machines(blue_of(tmp_path / "cluster", env, algorithm, **options), AWAY, nodes)

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        version = runtime.stats().version
        if version >= 8 and not did:
            os.kill(pids("proxy")[0], signal.SIGKILL)
            did.append("proxy")
        elif version >= 16 and len(did) == 1:
            os.kill(nodes.sites["site 0"].pid, signal.SIGSTOP)
            did.append("silent")
        elif len(did) == 2 and any("site 0 is out of reach" in note for note in notes):
            os.kill(nodes.sites["site 0"].pid, signal.SIGCONT)
            did.append("back")

    there, stats = finish(runtime, each)
    assert len(did) == 3 and sum("proxy was killed" in note for note in notes) == 1, notes
    here, _ = finish(ONE_MACHINE["serial"](blue_of(tmp_path / "serial", env, algorithm, **options)))
    assert there == here and stats.rows["dropped"] == 0


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["actor 2", "inference 0", "machine"])
def test_where_home_acts_whoever_dies_is_replaced_and_every_row_is_accounted_for(
    victim: str, tmp_path: Path
) -> None:
    nodes, notes, killed = Processes(), list[str](), list[int]()
    env, algorithm, options = PROGRAMS["central at home"]
    runtime = on_machines(
        blue_of(tmp_path, env, algorithm, **options | {"max_lag": 1, "steps": 12_800}),
        ALL_AWAY,
        nodes,
    )

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if len(killed) < 2 and runtime.stats().version >= 20 + 40 * len(killed):
            if victim == "machine":
                killed.append(nodes.sites["site 1"].pid)
                nodes.kill("site 1")
            elif len(found := pids(victim)) == 1 and found[0] not in killed:
                killed.append(found[0])
                os.kill(found[0], signal.SIGKILL)

    _, stats = finish(runtime, each)
    assert len(killed) == 2
    assert sum(f"{victim if victim != 'machine' else 'site 1'} " in note for note in notes) >= 2, (
        notes
    )
    rows = stats.rows
    assert rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"]


@pytest.mark.thorough
def test_a_machine_that_only_steps_loads_no_torch_in_its_workers(tmp_path: Path) -> None:
    env, algorithm, options = PROGRAMS["central at home"]
    maps = list[str]()
    runtime = on_machines(blue_of(tmp_path, env, algorithm, **options), ALL_AWAY)

    def each(messages: Any) -> None:
        for number in range(4) if not maps else ():
            for pid in pids(f"actor {number}"):
                with suppress(OSError):
                    maps.append(Path(f"/proc/{pid}/maps").read_text())

    finish(runtime, each)
    assert maps and not any("libtorch" in one for one in maps)


@pytest.mark.thorough
def test_where_home_acts_env_workers_that_get_on_may_die_again_and_again(tmp_path: Path) -> None:
    """Each of them has stepped hundreds of rows before: these are no deaths in a row."""
    env, algorithm, options = PROGRAMS["central at home"]
    runtime = on_machines(
        blue_of(tmp_path, env, algorithm, **options | {"max_lag": 1, "steps": 25_600}), ALL_AWAY
    )
    killed, at = list[int](), [20]

    def each(messages: Any) -> None:
        found, version = pids("actor 2"), runtime.stats().version
        if len(killed) < 4 and version >= at[-1] and len(found) == 1 and found[0] not in killed:
            killed.append(found[0])
            at.append(version + 60)
            os.kill(found[0], signal.SIGSEGV)

    _, stats = finish(runtime, each)
    assert len(killed) == 4
    assert (
        stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["dropped"] + stats.rows["held"]
    )
