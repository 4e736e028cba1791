"""What weights cost on the way to actors on several hosts: bytes into each host, and seconds until
a version is there.

    PYTHONPATH=. python benchmarks/fanout.py [--hidden 3500] [--versions 8] [--mbit 50] [--ray]     # as root, on Linux
    PYTHONPATH=. python benchmarks/fanout.py --hidden 86 --versions 200 --mbit 0 --hosts 1     # 64 KB, a link without a limit

Home and ``--hosts`` hosts, which are network namespaces with a link of so many Mbit/s each. Two
actors a host, in lockstep: so each version is used by all of them, and the bytes that the kernel
counted into a host (``/proc/net/dev`` there), less those of a run with small weights, are those of
that many versions. Seconds are from the moment at which the learner has published a version until
it lies in the memory of a host, for all hosts and versions. Beside them: what the link alone needs,
and with ``--ray`` one ``ray.get`` of an object of that size by a node of Ray on the first host,
three times.
"""  # noqa: E501

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from harness import host, table
from ray_machines import MARK, marked

from equipoise import tracing
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.runtime.cluster.weights import SiteWeights
from tests.runtime.cables import Cabled, Cables, ip
from tests.runtime.machines import blue_of, finish, run_by, run_site

A_HOST = 2  # actors


def stamped(folder: str, job: Any, lifeline: Any) -> None:
    """A site that writes down when a version has come."""
    came, begin = dict[int, float](), SiteWeights.__init__

    def begins(self: Any, stores: Any, **more: Any) -> None:
        for store in stores:
            write = store.publish_bytes

            def writes(version: int, data: Any, write: Any = write) -> None:
                write(version, data)
                came[version] = time.perf_counter()

            store.publish_bytes = writes
        begin(self, stores, **more)

    SiteWeights.__init__ = begins  # type: ignore[method-assign]
    run_site(job, lifeline)
    Path(folder, f"{job.name}.json").write_text(json.dumps(came))


class Stamped(Cabled):
    def __init__(self, cables: Cables, folder: Path) -> None:
        super().__init__(cables)
        self._folder = folder

    def start(self, job: Any) -> None:
        with self._cables.inside(int(job.name.split()[1])):
            target = functools.partial(stamped, str(self._folder))
            made = multiprocessing.get_context("spawn").Process(
                target=target, args=(job, self._lifeline), name=job.name
            )
            made.start()
        self.sites[job.name] = made


def slow(cables: Cables, mbit: float) -> None:
    """Let home send so many Mbit/s to each host."""
    for name in cables._names:
        if mbit:
            limit = f"rate {mbit:g}mbit burst 64kb latency 400ms"
            subprocess.run(
                ["tc", "qdisc", "add", "dev", name, "root", "tbf", *limit.split()], check=True
            )
        ip(f"-n {name} link set lo up")


