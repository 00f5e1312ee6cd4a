"""The estimators inside scikit-learn: its own checks, pipelines, searches, clones and pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attendb.estimators import AttentionClassifier, AttentionRegressor

KINDS = [AttentionRegressor, AttentionClassifier]


@parametrize_with_checks([kind(similarity) for similarity in ("bandwidth", "linear") for kind in KINDS])
def test_every_check_of_scikit_learn(estimator, check):
    check(estimator)
