"""How long a run with a large replay takes to be whole at a URL: ``python benchmarks/mirror.py
--gib 1``.

A round is what a notice leaves to do once the workers hold still. Rows that no checkpoint has are
written, hashed and synced, in segments of 64 MiB as a replay's journal has them, and the checkpoint
is completed (``saved``). The mirror copies it (``copied``). Then it is fetched from the URL and
every hash is looked at (``fetched``, which no notice waits for). Rows are random, so nothing
compresses them. ``--to s3`` is moto's server on this machine, which shares its cores; ``--to file``
is a folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import harness
import moto_server

from equipoise.experience.replay.journal import CHUNK, SEGMENT
from equipoise.record import checkpoint
from equipoise.record.mirror import Mirror, Store, fetch

NOTICE_S = 30.0


def saved(run: Path, nbytes: int, chunk: bytes) -> float:
    """Write a whole checkpoint with so many bytes of rows -> seconds."""
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    began = time.perf_counter()
    checkpoints = run / "checkpoints"
    place, rows = checkpoint.begin(checkpoints, 1), checkpoints / checkpoint.SEGMENTS
    rows.mkdir()
    segments: dict[str, Any] = {}
    for number in range(-(-nbytes // SEGMENT)):
        name, size, digest = (
            f"segment_{number}.rows",
            min(SEGMENT, nbytes - number * SEGMENT),
            hashlib.sha256(),
        )
        with (rows / name).open("wb") as file:
            for at in range(0, size, CHUNK):
                # no segment is like another
                data = number.to_bytes(8, "little") + chunk[8 : min(CHUNK, size - at)]
                file.write(data)
                digest.update(data)
            file.flush()
            os.fsync(file.fileno())
        segments[name] = {"sha256": digest.hexdigest(), "size": (rows / name).stat().st_size}
    files: dict[str, Any] = {}
    for name in (checkpoint.LEARNER, checkpoint.WEIGHTS, checkpoint.REPLAY):
        files |= checkpoint.add(place, name, b"-")
    files |= checkpoint.add(place, checkpoint.META, b"{}")
    checkpoint.complete(checkpoints, 1, files, segments)
    return time.perf_counter() - began


def one_round(url: str, folder: Path, nbytes: int, chunk: bytes) -> dict[str, float]:
    """Save, copy and fetch a run -> seconds of each."""
    seconds = {"saved": saved(folder / "run", nbytes, chunk)}
    mirror = Mirror(folder / "run", url)
    began = time.perf_counter()
    if not mirror.finish(600.0, print):
        raise SystemExit("the run was not copied")
    seconds["copied"] = time.perf_counter() - began
    mirror.close()
    began = time.perf_counter()
    found = checkpoint.latest(fetch(url, folder) / "checkpoints", whole=True)
    seconds["fetched"] = time.perf_counter() - began
    assert found is not None
    there = sum(entry["size"] for entry in checkpoint.segments(found).values())
    assert there == nbytes, f"expected {nbytes:,} bytes of rows at {url}, got {there:,}"
    Store(url).remove("")
    shutil.rmtree(folder)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=1.0, help="rows of the replay that no checkpoint has"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", choices=["s3", "file"], default="s3")
    parser.add_argument("--json", type=Path, help="a file for every round")
    given = parser.parse_args()
    if given.to == "s3" and (missing := moto_server.missing()):
        raise SystemExit(
            f"--to s3: expected the packages of the extra dev, got none of {missing}; --to file "
            "needs none"
        )
    nbytes, chunk, rounds = (
        round(given.gib * (1 << 30)),
        os.urandom(CHUNK),
        list[dict[str, float]](),
    )
    with tempfile.TemporaryDirectory(prefix="mirror-") as place, ExitStack() as stack:
        base = (
            f"file://{place}/store"
            if given.to == "file"
            else stack.enter_context(moto_server.s3("benchmark"))
        )
        for number in range(given.rounds):
            seconds = one_round(
                f"{base}/run{number}", Path(place) / f"round{number}", nbytes, chunk
            )
            rounds.append({name: round(value, 2) for name, value in seconds.items()})
            shown = ", ".join(
                f"{name} {value:.1f} s ({nbytes / 1e6 / value:,.0f} MB/s)"
                for name, value in seconds.items()
            )
            print(f"round {number}: {shown}", flush=True)
    whole = [one["saved"] + one["copied"] for one in rounds]
    result = {
        "to": given.to,
        "gib": given.gib,
        "whole_s": round(statistics.median(whole), 2),
        "longest_s": round(max(whole), 2),
        "in_a_notice": sum(seconds < NOTICE_S for seconds in whole),
        "rounds": rounds,
        "load": round(os.getloadavg()[0], 1),
        "host": harness.host(),
    }
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
