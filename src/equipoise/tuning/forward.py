"""The choice of how each policy acts: an actor's faster forward on this machine, measured for a
moment before a run begins.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.actors.forward.forward import FORWARDS, Forward, LeanForward, Row, can_round
from equipoise.actors.forward.lean import Refused
from equipoise.nets.compiled import pays
from equipoise.nets.threads import one_thread
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.roles import network
from equipoise.tuning.choice import FORWARD, Choice, Known
from equipoise.tuning.race import most_usual, race
from equipoise.types import ActingPrecision, Algorithm, Array, Precision, Tree

ROUNDS = 7  # rounds in which both take turns
ROUND_S = 0.005  # seconds of one forward in a round
LONGEST_S = 0.5  # after this time two rounds are enough
GAIN = 0.97  # lean is chosen below this share of torch's time
TOLERANCE = 1e-3
EQUAL = 0.99  # share of numbers that have to be equal in a check


class Acts:
    """The parts of a policy's forward, and rows of random numbers to measure it with."""

    def __init__(
        self,
        algorithm: Algorithm,
        net: Any,
        *,
        row: Any,
        streams: int,
        noise_columns: int,
        precision: Precision = "fp32",
        acting: ActingPrecision = "fp32",
    ) -> None:
        """``row``: the specs ``obs``, ``action`` and ``behaviour`` of one stream."""
        self.net, self._algorithm, self.precision, self._acting = net, algorithm, precision, acting
        self._row, self.streams, self._columns = row, streams, noise_columns
        self.state: Tree = net.initial_state(streams)

    def make(self, kind: type[Forward]) -> Forward:
        forward = kind(self._algorithm, self.net, precision=self.precision, acting=self._acting)
        forward.use({name: tensor.clone() for name, tensor in tree.named_tensors(self.net).items()})
        forward.begin(self._algorithm.explore(np.arange(self.streams), self.streams, 0))
        return forward

    def row(self, forward: Forward, seed: int) -> Row:
        """Make a row: normal numbers, bytes of all values, other integers 0 and 1."""
        rng = np.random.default_rng(seed)

        def some(spec: tree.ArraySpec) -> Array:
            shape, dtype = (1, self.streams, *spec.shape), np.dtype(spec.dtype)
            if dtype.kind == "f":
                return rng.standard_normal(shape).astype(dtype)
            return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)

        (row,) = forward.rows(
            obs=tree.map(some, self._row.obs),
            first=rng.random((1, self.streams)) < 0.2,
            noise=rng.random((1, self.streams, self._columns), np.float32),
            action=tree.zeros(tree.prepend(self._row.action, 1, self.streams)),
            behaviour=tree.zeros(tree.prepend(self._row.behaviour, 1, self.streams)),
        )
        return row


def choose(
    acts: Acts, *, max_lag: int | None, compiled: bool, central: bool = False, partial: bool = False
) -> Choice:
    """Choose a forward. ``compiled``: the torso runs by ``torch.compile``; ``central``: several
    agents' rows are batched; ``partial``: actors act for some of their streams at a time.
    """
    lockstep = max_lag == 0
    reasons = {
        "central inference acts for another number of rows each time": central,
        "partial_streams act for another number of rows each time": partial,
        "max_lag=0 gives the same bits each time, so nothing is chosen by measurement": lockstep,
        "the torso is compiled": compiled,
        "precision=medium is a mode of torch's products": acts.precision == "medium",
    }
    for why, holds in reasons.items():
        if holds:
            return Choice(value="torch", why=why)
    try:
        with one_thread():  # as in an actor
            return _measured(acts)
    except Refused as error:
        return Choice(value="torch", why=f"lean cannot be had, since {error}")


