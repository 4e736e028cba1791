"""The kinds of workers that a run is made of."""

from __future__ import annotations

from equipoise.workers.actor import ActorKind
from equipoise.workers.caller import CallerKind
from equipoise.workers.elastic import ElasticKind
from equipoise.workers.env import EnvKind
from equipoise.workers.generator import GeneratorKind
from equipoise.workers.inference import InferenceKind
from equipoise.workers.kind import Kind
from equipoise.workers.learner import LearnerKind
from equipoise.workers.rollout import RolloutKind
from equipoise.workers.scorer import ScorerKind
from equipoise.workers.shard import ShardKind
from equipoise.workers.together import TogetherKind

KINDS: tuple[Kind, ...] = (
    LearnerKind(),
    TogetherKind(),
    ElasticKind(),
    ActorKind(),
    EnvKind(),
    RolloutKind(),
    GeneratorKind(),
    ScorerKind(),
    CallerKind(),
    InferenceKind(),
    ShardKind(),
)
