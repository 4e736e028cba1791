"""A ``Program`` as JSON and back, wherein two of them differ, and the names of algorithms."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import os
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard, get_args

from equipoise import algorithms, trust
from equipoise.envs.hints import hidden
from equipoise.facts import AUTO, Fact, facts, values_of
from equipoise.hints import hint, raised, shortened, where_modules_lie
from equipoise.naming import called
from equipoise.programs.fields import PARTS, classes, of_terms
from equipoise.programs.peer_names import algorithm_of_peer
from equipoise.programs.settings import asked, convert, field_types, with_terms
from equipoise.sums import ENV
from equipoise.types import (
    SOURCES,
    Algorithm,
    Frozen,
    Learns,
    Optimizer,
    Policy,
    Program,
    ReplaySettings,
    Rewards,
    SourceSettings,
)

__all__ = [
    "algorithm_class",
    "algorithm_from_json",
    "algorithm_json",
    "algorithm_name",
    "algorithm_names",
    "differences",
    "from_json",
    "text_algorithm_names",
    "to_json",
    "to_plain",
]

BUILT_IN = algorithms.__name__


# --------------------------------------------------------------------------------------- algorithms


def algorithm_names() -> list[str]:
    """The built-in algorithms: the files of ``equipoise/algorithms/``, without importing them."""
    return sorted(
        m.name for m in pkgutil.iter_modules(algorithms.__path__) if not m.name.startswith("_")
    )


def text_algorithm_names() -> list[str]:
    """The built-in algorithms that learn from text."""
    return [name for name in algorithm_names() if algorithm_class(name).needs_task]


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm (``"ppo"``) or of any other (``"module:Class"``)."""
    if ":" in name:
        return _outside(name)
    names = algorithm_names()
    if name not in names:
        said = algorithm_of_peer(name, names) or hint(name, names)
        raise ValueError(
            f"unknown algorithm {name!r}{said} An algorithm of your own is 'module:Class'."
        )
    module = importlib.import_module(f"{BUILT_IN}.{name}")
    found = [
        value
        for key, value in vars(module).items()
        if _is_algorithm(value) and value.__module__ == module.__name__ and not key.startswith("_")
    ]
    if len(found) != 1:
        raise ValueError(
            f"{module.__name__}: expected one public Algorithm, got {[c.__name__ for c in found]}"
        )
    return found[0]


def _outside(name: str) -> type[Algorithm]:
    module_name, _, qualname = name.partition(":")
    try:
        value: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"algorithm {name!r}: expected an importable module, got "
            f"{error}.{_as_module(name)} {where_modules_lie()}"
        ) from error
    except Exception as error:  # the module of a user may raise anything
        if meant := _as_module(name):
            raise ValueError(
                f"algorithm {name!r}: expected a module, got a path.{meant}"
            ) from error
        raise ValueError(
            f"algorithm {name!r}: expected a module that can be imported, got {raised(error)}"
        ) from error
    for part in qualname.split("."):
        if not hasattr(value, part):
            known = [key for key, member in vars(value).items() if _is_algorithm(member)]
            raise ValueError(
                f"algorithm {name!r}: {module_name} has no "
                f"{part!r}{hint(part, known)}{hidden(module_name)}"
            )
        value = getattr(value, part)
    if not _is_algorithm(value):
        raise ValueError(
            f"algorithm {name!r}: expected a concrete subclass of equipoise.types.Algorithm, got "
            f"{_not_one(value)}"
        )
    if lost := _no_fields(value):
        raise ValueError(
            f"algorithm {name!r}: expected @dataclass(frozen=True, kw_only=True) above the class, "
            f"got none, so {', '.join(lost)} would have no effect"
        )
    return value


def _no_fields(cls: type[object]) -> list[str]:
    """Annotated names that have no effect, since their class lacks the decorator."""
    return [
        name
        for base in cls.__mro__
        if issubclass(base, Learns) and "__dataclass_fields__" not in vars(base)
        for name, kind in inspect.get_annotations(base).items()
        if "ClassVar" not in str(kind)
    ]


