"""Batch in, new version out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import schema, tree
from equipoise.clock import Clock
from equipoise.facts import values_of
from equipoise.learners.encoding import Encoding
from equipoise.learners.execution import Eager, Execution
from equipoise.learners.kept import KeptStates
from equipoise.learners.minibatch import micro_batches, minibatches
from equipoise.learners.optimizers import STEPPED
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.parameters.parameters import LossSums, Parameters, added
from equipoise.learners.reward_sum import RewardSum
from equipoise.learners.scaling import scaling
from equipoise.learners.steps import NonFiniteUpdate, Numbers, Step, StepInProgress, checked, either
from equipoise.learners.target import Target
from equipoise.learners.transfer import transfer
from equipoise.nets import lora
from equipoise.nets.precision import autocast, backward
from equipoise.nets.vision import encoders
from equipoise.rewards.terms import Terms
from equipoise.seeds import share_seed
from equipoise.types import (
    Batch,
    Learns,
    LossOutput,
    Optimizer,
    Precision,
    Rewards,
    Trajectory,
    Tree,
)

# The parts of a step. On a GPU they are the time until its kernels are queued, and "look" has the
# wait for them.
PARTS = ("copy", "targets", "loss", "backward", "all-reduce", "optimiser", "look")


def cut_by_rows(algorithm: Learns, net: Any, windows: int) -> bool:
    """Whether minibatches are made of rows; else they are whole windows, and ValueError if there
    are not as many.

    Rows can be torn from their windows only if all sums along time are done in ``targets``.
    """
    if algorithm.needs_task or (
        type(algorithm).targets is not Learns.targets and not tree.leaves(net.initial_state(1))
    ):
        return True
    if algorithm.minibatches > windows:
        raise ValueError(
            f"algorithm.minibatches: expected at most {windows}, the windows of a learner's batch, "
            "which stay whole since the "
            f"network is recurrent or the loss runs along time, got {algorithm.minibatches}"
        )
    return False


class Learner:
    """Batches in, versions of the weights out. A learner alone waits for a GPU in ``settle`` only.

    ``Parameters`` (flat, sliced, by layers) have the gradient and the optimisers. ``Execution``
    (eager, compiled, graph) computes the minibatches.
    """

    def __init__(
        self,
        algorithm: Learns,
        net: Any,
        *,
        optimizer: Optimizer | None = None,
        rewards: Rewards | None = None,
        terms: Terms | None = None,
        device: str = "cpu",
        precision: Precision = "fp32",
        schedule_updates: int,
        seed: int,
        batch: int,
        parameters: Parameters | None = None,
        execution: Execution | None = None,
        weighted: bool = True,
    ) -> None:
        """``optimizer``: None for the algorithm's default; ``rewards``: None for the env's own;
        ``terms``: the terms of ``rewards.sum`` by name; ``schedule_updates``: versions until the
        schedules end; ``batch``: windows of a batch (to check the minibatches); ``parameters``:
        None for ``Flat``; ``execution``: None for ``Eager``; ``weighted``: do some items have
        smaller weights than others?
        """
        self.algorithm, self.device = algorithm, torch.device(device)
        self.optimizer = algorithm.default_optimizer if optimizer is None else optimizer
        self.parameters: Parameters = Flat() if parameters is None else parameters
        self.net, self.pool = net.to(self.device), self.parameters.pool
        self._weighted = weighted and self.pool.size > 1
        self._autocast = autocast(precision, self.device)
        self._backward = backward(precision, self.device)
        self._scaling, self._transfer = scaling(precision, self.device), transfer(self.device)
        # read each step's numbers at once, which takes no wait on a CPU
        self.looks = self.device.type == "cpu"
        # versions, their groups, [n, 2] loss and gradient norm
        self._unseen: list[tuple[int, list[str], Tensor]] = []
        self.version = 0
        self.before = 0  # updates of the learner that this one began from, whose schedule goes on
        self.clock = Clock(PARTS)  # of this step's parts, or of all parts of a worker
        # called after each minibatch, since a step of many takes long
        self.pulse: Callable[[], object] = _nothing
        self._schedule_updates = schedule_updates
        self.by_rows = cut_by_rows(algorithm, self.net, batch)
        every = algorithm.copied_every
        self._target = (
            Target(algorithm.followed(self.net), every=every, tau=algorithm.tau)
            if every > 0
            else None
        )
        self.parameters.hold(self.net, algorithm.groups, self.optimizer)
        self._kept = KeptStates(self.net, self.parameters, self._target)
        self._seed, self.rng = seed, torch.Generator(self.device).manual_seed(seed)
        self.terms: Terms = terms or {}
        self.set_execution(Eager() if execution is None else execution)
        self._rewards = RewardSum(
            rewards or Rewards(), self.terms, algorithm, self.pool, self.device
        )
        found = encoders(self.net)
        self.encoding = (
            Encoding(found, rows=algorithm.warmup_rows, seed=seed, device=self.device)
            if found
            else None
        )

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
        return self.parameters.tensors()

    def set_execution(self, execution: Execution) -> None:
        """Compute updates and losses by ``execution`` from the next step on."""
        execution.follow(self.algorithm, self.terms)
        self._execution = execution

    def ahead(self, coming: Callable[[], Batch | None]) -> None:
        """Start copying the next step's batch to the device; its rows must stay as they are."""
        self._transfer.ahead(coming)

    def collect(self, data: Trajectory) -> None:
        """Show new rows [T, B] to the terms of the rewards, each once."""
        self._rewards.collect(data)

    def step(self, batch: Batch) -> Step:
        """Learn from one batch, in all epochs and minibatches; the version rises by one."""
        with self.parameters.together():
            batch = self.parameters.share(batch)
            if self.pool.size > 1:  # so that nothing depends on how many learners there were before
                self.rng.manual_seed(share_seed(self._seed, self.updates, self.pool.rank))
            batch = self._transfer(batch)
            self.clock.lap("copy", "targets")
            groups = self.parameters.optimizers
            due = tuple(group for group in groups if self.algorithm.due(group, self.updates))
            rates = {group: self.optimizer.rate(group, self.progress) for group in groups}
            numbers = self._execution.numbers(Numbers(progress=self.progress, rates=rates))
            done = self._execution.update(batch, due, lambda: self._update(batch, due, numbers))
            if learned := self._rewards.learn(batch.data, self.progress):
                done.groups = [*done.groups, *(name for name, _ in learned)]
                done.unseen = [*done.unseen, *(seen for _, seen in learned)]
            if done.unseen:
                self._unseen.append((self.version + 1, done.groups, torch.stack(done.unseen)))
            if self.looks:
                self.settle()
            self.version += 1
            if self._target is not None:
                self._target.follow(self.updates)
            if self.terms:
                self._kept.progress = self.progress
                self._rewards.steer(self._kept)
                done.metrics = done.metrics | self._rewards.metrics(batch.data)
            self._transfer.read()
            self.clock.lap("optimiser", "record")
            metrics = (
                done.metrics if self.encoding is None else done.metrics | self.encoding.metrics()
            )
            return Step(metrics=metrics, priority=done.priority)

    def check(self) -> None:
        """RewardsFailed if a term of the rewards has a state that no resume could take."""
        self._rewards.check()

    def settle(self) -> None:
        """Wait for the device; NonFiniteUpdate if a loss or gradient since the last call is not
        finite. On the CPU each step raises that itself.
        """
        unseen, self._unseen = self._unseen, []
        if unseen:
            pairs = [(version, group) for version, groups, _ in unseen for group in groups]
            self._look(pairs, torch.cat([seen for _, _, seen in unseen]))

    def _update(self, batch: Batch, due: Sequence[str], numbers: Numbers) -> StepInProgress:
        """Do the part of ``step`` on the device, which a graph may capture.

        Each minibatch has an optimiser step for each group that is due, until the algorithm ends
        the batch. The gradients of a minibatch's parts are added up.
        """
        raw, step = batch.data, StepInProgress(numbers)
        for parts in self._minibatches(self._with_targets(batch)):
            for group in due:
                out, before = self._losses(group, parts, step)
                if out is None:
                    continue
                if out.excess is not None:
                    step.ends(self.pool.sum(out.excess) > 0)
                if self._ended(step):
                    break
                self._descend(group, out, before, step)
                step.priority = step.priority if out.priority is None else out.priority
            self.pulse()
            if self._ended(step):
                break
        with torch.no_grad():
            self.algorithm.absorb(self.net, raw, pool=self.pool)
        return step

    def _with_targets(self, batch: Batch) -> Batch:
        """Compute a batch's targets, and scale its weights over all learners."""
        algorithm = self.algorithm
        with torch.no_grad(), self._autocast:
            data = algorithm.prepare(replace(batch.data, reward=self._rewards(batch.data)))
            # only algorithms with value_heads take them
            heads: dict[str, Any] = {}
            if found := self._rewards.heads(batch.data):
                heads["heads"] = found
            targets = self.parameters.compute(
                lambda: algorithm.targets(
                    self.net, self._target_net, data, rng=self.rng, pool=self.pool, **heads
                )
            )
        batch = replace(batch, data=data, targets=targets, version=self.version)
        # weights only ever make a step smaller; a learner alone has them like that
        if self._weighted:
            largest = self.pool.max(batch.weight.max())
            batch = replace(batch, weight=batch.weight / torch.where(largest > 0, largest, 1.0))
        self.clock.lap("targets", "copy")
        return batch

    def _minibatches(self, batch: Batch) -> Iterator[Sequence[Batch]]:
        """Yield the parts of each minibatch; ``version`` is -1 after the first step."""
        algorithm, fresh = self.algorithm, True
        for _ in range(algorithm.epochs):
            for part in minibatches(
                batch, algorithm.minibatches, by_rows=self.by_rows, rng=self.rng
            ):
                self.clock.lap("copy", "loss")
                yield micro_batches(
                    part if fresh else replace(part, version=-1),
                    algorithm.part_tokens,
                    whole=algorithm.needs_pairs,
                )
                fresh = False

    def _losses(
        self, group: str, parts: Sequence[Batch], step: StepInProgress
    ) -> tuple[LossOutput | None, LossSums | None]:
        """Return the last part's loss (None: skip the group), and the sums of those before it."""
        out, before = None, None
        # all learners gather parameters for each part of any
        for _ in range(self.parameters.begin(group, len(parts))):
            if (out := self._loss(group, parts[0], step)) is not None:
                (out.loss * 0.0).backward()  # type: ignore[no-untyped-call]
        for number, part in enumerate(parts):
            out = self._loss(group, part, step)
            if out is None:
                break
            step.add(out.metrics)  # also the metrics of a minibatch that turns out to be the last
            if number < len(parts) - 1:
                self.clock.lap("loss", "backward")
                self._fill(out.loss)
                self.clock.lap("backward", "loss")
                before = added(out, before)
                self.pulse()
        return out, before

    def _loss(self, group: str, part: Batch, step: StepInProgress) -> LossOutput | None:
        loss, progress = self._execution.loss, step.numbers.progress
        with self._autocast:
            out = self.parameters.compute(
                lambda: loss(
                    self.net, self._target_net, part, group=group, step=progress, rng=self.rng
                )
            )
        return checked(out, self.algorithm)

    @property
    def _target_net(self) -> nn.Module | None:
        return None if self._target is None else self._target.net

    def _ended(self, step: StepInProgress) -> bool:
        """Is the batch known to be done? On a device, steps after its end are undone instead."""
        return step.ended is not None and self.looks and bool(step.ended)

    def _fill(self, loss: Tensor) -> None:
        """Add the gradient of a loss, scaled if the precision needs it."""
        with self._backward:
            self._scaling.up(loss).backward()  # type: ignore[no-untyped-call]

    def _descend(
        self, group: str, out: LossOutput, before: LossSums | None, step: StepInProgress
    ) -> None:
        """Take one clipped optimiser step.

        A loss or gradient that is not finite changes no weight. On the CPU it is raised here. On a
        device the step is undone, and ``settle`` raises the error.
        """
        self.clock.lap("loss", "backward")
        loss = self.parameters.backward(group, out, before, self._fill)
        self.clock.lap("backward", "optimiser")
        for one in self.algorithm.held(self.net, self.updates):
            one.grad = None if one.grad is None else one.grad.zero_()
        skipped = self._scaling.down(self.parameters.gradient(group))
        norm = self.parameters.clip(group, self.optimizer.max_grad_norm)
        undone = either(step.ended, skipped)
        norm = norm if skipped is None else norm.masked_fill(skipped, 0.0)
        seen = torch.stack([loss.float(), norm.float()])
        seen = seen if step.ended is None else seen.masked_fill(step.ended, 0.0)
        if self.looks:
            self._look([(self.version + 1, group)], seen[None])
        else:
            step.groups.append(group)
            step.unseen.append(seen)
            undone = either(undone, ~seen.isfinite().all())
        self.parameters.step(group, step.numbers.rates[group], undone)
        step.add(self._scaling.metrics(skipped))
        step.add({f"grad_norm/{group}": (norm, torch.ones_like(norm))})
        self.clock.lap("optimiser")

    def state(self) -> Tree:
        """Everything that the next step depends on but the batch."""
        return self._state(self.parameters.state) | self._kept.state()

    def _state(self, group: Callable[[str], Tree]) -> dict[str, Tree]:
        """Return ``state`` without the kept states, with ``group`` of each group's name."""
        return {
            "version": self.version,
            "before": self.before,
            "rng": self.rng.get_state(),
            **self._kept.now(group),
            **self._rewards.state(),
            **({"scaling": dict(self._scaling.slots)} if self._scaling.slots else {}),
            **({} if self.encoding is None else {"encoding": self.encoding.state()}),
        }

    def load(self, state: Tree) -> None:
        """Load a state; ValueError if groups, sizes or the presence of a target network differ."""
        if bool(state["target"]) != (self._target is not None):
            had, has = ("one" if state["target"] else "none"), self.algorithm.copied_every
            raise ValueError(
                f"target network: expected a state saved with what target_every={has} asks for, "
                f"got {had}"
            )
        if (wanted := set(self.parameters.optimizers)) != (got := set(state["groups"])):
            raise ValueError(
                f"expected the optimiser groups {sorted(wanted)}, got a state of {sorted(got)}"
            )
        schema.check(state, self._schema(), "")
        lora.check_base(self.net, state["buffers"], "state of the learner")
        with torch.no_grad():
            self._kept.take(state)
            self._kept.load(state)
            self._rewards.load(state)
            # without: of another precision
            for name, slot in self._scaling.slots.items() if "scaling" in state else ():
                slot.copy_(state["scaling"][name])
            if self.encoding is not None:
                self.encoding.load(state["encoding"])
        self.version, self.before = state["version"], state["before"]
        if state["rng"].shape == self.rng.get_state().shape:
            self.rng.set_state(state["rng"])
        else:  # of another kind of device
            self.rng.manual_seed(self.rng.initial_seed() + self.version)

    def _schema(self) -> schema.Schema:
        """Return the schema of a saved state: these types and shapes, and finite numbers."""
        wanted: dict[str, schema.Schema] = schema.like(
            self._state(self.parameters.like), finite=True
        )
        rng = schema.Array((None,), "uint8", tensor=True)  # another kind of device has another size
        # a resume may change the precision
        scaling = {"scaling?": wanted.pop("scaling", schema.Anything())}
        counts = {
            "version": schema.count(),
            "before": schema.Number(-schema.MOST, schema.MOST, whole=True),
        }
        if self.encoding is not None:
            wanted["encoding"] = self.encoding.schema()
        wanted |= self._kept.schema() | self._rewards.schema()
        return wanted | counts | scaling | {"rng": rng}

    def adopt(self, state: Tree) -> None:
        """Go on where another learner was, as this one's present version; ValueError as for
        ``load``.

        The same batches make the same next weights, to the bit: parameters, optimisers, target
        network, statistics, random numbers and the share of the schedule equal the other learner's.
        """
        if self.encoding is not None and (left := self.encoding.left):
            raise ValueError(
                f"algorithm.encoder_rows: expected 0, since its encoder has learned, got {left}"
            )
        if self.encoding is not None and self.version:
            raise ValueError(
                "algorithm.torso: expected another than vae, since a replay keeps what the "
                "learner's encoder made"
            )
        version = self.version
        self.load(state)
        self.before, self.version = self.updates - version, version

    def live(self) -> dict[str, object]:
        """Return the settings that the next step reads, by their keys: those of the optimisers, of
        which a rate is the one before the schedule's factor, and the algorithm's.
        """
        mine = self.optimizer
        other = next((one for one in self.parameters.settings() if one != mine), mine)
        optimizer = values_of(mine) | {name: values_of(other)[name] for name in STEPPED}
        rates = {
            group: mine.rates.get(group, mine.learning_rate) for group in self.parameters.optimizers
        }
        parts = {
            "optimizer.": optimizer,
            "optimizer.rates.": rates,
            "algorithm.": values_of(self.algorithm),
        }
        return {
            f"{room}{name}": value
            for room, part in parts.items()
            for name, value in part.items()
            if _is_plain(value)
        }

    def _look(self, steps: Sequence[tuple[int, str]], seen: Tensor) -> None:
        """Raise the first of these steps (version, group) whose numbers [n, 2] are not finite."""
        for (version, group), (loss, norm) in zip(steps, seen.tolist(), strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                name = f"grad_norm/{group}" if math.isfinite(loss) else "loss"
                raise NonFiniteUpdate(
                    f"learner, group {group!r}, update {version}: expected a finite {name}, got "
                    f"loss {loss} and "
                    f"grad_norm/{group} {norm}; the weights of update {version - 1} are the last "
                    "good ones. A lower "
                    "optimizer.learning_rate or optimizer.max_grad_norm may help"
                )


def _is_plain(value: object) -> bool:
    """Is it a number, a text, a bool or None, or a tuple of them?"""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _nothing() -> None: ...
