"""A learner's sum of rewards: its terms in their order, and the parameters of their networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import schema, tree
from equipoise.errors import RewardsFailed
from equipoise.facts import values_of
from equipoise.hints import raised, shortened
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.pool import LearnerLost, Learners
from equipoise.learners.row_gather import gathered, kept_rows
from equipoise.learners.steps import checked
from equipoise.private.torch import changes
from equipoise.rewards.step import RewardStep
from equipoise.rewards.term import LearnerStates, Refused, RewardTerm, check_state
from equipoise.rewards.terms import Terms, names_of
from equipoise.sums import ENV, parsed
from equipoise.types import Learns, Rewards, Trajectory, Tree, ValueHead


class RewardSum:
    """The weighted sum of rewards, scaled at its end, and the learning of its terms."""

    def __init__(
        self,
        rewards: Rewards,
        terms: Terms,
        algorithm: Learns,
        pool: Learners,
        device: torch.device,
    ) -> None:
        """``terms``: the terms of the sum by name, built."""
        self._terms, self._pool, self._networks = dict(terms), pool, dict[str, Flat]()
        self._products = products_of(rewards, terms)
        self._plain = [(weight, names) for weight, names in self._products] == [(1.0, (ENV,))]
        headed = {name for name, term in terms.items() if term.head}
        self._summed = [one for one in self._products if not headed.intersection(one[1])]
        self._headed = [(one[0], one[1][0]) for one in self._products if one not in self._summed]
        self._step = RewardStep(rewards)
        self._step.to(device)
        self._own: dict[str, Tensor] = {}  # of the batch at hand: of each term, of env
        self._sum: Tensor | None = None
        # terms that see the rows of all learners, and the rows that they have not seen
        self._gathering = [one for one in terms.values() if one.together and pool.size > 1]
        self._waiting: list[Trajectory] = []
        for name, term in self._terms.items():
            term.to(device)
            if term.net is not None:
                self._networks[name] = Flat(pool)
                self._networks[name].hold(term.net.to(device), _all, term.optimizer)
        self.follow(algorithm)
        self._schemas = {name: term.schema() for name, term in self._terms.items()}

    def follow(self, algorithm: Learns) -> None:
        """Read what the rewards need of the algorithm; ValueError if a term cannot work with it."""
        self._step.follow(algorithm)
        self._gamma = values_of(algorithm).get("gamma", 0.0)
        for term in self._terms.values():
            term.follow(algorithm)

    def collect(self, data: Trajectory) -> None:
        """Show new rows [T, B] to the terms, each once; rows of all learners come a step later."""
        if self._gathering:
            self._waiting.append(kept_rows(data))
        if self._terms:
            data = Trajectory(**tree.map(_kept, data.fields()))
        self._show(data, [one for one in self._terms.values() if one not in self._gathering])

    def _show(self, data: Trajectory, terms: Iterable[RewardTerm]) -> None:
        for term in terms:
            with _told(term, "collect"), unchanged(data):
                term.collect(data)

    def __call__(self, data: Trajectory) -> Tensor:
        """Return the rewards [T, B] to learn from; ``data`` keeps the env's own."""
        if self._plain:
            return self._step.rewards(data)
        if self._gathering:
            rows, self._waiting = gathered(self._waiting, self._pool), []
            if rows is not None:
                self._show(rows, self._gathering)
        self._own = {ENV: data.reward} | {
            name: self._asked(term, data) * data.mask for name, term in self._terms.items()
        }
        self._sum = torch.zeros_like(data.reward)
        for weight, names in self._summed:
            self._sum += weight * math.prod(
                (self._own[name] for name in names[1:]), start=self._own[names[0]]
            )
        return self._step.rewards(replace(data, reward=self._sum))

    def heads(self, data: Trajectory) -> list[ValueHead]:
        """Return the terms with a value of their own in the batch of the last call."""
        found = []
        for weight, name in self._headed:
            term = self._terms[name]
            gamma = self._gamma if term.gamma is None else term.gamma
            through = torch.ones_like(data.mask)  # also through seams, in which the reward is 0
            found.append(
                ValueHead(
                    reward=self._own[name],
                    discount=gamma * (data.bootstrap if term.episodic else through),
                    mask=data.mask if term.episodic else through,
                    weight=weight,
                )
            )
        return found

    def metrics(self, data: Trajectory) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the sum and the count of each term's rewards in the batch of the last call, and of
        the numbers of its own.
        """
        count, one = data.mask.sum(), torch.ones((), device=data.mask.device)
        found = {
            f"reward_{name}": ((own * data.mask).sum(), count) for name, own in self._own.items()
        }
        for name, term in self._terms.items():
            with _told(term, "metrics"):
                found |= {
                    f"{name}_{key}": (_number(value, key) * one, one)
                    for key, value in term.metrics().items()
                }
        return found

    def _asked(self, term: RewardTerm, data: Trajectory) -> Tensor:
        """Return the rewards of a term; RewardsFailed if a user's term raises, or gives other than
        finite numbers of the shape.

        On a device, a look would wait, so a value that is not finite is found in the loss of the
        algorithm.
        """
        with _told(term, "rewards"), unchanged(data):
            found: object = term.rewards(data)
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

    def learn(self, data: Trajectory, progress: float) -> list[tuple[str, Tensor]]:
        """Let each term learn from the batch of the last call -> [2] loss and gradient norm of each
        step that a network took.

        A step whose numbers are not finite is undone.
        """
        seen: list[tuple[str, Tensor]] = []
        with torch.no_grad():
            for name, term in self._terms.items():
                if (network := self._networks.get(name)) is not None:
                    for _ in range(term.steps):
                        seen += self._descend(name, term, network, data, progress)
                with _told(term, "absorb"), unchanged(data):
                    term.absorb(data, self._pool)
                term.version += 1
            self._step.absorb(
                data if self._sum is None else replace(data, reward=self._sum), self._pool
            )
        return seen

    def steer(self, states: LearnerStates) -> None:
        """Let each term keep the learner's state after an update, or bring a kept one back."""
        with torch.no_grad():
            for term in self._terms.values():
                with _told(term, "steer"):
                    term.steer(states)

    def _descend(
        self, name: str, term: RewardTerm, network: Flat, data: Trajectory, progress: float
    ) -> list[tuple[str, Tensor]]:
        with torch.enable_grad():
            network.begin("net", 1)
            with _told(term, "loss"), unchanged(data):
                out = checked(term.loss(data), term)
            if out is None:
                return []
            loss = network.backward("net", out, None, lambda loss: loss.backward())  # type: ignore[no-untyped-call]
        seen = torch.stack(
            [loss.float(), network.clip("net", term.optimizer.max_grad_norm).float()]
        )
        network.step("net", term.optimizer.rate("net", progress), ~seen.isfinite().all())
        return [(name, seen)]

    def state(self) -> dict[str, Tree]:
        """Return the state of the last step, and by name the terms' with net and version."""
        return {"rewards": self._step.state()} | (
            {"terms": {name: self._of(name, term) for name, term in self._terms.items()}}
            if self._terms
            else {}
        )

    def _of(self, name: str, term: RewardTerm) -> dict[str, Tree]:
        with _told(term, "state"):
            own = term.state()
        return {"own": own, "version": term.version} | self._net(name, term)

    def _net(self, name: str, term: RewardTerm) -> dict[str, Tree]:
        """A term's network: the parameters that its optimiser moves, and its other parameters and
        buffers.
        """
        if term.net is None:
            return {}
        fixed = _fixed(term.net)
        return {"net": self._networks[name].state("net")} | ({"fixed": fixed} if fixed else {})

    def check(self) -> None:
        """RewardsFailed if the state of a term cannot be saved, or could not be loaded again."""
        for name, term in self._terms.items():
            with _told(term, "state"):
                check_state(own := term.state())
                schema.check(own, self._schemas[name], "state")

    def schema(self) -> dict[str, schema.Schema]:
        terms: dict[str, schema.Schema] = {}
        for name, term in self._terms.items():
            net = schema.like(self._net(name, term), finite=True)
            assert isinstance(net, dict)
            terms[name] = {"own": self._schemas[name], "version": schema.count(), **net}
        return {"rewards": self._step.schema()} | ({"terms": terms} if terms else {})

    def load(self, state: Mapping[str, Tree]) -> None:
        self._step.load(state["rewards"])
        self._waiting = []  # a step that is taken back collects its rows again
        for name, term in self._terms.items():
            saved = state["terms"][name]
            with _told(term, "load"):
                term.load(saved["own"])
            term.version = saved["version"]
            if term.net is not None:
                self._networks[name].load("net", saved["net"])
                for key, tensor in _fixed(term.net).items():
                    tensor.copy_(saved["fixed"][key])


