"""GTrXL against its equations with keys and values, row by row; windows that cross unrolls and
seams.
"""

import pytest
import torch
from torch import nn

from equipoise.nets.cores import CoreOptions, make_core
from equipoise.nets.gtrxl import GATE_BIAS, GTrXL

T, B, SIZE_IN, SIZE, HEADS = 14, 4, 3, 8, 2
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def make(layers, window):
    torch.manual_seed(1)
    core = GTrXL(SIZE_IN, SIZE, layers=layers, heads=HEADS, window=window)
    for name, parameter in core.named_parameters():  # biases and u, v too, which start at 0
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.4)
    return core, torch.randn(T, B, SIZE_IN)


def seams(share):
    torch.manual_seed(7)
    first = torch.rand(T, B) < share
    if share:
        # whatever the draw; two streams in one row, and an episode of a row
        first[9, 2] = first[9, 3] = first[10, 3] = True
    return first


def filled(core, rows):
    """A state after ``rows`` rows of which stream 0 began an episode in the last but one."""
    first = torch.zeros(rows, B, dtype=torch.bool)
    first[-2, 0] = True
    with torch.no_grad():
        return core.unroll(torch.randn(rows, B, SIZE_IN), first, core.initial_state(B))[1]


def gated(gate, x, y):
    r, z, h = gate.from_y(y).chunk(3)
    r_of_x, z_of_x = gate.from_x(x).chunk(2)
    r, z = torch.sigmoid(r + r_of_x), torch.sigmoid(z + z_of_x)
    return (1 - z) * x + z * torch.tanh(h + gate.candidate(r * x))


def attended(block, context):
    """The attention of the last row of ``context``, a list of normalised inputs, over all of it."""
    out = []
    for head, part in enumerate(torch.arange(SIZE).chunk(HEADS)):
        query = (block.query(context[-1]))[part]
        scores = torch.stack(
            [
                (query / part.numel() ** 0.5 + block.content[head, 0]) @ block.key(row)[part]
                + (query / part.numel() ** 0.5 + block.place[head, 0])
                @ block.distance[head, -1 - ago]
                for ago, row in zip(range(len(context) - 1, -1, -1), context, strict=True)
            ]
        )
        out.append(
            sum(
                w * block.value(row)[part]
                for w, row in zip(scores.softmax(0), context, strict=True)
            )
        )
    return block.out(torch.cat(out))


def oracle(core, x, first):
    """From the first row of every stream on, each row with a list of all rows of its episode."""
    outputs = torch.zeros(*x.shape[:2], SIZE)
    with torch.no_grad():
        for b in range(x.shape[1]):
            for t in range(len(x)):
                if t == 0 or first[t, b]:
                    memory = [[] for _ in core.blocks]
                y = core.into(x[t, b])
                for block, rows in zip(core.blocks, memory, strict=True):
                    rows.append(block.norm(y))
                    y = gated(block.gate, y, torch.relu(attended(block, rows[-1 - core.window :])))
                    mlp = block.narrow(torch.relu(block.wide(block.norm_mlp(y))))
                    y = gated(block.gate_mlp, y, torch.relu(mlp))
                outputs[t, b] = y
    return outputs


@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_an_unroll_equals_the_equations_run_by_episode(share, window):
    core, x = make(2, window)
    first = seams(share)
    got, _ = core.unroll(x, first, core.initial_state(B))
    torch.testing.assert_close(got.detach(), oracle(core, x, first), **CLOSE)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("window", [1, 5, 40])
@pytest.mark.parametrize("before", [2, 7, 60])
def test_steps_and_parts_equal_one_unroll(before, window, share):
    """Windows cross from the rows before into this unroll, and seams lie at all places, row 0 among
    them.
    """
    core, x = make(3, window)
    first, state = seams(share), filled(core, before)
    with torch.no_grad():
        want, end = core.unroll(x, first, state)
        parts, carried = [], state
        for rows in (slice(0, 1), slice(1, 10), slice(10, T)):
            y, carried = core.unroll(x[rows], first[rows], carried)
            parts.append(y)
        stepped, steps = state, []
        for t in range(T):
            y, stepped = core.step(x[t], first[t], stepped)
            steps.append(y)
    torch.testing.assert_close(torch.cat(parts), want, **CLOSE)
    torch.testing.assert_close(torch.stack(steps), want, **CLOSE)
    for other in (carried, stepped):
        assert torch.equal(other["held"], end["held"]) and end["held"].max() <= window
        held = torch.arange(window) >= window - end["held"]  # [B, window]; the others are not read
        mine, theirs = (one["memory"].transpose(1, 2)[held] for one in (other, end))
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_one_layer_sees_its_window_and_nothing_before():
    core, x = make(1, 5)
    first, x = torch.zeros(T, B, dtype=torch.bool), x.requires_grad_()
    y, _ = core.unroll(x, first, core.initial_state(B))
    (grad,) = torch.autograd.grad(y[12].sum(), x)
    assert grad.abs().sum((1, 2)).nonzero().flatten().tolist() == [7, 8, 9, 10, 11, 12]


def test_no_gradient_crosses_a_seam_and_into_a_state_it_goes_where_there_is_none():
    core, x = make(2, 40)
    state = filled(core, 7)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[0, 0] = first[10, 1] = True
    memory = state["memory"].requires_grad_()
    y, _ = core.unroll(x.requires_grad_(), first, {**state, "memory": memory})
    into_x, into_memory = torch.autograd.grad(y[10:].sum(), [x, memory])
    assert not into_x[:10, 1].any() and into_x[10:, 1].any()
    assert not into_memory[:2].any() and into_memory[2:].flatten(1).any(1).all()


def test_a_seam_forgets_even_nan():
    core, x = make(2, 5)
    bad = {"memory": torch.full((B, 2, 5, SIZE), torch.nan), "held": torch.full((B, 1), 5.0)}
    first = torch.ones(T, B, dtype=torch.bool)
    assert core.unroll(x, first, bad)[0].isfinite().all()
    assert core.step(x[0], first[0], bad)[0].isfinite().all()


def test_start_of_the_core():
    core = GTrXL(SIZE_IN, SIZE, layers=2, heads=HEADS, window=5)
    state = core.initial_state(B)
    assert {name: leaf.shape for name, leaf in state.items()} == {
        "memory": (B, 2, 5, SIZE),
        "held": (B, 1),
    }
    assert all(leaf.dtype == torch.float32 and not leaf.any() for leaf in state.values())
    gate = core.blocks[0].gate
    assert (gate.from_y.bias.view(3, SIZE)[1] == -GATE_BIAS).all() and not gate.from_y.bias.view(
        3, SIZE
    )[[0, 2]].any()
    with pytest.raises(
        ValueError, match="core_heads: expected a divisor of core_size, which is 8, got 3"
    ):
        GTrXL(SIZE_IN, SIZE, heads=3)


def test_an_unknown_core_is_named_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"core 'gtrx' is unknown; known are none, lstm, .*did you mean 'gtrxl'"
    ):
        make_core(CoreOptions(kind="gtrx", size=SIZE), SIZE_IN)
