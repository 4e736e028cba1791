"""What each precision changes, and that nothing of it is left behind."""

from __future__ import annotations

import platform

import pytest
import torch

from equipoise.nets import precision
from equipoise.nets.attention import packed_attention
from equipoise.nets.layout import Layout
from equipoise.nets.packing import packed_texts
from equipoise.nets.precision import autocast, backward, exact

CPU = torch.device("cpu")


def exactness() -> str:
    return torch.get_float32_matmul_precision()


def test_medium_holds_within_and_ends_with_its_context_even_by_an_error() -> None:
    medium = autocast("medium")
    with medium, medium:
        assert exactness() == "medium"
        with exact(CPU):
            assert exactness() == "highest"
        assert exactness() == "medium"
    assert exactness() == "highest"
    with pytest.raises(ZeroDivisionError), medium:
        raise ZeroDivisionError
    assert exactness() == "highest"


@pytest.mark.parametrize(
    ("precision", "within"), [("fp32", "highest"), ("medium", "medium"), ("bf16", "highest")]
)
def test_a_gradient_is_as_exact_as_what_it_is_of(precision: str, within: str) -> None:
    with backward(precision):  # type: ignore[arg-type]
        assert exactness() == within
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="oneDNN's names of instruction sets are x86's",
)
@pytest.mark.parametrize(
    ("flags", "limit", "native"),
    [
        ("avx avx2 fma", "", False),
        ("avx2 avx512f avx512bw", "", False),
        ("avx2 avx512f avx512_bf16", "", True),
        ("avx2 amx_bf16", "", True),
        ("avx512_bf16", "AVX2", False),
        ("avx512_bf16", "avx512_core_vnni", False),
        ("avx512_bf16", "AVX512_CORE_BF16", True),
        ("avx512_bf16", "ALL", True),
    ],
)
def test_a_processor_has_bf16_where_its_flags_and_onednn_say_so(
    flags: str, limit: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert precision.native_bf16(flags) is native


@pytest.mark.parametrize("native", [True, False])
def test_without_the_instructions_a_run_is_warned(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda: native)
    told = precision.emulated("bf16", "fp32", "cpu") + precision.emulated("fp32", "bf16", "cpu")
    assert [text.partition(" is emulated")[0] for text in told] == (
        [] if native else ["warning: precision=bf16", "warning: acting_precision=bf16"]
    )
    assert not precision.emulated("fp32", "fp32", "cpu") + precision.emulated(
        "bf16", "fp32", "cuda"
    )


@pytest.mark.parametrize("keys", [2, 4])
def test_short_groups_are_attended_to_in_float32_on_a_cpu(keys: int) -> None:
    data = packed_texts([([1, 2, 3], [[4, 5], [6, 7, 8, 9]]), ([2], [[1, 1, 1]])])
    layout, count = Layout.of(data), len(data.token)
    assert layout.short
    torch.manual_seed(0)
    heads = (4, keys, keys)
    q, k, v = (torch.randn(count, n, 8, dtype=torch.bfloat16).requires_grad_() for n in heads)
    wide_q, wide_k, wide_v = (x.detach().float().requires_grad_() for x in (q, k, v))
    with autocast("bf16"):
        found = packed_attention(q, k, v, layout)
    wanted = packed_attention(wide_q, wide_k, wide_v, layout)
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted.to(torch.bfloat16))
    slope = torch.randn(found.shape).to(torch.bfloat16)
    found.backward(slope)
    wanted.backward(slope.float())
    for one, other in zip((q, k, v), (wide_q, wide_k, wide_v), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad.to(torch.bfloat16))
