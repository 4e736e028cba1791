"""The page of the server: every space has an example, a large one has none, and text is escaped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.serving.page import MOST_NUMBERS, described, example, page
from tests.serving.servers import registry, serving
from tests.watching import browsing
from tests.watching.browsing import Window

BOX = {"type": "Box", "shape": [2], "dtype": "float32"}
MASK = {"type": "MultiBinary", "n": 3}


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (BOX, [0, 0]),
        ({"type": "Discrete", "n": 4, "start": 2, "dtype": "int64"}, 2),
        ({"type": "MultiDiscrete", "nvec": [[2, 3]], "dtype": "int64"}, [[0, 0]]),
        ({"type": "Tuple", "spaces": [BOX, MASK]}, [[0, 0], [0, 0, 0]]),
        ({"type": "Dict", "spaces": {"x": BOX, "mask": MASK}}, {"x": [0, 0], "mask": [1, 1, 1]}),
        ({"type": "Box", "shape": [MOST_NUMBERS + 1], "dtype": "uint8"}, None),
    ],
)
def test_an_example_fits_its_space(space: Any, found: object) -> None:
    assert example(space, ("mask",)) == found
    assert described(space)


def made(policy: str, observation: Any) -> Any:
    spec = {
        "artifact": {"policy": "main"},
        "policies": {"main": {"observation": observation, "action": BOX, "mask": []}},
    }
    version = SimpleNamespace(model=SimpleNamespace(spec=spec), digest="abc", recurrent=True)
    return SimpleNamespace(
        versions=SimpleNamespace(now=SimpleNamespace(champion=version), policy=policy)
    )


def test_names_are_text_and_a_large_observation_is_not_written_out() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m"
    keys = {"type": "Dict", "spaces": {hostile: {"type": "Box", "shape": [84, 84], "dtype": "u1"}}}
    text = page(made(hostile, keys), f"http://{hostile}", token=True)
    assert "<script>alert" not in text and "\x1b" not in text and "&lt;script&gt;alert" in text
    assert "more than 256 numbers" in text and "@request.json" in text
    assert "Authorization: Bearer TOKEN" in text and len(text) < 20_000
    assert "Bearer" not in page(made("cartpole", BOX), "http://localhost:8000", token=False)


def test_a_space_of_many_parts_is_cut() -> None:
    many = {"type": "Dict", "spaces": {f"key {i}": BOX for i in range(10_000)}}
    assert len(described(many)) < 5_000 and example(many) is None


@pytest.mark.browser
def test_the_form_asks_the_policy_in_a_browser(tmp_path: Path) -> None:
    registry(tmp_path, mask=1)
    script = browsing.axe()
    with browsing.chromium() as browser, serving(tmp_path, "mask") as running:
        for width, scheme in ((400, "light"), (1280, "dark")):
            client: Any = running
            window = Window(browser, client, width=width, color_scheme=scheme)
            window.page.get_by_role("button").click()
            window.page.wait_for_function(
                "() => document.querySelector('#answer').innerText.includes('action')"
            )
            window.page.locator("#obs").fill("{")
            window.page.get_by_role("button").click()
            window.page.wait_for_function(
                "() => document.querySelector('#answer').innerText.includes('JSON')"
            )
            assert window.page.evaluate("() => document.documentElement.scrollWidth") <= width
            assert window.said == [] and window.outside == []
            assert browsing.serious(window.page, script) == []
