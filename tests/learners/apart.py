"""Several learners in a process each, as torch's own sharding wants them."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equipoise.learners.pool import Group

DEADLINE_S = 240.0


def _run(
    rank: int, size: int, place: str, work: Callable[..., Any], args: tuple[Any, ...], answer: Any
) -> None:
    torch.set_num_threads(1)
    try:
        group = Group(torch.distributed.FileStore(place, size), rank, size)  # type: ignore[attr-defined]
        answer.send((True, work(group, *args)))
    except BaseException:
        answer.send((False, traceback.format_exc()))


def apart(size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """``work(pool, *args)`` in a process for each learner -> what each returned, in numpy or plain
    values.
    """
    context, ends = multiprocessing.get_context("spawn"), list[Any]()
    with tempfile.TemporaryDirectory() as directory:
        processes = []
        for rank in range(size):
            mine, other = context.Pipe(duplex=False)
            ends.append(mine)
            at = str(Path(directory) / "store")
            processes.append(
                context.Process(target=_run, args=(rank, size, at, work, args, other), daemon=True)
            )
            processes[-1].start()
            other.close()
        try:
            results = []
            for rank, end in enumerate(ends):
                if not end.poll(DEADLINE_S):
                    raise TimeoutError(f"learner {rank}: no answer within {DEADLINE_S:.0f} s")
                good, said = end.recv()
                assert good, said
                results.append(said)
            return results
        finally:
            for process in processes:
                process.join(0 if len(results) < size else 20)
                process.kill()
                process.join()
