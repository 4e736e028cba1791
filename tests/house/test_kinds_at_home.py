"""What one kind of worker does stands in its file in ``workers/``: nobody else asks a worker what
it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.workers.kind import Kind, Site
from equipoise.workers.kinds import KINDS

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
WORKER = re.compile(r"Worker\b|\bShard\b")
NAMES = {kind.name for kind in KINDS}
USERS = ("api", "cli")  # which compare the words of a user, and know no worker
SIDES = ("balance", "report")  # which read sides in numbers, and know no kind
BELOW = ("balance", "chaos", "experience")  # which name workers without knowing their kinds
MOST_MEMBERS = 7  # of ``Kind``: what all kinds have; the rest is asked for as a trait


def _texts(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def wrong(source: str, *, words: bool = True) -> list[str]:
    """Where a worker's kind is asked for: by its class, a prefix of its title, or (``words``) a
    comparison with its name.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and words:
            sides = [node.left, *node.comparators]
            values = [value for side in sides for value in getattr(side, "elts", [side])]
            if any(isinstance(value, ast.Constant) and value.value in NAMES for value in values):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.match_case):
            if any(text in NAMES for text in _texts(node.pattern)):
                found.append(ast.unparse(node.pattern))
        elif isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            asked = node.args[1:] if name == "isinstance" else node.args
            if name == "isinstance" and any(
                ast.unparse(kind).endswith("Worker") or "Shard" in ast.unparse(kind)
                for kind in asked
            ):
                found.append(ast.unparse(node))
            titles = [
                text.removeprefix("equipoise ").rstrip(" 0123456789")
                for arg in node.args
                for text in _texts(arg)
            ]
            if name in ("startswith", "removeprefix") and any(title in NAMES for title in titles):
                found.append(ast.unparse(node))
    return found


@pytest.mark.thorough
def test_nobody_asks_a_worker_what_it_is() -> None:
    files = [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] != "workers"
    ]
    found = {}
    for file in files:
        name = str(file.relative_to(PACKAGE))
        if where := wrong(file.read_text(), words=not name.startswith(USERS)):
            found[name] = where
    assert not found and len(files) > 100


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(worker, LearnerWorker)",
        "isinstance(worker, ActorWorker | Shard)",
        "child.kind == 'shard'",
        "kind in ('actor', 'x')",
        "name.startswith('actor')",
        "name.startswith(('equipoise actor ', 'equipoise x'))",
        "match kind:\n    case 'learner': pass",
    ],
)
def test_it_would_be_seen(line: str) -> None:
    assert wrong(line)


def test_the_driver_knows_no_memory() -> None:
    """``Runtime`` is all that it sees: neither the parts of a ring nor the board."""
    files = sorted((PACKAGE / "run").glob("*.py"))
    for file in files:
        name, source = file.stem, file.read_text()
        imported = {
            alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        parts = (
            "Shared",
            "board",
            "episodes",
            "experience.queue",
            "experience.replay.mailbox",
            "actors.inference.exchange",
            "weights.",
        )
        assert not [one for one in imported if any(part in one for part in parts)], name
        assert ".shared" not in source, name
    assert len(files) > 5


def sides(source: str) -> list[str]:
    """Where a worker's side of the ring is compared: its kind or a trait is to be asked."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        else:
            asked = [node.subject] if isinstance(node, ast.Match) else []
        values = [value for one in asked for value in getattr(one, "elts", [one])]
        if any(isinstance(value, ast.Attribute) and value.attr == "side" for value in values):
            found.append(ast.unparse(node))
    return found


def titles(source: str) -> list[str]:
    """Where a title is put together: ``Member.title`` is to be asked."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
        and len(node.values) > 1
        and isinstance(first := node.values[0], ast.Constant)
        and first.value in {f"{name} " for name in NAMES}
    ]


def rooms(*without: str) -> Iterator[Path]:
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.relative_to(PACKAGE).parts[0] not in without:
            yield file


def test_a_kind_is_small() -> None:
    members = {name for name in {*vars(Kind), *Kind.__annotations__} if not name.startswith("_")}
    assert len(members) <= MOST_MEMBERS, sorted(members)


def test_what_a_site_offers_is_used_by_the_kinds_of_workers() -> None:
    """What one runtime's own worker needs is that runtime's (``HomeSite``)."""
    source = "".join(file.read_text() for file in (PACKAGE / "workers").glob("*.py"))
    offered = {*vars(Site), *Site.__annotations__}
    unused = {one for one in offered if not one.startswith("_") and f"site.{one}" not in source}
    assert not unused and len(offered) > 5


@pytest.mark.thorough
def test_nobody_asks_a_worker_for_its_side() -> None:
    found = {str(file): where for file in rooms(*SIDES) if (where := sides(file.read_text()))}
    assert not found


def test_titles_come_from_members() -> None:
    found = {str(file): where for file in rooms(*BELOW) if (where := titles(file.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "member.kind.side == 'learning'",
        "one.side in ('learning', 'keeping')",
        "'x' if not one.kind.serves and one.side != 'beside' else ''",
        "match one.side:\n    case 'learning': pass",
    ],
)
def test_a_side_would_be_seen(line: str) -> None:
    assert sides(line) and not sides(line.replace(".side", ".index"))


def test_a_title_would_be_seen() -> None:
    assert titles("f'shard {number}'") and not titles("f'{kind} {number}'")
