"""Suites: files that name envs, algorithms and seeds, with the scores that were published.

Every env with every algorithm and every seed is a cell, which one run fills
(``studies/kept.py``). A suite as TOML::

    name = "classic"
    envs = ["CartPole-v1"]
    algorithms = ["ppo"]
    seeds = 3                      # 0, 1 and 2; or a list
    steps = 50_000
    on = "process"                 # default
    episodes = 20                  # of the evaluation at the end; default

    [env."CartPole-v1"]            # also: steps, settings
    random = 22.0                  # scores of 0 and of 1
    best = 500.0

    [algorithm.ppo]
    settings.policy.unroll = 64    # also: steps

    [cell."CartPole-v1".ppo]       # also: steps, settings
    published = { mean = 490.0, sd = 6.1, n = 3, source = "CleanRL, docs" }

Settings have their names in ``--set``. A cell's come before its algorithm's, its env's and the
suite's.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise import trust
from equipoise.files import parse_toml, read_bounded
from equipoise.hints import hint, shortened
from equipoise.programs.program import algorithm_class, algorithm_names, to_json
from equipoise.programs.settings import POLICY_KEYS, apply_settings
from equipoise.record.described import settings_of
from equipoise.schema import Anything, Either, Items, Number, Schema, Text, check, described
from equipoise.types import EnvFactory, EnvSource, Policy, Program, ReplaySettings

LARGEST_FILE = 1 << 18  # bytes
MOST_ENVS, MOST_ALGORITHMS, MOST_SEEDS, MOST_PAIRS, MOST_CELLS = 200, 20, 200, 300, 2_000
MOST_STEPS, MOST_EPISODES = 10**12, 10_000
MOST_SETTINGS, DEEPEST = 200, 4
LONGEST_NAME = 80  # letters of a cell's name
SCORE = Number(-1e100, 1e100)
SEED = Number(0, (1 << 63) - 1, whole=True)
STEPS = Number(1, MOST_STEPS, whole=True)
OVER: Schema = {"steps?": STEPS, "settings?": Anything()}
OF_SUITE: Schema = {
    "name": Text(64),
    "envs": Items(Text(200), MOST_ENVS),
    "algorithms": Items(Text(200), MOST_ALGORITHMS),
    "seeds": Either((Number(1, MOST_SEEDS, whole=True), Items(SEED, MOST_SEEDS))),
    "steps": STEPS,
    "settings?": Anything(),
    "on?": Text(among=("serial", "process", "ray")),
    "episodes?": Number(1, MOST_EPISODES, whole=True),
    "env?": Anything(),
    "algorithm?": Anything(),
    "cell?": Anything(),
}
OF_ENV: Schema = OVER | {"random?": SCORE, "best?": SCORE}
OF_CELL: Schema = OVER | {"published?": Anything()}
OF_PUBLISHED: Schema = {
    "mean": SCORE,
    "sd?": Number(0, 1e100),
    "n": Number(1, 10**6, whole=True),
    "source": Text(500),
}
OWN = {"schedule.steps": "steps", "schedule.seed": "seeds", "evaluation.episodes": "episodes"}
Table = Mapping[str, Any]  # of TOML, whose values fit a schema
Pair = tuple[str, str]  # (env, algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published score of an env and an algorithm: over ``n`` runs, with its ``source``."""

    mean: float
    sd: float | None
    n: int
    source: str

    @property
    def bound(self) -> float:
        """The least score that is not below it: its mean - 1 sd."""
        return self.mean - (self.sd or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An env, an algorithm and a seed.

    ``settings``: by their names in ``--set``; steps, seed and episodes are among them.
    """

    env: str
    algorithm: str
    seed: int
    on: str
    settings: Mapping[str, object]

    @property
    def name(self) -> str:
        """The name of its files."""
        return cell_name(self.env, self.algorithm, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A benchmark suite; ``scales`` has (random, best) of an env, the scores of 0 and of 1."""

    name: str
    envs: tuple[str, ...]
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    published: Mapping[Pair, Published]
    scales: Mapping[str, tuple[float, float]]


def cell_name(env: str, algorithm: str, seed: int) -> str:
    """Return a name that is valid on every file system; a changed name ends with a hash."""
    name = f"{env}.{algorithm}.{seed}"
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")
    if safe == name and len(name) <= LONGEST_NAME:
        return name
    return f"{safe[:LONGEST_NAME]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_suite(path: Path, *, trusted: Sequence[str] = ()) -> Suite:
    """Read a suite; ValueError that names the place and what is wrong there.

    ``trusted``: the ``module:name`` of envs and algorithms that the user vouches for
    (``equipoise.trust``).
    """
    data = _table(parse_toml(read_bounded(path, LARGEST_FILE), path), OF_SUITE, f"{path}")
    name = data["name"]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{path}: name: must be letters, digits, dots, dashes and underscores, got {name!r}"
        )
    envs = _names(data["envs"], f"{path}: envs")
    algorithms = _names(data["algorithms"], f"{path}: algorithms")
    for algorithm in algorithms:
        if ":" not in algorithm and algorithm not in algorithm_names():
            problem = f"{path}: algorithms: unknown algorithm {algorithm!r}"
            raise ValueError(problem + hint(algorithm, algorithm_names()))
    seeds = _seeds(data["seeds"], f"{path}: seeds")
    _check_counts(len(envs) * len(algorithms), len(seeds), path)
    on = data.get("on", "process")
    tables = _Tables(data, envs, algorithms, path)
    pairs = list(itertools.product(envs, algorithms))
    published = {pair: one for pair in pairs if (one := tables.published(*pair))}
    scales = {env: scale for env in envs if (scale := tables.scale(env))}
    given = {pair: tables.settings(*pair) for pair in pairs}
    settings = {pair: _checked(pair, of, path, trusted) for pair, of in given.items()}
    cells = [
        Cell(env=env, algorithm=algorithm, seed=seed, on=on, settings=of | {"schedule.seed": seed})
        for (env, algorithm), of in settings.items()
        for seed in seeds
    ]
    return Suite(
        name=name,
        envs=envs,
        algorithms=algorithms,
        seeds=seeds,
        cells=tuple(cells),
        published=published,
        scales=scales,
    )


