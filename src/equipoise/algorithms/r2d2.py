"""R2D2 (Kapturowski et al., ICLR 2019, openreview.net/forum?id=r1lyTjAqYX): recurrent Q-learning
from replayed sequences.

An item is a window of ``burn_in`` + ``length`` + ``n_step`` rows that begins where a recurrent
state was stored. The network and the target network are unrolled from that state over the burn-in,
without a gradient, and then over the rest, of which the first ``length`` rows are learned from
(section 3). With h the rescaling of values (``returns/rescale.py``),

    y_t = h(sum_{i<k} gamma^i r_{t+i} + gamma^k h^-1(Q'(s_{t+k}, a*)))      a* = argmax_a Q(s_{t+k}, a)           (section 2.3)
    L = w sum_t (y_t - Q(s_t, a_t))^2 / 2,    priority = eta max_t |y_t - Q(s_t, a_t)| + (1 - eta) mean_t |y_t - Q(s_t, a_t)|

over the rows t of the window that are real, k = min(n, rows until the episode ends). Env i of N
acts at random with epsilon^(1 + alpha i / (N - 1)); an item's first priority is by the Q of its
actor (both as in Ape-X).

``target=retrace`` replaces the n-step return by Retrace (``returns/retrace.py``) of the greedy
policy, in the same space. There c = lambda min(1, pi / mu) is lambda if the greedy action was taken
and else 0: no acting policy can have made it more likely than the greedy policy does.

Deviations: the network sees neither the last action nor the last reward; both dueling heads are
linear; the loss is a mean over real rows (the paper's Adam epsilon, 1e-3, and bound of the gradient
are of sums over 80 rows).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from equipoise import tree
from equipoise.algorithms._memory import Remembers
from equipoise.algorithms._off_policy import (
    OffPolicyAlgorithm,
    epsilon_greedy,
    epsilon_propensity,
    ladder,
)
from equipoise.facts import KEPT, Help, Read
from equipoise.nets.cores import CoreKind
from equipoise.nets.q import QNetwork, greedy
from equipoise.returns import nstep, rescale, retrace, unscale
from equipoise.types import (
    Array,
    Batch,
    EnvSpec,
    LossOutput,
    NonNegativeFloat,
    NonNegativeInt,
    Optimizer,
    PositiveInt,
    Trajectory,
    Tree,
    UnitInterval,
)


@dataclass(frozen=True, kw_only=True)
class R2D2(OffPolicyAlgorithm, Remembers):
    default_optimizer: ClassVar[Optimizer] = replace(
        OffPolicyAlgorithm.default_optimizer, learning_rate=1e-4, epsilon=1e-5, max_grad_norm=1.0
    )
    # windows overlap by half of the rows that are learned from
    defaults: ClassVar[Mapping[str, object]] = {
        "policy.unroll": 40,
        "policy.batch": 32,
        "replay.capacity": 500_000,
        "replay.updates": 1,
        "replay.selector": "prioritized",
        "replay.alpha": 0.9,
        "replay.beta": 0.6,
        "placement.actors": 2,
        "placement.envs_per_actor": 16,
        "placement.max_lag": None,
    }

    hidden: tuple[PositiveInt, ...] = (128,)
    dueling: Annotated[bool, Help("Dueling heads: state value and advantages"), KEPT] = True
    core: CoreKind = "lstm"
    core_size: PositiveInt = 128
    burn_in: Annotated[
        NonNegativeInt,
        Help("Rows that only warm up the recurrent state"),
        KEPT,
    ] = 40
    length: Annotated[
        PositiveInt,
        Help("Rows of a window that are learned from", "A window begins every `unroll` rows."),
        KEPT,
    ] = 80
    stored_state: Annotated[
        bool,
        Help("Start windows with the actor's recurrent state", "false: windows start with zeros."),
    ] = True
    gamma: UnitInterval = 0.997
    n_step: PositiveInt = 5
    target: Annotated[Literal["nstep", "retrace"], Help("Kind of return to learn")] = "nstep"
    lambda_: Annotated[UnitInterval, Help("Retrace lambda"), Read("target", "retrace")] = 0.95
    rescale: Annotated[bool, Help("Rescale values: learn h(Q) instead of Q")] = True
    eta: Annotated[
        UnitInterval,
        Help(
            "Weight of the largest error in a priority",
            "The mean error has the rest of the weight.",
        ),
    ] = 0.9
    epsilon: Annotated[
        UnitInterval,
        Help(
            "Share of random actions (epsilon) in the first env",
            "Env i of N explores with epsilon^(1 + epsilon_alpha i / (N - 1)).",
        ),
    ] = 0.4
    epsilon_alpha: Annotated[
        NonNegativeFloat,
        Help(
            "Exponent of epsilon in the last env, minus 1",
            "Env i of N explores with epsilon^(1 + epsilon_alpha i / (N - 1)).",
        ),
    ] = 7.0
    target_every: PositiveInt = 2500

    @property
    def item_rows(self) -> int:
        return self.burn_in + self.length + self.n_step

    def network(self, spec: EnvSpec) -> QNetwork:
        return QNetwork(spec, dueling=self.dueling, core=self.memory, **self.shape)

    def explore(self, stream: Array, streams: int, step: int) -> Tree:
        return {"epsilon": ladder(stream, streams, self.epsilon, self.epsilon_alpha)}

    def act(
        self, net: QNetwork, obs: Tree, first: Tensor, state: Tree, *, explore: Tree, noise: Tensor
    ) -> tuple[Tree, Tree, Tree]:
        q, state = net.step(obs, first, state)
        action, behaviour = epsilon_greedy(net, q.squeeze(-1), obs, explore["epsilon"], noise)
        return action, behaviour, state

    def propensity(
        self, net: QNetwork, obs: Tree, first: Tensor, state: Tree, action: Tree, *, explore: Tree
    ) -> Tensor | None:
        q, _ = net.step(obs, first, state)
        return epsilon_propensity(net, q.squeeze(-1), obs, explore["epsilon"], action)

    def best(self, net: QNetwork, obs: Tree, first: Tensor, state: Tree) -> tuple[Tree, Tree]:
        q, state = net.step(obs, first, state)
        return greedy(q.squeeze(-1), net.allowed(obs, net.actions)) + net.start, state

    def priority(self, data: Trajectory) -> Tensor:
        """Priorities [N] of windows, by the Q that the actor recorded."""
        q, value = (data.behaviour[name][self.burn_in :] for name in ("q", "value"))
        # retrace: as if every action had been the best
        same = torch.ones_like(q[:-1], dtype=torch.bool)
        target = self.of_rows(data, q[:-1], value, same)
        return self.mixed((target - q[: self.length]).abs(), self._real(data))

    def unrolled(self, net: QNetwork, data: Trajectory) -> Tensor:
        """Return Q [length + n_step, B, actions] behind the burn-in, which has no gradient."""
        state = data.state if self.stored_state else tree.map(torch.zeros_like, data.state)
        burn, rows = slice(self.burn_in), slice(self.burn_in, self.item_rows)
        if self.burn_in:
            with torch.no_grad():
                _, state = net.unroll(tree.index(data.obs, burn), data.first[burn], state)
        q, _ = net.unroll(tree.index(data.obs, rows), data.first[rows], state)
        return q.squeeze(-1)

    def of_rows(self, data: Trajectory, q: Tensor, value: Tensor, best: Tensor) -> Tensor:
        """y [length, B] from the rows after the burn-in: ``value`` [length + n, B] and, for all but
        the last, ``q`` of the taken action and whether it was the ``best``.
        """
        rows = slice(self.burn_in, self.item_rows - 1)
        reward, discount, mask = data.reward[rows], data.discount(self.gamma)[rows], data.mask[rows]
        if self.rescale:
            q, value = unscale(q), unscale(value)
        if self.target == "nstep":
            target = nstep(
                reward=reward, discount=discount, value=value, n=self.n_step, mask=mask
            ).target
        else:
            log_rho = torch.where(best, 0.0, -torch.inf)
            target = retrace(
                reward=reward,
                discount=discount,
                q=q,
                value=value,
                log_rho=log_rho,
                lambda_=self.lambda_,
                mask=mask,
            ).target
        target = target[: self.length]
        return rescale(target) if self.rescale else target

    def mixed(self, error: Tensor, mask: Tensor) -> Tensor:
        """eta max + (1 - eta) mean of the errors [length, B] of real rows -> [B]."""
        real = error * mask
        return self.eta * real.amax(0) + (1 - self.eta) * real.sum(0) / mask.sum(0).clamp(min=1)

    def _real(self, data: Trajectory) -> Tensor:
        return data.mask[self.burn_in : self.burn_in + self.length]  # type: ignore[no-any-return]

    def discrepancy(
        self, mine: Tensor, q: Tensor, data: Trajectory
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The distance |Q(s_t, a_t) - the actor's Q| / max |Q|, in the first and the last learned
        row.

        Section 3's Delta Q, of the action that was taken in place of the norm over all: how far
        replayed states are from the actor's states, and the actor's weights from the present ones.
        """
        rows, mask = slice(self.burn_in, self.burn_in + self.length), self._real(data)
        apart = (q - data.behaviour["q"][rows]).abs() / mine[: self.length].abs().amax(
            (0, 2)
        ).clamp(min=1e-6)
        named = {"discrepancy/first": 0, "discrepancy/last": -1}
        return {name: ((apart * mask)[row].sum(), mask[row].sum()) for name, row in named.items()}

    def loss(
        self,
        net: QNetwork,
        target_net: QNetwork,
        batch: Batch,
        *,
        group: str,
        step: float,
        rng: torch.Generator,
    ) -> LossOutput | None:
        """L above; no gradient flows into y."""
        data = batch.data
        rows, mask = slice(self.burn_in, self.item_rows), self._real(data)
        mine = self.unrolled(net, data)
        with torch.no_grad():
            theirs = self.unrolled(target_net, data)
            allowed = net.allowed(tree.index(data.obs, rows), net.actions)
            best = greedy(mine, None if allowed is None else allowed.view(mine.shape))
            taken = data.action[rows] - net.start
            target = self.of_rows(
                data, at(theirs, taken)[:-1], at(theirs, best), (taken == best)[:-1]
            )
        q = at(mine[: self.length], taken[: self.length])
        error = (target - q) * mask
        count = mask.sum()
        with torch.no_grad():
            shown = {"loss": 0.5 * error.square(), "td_error": error.abs(), "q": q * mask}
            metrics = {name: (x.sum(), count) for name, x in shown.items()} | self.discrepancy(
                mine, q, data
            )
            priority = self.mixed(error.abs(), mask)
        return LossOutput(
            loss=(0.5 * error.square() * batch.weight).sum(),
            count=count,
            metrics=metrics,
            priority=priority,
        )


def at(q: Tensor, action: Tensor) -> Tensor:
    """q [T, B, actions], action [T, B] -> [T, B]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
