"""The learner's update alone, timed by device, precision and threads in a process that is thrown
away.

torch's threads and the exactness of its products are of a whole process, so the driver's own stays
as it is. The learner and the shapes of its batch are the run's own; the numbers are random.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn

from equipoise import tree
from equipoise.actors.forward.forward import Forward
from equipoise.experience.layout import trajectory_specs
from equipoise.learners.learner import Learner
from equipoise.nets.threads import one_thread
from equipoise.plans.blueprint import Blueprint
from equipoise.private.torch import import_compiler
from equipoise.programs.fields import alter
from equipoise.runtime.process import forkserver
from equipoise.runtime.process.main_module import WithMain, hidden, shipped
from equipoise.runtime.session import Interrupt
from equipoise.tuning.forward import acting
from equipoise.tuning.race import race
from equipoise.types import Array, Batch, Precision, Program, Trajectory, Tree, learning

SPAN_S = 0.2  # of one timing, but at least this number of minibatches, or one whole update
MINIBATCHES = 3
ACTS_S = 0.05
TURNS = 2  # each way is timed so often, in turn
FAR = 2.0  # but a way that takes this factor longer than the fastest is timed once
SLICE_S = 0.02
WIDE = 256  # inputs and outputs of a layer from which on a precision or a thread may pay


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to compute."""

    device: str = "cpu"
    precision: Precision = "fp32"
    threads: int = 1  # of the learner

    def of(self, program: Program) -> Program:
        """The program that computes so."""
        return alter(program, device=self.device, precision=self.precision, threads=self.threads)

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return (
            f"{self.precision} with {self.threads} thread{'s' if self.threads > 1 else ''}{where}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one update, and of one act for an actor's envs; 0 if nothing acts."""

    update_s: float
    act_s: float
    compiler_s: float = 0.0  # CPU time of the imports of torch's compiler, if the run compiles
    cached: bool = False  # has torch anything that was compiled before?


def is_small(net: nn.Module) -> bool:
    """Has the network no convolution and no wide layer? Then precision and threads cost more."""
    return all(p.ndim < 2 or (p.ndim == 2 and min(p.shape) < WIDE) for p in net.parameters())


def timed(
    blue: Blueprint,
    ways: Sequence[Way],
    interrupt: Interrupt,
    *,
    until: float,
    enough: Callable[[Took], bool],
) -> tuple[dict[Way, Took], str]:
    """Time the update in each way -> the better of its turns, and the fault, or "".

    The first way is the only one if ``enough`` accepts it. Ends at ``until`` (monotonic).
    """
    forkserver.prepare()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    given = (blue, tuple(ways), until)
    code = shipped(blue.program)
    process: Any = multiprocessing.get_context("forkserver").Process(
        target=_main,
        args=(given if code is None else WithMain(given, code), theirs),
        name="equipoise update",
        daemon=True,
    )
    with hidden():
        forkserver.start(process)
    theirs.close()
    found: dict[Way, Took] = {}
    try:
        for said in _heard(ours, interrupt, until):
            if isinstance(said, str):
                return found, said
            way, took = ways[said[0]], said[1]
            if (before := found.get(way)) is not None:
                took = replace(
                    took,
                    update_s=min(took.update_s, before.update_s),
                    act_s=min(took.act_s, before.act_s),
                )
            found[way] = took
            if len(found) == 1 and enough(took):
                break
        return found, ""
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _heard(pipe: Connection, interrupt: Interrupt, until: float) -> Iterator[Any]:
    """The process's messages, until it ends or the time is over."""
    while time.monotonic() < until:
        interrupt.check()
        if pipe.poll(SLICE_S):
            try:
                yield pipe.recv()
            except EOFError:
                return


def _main(given: tuple[Blueprint, tuple[Way, ...], float], pipe: Connection) -> None:
    """Send the number of each way and its time, for each turn, or an error."""
    blue, ways, until = given
    with contextlib.suppress(BrokenPipeError):  # the driver has heard enough
        try:
            _race(blue, ways, until, pipe)
        except Exception as error:  # whatever an algorithm raises that is given random rows
            pipe.send(f"{type(error).__name__}: {error}")


def _race(blue: Blueprint, ways: Sequence[Way], until: float, pipe: Connection) -> None:
    with one_thread():
        nets = {name: blue.network(name) for name in blue.learns}
        batches = {name: random_batch(blue, name, net) for name, net in nets.items()}
        acts = {
            one: _act_s(blue, one, nets) for one in dict.fromkeys(way.precision for way in ways)
        }
    compiler_s, cached = _compiler() if blue.program.placement.compile else (0.0, False)
    warm = set[Way]()

    def turn(number: int, way: Way) -> float:
        made = replace(blue, program=way.of(blue.program))
        torch.set_num_threads(way.threads)
        seconds = 0.0
        for name, net in nets.items():
            learner = made.learner(name, copy.deepcopy(net))
            if way not in warm:
                update_s(learner, batches[name], span_s=0.0)  # it allocates, and picks kernels
            seconds += update_s(learner, batches[name])
        warm.add(way)
        took = Took(
            update_s=seconds, act_s=acts[way.precision], compiler_s=compiler_s, cached=cached
        )
        pipe.send((number, took))
        return 1.0 / seconds

    candidates = {str(way): partial(turn, number, way) for number, way in enumerate(ways)}
    race(candidates, turns=TURNS, until=until, far=FAR)


def _compiler() -> tuple[float, bool]:
    """Import torch's compiler -> the CPU seconds that took, and is anything compiled already?"""
    began = time.process_time()
    kept = import_compiler()
    return time.process_time() - began, any(kept.iterdir())


class _Enough(Exception):
    """Ends an update that has been timed for long enough."""


def update_s(learner: Learner, batch: Batch, *, span_s: float = SPAN_S) -> float:
    """Time updates for about ``span_s`` -> seconds of one, by a few minibatches if it is long."""
    many = learner.algorithm.epochs * learner.algorithm.minibatches
    ends: list[float] = []

    def pulse() -> None:
        if learner.device.type == "cuda":
            torch.cuda.synchronize(learner.device)
        ends.append(time.perf_counter())
        if MINIBATCHES <= len(ends) < many and ends[-1] - began >= span_s:
            raise _Enough

    learner.pulse = pulse
    whole: list[float] = []
    first = began = time.perf_counter()
    try:
        while not whole or time.perf_counter() - first < span_s:
            ends.clear()
            began = time.perf_counter()
            learner.step(batch)
            whole.append(time.perf_counter() - began)
    except _Enough:
        if not whole:
            return (
                ends[0] - began + (many - 1) * statistics.median(b - a for a, b in pairwise(ends))
            )
    return statistics.median(whole)


def _act_s(blue: Blueprint, precision: Precision, nets: Mapping[str, nn.Module]) -> float:
    """Time one act of each policy for the envs of an actor, in the faster way."""
    seconds = 0.0
    for name, net in nets.items() if blue.program.actors else ():
        acts, chosen = acting(blue, name, net, precision, compiled=False)
        if chosen.measured:
            seconds += min(chosen.measured.values()) * 1e-6
            continue
        forward = acts.make(Forward)
        row, took = acts.row(forward, 1), list[float]()
        forward(row, acts.state)
        while len(took) < MINIBATCHES or sum(took) < ACTS_S:
            began = time.perf_counter()
            forward(row, acts.state)
            took.append(time.perf_counter() - began)
        seconds += statistics.median(took)
    return seconds


def random_batch(blue: Blueprint, name: str, net: Any) -> Batch:
    """A batch of random observations and rewards and the policy's answers, in the run's shapes."""
    policy, role, rng = learning(blue.program)[name], blue.roles[name], np.random.default_rng(0)
    unroll = policy.unroll if policy.replay is None else policy.algorithm.item_rows or policy.unroll
    items = blue.batch(name)
    fields: dict[str, Tree] = tree.zeros(trajectory_specs(role.row, unroll, items))

    def some(x: Array) -> Array:
        if x.dtype.kind == "f":
            return rng.standard_normal(x.shape, np.float32).astype(x.dtype)
        return rng.integers(0, 256 if x.dtype == np.uint8 else 2, x.shape).astype(x.dtype)

    fields["obs"] = tree.map(some, fields["obs"])
    if role.spec.mask:  # every action is allowed
        *path, last = role.spec.mask
        inner = fields["obs"]
        for key in path:
            inner = inner[key]
        inner[last][...] = 1
    fields["reward"] = some(fields["reward"])
    fields["mask"][...] = fields["bootstrap"][...] = True
    data = tree.torch_views(fields)
    with torch.inference_mode():
        action, behaviour, _ = policy.algorithm.act(
            net,
            tree.map(lambda x: x[0], data["obs"]),
            torch.zeros(items, dtype=torch.bool),
            net.initial_state(items),
            explore=policy.algorithm.explore(
                np.zeros(items, np.int64), max(blue.program.actors, 1), 0
            ),
            noise=torch.from_numpy(rng.random((items, role.noise.columns), np.float32)),
        )
    for key, done in (("action", action), ("behaviour", behaviour)):
        tree.map(lambda rows, one: rows.copy_(one.expand(rows.shape)), data[key], done)
    if role.latents:
        kept: dict[str, Tree] = tree.zeros(trajectory_specs(role.kept, unroll, items))
        data["obs"] = tree.torch_views(tree.map(some, kept["obs"]))
    return Batch(
        data=Trajectory(**data),
        keys=np.zeros((items, 2), np.int64),
        weight=torch.ones(items),
        targets={},
    )
