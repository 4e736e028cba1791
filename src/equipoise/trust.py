"""Trust: which code that a file names may be imported and called.

A run directory and a capsule name their env, algorithm, torso, task and rewards as
``module:callable``, and people send each other both. Equipoise imports or calls a name of a file
only if

- it is ours: a built-in algorithm, torso or reward, an env of ``equipoise.envs``,
- it is an id of Gymnasium, PettingZoo, EnvPool or the like, which names no module,
- the user vouches for it by name (``--trust MODULE`` or ``MODULE:NAME``; OLD=NEW if it has another
  name now), or
- this user's own run wrote the file: it is signed with a key in the user's state directory,
  together with the places where the modules were found then. A module of that name which lies
  elsewhere is another one.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import hmac
import importlib.util
import json
import os
import pkgutil
import re
import secrets
import shlex
import site
import stat
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from equipoise import sums
from equipoise.access import is_local
from equipoise.hints import shortened, where_modules_lie

OURS = re.compile(
    r"(python:)?equipoise\.envs:(Catch|BitFlip|TMaze|RepeatFirst|Ruler)(Vector)?|(python:)?equipoise\.chaos\.envs:Faulty"
    r"|equipoise\.chaos\.ruling:\w+"
)
# ids of packages, and addresses of worlds, which name no module of their own
FAMILIES = re.compile(r"(python:)?(envpool|pettingzoo):[\w./-]+|remote:(tcp|unix):\S+")
CLASS = re.compile(r"[A-Za-z_][\w.]{0,200}:[A-Za-z_]\w{0,100}")  # module:Class
REWARDS = re.compile(r"equipoise\.language\.scoring\.(own|reasoning):\w+")  # of ours
# tasks without a module
DATA = re.compile(r"reasoning_gym:\w+|proxy:[\w.:\[\]-]+|.*\.(jsonl|parquet)")
PATH = re.compile(r"[/\\]|\.(jsonl|json|parquet)$")  # the marks of a file's path
OPENED = ("store", "demonstrations")  # settings of terms that name a folder or a file
SCORE = "score"  # setting of a term that names code
PLACES = ("URL", "address")  # kinds of names that are connected to
FILES = ("adapter", "argument", "model", "reward model", "reward setting")  # kinds that are opened
HANDS_ON = re.compile(r"(python:)?GymV2\d\w*-v\d+")  # ids that import what their arguments name
RENAMED = re.compile(r"[A-Za-z_][\w.]*(:[\w.]+)?=[A-Za-z_][\w.]*(:[\w.]+)?")  # --trust OLD=NEW
KEY_BYTES = 32
LONGEST = 1000  # characters of a name that is not trusted yet
Names = Sequence[tuple[str, str]]  # (its kind, module:callable), such as ("env", "my_envs:make")


class Untrusted(ValueError):
    """A file that names code for which the user did not vouch."""


def of_program(program: object) -> tuple[Names, object]:
    """The code that a program or a ``spec.json`` names, and the JSON that decides its use."""
    if not isinstance(program, Mapping):
        return [], None
    source, policies = program.get("source"), program.get("policies")
    names, signed = of_env(source.get("env") if isinstance(source, Mapping) else None)
    texts = of_task(source)
    kind = source.get("kind") if isinstance(source, Mapping) else None
    names = [*names, *texts, *([("source", str(kind))] if is_class_name(kind) else [])]
    algorithms: dict[str, object] = {}
    rewards: dict[str, object] = {}
    for policy, given in policies.items() if isinstance(policies, Mapping) else ():
        algorithm = given.get("algorithm") if isinstance(given, Mapping) else None
        if not isinstance(algorithm, Mapping):
            continue
        algorithms[policy] = algorithm
        fields = algorithm.get("fields")
        torso = fields.get("torso") if isinstance(fields, Mapping) else None
        of_algorithm = (("algorithm", algorithm.get("name")), ("torso", torso))
        names = [*names, *((what, str(name)) for what, name in of_algorithm if _outside(name))]
        if terms := of_rewards(given.get("rewards")):
            names, rewards[policy] = [*names, *terms], given["rewards"]
    said: dict[str, object] = {"texts": texts} if texts else {}
    said |= {"rewards": rewards} if rewards else {}
    said |= {} if kind is None else {"source": source}
    if arguments := source.get("arguments") if isinstance(source, Mapping) else None:
        said["arguments"] = arguments
    return names, {"env": signed, "algorithms": algorithms} | said


def is_class_name(kind: object) -> TypeGuard[str]:
    """Return whether a value is "module:Class"; nothing else is imported as a kind of source."""
    return isinstance(kind, str) and CLASS.fullmatch(kind) is not None


def of_task(source: object) -> Names:
    """The code that the source of a run on text names, and the files that it would open."""
    if not isinstance(source, Mapping) or "task" not in source:
        return []
    task, model = source["task"], str(source.get("model", ""))
    rewards = [name for key in ("reward", "gold") for name in sums.codes(str(source.get(key, "")))]
    paths = [("task", str(task))] if PATH.search(str(task)) else []
    arguments = source.get("arguments")
    texts = (
        arguments.split(",")
        if isinstance(arguments, str)
        else arguments
        if isinstance(arguments, Sequence)
        else ()
    )
    paths += [
        ("argument", value)
        for one in texts
        if PATH.search(value := str(one).partition("=")[2].strip())
    ]
    paths += (
        [("model", model)]
        if model and not re.fullmatch(r"tiny|(llama|qwen2|qwen3):.*", model)
        else []
    )
    if adapter := source.get("adapter"):
        paths.append(("adapter", str(adapter)))
    return [*of_text(task, rewards), *paths]


def of_rewards(rewards: object) -> Names:
    """The code that a sum of rewards names, and the files that its terms would open."""
    if not isinstance(rewards, Mapping):
        return []
    terms = rewards.get("terms")
    several = terms.values() if isinstance(terms, Mapping) else ()
    values = [
        (key, value)
        for one in several
        if isinstance(one, Mapping)
        for key, value in one.items()
        if isinstance(value, str)
    ]
    return [
        *(_term(name) for name in sums.codes(rewards.get("sum")) if _outside(name)),
        *(("reward score", value) for key, value in values if key == SCORE and ":" in value),
        *(
            ("reward setting", value)
            for key, value in values
            if PATH.search(value) or (key in OPENED and value)
        ),
    ]


def of_cluster(settings: object) -> Names:
    """The Ray cluster that settings would connect to, unless it is one of this user's own."""
    address = settings.get("address") if isinstance(settings, Mapping) else None
    return [] if address in (None, "auto", "local") else [("address", str(address))]


