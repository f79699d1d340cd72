"""The twelve classifiers of [H], table 1: trained on synthetic rows of a table, tested on real ones.

Settings are those of the authors' code for tables: defaults of scikit-learn 0.21 and XGBoost 0.90, in the present
versions. ``SUBSTITUTIONS`` lists what differs. The authors compute the areas from predicted labels (``hard_roc``,
``hard_prc``), and not from scores (``roc``, ``prc``): both are here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.common.errors import InputError
from experiments.merf.classifiers import NAMES, in_processes
from kme_jax._numerics.precision import Progress

SUBSTITUTIONS = {
    "adaboost": "SAMME, the only algorithm that is left; the authors had SAMME.R",
    "logistic_regression": "one multinomial model for several classes; the authors had one against the rest",
    "bernoulli_nb": "a number is cut in the middle of its bounds; the authors cut raw numbers at 0",
    "all": "numbers are scaled to [0, 1] and categories are one-hot; the authors had raw numbers and codes",
    "versions": "scikit-learn and XGBoost of today for scikit-learn 0.21 and XGBoost 0.90, with the defaults of those",
}
METRICS = ("roc", "prc", "hard_roc", "hard_prc", "f1")


def _xgboost(seed: int) -> Any:
    try:
        from xgboost import XGBClassifier
    except ImportError as error:
        raise InputError('the classifier xgboost is not installed: pip install -e ".[experiments]"') from error
    return XGBClassifier(n_estimators=100, max_depth=3, learning_rate=0.1, random_state=seed, n_jobs=1)


def _models() -> dict[str, Callable[[int], Any]]:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import (
        AdaBoostClassifier,
        BaggingClassifier,
        GradientBoostingClassifier,
        RandomForestClassifier,
    )
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import BernoulliNB, GaussianNB
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import LinearSVC
    from sklearn.tree import DecisionTreeClassifier

    dual: Any = True  # the stubs of scikit-learn know words only
    return {
        "logistic_regression": lambda seed: LogisticRegression(solver="lbfgs", max_iter=2000, random_state=seed),
        "random_forest": lambda seed: RandomForestClassifier(n_estimators=10, random_state=seed),
        "gaussian_nb": lambda seed: GaussianNB(),
        "bernoulli_nb": lambda seed: BernoulliNB(alpha=0.02, binarize=0.5),
        "linear_svc": lambda seed: LinearSVC(dual=dual, random_state=seed),
        "decision_tree": lambda seed: DecisionTreeClassifier(random_state=seed),
        "lda": lambda seed: LinearDiscriminantAnalysis(),
        "adaboost": lambda seed: AdaBoostClassifier(random_state=seed),
        "mlp": lambda seed: MLPClassifier(random_state=seed),
        "bagging": lambda seed: BaggingClassifier(random_state=seed),
        "gradient_boosting": lambda seed: GradientBoostingClassifier(random_state=seed),
        "xgboost": _xgboost,
    }


def _predictions(
    name: str,
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    num_classes: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted labels, [m], and a score of every class, [m, classes]. A class without training rows has the lowest."""
    known, places = np.unique(labels, return_inverse=True)  # XGBoost wants labels without gaps
    soft = np.full((len(test), num_classes), -np.inf)
    if len(known) == 1:  # some classifiers refuse to learn that
        soft[:, known] = 0
        return np.full(len(test), known[0]), soft
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stopped early, as the authors' did
        model = _models()[name](seed).fit(train, places)
        predicted = known[model.predict(test)]
        values = np.asarray(
            model.predict_proba(test) if hasattr(model, "predict_proba") else model.decision_function(test)
        )
    soft[:, known] = values if values.ndim == 2 else np.stack([-values, values], axis=1)
    return predicted, soft


def _areas(positive: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Area under the ROC curve, and average precision, of values [m] for rows that are positive or not, [m]."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    values = np.nan_to_num(np.asarray(values, np.float64))  # a score of −∞ becomes the lowest number
    return float(roc_auc_score(positive, values)), float(average_precision_score(positive, values))


def judge(truth: np.ndarray, predicted: np.ndarray, soft: np.ndarray) -> dict[str, float]:
    """All ``METRICS`` of predictions. Of two classes, 1 is the positive one.

    For more classes, areas are means over the classes of the test rows, each against the rest, and F1 is the mean over
    classes weighed by their test rows.

    Args:
      truth: labels of the test rows, [m].
      predicted: their predicted labels, [m].
      soft: a score for each class, [m, classes].
    """
    from sklearn.metrics import f1_score

    binary = soft.shape[1] == 2
    judged = [1] if binary else np.unique(truth)
    by_score = np.mean([_areas(truth == c, soft[:, c]) for c in judged], axis=0)
    by_label = np.mean([_areas(truth == c, predicted == c) for c in judged], axis=0)
    options: dict[str, Any] = {"average": "binary" if binary else "weighted", "zero_division": 0}
    f1 = f1_score(truth, predicted, **options)
    return dict(zip(METRICS, map(float, (*by_score, *by_label, f1)), strict=True))


def _scores(
    name: str, train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, num_classes: int, seed: int
) -> tuple[str, dict[str, float]]:
    started = time.perf_counter()
    predicted, soft = _predictions(name, train, labels, test, num_classes, seed)
    return name, judge(truth, predicted, soft) | {"seconds": time.perf_counter() - started}


def scores(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    truth: np.ndarray,
    seed: int,
    *,
    names: Iterable[str] = NAMES,
    num_processes: int = 1,
    progress: Progress | None = None,
) -> dict[str, dict[str, float]]:
    """Trains and tests classifiers: {classifier: {"roc", "prc", "hard_roc", "hard_prc", "f1", "seconds"}}.

    See :func:`judge` for the scores. A classifier that gets one class only has the area 0.5 under the ROC curve.

    Args:
      train: design matrix of the training rows, float32 [n, F] without NaN.
      labels: classes of the training rows, from 0 to the number of classes minus 1, [n].
      test: design matrix of the test rows, [m, F].
      truth: classes of the test rows, [m].
      seed: of the classifiers.
      names: which of ``NAMES``.
      num_processes: classifiers at a time.
      progress: called with (classifiers done, classifiers).

    Raises:
      InputError: XGBoost is needed and not installed, or the test rows have one class only.
    """
    labels, truth = np.asarray(labels), np.asarray(truth)
    if len(np.unique(truth)) < 2:
        raise InputError("the test rows have one class only: take more rows, or another seed")
    num_classes = max(2, 1 + int(max(labels.max(), truth.max())))
    return in_processes(
        _scores, (train, labels, test, truth, num_classes, seed), names=names, num_processes=num_processes,
        progress=progress,
    )  # fmt: skip
