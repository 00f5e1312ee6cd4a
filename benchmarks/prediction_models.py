"""The models that predictions are measured with: attendb's estimators, and their peers at the defaults of each library.

Every model is given the train rows to learn from. The val rows are for early stopping alone, and only where a library
stops by itself or keeps its best round when it is given such rows; ``protocol`` says it for each. Text columns are
categories: those of the train rows, where a library wants them in advance.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from prediction_data import SETS, Parts


class Fitted(NamedTuple):
    """What a fit leaves: answers for a frame; where a model has them, 90 % intervals, and five rows behind each."""

    predict: Callable[[pd.DataFrame], Any]
    interval: Callable[[pd.DataFrame], Any] | None = None
    explain: Callable[[pd.DataFrame], Any] | None = None


@dataclass(frozen=True)
class Model:
    """One column of the tables."""

    name: str
    fit: Callable[..., Fitted]  # of the parts, the seed, the threads; ours also of more parameters
    protocol: str
    libraries: tuple[str, ...]  # loaded before anything is timed
    ours: bool = False
    tuned: bool = False  # takes the best settings of each set


def attention(parts: Parts, seed: int, threads: int, *, similarity: str, **options: Any) -> Fitted:
    import torch

    from attendb.estimators import AttentionClassifier, AttentionRegressor

    torch.set_num_threads(threads)
    kind = AttentionClassifier if parts.classes else AttentionRegressor
    model = kind(similarity=similarity, random_state=seed, **options)
    model.fit(*parts.train, eval_set=parts.val)
    return Fitted(model.predict, None if parts.classes else partial(model.predict_interval, level=0.9), model.explain)


def nearest(parts: Parts, seed: int, threads: int) -> Fitted:
    from sklearn.compose import make_column_transformer
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    text = texts(parts)
    numbers = [name for name in parts.train[0] if name not in text]
    scaled = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), text))
    kind = KNeighborsClassifier if parts.classes else KNeighborsRegressor
    return Fitted(make_pipeline(scaled, kind(n_jobs=threads)).fit(*parts.train).predict)


def hist_gradient_boosting(parts: Parts, seed: int, threads: int) -> Fitted:
    """Its threads are those of OpenMP, which the environment limits."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if parts.classes else HistGradientBoostingRegressor
    known = categories(parts)
    (keys, values), (val_keys, val_values) = parts.train, parts.val
    stops = len(keys) > 10_000  # its own rule
    val = {"X_val": known(val_keys), "y_val": val_values} if stops else {}
    model = kind(random_state=seed).fit(known(keys), values, **val)
    return Fitted(lambda x: model.predict(known(x)))


def lightgbm(parts: Parts, seed: int, threads: int) -> Fitted:
    from lightgbm import LGBMClassifier, LGBMRegressor

    known = categories(parts)
    kind = LGBMClassifier if parts.classes else LGBMRegressor
    model = kind(random_state=seed, n_jobs=threads, verbosity=-1).fit(known(parts.train[0]), parts.train[1])
    return Fitted(lambda x: model.predict(known(x)))


def catboost(parts: Parts, seed: int, threads: int) -> Fitted:
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if parts.classes else CatBoostRegressor
    model = kind(random_seed=seed, thread_count=threads, verbose=False, allow_writing_files=False)
    model.fit(*parts.train, cat_features=texts(parts), eval_set=parts.val)
    return Fitted(lambda x: np.ravel(model.predict(x)))


def xgboost(parts: Parts, seed: int, threads: int) -> Fitted:
    from xgboost import XGBClassifier, XGBRegressor

    known = categories(parts)
    kind = XGBClassifier if parts.classes else XGBRegressor
    names, values = np.unique(parts.train[1], return_inverse=True)  # it takes classes as whole numbers from 0
    values = values if parts.classes else parts.train[1]
    model = kind(random_state=seed, n_jobs=threads, enable_categorical=True).fit(known(parts.train[0]), values)
    return Fitted(lambda x: names[model.predict(known(x))] if parts.classes else model.predict(known(x)))


def texts(parts: Parts) -> list[str]:
    """The columns of text."""
    return [name for name, kind in parts.train[0].dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]


def categories(parts: Parts) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Columns of text as categories: the different texts of the train rows; others are missing."""
    kinds = {name: pd.CategoricalDtype(sorted(parts.train[0][name].unique())) for name in texts(parts)}
    return lambda x: x.assign(**{name: pd.Categorical(x[name], dtype=kind) for name, kind in kinds.items()})


def _ours(name: str, similarity: str, *, tuned: bool = False, **options: Any) -> Model:
    protocol = f"{_said({'similarity': similarity, **options})}; val rows as eval_set"
    if tuned:
        others = "; ".join(f"{one.name}: {_said(one.best)}" for one in SETS if one.best)
        protocol += f"; where other settings served the val rows better or time allows more models, {others}"
    fit = partial(attention, similarity=similarity, **options)
    return Model(name, fit, protocol, ("attendb.estimators",), ours=True, tuned=tuned)


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in options.items())


MODELS = (
    _ours("bandwidth", "bandwidth"),
    _ours("linear", "linear"),
    _ours("deep", "deep"),
    _ours("best", "deep", tuned=True, n_models=5, max_seconds=1750),  # to fit takes longer than to learn
    Model("kNN", nearest, "scikit-learn, 5 neighbours; columns standardised, text one-hot; no val rows",
          ("sklearn.compose", "sklearn.neighbors")),
    Model("HistGB", hist_gradient_boosting, "scikit-learn; stops early on the val rows where it would by itself, "
          "that is from 10 000 rows on", ("sklearn.ensemble",)),
    Model("LightGBM", lightgbm, "100 rounds, as it does by default; no val rows", ("lightgbm",)),
    Model("CatBoost", catboost, "1 000 rounds, of which it keeps the best on the val rows, as it does when given some",
          ("catboost",)),
    Model("XGBoost", xgboost, "100 rounds, as it does by default; no val rows", ("xgboost",)),
)  # fmt: skip
