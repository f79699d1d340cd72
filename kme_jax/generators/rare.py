"""Rare classes: how their noisy embeddings borrow from the other classes before a generator is trained on them.

The embedding of a class c is ỹ_c = μ̃_c/π_c, with independent noise of variance v_c = σ²/π_c² in each of F coordinates.
If c has a tenth of the rows of another class, its noise has a hundred times the square. A generator that is fitted to
ỹ_c then learns noise. Here μ_c has a normal prior, whose scale is estimated from all classes (empirical Bayes, Efron &
Morris 1973). Each direction of ỹ_c then counts in training by the share of it that is signal.

Formal guarantee: all functions here see noisy embeddings, noisy counts, their public noise and rows of a generator that
was trained on them. So they are post-processing, and spend nothing.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float, Int

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr

_NUM_ROWS = 1024  # generated rows from which a prior is made
_MOST_VALUES = 4e7  # limit of the number of features of these rows, and of coordinates of directions
_RATIO = 4.0  # a rare class has more than so many times the noise variance of the class with the least
_COUNTED = 5.0  # standard deviations of a noisy count, below which a class may have no rows at all
_NUM_DIRECTIONS = 128  # largest number of directions in which a rare class is compared with its noisy embedding
_LEAST_EIGENVALUE = 1e-5  # in units of the largest. Features have float32 accuracy.
_LEAST_SCALE = 1e-12  # of a variance of the prior, in units of the least noise. The largest is its inverse.


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ClassEmbeddings:
    """Noisy embeddings of the classes. Public.

    Attributes:
      values: ỹ_c, [L, F].
      variances: v_c, of the noise of each coordinate, [L].
      means: m_c, the mean of the other classes, each weighed by the inverse of its noise variance, [L, F].
      spread: mean over classes of ‖μ_c − m_c‖², estimated without bias from ‖ỹ_c − m_c‖², or 0 if that is negative.
    """

    values: Float[np.ndarray, "classes F"]
    variances: Float[np.ndarray, "classes"]
    means: Float[np.ndarray, "classes F"]
    spread: float

    @classmethod
    def create(
        cls, coordinates: Float[np.ndarray, "classes F"], shares: Float[np.ndarray, "classes"], variance: float
    ) -> ClassEmbeddings:
        """The embeddings of two or more classes.

        Args:
          coordinates: μ̃, [L, F].
          shares: π, of the classes, [L].
          variance: σ², of the noise of each coordinate of μ̃.
        """
        values, variances = coordinates / shares[:, None], variance / np.square(shares)
        others = (1 - np.eye(len(shares))) / variances
        means = others @ values / others.sum(axis=1, keepdims=True)
        noise = values.shape[1] * (variances + 1 / others.sum(axis=1))
        squares = np.sum(np.square(values - means), axis=1) - noise
        return cls(values, variances, means, max(0.0, float(np.average(squares, weights=noise**-2.0))))

    @property
    def noise(self) -> Float[np.ndarray, "classes"]:
        """Variances of each coordinate of ỹ_c − m_c about μ_c − m_c, [L]."""
        precisions = 1 / self.variances
        return self.variances + 1 / (precisions.sum() - precisions)

    @property
    def rare(self) -> Bool[np.ndarray, "classes"]:
        """Which classes borrow, [L]: those whose noise exceeds both what tells classes apart, and four times the least.

        The second condition leaves all classes alone if they are about equally frequent. Of two classes, none is rare
        if ``spread`` is below its standard error. No third class says how far apart classes are then, and a class that
        goes to the mean of the others, which is the other class, can no longer be told apart from it.
        """
        size = self.values.shape[1]
        # Both classes have the same difference, ỹ_1 − ỹ_0. Its square has F squares of normal variables.
        known = len(self.variances) > 2 or self.spread >= math.sqrt(2 * size) * float(self.noise[0])
        return (size * self.variances > self.spread) & (self.variances > _RATIO * self.variances.min()) & known

    def shrunk(self) -> Float[np.ndarray, "classes F"]:
        """Posterior means of rare classes under a prior that is the same in all directions; ỹ of the others, [L, F].

        The prior of μ_c is N(m_c, (spread/F) I). This is for the first cycle of a training.
        """
        size = self.values.shape[1]
        kept = self.spread / (self.spread + size * self.noise)
        posterior = self.means + kept[:, None] * (self.values - self.means)
        return np.where(self.rare[:, None], posterior, self.values)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """The prior of μ_c: N(m_c, κ C² + τ I), where C is the covariance of φ over rows of the classes that are not rare.

    Let p be the density of these rows, p_c that of class c, and p_c/p − 1 = ⟨g, φ⟩ its relative difference. Then
    μ_c − m = C g. White noise as the prior of g gives κ C². It expects differences of classes in the directions in
    which rows vary most. The noise is the same in all directions, so a few of them let a rare class through. τ is for
    what the rows do not span.

    Attributes:
      axes: eigenvectors of C, orthonormal, [r, F].
      scales: eigenvalues of κ C² for each class, [L, r].
      rest: τ for each class, [L].
    """

    axes: Float[np.ndarray, "r F"]
    scales: Float[np.ndarray, "classes r"]
    rest: Float[np.ndarray, "classes"]

    @classmethod
    def estimate(cls, classes: ClassEmbeddings, features: Float[np.ndarray, "n F"]) -> Prior:
        """The prior with C from rows, and with the κ and τ of largest marginal likelihood.

        They are those for all classes together. A rare class has the larger of these and of those for itself alone,
        because it may lie outside of what the rows of the others span.

        Args:
          classes: the noisy embeddings.
          features: φ of generated rows, as many of each class that is not rare, [n, F].
        """
        from scipy.optimize import minimize

        centred = features - features.mean(axis=0)
        squares, vectors = np.linalg.eigh(centred @ centred.T / len(centred))
        kept = squares > _LEAST_EIGENVALUE * max(squares[-1], np.finfo(float).tiny)
        squares, vectors = squares[kept], vectors[:, kept]
        axes = (vectors / np.sqrt(squares * len(centred))).T @ centred
        differences = classes.values - classes.means
        along, noise = differences @ axes.T, classes.noise
        outside = np.maximum(np.sum(np.square(differences), axis=1) - np.sum(np.square(along), axis=1), 0)
        num_outside, least = features.shape[1] - len(squares), float(noise.min())

        shape = np.square(squares / max(squares.max(initial=0.0), np.finfo(float).tiny))  # κ C² in units of its largest

        def most_likely(chosen: np.ndarray) -> np.ndarray:
            """The largest variance of κ C², and τ, for some of the classes."""

            def loss(logarithms: np.ndarray) -> float:
                largest, rest = np.exp(logarithms)
                beyond = rest + noise[chosen]
                inside = largest * shape + beyond[:, None]
                return float(
                    np.sum(np.log(inside) + np.square(along[chosen]) / inside)
                    + np.sum(num_outside * np.log(beyond) + outside[chosen] / beyond)
                )

            # The largest variance starts at the largest square along a direction, τ well below the noise.
            start = np.log([max(float(np.square(along[chosen]).max(initial=0.0)), least), 1e-3 * least])
            limits = [(math.log(_LEAST_SCALE * least), math.log(least / _LEAST_SCALE))] * 2
            found = minimize(
                loss, np.clip(start, *limits[0]), method="Nelder-Mead", bounds=limits,
                options={"maxiter": 400, "xatol": 1e-3, "fatol": 1e-3},
            )  # fmt: skip
            return np.exp(found.x)

        sizes = np.tile(most_likely(np.arange(len(noise))), (len(noise), 1))
        for label in np.flatnonzero(classes.rare):
            sizes[label] = np.maximum(sizes[label], most_likely(np.asarray([label])))
        return cls(axes, sizes[:, :1] * shape, sizes[:, 1])

    def seen(self, classes: ClassEmbeddings) -> Seen:
        """The directions in which the rare classes can be seen."""
        labels = np.flatnonzero(classes.rare)
        seen = Seen.nothing(classes)
        largest = np.argsort(-self.scales[0])[: seen.directions.shape[1]]
        for place, label in enumerate(labels):
            noise, rest = classes.noise[label], self.rest[label]
            beyond, scale = rest + noise, self.scales[label, largest]
            # s/(s + v) with s = scale + rest, minus rest/(rest + v). The difference of both could round below 0.
            more = noise * scale / ((scale + beyond) * beyond)
            seen.directions[place, : len(largest)] = np.sqrt(more)[:, None] * self.axes[largest]
            seen.everywhere[place] = rest / beyond
        return seen

    def visibility(self, classes: ClassEmbeddings) -> Float[np.ndarray, "classes"]:
        """The share of E‖μ_c − m_c‖² under the prior that the noise of the class lets through, [L].

        It is Σ_i s_i²/(s_i + v) over Σ_i s_i for prior variances s and noise variance v: 1 without noise, 0 for
        infinite noise. The prior here is that of all classes together. So the share depends on the class through its
        noise alone.
        """
        num_outside = classes.values.shape[1] - len(self.axes)
        rest, noise = self.rest.min(), classes.noise
        inside = self.scales.min(axis=0) + rest  # a rare class has no less than all together
        kept = np.sum(np.square(inside) / (inside + noise[:, None]), axis=1)
        return (kept + num_outside * rest**2 / (rest + noise)) / (inside.sum() + num_outside * rest)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """The metric in which rare classes are compared with their noisy embeddings.

    The squared distance is Σ_i ⟨a_i, ỹ_c − μ⟩² + w ‖ỹ_c − μ‖². Along an eigenvector of the prior covariance with
    variance s it weighs a square by s/(s + v), the share of ỹ_c − m_c that is signal there.

    Attributes:
      labels: the rare classes, [R].
      directions: a_i for each of them, [R, directions, F].
      everywhere: w for each of them, [R].
    """

    labels: Int[AnyArray, "rare"]
    directions: Float[AnyArray, "rare directions F"]
    everywhere: Float[AnyArray, "rare"]

    @classmethod
    def nothing(cls, classes: ClassEmbeddings) -> Seen:
        """The metric that is zero."""
        labels = np.flatnonzero(classes.rare).astype(np.int32)
        num_features = classes.values.shape[1]
        size = min(_NUM_DIRECTIONS, num_features, max(1, int(_MOST_VALUES / num_features / max(1, len(labels)))))
        directions = np.zeros((len(labels), size, num_features), np.float32)
        return cls(labels, directions, np.zeros(len(labels), np.float32))

    def coordinates(self, place: int, values: Float[np.ndarray, "*n F"]) -> Float[np.ndarray, "*n coordinates"]:
        """Coordinates of embeddings [..., F] whose squared distances are those of the metric.

        Args:
          place: of the class in ``labels``.
          values: the embeddings.
        """
        along = values @ np.asarray(self.directions[place], np.float64).T
        return np.concatenate([along, math.sqrt(self.everywhere[place]) * values], axis=-1)


def num_prior_rows(num_features: int) -> int:
    """The number of generated rows from which a prior is made, for a number of features."""
    return max(64, min(_NUM_ROWS, int(_MOST_VALUES / num_features)))


def are_counted(noisy_shares: Float[np.ndarray, "classes"], variance: float) -> Bool[np.ndarray, "classes"]:
    """Whether the noisy share of each class is so large that noise alone cannot explain it, [L].

    Args:
      noisy_shares: noisy counts over N, [L].
      variance: of their noise.
    """
    return noisy_shares > _COUNTED * math.sqrt(variance)
