"""Rows of a replay with latents in place of images, by a network's encoder (``nets/vae.py``).

The latents of two encoders do not go together. So the encoder learns from the first rows of a run,
which are not kept, and does not change after them. The first version, and so the first checkpoint,
comes after those rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.learners.optimizers import descent
from equipoise.learners.parameters.flat import flatten
from equipoise.learners.steps import NonFiniteUpdate
from equipoise.nets.precision import autocast
from equipoise.nets.vae import LATENTS, Autoencoder, Encoder
from equipoise.types import Array, Optimizer, Trajectory, Tree

POOL = 1024  # newest images that are learned from
BATCH = 64
PASSES = 4  # how often an image is learned from, about
PART = 256  # images that are encoded at once
OPTIMIZER = Optimizer(learning_rate=1e-3, schedule="constant", epsilon=1e-8, max_grad_norm=0.0)


class Encoding:
    """Trains the encoders on the first ``rows`` rows of a run; encodes the images of later rows."""

    def __init__(
        self, encoders: Mapping[str, Encoder], *, rows: int, seed: int, device: torch.device
    ) -> None:
        """``encoders``: the network's encoders, by the path of the image that each reads."""
        self._encoders, self._device, self.left = encoders, device, rows
        self._training = {
            path: _Training(one, seed, device) for path, one in encoders.items() if rows
        }
        self._errors = dict[str, Tensor]()  # of the last step of each that has learned

    def __call__(self, data: Trajectory) -> Trajectory:
        """Numpy rows [T, B] -> the same with latents float16, masked while the encoders learn.

        NonFiniteUpdate if a trained encoder is not finite.
        """
        images = {
            path: torch.from_numpy(leaf)
            for path, leaf in tree.items(data.obs)
            if path in self._encoders
        }
        learns = self.left > 0
        with autocast("fp32", self._device):
            if learns:
                self._learn(images, data.mask.size)
            latents = {
                path: self._latents(path, some, zeros=learns) for path, some in images.items()
            }
        obs = tree.like(
            data.obs, {path: latents.get(path, leaf) for path, leaf in tree.items(data.obs)}
        )
        return replace(data, obs=obs, mask=np.zeros_like(data.mask) if learns else data.mask)

    def _learn(self, images: Mapping[str, Tensor], rows: int) -> None:
        for path, one in self._training.items():
            # the last row opens the next unroll
            if (error := one.learn(images[path][:-1].flatten(0, 1))) is not None:
                self._errors[path] = error
        self.left -= rows
        if self.left <= 0:
            self._settle()

    def _settle(self) -> None:
        for path, encoder in self._encoders.items():
            for one in encoder.parameters():
                one.data = one.data.clone()  # they shared the memory of all that was trained
                if not one.isfinite().all():
                    where = f"obs/{path}" if path else "obs"
                    raise NonFiniteUpdate(
                        f"algorithm.torso=vae: expected an encoder of {where} of finite weights, "
                        "got nan or inf"
                    )
        self._training = {}

    def _latents(self, path: str, images: Tensor, *, zeros: bool) -> Array:
        """Images [T + 1, B, ...] -> [T + 1, B, ``LATENTS``]."""
        shape = (*images.shape[:2], LATENTS)
        if zeros:
            return np.zeros(shape, np.float16)
        encoder, parts = self._encoders[path], torch.split(images.flatten(0, 1), PART)
        return (
            torch.cat([encoder(part.to(self._device)).half().cpu() for part in parts])
            .view(shape)
            .numpy()
        )

    def metrics(self) -> dict[str, tuple[Tensor, Tensor]]:
        """(sum, count) of each trained encoder's newest mean squared error of a pixel, 0 to 1."""
        return {
            f"encoder_error{f'/{path}' if path else ''}": (error, torch.ones_like(error))
            for path, error in self._errors.items()
        }

    def state(self) -> Tree:
        return {
            path or "obs": {
                "params": dict(encoder.named_parameters()),
                "error": self._errors.get(path, torch.zeros(())),
            }
            for path, encoder in self._encoders.items()
        }

    def schema(self) -> schema.Schema:
        return schema.like(self.state(), finite=True)

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        for path, encoder in self._encoders.items():
            saved = state[path or "obs"]
            for name, one in encoder.named_parameters():
                one.copy_(saved["params"][name])
            if saved["error"] > 0:  # it has learned
                self._errors[path] = saved["error"].to(self._device)
        self.left = 0
        self._settle()


class _Training:
    """One encoder with all that it takes to train it."""

    def __init__(self, encoder: Encoder, seed: int, device: torch.device) -> None:
        self._device = device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._whole = Autoencoder(encoder).to(device)
        self._rng = torch.Generator().manual_seed(seed)
        self._flat = flatten(list(self._whole.parameters()))
        self._optimizer = descent(OPTIMIZER, self._flat)
        # The encoder's own parameters want no gradient, so that no other loss moves them; these
        # share their memory.
        self._leaves = {
            name: one.detach().requires_grad_() for name, one in self._whole.named_parameters()
        }
        for name, one in self._whole.named_parameters():
            self._leaves[name].grad = one.grad
        self._pool: Tensor | None = None  # [POOL, ...], of the newest images
        self._count = 0  # images so far

    def learn(self, images: Tensor) -> Tensor | None:
        """Learn from images [N, ...] and earlier ones -> the last step's error of a pixel []."""
        error = None
        if self._pool is None:
            self._pool = images.new_zeros((POOL, *images.shape[1:]))
        for part in torch.split(images, BATCH):
            self._pool[(self._count + torch.arange(len(part))) % POOL] = part
            before, self._count = self._count, self._count + len(part)
            for _ in range(PASSES * self._count // BATCH - PASSES * before // BATCH):
                error = self._step(self._pool[: min(self._count, POOL)])
        return error

    def _step(self, pool: Tensor) -> Tensor:
        flat, device = self._flat, self._device
        which = torch.randint(len(pool), (BATCH,), generator=self._rng)
        noise = torch.randn((BATCH, LATENTS), generator=self._rng).to(device)
        assert flat.grad is not None
        flat.grad.zero_()
        loss, error = torch.func.functional_call(
            self._whole, self._leaves, (pool[which].to(device), noise)
        )
        loss.backward()
        self._optimizer.step(OPTIMIZER.learning_rate)
        return error.detach()  # type: ignore[no-any-return]
