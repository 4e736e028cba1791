"""The page in Chromium: answers survive double clicks, reloads, tabs, a lost network and a killed
server; the keyboard suffices; texts stay texts; and no other host is asked.
"""

from __future__ import annotations

import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.feedback import DiskFull
from equipoise.feedback.records import MIRRORED
from equipoise.labeling import page as served
from tests.labeling.made import TOKEN, Client, dot, opened, store
from tests.watching import browsing
from tests.watching.browsing import Window

pytestmark = pytest.mark.browser
BUTTONS = ("left", "equal", "right", "cannot_tell", "replay", "undo")
KEYS = {"left": "ArrowLeft", "right": "ArrowRight", "equal": "e", "cannot_tell": "c"}
LEASE = "() => document.querySelector('main').dataset.lease ?? null"
REST_S = 0.4  # a little longer than the page ignores a second press
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.fixture
def browser() -> Iterator[Any]:
    with browsing.chromium() as one:
        yield one


def entered(browser: Any, port: int, token: str, **how: Any) -> Window:
    """A window of the annotator with this token, with a question that can be answered."""
    window = Window(browser, Client(port), f"#token={token}", **how)
    window.page.wait_for_selector("main[data-lease]")
    return window


def lease_of(window: Window) -> int | None:
    found = window.page.evaluate(LEASE)
    return None if found is None else int(found)


def changed(window: Window, lease: int | None, timeout: float = 60_000) -> None:
    """Wait until another question can be answered, or no question is left."""
    window.page.wait_for_function(
        "(lease) => { const main = document.querySelector('main'); return main.dataset.lease ? "
        "main.dataset.lease !== lease : !!main.querySelector('.empty') }",
        arg=str(lease),
        timeout=timeout,
    )


def press(window: Window, choice: str) -> int | None:
    """Answer by a key, and wait for the next question -> the lease of the answered one."""
    lease = lease_of(window)
    time.sleep(REST_S)
    window.page.keyboard.press(KEYS[choice])
    changed(window, lease)
    return lease


def stored(path: Path) -> dict[int, tuple[str, str]]:
    """Annotator and choice as shown of every answer that was ever stored, by lease."""
    with sqlite3.connect(path / "feedback.sqlite") as db:
        rows = db.execute(
            "SELECT lease, annotator, choice, swapped FROM answers WHERE choice IS NOT NULL"
        ).fetchall()
    found = {
        lease: (name, MIRRORED.get(choice, choice) if swapped else choice)
        for lease, name, choice, swapped in rows
    }
    assert len(found) == len(rows)
    return found


# -------------------------------------------------------------------------- no answer lost or twice


class Served:
    """``equipoise label`` in a process that is killed and started again at the same port."""

    def __init__(self, place: Path, names: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._words = [str(place), "--port", str(self.port)]
        self._words += [word for name in names for word in ("--annotator", name)]
        self.tokens = {}
        for line in self.start():
            name, _, link = line.partition(": ")
            if "#token=" in link:
                self.tokens[name] = link.rpartition("=")[2].strip()

    def start(self) -> list[str]:
        """Start the command -> the lines that it prints."""
        self.dead = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "equipoise", "label", *self._words],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("progress: "):
            line = self.process.stdout.readline()
            assert line, "the server ended"
            lines.append(line)
        return lines

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.dead.set()


@pytest.mark.timeout(900)  # four minutes on two cores with a load of eight
def test_every_answer_is_stored_once_over_200_answers_and_20_kills(
    tmp_path: Path, browser: Any
) -> None:
    place, draw = tmp_path / "store", random.Random(7)
    store(place, clips=20, texts=260, lease_s=3600.0).close()
    served = Served(place, ("ann", "ben"))
    try:
        tabs = [
            ("ann", entered(browser, served.port, served.tokens["ann"])),
            ("ben", entered(browser, served.port, served.tokens["ben"], width=400)),
        ]
        second = Window(browser, Client(served.port), f"#token={served.tokens['ann']}")
        tabs.append(("ann", second))  # its own storage: as another browser of the same person
        acknowledged = set[int]()
        for _, window in tabs:
            window.page.on("response", lambda one: note(one, acknowledged))
        pressed: dict[int, tuple[str, str]] = {}
        undone, kills, turn = 0, 0, 0
        while len(pressed) < 200:
            turn += 1
            name, window = tabs[draw.choices((0, 1, 2), (4, 4, 1))[0]]
            time.sleep(REST_S)
            page, lease = window.page, lease_of(window)
            assert lease is not None
            choice, how = draw.choice([*KEYS]), draw.random()
            pressed.setdefault(lease, (name, choice))
            if kill := turn % 9 == 0 and kills < 20:
                threading.Timer(draw.random() * 0.1, served.kill).start()
            if offline := not kill and how < 0.06:
                page.context.set_offline(True)
            if draw.random() < 0.5:
                page.dblclick(f'[data-act="{choice}"]')
            else:
                page.keyboard.press(KEYS[choice])
                page.keyboard.press(KEYS[choice])
            if offline:
                page.wait_for_selector("#problem:not([hidden])")
                page.context.set_offline(False)
            elif how < 0.2 and not kill:
                page.reload()  # in the middle of it
            if kill:
                kills += 1
                served.dead.wait()
                served.start()
                for _, one in tabs:
                    with one.page.expect_response(lambda one: one.url.endswith("/api/question")):
                        one.page.evaluate("() => window.dispatchEvent(new Event('online'))")
            changed(window, lease)
            if how > 0.93:
                time.sleep(REST_S)
                lease = lease_of(window)
                page.dblclick('[data-act="undo"]')
                changed(window, lease)
                undone += 1
        found = stored(place)
        assert kills == 20 and undone > 3 and acknowledged <= set(found)
        assert {lease: found.get(lease) for lease in pressed} == pressed, "none is lost or changed"
        assert set(found) == set(pressed), "none is there that nobody gave"
        with sqlite3.connect(place / "feedback.sqlite") as db:
            (count,) = db.execute("SELECT count(undoes) FROM answers").fetchone()
        assert count == undone
        assert all(window.outside == [] for _, window in tabs)
    finally:
        served.kill()


