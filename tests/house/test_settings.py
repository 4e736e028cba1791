"""A setting is said once, in its field's annotation: everything that tells of settings reads it
there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import settings_tables
from typer.testing import CliRunner

from equipoise import api, cli, recipes
from equipoise.algorithms._actor_critic import ActorCriticAlgorithm
from equipoise.algorithms._off_policy import OffPolicyAlgorithm
from equipoise.algorithms._text import PolicyText, TextLearns
from equipoise.algorithms.ppo import PPO
from equipoise.facts import FREE, KEPT, Flag, Help, Range, Read, facts
from equipoise.programs import fields
from equipoise.programs.fields import alter
from equipoise.programs.program import algorithm_names, from_json, to_json
from equipoise.programs.refusals import check, check_read, check_resume
from equipoise.programs.settings import apply_settings
from equipoise.types import (
    WHERE,
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Frozen,
    Learns,
    Placement,
    Policy,
    Program,
    RecordedSource,
    ReplaySettings,
    Schedule,
    SourceSettings,
    TaskSource,
    learning,
)


@dataclass(frozen=True, kw_only=True)
class Warm(PPO):
    warmth: Annotated[
        float, Range(0, 2), Help("Warmth of the policy."), Read("normalize_obs"), KEPT
    ] = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wider(Placement):
    spares: Annotated[int, Range(0, 8), Help("Spare actors."), Flag(WHERE), FREE] = 0
    spare_s: Annotated[
        float, Range(0), Help("Seconds that a spare actor waits."), Read("spares")
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderProgram(Program):
    placement: Wider = Wider()


def test_every_table_of_the_pages_is_current() -> None:
    stale = [
        page.name
        for page in settings_tables.pages()
        if settings_tables.current(page.read_text()) != page.read_text()
    ]
    assert stale == [], "run python tools/settings_tables.py"


def test_every_class_with_settings_has_a_table() -> None:
    names = {
        name
        for page in settings_tables.pages()
        for _, name, _ in settings_tables.TABLE.findall(page.read_text())
    }
    shared: list[type[Any]] = [
        Learns,
        ActorCriticAlgorithm,
        OffPolicyAlgorithm,
        TextLearns,
        PolicyText,
        SourceSettings,
        EnvSource,
        RecordedSource,
        TaskSource,
        Placement,
        Schedule,
        EvaluationSettings,
        EnvFactory,
        Policy,
        Frozen,
        ReplaySettings,
    ]
    assert {*algorithm_names(), *(f"{cls.__module__}:{cls.__name__}" for cls in shared)} <= names


@pytest.mark.parametrize(
    "cls", [cls for _, cls in fields.rooms(replay=True)] + [SourceSettings, Frozen]
)
def test_every_setting_has_help(cls: type[Any]) -> None:
    parts = {
        "source",
        "placement",
        "schedule",
        "evaluation",
        "env",
        "policies",
        "route",
        "target",
        "kwargs",
        "terms",
        "algorithm",
        "optimizer",
        "rewards",
        "replay",
    }
    assert {name for name, fact in facts(cls).items() if not fact.help} <= parts


def test_a_field_of_an_algorithm_is_one_line() -> None:
    name = f"{__name__}:Warm"
    listed = " ".join(
        CliRunner().invoke(cli.app, ["train", "--algorithm", name, "--help"]).stdout.split()
    )
    assert "--warmth X Warmth of the policy (0 to 2; default: 0.5)" in listed
    made = api.program(
        "CartPole-v1", name, settings=["algorithm.warmth=1.5", "algorithm.normalize_obs=true"]
    )
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    (policy,) = learning(made).values()
    assert policy.algorithm == Warm(warmth=1.5, normalize_obs=True, minibatches=32)
    assert (
        "| `warmth` | 0.5 | 0 to 2 | Warmth of the policy. Used if `normalize_obs` is set. A "
        "resume keeps it. |" in (settings_tables.table(Warm))
    )
    with pytest.raises(ValueError, match=r"algorithm\.warmth: expected 0 to 2, got 3\.0"):
        check(apply_settings(made, ["algorithm.warmth=3"]))
    with pytest.raises(
        ValueError, match=r"algorithm\.warmth, since algorithm\.normalize_obs is false"
    ):
        check_read(apply_settings(made, ["algorithm.normalize_obs=false"]), ["algorithm.warmth"])
    with pytest.raises(ValueError, match=r"cannot change algorithm\.warmth \(1\.5 -> 1\.0\)"):
        check_resume(made, apply_settings(made, ["algorithm.warmth=1"]))
    assert check_resume(made, apply_settings(made, ["algorithm.clip=0.1"])) == {
        "algorithm.clip": [0.2, 0.1]
    }


def test_a_field_of_placement_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.console import options
    from equipoise.programs import program as programs

    monkeypatch.setattr(fields, "Program", WiderProgram)
    monkeypatch.setattr(programs, "Program", WiderProgram)
    names = {name for name, _ in options.flags().items()}
    assert "spares" in names and "actors" in names
    given, more = options.read({"spares": "2"})
    assert (given, more) == ({"spares": 2}, [])
    assert dict(options._others())["placement.spare_s"].help == "Seconds that a spare actor waits."
    base = api.program("CartPole-v1", "ppo")
    wide = WiderProgram(source=base.source, policies=base.policies)
    made = apply_settings(wide, ["placement.spares=3", "placement.spare_s=2"])
    assert made.placement == Wider(spares=3, spare_s=2.0)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    assert (
        "| `spares` | 0 | 0 to 8 | Spare actors. `--spares`. A resume may change it. |"
        in settings_tables.table(Wider)
    )
    with pytest.raises(ValueError, match=r"placement.spares: expected 0 to 8, got 9"):
        check(apply_settings(made, ["placement.spares=9"]))
    with pytest.raises(ValueError, match=r"placement.spare_s, since placement.spares is 0"):
        check_read(apply_settings(made, ["placement.spares=0"]), ["placement.spare_s"])
    assert check_resume(made, apply_settings(made, ["placement.spares=1"])) == {
        "placement.spares": [3, 1]
    }
    with pytest.raises(ValueError, match="cannot change placement.spare_s"):
        check_resume(made, apply_settings(made, ["placement.spare_s=3"]))


def test_a_page_that_is_not_current_is_seen() -> None:
    page = Path(settings_tables.ROOT, "docs/reference/algorithms/ppo.md").read_text()
    assert settings_tables.current(page.replace("GAE lambda.", "Something.")) == page


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids="-".join)
def test_every_recipe_is_of_settings_that_are_read(recipe: tuple[str, str]) -> None:
    env, algorithm = recipe
    found = recipes.find(env, algorithm)
    assert found is not None
    table = {key: value for key, value in found.items() if not key.startswith("env.")}
    assert not {"placement.precision", "placement.threads"} & table.keys(), (
        "these are measured on each machine"
    )
    if "source.model" in found:  # of a task
        assert api.program(env, algorithm, recipe=False, settings=table) == api.program(
            env, algorithm
        )
        return
    made = api.program("CartPole-v1", algorithm, recipe=False, settings=table)
    assert made == alter(api.program(env, algorithm), env=made.env)


def test_the_page_of_recipes_has_a_row_for_each_and_no_other() -> None:
    page = Path(settings_tables.ROOT, "docs/results/recipes.md").read_text()
    table, _, runs = page.partition("\n## Runs\n")

    def rows(text: str) -> list[tuple[str, str]]:
        found = re.findall(r"^\| ([\w:/-]+) \| (\w+) \|", text, re.MULTILINE)
        return [row for row in found if row != ("env", "algorithm")]

    assert sorted(rows(table)) == sorted(recipes.RECIPES)
    commands = re.findall(r"^    equipoise train (\S+) --algorithm (\w+)", runs, re.MULTILINE)
    assert set(rows(runs)) == set(commands) <= {*recipes.RECIPES}
