"""What a message of a world outside costs: a round trip against a bare echo of the same frames, on
a unix socket.

    .venv/bin/python benchmarks/remote_world.py [--rounds 20] [--trips 2000]

A: a process sends the frames of observations, made beforehand, and an actor's env
(``envs/worlds/env.py``) answers each with a constant action. B: the same frames to a process that
looks at none and answers with the same bytes. C: as A, by ``clients/world.py``, whose msgpack is in
Python. They are measured in turn, A B C A B C. Printed are medians over rounds of microseconds a
round trip, and the median of the ratios A / B, which is the one that counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import frames
from equipoise.envs import make
from equipoise.types import EnvFactory

sys.path.insert(0, str(Path(__file__).parents[1] / "clients"))
import world as client  # type: ignore[import-not-found]

OBS = [0.0123456789, -0.56789, 0.0314159, 0.271828]
LIMIT = 4.0  # the ratio that issue 22 allows


def plays(address: str, trips: int, said: Any) -> None:
    """C. At each word of the parent so many steps -> seconds."""
    world = client.World(address, observation=client.box([4]), action=client.discrete(2))
    world.reset(OBS)
    while said.recv():
        began = time.perf_counter()
        for _ in range(trips):
            world.step(OBS, 1.0)
        said.send(time.perf_counter() - began)
    world.close()


def sends(path: str, hello: dict[str, Any] | None, trips: int, said: Any) -> None:
    """A, with a ``hello``; else B."""
    conn = socket.socket(socket.AF_UNIX)
    conn.connect(path)
    seq = 0
    if hello is not None:
        conn.sendall(frames.encode(hello))
        conn.sendall(frames.encode({"kind": "observe", "seq": 0, "obs": OBS, "first": True}))
        while b"act" not in conn.recv(1 << 16):
            pass
    while said.recv():
        made = [
            frames.encode({"kind": "observe", "seq": seq + i, "obs": OBS, "reward": 1.0})
            for i in range(1, trips + 1)
        ]
        seq += trips
        began = time.perf_counter()
        for frame in made:
            conn.sendall(frame)
            conn.recv(1 << 16)
        said.send(time.perf_counter() - began)
    conn.close()


def answers(env: Any, trips: int) -> None:
    """The actor's half, with a policy that costs nothing."""
    action = np.array([1])
    for _ in range(trips):
        while (ts := env.recv()) is None:
            pass
        env.send(action, ts.stream)


def echoes(conn: socket.socket, trips: int) -> None:
    frame = frames.encode({"kind": "act", "seq": 1234, "action": 1})
    for _ in range(trips):
        conn.recv(1 << 16)
        conn.sendall(frame)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trips", type=int, default=2000, help="of a round")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    spaces = {"observation": client.box([4]), "action": client.discrete(2)}
    hello = {"kind": "hello", "version": 1, "session": "bare", **spaces}
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listening:
        Path(place, "spec.json").write_text(json.dumps(spaces))
        kwargs = {"spec": f"{place}/spec.json", "heartbeat_s": 1000.0, "grace_s": 10_000.0}
        envs: list[Any] = [
            make(
                EnvFactory(target=f"remote:unix:{place}/{name}", kwargs=kwargs),
                streams=np.arange(1),
                seed=0,
            )
            for name in ("lean", "python")
        ]
        listening.bind(f"{place}/echo")
        listening.listen()
        ends, children = [], []
        for target, arguments in (
            (sends, (f"{place}/lean", hello)),
            (sends, (f"{place}/echo", None)),
            (plays, (f"unix:{place}/python",)),
        ):
            mine, its = context.Pipe()
            children.append(context.Process(target=target, args=(*arguments, options.trips, its)))
            children[-1].start()
            ends.append(mine)
        for env in envs:
            answers(env, 1)
        bare, _ = listening.accept()
        times: list[list[float]] = [[], [], []]
        for _ in range(options.rounds + 1):
            for which, end in enumerate(ends):
                end.send(True)
                if which == 1:
                    echoes(bare, options.trips)
                else:
                    answers(envs[which // 2], options.trips)
                times[which].append(end.recv() / options.trips * 1e6)
        for end in ends:
            end.send(False)
        for child in children:
            child.join()
        bare.close()
        for env in envs:
            env.close()
    lean, echo, python = (one[1:] for one in times)  # the first round warms up
    ratio = statistics.median(a / b for a, b in zip(lean, echo, strict=True))
    figures = {
        "world_us": statistics.median(lean),
        "echo_us": statistics.median(echo),
        "python_us": statistics.median(python),
    }
    print(
        f"a round trip {figures['world_us']:.1f} us, a bare echo {figures['echo_us']:.1f} us: "
        f"{ratio:.2f} x",
        end="",
    )
    print(f"; with the client in Python {figures['python_us']:.1f} us")
    print(json.dumps({**figures, "ratio": ratio, "limit": LIMIT}))
    if ratio > LIMIT:
        sys.exit(f"expected at most {LIMIT} x, got {ratio:.2f}")


if __name__ == "__main__":
    main()