def note(response: Any, acknowledged: set[int]) -> None:
    if response.url.endswith("/api/answer") and response.status == 200:
        acknowledged.add(response.request.post_data_json["lease"])


def test_two_tabs_of_one_annotator_count_one_answer(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store", texts=3) as made, opened(made) as port:
        one = entered(browser, port, made.add_annotator("ann"))
        other = one.page.context.new_page()
        other.goto(one.base)
        other.wait_for_selector("main[data-lease]")
        lease = press(one, "left")
        assert other.evaluate(LEASE) == str(lease)
        time.sleep(REST_S)
        other.keyboard.press("ArrowRight")
        other.wait_for_function(
            "(lease) => document.querySelector('main').dataset.lease !== lease", arg=str(lease)
        )
        assert "another answer" in other.locator("#problem").inner_text()
        assert stored(made.path) == {lease: ("ann", "left")}


def test_an_answer_to_a_question_that_another_has_is_refused_and_the_next_one_comes(
    tmp_path: Path, browser: Any
) -> None:
    with store(tmp_path / "store", texts=2, lease_s=2.0) as made, opened(made) as port:
        window = entered(browser, port, made.add_annotator("ann"))
        lease, ben = lease_of(window), Client(port, made.add_annotator("ben"))
        end, taken = time.monotonic() + 30, list[int]()
        while len(taken) < 2 and time.monotonic() < end:  # both, one of them after ann's lease
            if (found := ben.question()["question"]) is not None:
                taken.append(found["lease"])
                assert ben.answer(found["lease"])[0] == 200
        window.page.keyboard.press("ArrowLeft")
        changed(window, lease)
        assert "somebody else got it" in window.text("#problem")
        assert "No question is left" in window.text("main")
        assert {name for name, _ in stored(made.path).values()} == {"ben"}


def test_an_unacknowledged_answer_is_sent_after_a_reload(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store", texts=3) as made, opened(made) as port:
        window = entered(browser, port, made.add_annotator("ann"))
        page, lease = window.page, lease_of(window)
        page.route("**/api/answer", lambda route: route.abort())
        time.sleep(REST_S)
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#problem:not([hidden])")
        assert "kept in this browser" in window.text("#problem") and made.answers() == []
        page.unroute("**/api/answer")
        page.reload()
        changed(window, lease)
        page.wait_for_selector("main[data-lease]")
        assert stored(made.path) == {lease: ("ann", "right")}
        page.reload()
        page.wait_for_selector("main[data-lease]")
        assert len(stored(made.path)) == 1


def test_a_lost_acknowledgement_counts_once(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store", texts=3) as made, opened(made) as port:
        window = entered(browser, port, made.add_annotator("ann"))
        page, lease, sent = window.page, lease_of(window), list[int]()

        def lose(route: Any) -> None:
            sent.append(1)
            if len(sent) > 2:
                route.continue_()
                return
            route.fetch()  # the server has it
            route.abort()

        page.route("**/api/answer", lose)
        time.sleep(REST_S)
        page.keyboard.press("e")
        changed(window, lease)
        assert len(sent) == 3 and stored(made.path) == {lease: ("ann", "equal")}


def test_a_full_disk_is_told_and_the_answer_is_stored_when_there_is_room(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store(tmp_path / "store", texts=2) as made, opened(made) as port:
        window = entered(browser, port, made.add_annotator("ann"))
        lease = lease_of(window)

        def full(*_: Any, **__: Any) -> int:
            raise DiskFull("nothing was stored, since the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(made, "answer", full)
            time.sleep(REST_S)
            window.page.keyboard.press("ArrowLeft")
            window.page.wait_for_selector("#problem:not([hidden])")
            assert "disk of the server is full" in window.text("#problem")
            assert lease_of(window) == lease
        changed(window, lease)
        assert stored(made.path) == {lease: ("ann", "left")}


# -------------------------------------------------------------------------------------- keys, looks


def test_the_keyboard_alone_suffices(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store", clips=2, texts=3) as made, opened(made) as port:
        window = entered(browser, port, made.add_annotator("ann"))
        page = window.page
        given = {press(window, choice): ("ann", choice) for choice in KEYS}
        assert stored(made.path) == given
        lease = lease_of(window)
        time.sleep(REST_S)
        page.keyboard.press("u")
        changed(window, lease)
        assert len(made.answers()) == 3
        press(window, "left")
        lease = lease_of(window)
        time.sleep(REST_S)
        reached = []
        for _ in range(5):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("() => document.activeElement.dataset.act ?? ''"))
        assert reached == [one for one in BUTTONS if one != "replay"]
        page.locator('[data-act="equal"]').focus()
        page.keyboard.press("Enter")
        changed(window, lease)
        assert len(made.answers()) == 5 and "No question is left" in window.text("main")
        assert window.said == [] and window.outside == []


def test_clips_play_in_step_once_and_again(tmp_path: Path, browser: Any) -> None:
    where = """() => [...document.querySelectorAll('canvas')].map((one) => {
      const { data, width } = one.getContext('2d').getImageData(0, 13, one.width, 1);
      for (let x = 0; x < width; x++) if (data[4 * x] > 100) return x;
      return -1; })"""
    with store(tmp_path / "store") as made, opened(made) as port:
        hashes = [made.add_segment(dot(speed, steps=14)) for speed in (1, 2)]
        made.add_query("clip", *hashes)
        window = entered(browser, port, made.add_annotator("ann"))
        page, ends = window.page, {hashes[0]: 13, hashes[1]: 26}
        for _ in range(2):
            seen = set[tuple[int, int]]()
            end = time.monotonic() + 20
            while (found := tuple(sorted(page.evaluate(where)))) != tuple(sorted(ends.values())):
                seen.add((found[0], found[1]))
                assert time.monotonic() < end
            assert all(fast == 2 * slow for slow, fast in seen), "both show the same step"
            page.keyboard.press("r")
            page.wait_for_function(f"() => ({where})().every((x) => x < 26)")


def test_texts_stay_texts(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store") as made, opened(made) as port:
        chat = made.add_text([{"role": "user", "content": HOSTILE}])
        items = [made.add_text(f"{HOSTILE}\n  {side}") for side in "ab"]
        made.add_query("text", *items, prompt=chat)
        window = entered(browser, port, made.add_annotator("<b>ann</b>"))
        shown = [one.inner_text() for one in window.page.locator(".text").all()]
        assert len(shown) == 3 and all(HOSTILE in one for one in shown)
        assert window.page.locator("main img, main script").count() == 0
        assert window.page.title() != "taken" and "<b>ann</b>" in window.text("#state")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["clips", "curves", "texts"])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_window(
    tmp_path: Path, browser: Any, kind: str, scheme: str
) -> None:
    script = browsing.axe()
    with store(tmp_path / "store", **{kind: 2}) as made, opened(made) as port:
        token = made.add_annotator("ann")
        for width in (400, 1280):
            window = entered(browser, port, token, width=width, color_scheme=scheme)
            window.page.evaluate(
                "() => { const one = document.getElementById('problem'); "
                "one.hidden = false; one.textContent = 'A problem.'; }"
            )
            assert browsing.serious(window.page, script) == []
            assert window.page.evaluate("() => document.documentElement.scrollWidth") <= width
            assert window.said == [] and window.outside == []
            owner = Window(
                browser, Client(port), f"owner#token={TOKEN}", width=width, color_scheme=scheme
            )
            owner.page.wait_for_selector("table")
            assert browsing.serious(owner.page, script) == []
            assert owner.page.evaluate("() => document.documentElement.scrollWidth") <= width
            assert owner.said == [] and owner.outside == []


def test_a_link_leaves_the_address_and_a_wrong_or_revoked_one_is_one_sentence(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WRONG_S", 0.0)
    with store(tmp_path / "store", texts=2) as made, opened(made) as port:
        window = Window(browser, Client(port), "#token=wrong")
        window.page.wait_for_selector(".empty")
        assert window.text("main") == served.NO_LINK
        token = made.add_annotator("ann")
        window.page.goto(f"{window.base}#token={token}")  # the page stays, the link is read
        window.page.wait_for_selector("main[data-lease]")
        assert window.page.url == window.base and token not in window.page.evaluate(
            "() => document.cookie"
        )
        made.revoke("ann")
        time.sleep(REST_S)
        window.page.keyboard.press("ArrowLeft")
        window.page.wait_for_selector(".empty")
        assert window.text("main") == served.NO_LINK and made.answers() == []


def test_the_owner_sees_the_progress_as_it_grows(tmp_path: Path, browser: Any) -> None:
    with store(tmp_path / "store", texts=3, answers_per_query=2) as made, opened(made) as port:
        owner = Window(browser, Client(port), f"owner#token={TOKEN}")
        for name in ("ann", "ben"):
            client = Client(port, made.add_annotator(name))
            for _ in range(3):
                client.answer(client.question()["question"]["lease"])
        owner.page.wait_for_function(
            "() => [...document.querySelectorAll('tbody tr')].map((one) => "
            "one.cells[1].textContent).join() === '3,3'",
            timeout=30_000,
        )
        assert made.counts().answers == 6
