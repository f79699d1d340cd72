"""What leaves the building: a private embedding, a synthetic database made from it, and the privacy statement."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from kme_jax.algorithms import check_before_long_work, public_feature_map, synthesise
from kme_jax.bounds import Bounds
from kme_jax.embedding import integer_embedding, private_array
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.integer import integer_map
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.folders import (
    ROOM,
    arrays_writer,
    check_folder,
    damaged,
    json_writer,
    open_folder,
    save_folder,
)
from kme_jax.kernels import Kernel
from kme_jax.ledger import Ledger
from kme_jax.numerics import MAX_SEED, Progress, check_points
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_num_rows
from kme_jax.privacy.mechanisms import Mechanism, PrivateEmbedding, perturb_securely, secure_mechanism
from kme_jax.privacy.statement import budget_in_short, privacy_statement
from kme_jax.proposals import NormalProposal
from kme_jax.serialisation import decode, encode
from kme_jax.synthesis.sample import WeightedSample
from kme_jax.validation import check_array, require
from kme_jax.verification import check_embedding, check_statement

if TYPE_CHECKING:
    from kme_jax.table.release import TableMeasurement, TableRelease

MAX_POINTS = 10**6
_MAX_FEATURES = 10**8


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """All that is ever learnt from the private rows, and what it takes to use it. All of it is public.

    Attributes:
      private: the noisy embedding; with bounds, of rows scaled to [0, 1]^d.
      statement: the privacy statement, see ``kme_jax.privacy.statement``.
      proposal: where the synthesis expects rows to be, with bounds in [0, 1]^d; None where points were public.
      bounds: of the columns, if any.
    """

    private: PrivateEmbedding
    statement: dict[str, Any]
    proposal: NormalProposal | None
    bounds: Bounds | None

    def synthesise(self, num_points: int = 1000, *, seed: int = 0, progress: Progress | None = None) -> Release:
        """A synthetic database for the embedding: post-processing, which spends nothing, as often as one likes. Weights
        are a probability vector, so that it can be written without weights.

        Args:
          num_points: M; all points are used where they were public.
          seed: of the synthesis.
          progress: called with (work done, work at most).

        Raises:
          ValueError: num_points is not from 1 to a million.
        """
        num_points = check_integer("num_points", num_points, 1, MAX_POINTS)
        bounds, dim = self.bounds, self.private.feature_map.dim
        box = None if bounds is None else _box(dim)
        seed = check_integer("seed", seed, 0, MAX_SEED)
        key = jax.random.split(jax.random.key(seed))[1]  # the other half is for frequencies
        sample = synthesise(key, self.private, self.proposal, num_points, box=box, signed=False, progress=progress)
        if bounds is not None:
            sample = dataclasses.replace(sample, points=bounds.from_unit(sample.points))
        return Release(self, sample, seed)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes release.npz (the embedding and what it takes to use it), privacy.json and a manifest into a new
        folder: all of them, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        return save_folder(folder, "measurement", self._writers())

    def _encoded(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays, and a JSON document that refers to them."""
        arrays = {"coordinates": self.private.coordinates}
        tree = {
            "feature_map": encode(self.private.feature_map, arrays, "feature_map"),
            "mechanism": encode(self.private.mechanism, arrays, "mechanism"),
            "proposal": encode(self.proposal, arrays, "proposal"),
            "bounds": encode(self.bounds, arrays, "bounds"),
            "total": self.statement["total"],
        }
        return arrays, tree

    def _writers(self) -> dict[str, Any]:
        return {"release.npz": arrays_writer(*self._encoded()), "privacy.json": json_writer(self.statement)}

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Measurement | TableMeasurement:
        """The measurement of a folder that it, or a release, was saved to. What does not follow from the mechanism is
        refused, see ``kme_jax.verification``.

        Raises:
          ReleaseError: there is none, or it is damaged, or edited, or of another version.
        """
        opened = open_folder(folder, ("measurement", "release", "table measurement", "table release"))
        if opened.kind.startswith("table"):
            from kme_jax.table.release import TableMeasurement

            return TableMeasurement.load(folder)
        with opened.arrays("release.npz") as arrays:
            tree = arrays.tree()
            if not isinstance(tree, dict) or set(tree) != {"feature_map", "mechanism", "proposal", "bounds", "total"}:
                raise ValueError("it has other fields")
            private = PrivateEmbedding(
                decode(tree["feature_map"], arrays, FeatureMap),
                arrays["coordinates"],
                decode(tree["mechanism"], arrays, Mechanism),
            )
            proposal = decode(tree["proposal"], arrays, NormalProposal | None)
            bounds = decode(tree["bounds"], arrays, Bounds | None)
            _check_measured(private, proposal, bounds)
        statement = opened.json("privacy.json")
        with damaged(opened.path / "privacy.json"):
            check_statement(statement, tree["total"], lambda total: _statement(private, bounds, total))
        return cls(private, statement, proposal, bounds)


