"""The interface of verifiers 0.4 that tasksets and we use, in little: for tests without it.

``install`` puts modules of its names into ``sys.modules``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict


class Base(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Generics:
    """``Task[Data, State, Config]`` as a base keeps its arguments in ``kinds``."""

    kinds: ClassVar[tuple[type, ...]] = ()

    def __class_getitem__(cls, kinds: Any) -> Any:
        given = kinds if isinstance(kinds, tuple) else (kinds,)
        return type(cls.__name__, (cls,), {"kinds": given})

    @classmethod
    def kind(cls, base: type) -> Any:
        return next((one for one in cls.kinds if issubclass(one, base)), base)


class State(Base): ...


class TaskConfig(Base): ...


class ToolsetConfig(Base):
    url: str | None = None


class TasksetConfig(Base):
    id: str = ""
    task: TaskConfig = TaskConfig()


class TaskData(Base):
    idx: int | None = None
    prompt: Any = None
    system_prompt: str | None = None
    image: str | None = None


class AgentConfig(Base): ...


class EnvConfig(Base):
    id: str = ""
    taskset: Any = None

    @property
    def env_id(self) -> str:
        return str(self.taskset.id)


class SingleAgentEnvConfig(EnvConfig):
    agent: AgentConfig = AgentConfig()


class Message(Base):
    role: str
    content: Any = None


class SystemMessage(Message):
    role: str = "system"


class UserMessage(Message):
    role: str = "user"


class ToolCall(Base):
    id: str
    name: str
    arguments: str


class AssistantMessage(Message):
    role: str = "assistant"
    tool_calls: list[ToolCall] | None = None


class ToolMessage(Message):
    role: str = "tool"
    tool_call_id: str
    name: str | None = None


@dataclass
class Segment:
    messages: list[Any]
    terminated: bool = False

    @property
    def last_reply(self) -> str:
        found = [one.content for one in self.messages if isinstance(one, AssistantMessage)]
        return str(found[-1]).strip() if found else ""


@dataclass
class MessageNode:
    message: Any
    parent: int | None = None
    sampled: bool = False


@dataclass
class Trace:
    task: Any
    state: Any
    agent: Any
    nodes: list[MessageNode] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    ok: bool = False
    stop_condition: str | None = None

    def stop(self, condition: str) -> None:
        self.stop_condition = self.stop_condition or condition

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        self.rewards[name] = value * weight

    @property
    def reward(self) -> float:
        return sum(self.rewards.values())

    @property
    def last_reply(self) -> str:
        found = [one.message.content for one in self.nodes if one.sampled]
        return str(found[-1]).strip() if found else ""


def mark(name: str) -> Any:
    def decorator(function: Any = None, **how: Any) -> Any:
        def made(one: Any) -> Any:
            setattr(one, name, how or True)
            return one

        return made if function is None else made(function)

    return decorator


def marked(thing: Any, name: str) -> list[Any]:
    found = {
        key
        for one in type(thing).__mro__
        for key, value in vars(one).items()
        if hasattr(value, name)
    }
    return [getattr(thing, key) for key in sorted(found)]


def invoke(hook: Callable[..., Any], available: Mapping[Any, Any]) -> Any:
    names = inspect.signature(hook).parameters
    return hook(**{name: available[name] for name in names if name in available})


class Task(Generics):
    NEEDS_CONTAINER: ClassVar[bool] = False
    key = hash = "x"

    def __init__(self, data: Any, config: Any = None) -> None:
        self.data, self.config = data, config or self.kind(TaskConfig)()

    async def setup(self, trace: Any, runtime: Any) -> None: ...

    async def finalize(self, trace: Any, runtime: Any) -> None: ...

    def runtime_env(self) -> dict[str, str]:
        return {}

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []

    def hooks(self, name: str) -> list[Any]:
        return marked(self, name)

    async def score(self, trace: Any, runtime: Any = None) -> None:
        for hook in self.hooks("reward"):
            how = hook.reward if isinstance(hook.reward, dict) else {}
            found = await invoke(hook, {"trace": trace, "runtime": runtime, "task": self.data})
            trace.record_reward(hook.__name__, found, how.get("weight", 1.0))


class Taskset(Generics):
    INFINITE: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        self.config = config

    def __iter__(self) -> Iterator[Any]:
        return iter(self.load())

    def load(self) -> Any:
        raise NotImplementedError

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []


class Toolset(Generics):
    TOOL_PREFIX = ""

    def __init__(self, config: Any) -> None:
        self.config, self._exit_stack = config, AsyncExitStack()
        self.state: Any = self.kind(State)()

    async def setup(self) -> None: ...

    async def setup_task(self, task: Any) -> None: ...

    @property
    def server_name(self) -> str:
        return self.TOOL_PREFIX

    async def _pull_state(self) -> Any: ...

    async def _push_state(self, before: bytes) -> None: ...

    def register(self, server: Any) -> None:
        for tool in marked(self, "tool"):
            server.tools[tool.__name__] = (self, tool)


class Server:
    """An MCP server without a protocol."""

    def __init__(self, name: str) -> None:
        self.tools: dict[str, tuple[Any, Any]] = {}

    async def list_tools(self) -> list[Any]:
        return [
            SimpleNamespace(name=name, description=inspect.getdoc(tool), input_schema={})
            for name, (_, tool) in self.tools.items()
        ]

    async def call_tool(self, name: str, given: dict[str, Any]) -> Any:
        toolset, tool = self.tools[name]
        toolset.state = await toolset._pull_state() or toolset.state
        found = tool(**given)
        await toolset._push_state(b"")
        return SimpleNamespace(content=[SimpleNamespace(text=json.dumps(found))])


class Env(Generics):
    def __init__(self, config: Any) -> None:
        self.config = config
        self.taskset = taskset_of(config.taskset.id)(config.taskset)

    async def setup(self, agents: Any) -> None: ...

    async def finalize(self, task: Any, episode: Any) -> None: ...


class SingleAgentEnv(Env[SingleAgentEnvConfig]):  # type: ignore[type-arg]
    async def run(self, task: Any, agents: Any) -> None:
        await agents.agent.run(task)


class Agents:
    def __init__(self, config: Any, make: Any) -> None:
        for name, value in config:
            if isinstance(value, AgentConfig):
                setattr(self, name, make(name, value))


def exported(name: str, base: type) -> Any:
    module = importlib.import_module(name.replace("-", "_"))
    found = [getattr(module, one) for one in module.__all__]
    return next((one for one in found if issubclass(one, base)), None)


def taskset_of(name: str) -> Any:
    return exported(name, Taskset)


def resolve_env_config(given: Mapping[str, Any]) -> Any:
    name = given["taskset"]["id"]
    taskset = taskset_of(name).kind(TasksetConfig)(**given["taskset"])
    env = exported(name, Env) or SingleAgentEnv
    return env.kind(EnvConfig)(id=given["id"], taskset=taskset)


def load_environment(config: Any) -> Any:
    return (exported(config.taskset.id, Env) or SingleAgentEnv)(config)


@asynccontextmanager
async def provision_runtime(config: Any, env: Any = None) -> AsyncIterator[Any]:
    yield SimpleNamespace(config=config)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the modules in place until the test ends."""
    names = (
        "verifiers",
        "verifiers.v1",
        "verifiers.v1.utils",
        "verifiers.v1.utils.decorators",
        "verifiers.v1.state",
        "verifiers.v1.runtimes",
        "mcp",
        "mcp.server",
        "mcp.server.mcpserver",
    )
    made = {name: ModuleType(name) for name in names}
    here = sys.modules[__name__]
    for name, value in vars(here).items():
        if not name.startswith("_"):
            setattr(made["verifiers.v1"], name, value)
    record = SimpleNamespace
    about: dict[str, Any] = {
        "TraceTask": record,
        "AgentInfo": record,
        "EnvInfo": record,
        "Episode": lambda **given: SimpleNamespace(traces=[], **given),
        "ModelCall": record,
        "SubprocessConfig": record,
        "reward": mark("reward"),
        "stop": mark("stop"),
        "tool": mark("tool"),
    }
    for name, value in about.items():
        setattr(made["verifiers.v1"], name, value)
    made["verifiers.v1.utils.decorators"].invoke = invoke  # type: ignore[attr-defined]
    made["verifiers.v1.state"].state_cls = lambda kind: kind.kind(State)  # type: ignore[attr-defined]
    made["verifiers.v1.runtimes"].provision_runtime = provision_runtime  # type: ignore[attr-defined]
    made["mcp.server.mcpserver"].MCPServer = Server  # type: ignore[attr-defined]
    made["verifiers"].v1 = made["verifiers.v1"]  # type: ignore[attr-defined]
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
