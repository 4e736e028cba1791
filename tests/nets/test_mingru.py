"""minGRU against its equations, row by row, and the two ways to compute a linear recurrence against
each other.
"""

import pytest
import torch
from torch import nn

from equipoise.nets.mingru import MinGRU, doubling, loop, recurrence

T, B, SIZE_IN, SIZE = 14, 4, 3, 4


def make(layers):
    torch.manual_seed(1)
    core = MinGRU(SIZE_IN, SIZE, layers=layers)
    for parameter in core.parameters():  # biases too, which start at 0
        nn.init.normal_(parameter, std=0.7)
    return core, torch.randn(T, B, SIZE_IN), {"h": torch.randn(B, layers, SIZE)}


def seams(share):
    torch.manual_seed(7)
    first = torch.rand(T, B) < share
    if share:
        first[9, 2] = first[9, 3] = True  # whatever the draw; two streams in one row
    return first


def oracle(core, x, first, state):
    """The equations, one stream and one row at a time, from zeros where an episode begins."""
    outputs, last = torch.zeros(T, B, SIZE), torch.zeros(B, len(core.gates), SIZE)
    with torch.no_grad():
        for b in range(B):
            h = list(state["h"][b])
            for t in range(T):
                y = x[t, b]
                for n, gate in enumerate(core.gates):
                    before = torch.zeros(SIZE) if first[t, b] else h[n]
                    seen = core.norms[n - 1](y) if n else y
                    z = torch.sigmoid(gate.weight[:SIZE] @ seen + gate.bias[:SIZE])
                    h[n] = (1 - z) * before + z * (gate.weight[SIZE:] @ seen + gate.bias[SIZE:])
                    y = y + h[n] if n else h[n]
                outputs[t, b] = y
            last[b] = torch.stack(h)
    return outputs, last


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("layers", [1, 3])
def test_unroll_and_steps_equal_the_equations_run_by_episode(layers, share):
    core, x, state = make(layers)
    first = seams(share)
    want, want_state = oracle(core, x, first, state)
    got, got_state = core.unroll(x, first, state)
    torch.testing.assert_close(got.detach(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got_state["h"].detach(), want_state, atol=1e-5, rtol=1e-5)
    for t in range(T):
        y, state = core.step(x[t], first[t], state)
        torch.testing.assert_close(y.detach(), want[t], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state["h"].detach(), want_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 33])
def test_loop_and_doubling_are_one_recurrence(rows):
    a, b = torch.rand(rows, 3, 2), torch.randn(rows, 3, 2)
    a[rows // 2, 1] = 0.0
    want, h = [], torch.zeros(3, 2)
    for t in range(rows):
        h = a[t] * h + b[t]
        want.append(h)
    torch.testing.assert_close(loop(a, b), torch.stack(want))
    torch.testing.assert_close(doubling(a, b), torch.stack(want))


def test_the_gradient_of_the_recurrence_is_that_of_its_rows():
    a, b, h = (
        torch.rand(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((6, 2, 3), (6, 2, 3), (2, 3))
    )
    assert torch.autograd.gradcheck(recurrence, (a, b, h))


def test_no_value_or_gradient_crosses_a_seam_and_all_else_is_kept():
    core, x, state = make(2)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[0, 0] = first[10, 1] = True
    h = state["h"].requires_grad_()
    _, end = core.unroll(x.requires_grad_(), first, {"h": h})
    into_x, into_h = torch.autograd.grad(end["h"].sum(), [x, h])
    assert not into_x[:10, 1].any() and into_x[10:, 1].any()
    assert not into_h[:2].any() and into_h[2:].flatten(1).any(1).all()


def test_a_seam_forgets_even_nan():
    core, x, _ = make(2)
    bad, first = {"h": torch.full((B, 2, SIZE), torch.nan)}, torch.ones(T, B, dtype=torch.bool)
    assert core.unroll(x, first, bad)[0].isfinite().all()
    assert core.step(x[0], first[0], bad)[0].isfinite().all()


def test_a_fresh_core_remembers_about_as_long_as_its_span():
    def left(span):
        torch.manual_seed(0)
        core = MinGRU(SIZE_IN, 64, span=span)
        x, first = torch.zeros(51, 2, SIZE_IN), torch.zeros(51, 2, dtype=torch.bool)
        x[0, 0] = 1.0
        state = core.unroll(x, first, core.initial_state(2))[1]["h"]
        return float((state[0] - state[1]).norm().detach())

    assert left(0) < 1e-6 < 1e-3 < left(60)
    with pytest.raises(ValueError, match="span: expected 0 or at least 3 rows, got 2"):
        left(2)
