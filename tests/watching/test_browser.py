"""The page in Chromium: it lives, it says what is wrong, it fits, it takes the keyboard, and it
asks no other host.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.balance.shares import STATES
from equipoise.record.completions import write_completions
from equipoise.registry import Registry
from tests.registry.made import artifact
from tests.report import made
from tests.watching import browsing
from tests.watching.browsing import Window
from tests.watching.opened import TOKEN, opened
from tests.watching.test_runs import write_live

pytestmark = pytest.mark.browser
SHARES = (
    "() => [...document.querySelectorAll('.shares')].map((one) => "
    "one.getAttribute('aria-label')).join()"
)
WIDTHS = (360, 1280, 3840)
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing.chromium() as one:
        yield one


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """One run that goes on, and three that ended."""
    runs = tmp_path / "runs"
    made.run(runs / "going", summary=False)
    write_live(runs / "going")
    for seed in range(3):
        made.run(runs / f"seeds/seed_{seed}", seed=seed, algorithm="impala")
    return runs


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """Three versions of a policy, one of which has two children; the first is the champion."""
    one = Registry(tmp_path / "registry", create=True)
    first = one.add(
        artifact(
            tmp_path / "a", "a", {"run": "runs/going", "step": 1000, "evaluation": {"mean": 20.0}}
        ),
        "pong",
    )
    for name in ("b", "c"):
        one.add(
            artifact(
                tmp_path / name, name, {"step": 2000, "parent": first, "evaluation": {"mean": 30.0}}
            ),
            "pong",
        )
    one.alias("pong", "champion", first)
    return tmp_path / "registry"


def quiet(window: Window) -> None:
    """Nothing was asked of another host, and the console has nothing to say."""
    assert window.outside == [] and window.said == []


# --------------------------------------------------------------------------------------------- life


def test_a_run_lives_is_killed_and_is_still_there_after_a_reload(
    tmp_path: Path, browser: Any
) -> None:
    words = [
        "train",
        "CartPole-v1",
        "--actors",
        "2",
        "--steps",
        "100M",
        "--quiet",
        "--out",
        "runs/a",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *words],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "runs/a/live.json").exists():
            assert time.monotonic() < end and run.poll() is None
            time.sleep(0.05)
        with opened(tmp_path / "runs") as client:
            window = Window(browser, client)
            page = window.page
            page.wait_for_selector(".chip.running")
            page.wait_for_function(
                f"() => ({SHARES})().includes('worked') && document.querySelector('.sentence "
                "strong')",
                timeout=60_000,
            )
            for _ in range(3):
                before = page.evaluate(SHARES)
                page.wait_for_function(
                    f"(before) => ({SHARES})() !== before", arg=before, timeout=20_000
                )
            said = window.text(".sentence")
            page.wait_for_function(
                "(said) => document.querySelector('.sentence')?.innerText !== said",
                arg=said,
                timeout=20_000,
            )
            assert (
                page.locator(".ring .piece").count() >= 12
                and page.locator(".ring .dots").count() == 3
            )
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            page.wait_for_selector(".chip.killed", timeout=20_000)
            assert "was killed" in window.text(".quietly")
            page.reload()
            page.wait_for_selector(".chip.killed")
            page.wait_for_function(f"() => ({SHARES})().includes('worked')")
            quiet(window)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_shares_and_verdict_change_on_the_page(place: Path, browser: Any) -> None:
    with opened(place) as client:
        window = Window(browser, client)
        window.page.wait_for_function(
            "() => document.querySelector('.sentence')?.innerText?.startsWith('Sampling-bound')"
        )
        workers = [
            {
                "name": "actor 0",
                "side": "sampling",
                "station": 0,
                "shares": {"worked": 0.25, "blocked": 0.75},
            }
        ]
        write_live(
            place / "going",
            cause="Learning-bound",
            verdict="Learning-bound: use --max-lag 2.",
            workers=workers,
        )
        window.page.wait_for_function(
            "() => document.querySelector('.sentence')?.innerText?.startsWith('Learning-bound')",
            timeout=20_000,
        )
        window.page.wait_for_function(
            f"() => ({SHARES})().includes('blocked 75 %')", timeout=20_000
        )
        (place / "going/summary.json").write_text((place / "seeds/seed_0/summary.json").read_text())
        window.page.wait_for_selector(".chip.completed")
        quiet(window)


def test_a_server_that_comes_back_is_found_again(place: Path, browser: Any) -> None:
    with opened(place) as client:
        port = client.port
        window = Window(browser, client)
        window.page.wait_for_selector("#link.on")
    window.page.wait_for_selector("#link.off")
    from equipoise.watching.page import Page, folder
    from equipoise.watching.server import serving

    with serving(Page(folder(place), closed=False), port=port):
        window.page.wait_for_selector("#link.on")
        window.page.wait_for_selector(".chip.running, .chip.quiet")


# ------------------------------------------------------------------------------------ what is wrong


def test_damaged_files_are_said_and_the_rest_is_drawn(place: Path, browser: Any) -> None:
    lines = (place / "seeds/seed_0/metrics.jsonl").read_text().splitlines()
    lines[4] = lines[4][:50]
    lines[9] = "\x00" * 100
    (place / "seeds/seed_0/metrics.jsonl").write_text("\n".join(lines) + "\n{half")
    (place / "seeds/seed_1/run.json").write_text("{")
    with opened(place) as client:
        window = Window(browser, client, "#/run/seeds%2Fseed_0")
        window.page.wait_for_selector(".problems li")
        assert "metrics.jsonl, line 5" in window.text(".problems li")
        window.page.wait_for_selector(".learning .line")
        window.page.wait_for_selector("#runs .damaged")
        window.page.goto(window.base + "#/run/none")
        window.page.wait_for_function(
            "() => document.querySelector('main').innerText.includes('No such run')"
        )
        assert window.outside == []


def test_text_of_a_run_is_never_html(tmp_path: Path, browser: Any) -> None:
    place = tmp_path / "runs"
    made.run(place / "<img src=x>", summary=False, env=HOSTILE, algorithm=HOSTILE)
    alarm = {
        "name": HOSTILE,
        "owner": HOSTILE,
        "evidence": HOSTILE,
        "action": HOSTILE,
        "step": 3,
        "wall_s": 1.0,
    }
    remedy = {"change": f"--x {HOSTILE}", "costs": HOSTILE, "gain": 2.0, "low": 1.0, "high": 3.0}
    write_live(
        place / "<img src=x>",
        verdict=HOSTILE,
        cause="",
        notes=[HOSTILE],
        alarms=[alarm],
        remedies=[remedy],
        phases={HOSTILE: HOSTILE},
        ring={
            "stations": [
                {"name": HOSTILE, "noun": HOSTILE, "shares": {"worked": 1.0}} for _ in range(2)
            ],
            "arrows": [{"level": 2, "waits": [], "said": [[HOSTILE, HOSTILE]]}],
            "back": None,
        },
        workers=[{"name": HOSTILE, "side": "sampling", "station": 0, "shares": {"worked": 1.0}}],
    )
    with opened(place) as client:
        window = Window(browser, client)
        window.page.wait_for_selector(".said .alarm")
        assert "onerror" in window.text(".sentence") and window.page.title() != "taken"
        assert window.page.evaluate(
            "() => [document.querySelectorAll('main img, aside img, main script').length, "
            "document.scripts.length]"
        ) == [0, 2]
        quiet(window)


def test_two_hundred_runs(tmp_path: Path, browser: Any) -> None:
    place = tmp_path / "runs"
    for i in range(200):
        made.run(place / f"run_{i:03}", reports=3, seed=i, algorithm="ppo" if i % 2 else "dqn")
    with opened(place) as client:
        window = Window(browser, client)
        page = window.page
        page.wait_for_function("() => document.querySelectorAll('#runs li').length === 200")
        assert window.text("#counted") == "200 runs"
        page.keyboard.press("/")
        page.keyboard.type("ppo seed>150")
        page.wait_for_function(
            "() => document.querySelector('#counted').innerText === '25 of 200 runs'"
        )
        page.keyboard.type(" nonsense>")
        assert page.locator("#filter").get_attribute("aria-invalid") is None, "a word"
        page.locator("#filter").fill("colour=red")
        assert page.locator("#filter").get_attribute(
            "aria-invalid"
        ) == "true" and "Keys: return" in window.text("#none")
        page.locator("#filter").fill("run_00")
        page.goto(window.base + "#/compare")
        page.get_by_text("Compare what the filter shows").click()
        page.wait_for_function(
            "() => document.querySelectorAll('.chips li').length === 10 && "
            "document.querySelectorAll('.big .line').length >= 10"
        )
        quiet(window)


# ---------------------------------------------------------------------------------------- its looks


def test_it_fits_and_nothing_serious_is_found(place: Path, registry: Path, browser: Any) -> None:
    script = browsing.axe()
    views = (
        "#/run/going",
        "#/compare?run=seeds%2Fseed_0&run=seeds%2Fseed_1",
        "#/versions",
        "#/run/seeds%2Fseed_2",
    )
    ready = (".learning .line", ".big .line", ".node", ".learning .line")
    with opened(place, registry) as client:
        for width, scheme in itertools.product(WIDTHS, ("light", "dark")):
            window = Window(browser, client, width=width, color_scheme=scheme)
            for view, there in zip(views, ready):
                window.page.goto(window.base + view)
                window.page.wait_for_selector(there)
                wide = window.page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, f"{view}: nobody scrolls sideways at {width} px"
                found = browsing.serious(window.page, script)
                assert found == [], f"{view} at {width} px, {scheme}: " + "\n".join(found)
            red, green, blue = json.loads(
                window.page.evaluate(
                    "() => '[' + getComputedStyle(document.body).backgroundColor.match(/\\d+/g) + "
                    "']'"
                )
            )
            assert (red + green + blue < 128) == (scheme == "dark")
            quiet(window)
            window.page.context.close()


def test_the_return_stands_beside_the_ring_on_the_first_screen(place: Path, browser: Any) -> None:
    with opened(place) as client:
        window = Window(browser, client, "#/run/going")
        window.page.wait_for_selector(".learning .line")
        ring, curve = (window.page.locator(one).bounding_box() for one in (".ring", ".learning"))
        assert curve["x"] > ring["x"] + ring["width"] / 2 and curve["y"] + curve["height"] < 900
        shown = window.page.locator(".workers thead").inner_text().split()
        assert shown[:6] == ["worker", "time", "worked", "preempted", "starved", "blocked"]
        lags = window.page.locator(".curves .chart").nth(1).locator(".tick").all_text_contents()
        assert "0" in lags and "1" in lags, "the axis of the lag begins at 0"
        assert window.text("#theme").split() == ["t", "Theme:", "auto"]
        quiet(window)


def test_a_telephone_shows_every_share_of_a_worker(place: Path, browser: Any) -> None:
    with opened(place) as client:
        window = Window(browser, client, "#/run/going", width=390)
        window.page.wait_for_selector(".workers .num")
        scroll = window.page.locator(".workerscard .scroll")
        assert scroll.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "nothing is clipped"
        words = window.page.locator(".workers tbody .num").evaluate_all(
            "(all) => all.map((one) => getComputedStyle(one, '::before').content)"
        )
        assert words[:4] == [f'"{state}"' for state in STATES]


def test_it_says_that_it_connects(place: Path, browser: Any) -> None:
    with opened(place) as client:
        window = Window(browser, client)
        window.page.wait_for_selector(".learning .line")
        window.page.route("**/api/events*", lambda route: None)
        window.page.goto("about:blank")
        window.page.goto(window.base)
        assert window.text("#counted") == "Runs: connecting" and "Connecting" in window.text("main")
        assert "No runs" not in window.text("body")
        window.page.goto("about:blank")
        window.page.goto(window.base + "#/run/going")
        assert window.text(".chip") == "connecting"
        assert not window.page.locator(".progress").is_visible()


def test_completions_and_clips_are_shown(place: Path, browser: Any) -> None:
    with opened(place) as client:
        window = Window(browser, client, "#/run/going")
        window.page.wait_for_selector(".learning .line")
        assert not window.page.locator(".samples").is_visible()
        sample = {"prompt": HOSTILE, "completion": "forty-two", "reward": 0.5}
        sample["rewards"] = {HOSTILE: 0.25, "length": None}
        write_completions(place / "going", 7_000, [sample, sample])
        window.page.wait_for_selector(".completions td", timeout=20_000)
        assert window.page.locator(".completions tbody tr").count() == 2
        heads = window.page.locator(".completions th").all_text_contents()
        assert heads == ["prompt", "completion", "reward", HOSTILE, "length"]
        assert window.text(".completions pre") == HOSTILE and window.page.title() != "taken"
        assert "forty-two" in window.text(".completions")
        cells = window.page.locator(".completions tr .number").all_text_contents()
        assert cells == ["0.50", "0.25", "\N{EM DASH}"] * 2
        (place / "going/videos").mkdir()
        (place / "going/videos/evaluation-step_7000.mp4").write_bytes(b"no film")
        window.page.wait_for_selector(".clips video", timeout=20_000)
        assert window.outside == []


def test_no_version_is_cut_at_an_end_of_the_lineage(
    place: Path, registry: Path, browser: Any
) -> None:
    for width in (390, 900, 1280):
        with opened(place, registry) as client:
            window = Window(browser, client, "#/versions", width=width)
            window.page.wait_for_selector(".node")
            window.page.wait_for_timeout(200)
            cut = window.page.evaluate(
                """() => { const box = (one) => one.getBoundingClientRect();
                const view = box(document.querySelector('.graph'));
                const left = view.left - 1, right = view.right + 1;
                return [...document.querySelectorAll('.node')].map(box)
                .filter((one) => one.left < right - 2 && one.right > left + 2)
                .filter((one) => one.left < left || one.right > right).length; }"""
            )
            assert cut == 0, f"at {width} px"
            assert "not set" in window.text(".alias.shadow")


def test_what_axe_finds_is_seen(place: Path, browser: Any) -> None:
    script = browsing.axe()
    with opened(place) as client:
        window = Window(browser, client)
        window.page.wait_for_selector(".ring .dots")
        window.page.evaluate(
            "() => document.querySelector('#filter').previousElementSibling.remove()"
        )
        window.page.evaluate(
            "() => document.querySelector('#filter').removeAttribute('placeholder')"
        )
        assert any("label" in one for one in browsing.serious(window.page, script))


def test_nothing_moves_for_those_who_want_that(place: Path, browser: Any) -> None:
    moving = "() => document.getAnimations().filter((one) => one.playState === 'running').length"
    with opened(place) as client:
        calm = Window(browser, client, reduced_motion="reduce")
        calm.page.wait_for_selector(".ring .dots")
        assert calm.page.evaluate(moving) == 0
        lively = Window(browser, client, reduced_motion="no-preference")
        lively.page.wait_for_selector(".chip.running, .chip.quiet")
        assert lively.page.evaluate(moving) > 0


# ------------------------------------------------------------------------------------- the keyboard


def test_the_keyboard_does_everything(place: Path, registry: Path, browser: Any) -> None:
    with opened(place, registry) as client:
        window = Window(browser, client)
        page, press = window.page, window.page.keyboard.press
        page.mouse.move = page.mouse.click = None  # nobody touches it
        page.wait_for_selector(".ring .dots")
        press("Tab")
        assert page.evaluate("() => document.activeElement.className") == "skip"
        press("j")
        page.wait_for_function("() => location.hash.startsWith('#/run/seeds')")
        press("x")
        press("j")
        press("x")
        press("2")
        page.wait_for_function(
            "() => document.querySelectorAll('.chips li').length === 2 && "
            "document.querySelectorAll('.big .line').length >= 2"
        )
        page.locator(".plot").first.focus()
        press("ArrowLeft")
        page.wait_for_selector(".reading:not([hidden])")
        press("?")
        page.wait_for_selector("dialog#help[open]")
        press("Escape")
        press("t")
        assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
        press("t")
        page.reload()
        assert page.evaluate("() => document.documentElement.dataset.theme") == "dark", (
            "the choice stays"
        )
        page.wait_for_selector("#runs a")  # the rows come after the page
        press("/")
        page.keyboard.type("going")
        press("Tab")
        press("Enter")
        page.wait_for_function("() => location.hash === '#/run/going'")
        press("3")
        page.wait_for_selector(".node")
        reached = set()
        for _ in range(80):
            press("Tab")
            where = page.evaluate(
                "() => document.activeElement.className + ' ' + document.activeElement.innerText"
            )
            reached.add(where)
            if where.startswith("node") and "champion" not in where:
                break
        press("ArrowRight")
        press("Enter")
        page.wait_for_function(
            "() => document.activeElement.getAttribute('aria-pressed') === 'true'"
        )
        while "Promote" not in page.evaluate("() => document.activeElement.innerText"):
            press("Tab")
        press("Enter")
        page.wait_for_selector("dialog#ask[open]")
        assert "champion now" in window.text("#ask")
        page.keyboard.type("not-the-token-at-all")
        press("Enter")
        page.wait_for_function(
            "() => document.querySelector('#ask .bad').innerText.includes('expected')"
        )
        page.locator("#ask input[type=password]").fill(TOKEN)
        page.locator("#ask input[type=text]").focus()
        page.keyboard.type("better by keyboard")
        press("Enter")
        page.wait_for_selector("dialog#ask", state="hidden")
        page.wait_for_function(
            "() => document.querySelector('.audit').innerText.includes('better by keyboard')"
        )
        assert Registry(registry).aliases("pong").keys() == {"champion", "previous"}
        assert window.outside == [] and [one for one in window.said if "401" not in one] == []


def test_others_enter_with_the_token(place: Path, browser: Any) -> None:
    with opened(place, closed=True) as client:
        window = Window(browser, client)
        window.page.wait_for_selector("dialog#ask[open]")
        window.page.keyboard.type(TOKEN)
        window.page.keyboard.press("Enter")
        window.page.wait_for_selector(".chip.running, .chip.quiet")
        window.page.reload()
        window.page.wait_for_selector(".chip.running, .chip.quiet")
        other = Window(browser, client, f"#token={TOKEN}")
        other.page.wait_for_selector(".chip.running, .chip.quiet")
        assert TOKEN not in other.page.url and not any(TOKEN in url for url in other.requests)
