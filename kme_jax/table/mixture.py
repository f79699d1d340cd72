"""Step 3 for tables: a mixture of relaxed rows, whose marginals are close to noisy marginals."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Float64, PRNGKeyArray

from kme_jax._numerics import random
from kme_jax._numerics.precision import Progress, reproducible_jit
from kme_jax._numerics.shapes import AnyArray
from kme_jax.table.directions import missed
from kme_jax.table.interactions import shrunken
from kme_jax.table.observed import Observed
from kme_jax.table.relaxed import raked

NUM_RELAXED = 1600  # of all fits together
_LEAST_FITS, _MOST_FITS = 2, 16
_FITS_ANYWAY = 4  # that are made even if they do not run side by side
# Relaxed rows of a class in each fit; twice as many if the noise of counts of pairs is below this part of N.
_EACH_CLASS, _LITTLE_NOISE = 50, 1 / 2000
_MOST_STEPS = 1500
_STEPS_AT_ONCE = 30
_STEPS_OF_ROUND = 150  # after each round, the misfit decides whether another one follows
_FEWEST_STEPS, _MANY_PARTS = 450, 565  # of the largest number of steps, and for how many parts it is the usual one
# A fit stops if the mean squared error of an observation, in units of σ, is at most this. At the private table it is
# about 1.
GOOD_ENOUGH = 0.95
_LEAST_PROGRESS = 0.01  # a fit also stops if a round lowers this error by a smaller part
# Rates of the first round and of the others. Where one round is enough, a small rate follows the noise less. The first
# one is also that of all relaxed rows together: larger steps would disturb what no counts of pairs tell.
_FIRST_RATE, _RATE = 0.05, 0.15
# What the running means of Adam keep of a gradient, and of its square, in a step. The gradients are exact, so there is
# no noise to average. With Adam's usual 0.999 for squares, steps stay short long after a start that was far off.
_KEPT = 0.8
_START_SPREAD = 1.0
# Share of all rows. Smaller noise is below the rounding of shares in float32, and its inverse square would overflow.
_FINEST = 1e-7
# Precisions of the prior of logits: of their deviations from the mean, which is that of single columns, and of the
# differences between the deviations of the classes, and of neighbouring bins.
_PRIOR_PRECISION, _BETWEEN_CLASSES, _BETWEEN_NEIGHBOURS = 0.1, 3.0, 0.5
# Rounds and steps of the fit of all relaxed rows together. The prior then holds them to what they are at the start of a
# round, with this strength: what they are fitted to has little noise.
_ROUNDS_TOGETHER, _STEPS_TOGETHER, _STRENGTH_TOGETHER = 3, 150, 1 / 64
_LEAST_PROBABILITY = 1e-9
_START_BETWEEN = 0.1  # standard deviation of the part of a start that classes do not share


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
    """Σ_k w_k p_k p_kᵀ of each class, [T, F, F], for functions of them whose gradient is symmetric.

    The gradient by p then takes one product of matrices. JAX would take two, or transpose large matrices, which takes
    longer than the products.

    Args:
      parts: p, [T, K, F].
      weights: w, [T, K].
    """
    return _einsum("tka,tk,tkb->tab", parts, weights, parts)


def _second_moments_forward(parts, weights):
    return second_moments(parts, weights), (parts, weights)


def _second_moments_backward(residuals, gradient):
    parts, weights = residuals
    along = _einsum("tka,tab->tkb", parts, gradient)
    return 2 * weights[..., None] * along, jnp.sum(parts * along, axis=-1)


second_moments.defvjp(_second_moments_forward, _second_moments_backward)


@functools.partial(reproducible_jit, static_argnames=("offsets",))
def _steps(state, data, disturbed, first, num_steps, rate, *, offsets):
    """``_STEPS_AT_ONCE`` steps of Adam on every fit, from step ``first`` of a cosine schedule.

    The schedule has ``num_steps`` steps and starts with ``rate``. Noise is added to the counts of pairs of the fits
    that are ``disturbed``, 1 or 0 for each. Also returns the sum of the squared errors of each fit before the last
    step, in units of σ.
    """
    adam = optax.scale_by_adam(_KEPT, _KEPT)

    def loss(parameters, disturbed):
        probabilities = _probabilities(parameters["logits"], offsets)  # [T, K, D]
        weights = jax.nn.softmax(parameters["weights"].reshape(-1)).reshape(parameters["weights"].shape)
        if "classes" in data:
            weights = data["classes"][:, None] * jax.nn.softmax(parameters["weights"], axis=1)
        singles = _einsum("tk,tka->ta", weights, probabilities)
        scores = _einsum("tka,as->tks", probabilities, data["scores"])
        products = _einsum("tks,tk,tkr->sr", scores, weights, scores)
        misfit = (
            jnp.sum(jnp.square((data["rows"] * singles - data["singles"]) / data["singles_sigma"]))
            + jnp.sum(jnp.square((data["rows"] * singles.sum(0) - data["totals"]) * data["totals_precision"]))
            + jnp.sum(jnp.square((data["rows"] * products - data["products"]) * data["products_precision"]))
        )
        for i, (members, others, counts, precision) in enumerate(data["pairs"]):
            if "noise" in data:
                counts = counts + disturbed * data["noise"][i]
            parts = probabilities if members is None else _einsum("tka,ae->tke", probabilities, members)
            if others is not None:
                parts = jnp.concatenate([parts, _einsum("tka,ae->tke", probabilities, others)], axis=-1)
            pairs = second_moments(parts, weights)
            misfit += jnp.sum(jnp.square((data["rows"] * pairs - counts) * precision[None]))
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
        return (misfit + data["strength"] * prior) / 2, misfit

    def one(parameters, moments, disturbed, step):
        gradients, misfit = jax.grad(loss, has_aux=True)(parameters, disturbed)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, moments = adam.update(gradients, moments)
        length = rate * (1 + jnp.cos(jnp.pi * step / num_steps)) / 2
        return jax.tree.map(lambda p, u: p - length * u, parameters, updates), moments, misfit

    def body(state, step):
        parameters, moments = state
        parameters, moments, misfit = jax.vmap(one, in_axes=(0, 0, 0, None))(parameters, moments, disturbed, step)
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


def choose_num_steps(num_parts: int) -> int:
    """The largest number of steps of a fit: 1500, or fewer if there are many parts, but at least 450.

    The time of a step grows with the square of their number. Where a fit takes all of its steps, the last ones change
    little.

    Args:
      num_parts: F, the number of bins and unions.
    """
    steps = int(_MOST_STEPS * min(1.0, (_MANY_PARTS / num_parts) ** 2))
    return max(_FEWEST_STEPS, steps // _STEPS_OF_ROUND * _STEPS_OF_ROUND)


def fit(
    key: PRNGKeyArray,
    observed: Observed,
    *,
    num_fits: int | None = None,
    num_relaxed: int | None = None,
    part: float = 1.0,
    num_steps: int | None = None,
    good_enough: float = GOOD_ENOUGH,
    rounds_together: int = _ROUNDS_TOGETHER,
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

    Fits follow noise a little, and small ones weaken how columns depend on each other, all in the same way. So in the
    end the relaxed rows of all fits are fitted together: to the counts of their mixture, with as much of its dependence
    as the noisy counts support, see ``kme_jax.table.interactions``, and with what it clearly misses, see
    ``kme_jax.table.directions``. One more fit, of counts with more noise, tells how far fits follow noise. Single
    columns stay as they are. This is post-processing: it spends nothing.

    Args:
      key: a JAX random key.
      observed: the noisy counts.
      num_fits: number of fits; if None, see :func:`choose_num_fits`.
      num_relaxed: number of relaxed rows in each fit; if None, all fits together have 1600.
      part: of the fits, in (0, 1]; at least one is made.
      num_steps: the largest number of steps of Adam, a multiple of 30; if None, see :func:`choose_num_steps`.
      good_enough: the mean squared error of an observation, in units of σ, at which a fit stops.
      rounds_together: how often all relaxed rows are fitted together in the end, at most.
      max_entries: limit of the entries of all pairs of bins, over fits that run side by side.
      progress: called with (steps done, total steps).

    Returns:
      Weights [T, K], which sum to 1, and probabilities of the bins of every column [T, K, D].
    """
    num_classes, num_bins = observed.singles.shape
    num_fits = num_fits or choose_num_fits(observed, max_entries)
    num_steps = num_steps or choose_num_steps(observed.pairs.shape[-1])
    each = -(-(num_relaxed or NUM_RELAXED // num_fits) // num_classes)
    num_fits = max(1, round(part * num_fits))
    base = np.log(np.maximum(observed.prior, 1))
    totals = np.maximum([observed.prior[:, i:j].sum(1) for i, j in itertools.pairwise(observed.offsets)], 1).mean(0)
    # The start is made by NumPy: eager operations of JAX would be compiled for each number of bins.
    single = functools.partial(np.asarray, dtype=np.float32)
    noise = _noise(key, observed) if rounds_together and observed.pairs_precision.any() else None
    data = _data(observed, noise)
    data |= {"base": single(base)[:, None], "strength": single(1)}
    if observed.classes is not None:
        data["classes"] = single(observed.classes / observed.classes.sum())
    shapes = [(num_fits, 1, each, num_bins), (num_fits, num_classes, each, num_bins)]
    parts = [random.normal(k, shape, jnp.float32) for k, shape in zip(jax.random.split(key), shapes, strict=True)]
    shared, own = (np.asarray(part) @ single(_start_factor(observed.neighbours)).T for part in parts)
    spread = single(_START_SPREAD) * (single(math.sqrt(1 - _START_BETWEEN**2)) * shared + single(_START_BETWEEN) * own)
    start = single(np.log(totals / totals.sum()))[:, None]
    parameters = {
        "logits": data["base"][None] + spread,
        "weights": np.broadcast_to(start[None], (num_fits, num_classes, each)),
    }
    # The last fit is that of noisier counts. It has the start of the first one.
    disturbed = np.zeros(num_fits, np.float32)
    if noise is not None:
        disturbed = np.append(disturbed, np.float32(1))
        parameters = {name: np.concatenate([starts, starts[:1]]) for name, starts in parameters.items()}
    num_starts = len(disturbed)
    side_by_side = num_starts if num_starts * num_classes * num_bins**2 <= max_entries else 1
    together = min(_STEPS_TOGETHER, num_steps)
    done, all_work = num_starts * num_steps, num_starts * num_steps + rounds_together * num_fits * together
    fitted: list[dict[str, np.ndarray]] = []
    steps_of_first = num_steps
    for i in range(0, num_starts, side_by_side):
        chosen = slice(i, i + side_by_side)
        starts = {name: leaf[chosen] for name, leaf in parameters.items()}

        def report(steps: int, i: int = i) -> None:
            if progress:
                progress(min(i * num_steps + side_by_side * steps, num_starts * num_steps), all_work)

        most, enough = (steps_of_first, None) if disturbed[chosen].all() else (num_steps, good_enough)
        fits, steps = _fit_apart(observed, data, starts, disturbed[chosen], most, enough, report)
        fitted.append(fits)
        steps_of_first = steps if i == 0 else steps_of_first
        report(num_steps)  # a fit may have stopped early
    parameters = {name: np.concatenate([fits[name] for fits in fitted]) for name in fitted[0]}
    last = {name: leaf[num_fits:] for name, leaf in parameters.items()}
    parameters = {name: leaf[:num_fits] for name, leaf in parameters.items()}
    weights, probabilities = _mixture(parameters, observed.offsets, observed.classes)
    singles = np.einsum("tk,tkd->td", weights, probabilities)
    if noise is not None:
        first = {name: leaf[:1] for name, leaf in parameters.items()}
        alone = [_mixture(one, observed.offsets, observed.classes) for one in (first, last)]
        parts = observed.of_parts(probabilities)
        counts = np.matmul(np.swapaxes(observed.num_rows * weights[..., None] * parts, 1, 2), parts)
        counts = missed(observed, shrunken(observed, counts, noise, *alone))
        for _ in range(rounds_together):
            weights, probabilities = _fit_together(observed, weights, probabilities, counts, together)
            done += num_fits * together
            if progress:
                progress(done, all_work)
    if progress:
        progress(all_work, all_work)
    masses = [singles[:, i:j] for i, j in itertools.pairwise(observed.offsets)]
    return raked(weights, probabilities, observed.offsets, masses)


def _noise(key: PRNGKeyArray, observed: Observed) -> Float[np.ndarray, "classes parts parts"]:
    """Normal noise, as large as that of the counts of pairs of parts, and 0 where nothing was measured."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    sigma = 1 / np.where(observed.pairs_precision > 0, observed.pairs_precision, np.inf)
    return rng.standard_normal(observed.pairs.shape, dtype=np.float32) * sigma.astype(np.float32)


def _data(observed: Observed, noise: Float[np.ndarray, "classes parts parts"] | None = None) -> dict[str, Any]:
    """The data of ``_steps`` that all fits share.

    Args:
      observed: the noisy counts.
      noise: what is added to counts of pairs of disturbed fits; None if there are none.
    """
    single = functools.partial(np.asarray, dtype=np.float32)
    finest = _FINEST * observed.num_rows
    names = ("singles", "singles_sigma", "totals", "totals_precision")
    names += ("unions", "pairs", "pairs_precision")
    names += ("scores", "products", "products_precision", "signs", "parities", "parities_precision")
    data: dict[str, Any] = {
        name: single(
            np.minimum(getattr(observed, name), 1 / finest)
            if name.endswith("precision")
            else np.maximum(getattr(observed, name), finest)
            if name.endswith("sigma")
            else getattr(observed, name)
        )
        for name in names
    }
    data["singles_sigma"] = data["singles_sigma"][None]
    unions, precision = data.pop("unions"), data.pop("pairs_precision")
    data["pairs"] = blocks_of_pairs(unions, data["pairs"], precision)
    if noise is not None:
        data["noise"] = [block[2] for block in blocks_of_pairs(unions, noise, precision)]
    data |= {"rows": single(observed.num_rows), "triples": observed.triples}
    return data | {"neighbours": single(observed.neighbours[None, None, :-1])}


def blocks_of_pairs(
    unions: Float[np.ndarray, "bins unions"],
    pairs: Float[np.ndarray, "classes parts parts"],
    precision: Float[np.ndarray, "parts parts"],
) -> list[
    tuple[
        Float[np.ndarray, "bins others"] | None,
        Float[np.ndarray, "bins unions"] | None,
        Float[np.ndarray, "classes block block"],
        Float[np.ndarray, "block block"],
    ]
]:
    """Blocks of the table of all pairs of parts, which have each measured pair once, and take the least work.

    Either all parts are one block, or the bins are one, and the unions are another one together with the bins that were
    counted beside a union. Where many columns have unions, few bins were, and two blocks are smaller.

    Args:
      unions: see ``Observed``.
      pairs, precision: see :func:`both_ways`.

    Returns:
      For each block two matrices, by which probabilities of bins are multiplied to have those of the parts of the
      block: that of its first parts, None if they are all bins, and that of the others, None if there are none. Then
      counts and precisions of its pairs, both ways.
    """
    pairs, precision = both_ways(pairs, precision)
    num_bins, num_parts = len(unions), len(precision)
    beside = np.flatnonzero(precision[:num_bins, num_bins:].any(1))
    coarse = np.concatenate([beside, np.arange(num_bins, num_parts)])
    if num_bins**2 + len(coarse) ** 2 >= num_parts**2:
        return [(None, unions if num_parts > num_bins else None, pairs, precision)] if precision.any() else []
    members = np.concatenate([np.eye(num_bins, dtype=pairs.dtype)[:, beside], unions], axis=1, dtype=pairs.dtype)
    of_coarse = np.array(precision[np.ix_(coarse, coarse)])
    of_coarse[: len(beside), : len(beside)] = 0  # the first block has these pairs
    blocks = (
        (None, None, pairs[:, :num_bins, :num_bins], precision[:num_bins, :num_bins]),
        (members, None, pairs[:, coarse[:, None], coarse], of_coarse),
    )
    return [block for block in blocks if block[-1].any()]


def both_ways(
    pairs: Float[np.ndarray, "classes parts parts"], precision: Float[np.ndarray, "parts parts"]
) -> tuple[Float[np.ndarray, "classes parts parts"], Float[np.ndarray, "parts parts"]]:
    """Counts and precisions that have each pair of parts both ways, for the gradient of :func:`second_moments`.

    The misfit is the same: each way has half of the squared precision.

    Args:
      pairs: counts of pairs, one way, and 0 where nothing was measured. No part has a pair with itself.
      precision: 1/σ, one way.
    """
    return pairs + np.swapaxes(pairs, -1, -2), np.float32(math.sqrt(0.5)) * (precision + precision.T)


def _start_of_steps(parameters: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Any]:
    """The state of ``_steps`` before the first one: all moments of Adam are zero."""
    moments = jax.eval_shape(jax.vmap(optax.scale_by_adam().init), parameters)
    return parameters, jax.tree.map(lambda moment: np.zeros(moment.shape, moment.dtype), moments)


def _fit_apart(
    observed: Observed,
    data: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
    disturbed: Float[np.ndarray, "fits"],
    num_steps: int,
    good_enough: float | None,
    report: Callable[[int], None],
) -> tuple[dict[str, np.ndarray], int]:
    """Parameters of fits that are made side by side, and the number of steps.

    Args:
      observed, num_steps: see :func:`fit`.
      data: of ``_steps``.
      parameters: where the fits start.
      disturbed: 1 for a fit of noisier counts, 0 for others, which say when to stop.
      good_enough: see :func:`fit`; None to make all steps.
      report: called with the number of steps that are done.
    """
    state = _start_of_steps(parameters)
    before, of_round = math.inf, min(_STEPS_OF_ROUND, num_steps)
    step = 0
    while step < num_steps:
        within, rate = step % of_round, _FIRST_RATE if step < of_round else _RATE
        schedule = (jnp.float32(number) for number in (within, of_round, rate))
        state, misfits = _steps(state, data, disturbed, *schedule, offsets=observed.offsets)
        jax.block_until_ready(state)
        step += _STEPS_AT_ONCE
        report(step)
        if good_enough is not None and within + _STEPS_AT_ONCE == of_round:
            error = float(np.mean(np.asarray(misfits)[disturbed == 0])) / max(1, observed.num_observations)
            if error <= good_enough or error > (1 - _LEAST_PROGRESS) * before:
                break
            before = error
    return {name: np.asarray(of_fits) for name, of_fits in state[0].items()}, step


def _mixture(
    parameters: dict[str, np.ndarray], offsets: tuple[int, ...], classes: Float[np.ndarray, "classes"] | None
) -> tuple[Float64[np.ndarray, "classes K"], Float64[np.ndarray, "classes K bins"]]:
    """Weights and probabilities of the relaxed rows of all fits.

    Args:
      parameters: of ``_steps``.
      offsets: see ``Observed``.
      classes: counts or shares of the classes; None if they were fitted.
    """
    probabilities, logits = (np.asarray(parameters[name], np.float64) for name in ("logits", "weights"))
    sizes = np.diff(offsets)
    probabilities = np.exp(probabilities - np.repeat(np.maximum.reduceat(probabilities, offsets[:-1], -1), sizes, -1))
    probabilities /= np.repeat(np.add.reduceat(probabilities, offsets[:-1], -1), sizes, -1)
    axes = (1, 2) if classes is None else 2
    weights = np.exp(logits - logits.max(axis=axes, keepdims=True))
    weights /= len(logits) * weights.sum(axis=axes, keepdims=True)
    if classes is not None:
        weights *= (classes / classes.sum())[:, None]
    return np.concatenate(list(weights), axis=1), np.concatenate(list(probabilities), axis=1)


def _fit_together(
    observed: Observed,
    weights: Float[np.ndarray, "classes K"],
    probabilities: Float[np.ndarray, "classes K bins"],
    counts: Float[np.ndarray, "classes parts parts"],
    num_steps: int,
) -> tuple[Float64[np.ndarray, "classes K"], Float64[np.ndarray, "classes K bins"]]:
    """Weights and probabilities near these, whose counts of pairs of parts are near ``counts``."""
    single = functools.partial(np.asarray, dtype=np.float32)
    data = _data(dataclasses.replace(observed, pairs=np.where(observed.pairs_precision > 0, counts, 0)))
    logits = single(np.log(np.maximum(probabilities, _LEAST_PROBABILITY)))
    data |= {
        "base": logits,
        "strength": single(_STRENGTH_TOGETHER),
        "classes": single(weights.sum(1)),
        "singles": single(observed.num_rows * np.einsum("tk,tkd->td", weights, probabilities)),
        "totals_precision": np.zeros_like(data["totals_precision"]),
    }
    of_rows = single(np.log(np.maximum(weights, _LEAST_PROBABILITY / weights.size)))
    state = _start_of_steps({"logits": logits[None], "weights": of_rows[None]})
    for step in range(0, num_steps, _STEPS_AT_ONCE):
        schedule = (jnp.float32(number) for number in (step, num_steps, _FIRST_RATE))
        state, _ = _steps(state, data, np.zeros(1, np.float32), *schedule, offsets=observed.offsets)
    return _mixture(state[0], observed.offsets, weights.sum(1))
