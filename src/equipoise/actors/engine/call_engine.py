"""The engine of calls that are learned from: tokens can be read after each step, and all are drawn
as in training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.actors.engine.drawing import draw
from equipoise.actors.engine.request_engine import RequestEngine
from equipoise.actors.engine.torch_engine import SEAT


class CallEngine(RequestEngine):
    """A ``RequestEngine`` that draws at the run's temperature, whatever a call asks for.

    So the log-probability of a token is that of the policy that is learned.
    """

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        token, found = draw(logits, self._temperature, self._uniform(), self._log_softmax)
        top = self._how[2, self._rows[SEAT, : self.live]]
        logp = logits[:0]
        if top.any():
            logp = torch.log_softmax(logits / self._temperature, -1)
        self._note(token, found, logp, top)
        return token, found
