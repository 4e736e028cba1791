"""What each precision changes, and that nothing of it is left behind."""

from __future__ import annotations

import platform

import pytest
import torch

from equipoise.nets import precision
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
