"""The twelve classifiers of [H], table 3: trained on synthetic images, tested on real ones.

Settings are those of the authors' code, in the present scikit-learn and XGBoost. ``SUBSTITUTIONS`` lists the settings
that do not exist any more, and what replaces them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.common.errors import InputError
from kme_jax._numerics.precision import Progress

SUBSTITUTIONS = {
    "adaboost": "SAMME, the only algorithm that is left; the authors had SAMME.R",
    "logistic_regression": "one multinomial model, which multi_class='auto' chose",
    "lda": "n_components=9 left out: it is what ten classes have anyway, and refused where a sample has fewer",
    "all": "scikit-learn and XGBoost of today for scikit-learn 0.21 and XGBoost 0.90",
}


def _xgboost(seed: int) -> Any:
    try:
        from xgboost import XGBClassifier
    except ImportError as error:
        raise InputError('the classifier xgboost is not installed: pip install -e ".[experiments]"') from error
    return XGBClassifier(n_estimators=50, colsample_bytree=0.1, objective="multi:softprob", random_state=seed, n_jobs=1)


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

    return {
        "logistic_regression": lambda seed: LogisticRegression(solver="lbfgs", max_iter=5000, random_state=seed),
        "random_forest": lambda seed: RandomForestClassifier(
            n_estimators=100, class_weight="balanced", random_state=seed
        ),
        "gaussian_nb": lambda seed: GaussianNB(),
        "bernoulli_nb": lambda seed: BernoulliNB(binarize=0.5),
        "linear_svc": lambda seed: LinearSVC(max_iter=10_000, tol=1e-8, loss="hinge", random_state=seed),
        "decision_tree": lambda seed: DecisionTreeClassifier(
            criterion="gini", class_weight="balanced", random_state=seed
        ),
        "lda": lambda seed: LinearDiscriminantAnalysis(solver="eigen", tol=1e-8, shrinkage=0.5),
        "adaboost": lambda seed: AdaBoostClassifier(n_estimators=100, random_state=seed),
        "mlp": lambda seed: MLPClassifier(random_state=seed),
        "bagging": lambda seed: BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed),
        "gradient_boosting": lambda seed: GradientBoostingClassifier(subsample=0.1, n_estimators=50, random_state=seed),
        "xgboost": _xgboost,
    }


NAMES = (
    "logistic_regression", "random_forest", "gaussian_nb", "bernoulli_nb", "linear_svc", "decision_tree", "lda",
    "adaboost", "mlp", "bagging", "gradient_boosting", "xgboost",
)  # fmt: skip


_SLOW = ("linear_svc", "gradient_boosting", "adaboost", "mlp", "bagging")


def _predicted(name: str, train: np.ndarray, labels: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    if len(np.unique(labels)) == 1:  # some classifiers refuse to learn that
        return np.full(len(test), labels[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stopped early, as the authors' did
        return _models()[name](seed).fit(train, labels).predict(test)


def recalls(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, seed: int, name: str
) -> list[float]:
    """Trains one classifier: the share of the test images of each class, from 0 to the last, that it finds.

    Arguments are those of :func:`scores`. A class without test images has the recall 0.
    """
    found = _predicted(name, train, labels, test, seed) == truth
    sizes = np.bincount(truth)
    return (np.bincount(truth, weights=found) / np.maximum(sizes, 1)).tolist()


def _scores(
    name: str, train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, seed: int
) -> tuple[str, dict[str, float]]:
    from sklearn.metrics import f1_score

    started = time.perf_counter()
    predicted = _predicted(name, train, labels, test, seed)
    return name, {
        "accuracy": float(np.mean(predicted == truth)),
        "f1": float(f1_score(truth, predicted, average="macro", zero_division=0)),
        "seconds": time.perf_counter() - started,
    }


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
    """Trains and tests classifiers: {classifier: {"accuracy", "f1" (mean over classes), "seconds"}}.

    Args:
      train: pixels from 0 to 1, [n, 784].
      labels: labels of the training images, [n].
      test: pixels from 0 to 1, [m, 784].
      truth: labels of the test images, [m].
      seed: of the classifiers.
      names: which of ``NAMES``.
      num_processes: classifiers at a time.
      progress: called with (classifiers done, classifiers).

    Raises:
      InputError: if XGBoost is needed and not installed.
    """
    return in_processes(
        _scores, (train, labels, test, truth, seed), names=names, num_processes=num_processes, progress=progress
    )


def in_processes(
    score: Callable[..., tuple[str, dict[str, float]]],
    arguments: tuple[Any, ...],
    *,
    names: Iterable[str],
    num_processes: int,
    progress: Progress | None,
) -> dict[str, dict[str, float]]:
    """Scores of classifiers, some at a time: {classifier: scores}, in the order of ``names``.

    Args:
      score: (name, *arguments) -> the name, and the scores of this classifier.
      arguments: of ``score``.
      names: of the classifiers.
      num_processes: classifiers at a time.
      progress: called with (classifiers done, classifiers).
    """
    import joblib

    names = list(names)
    order = sorted(names, key=lambda name: name not in _SLOW)  # so that no slow one begins last
    tasks = (joblib.delayed(score)(name, *arguments) for name in order)
    scores_by_name: dict[str, dict[str, float]] = {}
    runs: Any = joblib.Parallel(n_jobs=num_processes, return_as="generator_unordered")(tasks)
    for name, of_classifier in runs:
        scores_by_name[name] = of_classifier
        if progress:
            progress(len(scores_by_name), len(names))
    return {name: scores_by_name[name] for name in names}
