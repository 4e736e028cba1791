"""Pictures of the pages: scores are current, every picture is small, has words for those who do not
see it, and a look for the dark.
"""

from __future__ import annotations

import re
from pathlib import Path

import build_docs
import drawing
import pictures
import pytest

from equipoise.programs.program import algorithm_names

PAGES = sorted(build_docs.DOCS.rglob("*.md"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
MOST = {".svg": 60_000, ".png": 150_000}  # bytes
PICTURES = sorted(file for file in build_docs.DOCS.rglob("*") if file.suffix in MOST)
NO_PICTURE = "there is no picture"


def test_scores_are_current() -> None:
    assert pictures.scores(check=True) == [], "python tools/pictures.py scores"


@pytest.mark.parametrize("name", algorithm_names())
def test_a_page_has_its_score_as_a_picture_or_a_sentence(name: str) -> None:
    score = (pictures.PAGES / f"{name}.md").read_text().partition("\n## Score\n")[2]
    shown = f"(../../pictures/scores/{name}.svg)" in score
    assert shown == (name in pictures.SCORES)
    assert shown != (NO_PICTURE in score.lower())


def test_every_picture_is_small_and_has_a_page() -> None:
    shown = {
        (page.parent / path).resolve()
        for page in PAGES
        for _, path in IMAGE.findall(page.read_text())
    }
    both = {
        file.with_name(re.sub(r"-(?:light|dark)$", f"-{look}", file.stem) + file.suffix)
        for file in shown
        for look in ("light", "dark")
    }
    for file in PICTURES:
        assert file.stat().st_size < MOST[file.suffix], f"{file}: {file.stat().st_size} bytes"
    assert [
        file for file in PICTURES if file not in shown | both and "static" not in file.parts
    ] == []


def test_every_picture_has_words_and_a_look_for_the_dark() -> None:
    for page in PAGES:
        for words, path in IMAGE.findall(page.read_text()):
            file = page.parent / path
            assert len(words) > 10, f"{page}: {path}: expected what the picture shows"
            paired = re.search(r"-(light|dark)$", file.stem)
            assert paired or "prefers-color-scheme: dark" in file.read_text(), (
                f"{page}: {path}: python tools/pictures.py dark {path}"
            )


def test_a_page_has_a_picture_for_the_light_and_one_for_the_dark(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(drawing.bars("t", [("", [drawing.Bar("x", 1.0, "1")])]))
    for look in ("light", "dark"):
        (tmp_path / f"b-{look}.png").write_bytes(b"")
    page = build_docs.in_both_colours("![A](a.svg)\n\n![B](b-dark.png) ![C](c.png)\n", tmp_path)
    assert page == (
        "![A](a-light.svg){.only-light}\n![A](a-dark.svg){.only-dark}\n\n"
        "![B](b-light.png){.only-light}\n![B](b-dark.png){.only-dark} ![C](c.png)\n"
    )
    light, dark = ((tmp_path / f"a-{look}.svg").read_text() for look in ("light", "dark"))
    assert "@media" not in light + dark and drawing.DARK not in light
    assert dark.index(drawing.DARK) > dark.index(drawing.LIGHT)


def test_lines_and_bars_have_their_numbers() -> None:
    drawn = drawing.lines("t", [("r", [(0.0, 0.0), (10.0, 5.0)])], goal=5.0)
    assert 'd="M60.0 300.0L612.0 64.0"' in drawn and "goal: 5" in drawn
    drawn = drawing.bars("t", [("", [drawing.Bar("a", 1.0, "1"), drawing.Bar("b", 2.0, "2")])])
    first, second = (float(x) for x in re.findall(r'width="([\d.]+)" height="16"', drawn))
    assert second == pytest.approx(2 * first, abs=0.2)
