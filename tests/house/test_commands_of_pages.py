"""The parser takes every command of the pages; every option and setting that they name exists."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from build_docs import Command
from typer.core import TyperCommand, TyperGroup

import equipoise as eq
from equipoise.api.reward_fitting import Enough
from equipoise.cli import app
from equipoise.facts import facts
from equipoise.programs import fields
from equipoise.programs.program import algorithm_class, algorithm_names
from equipoise.record.report import Report
from equipoise.rewards import terms
from equipoise.rewards.preferences.fit import Fitting
from equipoise.rewards.preferences.model import RewardNets
from equipoise.rewards.reward_model import RewardModelTerm
from equipoise.types import Frozen

ROOT = Path(__file__).parents[2]
# Pages that tell what was, and pages of results: their commands ran with the code of that day.
OF_THEIR_DAY = ("CHANGELOG.md", "docs/inside/decisions/")
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if not str(page.relative_to(ROOT)).startswith(OF_THEIR_DAY)
]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
START = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:\.venv/bin/)?equipoise(?= )")
END = re.compile(r"^(?:&&|\|\|?|&|;|>>?|<|2>|2>&1|#.*|&>)$")  # of a command, in a line of a shell
PROCESSES = {"actor", "shard"}  # "equipoise actor 3" is what ps shows of a worker
# fields of classes that pages define, and placeholders
OF_EXAMPLES = {"algorithm.bend", "KEY", "reward.bonus.cells", "reward.cells"}
# Options of npm, Ray and PufferLib, and a setting of verl.
OF_OTHERS = {"--ignore-scripts", "--node-id", "--env", "--neptune", "algorithm.adv_estimator"}
OF_OTHERS |= {"--with_pbt"}  # Sample Factory
OF_OTHERS |= {  # rl_zoo3
    *(
        "--n-trials",
        "--max-total-trials",
        "--n-jobs",
        "--sampler",
        "--pruner",
        "--n-startup-trials",
    ),
    *("--n-evaluations", "--eval-episodes", "--n-eval-envs", "--storage", "--study-name"),
    *("--optimization-log-path", "--trial-id"),
}
OF_FILES = {"onnx", "safetensors"}  # endings of files such as policy.onnx
OF_REPORTS = {
    "evaluation.mean",
    "evaluation.policies",
    "policy.lost",
    "policy.act",
    "policy.reset",
}  # keys, and an attribute
ROOMS = "algorithm|evaluation|optimizer|placement|policy|replay|rewards|schedule|source"
ROOT_COMMAND = typer.main.get_group(app)


def words_of(line: str) -> list[str] | None:
    """The words after ``equipoise`` of one line of a shell, or None if it is another command."""
    if (start := START.match(line)) is None:
        return None
    lexer = shlex.shlex(line[start.end() :], posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = []
    try:
        said = list(lexer)
    except ValueError:  # a quotation goes on in the next line
        said = line[start.end() :].split("'", maxsplit=1)[0].split()
    for word in said:
        if END.match(word):
            break
        if word != "...":
            words.append(word)
    return words


def commands(text: str) -> list[list[str]]:
    """The commands of a page: lines of its blocks of shell, and code that begins with the name."""
    lines = [
        line
        for _, language, block in BLOCK.findall(text)
        if language in ("", "sh", "bash", "shell", "console", "text")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    prose = BLOCK.sub("", text)
    lines += [code for code in re.findall(r"`([^`\n]+)`", prose) if code.startswith("equipoise ")]
    found = [words for line in lines if (words := words_of(line))]
    # "equipoise train: ..." begins a message, and "equipoise 0.1.0" is printed; --help prints
    return [
        words
        for words in found
        if re.fullmatch(r"[a-z][a-z-]*", words[0])
        and words[0] not in PROCESSES
        and not {"--help", "-h"} & {*words}
    ]


def settings_of(words: list[str]) -> list[str]:
    """The keys that a command sets."""
    return [
        value.partition("=")[0] for option, value in itertools.pairwise(words) if option == "--set"
    ]


@functools.cache
def known_settings() -> frozenset[str]:
    """Every key that some program has."""
    found = {f"policy.{name}" for name in facts(Frozen)}
    for room, cls in fields.rooms(replay=True):
        found |= {room + name for name in facts(cls)}
    for name in algorithm_names():
        found |= {f"algorithm.{field}" for field in facts(algorithm_class(name))}
    for cls in (RewardNets, Fitting, Enough):  # of a reward model of clips
        found |= {f"algorithm.{name}" for name in facts(cls)}
    found |= {f"reward.reward_model.{name}" for name in facts(RewardModelTerm)}
    for name, cls in terms.term_classes("+".join(terms.BUILT_IN)).items():
        found |= {
            f"reward.{room}{key}" for key in terms.settings_of(cls) for room in ("", f"{name}.")
        }
    return frozenset({*found, *fields.shorts()})


def unknown(key: str) -> bool:
    """Is this the key of no setting? Arguments of an env and names of policies are free."""
    if key.startswith(("env.", "route.", "optimizer.rates.")):
        return False
    if key.startswith("policies."):
        key = key.split(".", 2)[2]
        key = key if "." in key else f"policy.{key}"
    if "." in key:
        return key not in known_settings()
    return all(name.rpartition(".")[2] != key for name in known_settings())


def parsed(words: list[str]) -> str:
    """Why the parser does not take a command, or "" if it does. Nothing is run."""
    context = ROOT_COMMAND.make_context("equipoise", list(words))
    group, rest = ROOT_COMMAND, list(words)
    while True:
        try:
            name, found, rest = group.resolve_command(context, rest)
            assert found is not None
            context = found.make_context(name, list(rest), parent=context)
            rest = [*context._protected_args, *context.args]  # 'runs' adds 'list'
        except Exception as error:
            if isinstance(error, typer.Exit) and not error.exit_code:
                return ""  # a help
            if type(error).__name__ in ("MissingParameter", "BadOptionUsage"):
                return ""  # prose names a command, or an option, without its values
            return f"{type(error).__name__}: {error}"
        if not isinstance(found, TyperGroup):
            return ""
        group = found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_parser_takes_every_command(page: Path) -> None:
    wrong = {" ".join(words): why for words in commands(page.read_text()) if (why := parsed(words))}
    assert wrong == {}


@functools.cache
def known_options() -> frozenset[str]:
    """Every option of every command, and of the scripts that pages call."""
    scripts = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("clients/*.py")]
    scripts += [*ROOT.glob("tools/*.py"), *ROOT.glob("tests/outside/**/*.py")]
    scripts.append(ROOT / "src/equipoise/edge.py")
    found = {
        option
        for script in scripts
        for option in re.findall(r"\"(--[a-z][\w-]*)\"", script.read_text())
    }
    waiting: list[TyperCommand | TyperGroup] = [ROOT_COMMAND]
    while waiting:
        command = waiting.pop()
        if isinstance(command, TyperGroup):
            waiting += [one for one in command.commands.values() if isinstance(one, Command)]
        context = command.make_context("x", [], resilient_parsing=True)
        for option in command.get_params(context):
            found |= {*option.opts, *option.secondary_opts}
    return frozenset(found)


def named_options(text: str) -> set[str]:
    """The options that a page names: code of prose that begins with two dashes."""
    return set(re.findall(r"`(--[a-z][\w-]*)", BLOCK.sub("", text)))


def named_settings(text: str) -> set[str]:
    """The keys that a page names: in its commands, and as code of prose."""
    prose = re.findall(rf"`((?:{ROOMS})\.[a-z_]+)[`=]", BLOCK.sub("", text))
    return {*prose, *(key for words in commands(text) for key in settings_of(words))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_and_setting_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    assert named_options(text) - known_options() - OF_OTHERS == set()
    wrong = (
        {key for key in named_settings(text) if unknown(key)} - OF_EXAMPLES - OF_OTHERS - OF_REPORTS
    )
    assert {key for key in wrong if key.rpartition(".")[2] not in OF_FILES} == set()


def test_what_is_wrong_is_found() -> None:
    page = (
        "Take `--no-such-option` and `placement.actng`, or `equipoise tran CartPole-v1`.\n"
        "```\n$ equipoise train CartPole-v1 \\\n  --lerners 2 # two\n"
        "equipoise resume runs/a --set algorithm.gama=1 && ls\n"
        "equipoise train: an error\n```\n```python\nequipoise = 1\n```\n"
    )
    assert [parsed(words) != "" for words in commands(page)] == [True, False, True]
    assert named_options(page) - known_options() == {"--no-such-option"}
    wrong = {key for key in named_settings(page) if unknown(key)}
    assert wrong == {"placement.actng", "algorithm.gama"}


MIGRATIONS = sorted((ROOT / "docs/start/coming-from").glob("*.md"))
# Values of settings, and the place of an env's numbers.
OF_VALUES = {"none", "auto", "true", "false", "info", "lstm", "nature", "resnet", "mlp", "ref"}
OF_VALUES |= {"route", "token_mult_prob_error"}  # keys with names of the user, and a metric


def names_of_rows(text: str) -> set[str]:
    """The names under "here" in the tables of a migration page, without those of the other side."""
    ours, theirs, here = set[str](), set[str](), -1
    for line in text.splitlines():
        if not line.startswith("| "):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)][1:-1]
        if "here" in cells:
            here = cells.index("here")
        elif here > 0:
            theirs |= set(re.findall(r"[\w.]+", " ".join(cells[:here])))
            ours |= set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)[`=]", cells[here]))
    return ours - theirs


@pytest.mark.parametrize("page", MIGRATIONS, ids=lambda page: page.stem)
def test_the_names_of_a_migration_table_exist(page: Path) -> None:
    names = names_of_rows(page.read_text()) - OF_VALUES - {*ROOT_COMMAND.commands}
    names -= {f"report.{field.name}" for field in dataclasses.fields(Report)}
    names -= {f"study.{name}" for name in dir(eq.Tuned)}
    names -= {*inspect.signature(eq.train).parameters, *inspect.signature(eq.tune).parameters}
    assert {name for name in names if unknown(name)} - {*algorithm_names()} == set()


def test_the_names_of_our_side_are_taken() -> None:
    text = "| X | here |\n|---|---|\n| `a`, `b_c` | `gama`, `algorithm.gamma=1`, twice `b_c` |"
    assert names_of_rows(text) == {"gama", "algorithm.gamma"}


# What a page may not call absent while an option of it is there.
THERE = {
    "several machines": "--on",
    "central inference": "--inference",
    "several learners": "--learners",
    "several policies": "--policy",
    "callbacks": "--callback",
    "weights & biases": "--report-to",
}
ABSENT = re.compile(r"Not here(?: yet)?[:,] (.*?)(?:\.\s|\.$|\n\n)", re.DOTALL)


def called_absent_but_there(text: str) -> set[str]:
    """What a page lists as "not here" although it is: algorithms, and features with an option."""
    lists = [" ".join(found.lower().split()) for found in ABSENT.findall(text + "\n\n")]
    names = {name.replace("_", "-") for name in algorithm_names()}
    words = {word for found in lists for word in re.findall(r"[a-z0-9-]+", found)}
    phrases = {phrase for phrase in THERE if any(phrase in found for found in lists)}
    assert {THERE[phrase] for phrase in phrases} <= known_options()
    return phrases | (words & names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_calls_absent_is_absent(page: Path) -> None:
    assert called_absent_but_there(page.read_text()) == set()


def test_a_wrong_list_of_what_is_absent_is_found() -> None:
    text = "PPO is here. Not here: `tune`, several\nmachines, CQL, TD3 (soon). R2D2 is.\n"
    assert called_absent_but_there(text) == {"several machines", "td3"}


def test_what_migration_pages_say_of_the_learning_rate() -> None:
    kinds = {name: algorithm_class(name).default_optimizer.schedule for name in algorithm_names()}
    assert {kinds[name] for name in ("ppo", "a2c", "dqn", "sac")} == {"constant"}
    assert {kinds[name] for name in ("impala", "appo")} == {"linear"}
    said = {page.stem: page.read_text() for page in MIGRATIONS}
    assert "constant for PPO, A2C, DQN and SAC; for IMPALA and APPO it falls to 0" in said["rllib"]
    assert "constant in both for PPO, A2C, DQN and SAC" in said["stable-baselines3"]
