"""The parts of the ring that the workers of a run share, over one memory. Each part states which
worker writes what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equipoise import tree
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.rounding import Rounding
from equipoise.actors.inference.exchange import Exchange
from equipoise.experience.queue.outbound import Outbound
from equipoise.experience.queue.queue import Queue
from equipoise.experience.queue.waiting import Waiting
from equipoise.experience.replay.mailbox import ShardMailbox
from equipoise.memory import Memory
from equipoise.types import Tree
from equipoise.weights.device import DeviceWeights
from equipoise.weights.store import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMemory:
    """The memory that the actors and the learner share of one policy, besides the queue of all
    policies.
    """

    weights: Weights
    episodes: Sequence[Episodes]  # one a group of envs
    learns: bool
    rounding: Sequence[Rounding] = ()  # one a group of envs, if acting is with rounded weights
    # the weights that are acted with, where they lie on the learner's device
    device: DeviceWeights | None = None

    @property
    def actor_weights(self) -> Weights | DeviceWeights:
        """The weights that are acted with."""
        return self.weights if self.device is None else self.device


class KindMemory:
    """Memory that the workers of one kind share with the driver: ``views`` by the specs that
    ``OwnsMemory.memory`` asked for.
    """

    def __init__(self, specs: Tree, memory: Memory) -> None:
        self._parts = specs, memory
        self.views: Tree = tree.views(specs, memory.buffer)

    def __reduce__(self) -> tuple[object, ...]:
        return KindMemory, self._parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The memory that the workers of a run share."""

    queues: Mapping[int, Queue]  # by learner, for learners on this machine
    policies: Mapping[str, PolicyMemory]  # learning policies come first
    mailboxes: Mapping[str, Sequence[ShardMailbox]] = field(
        default_factory=dict
    )  # by policy, if its replay has shards: one a learner
    exchange: Exchange | None = None  # under central inference
    # away from home: one a learner, for the rows that go to it over the network
    outbound: Sequence[Outbound] = ()
    waiting: Waiting | None = None  # away from home, next to shards: blocks that wait for them
    # by kind of worker: the memory that ``OwnsMemory.memory`` asked for
    own: Mapping[str, KindMemory] = field(default_factory=dict)

    @property
    def episodes(self) -> list[Episodes]:
        """The episodes of the policies that learn, of every actor."""
        return [
            one for policy in self.policies.values() if policy.learns for one in policy.episodes
        ]

    @property
    def actors(self) -> Sequence[Episodes]:
        """One a group of envs: it holds what is counted of the group and not of a policy (rows,
        failures).
        """
        return self._one.episodes

    @property
    def version(self) -> int:
        """The newest; -1 before the first."""
        return self._one.actor_weights.version

    @property
    def _one(self) -> PolicyMemory:
        """Any policy that learns, for what all have in common."""
        one, *_ = self.policies.values()
        return one
