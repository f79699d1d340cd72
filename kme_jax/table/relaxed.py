"""Step 3 for tables: relaxed rows, whose marginals are close to noisy marginals.

The entries of a relaxed row are probability distributions of values, not values.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int64, PRNGKeyArray, Real

from kme_jax._numerics import random
from kme_jax._numerics.precision import Progress, reproducible_jit
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.registry import storable
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require

NUM_RELAXED = 1600  # of all fits together
_LEAST_FITS, _MOST_FITS = 2, 16
_FITS_ANYWAY = 4  # that are made even if they do not run side by side
# Relaxed rows of a class in each fit; twice as many if the noise of counts of pairs is below this part of N.
_EACH_CLASS, _LITTLE_NOISE = 50, 1 / 2000
MOST_STEPS = 1500
_STEPS_AT_ONCE = 30
_STEPS_OF_ROUND = 150  # after each round, the misfit decides whether another one follows
# A fit stops if the mean squared error of an observation, in units of σ, is at most this. At the private table it is
# about 1.
GOOD_ENOUGH = 0.95
_LEAST_PROGRESS = 0.01  # a fit also stops if a round lowers this error by a smaller part
# Rates of the first round and of the others. Where one round is enough, a small rate follows the noise less.
_FIRST_RATE, _RATE = 0.05, 0.15
# What the running means of Adam keep of a gradient, and of its square, in a step. The gradients are exact, so there is
# no noise to average. With Adam's usual 0.999 for squares, steps stay short long after a start that was far off.
_KEPT = 0.8
_START_SPREAD = 1.0
# Share of all rows. Smaller noise is below the rounding of shares in float32, and its inverse square would overflow.
_FINEST = 1e-7
_MOST_RAKES, _RAKED, _LARGEST_RATIO = 200, 1e-5, 1e6  # of marginals: rounds, and the total variation that remains
# Precisions of the prior of logits: of their deviations from the mean, which is that of single columns, and of the
# differences between the deviations of the classes, and of neighbouring bins.
_PRIOR_PRECISION, _BETWEEN_CLASSES, _BETWEEN_NEIGHBOURS = 0.1, 3.0, 0.5
_START_BETWEEN = 0.1  # standard deviation of the part of a start that classes do not share


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """The noisy counts that relaxed rows are fitted to.

    Classes are the values of the column that all marginals are split by. There is one class if they are not split. Bins
    are numbered through all columns: those of column a are ``offsets[a]`` to ``offsets[a + 1]`` − 1.

    Attributes:
      offsets: the first bin of each column, followed by the number of all bins D.
      num_rows: N.
      prior: denoised estimates of the counts of every class and bin, [T, D].
      singles: noisy counts of every class and bin, [T, D].
      singles_sigma: σ of ``singles``, [D].
      totals: noisy counts of every bin, all classes together, [D].
      totals_precision: 1/σ of ``totals``, [D]; 0 where nothing was measured.
      unions: 1 where a bin is in a union of bins, 0 elsewhere, [D, E].
      pairs: noisy counts of every class and pair of parts, [T, F, F]; 0 where nothing was measured. The F = D + E parts
        are the bins, followed by the unions.
      pairs_precision: 1/σ of ``pairs``, [F, F]; 0 where nothing was measured.
      classes: estimated counts of the classes, which relaxed rows have, [T] with Σ = N; None if they were not measured
        by themselves. Then they are fitted.
      scores: the mean score of each bin for each column with scores, 0 for the bins of other columns, [D, S].
      products: noisy sums over all rows of the product of the scores of two columns, [S, S]; 0 where nothing was
        measured.
      products_precision: 1/σ of ``products``, [S, S]; 0 where nothing was measured.
      signs: −1 or 1 for each bin of a column, for its two halves; 0 for the bins of other columns, [D, C].
      triples: three columns each, int64 [n, 3].
      parities: noisy sums over all rows of the product of the signs of three columns, [n].
      parities_precision: 1/σ of ``parities``, [n].
      neighbours: 1 where a bin and the next one are neighbours on the scale of an ordered column, 0 elsewhere, [D].
    """

    offsets: tuple[int, ...]
    num_rows: int
    prior: Float[np.ndarray, "classes bins"]
    singles: Float[np.ndarray, "classes bins"]
    singles_sigma: Float[np.ndarray, "bins"]
    totals: Float[np.ndarray, "bins"]
    totals_precision: Float[np.ndarray, "bins"]
    unions: Float[np.ndarray, "bins unions"]
    pairs: Float[np.ndarray, "classes parts parts"]
    pairs_precision: Float[np.ndarray, "parts parts"]
    classes: Float[np.ndarray, "classes"] | None
    scores: Float[np.ndarray, "bins scored"]
    products: Float[np.ndarray, "scored scored"]
    products_precision: Float[np.ndarray, "scored scored"]
    signs: Float[np.ndarray, "bins columns"]
    triples: Int64[np.ndarray, "triples 3"]
    parities: Float[np.ndarray, "triples"]
    parities_precision: Float[np.ndarray, "triples"]
    neighbours: Float[np.ndarray, "bins"]

    @property
    def num_observations(self) -> int:
        """How many noisy numbers there are."""
        of_classes = np.count_nonzero(self.pairs_precision)
        others = (self.totals_precision, self.products_precision, self.parities_precision)
        return int(len(self.singles) * of_classes + self.singles.size + sum(map(np.count_nonzero, others)))


_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)  # not TF32


def _probabilities(logits: Float[AnyArray, "*rows bins"], offsets: tuple[int, ...]) -> Float[jax.Array, "*rows bins"]:
    """The softmax of the bins of each column. Sums over columns are products of matrices, whose gradients are fast."""
    columns = [jax.lax.stop_gradient(logits[..., i:j]) for i, j in itertools.pairwise(offsets)]
    largest = [jnp.broadcast_to(jnp.max(column, axis=-1, keepdims=True), column.shape) for column in columns]
    odds = jnp.exp(logits - jnp.concatenate(largest, axis=-1))
    of_column = np.repeat(np.eye(len(offsets) - 1, dtype=np.float32), np.diff(offsets), axis=0)
    return odds * _einsum("...c,dc->...d", 1 / _einsum("...d,dc->...c", odds, of_column), of_column)


@jax.custom_vjp
def second_moments(
    parts: Float[AnyArray, "classes K parts"], weights: Float[AnyArray, "classes K"]
) -> Float[jax.Array, "classes parts parts"]:
    """Σ_k w_k p_k p_kᵀ of each class, [T, F, F]. The gradient takes one product of matrices; JAX would take two.

    Args:
      parts: p, [T, K, F].
      weights: w, [T, K].
    """
    return _einsum("tka,tk,tkb->tab", parts, weights, parts)


def _second_moments_forward(parts, weights):
    return second_moments(parts, weights), (parts, weights)


def _second_moments_backward(residuals, gradient):
    parts, weights = residuals
    along = _einsum("tka,tab->tkb", parts, gradient + jnp.swapaxes(gradient, -1, -2))
    return weights[..., None] * along, jnp.sum(parts * along, axis=-1) / 2


second_moments.defvjp(_second_moments_forward, _second_moments_backward)


@functools.partial(reproducible_jit, static_argnames=("offsets",))
def _steps(state, data, first, num_steps, rate, *, offsets):
    """``_STEPS_AT_ONCE`` steps of Adam on every fit, from step ``first`` of a cosine schedule.

    The schedule has ``num_steps`` steps and starts with ``rate``. Also returns the sum of the squared errors of each
    fit before the last step, in units of σ.
    """
    adam = optax.scale_by_adam(_KEPT, _KEPT)

    def loss(parameters):
        probabilities = _probabilities(parameters["logits"], offsets)  # [T, K, D]
        weights = jax.nn.softmax(parameters["weights"].reshape(-1)).reshape(parameters["weights"].shape)
        if "classes" in data:
            weights = data["classes"][:, None] * jax.nn.softmax(parameters["weights"], axis=1)
        of_unions = _einsum("tka,ae->tke", probabilities, data["unions"])
        parts = jnp.concatenate([probabilities, of_unions], axis=-1)
        pairs = second_moments(parts, weights)
        singles = _einsum("tk,tka->ta", weights, probabilities)
        scores = _einsum("tka,as->tks", probabilities, data["scores"])
        products = _einsum("tks,tk,tkr->sr", scores, weights, scores)
        misfit = (
            jnp.sum(jnp.square((data["rows"] * pairs - data["pairs"]) * data["pairs_precision"]))
            + jnp.sum(jnp.square((data["rows"] * singles - data["singles"]) / data["singles_sigma"]))
            + jnp.sum(jnp.square((data["rows"] * singles.sum(0) - data["totals"]) * data["totals_precision"]))
            + jnp.sum(jnp.square((data["rows"] * products - data["products"]) * data["products_precision"]))
        )
        if data["triples"].shape[0]:
            signs = _einsum("tka,ac->tkc", probabilities, data["signs"])
            parities = _einsum("tk,tkn->n", weights, jnp.prod(signs[..., data["triples"]], axis=-1))
            misfit += jnp.sum(jnp.square((data["rows"] * parities - data["parities"]) * data["parities_precision"]))
        deviations = parameters["logits"] - data["base"]
        between = deviations - jnp.mean(deviations, axis=0, keepdims=True)
        steps = deviations[..., 1:] - deviations[..., :-1]
        prior = (
            _PRIOR_PRECISION * jnp.sum(jnp.square(deviations))
            + _BETWEEN_CLASSES * jnp.sum(jnp.square(between))
            + _BETWEEN_NEIGHBOURS * jnp.sum(data["neighbours"] * jnp.square(steps))
        )
        return (misfit + prior) / 2, misfit

    def one(parameters, moments, step):
        gradients, misfit = jax.grad(loss, has_aux=True)(parameters)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, moments = adam.update(gradients, moments)
        length = rate * (1 + jnp.cos(jnp.pi * step / num_steps)) / 2
        return jax.tree.map(lambda p, u: p - length * u, parameters, updates), moments, misfit

    def body(state, step):
        parameters, moments = state
        parameters, moments, misfit = jax.vmap(one, in_axes=(0, 0, None))(parameters, moments, step)
        return (parameters, moments), misfit

    state, misfits = jax.lax.scan(body, state, first + jnp.arange(_STEPS_AT_ONCE, dtype=jnp.float32))
    return state, misfits[-1]


def _start_factor(neighbours: Float[np.ndarray, "bins"]) -> Float[np.ndarray, "bins bins"]:
    """A matrix A [D, D] for which A z is a draw of the prior of one relaxed row, scaled to variances of 1, if z is
    standard normal."""
    steps = np.sqrt(_BETWEEN_NEIGHBOURS) * neighbours[:-1, None] * np.diff(np.eye(len(neighbours)), axis=0)
    covariance = np.linalg.inv(_PRIOR_PRECISION * np.eye(len(neighbours)) + steps.T @ steps)
    scales = np.sqrt(np.diag(covariance))
    return np.linalg.cholesky(covariance / np.outer(scales, scales))


def choose_num_fits(observed: Observed, max_entries: int) -> int:
    """The number of fits: as many as leave 50 relaxed rows for a class in each, from 2 to 16.

    Small fits follow the noise less. But large ones are needed where counts are known well, because then there is more
    to fit. Fits that do not run side by side take longer. So if not all of them fit into memory, there are as many as
    do, or four if that is more.

    Args:
      observed: the noisy counts.
      max_entries: see :func:`fit`.
    """
    num_classes, num_bins = observed.singles.shape
    precisions = observed.pairs_precision[observed.pairs_precision > 0]
    little_noise = len(precisions) > 0 and 1 / np.median(precisions) < _LITTLE_NOISE * observed.num_rows
    wanted = NUM_RELAXED // (num_classes * _EACH_CLASS * (2 if little_noise else 1))
    fit_into_memory = max_entries // (num_classes * num_bins**2)
    return int(max(_LEAST_FITS, min(wanted, max(fit_into_memory, _FITS_ANYWAY), _MOST_FITS)))


def fit(
    key: PRNGKeyArray,
    observed: Observed,
    *,
    num_fits: int | None = None,
    num_relaxed: int | None = None,
    part: float = 1.0,
    num_steps: int = MOST_STEPS,
    good_enough: float = GOOD_ENOUGH,
    max_entries: int = 1 << 26,
    progress: Progress | None = None,
) -> tuple[Float[np.ndarray, "classes K"], Float[np.ndarray, "classes K bins"]]:
    """Weights and probabilities of relaxed rows: within each class, a mixture of product distributions.

    The distribution of the noise is known exactly. So the squared error in units of σ is minus twice the log
    likelihood. The prior of the logits is normal; its mean comes from the denoised counts of the column. A relaxed row
    of each class stands beside one of every other class, and the prior says that they deviate from their means in a
    similar way: columns mostly depend on each other in all classes alike. So all classes together tell how, and a rare
    class is not left alone with its noise. Neighbouring bins of an ordered column deviate in a similar way, too. Where
    counts are known well, they decide.

    Fits from different starts are combined into one mixture. Noise leaves many tables possible, and the mean of several
    fits is closer to the private table than a single fit. There are many small fits, or fewer large ones if there is
    little noise or there are many classes, see :func:`choose_num_fits`.

    A fit goes on in rounds until its mean squared error is what noise alone would have (Morozov's discrepancy
    principle), or until it falls no more. Beyond this a fit would follow the noise. So little noise needs more rounds.
    This is post-processing: it spends nothing.

    Args:
      key: a JAX random key.
      observed: the noisy counts.
      num_fits: number of fits; if None, see :func:`choose_num_fits`.
      num_relaxed: number of relaxed rows in each fit; if None, all fits together have 1600.
      part: of the fits, in (0, 1]; at least one is made.
      num_steps: the largest number of steps of Adam, a multiple of 30.
      good_enough: the mean squared error of an observation, in units of σ, at which a fit stops.
      max_entries: limit of the entries of all pairs of bins, over fits that run side by side.
      progress: called with (steps done, total steps).

    Returns:
      Weights [T, K], which sum to 1, and probabilities of the bins of every column [T, K, D].
    """
    num_classes, num_bins = observed.singles.shape
    num_fits = num_fits or choose_num_fits(observed, max_entries)
    each = -(-(num_relaxed or NUM_RELAXED // num_fits) // num_classes)
    num_fits = max(1, round(part * num_fits))
    base = np.log(np.maximum(observed.prior, 1))
    totals = np.maximum([observed.prior[:, i:j].sum(1) for i, j in itertools.pairwise(observed.offsets)], 1).mean(0)
    # The start is made by NumPy: eager operations of JAX would be compiled for each number of bins.
    single = functools.partial(np.asarray, dtype=np.float32)
    names = ("singles", "singles_sigma", "totals", "totals_precision")
    names += ("unions", "pairs", "pairs_precision")
    names += ("scores", "products", "products_precision", "signs", "parities", "parities_precision")
    finest = _FINEST * observed.num_rows
    data = {
        name: single(
            np.minimum(getattr(observed, name), 1 / finest)
            if name.endswith("precision")
            else np.maximum(getattr(observed, name), finest)
            if name.endswith("sigma")
            else getattr(observed, name)
        )
        for name in names
    }
    data |= {"base": single(base)[:, None], "rows": single(observed.num_rows)}
    data["triples"] = observed.triples
    data["neighbours"] = single(observed.neighbours[None, None, None, :-1])[0]
    if observed.classes is not None:
        data["classes"] = single(observed.classes / observed.classes.sum())
    for name in ("singles_sigma", "pairs_precision"):
        data[name] = data[name][None]
    shapes = [(num_fits, 1, each, num_bins), (num_fits, num_classes, each, num_bins)]
    parts = [random.normal(k, shape, jnp.float32) for k, shape in zip(jax.random.split(key), shapes, strict=True)]
    shared, own = (np.asarray(part) @ single(_start_factor(observed.neighbours)).T for part in parts)
    spread = single(_START_SPREAD) * (single(math.sqrt(1 - _START_BETWEEN**2)) * shared + single(_START_BETWEEN) * own)
    start = single(np.log(totals / totals.sum()))[:, None]
    parameters = {
        "logits": data["base"][None] + spread,
        "weights": np.broadcast_to(start[None], (num_fits, num_classes, each)),
    }
    side_by_side = num_fits if num_fits * num_classes * num_bins**2 <= max_entries else 1
    fitted, all_work = [], num_fits * num_steps
    for i in range(0, num_fits, side_by_side):
        start_of_fits = jax.tree.map(lambda leaf, i=i: leaf[i : i + side_by_side], parameters)
        moments = jax.eval_shape(jax.vmap(optax.scale_by_adam().init), start_of_fits)  # all are zero at first
        state = start_of_fits, jax.tree.map(lambda moment: np.zeros(moment.shape, moment.dtype), moments)
        before, of_round, done = math.inf, min(_STEPS_OF_ROUND, num_steps), 0
        for step in range(0, num_steps, _STEPS_AT_ONCE):
            within, done = step % of_round, i * num_steps + side_by_side * (step + _STEPS_AT_ONCE)
            rate = _FIRST_RATE if step < of_round else _RATE
            schedule = (jnp.float32(number) for number in (within, of_round, rate))
            state, misfits = _steps(state, data, *schedule, offsets=observed.offsets)
            if progress:
                jax.block_until_ready(state)
                progress(done, all_work)
            if within + _STEPS_AT_ONCE == of_round:
                error = float(np.mean(misfits)) / max(1, observed.num_observations)
                if error <= good_enough or error > (1 - _LEAST_PROGRESS) * before:
                    break
                before = error
        fitted.append(state[0])
        if progress and done < (i + side_by_side) * num_steps:  # it has stopped early
            progress((i + side_by_side) * num_steps, all_work)
    parameters = {name: np.concatenate([np.asarray(fits[name]) for fits in fitted]) for name in fitted[0]}
    probabilities = np.asarray(_probabilities(parameters["logits"], observed.offsets), np.float64)
    logits = np.asarray(parameters["weights"], np.float64)
    axes = (1, 2) if observed.classes is None else 2
    weights = np.exp(logits - logits.max(axis=axes, keepdims=True))
    weights /= num_fits * weights.sum(axis=axes, keepdims=True)
    if observed.classes is not None:
        weights *= (observed.classes / observed.classes.sum())[:, None]
    return np.concatenate(list(weights), axis=1), np.concatenate(list(probabilities), axis=1)


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Leaves:
    """The ranges of codes that the bins of a column consist of, in order.

    Attributes:
      first: the first code of each range, int64 [L].
      last: the code after the last code of each range, int64 [L].
      bins: the bin of each range, int64 [L].
      shares: the share of each range in its bin, for every class, [T, L]. Codes of one range are equally likely.
    """

    first: Int64[np.ndarray, "leaves"]
    last: Int64[np.ndarray, "leaves"]
    bins: Int64[np.ndarray, "leaves"]
    shares: Float[np.ndarray, "classes leaves"]

    def validate(self) -> None:
        """Refuses invalid fields of leaves that were read from a file.

        Raises:
          ValueError: shapes differ, a range has no codes, or a share is negative.
        """
        check_array(self.first, "first", "i", (None,))
        for name in ("last", "bins"):
            check_array(getattr(self, name), name, "i", self.first.shape)
        check_array(self.shares, "shares", "f", (None, len(self.first)))
        require(bool((self.first >= 0).all() and (self.first < self.last).all()), "a range has no codes")
        require(bool((self.bins >= 0).all() and (self.shares >= 0).all()), "a bin or a share is negative")

    def within(self, ranges: Sequence[tuple[int, int]]) -> Leaves:
        """The intersection of the leaves with disjoint ranges of codes [first, last). Shares may sum to less than 1."""
        pieces = [Leaves(self.first[:0], self.last[:0], self.bins[:0], self.shares[:, :0])]
        for low, high in ranges:
            first, last = np.maximum(self.first, low), np.minimum(self.last, high)
            overlaps = last > first
            share = self.shares[:, overlaps] * ((last - first)[overlaps] / (self.last - self.first)[overlaps])
            pieces.append(Leaves(first[overlaps], last[overlaps], self.bins[overlaps], share))
        joined = (np.concatenate([getattr(p, n) for p in pieces], axis=-1) for n in ("first", "last", "bins", "shares"))
        return Leaves(*joined)

    def masses(self, num_bins: int) -> Real[np.ndarray, "classes bins"]:
        """The sum of the shares of every class and bin, [T, num_bins]."""
        return np.stack([np.bincount(self.bins, shares, num_bins) for shares in self.shares])


@storable()
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Parities:
    """Mean products of the signs of three columns, which balanced samples have, see ``kme_jax.table.balance``.

    Attributes:
      triples: the places of three columns each among all columns except the one of the classes, int64 [n, 3].
      signs: −1 or 1 for each bin, [D].
      means: the mean product of the three signs, [n].
    """

    triples: Int64[np.ndarray, "triples 3"]
    signs: Float[np.ndarray, "bins"]
    means: Float[np.ndarray, "triples"]

    def check(self, num_bins: int, num_columns: int) -> None:
        """Refuses parities that were read from a file.

        Raises:
          ValueError: shapes or values are invalid.
        """
        check_array(self.triples, "triples", "i", (None, 3))
        check_array(self.signs, "signs", "f", (num_bins,))
        check_array(self.means, "means", "f", (len(self.triples),))
        distinct = all(len(set(triple)) == 3 for triple in self.triples.tolist())
        valid = bool(((self.triples >= 0) & (self.triples < num_columns)).all())
        require(valid and distinct, "triples: there are no such columns")
        of_signs = bool((np.abs(self.signs) == 1).all() and (np.abs(self.means) <= 1).all())
        require(of_signs, "a sign or a mean is invalid")


@storable(added_fields=("dependence", "parities"))
@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedRows:
    """A distribution of rows: a mixture of products of distributions of the columns. Public.

    With ``dependence``, the columns of each relaxed row are coupled by a Gaussian copula instead of being independent.

    Attributes:
      weights: of the relaxed rows, [T, K], with Σ = 1. The T classes are the values of the column ``split``.
      probabilities: of the bins of every column except ``split``, float32 [T, K, D].
      offsets: the first bin of each of these columns, followed by D.
      leaves: the ranges of codes of each of these columns.
      split: index of the column whose values are the classes, or −1 for a single class.
      dependence: correlations of the normal variables whose ranks decide the values of the columns except ``split``
        within each relaxed row, [C, C]; None if columns are independent there.
      parities: what balanced samples have beside the pairs of the distribution; None if there is nothing.
    """

    weights: Float[np.ndarray, "classes K"]
    probabilities: Float[np.ndarray, "classes K bins"]
    offsets: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    leaves: tuple[Leaves, ...]
    split: int = dataclasses.field(metadata={"static": True})
    dependence: Float[np.ndarray, "columns columns"] | None = None
    parities: Parities | None = None

    def validate(self) -> None:
        """Refuses invalid fields of relaxed rows that were read from a file.

        Raises:
          ValueError: shapes differ, or weights or probabilities are invalid.
        """
        check_array(self.weights, "weights", "f", (None, None))
        check_array(self.probabilities, "probabilities", "f", (*self.weights.shape, None))
        ends = self.probabilities.shape[2]
        increasing = all(i < j for i, j in itertools.pairwise(self.offsets))
        valid = len(self.offsets) == len(self.leaves) + 1 and self.offsets[0] == 0 and self.offsets[-1] == ends
        require(bool(self.leaves) and increasing and valid, "offsets: expected the bins of every column")
        require(-1 <= self.split < self.dim, "split: there is no such column")
        sizes = [j - i for i, j in itertools.pairwise(self.offsets)]
        for leaves, size in zip(self.leaves, sizes, strict=True):
            require(len(leaves.shares) == len(self.weights), "leaves: expected shares for every class")
            require(int(leaves.bins.max()) < size, "leaves: there is no such bin")
        nonnegative = bool((self.weights >= 0).all() and (self.probabilities >= 0).all())
        require(nonnegative and abs(float(self.weights.sum()) - 1) < 1e-6, "weights or probabilities are invalid")
        if self.dependence is not None:
            check_array(self.dependence, "dependence", "f", (len(self.leaves),) * 2)
            symmetric = np.allclose(self.dependence, self.dependence.T) and np.allclose(np.diag(self.dependence), 1)
            require(symmetric and bool((np.linalg.eigvalsh(self.dependence) > -1e-6).all()), "dependence is invalid")
        if self.parities is not None:
            self.parities.check(ends, len(self.leaves))

    def check_codes(self, num_codes: Sequence[int]) -> None:
        """Refuses relaxed rows that do not fit columns with these numbers of codes.

        Raises:
          ValueError: the number of columns differs, or there are classes or codes that a column does not have.
        """
        require(len(num_codes) == self.dim, "the rows have another number of columns")
        require(self.split < 0 or len(self.weights) == num_codes[self.split], "the rows have other classes")
        require(
            self.split >= 0 or len(self.weights) == 1,
            "the rows have several classes, and no column whose values they are",
        )
        for j, leaves in zip(self.others, self.leaves, strict=True):
            require(int(leaves.last.max()) <= num_codes[j], "the rows have codes that a column does not have")

    def raked(self, masses: Sequence[Float[np.ndarray, "classes _"]]) -> RelaxedRows:
        """The distribution with these marginals of single columns that is closest to this one in relative entropy.

        It is found by iterative proportional fitting (Csiszár 1975): the probability of every row is multiplied by the
        ratio of both marginals at its value of a column, for one column after the other, again and again. A mixture of
        products stays one: the probabilities of a column change within each relaxed row, and so do the weights. The
        weights of the classes stay.

        Args:
          masses: for each column except ``split``, the shares of every class and bin, [T, B].
        """
        of_classes = self.weights.sum(1)
        parts = [np.array(self.probabilities[..., i:k], np.float64) for i, k in itertools.pairwise(self.offsets)]
        weights = self.weights
        for _ in range(_MOST_RAKES):
            furthest = 0.0
            for a, target in enumerate(masses):
                target = target * (of_classes / np.maximum(target.sum(1), 1e-300))[:, None]
                marginal = np.einsum("tk,tkb->tb", weights, parts[a])
                furthest = max(furthest, float(np.abs(marginal - target).sum()) / 2)
                part = parts[a] * np.minimum(target / np.maximum(marginal, 1e-300), _LARGEST_RATIO)[:, None]
                of_rows = part.sum(-1)
                parts[a] = np.where(of_rows[..., None] > 0, part / np.maximum(of_rows, 1e-300)[..., None], parts[a])
                scaled = weights * of_rows
                sums = scaled.sum(1)[:, None]  # 0 for a class whose rows have none of the values that they should have
                weights = np.where(sums > 0, scaled * (of_classes[:, None] / np.maximum(sums, 1e-300)), weights)
            if furthest < _RAKED:
                break
        probabilities = np.concatenate(parts, axis=-1).astype(np.float32)
        return dataclasses.replace(self, weights=weights, probabilities=probabilities)

    @property
    def dim(self) -> int:
        """Number of columns."""
        return len(self.leaves) + (self.split >= 0)

    @property
    def others(self) -> list[int]:
        """Indices of all columns except ``split``."""
        return [j for j in range(self.dim) if j != self.split]

    def sample(self, num_rows: int, seed: int) -> Int64[np.ndarray, "n d"]:
        """Category codes of rows, int64 [num_rows, d], in random order.

        The number of rows of each relaxed row is in proportion to its weight. Within a relaxed row the number of rows
        of each value of a column is in proportion to its probability. Numbers are rounded at random. The values of
        different columns are combined at random, or by ranks of correlated normal variables.
        """
        return self.sample_with_source(num_rows, seed)[0]

    def sample_with_source(self, num_rows: int, seed: int) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        """:meth:`sample`, and the index of the relaxed row of each row among all classes, [num_rows]."""
        return self._sample(num_rows, self.weights.reshape(-1), seed)

    def weighted_sample(self, num_rows: int, seed: int) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"]]:
        """Category codes of rows, int64 [num_rows, d], and weights of the rows, [num_rows], with Σ = 1.

        The number of rows of each relaxed row is in proportion to the square root of its weight. So a small sample
        shows more of what is rare.
        """
        weights = self.weights.reshape(-1)
        codes, source = self._sample(num_rows, np.sqrt(weights), seed)
        row_weights = np.sqrt(weights)[source]
        return codes, row_weights / row_weights.sum()

    def _sample(
        self, num_rows: int, often: Float[np.ndarray, "rows"], seed: int
    ) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        random = np.random.default_rng(seed)
        each = systematic(random, often, num_rows)
        source = np.repeat(np.arange(len(each)), each)
        coupled = {a: Coupled(normal) for a, normal in self._normal(random, num_rows).items()}
        codes, order = self.codes_of(random, source, coupled)
        return codes, source[order]

    def codes_of(
        self, random: np.random.Generator, source: Int64[np.ndarray, "n"], coupled: Mapping[int, Coupled]
    ) -> tuple[Int64[np.ndarray, "n d"], Int64[np.ndarray, "n"]]:
        """Category codes of rows, int64 [n, d], in random order.

        Args:
          random: the source of randomness.
          source: the index of the relaxed row of each row, increasing, [n].
          coupled: by index of a column among all except ``split``, where its values are to be.

        Returns:
          The codes, and the order of the rows: row i is of the relaxed row source[order[i]].
        """
        num_rows = len(source)
        each = np.bincount(source, minlength=self.weights.size)
        counts, starts = each[source], np.repeat(np.cumsum(each) - each, each)
        codes = np.empty((num_rows, self.dim), np.int64)
        if self.split >= 0:
            codes[:, self.split] = source // self.weights.shape[1]
        for a, j in enumerate(self.others):
            i, k = self.offsets[a : a + 2]
            given = coupled.get(a)
            if given is None or given.first is None:
                # Ranks of random numbers within each relaxed row: strata in random order.
                ranks = np.empty(num_rows)
                order = random.random(num_rows) if given is None else given.place
                ranks[np.lexsort((order, source))] = np.arange(num_rows)
                quantiles = (ranks - starts + random.random(num_rows)) / counts
            else:
                quantiles = given.place
            probabilities = self.probabilities[..., i:k].reshape(-1, k - i)
            leaf, place = _choose(quantiles, source, probabilities, self.leaves[a], self.weights.shape[1])
            first, last = self.leaves[a].first[leaf], self.leaves[a].last[leaf]
            if given is None:
                codes[:, j] = random.integers(first, last)
                continue
            chosen = first + np.floor(place * (last - first)).astype(np.int64).clip(0, last - first - 1)
            if given.first is not None and given.last is not None:  # a quantile is rounded, its range is not
                chosen = np.clip(chosen, given.first, given.last - 1)
            codes[:, j] = chosen
        order = random.permutation(num_rows)
        return codes[order], order

    def coupled(self) -> list[int]:
        """Indices, among all columns except ``split``, of the columns that depend on another within relaxed rows."""
        if self.dependence is None:
            return []
        return np.flatnonzero((self.dependence != np.eye(len(self.dependence))).any(1)).tolist()

    def _normal(self, random: np.random.Generator, num_rows: int) -> dict[int, Float[np.ndarray, "n"]]:
        """Correlated normal numbers [num_rows] for each column that depends on another within relaxed rows."""
        linked = self.coupled()
        if self.dependence is None or not linked:
            return {}
        values, vectors = np.linalg.eigh(self.dependence[np.ix_(linked, linked)])
        factor = vectors * np.sqrt(np.maximum(values, 0))
        columns = factor @ random.standard_normal((len(linked), num_rows))
        return dict(zip(linked, columns, strict=True))


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Coupled:
    """Where the values of one column of rows are to be, within the relaxed row of each row.

    Attributes:
      place: numbers whose ranks decide the values. With ``first`` and ``last``, the quantiles of the values, [n].
      first: the first code of the range that the value of each row is in, [n], or None if values have no ranges.
      last: the code after the last code of this range, [n], or None.
    """

    place: Float[np.ndarray, "n"]
    first: Int64[np.ndarray, "n"] | None = None
    last: Int64[np.ndarray, "n"] | None = None


def systematic(random: np.random.Generator, weights: Float[np.ndarray, "n"], num_rows: int) -> Int64[np.ndarray, "n"]:
    """Counts with sum num_rows, in proportion to weights up to rounding, by systematic sampling: int64, as weights."""
    edges = np.cumsum(weights) * (num_rows / weights.sum())
    edges[-1] = num_rows
    return np.diff(np.floor(edges + random.random()), prepend=0).astype(np.int64)


def _choose(
    quantiles: Float[np.ndarray, "n"],
    source: Int64[np.ndarray, "n"],
    probabilities: Float[np.ndarray, "rows bins"],
    leaves: Leaves,
    each: int,
) -> tuple[Int64[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The leaf at each quantile of its relaxed row, and the place within the leaf.

    Args:
      quantiles: in [0, 1), [n].
      source: the index of the relaxed row of each quantile, increasing, [n].
      probabilities: of the bins, for each relaxed row of each class, [T K, B].
      leaves: of the column.
      each: K, the number of relaxed rows of a class.

    Returns:
      Indices of leaves, int64 [n], and places between 0, the start of the leaf, and 1, its end, [n].
    """
    chosen, places = np.empty(len(quantiles), np.int64), np.empty(len(quantiles))
    step = max(1, (1 << 24) // max(1, len(leaves.first)))
    for start in range(0, len(probabilities), step):
        rows = np.arange(start, min(start + step, len(probabilities)))
        densities = np.asarray(probabilities[rows], np.float64)[:, leaves.bins] * leaves.shares[rows // each]
        edges = np.cumsum(densities, axis=1)
        edges /= np.maximum(edges[:, -1:], np.finfo(float).tiny)
        first, last = np.searchsorted(source, [rows[0], rows[-1] + 1])
        row, inside = source[first:last] - start, slice(first, last)
        place = np.searchsorted((edges + np.arange(len(rows))[:, None]).reshape(-1), row + quantiles[inside], "right")
        leaf = np.clip(place - row * edges.shape[1], 0, edges.shape[1] - 1)
        low, high = np.where(leaf > 0, edges[row, leaf - 1], 0), edges[row, leaf]
        chosen[inside] = leaf
        places[inside] = ((quantiles[inside] - low) / np.maximum(high - low, np.finfo(float).tiny)).clip(0, 1)
    return chosen, places
