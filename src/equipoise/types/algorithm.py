"""The two halves of an algorithm, the loss that it returns, its optimiser and rewards."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from equipoise.facts import (
    KEPT,
    Flag,
    Fraction,
    Help,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rate,
    Read,
    UnitInterval,
)
from equipoise.sums import ENV
from equipoise.types.protocols import Pool
from equipoise.types.rows import Array, Batch, Trajectory, Tree
from equipoise.types.sources import WHAT

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """Sums, not means, so that several learners and micro-batches add up exactly."""

    loss: Tensor  # [] sum over valid rows
    count: Tensor  # [] how many; the learner divides by the all-reduced count
    # name -> (sum, count), no gradient
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    priority: Tensor | None = None  # [B]
    # [] sum over valid rows; if above 0, skip this step and the rest of the batch
    excess: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHead:
    """The rewards of a term that has a value output of its own, and the weight of its advantage."""

    reward: Tensor  # [T, B]
    discount: Tensor  # [T, B] of the next observation's value; 0: its value may not be used
    mask: Tensor  # [T, B] rows that count; of a term that is not episodic all do
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """How gradients become steps. Each group of ``Algorithm.groups`` has its own optimiser."""

    name: Annotated[Literal["adam", "adamw", "rmsprop"], Help("Optimiser"), KEPT] = "adam"
    learning_rate: Annotated[Rate, Help("Learning rate at the start of the schedule")] = 3e-4
    rates: Annotated[
        Mapping[str, Rate],
        Help(
            "Learning rates by parameter group, as rates.actor=1e-4",
            "Other groups use `learning_rate`.",
        ),
    ] = field(default_factory=dict)
    schedule: Annotated[
        Literal["linear", "constant", "cosine"],
        Help(
            "Learning rate schedule",
            "linear and cosine reach 0 after `schedule_steps` (by default: `steps`).",
        ),
    ] = "linear"
    warmup: Annotated[
        UnitInterval, Help("Share of the schedule in which the rate rises from 0")
    ] = 0.0
    epsilon: Annotated[NonNegativeFloat, Help("Epsilon added to the denominator of a step")] = 1e-5
    betas: Annotated[
        tuple[UnitInterval, UnitInterval],
        Help("Decay rates of Adam's two moments"),
        Read("name", "rmsprop", unless=True),
    ] = (0.9, 0.999)
    decay: Annotated[
        UnitInterval,
        Help("Decay rate of RMSProp's second moment"),
        Read("name", "rmsprop"),
    ] = 0.99
    weight_decay: Annotated[
        NonNegativeFloat,
        Help(
            "Weight decay",
            "AdamW takes this share of the weights in a step of rate 1. Adam and RMSProp add it "
            "to the gradient, times the weights.",
        ),
    ] = 0.0
    max_grad_norm: Annotated[
        NonNegativeFloat, Help("Gradient norm limit per group; 0 turns clipping off")
    ] = 0.5

    def rate(self, group: str, progress: float) -> float:
        """The learning rate of a group when the share ``progress`` of the schedule is done."""
        base = self.rates.get(group, self.learning_rate)
        if progress < self.warmup:
            return base * (progress / self.warmup)
        if self.schedule == "constant":
            return base
        done = (progress - self.warmup) / (1.0 - self.warmup) if self.warmup < 1.0 else 1.0
        return base * (
            1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """How rewards change before an algorithm learns from them. Reports show the env's own."""

    scale: Annotated[
        PositiveFloat,
        Help("Factor of the rewards to learn from"),
        Read("normalize", False, why="rewards are normalised"),
    ] = 1.0
    clip: Annotated[
        NonNegativeFloat,
        Help(
            "Largest absolute reward to learn from; 0 turns it off",
            "It applies after scaling or normalisation. With `normalize`, 0 means 10.",
        ),
    ] = 0.0
    normalize: Annotated[
        bool,
        Help(
            "Divide rewards by the running deviation of the return",
            "The return is discounted. It cannot be combined with a replay.",
        ),
        KEPT,
    ] = False
    sum: Annotated[
        str,
        Help(
            "Rewards to learn from, such as env+0.5*rnd",
            "env: the env's own. Others are built in, or module:Class of your own. Scale, clip "
            "and normalisation act on the sum. On text: module:function[,...].",
        ),
        Flag(WHAT, "SUM", name="reward"),
        KEPT,
    ] = ENV
    # settings of the terms by their names; set by reward.TERM.KEY
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Learns(ABC):
    """The learner's half of an algorithm: from rows to a gradient. A learner needs no more, so what
    never acts has this alone.

    The learner reads the fields here; a subclass adds its own and overrides the defaults. The text
    for the user on a field stands in its annotation (``equipoise.facts``); a subclass that
    redeclares a field inherits the facts that it leaves out.
    """

    has_target: ClassVar[bool] = False  # does it read ``target_net``
    # does it learn from the experience of other policies than the newest
    needs_replay: ClassVar[bool] = False
    needs_dataset: ClassVar[bool] = False  # does it learn from recorded rows alone
    needs_task: ClassVar[bool] = False  # does it learn from text that a model writes
    # does it learn from preferences in a file: given completions, in groups that stay whole
    needs_pairs: ClassVar[bool] = False
    reads_rewards: ClassVar[bool] = True  # does it learn from rewards
    # settings of a run with this algorithm, by their --set keys
    defaults: ClassVar[Mapping[str, object]] = {}
    # the optimizer of a Policy that is given none
    default_optimizer: ClassVar[Optimizer] = Optimizer()
    # mean lag in versions that its correction bears; None: any (docs/inside/lag.md)
    max_sensible_lag: ClassVar[float | None] = None
    # rows of a minibatch at least, if a large batch is cut into more of them; 0: never
    minibatch_rows: ClassVar[int] = 0

    epochs: Annotated[PositiveInt, Help("Passes over a batch")] = 1
    minibatches: Annotated[
        PositiveInt,
        Help(
            "Minibatches per pass, with one optimiser step each",
            "With a recurrent state they hold whole windows, otherwise rows.",
        ),
    ] = 1
    target_every: Annotated[
        NonNegativeInt,
        Help("Updates between target network copies; 0 turns it off"),
    ] = 0
    tau: Annotated[
        Fraction,
        Help(
            "Polyak coefficient of a target copy; 1 copies fully",
            "A soft update uses 0.005 with target_every 1.",
        ),
        Read("target_every", why="there is no target network"),
    ] = 1.0

    def __new__(cls, *args: object, **given: object) -> Self:
        """Note the names of the fields that the caller gives, which win over a recipe's."""
        made = super().__new__(cls)
        object.__setattr__(made, "_given", frozenset(given))
        return made

    @property
    def given(self) -> frozenset[str]:
        """Names of the fields that the caller gave, whether or not they have their defaults."""
        return vars(self)["_given"]  # type: ignore[no-any-return]

    @property
    def copied_every(self) -> int:
        """Updates between two copies into the target network; 0: there is no such network."""
        return self.target_every

    @property
    def part_tokens(self) -> int:
        """Text: at most this many tokens in each part of a minibatch; 0: one part."""
        return 0

    @property
    def item_rows(self) -> int | None:
        """Rows of a replay's item; None: whole unrolls."""
        return None

    @property
    def warmup_rows(self) -> int:
        """First rows of a run, which an encoder learns from and a replay leaves out."""
        return 0

    @property
    def group_size(self) -> int | None:
        """Text: samples of a prompt that are learned from together; None: any number."""
        return None

    def refused(self, max_lag: int | None) -> str | None:
        """Return the settings that cannot work with ``max_lag`` (None: unbounded), and working
        ones.
        """
        return None

    @abstractmethod
    def network(self, spec: Any) -> nn.Module:
        """Return a new ``Network`` for an EnvSpec or TextSpec. The caller has seeded torch."""

    def groups(self, net: nn.Module) -> dict[str, list[Parameter]]:
        """One optimiser each; a step is taken for each group in this order."""
        return {"all": [one for one in net.parameters() if one.requires_grad]}

    def due(self, group: str, version: int) -> bool:
        """Does the update after ``version`` move this group? (TD3's actor: every second one.)"""
        return True

    def held(self, net: Any, version: int) -> Sequence[nn.Parameter]:
        """Parameters of due groups that the update after ``version`` leaves as they are."""
        return ()

    def followed(self, net: Any) -> nn.Module:
        """The part of the network that the target network copies (SAC: the critics)."""
        return net  # type: ignore[no-any-return]

    def prepare(self, data: Trajectory) -> Any:
        """Return the rows in the form that the other methods take (text: ``Packed``)."""
        return data

    def targets(
        self, net: Any, target_net: Any, data: Any, *, rng: torch.Generator, pool: Pool
    ) -> Tree:
        """[T, B] of a Trajectory, [N] of a Packed, once per batch, without gradient (PPO's GAE).

        ``target_net`` is None unless ``target_every``.

        The rewards are ready to learn from: scaled, normalised and clipped (``Rewards``). A
        statistic of the whole batch goes through ``pool``, since ``data`` may be one learner's part
        of it.
        """
        return {}

    def absorb(self, net: Any, data: Any, *, pool: Pool) -> None:  # noqa: B027  # most keep no statistics
        """Let a batch enter the statistics that the network keeps in its buffers; once, after the
        batch's last optimiser step.

        So a batch was acted and judged with the statistics of its version, and the next version has
        new ones. No gradient is recorded.
        """

    @abstractmethod
    def loss(
        self,
        net: Any,
        target_net: Any,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """Return a group's loss of a minibatch; None to skip. ``step``: schedule done, 0..1."""


class Acts(ABC):
    """The actor's half of an algorithm: from an observation to an action."""

    # does ``act`` draw from a distribution of the network, also without ``explore``?
    stochastic: ClassVar[bool] = False

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        """[B] epsilon, sigma and the like: ladders over streams and schedules over steps."""
        return {}

    @abstractmethod
    def act(
        self, net: Any, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor
    ) -> tuple[Tree, Tree, Tree]:
        """obs [B, ...] -> action, behaviour, state.

        noise [B, k], uniform in (0, 1): one column an action dimension, one more if ``explore``
        returns anything, and behind them the columns of ``held_noise``.
        """

    def held_noise(self, net: Any) -> tuple[int, int]:
        """(columns, n): further columns of noise that stay the same for n rows of a stream."""
        return 0, 1

    @abstractmethod
    def best(self, net: Any, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        """The deterministic action that evaluation and serving use -> action [B, ...], state."""

    def propensity(
        self, net: Any, obs: Tree, first: Tensor, state: Tree, action: Tree, *, explore: Tree
    ) -> Tensor | None:
        """[B], how likely ``act`` is to choose ``action`` [B, ...] if it explores by ``explore``,
        as a logarithm.

        A probability; a density, in the env's terms, if a Box is among the actions. None: ``act``
        draws nothing. Noise that is held for several rows counts as not known.
        """
        return None

    def priority(self, data: Trajectory) -> Array | None:
        """[N], of items as they enter a prioritized replay; None: the highest priority so far.

        ``data`` has the rows [item_rows, N] and no observations: the actor has stored a network's
        part of the priority in ``behaviour`` (Ape-X). An item enters with the commit of its last
        row.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Algorithm(Learns, Acts):
    """Hyper-parameters and pure functions; stateless, picklable, one readable file each."""