def trained_key(key: str) -> str:
    """Return the name of a setting among the settings of a run (``record/described.py``)."""
    if key.startswith("env."):
        return f"source.env.kwargs.{key.removeprefix('env.')}"
    return f"policy.{key}" if key in POLICY_KEYS else key


class _Tables:
    """The tables of a suite by env, by algorithm and by cell."""

    def __init__(
        self, data: Table, envs: Sequence[str], algorithms: Sequence[str], path: Path
    ) -> None:
        self._path, self._suite = path, data
        self._envs = self._by_name(data, "env", envs, OF_ENV)
        self._algorithms = self._by_name(data, "algorithm", algorithms, OVER)
        by_env = self._by_name(data, "cell", envs, {f"{name}?": Anything() for name in algorithms})
        self._cells = {
            env: self._by_name({f"cell.{env}": of}, f"cell.{env}", algorithms, OF_CELL)
            for env, of in by_env.items()
        }

    def _by_name(
        self, data: Table, key: str, names: Collection[str], schema: Schema
    ) -> dict[str, Table]:
        where = f"{self._path}: {key}"
        found = _table(data.get(key, {}), {f"{name}?": Anything() for name in names}, where)
        return {name: _table(of, schema, f"{where}.{name}") for name, of in found.items()}

    def settings(self, env: str, algorithm: str) -> dict[str, object]:
        """The settings of a cell without its seed, with the steps and the episodes."""
        found: dict[str, object] = {"evaluation.episodes": self._suite.get("episodes", 20)}
        for where, table in (
            ("", self._suite),
            (f"env.{env}.", self._envs.get(env, {})),
            (f"algorithm.{algorithm}.", self._algorithms.get(algorithm, {})),
            (f"cell.{env}.{algorithm}.", self._cells.get(env, {}).get(algorithm, {})),
        ):
            found |= _flat(table.get("settings", {}), f"{self._path}: {where}settings")
            if "steps" in table:
                found["schedule.steps"] = table["steps"]
        return found

    def published(self, env: str, algorithm: str) -> Published | None:
        given = self._cells.get(env, {}).get(algorithm, {}).get("published")
        if given is None:
            return None
        where = f"{self._path}: cell.{env}.{algorithm}.published"
        table = _table(given, OF_PUBLISHED, where)
        source = _line(table["source"], f"{where}.source")
        return Published(mean=table["mean"], sd=table.get("sd"), n=table["n"], source=source)

    def scale(self, env: str) -> tuple[float, float] | None:
        table = self._envs.get(env, {})
        given = [key for key in ("random", "best") if key in table]
        if not given:
            return None
        where = f"{self._path}: env.{env}"
        if len(given) == 1:
            raise ValueError(f"{where}: must have random and best, got {given[0]} alone")
        random, best = table["random"], table["best"]
        if not random < best:
            raise ValueError(f"{where}: best must be above random ({random:g}), got {best:g}")
        return random, best


