"""The NVIDIA GPUs of this machine: how busy they are, their memory and their power, by the package
``nvidia-ml-py``.

There is no report if the run's device is no GPU, or the package (extra ``gpu``) or the driver's
library is not there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

EVERY_S = 1.0  # a GPU is looked at no more often


class Gpus:
    """Reads all GPUs, at most once in ``EVERY_S``."""

    def __init__(self, device: str) -> None:
        """``device``: of the learner."""
        self._nvml: Any = None
        self._read_at, self._found = -EVERY_S, dict[str, dict[str, float]]()
        if device.startswith("cuda") and find_spec("pynvml") is not None:
            import pynvml

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:  # no driver, or a silent one
                return
            self._nvml = pynvml

    def __call__(self) -> Mapping[str, Mapping[str, float]]:
        """By "gpu 0", ...: "busy" and "memory_busy" (0..1, of the last second or less), "used" and
        "total" bytes, "power_w".

        Values that a GPU does not report are left out.
        """
        if self._nvml is not None and time.monotonic() - self._read_at >= EVERY_S:
            self._read_at = time.monotonic()
            found = {
                f"gpu {number}": self._read(number)
                for number in range(self._nvml.nvmlDeviceGetCount())
            }
            self._found = {name: numbers for name, numbers in found.items() if numbers}
        return self._found

    def _read(self, number: int) -> dict[str, float]:
        nvml, found = self._nvml, dict[str, float]()
        # also of a lost GPU: the learner reports that
        with suppress(nvml.NVMLError):
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
            found |= {"used": memory.used, "total": memory.total}
            with suppress(nvml.NVMLError_NotSupported):
                rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
                found |= {"busy": rates.gpu / 100, "memory_busy": rates.memory / 100}
            with suppress(nvml.NVMLError_NotSupported):
                found["power_w"] = nvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        return found
