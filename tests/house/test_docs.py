"""The documents name what there is, and link to what there is."""

from __future__ import annotations

import re
from pathlib import Path

import maps
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "equipoise"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
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
        assert target.exists(), (
            f"{document.relative_to(ROOT)} links to {link}, which does not exist"
        )
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), (
            f"{link}: no such heading"
        )


def test_the_maps_of_the_package_are_current() -> None:
    stale = [
        str(page.relative_to(ROOT))
        for page, text in maps.pages().items()
        if not page.exists() or page.read_text() != text
    ]
    assert stale == [], "run python tools/maps.py"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_marks_of_a_merge(page: Path) -> None:
    marks = ("<<<<<<< ", "=======", ">>>>>>> ")
    found = [
        number
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.startswith(marks)
    ]
    assert found == []


def test_a_map_names_every_file() -> None:
    for page, text in maps.pages().items():
        named = set(re.findall(r"^\| `([\w/]+\.py)`", text, re.MULTILINE))
        if page.parent != PACKAGE:
            there = {
                str(file.relative_to(page.parent))
                for file in page.parent.rglob("*.py")
                if file.name != "__init__.py"
            }
            assert named == there, page


def unknown_files(text: str) -> list[str]:
    """Python files that a text names in backticks and that are not there; decisions may name what
    was.
    """
    known = [
        str(path.relative_to(ROOT))
        for folder in ("src", "tests", "tools", "benchmarks", "clients")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)`", text)) - OF_A_USER
    return sorted(
        name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in known)
    )


OF_A_USER = {
    "my_envs.py",
    "my_device_envs.py",
    "my_package/envs.py",
    "my_algorithms.py",
    "my_bonus.py",
    "my_family.py",
    "my_variants.py",
    "teachers.py",
    "numpy.py",
    "torch/multiprocessing/reductions.py",
}


@pytest.mark.thorough
def test_every_python_file_that_is_named_is_there() -> None:
    texts = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / "src").rglob("*.py"))
    current = [
        path for path in texts if "decisions" not in path.parts and path.name != "CHANGELOG.md"
    ]
    assert len(current) > 200
    wrong = {
        str(path.relative_to(ROOT)): names
        for path in current
        if (names := unknown_files(path.read_text()))
    }
    assert wrong == {}
    assert unknown_files("as in `agent.py` and ``nowhere.py``") == ["nowhere.py"]
