"""Playing a trained policy without its env: ``load`` and its ``Player``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import tree
from equipoise.actors.playing import FixedPolicy, Playing, read_rows, reader_of
from equipoise.api.options import check_flags
from equipoise.envs.spaces import ActionForm
from equipoise.files import parse_json
from equipoise.hints import hint
from equipoise.programs.settings import at_least
from equipoise.record import checkpoint, playable
from equipoise.record.directory import RunDirectory
from equipoise.record.mirror import local
from equipoise.record.playable import Playable
from equipoise.record.report import step_of
from equipoise.registry.artifacts import REWARD
from equipoise.types import Array, EnvSpec, Tree

__all__ = ["Loaded", "Player", "load", "read_policies", "weights_of"]


class Player:
    """A trained policy: an observation in, an action out, or a batch; keeps recurrent states.

    Example:
        >>> player = eq.load(run.directory)
        >>> player.act(np.zeros((3, 4))).shape
        (3,)
    """

    def __init__(
        self, policy: FixedPolicy, spec: EnvSpec, *, meta: Mapping[str, Any], seed: int = 0
    ) -> None:
        """``meta``: what the checkpoint says of itself; ``seed``: of actions that are drawn."""
        self.policy, self.spec, self.meta = policy, spec, meta
        self._seed, self._reader = seed, reader_of(spec)
        self._playing: Playing | None = None
        self._begins = True

    def __repr__(self) -> str:
        return (
            f"<Player of step {step_of(self.meta):,}: {self.spec.observation} -> "
            f"{self.spec.action}>"
        )

    def reset(self) -> None:
        """Begin an episode with the next observation.

        Returns:
            None.

        Example:
            >>> run.load().reset()
        """
        self._begins = True

    def act(self, obs: Tree, *, deterministic: bool = True, first: Array | None = None) -> Tree:
        """Choose the action for an observation, or for a batch of them.

        Args:
            obs: An observation of the env's space, or a batch with one more axis in front. If the
                mask comes from ``info``: ``{"obs": ..., "action_mask": ...}``, as
                ``envs.masks.InfoMask`` makes it.
            deterministic: Take the likeliest action, and do not draw it.
            first: [B] bool, which rows begin an episode; all do at first and after ``reset``.

        Returns:
            The action that ``env.step`` takes; of a batch, the one that a vector env's takes.

        Raises:
            ValueError: It is no observation, a mask allows nothing, or a recurrent policy gets
                another number of rows than it keeps states of.

        Example:
            >>> run.load().act(np.zeros(4)) in (0, 1)
            True
        """
        batch, single = read_rows(self.spec, obs, self._reader)
        count = len(tree.leaves(batch)[0])
        playing, begins = self._streams(count), np.full(count, self._begins)
        if first is not None:
            begins |= np.asarray(first, np.bool_)
        playing.deterministic = deterministic
        form = ActionForm(self.spec.action, count)
        done = form(playing(batch, begins))  # clipped as in training
        self._begins = False
        return form.one(done) if single else form.together(done)

    def _streams(self, count: int) -> Playing:
        """The streams of the last call; new ones where all begin, or nothing has to be kept."""
        before = self._playing
        if (
            before is not None
            and len(before.streams) != count
            and not self._begins
            and tree.leaves(before.state)
        ):
            raise ValueError(
                f"obs: expected as many rows as before, {len(before.streams)}, since the policy is "
                f"recurrent and keeps a state for each, got {count}; reset() forgets them"
            )
        if before is None or len(before.streams) != count:
            row, step = (0 if before is None else before.row), step_of(self.meta)
            self._playing = Playing(
                self.policy, np.arange(count), seed=self._seed, step=step, row=row
            )
        assert self._playing is not None
        return self._playing


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The policies of a checkpoint, with their weights; learning policies come first."""

    playable: Mapping[str, Playable]
    policies: Mapping[str, FixedPolicy]
    meta: Mapping[str, Any]

    @property
    def learns(self) -> list[str]:
        return [name for name, one in self.playable.items() if one.learns]

    def named(self, policy: str | None) -> str:
        """The name of the policy, by default the first; ValueError for an unknown one."""
        name = next(iter(self.playable)) if policy is None else policy
        if name not in self.policies:
            raise ValueError(f"policy {name!r}: expected one of the run{hint(name, self.policies)}")
        return name

    @property
    def first(self) -> str:
        return self.named(None)


def read_policies(
    directory: str | os.PathLike[str], *, best: bool = False, trust: Sequence[str] = ()
) -> Loaded:
    """Read the policies of a run or of one checkpoint; no env is made or imported."""
    source = weights_of(directory, best=best)
    params, meta = checkpoint.load(source)
    where = source / checkpoint.SPEC
    found = playable.from_json(
        parse_json(checkpoint.read(source, checkpoint.SPEC), where), where, trusted=trust
    )
    if not found:
        raise ValueError(f"{where}: expected at least one policy, got none")
    policies = {name: one.policy() for name, one in found.items()}
    playable.fill({name: one.net for name, one in policies.items()}, params, str(source))
    return Loaded(playable=found, policies=policies, meta=meta)


def weights_of(
    directory: str | os.PathLike[str], *, best: bool = False, whole: bool = False
) -> Path:
    """The checkpoint of a run whose weights are to be played or begun with, or this one.

    ``best``: that of the best evaluation. ``whole``: the newest that holds the states of all
    workers.
    """
    if ((path := Path(directory).expanduser()) / REWARD).is_file():
        raise ValueError(
            f"{path}: must be a run or a policy, got a reward model; 'equipoise train ENV --reward "
            f"run:{path}' learns from it"
        )
    if (path / checkpoint.MANIFEST).is_file():
        return path
    run = RunDirectory.found(directory)
    if whole:
        return run.whole_checkpoint().path
    found = run.best_checkpoint() if best else run.result_checkpoint()
    if found is None and best:
        how = "train with --evaluate-every STEPS or --stop-at RETURN"
        raise FileNotFoundError(
            f"{run.path}: expected the weights of an evaluation, got none; {how}"
        )
    if found is None:
        raise FileNotFoundError(
            f"{run.path}: expected a checkpoint in it, got none; has the run ended?"
        )
    return found


def load(
    directory: str | os.PathLike[str],
    policy: str | None = None,
    *,
    best: bool = False,
    seed: int = 0,
    trust: Sequence[str] = (),
) -> Player:
    """Load a policy of a run, without its env: the weights that solved the run, or else the newest.

    Args:
        directory: A run, one of its checkpoints, or a URL.
        policy: The name of one of several policies (default: the first).
        best: Take the weights of the best evaluation.
        seed: Seed of the actions that ``act(..., deterministic=False)`` draws.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The policy: ``action = player.act(observation)``.

    Raises:
        FileNotFoundError: There is no run or no checkpoint, or with ``best`` no evaluation.
        ValueError: The run has no policy of this name, or a file is damaged.

    Example:
        >>> player = eq.load(run.directory)
        >>> player.act(np.zeros(4)) in (0, 1)
        True
    """
    seed = at_least(seed, "seed", 0)
    check_flags(best=best)
    with local(directory) as here:
        loaded = read_policies(here, best=best, trust=trust)
    name = loaded.named(policy)
    return Player(loaded.policies[name], loaded.playable[name].spec, meta=loaded.meta, seed=seed)