def products_of(rewards: Rewards, terms: Terms) -> list[tuple[float, tuple[str, ...]]]:
    """Return the products of a sum: the weight and the names of its factors; ValueError for a term
    that is not there.
    """
    products = parsed(rewards.sum, "reward")
    words = {word for one in products for word in one.names}
    names = {word: word for word in words}
    if not words <= {ENV, *terms}:
        names |= names_of(rewards.sum)
    found = [(one.weight, tuple(names[word] for word in one.names)) for one in products]
    needed = {name for _, several in found for name in several} - {ENV}
    if needed != set(terms):
        raise ValueError(f"reward: expected the terms {sorted(needed)}, got {sorted(terms)}")
    return found


@contextmanager
def _told(term: RewardTerm, method: str) -> Iterator[None]:
    """Name the term whose method raises an error."""
    try:
        yield
    except LearnerLost:
        raise
    except Refused as error:
        raise RewardsFailed(str(error)) from error
    except (Exception, SystemExit) as error:  # the class of a user may raise anything
        raise RewardsFailed(
            f"reward: {type(term).__name__}.{method} failed: {raised(error)}"
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


def _kept(leaf: object) -> object:
    """Return an array as a view that cannot be written: a replay keeps the rows that it is of."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def _number(value: object, key: str) -> float | Tensor:
    """Return a value of a term's metrics; TypeError if it is no number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(())
    if isinstance(value, int | float | np.number):
        return float(value)
    raise TypeError(f"expected a number for {shortened(repr(key))}, got {type(value).__name__}")


def _fixed(net: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network's state that no optimiser moves."""
    moved = {name for name, one in net.named_parameters() if one.requires_grad}
    return {name: one.detach() for name, one in net.state_dict().items() if name not in moved}


def _all(net: nn.Module) -> dict[str, list[nn.Parameter]]:
    return {"net": [one for one in net.parameters() if one.requires_grad]}
