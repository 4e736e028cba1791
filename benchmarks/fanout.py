"""What large weights cost on the way to actors on several hosts: bytes into each host, and seconds for a version.

    PYTHONPATH=. python benchmarks/fanout.py [--hidden 3500] [--versions 4] [--mbit 50]     # as root, on Linux

Home and four hosts, which are network namespaces with a link of so many Mbit/s each. Eight actors, two a host, in lockstep: so
each version is used by all of them, and the bytes that the kernel counted into a host (``/proc/net/dev`` there), less those of
a run with small weights, are those of that many versions. Seconds are those of a run's second half, for each version: all
hosts get it, step, and send their rows, and the learner makes the next. Beside them is what the link alone needs for the size.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from harness import host, table

from equipoise.runtime.cluster.runtime import ClusterRuntime
from tests.runtime.cables import Cabled, Cables, ip
from tests.runtime.machines import blue_of, finish

HOSTS, ACTORS = 4, 8
SITES = {f"site {i}": [f"actor {2 * i}", f"actor {2 * i + 1}"] for i in range(HOSTS)}


def received(name: str) -> int:
    """Bytes into a namespace so far."""
    said = subprocess.run(
        ["ip", "netns", "exec", name, "cat", "/proc/net/dev"], check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    line = next(line for line in said.splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[0])


def run(hidden: int, versions: int, mbit: float) -> tuple[list[int], float, int]:
    """Bytes into each host, seconds for a version, and the bytes of one."""
    cables = Cables(HOSTS)
    try:
        for name in cables._names:  # towards the host: what home sends
            limit = f"rate {mbit:g}mbit burst 64kb latency 400ms"
            subprocess.run(["tc", "qdisc", "add", "dev", name, "root", "tbf", *limit.split()], check=True)
            ip(f"-n {name} link set lo up")
        with tempfile.TemporaryDirectory() as folder:
            rows = ACTORS * 2 * 8
            blue = blue_of(
                Path(folder), "CartPole-v1", "impala", actors=ACTORS, batch=2 * ACTORS, steps=rows * versions,
                checkpoint_every=0, settings=[f"algorithm.hidden={hidden},{hidden}"],
            )  # fmt: skip
            runtime = ClusterRuntime(blue, Cabled(cables), SITES)
            size, seen = sum(one.weights.nbytes for one in runtime._shared.policies.values()), dict[int, float]()
            finish(runtime, lambda _: seen.setdefault(runtime.stats().version, time.monotonic()))
        half = [at for version, at in sorted(seen.items()) if version >= versions // 2]
        return [received(name) for name in cables._names], (half[-1] - half[0]) / max(len(half) - 1, 1), size
    finally:
        cables.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=3500)
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=50.0)
    a = parser.parse_args()
    print(host(), flush=True)
    small, *_ = run(8, a.versions, a.mbit)
    large, seconds, size = run(a.hidden, a.versions, a.mbit)
    shares = [(one - other) / (a.versions * size) for one, other in zip(large, small, strict=True)]
    print(table(["host", "bytes", "of versions x size"], [
        [f"host {i}", f"{one:,}", f"{share:.3f}"] for i, (one, share) in enumerate(zip(large, shares, strict=True))
    ]))  # fmt: skip
    print(f"{size:,} bytes a version; {seconds:.1f} s for one, where the link alone needs {size * 8 / a.mbit / 1e6:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
