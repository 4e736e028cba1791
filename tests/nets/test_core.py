"""Recurrent cores against torch's own cells, run episode by episode from zeros."""

import pytest
import torch
from torch import nn

from equipoise.nets import Core

KINDS = ("lstm", "gru")
T, B, SIZE_IN, SIZE = 24, 5, 3, 4


def make(kind):
    torch.manual_seed(1)
    core = Core(kind, SIZE_IN, SIZE)
    for parameter in core.parameters():  # biases too, which start at 0
        nn.init.normal_(parameter, std=0.7)
    state = {name: torch.randn(B, SIZE) for name in core.initial_state(B)}
    return core, torch.randn(T, B, SIZE_IN), state


def resets(share):
    torch.manual_seed(7)
    first = torch.rand(T, B) < share
    if share:
        first[9, 2] = first[9, 3] = True  # whatever the draw; two streams in one row
    return first


def oracle(core, x, first, state):
    """One stream and one row at a time with torch's cell;
    a new episode begins with a fresh state.
    """
    cell = (nn.LSTMCell if core.kind == "lstm" else nn.GRUCell)(SIZE_IN, SIZE)
    names = {
        "weight_ih": "weight_ih_l0",
        "weight_hh": "weight_hh_l0",
        "bias_ih": "bias_ih_l0",
        "bias_hh": "bias_hh_l0",
    }
    cell.load_state_dict({name: core.rnn.state_dict()[of] for name, of in names.items()})
    outputs, last = torch.zeros(x.shape[0], x.shape[1], SIZE), []
    with torch.no_grad():
        for b in range(x.shape[1]):
            carry = tuple(leaf[b : b + 1] for leaf in state.values())
            for t in range(x.shape[0]):
                if first[t, b]:
                    carry = tuple(torch.zeros(1, SIZE) for _ in state)
                out = cell(x[t, b : b + 1], carry if core.kind == "lstm" else carry[0])
                carry = out if core.kind == "lstm" else (out,)
                outputs[t, b] = carry[0][0]
            last.append(torch.cat(carry))
    stacked = torch.stack(last, 1)
    return outputs, dict(zip(state, stacked, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_unroll_and_steps_equal_the_cell_run_by_episode(kind, share):
    core, x, state = make(kind)
    first = resets(share)
    want, want_state = oracle(core, x, first, state)
    got, got_state = core.unroll(x, first, state)
    torch.testing.assert_close(got.detach(), want)
    torch.testing.assert_close({k: v.detach() for k, v in got_state.items()}, want_state)
    for t in range(T):
        y, state = core.step(x[t], first[t], state)
        torch.testing.assert_close(y.detach(), want[t])
    torch.testing.assert_close({k: v.detach() for k, v in state.items()}, want_state)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_agree_in_value_and_gradient(kind, share):
    core, x, state = make(kind)
    first = resets(share)
    rows = first.any(1).nonzero().flatten().tolist()
    weight = torch.randn(T, B, SIZE)
    results = []
    for run in (
        lambda s: core._fused(x, first, s, rows),
        lambda s: core._loop(x, first, s, frozenset(rows)),
    ):
        begin = {name: leaf.clone().requires_grad_() for name, leaf in state.items()}
        y, end = run(begin)
        loss = (y * weight).sum() + sum(leaf.square().sum() for leaf in end.values())
        results.append((y, end, torch.autograd.grad(loss, [*core.parameters(), *begin.values()])))
    torch.testing.assert_close(results[0], results[1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_which_way_is_chosen_by_the_number_of_rows_with_a_reset(kind, monkeypatch):
    core, x, state = make(kind)
    ran = []
    monkeypatch.setattr(core, "_fused", lambda *a: (ran.append("fused"), Core._fused(core, *a))[1])
    monkeypatch.setattr(core, "_loop", lambda *a: (ran.append("loop"), Core._loop(core, *a))[1])
    for share in (0.0, 0.02, 0.3):
        core.unroll(x, resets(share), state)
    assert ran == ["fused", "fused", "loop"]


@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_depends_on_first_and_on_nothing_else(kind, share):
    core, x, state = make(kind)
    first = resets(share)
    first[9] = False
    without, _ = core.unroll(x, first, state)
    first[9, 2] = True
    y, _ = core.unroll(x, first, state)
    changed = (y != without).any(-1)
    end = 9 + 1 + next((t for t, reset in enumerate(first[10:, 2].tolist()) if reset), T - 10)
    assert changed[9:end, 2].all()  # from the very row, until the next episode
    torch.testing.assert_close(y[:9], without[:9])
    others = [0, 1, 3, 4]
    torch.testing.assert_close(y[:, others], without[:, others])  # other streams are as before


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_or_gradient_crosses_a_reset_and_all_else_is_kept(kind):
    core, x, state = make(kind)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[0, 0] = first[10, 1] = True
    state = {name: leaf.requires_grad_() for name, leaf in state.items()}
    y, end = core.unroll(x.requires_grad_(), first, state)
    into_state = torch.autograd.grad(
        sum(leaf.sum() for leaf in end.values()), [x, *state.values()], retain_graph=True
    )
    assert not into_state[0][:10, 1].any()
    assert into_state[0][10:, 1].any()
    for grad in into_state[1:]:
        assert not grad[:2].any()  # cut at row 0 and at row 10
        assert grad[2:].any(1).all()  # never cut inside
    (at_9,) = torch.autograd.grad(y[9, 1].sum(), [state["h"]])
    assert at_9[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_forgets_even_nan(kind):
    core, x, state = make(kind)
    bad = {name: torch.full_like(leaf, torch.nan) for name, leaf in state.items()}
    first = torch.ones(T, B, dtype=torch.bool)
    assert core.unroll(x, first, bad)[0].isfinite().all()
    assert core.step(x[0], first[0], bad)[0].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_start_of_the_core(kind):
    core = Core(kind, SIZE_IN, SIZE)
    state = core.initial_state(B)
    assert list(state) == (["h", "c"] if kind == "lstm" else ["h"])
    assert all(
        leaf.shape == (B, SIZE) and leaf.dtype == torch.float32 and not leaf.any()
        for leaf in state.values()
    )
    w_ih, w_hh, b_ih, b_hh = core.parameters()
    torch.testing.assert_close(w_hh.t() @ w_hh, torch.eye(SIZE), atol=1e-5, rtol=0)
    torch.testing.assert_close(w_ih.t() @ w_ih, torch.eye(SIZE_IN), atol=1e-5, rtol=0)
    assert not b_ih.any()
    assert not b_hh.any()
