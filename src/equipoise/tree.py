"""Trees: plain nested dicts of arrays, and a few functions on them.

If an env speaks of tuples, a tree has a dict with the keys "0", "1", ....

A path is the keys to a leaf, joined by '/': "arm/tilt". In a key '/' is written '~1' and '~' '~0'
(as in JSON Pointer), and the empty key is '~', so two leaves never share a path. ``path_of`` and
``keys_of`` are the only places that join and split.

A leaf is anything that is not a dict: a torch tensor, a numpy array, or an ``ArraySpec`` (the shape
and dtype of an array still to be allocated). ``{}`` is the empty tree. Nothing here imports torch
before a torch function is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from equipoise import edge
from equipoise.memory import Buffer

if TYPE_CHECKING:
    import torch
    from gymnasium import Space

Tree = Any
T = TypeVar("T")
path_of = edge.path_of
ALIGN = 64  # bytes; a cache line, and the best alignment for torch's vector loads


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and numpy dtype name of an array to be; bfloat16, which numpy has not, is for
    ``tensor_views`` alone.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        size = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * size  # of any size: numpy's product would overflow


def map(fn: Callable[..., object], tree: Tree, *rest: Tree) -> Tree:
    """``fn`` of the leaves that stand at the same place of all trees; ValueError if their keys
    differ.
    """
    if isinstance(tree, dict):
        for other in rest:
            if not isinstance(other, dict) or other.keys() != tree.keys():
                got = sorted(other) if isinstance(other, dict) else type(other).__name__
                raise ValueError(f"trees differ: expected keys {sorted(tree)}, got {got}")
        return {key: map(fn, tree[key], *(other[key] for other in rest)) for key in tree}
    return fn(tree, *rest)


def items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tree]]:
    """(path, leaf) in insertion order; of a tree that is one leaf the path is "". ``prefix``: the
    path of the tree itself.
    """
    if isinstance(tree, dict):
        for key, value in tree.items():
            part = edge.escaped(str(key))
            yield from items(value, f"{prefix}/{part}" if prefix else part)
    else:
        yield prefix, tree


def leaves(tree: Tree) -> list[Tree]:
    return [leaf for _, leaf in items(tree)]


def keys_of(path: str) -> tuple[str, ...]:
    """The inverse of ``path_of``; ValueError for a text that it does not make."""
    parts = path.split("/") if path else []
    keys = tuple(
        "" if part == "~" else part.replace("~1", "/").replace("~0", "~") for part in parts
    )
    if path_of(*keys) != path:
        raise ValueError(
            f"path {path!r}: expected keys joined by '/', with '~1' for '/', '~0' for '~' and '~' "
            "for an empty key"
        )
    return keys


def nest(flat: Mapping[str, object]) -> Tree:
    """The inverse of ``dict(items(tree))``, which has no empty branches. ValueError for a text that
    is no path, and for a path that leads through a leaf.
    """
    tree: dict[str, Tree] = {}
    for path, leaf in flat.items():
        if not (keys := keys_of(path)):
            if len(flat) > 1:
                raise ValueError(f"path '': expected one leaf alone, got {sorted(flat)}")
            return leaf
        node: Tree = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else node
        if not isinstance(node, dict) or keys[-1] in node:
            raise ValueError(
                f"path {path!r}: expected a leaf or a branch at each place, got both in "
                f"{sorted(flat)}"
            )
        node[keys[-1]] = leaf
    return tree


def named(root: str, tree: Tree) -> dict[str, Tree]:
    """Leaves by ``ROOT/PATH``; a tree that is one leaf is ``ROOT``."""
    return dict(items(tree, root))


def like(tree: Tree, flat: Mapping[str, object], root: str = "") -> Tree:
    """The leaves of ``flat``, by path, in the structure of ``tree``, empty branches included. With
    a ``root`` by ``ROOT/PATH``, as ``named`` makes them. ValueError for a leaf that is missing or
    unexpected.
    """
    wanted = named(root, tree)
    got = [path for path in flat if not root or path == root or path.startswith(f"{root}/")]
    if wanted.keys() != set(got):
        raise ValueError(f"trees differ: expected {sorted(wanted)}, got {sorted(got)}")
    paths = iter(wanted)
    return map(lambda _: flat[next(paths)], tree)


def within(root: str, flat: Mapping[str, object]) -> Tree:
    """The inverse of ``named`` for the leaves of this root; {} if there are none."""
    if root in flat:
        return flat[root]
    return nest(
        {path[len(root) + 1 :]: leaf for path, leaf in flat.items() if path.startswith(f"{root}/")}
    )


def joined(branches: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """One dict of all; if there are several branches their names stand in front: "NAME/key"."""
    alone = len(branches) == 1
    return {
        key if alone else f"{name}/{key}": leaf
        for name, branch in branches.items()
        for key, leaf in branch.items()
    }


def parted(flat: Mapping[str, T], names: Collection[str]) -> dict[str, dict[str, T]]:
    """Split what ``joined`` made, by the names of all branches; ValueError for a key of none."""
    if len(names) == 1:
        return {name: dict(flat) for name in names}
    branches: dict[str, dict[str, T]] = {name: {} for name in names}
    for path, leaf in flat.items():
        name, _, key = path.partition("/")
        if name not in branches:
            raise ValueError(f"{path!r}: expected NAME/key with a name of {sorted(names)}")
        branches[name][key] = leaf
    return branches


def index(tree: Tree, i: object) -> Tree:
    """``leaf[i]`` of every leaf."""
    return map(lambda x: x[i], tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Numpy trees of one structure, stacked along a new first axis."""
    return map(lambda *leaves: np.stack(leaves), *trees)


