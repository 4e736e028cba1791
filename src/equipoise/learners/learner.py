"""Batch in, new version out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.clock import Clock
from equipoise.learners.buckets import MORE, Buckets
from equipoise.learners.encoding import Encoding
from equipoise.learners.flat import flatten, norm_of
from equipoise.learners.going import Going, NonFiniteUpdate, Part, Step, either
from equipoise.learners.minibatch import micro_batches, minibatches
from equipoise.learners.optimizers import descent
from equipoise.learners.pool import ALONE, Learners
from equipoise.learners.scaling import scaling
from equipoise.learners.target import Target
from equipoise.learners.transfer import transfer
from equipoise.learners.whole import Numbers, Plainly, Whole
from equipoise.nets.precision import autocast, backward
from equipoise.nets.vision import encoders
from equipoise.rewards.step import RewardStep
from equipoise.seeds import share_seed
from equipoise.types import Batch, Learns, LossOutput, Optimizer, Precision, Rewards, Tree

# The parts of a step. On a GPU they are the time until its kernels are queued, and "look" has the wait for them.
PARTS = ("copy", "targets", "loss", "backward", "all-reduce", "optimiser", "look")


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
    """Gradients, one optimiser per group, and the count of versions. A learner alone waits for a GPU in ``settle`` only."""

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
        self._autocast, self._backward = autocast(precision, self.device), backward(precision, self.device)
        self._scaling, self._transfer = scaling(precision, self.device), transfer(self.device)
        self._whole: Whole = Plainly()
        self._loss = algorithm.loss
        self.looks = self.device.type == "cpu"  # at each step's numbers at once: there to look is not to wait
        self._unseen: list[tuple[int, list[str], Tensor]] = []  # versions, their groups, [n, 2] loss and gradient norm
        self.version = 0
        self.before = 0  # updates of the learner that this one began from, whose schedule goes on
        self.clock = Clock(PARTS)  # of this step's parts, or of all parts of a worker
        self.pulse: Callable[[], object] = _nothing  # called after each minibatch, since a step of many takes long
        self._schedule_updates = schedule_updates
        self.by_rows = cut_by_rows(algorithm, self.net, batch)
        every = algorithm.copied_every
        self._target = Target(algorithm.followed(self.net), every=every, tau=algorithm.tau) if every > 0 else None
        self._optimizers: Mapping[str, Any] = self._hold()  # by group: each moves what this learner has of its parameters
        self._seed, self.rng = seed, torch.Generator(self.device).manual_seed(seed)
        self._rewards = RewardStep(rewards or Rewards(), getattr(algorithm, "gamma", None), self.device)
        found = encoders(self.net)
        self.encoding = Encoding(found, rows=algorithm.warmup_rows, seed=seed, device=self.device) if found else None

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

    def through(self, whole: Whole, loss: Callable[..., LossOutput | None]) -> None:
        """Do updates by ``whole``, and the algorithm's loss by ``loss``, which is the same function made quicker."""
        self._whole, self._loss = whole, loss

    def ahead(self, coming: Callable[[], Batch | None]) -> None:
        """Begin to copy the batch of the next step to a device, if it is there; its rows stay as they are until then."""
        self._transfer.ahead(coming)

    def step(self, batch: Batch) -> Step:
        """All epochs and minibatches of one batch; the version rises by one."""
        if self.pool.size > 1:  # so that nothing depends on how many learners there were before
            self.rng.manual_seed(share_seed(self._seed, self.updates, self.pool.rank))
        batch = self._transfer(batch)
        self.clock.lap("copy", "targets")
        due = tuple(group for group in self._optimizers if self.algorithm.due(group, self.updates))
        numbers = self._whole.numbers(
            Numbers(progress=self.progress, rates={g: self.optimizer.rate(g, self.progress) for g in self._optimizers})
        )
        going = self._whole.update(batch, due, lambda: self._update(batch, due, numbers))
        if going.unseen:
            self._unseen.append((self.version + 1, going.groups, torch.stack(going.unseen)))
        with torch.no_grad():
            self._rewards.absorb(batch.data, self.pool)
        self._transfer.read()
        self.version += 1
        if self._target is not None:
            self._target.follow(self.updates)
        self.clock.lap("optimiser", "record")
        return Step(metrics=going.metrics | ({} if self.encoding is None else self.encoding.metrics()), priority=going.priority)

    def settle(self) -> None:
        """Wait for the steps so far; NonFiniteUpdate where a loss or a gradient since the last call was not finite.

        On the CPU there is nothing left to wait for or to find.
        """
        unseen, self._unseen = self._unseen, []
        if unseen:
            pairs = [(version, group) for version, groups, _ in unseen for group in groups]
            self._look(pairs, torch.cat([seen for _, _, seen in unseen]))

    def _update(self, batch: Batch, due: Sequence[str], numbers: Numbers) -> Going:
        """What ``step`` does on the device: work that a graph may capture, where ``numbers`` are tensors."""
        algorithm, target_net, raw = self.algorithm, None if self._target is None else self._target.net, batch.data
        with torch.no_grad(), self._autocast:
            data = algorithm.prepare(replace(batch.data, reward=self._rewards(batch.data)))
            targets = self._computed(lambda: algorithm.targets(self.net, target_net, data, rng=self.rng, pool=self.pool))
        batch = replace(batch, data=data, targets=targets, version=self.version)
        if self._weighted:  # weights only ever make a step smaller; a learner alone has them like that
            largest = self.pool.max(batch.weight.max())
            batch = replace(batch, weight=batch.weight / torch.where(largest > 0, largest, 1.0))
        going = Going(numbers)
        self.clock.lap("targets", "copy")
        self._pass_over(batch, due, target_net, going)
        with torch.no_grad():
            algorithm.absorb(self.net, raw, pool=self.pool)
        return going

    def _pass_over(self, batch: Batch, due: Sequence[str], target_net: Any, going: Going) -> None:
        """All epochs and minibatches."""
        algorithm, fresh = self.algorithm, True  # are the weights those of the version still?
        for _ in range(algorithm.epochs):
            for part in minibatches(batch, algorithm.minibatches, by_rows=self.by_rows, rng=self.rng):
                self.clock.lap("copy", "loss")
                part = part if fresh else replace(part, version=-1)
                self._learn(micro_batches(part, algorithm.part_tokens), due, target_net, going)
                fresh = False
                self.pulse()
                if self._ended(going):
                    return

    def _learn(self, parts: Sequence[Batch], due: Sequence[str], target_net: Any, going: Going) -> None:
        """One optimiser step for each group that is due, until an algorithm has had enough of the batch.

        The gradients of all parts but the last are added up first; the last one's backward ends the step.
        """
        for group in due:
            out, before = None, None
            self._begin(group, parts, target_net, going)
            for number, part in enumerate(parts):
                out = self._loss_of(part, target_net, group, going)
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

    def _begin(self, group: str, parts: Sequence[Batch], target_net: Any, going: Going) -> None:
        """Before the parts of a step are gone over: a gradient of zeros."""
        for part in self._gradient(group):
            part.zero_()

    def _loss_of(self, part: Batch, target_net: Any, group: str, going: Going) -> LossOutput | None:
        with self._autocast:
            return self._computed(  # type: ignore[no-any-return]
                lambda: self._loss(self.net, target_net, part, group=group, step=going.numbers.progress, rng=self.rng)
            )

    def _computed(self, work: Callable[[], Any]) -> Any:
        """What ``work`` computes with the network."""
        return work()

    def _ended(self, going: Going) -> bool:
        """Is the batch known to be done with? On a device, where to look is to wait, its steps are made and undone instead."""
        return going.ended is not None and self.looks and bool(going.ended)

    def state(self) -> Tree:
        """Everything that the next step depends on but the batch."""
        return self._state(self._group)

    def _state(self, group: Callable[[str], Tree]) -> Tree:
        """``state``, with what ``group`` says of each group."""
        return {
            "version": self.version,
            "before": self.before,
            "rng": self.rng.get_state(),
            "groups": {name: group(name) for name in self._optimizers},
            "buffers": {name: buffer.detach() for name, buffer in self.net.named_buffers()},
            "target": {} if self._target is None else self._target.state(),
            "rewards": self._rewards.state(),
            **({"scaling": dict(self._scaling.slots)} if self._scaling.slots else {}),
            **({} if self.encoding is None else {"encoding": self.encoding.state()}),
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
            had, has = ("one" if state["target"] else "none"), self.algorithm.copied_every
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
            for name, slot in self._scaling.slots.items() if "scaling" in state else ():  # without: of another precision
                slot.copy_(state["scaling"][name])
            if self.encoding is not None:
                self.encoding.load(state["encoding"])
        self.version, self.before = state["version"], state["before"]
        if state["rng"].shape == self.rng.get_state().shape:
            self.rng.set_state(state["rng"])
        else:  # of another kind of device
            self.rng.manual_seed(self.rng.initial_seed() + self.version)

    def _schema(self) -> schema.Schema:
        """What a saved state is: of these types and shapes, and every number finite."""
        wanted: dict[str, schema.Schema] = schema.like(self._state(self._group_like), finite=True)
        rng = schema.Array((None,), "uint8", tensor=True)  # another kind of device has another size
        scaling = {"scaling?": wanted.pop("scaling", schema.Anything())}  # a resume may change the precision
        counts = {"version": schema.count(), "before": schema.count()}
        if self.encoding is not None:
            wanted["encoding"] = self.encoding.schema()
        return wanted | counts | scaling | {"rng": rng, "rewards": self._rewards.schema()}

    def _group_like(self, name: str) -> Tree:
        """A group of the types and shapes of ``_group``."""
        return self._group(name)

    def begin_from(self, state: Tree) -> None:
        """Go on where another learner was saved, as version 0 of another run; ValueError as for ``load``.

        The same batches make the same next versions, to the bit: parameters, optimisers, target network, statistics, random
        numbers and the share of the schedule are those of the other.
        """
        if self.encoding is not None and (left := self.encoding.left):
            raise ValueError(f"algorithm.encoder_rows: expected 0, since its encoder has learned, got {left}")
        self.load(state)
        self.before, self.version = self.updates, 0

    def _add(self, group: str, out: LossOutput, before: Part | None) -> Part:
        """Add the gradient of a part's sum to those of the parts before -> the sums so far."""
        self.clock.lap("loss", "backward")
        self._fill(out.loss)
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
            self._fill(loss if before is None else out.loss)
            if before is not None:
                for part in self._gradient(group):
                    part.div_(count.clamp(min=1))
            return loss
        buckets = self._buckets[group]
        mine = (out.loss, out.count) if before is None else (out.loss + before[0], out.count + before[1])
        buckets.begin(*mine)
        self._fill(out.loss)
        buckets.finish()
        loss, count = buckets.more[0], buckets.more[1].clamp(min=1)
        for part in self._gradient(group):
            part.div_(count)
        return loss / count

    def _fill(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled where the precision needs it."""
        with self._backward:
            self._scaling.up(loss).backward()  # type: ignore[no-untyped-call]

    def _gradient(self, group: str) -> Sequence[Tensor]:
        """What this learner has of the group's gradient."""
        gradient = self._flat[group].grad
        assert gradient is not None
        return [gradient]

    def _norm(self, group: str) -> Tensor:
        """The norm [] of the group's whole gradient."""
        (gradient,) = self._gradient(group)
        return norm_of(gradient)

    def _descend(self, group: str, out: LossOutput, before: Part | None, going: Going) -> Tensor:
        """One clipped optimiser step; the gradient's norm before the clip.

        A loss or a gradient that is not finite never reaches a weight. On the CPU it is raised here; on a device, where to look
        is to wait, the step is undone there, and ``settle`` raises it.
        """
        bound = self.optimizer.max_grad_norm
        self.clock.lap("loss", "backward")
        loss = self._backward_of(group, out, before)
        self.clock.lap("backward", "optimiser")
        for one in self.algorithm.held(self.net, self.updates):
            one.grad = None if one.grad is None else one.grad.zero_()
        gradient = self._gradient(group)
        skipped = self._scaling.down(gradient)
        norm = self._norm(group)
        if bound > 0:
            for part in gradient:
                part.mul_((bound / (norm + 1e-6)).clamp(max=1.0))
        undone = either(going.ended, skipped)
        norm = norm if skipped is None else norm.masked_fill(skipped, 0.0)
        seen = torch.stack([loss.detach().float(), norm.float()])
        seen = seen if going.ended is None else seen.masked_fill(going.ended, 0.0)
        if self.looks:
            self._look([(self.version + 1, group)], seen[None])
        else:
            going.groups.append(group)
            going.unseen.append(seen)
            undone = either(undone, ~seen.isfinite().all())
        rate = going.numbers.rates[group]
        if undone is None:
            self._optimizers[group].step(rate)
        else:
            self._optimizers[group].step_unless(undone, rate)
        going.add(self._scaling.metrics(skipped))
        self.clock.lap("optimiser")
        return norm

    def _look(self, steps: Sequence[tuple[int, str]], seen: Tensor) -> None:
        """Raise the first of these steps (version, group) whose numbers [n, 2] are not finite."""
        for (version, group), (loss, norm) in zip(steps, seen.tolist(), strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                name = f"grad_norm/{group}" if math.isfinite(loss) else "loss"
                raise NonFiniteUpdate(
                    f"learner, group {group!r}, update {version}: expected a finite {name}, got loss {loss} and "
                    f"grad_norm/{group} {norm}; the weights of update {version - 1} are the last good ones. A lower "
                    "optimizer.learning_rate or optimizer.max_grad_norm may help"
                )


def _nothing() -> None: ...
