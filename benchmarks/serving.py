"""Serving beside LitServe, Ray Serve and a bare Starlette endpoint: latency and requests/s, in
turns.

    .venv/bin/python benchmarks/serving.py [--peers-home DIR] [--rounds 5] [--rows NAMES] [--json
    FILE] [--page FILE.md]

One policy of 64x64 (MLP), and one with an LSTM of 64 behind it; all servers load the same ONNX
file, one thread. Three loads: one client that asks again at once, 300 requests/s at fixed moments
over 16 connections, and 64 clients that ask again at once. Every round starts each server, alone on
the machine with the load's process (``load.py``), and stops it again. Ratios are taken within a
round; the table shows medians. LitServe and Ray Serve run with and without batching; the better one
counts, by load. ``peers/serve_policy.py`` has their code, ``peers/setup.sh litserve rayserve``
builds their environments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import calibrate, host, table
from matrix import HOME

HERE = Path(__file__).resolve().parent
POLICIES = ("mlp", "lstm")
LOADS = {
    "one client": [],
    "300/s": ["--rate", "300", "--clients", "16"],
    "64 clients": ["--clients", "64"],
}
ROWS = {  # name -> kind of server, its arguments
    "ours": ("ours", []),
    "ours, shadow": ("ours", ["--shadow"]),
    "starlette": ("starlette", []),
    "litserve": ("litserve", []),
    "litserve, batches": ("litserve", ["--batch", "64"]),
    "rayserve": ("rayserve", []),
    "rayserve, batches": ("rayserve", ["--batch", "64"]),
}
# what, which load, (measure of ours, row of ours), rows of the other, (low or high is good), limit
TARGETS = (
    (
        "HTTP p50 / LitServe's",
        ("one client", "300/s"),
        "p50_ms",
        "ours",
        ("litserve", "litserve, batches"),
        "<=",
        0.4,
    ),
    (
        "HTTP p50 / Ray Serve's",
        ("one client", "300/s"),
        "p50_ms",
        "ours",
        ("rayserve", "rayserve, batches"),
        "<=",
        0.25,
    ),
    (
        "HTTP p50 / bare Starlette's",
        ("one client", "300/s"),
        "p50_ms",
        "ours",
        ("starlette",),
        "<=",
        1.6,
    ),
    (
        "unix socket p50 / HTTP's",
        ("one client", "300/s"),
        "p50_ms",
        "ours uds",
        ("ours",),
        "<=",
        0.5,
    ),
    (
        "requests/s / LitServe's",
        ("64 clients",),
        "per_s",
        "ours",
        ("litserve", "litserve, batches"),
        ">=",
        1.5,
    ),
    ("p50 with a shadow / without", ("300/s",), "p50_ms", "ours, shadow", ("ours",), "<=", 1.1),
)


def make_registry(folder: Path) -> Path:
    """A registry with both policies, untrained; each has a shadow under another name."""
    import numpy as np
    import torch
    from gymnasium import spaces

    from equipoise.exporting import artifact
    from equipoise.exporting.observations import sampled
    from equipoise.programs.program import algorithm_from_json
    from equipoise.record.playable import Playable
    from equipoise.registry import Registry
    from equipoise.types import EnvSpec

    made = Registry(folder / "registry", create=True)
    spec = EnvSpec(observation=spaces.Box(-10.0, 10.0, (4,), np.float32), action=spaces.Discrete(2))
    for name in POLICIES:
        fields = {
            "hidden": [64, 64],
            **({"core": "lstm", "core_size": 64} if name == "lstm" else {}),
        }
        for seed in (0, 1):
            torch.manual_seed(seed)
            algorithm = algorithm_from_json({"name": "ppo", "fields": fields}, "algorithm")
            one = Playable(algorithm=algorithm, spec=spec, learns=True, precision="fp32")
            policy = one.policy()
            policy.net.load_state_dict(algorithm.network(spec).state_dict())
            seen = sampled(spec, policy.net, rows=64)
            place = folder / f"{name}-{seed}"
            artifact.write(place, "main", one, policy, lineage={}, seen=seen, rows=64)
            version = made.add(place, name)
            if seed == 0:
                made.alias(name, "champion", version)
    return made.path


def versions(registry: Path, policy: str) -> tuple[Path, str]:
    """The champion's artifact, and the other version."""
    from equipoise.registry import Registry

    made = Registry(registry)
    champion, path = made.resolve(policy)
    return path, next(version for version in made.versions(policy) if version != champion)


