"""Each private name of torch: it is there, and means what ``private/torch.py`` says."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import AllreduceOptions, HashStore  # type: ignore[attr-defined]
from torch.multiprocessing import reductions

from equipoise.private import torch as private


def test_a_constant_is_marked_as_torch_marks_it() -> None:
    def mine() -> float:
        return 1.0

    def theirs() -> float:
        return 1.0

    assert private.constant_when_compiled(mine) is mine
    torch.compiler.assume_constant_result(theirs)
    assert vars(mine) == vars(theirs) != {}


def test_changes_in_place_are_counted_by_all_views_of_a_memory() -> None:
    whole = torch.from_numpy(np.zeros((2, 3), np.float32))
    row = whole[1]
    before = private.changes(whole), private.changes(row)
    row + 1
    assert (private.changes(whole), private.changes(row)) == before
    row.add_(1)
    assert private.changes(whole) > before[0] and private.changes(row) > before[1]


@pytest.mark.thorough
def test_marking_a_constant_does_not_import_the_compiler() -> None:
    code = "import sys, equipoise.nets.torso; print('torch._dynamo' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_a_constant_is_asked_for_while_torch_traces() -> None:
    calls: list[int] = []

    @private.constant_when_compiled
    def scale() -> float:
        calls.append(1)
        return 2.0

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * scale()

    doubled = torch.compile(double, backend="eager", fullgraph=True)
    for _ in range(3):
        assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert len(calls) == 1


def test_compiling_is_told_of() -> None:
    seen: list[str] = []
    private.when_compiling(lambda: seen.append("begins"), lambda: seen.append("ends"))
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert seen == ["begins", "ends"]


# of the compiler's own imports
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_compiler_has_a_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert private.import_compiler() == tmp_path
    assert {"torch._dynamo", "torch._inductor.compile_fx"} <= sys.modules.keys()


def test_parameters_are_those_of_the_module_itself() -> None:
    layer = nn.Linear(2, 3, bias=False)
    found = private.parameters(layer)
    assert found["weight"] is layer.weight and found["bias"] is None and len(found) == 2
    assert private.parameters(nn.Sequential(layer)) == {}


def test_a_schema_says_what_is_written() -> None:
    aten = torch.ops.aten
    arguments = {x.name: (str(x.type), x.is_out) for x in private.schema(aten.tanh.out).arguments}
    assert arguments == {"self": ("Tensor", False), "out": ("Tensor", True)}
    assert private.schema(aten.tanh_.default).returns[0].alias_info.is_write
    assert private.schema(aten.tanh.default).returns[0].alias_info is None


def test_a_dispatch_mode_sees_every_operation() -> None:
    seen: list[Any] = []

    class Handler:
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Mode(Handler, private.DispatchMode): ...

    with torch.no_grad(), Mode():
        assert torch.ones(2).tanh().shape == (2,)
    assert seen[-1] == torch.ops.aten.tanh.default


def test_the_gradient_of_a_softmax() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    grad, out = torch.randn(2, 3, 5, dtype=torch.float64), x.softmax(-1)
    out.backward(grad)
    assert x.grad is not None
    torch.testing.assert_close(private.softmax_backward(grad, out.detach()), x.grad)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_its_gradient(masked: bool) -> None:
    q, k, v = (torch.randn(2, 3, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.zeros(2, 1, 4, 4, dtype=torch.float64) if masked else None
    if mask is not None:
        mask[0, ..., -1] = -torch.inf
    want = F.scaled_dot_product_attention(q, k, v, mask, is_causal=not masked)
    grad = torch.randn_like(want)
    want.backward(grad)
    with torch.no_grad():
        out, lse = private.attention(q, k, v, not masked, mask)
        found = private.attention_backward(grad, q, k, v, out, lse, not masked, mask)
        scores = q @ k.transpose(-1, -2) * 8**-0.5
        scores = (
            scores.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
            if mask is None
            else scores + mask
        )
    torch.testing.assert_close(out, want.detach())
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    for mine, x in zip(found, (q, k, v), strict=True):
        torch.testing.assert_close(mine, x.grad)


def test_a_group_of_gloo_at_an_address() -> None:
    store, timeout = HashStore(), timedelta(seconds=123)

    def joined(rank: int) -> tuple[torch.Tensor, Any]:
        group = private.gloo(store, rank, 2, address="127.0.0.1", timeout=timeout)
        x = torch.full((3,), float(rank + 1))
        group.allreduce([x], AllreduceOptions()).wait()
        return x, group.options

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(joined, range(2)))
    for x, options in found:
        assert x.tolist() == [3.0, 3.0, 3.0]
        assert options._timeout == timeout and len(options._devices) == 1
    with pytest.raises(RuntimeError):  # an address that this machine has not
        private.gloo(HashStore(), 0, 1, address="203.0.113.1", timeout=timeout)


def test_the_fields_of_a_cuda_handle() -> None:
    assert list(inspect.signature(reductions.rebuild_cuda_tensor).parameters) == [
        "tensor_cls",
        "tensor_size",
        "tensor_stride",
        "tensor_offset",
        "storage_cls",
        "dtype",
        "storage_device",
        "storage_handle",
        "storage_size_bytes",
        "storage_offset_bytes",
        "requires_grad",
        "ref_counter_handle",
        "ref_counter_offset",
        "event_handle",
        "event_sync_required",
    ]


@pytest.mark.gpu
def test_a_cuda_handle_has_those_fields() -> None:
    fields, counter = private.cuda_handle(torch.empty(192, dtype=torch.uint8, device="cuda"))
    number, handle, size, offset, again, at, event, sync = fields
    assert (
        again == counter
        and counter.startswith(b"/")
        and (number, size) == (0, 192)
        and offset % 64 == 0
    )
    assert [type(x) for x in (handle, at, event, sync)] == [bytes, int, bytes, bool]
