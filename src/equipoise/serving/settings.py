"""Settings of ``equipoise serve``: each a field with its help, its option and its range. Nothing
here is slow to import
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from equipoise.facts import Flag, Help, Range

HERE, WHO, HOW, SAFE = "", "Who may ask", "Limits", "When the shield takes the place of the policy"
Json = Any  # a value that the option has in JSON
Backend = Literal["onnx", "torch"]
Count = Annotated[int, Range(1, 2e9)]
Amount = Annotated[float, Range(0, 1e9, above=True)]
CPU_S = 20.0  # seconds of processor time of a trial, without its imports
TRIAL = ("trial_s", "trial_memory")  # fields that "registry add" also has
MEMORY = 1 << 30  # bytes that a trial may take, without its imports


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The user's rules for a decision. ``low`` and ``high``: a number, or nested lists shaped like
    the action (a Box).

    ``fallback``: "best" takes the policy's deterministic action if it passes, "safe" always the
    safe action. ``safe``: that action as JSON; None: the middle of a Box, else the first allowed
    action.
    """

    low: Annotated[Json, Help("Lowest action, a number or a list."), Flag(SAFE, "JSON")] = None
    high: Annotated[Json, Help("Highest action."), Flag(SAFE, "JSON")] = None
    margin: Annotated[
        Amount | None,
        Help("How far observations may be out of their quantiles, times the quantiles' range."),
        Flag(SAFE, "X"),
    ] = None
    fallback: Annotated[
        Literal["best", "safe"],
        Help("Take the policy's best action if it passes, or always the safe one."),
        Flag(SAFE, "best|safe"),
    ] = "best"
    safe: Annotated[
        Json,
        Help("Default: mid of the space, or the first action."),
        Flag(SAFE, "JSON", "safe-action"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of ``equipoise serve``. Times in seconds, sizes in bytes."""

    policy: Annotated[
        str,
        Help("The policy to serve; a run or artifact with one policy needs no name."),
        Flag(HERE, "NAME"),
    ] = ""
    port: Annotated[
        Annotated[int, Range(0, 65535)] | None,
        Help("TCP port; 0 takes a free one, none listens on no port."),
        Flag(HERE),
    ] = 8000
    uds: Path | None = None
    decisions: Path | None = None
    observations: Annotated[bool, Help("Keep observations beside their decisions."), Flag(HERE)] = (
        True
    )
    backend: Annotated[
        Backend, Help("torch: for policies that ONNX cannot say."), Flag(HERE, "onnx|torch")
    ] = "onnx"
    trusted: tuple[str, ...] = ()
    threads: Annotated[Count, Help("Threads of the model."), Flag(HERE)] = 1
    batch: Annotated[
        int, Range(1, 4096), Help("Most rows that the model gets at once."), Flag(HERE)
    ] = 64
    seed: Annotated[
        Annotated[int, Range(0, (1 << 62) - 1)] | None,
        Help("Seed of exploring actions. Default: random."),
        Flag(HERE),
    ] = None
    host: Annotated[
        str, Help("Address; any but this machine's own needs a token."), Flag(WHO, "<str>")
    ] = "127.0.0.1"
    token: str | None = None
    hosts: Annotated[
        tuple[str, ...],
        Help("A name by which callers call this server."),
        Flag(WHO, "NAME", "allow-host"),
    ] = ()
    origins: Annotated[
        tuple[str, ...],
        Help("An origin whose web pages may ask."),
        Flag(WHO, "URL", "allow-origin"),
    ] = ()
    session_timeout_s: Annotated[
        Amount, Help("An episode without requests ends."), Flag(HOW, "S", "session-timeout")
    ] = 600.0
    most_sessions: Annotated[Count, Help("Open episodes."), Flag(HOW, "N", "max-sessions")] = 10_000
    most_body: Annotated[Count, Help("Of a request."), Flag(HOW, "BYTES", "max-body")] = 8 << 20
    most_connections: Annotated[
        Count, Help("Of HTTP, and of the socket."), Flag(HOW, "N", "max-connections")
    ] = 1024
    request_s: Annotated[
        Amount, Help("For a request to arrive."), Flag(HOW, "S", "request-timeout")
    ] = 10.0
    drain_s: Annotated[Amount, Help("For answers after SIGTERM."), Flag(HOW, "S", "drain")] = 10.0
    trial_s: Annotated[
        Amount, Help("Processor time of a new version's trial."), Flag(HOW, "S", "trial-time")
    ] = CPU_S
    trial_memory: Annotated[
        int, Range(1e6, 1e15), Help("Memory of a new version's trial."), Flag(HOW, "BYTES")
    ] = MEMORY
    deadline_ms: Annotated[
        Amount | None, Help("Latest answer, unless a request says another."), Flag(SAFE, "MS")
    ] = None
    rules: Rules = field(default_factory=Rules)
