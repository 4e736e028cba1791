"""The pages for people from other libraries: every name of their right columns is one of ours, each
row agrees with the hints of unknown names, and what they call absent or refused is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import shlex
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import Player
from equipoise.cli import app
from equipoise.facts import facts
from equipoise.nets.vision import KINDS
from equipoise.programs import fields
from equipoise.programs.peer_names import keys_of_peer
from equipoise.programs.program import algorithm_class, algorithm_names
from equipoise.record.report import Report
from equipoise.studies.strategies import STRATEGIES
from tests.house.test_commands_of_pages import ROOT_COMMAND, known_options, parsed, unknown

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/start/coming-from").glob("[!i]*.md"))
SOURCE = "".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
NAME = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")


@dataclass(frozen=True)
class Row:
    theirs: str  # the cells of the other libraries
    here: str
    note: str


def rows(text: str) -> Iterator[Row]:
    """The rows of a page's tables that have a column "here"."""
    here = -1
    for line in text.splitlines():
        if not line.startswith("|"):
            here = -1
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)][1:-1]
        if "here" in cells:
            here = cells.index("here")
        elif here > 0 and not set(line) <= set("|-: "):
            yield Row(" ".join(cells[:here]), cells[here], " ".join(cells[here + 1 :]))


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# ------------------------------------------------------------------------ what a name here may be

# A value that stands for one of the reader's, and a place of an env's own numbers.
PLACEHOLDERS = {"module:Class", "module:callable", "envpool:ID", "info"}
FILES = {"checkpoints/best", "events.*"}  # of a run's directory
LOOP = {"for report in run:", "break"}
OF_TEXT = {"ref", "token_mult_prob_error"}  # an output of a network, and a metric
OUR_WORDS = {"streams"}  # the envs of all actors, in a formula


@functools.cache
def values() -> frozenset[str]:
    """Every word that some setting takes as its value."""
    known = [cls for _, cls in fields.rooms(replay=True)]
    known += [algorithm_class(name) for name in algorithm_names()]
    found = {"none", "true", "false"}
    for cls in known:
        for fact in facts(cls).values():
            found |= {fact.default} if isinstance(fact.default, str) else set()
            waiting = [fact.kind]
            while waiting:
                kind = waiting.pop()
                if typing.get_origin(kind) is typing.Literal:
                    found |= {str(value) for value in typing.get_args(kind)}
                waiting += [one for one in typing.get_args(kind) if not isinstance(one, str)]
    return frozenset(found)


def takes(key: str, value: str) -> bool:
    """Does some program of ours take ``key=value``?"""
    if "." not in key and (of := [one for one in fields_of_algorithms() if one == key]):
        key = f"algorithm.{of[0]}"
    if key in inspect.signature(eq.start).parameters:  # an argument of Python, or a program's
        return True
    for name in candidates(key):
        env = "Pendulum-v1" if name in ("sac", "td3", "tqc", "crossq") else "CartPole-v1"
        try:
            eq.program(env, name, settings=[f"{key}={value}"], recipe=False)
        except ValueError:
            continue
        return True
    return False


def fields_of_algorithms() -> set[str]:
    return set().union(*(facts(algorithm_class(name)) for name in algorithm_names()))


def candidates(key: str) -> list[str]:
    """The algorithms that may have a setting, those of control first."""
    room, _, name = key.rpartition(".")
    if room != "algorithm":
        return ["ppo", "dqn"]
    return [one for one in algorithm_names() if name in facts(algorithm_class(one))]


def called(code: str) -> str:
    """What is wrong with ``eq.name(arguments)``, or ""."""
    found = re.fullmatch(r"eq\.(\w+)\((.*)\)", code)
    if found is None:
        return "not a call"
    if found[1] not in eq.__all__:
        return f"equipoise has no {found[1]}"
    function = getattr(eq, found[1])
    known = inspect.signature(function).parameters
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    given = re.findall(r"(\w+)=", found[2])
    wrong = [name for name in given if name not in known and not (free and not unknown(name))]
    wrong = [name for name in wrong if name not in options_of_python()]
    return f"{found[1]} has no {wrong}" if wrong else ""


