from typing import Any

import numpy as np
import pytest
import torch

from equipoise.returns import Returns, lambda_returns, nstep, vtrace
from tests.returns import oracle
from tests.returns.cases import agree, cases, same

DEFAULTS = {"lambda_": 1.0, "clip_rho": 1.0, "clip_c": 1.0, "clip_pg_rho": 1.0}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"lambda_": 0.7},
    {"clip_rho": 2.0, "clip_c": 1.5, "clip_pg_rho": 0.5},
    {"clip_rho": 0.3, "clip_c": 0.6, "clip_pg_rho": 3.0, "lambda_": 0.95},
    {"clip_rho": float("inf"), "clip_c": float("inf"), "clip_pg_rho": float("inf")},
    {"lambda_": 0.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_papers_double_sum_in_every_episode(settings: dict[str, Any]) -> None:
    for c in cases():
        agree(
            c,
            vtrace(**c.inputs("log_rho"), **settings),
            c.expect(oracle.vtrace, "log_rho", **(DEFAULTS | settings)),
        )


def test_float32_is_close() -> None:
    for c in cases(torch.float32):
        got = vtrace(**c.inputs("log_rho"))
        agree(c, got, c.expect(oracle.vtrace, "log_rho", **DEFAULTS), rtol=2e-5, atol=2e-5)


def test_on_policy_it_is_the_longest_return() -> None:
    for c in cases():
        got = vtrace(**c.inputs(), log_rho=torch.zeros_like(c.reward))
        longest = nstep(**c.inputs(), n=len(c.reward))
        agree(c, got, (longest.target.numpy(), longest.advantage.numpy()))
        shorter = vtrace(**c.inputs(), log_rho=torch.zeros_like(c.reward), lambda_=0.8).target
        torch.testing.assert_close(
            shorter, lambda_returns(**c.inputs(), lambda_=0.8).target, msg=c.name
        )


def test_by_hand_a_truncation_a_seam_and_a_termination() -> None:
    """gamma 1/2, on policy: rows real (truncated), seam, real, real (terminated), seam, real."""
    value = torch.tensor([[1.0], [10.0], [3.0], [4.0], [100.0], [6.0], [8.0]])
    got = vtrace(
        reward=torch.tensor([[1.0], [0.0], [2.0], [3.0], [0.0], [5.0]]),
        discount=0.5 * torch.tensor([[1.0], [1.0], [1.0], [0.0], [1.0], [1.0]]),
        value=value,
        log_rho=torch.zeros(6, 1),
        mask=torch.tensor([[True], [False], [True], [True], [False], [True]]),
    )
    # the truncated row sees the true final observation's 10 and nothing beyond; the terminated row
    # does not see the 100
    expected = torch.tensor([[1 + 0.5 * 10], [10.0], [2 + 0.5 * 3], [3.0], [100.0], [5 + 0.5 * 8]])
    torch.testing.assert_close(got.target, expected)
    torch.testing.assert_close(got.advantage, expected - value[:-1])
    assert got.advantage[1] == got.advantage[4] == 0


def test_without_a_mask_every_row_is_real() -> None:
    for c in cases():
        inputs = c.inputs("log_rho")
        everything = vtrace(**(inputs | {"mask": torch.ones_like(c.mask)}))
        default = vtrace(**(inputs | {"mask": None}))
        assert same(everything, default), c.name


def test_truncated_episodes_in_one_window_give_what_each_gives_alone() -> None:
    rng = np.random.default_rng(0)
    lengths = [3, 1, 6, 2]
    inputs: list[dict[str, Any]] = []
    alone: list[Returns] = []
    for length in lengths:
        rows: dict[str, Any] = {
            name: torch.from_numpy(rng.normal(size=(length, 1))) for name in ("reward", "log_rho")
        }
        rows |= {
            "value": torch.from_numpy(rng.normal(size=(length + 1, 1))),
            "discount": torch.full((length, 1), 0.9).double(),
        }
        alone.append(vtrace(**rows))
        seam = torch.zeros(1, 1).double()
        mask = torch.tensor([[True]] * length + [[False]])
        inputs.append(
            {k: torch.cat([v, seam + 0.9]) for k, v in rows.items() if k != "value"}
            | {"mask": mask}
        )
        inputs[-1]["value"] = rows["value"]
    window: dict[str, Any] = {
        k: torch.cat([i[k] for i in inputs]) for k in ("reward", "discount", "log_rho", "mask")
    }
    value = torch.cat([i["value"] for i in inputs] + [torch.randn(1, 1).double()])
    got = vtrace(**window, value=value)
    start = 0
    for length, want in zip(lengths, alone, strict=True):
        torch.testing.assert_close(
            got.target[start : start + length], want.target, rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(
            got.advantage[start : start + length], want.advantage, rtol=1e-12, atol=1e-12
        )
        start += length + 1
