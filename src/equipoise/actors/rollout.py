"""The rollout: a device env and a policy on one device, whose tick is a whole unroll, written in
place into its slot.

A slot is reserved when the unroll starts and the weights are fetched just after, as in
``LocalAgent``, so the lag has the same bound. Row t of the slot is written by the policy (action,
behaviour) and by the env (reward, mask, bootstrap, obs[t+1]), each once. The state that outlives an
unroll is in tensors that stay in place, so that a graph may be captured over them (``capture.py``):
the env's state, the recurrent state, the row that opens the next unroll, and the streams' row
numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.actors.agent import ActingParts, StreamNumbers
from equipoise.actors.capture import Capture, Plainly
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.forward import Row
from equipoise.actors.forward.rounding import errors
from equipoise.clock import Clock
from equipoise.device_envs.counter import key_of
from equipoise.device_envs.device_env import (
    Bounds,
    DeviceEnv,
    NextStep,
    check,
    check_state,
    streams_on,
)
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.types import (
    Places,
    StateReader,
    StateWriter,
    Tick,
    TimeStep,
    Trajectory,
    Tree,
)

# as an actor's: "env" is the unroll with the acting, "write" the statistics
PARTS = ("env", "reset", "write", "fetch", "act")


class Unrolled:
    """The tensors that an unroll is written into: a slot's tensors, and tensors that only the
    statistics read.
    """

    def __init__(self, data: Trajectory, noise_columns: int) -> None:
        self.data = data
        reward, mask = data.reward, data.mask
        self.noise = torch.zeros(*reward.shape, noise_columns, device=reward.device)  # [T, B, k]
        self.terminated, self.truncated = torch.zeros_like(mask), torch.zeros_like(mask)  # [T, B]
        self.written = {
            "action": data.action,
            "behaviour": data.behaviour,
            "reward": reward,
            "mask": mask,
            "bootstrap": data.bootstrap,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }
        # the outputs of row t
        self.rows = [tree.index(self.written, t) for t in range(len(reward))]
        self.edges = [
            tree.index({"obs": data.obs, "first": data.first}, t) for t in range(len(reward) + 1)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedEnv:
    """A device env, and how it begins and is checked."""

    env: DeviceEnv
    name: str  # for errors
    seed: int
    observation: Tree  # the specs of one stream's
    note: Callable[[str], object] = lambda text: None  # takes what a person has to know


class Rollout:
    """``Worker`` of one env of B streams and one policy."""

    ready = Tick.BLOCKED  # between two unrolls

    def __init__(
        self,
        stepped: SteppedEnv,
        *,
        acting: ActingParts,
        places: Places,
        episodes: Episodes,
        streams: StreamNumbers,
        unroll: int,
        clock: Clock,
        capture: Capture | None = None,
    ) -> None:
        """``capture``: how an unroll is done; None: operation by operation."""
        self.env, self._name, forward = stepped.env, stepped.name, acting.forward
        self._forward, self.net, self._weights = forward, forward.net, acting.weights
        self._noise, self._key, self._rounding = acting.noise, key_of(acting.seed), acting.rounding
        self._places, self._episodes, self._clock = places, episodes, clock
        self._capture = Plainly() if capture is None else capture
        self._numbers, self._total, self._unroll = streams.numbers, streams.total, unroll
        device = forward.device
        self._streams = streams_on(self._numbers, device)
        self._bounds = Bounds(self.env.action, device)
        with torch.inference_mode():
            state, ts = self.env.reset(stepped.seed, self._streams)
        check(self._name, ts, stepped.observation, self._streams)
        self._observation, self._note = stepped.observation, stepped.note
        self._checked = False  # the rows of a step
        self._start = torch.zeros_like(self._streams)
        self._state: dict[str, Tree] = {
            "env": state,
            "recurrent": forward.initial_state(len(self._numbers)),
        }
        self._state = tree.map(torch.clone, self._state)
        self._step = self._capture.step(self._pure)
        self._carry: dict[str, Tree] = tree.map(torch.clone, {"obs": ts.obs, "first": ts.first})
        self._explore: Tree = {}
        self._next_row = 0  # the row number of the next unroll's first row, of every stream
        self._known: dict[int, Unrolled] = {}  # by the address of a slot's rows
        self.resumed: dict[str, int] = {}  # as in ``Env``
        self.restarts: dict[int, str] = {}
        self._count(
            ts.reward[None], ts.valid[None], ts.first[None], ts.terminated[None], ts.truncated[None]
        )

    # ------------------------------------------------------------------------------------ an unroll

    def tick(self) -> Tick:
        if (slot := self._places.reserve(self._numbers)) is None:
            return Tick.BLOCKED
        self._clock.begin()
        out = self._opened(slot.data)
        with self._forward.acting():
            self._capture.unroll(self._rows, out)
        self._clock.lap("env")
        data = out.data
        self._look(data)
        self._count(data.reward, data.mask, data.first[1:], out.terminated, out.truncated)
        self._next_row += self._unroll
        self._places.commit(slot)
        self._clock.lap("write")
        return Tick.WORKED

    def _opened(self, data: Trajectory) -> Unrolled:
        """Fetch the newest weights, and write what stands in a slot once an unroll."""
        began = perf_counter()
        if self._forward.refresh(self._weights):
            self._known.clear()  # and the graphs that were captured over the other weights
        self._clock.add("fetch", perf_counter() - began)
        version = self._forward.version
        self._episodes.begins(version, self._next_row + self._unroll)
        out = self._tensors(data)
        out.data.version.fill_(version)
        explore = self._forward.algorithm.explore(
            self._numbers, self._total, self._next_row * self._total
        )
        if tree.spec(explore) == tree.spec(self._explore):
            _write(self._explore, explore)
        else:
            self._explore = tree.map(lambda x: x.to(self._forward.device, copy=True), explore)
        self._forward.begin(self._explore)
        if self._rounding is not None and self._rounding.due(version):
            self._first_row(out)
            row = Row(
                **out.edges[0],
                noise=out.noise[0],
                action=out.rows[0]["action"],
                behaviour=out.rows[0]["behaviour"],
            )
            self._rounding.add(
                version, errors(self._forward, row, self._state["recurrent"], self._explore)
            )
        return out

    def _tensors(self, data: Trajectory) -> Unrolled:
        """The tensors of a slot; cached, since the same slots come again."""
        fields = tree.torch_views(data.fields())
        at = int(fields["reward"].data_ptr())
        if (found := self._known.get(at)) is None:
            found = self._known[at] = Unrolled(Trajectory(**fields), self._noise.columns)
        return found

    def _first_row(self, out: Unrolled) -> None:
        """Write what the unroll begins with: the row that the last one ended with, the state before
        it, and all noise.
        """
        data = out.data
        _write(out.edges[0], self._carry)
        _write(data.state, self._state["recurrent"])
        data.context["stream"].copy_(self._streams)
        data.context["start"].copy_(self._start)
        out.noise.copy_(self._noise.draw_on(self._key, self._streams, self._start, self._unroll))

    def _rows(self, out: Unrolled) -> None:
        """Write all rows of an unroll, and leave the state for the next one: work that a graph may
        capture.
        """
        self._first_row(out)
        state: Tree = self._state
        for t, row in enumerate(out.rows):
            state, did, seen = self._step(out.edges[t], out.noise[t], self._explore, state)
            _write(row, did)
            _write(out.edges[t + 1], seen)
        # of a device env whose state has views of the one before
        _write(self._state, tree.map(torch.clone, state))
        _write(self._carry, out.edges[-1])
        self._start += self._unroll

    def _pure(
        self, edge: Tree, noise: Tensor, explore: Tree, state: Tree
    ) -> tuple[Tree, Tree, Tree]:
        """One row: the next state, the values to write, and the values seen next."""
        algorithm, net = self._forward.algorithm, self._forward.net
        action, behaviour, recurrent = algorithm.act(
            net, edge["obs"], edge["first"], state["recurrent"], explore=explore, noise=noise
        )
        env, ts = self.env.step(state["env"], self._bounds(action))
        if not self._checked:
            self._check(ts, state["env"], env)
        did = {
            "action": action,
            "behaviour": behaviour,
            "reward": ts.reward,
            "mask": ts.valid,
            "bootstrap": ~ts.terminated,
            "terminated": ts.terminated,
            "truncated": ts.truncated,
        }
        return {"env": env, "recurrent": recurrent}, did, {"obs": ts.obs, "first": ts.first}

    # ------------------------------------------------------------------------------- written values

    def _check(self, ts: TimeStep, before: Tree, after: Tree) -> None:
        """Check the first step's rows and state: later steps run the same code."""
        check(self._name, ts, self._observation, self._streams)
        check_state(self._name, before, after)
        self._checked = True
        for text in self.env.notes if isinstance(self.env, NextStep) else ():
            self._note(
                f"warning: {self._name}: {text}: expected the final observations of truncated "
                "episodes, got none"
            )

    def _look(self, data: Trajectory) -> None:
        """WrongValue if a reward or an observation is not finite: one sum of each array checks all
        rows.
        """
        for key, x in tree.items({"reward": data.reward, "obs": data.obs}):
            if x.is_floating_point() and not torch.isfinite(x.sum()):
                wrong = (~torch.isfinite(x)).nonzero()
                if len(wrong):
                    row, stream = wrong[0, 0].item(), int(wrong[0, 1])
                    value = float(x[tuple(wrong[0])])
                    where = (
                        f"device env {self._name}, stream {int(self._numbers[stream])}, row "
                        f"{row} of an unroll"
                    )
                    raise WrongValue("nonfinite", stream, key, "finite numbers", f"{value}").placed(
                        where
                    )

    def _count(
        self, reward: Tensor, valid: Tensor, first: Tensor, terminated: Tensor, truncated: Tensor
    ) -> None:
        """Add rows [T, B] to the statistics of episodes, which lie in host memory."""
        columns = [x.cpu().numpy() for x in (reward, valid, first, terminated, truncated)]
        for row in zip(*columns, strict=True):
            names = ("reward", "valid", "first", "terminated", "truncated")
            self._episodes.observe(
                TimeStep(obs={}, stream=self._numbers, **dict(zip(names, row, strict=True)))
            )

    # ---------------------------------------------------------------------------------- checkpoints

    def save(self, to: StateWriter) -> None:
        """Put the state between two unrolls: tensors, so that a resume goes on exactly; a device
        env without exact states saves nothing.
        """
        kept = self._state if self.env.exact else {"recurrent": self._state["recurrent"]}
        to.put(
            {
                "state": kept,
                "carry": self._carry,
                "start": self._start,
                "episodes": self._episodes.state(),
            }
        )

    def load(self, source: StateReader) -> None:
        """Load a state; ValueError if types or shapes differ. Episodes of a device env that is not
        exact start again.
        """
        state, count = source.state(), len(self._numbers)
        kept = {
            name: schema.like(part)
            for name, part in self._state.items()
            if name == "recurrent" or self.env.exact
        }
        wanted = {
            "state": kept,
            "carry": schema.like(self._carry),
            "episodes": self._episodes.schema(),
            "start": schema.Array((count,), "int64", 0, schema.MOST, tensor=True),
        }
        schema.check(state, wanted, "")
        self._episodes.load(state["episodes"])
        self._start.copy_(state["start"])
        self._next_row = int(self._start[0])
        if self.env.exact:
            _write(self._state, state["state"])
            _write(self._carry, state["carry"])
        else:  # the reset of this process opens the next unroll
            self._go_on_at(self._next_row + 1)
            self._episodes.abandon()
        self.restarts = (
            {}
            if self.env.exact
            else dict.fromkeys(self._numbers.tolist(), "its simulator keeps a state of its own")
        )
        self.resumed = {
            "exact": count - len(self.restarts),
            "replay": 0,
            "restart": len(self.restarts),
        }

    def continue_after_gap(self) -> None:
        """Continue the streams of a lost rollout, after a gap in their row numbers."""
        self._go_on_at(self._episodes.next_row + 1)

    def _go_on_at(self, row: int) -> None:
        self._next_row = row
        self._start.fill_(row)

    def close(self) -> None:
        """Nothing is open, but a simulator may have something."""
        closing = getattr(self.env, "close", None)
        if closing is not None:
            closing()


def _write(to: Tree, x: Tree) -> None:
    """Write every leaf of ``x`` into the tensor at its place."""
    tree.map(lambda a, b: a.copy_(b), to, x)