@functools.cache
def options_of_python() -> frozenset[str]:
    """The keyword arguments of eq.train, eq.start and eq.program, as a type checker sees them."""
    from equipoise.api.options import StartOptions

    parameters = [inspect.signature(one).parameters for one in (eq.train, eq.tune)]
    return frozenset(StartOptions.__annotations__).union(*parameters)


def ours(code: str) -> str:
    """Why a code of a right column is nothing of ours, or ""."""
    code = code.removeprefix("policy = ")
    if code in PLACEHOLDERS | LOOP | OUR_WORDS:
        return ""
    if code in FILES:
        return "" if f'"{code.strip(".*").rpartition("/")[2]}' in SOURCE else "no such file"
    if code in {*algorithm_names(), *STRATEGIES} or code in ROOT_COMMAND.commands:
        return ""
    if re.fullmatch(r"[a-z_]+/[a-z_]+", code):  # a metric
        head, _, tail = code.partition("/")
        some = f"{head}/{{" in SOURCE and re.search(rf"\b{tail.removesuffix('_mean')}\b", SOURCE)
        return "" if f'"{code}"' in SOURCE or some else "no such metric"
    if code in OF_TEXT:
        return "" if f'"{code}"' in SOURCE else "no such metric"
    if re.fullmatch(r"(\w+=\w+)( \w+=\w+)+", code):
        return "; ".join(filter(None, map(ours, code.split())))
    if code.startswith("equipoise "):
        return parsed(shlex.split(code)[1:])
    if code.startswith("--"):
        words = shlex.split(code)
        if words[0] not in known_options():
            return "no such option"
        return min((parsed([*start, *words]) for start in STARTS), key=len)
    if code.startswith("eq."):
        return called(code)
    if part := re.fullmatch(r"(policy|report|result|study)\.(\w+)(?:\(.*\))?", code):
        kinds = {"policy": Player, "report": Report, "result": eq.Result, "study": eq.Tuned}
        if hasattr(kinds[part[1]], part[2]) or part[2] in attributes(kinds[part[1]]):
            return ""
        return "" if not unknown(code) else f"{part[1]} has no {part[2]}"
    words = code.split()
    if words[0] in ROOT_COMMAND.commands and len(words) > 1:
        return parsed(words)
    if set_ := re.fullmatch(r"([a-z_.]+)=(.+)", code):
        key, value = set_[1], set_[2]
        if key in options_of_python():
            return ""
        if unknown(key):
            return "no such setting"
        if value.rstrip(",") in {*PLACEHOLDERS, "KEY", "N"} or value == "...":
            return ""
        return "" if takes(key, value) else f"{key} does not take {value}"
    if NAME.fullmatch(code):
        name = code
        if name in values() or name in algorithm_names() or name in options_of_python():
            return ""
        if not unknown(name) or name in KINDS:
            return ""
        return "no such setting"
    if re.fullmatch(r"[A-Z]\w+", code):
        return (
            ""
            if hasattr(gymnasium.spaces, code) or re.search(rf"class {code}\b", SOURCE)
            else "no such class"
        )
    if re.fullmatch(r"[a-z_]+(?: ?[*+/] ?[a-z_() *]+)+", code):  # arithmetic of names
        return "; ".join(filter(None, map(ours, set(re.findall(r"[a-z_]{2,}", code)))))
    return "not understood"


TUNE = ("tune", "start", "CartPole-v1")
STARTS = (["train", "CartPole-v1"], ["evaluate", "runs/a"], ["resume", "runs/a"], [*TUNE])


