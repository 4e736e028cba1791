"""Every command, setting and option that a page names exists.

Commands of ``equipoise`` in code blocks and in backticks are read by the real parser, without being
run; a key of ``--set`` and the right column of a migration table are looked up in the fields.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup

from equipoise import algorithms
from equipoise.cli import app
from equipoise.facts import facts
from equipoise.types import (
    EvaluationSettings,
    Optimizer,
    Placement,
    Policy,
    ReplaySettings,
    Rewards,
    Schedule,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    page
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]
    if not {"decisions", "results"} & {*page.relative_to(ROOT).parts}
)
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```|^((?:    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(equipoise [^`\n]+)`")
PROCESSES = {"actor", "learner", "shard"}  # names in ps
COMMAND = typer.main.get_command(app)


def typed(text: str) -> Iterator[str]:
    """The commands of a page: lines of its blocks that begin with one, and those in backticks."""
    for fence, indented in FENCE.findall(text):
        block = re.sub(r"\\\n\s*", " ", fence or indented)
        for line in block.splitlines():
            line = re.sub(r"^\s*(\$ )?(\.venv/bin/)?", "", line)
            if line.startswith("equipoise "):
                yield line
    yield from INLINE.findall(re.sub(FENCE, "", text))


def words_of(line: str) -> list[str]:
    """The words of a command, without a comment, a pipe, or an explanation in the next column."""
    line = re.split(r"\s#|\s\||\s&&|\s>|   +", line)[0]
    line = line.replace("[", "").replace("]", "")
    return shlex.split(line)[1:]


def options_of(command: TyperCommand | TyperGroup) -> set[str]:
    return {name for option in command.params for name in [*option.opts, *option.secondary_opts]}


def unknown(line: str) -> str | None:
    """The first word of a command that the command line does not have, or None."""
    try:
        words = words_of(line)
    except ValueError:  # half of a quotation in prose
        return None
    command = COMMAND
    while words and isinstance(command, TyperGroup) and not words[0].startswith("-"):
        name = words.pop(0)
        if not re.fullmatch(r"[a-z][a-z-]*", name) or name in PROCESSES:  # or COMMAND
            return None
        found = command.commands.get(name)
        if found is None:
            return name
        command = found
    assert isinstance(command, TyperCommand | TyperGroup)
    known = options_of(command) | {"-h", "--help", "--version"}
    for word in words:
        if word == "...":
            return None
        name = word.split("=")[0].strip(",.")
        if name.startswith("--") and name not in known:
            return name
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_of_a_page_exists(page: Path) -> None:
    wrong = {line: word for line in typed(page.read_text()) if (word := unknown(line))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("equipoise trian CartPole-v1", "trian"),
        ("equipoise train CartPole-v1 --publish-every 2", "--publish-every"),
        ("equipoise registry put a b", "put"),
        ("equipoise train CartPole-v1 --steps 10k   # --not-read", None),
        ("equipoise COMMAND --help", None),
    ],
)
def test_a_wrong_command_is_found(line: str, word: str | None) -> None:
    assert unknown(line) == word


# the parts of a run whose settings are fields of a class, and the classes
PARTS = {
    "algorithm": [getattr(algorithms, name) for name in algorithms.__all__],
    "optimizer": [Optimizer],
    "rewards": [Rewards],
    "replay": [ReplaySettings],
    "placement": [Placement],
    "policy": [Policy],
    "schedule": [Schedule],
    "evaluation": [EvaluationSettings],
}
KEYS = re.compile(rf"(?<![\w./-])({'|'.join(PARTS)})\.([a-z_0-9]+)\b(?!\.(?:py|md)|[(/])")
FILES = {"json", "py", "md", "onnx", "svg", "toml", "safetensors", "artifact"}
# keys of records, of verl, and of an algorithm that a tutorial writes
OTHER = {
    "evaluation.mean",
    "evaluation.policies",
    "policy.lost",
    "algorithm.adv_estimator",
    "algorithm.bend",
    "algorithm.sizes",
}


def unknown_settings(text: str) -> set[str]:
    """The keys in backticks and in blocks that no field has."""
    code = "\n".join([*re.findall(r"`([^`\n]+)`", text), *typed(text)])
    known = {part: {name for kind in PARTS[part] for name in facts(kind)} for part in PARTS}
    return {
        f"{part}.{name}"
        for part, name in KEYS.findall(code)
        if name not in known[part] and name not in FILES
    } - OTHER


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_setting_of_a_page_exists(page: Path) -> None:
    assert unknown_settings(page.read_text()) == set()


def test_a_setting_that_is_not_there_is_found() -> None:
    text = "`algorithm.part_tokens` `algorithm.gamma` `equipoise train X --set policy.publish=2`"
    assert unknown_settings(text) == {"algorithm.part_tokens", "policy.publish"}


MIGRATION = sorted((DOCS / "start" / "coming-from").glob("*.md"))


def default_schedules() -> dict[str, str]:
    kinds = [getattr(algorithms, name) for name in algorithms.__all__]
    return {kind.__name__: kind.default_optimizer.schedule for kind in kinds}


def test_what_the_migration_pages_say_of_the_learning_rate() -> None:
    schedules = default_schedules()
    assert {schedules[name] for name in ("PPO", "A2C", "DQN", "SAC", "TD3")} == {"constant"}
    assert {schedules[name] for name in ("IMPALA", "APPO")} == {"linear"}
    for page in MIGRATION:
        assert "unless told otherwise" not in page.read_text(), page.name


@pytest.mark.parametrize(
    ("page", "no"),
    [
        ("stable-baselines3.md", ("trpo", "ars")),
        ("pufferlib.md", ()),
        ("rllib.md", ("dreamer", "cql", "marwil", "iql")),
    ],
)
def test_an_algorithm_that_is_not_here_is_not_here(page: str, no: tuple[str, ...]) -> None:
    text = (DOCS / "start" / "coming-from" / page).read_text()
    known = {name.lower() for name in algorithms.__all__}
    not_here = " ".join(re.findall(r"Not here:(.*?)(?:\n\n|\Z)", text, re.DOTALL)).lower()
    assert not {*re.findall(r"\w+", not_here)} & known - {"bc"}
    for name in no:
        assert name not in known


def test_the_tables_of_what_is_not_here_name_no_option_that_is() -> None:
    """A page that denies several machines or a search command is wrong once there is one."""
    assert "tune" not in COMMAND_NAMES and "sweep" not in COMMAND_NAMES
    for page in MIGRATION:
        text = page.read_text()
        for denied in re.findall(r"Not here:(.*?)(?:\n\n|\Z)", text, re.DOTALL):
            assert "machines" not in denied, f"{page.name}: --on ray"


COMMAND_NAMES = set(COMMAND.commands) if isinstance(COMMAND, TyperGroup) else set()
