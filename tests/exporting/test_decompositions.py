"""Operators that ONNX cannot say, beside torch's in float64."""

from __future__ import annotations

import numpy as np
import torch

from equipoise.exporting.decompositions import TABLE, Decomposed, erfinv, log_ndtr


def test_the_inverse_of_the_error_function() -> None:
    uniform = torch.cat(
        [
            torch.linspace(2**-24, 1 - 2**-24, 200_001),
            torch.logspace(-7, -1, 2_000),
            1 - torch.logspace(-7, -1, 2_000),
        ]
    )
    x = uniform * 2 - 1
    np.testing.assert_allclose(erfinv(x), torch.erfinv(x.double()), rtol=2e-6, atol=1e-9)
    assert erfinv(torch.zeros(1)) == 0 and torch.isinf(erfinv(torch.ones(1)))


def test_the_logarithm_of_the_normal_distribution_function() -> None:
    x = torch.cat([torch.linspace(-40, 9, 100_001), torch.tensor([0.0, -0.0])])
    np.testing.assert_allclose(
        log_ndtr(x), torch.special.log_ndtr(x.double()), rtol=1e-6, atol=3e-7
    )


def test_they_are_called_in_place_of_torchs() -> None:
    x = torch.linspace(-0.9, 0.9, 7)
    with Decomposed():
        assert torch.equal(torch.erfinv(x), erfinv(x)) and torch.equal(
            torch.special.log_ndtr(x), log_ndtr(x)
        )
        assert torch.equal(x.erfinv(), erfinv(x))
    assert len(TABLE) == 3
