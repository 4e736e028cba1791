"""A learner's reward parts in their order, and the parameters of their networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import schema, tree
from equipoise.errors import RewardsFailed
from equipoise.hints import raised
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.pool import LearnerLost, Learners
from equipoise.learners.steps import checked
from equipoise.private.torch import changes
from equipoise.rewards.part import RewardPart, check_names, check_state
from equipoise.types import Learns, Trajectory, Tree


class RewardParts:
    """The rewards to learn from, and the learning of the parts themselves."""

    def __init__(
        self, parts: Sequence[RewardPart], algorithm: Learns, pool: Learners, device: torch.device
    ) -> None:
        """``parts``: in their order; the last one scales the sum."""
        self._parts, self._pool, self._networks = tuple(parts), pool, dict[str, Flat]()
        self._rewards: list[Tensor] = []  # of the batch at hand, as each part returned them
        check_names([part.name for part in parts])
        for part in parts:
            part.to(device)
            if part.net is not None:
                self._networks[part.name] = Flat(pool)
                self._networks[part.name].hold(part.net.to(device), _all, part.optimizer)
        self.follow(algorithm)
        self._schemas = {part.name: part.schema() for part in parts}

    def follow(self, algorithm: Learns) -> None:
        """Read what the rewards need of the algorithm; ValueError if a part cannot work with it."""
        for part in self._parts:
            part.follow(algorithm)

    def __call__(self, data: Trajectory) -> Tensor:
        """Return the rewards [T, B] to learn from; ``data`` keeps the env's own."""
        self._rewards = []
        for part in self._parts:
            data = replace(data, reward=self._asked(part, data))
            self._rewards.append(data.reward)
        return self._rewards[-1]

    def _asked(self, part: RewardPart, data: Trajectory) -> Tensor:
        """Return the rewards of a part; RewardsFailed if a user's part raises, or gives other than
        finite numbers of the shape.

        On a device, a look would wait, so a value that is not finite is found in the loss of the
        algorithm.
        """
        if part is self._parts[-1]:
            return part.rewards(data)
        with _told(part, "rewards"), unchanged(data):
            found: object = part.rewards(data)
            if (
                not isinstance(found, Tensor)
                or found.shape != data.reward.shape
                or found.device != data.reward.device
                or found.layout is not torch.strided
                or not found.is_floating_point()
            ):
                got = (
                    f"{found.dtype} {list(found.shape)}, {found.layout} on {found.device}"
                    if isinstance(found, Tensor)
                    else type(found).__name__
                )
                raise TypeError(
                    f"expected a tensor of float {list(data.reward.shape)} on "
                    f"{data.reward.device}, got {got}"
                )
            if found.device.type == "cpu" and not (finite := found.isfinite()).all():
                row, stream = (~finite).nonzero()[0].tolist()
                raise ValueError(
                    f"expected finite rewards, got {found[row, stream]:g} at [{row}, {stream}]"
                )
        return found

    def learn(self, data: Trajectory, progress: float) -> dict[str, Tensor]:
        """Let each part learn from the batch of the last call -> [2] loss and gradient norm of each
        network that moved.

        A step whose numbers are not finite is undone.
        """
        seen: dict[str, Tensor] = {}
        with torch.no_grad():
            for part, given in zip(self._parts, [data.reward, *self._rewards[:-1]], strict=True):
                data = replace(data, reward=given)
                if (network := self._networks.get(part.name)) is not None:
                    seen |= self._step(part, network, data, progress)
                with _told(part, "absorb"), unchanged(data):
                    part.absorb(data, self._pool)
                part.version += 1
        return seen

    def _step(
        self, part: RewardPart, network: Flat, data: Trajectory, progress: float
    ) -> dict[str, Tensor]:
        with torch.enable_grad():
            network.begin("net", 1)
            with _told(part, "loss"), unchanged(data):
                out = checked(part.loss(data), part)
            if out is None:
                return {}
            loss = network.backward("net", out, None, lambda loss: loss.backward())  # type: ignore[no-untyped-call]
        seen = torch.stack(
            [loss.float(), network.clip("net", part.optimizer.max_grad_norm).float()]
        )
        network.step("net", part.optimizer.rate("net", progress), ~seen.isfinite().all())
        return {part.name: seen}

    def state(self) -> dict[str, Tree]:
        """Return the last part's state, and by name the other parts' with net and version."""
        *others, last = self._parts
        return {last.name: last.state()} | (
            {"parts": {part.name: self._of(part) for part in others}} if others else {}
        )

    def _of(self, part: RewardPart) -> dict[str, Tree]:
        with _told(part, "state"):
            own = part.state()
        return {"own": own, "version": part.version} | self._net(part)

    def _net(self, part: RewardPart) -> dict[str, Tree]:
        """A part's network: the parameters that its optimiser moves, and its other parameters and
        buffers.
        """
        if part.net is None:
            return {}
        fixed = _fixed(part.net)
        moved = self._networks[part.name].state("net")
        return {"net": moved} | ({"fixed": fixed} if fixed else {})

    def check(self) -> None:
        """RewardsFailed if the state of a part cannot be saved, or could not be loaded again."""
        for part in self._parts[:-1]:
            with _told(part, "state"):
                check_state(own := part.state())
                schema.check(own, self._schemas[part.name], "state")

    def schema(self) -> dict[str, schema.Schema]:
        *others, last = self._parts
        parts: dict[str, schema.Schema] = {}
        for part in others:
            net: Any = schema.like(self._net(part), finite=True)
            parts[part.name] = {"own": self._schemas[part.name], "version": schema.count(), **net}
        return {last.name: last.schema()} | ({"parts": parts} if others else {})

    def load(self, state: Mapping[str, Tree]) -> None:
        *others, last = self._parts
        last.load(state[last.name])
        for part in others:
            saved = state["parts"][part.name]
            with _told(part, "load"):
                part.load(saved["own"])
            part.version = saved["version"]
            if part.net is not None:
                self._networks[part.name].load("net", saved["net"])
                for name, tensor in _fixed(part.net).items():
                    tensor.copy_(saved["fixed"][name])


@contextmanager
def _told(part: RewardPart, method: str) -> Iterator[None]:
    """Name the part whose method raises an error."""
    try:
        yield
    except LearnerLost:
        raise
    except Exception as error:  # the class of a user may raise anything
        raise RewardsFailed(
            f"rewards.parts: {type(part).__name__}.{method} failed: {raised(error)}"
        ) from error


@contextmanager
def unchanged(data: Trajectory) -> Iterator[None]:
    """RuntimeError if a tensor of ``data`` was changed in place: the algorithm learns from it."""
    tensors = {path: leaf for path, leaf in tree.items(data.fields()) if isinstance(leaf, Tensor)}
    before = {path: changes(leaf) for path, leaf in tensors.items()}
    yield
    for path, leaf in tensors.items():
        if changes(leaf) != before[path]:
            raise RuntimeError(
                f"expected data to stay as it is, got data.{path} changed in place; "
                f"work on a copy: data.{path}.clone()"
            )


def _fixed(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network's state that no optimiser moves."""
    moved = {name for name, one in net.named_parameters() if one.requires_grad}
    return {name: one.detach() for name, one in net.state_dict().items() if name not in moved}


def _all(net: nn.Module) -> dict[str, list[nn.Parameter]]:
    return {"net": [one for one in net.parameters() if one.requires_grad]}
