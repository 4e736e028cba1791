"""A forward pass that is recorded once and replayed over the same memory: no modules, no views, no
new tensors.

``Tape`` runs a function of tensors under a ``TorchDispatchMode`` and keeps every tensor that came
up. Views are then made for good. Operations that depend on weights alone run when the weights
change; operations that no output needs are left out. Each other operation becomes one call with
bound arguments and output: NumPy's if arrays are small (0.3 us to torch's 0.7), else torch's with
``out=``. It is the idea of a CUDA graph, for the overhead of a CPU.

Some things cannot be recorded and raise ``Refused``: sizes or branches that depend on data, random
numbers, and operations without an output argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import tree
from equipoise.private.torch import DispatchMode, schema
from equipoise.types import Tree

Step = Callable[[], object]
SMALL = 4096  # up to this number of elements NumPy reduces, copies and clips faster than torch
# up to this number of multiplications NumPy's product is faster; OpenBLAS takes threads from 2^18
# on
DOT = 2**16
DOT_VECTOR = 2**13  # the same if one of the three sizes is 1: from 9,216 on
CONSTANT, WEIGHTS, ACT = range(3)  # when a value changes: never, with the weights, with each call

# operations that read only the size of their argument
BY_SIZE = (
    "new_full",
    "new_zeros",
    "new_ones",
    "new_empty",
    "full_like",
    "zeros_like",
    "ones_like",
    "empty_like",
)
# options of a newly made tensor
OPTIONS = {"dtype", "layout", "device", "pin_memory", "memory_format"}

UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "neg": np.negative,
    "abs": np.absolute,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_not": np.bitwise_not,
}


class Refused(ValueError):
    """The error of a function that cannot be recorded; the message follows "since"."""


class Call:
    """One recorded operation."""

    def __init__(
        self, func: Any, args: Sequence[Tree], kwargs: Mapping[str, Tree], out: Tree
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.outs = (
            [out] if isinstance(out, Tensor) else list(out) if isinstance(out, tuple | list) else []
        )
        self.ins = list(_tensors((args, kwargs)))
        self.reads = set() if self.name in BY_SIZE else {_memory(x) for x in self.ins}
        self.writes = {_memory(x) for x in self.outs}
        self.in_place = any(
            one.alias_info is not None and one.alias_info.is_write for one in schema(func).returns
        )
        self.view = bool(self.outs) and not self.in_place and self.writes <= self.reads

    @property
    def name(self) -> str:
        """The short name: ``tanh`` for aten.tanh.default and aten.tanh_.default."""
        return str(self.func.overloadpacket.__name__).removesuffix("_")


class _Recorder:
    """The handler of operations for ``Recording``.

    A ``__torch_dispatch__`` that stands in a ``DispatchMode``'s own class is wrapped so that its
    first call imports the compiler (``torch._dynamo`` and sympy): one to four seconds of an actor's
    start. An inherited one is left alone.
    """

    calls: list[Call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: Sequence[Tree] = (),
        kwargs: Mapping[str, Tree] | None = None,
    ) -> Tree:
        tags = func.tags
        if torch.Tag.nondeterministic_seeded in tags:
            raise Refused(f"{func} draws random numbers of its own")
        if torch.Tag.data_dependent_output in tags:
            raise Refused(f"{func} reads a number of a tensor, which may change what follows")
        if torch.Tag.dynamic_output_shape in tags and not _whole_rows(func, args):
            raise Refused(f"the size of what {func} returns depends on the data")
        out = func(*args, **(kwargs or {}))
        self.calls.append(Call(func, args, kwargs or {}, out))
        return out


class Recording(_Recorder, DispatchMode):  # type: ignore[no-untyped-call]
    """A context that notes every operation on tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = []


