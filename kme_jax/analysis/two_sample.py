"""Whether the private rows of a release come from the same distribution as public rows, or as those of another release.

Let d be the difference of the mean features of both sides. If both distributions are the same, d is approximately
normal with mean 0 and covariance V = cΣ + σ² I. Here Σ is the covariance of the features of one row, c is 1/N + 1/n for
N and n rows, and σ² is the variance of the noise, which is known. In the eigenvectors of Σ, with eigenvalues λ,

    z = d / √(cλ + σ²),   κ = λ² / (cλ + σ²)

are independent standard normal variables, and the information about their directions, for densities whose ratio is
1 + h with a random function h of the kernel's Gaussian process: then the mean of d has a covariance proportional to Σ².
``kme_jax.analysis.chi_squares`` has the statistic. Directions that the noise hides count less. The level takes account
of the noise and of the sampling. There is nothing to choose. Without noise, and for weights κ alone, the statistic
would be ‖d‖², that of Gretton et al. (2012). With equal weights it would be that of Raj et al. (2019).

The test is post-processing of releases. If the other rows were private, its result would not be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

from kme_jax._numerics.precision import MAX_SEED
from kme_jax.analysis.chi_squares import check_num_public, compared
from kme_jax.analysis.distances import check_gaussian, covariance_root, sides
from kme_jax.analysis.outcome import TestResult
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy.budget import check_integer

SAME_DISTRIBUTION = "the rows have the same distribution"


def two_sample_test(release: Any, other: Any, *, seed: int = 0) -> TestResult:
    """Tests whether the private rows of a release and other rows have the same distribution. Post-processing.

    For points, the module's text has the statistic. For tables, columns are compared one by one, see
    ``kme_jax.analysis.table_test``.

    Both sets of rows must be independent: of different people. Otherwise differences are found too rarely. Other rows
    must be public. A test of private rows is not private: this function adds no noise for them. Other rows are moved
    into the bounds, and missing cells and cells that do not fit the schema are read, as it was done with the private
    rows. So with bounds NaN is no error, and infinity is a bound. Without bounds both are refused.

    Args:
      release: of points or of a table.
      other: public rows, [n, d], whose columns are matched by name if they and the bounds have names; or a table for
        the release of a table (a path, a pyarrow table or a DataFrame); or another release with the same features or
        the same schema.
      seed: of the simulated quantiles.

    Returns:
      The result. The smallest p-value is 5e-5 for points, and 5e-5 times the number of columns for a table.

    Raises:
      ValueError: it is no such release, or has other noise than Gaussian; releases have different features or schemas,
        or are the same; rows have other columns, or are less than 20, or without bounds one is not finite, or a column
        of numbers has none.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Bounds, Gaussian, PrivacyBudget, release
      >>> from kme_jax.analysis import two_sample_test
      >>> rng = np.random.default_rng(0)
      >>> bounds = Bounds.create([0], [100])
      >>> private, public = rng.normal(50, 10, size=(2, 5000, 1))
      >>> released = release(
      ...     private, Gaussian(gamma=5), bounds=bounds, budget=PrivacyBudget(1.0, 1e-5), num_points=50
      ... )
      >>> two_sample_test(released, public + 5).p_value < 0.01
      True
    """
    seed = check_integer("seed", seed, 0, MAX_SEED)
    if isinstance(release, Measurement):
        raise ValueError("release: a measurement has no points; synthesise() makes a release with points")
    if not isinstance(release, Release):
        from kme_jax.analysis.table_test import table_test  # needs pyarrow

        return table_test(release, other, seed=seed)
    first, second = sides(release, other)
    check_gaussian(release.noisy)
    if not isinstance(other, Release | Measurement):
        check_num_public(second.num_rows)
    root = covariance_root(release, other, seed=seed)
    scale, variance = 1 / first.num_rows + 1 / second.num_rows, first.variance + second.variance
    statistic, p_value = smooth_difference(first.mean - second.mean, root, scale, variance, seed)
    return TestResult(SAME_DISTRIBUTION, statistic, p_value)


def smooth_difference(
    difference: Float64[np.ndarray, "F"],
    root: Float64[np.ndarray, "m F"],
    scale: float,
    variance: float,
    seed: int,
) -> tuple[float, float]:
    """The statistic over its mean if the hypothesis is true, and its p-value.

    Args:
      difference: d.
      root: R with RᵀR = Σ.
      scale: c.
      variance: σ².
      seed: of the simulated quantiles.
    """
    wide = root.shape[0] < root.shape[1]
    values, vectors = np.linalg.eigh(root @ root.T if wide else root.T @ root)
    kept = values > 1e-12 * max(values[-1], 1e-300)
    values, vectors = values[kept], vectors[:, kept]
    # d in the orthonormal eigenvectors of Σ
    along = (vectors.T @ (root @ difference)) / np.sqrt(values) if wide else vectors.T @ difference
    spread = scale * values + variance
    return compared(np.square(along) / spread, np.square(values) / spread, seed)
