"""Playing a trained policy: ``load`` and its ``Player``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise import tree
from equipoise.envs import observation_spec
from equipoise.envs.checks import described
from equipoise.envs.masks import counted
from equipoise.envs.spaces import ActionForm, member
from equipoise.hints import hint
from equipoise.nets.precision import autocast
from equipoise.runtime import blueprint
from equipoise.runtime.blueprint import Blueprint
from equipoise.runtime.directory import RunDirectory, load_checkpoint
from equipoise.runtime.exam import load_networks, networks
from equipoise.runtime.report import step_of
from equipoise.types import Tree

__all__ = ["Player", "load", "weights_of"]


class Player:
    """A trained policy: one observation in, one action out, or a batch of each. It keeps a recurrent policy's state."""

    def __init__(self, blue: Blueprint, name: str, params: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """``params`` are those of all policies of the run, ``name`` is the one that plays."""
        if name not in blue.roles:
            raise ValueError(f"policy {name!r}: expected one of the run{hint(name, blue.roles)}")
        self.program, self.meta = blue.program, meta
        role = blue.roles[name]
        self.spec, self._algorithm, self._noise_columns = role.spec, role.algorithm, role.noise_columns
        self._blue, self._nets = blue, networks(blue)
        load_networks(self._nets, params)
        self._net: Any = self._nets[name]
        self._state: Tree | None = None
        self._rng = torch.Generator().manual_seed(blue.program.seed)

    def reset(self) -> None:
        """The next observation begins an episode."""
        self._state = None

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """The action for an observation of the env's space, or for a batch of them (one more axis in front).

        Where the mask comes from ``info``, the observation is {"obs": ..., "action_mask": ...}: ``envs.masks.InfoMask`` makes
        it. The action is what ``env.step`` takes, of a batch what a vector env's takes. ValueError for what is no observation,
        for a mask that allows nothing, and for another number of rows than a recurrent policy keeps states of.
        """
        specs = observation_spec(self.spec.observation)
        rows = _rows(specs, obs, "obs")
        single = _is_single(specs, rows)
        batch = tree.torch_views(tree.map(lambda x: np.ascontiguousarray(x[None] if single else x), rows))
        count = len(tree.leaves(batch)[0])
        self._look(batch, count)
        first = torch.full((count,), self._state is None)
        state = self._net.initial_state(count) if self._state is None else self._state
        with torch.inference_mode(), autocast(self.program.precision):
            if deterministic:
                action, self._state = self._algorithm.best(self._net, batch, first, state)
            else:
                noise = torch.rand((count, self._noise_columns), generator=self._rng).clamp_(1e-7, 1 - 1e-7)
                explore = self._algorithm.explore(np.arange(count), count, step_of(self.meta))
                action, _, self._state = self._algorithm.act(self._net, batch, first, state, explore=explore, noise=noise)
        form = ActionForm(self.spec.action, count)
        done = form(tree.numpy_views(action))  # clipped as in training
        return form.one(done) if single else form.together(done)

    def _look(self, batch: Tree, count: int) -> None:
        """Can these rows be acted on?"""
        kept = tree.leaves(self._state) if self._state is not None else []
        if kept and len(kept[0]) != count:
            raise ValueError(
                f"obs: expected as many rows as before, {len(kept[0])}, since the policy is recurrent and keeps a state for "
                f"each, got {count}; reset() forgets them"
            )
        if not self.spec.mask:
            return
        mask: Any = tree.numpy_views(batch)
        for key in self.spec.mask:
            mask = mask[key]
        for place, array, begins in counted("/".join(("obs", *self.spec.mask)), mask, self.spec.action):
            allowed = np.logical_or.reduceat(array != 0, begins, axis=1).all(axis=1)
            if not allowed.all():
                row = f" in row {int(allowed.argmin())}" if count > 1 else ""
                raise ValueError(f"{place}: expected at least one action allowed, got none{row}")


def _rows(specs: Tree, obs: Any, place: str) -> Tree:
    """An env's own dicts and tuples as a tree of arrays."""
    if not isinstance(specs, dict):
        try:
            return np.asarray(obs, specs.dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{place}: expected {specs.dtype} {list(specs.shape)}, got {described(obs)}") from error
    try:
        return {key: _rows(inner, member(obs, key), f"{place}/{key}") for key, inner in specs.items()}
    except (KeyError, IndexError, TypeError) as error:
        got = f"the keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else type(obs).__name__
        raise ValueError(f"{place}: expected the keys {sorted(specs)}, got {got}") from error


def _is_single(specs: Tree, rows: Tree) -> bool:
    both = list(zip(tree.leaves(specs), tree.leaves(rows), strict=True))
    if all(x.shape == s.shape for s, x in both):
        return True
    fits = all(x.ndim == len(s.shape) + 1 and x.shape[1:] == s.shape for s, x in both)
    if not fits or len(counts := {len(x) for _, x in both}) > 1 or not min(counts):
        wanted, got = ({path or "obs": list(x.shape) for path, x in tree.items(one)} for one in (specs, rows))
        raise ValueError(f"expected an observation of shape {said(wanted)}, or a batch [B, ...] of them, got {said(got)}")
    return False


def said(shapes: Mapping[str, list[int]]) -> str:
    """By place, where there are several."""
    return str(next(iter(shapes.values()))) if len(shapes) == 1 else str(dict(shapes))


def weights_of(directory: str | os.PathLike[str], *, best: bool = False) -> Path:
    """The checkpoint whose weights are to be played or begun with; ``best``: that of the best evaluation."""
    run = RunDirectory.open(directory)
    checkpoint = run.best_checkpoint() if best else run.result_checkpoint()
    if checkpoint is None and best:
        how = "train with --evaluate-every STEPS or --stop-at RETURN"
        raise FileNotFoundError(f"{run.path}: expected the weights of an evaluation, got none; {how}")
    if checkpoint is None:
        raise FileNotFoundError(f"{run.path}: expected a checkpoint in it, got none; has the run ended?")
    return checkpoint


def load(directory: str | os.PathLike[str], policy: str | None = None, *, best: bool = False) -> Player:
    """A policy of a run directory, the first where there are several: the weights that solved it, else the newest.

    ``best``: those of its best evaluation.
    """
    run = RunDirectory.open(directory)
    params, meta = load_checkpoint(weights_of(directory, best=best))
    blue = blueprint.blueprint(dataclasses.replace(run.program, device="cpu"), playing=True)  # wherever it was trained
    return Player(blue, next(iter(blue.roles)) if policy is None else policy, params, meta)
