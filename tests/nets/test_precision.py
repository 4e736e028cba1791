"""What each precision changes, and that nothing of it is left behind."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize(("precision", "within"), [("fp32", "highest"), ("medium", "medium"), ("bf16", "highest")])
def test_a_gradient_is_as_exact_as_what_it_is_of(precision: str, within: str) -> None:
    with backward(precision):  # type: ignore[arg-type]
        assert exactness() == within
        assert not torch.is_autocast_enabled("cpu")
