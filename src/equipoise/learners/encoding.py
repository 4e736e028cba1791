"""Rows as a replay keeps them where a network has an encoder (``nets/vae.py``): with latents in the place of images.

Latents of two encoders are two languages. So the encoder learns from the first rows that come, none of which is kept, and then
stays as it is for the rest of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import schema, tree
from equipoise.learners.flat import flatten
from equipoise.learners.optimizers import descent
from equipoise.nets.vae import LATENTS, Autoencoder, Encoder
from equipoise.types import Optimizer, Trajectory, Tree

POOL = 1024  # newest images that are learned from
BATCH = 64
PASSES = 4  # how often an image is learned from, about
OPTIMIZER = Optimizer(learning_rate=1e-3, schedule="constant", epsilon=1e-8, max_grad_norm=0.0)


class Encoding:
    """Learns from the rows that come until there were ``rows`` of them, and makes of later ones what is kept."""

    def __init__(self, encoders: Mapping[str, Encoder], *, rows: int, seed: int, device: torch.device) -> None:
        """``encoders``: those of the network, by the path of the image that each reads."""
        self._rows, self._device, self.seen = rows, device, 0
        self._learning = {path: _Learning(one, seed, device) for path, one in encoders.items()}

    def __call__(self, data: Trajectory) -> Trajectory:
        """Numpy rows [T, B] -> the same with latents float16; no real row among them while the encoders learn."""
        learns = self.seen < self._rows
        self.seen += data.mask.size
        latents = {path: self._latents(path, leaf, learns) for path, leaf in self._images(data.obs)}
        obs = tree.nest({path: latents.get(path, leaf) for path, leaf in tree.items(data.obs)})
        return replace(data, obs=obs[""] if "" in latents else obs, mask=np.zeros_like(data.mask) if learns else data.mask)

    def _images(self, obs: Tree) -> list[tuple[str, Any]]:
        return [(path, leaf) for path, leaf in tree.items(obs) if path in self._learning]

    def _latents(self, path: str, leaf: Any, learns: bool) -> Any:
        rows, one = leaf.shape[:2], self._learning[path]
        images = torch.from_numpy(leaf)
        if learns:
            one.learn(images[:-1].flatten(0, 1))  # the last row opens the next unroll
            if self.seen >= self._rows:
                one.settle()
            return np.zeros((*rows, LATENTS), np.float16)
        return one.encoder(images.flatten(0, 1).to(self._device)).half().cpu().numpy().reshape(*rows, LATENTS)

    def metrics(self) -> dict[str, tuple[Tensor, Tensor]]:
        """(sum, count) of the mean squared error of a pixel, from 0 to 1, in the last step of each encoder that learned."""
        return {
            f"encoder_error{f'/{path}' if path else ''}": (one.error, torch.ones_like(one.error))
            for path, one in self._learning.items()
            if one.count
        }

    def state(self) -> Tree:
        return {"seen": self.seen, "of": {path or "obs": one.state() for path, one in self._learning.items()}}

    def schema(self) -> schema.Schema:
        """What a saved state is."""
        like = {
            path or "obs": schema.like(one.state(), finite=True) | {"count": schema.count(), "pool?": schema.Anything()}
            for path, one in self._learning.items()
        }
        return {"seen": schema.count(), "of": like}

    def load(self, state: Tree) -> None:
        self.seen = state["seen"]
        for path, one in self._learning.items():
            one.load(state["of"][path or "obs"])


class _Learning:
    """One encoder with all that it takes to train it."""

    def __init__(self, encoder: Encoder, seed: int, device: torch.device) -> None:
        self.encoder, self.error, self._device = encoder, torch.zeros((), device=device), device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._whole = Autoencoder(encoder).to(device)
        self._rng = torch.Generator(device).manual_seed(seed)
        self._flat = flatten(list(self._whole.parameters()))
        self._optimizer = descent(OPTIMIZER, self._flat)
        self._pool: Tensor | None = None  # [POOL, ...], of the newest images
        self.count = 0  # images so far

    def learn(self, images: Tensor) -> None:
        """Take images [N, ...] up, and learn from those that are there."""
        if self._pool is None:
            self._pool = images.new_zeros((POOL, *images.shape[1:]))
        self._pool[(self.count + torch.arange(len(images))) % POOL] = images
        self.count += len(images)
        for _ in range(PASSES * self.count // BATCH - PASSES * (self.count - len(images)) // BATCH):
            self._step(self._pool)

    def _step(self, pool: Tensor) -> None:
        flat, device = self._flat, self._device
        which = torch.randint(min(self.count, POOL), (BATCH,), generator=self._rng, device=device).cpu()
        noise = torch.randn((BATCH, LATENTS), generator=self._rng, device=device)
        assert flat.grad is not None
        flat.grad.zero_()
        # The encoder's own parameters want no gradient, so that no other loss moves them; these share their memory.
        leaves = {name: one.detach().requires_grad_() for name, one in self._whole.named_parameters()}
        for name, one in self._whole.named_parameters():
            leaves[name].grad = one.grad
        loss, error = torch.func.functional_call(self._whole, leaves, (pool[which].to(device), noise))
        loss.backward()
        self._optimizer.step(OPTIMIZER.learning_rate)
        self.error = error.detach()

    def settle(self) -> None:
        """Learn no more."""
        self._pool = None

    def state(self) -> Tree:
        pool = {} if self._pool is None else {"pool": self._pool}
        return pool | {
            "params": self._flat.detach(), "optimizer": self._optimizer.slots, "rng": self._rng.get_state(),
            "error": self.error, "count": self.count,
        }  # fmt: skip

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        self._flat.copy_(state["params"])
        self._optimizer.load(state["optimizer"])
        self._rng.set_state(state["rng"])
        self._pool, self.count = (state["pool"].clone() if "pool" in state else None), state["count"]
        self.error = state["error"].to(self._device)