def _as_module(name: str) -> str:
    """The hint for a path of a file in place of a module; "" for a module."""
    module, _, qualname = name.partition(":")
    if not (module.endswith(".py") or module.startswith(".") or os.sep in module):
        return ""
    if module.startswith(("..", os.sep)):
        file = os.path.basename(module).removesuffix(".py")
        return f" Run the command in the folder of the file, and write {file}:{qualname}."
    named = module.removesuffix(".py").strip(f".{os.sep}").replace(os.sep, ".")
    return f" Write the module as an import does: {named}:{qualname}."


def _not_one(value: object) -> str:
    """The value, and the methods that a subclass of Algorithm lacks."""
    missing = (
        sorted(value.__abstractmethods__)
        if inspect.isclass(value) and issubclass(value, Algorithm)
        else []
    )
    return f"{value!r} without {', '.join(missing)}" if missing else repr(value)


def _is_algorithm(value: object) -> TypeGuard[type[Algorithm]]:
    return inspect.isclass(value) and issubclass(value, Learns) and not inspect.isabstract(value)


def algorithm_name(cls: type[Algorithm]) -> str:
    """The name by which ``algorithm_class`` finds this class again, in this process or another."""
    package, _, file = cls.__module__.rpartition(".")
    if package == BUILT_IN and algorithm_class(file) is cls:
        return file
    return _class_name(cls, "an algorithm")


