"""The server's life: what it refuses to start with, whom it follows, and how it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from equipoise.serving.server import _drain


def test_frames_and_http_share_the_time_to_end() -> None:
    """The frames take all of it, so HTTP gets none."""

    async def ended() -> float:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.1

        async def drain(over: Any) -> None:
            while not over():
                await asyncio.sleep(0.01)

        service: Any = SimpleNamespace(batcher=[], draining=False)
        web: Any = SimpleNamespace(servers=[], server_state=SimpleNamespace(connections=set()), config=SimpleNamespace())
        frame_server: Any = SimpleNamespace(connections=set(), drain=drain, stop_listening=lambda: None)
        await _drain(service, web, frame_server, loop.create_task(asyncio.sleep(0)), None, end)
        assert service.draining and web.should_exit
        return float(web.config.timeout_graceful_shutdown)

    assert asyncio.run(ended()) == 0.0
