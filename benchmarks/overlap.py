"""How much of the sum of gradients is hidden behind backward: two learners of one thread each,
which add up over gloo.

    .venv/bin/python benchmarks/overlap.py [--steps 30] [--rows 32]

For each network three medians: backward alone, backward with buckets that leave while it runs, and
backward with one sum after it. The share that is hidden is (after - buckets) / (after - alone): 1
where the sum costs nothing, 0 where all of it is waited for.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gymnasium import spaces
from harness import host, table
from torch import Tensor, multiprocessing, nn
from torch.multiprocessing.spawn import spawn

from equipoise.learners.parameters import buckets
from equipoise.learners.parameters.flat import flatten
from equipoise.nets.vision import torso

SCREENS = spaces.Box(0, 255, (4, 84, 84), np.uint8)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + inner


def large() -> nn.Module:
    """A residual network of 20 million parameters."""
    layers, before = list[nn.Module](), 4
    for channels, blocks in ((64, 2), (128, 2), (256, 3), (512, 3)):
        layers += [
            nn.Conv2d(before, channels, 3, stride=2, padding=1),
            *[_Block(channels) for _ in range(blocks)],
        ]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 512))


NETS: dict[str, Callable[[], nn.Module]] = {
    "Nature CNN": lambda: torso("nature", SCREENS, hidden=(512,), activation="relu"),
    "residual, 20M": large,
}


class Gloo:
    """The two learners of this benchmark."""

    size = 2

    def add_up(self, x: Tensor) -> Callable[[], object]:
        wait: Callable[[], object] = dist.all_reduce(x, async_op=True).wait
        return wait


def measure(rank: int, port: int, steps: int, rows: int, found: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name, make in NETS.items():
        torch.manual_seed(0)
        net = make()
        params = list(net.parameters())
        flat = flatten(params, buckets.MORE)
        whole = flat.grad.as_strided((flat.numel() + buckets.MORE,), (1,))  # type: ignore[union-attr]
        made = buckets.Buckets(Gloo(), flat, params)  # type: ignore[arg-type]
        obs = torch.randint(0, 255, (rows, *SCREENS.shape)).float().div(255.0)
        seconds: dict[str, list[float]] = {"alone": [], "buckets": [], "after": []}
        for step in range(steps + 3):
            for way, taken in seconds.items():
                loss = net(obs).square().sum()
                dist.barrier()
                began = time.perf_counter()
                if way == "buckets":
                    made.begin(loss, torch.tensor(1.0))
                loss.backward()
                if way == "buckets":
                    made.finish()
                elif way == "after":
                    dist.all_reduce(whole)
                if step >= 3:
                    taken.append(time.perf_counter() - began)
        if rank == 0:
            found[name] = (
                flat.numel(),
                len(made._parts),
                {way: statistics.median(taken) for way, taken in seconds.items()},
            )
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rows", type=int, default=32)
    a = parser.parse_args()
    print(host(), flush=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        found = manager.dict()
        spawn(measure, args=(port, a.steps, a.rows, found), nprocs=2)  # type: ignore[no-untyped-call]
        lines = []
        for name, (numbers, parts, s) in found.items():
            hidden = (s["after"] - s["buckets"]) / (s["after"] - s["alone"])
            lines.append(
                [
                    name,
                    f"{numbers:,}",
                    str(parts),
                    *(f"{1e3 * s[way]:.1f}" for way in s),
                    f"{hidden:.0%}",
                ]
            )
    print(
        table(
            [
                "network",
                "parameters",
                "buckets",
                "alone, ms",
                "with buckets, ms",
                "sum after, ms",
                "hidden",
            ],
            lines,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
