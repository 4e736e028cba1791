"""Equipoise from Python: ``train``, ``evaluate``, ``load``, ``collect``, ``check``."""

from __future__ import annotations

from equipoise.api.evaluating import collect, evaluate
from equipoise.api.playing import Player, load
from equipoise.api.programs import check, measurable, program
from equipoise.api.training import NothingToDo, resume, train

__all__ = ["NothingToDo", "Player", "check", "collect", "evaluate", "load", "measurable", "program", "resume", "train"]
