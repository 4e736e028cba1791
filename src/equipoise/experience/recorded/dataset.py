"""Experience on disk, as Minari data sets: written episode by episode, and read again. Nothing here
executes what it reads.

A data set is named by its id in Minari's own folder (``MINARI_DATASETS_PATH``, else
``~/.minari/datasets``), which ends in -vN, or by a directory. An episode of L steps has L + 1
observations, the last of which is the true final one, L actions as the env took them, L rewards and
both kinds of end. Images are kept as they are: Minari's JPEG would lose some of them.

Facts that Minari has no place for stand under ``equipoise`` in the metadata: the run, the weights'
hash, frame stacks, and the spaces, which Minari's own form rounds. HDF5 splits names itself, so the
keys of our data sets stand there escaped (``_stored``), as do the keys of Minari's form of the
spaces.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registered

from equipoise import tree
from equipoise.envs import space_json
from equipoise.envs.making import resolve
from equipoise.envs.spaces import differ
from equipoise.errors import Final
from equipoise.hints import install, nearest
from equipoise.types import Array, EnvFactory, Stack, Tree

OURS = "equipoise"  # the key of our own metadata
SPACES = "equipoise_spaces"  # the same for the spaces, as ``space_json`` writes them
METADATA = "metadata.json"


class Faulty(Final, ValueError):
    """The error of a data set with rows that contradict its metadata, or without rows: reading it
    again would not help.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """L steps of one stream from a reset on, as numpy arrays."""

    obs: Tree  # [L+1, ...], the last is the final one
    action: Tree  # [L, ...] as ``env.step`` took it
    reward: Array  # [L]
    terminated: Array  # [L] bool
    truncated: Array  # [L] bool

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An existing data set, as its metadata describe it. Iterating reads the episodes."""

    name: str  # the name that the user gave
    path: Path  # the directory of Minari's files
    observation: gymnasium.Space[object]
    action: gymnasium.Space[object]
    episodes: int
    steps: int
    env: str = ""  # the env that its metadata name; "": none
    # facts given to ``write``; {} for foreign data sets
    about: Mapping[str, Any] = field(default_factory=dict)
    escaped: bool = False  # keys are stored by ``_stored``: a data set of ours

    @property
    def stacks(self) -> dict[str, Stack]:
        return {path: Stack(**stack) for path, stack in self.about.get("stacks", {}).items()}

    def __iter__(self) -> Iterator[Episode]:
        """Yield the episodes; may raise ``Faulty``."""
        stored = iter(_minari().MinariDataset(str(self.path)).iterate_episodes())
        for number in itertools.count():
            try:
                if (one := next(stored, None)) is None:
                    return
                episode = Episode(
                    obs=_tree(self.observation, one.observations, self.escaped),
                    action=_tree(self.action, one.actions, self.escaped),
                    reward=np.asarray(one.rewards),
                    terminated=np.asarray(one.terminations, bool),
                    truncated=np.asarray(one.truncations, bool),
                )
            except (OSError, LookupError, AssertionError, TypeError, ValueError) as error:
                raise Faulty(
                    f"{self.name}: episode {number}: expected observations, actions, rewards, "
                    "terminations and "
                    f"truncations in {self.path}, got {type(error).__name__}: {error}"
                ) from error
            yield episode

    @property
    def place(self) -> str:
        """The place of the data set: an id in Minari's folder, or a directory."""
        folder = self.path.parent.resolve()
        if _is_id(self.name):
            return f"data set {self.name}, in {folder}"
        return (
            f"directory {folder}, since an id ends in -vN and has no . in it, and {self.name!r} "
            "is none"
        )

    def sha256(self) -> str:
        """Hash the rows: every file except the metadata."""
        found = hashlib.sha256()
        for file in sorted(self.path.rglob("*")):
            if file.is_file() and file.name != METADATA:
                found.update(
                    f"{file.relative_to(self.path).as_posix()}\0{file.stat().st_size}\0".encode()
                )
                with file.open("rb") as opened:
                    while chunk := opened.read(1 << 20):
                        found.update(chunk)
        return found.hexdigest()

    def fits(self, observation: gymnasium.Space[object], action: gymnasium.Space[object]) -> None:
        """Raise ValueError if the rows do not fit these spaces of the env."""
        for what, mine, other in (
            ("observation", self.observation, observation),
            ("action", self.action, action),
        ):
            if place := differ(what, mine, other):
                where, wanted, got = place
                raise ValueError(
                    f"{self.name}: {where}: expected {wanted}, that of the env, got {got}"
                )


