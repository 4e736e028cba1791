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

LONGEST_ADDRESS = 64  # letters of an IP address, with its zone
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


def served(pool: Group) -> Store:
    """A store for NCCL that the first learner serves at its address, which gloo also uses."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    there, server = torch.zeros(LONGEST_ADDRESS + 1, dtype=torch.int64), None
    if pool.rank == 0:
        server = socket.create_server(
            (pool.address, 0), family=socket.AF_INET6 if ":" in pool.address else socket.AF_INET
        )
        there[0] = server.getsockname()[1]
        there[1 : 1 + len(pool.address)] = torch.tensor(list(pool.address.encode("ascii")))
    there = pool.max(there)
    descriptor = None if server is None else server.detach()
    return TCPStore(
        bytes(there[1:].tolist()).rstrip(b"\0").decode("ascii"),
        int(there[0]),
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
