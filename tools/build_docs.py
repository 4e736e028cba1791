"""Build the documentation as a web site: ``make docs``, or ``python tools/build_docs.py``.

The sources are the Markdown files of docs/, which GitHub shows as they are. This tool copies them
to build/site, adds the pages that are generated (commands, Python API, notebook, package) and the
documents of the root, and calls Sphinx with warnings as errors. Afterwards it follows every link
inside the built pages, anchors included.

A page with ``<!-- contents -->`` is a list of pages: each of its list items that begins with a link
is an entry of the site's navigation. ``<!-- contents: commands python -->`` adds generated pages,
which have no file in docs/.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONTENTS = re.compile(r"<!-- contents(?:: ([\w/ -]+))? -->")
ENTRY = re.compile(r"^(?:- |\| )\[[^\]]+\]\(([^)#]+?)\.md\)", re.MULTILINE)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s:]+\.(?:svg|png))\)")
# The look of an SVG in the dark: the whole rule, and what it holds.
DARK_RULE = re.compile(r"@media \(prefers-color-scheme: dark\) \{((?:[^{}]*\{[^{}]*\})*)\s*\}")
PLAIN = ".txt"  # the ending of a copied file that Sphinx would take for a page
# Documents outside docs/ that are pages of the site.
DOCUMENTS = {
    "CHANGELOG.md": "about/changelog.md",
    "SECURITY.md": "about/reporting.md",
    "CONTRIBUTING.md": "inside/contributing.md",
    "benchmarks/README.md": "results/benchmarks.md",
    "src/equipoise/README.md": "inside/package/index.md",
}


def documents() -> dict[str, str]:
    """The files outside docs/ that become pages: path in the repository to path in the site."""
    rooms = sorted((ROOT / "src/equipoise").glob("*/README.md"))
    return DOCUMENTS | {
        str(page.relative_to(ROOT)): f"inside/package/{page.parent.name}.md" for page in rooms
    }


def entries(page: str) -> list[str]:
    """The pages that a page of contents lists, without their ending; [] for any other page."""
    mark = CONTENTS.search(page)
    return [*ENTRY.findall(page), *(mark[1] or "").split()] if mark else []


def with_navigation(page: str) -> str:
    """A page of contents with a hidden toctree of its entries."""
    names = entries(page)
    return page + toctree(names) if names else page


def toctree(names: list[str]) -> str:
    """A hidden toctree."""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])


def relinked(text: str, source: str, place: str, files: set[str]) -> str:
    """A document as a page of the site: its links lead to pages, or to copies of files.

    Args:
        text: The Markdown of the document.
        source: Its path in the repository.
        place: Its path in the site.
        files: Receives the paths in the repository of the files that have to be copied.
    """
    pages = documents()

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if re.match(r"[a-z]+:", match[2]) or not target:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path == "README.md":
            goal = "index.md"
        elif path in pages:
            goal = pages[path]
        elif path.startswith("docs/"):
            goal = path.removeprefix("docs/")
        elif (ROOT / path).is_dir():
            return match[1]  # a folder has no page
        else:
            files.add(path)
            goal = f"files/{path}{PLAIN if path.endswith('.md') else ''}"
        goal = os.path.relpath(goal, os.path.dirname(place) or ".")
        return f"[{match[1]}]({goal}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def of_notebook(file: Path) -> str:
    """A notebook as a page: its cells, and what they print."""
    lines: list[str] = []
    for cell in json.loads(file.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                lines += ["```{raw} html", *"".join(data["image/svg+xml"]).splitlines()[-1:], "```"]
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                lines += ["```text", text.rstrip(), "```", ""]
    return "\n".join(lines) + "\n"


def in_both_colours(text: str, folder: Path) -> str:
    """A page whose pictures follow the site's switch between light and dark.

    An SVG with a rule for the dark becomes two files, one of each look. Of NAME-light.* and
    NAME-dark.*, the page names one and the site has both.

    Args:
        text: The Markdown of the page.
        folder: Where it stands in the staged site; new files are written beside the pictures.
    """

    def pair(match: re.Match[str]) -> str:
        file = folder / match[2]
        name = re.sub(r"-(?:light|dark)$", "", file.stem)
        drawn = file.read_text() if file.suffix == ".svg" else ""
        if rule := DARK_RULE.search(drawn):
            file.with_name(f"{name}-light.svg").write_text(drawn.replace(rule[0], ""))
            file.with_name(f"{name}-dark.svg").write_text(drawn.replace(rule[0], rule[1]))
        looks = [f"{name}-{look}{file.suffix}" for look in ("light", "dark")]
        if not all(file.with_name(look).is_file() for look in looks):
            return match[0]
        base = os.path.dirname(match[2])
        return "\n".join(
            f"![{match[1]}]({os.path.join(base, look)}){{.only-{colour}}}"
            for look, colour in zip(looks, ("light", "dark"), strict=True)
        )

    parts = FENCE.split(text)
    return "".join(part if i % 2 else IMAGE.sub(pair, part) for i, part in enumerate(parts))


def row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


Command = TyperCommand | TyperGroup


def commands(found: Command, words: tuple[str, ...]) -> Iterator[tuple[str, Command]]:
    """Every command of the command line with its full name; groups give those that they hold."""
    if not isinstance(found, TyperGroup):
        yield " ".join(words), found
        return
    for command in found.commands.values():
        assert isinstance(command, Command) and command.name
        if not command.hidden:
            yield from commands(command, (*words, command.name))


def of_command(name: str, command: Command) -> list[str]:
    """The section of one command: what it does, its usage, its arguments and options."""
    context = command.make_context(name, [], resilient_parsing=True)
    lines = [f"## {name.removeprefix('equipoise ')}", "", (command.help or "").strip(), ""]
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines += ["```text", " ".join(usage.split()), "```", ""]
    groups: dict[str, list[str]] = {}
    for option in command.get_params(context):
        if (record := option.get_help_record(context)) is None:
            continue
        argument = isinstance(option, TyperArgument)
        panel = "Arguments" if argument else getattr(option, "rich_help_panel", None) or "Options"
        groups.setdefault(panel, []).append(row(f"`{record[0]}`", record[1]))
    for panel, rows in groups.items():
        lines += [f"**{panel}**", "", "| | |", "|---|---|", *rows, ""]
    return lines


def of_commands() -> str:
    """The reference of the command line, from the parser itself."""
    from equipoise.cli import app

    lines = [
        "# Commands",
        "",
        "After this page you know every command and every option, as the parser has them. "
        "`equipoise COMMAND --help` prints the same.",
        "",
    ]
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    for name, command in commands(root, ("equipoise",)):
        lines += of_command(name, command)
    return "\n".join(lines)


def of_python() -> str:
    """The reference of the Python API: each public name, from its docstring."""
    import equipoise

    lines = [
        "# Python",
        "",
        "After this page you know every public name of `import equipoise as eq`: its parameters, "
        "what it returns and what it raises.",
        "",
    ]
    for name in equipoise.__all__:
        value = getattr(equipoise, name)
        if inspect.ismodule(value):
            lines += [f"## {name}", "", inspect.getdoc(value) or "", ""]
            for member in value.__all__:
                title = f"{name}.{member}"
                lines += [f"### {member}", "", *directive("autoclass", title, ""), ""]
        elif isinstance(value, type):
            lines += [f"## {name}", "", *directive("autoclass", name, "\n   :members:"), ""]
        elif callable(value):
            lines += [f"## {name}", "", *directive("autofunction", name, ""), ""]
    return "\n".join(lines)


def directive(kind: str, name: str, options: str) -> list[str]:
    return ["```{eval-rst}", f".. {kind}:: equipoise.{name}{options}", "```"]


def stage(place: Path) -> None:
    """Write the sources of the site into a folder that is empty or new."""
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(DOCS, place, ignore=shutil.ignore_patterns("conf.py", "static", "__pycache__"))
    files: set[str] = set()
    sources = {f"docs/{page.relative_to(DOCS)}": str(page.relative_to(DOCS)) for page in pages()}
    for source, goal in (sources | documents()).items():
        text = relinked((ROOT / source).read_text(), source, goal, files)
        target = place / goal
        text = in_both_colours(text, target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_navigation(text))
    package = place / "inside/package/index.md"
    rooms = [goal for goal in documents().values() if goal.startswith("inside/package/")]
    names = [Path(goal).stem for goal in rooms if not goal.endswith("index.md")]
    package.write_text(package.read_text() + toctree(names))
    for path in files:
        copy = place / "files" / (path + (PLAIN if path.endswith(".md") else ""))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy)
    (place / "reference/commands.md").write_text(of_commands())
    (place / "reference/python.md").write_text(of_python())
    (place / "start/notebook.md").write_text(of_notebook(DOCS / "start/notebook.ipynb"))


def pages() -> list[Path]:
    """The Markdown files of docs/."""
    return sorted(DOCS.rglob("*.md"))


class Links(HTMLParser):
    """The links and the anchors of one built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.add(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def dead_links(built: Path) -> list[str]:
    """Links inside the site that lead to no page, no file or no heading."""
    site = {page: Links(page.read_text()) for page in sorted(built.rglob("*.html"))}
    dead = []
    for page, found in site.items():
        for link in sorted(found.links):
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, anchor = link.partition("#")
            goal = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            known = goal in site and (not anchor or unquote(anchor) in site[goal].anchors)
            if not (known or (goal not in site and goal.is_file())):
                dead.append(f"{page.relative_to(built)}: {link}")
    return dead


def build(out: Path, source: Path) -> int:
    """Build the site into a folder that is new, empty or an earlier site; return the exit code."""
    if out.exists() and any(out.iterdir()):
        if not (out / "searchindex.js").exists():
            raise SystemExit(f"--out: must be a new folder or an earlier site, got {out}")
        shutil.rmtree(out)
    stage(source)
    words = ["-W", "-n", "--keep-going", "-q", "-j", "2", "-b", "html", "-c", str(DOCS)]
    command = [sys.executable, "-m", "sphinx", *words, str(source), str(out)]
    if code := subprocess.run(command, check=False).returncode:
        return code
    dead = dead_links(out.resolve())
    print("\n".join(dead) or f"{out / 'index.html'}: every link inside the site leads somewhere")
    return 1 if dead else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build/docs")
    parser.add_argument("--source", type=Path, default=ROOT / "build/site")
    told = parser.parse_args()
    sys.exit(build(told.out, told.source))


if __name__ == "__main__":
    main()
