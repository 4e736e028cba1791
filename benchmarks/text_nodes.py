"""Text over several nodes: tokens/s of generators that sleep, and what crosses for a token.

    PYTHONPATH=. python benchmarks/text_nodes.py scale [--rounds 3] [--seconds 20]
    PYTHONPATH=. python benchmarks/text_nodes.py weights [--seconds 20]
    PYTHONPATH=. python benchmarks/text_nodes.py lose

Ray has to be installed in that environment; the nodes are raylets on this machine.

``scale``: two generators on one node, then eight on four. Their engines sleep (``sim``), so they
take hardly a core. Rates begin once all generators have handed two groups in. On a busy machine a
longer ``--step-s`` makes waits for a core count less. Printed are also shares of the time of
learners and generators.

``weights``: two generators on a node each, with a model that is learned whole, and with adapters of
rank 4. Printed are the bytes of a version, and the bytes to and from the nodes for a token; the
mean and the longest time between two versions.

``lose``: a node of generators is killed and another drained. Printed is the longest time between
two versions since then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import host, table
from ray_machines import Machines, machines

from equipoise.balance.shares import STATES, Shares
from equipoise.programs.cluster import Cluster
from equipoise.runtime.cluster.on_ray import RayNodes
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.runtime.messages import Record
from tests.runtime import losing
from tests.runtime.machines import blue_of, run_by

BEGIN_S = 600.0
MODEL = "llama:hidden_size=128,num_hidden_layers=4,num_attention_heads=4"


def shares(before: Mapping[str, Shares], now: Mapping[str, Shares]) -> dict[str, float]:
    """Shares of the time between: the learner that works, that waits for a core, and for samples;
    the generators that wait for a core, and for a place in the queue.
    """

    def spent(kind: str, state: str) -> float:
        def seconds(workers: Mapping[str, Shares], state: str) -> float:
            return sum(one.seconds[state] for one in workers.values() if one.kind == kind)

        whole = sum(seconds(now, name) - seconds(before, name) for name in STATES)
        return (seconds(now, state) - seconds(before, state)) / max(whole, 1e-9)

    wanted = {"learner": ("worked", "preempted", "starved"), "generator": ("preempted", "blocked")}
    return {f"{kind} {state}": spent(kind, state) for kind in wanted for state in wanted[kind]}


class Running:
    """A run over nodes, polled here."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.pause = runtime, losing.Pause()
        self.lengths: list[float] = []

    def poll(self) -> None:
        for message in self.runtime.poll(0.02):
            if isinstance(message, Record) and message.length_mean is not None:
                self.lengths.append(message.length_mean)
        self.pause.look(self.runtime.stats().version)

    def begin(self) -> None:
        """Go on until every generator has handed in two groups."""
        end = time.monotonic() + BEGIN_S
        while min(self.runtime.stats().ticks) < 2:
            if time.monotonic() > end:
                raise TimeoutError(f"not begun after {BEGIN_S:.0f} s: {self.runtime.stats()}")
            self.poll()

    def measure(self, seconds: float) -> dict[str, float]:
        """Tokens/s, bytes a token each way, and seconds a version."""
        self.begin()
        self.pause, before, began = losing.Pause(), self.runtime.stats(), time.monotonic()
        while (took := time.monotonic() - began) < seconds:
            self.poll()
        now = self.runtime.stats()
        length = statistics.mean(self.lengths)
        tokens = (now.rows["sampled"] - before.rows["sampled"]) * length

        def moved(name: str) -> float:
            return sum(
                float(getattr(site, name) - getattr(before.sites[key], name))
                for key, site in now.sites.items()
            )

        return {
            "tokens/s": tokens / took,
            "to nodes": moved("sent") / tokens,
            "from nodes": moved("received") / tokens,
            "version s": took / max(now.version - before.version, 1),
            **shares(before.workers, now.workers),
            "longest s": self.pause.longest_s,
        }


@contextmanager
def over(there: Machines, sites: dict[str, list[str]], **options: Any) -> Iterator[Running]:
    """A run whose generators are on the sites."""
    nodes = RayNodes(Cluster(address=there.settings["address"]))
    try:
        with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
            given = {"envs_per_actor": 8, "unroll": 1, "max_lag": 2, "steps": 10_000_000}
            blue = blue_of(Path(folder), "sort", "grpo", **given | {"recipe": True} | options)
            runtime = run_by(RemoteCrew(blue, nodes, sites))
            try:
                yield Running(runtime)
            finally:
                runtime.stop()
    finally:
        nodes.disconnect()


def scale(rounds: int, seconds: float, step_s: float) -> int:
    found: dict[int, list[dict[str, float]]] = {1: [], 4: []}
    engine = f"source.engine=sim:step_s={step_s},median=6"
    with machines(cores=3, nodes=4) as there:
        for _ in range(rounds):
            for nodes, results in found.items():
                sites = {
                    f"site {n}": [f"generator {2 * n}", f"generator {2 * n + 1}"]
                    for n in range(nodes)
                }
                settings = [engine, "source.samples_at_once=32"]
                options = {"actors": 2 * nodes, "batch": 64 * nodes, "settings": settings}
                with over(there, sites, **options) as run:
                    results.append(run.measure(seconds))
                print(nodes, results[-1], flush=True)
    rows = [
        [nodes, 2 * nodes, f"{statistics.median(one['tokens/s'] for one in results):,.0f}"]
        for nodes, results in found.items()
    ]
    print(table(["nodes", "generators", "tokens/s"], rows))
    more = [
        four["tokens/s"] / one["tokens/s"] for one, four in zip(found[1], found[4], strict=True)
    ]
    print(f"{statistics.median(more):.2f} x the tokens/s of one node; each round: {more}")
    return 0


def weights(seconds: float) -> int:
    rows: list[Sequence[Any]] = []
    sites = {"site 0": ["generator 0"], "site 1": ["generator 1"]}
    with machines(cores=3, nodes=3) as there:
        one = dict[str, float]()
        for name, more in (("whole", []), ("adapters, rank 4", ["source.lora=4"])):
            settings = ["source.samples_at_once=64", *more]
            options = {"actors": 2, "batch": 64, "model": MODEL, "settings": settings}
            with over(there, sites, **options) as run:
                one, (memory, *_) = run.measure(seconds), run.runtime._shared.policies.values()
                size = memory.weights.nbytes
            rows.append([name, f"{size:,}", *(f"{one[key]:,.3g}" for key in one)])
            print(rows[-1], flush=True)
    print(table(["learned", "bytes a version", *one], rows))
    return 0


def lose() -> int:
    with machines(nodes=3) as there, tempfile.TemporaryDirectory() as folder:
        nodes = RayNodes(Cluster(address=there.settings["address"]))

        def node(name: str) -> Any:
            return next(one for one in there.victims() if one.node_id[:8] == nodes.where(name))

        try:
            runtime = run_by(RemoteCrew(losing.endless(Path(folder)), nodes, losing.SITES))
            stats, pause, notes = losing.loses(
                runtime, lambda name: there.kill(node(name)), lambda name: there.drain(node(name))
            )
        finally:
            nodes.disconnect()
    print(*notes, stats.rows, sep="\n")
    print(f"longest pause of the learner: {pause.longest_s:.2f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["scale", "weights", "lose"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds of a step of an engine")
    a = parser.parse_args()
    print(host(), f"load {os.getloadavg()[0]:.1f}", flush=True)
    if a.what == "scale":
        return scale(a.rounds, a.seconds, a.step_s)
    return weights(a.seconds) if a.what == "weights" else lose()


if __name__ == "__main__":
    sys.exit(main())
