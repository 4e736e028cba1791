"""Sums of rewards as text: the grammar, the settings of terms, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import api, sums
from equipoise.cli import app as cli
from equipoise.programs.config_file import read_config, write_config
from equipoise.programs.program import differences, from_json, to_json
from equipoise.rewards.term import RewardTerm
from equipoise.sums import codes, parsed
from equipoise.types import learning
from tests.rewards.visits import Visits as OtherVisits

VISITS = "tests.rewards.visits:Visits"


def program(*settings: str, **options: Any) -> Any:
    return api.program("CartPole-v1", "ppo", recipe=False, settings=list(settings), **options)


def rewards(made: Any) -> Any:
    (policy,) = learning(made).values()
    return policy.rewards


@pytest.mark.parametrize(
    ("text", "products"),
    [
        ("env", [(1.0, "env")]),
        ("env+0.5*rnd", [(1.0, "env"), (0.5, "rnd")]),
        (" -1e-3*a - 2 * b*c*.5 + env", [(-1e-3, "a"), (-1.0, "b*c"), (1.0, "env")]),
        ("my.x:F,other:g", [(1.0, "my.x:F"), (1.0, "other:g")]),
        ("a:b*1e+3", [(1e3, "a:b")]),
    ],
)
def test_a_sum_is_products_with_weights(text: str, products: list[tuple[float, str]]) -> None:
    assert [(one.weight, one.name) for one in parsed(text, "reward")] == products


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a sum of rewards, such as env+0.5*rnd, got ''"),
        ("  ", "got '  '"),
        ("env+env", "must have each term once, got 'env' twice in 'env+env'; try one weight"),
        ("rnd+0.5*rnd", "'rnd' twice"),
        ("env+", "got 'nothing' as a term of 'env+'"),
        ("env++rnd", "got 'nothing' as a term"),
        ("env rnd", "got 'env rnd' as a term"),
        ("env**rnd", "as a term"),
        ("2", "must name a reward in each term, got a number alone"),
        ("nan*rnd", "must have weights from 1e-09 to 1e+09, got nan"),
        ("inf*rnd", "got inf"),
        ("0*rnd", "got 0 in '0*rnd'; leave the term out"),
        ("1e99*rnd", "got 1e+99"),
        ("10^99*rnd", r"got '^99*rnd' in it"),
        ("env+1e9*2*rnd", "got 2e+09"),
        ("a" * 10_000, "must have at most 1,000 characters, got 10,000"),
        ("env+rdn", "must be a sum of env, .*rnd.* or module:Class, got 'rdn'; did you mean 'rnd'"),
        ("env+0.1*nowhere:Bonus", "no module 'nowhere'"),
        ("env+builtins:dict", "to be a subclass of .*RewardTerm, got dict"),
        ("tests.rewards.visits:Visit", "unknown function 'Visit'.*Visits"),
        ("equipoise.rewards.step:RewardStep", "to be a subclass of"),
        (f"{__name__}:Plain", "expected @dataclass.* above the class .*, so size would have no"),
        (f"{VISITS}+{__name__}:Visits", "terms whose names differ.*got 'visits' twice"),
        (f"{__name__}:Nameless", "a name of letters and digits, such as 'counts', got 'a b'"),
        (f"{__name__}:Forgetful", "a method load, since it has a state, got none"),
    ],
)
def test_what_is_no_sum_is_refused_in_one_sentence(text: str, said: str) -> None:
    said = said if ".*" in said else re.escape(said)
    with pytest.raises(ValueError, match=f"^reward.*: .*{said}") as caught:
        api.start(program(reward=text, steps=512), on="serial")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_the_settings_of_terms_are_settings_of_the_run(tmp_path: Path) -> None:
    made = program(
        "reward.counts.bits=9", "reward.features=128", reward=f"env+0.5*rnd+counts+{VISITS}"
    )
    terms = rewards(made).terms
    of_all = {"head": False, "gamma": None, "episodic": True}
    assert terms["rnd"]["features"] == 128 and terms["counts"] == {**of_all, "bits": 9}
    assert terms["visits"] == {**of_all, "bits": 6} and terms["rnd"]["hidden"] == (64, 64)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    for file in (tmp_path / "run.toml", tmp_path / "run.json"):
        write_config(made, file)
        assert read_config(file, trusted=["tests.rewards.visits"]) == made
        with pytest.raises(ValueError, match=f"reward term '{VISITS}' would be imported"):
            read_config(file)
    other = api.configured(tmp_path / "run.toml", trust=["tests"], reward="env+rnd")
    assert list(rewards(other).terms) == ["rnd"] and rewards(other).terms["rnd"] == terms["rnd"]
    assert differences(
        program(reward="env+rnd"), program("reward.share=0.5", reward="env+rnd")
    ) == {"reward.rnd.share": [0.25, 0.5]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["reward.bits=9"], r"unknown setting 'reward.bits'"),  # two terms have it
        (["reward.rnd.feature=9"], "unknown setting 'reward.rnd.feature'; did you mean"),
        (["reward.icm.beta=9"], r"'icm' is no term of the reward .*: try --reward .*\+icm"),
        (["reward.rnd.features=0"], "reward.rnd.features: expected at least 1, got 0"),
        (["reward.rnd.features=many"], "reward.rnd.features: expected a whole number, got 'many'"),
        (["reward=env"], "unknown setting 'reward'; it is 'rewards.sum'"),
        (["rewards.sum=env"], "reward: expected to be given once"),
    ],
)
def test_a_wrong_setting_of_a_term_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        program(*settings, reward=f"env+rnd+counts+{VISITS}")


def test_a_file_with_an_unknown_setting_of_a_term_is_refused() -> None:
    data = to_json(program(reward="env+rnd"))
    data["policies"]["main"]["rewards"]["terms"]["rnd"]["depth"] = 3
    with pytest.raises(ValueError, match="unknown setting 'reward.rnd.depth'"):
        from_json(data)


def test_the_help_lists_the_settings_of_the_terms_of_a_sum() -> None:
    listed = CliRunner().invoke(cli, ["train", "--reward", "env+rnd", "--help-all"]).stdout
    assert "reward.rnd.features" in listed and "Settings of rnd in the reward" in listed
    assert "--reward SUM" in CliRunner().invoke(cli, ["train", "--help"]).stdout


def test_the_names_of_code_in_a_sum_are_found() -> None:
    assert codes(f"env+0.5*{VISITS}-a.b:c * d,e:f") == [VISITS, "a.b:c", "e:f"]
    assert codes("env+rnd") == [] == codes(None)


class Plain(RewardTerm):
    size: int = 3


class Visits(OtherVisits):
    pass


class Nameless(RewardTerm):
    name = "a b"


class Forgetful(RewardTerm):
    def state(self) -> Any:
        return {"seen": 1}


def test_bytes_are_no_sum() -> None:
    given: Any = b"env"
    with pytest.raises(TypeError, match="reward: must be a function or a class .*got b'env'"):
        program(reward=given)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("run:runs/reward-1", ["run:runs/reward-1"]),
        ('env+0.5*run:"my runs/a, b+c*d"', ["env", "run:my runs/a, b+c*d"]),
        ("run:'it is \"it\"'-env", ['run:it is "it"', "env"]),
        ("registry:reward", ["registry:reward"]),
        ("2*registry:keep/reward@champion + env", ["registry:keep/reward@champion", "env"]),
        ("run:it's", ["run:it's"]),
    ],
)
def test_a_reward_model_is_named_by_its_place(text: str, names: list[str]) -> None:
    assert [name for one in sums.parsed(text, "reward") for name in one.names] == names
    assert sums.models(text) == [name for name in names if name != "env"]
    kept = sums.with_models(text, lambda name: name)
    assert sums.parsed(kept, "reward") == sums.parsed(text, "reward")
    spaced = sums.with_models(text, lambda name: f"{name} x")
    assert sums.models(spaced) == [f"{name} x" for name in sums.models(text)]


def test_a_name_that_ends_like_a_reward_model_is_none() -> None:
    assert sums.with_models("env+rerun:Bonus", lambda name: "run:other") == "env+rerun:Bonus"
    assert sums.models("env+rerun:Bonus") == []
    for text in ('run:"a b', 'run:"a"b', "run:", "run: a"):
        with pytest.raises(ValueError, match="^reward: must"):
            sums.parsed(text, "reward")
    with pytest.raises(ValueError, match="must be a place without one of the quotes"):
        sums.with_models("run:a", lambda name: "run:a \" '")