def _checked(
    pair: Pair, settings: Mapping[str, object], path: Path, trusted: Sequence[str]
) -> dict[str, object]:
    """Return the settings of a pair as a run records them; ValueError if one cannot be."""
    env, algorithm = pair
    where = f"{path}: cell {env} {algorithm}"
    named = {"policies": {"main": {"algorithm": {"name": algorithm}}}}
    trust.check(trust.of_program(named)[0], None, None, trusted, path)
    try:
        cls = algorithm_class(algorithm)
        if cls.needs_task:
            raise ValueError("the algorithm must act in envs, got one that learns from text")
        policy = Policy(
            algorithm=cls(),
            unroll=1,
            batch=1,
            replay=ReplaySettings() if cls.needs_replay else None,
        )
        source = EnvSource(env=EnvFactory(target=env))
        program = apply_settings(Program(source=source, policies={"main": policy}), settings)
        data = to_json(program)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    trust.check(trust.of_program(data)[0], None, None, trusted, path)
    if auto := program.placement.auto:
        raise ValueError(f"{where}: {auto[0]} must be a value, got auto, which differs by machine")
    trained = settings_of(data)
    if odd := [key for key in settings if trained_key(key) not in trained]:
        raise ValueError(
            f"{where}: {odd[0]} must be a number, a text or a list by its name in --set, got "
            f"{shortened(repr(settings[odd[0]]))}"
        )
    return {key: trained[trained_key(key)] for key in settings}


def _check_counts(pairs: int, seeds: int, path: Path) -> None:
    if pairs > MOST_PAIRS or pairs * seeds > MOST_CELLS:
        raise ValueError(
            f"{path}: must have at most {MOST_PAIRS} envs times algorithms and {MOST_CELLS:,} "
            f"cells, got {pairs:,} and {pairs * seeds:,}; try several suites"
        )


# ------------------------------------------------------------------------------------------- values


def _table(value: object, schema: Schema, where: str) -> Table:
    """Return a table that fits a schema; the nearest key is named for an unknown one."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: must be a table, got {described(value)}")
    known = [key.removesuffix("?") for key in schema]
    for key in value:
        if key not in known:
            raise ValueError(f"{where}: unknown key {shortened(repr(key))}{hint(key, known)}")
    fitting: Table = check(value, schema, where)
    return fitting


def _line(text: str, where: str) -> str:
    if not (text.strip() and text.isprintable()):
        raise ValueError(f"{where}: must be a text of one line, got {described(text)}")
    return text


def _names(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return names of envs or of algorithms, each once, also on disks that ignore case."""
    if not names:
        raise ValueError(f"{where}: must have at least one name, got none")
    for i, one in enumerate(names):
        if _line(one, where).startswith(("/", ".", "~", "\\")) or ".." in one:
            raise ValueError(f"{where}: must be the name of one, got the path {one!r}")
        if one.lower() in [other.lower() for other in names[:i]]:
            raise ValueError(f"{where}: must have each name once, got {one!r} twice")
    return tuple(names)


def _seeds(given: int | Sequence[int], where: str) -> tuple[int, ...]:
    seeds = tuple(range(given)) if isinstance(given, int) else tuple(given)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: must be at least one seed, each once, got {described(given)}")
    return seeds


def _flat(value: object, where: str, depth: int = 0) -> dict[str, object]:
    """Return settings by their names in ``--set``, from tables within tables."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: must be a table, got {described(value)}")
    found: dict[str, object] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and depth < DEEPEST:
            inner = _flat(item, f"{where}.{key}", depth + 1)
            found |= {f"{key}.{name}": of for name, of in inner.items()}
        elif isinstance(item, bool | int | float | str | list):
            found[key] = item
        else:
            raise ValueError(
                f"{where}.{shortened(key)}: must be a number, a text, true, false or a list, got "
                f"{'a table in a table' if isinstance(item, Mapping) else described(item)}"
            )
    if not depth and (own := next((key for key in found if key in OWN), None)):
        raise ValueError(f"{where}: must not have {own}; use the suite's key {OWN[own]}")
    if len(found) > MOST_SETTINGS:
        raise ValueError(f"{where}: must be at most {MOST_SETTINGS} settings, got {len(found):,}")
    return found
