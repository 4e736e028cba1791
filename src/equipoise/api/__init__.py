"""Equipoise from Python: ``train``, ``evaluate``, ``load``, ``play``, ``collect``, ``check``."""

from __future__ import annotations

from equipoise.api.evaluating import collect, evaluate
from equipoise.api.exporting import Exported, export
from equipoise.api.forecasting import forecast
from equipoise.api.playing import Player, load
from equipoise.api.plotting import plot
from equipoise.api.predicting import whatif
from equipoise.api.programs import check, configured, program
from equipoise.api.recorded import Played, play
from equipoise.api.training import NothingToDo, resume, start
from equipoise.api.watching import watch
from equipoise.api.writing import Answer, generate

__all__ = [
    "Answer",
    "Exported",
    "NothingToDo",
    "Played",
    "Player",
    "check",
    "collect",
    "configured",
    "evaluate",
    "export",
    "forecast",
    "generate",
    "load",
    "play",
    "plot",
    "program",
    "resume",
    "start",
    "watch",
    "whatif",
]