def of_env(env: object) -> tuple[Names, object]:
    """The same of an env: {"target": ..., "kwargs": ...}."""
    target = env.get("target") if isinstance(env, Mapping) else None
    outside = _outside(target) or (isinstance(target, str) and HANDS_ON.fullmatch(target))
    return [("env", str(target))] if outside else [], env


def of_text(task: object, rewards: Sequence[object]) -> Names:
    """The code that the name of a task and the names of reward functions refer to."""
    outside = isinstance(task, str) and ":" in task and not DATA.fullmatch(task)
    names = _of_task_name(str(task)) if outside else []
    for name in (str(one) for one in rewards):
        if name.startswith(sums.MODELS):
            names.append(_term(name))
        elif not REWARDS.fullmatch(name):
            names.append(("reward", name))
    return names


def _of_task_name(task: str) -> list[tuple[str, str]]:
    """The code or the server that the name of a task refers to."""
    kind, _, name = task.partition(":")
    if kind == "verifiers":  # as its loader makes a module's name of owner/name@version
        module = name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
        return [("task", f"{module}:taskset")]
    if kind == "openenv":
        try:
            host = urlsplit(name if "://" in name else f"http://{name}").hostname or ""
        except ValueError:
            host = ""
        return [] if is_local(host) else [("URL", name)]
    return [("task", task)]


def _term(name: str) -> tuple[str, str]:
    """The kind and the name of code, or of the place of a reward model, in a sum."""
    if name.startswith(sums.MODELS):
        return "reward model", name.removeprefix("run:")
    return "reward term", name


def _outside(name: object) -> bool:
    return (
        isinstance(name, str)
        and ":" in name.removeprefix("python:")
        and not (OURS.fullmatch(name) or FAMILIES.fullmatch(name))
    )


def renamed(data: Any, trusted: Sequence[str]) -> Any:
    """A file's data with the new names of modules that ``trusted`` renames: "OLD=NEW"."""
    for one in trusted:
        if RENAMED.fullmatch(one):
            old, _, new = one.partition("=")
            # at the begin of a text, or within a sum
            place = re.compile(rf"(^(?:python:)?|[-+*,]\s*){re.escape(old)}(?=$|[-+*,:\s])")
            data = _with_name(data, place, new)
    return data


