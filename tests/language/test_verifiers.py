"""Tasksets of verifiers, with a package of the same interface; and with the package itself, where
it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.language import tasks
from equipoise.language.turns import verifiers
from equipoise.language.turns.partner import Dialogue
from equipoise.language.turns.steps import Failure, Steps
from tests.language import fake_verifiers

WAIT_S = 60.0
REAL = importlib.util.find_spec("verifiers") is not None
SUMS = '''
import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class Data(vf.TaskData):
    answer: str


class Count(vf.State):
    calls: int = 0


class Adder(vf.Toolset[vf.ToolsetConfig, Count]):
    TOOL_PREFIX = "sums"

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.state.calls += 1
        return a + b


class Config(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Sum(vf.Task[Data, Count, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(config.tools)]

    async def setup(self, trace, runtime):
        assert runtime is not None

    @vf.reward(weight=1.0)
    async def exact(self, trace: vf.Trace) -> float:
        if trace.last_reply == "boom":
            raise LookupError("no score")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.calls)


class SumsConfig(vf.TasksetConfig):
    count: int = 5
    task: Config = Config()


class SumsTaskset(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        return [
            Sum(Data(prompt=f"{i}+{i}=", system_prompt="add", answer=str(2 * i)), self.config.task)
            for i in range(self.config.count)
        ]
'''
GAME = '''
import itertools
import verifiers.v1 as vf

__all__ = ["GameTaskset", "GameEnv"]


class Data(vf.TaskData):
    number: int


class Game(vf.Task[Data, vf.State, vf.TaskConfig]):
    pass


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GameEnv(vf.Env[GameConfig]):
    """Guess a number: the env opens, and answers each guess."""

    async def run(self, task, agents):
        reward = 0.0
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn("guess")
            while not segment.terminated:
                if segment.last_reply == "boom":
                    raise LookupError("no game")
                if segment.last_reply == str(task.data.number):
                    reward = 1.0
                    break
                segment = await talk.turn("no")
        talk.trace.record_reward("game", reward)

    async def finalize(self, task, episode):
        (trace,) = episode.traces
        trace.record_reward("turns", 0.01 * sum(node.sampled for node in trace.nodes))


class GameTaskset(vf.Taskset[Game, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        return (Game(Data(number=i), self.config.task) for i in itertools.count())
'''
CALL = '<tool_call>{{"name": "{}", "arguments": {}}}</tool_call>'


@pytest.fixture(
    params=["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="verifiers"))]
)
def tasksets(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sums_of_a_test", SUMS), ("game_of_a_test", GAME)):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    if request.param == "fake":
        fake_verifiers.install(monkeypatch)


def made(name: str, **given: object) -> Any:
    task = tasks.make(f"verifiers:{name}_of_a_test", seed=1, arguments=given, deadline_s=WAIT_S)
    rows: list[Any] = [*task.train, *task.held_out]
    return task, sorted(rows, key=lambda one: one.columns["task"])


def talked(task: Any, row: Any, *texts: str | None) -> list[Any]:
    """The partner's answers to turns; None ends the conversation early."""
    steps, one, found = Steps(WAIT_S), Dialogue(task.make, row.columns, row.prompt), []
    try:
        for key, text in enumerate(texts):
            if text is None:
                steps.submit(key, one.end)
            else:
                steps.submit(key, lambda settle, text=text: one.step(text, settle))  # type: ignore[misc]
            ends = time.monotonic() + WAIT_S
            while not (result := steps.poll()):
                assert time.monotonic() < ends
                time.sleep(0.002)
            found.append(result[0][1])
    finally:
        steps.close()
    return found


@pytest.mark.usefixtures("tasksets")
def test_a_task_is_asked_and_scored_with_its_tools() -> None:
    task, rows = made("sums", count=12)
    assert len(rows) == 12 and rows[3].prompt == [
        {"role": "system", "content": "add"},
        {"role": "user", "content": "3+3="},
    ]
    (tool,) = rows[3].template["tools"]
    assert tool["function"]["name"] == "sums_add"
    assert tool["function"]["description"] == "Add two numbers."
    assert talked(task, rows[3], "6") == [(None, 1.0)]
    call = CALL.format("sums_add", '{"a": 3, "b": 3}')
    answer, end = talked(task, rows[3], call, "6")
    assert answer == ([{"role": "tool", "content": "6", "name": "sums_add"}], 0.0)
    assert end == (None, 1.25)
    answer, *_ = talked(task, rows[3], call + call)
    assert len(answer[0]) == 2
    # a conversation that is cut is scored
    assert talked(task, rows[3], call, None)[1] == (None, 0.25)


