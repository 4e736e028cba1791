"""Forwards: from a row's observation to its action, by ``Algorithm.act`` in torch or by a recording
of it (``lean``).

An agent makes ``rows`` once, of arrays that stay in place. Then ``use`` follows each fetch of
weights, ``begin`` each start of an unroll, and a call does one row. Several env workers' streams in
one array are a row like any other.

The weights of acting may be rounded (``acting``): bf16 computes torsos in bfloat16 as
``precision=bf16`` does, and int8 takes layer weights from ``nets.quantize``, dequantised when they
are fetched: products are in float32. The recorded behaviour is always that of the policy that
acted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.actors.forward.lean import Step, Tape
from equipoise.nets.precision import autocast
from equipoise.nets.quantize import dequantize, layer_weights, quantize
from equipoise.types import (
    ActingPrecision,
    Algorithm,
    Array,
    Precision,
    Trajectory,
    Tree,
    WeightStore,
)

KEPT_ROWS, KEPT_SLOTS = 1 << 14, 16  # most entries of each cache


@dataclass(slots=True)
class Row:
    """The inputs and outputs of one row of B streams: tensors for torch's forward, arrays for the
    lean one.
    """

    obs: Tree  # [B, ...]
    first: Array  # [B]
    noise: Array  # [B, k]
    action: Tree  # [B, ...] written
    behaviour: Tree  # [B, ...] written
    tape: Tape | None = None  # a tape whose memory these arrays copy to and from:
    enter: list[Step] = field(default_factory=list)
    leave: list[Step] = field(default_factory=list)


class Forward:
    """The forward by torch."""

    def __init__(
        self,
        algorithm: Algorithm,
        net: Any,
        *,
        precision: Precision = "fp32",
        acting: ActingPrecision = "fp32",
        device: str = "cpu",
    ) -> None:
        """``device``: the network's device, where recurrent state stays; rows are on the CPU."""
        self.device = torch.device(device)
        self.algorithm, self.net, self.version = algorithm, net.to(self.device), -1
        self._autocast = autocast("bf16" if acting == "bf16" else precision, self.device)
        self._explore: Tree = {}
        own = layer_weights(net) if acting == "int8" else []
        # the rounded parameters
        self._own = {name: torch.empty_like(net.get_parameter(name)).detach() for name in own}
        self._params: Mapping[str, Tensor] = {}  # the fetched parameters
        self._known: dict[int, tuple[list[Row], Array]] = {}  # by the address of an unroll's rows

    def unroll(self, data: Trajectory, noise_columns: int) -> tuple[list[Row], Array]:
        """Return the rows of a slot with the noise [T, B, k] for them; cached, since the same slots
        come again.
        """
        at = data.reward.__array_interface__["data"][0]
        if at not in self._known:
            if len(self._known) >= max(KEPT_ROWS // len(data.reward), KEPT_SLOTS):
                self._known.clear()
            noise = np.zeros((*data.reward.shape, noise_columns), np.float32)
            rows = self.rows(
                obs=data.obs,
                first=data.first,
                noise=noise,
                action=data.action,
                behaviour=data.behaviour,
            )
            self._known[at] = rows, noise
        return self._known[at]

    def rows(
        self, *, obs: Tree, first: Array, noise: Array, action: Tree, behaviour: Tree
    ) -> list[Row]:
        """Make the rows of numpy arrays [T, B, ...]; input arrays may have more than T rows."""
        return self._rows((obs, first, noise, action, behaviour))

    def _rows(self, fields: tuple[Tree, ...]) -> list[Row]:
        return cut(tree.map(lambda x: x.unbind(0), tree.torch_views(field)) for field in fields)

    def initial_state(self, streams: int) -> Tree:
        """The initial recurrent state [streams, ...]."""
        return tree.to(self.net.initial_state(streams), self.device)

    def refresh(self, weights: WeightStore) -> bool:
        """Fetch newer weights, if there are any -> do they lie at other addresses than before?"""
        if (fetched := weights.fetch(self.version)) is None:
            return False
        self.version = fetched[0]
        return self.use(fetched[1])

    def use(self, params: Mapping[str, Tensor]) -> bool:
        """Use these weights from now on -> do they lie at other addresses than before?

        A store that rewrites its tensors in place, on the network's device, is bound once; its
        later fetches need no copy.
        """
        self._params, moved = params, False
        for name, tensor in self._own.items():
            dequantize(*quantize(params[name].to(self.device)), out=tensor)
        for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers()):
            wanted = self._own.get(name, params[name])
            if tensor.device != wanted.device:
                tensor.data.copy_(wanted)
            elif tensor.data_ptr() != wanted.data_ptr():
                tensor.data, moved = wanted, True
        return moved

    def begin(self, explore: Tree) -> None:
        """Begin an unroll, in which all rows explore by ``explore`` [B, ...]."""
        self._explore = explore

    def __call__(self, row: Row, state: Tree) -> Tree:
        """Write action and behaviour of the row -> the state after it, which may be overwritten by
        the next call.
        """
        with torch.inference_mode(), self._autocast:
            action, behaviour, state = self._act(row, state)
            tree.map(lambda to, x: to.copy_(x), row.action, action)
            tree.map(lambda to, x: to.copy_(x), row.behaviour, behaviour)
        return state

    def _act(self, row: Row, state: Tree) -> tuple[Tree, Tree, Tree]:
        return self.algorithm.act(
            self.net, row.obs, row.first, state, explore=self._explore, noise=row.noise
        )

    @contextmanager
    def acting(self) -> Iterator[None]:
        """The network as it acts."""
        with torch.inference_mode(), self._autocast:
            yield

    @contextmanager
    def exact(self) -> Iterator[None]:
        """The network with the fetched weights, not rounded."""
        mine = dict(self.net.named_parameters())
        for name in self._own:
            mine[name].data = self._params[name].to(self.device)
        try:
            with torch.inference_mode():
                yield
        finally:
            for name, tensor in self._own.items():
                mine[name].data = tensor


