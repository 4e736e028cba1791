"""The decoder against a slow twin that knows no packing, no cache and no batches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equipoise.nets import attention, cache
from equipoise.nets import token_logp as head
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.layout import Layout
from equipoise.nets.pieces import neighbours, put_together, together
from equipoise.nets.precision import autocast
from equipoise.nets.token_logp import token_logp
from equipoise.types.packed import Packed

SHAPE = dict(
    vocab_size=37,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=40,
    max_position_embeddings=512,
)
FAMILIES = [
    dict(family="llama"),
    dict(family="qwen2", attention_bias=True, tie_word_embeddings=False),
    dict(family="qwen3", rope_theta=1e6, head_dim=8),
]


def make(dtype=torch.float64, seed=0, **changes):
    torch.manual_seed(seed)
    net = Decoder(DecoderConfig(**{**SHAPE, **changes})).to(dtype)
    for parameter in net.parameters():  # norms and biases, too, which begin at 1 and 0
        torch.nn.init.normal_(parameter, std=0.3)
    return net


def packed(prompts, samples, vocabulary=37, seed=0, tools=0.0):
    """Groups with prompts of these lengths, and of samples of these lengths each."""
    rng = np.random.default_rng(seed)
    tokens, positions, sample, number = [], [], [], 0
    for prompt, lengths in zip(prompts, samples, strict=True):
        tokens.append(rng.integers(0, vocabulary, prompt))
        positions.append(np.arange(prompt))
        sample.append(np.full(prompt, -1))
        for length in lengths:
            tokens.append(rng.integers(0, vocabulary, length))
            positions.append(prompt + np.arange(length))
            sample.append(np.full(length, number))
            number += 1
    token, position, sample = (
        np.concatenate(x).astype(np.int64) for x in (tokens, positions, sample)
    )
    n, counts = len(token), [len(x) for x in samples]
    return Packed(
        token=token,
        position=position,
        sample=sample,
        chosen=(sample >= 0) & (rng.random(n) >= tools),
        logp=np.zeros(n, np.float32),
        version=np.zeros(n, np.int64),
        reward=np.zeros(n, np.float32),
        prompt=np.repeat(prompts, counts).astype(np.int64),
        group=np.repeat(np.arange(len(prompts)), counts),
        stop=np.ones(number, np.int64),
        task=np.zeros(number, np.int64),
        refills=np.zeros(number, np.int64),
    )


def naive(net, token):
    """The hidden states [T, hidden] of one text."""
    c, n = net.config, len(token)

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * weight

    def rotated(x):
        angle = torch.arange(n).double()[:, None] / c.rope_theta ** (
            torch.arange(0, c.head_dim, 2).double() / c.head_dim
        )
        cos, sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = net.model.embed_tokens.weight[token]
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        y = norm(x, layer.input_layernorm.weight)
        heads = []
        for h in range(c.num_attention_heads):
            g = h // (c.num_attention_heads // c.num_key_value_heads)
            q = a.q_proj(y)[:, h * c.head_dim : (h + 1) * c.head_dim]
            k, v = (p(y)[:, g * c.head_dim : (g + 1) * c.head_dim] for p in (a.k_proj, a.v_proj))
            if c.family == "qwen3":
                q, k = norm(q, a.q_norm.weight), norm(k, a.k_norm.weight)
            scores = (rotated(q) @ rotated(k).T / c.head_dim**0.5).masked_fill(
                torch.ones(n, n).triu(1) > 0, -torch.inf
            )
            heads.append(scores.softmax(-1) @ v)
        x = x + a.o_proj(torch.cat(heads, -1))
        y = norm(x, layer.post_attention_layernorm.weight)
        x = x + m.down_proj(torch.nn.functional.silu(m.gate_proj(y)) * m.up_proj(y))
    return norm(x, net.model.norm.weight)


def texts(data):
    """The rows of each sample's prompt and of the sample."""
    for number, length in enumerate(data.prompt):
        rows = np.flatnonzero(data.sample == number)
        prompts = np.flatnonzero(data.sample[: rows[0]] < 0)
        yield np.concatenate([prompts[len(prompts) - length :], rows])


