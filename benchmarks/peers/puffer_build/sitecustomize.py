"""Loaded by Python itself while PufferLib 3.0.0 is built (see ../setup.sh): its build script needs
an unset name and CUDA.
"""

import builtins
from typing import Any

import torch.utils.cpp_extension as cpp


def _without_cuda(name: str, sources: list[str], *args: Any, **kwargs: Any) -> Any:
    return cpp.CppExtension(name, [s for s in sources if not s.endswith(".cu")], *args, **kwargs)


builtins.c_extension_paths = []  # type: ignore[attr-defined]
cpp.CUDAExtension = _without_cuda
