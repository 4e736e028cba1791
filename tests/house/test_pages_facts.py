"""Pages that list facts of the project agree with it: extras, words."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from equipoise import recipes
from equipoise.programs.program import algorithm_class

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


# ------------------------------------------------------------------------------------- the tuning

TUNING = DOCS / "guides/tuning.md"
OF_GROUP = {"all": tuple({algorithm for _, algorithm in recipes.RECIPES})}


def of_recipes(setting: str, algorithms: tuple[str, ...]) -> Iterator[float]:
    """The values of a setting in the recipes of some algorithms."""
    for (_, algorithm), settings in recipes.RECIPES.items():
        if algorithm not in algorithms:
            continue
        if setting == "unroll":
            rows = settings.get("policy.unroll"), settings.get("policy.batch")
            if None not in rows:
                yield float(str(rows[0])) * float(str(rows[1]))
        elif setting == "algorithm.hidden":
            yield from map(float, re.findall(r"\d+", str(settings.get(setting, ""))))
        elif setting in settings:
            yield float(str(settings[setting]))


def tuned(text: str) -> Mapping[str, tuple[tuple[float, float], tuple[float, float]]]:
    """By setting: the range that the page has, and that of the recipes."""
    table = text[text.index("| order |") : text.index("Change one at a time")]
    found = {}
    for row in table.splitlines()[2:]:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) != 5:
            continue
        setting = re.findall(r"`([\w.]+)`", cells[1])[0]
        said = re.match(r"([\d.,]+) to ([\d.,]+) .*\((.*)\)", cells[4])
        assert said is not None, row
        names = tuple(name.lower() for name in said[3].split(", "))
        values = [*of_recipes(setting, OF_GROUP.get(names[0], names))]
        on_page = float(said[1].replace(",", "")), float(said[2].replace(",", ""))
        found[setting] = on_page, (min(values), max(values))
    return found


def test_the_ranges_of_the_tuning_are_those_of_the_recipes() -> None:
    ranges = tuned(TUNING.read_text())
    assert len(ranges) == 7
    assert {key: page for key, (page, _) in ranges.items()} == {
        key: have for key, (_, have) in ranges.items()
    }


def test_a_wrong_range_is_found() -> None:
    page, have = tuned(TUNING.read_text().replace("0.9 to 0.9999", "0.9 to 0.999"))[
        "algorithm.gamma"
    ]
    assert page != have


def metrics_of_the_table(text: str) -> set[str]:
    """The metrics that the page of the tuning and that of the symptoms name."""
    table = text[text.index("| you see |") :].split("\n\n", 1)[0]
    first = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    return {name for name in re.findall(r"`([a-z_/]+)`", first) if "." not in name}


@pytest.mark.thorough
def test_the_metrics_of_the_tuning_are_metrics() -> None:
    source = "".join(file.read_text() for file in (ROOT / "src/equipoise").rglob("*.py"))
    for name in metrics_of_the_table(TUNING.read_text()):
        head, _, tail = name.partition("/")
        found = re.search(rf"\b{name}\b[\"=:]", source) or (tail and f'f"{head}/{{' in source)
        assert found, name


def test_the_lag_of_the_tuning_is_the_limit_of_ppo() -> None:
    limit = algorithm_class("ppo").max_sensible_lag
    assert f"`lag_mean` above {limit:g} in PPO" in TUNING.read_text()


def test_each_alarm_that_a_page_names_is_one() -> None:
    alarms = set(
        re.findall(r"^\| `([a-z ]+)` \|", (DOCS / "guides/alarms.md").read_text(), re.MULTILINE)
    )
    assert len(alarms) > 8
    for place in (TUNING, DOCS / "guides/troubleshooting.md", DOCS / "guides/faq.md"):
        named = re.findall(r"alarms? `([a-z ]+)`", place.read_text())
        assert {*named} <= alarms, place
