"""The names that other libraries have for settings, options, algorithms and networks, for the hint
after an unknown name: read from ``peer_names.toml`` next to this file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    """Other libraries' names for one setting. ``only_with``: the part that the program's policies
    must have, such as ``replay``.
    """

    key: str
    names: list[str]
    only_with: str = ""
    note: str = ""  # how the value differs


@dataclass(frozen=True, slots=True)
class PeerNames:
    """The tables of the file. Each but ``settings`` and ``besides`` maps our word to the names in
    other libraries.
    """

    settings: list[Setting]
    options: dict[str, list[str]]
    words: dict[str, list[str]]
    commands: dict[str, list[str]]
    algorithms: dict[str, list[str]]
    besides: list[str]  # parts of the name of an algorithm that name its envs or machines


@cache
def peer_names() -> PeerNames:
    """The names of peers, read once, by the first error that asks."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return PeerNames(
        settings=[Setting(**entry) for entry in tables.pop("settings")],
        besides=tables.pop("besides"),
        **{
            name: {entry["ours"]: entry["names"] for entry in entries}
            for name, entries in tables.items()
        },
    )


def keys_of_peer(name: str) -> list[str]:
    """All of our settings that other libraries call ``name``, of every algorithm."""
    short = _short(name)
    return [one.key for one in peer_names().settings if short in one.names]


def key_of_peer(name: str, known: Collection[str]) -> tuple[str, str]:
    """(our key, how its value differs) for the peers' ``name``; ("", "") if it matches no key of
    ``known``.
    """
    short = _short(name)
    for one in peer_names().settings:
        if (
            short in one.names
            and (one.key in known or one.key.startswith("env."))
            and (not one.only_with or f"{one.only_with}.capacity" in known)
        ):
            return one.key, one.note
    return "", ""


def option_of_peer(name: str) -> str:
    """Our option for what peers call ``name``; "" if there is none."""
    return _found(_short(name), peer_names().options)


def command_of_peer(name: str) -> str:
    """Our command for what peers call ``name``; "" if there is none."""
    return _found(name, peer_names().commands)


def words_of_peer(name: str) -> str:
    """Our substitute for the peers' ``name``, in words; "" if it is not a peer's name.

    It is asked if ``key_of_peer`` finds no key: so a setting of a replay is one that the algorithm
    has not.
    """
    short = _short(name)
    for one in peer_names().settings:
        if one.key.startswith("replay.") and short in one.names:
            return f"it is {one.key!r} of algorithms with a replay, such as dqn and sac"
    return _found(short, peer_names().words)


def algorithm_of_peer(name: str, known: Collection[str]) -> str:
    """The end of an error about the algorithm that peers call ``name``; "" if it is not theirs.
    ``known``: ours.
    """
    plain = _plain(name)
    if ours := next((one for one in known if one.replace("_", "") == plain), ""):
        return f"; did you mean {ours!r}?"
    if said := _found(plain, peer_names().algorithms):
        return f"; {said}."
    return (
        "; that is an env, which comes first: equipoise train ENV --algorithm ppo."
        if re.search(r"-v\d+$", name)
        else ""
    )


def _found(name: str, table: dict[str, list[str]]) -> str:
    return next((ours for ours, names in table.items() if name in names), "")


def _plain(name: str) -> str:
    """``ppo_continuous_action`` and ``PPOConfig`` are ``ppo``."""
    besides = peer_names().besides
    parts = (part for part in re.split(r"[^a-z0-9]+", name.lower()) if part not in besides)
    return "".join(parts).removesuffix("config").removesuffix("trainer")


def _short(name: str) -> str:
    return name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
