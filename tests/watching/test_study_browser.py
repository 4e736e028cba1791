"""The page of a study in Chromium: its pictures, its line in the list, and how it renews itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.studies.journal import JOURNAL, line_of
from tests.report import made
from tests.studies.written import bred, searched, study
from tests.watching import browsing
from tests.watching.browsing import Window
from tests.watching.opened import opened

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing.chromium() as one:
        yield one


def test_a_study_is_one_line_that_opens_its_page(tmp_path: Path, browser: Any) -> None:
    place = tmp_path / "runs"
    study(place / "s", searched(20), runs=3)
    made.run(place / "alone")
    with opened(place) as client:
        window = Window(browser, client)
        page = window.page
        page.wait_for_selector("#runs .study")
        assert page.locator("#runs li").count() == 2, "the trials are behind the study's line"
        assert "20 trials" in window.text("#runs .study")
        page.click("#runs .study a")
        page.wait_for_selector(".study .chip.completed")
        assert page.locator("#runs li").count() == 5
        names = page.locator("#runs .trial b").all_inner_texts()
        assert sorted(names) == ["t0000", "t0001", "t0002"]
        assert page.title() == "s · equipoise"
        page.wait_for_selector(".study .chart .line.best")
        assert page.locator(".study .plots .card").count() == 3
        assert page.locator(".study .line.q4").count() >= 2
        page.click(".study tbody a >> text=t0001")
        page.wait_for_selector(".run .chip.completed")
        assert page.locator("#runs a[aria-current]").count() == 1
        page.fill("#filter", "t0001")
        page.wait_for_function("() => document.querySelectorAll('#runs li').length === 1")
        assert window.outside == [] and window.said == []


def test_a_study_renews_itself_and_keeps_its_place(tmp_path: Path, browser: Any) -> None:
    entries = searched(4, end=False)
    place = study(tmp_path / "runs/s", entries[:-2])
    with opened(tmp_path / "runs") as client:
        window = Window(browser, client)
        window.page.wait_for_selector(".study .chip.running")  # the only one is shown at once
        assert window.page.locator(".study tbody a").count() == 3
        with open(place / JOURNAL, "ab") as file:
            file.writelines(line_of(entries[n], n, time.time()) for n in (6, 7))
        window.page.wait_for_function(
            "() => document.querySelectorAll('.study tbody a').length === 4", timeout=20_000
        )
        assert window.outside == [] and window.said == []


@pytest.mark.parametrize("width", [360, 1280])
def test_a_population_fits_and_its_texts_stay_texts(
    tmp_path: Path, browser: Any, width: int
) -> None:
    study(tmp_path / "runs" / "s<b>", bred(4, 4), env=HOSTILE, strategy=HOSTILE)
    with opened(tmp_path / "runs") as client:
        window = Window(browser, client, "#/study/s%3Cb%3E", width=width)
        window.page.wait_for_selector(".study .line.member.best", state="attached")
        assert window.page.title() == "s<b> · equipoise"
        assert window.page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert window.page.locator(".study .grid .chart").count() == 3
        assert window.outside == [] and window.said == []


def test_an_unknown_study_is_named(tmp_path: Path, browser: Any) -> None:
    study(tmp_path / "runs/s", [])
    with opened(tmp_path / "runs") as client:
        window = Window(browser, client, "#/study/none")
        window.page.wait_for_function("() => document.body.innerText.includes('No such study')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_page_of_a_study(
    tmp_path: Path, browser: Any, scheme: str
) -> None:
    script, place = browsing.axe(), tmp_path / "runs"
    study(place / "population", bred(4, 4))
    study(place / "search", searched(20), runs=3)
    with opened(place) as client:
        for width in (360, 1280):
            window = Window(browser, client, width=width, color_scheme=scheme)
            for name in ("population", "search"):
                window.page.goto(f"{window.base}#/study/{name}")
                window.page.wait_for_selector(".study .line.best", state="attached")
                found = browsing.serious(window.page, script)
                assert found == [], f"{name} at {width} px, {scheme}: " + "\n".join(found)
            assert window.outside == [] and window.said == []
