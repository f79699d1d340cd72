"""The result of step 3: a weighted synthetic database, and its rounding to rows of equal weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import check_points
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax.privacy.budget import check_integer
from kme_jax.privacy.mechanisms import NOT_PRIVATE, Mechanism


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class WeightedSample:
    """A synthetic database (z_1, w_1), ..., (z_M, w_M). Its embedding is Σ_m w_m k(z_m, ·). Public.

    Attributes:
      points: z, [M, d].
      weights: w, [M]. They may be negative, and their sum may differ from 1, unless the method that returned them rules
        this out.
      mechanism: the mechanism of the noisy embedding it represents; None if no private rows were involved.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import WeightedSample
      >>> sample = WeightedSample(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.75, 0.25]))
      >>> sample.expectation(np.square)
      array([1., 3.])
    """

    points: Float[np.ndarray, "M d"]
    weights: Float[np.ndarray, "M"]
    mechanism: Mechanism | None = None

    def _repr_html_(self) -> str:
        facts, warning, mechanism = [("points", html.size_of_points(self.points))], "", self.mechanism
        if mechanism is not None:
            facts += mechanism.facts
            warning = "" if mechanism.secure else NOT_PRIVATE
        return html.card("WeightedSample", facts, *html.weighted_points(self.points, self.weights), warning=warning)

    def expectation(
        self, h: Callable[[Float[np.ndarray, "M d"]], Shaped[AnyArray, "M *values"]]
    ) -> Shaped[np.ndarray, "*values"]:
        """Σ_m w_m h(z_m), the estimate of E[h(X)] ([B] equation 4).

        Args:
          h: a function of points [M, d] to values [M] or [M, *shape].

        Returns:
          The estimate, a number or [*shape].

        Raises:
          ValueError: there is not one value for each point.

        Examples:
          >>> import numpy as np
          >>> from kme_jax import WeightedSample
          >>> sample = WeightedSample(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.75, 0.25]))
          >>> sample.expectation(lambda z: z)  # the mean
          array([0.5, 1.5])
          >>> float(sample.expectation(lambda z: z[:, 0] > 1))  # a probability
          0.25
        """
        weights, values = np.asarray(self.weights), np.asarray(h(np.asarray(self.points)))
        if values.shape[:1] != weights.shape:
            raise ValueError(
                f"expectation: expected one value for each of {len(weights)} points, got values of shape "
                f"{list(values.shape)}"
            )
        return np.tensordot(weights, values, axes=1)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """The points as a DataFrame of float64, with the weights in a last column "weight".

        Args:
          columns: names of the columns [d]; x1, x2 and so on if None.

        Raises:
          ValueError: a column is named "weight", or there is another number of names.
          ModuleNotFoundError: pandas is not installed.

        Examples:
          >>> import numpy as np
          >>> from kme_jax import WeightedSample
          >>> sample = WeightedSample(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.75, 0.25]))
          >>> sample.to_pandas(["age", "hours"])
             age  hours  weight
          0  0.0    1.0    0.75
          1  2.0    3.0    0.25
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("a DataFrame needs pandas: pip install pandas", name="pandas") from error
        points = np.asarray(self.points, np.float64)
        names = [f"x{i + 1}" for i in range(points.shape[1])] if columns is None else list(columns)
        if "weight" in names:
            raise ValueError('columns: one is named "weight", as the weights are; give other names')
        return pandas.DataFrame(points, columns=names).assign(weight=np.asarray(self.weights, np.float64))

    def quantise(self, num_rows: int, seed: int) -> Float[np.ndarray, "n d"]:
        """An unweighted database of the sample's points, by systematic resampling (Kitagawa 1996).

        Each point appears ⌊num_rows · w⌋ or ⌈num_rows · w⌉ times, and num_rows · w times in expectation. Rows are in
        the order of the points.

        Args:
          num_rows: number of rows of the database.
          seed: of the single uniform number that is drawn.

        Returns:
          Rows, [num_rows, d].

        Raises:
          ValueError: the weights are not a probability vector, or num_rows < 1.

        Examples:
          >>> import numpy as np
          >>> from kme_jax import WeightedSample
          >>> sample = WeightedSample(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.75, 0.25]))
          >>> sample.quantise(4, seed=0)
          array([[0., 1.],
                 [0., 1.],
                 [0., 1.],
                 [2., 3.]])
        """
        return np.repeat(np.asarray(self.points), self.systematic_counts(num_rows, seed), axis=0)

    def systematic_counts(self, num_rows: int, seed: int) -> Int[np.ndarray, "M"]:
        """How often each point is among the rows of :meth:`quantise`. Arguments and errors are the same.

        Examples:
          >>> import numpy as np
          >>> from kme_jax import WeightedSample
          >>> sample = WeightedSample(np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.75, 0.25]))
          >>> sample.systematic_counts(4, seed=0)
          array([3, 1])
        """
        weights = np.asarray(self.weights, np.float64)
        num_rows = check_integer("num_rows", num_rows, 1, 2**62)
        if weights.min() < 0 or abs(weights.sum() - 1) > 1e-6:
            raise ValueError(
                f"only probability weights can be quantised: these sum to {weights.sum():.4g} and the smallest is "
                f"{weights.min():.2g}; adaptive_weights(noisy, points, signed=False) gives a probability vector"
            )
        shift = np.random.default_rng(seed).uniform()
        edges = np.cumsum(weights) * (num_rows / weights.sum())
        edges[-1] = num_rows
        return np.diff(np.ceil(edges - shift).astype(int), prepend=0)


def uniform(points: Real[AnyArray, "M d"]) -> WeightedSample:
    """Points [M, d] with weights 1/M: the baseline of [B] figure 1.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import uniform
      >>> uniform(np.array([[0.0, 1.0], [2.0, 3.0]])).weights
      array([0.5, 0.5])
    """
    points = check_points(points, "points")
    return WeightedSample(points, np.full(len(points), 1 / len(points)))
