"""Error texts for a wrong target, argument or dependency: the nearest valid name, the expected
ones, the extra to install.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gymnasium.error import DependencyNotInstalled

from equipoise import foreign
from equipoise.envs.families import old_gym
from equipoise.hints import install, message, nearest, raised

EXTRAS = {  # module -> this project's extra
    "ale_py": "atari",
    "mujoco": "mujoco",
    "imageio": "mujoco",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
    "minigrid": "minigrid",
    "msgspec": "serve",
    **dict.fromkeys(("jax", "gymnax", "craftax", "brax", "mujoco_playground"), "jax"),
}
GYMNASIUM_EXTRAS = {"mujoco": "mujoco", "mujoco-py": "mujoco", "atari": "atari"}


def unknown(what: str, name: str, known: Iterable[str], where: str = "") -> ValueError:
    """An error that names the nearest name, of the newest version."""
    by_key: dict[str, list[str]] = {}
    for candidate in known:
        by_key.setdefault(versionless(candidate), []).append(candidate)
    close = difflib.get_close_matches(versionless(name), by_key, n=1, cutoff=0.4)
    hint = f"; did you mean {max(by_key[close[0]], key=version)!r}?" if close else ""
    return ValueError(f"unknown {what} {name!r}{where}{hint}")


def unregistered(env_id: str, known: Iterable[str]) -> ValueError:
    """An error for an id that is not registered, or whose namespace is a module to import."""
    space, slash, _ = env_id.partition("/")
    if slash and importable(space) and not any(one.startswith(f"{space}/") for one in known):
        return ValueError(
            f"unknown env id {env_id!r}; if the module {space!r} registers it, write "
            f"{space}:{env_id}"
        )
    return unknown("env id", env_id, known)


def versionless(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id).lower()


def version(env_id: str) -> int:
    found = re.search(r"-v(\d+)$", env_id)
    return int(found[1]) if found else -1


def modules(name: str) -> list[str]:
    """List importable modules next to the intended one."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return [module.name for module in pkgutil.iter_modules()]
    try:
        package = importlib.import_module(parent)
    except ImportError:
        return modules(parent)
    return [
        f"{parent}.{module.name}"
        for module in pkgutil.iter_modules(foreign.optional(package, "__path__", []))
    ]


def hidden(module: str) -> str:
    """The end of an error if a module is hidden by another of the same name."""
    top = module.partition(".")[0]
    found, mine = sys.modules.get(top), importlib.machinery.PathFinder.find_spec(top, [os.getcwd()])
    if (
        found is None
        or mine is None
        or mine.origin is None
        or mine.origin == (file := foreign.optional(found, "__file__"))
    ):
        return ""
    where = file or "a part of Python"
    return f"; {top!r} is {where}, which comes before {mine.origin}: give yours another name"


def arguments(
    target: str,
    kwargs: Mapping[str, object],
    accepted: Mapping[str, object] | None,
    also: tuple[str, ...] = (),
) -> None:
    """ValueError for an argument not in ``accepted`` (names of a signature; "**": any)."""
    if accepted is None or "**" in accepted:
        return
    expected = [*accepted, *(key for key in also if key not in accepted)]
    for key in kwargs:
        if key not in expected:
            close = nearest(key, expected)
            hint = f" (did you mean {close!r}?)" if close else ""
            raise ValueError(
                f"{target} takes no argument {key!r}{hint}; it takes: "
                f"{', '.join(expected) or 'none'}"
            )


TRUE_WORDS, FALSE_WORDS = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
# words for True and False; 0 and 1 equal them and count as the same
WORDS: dict[object, object] = {
    **dict.fromkeys((*TRUE_WORDS, 1), True),
    **dict.fromkeys((*FALSE_WORDS, 0), False),
}
KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
}


