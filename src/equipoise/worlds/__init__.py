"""Worlds: envs of many streams as functions on tensors of any device, so that they need not leave the learner's device."""

from equipoise.worlds.counter import key_of, uniform
from equipoise.worlds.episodic import Episodic
from equipoise.worlds.naming import NAMES, make_world
from equipoise.worlds.world import NextStep, World

__all__ = ["NAMES", "Episodic", "NextStep", "World", "key_of", "make_world", "uniform"]
