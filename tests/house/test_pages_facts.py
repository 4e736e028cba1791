"""Pages that list facts of the project agree with it: extras, words."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OWN = {"all", "dev", "docs"}  # extras that are bundles, or for work on Equipoise itself


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"]) - OWN


def test_the_page_of_the_installation_lists_every_extra() -> None:
    page = (DOCS / "start/install.md").read_text()
    table = page[page.index("## Extras") : page.index("## In a container")]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = re.findall(r"`([\w-]+)`", " ".join(rows))
    assert sorted(named) == sorted(extras())


def words(page: str, heading: str) -> list[str]:
    """The first cells of the table below a heading."""
    table = page[page.index(heading) :].split("\n\n", 2)[1]
    return [row.split("|")[1].strip() for row in table.splitlines()[2:]]


def test_the_concepts_have_twenty_words_of_the_glossary() -> None:
    concepts = words((DOCS / "start/concepts.md").read_text(), "## The words")
    glossary = words((DOCS / "reference/glossary.md").read_text(), "*italics* have a line")
    assert len(concepts) == len(set(concepts)) == 20
    assert set(concepts) <= set(glossary)


def test_the_words_of_the_glossary_are_in_alphabetical_order() -> None:
    table = (DOCS / "reference" / "glossary.md").read_text().partition("|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    words = [re.sub(r"[`*\[\]]", "", row.split("|")[1]).strip().lower() for row in rows]
    assert len(words) > 50 and words == sorted(words)
