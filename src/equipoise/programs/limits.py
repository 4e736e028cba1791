"""Limits of the queue and of processes that a program can be held against before anything is
started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from equipoise.experience.queue.tokens import MOST_BLOCKS
from equipoise.types import Placement, Policy, Program, learning

if sys.platform != "win32":
    import resource

# descriptors that Python's forkserver can hand to a process (251), less the descriptors that every
# run needs
DESCRIPTORS = 240
# files that the driver opens: its own and the servers', and for each worker
FILES, WORKER_FILES = 18, 6


def check_processes(program: Program, *, away: int = 0, servers_away: int = 0) -> None:
    """ValueError if a worker needs more descriptors than a process can be given, or may open.

    ``away``, ``servers_away``: actors and inference workers on other machines. Their doorbells are
    there also; the pipes of their tokens are here.
    """
    place, learners = program.placement, program.placement.learners
    bell = 1 if hasattr(os, "eventfd") else 2
    servers = place.inference_workers - servers_away if place.inference == "central" else 0
    shards = sum(one.replay.shards for one in learning(program).values() if one.replay is not None)
    pipes = 2 * place.halves if place.max_lag == 0 else 0  # for an actor: pipes of tokens

    def given(actors: int) -> int:
        """Descriptors of the worker that needs most: pipes, all doorbells, the doorbells that it
        rings.
        """
        rung = shards + learners - 1  # a learner rings the others and its shards
        here = max(actors - away, 0) + bool(away)  # the proxy is one that writes
        if servers:  # an inference worker rings its env workers
            return pipes * actors + bell * (servers + max(-(-here // servers), rung))
        return pipes * actors + bell * (here + rung)

    if (needed := given(program.actors)) > DESCRIPTORS:
        most = next((n for n in range(program.actors - 1, 0, -1) if given(n) <= DESCRIPTORS), 0)
        less = f"; max_lag=1 takes {bell} an actor, not {pipes + bell}" if pipes else ""
        raise ValueError(
            f"placement.actors: expected at most {most} with max_lag={place.max_lag} and "
            f"{place.inference} inference, since a worker can be given {DESCRIPTORS} descriptors "
            "of doorbells and pipes, got "
            f"{program.actors}, which take {needed}; use more envs_per_actor{less}"
        )
    here = program.actors - away + bool(away)
    opened = pipes * program.actors + bell * (here + servers + shards + learners - 1)
    workers = learners + here + servers + shards
    files = (
        _files_open() + FILES + opened + WORKER_FILES * workers + (WORKER_FILES if servers else 0)
    )
    if (allowed := _files_allowed()) is not None and files > allowed:
        raise ValueError(
            f"expected a limit of at least {files} open files for {workers} worker processes, got "
            f"{allowed} (ulimit -n); raise it with 'ulimit -n {files}', use fewer actors, or --on "
            "serial, which opens none for workers"
        )


def check_devices(place: Placement) -> None:
    """ValueError if this machine has not the devices that the learners are to compute on."""
    if place.device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ValueError(
            f"device: expected cpu, since this torch sees no GPU, got {place.device!r}"
        )
    if place.learners > (devices := torch.cuda.device_count()):
        raise ValueError(
            f"placement.learners: expected at most {devices}, as many as CUDA devices, since each "
            f"learner has one of its own, got {place.learners}"
        )


def check_nvtx(place: Placement) -> None:
    """ValueError if profilers cannot be shown the parts of the work."""
    if place.nvtx and torch.version.cuda is None:
        raise ValueError(
            "placement.nvtx: expected false, since this torch has no CUDA, got true; "
            "placement.trace_s=10 works without CUDA"
        )


def _files_allowed() -> int | None:
    if sys.platform == "win32":
        return None
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed


def _files_open() -> int:
    """Files that this process has open now; 3 if the system does not list them."""
    place = Path("/dev/fd")
    return len(list(place.iterdir())) if place.is_dir() else 3


def block_problems(program: Program, policy: Policy) -> list[str]:
    """A queue of more blocks (the unroll of one group of envs) than it has room for."""
    place = program.placement
    # blocks of a batch
    blocks = program.groups if policy.replay is not None else policy.batch // place.group_envs
    if place.max_lag is None:
        if (most := max(program.groups, blocks)) * 2 <= MOST_BLOCKS:
            return []
        key, value, fits = (
            ("actors", program.actors, MOST_BLOCKS // 2 // place.halves)
            if most == program.groups
            else ("batch", policy.batch, MOST_BLOCKS // 2 * place.group_envs)
        )
        return [
            f"{key}: expected at most {fits:,}, since the queue has room for {MOST_BLOCKS:,} "
            f"blocks, got {value:,}"
        ]
    if blocks * (place.max_lag + 1) <= MOST_BLOCKS:
        return []
    if place.max_lag and (fits := MOST_BLOCKS // max(blocks, 1) - 1) >= 0:
        return [
            f"placement.max_lag: expected at most {fits:,}, or none for no bound, since the queue "
            f"has room for {MOST_BLOCKS:,} blocks and a batch has {blocks:,}, got "
            f"{place.max_lag:,}; more envs_per_actor makes fewer and larger blocks"
        ]
    fits = MOST_BLOCKS // (place.max_lag + 1) * place.group_envs
    return [
        f"batch: expected at most {fits:,}, since the queue has room for {MOST_BLOCKS:,} blocks, "
        f"got {policy.batch:,}"
    ]
