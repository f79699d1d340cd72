"""Checks of a release that is loaded: whether its privacy statement follows from its mechanisms.

Every number of a statement is computed again from the feature maps and the mechanisms. The JSON schema of statements
bounds the numbers that cannot be computed again. A mechanism is checked against the diameter of its feature map and the
budget. Numbers may differ by 1e-6 of their size, since other versions of the libraries round differently.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from kme_jax._numerics.validation import TOLERANCE, are_close, check_array, check_follows, require
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy import statement as statements
from kme_jax.privacy.budget import REPLACE_ONE, PrivacyBudget
from kme_jax.privacy.calibration import (
    Calibration,
    discrete_epsilon,
    discreteness,
    fine_rho,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_rho,
)
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import (
    Mechanism,
    NoisyEmbedding,
    noise_of,
    proved_diameter,
    proved_distance,
    proved_sensitivity,
)
from kme_jax.privacy.totals import check_total

_ROOM = 1e-3  # relative, of an ε
_MAX_NOISE = 100  # the largest noise of a coordinate, in scales of the noise
_MAX_ROWS = 2**32  # more than a table with a private number of rows may have
_MAX_EXACT = 2.0**50  # larger integers may be off by one after division of their rounded multiples by the grid


def check_noise(mechanism: Mechanism, budget: PrivacyBudget, share: float = 1.0) -> None:
    """Checks that the noise of a mechanism is calibrated to its sensitivity and a share of a budget.

    Args:
      mechanism: a mechanism that was read from a file.
      budget: (ε, δ) of all measurements.
      share: the share of ρ, or of μ², of this measurement.

    Raises:
      ValueError: if a number is out of range, or does not follow from the budget.
    """
    m = mechanism
    numbers = (m.scale, m.sensitivity, m.epsilon, *(v for v in (m.rho, m.grid) if v is not None))
    require(all(0 < number < math.inf for number in numbers), "a number of the mechanism is not positive")
    require(0 <= m.failure_probability <= m.delta < 1 and m.num_rows >= 1, "δ or N of the mechanism is out of range")
    require(m.delta == budget.delta, "δ does not follow from the budget")
    same = (m.relation, m.max_rows, m.person) == (budget.relation, budget.max_rows, budget.person)
    require(same, "the relation does not follow from the budget")
    discrete = m.grid is not None
    least = 2 if m.relation == REPLACE_ONE else 1
    require(not m.secure or (discrete and m.num_rows >= least), "the noise is marked as secure, but is not")
    kind = noise_of(m.noise)
    source_is_known = kind.is_source(m.noise_source) if m.secure else m.noise_source == Mechanism.noise_source
    require(source_is_known, "the source of the noise is not known")
    require(m.rho is not None or m.mu is not None or m.delta == 0, "the noise has no ρ, and δ is not 0")
    require(m.discreteness is None or 0 < m.discreteness < 1, "the discreteness of the noise is out of range")
    kind.check(m, dataclasses.replace(budget, delta=m.delta - m.failure_probability), share)


def check_sensitivity(mechanism: Mechanism, feature_map: FeatureMap) -> None:
    """Checks that the sensitivity of a mechanism is that of the mean of a feature map.

    Raises:
      ValueError: if the sensitivity, the grid or the failure probability does not follow from the map.
    """
    m = mechanism
    if m.grid is None:  # simulated noise, which may be calibrated to a published diameter
        require(m.relation == REPLACE_ONE, "continuous noise is for replace_one")
        largest, delta = proved_diameter(feature_map, m.delta)
        failure = feature_map.failure_probability if delta < m.delta else 0.0
        kind, size = noise_of(m.noise), feature_map.num_features
        choices = [
            (proved_sensitivity(kind, feature_map, largest, size, integers=False), failure),
            (kind.sensitivity(feature_map.published_diameter, size, integers=False), 0.0),
        ]
        follows = any(
            are_close(m.sensitivity, bound / m.num_rows) and m.failure_probability == f for bound, f in choices
        )
        require(follows, "the sensitivity does not follow from the feature map")
        return
    integers = feature_map.integers(m.num_rows)
    largest, delta = proved_distance(integers, m.delta, m.relation)
    check_follows("the grid", m.grid, 1 / (integers.units * m.num_rows))
    kind = noise_of(m.noise)
    sensitivity = proved_sensitivity(
        kind, integers, largest, feature_map.num_features, integers=True, max_rows=m.max_rows
    )
    check_follows("the sensitivity", m.sensitivity, sensitivity * m.grid)
    failure = integers.failure_probability if delta < m.delta else 0.0
    require(m.failure_probability == failure, "the failure probability does not follow from the feature map")
    check_discreteness(m, feature_map.num_features)


def check_discreteness(mechanism: Mechanism, num_features: int) -> None:
    """Checks that τ of a mechanism, if it has one, is that of its noise.

    Args:
      mechanism: a mechanism that was read from a file.
      num_features: F.

    Raises:
      ValueError: if τ does not follow from the noise, or there is no grid.
    """
    if mechanism.discreteness is not None:
        require(mechanism.grid is not None, "noise without a grid has a discreteness")
        expected = discreteness(mechanism.scale / cast(float, mechanism.grid), num_features)
        check_follows("the discreteness", mechanism.discreteness, expected)


def check_coordinates(noisy: NoisyEmbedding) -> None:
    """Checks the coordinates of a noisy embedding.

    The noise of a coordinate may be at most 100 times its scale. Gaussian and Laplace noise exceed this with
    probability 1e-43 or less.

    Raises:
      ValueError: if there is not one coordinate for each feature, or coordinates are not on the grid of the noise, or
        are larger than features and noise can be.
    """
    mechanism, coordinates = noisy.mechanism, noisy.coordinates
    check_array(coordinates, "coordinates", "f", (noisy.feature_map.num_features,))
    # If N is private, the sum is divided by a noisy count, which may be much smaller than N.
    most_rows = 1 if mechanism.relation == REPLACE_ONE else _MAX_ROWS
    most = most_rows * noisy.feature_map.norm_bound + _MAX_NOISE * mechanism.scale
    require(float(np.abs(coordinates).max()) <= most, "a coordinate is larger than features and noise can be")
    if mechanism.grid is not None:
        integers = np.rint(coordinates / mechanism.grid)
        on_grid = integers * mechanism.grid == coordinates
        on_grid |= np.abs(integers) >= _MAX_EXACT
        require(bool(on_grid.all()), "coordinates are not on the grid of the noise")


def check_embedding(noisy: NoisyEmbedding, budget: PrivacyBudget, share: float = 1.0) -> None:
    """Checks that a noisy embedding can be the result of a measurement with a share of a budget.

    Raises:
      ValueError: as :func:`check_coordinates`, :func:`check_noise` and :func:`check_sensitivity`.
    """
    check_noise(noisy.mechanism, budget, share)
    check_sensitivity(noisy.mechanism, noisy.feature_map)
    check_coordinates(noisy)


def _share(mechanism: Mechanism, budget: PrivacyBudget) -> float:
    """The share of a budget that a mechanism with Gaussian noise spends."""
    calibrated = dataclasses.replace(budget, delta=mechanism.delta - mechanism.failure_probability)
    if mechanism.rho is not None:
        share = mechanism.rho / (zcdp_rho if mechanism.discreteness is None else fine_rho)(calibrated)
    else:
        multiplier = gaussian_noise_multiplier(calibrated, cast(Calibration, mechanism.calibration))
        share = (mechanism.sensitivity / mechanism.scale * multiplier) ** 2
    return 1.0 if are_close(share, 1.0) else share


def check_parts(mechanisms: Sequence[Mechanism], composition: Composition) -> None:
    """Checks that a composition is that of a noisy embedding and, optionally, of noisy counts of classes.

    Together these measurements must spend all of a budget.

    Args:
      mechanisms: of the embedding and, optionally, of the counts.
      composition: the composition that was read from a file.

    Raises:
      ValueError: if the mechanisms are invalid, or the composition does not follow from them.
    """
    c = composition
    require(0 < c.epsilon < math.inf and 0 < c.delta < 1, "ε or δ is out of range")
    require(1 <= len(mechanisms) <= 2, "expected the measurement of an embedding, and at most one of counts of classes")
    require(len({m.num_rows for m in mechanisms}) == 1, "the measurements have different N")
    delta = c.delta
    for mechanism in mechanisms:
        require(0 < mechanism.delta == delta, "δ does not follow from the budget")
        require(0 <= mechanism.failure_probability < delta and mechanism.scale > 0, "a number is out of range")
        budget = PrivacyBudget(c.epsilon, delta)
        check_noise(mechanism, budget, 1.0 if len(mechanisms) == 1 else _share(mechanism, budget))
        delta -= mechanism.failure_probability
    expected = Composition.of(mechanisms, PrivacyBudget(c.epsilon, c.delta), tolerance=TOLERANCE)
    for name in ("rho", "mu", "discreteness"):
        check_follows(name, getattr(c, name), getattr(expected, name))
    for name in ("relation", "max_rows", "person", "secure", "failure_probability"):
        equal = getattr(c, name) == getattr(expected, name)
        require(equal, "the composition does not follow from the mechanisms")
    delta = c.delta - c.failure_probability
    # Classical calibration has more noise than ε needs, so ε does not follow from its noise.
    if all(mechanism.calibration != "classical" for mechanism in mechanisms):
        least = (
            gaussian_epsilon(1 / c.mu, delta) if c.mu else discrete_epsilon(cast(float, c.rho), delta, c.discreteness)
        )
        fine = c.discreteness is not None  # a part of δ is reserved for it
        require(least <= c.epsilon * (1 + TOLERANCE), "ε does not follow from the noise")
        require(least >= c.epsilon * (1 - (_ROOM if fine else TOLERANCE)), "ε does not follow from the noise")


def check_described(measurements: Any, mechanisms: Sequence[Mechanism]) -> None:
    """Checks that descriptions of measurements, as in a statement, follow from the mechanisms.

    Args:
      measurements: the descriptions that were read. The texts about feature maps are not checked.
      mechanisms: the mechanism of each measurement.

    Raises:
      ValueError: if a description is invalid, or a number does not follow from its mechanism.
    """
    for error in _validator(statements.newest_version(), "measurements").iter_errors(measurements):
        raise ValueError(f"the description of a measurement is invalid ({error.validator})")
    require(len(measurements) == len(mechanisms), "expected one description for each measurement")
    for number, (description, m) in enumerate(zip(measurements, mechanisms, strict=True)):
        feature_map = description["feature_map"] | {"diameter": m.sensitivity * m.num_rows}
        counts = None if description["cell_noise"] is None else [m.scale * m.num_rows] * 2
        expected = description | statements.noise_statement(m) | {"feature_map": feature_map, "cell_noise": counts}
        _compare(description, expected, f"measurements.{number}")


def _validator(version: int, field: str | None = None):
    """The JSON schema validator of statements of a version, or of one field of them."""
    return _cached_validator(version, field, statements.FIELDS)


@functools.cache
def _cached_validator(version: int, field: str | None, fields: tuple[statements.StatementField, ...]):
    """:func:`_validator`. The schema depends on ``fields``, too, though it looks them up by itself."""
    import jsonschema  # here, because its import is slow

    schema = statements.schema(version)
    return jsonschema.Draft202012Validator(schema if field is None else schema["properties"][field])


def check_statement(statement: Any, total: Any, follows: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
    """Checks that a privacy statement follows from the mechanisms.

    Args:
      statement: the statement that was read. It may have an earlier version.
      total: the total of all releases, as it was read beside the mechanisms. It comes from a ledger.
      follows: a function from a valid total to the statement that follows from the mechanisms. The versions of
        libraries in a statement are those at the time of the release, and may differ.

    Raises:
      ValueError: if the statement is invalid, or does not follow.
    """
    version = statements.version_of(statement)
    for error in _validator(version).iter_errors(statement):
        raise ValueError(f"{'.'.join(map(str, error.absolute_path)) or 'it'}: is invalid in a privacy statement")
    require(total == statement["total"], "total: differs from the total that was recorded with the measurements")
    _compare(_comparable(statement), _comparable(statements.as_version(follows(total), version)), "")
    if total is not None:
        failure = math.fsum(measurement["failure_probability"] for measurement in statement["measurements"])
        epsilon, delta, rho = (statement[name] for name in ("epsilon", "delta", "rho"))
        relation, tau = statements.relation_of(statement), statement.get("discreteness")
        check_total(statement["total"], epsilon, delta, rho, failure, relation, tau, statement.get("person"))


# Proofs were in other modules in earlier versions.
_PROOF = re.compile(r"kme_jax\.feature_maps\.[a-z_]+ \(")


def _comparable(statement: dict[str, Any]) -> dict[str, Any]:
    """The statement without the versions of libraries and the modules of proofs, which differ between versions."""
    measurements = []
    for measurement in statement["measurements"]:
        proof = _PROOF.sub("(", measurement["feature_map"]["proof"])
        measurements.append(measurement | {"feature_map": measurement["feature_map"] | {"proof": proof}})
    return statement | {"versions": None, "measurements": measurements}


def _compare(value: Any, expected: Any, path: str) -> None:
    """Checks that a JSON value equals the expected one, up to the tolerance of floating-point numbers.

    Args:
      value: the value that was read.
      expected: the value that follows from the mechanisms.
      path: the names of the fields that lead to the value, for the error.

    Raises:
      ValueError: if the values differ.
    """
    numbers = (int, float)
    if type(value) in numbers and type(expected) in numbers:
        equal = are_close(value, expected) if float in (type(value), type(expected)) else value == expected
    elif isinstance(value, dict) and isinstance(expected, dict) and value.keys() == expected.keys():
        for name in expected:
            _compare(value[name], expected[name], f"{path}.{name}" if path else name)
        equal = True
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        for number, pair in enumerate(zip(value, expected, strict=True)):
            _compare(*pair, f"{path}.{number}")
        equal = True
    else:
        equal = type(value) is type(expected) and not isinstance(value, dict | list) and value == expected
    require(equal, f"{path}: does not follow from the mechanisms")