def typed(name: str, value: Any, kind: type) -> None:
    """ValueError for a value of another type than ``kind``: "off" is true to Python."""
    said, taken = KINDS[kind]
    if isinstance(value, taken) and (kind is bool or not isinstance(value, bool)):
        return
    meant: Any = None
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if kind is bool:
            meant = WORDS.get(value.strip().lower() if isinstance(value, str) else value)
        elif (
            kind in (int, float)
            and not isinstance(value, bool)
            and (number := float(value)) == number
        ):
            meant = int(number) if number == int(number) else number if kind is float else None
    hint = "" if meant is None else f"; did you mean {str(meant).lower()}?"
    raise ValueError(f"{name}: expected {said}, got {value!r}{hint}")


@contextlib.contextmanager
def unexpected(
    target: str, kwargs: Mapping[str, object], known: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Turn the TypeError of a constructor behind ``**kwargs`` into the error of ``arguments``.

    ``known``: the names that may be meant.
    """
    try:
        yield
    except TypeError as error:
        named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if named is None or named[1] not in kwargs:
            raise
        close = nearest(named[1], set(known()))
        hint = f" (did you mean {close!r}?)" if close else ""
        raise ValueError(f"{target} takes no argument {named[1]!r}{hint}: {error}") from error


def required(
    target: str,
    kwargs: Mapping[str, object],
    accepted: Mapping[str, inspect.Parameter] | None,
    given: Iterable[str],
) -> None:
    """ValueError for a parameter without a default that is not in ``kwargs`` and not in
    ``given``.
    """
    missing = [
        name
        for name, p in (accepted or {}).items()
        if name != "**" and p.default is p.empty and name not in kwargs and name not in given
    ]
    if missing:
        name = missing[0]
        raise ValueError(
            f"{target}: expected a value for its argument{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}, got none: "
            f"--set env.{name}=VALUE, in Python env_kwargs={{{name!r}: VALUE}}"
        )


def no_name(target: str) -> str | None:
    """The hint for a target that is a path, or a module without its member; else None."""
    module, _, name = target.rpartition(":")
    path = module or target
    # an id may also have a slash
    if path.endswith(".py") or path.startswith((".", os.sep)) or os.sep in module:
        named = path.removesuffix(".py").strip(f".{os.sep}").replace(os.sep, ".")
        what = (name if module else "") or "make"
        return (
            f"env {target!r}: expected a module as an import names it, such as {named}:{what}, "
            "got a path"
        )
    if module and not name:
        return (
            f"env {target!r}: expected module:callable, such as {module}:make, got no name of "
            "what is in the module"
        )
    if not module and importable(target.partition(".")[0]):
        head, _, tail = target.rpartition(".")
        return (
            f"env {target!r}: expected module:callable, such as "
            f"{f'{head}:{tail}' if head else f'{tail}:make'}, got no colon"
        )
    return None


def importable(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


class NotMade(ValueError):
    """An env's constructor or module raised an error of its own, which is the cause."""


class UnsupportedSpace(ValueError):
    """The error of an observation or action space that the project has no arrays for."""


@contextlib.contextmanager
def explained(target: str) -> Iterator[None]:
    """Turn a missing dependency into an ImportError with its install command; name ``target``."""
    try:
        yield
    except UnsupportedSpace as error:
        raise UnsupportedSpace(f"{target}: {error}") from error
    except foreign.Unreadable as error:
        raise NotMade(f"{target} could not be made: {error}") from error.__cause__
    except DependencyNotInstalled as error:
        named = re.search(r"gymnasium\[([\w-]+)\]", str(error))
        extra = GYMNASIUM_EXTRAS.get(named[1]) if named else None
        raise ImportError(
            f"{target} needs {extra}: {install(extra)}" if extra else f"{target}: {error}"
        ) from error
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ImportError(
            f"{target} needs {error.name}: {install(extra)}", name=error.name
        ) from error
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:  # an env's constructor may raise anything
        if old_gym.REFUSED in message(error):
            raise old_gym.OldGym(f"{target}: {error}; {old_gym.REGISTERED}") from error
        raise NotMade(f"{target} could not be made: {raised(error)}") from error
