"""``tree.items`` and ``tree.nest`` are each other's inverse, whatever the keys are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import tree

keys = st.one_of(
    st.sampled_from(
        ["", "/", "~", "~0", "~1", ".", "..", "%2F", "a", "b", "a/b", "a//b", "ä", "\0"]
    ),
    st.text(),
)
trees = st.recursive(
    st.integers(), lambda inner: st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def pruned(node: Any) -> Any:
    """Without empty branches, which have no leaf and so no path."""
    if not isinstance(node, dict):
        return node
    parts = {key: pruned(one) for key, one in node.items()}
    return {key: one for key, one in parts.items() if one != {}}


@settings(max_examples=500, deadline=None)
@given(trees)
def test_a_tree_is_its_leaves_by_path(node: Any) -> None:
    pairs = list(tree.items(node))
    assert len(dict(pairs)) == len(pairs) == len(tree.leaves(node)), "two leaves share a path"
    assert tree.nest(dict(pairs)) == pruned(node)
    assert tree.like(node, dict(pairs)) == node, "with its empty branches"
    assert tree.within("obs", tree.named("obs", node)) == pruned(node)
    assert tree.like(node, tree.named("obs", node) | {"observed": 0}, "obs") == node


@settings(max_examples=300, deadline=None)
@given(st.lists(keys, max_size=5))
def test_keys_are_a_path_and_back(parts: list[str]) -> None:
    path = tree.path_of(*parts)
    assert tree.keys_of(path) == tuple(parts)
    assert not parts or path.count("/") == len(parts) - 1


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(alphabet="ab/~01", max_size=6), st.integers(), max_size=5))
def test_names_that_a_file_gives_are_a_tree_of_those_names_or_refused(flat: dict[str, int]) -> None:
    try:
        node = tree.nest(flat)
    except ValueError:
        return
    assert dict(tree.items(node)) == flat


def test_an_ordinary_key_is_its_own_name() -> None:
    node = {"arm": {"tilt.x": 0, "50%": 1, "änd": 2, "_index_0": 3, "a b": 4, "a\\b": 5}}
    assert list(tree.items(node)) == [(f"arm/{key}", value) for key, value in node["arm"].items()]


@pytest.mark.parametrize(
    "flat",
    [{"a": 0, "a/b": 1}, {"a/b": 1, "a": 0}, {"": 0, "a": 1}, {"a//b": 0}, {"a~": 0}, {"/a": 0}],
)
def test_what_is_no_path_is_refused(flat: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="path "):
        tree.nest(flat)
