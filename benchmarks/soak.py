"""A long run on four nodes: does the memory of a process grow, do descriptors, does Ray's object
store?

    PYTHONPATH=. python benchmarks/soak.py [--minutes 60]

Ray has to be installed in that environment; the nodes are raylets on this machine. Eight actors
step 8 envs in turn that sleep 10 ms each, IMPALA learns on, and a checkpoint is made every two
minutes. Memory and descriptors of all processes of the run are read every ten seconds. The slope is
a line through what was read after the first sixth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from harness import host, started, table, tail
from ray_machines import Machines, machines
from sleepers import HERE, RUN, records

EVERY_S = 10.0
PAGE_MB = 4096 / 2**20


def read(pids: list[int]) -> dict[tuple[int, str], tuple[float, int]]:
    """MB of memory, and descriptors, by process."""
    found = {}
    for pid in pids:
        with suppress(OSError):  # it ended meanwhile
            place = Path(f"/proc/{pid}")
            title = (place / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            rss = int((place / "statm").read_text().split()[1]) * PAGE_MB
            found[pid, title] = rss, len(list((place / "fd").iterdir()))
    return found


def stores(there: Machines) -> tuple[float, int]:
    """MB that the object stores of all nodes hold, and files that were spilled."""
    import ray

    used = ray.cluster_resources().get("object_store_memory", 0) - ray.available_resources().get(
        "object_store_memory", 0
    )
    spilled = sum(1 for place in Path("/tmp/ray").glob("session_latest/**/ray_spilled_objects*/*"))
    return used / 2**20, spilled


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    a = parser.parse_args()
    print(host(), flush=True)
    seen: dict[tuple[int, str], list[tuple[float, float, int]]] = defaultdict(list)
    with (
        machines(nodes=4) as there,
        tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder,
    ):
        there.join()
        out, log = Path(folder) / "run", Path(folder) / "log"
        words = [
            sys.executable,
            "-m",
            "equipoise",
            "train",
            *RUN.replace("--checkpoint-every 0", "").split(),
            *there.words,
        ]
        words += ["--out", str(out), "--actors", "8", "--batch", "16"]
        with started(words, log) as process:
            began = time.monotonic()
            while (at := time.monotonic() - began) < a.minutes * 60:
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended after {at:.0f} s:\n{tail(log)}")
                for who, (rss, descriptors) in read([*there.pids(), process.pid]).items():
                    seen[who].append((at, rss, descriptors))
                time.sleep(EVERY_S)
            held, spilled = stores(there)
            lines = records(out)
    rows = []
    for (_, title), found in sorted(seen.items(), key=lambda item: item[0][1]):
        late = [one for one in found if one[0] >= a.minutes * 10]
        if len(late) > 2:
            slope = statistics.linear_regression(
                [at / 3600 for at, _, _ in late], [rss for _, rss, _ in late]
            ).slope
            counts = [one[2] for one in late]
            rows.append(
                [
                    title[:40],
                    f"{late[-1][1]:.0f}",
                    f"{slope:+.2f}",
                    f"{min(counts)} to {max(counts)}",
                ]
            )
    print(table(["process", "MB", "MB/h", "descriptors"], rows))
    last = lines[-1]
    print(
        f"{last['env_steps']:,} steps, {last['updates']:,} updates; stores hold {held:.1f} MB, "
        f"{spilled} files spilled"
    )
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
