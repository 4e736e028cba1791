"""Tasksets of the package verifiers (0.4: ``verifiers.v1``) as partners of conversations.

The taskset's own loader makes it, its ``Env`` plays an episode, and its tasks score the trace. The
policy plays the one agent of the env: ``agent.run`` is a conversation until a turn without a
call of a tool, ``interaction.turn`` gives the policy a message and returns its turn. Tools run in
this process, and not as servers. An episode that is cut ends for the env as at its own limit of
turns, and is scored.

======== ==================================================================== ==============
argument                                                                      default
======== ==================================================================== ==============
rows     most tasks that are read                                             all; 1000 of an
                                                                              endless taskset
env      the id of an env to pair with the taskset                            its own
others   settings of the taskset                                              its own
======== ==================================================================== ==============
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from equipoise import phases
from equipoise.foreign import Foreign
from equipoise.hints import install, raised, said, shortened
from equipoise.language.turns import openings
from equipoise.language.turns.partner import Partner
from equipoise.language.turns.tools import CALL, MOST_CALLS
from equipoise.private.verifiers import exit_stack, share_state
from equipoise.types.packed import Example, Prompt

PREFIX = "verifiers:"
ROWS = 1000  # of an endless taskset
MOST_ROWS = 1_000_000
LONGEST = 400  # characters of an error
CODE = ("task", "id")  # settings of a taskset that name code
OURS = ("rows", "env")


class NotPlayed(ValueError):
    """The error of an env that asks for what a policy cannot do as its agent."""


def _package(target: str) -> Foreign:
    try:
        import verifiers.v1 as vf
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("verifiers"):
            raise
        raise ImportError(f"task {target!r} needs verifiers: {install('verifiers')}") from error
    return vf


@dataclass(frozen=True, slots=True)
class World:
    """A taskset with its env."""

    name: str
    vf: Foreign  # the package
    env: Foreign
    tasks: Sequence[Foreign]
    tools: Sequence[Mapping[str, object]]  # as a chat template takes them

    @classmethod
    def of(cls, target: str, given: Mapping[str, object]) -> World:
        """Load the taskset that ``verifiers:NAME`` names; ValueError if it cannot be trained on."""
        at, named = f"task {target!r}", target.removeprefix(PREFIX)
        vf, settings = (
            _package(target),
            {key: value for key, value in given.items() if key not in OURS},
        )
        if not named:
            raise ValueError(f"{at}: must be verifiers:NAME with the name of a taskset, got none")
        for key in CODE:
            if key in settings:
                raise ValueError(
                    f"{at}: {key}: must be left out, since it names code; try a taskset of your "
                    "own that sets it"
                )
        most = given.get("rows")
        if most is not None and not (type(most) is int and 1 <= most <= MOST_ROWS):
            raise ValueError(f"{at}: rows: must be 1 to {MOST_ROWS:,}, got {most!r:.80}")
        phases.say(f"reading the taskset {named}")
        try:
            config = vf.resolve_env_config(
                {"taskset": {"id": named, **settings}, "id": str(given.get("env", ""))}
            )
            env = vf.load_environment(config)
            if most is None and env.taskset.INFINITE:
                most = ROWS
            tasks = list(islice(env.taskset, most if isinstance(most, int) else MOST_ROWS + 1))
        except ModuleNotFoundError as error:
            raise ValueError(f"{at}: must be an installed taskset, got {said(error)}") from error
        except (Exception, SystemExit) as error:  # whatever the code of a taskset raises
            wrong = shortened(" ".join(raised(error).split()), LONGEST)
            raise ValueError(f"{at}: must be a taskset with tasks, got {wrong}") from error
        if len(tasks) > MOST_ROWS:
            raise ValueError(
                f"{at}: must have at most {MOST_ROWS:,} tasks, got more; try rows={MOST_ROWS}"
            )
        agents = [name for name, one in config if isinstance(one, vf.AgentConfig)]
        if len(agents) != 1:
            raise ValueError(
                f"{at}: must be an env with one agent, which the policy is, got "
                f"{', '.join(agents) or 'none'}"
            )
        for task in tasks:
            if task.NEEDS_CONTAINER or task.data.image:
                raise ValueError(
                    f"{at}: must have tasks without a container, got {type(task).__name__} with "
                    f"{task.data.image or 'one'}; try it behind equipoise proxy"
                )
        world = cls(target, vf, env, tasks, [])
        try:
            tools = asyncio.run(world.declared()) if tasks else []
        except Exception as error:  # whatever a toolset raises
            raise ValueError(f"{at}: must have tools that begin, got {raised(error)}") from error
        return cls(target, vf, env, tasks, tools)

    def examples(self, deadline_s: float) -> list[Example]:
        """Return a row for each task, with the messages that its conversations begin with."""
        tools = {"tools": list(self.tools)} if self.tools else {}
        rows: list[dict[str, object]] = [{"task": n, **tools} for n in range(len(self.tasks))]
        return openings.examples(
            lambda: Opening(self),  # type: ignore[arg-type, return-value]  # async methods
            rows,
            f"task {self.name!r}",
            deadline_s,
        )

    def partner(self) -> Partner:
        """Return the partner of a new conversation."""
        return Conversation(self)  # type: ignore[return-value]  # whose methods are async

    def toolsets(self, task: Foreign) -> Sequence[Foreign]:
        """Return new toolsets of a task and of its taskset."""
        taskset = self.env.taskset
        return [*task.toolsets(task.config), *taskset.toolsets(taskset.config)]

    async def declared(self) -> list[Mapping[str, object]]:
        """Return the tools of the first task."""
        async with Tools.of(self.toolsets(self.tasks[0]), None, None) as tools:
            return tools.declared


# ---------------------------------------------------------------------------------------- the agent


class Tools:
    """The tools of one conversation, which run in this process."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[dict[str, object]], Foreign]] = {}
        self.declared: list[Mapping[str, object]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def of(
        cls, toolsets: Sequence[Foreign], task: Foreign, trace: Foreign
    ) -> AsyncIterator[Tools]:
        """Begin the toolsets of a task, and end them."""
        tools = cls()
        async with contextlib.AsyncExitStack() as stack:
            for one in toolsets:
                if getattr(one.config, "url", None):
                    raise NotPlayed(f"{type(one).__name__}: must run here, got one at a URL")
                await stack.enter_async_context(exit_stack(one))
                if trace is not None:
                    share_state(one, trace)
                await one.setup()
                if task is not None:
                    await one.setup_task(task.data)
                await tools._add(one)
            yield tools

    async def _add(self, toolset: Foreign) -> None:
        from mcp.server.mcpserver import MCPServer

        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        for tool in await server.list_tools():
            name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
            self._calls[name] = partial(server.call_tool, tool.name)
            function = {
                "name": name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            }
            self.declared.append({"type": "function", "function": function})

    async def call(self, name: str, given: object) -> str:
        """Return the text of a tool's result; of a call that cannot be run, its error."""
        if name not in self._calls:
            return f"error: unknown tool {name[:80]!r}; tools: {', '.join(self._calls) or 'none'}"
        if not isinstance(given, Mapping):
            return "error: arguments must be an object"
        try:
            result = await self._calls[name](dict(given))
        except Exception as error:  # as verifiers' servers answer what a tool raises
            return f"error: {shortened(' '.join(said(error).split()), LONGEST)}"
        parts = [text for one in result.content if (text := getattr(one, "text", None)) is not None]
        return "\n".join(parts)


class TurnQueues:
    """Turns between an env, which waits for the policy, and the conversation."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, Foreign]] = asyncio.Queue()
        self.said: asyncio.Queue[str | None] = asyncio.Queue()
        self.over = False  # the conversation was cut

    async def turn(self, messages: list[dict[str, object]]) -> str | None:
        """Give the policy messages; return its turn, or None if there is none any more."""
        if self.over:
            return None
        await self.asked.put(("messages", messages))
        return await self.said.get()


class PolicyAgent:
    """The policy as an agent of an env."""

    trainable = True

    def __init__(self, world: World, name: str, config: Foreign, turns: TurnQueues) -> None:
        self._world, self.name, self.config, self._turns = world, name, config, turns
        self.traces: list[Foreign] = []

    async def run(self, task: Foreign, **_: object) -> Foreign:
        """Play a task until a turn without a call."""
        async with self._play(task) as play:
            await play.segment(None)
        return play.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Foreign, **_: object) -> AsyncIterator[PolicyInteraction]:
        """Hold a task open, turn by turn."""
        async with self._play(task) as play:
            yield play

    @contextlib.asynccontextmanager
    async def _play(self, task: Foreign) -> AsyncIterator[PolicyInteraction]:
        play = PolicyInteraction(self._world.vf, task, self, self._turns)
        async with contextlib.AsyncExitStack() as stack:
            play.runtime = await stack.enter_async_context(_runtime(self._world.vf, task))
            play.tools = await stack.enter_async_context(
                Tools.of(self._world.toolsets(task), task, play.trace)
            )
            await play.invoke(task.setup)
            yield play
            play.trace.stop("agent_completed")
            await play.invoke(task.finalize)
            await task.score(play.trace, play.runtime)
            play.trace.ok = True
        self.traces.append(play.trace)


class PolicyInteraction:
    """A task under way, as ``Interaction`` of verifiers: ``turn`` and ``trace``."""

    def __init__(self, vf: Foreign, task: Foreign, agent: PolicyAgent, turns: TurnQueues) -> None:
        self._vf, self._task, self._turns = vf, task, turns
        self.trace = vf.Trace(
            task=vf.TraceTask(
                type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
            ),
            state=_state_of(task)(),
            agent=vf.AgentInfo(config=agent.config, name=agent.name, trainable=agent.trainable),
        )
        self.runtime: Foreign = None
        self.tools = Tools()
        self._over = False

    async def invoke(self, hook: Callable[..., Foreign]) -> None:
        from verifiers.v1.utils.decorators import invoke

        await invoke(hook, {"trace": self.trace, "runtime": self.runtime})

    async def turn(self, message: Foreign = None) -> Foreign:
        """Give the policy a message of the env; return its turn as a ``Segment``."""
        if self._over:
            raise RuntimeError("the exchange is over (the run ended); read interaction.trace")
        return await self.segment(message)

    async def segment(self, message: Foreign) -> Foreign:
        """Play until a turn without a call of a tool."""
        vf = self._vf
        if message is None:
            given = self._opening()
        elif isinstance(message, str):
            given = [vf.UserMessage(content=message)]
        else:
            given = [_typed(vf, one) for one in message]
        if not self.trace.nodes and message is not None and self._task.data.system_prompt:
            given = [vf.SystemMessage(content=self._task.data.system_prompt), *given]
        made: list[Foreign] = []
        while True:
            text = await self._turns.turn([_plain(one) for one in given])
            if text is None:
                self._over = True
                self.trace.stop("max_turns")
                return vf.Segment(messages=made, terminated=not made)
            for one in given:
                self._add(one)
            calls = self._calls(text)
            answer = vf.AssistantMessage(content=text, tool_calls=calls or None)
            self._add(answer, sampled=True)
            made.append(answer)
            if not calls or await self._stopped():
                return vf.Segment(messages=made)
            given = [await self._ran(call) for call in calls]
            made += given

    def _opening(self) -> list[Foreign]:
        vf, data = self._vf, self._task.data
        if data.prompt is None:
            raise NotPlayed("a task without a prompt must begin with a message of its env")
        prompt = (
            [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
        )
        return [
            *([vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []),
            *prompt,
        ]

    def _add(self, message: Foreign, *, sampled: bool = False) -> None:
        vf, nodes = self._vf, self.trace.nodes
        nodes.append(
            vf.MessageNode(
                parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled
            )
        )
        if sampled:
            self.trace.calls.append(vf.ModelCall(node=len(nodes) - 1, finish_reason="stop"))

    def _calls(self, text: str) -> list[Foreign]:
        """Return the calls in a turn that are JSON with a name."""
        found = []
        for number, one in enumerate(CALL.findall(text)[:MOST_CALLS]):
            with contextlib.suppress(ValueError, RecursionError):
                given = json.loads(one)
                if isinstance(given, dict) and isinstance(given.get("name"), str):
                    arguments = json.dumps(given.get("arguments", {}))
                    key = f"call_{len(self.trace.calls)}_{number}"
                    found.append(self._vf.ToolCall(id=key, name=given["name"], arguments=arguments))
        return found

    async def _ran(self, call: Foreign) -> Foreign:
        text = await self.tools.call(call.name, json.loads(call.arguments))
        return self._vf.ToolMessage(tool_call_id=call.id, content=text, name=call.name)

    async def _stopped(self) -> bool:
        """Ask the task's conditions to stop that read the trace."""
        from verifiers.v1.utils.decorators import invoke

        for hook in self._task.hooks("stop"):
            if await _awaited(invoke(hook, {"trace": self.trace, self._vf.Trace: self.trace})):
                self.trace.stop(hook.__name__)
                return True
        return False


# ------------------------------------------------------------------------------- the conversation


class Conversation:
    """The partner of one conversation: an episode of the env."""

    def __init__(self, world: World) -> None:
        self._world, self._turns = world, TurnQueues()
        self._episode: asyncio.Task[None] | None = None

    async def reset(self, row: Mapping[str, object]) -> Prompt:
        """Begin an episode of the task with the number in the column ``task``."""
        number: Foreign = row["task"]
        self._episode = asyncio.create_task(self._played(self._world.tasks[number]))
        kind, found = await self._turns.asked.get()
        if kind == "messages":
            prompt: Prompt = found
            return prompt
        if kind == "failed":
            raise found
        raise NotPlayed("the env must ask its agent for a turn, got an episode without one")

    async def step(self, text: str) -> tuple[Prompt | None, float]:
        """Give the env a turn; return its answer, or the reward of the episode at its end."""
        await self._turns.said.put(text)
        return await self._next()

    async def _next(self) -> tuple[Prompt | None, float]:
        kind, found = await self._turns.asked.get()
        if kind == "failed":
            raise found
        return (found, 0.0) if kind == "messages" else (None, found)

    async def end(self) -> float | None:
        """End an episode that is under way, as at a limit of turns; return its reward."""
        if self._episode is None or self._episode.done():
            return None
        if asyncio.get_running_loop() is not self._episode.get_loop():
            return None  # that loop was left behind, and its episode with it
        self._turns.over = True
        await self._turns.said.put(None)
        try:
            while (result := await self._next())[0] is not None:
                pass
        except asyncio.CancelledError:  # a tool or a judge that hangs, and does not end either
            self._episode.cancel()
            raise
        return result[1]

    async def _played(self, task: Foreign) -> None:
        """Play the episode, and say how it ended."""
        vf, env = self._world.vf, self._world.env
        try:
            agents_made: list[PolicyAgent] = []

            def agent(name: str, config: Foreign) -> PolicyAgent:
                agents_made.append(PolicyAgent(self._world, name, config, self._turns))
                return agents_made[-1]

            agents = vf.Agents(env.config, agent)
            about = vf.TraceTask(
                type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
            )
            episode = vf.Episode(env=vf.EnvInfo(id=env.config.env_id), task=about)
            await env.setup(agents)
            await env.run(task, agents)
            episode.traces = list(agents_made[0].traces)
            await env.finalize(task, episode)
            traces = [one for one in episode.traces if one.agent.trainable]
            await self._turns.asked.put(("reward", sum(float(one.reward) for one in traces)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # whatever an env raises costs its conversation
            await self._turns.asked.put(("failed", error))


class Opening(Conversation):
    """A partner whose prompt alone is read, so that no task is scored."""

    async def end(self) -> float | None:
        if self._episode is not None:
            self._episode.cancel()
            await asyncio.wait([self._episode])
        return None


@contextlib.asynccontextmanager
async def _runtime(vf: Foreign, task: Foreign) -> AsyncIterator[Foreign]:
    """A local runtime if a hook of the task needs one, else None."""
    from verifiers.v1.runtimes import provision_runtime

    kind = type(task)
    hooked = kind.setup is not vf.Task.setup or kind.finalize is not vf.Task.finalize
    if hooked or any(_asks(hook) for name in ("metric", "reward") for hook in task.hooks(name)):
        async with provision_runtime(vf.SubprocessConfig(), env=dict(task.runtime_env())) as box:
            yield box
    else:
        yield None


def _asks(hook: Callable[..., Foreign]) -> bool:
    """Has a hook a parameter for the runtime?"""
    return "runtime" in inspect.signature(hook).parameters


def _state_of(task: Foreign) -> Foreign:
    from verifiers.v1.state import state_cls

    return state_cls(type(task))


def _typed(vf: Foreign, message: Foreign) -> Foreign:
    if not isinstance(message, Mapping):
        return message
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "tool": vf.ToolMessage}
    if message.get("role") not in kinds:
        raise NotPlayed(
            f"a message of an env must be of {', '.join(kinds)}, got {message.get('role')!r:.40}"
        )
    return kinds[message["role"]].model_validate(message)


def _plain(message: Foreign) -> dict[str, object]:
    """Return a message as the policy's chat template takes it."""
    content = message.content
    if not isinstance(content, str):
        parts = [getattr(one, "text", None) for one in content or []]
        if any(one is None for one in parts):
            raise NotPlayed("a message must be text, got a part of another kind")
        content = "".join(str(one) for one in parts)
    named = {"name": message.name} if message.role == "tool" and message.name else {}
    return {"role": message.role, "content": content} | named


async def _awaited(value: Foreign) -> Foreign:
    return await value if asyncio.iscoroutine(value) else value
