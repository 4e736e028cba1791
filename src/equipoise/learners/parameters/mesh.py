"""The learners of a run as a mesh for torch's own sharding."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from equipoise.learners.pool import LONGEST_S, Group, LearnerLost

if TYPE_CHECKING:
    from equipoise.private.torch import Store

BACKEND = "learners"  # torch's name for the group that the pool has already


def mesh_of(pool: Group, device: torch.device) -> DeviceMesh:
    """A ``DeviceMesh`` of all learners, one a process. Tensors of the CPU go through the pool's own
    gloo, of CUDA through NCCL.

    torch keeps one group a process, so this is for learners that have a process each, and all call
    it at once.
    """
    from torch import distributed
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    if not distributed.is_initialized():
        gloo, cuda = pool.gloo, device.type == "cuda"
        distributed.Backend.register_backend(BACKEND, lambda *_: gloo, devices=["cpu"])
        distributed.init_process_group(
            f"cpu:{BACKEND},cuda:nccl" if cuda else BACKEND,
            rank=pool.rank,
            world_size=pool.size,
            store=served(pool) if cuda else HashStore(),
            timeout=timedelta(seconds=LONGEST_S),
        )
    return init_device_mesh(device.type, (pool.size,))


def served(pool: Group, address: str = "127.0.0.1") -> Store:
    """A store for NCCL that the first learner serves, at an address of this machine alone."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = socket.create_server((address, 0)) if pool.rank == 0 else None
    port = int(pool.max(torch.tensor(server.getsockname()[1] if server else 0)))
    descriptor = None if server is None else server.detach()
    return TCPStore(
        address,
        port,
        pool.size,
        server is not None,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


@contextmanager
def lost() -> Iterator[None]:
    """Raise errors of gloo, which torch's sharding passes on, as ``LearnerLost``."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LearnerLost) or "gloo" not in str(error):
            raise
        raise LearnerLost(str(error)) from error
