"""The read-out of local lines: values, squared weights, gradients, and what an offset costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attendb as ad
from attendb.estimators.local_linear import read_out, squared_weights, value_map


def answer(q: Tensor, k: Tensor, y: Tensor, thin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Values and Σ l² at the queries."""
    thin = torch.zeros(len(q), dtype=torch.bool) if thin is None else thin
    columns = value_map(k, y)
    pooled, twice = (ad.attend(q, k, columns, score=ad.Gaussian(1.0), weighting=ad.Softmax(t)) for t in (1.0, 0.5))
    share = (twice.log_normalizer - 2 * pooled.log_normalizer).exp()
    value = read_out(pooled.value, q, y.shape[1], 1e-8, thin)
    return value, squared_weights(pooled.value, twice.value, q, share, 1e-8, thin)


def rows(m: int, d: int, v: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = {"dtype": torch.float64, "generator": generator}
    return 0.5 * torch.randn(5, d, **made), torch.randn(m, d, **made), torch.randn(m, v, **made)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_values_and_squared_weights_are_those_of_weighted_least_squares(d):
    q, k, y = rows(60, d, 2)
    value, squares = answer(q, k, y)
    alpha = torch.softmax(-0.5 * torch.cdist(q, k) ** 2, 1)
    for i in range(5):
        design = torch.cat([torch.ones(60, 1, dtype=torch.float64), k - q[i]], 1)
        weights = torch.linalg.inv(design.T @ (alpha[i, :, None] * design))[0] @ (design * alpha[i, :, None]).T
        torch.testing.assert_close(value[i], weights @ y, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(squares[i], weights.square().sum(), rtol=1e-6, atol=0)


def test_thin_windows_take_the_mean():
    q, k, y = rows(60, 2)
    alpha = torch.softmax(-0.5 * torch.cdist(q, k) ** 2, 1)
    value, squares = answer(q, k, y, torch.tensor([True, False, True, False, False]))
    line, line_squares = answer(q, k, y)
    torch.testing.assert_close(value[[0, 2]], (alpha @ y)[[0, 2]])
    torch.testing.assert_close(squares[[0, 2]], alpha.square().sum(1)[[0, 2]])
    assert torch.equal(value[[1, 3, 4]], line[[1, 3, 4]]) and torch.equal(squares[[1, 3, 4]], line_squares[[1, 3, 4]])


def test_gradients_pass():
    q, k, y = (x.requires_grad_() for x in rows(12, 2))
    assert torch.autograd.gradcheck(lambda *given: answer(*given), (q, k, y))
