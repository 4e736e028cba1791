"""Without JAX: what a JAX env needs is said, and nothing else misses it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from equipoise.envs import make
from equipoise.types import EnvFactory

MODULES = ("jax", "equipoise.device_envs.jax_env", "equipoise.device_envs.jax_libraries")


def test_an_env_of_jax_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match="jax:gymnax/CartPole-v1 needs jax: .*jax"):
        make(EnvFactory(target="jax:gymnax/CartPole-v1"), streams=np.arange(2), seed=0)
