"""Operators that ONNX lacks, made of others; integers for which old runtimes lack kernels, as wider
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Giles 2010, "Approximating the erfinv function", single precision: polynomials in w = -log(1 -
# x^2), highest power first.
CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def erfinv(x: Tensor) -> Tensor:
    """The inverse of the error function, float32: within 4e-7 of it, relatively."""
    w = -((1.0 - x) * (1.0 + x)).log()
    near, far = _polynomial(CENTRE, w - 2.5), _polynomial(TAIL, w.clamp(min=5.0).sqrt() - 3.0)
    return torch.where(w < 5.0, near, far) * x


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


# Press et al. 1992, "Numerical Recipes", erfc by a Chebyshev fit in t = 1 / (1 + z / 2), within
# 1.2e-7 of it, relatively.
ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)


def log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the standard normal distribution function, however far out."""
    z = x.abs() / math.sqrt(2)
    t = 1.0 / (1.0 + 0.5 * z)
    tail = t.log() - z * z + _polynomial(ERFC, t) - math.log(2)  # of -|x|
    return torch.where(x < 0.0, tail, torch.log1p(-tail.exp()))


TABLE: dict[Any, Callable[..., Tensor]] = {
    torch.erfinv: erfinv,
    Tensor.erfinv: erfinv,
    torch.special.log_ndtr: log_ndtr,
}


class Decomposed(TorchFunctionMode):
    """A context in which these operators are called in place of torch's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TABLE.get(func, func)(*args, **(kwargs or {}))


# Operators of which onnxruntime 1.20, the lowest that an artifact asks for, has no kernel for
# narrow integers (for "Where" and bool neither): the inputs that share a type, and whether the
# output has that type.
NARROW = {
    "Where": ((1, 2), True),
    "Equal": ((0, 1), False),
    "Less": ((0, 1), False),
    "Greater": ((0, 1), False),
    "LessOrEqual": ((0, 1), False),
    "GreaterOrEqual": ((0, 1), False),
    "Add": ((0, 1), True),
    "Sub": ((0, 1), True),
    "Mul": ((0, 1), True),
    "Div": ((0, 1), True),
    "Min": ((0, 1), True),
    "Max": ((0, 1), True),
    "ReduceSum": ((0,), True),
    "Sign": ((0,), True),
    "Clip": ((0, 1, 2), True),
}
WIDER = {
    "BOOL": "INT32",
    "INT8": "INT32",
    "UINT8": "INT32",
    "INT16": "INT32",
    "UINT16": "INT32",
    "UINT32": "INT64",
    "UINT64": "INT64",
}


def widen(model: Any) -> None:
    """Let an ``onnx.ModelProto`` compute in int32 or int64, between casts, if old runtimes lack the
    narrower kernel.
    """
    from onnx import TensorProto, helper, shape_inference

    graph = shape_inference.infer_shapes(model).graph
    types = {
        one.name: one.type.tensor_type.elem_type
        for one in (*graph.input, *graph.value_info, *graph.output)
    }
    types |= {one.name: one.data_type for one in graph.initializer}
    wider = {TensorProto.DataType.Value(a): TensorProto.DataType.Value(b) for a, b in WIDER.items()}
    nodes: list[Any] = []
    for number, node in enumerate(model.graph.node):
        places, back = NARROW.get(node.op_type, ((), False))
        kind = next(
            (
                types[node.input[at]]
                for at in places
                if at < len(node.input) and node.input[at] in types
            ),
            0,
        )
        if kind not in wider:
            nodes.append(node)
            continue
        for at in places:
            if at < len(node.input) and node.input[at]:
                name = f"wide_{number}_{at}"
                nodes.append(helper.make_node("Cast", [node.input[at]], [name], to=wider[kind]))
                node.input[at] = name
        nodes.append(node)
        if back:
            narrow, node.output[0] = node.output[0], f"wide_{number}"
            nodes.append(helper.make_node("Cast", [node.output[0]], [narrow], to=kind))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]
