"""The estimators inside scikit-learn: its own checks, pipelines, searches, clones and pickles."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from attendb.estimators import AttentionClassifier, AttentionRegressor

KINDS = [AttentionRegressor, AttentionClassifier]


@parametrize_with_checks([kind(similarity) for similarity in ("bandwidth", "linear") for kind in KINDS])
def test_every_check_of_scikit_learn(estimator, check):
    check(estimator)
