"""What the pages of questions and of symptoms say of defaults, names and messages is so."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import equipoise as eq
from equipoise.actors.episodes import RECENT
from equipoise.console.pages import ALARMS
from equipoise.envs.families import atari
from equipoise.facts import facts
from equipoise.programs.program import algorithm_class, algorithm_names
from equipoise.types import Optimizer, Placement, SourceSettings
from tests.house.test_coming_from import no_field, program

ROOT = Path(__file__).parents[2]
QUESTIONS = (ROOT / "docs/guides/faq.md").read_text()
SYMPTOMS = (ROOT / "docs/guides/troubleshooting.md").read_text()


def said_in(text: str, phrase: str) -> bool:
    return phrase in " ".join(text.split())


def schedules() -> dict[str, str]:
    return {name: algorithm_class(name).default_optimizer.schedule for name in algorithm_names()}


def default_of(function: Callable[..., Any], name: str) -> object:
    return inspect.signature(function).parameters[name].default


# phrase of the page -> a fact of the code, and what the page says it is
FACTS: dict[str, tuple[Callable[[], object], object]] = {
    "`--set env.stack_num=4`": (lambda: atari.AtariSpec().stack_num, 4),
    "means over the last 100 episodes": (lambda: RECENT, 100),
    "mean of the last 100 episodes": (lambda: RECENT, 100),
    "In lockstep (`max_lag=0`, the default of PPO)": (
        lambda: eq.program("CartPole-v1", "ppo", recipe=False).placement.max_lag,
        0,
    ),
    "From an env: the run stops": (lambda: facts(SourceSettings)["on_nonfinite"].default, "stop"),
    "`optimizer.schedule` is `constant`, `linear` (to 0) or `cosine`": (
        lambda: facts(Optimizer)["schedule"].limits,
        "linear or constant or cosine",
    ),
    "PPO, A2C, DQN and SAC begin with `constant`": (
        lambda: {schedules()[name] for name in ("ppo", "a2c", "dqn", "sac")},
        {"constant"},
    ),
    "IMPALA, APPO and A3C with `linear`": (
        lambda: {name for name, kind in schedules().items() if kind == "linear"},
        {"impala", "appo", "a3c"},
    ),
    "`optimizer.warmup` is the share": (lambda: facts(Optimizer)["warmup"].limits, "0 to 1"),
    "newest line of each worker (key `4`)": (lambda: ALARMS, "4"),
    "the newest weights and the likeliest actions": (
        lambda: default_of(eq.evaluate, "deterministic"),
        True,
    ),
    "With a replay `rewards.normalize` is refused": (
        lambda: program("dqn", "rewards.normalize=true")().partition(":")[0],
        "rewards.normalize",
    ),
    "`rewards.scale` and `rewards.clip` work there": (
        program("dqn", "rewards.scale=0.1", "rewards.clip=1"),
        "accepted",
    ),
    "By a recurrent core: `gru`, `lstm`, `mingru` or `gtrxl`": (
        lambda: {*facts(algorithm_class("ppo"))["core"].limits.split(" or ")} - {"none"},
        {"gru", "lstm", "mingru", "gtrxl"},
    ),
    "the extra `video` has to be installed": (
        lambda: (
            "video"
            in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
                "optional-dependencies"
            ]
        ),
        True,
    ),
    "Curiosity and other intrinsic rewards": (no_field("curios", "intrinsic"), "none"),
    "centralised critics": (no_field("central_critic", "all_agents"), "none"),
    "offline algorithms beyond `bc`": (
        lambda: {"bc", "cql", "iql", "td3_bc", "marwil"} & {*algorithm_names()},
        {"bc"},
    ),
}


@pytest.mark.few(99)
@pytest.mark.parametrize("phrase", FACTS)
def test_a_fact_of_the_questions_is_so(phrase: str) -> None:
    assert said_in(QUESTIONS, phrase)
    fact, said = FACTS[phrase]
    assert fact() == said


def test_each_question_that_names_a_default_is_tried() -> None:
    """Each "default" of the prose is part of a phrase above."""
    prose = " ".join(re.sub(r"```.*?```", "", QUESTIONS, flags=re.DOTALL).split())
    defaults = [match.start() for match in re.finditer(r"\bdefaults?\b", prose)]
    spans = [match.span() for phrase in FACTS for match in re.finditer(re.escape(phrase), prose)]
    assert [
        prose[at - 40 : at + 20] for at in defaults if not any(a <= at < b for a, b in spans)
    ] == []


# ----------------------------------------------------------------------------------------- symptoms


def started(env: Any, algorithm: str = "ppo", *settings: str) -> Callable[[Path], str]:
    """The error of a run that begins."""

    def attempt(out: Path) -> str:
        try:
            with eq.start(
                env,
                algorithm,
                steps=4096,
                on="serial",
                recipe=False,
                settings=list(settings),
                out=out / "run",
            ):
                return "begun"
        except (ValueError, TypeError) as error:
            return str(error)

    return attempt


MESSAGES: dict[str, Callable[[Path], str]] = {
    "unknown module": started("nowhere_at_all:make"),
    "which is made already": started(gymnasium.make("CartPole-v1")),
    "must be at the top of a module": started(lambda: None),
    "action space: ... expected": started("CartPole-v1", "td3"),
    "unknown setting": started("CartPole-v1", "ppo", "algorithm.gama=1"),
    "expected a divisor": started("CartPole-v1", "ppo", "algorithm.minibatches=7"),
    "expected a run that fits": started("CartPole-v1", "dqn", "replay.memory=900TiB"),
    "this torch sees no GPU": started("CartPole-v1", "ppo", "placement.device=cuda"),
}


def quoted(text: str) -> set[str]:
    """The messages in the first column of the page of symptoms."""
    rows = [row for row in text.splitlines() if row.startswith("| ")][1:]
    return {said for row in rows for said in re.findall(r'"([^"]+)"', row.split("|")[1])}


def test_each_message_of_a_symptom_is_tried() -> None:
    assert quoted(SYMPTOMS) == set(MESSAGES)


@pytest.mark.few(99)
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_a_symptom_comes(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = MESSAGES[message](tmp_path)
    assert re.search(re.escape(message).replace(r"\.\.\.", ".*"), said), said


def test_what_the_page_of_symptoms_says_of_deadlines_and_make() -> None:
    seconds = facts(Placement)["deadline_s"].default
    assert f"`placement.deadline_s`, {seconds:g} s by default" in SYMPTOMS
    assert "TORCH_INDEX" in (ROOT / "Makefile").read_text()
