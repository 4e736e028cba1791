"""LSTM and GRU. State is reset where ``first`` is True, before that row is consumed.

One parameter holder (``nn.LSTM`` or ``nn.GRU`` of one layer), three ways to run it that agree up to
rounding: one cell for ``step``; the library's fused kernel over the stretches between resets; a
loop over T whose input part is multiplied for all T at once. Forward and backward, T=32, B=64, 64
units, one CPU thread: fused 9 ms without a reset and 1.1 ms more for each row with one, loop 18 ms
always, a loop of cells 22 ms. So ``unroll`` counts the rows with a reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# fewer rows than this for each row with a reset: the loop is faster (measured at T=32 and 128)
ROWS_PER_RESET = 6

State = dict[str, Tensor]  # each [B, ...]


class Core(nn.Module):
    """An LSTM (Hochreiter and Schmidhuber 1997) or a GRU (Cho et al. 2014, arXiv:1406.1078), gates
    as in torch.

    The state is ``{"h", "c"}`` or ``{"h"}``, float32 [B, size], zeros at the start of an episode.
    Nothing is detached: the length of the unroll alone cuts the gradient (truncated
    backpropagation). Weights orthogonal, biases 0.

    ``span`` is for how many rows a fresh core remembers, about (a bias of 0 halves what it has in
    every row, so that nothing of row 0 is left in row 30, and no gradient reaches it): the bias of
    each unit's gate is log u, u uniform in 1 .. span - 1, so that its time constants are as spread
    (the chrono initialisation of Tallec and Ollivier 2018, arXiv:1804.11188, section 2: of an LSTM
    the forget gate's, with -log u for the input gate; of a GRU the update gate's). 0: biases 0.
    """

    def __init__(
        self, kind: Literal["lstm", "gru"], size_in: int, size: int, *, span: int = 0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.size = size
        self.rnn: nn.LSTM | nn.GRU = (nn.LSTM if kind == "lstm" else nn.GRU)(size_in, size)
        for name, parameter in self.rnn.named_parameters():
            nn.init.orthogonal_(parameter) if name.startswith("weight") else nn.init.zeros_(
                parameter
            )
        if span:
            gates = spread_time_constants(size, span)
            # of the gates i, f, g, o, or r, z, n
            bias = self._parameters_of_rnn()[2].data.view(-1, size)
            bias[1] = gates
            if kind == "lstm":
                bias[0] = -gates

    def _parameters_of_rnn(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """weight_ih [G, in], weight_hh [G, size], bias_ih [G], bias_hh [G]; G = gates * size."""
        w_ih, w_hh, b_ih, b_hh = self.rnn.parameters()
        return w_ih, w_hh, b_ih, b_hh

    def initial_state(self, batch: int) -> State:
        h = torch.zeros(batch, self.size, device=next(self.rnn.parameters()).device)
        return {"h": h, "c": torch.zeros_like(h)} if self.kind == "lstm" else {"h": h}

    def step(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [B, in], first [B] bool -> [B, size], the new state."""
        state = _reset(state, first)
        if self.kind == "lstm":
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), *self._parameters_of_rnn())
            return h, {"h": h, "c": c}
        h = torch.gru_cell(x, state["h"], *self._parameters_of_rnn())
        return h, {"h": h}

    def unroll(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """x [T, B, in], first [T, B] bool -> [T, B, size], the state after row T-1.

        Which rows hold a reset is read on the host: on a GPU this waits for the device once.
        """
        resets: list[int] = first.any(1).nonzero().flatten().tolist()
        if len(resets) * ROWS_PER_RESET > x.shape[0]:
            return self._loop(x, first, state, frozenset(resets))
        return self._fused(x, first, state, resets)

    def _fused(
        self, x: Tensor, first: Tensor, state: State, resets: Sequence[int]
    ) -> tuple[Tensor, State]:
        """The library's kernel over each stretch that holds no reset but at its first row."""
        outputs: list[Tensor] = []
        starts = sorted({0, *resets})
        for start, end in zip(starts, [*starts[1:], x.shape[0]], strict=True):
            if start in resets:
                state = _reset(state, first[start])
            h = state["h"].unsqueeze(0)
            if self.kind == "lstm":
                y, (h, c) = self.rnn(x[start:end], (h, state["c"].unsqueeze(0)))
                state = {"h": h.squeeze(0), "c": c.squeeze(0)}
            else:
                y, h = self.rnn(x[start:end], h)
                state = {"h": h.squeeze(0)}
            outputs.append(y)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0], state

    def _loop(
        self, x: Tensor, first: Tensor, state: State, resets: frozenset[int]
    ) -> tuple[Tensor, State]:
        """Row after row; the products of the input alone are computed for all rows at once."""
        w_ih, w_hh, b_ih, b_hh = self._parameters_of_rnn()
        w_hh, n = w_hh.t(), self.size
        outputs: list[Tensor] = []
        if self.kind == "lstm":
            for t, from_input in enumerate(F.linear(x, w_ih, b_ih + b_hh).unbind(0)):
                if t in resets:
                    state = _reset(state, first[t])
                i, f, g, o = torch.addmm(from_input, state["h"], w_hh).chunk(4, 1)
                c = torch.addcmul(i.sigmoid() * g.tanh(), f.sigmoid(), state["c"])
                state = {"h": o.sigmoid() * c.tanh(), "c": c}
                outputs.append(state["h"])
        else:
            for t, from_input in enumerate(F.linear(x, w_ih, b_ih).unbind(0)):
                if t in resets:
                    state = _reset(state, first[t])
                h = state["h"]
                from_h = torch.addmm(b_hh, h, w_hh)
                r, z = (from_input[:, : 2 * n] + from_h[:, : 2 * n]).sigmoid().chunk(2, 1)
                candidate = torch.addcmul(from_input[:, 2 * n :], r, from_h[:, 2 * n :]).tanh()
                state = {"h": torch.lerp(candidate, h, z)}
                outputs.append(state["h"])
        return torch.stack(outputs), state


def spread_time_constants(size: int, span: int) -> Tensor:
    """log u [size], u uniform in 1 .. span - 1: gate biases for memories of up to ``span`` rows."""
    if span < 3:
        raise ValueError(f"span: expected 0 or at least 3 rows, got {span}")
    return torch.empty(size).uniform_(1, span - 1).log()


def _reset(state: State, first: Tensor) -> State:
    """Zeros where ``first`` [B]; filled, so that no nan of an unused row survives."""
    where = first.unsqueeze(1)
    return {name: leaf.masked_fill(where, 0.0) for name, leaf in state.items()}