def naive_logp(net, data, temperature=1.0):
    """Log-probability and entropy [N] of the chosen tokens, a text at a time."""
    logp, entropy = (
        torch.zeros(len(data.token), dtype=torch.float64),
        torch.zeros(len(data.token), dtype=torch.float64),
    )
    for rows in texts(data):
        z = torch.log_softmax(
            naive(net, torch.as_tensor(data.token[rows])) @ net.head.T / temperature, -1
        )
        for at in range(1, len(rows)):
            if data.chosen[rows[at]]:
                logp[rows[at]] = z[at - 1, data.token[rows[at]]]
                entropy[rows[at]] = -(z[at - 1].exp() * z[at - 1]).sum()
    return logp, entropy


GROUPS = [
    ([5, 3], [[4, 1, 7], [2, 2]]),
    ([6, 6, 6], [[3, 3], [3, 3], [3, 3]]),  # no padding anywhere
    ([20, 1, 4], [[1, 30, 9], [70, 3], [5]]),
]


@pytest.mark.parametrize("groups", GROUPS, ids=str)
# short 1000: with a mask; small 0: batches
@pytest.mark.parametrize(("short", "small"), [(0, 2048), (0, 0), (1000, 2048)])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f["family"])
@pytest.mark.few(7)
def test_packed_tokens_have_what_each_text_alone_has(family, groups, small, short, monkeypatch):
    monkeypatch.setattr("equipoise.nets.layout.SMALL", small)
    monkeypatch.setattr("equipoise.nets.layout.SHORT", short)
    net, data = make(**family), packed(*groups, tools=0.2)
    want, want_entropy = naive_logp(net, data, 0.7)
    got, entropy = token_logp(net, data, temperature=0.7, chunk=5)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy, want_entropy, rtol=1e-6, atol=1e-6)
    weight = torch.randn(2, len(got), dtype=torch.float64)
    wanted = gradients(net, (want * weight[0] + want_entropy * weight[1]).sum())
    same(gradients(net, (got * weight[0] + entropy * weight[1]).sum()), wanted)


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


def same(got, want, within=1e-6):
    for name, gradient in want.items():
        error = (got[name] - gradient).norm() / gradient.norm()
        assert error <= within, f"{name}: {error}"


def cut(data, samples):
    """A group for each of these samples, in this order, with a prompt of its own."""
    parts = []
    for number in samples:
        rows = next(rows for n, rows in enumerate(texts(data)) if n == number)
        parts.append((rows, np.where(data.sample[rows] < 0, -1, len(parts))))
    rows = np.concatenate([rows for rows, _ in parts])
    columns = {
        name: getattr(data, name)[rows]
        for name in ("token", "position", "chosen", "logp", "version", "reward")
    }
    of = {name: getattr(data, name)[samples] for name in ("prompt", "stop", "task", "refills")}
    sample = np.concatenate([sample for _, sample in parts])
    return Packed(**columns, **of, sample=sample, group=np.arange(len(samples))), rows


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("short", [0, 1000])
@pytest.mark.few(6)
def test_a_shared_prompt_is_a_repeated_prompt_in_any_order(groups, short, monkeypatch):
    monkeypatch.setattr("equipoise.nets.layout.SHORT", short)
    net, data = make(), packed(*groups, tools=0.1)
    order = np.random.default_rng(0).permutation(len(data.prompt))
    repeated, rows = cut(data, order)
    value = torch.randn(2, len(data.token), dtype=torch.float64)
    got, entropy = token_logp(net, data)
    want, want_entropy = token_logp(net, repeated)
    torch.testing.assert_close(got[rows] * torch.as_tensor(repeated.chosen), want)
    mine = repeated.sample >= 0
    # also on last tokens, which predict nothing
    weight = torch.randn(int(mine.sum()), 24, dtype=torch.float64)
    last = (net.hidden(repeated)[mine] * weight).sum()
    wanted = gradients(net, (want * value[0, rows] + want_entropy * value[1, rows]).sum() + last)
    last = (net.hidden(data)[rows[mine]] * weight).sum()
    same(gradients(net, (got * value[0] + entropy * value[1]).sum() + last), wanted)


