"""From private rows of numbers to a measurement that may be published: steps 1 and 2, with secure noise."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, cast, overload

import jax
import numpy as np
from jaxtyping import Float, Real, Shaped

from kme_jax._numerics.precision import MAX_SEED, Progress, check_points
from kme_jax._numerics.shapes import AnyArray
from kme_jax.algorithms.three_steps import check_shapes, public_feature_map
from kme_jax.domain import Bounds, NormalProposal, in_order, unit_box
from kme_jax.embedding import (
    integer_embedding_of_batches,
    integer_embedding_of_processes,
    private_array,
)
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.facts import check_covered, check_diameter_at, check_integers_at, corners_of_box
from kme_jax.kernels import Kernel
from kme_jax.points.release import MAX_POINTS, Measurement, Release, check_synthesis, points_statement
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_num_rows
from kme_jax.privacy.calibration import gaussian_noise_multiplier
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding
from kme_jax.privacy.perturb import perturb_securely, secure_mechanism
from kme_jax.processes import Processes
from kme_jax.storage.folders import ROOM, check_folder
from kme_jax.storage.rows import BatchedRows, every_batch

_MAX_FEATURES = 10**8
_MOST_DRAWN = 64  # rows from a proposal, at which a map is looked at


@overload
def measure(
    rows: Shaped[AnyArray, "N d"] | BatchedRows,
    kernel: Kernel | FeatureMap,
    public: Real[AnyArray, "M d"] | NormalProposal | None = None,
    *,
    budget: PrivacyBudget,
    bounds: Bounds | None = None,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    noise: str = "gaussian",
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | bool = False,
    processes: None = None,
    partials: str | os.PathLike | None = None,
) -> Measurement: ...


@overload
def measure(
    rows: Shaped[AnyArray, "N d"] | BatchedRows,
    kernel: Kernel | FeatureMap,
    public: Real[AnyArray, "M d"] | NormalProposal | None = None,
    *,
    budget: PrivacyBudget,
    bounds: Bounds | None = None,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    noise: str = "gaussian",
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | bool = False,
    processes: Processes,
) -> Measurement | None: ...


def measure(
    rows: Shaped[AnyArray, "N d"] | BatchedRows,
    kernel: Kernel | FeatureMap,
    public: Real[AnyArray, "M d"] | NormalProposal | None = None,
    *,
    budget: PrivacyBudget,
    bounds: Bounds | None = None,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    noise: str = "gaussian",
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | bool = False,
    processes: Processes | None = None,
    partials: str | os.PathLike | None = None,
) -> Measurement | None:
    """Steps 1 and 2 of :func:`release`: the noisy embedding of private rows. The later steps do not need the rows.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public, with integer sums and OpenDP's noise, see
    ``kme_jax.privacy.perturb_securely``. Rows enter through ``integer_embedding`` alone. The ledger, if there is one,
    is written and flushed before noise is drawn. No error depends on the values of a row. With bounds, every entry is
    clamped to the bounds of its column, and NaN becomes the middle. Without bounds, a row that the map does not cover
    (``FeatureMap.covers``: an entry is NaN, infinite, or beyond the reach of the proposal) counts as the zero vector,
    and in N. Columns that have names on both sides, such as those of a DataFrame and of the bounds, are matched by
    their names; others by their places. A row has the same integers in an array and in a source of any kind, with
    batches of any size.

    Args:
      rows: the private database x, [N, d]: an array, or a source of rows that are read in batches (``open_rows``).
      kernel: k, with a bandwidth that does not come from the private rows; shift-invariant for a proposal. With bounds
        it is a kernel on [0, 1]^d, so that its lengths are shares of the columns' ranges. A feature map ψ with an
        integer version may be given instead of a kernel; with bounds, of rows in [0, 1]^d.
      public: public points z, [M, d], which are not protected, or a proposal. With bounds, None stands for their
        proposal. If ``kernel`` is a feature map, the synthesis uses these points or this proposal;
        None for a map that was made from public points.
      budget: (ε, δ), with δ in (0, 1/N).
      bounds: public bounds of the columns.
      spending: the curator's ledger, and the name of the rows in it. If None, nothing is recorded.
      folder: a new folder. The measurement is saved to it at once. Whether it can be written is checked before any
        budget is spent.
      noise: a kind of noise, see ``secure_mechanism``: "gaussian", "laplace" for δ = 0, or another registered kind.
      num_features: J, even, for a proposal. A lattice may have fewer features.
      seed: the public seed of the frequencies. The noise has no seed.
      progress: True for a bar, or a function that is called with (work done, total work) while rows are summed.
      processes: the processes of ``jax.distributed``, each of which calls this with its own rows, see ``Processes``.
        None if this process has all rows.
      partials: a folder that keeps what is finished. If the process is interrupted, the same call goes on there: no
        part is summed twice, noise is drawn once, and the ledger has one entry. It is SENSITIVE. A complete run deletes
        what it holds, and cannot go on: give a ``folder`` for the measurement. A function has to give the same rows in
        the same order each time. See ``kme_jax.partial.RunFolder``; it needs pyarrow. None to keep nothing.

    Returns:
      The measurement. With several processes, None in all but process 0.

    Raises:
      ProcessError: another process failed, or is not heard, or has another budget, noise, map or bounds.
      RunError: the run of ``partials`` cannot go on, such as with other rows, bounds or budget.
      ValueError: if shapes mismatch, or the budget or an option is invalid, or features of public rows contradict what
        the map states, or it has none for a public point, or the budget may not be spent (``LedgerError``), or the
        folder cannot be written (``ReleaseError``), or a source has changed since it was opened (``FileError``).
      ModuleNotFoundError: if OpenDP is not installed.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, measure
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> measured = measure(rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5))
      >>> measured.noisy.mechanism.secure
      True
      >>> measured.synthesise().sample.weights.shape  # spends nothing; as often as you like
      (20,)
    """
    rows, public = in_order(rows, public, bounds)
    if not isinstance(rows, BatchedRows):
        rows = private_array(rows)
    own_points = kernel.public_points if isinstance(kernel, FeatureMap) else None
    if own_points is not None:
        if public is not None:
            raise ValueError(
                "public: leave it out: the feature map was made from public points, and these get the weights"
            )
        source = own_points
    elif bounds is not None:
        source = _within(bounds, public)
    elif public is not None:
        source = public
    else:
        raise ValueError("give bounds, public points or a proposal (bounds=... or public=...)")
    shape = own_shape = np.shape(rows)
    if processes is not None and len(shape) == 2:  # this process may have no rows
        shape = (processes.total(own_shape[0]), shape[1])
        asked = [budget.epsilon, budget.delta, noise]  # whoever has rows decides under which budget they are released
        processes.agree(json.dumps(asked).encode(), "budgets or kinds of noise")
    check_shapes(shape, source)
    num_rows = shape[0]
    if noise == "gaussian":
        gaussian_noise_multiplier(budget)
    check_num_rows(num_rows, budget)
    if isinstance(kernel, FeatureMap):
        feature_map = kernel
        check_shapes(shape, np.zeros((1, feature_map.dim)), "the feature map has")
        if bounds is not None:
            feature_map.check_box(*unit_box(bounds.dim))
        _check_map(feature_map, source, num_rows, bounded=bounds is not None)
    else:
        feature_map = plan_map(kernel, source, num_features=num_features, bounded=bounds is not None, seed=seed)
    mechanism = plan_mechanism(num_rows, feature_map, budget, noise=noise)
    proposal = source if isinstance(source, NormalProposal) else None
    points = None
    if not isinstance(source, NormalProposal) and feature_map.public_points is None:
        points = check_covered(feature_map, source)

    def result(noisy: NoisyEmbedding, total: dict[str, Any] | None) -> Measurement:
        return Measurement(noisy, points_statement(noisy, bounds, points, total), proposal, bounds, points)

    # Check everything that can fail before any budget is spent: the statement, a kernel that cannot be saved, a full
    # disk.
    draft = result(NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism), None)
    check_synthesis(draft.noisy, proposal, points)
    num_bytes = sum(array.nbytes for array in draft._encoded()[0].values())

    def check_places(run: str | None = None) -> None:
        if folder is not None:
            check_folder(folder, 2 * num_bytes + ROOM)
        if spending is not None:
            spending.check(mechanism, run=run)

    def finish(draw: Callable[[], NoisyEmbedding], run: str | None = None) -> Measurement:
        total = None if spending is None else spending.spend(mechanism, run=run)
        with contextlib.nullcontext() if spending is None or run is not None else spending.recorded(folder):
            measured = result(draw(), total)
            if folder is not None:
                measured.save(folder)
        return measured

    if partials is not None:
        if processes is not None:
            raise ValueError("partials: several processes keep none; leave out partials or processes")
        from kme_jax.points.resumed import open_run, sum_in_parts  # here: they need pyarrow

        with open_run(partials, rows, feature_map, bounds, mechanism, spending) as (run, task):
            noisy = run.noisy(task.measurement, feature_map)
            check_places(run.run)
            embedding = sum_in_parts(run, rows, task, progress=progress) if noisy is None else None

            def kept() -> NoisyEmbedding:
                if embedding is None:
                    return cast(NoisyEmbedding, noisy)
                drawn = perturb_securely(embedding, budget, noise=noise)
                run.keep_noisy(task.measurement, drawn)
                return drawn

            measured = finish(kept, run.run)
            run.complete()
        return measured
    if processes is None or processes.index == 0:
        check_places()
    if processes is None:
        embedding = integer_embedding_of_batches(
            feature_map, every_batch(rows), num_rows, bounds=bounds, progress=progress
        )
    else:
        embedding = integer_embedding_of_processes(
            feature_map, every_batch(rows), own_shape[0], processes, bounds=bounds, progress=progress
        )
        if embedding is None:
            return None
    return finish(lambda: perturb_securely(embedding, budget, noise=noise))


def _check_map(
    feature_map: FeatureMap, source: Real[AnyArray, "M d"] | NormalProposal, num_rows: int, *, bounded: bool
) -> None:
    """Compares the bounds that a map states with its features of public rows.

    Args:
      feature_map: ψ.
      source: public points [M, d], or a proposal, from which rows are drawn.
      num_rows: N.
      bounded: whether rows are scaled to [0, 1]^d. The corners are then looked at, too.

    Raises:
      ValueError: see ``check_diameter_at`` and ``check_integers_at``.
    """
    rows = source.sample(_MOST_DRAWN, 0) if isinstance(source, NormalProposal) else check_points(source)
    integers = feature_map.integers(num_rows)
    for part in [corners_of_box(*unit_box(feature_map.dim)), rows] if bounded else [rows]:
        check_diameter_at(feature_map, part)
        check_integers_at(integers, part)


def _within(
    bounds: Bounds, public: Real[AnyArray, "M d"] | NormalProposal | None
) -> Float[np.ndarray, "M d"] | NormalProposal:
    """The public points or the proposal, scaled to [0, 1]^d. None stands for the proposal of the bounds."""
    if public is None:
        return bounds.proposal
    if isinstance(public, NormalProposal):
        if public.dim != bounds.dim:
            raise ValueError(f"proposal: expected {bounds.dim} columns, as the bounds have, got {public.dim}")
        ranges = bounds.upper - bounds.lower
        return NormalProposal.create((public.mean - bounds.lower) / ranges, public.scale / ranges)
    points = check_points(public, "points")
    if points.shape[1] != bounds.dim:
        raise ValueError(f"points: expected {bounds.dim} columns, as the bounds have, got {points.shape[1]}")
    return bounds.to_unit(points)


def plan_mechanism(
    num_rows: int, feature_map: FeatureMap, budget: PrivacyBudget, *, noise: str | None = None
) -> Mechanism:
    """The mechanism that :func:`measure` uses for N rows. It does not need the rows.

    Raises:
      ValueError: if N < 2, or δ ≥ 1/N, or as ``secure_mechanism`` and ``FeatureMap.integers``.
    """
    check_num_rows(num_rows, budget)
    return secure_mechanism(feature_map.integers(num_rows), num_rows, budget, noise=noise)


def plan_map(
    kernel: Kernel,
    public: Real[AnyArray, "M d"] | NormalProposal,
    *,
    num_features: int = 10_000,
    bounded: bool = False,
    seed: int = 0,
) -> FeatureMap:
    """The feature map that :func:`measure` uses for a kernel.

    Args:
      kernel: k.
      public: public points [M, d], or a proposal.
      num_features: J, even, for a proposal.
      bounded: whether rows are scaled to [0, 1]^d.
      seed: the public seed of the frequencies.

    Raises:
      ValueError: if the seed is not from 0 to 2³² − 1, or as ``public_feature_map``.
    """
    num_features = check_integer("num_features", num_features, 2, _MAX_FEATURES)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    key = jax.random.split(jax.random.key(seed))[0]  # the other half is for the synthesis
    dim = public.dim if isinstance(public, NormalProposal) else np.shape(public)[-1]
    return public_feature_map(key, kernel, public, num_features=num_features, box=unit_box(dim) if bounded else None)


def release(
    rows: Shaped[AnyArray, "N d"] | BatchedRows,
    kernel: Kernel,
    public: Real[AnyArray, "M d"] | NormalProposal | None = None,
    *,
    budget: PrivacyBudget,
    bounds: Bounds | None = None,
    spending: Spending | None = None,
    num_points: int = 1000,
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | bool = False,
) -> Release:
    """``kme_jax.improved`` with secure noise: :func:`measure`, and then ``Measurement.synthesise``.

    If the synthesis fails, the measurement is lost, but its budget is spent. To avoid this, call :func:`measure` with a
    folder, and then ``Measurement.synthesise``, as the command ``kme-jax release`` does.

    Args:
      rows: the private database x, [N, d]: an array or a source. See :func:`measure` for this argument and the next
        four.
      kernel: k.
      public: public points [M, d], or a proposal.
      budget: (ε, δ), with δ in (0, 1/N).
      bounds: public bounds of the columns.
      spending: the curator's ledger, and the name of the rows in it. If None, nothing is recorded.
      num_points: M, for a proposal or bounds.
      num_features: J, see :func:`measure`.
      seed: the public seed of the frequencies and of the synthesis. The noise has no seed.
      progress: True for a bar, or a function that is called by the synthesis with (work done, most work possible).

    Raises:
      ValueError: as :func:`measure`, or if num_points is not from 1 to a million.
      ModuleNotFoundError: if OpenDP is not installed.

    Examples:
      >>> import numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, release
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> released = release(rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5))
      >>> released.statement["private"], released.statement["epsilon"]
      (True, 1.0)
    """
    num_points = check_integer("num_points", num_points, 1, MAX_POINTS)
    measured = measure(
        rows,
        kernel,
        public,
        budget=budget,
        bounds=bounds,
        spending=spending,
        num_features=num_features,
        seed=seed,
        progress=progress is True,
    )
    return measured.synthesise(num_points, seed=seed, progress=progress)
