"""The exponential mechanism over small databases ([B] section 3.4, after Blum, Ligett & Roth 2008).

It draws a whole database R of M rows from a finite domain, with a probability that falls with the distance of its
embedding from that of the private rows. So steps 2 and 3 are one. All databases are enumerated: an approximate draw
would have no guarantee. This is feasible for small domains alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float, Float64, Int, Int64, PRNGKeyArray, Real, Shaped

from kme_jax._numerics.precision import Progress, check_points, float64
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.algorithms.three_steps import check_shapes
from kme_jax.embedding import integer_embedding, rows_shape
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.facts import check_diameter_at, check_integers_at, public_features
from kme_jax.privacy import secure
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_num_rows, check_replace_one
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import KEY_AND_LEDGER, Spending
from kme_jax.privacy.mechanisms import NOT_PRIVATE, proved_diameter
from kme_jax.synthesis.sample import WeightedSample, uniform

MOST_DATABASES = 1 << 20
_MOST_ROWS = 1 << 16
ENTRIES_AT_ONCE = 1 << 22

Selection = Literal["exponential", "permute_and_flip"]
_NOISE: dict[Selection, Literal["gumbel", "exponential"]] = {
    "exponential": "gumbel",
    "permute_and_flip": "exponential",
}


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class SmallDatabase:
    """A database that was drawn by :func:`exponential_mechanism`. Public, if the draw was secure.

    Attributes:
      sample: its M rows, with weights 1/M. Repeated rows stand as often as they occur.
      num_databases: the number of databases that it was drawn from.
      selection: "exponential" or "permute_and_flip".
      epsilon: ε.
      delta: the probability that the sensitivity fails, over public random choices of the feature map; mostly 0.
      sensitivity: Δ, by which a row can change the distance ‖μ̂ − μ_R‖, rounding included.
      scale: 2Δ/ε. A database that is further away by this distance is e times less likely.
      secure: whether the draw is exact and cryptographic.
      source: the source of the randomness.
    """

    sample: WeightedSample
    num_databases: int
    selection: Selection
    epsilon: float
    delta: float
    sensitivity: float
    scale: float
    secure: bool
    source: str

    def _in_short(self) -> str:
        budget = f"ε={self.epsilon:g}, δ={self.delta:g}, {'secure' if self.secure else NOT_PRIVATE}"
        return f"{budget}, {len(self.sample.points)} rows, one of {self.num_databases} databases"


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class ComparedDatabases:
    """SENSITIVE: how far every database is from the private rows.

    Attributes:
      databases: indices of the rows of each database in the domain, [C, M].
      distances: ‖Σ q(x) − (N/M) s Σ ψ(y)‖ in integer units, rounded down, int64 [C].
      sensitivity: by which a row can change a distance, in the same units.
      units: s N: the distance in these units of a distance of 1 of mean embeddings.
      delta: the probability that the sensitivity fails.
    """

    databases: Int[np.ndarray, "C M"]
    distances: Int64[np.ndarray, "C"]
    sensitivity: int
    units: float
    delta: float

    def _in_short(self) -> str:
        return f"SENSITIVE, databases: {list(np.shape(self.databases))}"

    def scale(self, epsilon: float) -> float:
        """2Δ/ε: a database that is further away by so many units is e times less likely."""
        return math.nextafter(2 * self.sensitivity / epsilon, math.inf)

    def probabilities(self, epsilon: float) -> Float[np.ndarray, "C"]:
        """SENSITIVE: the probability of every database under the exponential mechanism, [C]."""
        likelihoods = np.exp(-(self.distances - self.distances.min()) / self.scale(epsilon))
        return likelihoods / likelihoods.sum()

    def draw(self, epsilon: float, selection: Selection = "exponential") -> int:
        """The index of a database, drawn securely. Each call is a release of its own."""
        return secure.noisy_max(-self.distances, self.scale(epsilon), _NOISE[selection])


def _enumerated(num_domain: int, num_points: int, most: int) -> Int[np.ndarray, "C M"]:
    count = math.comb(num_domain + num_points - 1, num_points)
    if count > most:
        shown = count if count < 10**12 else "more than 10^12"
        raise ValueError(
            f"{num_domain} points make {shown} databases of {num_points} rows, and at most {most} are compared: use "
            "fewer points in the domain, or fewer rows"
        )
    chosen = itertools.combinations_with_replacement(range(num_domain), num_points)
    flat = np.fromiter(itertools.chain.from_iterable(chosen), np.int32, count * num_points)
    return flat.reshape(count, num_points)


def _norms(
    total: Float64[np.ndarray, "F"],
    of_points: Float64[np.ndarray, "X F"],
    databases: Int[np.ndarray, "C M"],
    entries_at_once: int,
    progress: Progress | None,
) -> Float64[np.ndarray, "C"]:
    """‖total − Σ_m of_points[databases[c, m]]‖ for every c."""
    norms = np.empty(len(databases))
    at_once = max(1, entries_at_once // of_points.shape[1])
    for start in range(0, len(databases), at_once):
        block = databases[start : start + at_once]
        sums = of_points[block[:, 0]]
        for m in range(1, block.shape[1]):
            sums += of_points[block[:, m]]
        norms[start : start + at_once] = np.sqrt(np.square(total - sums).sum(axis=1))
        if progress:
            progress(start + len(block), len(databases))
    return norms


@shows_progress("databases")
def compare_databases(
    rows: Shaped[AnyArray, "N d"],
    feature_map: FeatureMap,
    domain: Real[AnyArray, "X d"],
    num_points: int,
    *,
    budget: PrivacyBudget,
    most_databases: int = MOST_DATABASES,
    entries_at_once: int = ENTRIES_AT_ONCE,
    progress: Progress | bool = False,
) -> ComparedDatabases:
    """SENSITIVE: the distances that :func:`exponential_mechanism` draws by. For experiments, audits and tests.

    All arguments are checked before a private row is read.

    Args:
      rows: as there, and so are the other arguments.
      feature_map: ψ.
      domain: [X, d].
      num_points: M.
      budget: (ε, δ); only δ has an influence here.
      most_databases: the largest number of databases.
      entries_at_once: numbers of databases times features that are in memory together.
      progress: as there.

    Raises:
      ValueError: as there.
    """
    check_replace_one(budget)
    domain = check_points(domain, "domain")
    num_points = check_integer("num_points", num_points, 1, _MOST_ROWS)
    databases = _enumerated(len(domain), num_points, check_integer("most_databases", most_databases, 1, 2**31))
    domain, features = public_features(feature_map, domain, "domain")
    check_diameter_at(feature_map, domain)
    check_shapes(rows_shape(rows), domain, "the domain has")
    check_num_rows(rows_shape(rows)[0], budget)
    check_integers_at(feature_map.integers(rows_shape(rows)[0]), domain)
    embedding = integer_embedding(feature_map, rows)
    integers, num_rows = embedding.integer_map, embedding.num_rows
    units = integers.units * num_rows
    of_points = features * (units / num_points)
    largest = num_rows * integers.certain_diameter + num_points * float(np.linalg.norm(of_points, axis=1).max())
    if not largest < 2.0**61:
        raise ValueError("rows: there are too many for distances in 64-bit integers")
    # Rounding of the total, of differences, squares, sums and roots.
    rounding = (features.shape[1] + 16) * 2.0**-53 * largest
    diameter, delta = proved_diameter(integers, budget.delta)
    total = integers.released(embedding.total).astype(np.float64)
    norms = _norms(total, of_points, databases, entries_at_once, reporter(progress))
    distances, sensitivity = np.floor(norms).astype(np.int64), math.ceil(diameter + 2 * rounding)
    return ComparedDatabases(databases, distances, sensitivity, units, budget.delta - delta)


def _spent(budget: PrivacyBudget, failure_probability: float) -> Composition:
    """A draw as a ledger records it: it is (ε, 0), which implies ρ = ε²/2 (Bun & Steinke 2016, proposition 1.4).

    If the sensitivity may fail with probability p, it is (ε, p). Noise then has δ ≥ 10p, see ``proved_diameter``, and
    the record has this δ.
    """
    delta = budget.delta if failure_probability > 0 else 0.0
    return Composition(budget.epsilon, delta, budget.epsilon**2 / 2, failure_probability, True)


def exponential_mechanism(
    rows: Shaped[AnyArray, "N d"],
    feature_map: FeatureMap,
    domain: Real[AnyArray, "X d"],
    num_points: int,
    *,
    budget: PrivacyBudget,
    selection: Selection = "exponential",
    key: PRNGKeyArray | None = None,
    spending: Spending | None = None,
    most_databases: int = MOST_DATABASES,
    progress: Progress | bool = False,
) -> SmallDatabase:
    """A database of M rows from a finite domain, drawn with Pr[R] ∝ exp(−ε ‖μ̂ − μ_R‖ / (2Δ)) ([B] section 3.4).

    Formal guarantee: (ε, 0)-differential privacy under replace-one neighbours with N public (McSherry & Talwar 2007).
    Another row moves Σ q(x) by at most the diameter of the integer map, so by the triangle inequality it changes the
    distance to any fixed database by no more. Distances are computed in float64 from the integer sum, and rounded down
    to integers; the rounding of both is a part of Δ. The draw is exact: the largest of all −distance/scale plus
    independent Gumbel noise, by OpenDP, in exact arithmetic. If the diameter may fail and δ allows for it, δ is the
    probability that it fails.

    "permute_and_flip" adds exponential noise instead. It is as private, and its expected distance is never larger
    (McKenna & Sheldon 2020).

    Args:
      rows: the private database x, [N, d]. A row that the map does not cover contributes nothing.
      feature_map: ψ, with an integer version.
      domain: the public points that a database may contain, [X, d].
      num_points: M. There are C(X + M − 1, M) databases.
      budget: (ε, δ); δ may be 0.
      selection: "exponential" or "permute_and_flip".
      key: None for a secure draw. A JAX random key makes a simulated, reproducible draw, which is NOT PRIVATE.
      spending: the curator's ledger, and the name of the rows in it. It is checked before a row is read, and written
        before the draw. The record has δ = 0, unless the diameter may fail; then it has the δ of the budget. It is for
        secure draws. If None, nothing is recorded.
      most_databases: the largest number of databases that are compared; more need more memory and time.
      progress: True for a bar, or a function that is called with (databases done, all databases).

    Raises:
      ValueError: if there are too many databases, or the domain, the map or the budget does not fit (δ ≥ 1/N, N < 2),
        or the budget may not be spent (``LedgerError``), or there are both a key and a ledger.
      ModuleNotFoundError: if OpenDP is not installed, for a secure draw.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, SubspaceMap, exponential_mechanism
      >>> rows = np.random.default_rng(0).normal(size=(1000, 1))  # private
      >>> domain = np.linspace(-3, 3, 9)[:, None]  # public
      >>> features = SubspaceMap.from_points(Gaussian(gamma=0.5), domain)
      >>> drawn = exponential_mechanism(rows, features, domain, num_points=5, budget=PrivacyBudget(1.0, 0.0))
      >>> drawn.sample.points.shape, drawn.num_databases, drawn.secure
      ((5, 1), 1287, True)
    """
    if selection not in _NOISE:
        raise ValueError(f"selection must be {' or '.join(map(repr, _NOISE))}, got {selection!r}")
    if spending is not None:
        if key is not None:
            raise ValueError(KEY_AND_LEDGER)
        check_shapes(rows_shape(rows), domain, "the domain has")
        check_num_rows(rows_shape(rows)[0], budget)
        integers = feature_map.integers(rows_shape(rows)[0])
        spending.check(_spent(budget, budget.delta - proved_diameter(integers, budget.delta)[1]))
    compared = compare_databases(
        rows, feature_map, domain, num_points, budget=budget, most_databases=most_databases, progress=progress
    )
    scale = compared.scale(budget.epsilon)
    if key is None:
        source = secure.source()
        if spending is not None:
            spending.spend(_spent(budget, compared.delta))
        with contextlib.nullcontext() if spending is None else spending.recorded(None):
            chosen = compared.draw(budget.epsilon, selection)
    else:
        source = "simulated (jax.random)"
        with float64():
            draw = jax.random.gumbel if selection == "exponential" else jax.random.exponential
            chosen = int(np.argmax(np.asarray(draw(key, compared.distances.shape)) - compared.distances / scale))
    points = np.asarray(domain, np.float64)[compared.databases[chosen]]
    return SmallDatabase(
        uniform(points),
        len(compared.databases),
        selection,
        budget.epsilon,
        compared.delta,
        compared.sensitivity / compared.units,
        scale / compared.units,
        key is None,
        source,
    )