def attributes(cls: type) -> set[str]:
    return {one.name for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()


def words_of(cell: str) -> set[str]:
    return set(re.findall(r"[\w.]+", " ".join(codes(cell))))


def wrong_names(text: str) -> dict[str, str]:
    """The codes of the right columns that are nothing of ours, with the reason."""
    all_rows = list(rows(text))
    theirs = {word.lstrip("-") for row in all_rows for word in words_of(row.theirs)}
    wrong = {}
    for row in all_rows:
        for code in codes(row.here):
            if (why := ours(code)) and not set(re.findall(r"[\w.]+", code)) <= theirs:
                wrong[code] = why
        for code in codes(row.note):
            known = {word.rpartition(".")[2] for word in theirs} | theirs
            if not set(re.findall(r"[a-zA-Z_.]+", code)) <= known and (why := ours(code)):
                wrong[code] = why
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_a_right_column_is_ours(page: Path) -> None:
    assert wrong_names(page.read_text()) == {}


def test_a_false_name_is_found() -> None:
    text = (
        "| X | here | |\n|---|---|---|\n| `a` | `algorithm.gama` | |\n| `b` | `--lr 3` | |\n"
        "| `c` | `eq.start(evn=1)`, `eq.strat(a=1)` | or `entropi` |\n| `d` | `report.meen` | |\n"
        "| `e` | `optimizer.schedule=sometimes` | |\n| `f` | `equipoise evaluat DIR` | |\n"
        "| `g`, `zeta` | `algorithm.gamma=0.9`, twice `zeta` | `cosine` |\n| `h` | `Frozn` | |\n"
    )
    assert set(wrong_names(text)) == {
        "algorithm.gama",
        "--lr 3",
        "eq.start(evn=1)",
        "eq.strat(a=1)",
        "entropi",
        "report.meen",
        "optimizer.schedule=sometimes",
        "equipoise evaluat DIR",
        "Frozn",
    }


# ----------------------------------------------------------------- rows and hints say the same

# Names that mean something else in their row than in most libraries.
ELSEWHERE = {
    ("pufferlib", "batch_size"),  # of the vector of envs
    ("rllib", "alpha"),  # of a replay; without one it is SAC's
    ("stable-baselines3", "n_envs"),  # in a product
    ("trl", "max_response_length"),  # the option of source.completion_tokens
    ("trl", "response_length"),  # metrics of verl
    ("trl", "grad_norm"),
}


def disagreeing(page: str, text: str) -> set[tuple[str, str]]:
    """Names of peers for which a hint after an unknown name has no setting of their row."""
    found = set()
    for row in rows(text):
        said = (row.here + row.note).replace("-", "_")
        for name in {word.rpartition(".")[2] for word in words_of(row.theirs)}:
            keys = keys_of_peer(name)
            if keys and not any(key.rpartition(".")[2] in said for key in keys):
                found.add((page, name))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_row_and_the_hint_of_an_unknown_name_agree(page: Path) -> None:
    text = page.read_text()
    assert disagreeing(page.stem, text) - ELSEWHERE == set()


def test_a_row_against_a_hint_is_found() -> None:
    text = "| X | here |\n|---|---|\n| `clip_range` | `algorithm.gamma` |\n"
    assert disagreeing("x", text) == {("x", "clip_range")}


def of_wrong_algorithms(text: str) -> set[str]:
    """Settings in rows whose note begins "of `dqn`, `sac`", which one of these has not."""
    found = set()
    for row in rows(text):
        note = row.note.partition(";")[0].strip()
        names = [name for name in codes(note) if name in algorithm_names()]
        if not note.startswith("of `") or not names:
            continue
        keys = re.findall(r"`algorithm\.(\w+)", row.here)
        found |= {
            f"{name}: {key}"
            for name in names
            for key in keys
            if key not in facts(algorithm_class(name))
        }
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_algorithm_has_the_settings_of_its_rows(page: Path) -> None:
    assert of_wrong_algorithms(page.read_text()) == set()


def test_a_setting_of_another_algorithm_is_found() -> None:
    text = "| X | here | |\n|---|---|---|\n| `a` | `algorithm.double` | of `dqn`, `bc`; slow |\n"
    assert of_wrong_algorithms(text) == {"bc: double"}


# ------------------------------------------------------------------------ what is not here


def program(algorithm: str = "ppo", *settings: str, env: str = "CartPole-v1") -> Callable[[], str]:
    """The error of a program with these settings."""

    def attempt() -> str:
        try:
            eq.program(env, algorithm, settings=list(settings), recipe=False)
        except ValueError as error:
            return str(error)
        return "accepted"

    return attempt


def policies(*settings: str) -> Callable[[], str]:
    def attempt() -> str:
        try:
            eq.program(
                "pettingzoo.mpe:simple_spread_v3",
                policies={"a": "ppo", "b": "ppo"},
                settings=list(settings),
            )
        except ValueError as error:
            return str(error)
        return "accepted"

    return attempt


def command(*words: str) -> Callable[[], str]:
    """The error of the parser."""
    return lambda: parsed(list(words)) or "accepted"


def tuned(*words: str) -> Callable[[], str]:
    """The error of a study of no run."""

    def attempt() -> str:
        result = CliRunner().invoke(app, [*TUNE, *words])
        return " ".join(result.stderr.split())

    return attempt


def no_field(*parts: str) -> Callable[[], str]:
    """The settings of any program with one of these parts in their names, or "none"."""

    def attempt() -> str:
        known = fields_of_algorithms() | {
            name for _, cls in fields.rooms(replay=True) for name in facts(cls)
        }
        return ", ".join(sorted(key for key in known if any(x in key for x in parts))) or "none"

    return attempt


def no_module(name: str) -> Callable[[], str]:
    """The modules with this name; "none" if there are none."""

    def attempt() -> str:
        files = [str(file.relative_to(ROOT)) for file in (ROOT / "src").rglob(f"*{name}*")]
        return ", ".join(files) or "none"

    return attempt


def methods(cls: type) -> Callable[[], str]:
    return lambda: ", ".join(name for name in vars(cls) if not name.startswith("_"))


def unknown_algorithm(name: str) -> tuple[Callable[[], str], str]:
    return program(name), f"unknown algorithm '{name}'"


# page -> (a phrase of it, how it is tried, what comes)
ABSENT: dict[str, list[tuple[str, Callable[[], str], str]]] = {
    "pufferlib": [
        ("not here: C envs of PufferLib", no_module("puffer"), "none"),
        ("no Muon", program("ppo", "optimizer.name=muon"), "expected one of 'adam', 'adamw'"),
        ("not here: PPO learns from every row", program("ppo", "replay.alpha=0.8"), "with a repl"),
        ("no Neptune", command("train", "CartPole-v1", "--neptune"), "No such option"),
        ("no Neptune", no_module("neptune"), "none"),
    ],
    "ray-tune": [
        ("no budget in seconds", command(*TUNE, "--time-budget-s", "3"), "No such option"),
        ("no callback of trials", command(*TUNE, "--callback", "a:b"), "No such option"),
    ],
    "rl-zoo": [
        ("no database", command(*TUNE, "--storage", "a.db"), "No such option"),
        ("no space is built in", tuned("--trials", "2"), "must have a space of at least one"),
    ],
    "rllib": [
        ("a function in a module, no registry", no_module("register_env"), "none"),
        ("| `vf_clip_param` | none |", no_field("vf_clip"), "none"),
        ("none in `ppo`; `algorithm.kl`", program("ppo", "algorithm.kl=1"), "unknown setting"),
        ("a fixed weight, no target", program("appo", "algorithm.kl=1"), "accepted"),
        ("a fixed weight, no target", program("appo", "algorithm.kl_target=1"), "unknown setting"),
        ("Not here: CQL", *unknown_algorithm("cql")),
        ("IQL", *unknown_algorithm("iql")),
        ("MARWIL", *unknown_algorithm("marwil")),
        ("DreamerV3", *unknown_algorithm("dreamerv3")),
        ("connectors", no_field("connector"), "none"),
        ("different numbers of steps", policies("policies.a.unroll=8"), "b.unroll: expected 8"),
        ("different numbers of steps", policies("policies.a.batch=8"), "b.batch: expected 8"),
        ("critics that see all agents", no_field("central_critic", "all_agents"), "none"),
        ("`appo` has the first", program("appo", "algorithm.clip_rho=1"), "accepted"),
        ("`appo` has the first", program("appo", "algorithm.clip_pg_rho=1"), "unknown setting"),
        ("`use_lstm=True, lstm_cell_size=256`", program("ppo", "algorithm.core=lstm"), "accepted"),
    ],
    "sample-factory": [
        ("a function in a module, no registry", no_module("register_env"), "none"),
        ("schedules by KL: none", program("ppo", "optimizer.schedule=kl"), "expected one of"),
        ("none in `ppo` and `impala`", program("ppo", "algorithm.kl=1"), "unknown setting"),
        ("none in `ppo` and `impala`", program("impala", "algorithm.kl=1"), "unknown setting"),
        ("none in `ppo` and `impala`", program("appo", "algorithm.kl=1"), "accepted"),
    ],
    "stable-baselines3": [
        ("not of `a2c`", program("a2c", "algorithm.normalize_advantage=true"), "unknown setting"),
        ("`qr_dqn` has the first", program("qr_dqn", "algorithm.quantiles=8"), "accepted"),
        ("`qr_dqn` has the first", program("qr_dqn", "algorithm.drop=1"), "unknown setting"),
        ("`crossq` has the first", program("crossq", "algorithm.delay=2"), "accepted"),
        ("`crossq` has the first", program("crossq", "algorithm.noise_clip=1"), "unknown setting"),
        ("rewards.normalize`, of the actor-critics", program("dqn", "rewards.normalize=true"), ""),
        ("Not here: a callback during a rollout", methods(eq.Callback), "on_report, on_evaluation"),
        ("DDPG", *unknown_algorithm("ddpg")),
        ("ARS", *unknown_algorithm("ars")),
        ("TRPO", *unknown_algorithm("trpo")),
    ],
    "trl": [
        ("ORPO and CPO are not here, nor", program("orpo", env="sort"), "unknown algorithm 'orpo'"),
        ("ORPO and CPO are not here, nor", program("cpo", env="sort"), "unknown algorithm 'cpo'"),
        ("nor are quantised", program("grpo", "load_in_4bit=1", env="sort"), "never quantised"),
        ("`--lora RANK`", program("grpo", "algorithm.lora_rank=4", env="sort"), "--lora RANK"),
        ("without dropout", program("grpo", "lora_dropout=0.1", env="sort"), "without dropout"),
    ],
}
# Words that begin a claim of absence. Each one of a page has to be part of a phrase above.
CLAIM = re.compile(r"\b(?:[Nn]ot here|none (?:in|\|)|no Muon|no Neptune|no registry)|: none")


@pytest.mark.parametrize(
    ("page", "phrase", "attempt", "said"),
    [
        pytest.param(page, *one, id=f"{page}-{number}")
        for page, them in ABSENT.items()
        for number, one in enumerate(them)
    ],
)
@pytest.mark.few(99)
def test_what_is_called_absent_is_refused(
    page: str, phrase: str, attempt: Callable[[], str], said: str
) -> None:
    text = (ROOT / f"docs/start/coming-from/{page}.md").read_text()
    assert phrase in text or phrase in " ".join(text.split())
    assert said in attempt() and (said or attempt() != "accepted")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_claim_of_absence_is_tried(page: Path) -> None:
    text = " ".join(page.read_text().split())
    phrases = [" ".join(phrase.split()) for phrase, _, _ in ABSENT[page.stem]]
    spans = [found.span() for phrase in phrases for found in re.finditer(re.escape(phrase), text)]
    untried = [
        text[claim.start() - 30 : claim.end() + 30]
        for claim in CLAIM.finditer(text)
        if not any(low <= claim.start() < high for low, high in spans)
    ]
    assert untried == []


def test_the_list_of_algorithms_is_whole() -> None:
    text = " ".join((ROOT / "docs/start/coming-from/rllib.md").read_text().split())
    said = text.partition("Algorithms here: ")[2].partition(".")[0].lower().replace("-", "_")
    names = {{"ape_x": "apex_dqn"}.get(name, name) for name in said.split(", ")}
    of_text = {"dpo", "grpo", "reinforce_pp", "reward_model", "rloo", "sft", "token_ppo"}
    assert names == {*algorithm_names()} - of_text
