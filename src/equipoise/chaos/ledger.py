"""The fate of every row: a ledger that lives in the learner's network, so that a checkpoint keeps
it.

A learner that is killed takes its memory along. The ledger's numbers are buffers of the network: a
resume brings them back as they were at the checkpoint, and rows that are made again after it are
due again. So a duplicate, a gap and a row out of place are seen across every restart.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.envs.toys import ruler
from equipoise.types import Array, Pool, Trajectory

RECENT = 16  # windows that are remembered for each stream
COUNTS = ("rows", "torn", "duplicated", "missing", "orphans", "aborted")
FIELDS, T = 4, 2  # fields of an observation: stream, episode, t, life
NONE = -(1 << 40)


class Ledger(nn.Module):
    """The due row and the last windows of each stream; in order, except after a dead actor."""

    due: Tensor
    start: Tensor
    begin: Tensor
    end: Tensor
    version: Tensor
    counts: Tensor

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.register_buffer("due", torch.zeros(streams, dtype=torch.int64))
        self.register_buffer("start", torch.full((streams, RECENT), NONE))
        # the first observation of a window
        self.register_buffer("begin", torch.zeros(streams, RECENT, FIELDS))
        # the observation after its last row
        self.register_buffer("end", torch.zeros(streams, RECENT, FIELDS))
        self.register_buffer("version", torch.zeros(streams, RECENT, dtype=torch.int64))
        self.register_buffer("counts", torch.zeros(len(COUNTS), dtype=torch.int64))

    def enter(self, data: Trajectory, *, aborts: bool, replayed: bool = False) -> list[str]:
        """Prove a batch and count -> what is wrong with it, as sentences. ``aborts``: a failure may
        cut an episode short. ``replayed``: a window may come again with the same rows, or never.
        """
        torn, aborted, wrong = rows(data, aborts=aborts)
        steps, columns = data.shape
        count = dict.fromkeys(COUNTS, 0) | {
            "rows": steps * columns,
            "torn": int(torn.sum()),
            "aborted": aborted,
        }
        for b in range(columns):
            wrong += self._window(data, b, count, replayed)
        self.counts += torch.tensor([count[name] for name in COUNTS])
        return wrong

    def merge(self, data: Trajectory, before: Tensor, pool: Pool) -> None:
        """Enter other learners' streams; ``before``: the counts before this one's batch."""
        mine = torch.zeros(len(self.due), dtype=torch.bool)
        mine[data.context["stream"]] = True
        there = pool.sum(mine.long()) > 0
        for kept in (self.due, self.start, self.begin, self.end, self.version):
            shape = (-1, *[1] * (kept.dim() - 1))
            entered = pool.sum(torch.where(mine.view(shape), kept, torch.zeros_like(kept)))
            kept.copy_(torch.where(there.view(shape), entered, kept))
        self.counts.copy_(before + pool.sum(self.counts - before))

    def _window(self, data: Trajectory, b: int, count: dict[str, int], replayed: bool) -> list[str]:
        """Enter a window if it goes on where its stream was."""
        steps, stream, start = (
            data.shape[0],
            int(data.context["stream"][b]),
            int(data.context["start"][b]),
        )
        known = self.start[stream].tolist()
        where = f"stream {stream}, the window from row {start}"
        begin, end, version = data.obs[0, b], data.obs[-1, b], data.version[:, b]
        if start in known and not replayed:
            count["duplicated"] += steps
            return [f"{where}: it came before"]
        if start in known:
            i = known.index(start)
            same = torch.equal(self.begin[stream, i], begin) and torch.equal(
                self.end[stream, i], end
            )
            if same and self.version[stream, i] == version[-1]:
                return []
            count["torn"] += 1
            return [f"{where}: it came before with other rows"]
        wrong = []
        if start - steps in known:
            i = known.index(start - steps)
            if not torch.equal(self.end[stream, i], begin):
                wrong.append(
                    f"{where}: expected {self.end[stream, i].tolist()} to go on from, got "
                    f"{begin.tolist()}"
                )
            if self.version[stream, i] > version[0]:
                wrong.append(
                    f"{where}: version {int(version[0])} after {int(self.version[stream, i])}"
                )
        elif begin[T] != 0 and not replayed:  # its predecessor is still to come
            count["orphans"] += 1
        if start + steps in known:
            i = known.index(start + steps)
            if begin_of_next := bool(self.begin[stream, i, T] != 0):
                count["orphans"] -= not replayed
            if begin_of_next and not torch.equal(self.begin[stream, i], end):
                wrong.append(
                    f"{where}: expected {self.begin[stream, i].tolist()} after it, got "
                    f"{end.tolist()}"
                )
        due = int(self.due[stream])
        # each successor of a dead actor also leaves a gap of one row that was never made
        if not replayed:
            count["missing"] += (start - due) // steps * steps if start >= due else -steps
        count["torn"] += len(wrong)
        self.due[stream] = max(due, start + steps)
        place = known.index(min(known))
        self.start[stream, place], self.version[stream, place] = start, version[-1]
        self.begin[stream, place], self.end[stream, place] = begin, end
        return wrong


def rows(data: Trajectory, *, aborts: bool) -> tuple[Array, int, list[str]]:
    """Return rows [T, B] bool that do not prove themselves, the aborted episodes, and sentences.

    As ``equipoise.envs.toys.ruler.verify``, for envs that began again; also state and version.
    """
    obs, first = data.obs.numpy(), data.first.numpy()
    finite = np.isfinite(obs).all(-1)
    stream, number, t, life = np.moveaxis(
        np.where(finite[..., None], obs, -1).astype(np.int64), -1, 0
    )
    context = data.context["stream"].numpy()
    length, terminates, _ = ruler.episode(stream, number)
    seam = t[:-1] == length[:-1]
    mask = data.mask.numpy()
    abort = aborts & ~seam & ~mask & first[1:]  # an env failed here, and started again
    cut = seam | abort
    ends = t[1:] == length[:-1]
    action, version = data.action.numpy(), data.version.numpy()
    seen, stored = (
        data.behaviour["seen"].numpy(),
        np.where(first[0], 0.0, data.state["seen"].numpy()),
    )
    torn = np.zeros(mask.shape, np.bool_)
    wrong: list[str] = []

    def compare(what: str, got: Array, expected: Array) -> None:
        bad = got != expected
        if bad.any():
            at, b = np.argwhere(bad)[0]
            said = f"expected {np.broadcast_to(expected, bad.shape)[at, b]}, got {got[at, b]}"
            wrong.append(
                f"{what} of stream {context[b]}, row {at} of a window, and {bad.sum() - 1} more: "
                f"{said}"
            )
        np.logical_or(torn, bad if len(bad) == len(torn) else bad[:-1] | bad[1:], out=torn)

    compare("finite", finite, True)
    compare("stream", stream, context)
    compare("episode", np.where(abort, 0, number[1:]), np.where(abort, 0, number[:-1] + seam))
    compare("life", np.where(abort, life[:-1] == life[1:], life[:-1] != life[1:]), False)
    compare("t", t[1:], np.where(cut, 0, t[:-1] + 1))
    compare("t beyond its episode", t > length, False)
    compare("first", first, t == 0)
    compare("mask", mask, ~cut)
    compare(
        "reward",
        data.reward.numpy(),
        np.where(cut, np.float32(0), ruler.reward(number[:-1], t[:-1], action)),
    )
    compare("bootstrap", data.bootstrap.numpy(), cut | ~(ends & terminates[:-1]))
    compare("version", version, np.rint(data.behaviour["updates"].numpy()).astype(np.int64))
    compare(
        "version within a window",
        np.vstack([version[:1] < version[:1], version[1:] < version[:-1]]),
        False,
    )
    compare("state", seen, t[:-1])
    compare("stored state", np.broadcast_to(stored, mask.shape), t[0])
    compare("action", action, (data.behaviour["noise"].numpy() * ruler.ACTIONS).astype(np.int64))
    return torn, int(abort.sum()), wrong
