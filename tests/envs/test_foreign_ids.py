"""What is of no other package and no other time gets no such hint. Those that do:
tests/cli/test_wrong_inputs.py.
"""

from __future__ import annotations

import pytest

from equipoise.envs.foreign_ids import meant_by, not_installed


@pytest.mark.parametrize("env_id", ["Mine-v0", "CartPole-v9", "merge_sort-v0", "Hero2-v0"])
def test_what_looks_like_no_known_package_gets_no_such_hint(env_id: str) -> None:
    assert meant_by(env_id) == ""


@pytest.mark.parametrize("module", ["my_envs", "highway", "popgym_of_mine"])
def test_a_module_of_no_known_package_gets_no_such_hint(module: str) -> None:
    assert not_installed(module, "Mine-v0") == ""