def _with_name(value: object, old: re.Pattern[str], new: str) -> object:
    if isinstance(value, Mapping):
        return {key: _with_name(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_name(item, old, new) for item in value]
    if isinstance(value, str) and ":" in value:
        return old.sub(rf"\g<1>{new}", value)
    return value


def check(
    names: Names, signed: object, signature: object, trusted: Sequence[str], file: Path | str
) -> None:
    """Raise ``Untrusted``, with the import at stake, unless all ``names`` of a file are allowed."""
    unknown = [(what, name) for what, name in names if not vouched(name, trusted)]
    if not unknown:
        return
    # as bytes, since ``compare_digest`` takes only ASCII texts
    given = signature.encode(errors="replace") if isinstance(signature, str) else b""
    if (right := sign(names, signed)) and hmac.compare_digest(right.encode(), given):
        return
    for what, name in unknown:
        if len(name) > LONGEST or not name.isprintable():
            raise Untrusted(
                f"{file}: {what}: must be a name of at most {LONGEST:,} printable characters, got "
                f"{shortened(ascii(name))}"
            )
    what, name = unknown[0]
    module = "" if what in (*PLACES, *FILES) else _module(name)
    if module == "__main__" and _plain(name).partition(":")[2] not in vars(sys.modules["__main__"]):
        raise Untrusted(
            f"{file}: {what} {_plain(name)!r} was defined by a script or in a notebook; it can go "
            "on there alone, after "
            f"{_plain(name).partition(':')[2]} is defined again, or from a module of yours that "
            "has it"
        )
    options = " ".join(
        f"--trust {shlex.quote(short)}"
        for short in dict.fromkeys(_plain(name) for _, name in unknown)
    )
    said = ", ".join(repr(_plain(name)) for _, name in unknown)
    if module and _place(module) is None:
        top = module.partition(".")[0]
        near = next(iter(difflib.get_close_matches(top, _modules_of_users(), 1, 0.6)), "")
        meant = f"; did you mean {near!r}?" if near else "."
        raise Untrusted(
            f"{file}: module {module!r} of {what} {_plain(name)!r} is not there{meant} "
            f"{where_modules_lie()} If it has another name now: "
            f"--trust {module}={module.replace(top, near or 'NEW', 1)} (from Python trust=[...])"
        )
    does = (
        "" if not module else (f" would be imported from {_place(module)}, and its code would run")
    )
    if what in FILES:
        does = " would be opened"
    if what in PLACES:
        does = " would be connected to"
    does = does or f" would import what {'the arguments of ' if what == 'env' else ''}it names"
    raise Untrusted(
        f"{file}: {what} {_plain(name)!r}{does}. Nothing shows that your own 'train' wrote this "
        "file here. If you trust it: "
        f"{options} (from Python trust=[{said}])"
    )


def _modules_of_users() -> list[str]:
    """Names of modules that may hold a user's env or algorithm: all but Python's own."""
    names = (one.name for one in pkgutil.iter_modules())
    return [name for name in names if name not in sys.stdlib_module_names and name[0] != "_"]


def vouched(name: str, trusted: Sequence[str]) -> bool:
    """Did the user name it: as MODULE, which vouches for all within it, or as MODULE:NAME?"""
    name, module = _plain(name), _module(name)
    said = [_plain(one.partition("=")[2] if RENAMED.fullmatch(one) else one) for one in trusted]
    return any(
        one == name or (module != "" and (one == module or module.startswith(f"{one}.")))
        for one in said
    )


def _plain(name: str) -> str:
    return name.removeprefix("python:")


def _module(name: str) -> str:
    return _plain(name).rpartition(":")[0]


# --------------------------------------------------------------------------------------- signatures


def sign(names: Names, signed: object, *, make: bool = False) -> str | None:
    """A keyed hash of a file's names and their places; None without a key. ``make``: make a key."""
    if (key := _key(make=make)) is None:
        return None
    found = {module: _place(module) for _, name in names if (module := _module(name))}
    said = json.dumps(
        [json.loads(json.dumps(signed, default=repr)), found], sort_keys=True
    ).encode()
    return hmac.new(key, said, hashlib.sha256).hexdigest()


def signature(program: object) -> str | None:
    """The proof that this user's run wrote the names of code in a program, if there are any."""
    names, signed = of_program(program)
    return sign(names, signed, make=True) if names else None


def _place(module: str) -> str | None:
    """The place of a module's top package, without importing; short if installed."""
    top = module.partition(".")[0]
    if top == "__main__":
        found: str | None = vars(sys.modules[top]).get("__file__")  # none with -c, or a notebook
        return found
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    place = spec.origin or ", ".join(spec.submodule_search_locations or ())
    for installed in (
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        site.getusersitepackages(),
    ):
        if place.startswith(f"{installed}{os.sep}"):  # a new virtual environment is no other place
            return f"the installed packages ({place.removeprefix(installed + os.sep)})"
    return os.path.realpath(place) if os.path.exists(place) else place


def key_path() -> Path | None:
    """The file of this user's key; None if the user has no home."""
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "equipoise" / "key"
    try:
        return Path.home() / ".local" / "state" / "equipoise" / "key"
    except RuntimeError:
        return None


def _key(*, make: bool) -> bytes | None:
    path = key_path()
    if path is None:
        return None
    if make and not path.exists():
        with contextlib.suppress(OSError):  # a home that cannot be written: files are not signed
            _make(path)
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            key = file.read(KEY_BYTES)
    except OSError:
        return None
    if (
        about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        or about.st_uid != os.geteuid()
        or len(key) != KEY_BYTES
    ):
        warnings.warn(
            f"{path}: expected a key of {KEY_BYTES} bytes that only you can read (chmod 600), got "
            "another file; it is not "
            "used, so files of your own runs need --trust",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return key


def _make(path: Path) -> None:
    """Write a new key; of several processes that do so at once the first wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:  # which writes the rest if a disk takes a part
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)
