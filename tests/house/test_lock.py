"""The lock: enough for what pyproject.toml asks, and nothing of CUDA."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked() -> dict[str, str]:
    lines = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if not line.startswith("#")
    ]
    requirements = [Requirement(line) for line in lines]
    assert len(requirements) == len({r.name for r in requirements}), (
        "one version a package, on every platform"
    )
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in requirements}


def asked(*extras: str) -> list[Requirement]:
    """The core's requirements and those of ``extras``, extras of our own resolved."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    found: list[Requirement] = []
    for requirement in map(Requirement, lines):
        found += (
            asked(*requirement.extras)[len(PROJECT["dependencies"]) :]
            if requirement.name == "equipoise"
            else [requirement]
        )
    return found


def test_the_lock_satisfies_the_project() -> None:
    versions = locked()
    for requirement in asked("dev"):
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not locked: run `make lock`"
        assert versions[name] in requirement.specifier, (
            f"{requirement} against {versions[name]}: run `make lock`"
        )


def test_torch_is_pinned_and_comes_without_cuda() -> None:
    versions = locked()
    assert versions["torch"] == "2.13.0"
    assert not [name for name in versions if re.match(r"nvidia|cuda|triton", name)]


def test_the_core_is_light() -> None:
    heavy = ("ray", "jax", "tensorboard", "transformers", "wandb")
    assert not [r.name for r in asked() if r.name in heavy]


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs/inside/dependencies.md").read_text()
    for requirement in asked(*PROJECT["optional-dependencies"]):
        assert f"`{requirement.name}`" in reasons, (
            f"{requirement.name} is not in docs/inside/dependencies.md"
        )
