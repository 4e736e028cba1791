"""Observations as rows of features: the first part of every network except the actor-critics'."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from equipoise.nets import heads
from equipoise.nets.torso import MLP, encode
from equipoise.nets.vision import torso as make_torso
from equipoise.types import EnvSpec, Tree


class Features(nn.Module):
    """Observations [N, ...] to features [N, ``size_out``] float32, by a torso of ``vision.torso``.

    A mask of actions is no feature; ``allowed`` reads it. Without a core: the state is {}.
    """

    def __init__(
        self, spec: EnvSpec, *, hidden: Sequence[int], activation: str, torso: str
    ) -> None:
        """``hidden``: layers of an MLP torso; (): the encoded observation. Images ignore it."""
        super().__init__()
        self.observation, self.seen = heads.seen(spec)
        self.mask = spec.mask
        self.torso = make_torso(torso, self.observation, hidden=hidden, activation=activation)
        self.size_out: int = self.torso.size_out

    def initial_state(self, batch: int) -> Tree:
        return {}

    def features(self, obs: Tree) -> Tensor:
        obs = heads.at(obs, self.seen)
        return self.torso(  # type: ignore[no-any-return]
            encode(self.observation, obs) if isinstance(self.torso, MLP) else obs
        ).float()

    def allowed(self, obs: Tree, actions: int) -> Tensor | None:
        """[N, actions] bool; None without a mask. A row that forbids all actions allows all."""
        if not self.mask:
            return None
        mask: Tensor = heads.at(obs, self.mask)
        some = mask.reshape(-1, actions) != 0
        return some | ~some.any(-1, keepdim=True)
