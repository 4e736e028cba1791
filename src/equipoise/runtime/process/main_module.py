"""The things that a script or a notebook defines itself, in ``__main__``, shipped by value to the
processes of workers.

A worker could import a script again, which runs all of it once more, and cannot import a notebook.
So the env, the algorithm and the torso that a program names in ``__main__`` travel with the
worker's assignment, through multiprocessing's own pipe.
"""

from __future__ import annotations

import ast
import contextlib
import pickle
import sys
from collections.abc import Iterator
from multiprocessing import reduction

import cloudpickle

from equipoise import trust
from equipoise.programs.program import to_json
from equipoise.types import Program

MAIN = "__main__"


def shipped(program: Program) -> bytes | None:
    """The things of ``__main__`` that a program names, pickled by value; None if it names none.

    ValueError for a thing that cannot be pickled, with the reason.
    """
    main = vars(sys.modules[MAIN])
    names = {
        name.partition(":")[2].partition(".")[0]
        for _, name in trust.of_program(to_json(program))[0]
        if _in_main(name)
    }
    found = {name: main[name] for name in names if name in main}
    if not found:
        return None
    # Annotations that are texts are read in the module of their class.
    read = {
        word for value in found.values() for word in _annotated(value)
    } & main.keys() - found.keys()
    try:
        return bytes(cloudpickle.dumps({**{name: main[name] for name in sorted(read)}, **found}))
    except Exception as error:  # whatever its __reduce__ raises
        raise ValueError(
            f"{', '.join(sorted(found))}: must be sendable to a process, got "
            f"{type(error).__name__}: {error}; "
            "put it into a module of its own, or train with on='serial'"
        ) from error


def _in_main(name: str) -> bool:
    return name.removeprefix("python:").startswith(f"{MAIN}:")


def _annotated(value: object) -> Iterator[str]:
    """The names in the annotations of a class and its bases in ``__main__``, if they are texts."""
    for cls in value.__mro__ if isinstance(value, type) else ():
        if cls.__module__ != MAIN:  # read in the module of its own
            continue
        for text in vars(cls).get("__annotations__", {}).values():
            if isinstance(text, str):
                yield from _names(text)


def _names(annotation: str) -> Iterator[str]:
    """Not the words of its texts: ``Help("Steps of a run.")`` and ``Literal["run"]`` name no
    ``run``, and ``list["Later"]`` names ``Later``.
    """
    nodes = list(ast.walk(ast.parse(annotation, mode="eval")))
    texts = {
        part
        for node in nodes
        if isinstance(node, ast.Call)
        or (isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"))
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in texts:
            yield from _names(node.value)


class WithMain:
    """A thing whose pickle brings what it needs of ``__main__`` along, and is read after that is
    there.
    """

    def __init__(self, thing: object, code: bytes) -> None:
        self._thing, self._code = thing, code

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled while its process starts, which is when descriptors and shared memory can be.
        return _read, (self._code, bytes(reduction.ForkingPickler.dumps(self._thing)))


def _read(code: bytes, thing: bytes) -> object:
    """In the worker's process: the thing that ``WithMain`` was made of."""
    main = sys.modules[MAIN]
    for name, value in pickle.loads(code).items():
        setattr(main, name, value)
    return pickle.loads(thing)


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Keep multiprocessing from importing the user's script into a worker, so that a script without
    a guard also works.
    """
    main = sys.modules[MAIN]
    kept: dict[str, object] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)
