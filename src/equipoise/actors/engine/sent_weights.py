"""Weights as a folder that servers read, and the proof that a server draws with them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from equipoise.deaths import machine
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp

PREFIX = "equipoise-weights-"
PROBE = 64  # tokens of the text that a server is asked about
# a server disagrees if the mean of exp |difference| of its log-probabilities is more, as the gate
# of the learner has it (token_mult_prob_error)
DISAGREES = 1.1
# weights have moved if their log-probabilities did by more than so many times the difference
# between two libraries that compute the same
MOVED = 4.0
FLOOR = 1e-6  # least such difference

F64 = NDArray[np.float64]


class SentWeights:
    """The newest weights: on disk for servers, and in a network for the proof."""

    def __init__(self, net: Decoder, folder: str, *, length: int, seed: int) -> None:
        """``folder``: of this machine and of the servers'; "" takes this machine's memory."""
        self._net = net.eval().requires_grad_(False)
        root = Path(folder or ("/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()))
        if not root.is_dir():
            raise ValueError(f"source.engine_folder: must be a folder, got {str(root)!r}")
        _sweep(root)
        self._root = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=root))
        # also called if the process ends by an error; a killed one's folder is removed by the next
        self._removed = weakref.finalize(self, shutil.rmtree, self._root, True)
        # the user of a server may be another, on this machine or on a shared file system
        self._root.chmod(0o755)
        self._written: Path | None = None
        rng = np.random.default_rng(seed % 2**32)
        size = min(PROBE, length - 1, net.config.max_position_embeddings - 1)
        self.probe: list[int] = rng.integers(net.config.vocab_size, size=max(size, 2)).tolist()

    @torch.no_grad()
    def write(self, version: int, params: Mapping[str, Tensor]) -> tuple[Path, F64]:
        """Write a version; return its folder, and its log-probabilities of the probe [L - 1]."""
        lora.check_base(self._net, params, "update")
        for name, parameter in self._net.named_parameters():
            if name not in params or params[name].shape != parameter.shape:
                raise ValueError(f"update: must have {name} of shape {list(parameter.shape)}")
            parameter.copy_(params[name])
        net = lora.merged(self._net)
        tensors = {
            name.removeprefix("module."): value.detach().cpu().contiguous().clone()
            for name, value in net.named_parameters()
        }
        folder = self._root / f"v{version}"
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)
        if self._written is not None and self._written != folder:
            shutil.rmtree(self._written, ignore_errors=True)
        self._written = folder
        data = packed_texts([(self.probe[:1], [self.probe[1:]])])
        logp, _ = token_logp(net, data, entropy=False)
        return folder, logp[torch.as_tensor(data.chosen)].double().cpu().numpy()

    def close(self) -> None:
        self._removed()


class Proof:
    """What is known of one server's weights."""

    def __init__(self) -> None:
        self._proven: F64 | None = None  # log-probabilities of the weights that were proven last
        self._noise = 0.0  # between server and network at that time

    def complaint(self, wanted: F64, got: Sequence[float]) -> str:
        """Return how a server's log-probabilities of the probe are wrong, or "".

        ``wanted``: of the weights that it was sent. Weights that moved by less than two
        libraries differ are proven with a later update, against the same older weights.
        """
        found = np.asarray(got, np.float64)
        gap = np.abs(found - wanted)
        if not (error := float(np.exp(np.minimum(gap, 50.0)).mean())) <= DISAGREES:
            return (
                "computes other log-probabilities than the weights that it was sent "
                f"(mean of exp |difference| {error:.3g}, at most {DISAGREES:g})"
            )
        noise = max(_size(found - wanted), FLOOR)
        if self._proven is None:
            self._proven, self._noise = wanted, noise
            return ""
        moved = wanted - self._proven
        if _size(moved) <= MOVED * self._noise:
            return ""
        # 1 with the new weights, 0 with the older ones
        share = float((found - self._proven) @ moved / (moved @ moved))
        if share < 0.5:
            return f"still draws with older weights ({share:.0%} of the update has arrived)"
        self._proven, self._noise = wanted, noise
        return ""


def _size(x: F64) -> float:
    return float(np.sqrt(np.mean(x * x)))


def _prefix() -> str:
    """Return what the names of this machine's folders begin with: a folder may be shared by
    machines, on which the same number is another process.
    """
    return f"{PREFIX}{hashlib.sha256(machine().encode()).hexdigest()[:8]}-"


def _sweep(root: Path) -> None:
    """Remove the folders of processes of this machine that were killed."""
    if not os.path.exists("/proc/self"):
        return
    for one in root.glob(f"{_prefix()}*-*"):
        pid = one.name.removeprefix(_prefix()).partition("-")[0]
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(one, ignore_errors=True)