def test_another_device_computes_the_same(monkeypatch):
    net, data = make(), packed(*GROUPS[2])
    want = token_logp(net, data)[0]
    wanted = gradients(net, want.square().sum())
    monkeypatch.setattr("equipoise.nets.layout.SHORT", 0)
    monkeypatch.setattr(attention, "fused", lambda q: False)  # torch's kernel for CPUs
    got = token_logp(net, data)[0]
    torch.testing.assert_close(got, want)
    same(gradients(net, got.square().sum()), wanted)


def slow_varlen(q, k, v, starts, key_starts):
    """``varlen_attn`` with the last queries at the last keys, a sequence at a time."""
    outs = []
    for a, b, c, d in zip(starts, starts[1:], key_starts, key_starts[1:]):
        one, keys, values = q[a:b], k[c:d], v[c:d]
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (keys, values))
        scores = torch.einsum("lhd,thd->hlt", one, keys) / q.shape[2] ** 0.5
        later = torch.ones(b - a, d - c, dtype=torch.bool).triu(1 + (d - c) - (b - a))
        outs.append(
            torch.einsum("hlt,thd->lhd", scores.masked_fill(later, -torch.inf).softmax(-1), values)
        )
    return torch.cat(outs)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.few(3)
def test_sequences_for_varlen_attn_are_the_same_attention(groups):
    data = packed(*groups)
    layout = Layout.of(data)
    q, k, v = (torch.randn(len(data.token), heads, 6, dtype=torch.float64) for heads in (4, 2, 2))
    where = layout.varlen
    got = slow_varlen(
        q, k[where.keys], v[where.keys], where.starts.tolist(), where.key_starts.tolist()
    )
    torch.testing.assert_close(got, attention.packed_attention(q, k, v, layout))
    assert (
        where.longest == np.diff(where.starts).max()
        and where.longest_keys == np.diff(where.key_starts).max()
    )
    assert where.starts.dtype == where.key_starts.dtype == torch.int32


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f["family"])
@pytest.mark.few(3)
def test_bf16_is_near(family):
    net, data = make(torch.float32, **family), packed(*GROUPS[0])
    want = token_logp(net, data)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = token_logp(net, data)[0]
    assert got.dtype == torch.float32
    got.sum().backward()
    assert 0 < (got - want).abs().max() < 0.3
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters())


def test_logits_are_there_a_chunk_at_a_time(monkeypatch):
    sizes, inner = [], head._log_softmax
    monkeypatch.setattr(
        head, "_log_softmax", lambda h, *rest: sizes.append(len(h)) or inner(h, *rest)
    )
    net, data = make(), packed(*GROUPS[0])
    token_logp(net, data, chunk=5)[0].sum().backward()
    assert max(sizes) == 5 and sum(sizes) == 2 * data.chosen.sum()


def test_samples_that_do_not_fit_their_tokens_are_refused():
    data = packed(*GROUPS[0])
    with pytest.raises(
        ValueError, match=r"packed tokens: expected 9 of prompts and samples 0..4, got 8 of prompts"
    ):
        Layout.of(dataclasses.replace(data, prompt=data.prompt + np.array([0, 0, 0, 1, 1])))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f["family"])
def test_cached_decode_is_the_whole_forward(family):
    net = make(torch.float32, **family)
    lengths, more = torch.tensor([5, 1, 9]), 12
    token = torch.randint(0, 37, (3, 9 + more))
    room, slots = net.cache(5, 32), torch.tensor([3, 0, 4])
    prompt = torch.where(torch.arange(9) < lengths[:, None], token[:, :9], 36)
    hidden = [net.prefill(prompt, lengths, room, slots)]
    for step in range(more):
        position = lengths + step
        hidden.append(net.decode(token[torch.arange(3), position], position, room, slots))
    got = net.logits(torch.stack(hidden, 1)).log_softmax(-1)
    for row, length in enumerate(lengths.tolist()):
        want = naive(net.double(), token[row, : length + more])[length - 1 :] @ net.head.T
        net.float()
        assert (got[row] - want.log_softmax(-1)).abs().mean() <= 1e-5


def test_a_layout_says_what_predicts_and_can_be_kept():
    net, data = make(), packed([5, 3], [[4, 1, 7], [2, 2]])
    layout = Layout.of(data)
    assert layout.previous.tolist() == [
        0,
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        4,
        4,
        10,
        11,
        12,
        13,
        14,
        15,
        17,
        17,
        18,
        19,
        20,
        19,
        22,
    ]
    torch.testing.assert_close(token_logp(net, data, layout=layout), token_logp(net, data))


