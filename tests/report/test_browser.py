"""The page in a headless Chromium: it asks for nothing, complains about nothing, and fits the
window, light and dark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.report.page import page
from equipoise.report.runs import read
from tests.report import browser, made

pytestmark = pytest.mark.browser


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[browser.Browser]:
    """A browser for each test, so that none of its processes outlives it."""
    if (program := browser.found()) is None:
        pytest.skip(
            f"no browser: expected one of {', '.join(browser.NAMES)} on PATH (Debian: apt-get "
            "install chromium)"
        )
    with browser.started(program, tmp_path / "home") as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of five seeds, of three runs with many workers and names that are long, and of a single
    report.
    """
    place = tmp_path_factory.mktemp("pages")
    for seed in range(5):
        made.run(place / f"five/seed_{seed}", seed=seed)
    made.run(place / "three/a")
    made.run(
        place / "three/b",
        gamma=0.9,
        actors=40,
        said={"notes": ["warning: " + "word " * 80, "x" * 900]},
    )
    made.run(place / f"three/{'long-' * 30}", algorithm="impala", env="ALE/" + "VeryLongName" * 8)
    made.run(place / "one/run", reports=1, summary=False)
    for name in ("five", "three", "one"):
        (place / f"{name}.html").write_text(page(read([place / name])[0]))
    return {name: place / f"{name}.html" for name in ("five", "three", "one")}


MOST_PX = 6_000  # of three runs on a telephone, before a reader opens anything


@pytest.mark.parametrize("name", ["five", "three", "one"])
def test_a_page_is_short_on_a_telephone(
    name: str, pages: dict[str, Path], opener: browser.Browser
) -> None:
    seen = opener.open(pages[name], width=400, dark=False)
    assert 900 < seen.height <= MOST_PX


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", ["five", "three", "one"])
def test_a_page_fits_and_asks_for_nothing(
    name: str, opened: bool, pages: dict[str, Path], opener: browser.Browser
) -> None:
    if opened:
        text = pages[name].read_text().replace("<details>", "<details open>")
        pages = {name: pages[name].with_suffix(".opened.html")}
        pages[name].write_text(text)
    for width, dark in itertools.product((400, 1200), (False, True)):
        seen = opener.open(pages[name], width=width, dark=dark)
        assert [
            url
            for url in seen.requests
            if url != pages[name].as_uri() and not url.startswith("data:")
        ] == []
        assert seen.said == []
        assert seen.width <= width and seen.too_wide == [], "nobody scrolls sideways"
        red, green, blue = (
            int(x) for x in seen.colour.removeprefix("rgb(").rstrip(")").split(", ")
        )
        assert (red + green + blue < 128) == dark
        assert seen.picture.startswith(b"\x89PNG")


def test_what_a_page_asks_for_is_seen(opener: browser.Browser, tmp_path: Path) -> None:
    """The look itself: a request, an error and an element that is too wide are found."""
    file = tmp_path / "bad.html"
    file.write_text(
        '<main><img src="gone.png"><p style="width:900px">wide</p><script>throw '
        'Error("no")</script></main>'
    )
    seen = opener.open(file, width=400, dark=False)
    assert any(url.endswith("gone.png") for url in seen.requests) and any(
        "no" in said for said in seen.said
    )
    assert seen.width > 400 and len(seen.too_wide) == 1
