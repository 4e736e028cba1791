"""Random numbers by counter, on tensors: the same bits as ``actors/forward/noise.py`` draws with
NumPy, on any device.

A number is a pure function of (seed, stream, row, column), so it does not depend on which device,
process or batch draws it. torch has no arithmetic of uint64: int64 has the same bits, since both
wrap around, and a shift to the right is masked.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_WORD = 1 << 64


def _signed(x: int) -> int:
    """The int64 with the bits of a uint64."""
    x %= _WORD
    return x - _WORD if x >> 63 else x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """``x`` shifted to the right as an unsigned number."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """Return the mixed bits of ``x`` int64: SplitMix64's finaliser, as ``seeds.mix`` has it."""
    x = (x ^ _shifted(x, 30)) * _signed(_MIX[0])
    x = (x ^ _shifted(x, 27)) * _signed(_MIX[1])
    return x ^ _shifted(x, 31)


def key_of(seed: int) -> int:
    """The key of a seed: the int64 that ``uniform`` adds to every counter."""
    x = (seed + _ODD[0]) % _WORD
    for bits, factor in zip((30, 27), _MIX, strict=True):
        x = (x ^ (x >> bits)) * factor % _WORD
    return _signed(x ^ (x >> 31))


def uniform(
    key: int | Tensor, stream: Tensor, row: Tensor, columns: int, *, skip: int = 0
) -> Tensor:
    """Draw [..., columns] float32 in (0, 1) for ``stream`` and ``row`` int64, broadcast to [...].

    ``key``: of ``key_of``. ``skip``: columns of these rows that were drawn already.
    """
    x = mix(row * _signed(_ODD[0]) + stream * _signed(_ODD[1]) + key)
    column = torch.arange(skip + 1, skip + columns + 1, device=x.device) * _signed(_ODD[2])
    x = mix(x.unsqueeze(-1) + column)
    # 23 bits: with the half both ends stay outside in float32
    return (_shifted(x, 41).float() + 0.5) * 2.0**-23