@pytest.mark.parametrize("sorted_slots", [False, True])
def test_decode_in_batches_of_like_length_is_decode_of_all(sorted_slots, monkeypatch):
    net, n = make(torch.float32), 12
    lengths = torch.tensor([30, 1, 17, 4, 29, 3, 2, 30, 16, 5, 1, 9])
    slots = lengths.argsort(stable=True).argsort() if sorted_slots else torch.randperm(n)
    token, hidden, found = torch.randint(0, 37, (n, 31)), [], []
    for small in (0, 10**6):
        monkeypatch.setattr(cache, "SMALL", small)
        room = net.cache(n, 32)
        net.prefill(token[:, :30], lengths, room, slots)
        found.append(room.batches(lengths, slots))
        hidden.append(net.decode(token[torch.arange(n), lengths], lengths, room, slots))
    torch.testing.assert_close(hidden[0], hidden[1])
    assert len(found[0]) > 2 and len(found[1]) == 1
    if sorted_slots:  # keys are read where they are
        assert all(isinstance(batch.slots, slice) for batch in found[0])


def test_a_cache_may_be_of_fewer_bits():
    net, token = make(torch.float32), torch.randint(0, 37, (2, 6))
    hidden = []
    for dtype in (None, torch.bfloat16):
        room = net.cache(2, 16, dtype)
        net.prefill(token, torch.tensor([6, 3]), room, torch.arange(2))
        hidden.append(net.decode(torch.tensor([5, 5]), torch.tensor([6, 3]), room, torch.arange(2)))
    assert hidden[1].dtype == torch.float32 and 0 < (hidden[0] - hidden[1]).abs().max() < 0.1


def test_a_copied_slot_goes_on_as_the_first():
    net, token = make(torch.float32), torch.randint(0, 37, (1, 6))
    room = net.cache(4, 16)
    net.prefill(token, torch.tensor([6]), room, torch.tensor([2]))
    room.copy(torch.tensor([2, 2]), torch.tensor([0, 3]), 6)
    hidden = net.decode(torch.tensor([5, 5, 5]), torch.full((3,), 6), room, torch.tensor([0, 2, 3]))
    torch.testing.assert_close(hidden, hidden[:1].expand(3, -1))


def test_weights_lie_together_until_they_are_moved():
    net = make(torch.float32)
    layers = [net.model.layers[0].self_attn.q_proj, net.model.layers[0].self_attn.k_proj]
    put_together(*layers)
    weights = [layer.weight for layer in layers]
    together = neighbours(weights)
    assert together.data_ptr() == weights[0].data_ptr()
    torch.testing.assert_close(together, torch.cat(weights))
    weights[1].data = weights[1].data.clone()
    assert neighbours(weights) is None


def test_the_weights_of_a_fresh_decoder_lie_together():
    net = Decoder(DecoderConfig(**SHAPE))
    mlp = net.model.layers[1].mlp
    assert neighbours([mlp.gate_proj.weight, mlp.up_proj.weight]) is not None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("bias", [False, True])
def test_neighbours_give_what_their_copy_gives(bias: bool, precision: Any) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(12, size, bias) for size in (8, 4, 4)]
    put_together(*layers)
    assert neighbours([one.weight for one in layers]) is not None
    x = torch.randn(6, 12, requires_grad=True)
    given = [x, *(weight for one in layers for weight in one.parameters())]
    slope = torch.randn(6, 16)

    def grads(joined: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        with autocast(precision):
            out = joined()
        return out, *torch.autograd.grad(out, given, slope.to(out.dtype))

    def copied() -> torch.Tensor:
        biases = torch.cat([one.bias for one in layers]) if bias else None
        return F.linear(x, torch.cat([one.weight for one in layers]), biases)

    for one, other in zip(grads(lambda: together(x, *layers)), grads(copied), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert type(together(x, *layers).grad_fn).__name__ == "_NeighboursBackward"
    for layer in layers:
        layer.requires_grad_(False)
    assert torch.equal(
        torch.autograd.grad(together(x, *layers), x, slope)[0],
        torch.autograd.grad(copied(), x, slope)[0],
    )
