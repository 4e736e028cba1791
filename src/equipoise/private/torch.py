"""Private names of torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store as Store  # noqa: PLC0414  # handed on

__all__ = [
    "DispatchMode",
    "attention",
    "attention_backward",
    "changes",
    "constant_when_compiled",
    "cuda_handle",
    "gloo",
    "import_compiler",
    "open_cuda_handle",
    "parameters",
    "schema",
    "softmax_backward",
    "when_compiling",
]
# ``DispatchMode``: a context whose ``__torch_dispatch__`` is called in place of every operation on
# tensors. Tried: 2.13. If it is gone: ``Tape`` (actors/forward/lean.py) has to refuse, and actors
# use the plain forward pass.

F = TypeVar("F", bound=Callable[..., object])


def constant_when_compiled(function: F) -> F:
    """Mark a function so that torch.compile calls it once, while it traces, and keeps the result as
    a constant.

    ``torch.compiler.assume_constant_result`` does the same, but it imports torch._dynamo: 1.1 s of
    the start of each process. Tried: 2.13. If it is gone: call
    ``torch.compiler.assume_constant_result`` in ``nets/compiled.py``, before it compiles.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def changes(tensor: Tensor) -> int:
    """How often a tensor, or another view of its memory, was changed in place.

    Tried: 2.13. If it is gone: a part of the rewards that changes its data is not found out
    (``unchanged`` in learners/reward_sum.py).
    """
    return tensor._version


def when_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Register two functions: one called whenever ``torch.compile`` begins to compile in this
    process, one when it ends.

    Tried: 2.13. If it is gone: give a worker that compiles more time (``COMPILE_S`` of
    runtime/process/worker.py) at its start.
    """
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(lambda _: begins())
    callback_handler.register_end_callback(lambda _: ends())


def import_compiler() -> Path:
    """Import torch's compiler -> the folder in which it keeps what it compiled.

    Tried: 2.13. If it is gone: return the folder that ``TORCHINDUCTOR_CACHE_DIR`` names, after
    compiling a small function.
    """
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch._inductor.compile_fx")
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def parameters(module: nn.Module) -> dict[str, Any]:
    """The parameters of a module itself by name, None for a missing parameter.

    Reading them past ``Module.__getattr__`` saves a tiny network 5 us of 85 a call. Tried: 2.13. If
    it is gone: ``getattr``.
    """
    found: dict[str, Any] = module._parameters
    return found


def schema(operator: Any) -> Any:
    """The schema of an operator of aten: ``arguments`` and ``returns`` with ``name``, ``type``,
    ``is_out``, ``alias_info``.

    Tried: 2.13. If it is gone: parse ``str`` of it, which ``torch.library`` documents; or let
    ``Tape`` refuse.
    """
    return operator._schema


def softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    """The gradient of the input of a softmax over the last dimension, from the gradient of its
    output ``out``.

    Tried: 2.13. If it is gone: ``out * (grad - (grad * out).sum(-1, keepdim=True))``, with two more
    tensors of that size.
    """
    found: Tensor = torch.ops.aten._softmax_backward_data(grad, out, -1, out.dtype)
    return found


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention by torch's kernel of CPUs, with the log-sum-exps of the scores; the public function
    does not return those.

    Tried: 2.13. If it is gone: let ``fused`` (nets/attention.py) return False; the same is then
    computed with plain products.
    """
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask
    )
    return found[0], found[1]


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v of ``attention``. Tried: 2.13. If it is gone: as there."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = backward(grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask)
    return dq, dk, dv


def gloo(store: Store, rank: int, size: int, *, address: str, timeout: timedelta) -> Any:
    """A group of gloo on the network interface of ``address``; returns once all ``size`` ranks are
    there.

    The public ``init_process_group`` makes one group for all of the process, and takes no address.
    Tried: 2.13. If it is gone: that function with ``GLOO_SOCKET_IFNAME``; then a process cannot
    leave a group in which another one died, and must end.
    """
    # not in every build of torch, and a learner alone does not need it
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    return ProcessGroupGloo(store, rank, size, options)


def cuda_handle(memory: Tensor) -> tuple[list[Any], bytes]:
    """The handle [texts, numbers, bytes] by which another process opens memory [n] uint8 of a GPU,
    and the name of the file in /dev/shm with which torch counts its users.

    ``torch.multiprocessing`` sends the same through a pickle. Tried: 2.13. If it is gone:
    ``inference=local``, which has no weights on the device, until the new order of the fields
    stands here.
    """
    from torch.multiprocessing import reductions

    reduce: Any = reductions.reduce_tensor
    _, (*_, number, handle, size, offset, _, counter, at, event, sync) = reduce(memory)
    return [number, handle, size, offset, counter, at, event, sync], counter


def open_cuda_handle(handle: list[object]) -> Tensor:
    """The memory [n] uint8 that ``cuda_handle`` is of, in another process. Tried: 2.13. If it is
    gone: as there.
    """
    from torch.multiprocessing import reductions

    device, there, size, offset, *users = handle
    rebuild: Any = reductions.rebuild_cuda_tensor
    found: Tensor = rebuild(
        Tensor,
        (size,),
        (1,),
        0,
        torch.UntypedStorage,
        torch.uint8,
        device,
        there,
        size,
        offset,
        False,
        *users,
    )
    return found
