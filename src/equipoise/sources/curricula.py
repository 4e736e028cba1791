"""The curriculum of a run on text, from its settings."""

from __future__ import annotations

from equipoise.learners.curriculum import Curriculum, Issuing
from equipoise.seeds import derive_seed
from equipoise.sources.prompts import Order
from equipoise.types import Program, TaskSource, TextSpec, learning


def problem(program: Program, source: TaskSource, *, draws: bool) -> list[str]:
    """Return what cannot work. ``draws``: does the algorithm learn from rewards of samples?"""
    if source.curriculum == "none" or draws:
        return []
    (policy, *_) = learning(program).values()
    return [
        f"source.curriculum: must be none with {type(policy.algorithm).__name__}, which learns "
        f"from given completions and has no pass rates, got {source.curriculum}"
    ]


def curriculum(program: Program, source: TaskSource, spec: TextSpec, *, blocks: int) -> Curriculum:
    """The curriculum of a learner. ``blocks``: of a learner's queue."""
    (policy, *_) = learning(program).values()
    place, seed = program.placement, program.schedule.seed
    return Curriculum(
        Issuing(
            prompts=spec.prompts,
            groups=policy.batch // place.group_envs // place.learners,
            samples=place.group_envs,
            learners=place.learners,
            dealt=blocks * place.learners,
            refills=getattr(policy.algorithm, "refills", 0),
            floor=source.curriculum_floor,
            decay=source.curriculum_decay,
            full=source.pass_reward or spec.full,
            seed=derive_seed(seed, "curriculum"),
        ),
        Order(spec.prompts, seed),
    )
