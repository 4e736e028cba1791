"""``equipoise chaos`` with all actors on other nodes of a Ray cluster, and with what happens to
nodes.

    PYTHONPATH=. python benchmarks/chaos_on_ray.py [--faults A,B] [--seconds 4] [--inference
    central]

Ray has to be installed in that environment. The nodes are raylets on this machine: a head, which is
home, and three for actors. Each fault gets a run of its own on the same cluster, as in ``equipoise
chaos``, with the same proof of every row. A node that is killed is back after 5 s. Exits with 1
unless all pass.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import host
from ray_machines import Machines, machines

from equipoise.chaos.attack import Attack
from equipoise.chaos.faults import FAULTS, Fault, kill_in_turn, need
from equipoise.chaos.matrix import matrix

NODES = 3
BACK_S = 5.0  # after which a node is back
SILENT_S = 20.0  # how long a machine says nothing


def emptied(there: Machines, node: Any) -> bool:
    """Have the sites of a node moved?"""
    return node not in there.used()


def lose(there: Machines, attack: Attack, leave_workers: bool = False) -> None:
    """Kill a node that has actors, and bring another after ``BACK_S``; all workers are there again
    in the end.
    """
    attack.begin()
    attack.wait(there.used, "a node with actors")
    there.kill(there.used()[0], leave_workers=leave_workers)
    attack.go_on(BACK_S)
    there.restore(NODES)
    attack.whole()
    attack.updates(50)


def kill_node(there: Machines, attack: Attack, seconds: float) -> None:
    for _ in range(2):
        lose(there, attack)
    attack.end()
    need(
        attack.noted("its workers begin anew") >= 2,
        "two nodes were killed, and fewer sites began anew",
    )


def leave_twin(there: Machines, attack: Attack, seconds: float) -> None:
    """Ray's daemon of a node dies, and its processes live on: a twin of the site that replaces
    them.
    """
    lose(there, attack, leave_workers=True)
    attack.end()
    need(attack.noted("its workers begin anew"), "a node was lost, and no site began anew")


def kill_site(there: Machines, attack: Attack, seconds: float) -> None:
    for _ in range(2):
        attack.begin()
        there.signal_site(signal.SIGKILL)
        attack.whole()
        attack.updates(50)
    attack.end()
    need(attack.noted("its workers begin anew") >= 2, "two sites were killed, and fewer began anew")


def kill_proxy(there: Machines, attack: Attack, seconds: float) -> None:
    attack.severs = True
    actors = {name: pid for name, pid in attack.workers().items() if name.startswith("actor")}
    n = kill_in_turn(attack, ["proxy"], seconds)
    need(actors.items() <= attack.workers().items(), "an actor was replaced, too")
    attack.end()
    need(
        attack.noted("proxy was killed by SIGKILL; replaced") >= n,
        f"the proxy was killed {n} times, and replaced less often",
    )


def stop_site(there: Machines, attack: Attack, seconds: float) -> None:
    """A machine says nothing for a while, longer than the link's deadline; then it goes on where it
    was.
    """
    attack.severs = True
    before = attack.workers()
    attack.begin()
    pid = there.signal_site(signal.SIGSTOP)
    attack.go_on(SILENT_S)
    there.signal_site(signal.SIGCONT, pid)
    attack.updates(200)
    need(attack.workers() == before, "a worker was replaced")
    attack.end()
    need(attack.noted("is out of reach"), "no note of a machine that was out of reach")


def drain_node(there: Machines, attack: Attack, seconds: float) -> None:
    for _ in range(2):
        attack.begin()
        node, moved = there.used()[0], attack.workers()
        there.drain(node)
        attack.wait(partial(emptied, there, node), "the workers to move")
        there.kill(node)
        there.restore(NODES)
        attack.whole()
        need(attack.workers() != moved, "no worker moved")
        attack.updates(50)
    attack.end()
    need(
        attack.noted("will be taken away: its workers move") >= 2,
        "two nodes were drained, and fewer sites moved",
    )
    need(attack.rows().dropped == 0, f"{attack.rows().dropped} rows were dropped by a drain")


def attacked(
    do: Callable[[Machines, Attack, float], None], there: Machines, attack: Attack, seconds: float
) -> None:
    """Begin with all workers there: else the learner waits for those that are still beginning,
    whatever the fault does.
    """
    attack.train()
    attack.whole()
    do(there, attack, seconds)


def of_nodes(there: Machines) -> list[Fault]:
    found = [
        (kill_node, "kill-node", "a node is killed, and is back after 5 s, twice"),
        (leave_twin, "leave-twin", "Ray's daemon of a node dies, and its workers live on"),
        (kill_site, "kill-site", "the process that supervises a node's workers is killed, twice"),
        (
            kill_proxy,
            "kill-proxy",
            "the process at home that stands in for other nodes is killed, again and again",
        ),
        (stop_site, "stop-site", f"a node says nothing for {SILENT_S:.0f} s"),
        (drain_node, "drain-node", "a node is drained and then killed, twice"),
    ]
    return [
        Fault(name=name, what=what, do=partial(attacked, do, there)) for do, name, what in found
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", default="", metavar="A,B")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--inference", default="local", choices=["local", "central"])
    a = parser.parse_args()
    print(host(), flush=True)
    with machines(nodes=NODES) as there:
        there.join()
        names = [name for name in a.faults.split(",") if name]
        faults = [
            fault for fault in (*FAULTS, *of_nodes(there)) if not names or fault.name in names
        ]
        if unknown := set(names) - {fault.name for fault in faults}:
            parser.error(
                f"expected some of {', '.join(one.name for one in (*FAULTS, *of_nodes(there)))}, "
                f"got {unknown}"
            )
        lines = list[str]()

        def tell(line: str) -> None:
            lines.append(line)
            print(line, flush=True)

        results = matrix(faults, a.seconds, tell, a.inference, there)
    print("\n" + "\n".join(lines))  # together: Ray has said much meanwhile
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