def _class_name(cls: type[object], what: str) -> str:
    if "<" in cls.__qualname__:  # "<locals>", "<lambda>": no import reaches it
        raise ValueError(
            f"{cls.__qualname__}: expected {what} at the top of a module, so that a run can be "
            "read back"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


# --------------------------------------------------------------------------------------------- JSON


def to_json(program: Program) -> dict[str, Any]:
    """Write a Program as plain dicts, lists and scalars; ValueError for what JSON cannot hold."""
    data = {
        name: _part_json(part, name)
        for name, part in values_of(program).items()
        if classes(facts(type(program))[name].kind)
    }
    if type(program.source) not in SOURCES:
        data["source"] = {"kind": _class_name(type(program.source), "a source")} | data["source"]
    data["policies"] = {
        name: _policy_json(policy, f"policies.{name}") for name, policy in program.policies.items()
    }
    data["route"] = dict(program.route)
    return data


def _part_json(part: object, where: str) -> Any:
    if not dataclasses.is_dataclass(part):
        return to_plain(part, "env" if where == "source.env.kwargs" else where)
    return {name: _part_json(value, f"{where}.{name}") for name, value in values_of(part).items()}


def _policy_json(policy: Policy | Frozen, where: str) -> dict[str, object]:
    data = values_of(policy)
    if isinstance(policy, Frozen):
        return data
    for part in ("optimizer", "rewards"):
        data[part] = {
            name: to_plain(value, f"{where}.{part}.{name}")
            for name, value in values_of(data[part]).items()
        }
    data["replay"] = None if policy.replay is None else values_of(policy.replay)
    data["algorithm"] = algorithm_json(policy.algorithm, f"{where}.algorithm")
    return data


def algorithm_json(algorithm: Algorithm, where: str) -> dict[str, object]:
    """An algorithm as its name and its hyper-parameters."""
    fields = {
        name: to_plain(value, f"{where}.{name}") for name, value in values_of(algorithm).items()
    }
    return {"name": algorithm_name(type(algorithm)), "fields": fields}


def algorithm_from_json(data: object, where: str) -> Algorithm:
    """The inverse of ``algorithm_json``."""
    given = _known(data, ("name", "fields"), where, required=("name",))
    cls = algorithm_class(convert(given["name"], str, f"{where}.name"))
    kinds = field_types(cls)
    fields = _known(given.get("fields", {}), kinds, f"{where}.fields")
    return cls(
        **{
            key: convert(value, kinds[key], f"{where}.fields.{key}")
            for key, value in fields.items()
        }
    )


ARGUMENTS = ("env", "source.arguments", "source.chat_template_kwargs")  # they may be of any type


def to_plain(value: object, where: str) -> object:
    """Turn a value into JSON's types; ValueError names the place of a value that JSON cannot
    hold.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has no infinity; as a text it comes back as a number if the field is one, which an
        # argument of an env or a task is not.
        if math.isfinite(value):
            return value
        if math.isinf(value) and not where.startswith(ARGUMENTS):
            return "inf" if value > 0 else "-inf"
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_plain(item, f"{where}.{key}") for key, item in value.items()}
    elif isinstance(value, list | tuple):
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ValueError(
        f"{where}: expected a value that JSON can hold (numbers, texts, lists, dicts), got "
        f"{value!r}"
    )


def from_json(data: Mapping[str, object]) -> Program:
    """The inverse of ``to_json``; unknown, missing and wrong values are errors that name the
    place.
    """
    if "env" in data and "source" not in data:
        raise ValueError(
            "program: expected source, policies, placement, schedule and evaluation, got the "
            "settings of an older version; train again, or go on with the version that run.json "
            "names"
        )
    _known(data, facts(Program), "program", required=("source", "policies"))
    policies = data["policies"]
    if not isinstance(policies, Mapping):
        raise ValueError(f"program.policies: expected a JSON object, got {policies!r}")
    if not any(isinstance(policy, Mapping) and "of" not in policy for policy in policies.values()):
        raise ValueError("program.policies: expected at least one policy that learns, got none")
    read = {name: _policy(value, f"program.policies.{name}") for name, value in policies.items()}
    parts = {
        key: _field(facts(Program)[key], value, f"program.{key}")
        for key, value in data.items()
        if key != "policies"
    }
    return Program(policies=read, **parts)


def _policy(data: object, where: str) -> Policy | Frozen:
    if isinstance(data, Mapping) and "of" in data:
        kinds = field_types(Frozen)
        _known(data, kinds, where)
        return Frozen(
            **{key: convert(value, kinds[key], f"{where}.{key}") for key, value in data.items()}
        )
    kinds = field_types(Policy)
    data = _known(data, kinds, where, required=("algorithm", "unroll", "batch"))
    made = Policy(
        optimizer=_read(Optimizer, data.get("optimizer"), f"{where}.optimizer"),
        rewards=_read(Rewards, data.get("rewards", {}), f"{where}.rewards"),
        replay=_read(ReplaySettings, data.get("replay"), f"{where}.replay"),
        algorithm=algorithm_from_json(data["algorithm"], f"{where}.algorithm"),
        **{
            key: convert(value, kinds[key], f"{where}.{key}")
            for key, value in data.items()
            if key not in PARTS
        },
    )
    return _with_read_terms(made, f"{where}.rewards.terms")


def _with_read_terms(policy: Policy, where: str) -> Policy:
    """The policy with the settings of its terms in their types, and all of them."""
    given = {
        f"reward.{term}.{field}": value
        for term, several in policy.rewards.terms.items()
        for field, value in several.items()
    }
    if policy.rewards.sum == ENV and not given:
        return policy
    plain = dataclasses.replace(policy, rewards=dataclasses.replace(policy.rewards, terms={}))
    kinds = {one.key: one.fact.kind for one in of_terms(plain)}
    for key in given:
        if key not in kinds:
            raise ValueError(f"{where}: unknown setting {key!r}{hint(key, kinds)}")
    read = {key: convert(value, kinds[key], f"{where}, {key}") for key, value in given.items()}
    return with_terms(plain, read)


def _read(cls: type[object], data: object, where: str) -> Any:
    """The dataclass that JSON describes; None for None."""
    if data is None:
        return None
    known = facts(cls)
    needed = tuple(name for name, fact in known.items() if fact.default is dataclasses.MISSING)
    given = _known(data, known, where, required=needed)
    read = {key: _field(known[key], value, f"{where}.{key}") for key, value in given.items()}
    if auto := [key for key, value in read.items() if known[key].auto and value == AUTO.word]:
        read = {key: value for key, value in read.items() if key not in auto}
        read["auto"] = tuple(dict.fromkeys((*read.get("auto", ()), *auto)))
    return cls(**read)


def _field(fact: Fact, value: object, where: str) -> Any:
    """A value of a field, or its dataclass; of a source the kind that has the keys of ``value``."""
    parts = classes(fact.kind)
    if not parts:
        return asked(value, fact, where)
    if value is None and type(None) not in get_args(fact.kind):
        raise ValueError(f"{where}: expected a JSON object, got None")
    if fact.kind is SourceSettings and isinstance(value, Mapping) and "kind" in value:
        return _read(
            _source_class(value["kind"], f"{where}.kind"),
            {k: v for k, v in value.items() if k != "kind"},
            where,
        )
    fits = [
        cls
        for cls in parts
        if isinstance(value, Mapping) and all(key in facts(cls) for key in value)
    ]
    return _read((fits or parts)[0], value, where)


def _source_class(name: object, where: str) -> type[SourceSettings]:
    if not trust.is_class_name(name):
        raise ValueError(
            f"{where}: expected the module:Class of a source, got {shortened(repr(name), 80)}"
        )
    cls: object = called(name, where)
    if not (inspect.isclass(cls) and issubclass(cls, SourceSettings)):
        raise ValueError(
            f"{where}: expected the module:Class of a source, got {name!r}, which is {cls!r}"
        )
    return cls


def _known(
    data: object, known: Collection[str], where: str, required: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """The JSON object, which has these keys alone; ValueError for anything else."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected a JSON object, got {data!r}")
    for key in data:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{hint(str(key), known)}")
    if missing := [key for key in required if key not in data]:
        raise ValueError(f"{where}: expected the keys {list(required)}, got none named {missing}")
    return data


