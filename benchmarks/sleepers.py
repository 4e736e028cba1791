"""Many env workers that sleep, on one node and on four: what is left of the steps/s that the sleeps
allow?

    PYTHONPATH=. python benchmarks/sleepers.py [--rounds 3] [--seconds 20]

Ray has to be installed in that environment; the nodes are raylets on this machine, each with 16
cores in name. A sleep takes no core. A worker steps 8 envs in turn, 10 ms each, so it can make 100
steps/s at most; IMPALA learns on meanwhile. A round runs 16 workers on one node, and then 64 on
four. Rates are between two records of ``--seconds``, after all workers have begun. PSS is the
memory of an actor, shared pages counted by their share: the median over the actors, at the end.

With ``--rllib PYTHON`` (of ``peers/setup.sh rllib``) each round also runs RLlib's IMPALA with 16
runners x 8 such envs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from harness import host, started, table, tail
from ray_machines import Machines, machines

HERE = Path(__file__).parent
STEP_S, ENVS, BEGIN_S = 0.01, 8, 180.0
RUN = (
    f"sleepy:SleepyCartPole --set env.step_s={STEP_S} --set env.in_turn={ENVS} --envs-per-actor "
    f"{ENVS} --unroll 20 --max-lag 4 "
    "--algorithm impala --no-recipe --steps 100000000 --evaluate-episodes 0 --checkpoint-every 0 "
    "--quiet --no-tensorboard"
)


def pss_mb(title: str = "equipoise actor") -> list[float]:
    """MB of each process whose title begins so."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):  # no process, or it has ended
            if place.name.isdecimal() and (place / "cmdline").read_bytes().startswith(
                title.encode()
            ):
                lines = (place / "smaps_rollup").read_text().splitlines()
                found.append(
                    int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
                )
    return found


def run(there: Machines, workers: int, seconds: float) -> tuple[float, float]:
    """Steps/s, and MB of an actor."""
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder:
        out, log = Path(folder) / "run", Path(folder) / "log"
        words = [
            sys.executable,
            "-m",
            "equipoise",
            "train",
            *RUN.split(),
            *there.words,
            "--out",
            str(out),
        ]
        words += ["--actors", str(workers), "--batch", str(workers * ENVS // 4)]
        with started(words, log) as process:
            lines, end = records(out), time.monotonic() + BEGIN_S
            while len(pss_mb()) < workers or not lines:
                if time.monotonic() > end or process.poll() is not None:
                    raise TimeoutError(
                        f"expected {workers} actors within {BEGIN_S:.0f} s, got "
                        f"{len(pss_mb())}:\n{tail(log)}"
                    )
                time.sleep(1.0)
                lines = records(out)
            # they are all there: none is counted from its first steps on
            begun = lines[-1]["wall_s"] + 10.0
            while lines[-1]["wall_s"] < begun + seconds:
                time.sleep(1.0)
                lines = records(out)
            memory = statistics.median(pss_mb())
    kept = [one for one in lines if one["wall_s"] >= begun]
    first, last = kept[0], kept[-1]
    return (last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]), memory


def run_rllib(python: Path, seconds: float) -> tuple[float, float]:
    """The same of RLlib's runners."""
    words = [
        str(python),
        str(HERE / "peers" / "run_rllib.py"),
        "sleepy",
        "--seconds",
        str(seconds),
        "--warmup",
        "30",
    ]
    with (
        tempfile.TemporaryDirectory(prefix="equipoise-bench-") as folder,
        started(words, Path(folder) / "log") as process,
    ):
        memory = list[float]()
        while process.poll() is None:
            memory = pss_mb("ray::SingleAgentEnvRunner") or memory
            time.sleep(1.0)
        said = (Path(folder) / "log").read_text(encoding="utf-8")
    if process.returncode:
        raise RuntimeError(
            f"expected RLlib to end with 0, got {process.returncode}:\n{said[-2000:]}"
        )
    return float(json.loads(said.strip().splitlines()[-1])["value"]), statistics.median(memory)


def records(out: Path) -> list[dict[str, float]]:
    with suppress(FileNotFoundError):
        whole = (out / "metrics.jsonl").read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--rllib", type=Path, metavar="PYTHON", help="the interpreter that has RLlib"
    )
    a = parser.parse_args()
    print(host(), flush=True)
    paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # the nodes find the env there
    found: dict[int, list[tuple[float, float]]] = {16: [], 64: []}
    beside = list[tuple[float, float]]()
    for _ in range(a.rounds):
        for workers, nodes in ((16, 1), (64, 4)):
            with machines(cores=16, nodes=nodes) as there:
                found[workers].append(run(there, workers, a.seconds))
                print(workers, found[workers][-1], flush=True)
        if a.rllib:
            beside.append(run_rllib(a.rllib, a.seconds))
            print("RLlib", beside[-1], flush=True)
    rows = []
    kinds = [(str(workers), workers, results) for workers, results in found.items()]
    for kind, workers, results in [*kinds, *([("16, RLlib", 16, beside)] if beside else [])]:
        rate = statistics.median(one for one, _ in results)
        memory = statistics.median(mb for _, mb in results)
        rows.append([kind, f"{rate:,.0f}", f"{rate / (workers / STEP_S):.3f}", f"{memory:.0f}"])
    more = statistics.median(
        four[0] / one[0] for one, four in zip(found[16], found[64], strict=True)
    )
    print(table(["workers", "steps/s", "of the limit", "PSS MB a worker"], rows))
    print(f"64 workers on four nodes make {more:.2f} x the steps of 16 on one")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
