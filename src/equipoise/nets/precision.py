"""The numbers in which a network computes.

========  ==========================================================================================================
fp32      float32; on a GPU convolutions, too, which torch by itself computes in TF32
medium    tensors are float32; a processor that can may round what a product of matrices multiplies, and sums in float32
          (``torch.set_float32_matmul_precision``: bfloat16 on CPUs with AMX, TF32 on NVIDIA GPUs,
          else nothing changes)
tf32      NVIDIA GPUs: what products of matrices and convolutions multiply has 10 bits behind the point
bf16      convolutions, products of matrices and what lies between them are bfloat16 (``torch.autocast``)
fp16      NVIDIA GPUs: the same in float16, with a scaled loss (``learners/scaling.py``)
========  ==========================================================================================================

The learner's weights, gradients and the optimiser's memory are always float32. An engine that draws
text rounds the weights of its products once, when it gets them. If a run learns in tf32 or fp16 on
a GPU, workers that act on a CPU, which lacks both, compute in fp32.
"""  # noqa: E501

from __future__ import annotations

import copy
import os
import platform
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from equipoise.types import PRECISIONS, Precision


class Products:
    """A context that sets how exact products of float32 matrices are: "highest", "high" or
    "medium". It may be nested.

    On a GPU "highest" also makes convolutions exact; they have one switch for both other values.
    """

    def __init__(self, exactness: str) -> None:
        self._exactness = exactness
        self._before: list[tuple[str, bool]] = []

    def __enter__(self) -> None:
        self._before.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        torch.set_float32_matmul_precision(self._exactness)
        torch.backends.cudnn.allow_tf32 = self._exactness != "highest"

    def __exit__(self, *_: object) -> None:
        exactness, torch.backends.cudnn.allow_tf32 = self._before.pop()
        torch.set_float32_matmul_precision(exactness)


Net = TypeVar("Net", bound=nn.Module)

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
# of /proc/cpuinfo; the last one of ARM
FLAGS = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}


def native_bf16(flags: str | None = None) -> bool:
    """Has this processor instructions for bf16, which torch may use? ``flags``: its flags instead
    of the system's.

    ``ONEDNN_MAX_CPU_ISA`` may forbid them. If the system does not list its flags, torch is asked.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "DEFAULT"
    if platform.machine() in ("x86_64", "AMD64") and not limit.upper().startswith(WITH_BF16):
        return False
    if flags is None:
        system = Path("/proc/cpuinfo")
        if not system.is_file():
            # torch 2.10
            known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
            return any(
                known.get(name, False)
                for name in ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16")
            )
        lines = system.read_text().splitlines()
        flags = next(
            (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), ""
        )
    return not FLAGS.isdisjoint(flags.split())


def emulated(precision: Precision, acting: str, device: str) -> list[str]:
    """A warning if bf16 is emulated by this processor, which is slower than fp32."""
    key = "acting_precision" if acting == "bf16" else "precision"
    if (
        "bf16" not in (precision, acting)
        or (key == "precision" and device != "cpu")
        or native_bf16()
    ):
        return []
    return [
        f"warning: {key}=bf16 is emulated here, since this processor has no bf16 instructions: "
        "fp32 is faster on this machine"
    ]


FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
EXACTNESS = {"medium": "medium", "tf32": "high"}  # of what is float32; else "highest"


def low_dtype(precision: Precision, device: str | torch.device = "cpu") -> torch.dtype | None:
    """The format that a network's products have instead of float32, if they have one."""
    return FLOATS.get(precision) if precision in PRECISIONS[torch.device(device).type] else None


def rounded_products(net: Net, head: Tensor, precision: Precision) -> Net:
    """A copy of a network whose linear layers and head have weights in the products' format, so
    that they are not rounded in each pass; it shares all else. ``net`` itself in other formats.
    """
    if (dtype := low_dtype(precision, head.device)) is None:
        return net
    layers = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    products = {id(x): x for layer in layers for x in layer.parameters()} | {id(head): head}
    with torch.no_grad():
        copies: dict[int, Tensor] = {id(x): x for x in (*net.parameters(), *net.buffers())}
        copies |= {key: nn.Parameter(x.to(dtype), False) for key, x in products.items()}
    return copy.deepcopy(net, copies)


def products(head: Tensor) -> AbstractContextManager[object]:
    """The context of a network whose products were rounded; a plain one for others."""
    if head.dtype not in FLOATS.values():
        return PLAIN
    return torch.autocast(head.device.type, head.dtype)


def autocast(
    precision: Precision, device: str | torch.device = "cpu"
) -> AbstractContextManager[object]:
    """A reusable context in which a network computes in this precision."""
    kind = torch.device(device).type
    if (dtype := low_dtype(precision, device)) is not None:
        return torch.autocast(kind, dtype)
    return backward(precision, kind)


def backward(
    precision: Precision, device: str | torch.device = "cpu"
) -> AbstractContextManager[object]:
    """The context for the backward pass of such a computation; autocast itself needs no context."""
    if torch.device(device).type == "cpu":
        return Products("medium") if precision == "medium" else PLAIN
    return Products(EXACTNESS.get(precision, "highest"))


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Leave such a context for a while: compute as if it were not there."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return PLAIN if torch.get_float32_matmul_precision() == "highest" else Products("highest")
