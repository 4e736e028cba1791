"""The site: every page is reached from the first one, and a built site can be searched."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import runpy
from pathlib import Path

import build_docs
import docutils.core
import pytest
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.search.en import SearchEnglish

import equipoise as eq

GENERATED = {"start/notebook", "reference/commands", "reference/python"}
# What readers search for, and a page that has to be among the results.
SEARCHES = {
    "frame stack": "guides/faq",
    "resume": "guides/runs",
    "CUDA": "guides/gpu",
    "action mask": "guides/spaces",
    "learning rate": "guides/tuning",
}


def reached(page: str, seen: set[str]) -> set[str]:
    """The pages that the navigation reaches from one page, by their names without ``.md``."""
    seen.add(page)
    file = build_docs.DOCS / f"{page}.md"
    for entry in build_docs.entries(file.read_text()) if file.exists() else ():
        name = os.path.normpath(os.path.join(os.path.dirname(page), entry))
        assert name not in seen, f"{page}.md: {entry} has two places in the navigation"
        reached(name, seen)
    return seen


def test_the_settings_of_sphinx_can_be_read() -> None:
    settings = runpy.run_path(str(build_docs.DOCS / "conf.py"))
    assert settings["html_theme"] == "furo" and "sphinx.ext.napoleon" in settings["extensions"]


def test_docstrings_that_the_site_shows_are_whole_markup() -> None:
    """Sphinx ends with an error at a start of emphasis that has no end, such as a lone ``*``."""
    found = []
    for name in eq.__all__:
        text = GoogleDocstring(inspect.getdoc(getattr(eq, name)) or "")
        heard = io.StringIO()
        docutils.core.publish_doctree(str(text), settings_overrides={"warning_stream": heard})
        found += [
            f"{name}: {line}"
            for line in heard.getvalue().splitlines()
            if "emphasis start-string without end-string" in line
        ]
    assert not found, "\n".join(found)


def test_the_navigation_reaches_every_page() -> None:
    pages = {str(page.relative_to(build_docs.DOCS))[:-3] for page in build_docs.pages()}
    outside = {goal[:-3] for goal in build_docs.documents().values()}
    rooms = {goal for goal in outside if goal.startswith("inside/package/")}
    found = reached("index", set())
    assert pages - found == set(), "list them in the index.md of their section"
    assert found - pages == GENERATED | (outside - rooms) | {"inside/package/index"}


def test_links_lead_to_pages_and_copies() -> None:
    files: set[str] = set()
    text = (
        "[a](../../SECURITY.md) [b](../inside/lag.md#x) [c](../../tools/maps.py) [d](../../tools) "
        "[e](https://a.b/c) [f](#here)\n```\n[g](../../tools/maps.py)\n```\n"
    )
    assert build_docs.relinked(text, "docs/guides/gpu.md", "guides/gpu.md", files) == (
        "[a](../about/reporting.md) [b](../inside/lag.md#x) [c](../files/tools/maps.py) d "
        "[e](https://a.b/c) [f](#here)\n```\n[g](../../tools/maps.py)\n```\n"
    )
    assert files == {"tools/maps.py"}


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">b</a> <a href="b.html#no">b</a> <a href="c.html">c</a>'
        '<a href="#here">a</a><img src="p.png"><a href="https://x.y/z">z</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    assert build_docs.dead_links(tmp_path) == [
        "a.html: b.html#no",
        "a.html: c.html",
        "a.html: p.png",
    ]


def test_the_reference_has_every_command() -> None:
    page = build_docs.of_commands()
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert {"train", "resume", "evaluate", "serve", "doctor"} <= set(titles)
    assert len(titles) == len(set(titles))
    assert "| `--algorithm NAME` |" in page


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="must be a new folder or an earlier site"):
        build_docs.build(tmp_path, tmp_path / "source")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def results(index: Path, words: str) -> set[str]:
    """The pages that the site's search gives for some words: those that have each of them."""
    text = index.read_text()
    data = json.loads(text[text.index("{") : text.rindex("}") + 1])
    stem = SearchEnglish({}).stem
    found = []
    for word in words.lower().split():
        hits: set[int] = set()
        for table in ("terms", "titleterms"):
            entry = data[table].get(stem(word), [])
            hits |= {entry} if isinstance(entry, int) else set(entry)
        found.append(hits)
    return {data["docnames"][number] for number in set.intersection(*found)}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_site_is_built_without_a_warning_and_its_search_finds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert build_docs.build(out, tmp_path / "source") == 0
    for words, page in SEARCHES.items():
        assert page in results(out / "searchindex.js", words), words
    assert results(out / "searchindex.js", "xyzzy") == set()