def find(name: str) -> Dataset:
    """Find a data set by name; FileNotFoundError lists the existing ones."""
    minari, path = _minari(), _files(name)
    if not (path / METADATA).is_file():
        known = sorted(minari.list_local_datasets())
        near = nearest(name, known)
        hint = f"; did you mean {near!r}?" if near else "."
        raise FileNotFoundError(
            f"data set {name!r}: expected Minari's files in {path}, got none{hint} There are: "
            f"{', '.join(known) or 'none'}. "
            "'equipoise collect' makes one, 'minari download' fetches one"
        )
    try:
        stored = minari.MinariDataset(str(path))
        metadata = json.loads((path / METADATA).read_text())
        about, made = metadata.get(OURS, {}), metadata.get(SPACES)
        made_of = (
            str(about["env"]["target"])
            if "env" in about
            else stored.env_spec.id
            if stored.env_spec is not None
            else ""
        )
        found = Dataset(
            name=name,
            path=path,
            observation=space_json.from_json(made["observation"], "observation")
            if made
            else stored.observation_space,
            action=space_json.from_json(made["action"], "action") if made else stored.action_space,
            episodes=int(stored.total_episodes),
            steps=int(stored.total_steps),
            env=made_of,
            about=about,
            escaped=made is not None,
        )
        _ = found.stacks
    except (
        OSError,
        KeyError,
        AssertionError,
        NotImplementedError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise Faulty(
            f"data set {name!r}: {path / METADATA}: {type(error).__name__}: {error}"
        ) from error
    if not found.steps:
        raise Faulty(f"data set {name!r}: expected episodes, got none")
    return found


def write(
    name: str,
    episodes: Iterable[Episode],
    *,
    observation: gymnasium.Space[object],
    action: gymnasium.Space[object],
    env: EnvFactory | None = None,
    algorithm: str = "",
    about: Mapping[str, object] | None = None,
) -> Dataset:
    """Write a new data set, whole or not at all. ``about``: further facts as JSON."""
    minari, path = _minari(), writable(name, observation, action)
    made = {"observation": space_json.to_json(observation), "action": space_json.to_json(action)}
    parts = path.parent.with_name(f".{path.parent.name}.part")
    shutil.rmtree(parts, ignore_errors=True)
    (parts / path.name).parent.mkdir(parents=True)
    try:
        storage = importlib.import_module("minari.dataset.minari_storage").MinariStorage.new(
            parts / path.name,
            _stored_space(observation),
            _stored_space(action),
            _registered(env),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        buffer = importlib.import_module("minari.data_collector").EpisodeBuffer
        for one in episodes:
            storage.update_episodes(
                [
                    buffer(
                        observations=_minaris(observation, one.obs),
                        actions=_minaris(action, one.action),
                        rewards=one.reward,
                        terminations=one.terminated,
                        truncations=one.truncated,
                    )
                ]
            )
        storage.update_metadata(
            {
                "dataset_id": _id(name),
                "minari_version": minari.__version__,
                "algorithm_name": algorithm,
                OURS: dict(about or {}),
                SPACES: made,
            }
        )
        namespace = _id(name).rpartition("/")[0]
        namespaces = importlib.import_module("minari.namespace")
        if namespace and namespace not in namespaces.list_local_namespaces():
            namespaces.create_namespace(namespace)
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        parts.rename(path.parent)
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    return find(name)


def writable(
    name: str, observation: gymnasium.Space[object], action: gymnasium.Space[object]
) -> Path:
    """The directory for a new data set; ValueError if something is there already, or Minari cannot
    keep such a space.
    """
    _minari()
    path, forms = _files(name), importlib.import_module("minari.serialization")
    if path.parent.exists():
        raise ValueError(
            f"data set {name!r}: expected a new one, got {path.parent}, which is there already"
        )
    for what, space in (("observation", observation), ("action", action)):
        for place, leaf in tree.items(tree.parts(space), what):
            try:
                forms.deserialize_space(forms.serialize_space(leaf))
            except (NotImplementedError, AssertionError, TypeError, ValueError) as error:
                raise ValueError(
                    f"data set {name!r}: {place}: expected a space that Minari can keep, got {leaf}"
                ) from error
    return path


# -------------------------------------------------------------------------------------------- names


def _minari() -> ModuleType:
    try:
        return importlib.import_module("minari")
    except ImportError as error:
        raise ImportError(f"data sets need Minari: {install('offline')}") from error


def _is_id(name: str) -> bool:
    return (
        re.fullmatch(r"([-\w]+/)*[-\w]+-v\d+", name) is not None
        and not (Path(name) / "data" / METADATA).is_file()
    )


def _id(name: str) -> str:
    if _is_id(name):
        return name
    last = re.sub(r"[^-\w]", "-", Path(name).expanduser().absolute().name)
    return last if re.search(r"-v\d+$", last) else f"{last}-v0"


def _files(name: str) -> Path:
    """The directory of Minari's files, existing or not."""
    if not _is_id(name):
        return Path(name).expanduser().absolute() / "data"
    root = importlib.import_module("minari.storage.datasets_root_dir").get_dataset_path(name)
    return Path(root) / "data"


def _registered(env: EnvFactory | None) -> Registered | None:
    """The Gymnasium spec that makes the env; None if Gymnasium has no name for it."""
    if env is None or env.target.startswith("envpool:"):
        return None
    found = resolve(env.target.removeprefix("python:"))
    if not isinstance(found, Registered):
        return None
    spec, kwargs = copy.deepcopy(found), dict(env.kwargs)
    spec.max_episode_steps = kwargs.pop("max_episode_steps", spec.max_episode_steps)
    spec.kwargs.update(kwargs)
    try:
        spec.to_json()
    except TypeError:  # an entry point that is a function
        return None
    return spec


# ------------------------------------------------------------------------------------------- spaces


def _stored(key: str) -> str:
    """A key as a name in HDF5, to which '/' and '.' mean something."""
    return "~2" if key == "." else tree.path_of(key)


def _stored_space(space: gymnasium.Space[object]) -> gymnasium.Space[object]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({_stored(key): _stored_space(one) for key, one in space.spaces.items()})
    return (
        spaces.Tuple([_stored_space(one) for one in space.spaces])
        if isinstance(space, spaces.Tuple)
        else space
    )


def _tree(space: gymnasium.Space[object], value: Tree, escaped: bool) -> Tree:
    """Minari's dicts and tuples of arrays as a tree."""
    inner = tree.branches(space)
    if inner is None:
        return np.asarray(value)
    if isinstance(space, spaces.Tuple):
        return {key: _tree(one, value[int(key)], escaped) for key, one in inner.items()}
    return {
        key: _tree(one, value[_stored(key) if escaped else key], escaped)
        for key, one in inner.items()
    }


def _minaris(space: gymnasium.Space[object], value: Tree) -> object:
    inner = tree.branches(space)
    if inner is None:
        return value
    if isinstance(space, spaces.Tuple):
        return tuple(_minaris(one, value[key]) for key, one in inner.items())
    return {_stored(key): _minaris(one, value[key]) for key, one in inner.items()}
