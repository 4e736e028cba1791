"""Engines that draw in servers, by the settings of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from equipoise.actors.engine.engine import OnUpdate
from equipoise.actors.engine.server_engine import Drawing, ServerEngine
from equipoise.actors.engine.sim_engine import NAME as SIM
from equipoise.actors.engine.sim_engine import latency
from equipoise.actors.engine.vllm import NAME, TESTED, Server, ServerFailed, addresses, token_for
from equipoise.nets.decoder import Decoder
from equipoise.types import Placement, TaskSource


def is_served(named: str) -> bool:
    """Does the setting ``engine`` name servers?"""
    return named.partition(":")[0] == NAME


def problems(source: TaskSource, place: Placement) -> list[str]:
    """Return what is wrong with the setting ``engine``."""
    named = source.engine
    try:
        if named == "torch":
            return []
        if named.partition(":")[0] == SIM:
            latency(named)
            return []
        servers = addresses(named)
        token_for(servers, source.engine_token_file)
    except (ValueError, OSError) as error:
        return [f"source.engine: {error}"]
    if place.actors > len(servers):
        return [
            f"placement.actors: must be at most {len(servers)}, since each generator has servers "
            f"of its own (source.engine={named}), got {place.actors}"
        ]
    return []


def check(source: TaskSource, place: Placement, length: int) -> None:
    """Ask each server whether samples can be learned from; ValueError if not."""
    if not is_served(source.engine):
        return
    for server in _servers(source):
        try:
            server.check(_versions(source), length, _on_update(source, place))
        except ServerFailed as error:
            raise ValueError(f"source.engine: {server} {error}") from None


def served(
    source: TaskSource,
    place: Placement,
    net: Decoder,
    how: Drawing,
    *,
    index: int,
    note: Callable[[str], object],
) -> ServerEngine:
    """Return the engine of generator ``index``, which has its own part of the servers."""
    how = replace(
        how,
        on_update=source.on_update,
        lockstep=place.max_lag == 0,
        versions=_versions(source),
    )
    servers = _servers(source)[index :: place.actors]
    return ServerEngine(servers, net, how, folder=source.engine_folder, note=note)


def _servers(source: TaskSource) -> list[Server]:
    named = addresses(source.engine)
    token = token_for(named, source.engine_token_file)
    return [Server(one, token, source.engine_deadline_s) for one in named]


def _versions(source: TaskSource) -> tuple[str, ...]:
    return source.engine_versions or TESTED


def _on_update(source: TaskSource, place: Placement) -> OnUpdate:
    # in lockstep no sample is under way when weights come
    return "finish" if place.max_lag == 0 else source.on_update
