"""Options of the algorithm that a command line names: ``--clip 0.1`` is ``--set
algorithm.clip=0.1`` if that algorithm has a clip, and ``--lr`` is the optimizer's.

An option of the command itself wins over a field of the same name. The fields of built-in
algorithms are read from a table, without torch; a module of the user's is imported only if an
option is none of the command's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.facts import facts
from equipoise.programs import peer_names

LEARNING_RATE = "optimizer.learning_rate"
RATES = ("lr", "learning-rate")  # options of every algorithm
WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}  # values of a bool


def option_name(field: str) -> str:
    """The option of a field: ``lambda_`` is ``--lambda``."""
    return field.rstrip("_").replace("_", "-")


def after(option: str, args: Sequence[str]) -> list[str]:
    """The values of an option, as they were typed."""
    found = []
    for at, word in enumerate(args):
        if word.startswith(f"{option}="):
            found.append(word.partition("=")[2])
        elif word == option and at + 1 < len(args):
            found.append(args[at + 1])
    return found


def named_algorithms(command: str, args: Sequence[str], values: Sequence[str]) -> list[str]:
    """The algorithms of the run that a command line describes; ``values``: its arguments.

    Only built-in ones if a file names them, since a file may not have code imported.
    """
    if command == "resume":
        return _of_file(Path(values[0]) / "run.json") if values else []
    if named := after("--algorithm", args):
        return named[-1:]
    several = [text.partition("=")[2] for text in after("--policy", args)]
    if several := [name for name in several if name and not name.startswith("past:")]:
        return several
    if files := after("--config", args):
        return _of_file(Path(files[-1]))
    return ["ppo"]


def _of_file(file: Path) -> list[str]:
    from equipoise.files import LARGEST_JSON, parse_json, parse_toml, read_bounded
    from equipoise.programs.program import algorithm_names

    file = file / "run.json" if file.is_dir() else file
    try:
        parse = parse_toml if file.suffix == ".toml" else parse_json
        data = parse(read_bounded(file, LARGEST_JSON), str(file))
        policies = data.get("program", data)["policies"].values()
        names = [one["algorithm"]["name"] for one in policies if "algorithm" in one]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return []  # the command reads the file again, and reports what is wrong
    known = algorithm_names()
    return [name for name in names if name in known]


@cache
def _table() -> dict[str, Any]:
    file = Path(peer_names.__file__).with_name("algorithm_fields.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def built_in() -> dict[str, dict[str, bool]]:
    """The fields of each built-in algorithm, and whether each is a bool."""
    fields: dict[str, dict[str, bool]] = _table()["fields"]
    return fields


def with_replay(algorithms: Sequence[str]) -> bool:
    """Does one of these algorithms have a replay? One of the user's own may."""
    return any(
        name.lower() not in built_in() or name.lower() in _table()["replay"] for name in algorithms
    )


def own_fields(algorithms: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """(field, is it a bool) by the names of the options that these algorithms have; an unknown
    algorithm has none.
    """
    found: dict[str, bool] = {}
    for name in algorithms:
        if name.lower() in built_in():
            found |= built_in()[name.lower()]
            continue
        from equipoise.programs.program import algorithm_class

        try:
            cls = algorithm_class(name)
        except (ValueError, ImportError):  # reported when the command runs
            continue
        found |= {field: fact.kind is bool for field, fact in facts(cls).items()}
    return {option_name(field): (field, is_bool) for field, is_bool in found.items()}


def algorithms_having(option: str) -> list[str]:
    """The built-in algorithms with a field of this option's name."""
    name = option.lstrip("-").replace("_", "-")
    return [one for one in built_in() if name in own_fields([one])]


def as_settings(command: str, args: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """The arguments, with ``--set KEY=VALUE`` for each option of the named algorithm.

    ``takes_value``: the command's own options; what is neither stays for the parser to refuse.
    """
    return list(_Rewriting(command, list(args), takes_value).words())


class _Rewriting:
    def __init__(self, command: str, args: list[str], takes_value: Mapping[str, bool]) -> None:
        self._command, self._args, self._takes = command, args, takes_value
        self._own: Mapping[str, tuple[str, bool]] | None = None

    def words(self) -> Iterator[str]:
        rest = list(self._args)
        while rest:
            word = rest.pop(0)
            name, given, value = word.partition("=")
            if word == "--":
                yield from (word, *rest)
                return
            if name in self._takes or not word.startswith("--"):
                yield word
                if self._takes.get(name) and not given and rest:
                    yield rest.pop(0)
            elif (key := self._key(name)) is None:
                yield word
            else:
                setting, negated, is_bool = key
                if negated:
                    yield from ("--set", f"{setting}=false")
                elif given:
                    yield from ("--set", f"{setting}={value}")
                elif is_bool and (not rest or rest[0].lower() not in WORDS):
                    yield from ("--set", f"{setting}=true")
                elif rest:
                    yield from ("--set", f"{setting}={rest.pop(0)}")
                else:
                    raise ValueError(f"option {name!r} requires an argument.")

    def _key(self, word: str) -> tuple[str, bool, bool] | None:
        """(setting, is it negated, is it a bool) of an option; None for no such field."""
        name = word[2:].replace("_", "-")
        if name in RATES:
            return LEARNING_RATE, False, False
        if self._own is None:
            self._own = own_fields(named_algorithms(self._command, self._args, self._positional()))
        for option, negated in ((name, False), (name.removeprefix("no-"), True)):
            field, is_bool = self._own.get(option, ("", False))
            if field and (not negated or is_bool):
                return f"algorithm.{field}", negated, is_bool
        return None

    def _positional(self) -> list[str]:
        """The arguments before the first option that is none of the command's."""
        found, rest = [], list(self._args)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-"):
                found.append(word)
            elif rest and self._takes.get(word, "=" not in word):
                rest.pop(0)
        return found
