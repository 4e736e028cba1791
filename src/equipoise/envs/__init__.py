"""Envs in, ``TimeStep`` out: Gymnasium ids and callables, EnvPool, worlds that connect, and five of
our own (*catch*, *bit flip*, the *T-maze*, *repeat the first*, the *ruler*).

``make`` is the one way in. Nothing here imports torch: a worker that only steps envs stays small.
"""

from equipoise.envs.making import make
from equipoise.envs.spaces import action_spec, observation_spec
from equipoise.envs.toys.bitflip import BitFlip, BitFlipVector
from equipoise.envs.toys.catch import Catch, CatchVector
from equipoise.envs.toys.repeatfirst import RepeatFirst, RepeatFirstVector
from equipoise.envs.toys.ruler import Ruler, RulerVector
from equipoise.envs.toys.tmaze import TMaze, TMazeVector

__all__ = [
    "BitFlip",
    "BitFlipVector",
    "Catch",
    "CatchVector",
    "RepeatFirst",
    "RepeatFirstVector",
    "Ruler",
    "RulerVector",
    "TMaze",
    "TMazeVector",
    "action_spec",
    "make",
    "observation_spec",
]
