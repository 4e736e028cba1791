"""The web server of a recording proxy, in a thread of the worker's process."""

from __future__ import annotations

import asyncio
import sys
import threading

from equipoise import web
from equipoise.actors.calls.worker import CallWorker
from equipoise.listening import listen
from equipoise.nets.decoder import Decoder
from equipoise.serving.chat.model import Model
from equipoise.serving.guard import Guard
from equipoise.serving.proxy.app import ProxyApp
from equipoise.serving.proxy.service import CallService
from equipoise.serving.server import SWITCH_S, Server, began, ended, shut_down
from equipoise.sources.calls import Calls
from equipoise.sources.prompts import Text

MOST_BODY = 8 << 20  # bytes of a request
CONNECTIONS = 4096
START_S = 60.0
DRAIN_S = 2.0  # at the end, for answers that are refused by then


class ProxyServer:
    """The server's thread."""

    def __init__(self, source: Calls, worker: CallWorker, text: Text, net: Decoder) -> None:
        """OSError if the address is taken."""
        self._parts, self._task = (source, worker, text, net), source.settings.task
        address = source.address
        self._guard = Guard(address.host, source.token())
        self._listening = listen(address.host, address.port)
        self._up, self._failed = threading.Event(), list[BaseException]()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="calls", daemon=True)
        self._thread.start()
        if not self._up.wait(START_S) or self._failed:
            self._listening.close()
            raise OSError(
                f"{source.settings.task}: must begin to listen within {START_S:g} s, got "
                f"{self._failed[0] if self._failed else 'no sign of it'}"
            )

    def check(self) -> None:
        """RuntimeError if the server has failed: another worker then listens again."""
        if not self._thread.is_alive():
            self._listening.close()
            raise RuntimeError(
                f"{self._task}: must answer calls as long as the run lives, got the end of the "
                f"server: {self._failed[0] if self._failed else 'no error'}"
            )

    def refuse(self) -> None:
        """Refuse all later requests; return once no more work comes into the worker's inbox."""
        refused = threading.Event()

        def over() -> None:
            self._service.draining = self._service.call_writer.over = True
            refused.set()

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(over)
            refused.wait(START_S)

    def close(self) -> None:
        """Send the answers that are there, and end."""
        if self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DRAIN_S + START_S)
        self._listening.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # for the worker's thread, which waits for the start
            self._failed.append(error)
        finally:
            self._up.set()

    async def _serve(self) -> None:
        source, worker, text, net = self._parts
        settings, self._loop, self._stop = (
            source.settings,
            asyncio.get_running_loop(),
            asyncio.Event(),
        )
        spec = text.spec
        context = spec.prompt + spec.completion
        model = Model(
            name=source.program.name.replace(":", "-"),
            version="",
            net=net,
            tokenizer=text.tokenizer,
            positions=context,
            limit=settings.turn_tokens or spec.completion,
            template=source.template,
        )
        service = self._service = CallService(
            model,
            worker,
            rows=settings.samples_at_once,
            context=context,
            queue=settings.call_queue,
            turn=settings.turn_tokens,
            deadline_s=settings.call_deadline_s,
        )
        app = ProxyApp(service, self._guard, most_body=MOST_BODY)
        http = Server(web.config(app, most_connections=web.fitting(CONNECTIONS, 1)))
        self._serving = serving = self._loop.create_task(http.serve([self._listening]))
        await began(http, serving, [self._listening])
        sys.setswitchinterval(SWITCH_S)
        self._up.set()
        await ended(self._stop, serving)
        failed = serving.exception() if serving.done() and not serving.cancelled() else None
        await shut_down(http, serving, self._loop.time() + DRAIN_S)
        service.close()
        if not self._stop.is_set():
            raise RuntimeError("the web server ended by itself") from failed


def start_server(source: Calls, worker: CallWorker, text: Text, net: Decoder) -> ProxyServer:
    """Listen for calls; OSError if the address is taken."""
    return ProxyServer(source, worker, text, net)
