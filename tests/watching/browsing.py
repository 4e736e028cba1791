"""Chromium by Playwright for tests of the page, and axe-core for its accessibility; a test skips
where one is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.report.browser import NAMES, found

AXE = "axe-core@4.10.3"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, closed at the end."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("the package playwright is missing: make test-browser installs it")
    if (program := found()) is None:
        pytest.skip(
            f"no browser: expected one of {', '.join(NAMES)} on PATH (Debian: apt-get install "
            "chromium)"
        )
    with sync_playwright() as made:
        browser = made.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Served(Protocol):
    """A client of a server on this port."""

    port: int


class Window:
    """A page in a window; what it asks for, and what its console says, is kept."""

    def __init__(
        self,
        browser: Any,
        client: Served,
        path: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        **how: Any,
    ) -> None:
        self.base = f"http://127.0.0.1:{client.port}/"
        self.requests, self.said = list[str](), list[str]()
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        context.set_default_timeout(15_000)
        self.page = context.new_page()
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("console", lambda one: self.said.append(f"{one.type}: {one.text}"))
        self.page.on("pageerror", lambda one: self.said.append(f"error: {one}"))
        self.page.goto(self.base + path)

    @property
    def outside(self) -> list[str]:
        """Requests to another host."""
        return [url for url in self.requests if not url.startswith((self.base, "data:"))]

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).first.inner_text()
        return found


def axe() -> str:
    """The script of axe-core, fetched once by npm."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise-tests"
    script = home / f"{AXE}.js"
    if not script.is_file():
        if shutil.which("npm") is None:
            pytest.skip("npm is missing, which fetches axe-core (Debian: apt-get install npm)")
        home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "--silent", AXE],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            pytest.skip(f"axe-core could not be fetched: {done.stderr[-200:]}")
        archive = home / done.stdout.split()[-1]
        with tarfile.open(archive) as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            aside = script.with_suffix(f".{os.getpid()}")
            aside.write_bytes(member.read())
            aside.replace(script)
        archive.unlink()
    return script.read_text()


def serious(page: Any, script: str) -> list[str]:
    """The serious and critical findings of axe-core, a line each."""
    page.evaluate(script)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:160]} "
        f"{node.get('failureSummary', '')[:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]