def received(name: str) -> int:
    """Bytes into a namespace so far."""
    said = subprocess.run(
        ["ip", "netns", "exec", name, "cat", "/proc/net/dev"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    line = next(line for line in said.splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[0])


def run(hosts: int, hidden: int, versions: int, mbit: float) -> tuple[list[int], list[float], int]:
    """Bytes into each host, seconds until a version was there for each host and version, and the
    bytes of one.
    """
    cables, actors = Cables(hosts), A_HOST * hosts
    sites = {f"site {i}": [f"actor {A_HOST * i + n}" for n in range(A_HOST)] for i in range(hosts)}
    try:
        slow(cables, mbit)
        with tempfile.TemporaryDirectory() as folder:
            place, rows = Path(folder, "run"), actors * 2 * 8
            blue = blue_of(
                place,
                "CartPole-v1",
                "impala",
                actors=actors,
                batch=2 * actors,
                steps=rows * versions,
                checkpoint_every=0,
                settings=[f"algorithm.hidden={hidden},{hidden}", "placement.trace_s=600"],
            )
            runtime = run_by(RemoteCrew(blue, Stamped(cables, Path(folder)), sites))
            size = sum(one.weights.nbytes for one in runtime._shared.policies.values())
            finish(runtime)
            learner = next(
                one for one in tracing.read(Path(folder, tracing.FOLDER)) if one.kind == "learner"
            )
            ended = learner.rows[learner.rows[:, 0] == learner.parts.index("publish"), 2]
            assert len(ended) == versions, f"{len(ended)} versions were published, not {versions}"
            seconds = [
                at - ended[int(version) - 1]
                for name in sites
                for version, at in json.loads(Path(folder, f"{name}.json").read_text()).items()
                if int(version) > 1  # at the first one everything is new
            ]
        return [received(name) for name in cables._names], seconds, size
    finally:
        cables.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def by_ray(size: int, mbit: float) -> list[float]:
    """Seconds of one ``ray.get`` of so many bytes, three times, from home by a node on the first
    host.
    """
    import ray

    cables, port, program = Cables(1), free_port(), str(Path(sys.executable).parent / "ray")
    mark = f"{MARK}={os.getpid()}.fanout"
    os.environ[MARK] = mark.partition("=")[2]
    # "ray start --head" would want a token of its nodes
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # else every Ray of this machine would take this cluster for the current one
    place = tempfile.mkdtemp(prefix="eqp-")
    room = [
        "--object-store-memory",
        str(5 * size + 100_000_000),
        "--num-cpus",
        "1",
        "--include-dashboard",
        "false",
    ]
    try:
        slow(cables, mbit)
        home = [
            program,
            "start",
            "--head",
            "--node-ip-address",
            cables.address,
            "--port",
            str(port),
            "--temp-dir",
            place,
            *room,
        ]
        subprocess.run(home, check=True, capture_output=True)
        there = cables.address.rpartition(".")[0] + ".1"
        node = [
            program,
            "start",
            "--address",
            f"{cables.address}:{port}",
            "--node-ip-address",
            there,
            *room[:-2],
        ]
        inside = ["ip", "netns", "exec", cables._names[0], *node, "--resources", '{"there": 1}']
        subprocess.run(inside, check=True, capture_output=True)
        ray.init(
            address=f"{cables.address}:{port}",
            _node_ip_address=cables.address,
            log_to_driver=False,
            logging_level="ERROR",
        )

        def seconds(refs: Any) -> float:
            began = time.perf_counter()
            ray.get(refs[0])
            return time.perf_counter() - began

        get = ray.remote(num_cpus=0, resources={"there": 1})(seconds)
        ray.get(get.remote([ray.put(b"")]))  # its worker begins
        return [
            ray.get(get.remote([ray.put(np.random.default_rng(n).bytes(size))])) for n in range(3)
        ]
    finally:
        ray.shutdown()
        # "ray stop" would end other clusters of this machine as well
        for pid in set(marked(mark)) - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        del os.environ[MARK]
        shutil.rmtree(place, ignore_errors=True)
        cables.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=3500)
    parser.add_argument("--versions", type=int, default=8)
    parser.add_argument("--mbit", type=float, default=50.0, help="0: no limit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--ray", action="store_true", help="one ray.get beside it; Ray has to be installed"
    )
    a = parser.parse_args()
    print(host(), flush=True)
    small, *_ = run(a.hosts, 8, a.versions, a.mbit)
    large, seconds, size = run(a.hosts, a.hidden, a.versions, a.mbit)
    shares = [(one - other) / (a.versions * size) for one, other in zip(large, small, strict=True)]
    print(
        table(
            ["host", "bytes", "of versions x size"],
            [
                [f"host {i}", f"{one:,}", f"{share:.3f}"]
                for i, (one, share) in enumerate(zip(large, shares, strict=True))
            ],
        )
    )
    middle, late = np.percentile(seconds, [50, 95])
    alone = f", where the link alone needs {size * 8 / a.mbit / 1e6:.2f} s" if a.mbit else ""
    print(
        f"{size:,} bytes a version; there after {middle:.4f} s (median), {late:.4f} s (p95 of "
        f"{len(seconds)}){alone}"
    )
    if a.ray:
        got = by_ray(size, a.mbit)
        print(
            f"ray.get of {size:,} bytes: {', '.join(f'{one:.2f} s' for one in got)}; p95 / median: "
            f"{late / np.median(got):.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
