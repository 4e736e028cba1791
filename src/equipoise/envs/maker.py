"""The maker of a run's envs, which pickles without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from equipoise.envs import make
from equipoise.envs.failures.capsule import Failures
from equipoise.envs.families.pettingzoo import PettingZooEnv, dealt
from equipoise.envs.partial import PartialEnv, make_partial
from equipoise.types import Array, DealtEnv, EnvFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMaker:
    """Makes the envs of a run: the part of a Program that is needed for that."""

    env: EnvFactory
    policies: tuple[str, ...]
    route: Mapping[str, str]
    metrics: tuple[str, ...]

    def __call__(
        self,
        *,
        streams: Array,
        seed: int,
        failures: Failures | None = None,
        metrics: Sequence[str] = (),
        answers: int = 0,
    ) -> DealtEnv:
        """Make these envs, with agents dealt to policies; ``metrics``: the reported ones.

        ``answers``: streams that answer at a time, at least (``PartialEnv``); 0: all.
        """
        if answers:
            some = make_partial(
                self.env,
                streams=streams,
                seed=seed,
                answers=answers,
                failures=failures,
                metrics=metrics,
            )
            return PartialEnv(some, *self.policies)
        env = make(self.env, streams=streams, seed=seed, failures=failures, metrics=metrics)
        parted = dealt(env, policies=self.policies, route=self.route)
        if self.metrics and isinstance(parted, PettingZooEnv):
            env.close()
            raise ValueError(
                "metrics: expected a Gymnasium env, got one of the agents "
                f"{', '.join(parted.spec.env.agents)}"
            )
        return parted
