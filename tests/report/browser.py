"""A headless Chromium, driven through its own pipe: a page is opened, and what it asked for and
complained about comes back.

``python -m tests.report.browser PAGE.html PICTURE.png WIDTH HEIGHT light|dark`` takes a picture of
the top of a page.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60.0


def found() -> str | None:
    """The program of a browser; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@dataclass
class Opened:
    """A page in a window: its requests, its console, its size and a picture."""

    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    width: int = 0  # of the document; more than the window where a reader has to scroll sideways
    height: int = 0  # of the document
    colour: str = ""  # of the ground
    too_wide: list[str] = field(default_factory=list)  # elements that stand out of the window
    picture: bytes = b""  # PNG


class Browser:
    """One process of Chromium. Messages are JSON that ends with a zero byte, on descriptors 3 and 4
    of the process.
    """

    def __init__(self, program: str, home: Path) -> None:
        self._in, self._out = os.pipe(), os.pipe()
        words = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--disable-breakpad",
            "--disable-features=SpareRendererForSitePerProcess",
            f"--user-data-dir={home}",
        ]
        shell = f'exec 3<&{self._in[0]} 4>&{self._out[1]}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *words],
            pass_fds=(self._in[0], self._out[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(self._in[0])
        os.close(self._out[1])
        self._rest, self._count, self._events = b"", 0, list[dict[str, Any]]()

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to a call of the DevTools protocol."""
        self._count += 1
        call = {"id": self._count, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._in[1], json.dumps(call).encode() + b"\0")
        while (message := self._next()).get("id") != self._count:
            self._events.append(message)
        assert "error" not in message, (method, message)
        result: dict[str, Any] = message["result"]
        return result

    def wait(self, method: str) -> None:
        """Until this event has come."""
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out[0]], [], [], max(end - time.monotonic(), 0.0))
            part = os.read(self._out[0], 1 << 20) if ready else b""
            assert part, f"no answer of the browser within {DEADLINE_S} s"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(
        self, file: Path, *, width: int, dark: bool, height: int = 900, whole: bool = False
    ) -> Opened:
        """Open a file in a window of ``width`` px; ``whole``: the picture is of all of it."""
        self._events.clear()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable", session)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", session, features=scheme)
        box = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", session, **box)
        self._events.clear()
        self.ask("Page.navigate", session, url=file.resolve().as_uri())
        self.wait("Page.loadEventFired")
        code = f"""JSON.stringify({{width: document.documentElement.scrollWidth,
          height: document.documentElement.scrollHeight,
          colour: getComputedStyle(document.body).backgroundColor,
          wide: [...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > {width} + 0.5 &&
            !e.closest(".scroll")).slice(0, 5).map(e => e.outerHTML.slice(0, 120))}})"""  # noqa: E501
        seen = json.loads(self.ask("Runtime.evaluate", session, expression=code)["result"]["value"])
        opened = Opened(
            width=seen["width"],
            height=seen["height"],
            colour=seen["colour"],
            too_wide=seen["wide"],
        )
        shot = self.ask(
            "Page.captureScreenshot", session, format="png", captureBeyondViewport=whole
        )["data"]
        opened.picture = base64.b64decode(shot)
        for event in self._events:
            params = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                opened.requests.append(params["request"]["url"])
            elif event.get("method") in (
                "Log.entryAdded",
                "Runtime.exceptionThrown",
                "Runtime.consoleAPICalled",
            ):
                opened.said.append(json.dumps(params))
        self.ask("Target.closeTarget", targetId=target)
        return opened

    def close(self) -> None:
        """End the browser and wait for it."""
        with contextlib.suppress(OSError, AssertionError):
            self.ask("Browser.close")
        os.close(self._in[1])
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out[0])


@contextlib.contextmanager
def started(program: str, home: Path) -> Iterator[Browser]:
    browser = Browser(program, home)
    try:
        yield browser
    finally:
        browser.close()


def main(page: str, picture: str, width: str, height: str, scheme: str) -> None:
    if (program := found()) is None:
        sys.exit(f"no browser: expected one of {', '.join(NAMES)} on PATH")
    with tempfile.TemporaryDirectory() as home, started(program, Path(home)) as browser:
        seen = browser.open(Path(page), width=int(width), height=int(height), dark=scheme == "dark")
    Path(picture).write_bytes(seen.picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
