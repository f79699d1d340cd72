"""What classifiers learn from the codes of a synthetic table.

Three classifiers of scikit-learn are trained on synthetic rows and tested on real rows. Scores are the area under the
curve and F1. Of two classes, the second of the schema is the positive one. For more classes, both scores are means over
the classes of the test rows, each against the rest. A class without training rows has area 0.5.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from kme_jax.table.schema import Schema

CLASSIFIERS = {
    "logistic_regression": "logistic regression",
    "random_forest": "random forest",
    "gradient_boosting": "gradient boosting",
}
_MAX_CATEGORIES = 255  # of HistGradientBoostingClassifier


def _features(schema: Schema, codes: np.ndarray, inputs: list[int]) -> np.ndarray:
    """Codes as floats, [n, F]. A missing number is NaN."""
    features = codes[:, inputs].astype(np.float64)
    for values, column in zip(features.T, (schema.columns[j] for j in inputs), strict=True):
        if column.ordered and column.nullable:
            values[values == column.num_values] = np.nan
    return features


def _models(schema: Schema, inputs: list[int], seed: int) -> dict[str, Any]:
    """The classifiers, which take :func:`_features`. Options that are not given here are scikit-learn's defaults."""
    # Imported here: the memory of a release, in a process that imports this module, is measured.
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = [schema.columns[j] for j in inputs]
    ordered = [i for i, column in enumerate(columns) if column.ordered]
    unordered = [i for i, column in enumerate(columns) if not column.ordered]
    scaled = make_pipeline(SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler())
    design = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), unordered), (scaled, ordered))
    return {
        "logistic_regression": make_pipeline(design, LogisticRegression(max_iter=1000)),
        "random_forest": RandomForestClassifier(n_jobs=-1, random_state=seed),
        # Without regularisation it diverges if a class is very rare: the real rows of intrusion give area 0.71, not 1.
        "gradient_boosting": HistGradientBoostingClassifier(
            l2_regularization=1.0,
            categorical_features=[i for i in unordered if columns[i].num_codes <= _MAX_CATEGORIES],
            random_state=seed,
        ),
    }


def utility(
    schema: Schema, target: str, train: np.ndarray, test: np.ndarray, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Areas under the curve and F1 on test rows after training on others, {classifier: {"auc", "f1"}}.

    Args:
      schema: of both tables.
      target: name of the column that the classifiers predict.
      train: codes, [n, C].
      test: codes, [m, C].
      seed: of the classifiers.
    """
    from sklearn.metrics import f1_score, roc_auc_score

    answer = schema.index(target)
    inputs = [j for j in range(len(schema.columns)) if j != answer]
    labels, truth = train[:, answer], test[:, answer]
    # Gradient boosting sets rows of each class aside, so classes with a single row are dropped.
    learnt = np.flatnonzero(np.bincount(labels)[labels] > 1)
    labels = labels[learnt]
    num_classes = schema.columns[answer].num_codes
    judged = [1] if num_classes == 2 else np.unique(truth)
    train_features, test_features = (_features(schema, codes, inputs) for codes in (train[learnt], test))
    scores_by_name = {}
    for name, model in _models(schema, inputs, seed).items():
        scores = np.zeros((len(test), num_classes))
        if len(np.unique(labels)) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a solver that stopped early, on rows that nothing can be learnt from
                model.fit(train_features, labels)
            scores[:, model.classes_] = model.predict_proba(test_features)
        else:
            scores[:, labels[:1]] = 1
        predicted = scores.argmax(axis=1)
        scores_by_name[name] = {
            "auc": float(np.mean([roc_auc_score(truth == c, scores[:, c]) for c in judged])),
            "f1": float(np.mean([f1_score(truth == c, predicted == c, zero_division=0) for c in judged])),
        }
    return scores_by_name
