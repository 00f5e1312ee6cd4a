"""Predictions from a table of past cases, with the cases they came from: estimators for scikit-learn."""

from .classifier import AttentionClassifier
from .regressor import AttentionRegressor

__all__ = ["AttentionClassifier", "AttentionRegressor"]