def _measured(acts: Acts) -> Choice:
    by_torch, lean = acts.make(Forward), acts.make(LeanForward)
    lean(acts.row(lean, 0), acts.state)  # records it
    check(by_torch, lean, acts)
    until = time.monotonic() + LONGEST_S

    def candidate(one: Forward) -> Callable[[], float]:
        at = acts.row(one, 1)
        calls = max(int(ROUND_S / max(_seconds(one, at, acts.state, 3), 1e-6)), 1)
        return lambda: 1.0 / max(_seconds(one, at, acts.state, calls), 1e-9)

    candidates = {"torch": candidate(by_torch), "lean": candidate(lean)}
    rates = race(candidates, turns=ROUNDS, least=2, until=until).median
    took = {label: 1e6 / rate for label, rate in rates.items()}
    return Choice(
        value=most_usual(rates, candidates, tie=1.0 / GAIN),
        why=f"a row of {acts.streams} streams takes {took['lean']:,.0f} us lean and "
        f"{took['torch']:,.0f} us by torch",
        measured=took,
        unit="us for a row of an actor's streams",
    )


def check(by_torch: Forward, lean: Forward, acts: Acts) -> None:
    """Raise ``Refused`` if both differ on another row: the recording took a value as constant."""
    said = []
    for one in (by_torch, lean):
        row = acts.row(one, 2)
        state = one(row, acts.state)
        said.append(
            tree.numpy_views({"action": row.action, "behaviour": row.behaviour, "state": state})
        )
    for (path, a), (_, b) in zip(*map(tree.items, said), strict=True):
        same = np.isclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True)
        if same.size and same.mean() < EQUAL:
            raise Refused(
                f"{path} of a second row differs from torch's: act depends on more than what it is "
                "given"
            )


def _seconds(forward: Forward, row: Row, state: Tree, calls: int) -> float:
    """Seconds of this thread on a core for one call, which other load changes little."""
    begun = time.thread_time()
    for _ in range(calls):
        state = forward(row, state)
    return (time.thread_time() - begun) / calls


def forwards(blue: Blueprint, known: Known | None = None) -> dict[str, dict[str, Any]]:
    """Choose how each policy acts -> the record; ``known``: the choices that a resume keeps.

    ValueError if the weights cannot be rounded as the program demands.
    """
    program, kept_ones, found = blue.program, known or {}, {}
    for policy in blue.roles if program.actors and program.source.played is not None else ():
        net, name = network(program, blue.spec, policy), _name(blue, policy)
        can_round(net, program.placement.acting_precision)
        if blue.rolls_out:
            chosen = Choice(value="torch", why="the env is on the policy's device")
            found[name] = dataclasses.asdict(chosen)
            continue
        if kept_ones.get(name, {}).get("value") in FORWARDS:
            found[name] = kept_ones[name]
            continue
        compiled = program.placement.compile and pays(net)
        _, chosen = acting(blue, policy, net, program.placement.precision, compiled=compiled)
        found[name] = dataclasses.asdict(chosen)
    return found


def acting(
    blue: Blueprint, policy: str, net: Any, precision: Precision, *, compiled: bool
) -> tuple[Acts, Choice]:
    """A policy's forward in this run, and the choice of it."""
    place, role = blue.program.placement, blue.roles[policy]
    acts = Acts(
        role.algorithm,
        net,
        row=role.row,
        streams=place.envs_per_actor * len(role.places),
        noise_columns=role.noise.columns,
        precision=precision,
        acting=place.acting_precision,
    )
    central, partial = place.inference == "central", bool(place.partial_streams)
    return acts, choose(
        acts, max_lag=place.max_lag, compiled=compiled, central=central, partial=partial
    )


def forward_of(blue: Blueprint, found: Known) -> dict[str, str]:
    """{policy: a key of ``FORWARDS``} of a record."""
    return {
        policy: found[name]["value"]
        for policy in blue.roles
        if (name := _name(blue, policy)) in found
    }


def _name(blue: Blueprint, policy: str) -> str:
    return FORWARD if len(blue.roles) == 1 else f"{FORWARD}.{policy}"
