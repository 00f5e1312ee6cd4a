"""What learning makes small: squared errors, Huber's loss, the log loss, and what the choice of one does."""

from __future__ import annotations

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch

from attendb.estimators import AttentionClassifier, AttentionRegressor, deep
from attendb.estimators.training import losses

ONE = torch.ones(100, dtype=torch.float64)


def errors_of(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_squared_errors_are_averaged_over_the_outcomes():
    errors = errors_of([[1.0, 2.0]] * 99 + [[-50.0, 2.0]])
    found = losses("squared_error", errors, torch.zeros_like(errors), ONE)
    assert found[:-1].tolist() == [2.5] * 99
    assert found[-1] == (2500 + 4) / 2


def test_large_errors_count_by_their_size():
    errors = errors_of([[1.0, 2.0]] * 99 + [[-50.0, 2.0]])
    found = losses("huber", errors, torch.zeros_like(errors), ONE)
    most = 3 * math.sqrt(math.pi / 2) * (99 + 50) / 100
    assert found[:-1].tolist() == pytest.approx([(1 + 4) / 2] * 99)
    assert found[-1].item() == pytest.approx((2 * most * 50 - most**2 + 4) / 2)


def test_a_large_error_pulls_no_harder_than_one_of_three_sigma():
    predicted = errors_of([[1.0]] * 99 + [[-50.0]]).requires_grad_()
    losses("huber", predicted, torch.zeros(100, 1, dtype=torch.float64), ONE).sum().backward()
    assert predicted.grad is not None
    assert predicted.grad[:-1, 0].tolist() == [2.0] * 99
    assert predicted.grad[-1].item() == pytest.approx(-2 * 3 * math.sqrt(math.pi / 2) * 1.49)


def test_a_weighted_error_is_the_error_so_many_times():
    errors, weights = errors_of([[0.5], [-1.0], [9.0]]), torch.tensor([5.0, 7.0, 0.0])
    copies = torch.cat([errors[:1]] * 5 + [errors[1:2]] * 7 + [errors[2:]])
    by_copies = losses("huber", copies, torch.zeros_like(copies), torch.tensor([1.0] * 12 + [0.0]))
    assert torch.allclose(losses("huber", errors, torch.zeros_like(errors), weights), by_copies[[0, 5, 12]])
    assert (losses("huber", errors[:0], errors[:0], weights[:0]) == 0).all()
    assert (losses("huber", 0 * errors, 0 * errors, 0 * weights) == 0).all()


def test_the_log_loss_of_a_class_that_no_case_votes_for_is_finite():
    right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert losses("log_loss", right, right, ONE[:1]).item() == pytest.approx(-math.log(1 - 0.001 / 2), abs=1e-6)
    assert losses("log_loss", wrong, right, ONE[:1]).item() == pytest.approx(math.log(2 / 0.001), abs=1e-3)


def wave(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X.sum(1))


def errors_by_loss(X: np.ndarray, y: np.ndarray, new: np.ndarray, similarity: str) -> dict[str, np.ndarray]:
    """Distances of the predictions from what a case without noise would have."""
    models = {loss: AttentionRegressor(similarity, loss=loss, random_state=0) for loss in ("squared_error", "huber")}
    return {loss: np.abs(model.fit(X, y).predict(new) - wave(new)) for loss, model in models.items()}


def test_three_wild_outcomes_do_not_widen_every_window():
    X, new = np.random.default_rng(2).uniform(-3, 3, (2, 800, 1))
    found = errors_by_loss(X, wave(X) + 30 * (np.arange(800) < 3), new, "bandwidth")
    assert np.median(found["huber"]) < 0.6 * np.median(found["squared_error"])


def test_wild_outcomes_lead_deep_less_by_hubers_loss(monkeypatch):
    monkeypatch.setattr(deep, "Recipe", partial(deep.Recipe, checks=8))
    random = np.random.default_rng(0)
    X, new = random.uniform(-2, 2, (2, 300, 2))
    y = np.where(random.random(300) < 0.02, 30 * random.normal(size=300), wave(X))
    found = errors_by_loss(X, y, new, "deep")
    assert found["huber"].mean() < 0.8 * found["squared_error"].mean()


def test_the_loss_is_a_choice_for_numbers_alone():
    assert "loss" not in inspect.signature(AttentionClassifier).parameters
    assert "loss" in AttentionRegressor().get_params()


def test_the_two_estimators_take_the_same_parameters_otherwise():
    numbers, classes = (inspect.signature(kind).parameters for kind in (AttentionRegressor, AttentionClassifier))
    assert {name: one.default for name, one in numbers.items() if name != "loss"} == {
        name: one.default for name, one in classes.items()
    }


def test_the_loss_is_saved_with_the_model(tmp_path):
    model = AttentionRegressor(loss="huber", random_state=0).fit(np.arange(9.0)[:, None], np.arange(9.0))
    model.save(tmp_path / "model")
    assert AttentionRegressor.load(tmp_path / "model").loss == "huber"
