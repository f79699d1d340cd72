"""Step 3 for Fourier features: reduced sets, where locations are chosen too ([B] algorithm 2, line 5).

The functions here see noisy embeddings, public points and keys, and nothing else. :func:`greedy_preimages` followed by
:func:`lasso_weights` is the published procedure. :func:`joint_reduced_set` is the modern one.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import threadpoolctl
from jaxtyping import Float, Float64, PRNGKeyArray, Real

from kme_jax._numerics.precision import (
    Progress,
    check_columns,
    check_points,
    precision_of,
    reproducible_jit,
)
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.sincos import sincos_turns
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.privacy.mechanisms import NoisyEmbedding, check_noisy
from kme_jax.synthesis import preimage_kernel
from kme_jax.synthesis.lasso import SolverReport, l1_ball_least_squares, lasso_path
from kme_jax.synthesis.preimage_kernel import BETA1, BETA2, EPSILON
from kme_jax.synthesis.sample import WeightedSample
from kme_jax.synthesis.weights import check_radius, noise_tolerance

Array = jax.Array


def _fourier_map(embedding: NoisyEmbedding) -> FourierMap:
    check_noisy(embedding)
    if not isinstance(embedding.feature_map, FourierMap):
        raise ValueError(
            f"expected the noisy embedding of a FourierMap, got {type(embedding.feature_map).__name__}: "
            "adaptive_weights with points takes any map"
        )
    return embedding.feature_map


def _similar_maps(embeddings: Sequence[NoisyEmbedding]) -> list[FourierMap]:
    maps = [_fourier_map(embedding) for embedding in embeddings]
    if len({(feature_map.turns.shape, feature_map.turns.dtype) for feature_map in maps}) != 1:
        raise ValueError(
            "the maps of the embeddings must have the same precision, number of features and number of columns: call "
            "this for one embedding at a time"
        )
    return maps


# --- the published procedure ---------------------------------------------------------------------------------------

_POINTS_PER_CALL = 200


def cosine_of_turns(u: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """cos 2πu for u of any shape, in its dtype.

    In float32 it is one polynomial with error at most 3e-7, which is cheaper than sine and cosine together.
    """
    if u.dtype != jnp.float32:
        return sincos_turns(u)[1]
    r = u - jnp.round(u)
    return preimage_kernel.polynomial(preimage_kernel.COSINE, r * r)


@short_repr
class CosineWaves(NamedTuple):
    """Features without their scale, computed as cosines alone.

    A sine is the cosine of an angle that is a quarter turn smaller. So one elementwise pass computes all features, and
    one matrix product computes ⟨v, ψ(z)⟩ and its gradient by z.

    Attributes:
      columns: the frequencies, repeated once for the sines, [d, J].
      phases: 0 for cosines and 1/4 for sines, [J].
    """

    columns: Float[Array, "d F"]
    phases: Float[Array, "F"]

    @classmethod
    def of(cls, turns: Float[AnyArray, "frequencies d"]) -> CosineWaves:
        """The features of frequencies [J/2, d]."""
        phases = jnp.repeat(jnp.asarray([0, 0.25], turns.dtype), len(turns))
        return cls(jnp.concatenate([turns, turns]).T, phases)

    def __call__(self, points: Float[AnyArray, "*M d"]) -> Float[Array, "*M F"]:
        """Features of points [..., d], [..., J]."""
        shape = (1,) * (points.ndim - 1) + self.phases.shape
        angles = -self.phases.reshape(shape)
        for d, column in enumerate(self.columns):
            angles = angles + points[..., d, None] * column.reshape(shape)
        return cosine_of_turns(angles)

    def with_gradient(self, vector: Float[AnyArray, "F"]) -> Float[Array, "_ F"]:
        """Rows [1 + d, J] for a vector v [J]: their products with ψ(z) are ⟨v, ψ(z)⟩ and its gradient by z, over 2π."""
        cosines, sines = jnp.split(vector, 2)
        return jnp.concatenate([vector[None], jnp.concatenate([sines, -cosines])[None] * self.columns])


def _adam_factors(learning_rate, num_steps: int):
    """For each step: the corrected learning rate, and the corrective factor of the squared gradient, [num_steps, 2]."""
    count = jnp.arange(1, num_steps + 1, dtype=learning_rate.dtype)
    return jnp.stack([learning_rate / (1 - BETA1**count), 1 / (1 - BETA2**count)], axis=1)


def _greedy_points(
    turns: Float[AnyArray, "frequencies d"],
    learning_rate: Float[AnyArray, ""],
    residual: Float[AnyArray, "2 frequencies"],
    starts: Float[AnyArray, "M d"],
    *,
    num_steps: int,
) -> tuple[Float[AnyArray, "2 frequencies"], Float[AnyArray, "M d"]]:
    """Greedy pre-images, one after another.

    Args:
      turns: frequencies in turns, [J/2, d].
      learning_rate: of Adam.
      residual: r, of cosines and sines, [2, J/2].
      starts: one for each point, [b, d].
      num_steps: Adam steps for each point.

    Returns:
      The residual after b points, and the points, [b, d].
    """
    num_frequencies = len(turns)
    rates = _adam_factors(learning_rate, num_steps)
    waves = CosineWaves.of(turns)

    def add_point(residual, start):
        with_gradient = waves.with_gradient(residual.reshape(-1))

        def step(state, rate):
            point, mean, square = state
            sums = jnp.matmul(with_gradient, waves(point), precision=jax.lax.Precision.HIGHEST)
            gradient = (-4 * math.pi / num_frequencies) * sums[0] * sums[1:]  # of -⟨r, ψ(z)⟩² / ‖ψ(z)‖²
            mean = BETA1 * mean + (1 - BETA1) * gradient
            square = BETA2 * square + (1 - BETA2) * jnp.square(gradient)
            point = point - rate[0] * mean / (jnp.sqrt(rate[1] * square) + EPSILON)
            return (point, mean, square), None

        zero = jnp.zeros_like(start)
        (point, _, _), _ = jax.lax.scan(step, (start, zero, zero), rates)
        features = waves(point)
        component = jnp.matmul(residual.reshape(-1), features, precision=jax.lax.Precision.HIGHEST) / num_frequencies
        return residual - component * features.reshape(2, -1), point

    return jax.lax.scan(add_point, residual, starts)


greedy_points = reproducible_jit(_greedy_points, static_argnames="num_steps")


@functools.partial(reproducible_jit, static_argnames="num_steps")
def greedy_points_of_all(
    turns: Float[AnyArray, "embeddings frequencies d"],
    learning_rates: Float[AnyArray, "embeddings"],
    residuals: Float[AnyArray, "embeddings 2 frequencies"],
    starts: Float[AnyArray, "M d"],
    *,
    num_steps: int,
) -> tuple[Float[AnyArray, "embeddings 2 frequencies"], Float[AnyArray, "embeddings M d"]]:
    """:func:`greedy_points` for several embeddings in one program.

    Args:
      turns: frequencies in turns, [embeddings, J/2, d].
      learning_rates: of Adam, [embeddings].
      residuals: of cosines and sines, [embeddings, 2, J/2].
      starts: one for each point, the same for all embeddings, [b, d].
      num_steps: Adam steps for each point.

    Returns:
      The residuals, [embeddings, 2, J/2], and the points, [embeddings, b, d].
    """
    points = functools.partial(_greedy_points, num_steps=num_steps)
    return jax.vmap(points, (0, 0, 0, None))(turns, learning_rates, residuals, starts)


def _greedy_in_threads(turns, learning_rates, residuals, blocks, *, num_steps: int, progress: Progress):
    """The points of every embedding, [embeddings, M, d], on a CPU.

    One embedding keeps one core busy. So there are as many threads as cores, and embeddings take turns on them, one
    block of points at a time.
    """
    residuals, points_of = list(residuals), [[] for _ in residuals]

    def extend(i):
        with precision_of(turns):
            residuals[i], points = greedy_points(
                turns[i], learning_rates[i], residuals[i], blocks[len(points_of[i])], num_steps=num_steps
            )
            points_of[i].append(np.asarray(points))
        return i

    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        running, done = {pool.submit(extend, i) for i in range(len(residuals))}, 0
        while running:
            finished, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for i in [future.result() for future in finished]:
                if len(points_of[i]) < len(blocks):
                    running.add(pool.submit(extend, i))
                done += 1
                progress(done, len(blocks) * len(residuals))
    finally:
        pool.shutdown(cancel_futures=True)
    return np.stack([np.concatenate(points) for points in points_of])


@shows_progress("pre-images")
def greedy_preimages(
    embeddings: Sequence[NoisyEmbedding],
    starts: Real[AnyArray, "M d"],
    *,
    num_steps: int = 100,
    learning_rate: float | None = None,
    progress: Progress | bool = False,
) -> Float64[np.ndarray, "embeddings M d"]:
    """Iterated approximate pre-images, as in the published code of [B] (figure 2, dashed).

    The residual r is μ̃ at first. Point m starts at ``starts[m]`` and takes Adam steps on −⟨r, ψ(z)⟩²/‖ψ(z)‖². The
    component of r along ψ(z) is then subtracted from r. The first m points do not depend on M.

    Args:
      embeddings: noisy embeddings μ̃ of Fourier maps, for example one for each ε and repeat. Each is treated by itself.
      starts: public points, [M, d].
      num_steps: Adam steps for each point (published: 100).
      learning_rate: of Adam, in the unit of the columns. The default is a length over which the kernel varies. (The
        published value is 100, which is about this length for the published kernel.)
      progress: True for a bar, or a function that is called as progress(done, total), in units of work.

    Returns:
      Points, [len(embeddings), M, d].

    Raises:
      TypeError: an embedding is not a ``NoisyEmbedding``.
      ValueError: a map is not a FourierMap, maps differ in precision or in their numbers of features or columns, or
        shapes mismatch.
    """
    maps = _similar_maps(embeddings)
    starts = check_points(starts, "starts")
    check_columns(starts, maps[0].dim, "starts")
    dtype = maps[0].turns.dtype
    progress = progress if callable(progress) else lambda done, total: None
    turns = np.stack([feature_map.turns for feature_map in maps])
    rates = np.asarray([learning_rate or feature_map.length_scale for feature_map in maps], dtype)
    residuals = np.stack([embedding.coordinates for embedding in embeddings]).astype(dtype)
    residuals = residuals.reshape(len(maps), 2, -1)
    blocks = [starts[i : i + _POINTS_PER_CALL].astype(dtype) for i in range(0, len(starts), _POINTS_PER_CALL)]
    with precision_of(turns):
        if jax.default_backend() == "cpu":
            points = _greedy_in_threads(turns, rates, residuals, blocks, num_steps=num_steps, progress=progress)
        else:
            kernel = preimage_kernel.is_supported(jax.devices()[0], turns.shape[1], turns.shape[2], dtype)
            extend, blocks_of_points = preimage_kernel.greedy_points if kernel else greedy_points_of_all, []
            turns, rates, residuals = map(jnp.asarray, (turns, rates, residuals))
            for i, block in enumerate(blocks):
                residuals, points = extend(turns, rates, residuals, block, num_steps=num_steps)
                blocks_of_points.append(np.asarray(points))
                progress(i + 1, len(blocks))
            points = np.concatenate(blocks_of_points, axis=1)
    return points.astype(np.float64)


@reproducible_jit
def _features(feature_map, points):
    return feature_map(points)


def lasso_weights(
    embedding: NoisyEmbedding,
    points: Real[AnyArray, "M d"],
    sizes: Sequence[int] | None = None,
) -> Iterator[tuple[WeightedSample, SolverReport]]:
    """Weights of the published code of [B]: the Lasso on μ̃ with λ = 100 / 2N, where N is the number of private
    rows.

    Args:
      embedding: the noisy embedding μ̃ of a FourierMap.
      points: z, [M, d].
      sizes: increasing numbers of points, each at most M; None for M alone. Each solve starts at the weights of the
        one before.

    Yields:
      For each size m: the first m points with their weights, and the report of the solver.
    """
    feature_map = _fourier_map(embedding)
    points = check_points(points, "points")
    check_columns(points, feature_map.dim, "points")
    with precision_of(feature_map.turns):
        features = _features(feature_map, points.astype(feature_map.turns.dtype))
    penalty = 100 / (2 * embedding.mechanism.num_rows)
    sizes = [len(points)] if sizes is None else sizes
    for weights, report in lasso_path(features, embedding.coordinates, penalty, sizes):
        yield WeightedSample(points[: len(weights)], weights, embedding.mechanism), report


# --- the modern procedure ------------------------------------------------------------------------------------------

_CANDIDATES_AT_A_TIME = 500
_JOINT_ROUNDS = 3
_JOINT_LEARNING_RATE = 0.1  # largest step, in units of the kernel's length for locations and of C/M for weights
_NEGLIGIBLE = 0.05  # weights below this share of C/M are re-seeded


@functools.partial(reproducible_jit, static_argnames="num_steps")
def joint_steps(
    turns: Float[AnyArray, "frequencies d"],
    scale: Float[AnyArray, ""],
    target: Float[AnyArray, "F"],
    points: Float[AnyArray, "M d"],
    weights: Float[AnyArray, "M"],
    radius: Float[AnyArray, ""],
    length: Float[AnyArray, ""],
    rate: Float[AnyArray, ""],
    *,
    num_steps: int,
) -> tuple[Float[AnyArray, "M d"], Float[AnyArray, "M"], Float[AnyArray, "steps"]]:
    """Projected optimiser steps on ½‖μ̃ − Σ w_m ψ(z_m)‖² over locations and weights, with a cosine schedule.

    Locations move in units of ``length``, and weights in units of radius / M. So one learning rate fits both.

    Args:
      turns: frequencies in turns, [J/2, d].
      scale: of the features.
      target: μ̃, [J].
      points: z at the start, [M, d].
      weights: w at the start, [M].
      radius: C, the bound of Σ|w_m|.
      length: unit of the locations.
      rate: learning rate of the first step.
      num_steps: number of steps.

    Returns:
      The locations [M, d], the weights [M], and the objective at every step, [num_steps].
    """
    weight_unit = radius / weights.shape[0]
    schedule = optax.cosine_decay_schedule(rate, num_steps)
    # Each coordinate of a location has its own step size. All weights share one: with a step size of its own, the
    # weight of a point that explains nothing would grow as fast as any other weight.
    method = optax.partition(
        {
            "points": optax.adam(schedule),
            "weights": optax.chain(
                optax.trace(0.9, nesterov=True),
                optax.normalize_by_update_norm(),
                optax.scale_by_learning_rate(lambda count: schedule(count) * weights.shape[0] ** 0.5),
            ),
        },
        {"points": "points", "weights": "weights"},
    )
    waves = CosineWaves.of(turns)

    def value_and_gradient(points, weights):
        features = waves(points)
        residual = target - scale * jnp.matmul(weights, features, precision=jax.lax.Precision.HIGHEST)
        products = jnp.matmul(features, waves.with_gradient(residual).T, precision=jax.lax.Precision.HIGHEST)
        by_points = (-2 * math.pi * scale) * weights[:, None] * products[:, 1:]
        return 0.5 * residual @ residual, by_points, -scale * products[:, 0]

    def step(carry, _):
        parameters, state = carry
        value, by_points, by_weights = value_and_gradient(
            length * parameters["points"], weight_unit * parameters["weights"]
        )
        gradient = {"points": length * by_points, "weights": weight_unit * by_weights}
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in int32
            updates, state = method.update(gradient, state, parameters)
            parameters = cast(dict[str, Array], optax.apply_updates(parameters, updates))
            projected = optax.projections.projection_l1_ball(parameters["weights"], radius / weight_unit)
        return (parameters | {"weights": projected}, state), value

    parameters = {"points": points / length, "weights": weights / weight_unit}
    (parameters, _), trace = jax.lax.scan(step, (parameters, method.init(parameters)), length=num_steps)
    return length * parameters["points"], weight_unit * parameters["weights"], trace


def _joint_reduced_sets(turns, length, target, key, candidates, scale, radius, rate, *, sizes, num_steps, num_rounds):
    """:func:`joint_reduced_set` without its last solve, for several numbers of points.

    Returns:
      For each size: the locations, the weights, the features of the locations, and the objective at every step.
    """
    waves = CosineWaves.of(turns)
    count = candidates.shape[0]
    padding = -count % _CANDIDATES_AT_A_TIME
    batches = jnp.pad(candidates, ((0, padding), (0, 0))).reshape(-1, _CANDIDATES_AT_A_TIME, candidates.shape[1])

    def features(points):
        return scale * waves(points)

    def one_round(state, round_):
        alive = []
        for _, weights in state:
            dead = (round_ == 0) | (jnp.abs(weights) < _NEGLIGIBLE * radius / weights.shape[0])
            alive.append((dead, jnp.where(dead, 0, weights)))
        exact = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # not TF32
        residuals = [target - exact(w, features(z)) for (_, w), (z, _) in zip(alive, state, strict=True)]
        residuals = jnp.stack(residuals)
        products = jax.lax.map(lambda batch: exact(residuals, features(batch).T), batches)
        scores = jnp.square(jnp.moveaxis(products, 0, 1).reshape(len(sizes), -1)[:, :count])
        # The first m of a draw without replacement are themselves a draw of m without replacement.
        draw = functools.partial(jax.random.choice, jax.random.fold_in(key, round_), count, (max(sizes),), False)
        seeds = jax.vmap(draw)(scores / jnp.sum(scores, axis=1, keepdims=True))
        moved, traces = [], []
        for (points, _), (dead, weights), drawn in zip(state, alive, seeds, strict=True):
            points = jnp.where(dead[:, None], candidates[drawn[: len(weights)]], points)
            *points_and_weights, trace = joint_steps(
                turns, scale, target, points, weights, radius, length, rate, num_steps=num_steps
            )
            moved.append(tuple(points_and_weights))
            traces.append(trace)
        return moved, traces

    start = [(candidates[:size], jnp.full(size, radius / size, turns.dtype)) for size in sizes]
    state, traces = jax.lax.scan(one_round, start, jnp.arange(num_rounds))
    return [(*pair, features(pair[0]), trace.reshape(-1)) for pair, trace in zip(state, traces, strict=True)]


_joint_static = ("sizes", "num_steps", "num_rounds")
_joint_one_at_a_time = reproducible_jit(_joint_reduced_sets, static_argnames=_joint_static)


@functools.partial(reproducible_jit, static_argnames=_joint_static)
def _joint_all_at_once(turns, lengths, targets, keys, *shared, sizes, num_steps, num_rounds):
    """:func:`_joint_reduced_sets` for several embeddings in one program."""
    run = functools.partial(_joint_reduced_sets, sizes=sizes, num_steps=num_steps, num_rounds=num_rounds)
    return jax.vmap(run, (0,) * 4 + (None,) * len(shared))(turns, lengths, targets, keys, *shared)


@shows_progress("reduced set")
def joint_reduced_sets(
    keys: Sequence[PRNGKeyArray],
    embeddings: Sequence[NoisyEmbedding],
    candidates: Real[AnyArray, "candidates d"],
    sizes: Sequence[int],
    *,
    radius: float = 1.0,
    num_steps: int = 400,
    progress: Progress | bool = False,
) -> list[list[tuple[WeightedSample, SolverReport]]]:
    """:func:`joint_reduced_set` for several embeddings and numbers of points: the same samples in less time.

    Args:
      keys: one for each embedding.
      embeddings: noisy embeddings μ̃ of Fourier maps, for example one for each ε and repeat.
      candidates: as for :func:`joint_reduced_set`.
      sizes: numbers of points.
      radius: as for :func:`joint_reduced_set`.
      num_steps: as for :func:`joint_reduced_set`.
      progress: True for a bar, or a function that is called with (samples done, number of samples).

    Returns:
      For each embedding and each size, the sample and the report of :func:`joint_reduced_set`.

    Raises:
      TypeError: an embedding is not a ``NoisyEmbedding``.
      ValueError: as for :func:`joint_reduced_set`, or maps differ in precision or in their numbers of features or
        columns.
    """
    maps = _similar_maps(embeddings)
    candidates = check_points(candidates, "candidates")
    check_columns(candidates, maps[0].dim, "candidates")
    for size in sizes:
        if size < 1:
            raise ValueError(f"num_points must be at least 1, got {size}")
        if len(candidates) < size:
            raise ValueError(f"candidates: {len(candidates)} points are fewer than num_points={size}; give more")
    check_radius(radius)
    dtype = maps[0].turns.dtype
    progress = progress if callable(progress) else lambda done, total: None
    lengths = np.asarray([feature_map.length_scale for feature_map in maps], dtype)
    targets = np.stack([embedding.coordinates for embedding in embeddings]).astype(dtype)
    scales = {feature_map.scale for feature_map in maps}
    if len(scales) > 1:
        raise ValueError("the embeddings' kernels must have the same k(x, x): call this for one embedding at a time")
    shared = [np.asarray(value, dtype) for value in (candidates, scales.pop(), radius, _JOINT_LEARNING_RATE)]
    options = {"sizes": tuple(map(int, sizes)), "num_steps": num_steps, "num_rounds": _JOINT_ROUNDS}

    def finish(embedding, optimised):
        points, weights, features, trace = (np.asarray(value) for value in optimised)
        weights, report = l1_ball_least_squares(
            features,
            embedding.coordinates,
            radius=radius,
            start=weights,
            tolerance=noise_tolerance(embedding),
        )
        trace = trace.astype(np.float64)
        late = trace[-max(2, num_steps // 10) :]
        converged = bool(late[0] - late[-1] <= 1e-3 * late[-1])
        report = SolverReport(np.append(trace, report.objective[-1]), report.gap, converged, len(trace))
        return WeightedSample(points.astype(np.float64), weights, embedding.mechanism), report

    def run(i):
        with precision_of(maps[i].turns):
            arrays = maps[i].turns, lengths[i], targets[i], keys[i]
            return [finish(embeddings[i], of) for of in _joint_one_at_a_time(*arrays, *shared, **options)]

    samples: list[list[tuple[WeightedSample, SolverReport]]] = []
    with threadpoolctl.threadpool_limits(1, "blas"), concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if jax.default_backend() == "cpu":
            running = pool.map(run, range(len(maps)))
        else:
            with precision_of(lengths):
                turns = np.stack([feature_map.turns for feature_map in maps])
                optimised = _joint_all_at_once(turns, lengths, targets, jnp.stack(keys), *shared, **options)
                optimised = jax.device_get(optimised)
            running = pool.map(
                lambda i: [finish(embeddings[i], [value[i] for value in of]) for of in optimised], range(len(maps))
            )
        for of_embedding in running:
            samples.append(of_embedding)
            progress(len(samples) * len(sizes), len(maps) * len(sizes))
    return samples


def joint_reduced_set(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    candidates: Real[AnyArray, "candidates d"],
    num_points: int,
    *,
    radius: float = 1.0,
    num_steps: int = 400,
    progress: Progress | bool = False,
) -> tuple[WeightedSample, SolverReport]:
    """argmin ½‖μ̃ − Σ_m w_m ψ(z_m)‖² over locations z and weights with Σ|w_m| ≤ C ([B] equation 5), by optax.

    The starts do not depend on the database. Each round re-seeds the points of negligible weight (in the first round,
    all points) at candidates, which are drawn in proportion to ⟨r, ψ(c)⟩² for the current residual r. A run of Adam
    follows. After the last round the weights are solved for. This is a convex problem, and the report gives its
    duality gap. The locations are a local optimum.

    Args:
      key: a JAX random key for re-seeding, independent of the noise.
      embedding: the noisy embedding μ̃ of a FourierMap.
      candidates: public points, at least M, [number of candidates, d]: the starts and the places to re-seed at.
      num_points: M ≥ 1.
      radius: C ≥ 1, the bound of Σ|w_m|.
      num_steps: optimiser steps in each of three rounds.
      progress: True for a bar, or a function that is called once, with (1, 1).

    Returns:
      The sample, and a report: the objective at every step, the gap of the final weights at the final locations, and
      whether the last tenth of the steps improved the objective by less than 1e-3 of its value.

    Raises:
      TypeError: the embedding is not a ``NoisyEmbedding``.
      ValueError: M < 1, there are fewer candidates than M, radius < 1, or the map is not a FourierMap.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import FourierMap, Gaussian, PrivacyBudget, mean_embedding, perturb
      >>> from kme_jax.synthesis import joint_reduced_set
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> candidates = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> features = FourierMap.from_kernel(jax.random.key(0), Gaussian(gamma=0.5), num_features=64, dim=2)
      >>> noisy = perturb(jax.random.key(1), mean_embedding(features, rows), PrivacyBudget(1.0, 1e-5))
      >>> sample, report = joint_reduced_set(jax.random.key(2), noisy, candidates, num_points=10)
      >>> sample.points.shape, bool(np.abs(sample.weights).sum() < 1 + 1e-5)
      ((10, 2), True)
    """
    ((result,),) = joint_reduced_sets(
        [key], [embedding], candidates, [num_points], radius=radius, num_steps=num_steps, progress=progress
    )
    return result
