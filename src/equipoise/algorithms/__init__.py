"""Algorithms: one file each, with settings, network, act and loss. No algorithm depends on a
runtime.

The classes are imported with their first use: ``from equipoise.algorithms import PPO``.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from equipoise.algorithms.a2c import A2C
    from equipoise.algorithms.a3c import A3C
    from equipoise.algorithms.apex_dqn import ApexDQN
    from equipoise.algorithms.appo import APPO
    from equipoise.algorithms.bc import BC
    from equipoise.algorithms.crossq import CrossQ
    from equipoise.algorithms.dpo import DPO
    from equipoise.algorithms.dqn import DQN
    from equipoise.algorithms.grpo import GRPO
    from equipoise.algorithms.impala import IMPALA
    from equipoise.algorithms.ppo import PPO
    from equipoise.algorithms.qr_dqn import QRDQN
    from equipoise.algorithms.r2d2 import R2D2
    from equipoise.algorithms.reinforce_pp import ReinforcePP
    from equipoise.algorithms.reward_model import RewardModel
    from equipoise.algorithms.rloo import RLOO
    from equipoise.algorithms.sac import SAC
    from equipoise.algorithms.sft import SFT
    from equipoise.algorithms.td3 import TD3
    from equipoise.algorithms.token_ppo import TokenPPO
    from equipoise.algorithms.tqc import TQC

__all__ = [
    "A2C",
    "A3C",
    "APPO",
    "BC",
    "DPO",
    "DQN",
    "GRPO",
    "IMPALA",
    "PPO",
    "QRDQN",
    "R2D2",
    "RLOO",
    "SAC",
    "SFT",
    "TD3",
    "TQC",
    "ApexDQN",
    "CrossQ",
    "ReinforcePP",
    "RewardModel",
    "TokenPPO",
]
_FILES = {
    "A2C": "a2c",
    "A3C": "a3c",
    "APPO": "appo",
    "ApexDQN": "apex_dqn",
    "BC": "bc",
    "CrossQ": "crossq",
    "DPO": "dpo",
    "DQN": "dqn",
    "GRPO": "grpo",
    "IMPALA": "impala",
    "PPO": "ppo",
    "QRDQN": "qr_dqn",
    "R2D2": "r2d2",
    "RLOO": "rloo",
    "ReinforcePP": "reinforce_pp",
    "RewardModel": "reward_model",
    "SAC": "sac",
    "SFT": "sft",
    "TD3": "td3",
    "TQC": "tqc",
    "TokenPPO": "token_ppo",
}


def __dir__() -> list[str]:
    return __all__


if not _typing.TYPE_CHECKING:  # a type checker knows the names, and finds a wrong one

    def __getattr__(name: str) -> object:
        if name in _FILES:
            return getattr(_import_module(f"{__name__}.{_FILES[name]}"), name)
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}"
        )
