"""Releases of points: a noisy embedding, a synthetic database made from it, and the privacy statement."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Float, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.validation import check_array, require
from kme_jax.algorithms.three_steps import synthesise
from kme_jax.domain import Bounds, NormalProposal, unit_box
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.kernels import Kernel
from kme_jax.privacy.budget import PrivacyBudget, check_integer
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding
from kme_jax.privacy.statement import budget_in_short, card_of, privacy_statement
from kme_jax.privacy.verification import check_embedding, check_statement
from kme_jax.storage.codec import decode, encode
from kme_jax.storage.folders import (
    Kind,
    arrays_writer,
    damaged,
    json_writer,
    open_folder,
    register_kind,
    save_folder,
)
from kme_jax.synthesis.quantised import Quantised, quantise
from kme_jax.synthesis.sample import WeightedSample

MAX_POINTS = 10**6


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The noisy embedding of private rows, and the public inputs of the synthesis. All fields are public.

    The synthesis learns nothing else about the private rows.

    Attributes:
      noisy: the noisy embedding. With bounds it is that of rows scaled to [0, 1]^d.
      statement: the privacy statement, see ``kme_jax.privacy.statement``.
      proposal: the proposal of the synthesis, with bounds on [0, 1]^d; None if there are public points.
      bounds: the bounds of the columns, or None.
      points: public points [M, d] that the synthesis weights, with bounds in [0, 1]^d; None if there is a proposal, or
        if the feature map was made from the points.
    """

    noisy: NoisyEmbedding
    statement: dict[str, Any]
    proposal: NormalProposal | None
    bounds: Bounds | None
    points: Float[np.ndarray, "M d"] | None = None

    def _in_short(self) -> str:
        feature_map = self.noisy.feature_map
        return f"{budget_in_short(self.statement)}, {type(feature_map).__name__} of {feature_map.num_features} features"

    def _repr_html_(self) -> str:
        feature_map = self.noisy.feature_map
        facts = [("measured", f"{feature_map.num_features} features of {type(feature_map).__name__}")]
        facts += [("next", ".synthesise() makes a release with synthetic points, and spends nothing")]
        return card_of("Measurement", self.statement, facts)

    def synthesise(self, num_points: int = 1000, *, seed: int = 0, progress: Progress | bool = False) -> Release:
        """A release with a synthetic database for the embedding.

        This is post-processing: it spends no budget, and may be repeated. The weights are a probability vector, so that
        the database can be written without weights.

        Args:
          num_points: M. It has no effect with public points, which are all used.
          seed: the seed of the synthesis.
          progress: True for a bar, or a function that is called with (work done, most work possible).

        Raises:
          ValueError: if num_points is not from 1 to a million, or the seed is out of range.
        """
        num_points = check_integer("num_points", num_points, 1, MAX_POINTS)
        bounds, dim = self.bounds, self.noisy.feature_map.dim
        public = self.points if self.proposal is None else self.proposal
        box = None if bounds is None else unit_box(dim)
        seed = check_integer("seed", seed, 0, MAX_SEED)
        key = jax.random.split(jax.random.key(seed))[1]  # the other half is for frequencies
        sample = synthesise(key, self.noisy, public, num_points, box=box, signed=False, progress=progress)
        if bounds is not None:
            sample = dataclasses.replace(sample, points=bounds.from_unit(sample.points))
        return Release(self, sample, seed)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes release.npz (the embedding and the inputs of the synthesis), privacy.json and a manifest into a new
        folder. After an error there is no folder.

        Raises:
          ReleaseError: if the folder exists, or cannot be written.
        """
        return save_folder(folder, "measurement", self._writers())

    def _encoded(self) -> tuple[dict[str, Shaped[np.ndarray, "..."]], dict[str, Any]]:
        """Arrays, and a JSON document that refers to them."""
        arrays = {"coordinates": self.noisy.coordinates}
        tree = {
            "feature_map": encode(self.noisy.feature_map, arrays, "feature_map"),
            "mechanism": encode(self.noisy.mechanism, arrays, "mechanism"),
            "proposal": encode(self.proposal, arrays, "proposal"),
            "bounds": encode(self.bounds, arrays, "bounds"),
            "total": self.statement["total"],
        }
        if self.points is not None:
            tree["points"] = encode(self.points, arrays, "points")
        return arrays, tree

    def _writers(self) -> dict[str, Any]:
        return {"release.npz": arrays_writer(*self._encoded()), "privacy.json": json_writer(self.statement)}

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Measurement:
        """Loads a measurement from the folder of a measurement or a release.

        The measurement is checked, and must follow from its mechanism, see ``kme_jax.privacy.verification``.

        Raises:
          ReleaseError: if the folder holds no measurement, or is damaged, edited, or of another version.
        """
        opened = open_folder(folder, ("measurement", "release"))
        with opened.arrays("release.npz") as arrays:
            tree = arrays.tree()
            fields = {"feature_map", "mechanism", "proposal", "bounds", "total"}
            if not isinstance(tree, dict) or set(tree) - {"points"} != fields:
                raise ValueError("it does not have the fields of a measurement")
            noisy = NoisyEmbedding(
                decode(tree["feature_map"], arrays, FeatureMap),
                arrays["coordinates"],
                decode(tree["mechanism"], arrays, Mechanism),
            )
            proposal = decode(tree["proposal"], arrays, NormalProposal | None)
            bounds = decode(tree["bounds"], arrays, Bounds | None)
            points = decode(tree["points"], arrays, Float[np.ndarray, "M d"]) if "points" in tree else None
            _check_measured(noisy, proposal, bounds, points)
        statement = opened.json("privacy.json")
        with damaged(opened.path / "privacy.json"):
            check_statement(statement, tree["total"], lambda total: points_statement(noisy, bounds, points, total))
        return cls(noisy, statement, proposal, bounds, points)


def _check_measured(
    noisy: NoisyEmbedding,
    proposal: NormalProposal | None,
    bounds: Bounds | None,
    points: Float[np.ndarray, "M d"] | None,
) -> None:
    """Raises ValueError unless these can be the fields of one measurement."""
    mechanism, feature_map = noisy.mechanism, noisy.feature_map
    check_embedding(noisy, PrivacyBudget(mechanism.epsilon, mechanism.delta))
    check_synthesis(noisy, proposal, points)
    for region in filter(None, (proposal, bounds)):
        require(region.dim == feature_map.dim, "the map and the bounds or the proposal have different columns")
    if points is not None:
        check_array(points, "points", "f", (None, feature_map.dim))
    if bounds is not None:
        feature_map.check_box(*unit_box(feature_map.dim))


def check_synthesis(
    noisy: NoisyEmbedding, proposal: NormalProposal | None, points: Float[np.ndarray, "M d"] | None
) -> None:
    """Refuses a noisy embedding that no synthetic points can be made of.

    Args:
      noisy: μ̃; its coordinates are not used.
      proposal: see :class:`Measurement`.
      points: see :class:`Measurement`.

    Raises:
      ValueError: if there is not exactly one of a map of public points, a proposal and points to be weighted; if a
        proposal is given for a map without frequencies or for noise that is not Gaussian.
    """
    feature_map = noisy.feature_map
    sources = [source for source in (feature_map.public_points, proposal, points) if source is not None]
    require(len(sources) == 1, "expected exactly one of a map of public points, a proposal and points to be weighted")
    if proposal is not None:
        name = type(feature_map).__name__
        require(isinstance(feature_map, SpectralMap), f"{name} has no frequencies: give points to be weighted")
        require(noisy.mechanism.noise == "gaussian", "a proposal needs Gaussian noise: give points to be weighted")


def points_statement(
    noisy: NoisyEmbedding, bounds: Bounds | None, points: Float[np.ndarray, "M d"] | None, total: dict[str, Any] | None
) -> dict[str, Any]:
    """The privacy statement of a measurement. See :class:`Measurement` for the arguments; total is for the ledger."""
    inputs = [] if bounds is None else [f"bounds of {', '.join(bounds.names)}"]
    inputs += [] if points is None else ["public points"]
    return privacy_statement(noisy, public_inputs=inputs, total=total)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Release:
    """A measurement, and a synthetic database made from it. All fields are public.

    Attributes:
      measurement: the noisy embedding and its privacy statement.
      sample: the synthetic database, in the units of the private rows.
      seed: the seed of the synthesis.
    """

    measurement: Measurement
    sample: WeightedSample
    seed: int

    def _in_short(self) -> str:
        return f"{budget_in_short(self.statement)}, points: {list(np.shape(self.sample.points))}"

    def _repr_html_(self) -> str:
        points, weights = self.sample.points, self.sample.weights
        facts = [("synthetic", html.size_of_points(points))]
        return card_of("Release", self.statement, facts, *html.weighted_points(points, weights, self.columns))

    @property
    def noisy(self) -> NoisyEmbedding:
        """The noisy embedding."""
        return self.measurement.noisy

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement."""
        return self.measurement.statement

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: those of the bounds, or x1, x2 and so on."""
        bounds, dim = self.measurement.bounds, self.sample.points.shape[1]
        return tuple(f"x{i + 1}" for i in range(dim)) if bounds is None else bounds.names

    def to_pandas(self) -> Any:
        """The synthetic database as a DataFrame of float64: the columns, and the weights in a last column "weight".

        Raises:
          ValueError: a column is named "weight".
          ModuleNotFoundError: pandas is not installed.
        """
        return self.sample.to_pandas(self.columns)

    def resynthesise(
        self, num_points: int = 1000, *, seed: int | None = None, progress: Progress | bool = False
    ) -> Release:
        """A release with another synthetic database for the same embedding, see ``Measurement.synthesise``."""
        return self.measurement.synthesise(num_points, seed=self.seed if seed is None else seed, progress=progress)

    def quantise(
        self,
        num_rows: int,
        *,
        method: Literal["herding", "systematic"] = "herding",
        decimals: int | Sequence[int] | None = None,
        seed: int = 0,
    ) -> Quantised:
        """A synthetic database of rows of equal weight, with few digits, see ``kme_jax.synthesis.quantise``.

        Its cost is a distance in the RKHS of the kernel that was measured. With bounds it is that of rows scaled to
        [0, 1]^d, and no row leaves the bounds. This spends nothing.

        Args:
          num_rows: the number of rows, up to a million.
          method: "herding", or "systematic" for more than 10 000 points.
          decimals: to which rows are rounded, for all columns or for each; None to round nothing.
          seed: of systematic resampling.

        Raises:
          ValueError: if an option is invalid, there are too many points for herding, no number with so few decimals is
            within the bounds, or the feature map has no kernel.
        """
        feature_map, bounds = self.noisy.feature_map, self.measurement.bounds
        kernel = getattr(feature_map, "kernel", None)
        if not isinstance(kernel, Kernel):
            name = type(feature_map).__name__
            raise ValueError(f"{name} has no kernel, in which cost is measured: sample.quantise needs none")
        return quantise(self.sample, kernel, num_rows, method=method, decimals=decimals, bounds=bounds, seed=seed)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes the release into a new folder. After an error there is no folder.

        The folder has points.npz (points, weights, names of the columns), release.npz (the embedding and the inputs of
        the synthesis), privacy.json and a manifest.

        Raises:
          ReleaseError: if the folder exists, or cannot be written.
          ValueError: if the weights are not a probability vector, or a point is beyond the bounds.
        """
        _check_sample(self.sample, self.measurement.bounds)
        points = {
            "points": self.sample.points,
            "weights": self.sample.weights,
            "columns": np.asarray(self.columns),
            "seed": np.asarray(self.seed),
        }
        return save_folder(folder, "release", self.measurement._writers() | {"points.npz": arrays_writer(points)})

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Release:
        """Loads a release that :meth:`save` has written.

        Raises:
          ReleaseError: if the folder holds no release, or is damaged, edited, or of another version.
        """
        opened = open_folder(folder, ("release",))
        measurement = Measurement.load(folder)
        with opened.arrays("points.npz") as arrays:
            points, weights, columns, seed = (arrays[name] for name in ("points", "weights", "columns", "seed"))
            check_array(points, "points", "f", (None, measurement.noisy.feature_map.dim))
            check_array(weights, "weights", "f", (len(points),))
            check_array(seed, "seed", "iu", ())
            require(int(seed) >= 0, "seed: is negative")
            release = cls(measurement, WeightedSample(points, weights, measurement.noisy.mechanism), int(seed))
            require(columns.dtype.kind == "U" and columns.shape == (len(release.columns),), "columns: expected names")
            require(tuple(columns.tolist()) == release.columns, "columns: they differ from those of the bounds")
            _check_sample(release.sample, measurement.bounds)
        return release


def _check_sample(sample: WeightedSample, bounds: Bounds | None) -> None:
    """Checks that a sample may be part of a release, whichever solver made it.

    Raises:
      ValueError: if the weights are not a probability vector, or a point is beyond the bounds.
    """
    total = float(sample.weights.sum())
    is_probability = bool((sample.weights >= 0).all()) and abs(total - 1) <= 1e-6
    require(is_probability, "weights: expected a probability vector")
    if bounds is not None:
        within = (sample.points >= bounds.lower) & (sample.points <= bounds.upper)
        require(bool(within.all()), "points: a point is beyond the bounds")


_FILES = ("release.npz", "privacy.json")
_REMEDY = "kme-jax synthesise {} --output=... makes a release of it"
register_kind(Kind("measurement", 3, _FILES, "the measurement of a release of points", Measurement.load, _REMEDY))
register_kind(Kind("release", 3, ("points.npz", *_FILES), "a release of points", Release.load))
