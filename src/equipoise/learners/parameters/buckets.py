"""The sum of a flat gradient over several learners, begun in parts while backward still runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from equipoise.learners.pool import Learners

MORE = 2  # the loss and its count, which lie after the gradient and are sent with it
# bytes: large enough that sending takes longer than a message costs, and small enough to hide
# behind backward
BUCKET = 1 << 20


class Buckets:
    """Parts of one flat gradient, from its end to its beginning, as backward fills it.

    A part is on its way as soon as backward has left all parameters in it and all parts before it
    are on their way, so that every learner sends them in one order. Parts that backward did not
    reach are sent by ``finish``.
    """

    def __init__(self, pool: Learners, flat: nn.Parameter, params: Sequence[nn.Parameter]) -> None:
        """``flat``, ``params``: as ``flatten`` left them, with room for ``MORE``."""
        assert flat.grad is not None
        gradient = flat.grad.as_strided((flat.numel() + MORE,), (1,))
        self.more = gradient[flat.numel() :]
        self._pool, self._waits = pool, list[Callable[[], object]]()
        self._parts, of = list[Tensor](), list[int]()
        at, end = flat.numel(), flat.numel() + MORE
        for param in reversed(params):
            at -= param.numel()
            of.append(len(self._parts))
            if (end - at) * flat.element_size() >= BUCKET or at == 0:
                self._parts.append(gradient[at:end])
                end = at
        self._counts = [of.count(part) for part in range(len(self._parts))]
        self._left, self._on = list(self._counts), 0
        self._open = False
        for param, part in zip(reversed(params), of, strict=True):
            param.register_post_accumulate_grad_hook(self._leaver(part))  # type: ignore[no-untyped-call]

    def begin(self, loss: Tensor, count: Tensor) -> None:
        """Before backward: also add up ``loss`` and ``count``, into ``more``."""
        self.more[0], self.more[1] = loss.detach(), count
        self._left, self._on, self._open = list(self._counts), 0, True
        self._waits.clear()  # of sums that ended with a lost learner

    def _leaver(self, part: int) -> Callable[[Tensor], None]:
        def left(param: Tensor) -> None:
            if not self._open:  # another group's loss came by: its gradient is not this one's
                return
            self._left[part] -= 1
            while self._on < len(self._parts) and self._left[self._on] <= 0:
                self._send()

        return left

    def _send(self) -> None:
        self._waits.append(self._pool.add_up(self._parts[self._on]))
        self._on += 1

    def finish(self) -> None:
        """After backward: send the rest, and wait for the sum of the whole gradient."""
        self._open = False
        while self._on < len(self._parts):
            self._send()
        for wait in self._waits:
            wait()
        self._waits.clear()
