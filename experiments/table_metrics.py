"""What classifiers learn from a synthetic table, from the codes of its schema.

Train on synthetic, test on real: area under the curve and F1 of three classifiers of scikit-learn. Of two classes the
second of the schema is the positive one; of more, both are means over the classes in the test rows, each against the
rest. A class that the training rows have not has area 0.5.
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
    """Codes as floats, [n, F]: NaN for a missing number."""
    features = codes[:, inputs].astype(np.float64)
    for values, column in zip(features.T, (schema.columns[j] for j in inputs), strict=True):
        if column.ordered and column.nullable:
            values[values == column.num_values] = np.nan
    return features


def _models(schema: Schema, inputs: list[int], seed: int) -> dict[str, Any]:
    """The classifiers, with scikit-learn's defaults but for what is said here, for :func:`_features`."""
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
        # Without regularisation it diverges where a class is very rare: on the real rows of intrusion, area 0.71 not 1.
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
      schema: of both.
      target: the column to be predicted.
      train: codes, [n, C].
      test: codes, [m, C].
      seed: of the classifiers.
    """
    from sklearn.metrics import f1_score, roc_auc_score

    answer = schema.index(target)
    inputs = [j for j in range(len(schema.columns)) if j != answer]
    labels, truth = train[:, answer], test[:, answer]
    # Gradient boosting sets rows of each class aside: one that has a single row is as good as absent.
    learnt = np.flatnonzero(np.bincount(labels)[labels] > 1)
    labels = labels[learnt]
    num_classes = schema.columns[answer].num_codes
    judged = [1] if num_classes == 2 else np.unique(truth)
    train_features, test_features = (_features(schema, codes, inputs) for codes in (train[learnt], test))
    found = {}
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
        found[name] = {
            "auc": float(np.mean([roc_auc_score(truth == c, scores[:, c]) for c in judged])),
            "f1": float(np.mean([f1_score(truth == c, predicted == c, zero_division=0) for c in judged])),
        }
    return found
