"""Places of trained reward models: the folder that ``run:DIR`` or ``registry:NAME@VERSION`` names.

``run:DIR`` is the folder of a reward model. ``registry:NAME@VERSION`` is a version of a registry:
VERSION is an alias or the first digits of a version (default: champion), and the registry is the
folder ``registry``, or DIR in ``registry:DIR/NAME``.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.registry.artifacts import REWARD, read_manifest
from equipoise.registry.reading import RegistryReader
from equipoise.sums import REGISTRY, RUN

USUAL = "registry"  # folder of the registry if a name has none
DIGITS = 12  # digits of a version in the names that run.json has


def place(name: str) -> Path:
    """Return the folder of a reward model by its name; ValueError if there is none."""
    if name.startswith(RUN):
        folder = Path(name.removeprefix(RUN)).expanduser()
    else:
        folder = _resolved(name)[1]
    if not (folder / REWARD).is_file():
        if name.startswith(REGISTRY):
            kind = f"a {read_manifest(folder).kind}"
        elif folder.is_dir():
            kind = "another folder"
        else:
            kind = "another kind of file" if folder.exists() else "none"
        raise ValueError(
            f"reward {name!r}: must be the folder of a reward model, with {REWARD}, got {kind}; "
            "'equipoise export RUN DIR' of a run of reward_model writes it"
        )
    return folder


def weights_sha256(name: str) -> str:
    """Return the hash of the weights of a reward model, by its manifest."""
    folder = place(name)
    files = read_manifest(folder).files
    found = next((files[one][0] for one in sorted(files) if one.endswith(".safetensors")), None)
    if found is None:
        raise ValueError(f"{folder}: must be a reward model with weights, got none; export it")
    return found


def at_version(name: str) -> str:
    """Return the name of a reward model in a registry, with its version in place of an alias."""
    version, _ = _resolved(name)
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition('@')[0]}@{version[:DIGITS]}"


def _resolved(name: str) -> tuple[str, Path]:
    folder, _, last = name.removeprefix(REGISTRY).rpartition("/")
    policy, _, which = last.partition("@")
    try:
        return RegistryReader(Path(folder or USUAL).expanduser()).resolve(
            policy, which or "champion"
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"reward {name!r}: {error}") from error
