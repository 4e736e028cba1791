"""Envs in, ``TimeStep`` out: Gymnasium ids and callables, EnvPool, and three of our own (*catch*, *bit flip*, the *ruler*).

``make`` is the one way in. Nothing here imports torch: a worker that only steps envs stays small.
"""

from equipoise.envs.bitflip import BitFlip, BitFlipVector
from equipoise.envs.catch import Catch, CatchVector
from equipoise.envs.making import make
from equipoise.envs.ruler import Ruler, RulerVector
from equipoise.envs.spaces import action_spec, observation_spec

__all__ = [
    "BitFlip", "BitFlipVector", "Catch", "CatchVector", "Ruler", "RulerVector", "action_spec", "make", "observation_spec",
]  # fmt: skip
