"""Hot swaps under load: no error, no answer whose version and action disagree, no episode with two
versions.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import edge
from equipoise.client import AsyncClient, Decision
from equipoise.registry import Registry
from tests.serving.servers import registry, serving

STEPS = 12  # of an episode


async def load(
    place: str, made: Registry, policy: str, swaps: int, rate: float, shadow: bool = False
) -> list[tuple[Any, Decision]]:
    """Episodes at a rate of steps/s until there were so many swaps -> (observation, answer) of each
    step.
    """
    versions, rng, told = list(made.versions(policy)), np.random.default_rng(0), []
    begun: list[str] = []  # the versions of episodes as they began
    stop = asyncio.Event()

    async def swap() -> None:
        for i in range(swaps):
            if shadow:
                await asyncio.to_thread(made.alias, policy, "shadow", versions[(i + 1) % 2])
            await asyncio.to_thread(made.alias, policy, "champion", versions[i % 2])
            while begun[-1:] != [versions[i % 2]]:
                await asyncio.sleep(0.01)
        stop.set()

    async def episode(client: AsyncClient, name: str) -> None:
        for t in range(STEPS):
            obs = rng.normal(size=4).astype(np.float32)
            told.append(
                (obs, await client.act(obs, session=name, first=t == 0, done=t == STEPS - 1))
            )
            if t == 0:
                begun.append(told[-1][1].version)
            await asyncio.sleep(0.02)

    async with AsyncClient(place, timeout_s=30) as client:
        playing: list[asyncio.Future[None]] = []
        swapping, began = asyncio.ensure_future(swap()), time.monotonic()
        while not stop.is_set():
            playing.append(asyncio.ensure_future(episode(client, f"episode-{len(playing)}")))
            await asyncio.sleep(max(0.0, began + len(playing) * STEPS / rate - time.monotonic()))
            assert not swapping.done() or swapping.exception() is None
        await asyncio.gather(swapping, *playing)
    return told


@pytest.mark.parametrize(
    ("policy", "swaps"),
    [
        ("lstm", 4),
        pytest.param("mlp", 50, marks=pytest.mark.thorough),
        pytest.param("lstm", 50, marks=pytest.mark.thorough),
    ],
)
def test_hot_swaps(policy: str, swaps: int, tmp_path: Path) -> None:
    made = registry(tmp_path, **{policy: 2})
    with serving(tmp_path, policy) as running:
        told = asyncio.run(
            load(
                running.url if swaps < 50 else f"unix:{running.uds}",
                made,
                policy,
                swaps,
                300,
                shadow=True,
            )
        )
        assert len(running.logged("swapped")) >= swaps - 1
    episodes: dict[str | None, list[tuple[Any, Decision]]] = defaultdict(list)
    for obs, decision in told:
        episodes[decision.session].append((obs, decision))
    artifacts = {version: made.resolve(policy, version)[1] for version in made.versions(policy)}
    policies = {version: edge.EdgePolicy(path) for version, path in artifacts.items()}
    used = set()
    for name, steps in episodes.items():
        assert len(steps) == STEPS and len({decision.version for _, decision in steps}) == 1
        version = steps[0][1].version
        used.add(version)
        alone = [policies[version].act(obs, session=str(name)) for obs, _ in steps]
        assert alone == [decision.action for _, decision in steps] and not any(
            decision.fallback for _, decision in steps
        )
    assert used == set(artifacts)
