"""The reward of a trained reward model, which learns no more, as a term of the rewards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.envs import space_json
from equipoise.facts import Help, NonNegativeFloat
from equipoise.hints import shortened
from equipoise.registry.reward_models import place
from equipoise.rewards.observed import Observed
from equipoise.rewards.preferences.guard import paid
from equipoise.rewards.preferences.stored import read
from equipoise.rewards.term import Refused, RewardTerm
from equipoise.types import EnvSpec, Trajectory


@dataclass(kw_only=True, eq=False)
class RewardModelTerm(RewardTerm):
    """The mean of the members of a trained reward model, less ``caution`` times their deviation."""

    name: ClassVar[str] = "reward_model"

    caution: Annotated[
        NonNegativeFloat,
        Help("Deviations of the members that a reward is lowered by"),
    ] = 0.0
    model_name: str = field(default="", init=False)  # run:DIR or registry:NAME@VERSION

    def build(self, spec: EnvSpec, seed: int) -> None:
        self._observed = Observed(spec)
        try:
            self._model = read(place(self.model_name))
        except (ValueError, OSError) as error:
            reason = str(error).removeprefix(f"reward {self.model_name!r}: ")
            raise Refused(f"reward {self.model_name!r}: {reason}") from error
        for what, mine, wanted in (
            ("observations", self._observed.space, self._model.observation),
            ("actions", spec.action, self._model.action),
        ):
            if not _same(mine, wanted):
                raise Refused(
                    f"reward {self.model_name!r}: must be a reward model for the {what} of this "
                    f"env, {_described(mine)}, got one for {_described(wanted)}"
                )

    def to(self, device: torch.device) -> None:
        self._model = self._model.to(device)

    def rewards(self, data: Trajectory) -> Tensor:
        obs = tree.index(self._observed.leaf(data.obs), slice(None, -1))
        mean, deviation = self._model.rewards(obs, data.action)
        return paid(mean, deviation, self.caution)


def _described(space: spaces.Space[object]) -> str:
    return shortened(" ".join(str(space).split()), 200)


def _same(one: spaces.Space[object], other: spaces.Space[object]) -> bool:
    return space_json.to_json(one) == space_json.to_json(other)
