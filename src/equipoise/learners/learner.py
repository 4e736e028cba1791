"""Batch in, new version out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.clock import Clock
from equipoise.learners.buckets import MORE, Buckets
from equipoise.learners.flat import flatten, norm_of
from equipoise.learners.minibatch import micro_batches, minibatches
from equipoise.learners.optimizers import descent
from equipoise.learners.pool import ALONE, Learners
from equipoise.learners.target import Target
from equipoise.nets.precision import autocast, backward
from equipoise.rewards.step import RewardStep
from equipoise.seeds import share_seed
from equipoise.types import Batch, Learns, LossOutput, Optimizer, Precision, Rewards, Tree

# The parts of a step. On a GPU they are the time until its kernels are queued, and "look" has the wait for them.
PARTS = ("copy", "targets", "loss", "backward", "all-reduce", "optimiser", "look")


Part = tuple[Tensor, Tensor]  # the sums of losses and counts of the parts of a step so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The results of a learner step besides the new version."""

    metrics: Mapping[str, tuple[Tensor, Tensor]]  # name -> (sum, count), on the learner's device
    priority: Tensor | None  # [B]


@dataclass(slots=True)
class _Going:
    """A batch on its way through the learner."""

    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    priority: Tensor | None = None
    doubtful: list[tuple[str, Tensor]] = field(default_factory=list)  # (group, [2] loss and gradient norm) still to be checked
    ended: Tensor | None = None  # [] bool, is no further step to be taken; None: nothing asks for that

    def add(self, metrics: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Sums and counts; nothing once the batch has ended."""
        for name, (total, count) in metrics.items():
            if self.ended is not None:
                total, count = total.masked_fill(self.ended, 0.0), count.masked_fill(self.ended, 0)
            old = self.metrics.get(name)
            self.metrics[name] = (total, count) if old is None else (old[0] + total, old[1] + count)

    def ends(self, now: Tensor) -> None:
        self.ended = now if self.ended is None else self.ended | now


class NonFiniteUpdate(RuntimeError):
    """The error of a loss or gradient that is nan or infinite; no weight was changed by it."""


def cut_by_rows(algorithm: Learns, net: Any, windows: int) -> bool:
    """Whether minibatches are made of rows; else they are whole windows, and ValueError where there are not as many.

    Rows can be torn from their windows only where all sums along time are done in ``targets``.
    """
    if algorithm.needs_task or (type(algorithm).targets is not Learns.targets and not tree.leaves(net.initial_state(1))):
        return True
    if algorithm.minibatches > windows:
        raise ValueError(
            f"algorithm.minibatches: expected at most {windows}, the windows of a learner's batch, which stay whole since the "
            f"network is recurrent or the loss runs along time, got {algorithm.minibatches}"
        )
    return False


class Learner:
    """Gradients, one optimiser per group, and the count of versions. A learner alone never waits for a GPU."""

    def __init__(
        self, algorithm: Learns, net: Any, *, optimizer: Optimizer | None = None, rewards: Rewards | None = None,
        device: str = "cpu", precision: Precision = "fp32", schedule_updates: int, seed: int, batch: int,
        pool: Learners = ALONE, weighted: bool = True,
    ) -> None:  # fmt: skip
        """``optimizer``: None for the algorithm's default; ``rewards``: None for the env's own; ``schedule_updates``: versions
        until the schedules end; ``batch``: windows of a batch (to check the minibatches); ``pool``: the learners that share the
        batches; ``weighted``: do some items have smaller weights than others?
        """
        self.algorithm, self.device = algorithm, torch.device(device)
        self.optimizer = algorithm.default_optimizer if optimizer is None else optimizer
        self.net, self.pool = net.to(self.device), pool
        self._weighted = weighted and pool.size > 1
        self._autocast, self._backward = autocast(precision, self.device), backward(precision)
        self.version = 0
        self.before = 0  # updates of the learner that this one began from, whose schedule goes on
        self.clock = Clock(PARTS)  # of this step's parts, or of all parts of a worker
        self.pulse: Callable[[], object] = _nothing  # called after each minibatch, since a step of many takes long
        self._schedule_updates = schedule_updates
        self.by_rows = cut_by_rows(algorithm, self.net, batch)
        every = algorithm.target_every
        self._target = Target(algorithm.followed(self.net), every=every, tau=algorithm.tau) if every > 0 else None
        self._optimizers: Mapping[str, Any] = self._hold()  # by group: each moves what this learner has of its parameters
        self._seed, self._rng = seed, torch.Generator(self.device).manual_seed(seed)
        self._rewards = RewardStep(rewards or Rewards(), getattr(algorithm, "gamma", None), self.device)

    def _hold(self) -> Mapping[str, Any]:
        """Lay out the parameters and gradients of each group -> an optimiser for each."""
        groups, alone = self.algorithm.groups(self.net), self.pool.size == 1
        self._flat = {name: flatten(params, 0 if alone else MORE) for name, params in groups.items()}
        self._buckets = {} if alone else {name: Buckets(self.pool, self._flat[name], params) for name, params in groups.items()}
        return {name: descent(self.optimizer, flat) for name, flat in self._flat.items()}

    @property
    def progress(self) -> float:
        """The share of the schedule done, 0..1."""
        return min(self.updates / self._schedule_updates, 1.0)

    @property
    def updates(self) -> int:
        """All updates that made these weights, those before this run included."""
        return self.before + self.version

    def params(self) -> Mapping[str, Tensor]:
        """Parameters and buffers by name, sharing the network's memory."""
        return tree.named_tensors(self.net)

    def attend(self) -> None:
        """Take part in what another learner's ``params`` asks of all learners."""

    def step(self, batch: Batch) -> Step:
        """All epochs and minibatches of one batch; the version rises by one."""
        algorithm, target_net = self.algorithm, None if self._target is None else self._target.net
        if self.pool.size > 1:  # so that nothing depends on how many learners there were before
            self._rng.manual_seed(share_seed(self._seed, self.updates, self.pool.rank))
        if self.device.type != "cpu":
            batch = replace(
                batch,
                data=type(batch.data)(
                    **{k: tree.to(getattr(batch.data, k), self.device, non_blocking=True) for k in type(batch.data).__slots__}
                ),
                weight=tree.to(batch.weight, self.device, non_blocking=True),
            )
        self.clock.lap("copy", "targets")
        with torch.no_grad(), self._autocast:
            raw, data = batch.data, algorithm.prepare(replace(batch.data, reward=self._rewards(batch.data)))
            targets = self._computed(lambda: algorithm.targets(self.net, target_net, data, rng=self._rng, pool=self.pool))
        batch = replace(batch, data=data, targets=targets, version=self.version)
        if self._weighted:  # weights only ever make a step smaller; a learner alone has them like that
            largest = self.pool.max(batch.weight.max())
            batch = replace(batch, weight=batch.weight / torch.where(largest > 0, largest, 1.0))
        going = _Going()
        self.clock.lap("targets", "copy")
        fresh = True  # are the weights those of the version still?
        for _ in range(algorithm.epochs):
            for part in minibatches(batch, algorithm.minibatches, by_rows=self.by_rows, rng=self._rng):
                self.clock.lap("copy", "loss")
                part = part if fresh else replace(part, version=-1)
                self._learn(micro_batches(part, algorithm.part_tokens), target_net, going)
                fresh = False
                self.pulse()
                if self._ended(going):
                    break
            if self._ended(going):
                break
        if going.doubtful:
            self._look(going.doubtful)  # on a device: one wait a step, before the new version is published
            self.clock.lap("look", "optimiser")
        with torch.no_grad():
            algorithm.absorb(self.net, raw, pool=self.pool)
            self._rewards.absorb(raw, self.pool)
        self.version += 1
        if self._target is not None:
            self._target.follow(self.updates)
        self.clock.lap("optimiser", "record")
        return Step(metrics=going.metrics, priority=going.priority)

    def _learn(self, parts: Sequence[Batch], target_net: Any, going: _Going) -> None:
        """One optimiser step for each group that is due, until an algorithm has had enough of the batch.

        The gradients of all parts but the last are added up first; the last one's backward ends the step.
        """
        for group in self._optimizers:
            if not self.algorithm.due(group, self.updates):
                continue
            out, before = None, None
            self._begin(group, parts, target_net)
            for number, part in enumerate(parts):
                out = self._loss(part, target_net, group)
                if out is None:
                    break
                going.add(out.metrics)  # also those of a minibatch that turns out to be the last
                if number < len(parts) - 1:
                    before = self._add(group, out, before)
                    self.pulse()
            if out is None:
                continue
            if out.excess is not None:
                going.ends(self.pool.sum(out.excess) > 0)
            if self._ended(going):
                return
            norm = self._descend(group, out, before, going)
            going.add({f"grad_norm/{group}": (norm, torch.ones_like(norm))})
            going.priority = going.priority if out.priority is None else out.priority

    def _begin(self, group: str, parts: Sequence[Batch], target_net: Any) -> None:
        """Before the parts of a step are gone over: a gradient of zeros."""
        for part in self._gradient(group):
            part.zero_()

    def _loss(self, part: Batch, target_net: Any, group: str) -> LossOutput | None:
        with self._autocast:
            return self._computed(  # type: ignore[no-any-return]
                lambda: self.algorithm.loss(self.net, target_net, part, group=group, step=self.progress, rng=self._rng)
            )

    def _computed(self, work: Callable[[], Any]) -> Any:
        """What ``work`` computes with the network."""
        return work()

    def _ended(self, going: _Going) -> bool:
        """Is the batch known to be done with? On a device, where to look is to wait, its steps are made and undone instead."""
        return going.ended is not None and self.device.type == "cpu" and bool(going.ended)

    def state(self) -> Tree:
        """Everything that the next step depends on but the batch."""
        return self._state(self._group)

    def _state(self, group: Callable[[str], Tree]) -> Tree:
        """``state``, with what ``group`` says of each group."""
        return {
            "version": self.version,
            "before": self.before,
            "rng": self._rng.get_state(),
            "groups": {name: group(name) for name in self._optimizers},
            "buffers": {name: buffer.detach() for name, buffer in self.net.named_buffers()},
            "target": {} if self._target is None else self._target.state(),
            "rewards": self._rewards.state(),
        }

    def _group(self, name: str) -> Tree:
        """The parameters of a group, one behind the other, and what its optimiser remembers."""
        return {"params": self._flat[name].detach(), "optimizer": self._optimizers[name].slots}

    def _load_group(self, name: str, group: Tree) -> None:
        """Take what ``_group`` gave."""
        self._flat[name].copy_(group["params"])
        self._optimizers[name].load(group["optimizer"])

    def load(self, state: Tree) -> None:
        """Load a state; ValueError where a group or its size differs, or where only one side has a target network."""
        if bool(state["target"]) != (self._target is not None):
            had, has = ("one" if state["target"] else "none"), self.algorithm.target_every
            raise ValueError(f"target network: expected a state saved with what target_every={has} asks for, got {had}")
        if (wanted := set(self._optimizers)) != (got := set(state["groups"])):
            raise ValueError(f"expected the optimiser groups {sorted(wanted)}, got a state of {sorted(got)}")
        schema.check(state, self._schema(), "")
        with torch.no_grad():
            for name, group in state["groups"].items():
                self._load_group(name, group)
            for name, buffer in self.net.named_buffers():
                buffer.copy_(state["buffers"][name])
            if self._target is not None:
                self._target.load(state["target"])
            self._rewards.load(state["rewards"])
        self.version, self.before = state["version"], state["before"]
        if state["rng"].shape == self._rng.get_state().shape:
            self._rng.set_state(state["rng"])
        else:  # of another kind of device
            self._rng.manual_seed(self._rng.initial_seed() + self.version)

    def _schema(self) -> schema.Schema:
        """What a saved state is: of these types and shapes, and every number finite."""
        wanted: dict[str, schema.Schema] = schema.like(self._state(self._group_like), finite=True)
        rng = schema.Array((None,), "uint8", tensor=True)  # another kind of device has another size
        return wanted | {"version": schema.count(), "before": schema.count(), "rng": rng, "rewards": self._rewards.schema()}

    def _group_like(self, name: str) -> Tree:
        """A group of the types and shapes of ``_group``."""
        return self._group(name)

    def begin_from(self, state: Tree) -> None:
        """Go on where another learner was saved, as version 0 of another run; ValueError as for ``load``.

        The same batches make the same next versions, to the bit: parameters, optimisers, target network, statistics, random
        numbers and the share of the schedule are those of the other.
        """
        self.load(state)
        self.before, self.version = self.updates, 0

    def _add(self, group: str, out: LossOutput, before: Part | None) -> Part:
        """Add the gradient of a part's sum to those of the parts before -> the sums so far."""
        self.clock.lap("loss", "backward")
        with self._backward:
            out.loss.backward()  # type: ignore[no-untyped-call]
        self.clock.lap("backward", "loss")
        loss = out.loss.detach()
        return (loss, out.count) if before is None else (before[0] + loss, before[1] + out.count)

    def _backward_of(self, group: str, out: LossOutput, before: Part | None) -> Tensor:
        """Fill the group's gradient with that of the mean loss over the items of all learners -> that loss.

        ``before``: what ``_add`` found of the parts before this one.
        """
        if self.pool.size == 1:
            total, count = (out.loss, out.count) if before is None else (out.loss + before[0], out.count + before[1])
            loss = total / count.clamp(min=1)
            with self._backward:
                (loss if before is None else out.loss).backward()  # type: ignore[no-untyped-call]
            if before is not None:
                for part in self._gradient(group):
                    part.div_(count.clamp(min=1))
            return loss
        buckets = self._buckets[group]
        mine = (out.loss, out.count) if before is None else (out.loss + before[0], out.count + before[1])
        buckets.begin(*mine)
        with self._backward:
            out.loss.backward()  # type: ignore[no-untyped-call]
        buckets.finish()
        loss, count = buckets.more[0], buckets.more[1].clamp(min=1)
        for part in self._gradient(group):
            part.div_(count)
        return loss / count

    def _gradient(self, group: str) -> Sequence[Tensor]:
        """What this learner has of the group's gradient."""
        gradient = self._flat[group].grad
        assert gradient is not None
        return [gradient]

    def _norm(self, group: str) -> Tensor:
        """The norm [] of the group's whole gradient."""
        (gradient,) = self._gradient(group)
        return norm_of(gradient)

    def _descend(self, group: str, out: LossOutput, before: Part | None, going: _Going) -> Tensor:
        """One clipped optimiser step; the gradient's norm before the clip.

        A loss or a gradient that is not finite never reaches a weight. On the CPU it is raised here; on a device, where to look
        is to wait, the gradient becomes 0 and the two numbers go to ``going.doubtful``.
        """
        bound = self.optimizer.max_grad_norm
        self.clock.lap("loss", "backward")
        loss = self._backward_of(group, out, before)
        self.clock.lap("backward", "optimiser")
        gradient = self._gradient(group)
        norm = self._norm(group)
        if bound > 0:
            for part in gradient:
                part.mul_((bound / (norm + 1e-6)).clamp(max=1.0))
        seen = torch.stack([loss.detach().float(), norm.float()])
        if self.device.type == "cpu":
            self._look([(group, seen)])
        else:
            going.doubtful.append((group, seen if going.ended is None else seen.masked_fill(going.ended, 0.0)))
            for part in gradient:
                part.masked_fill_(~seen.isfinite().all(), 0.0)
        rate = self.optimizer.rate(group, self.progress)
        if going.ended is None:
            self._optimizers[group].step(rate)
        else:
            self._optimizers[group].step_unless(going.ended, rate)
        self.clock.lap("optimiser")
        return norm

    def _look(self, seen: list[tuple[str, Tensor]]) -> None:
        values = torch.stack([pair for _, pair in seen]).tolist()
        for (group, _), (loss, norm) in zip(seen, values, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                name = f"grad_norm/{group}" if math.isfinite(loss) else "loss"
                raise NonFiniteUpdate(
                    f"learner, group {group!r}, update {self.version + 1}: expected a finite {name}, got loss {loss} and "
                    f"grad_norm/{group} {norm}; the weights of update {self.version} are the last good ones. A lower "
                    "optimizer.learning_rate or optimizer.max_grad_norm may help"
                )


def _nothing() -> None: ...
