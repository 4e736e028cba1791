"""The numbers in which a network computes.

========  ==========================================================================================================
fp32      float32
medium    tensors are float32; a processor that can may round what a product of matrices multiplies, and sums in float32
          (``torch.set_float32_matmul_precision``: bfloat16 on CPUs with AMX, TF32 on NVIDIA GPUs, else nothing changes)
bf16      convolutions, products of matrices and what lies between them are bfloat16 (``torch.autocast``)
========  ==========================================================================================================

Weights, gradients and the optimiser's memory are always float32.
"""

from __future__ import annotations

import os
import platform
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from equipoise.types import Precision


class Products:
    """A context that sets how exact products of float32 matrices are: "highest" or "medium". It may be nested."""

    def __init__(self, exactness: str) -> None:
        self._exactness = exactness
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(self._exactness)

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision(self._before.pop())


PLAIN = nullcontext()
WITH_BF16 = (
    "AVX512_CORE_BF16",
    "AVX512_CORE_FP16",
    "AVX512_CORE_AMX",
    "AVX512_CORE_AMX_FP16",
    "AVX2_VNNI_2",
    "AVX10",
    "DEFAULT",
    "ALL",
)
FLAGS = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}  # of /proc/cpuinfo; the last one of ARM


def native_bf16(flags: str | None = None) -> bool:
    """Has this processor instructions for bf16, which torch may use? ``flags``: its flags instead of those of the system.

    ``ONEDNN_MAX_CPU_ISA`` may forbid them. Where the system does not tell its flags, torch is asked.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT"
    if platform.machine() in ("x86_64", "AMD64") and not limit.upper().startswith(WITH_BF16):
        return False
    if flags is None:
        system = Path("/proc/cpuinfo")
        if not system.is_file():
            return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
        lines = system.read_text().splitlines()
        flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return not FLAGS.isdisjoint(flags.split())


def emulated(precision: Precision, acting: str, device: str) -> list[str]:
    """A warning for numbers that this processor has no instructions for, so that each product takes longer than in fp32."""
    key = "acting_precision" if acting == "bf16" else "precision"
    if "bf16" not in (precision, acting) or (key == "precision" and device != "cpu") or native_bf16():
        return []
    return [
        f"warning: {key}=bf16 is emulated here, since this processor has no bf16 instructions: fp32 is faster on this machine"
    ]


def autocast(precision: Precision, device: str | torch.device = "cpu") -> AbstractContextManager[Any]:
    """A reusable context in which a network computes in this precision."""
    if precision == "bf16":
        return torch.autocast(torch.device(device).type, torch.bfloat16)
    return PLAIN if precision == "fp32" else Products("medium")


def backward(precision: Precision) -> AbstractContextManager[Any]:
    """The context for the backward pass of such a computation; autocast itself needs none."""
    return Products("medium") if precision == "medium" else PLAIN


def exact(device: torch.device) -> AbstractContextManager[Any]:
    """Leave such a context for a while: compute as if it were not there."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return PLAIN if torch.get_float32_matmul_precision() == "highest" else Products("highest")