class Tape:
    """A recording of ``act`` over ``inputs``: call ``refresh`` after the weights change, ``run``
    after the inputs do.

    ``inputs``: numpy arrays, written by the caller before ``run``; ``outputs`` are written by it.
    ``reads`` marks which of the inputs, by their paths, matter at all. ``weights`` are the tensors
    whose contents change between calls of ``refresh``; they and the inputs stay where they are in
    memory.
    """

    def __init__(
        self, act: Callable[[Tree], Tree], inputs: Tree, weights: Iterable[Tensor]
    ) -> None:
        given = dict(tree.items(tree.torch_views(inputs)))
        recording = Recording()
        with torch.no_grad():
            act(tree.like(inputs, given))  # values that are made once and cached exist now
            with recording:
                results = act(tree.like(inputs, given))
        self._kept = recording.calls  # keeps every tensor alive: steps are bound to their memory
        entered, known = {_memory(x) for x in given.values()}, {_memory(x) for x in weights}
        ends = {_memory(x) for x in tree.leaves(results)}
        calls, needed = _needed(recording.calls, ends)
        when = _when(calls, entered, known)
        made = {
            memory for call in calls if not (call.view or call.in_place) for memory in call.writes
        }
        self._weights: list[Step] = []
        self._act: list[Step] = []
        for call in calls:
            if call.view:
                continue
            if not call.writes <= made:
                raise Refused(
                    f"{call.func} writes into what was there before: an observation, a state, a "
                    "weight"
                )
            if (at := max(when[memory] for memory in call.writes)) != CONSTANT:
                (self._act if at == ACT else self._weights).extend(steps(call))
        self.outputs = tree.map(_array, results)
        self.reads = {path for path, x in given.items() if _memory(x) in needed}
        self.refresh()

    def refresh(self) -> None:
        for step in self._weights:
            step()

    def run(self) -> None:
        for step in self._act:
            step()

    def __len__(self) -> int:
        """The number of calls of a ``run``."""
        return len(self._act)


def _needed(calls: list[Call], ends: Collection[int]) -> tuple[list[Call], set[int]]:
    needed, kept = set(ends), []
    for call in reversed(calls):
        if call.writes & needed:
            needed |= call.reads
            kept.append(call)
    return kept[::-1], needed


def _when(calls: list[Call], entered: Collection[int], weights: Collection[int]) -> dict[int, int]:
    """Find when each piece of memory changes: with the latest value that is ever written into
    it.
    """
    when = dict.fromkeys(weights, WEIGHTS) | dict.fromkeys(entered, ACT)
    changed = True
    while changed:
        changed = False
        for call in calls:
            latest = max(
                (when.get(memory, CONSTANT) for memory in call.reads | call.writes),
                default=CONSTANT,
            )
            for memory in () if call.view else call.writes:
                if when.get(memory) != latest:
                    when[memory], changed = latest, True
    return when


# -------------------------------------------------------------------------------------------- steps


def steps(call: Call) -> list[Step]:
    """Turn an operation into calls that write into its outputs' memory; ``Refused`` if no such call
    exists.
    """
    if len(call.outs) == 1 and all(_array(x) is not None for x in call.ins):
        out = _array(call.outs[0])
        if out is not None and (found := _numpy(call, out)):
            return found
    return _torch(call)


def _numpy(call: Call, out: np.ndarray) -> list[Step]:
    """Turn an operation into NumPy calls; [] if torch is faster or the only choice."""
    args: list[Tree] = [_array(x) if isinstance(x, Tensor) else x for x in call.args]
    name, kwargs = call.name, call.kwargs
    small = out.size <= SMALL and all(x.numel() <= SMALL for x in call.ins)
    if name in UFUNCS and not kwargs and len(args) == UFUNCS[name].nin:
        return [partial(UFUNCS[name], *args, out=out)]
    if name == "rsub" and not kwargs and len(args) == 2:
        return [partial(np.subtract, args[1], args[0], out=out)]
    if name == "pow" and args[1:] == [2]:
        return [partial(np.multiply, args[0], args[0], out=out)]
    if name == "relu" and (small or not call.in_place):
        return [partial(np.maximum, args[0], 0, out=out)]
    if name == "clamp" and small and not any(isinstance(x, np.ndarray) for x in args[1:]):
        low, high = [*args[1:], None, None][:2]
        found: list[Step] = [] if low is None else [partial(np.maximum, args[0], low, out=out)]
        return (
            found
            if high is None
            else [*found, partial(np.minimum, out if found else args[0], high, out=out)]
        )
    if name == "where" and len(args) == 3:
        return [
            partial(np.copyto, out, args[2], "same_kind"),
            partial(np.copyto, out, args[1], "same_kind", args[0]),
        ]
    if name == "masked_fill":
        fill = partial(np.copyto, out, args[2], "same_kind", args[1])
        return [fill] if call.in_place else [partial(np.copyto, out, args[0]), fill]
    if name in ("_to_copy", "clone", "copy") and small:
        return [partial(np.copyto, out, args[-1] if name == "copy" else args[0], "unsafe")]
    if name == "sum" and small and not kwargs and len(args) > 1:
        dims, keep = tuple(args[1] or range(args[0].ndim)), len(args) > 2 and args[2]
        return [partial(np.add.reduce, args[0], dims, out.dtype, out, keep)]
    if name == "cumsum" and small and not kwargs:
        return [partial(np.add.accumulate, args[0], args[1], out.dtype, out)]
    if name == "argmax" and small and len(args) == 2 and args[1] is not None:
        return [partial(args[0].argmax, args[1], out)]
    if name in ("mm", "addmm") and not kwargs:
        x, y = args[-2:]
        multiply: Step = partial(np.dot, x, y, out)
        sizes = (*x.shape, y.shape[1])
        fits = (
            math.prod(sizes) <= (DOT_VECTOR if 1 in sizes else DOT)
            and x.dtype == y.dtype == out.dtype
        )
        if not (fits and out.flags.c_contiguous):
            multiply = partial(
                torch.mm, call.args[-2].detach(), call.args[-1].detach(), out=call.outs[0]
            )
        return [multiply] if name == "mm" else [multiply, partial(np.add, out, args[0], out=out)]
    return []


