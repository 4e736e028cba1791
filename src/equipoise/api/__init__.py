"""Equipoise from Python: ``train``, ``evaluate``, ``load``, ``play``, ``collect``, ``check``."""

from __future__ import annotations

from equipoise.api.conversations import Conversation, converse
from equipoise.api.evaluating import collect, evaluate
from equipoise.api.exporting import Exported, export
from equipoise.api.forecasting import forecast
from equipoise.api.playing import Player, load
from equipoise.api.plotting import plot
from equipoise.api.predicting import whatif
from equipoise.api.probing import probe
from equipoise.api.programs import check, configured, program
from equipoise.api.proxied import proxy
from equipoise.api.recorded import Played, play
from equipoise.api.results import Result, resume, train
from equipoise.api.reward_fitting import FittedReward, fit_reward_model
from equipoise.api.training import NothingToDo, start
from equipoise.api.tuning import tune
from equipoise.api.writing import Answer, generate, score
from equipoise.run.callbacks import Callback
from equipoise.studies.tuned import Tuned

__all__ = [
    "Answer",
    "Callback",
    "Conversation",
    "Exported",
    "FittedReward",
    "NothingToDo",
    "Played",
    "Player",
    "Result",
    "Tuned",
    "check",
    "collect",
    "configured",
    "converse",
    "evaluate",
    "export",
    "fit_reward_model",
    "forecast",
    "generate",
    "load",
    "play",
    "plot",
    "probe",
    "program",
    "proxy",
    "resume",
    "score",
    "start",
    "train",
    "tune",
    "whatif",
]
