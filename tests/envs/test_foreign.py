"""Attributes of a foreign env that raise: one sentence where they are needed, nothing where they
are not.
"""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import foreign
from equipoise.envs.check.check import check_env
from equipoise.envs.making import make
from equipoise.types import EnvFactory

SINGLE = (
    "metadata",
    "agents",
    "possible_agents",
    "spec",
    "np_random",
    "envs",
    "render_mode",
    "max_steps",
    "get_state",
    "*",
    "mock",
)


def factory(kind: str, name: str) -> EnvFactory:
    return EnvFactory(target=f"tests.envs.raising:{kind}", kwargs={"name": name})


@pytest.mark.parametrize("name", SINGLE)
def test_an_attribute_that_is_not_needed_may_raise(name: str) -> None:
    report = check_env(factory("single", name), steps=100)
    assert report.findings == () and report.left_out == ()
    env = make(factory("single", name), streams=np.arange(2), seed=0)
    for _ in range(60):  # through several episodes, as at the start of training
        env.recv()
        env.send(env.form.zeros(), env.ts.stream)
    env.state()
    env.close(raises=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("single", name) for name in ("observation_space", "action_space", "unwrapped")),
        *(("vector", name) for name in ("metadata", "single_observation_space", "num_envs")),
        *(("vector", name) for name in ("single_action_space", "unwrapped")),
        *(("parallel", name) for name in ("possible_agents", "observation_space", "action_space")),
        *(("other", name) for name in ("possible_agents", "agents", "num_agents")),
    ],
)
def test_an_attribute_that_is_needed_is_named_where_it_raises(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match="RuntimeError: this attribute is not for you") as caught:
        make(factory(kind, name), streams=np.arange(2), seed=0)
    assert str(caught.value).startswith(f"tests.envs.raising:{kind} could not be made")
    assert "raising.py, line" in str(caught.value) and "\n" not in str(caught.value)
    report = check_env(factory(kind, name), steps=100)
    (finding,) = report.findings
    assert finding.what == "the env cannot be made: RuntimeError"
    assert "this attribute is not for you" in finding.seen


def test_a_mock_is_no_env() -> None:
    with pytest.raises(ValueError, match="^tests.envs.raising:mock"):
        make(EnvFactory(target="tests.envs.raising:mock"), streams=np.arange(2), seed=0)


def test_attributes_by_kind() -> None:
    class Odd:
        fine = 1

        @property
        def bad(self) -> int:
            raise KeyError("no")

    odd = Odd()
    assert foreign.attribute(odd, "fine") == 1 and foreign.attribute(odd, "none", 2) == 2
    assert foreign.optional(odd, "bad", 3) == 3
    assert foreign.has(odd, "fine") and not foreign.has(odd, "fine", "bad")
    assert foreign.calls([], "append") and not foreign.calls(odd, "fine")
    with pytest.raises(
        foreign.Unreadable, match="bad of Odd: expected a value, got KeyError: 'no'"
    ):
        foreign.attribute(odd, "bad")
