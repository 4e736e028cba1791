"""An error of the command line names its topic, and each topic has a page with its messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.console.topics import PACKAGE, topic_of, topic_of_module, topics, with_topic
from equipoise.envs.making import resolve

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import messages  # noqa: E402


@pytest.mark.thorough
def test_the_page_of_messages_is_current() -> None:
    assert messages.page() == messages.PAGE.read_text(), "run: python tools/messages.py"


@pytest.mark.thorough
def test_each_module_that_raises_has_a_topic() -> None:
    found, without = messages.by_topic()
    assert not without, "name these in console/topics.toml"
    assert sum(map(len, found.values())) > 900


@pytest.mark.parametrize("name", topics())
def test_a_topic_names_modules_and_a_page_that_exist(name: str) -> None:
    topic = topics()[name]
    assert (ROOT / "docs" / topic.page).is_file()
    for module in topic.modules:
        assert (PACKAGE / module).is_dir() or (PACKAGE / f"{module}.py").is_file(), module


def test_the_longest_match_decides() -> None:
    names = ("envs/making", "envs/spaces", "envs/families/turns", "envs/families/atari", "envsx")
    found = [topic_of_module(name) for name in names]
    expected = ["env", "spaces", "agents", "atari", None]
    assert [topic and topic.name for topic in found] == expected


def test_the_topic_is_that_of_the_innermost_module() -> None:
    with pytest.raises(ValueError) as caught:
        resolve("NoSuchEnv-v7")
    assert with_topic(caught.value).endswith(" [equipoise help env]")
    assert topic_of(ValueError("raised nowhere")) is None
    assert with_topic(ValueError("")) == "ValueError"
    with pytest.raises(ImportError) as missing:
        import no_such_package_at_all  # type: ignore[import-not-found]  # noqa: F401
    assert with_topic(missing.value).endswith(" [equipoise help extra]")


@pytest.mark.thorough
def test_the_command_line_names_the_topic() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "evaluate", "no/such/run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.rstrip().endswith("[equipoise help runs]")


def test_help_prints_a_topic_and_no_topic_has_the_name_of_a_command() -> None:
    done = CliRunner().invoke(app, ["help", "spaces"])
    assert done.exit_code == 0 and str(topics()["spaces"]) in done.output
    commands = {
        one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands
    }
    assert not topics().keys() & (commands | {one.name for one in app.registered_groups})


@pytest.mark.thorough
def test_the_table_of_the_algorithms_fields_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/algorithm_fields.py", "--check"],
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, "run: python tools/algorithm_fields.py"