def _torch(call: Call) -> list[Step]:
    args, kwargs = _bound(call.args), _bound(call.kwargs)
    func, outs, name = call.func, call.outs, call.name
    if call.in_place:  # call the method: the recorded overload costs 3 us more from Python
        method = getattr(args[0], f"{name}_", None)
        return [
            partial(func, *args, **kwargs)
            if method is None
            else partial(method, *args[1:], **kwargs)
        ]
    if name == "_to_copy" and len(outs) == 1:
        return [partial(outs[0].copy_, args[0])]
    if name in ("_softmax", "_log_softmax") and args[2] is False:
        return [partial(getattr(torch, name[1:]), args[0], args[1], out=outs[0])]
    places = [x.data_ptr() for x in outs]
    for step in _writing(call, args, kwargs):
        try:
            step()
        except TypeError:  # torch's function of that name takes no out, or other arguments
            continue
        # otherwise it had another size or dtype, and moved
        if places == [x.data_ptr() for x in outs]:
            return [step]
    raise Refused(f"{func} has no form that writes into memory that is there")


def _writing(call: Call, args: Sequence[Tree], kwargs: Mapping[str, Tree]) -> Iterator[Step]:
    """Yield variants of the operation with ``out``: torch's function of that name, then the
    operator's overloads.
    """
    packet = call.func.overloadpacket
    wanted = {x.name: str(x.type) for x in schema(call.func).arguments}
    if len(call.outs) == 1 and (plain := getattr(torch, call.name, None)) is not None:
        yield partial(plain, *args, **kwargs, out=call.outs[0])
    for found in (getattr(packet, name) for name in packet.overloads()):
        outs = [x.name for x in schema(found).arguments if x.is_out]
        takes = {x.name: str(x.type) for x in schema(found).arguments if not x.is_out}
        left_out = wanted.keys() - takes.keys()
        if len(outs) == len(call.outs) and takes.items() <= wanted.items() and left_out <= OPTIONS:
            given = {name: x for name, x in kwargs.items() if name in takes}
            yield partial(found, *args, **given, **dict(zip(outs, call.outs, strict=True)))


def _bound(x: Tree) -> Tree:
    """Detach the arguments from gradients, so that no mode has to be entered."""
    if isinstance(x, Tensor):
        return x.detach()
    if isinstance(x, dict):
        return {key: _bound(value) for key, value in x.items()}
    return type(x)(_bound(value) for value in x) if type(x) in (list, tuple) else x


def _tensors(x: object) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for value in x.values() if isinstance(x, dict) else x:
            yield from _tensors(value)


def _memory(x: Tensor) -> int:
    """The memory that views of one another share."""
    return int(x.untyped_storage().data_ptr())


def _array(x: Tensor) -> np.ndarray | None:
    """An array over the same bytes; None for a dtype that NumPy lacks."""
    return None if x.dtype == torch.bfloat16 else x.detach().numpy()


def _whole_rows(func: Any, args: Sequence[Tree]) -> bool:
    """Is it indexing by whole rows, with a result as long as the index?"""
    named = func.overloadpacket.__name__ == "index"
    return named and not any(x.dtype in (torch.bool, torch.uint8) for x in args[1] if x is not None)
