"""The documents name what there is, and link to what there is."""

from __future__ import annotations

import re
from pathlib import Path

import maps
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "equipoise"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


def anchors(document: Path) -> set[str]:
    """GitHub's: lower case, punctuation dropped, spaces to hyphens."""
    titles = re.findall(r"^#+ +(.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_relative_links_resolve(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.relative_to(ROOT)} links to {link}, which does not exist"
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{link}: no such heading"


def test_the_maps_of_the_package_are_current() -> None:
    stale = [
        str(page.relative_to(ROOT)) for page, text in maps.pages().items() if not page.exists() or page.read_text() != text
    ]
    assert stale == [], "run python tools/maps.py"


def test_a_map_names_every_file() -> None:
    for page, text in maps.pages().items():
        named = set(re.findall(r"^\| `([\w/]+\.py)`", text, re.MULTILINE))
        if page.parent != PACKAGE:
            there = {str(file.relative_to(page.parent)) for file in page.parent.rglob("*.py") if file.name != "__init__.py"}
            assert named == there, page