@pytest.mark.usefixtures("tasksets")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (CALL.format("add", "{}"), "error: unknown tool 'add'; tools: sums_add"),
        (CALL.format("sums_add", "[1]"), "error: arguments must be an object"),
        (CALL.format("sums_add", '{"a": 1}'), "error: "),
    ],
)
def test_a_call_that_cannot_be_run_is_answered(call: str, said: str) -> None:
    task, rows = made("sums")
    (answer,) = talked(task, rows[0], call)
    assert answer[0][0]["content"].startswith(said)


@pytest.mark.usefixtures("tasksets")
def test_a_reward_that_raises_costs_its_conversation() -> None:
    task, rows = made("sums")
    (found,) = talked(task, rows[0], "boom")
    assert isinstance(found, Failure) and "no score" in found.error
    assert talked(task, rows[0], "<tool_call>no JSON</tool_call>") == [(None, 0.0)]


@pytest.mark.usefixtures("tasksets")
def test_an_env_plays_turns_and_judges_at_the_end() -> None:
    task, rows = made("game", rows=20)
    assert len(rows) == 20 and rows[7].prompt == [{"role": "user", "content": "guess"}]
    no = ([{"role": "user", "content": "no"}], 0.0)
    assert talked(task, rows[7], "1", "8", "7") == [no, no, (None, 1.03)]
    assert talked(task, rows[7], "1", None) == [no, (None, 0.01)]
    (found,) = talked(task, rows[7], "boom")
    assert isinstance(found, Failure) and "no game" in found.error


@pytest.mark.usefixtures("tasksets")
@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("sums", {"rows": 0}, "rows: must be 1 to 1,000,000, got 0"),
        ("sums", {"task": {}}, "task: must be left out, since it names code"),
        ("sums", {"cuont": 3}, "must be a taskset with tasks, got ValidationError"),
        ("sums", {"count": 0}, "must have at least 2 rows, got 0"),
        ("smus", {}, "must be an installed taskset"),
    ],
)
def test_what_is_refused(name: str, given: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        made(name, **given)


def test_an_episode_that_does_not_end_is_cancelled_at_the_deadline_of_its_end() -> None:
    async def talk() -> bool:
        one = verifiers.Conversation(Any)  # type: ignore[arg-type]  # whose world is not asked
        one._episode = asyncio.create_task(asyncio.sleep(3600))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.end(), 0.01)
        await asyncio.wait([one._episode], timeout=30)
        return one._episode.cancelled()

    assert asyncio.run(talk())


@pytest.mark.skipif(REAL, reason="verifiers is installed")
def test_the_extra_is_named() -> None:
    with pytest.raises(ImportError, match="task 'verifiers:sums' needs verifiers: .*install"):
        tasks.make("verifiers:sums", seed=1)


@pytest.mark.usefixtures("tasksets")
def test_the_private_names_of_a_toolset_are_there() -> None:
    """``private/verifiers.py``: a call reads and writes the state that it is given."""
    import asyncio

    import verifiers.v1 as vf

    from equipoise.private.verifiers import exit_stack, share_state

    class Count(vf.State):  # type: ignore[misc]
        calls: int = 0

    class Adds(vf.Toolset[vf.ToolsetConfig, Count]):  # type: ignore[misc]
        def add(self) -> None: ...

    toolset, trace = Adds(vf.ToolsetConfig()), type("Trace", (), {"state": Count(calls=3)})()
    assert hasattr(exit_stack(toolset), "enter_async_context")
    share_state(toolset, trace)
    assert asyncio.run(toolset._pull_state()) is trace.state
    assert asyncio.run(toolset._push_state(b"")) is None
