"""Private names of Ray."""

from __future__ import annotations


def draining() -> set[str]:
    """The ids of the machines of the cluster that are about to be taken away. Ray has no public
    call for it.

    Tried: 2.60. If it is gone: return an empty set; machines then leave without a warning, and
    their workers are replaced like the workers of a machine that died.
    """
    from ray._private.worker import global_worker

    return set(global_worker.gcs_client.get_draining_nodes())