def branches(space: object) -> dict[str, Space[object]] | None:
    """A Gymnasium space as a branch: the spaces of a Dict by key, of a Tuple by "0", "1", ...; None
    for any other.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple):
        return {str(i): inner for i, inner in enumerate(space.spaces)}
    return None


def parts(space: object) -> Tree:
    """The spaces without parts in a Gymnasium space, as a tree."""
    inner = branches(space)
    return space if inner is None else {key: parts(one) for key, one in inner.items()}


def spec(tree: Tree) -> Tree:
    """The ``ArraySpec`` of every leaf, numpy or torch."""
    return map(lambda x: ArraySpec(tuple(x.shape), str(x.dtype).removeprefix("torch.")), tree)


def prepend(specs: Tree, *dims: int) -> Tree:
    """Specs with ``dims`` in front of every shape."""
    return map(lambda s: ArraySpec((*dims, *s.shape), s.dtype), specs)


def nbytes(specs: Tree) -> int:
    """Bytes that ``views`` needs: every leaf at a multiple of ``ALIGN``."""
    return sum(-(-s.nbytes // ALIGN) * ALIGN for s in leaves(specs))


def views(specs: Tree, buffer: Buffer) -> Tree:
    """Numpy arrays laid over a writable buffer, leaf after leaf."""

    def view(s: ArraySpec, at: int) -> np.ndarray:
        count = int(np.prod(s.shape, dtype=np.int64))
        return np.frombuffer(buffer, dtype=s.dtype, count=count, offset=at).reshape(s.shape)

    return _laid(specs, view)


def tensor_views(specs: Tree, memory: torch.Tensor) -> Tree:
    """Tensors laid in the same way over memory [n] uint8 of any device."""
    return _laid(
        specs, lambda s, at: memory[at : at + s.nbytes].view(torch_dtype(s.dtype)).view(s.shape)
    )


def torch_dtype(name: str) -> torch.dtype:
    """Torch's dtype of a numpy dtype's name."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _laid(specs: Tree, view: Callable[[ArraySpec, int], object]) -> Tree:
    """``view`` of every spec and of the byte that it begins at."""
    at = 0

    def next_view(s: ArraySpec) -> object:
        nonlocal at
        began, at = at, at + -(-s.nbytes // ALIGN) * ALIGN
        return view(s, began)

    return map(next_view, specs)


def zeros(specs: Tree) -> Tree:
    return map(lambda s: np.zeros(s.shape, s.dtype), specs)


def copy(target: Tree, source: Tree) -> None:
    """Write every leaf of ``source`` into the array at its place; casts within a kind (float64 to
    float32) are allowed.
    """
    map(lambda t, s: np.copyto(t, s, casting="same_kind"), target, source)


def torch_views(tree: Tree) -> Tree:
    """Tensors over the same bytes as the numpy leaves."""
    import torch

    return map(lambda x: x if isinstance(x, torch.Tensor) else torch.from_numpy(x), tree)


def named_tensors(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and saved buffers of a module by name, detached, sharing its memory."""
    return {k: v.detach() for k, v in net.named_parameters()} | saved_buffers(net)


def saved_buffers(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of a module by name, detached, without those that are not saved (``persistent``)."""
    found = {k: v.detach() for k, v in net.named_buffers()}
    kept = net.state_dict().keys() if found else ()
    return {k: v for k, v in found.items() if k in kept}


def numpy_views(tree: Tree) -> Tree:
    """Numpy arrays over the same bytes as the CPU tensor leaves."""
    return map(lambda x: x if isinstance(x, np.ndarray) else x.detach().numpy(), tree)


def to(tree: Tree, device: torch.device | str, *, non_blocking: bool = False) -> Tree:
    """Every tensor leaf on ``device`` (itself if it is there already)."""
    return map(lambda x: x.to(device, non_blocking=non_blocking), tree)


def on_host(tree: Tree) -> Tree:
    """Numpy arrays of leaves: numpy arrays are returned themselves, tensors of any device are
    copied.
    """
    return map(lambda x: x if isinstance(x, np.ndarray) else x.detach().cpu().numpy(), tree)


def put(target: Tree, source: Tree) -> None:
    """``copy`` if the leaves of either tree may be tensors of any device."""
    map(lambda t, s: t.copy_(s), torch_views(target), torch_views(source))
