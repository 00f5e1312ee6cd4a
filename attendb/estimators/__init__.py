"""Predictions from a table of past cases, with the cases they came from: estimators for scikit-learn."""

from .classifier import AttentionClassifier
from .density import KernelDensity
from .regressor import AttentionRegressor
from .smoothing import KernelSmoother

__all__ = ["AttentionClassifier", "AttentionRegressor", "KernelDensity", "KernelSmoother"]
