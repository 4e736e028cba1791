"""The built site in Chromium: its pages fit the window, light and dark, by axe-core's rules, and
its search finds.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_docs
import pytest

from tests.house.test_site import SEARCHES
from tests.watching import browsing

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
PAGES = (
    "index",
    "start/install",
    "start/first-run",
    "reference/algorithms/ppo",
    "reference/settings",
    "reference/commands",
    "reference/python",
    "reference/glossary",
    "guides/faq",
    "guides/messages",
    "guides/watch",
    "about/status",
    "about/comparison",
    "examples/first-run",
)
# Pages of many thousand elements, which axe-core takes a minute for: the smaller ones have all
# their kinds of elements.
LONG = {"reference/settings", "reference/commands", "reference/python", "guides/messages"}
SEEN = """() => {
  const shown = [...document.images].filter((one) => one.checkVisibility());
  return {
    wide: document.documentElement.scrollWidth - window.innerWidth,
    unnamed: shown.filter((one) => !one.alt).map((one) => one.src),
    unloaded: shown.filter((one) => one.complete && !one.naturalWidth).map((one) => one.src),
    ground: getComputedStyle(document.body).backgroundColor,
    levels: [...document.querySelectorAll("article :is(h1, h2, h3, h4, h5, h6)")]
      .map((one) => Number(one.tagName[1])),
  };
}"""
# A picture of the other colours is not shown.
OTHER = (
    "(look) => [...document.querySelectorAll(look)].filter((one) => one.checkVisibility()).length"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built for this module, or the one of EQUIPOISE_TEST_SITE."""
    place = tmp_path_factory.mktemp("site")
    out = Path(os.environ.get("EQUIPOISE_TEST_SITE", place / "out"))
    if not out.exists():
        assert build_docs.build(out, place / "source") == 0
    handler = functools.partial(Quiet, directory=str(out))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing.chromium() as one:
        yield one


def opened(browser: Any, width: int, colours: str) -> tuple[Any, list[str]]:
    """A page of this width, and what its console prints."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours)
    context.set_default_timeout(60_000)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda one: said.append(f"{one.type}: {one.text}"))
    page.on("pageerror", lambda one: said.append(f"error: {one}"))
    page.on("requestfailed", lambda one: said.append(f"failed: {one.url}"))
    return page, said


def faults(seen: dict[str, Any], colours: str) -> list[str]:
    """What is wrong with a page."""
    found = [f"{seen['wide']} px wider than the window"] if seen["wide"] > 0 else []
    found += [f"no alt: {url}" for url in seen["unnamed"]]
    found += [f"not loaded: {url}" for url in seen["unloaded"]]
    dark = sum(map(int, re.findall(r"\d+", seen["ground"])[:3])) < 128 * 3
    found += [f"ground {seen['ground']}"] if dark != (colours == "dark") else []
    levels = seen["levels"]
    if levels.count(1) != 1 or any(b > a + 1 for a, b in itertools.pairwise(levels)):
        found.append(f"headings: {levels}")
    return found


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_fit_and_can_be_read(site: str, browser: Any, width: int, colours: str) -> None:
    page, said = opened(browser, width, colours)
    script, found = browsing.axe(), list[str]()
    for name in PAGES:
        page.goto(f"{site}{name}.html")
        wrong = faults(page.evaluate(SEEN), colours)
        if page.evaluate(OTHER, ".only-light" if colours == "dark" else ".only-dark"):
            wrong.append("a picture of the other colours")
        if name not in LONG:
            wrong += browsing.serious(page, script)
        found += [f"{name}: {fault}" for fault in wrong]
    assert found == [] and said == []


@pytest.mark.parametrize("words", SEARCHES)
def test_the_search_finds_in_a_browser(site: str, browser: Any, words: str) -> None:
    page, said = opened(browser, 1280, "light")
    page.goto(f"{site}search.html?q={words.replace(' ', '+')}")
    page.wait_for_function("() => /found \\d+ page|matching/.test(document.body.innerText)")
    links = page.evaluate("() => [...document.querySelectorAll('ul.search a')].map((a) => a.href)")
    assert any(link.partition("?")[0] == f"{site}{SEARCHES[words]}.html" for link in links), links
    assert said == []


def test_a_fault_is_seen(browser: Any, tmp_path: Path) -> None:
    """The look itself: a wide table, a picture without words and headings in disorder are found."""
    file = tmp_path / "bad.html"
    file.write_text(
        "<body style='background:#000'><article><h1>a</h1><h3>b</h3><img src='gone.png'>"
        "<div style='width:900px'>wide</div></article>"
    )
    page, said = opened(browser, 400, "light")
    page.goto(file.as_uri())
    found = "\n".join(faults(page.evaluate(SEEN), "light"))
    for fault in ("wider than", "no alt", "not loaded", "ground", "headings: [1, 3]"):
        assert fault in found
    assert any("gone.png" in line for line in said)