@contextlib.contextmanager
def served(
    a: argparse.Namespace, row: str, policy: str, registry: Path, folder: Path
) -> Iterator[dict[str, str]]:
    """A server that answers -> {name of a row of results: its place}."""
    kind, arguments = ROWS[row]
    artifact, other = versions(registry, policy)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {row: f"127.0.0.1:{port}"}
    if kind == "ours":
        from equipoise.registry import Registry

        Registry(registry).alias(policy, "shadow", other if "--shadow" in arguments else None)
        uds = folder / "serve.sock"
        places |= {f"{row} uds": str(uds)} if not arguments else {}
        command = [
            sys.executable,
            "-m",
            "equipoise",
            "serve",
            str(registry),
            "--policy",
            policy,
            "--port",
            str(port),
            "--uds",
            str(uds),
        ]
        command += ["--decisions", str(folder / f"{time.monotonic_ns()}.decisions")]
    else:
        python = sys.executable if kind == "starlette" else str(a.peers_home / kind / "bin/python")
        command = [
            python,
            str(HERE / "peers/serve_policy.py"),
            kind,
            str(artifact),
            str(port),
            *arguments,
        ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(port, process, folder / "log", "/v1/act" if kind == "ours" else "/act", policy)
        yield places
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path, path: str, policy: str) -> None:
    """Until a request is answered with 200."""
    from load import OBS, _post

    end = time.monotonic() + 120
    said = _post(
        path,
        {
            "obs": OBS,
            "session": "wait",
            **({"first": True, "done": True} if path == "/v1/act" else {}),
        },
    )
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 5) as connection,
        ):
            connection.sendall(said)
            if connection.recv(1 << 16)[9:12] == b"200":
                return
        time.sleep(0.2)
    raise RuntimeError(f"no answer at {path} within 120 s:\n{log.read_text()[-2000:]}")


def measure(a: argparse.Namespace, place: str, row: str, policy: str, load: str) -> dict[str, Any]:
    kind = "ours" if row.startswith("ours") else "peers"
    command = [
        sys.executable,
        str(HERE / "load.py"),
        place,
        kind,
        *LOADS[load],
        "--seconds",
        str(a.seconds),
    ]
    done = subprocess.run(
        [*command, *(["--lstm"] if policy == "lstm" else [])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr[-500:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return (
        found
        if not found["errors"]
        else {"failed": f"{found['errors']} errors of {found['requests']} requests"}
    )


def ratios(results: list[dict[str, Any]]) -> list[list[str]]:
    """Ours over the best of the others, by round: [what, policy, load, median, lowest, highest,
    target].
    """
    lines = []
    for what, loads, unit, mine, others, sign, limit in TARGETS:
        for policy in POLICIES:
            for load in loads:
                found = []
                for i in {r["round"] for r in results}:
                    rows = {
                        r["row"]: r[unit]
                        for r in results
                        if (r["round"], r["policy"], r["load"]) == (i, policy, load) and unit in r
                    }
                    theirs = [rows[one] for one in others if one in rows]
                    if mine in rows and theirs:
                        found.append(
                            rows[mine] / (min(theirs) if unit == "p50_ms" else max(theirs))
                        )
                if found:
                    shown = (f"{x:.2f}" for x in (statistics.median(found), min(found), max(found)))
                    lines.append([what, policy, load, *shown, f"{sign} {limit}"])
    return lines


def medians(results: list[dict[str, Any]]) -> list[list[str]]:
    lines = []
    for policy in POLICIES:
        for load in LOADS:
            for row in dict.fromkeys(r["row"] for r in results):
                good = [
                    r
                    for r in results
                    if (r["policy"], r["load"], r["row"]) == (policy, load, row) and "p50_ms" in r
                ]
                if good:
                    middle = [
                        statistics.median(r[unit] for r in good)
                        for unit in ("p50_ms", "p99_ms", "per_s")
                    ]
                    lines.append(
                        [
                            policy,
                            load,
                            row,
                            f"{middle[0]:.3f}",
                            f"{middle[1]:.3f}",
                            f"{middle[2]:,.0f}",
                        ]
                    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-home", type=Path, default=HOME)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rows", default=";".join(ROWS), help="with semicolons between, of " + "; ".join(ROWS)
    )
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    a = parser.parse_args()
    rows = [name.strip() for name in a.rows.split(";")]
    if unknown := set(rows) - set(ROWS):
        parser.error(
            f"--rows: expected some of {'; '.join(ROWS)}, got {'; '.join(sorted(unknown))}"
        )
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="equipoise-bench-") as name:
        folder = Path(name)
        registry = make_registry(folder)
        for i in range(a.rounds):
            for policy in a.policies.split(","):
                for row in rows:
                    probe = calibrate()
                    try:
                        with served(a, row, policy, registry, folder) as places:
                            for one, place in places.items():
                                for load in LOADS:
                                    said = measure(a, place, one, policy, load)
                                    results.append(
                                        {
                                            "round": i,
                                            "policy": policy,
                                            "row": one,
                                            "load": load,
                                            "probe": probe,
                                            **said,
                                        }
                                    )
                                    print(
                                        f"round {i + 1}/{a.rounds} {policy:5s} {one:20s} "
                                        f"{load:11s} {said}",
                                        file=sys.stderr,
                                        flush=True,
                                    )
                    except (RuntimeError, FileNotFoundError) as error:
                        print(
                            f"round {i + 1}/{a.rounds} {policy:5s} {row:20s} {error}",
                            file=sys.stderr,
                            flush=True,
                        )
                    if a.json:
                        a.json.write_text(
                            json.dumps({"host": host(), "results": results}, indent=1),
                            encoding="utf-8",
                        )
    heads = (
        ["policy", "load", "server", "p50 ms", "p99 ms", "requests/s"],
        ["ratio", "policy", "load", "median", "lowest", "highest", "target"],
    )
    text = table(heads[0], medians(results)) + "\n\n" + table(heads[1], ratios(results))
    print(text)
    if a.page:
        a.page.write_text(f"# Serving, measured\n\n```\n{text}\n```\n", encoding="utf-8")
    print(json.dumps({"host": host(), "ratios": ratios(results)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