class LeanForward(Forward):
    """The forward by a recording of the first row; recorded again if weights or exploration change
    place or shape.

    ``lean.Refused`` if ``act`` cannot be recorded.
    """

    _tape: Tape | None = None
    # set by _record, with the tape
    _inputs: dict[str, Tree]
    _state: Tree  # tensors over the inputs' state
    _carry: list[Step]

    def use(self, params: Mapping[str, Tensor]) -> bool:
        if moved := super().use(params):
            self._tape = None
        elif self._tape is not None:
            self._tape.refresh()
        return moved

    def begin(self, explore: Tree) -> None:
        if self._tape is not None and tree.spec(explore) == tree.spec(self._explore):
            tree.copy(self._inputs["explore"], tree.numpy_views(explore))
        else:
            self._tape = None
        super().begin(explore)

    def __call__(self, row: Row, state: Tree) -> Tree:
        if self._tape is None:
            self._record(row, state)
        elif state is not self._state:
            tree.copy(self._inputs["state"], tree.numpy_views(state))
        if row.tape is not self._tape:
            self._bind(row)
        for step in row.enter:
            step()
        self._tape.run()  # type: ignore[union-attr]
        for step in row.leave:
            step()
        for step in self._carry:
            step()
        return self._state

    def _record(self, row: Row, state: Tree) -> None:
        given = {
            "obs": row.obs,
            "first": row.first,
            "noise": row.noise,
            "state": state,
            "explore": self._explore,
        }
        self._inputs = tree.map(np.array, tree.numpy_views(given))

        def act(x: dict[str, Tree]) -> Tree:
            with self._autocast:
                results = self.algorithm.act(
                    self.net,
                    x["obs"],
                    x["first"],
                    x["state"],
                    explore=x["explore"],
                    noise=x["noise"],
                )
                return dict(zip(("action", "behaviour", "state"), results, strict=True))

        self._tape = Tape(act, self._inputs, tree.named_tensors(self.net).values())
        self._state = tree.torch_views(self._inputs["state"])
        self._carry = list(_copies(self._inputs["state"], self._tape.outputs["state"]))

    def _rows(self, fields: tuple[Tree, ...]) -> list[Row]:
        return cut(tree.map(list, field) for field in fields)

    def _bind(self, row: Row) -> None:
        tape = self._tape
        assert tape is not None
        read = {path.split("/")[0] for path in tape.reads}
        inputs = {"obs": row.obs, "first": row.first, "noise": row.noise}
        outputs = {"action": row.action, "behaviour": row.behaviour}
        row.tape = tape
        row.enter = [
            step
            for name, given in inputs.items()
            if name in read
            for step in _copies(self._inputs[name], given)
        ]
        row.leave = [
            step for name, to in outputs.items() for step in _copies(to, tape.outputs[name])
        ]


def cut(fields: Iterable[Tree]) -> list[Row]:
    """Cut row t out of trees whose leaves are sequences of rows."""
    obs, first, noise, action, behaviour = fields
    count = min(len(x) for x in tree.leaves(action))
    return [
        Row(*(tree.index(x, t) for x in (obs, first, noise, action, behaviour)))
        for t in range(count)
    ]


def _copies(to: Tree, of: Tree) -> Iterator[Step]:
    tree.map(lambda a, b: None, to, of)  # check that both have the same keys
    for a, b in zip(tree.leaves(to), tree.leaves(of), strict=True):
        yield partial(np.copyto, a, b)


FORWARDS: dict[str, type[Forward]] = {"torch": Forward, "lean": LeanForward}


def can_round(net: nn.Module, acting: ActingPrecision) -> None:
    """Raise ValueError if there is nothing to round."""
    if acting == "int8" and not layer_weights(net):
        raise ValueError(
            "acting: expected fp32 or bf16 for a network without layers to quantise, got int8"
        )