def _check_measured(private: PrivateEmbedding, proposal: NormalProposal | None, bounds: Bounds | None) -> None:
    """Raises ValueError unless these can be the parts of one measurement."""
    mechanism, feature_map = private.mechanism, private.feature_map
    check_embedding(private, PrivacyBudget(mechanism.epsilon, mechanism.delta))
    require(isinstance(feature_map, SubspaceMap | SpectralMap), "the map is not one of points or of a proposal")
    require(isinstance(feature_map, SubspaceMap) == (proposal is None), "a proposal belongs to frequencies")
    for part in filter(None, (proposal, bounds)):
        require(part.dim == feature_map.dim, "the map and the bounds or the proposal have different columns")
    if bounds is not None and isinstance(feature_map, LatticeMap):
        halves = np.concatenate([feature_map.centre, feature_map.half_widths])
        require(bool((np.abs(halves - 0.5) <= 1e-4).all()), "the lattice is not one of rows from 0 to 1")


def _statement(private: PrivateEmbedding, bounds: Bounds | None, total: dict[str, Any] | None) -> dict[str, Any]:
    inputs = [] if bounds is None else [f"bounds of {', '.join(bounds.names)}"]
    return privacy_statement(private, public_inputs=inputs, total=total)


@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """A release: a measurement, and a synthetic database made from it. All of it is public.

    Attributes:
      measurement: the noisy embedding and its privacy statement.
      sample: the synthetic database that stands for it, in the units of the private rows.
      seed: of the synthesis.
    """

    measurement: Measurement
    sample: WeightedSample
    seed: int

    def __repr__(self) -> str:
        shape = list(np.shape(self.sample.points))
        return f"Release({budget_in_short(self.statement)}, points: {shape})"

    @property
    def private(self) -> PrivateEmbedding:
        """The noisy embedding."""
        return self.measurement.private

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement."""
        return self.measurement.statement

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        bounds, dim = self.measurement.bounds, self.sample.points.shape[1]
        return tuple(f"x{i + 1}" for i in range(dim)) if bounds is None else bounds.names

    def resynthesise(
        self, num_points: int = 1000, *, seed: int | None = None, progress: Progress | None = None
    ) -> Release:
        """Another synthetic database for the same embedding, a :class:`Release`; see ``Measurement.synthesise``."""
        return self.measurement.synthesise(num_points, seed=self.seed if seed is None else seed, progress=progress)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes points.npz (points, weights, names of the columns), release.npz (the embedding and what it takes to
        use it), privacy.json and a manifest into a new folder: all of it, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        points = {
            "points": self.sample.points,
            "weights": self.sample.weights,
            "columns": np.asarray(self.columns),
            "seed": np.asarray(self.seed),
        }
        return save_folder(folder, "release", self.measurement._writers() | {"points.npz": arrays_writer(points)})

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Release | TableRelease:
        """A release, of numbers or of a table, that ``save`` has written.

        Raises:
          ReleaseError: it is none, is damaged, or edited, or of another version.
        """
        opened = open_folder(folder, ("release", "table release"))
        if opened.kind == "table release":
            from kme_jax.table.release import TableRelease

            return TableRelease.load(folder)
        measurement = Measurement.load(folder)
        with opened.arrays("points.npz") as arrays:
            points, weights, columns, seed = (arrays[name] for name in ("points", "weights", "columns", "seed"))
            check_array(points, "points", "f", (None, measurement.private.feature_map.dim))
            check_array(weights, "weights", "f", (len(points),))
            check_array(seed, "seed", "iu", ())
            require(int(seed) >= 0, "seed: is negative")
            total = float(weights.sum())
            require(bool((weights >= 0).all()) and abs(total - 1) <= 1e-6, "weights: expected a probability vector")
            release = cls(measurement, WeightedSample(points, weights, measurement.private.mechanism), int(seed))
            require(columns.dtype.kind == "U" and columns.shape == (len(release.columns),), "columns: expected names")
            require(tuple(columns.tolist()) == release.columns, "columns: they are not those of the bounds")
            if measurement.bounds is not None:
                within = (points >= measurement.bounds.lower) & (points <= measurement.bounds.upper)
                require(bool(within.all()), "points: one is beyond the bounds")
        return release


def is_generator(folder: str | os.PathLike) -> bool:
    """Whether ``kme_jax.generators.save_generator`` has written a folder.

    Raises:
      ReleaseError: nothing of this library has.
    """
    return open_folder(folder).kind == "generator"


def measure(
    rows: np.ndarray,
    kernel: Kernel,
    public: np.ndarray | NormalProposal | None = None,
    *,
    epsilon: float,
    delta: float,
    bounds: Bounds | None = None,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    folder: str | os.PathLike | None = None,
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measurement:
    """The part of :func:`release` that sees private rows: steps 1 and 2. Whoever has the result needs no rows.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public, with integer sums and OpenDP's noise, see
    ``kme_jax.privacy.perturb_securely``. Rows enter through ``integer_embedding`` alone. The ledger, if there is one,
    is written and flushed before noise is drawn. No error depends on what a row holds: with bounds every entry is
    clamped to its column's, NaN going to the middle; without, a row that the map does not cover
    (``FeatureMap.covers``: an entry that is NaN, infinite, or beyond what the proposal reaches) counts as the zero
    vector, and in N.

    Args:
      rows: the private database x, [N, d].
      kernel: k, with a bandwidth that does not come from the private rows; shift-invariant for a proposal. With bounds
        it is a kernel on [0, 1]^d, so that its lengths are shares of the columns' ranges.
      public: points z, [M, d], which are not protected, or a proposal; with bounds, None for theirs.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      bounds: public bounds of the columns.
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before; what is spent adds up.
      folder: a new one that the measurement is saved to at once. Whether it can be is looked at before anything is
        spent.
      num_features: J, even, for a proposal; at most, on a lattice.
      seed: of frequencies, public. The noise has none.
      progress: called with (work done, work in all) while rows are summed.

    Raises:
      ValueError: shapes, a budget or an option that cannot be; a spent budget (``LedgerError``); a folder that cannot
        be written (``ReleaseError``).
      ModuleNotFoundError: OpenDP is not installed.
    """
    budget, rows = PrivacyBudget(epsilon, delta), private_array(rows)
    if bounds is None and public is None:
        raise ValueError("give bounds, public points or a proposal")
    if bounds is not None:
        public = _within(bounds, public)
    check_before_long_work(rows, public, budget)
    check_num_rows(len(rows), budget)
    feature_map = plan_map(kernel, public, num_features=num_features, bounded=bounds is not None, seed=seed)
    mechanism = plan_mechanism(len(rows), feature_map, budget)
    proposal = public if isinstance(public, NormalProposal) else None

    def result(private: PrivateEmbedding, total: dict[str, Any] | None) -> Measurement:
        return Measurement(private, _statement(private, bounds, total), proposal, bounds)

    # Whatever can fail does so before anything is spent: a statement, a kernel that cannot be written, a full disk.
    draft = result(PrivateEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism), None)
    num_bytes = sum(array.nbytes for array in draft._encoded()[0].values())
    if folder is not None:
        check_folder(folder, 2 * num_bytes + ROOM)
    if ledger is not None:
        ledger.check(database, again=again)
    embedding = integer_embedding(feature_map, rows, bounds=bounds, progress=progress)
    total = None if ledger is None else ledger.spend(database, mechanism, again=again)
    with contextlib.nullcontext() if ledger is None else ledger.recorded(folder):
        measured = result(perturb_securely(embedding, budget), total)
        if folder is not None:
            measured.save(folder)
    return measured


def _within(bounds: Bounds, public: np.ndarray | NormalProposal | None) -> np.ndarray | NormalProposal:
    """What is public, in [0, 1]^d."""
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


def plan_mechanism(num_rows: int, feature_map: FeatureMap, budget: PrivacyBudget) -> Mechanism:
    """The mechanism that :func:`measure` uses for N rows, without any.

    Raises:
      ValueError: N < 2; δ ≥ 1/N; as ``secure_mechanism`` and ``integer_map``.
    """
    check_num_rows(num_rows, budget)
    return secure_mechanism(integer_map(feature_map, num_rows), num_rows, budget)


def plan_map(
    kernel: Kernel,
    public: np.ndarray | NormalProposal,
    *,
    num_features: int = 10_000,
    bounded: bool = False,
    seed: int = 0,
) -> FeatureMap:
    """The map that :func:`measure` uses; ``bounded`` where rows are scaled to [0, 1]^d.

    Raises:
      ValueError: a seed that is not from 0 to 2³² − 1; as ``public_feature_map``.
    """
    num_features = check_integer("num_features", num_features, 2, _MAX_FEATURES)
    seed = check_integer("seed", seed, 0, MAX_SEED)
    key = jax.random.split(jax.random.key(seed))[0]  # the other half is for the synthesis
    dim = public.dim if isinstance(public, NormalProposal) else np.shape(public)[-1]
    return public_feature_map(key, kernel, public, num_features=num_features, box=_box(dim) if bounded else None)


def _box(dim: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(dim), np.ones(dim)


def release(
    rows: np.ndarray,
    kernel: Kernel,
    public: np.ndarray | NormalProposal | None = None,
    *,
    epsilon: float,
    delta: float,
    bounds: Bounds | None = None,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    num_points: int = 1000,
    num_features: int = 10_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Release:
    """``kme_jax.improved`` with noise that may be published: :func:`measure`, then ``Measurement.synthesise``.

    Should the synthesis fail, what was measured is lost and yet spent; call the two one by one, and save in between,
    where that matters. The command ``kme-jax release`` does.

    Args:
      rows: the private database x, [N, d]; it, and all others that are not named here, as in :func:`measure`.
      kernel: k.
      public: points or a proposal.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      bounds: public bounds of the columns.
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before.
      num_points: M, for a proposal or bounds.
      num_features: J.
      seed: of frequencies and synthesis, public. The noise has none.
      progress: called with (work done, work at most) by the synthesis.

    Raises:
      ValueError: as :func:`measure`; num_points is not from 1 to a million.
      ModuleNotFoundError: OpenDP is not installed.
    """
    num_points = check_integer("num_points", num_points, 1, MAX_POINTS)
    measured = measure(
        rows,
        kernel,
        public,
        epsilon=epsilon,
        delta=delta,
        bounds=bounds,
        ledger=ledger,
        database=database,
        again=again,
        num_features=num_features,
        seed=seed,
    )
    return measured.synthesise(num_points, seed=seed, progress=progress)
