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

    low: Annotated[Json, Help("Lowest action, as a number or a list"), Flag(SAFE, "JSON")] = None
    high: Annotated[Json, Help("Highest action, as a number or a list"), Flag(SAFE, "JSON")] = None
    margin: Annotated[
        Amount | None,
        Help("Slack around observation quantiles, in quantile ranges"),
        Flag(SAFE, "X"),
    ] = None
    fallback: Annotated[
        Literal["best", "safe"],
        Help("Replacement of a refused action: best if it passes, or safe"),
        Flag(SAFE, "best|safe"),
    ] = "best"
    safe: Annotated[
        Json,
        Help("Safe action (default: middle of a Box or first allowed)"),
        Flag(SAFE, "JSON", "safe-action"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of ``equipoise serve``. Times in seconds, sizes in bytes."""

    policy: Annotated[
        str, Help("Policy to serve; may be left out if there is one"), Flag(HERE, "NAME")
    ] = ""
    port: Annotated[
        Annotated[int, Range(0, 65535)] | None,
        Help("TCP port; 0 takes a free one, none opens no port"),
        Flag(HERE),
    ] = 8000
    uds: Path | None = None
    decisions: Path | None = None
    observations: Annotated[bool, Help("Store observations with their decisions"), Flag(HERE)] = (
        True
    )
    backend: Annotated[
        Backend,
        Help("Inference library; torch also serves weights alone"),
        Flag(HERE, "onnx|torch"),
    ] = "onnx"
    trusted: tuple[str, ...] = ()
    threads: Annotated[Count, Help("Threads of the model"), Flag(HERE)] = 1
    batch: Annotated[int, Range(1, 4096), Help("Most rows per forward pass"), Flag(HERE)] = 64
    seed: Annotated[
        Annotated[int, Range(0, (1 << 62) - 1)] | None,
        Help("Seed of sampled actions (default: random)"),
        Flag(HERE),
    ] = None
    host: Annotated[
        str, Help("Address to listen on; other machines need a token"), Flag(WHO, "<str>")
    ] = "127.0.0.1"
    token: str | None = None
    hosts: Annotated[
        tuple[str, ...],
        Help("Name by which callers reach this server; repeatable"),
        Flag(WHO, "NAME", "allow-host"),
    ] = ()
    origins: Annotated[
        tuple[str, ...],
        Help("Origin of web pages that may send requests; repeatable"),
        Flag(WHO, "URL", "allow-origin"),
    ] = ()
    session_timeout_s: Annotated[
        Amount,
        Help("Seconds without a request that end an episode"),
        Flag(HOW, "S", "session-timeout"),
    ] = 600.0
    most_sessions: Annotated[Count, Help("Most open episodes"), Flag(HOW, "N", "max-sessions")] = (
        10_000
    )
    most_body: Annotated[Count, Help("Most bytes of a request"), Flag(HOW, "BYTES", "max-body")] = (
        8 << 20
    )
    most_connections: Annotated[
        Count,
        Help("Most connections, over HTTP and over the socket each"),
        Flag(HOW, "N", "max-connections"),
    ] = 1024
    request_s: Annotated[
        Amount, Help("Seconds for a request to arrive"), Flag(HOW, "S", "request-timeout")
    ] = 10.0
    drain_s: Annotated[
        Amount, Help("Seconds for open answers after SIGTERM"), Flag(HOW, "S", "drain")
    ] = 10.0
    trial_s: Annotated[
        Amount, Help("Processor seconds of a new version's trial"), Flag(HOW, "S", "trial-time")
    ] = CPU_S
    trial_memory: Annotated[
        int, Range(1e6, 1e15), Help("Bytes of memory of a new version's trial"), Flag(HOW, "BYTES")
    ] = MEMORY
    deadline_ms: Annotated[
        Amount | None,
        Help("Deadline of an answer, unless the request has its own"),
        Flag(SAFE, "MS"),
    ] = None
    rules: Rules = field(default_factory=Rules)
