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


COMPARISON = DOCS / "about/comparison.md"


def unproved(text: str) -> list[str]:
    """What is wrong in the comparison: guesses, claims without a source, sources without a use."""
    table, _, sources = text.partition("\n[^")
    defined = dict(re.findall(r"\[\^([\w-]+)\]: ((?:.*\n?)(?:  .*\n?)*)", f"[^{sources}"))
    used = set(re.findall(r"\[\^([\w-]+)\]", table))
    wrong = [f"no source {name}" for name in sorted(used - {*defined})]
    wrong += [f"{name} is of no cell" for name in sorted({*defined} - used)]
    wrong += [f"{name} has no link" for name, said in defined.items() if "](https://" not in said]
    for row in [line for line in table.splitlines() if line.startswith("| ")][1:]:
        name, ours, *others = [cell.strip() for cell in row.split("|")[1:-1]]
        wrong += [f"{name}: a guess" for cell in (ours, *others) if cell in ("", "?")]
        claims = not ours.startswith("no") and name != "trains"
        links = [link for link in re.findall(r"\]\(([^)#]+)", ours) if not link.startswith("http")]
        if claims and not links:
            wrong.append(f"{name}: ours without a proof")
        wrong += [f"no page {link}" for link in links if not (DOCS / "about" / link).is_file()]
        plain = (
            "none found",
            "not checked",
            "no",
            "Ray",
            "APPO",
            "has no replay",
            "control",
            "text",
        )
        wrong += [
            f"{name}: {cell!r} without a source"
            for cell in others
            if "[^" not in cell and cell not in plain and name != "trains"
        ]
    return wrong


def test_the_comparison_has_a_source_for_each_claim() -> None:
    assert unproved(COMPARISON.read_text()) == []


def test_a_claim_without_a_source_is_found() -> None:
    text = COMPARISON.read_text().replace("yes [^torchrl-checkpoint] | has no replay", "yes | ?", 1)
    text = text.replace("[yes](../guides/replay.md)", "yes", 1).replace("[^sf-docs]: `", "[^sf]: `")
    assert set(unproved(text)) == {
        "no source sf-docs",
        "sf is of no cell",
        "replay in a checkpoint: a guess",
        "replay in a checkpoint: ours without a proof",
        "replay in a checkpoint: '?' without a source",
        "replay in a checkpoint: 'yes' without a source",
    }


def test_the_readme_says_no_more_than_the_comparison() -> None:
    """A library that has a thing by the README has it by the page, which has the source."""
    readme = (ROOT / "README.md").read_text()
    tables = [
        {
            row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]]
            for row in text.splitlines()
            if row.startswith("| ")
        }
        for text in (readme[readme.index("## Comparison") :], COMPARISON.read_text())
    ]
    short = {"names the bottleneck": "names the bottleneck, and predicts a gain"}
    short |= {"same bits after a kill": "resume after a kill, to the same bits"}
    short |= {"world models": "world models, offline RL beyond cloning"}
    short |= {"serves versions": "serving with versions and roll-back"}
    for name, cells in tables[0].items():
        if name not in tables[1] and name not in short:
            continue
        for said, known in zip(cells[1:], tables[1][short.get(name, name)][1:], strict=True):
            assert (said == "") == ("not checked" in known), (name, said, known)
            assert said != "yes" or not known.startswith(("no", "none")), (name, known)