# -------------------------------------------------------------------------------------- differences


def differences(old: Program, new: Program) -> dict[str, list[object]]:
    """{key: [old, new]} of everything that differs, by the keys of ``--set``.

    If there are several policies, a policy's keys begin with ``policies.NAME.``.
    """
    a, b = _flat(old), _flat(new)
    return {
        key: [a.get(key), b.get(key)]
        for key in (*a, *(k for k in b if k not in a))
        if a.get(key) != b.get(key)
    }


def _flat(program: Program) -> dict[str, Any]:
    data = to_json(program)
    flat: dict[str, Any] = {"route": data["route"]}
    if (env := data["source"].get("env")) is not None:
        flat |= {f"env.{key}": value for key, value in env.pop("kwargs").items()}
    for part in [name for name in data if name not in ("route", "policies")]:
        flat |= _paths(data[part], f"{part}.")
    several = len(data["policies"]) > 1
    for name, policy in data["policies"].items():
        room, algorithm = f"policies.{name}." if several else "", policy.pop("algorithm", None)
        for part in ("optimizer", "rewards", "replay"):
            if (fields := policy.pop(part, None)) is not None:
                for term, several in fields.pop("terms", {}).items():
                    flat |= {f"{room}reward.{term}.{key}": one for key, one in several.items()}
                flat |= {f"{room}{part}.{key}": value for key, value in fields.items()}
        if algorithm is not None:
            flat |= {f"{room}algorithm": algorithm["name"]}
            flat |= {f"{room}algorithm.{key}": value for key, value in algorithm["fields"].items()}
        flat |= {f"{room or 'policy.'}{key}": value for key, value in policy.items()}
    return flat


def _paths(data: Mapping[str, object], room: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        found |= (
            _paths(value, f"{room}{key}.")
            if isinstance(value, Mapping)
            else {f"{room}{key}": value}
        )
    return found
