"""What holds for every return: shapes and their errors, precision, no gradient, any memory layout,
inputs left alone.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from equipoise.returns import Returns, gae, lambda_returns, nstep, retrace, vtrace
from tests.returns.cases import case, same

Function = Callable[..., Returns]
FUNCTIONS: dict[str, tuple[Function, dict[str, Any], tuple[str, ...]]] = {
    "vtrace": (vtrace, {}, ("log_rho",)),
    "gae": (gae, {"lambda_": 0.9}, ()),
    "lambda_returns": (lambda_returns, {"lambda_": 0.9}, ()),
    "nstep": (nstep, {"n": 3}, ()),
    "nstep, all": (nstep, {"n": 99}, ()),
    "retrace": (retrace, {}, ("q", "log_rho")),
}
each_function = pytest.mark.parametrize(
    ("function", "settings", "more"), FUNCTIONS.values(), ids=FUNCTIONS
)


def large() -> Any:
    """A window with truncations, terminations and seams."""
    return next(
        c
        for c in map(case, range(100))
        if c.name.endswith("next_step, T=20, B=5") and not c.mask.all()
    )


def unchecked(function: Function) -> Function:
    """Below the test run's own shape checks, which would answer before the function does."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


@each_function
def test_no_gradient_flows_out(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    inputs = large().inputs(*more)
    inputs = {k: v.requires_grad_() if v.is_floating_point() else v for k, v in inputs.items()}
    got = function(**inputs, **settings)
    unmasked = function(**(inputs | {"mask": None}), **settings)
    assert not any(
        x.requires_grad for x in (got.target, got.advantage, unmasked.target, unmasked.advantage)
    )
    loss = ((inputs["value"][:-1] - got.target) ** 2).sum()
    loss.backward()
    torch.testing.assert_close(
        inputs["value"].grad[:-1], 2 * (inputs["value"][:-1] - got.target).detach()
    )


@each_function
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(
    function: Function, settings: dict[str, Any], more: tuple[str, ...], half: torch.dtype
) -> None:
    inputs = {
        k: v.to(half) if v.is_floating_point() else v for k, v in large().inputs(*more).items()
    }
    exact = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    got = function(**inputs, **settings)
    assert got.target.dtype == got.advantage.dtype == torch.float32
    assert same(got, function(**exact, **settings))
    assert same(function(**(inputs | {"reward": exact["reward"]}), **settings), got)  # mixed


@each_function
def test_float32_and_float64_stay(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    for dtype in (torch.float32, torch.float64):
        inputs = {
            k: v.to(dtype) if v.is_floating_point() else v for k, v in large().inputs(*more).items()
        }
        got = function(**inputs, **settings)
        assert got.target.dtype == got.advantage.dtype == dtype
    inputs = large().inputs(*more)
    mixed = function(**(inputs | {"discount": inputs["discount"].float()}), **settings)
    assert mixed.target.dtype == torch.float64


@each_function
def test_any_memory_layout_and_inputs_left_alone(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    inputs = large().inputs(*more)
    want = function(**inputs, **settings)
    by_stream = {k: v.T.contiguous().T for k, v in inputs.items()}  # memory of [B, T]
    strided = {
        k: v.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3] for k, v in inputs.items()
    }
    for layout in (by_stream, strided):
        assert not layout["value"].is_contiguous()
        before = {k: v.clone() for k, v in layout.items()}
        assert same(function(**layout, **settings), want)
        assert all(torch.equal(before[k], layout[k]) for k in before)
    got = function(**inputs, **settings)
    got.target.zero_(), got.advantage.zero_()  # fresh memory: not a view of what was put in
    assert same(function(**inputs, **settings), want)


@each_function
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e30])
def test_what_stands_on_a_seam_does_not_matter(
    function: Function, settings: dict[str, Any], more: tuple[str, ...], rubbish: float
) -> None:
    inputs = large().inputs(*more)
    clean = function(**inputs, **settings)
    for name in {"reward", "log_rho"} & inputs.keys():
        inputs[name] = torch.where(inputs["mask"], inputs[name], rubbish)
    assert same(clean, function(**inputs, **settings))


@each_function
def test_streams_do_not_touch(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    inputs = large().inputs(*more)
    together = function(**inputs, **settings)
    for b in range(5):
        alone = function(**{k: v[:, b : b + 1] for k, v in inputs.items()}, **settings)
        torch.testing.assert_close(
            alone.target[:, 0], together.target[:, b], rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            alone.advantage[:, 0], together.advantage[:, b], rtol=1e-12, atol=1e-12
        )


@each_function
def test_wrong_shapes_say_what_was_expected(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    inputs = large().inputs(*more)
    call = partial(unchecked(function), **settings)
    call(**inputs)
    for name in ("discount", *more):
        with pytest.raises(
            ValueError, match=rf"{name}: expected \[T, B\] = \[20, 5\] like reward, got \[20, 1\]"
        ):
            call(**(inputs | {name: inputs[name][:, :1]}))
    with pytest.raises(ValueError, match=r"value: expected \[T\+1, B\] = \[21, 5\], got \[20, 5\]"):
        call(**(inputs | {"value": inputs["value"][:-1]}))
    with pytest.raises(
        ValueError, match=r"mask: expected bool \[T, B\] = \[20, 5\], got torch.bool \[20\]"
    ):
        call(**(inputs | {"mask": inputs["mask"][:, 0]}))
    with pytest.raises(ValueError, match=r"mask: expected bool .* got torch.float32"):
        call(**(inputs | {"mask": inputs["mask"].float()}))
    with pytest.raises(ValueError, match=r"reward: expected \[T, B\] with T >= 1, got \[20\]"):
        call(**(inputs | {"reward": inputs["reward"][:, 0]}))
    with pytest.raises(ValueError, match=r"reward: expected \[T, B\] with T >= 1, got \[0, 5\]"):
        call(**(inputs | {"reward": inputs["reward"][:0]}))


@each_function
def test_keywords_only_and_a_frozen_result(
    function: Function, settings: dict[str, Any], more: tuple[str, ...]
) -> None:
    inputs = large().inputs(*more)
    with pytest.raises(TypeError):
        unchecked(function)(*inputs.values(), *settings.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        function(**inputs, **settings).target = inputs["reward"]  # type: ignore[misc]
