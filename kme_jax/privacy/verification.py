"""Whether a privacy statement follows from the mechanisms it is about: what is checked when a release is loaded.

Every number of a statement is computed again from the feature maps and the mechanisms. What cannot be computed again is
bounded by the JSON schema of statements. A mechanism is checked against the diameter of its feature map and the budget.
Numbers may differ by 1e-6 of their size, since other versions of the libraries round otherwise.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from kme_jax._numerics.validation import TOLERANCE, are_close, check_array, check_follows, require
from kme_jax.feature_maps.base import FeatureMap
from kme_jax.privacy import statement as statements
from kme_jax.privacy.budget import MAX_EPSILON, PrivacyBudget
from kme_jax.privacy.calibration import (
    Calibration,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    zcdp_epsilon,
    zcdp_rho,
)
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import check_total
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding, noise_of, proved_diameter

_MAX_NOISE = 100  # times its scale
_MAX_EXACT = 2.0**50  # larger integers may be off by one when they are computed from their rounded multiples


def with_room(budget: PrivacyBudget) -> PrivacyBudget:
    """A budget that is larger by the tolerance, for sums that other versions of libraries round otherwise."""
    return PrivacyBudget(min(budget.epsilon * (1 + TOLERANCE), MAX_EPSILON), budget.delta)


def check_noise(mechanism: Mechanism, budget: PrivacyBudget, share: float = 1.0) -> None:
    """Refuses a mechanism whose noise is not that of a share of a budget, for the sensitivity that it states.

    Args:
      mechanism: any.
      budget: (ε, δ) of all measurements.
      share: the part of ρ, or of μ², that this one has.

    Raises:
      ValueError: numbers out of range, or that do not follow from the budget.
    """
    m = mechanism
    numbers = (m.scale, m.sensitivity, m.epsilon, *(v for v in (m.rho, m.grid) if v is not None))
    require(all(0 < number < math.inf for number in numbers), "a number of the mechanism is not positive")
    require(0 <= m.failure_probability <= m.delta < 1 and m.num_rows >= 1, "δ or N of the mechanism is out of range")
    require(m.delta == budget.delta, "δ does not follow from the budget")
    discrete = m.grid is not None
    require(not m.secure or (discrete and m.num_rows >= 2), "the noise is said to be secure, and cannot be")
    kind = noise_of(m.noise)
    source_is_known = kind.is_source(m.noise_source) if m.secure else m.noise_source == Mechanism.noise_source
    require(source_is_known, "the source of the noise is not known")
    require(m.rho is not None or m.mu is not None or m.delta == 0, "the noise has no ρ, and δ is not 0")
    kind.check(m, PrivacyBudget(budget.epsilon, m.delta - m.failure_probability), share)


def check_sensitivity(mechanism: Mechanism, feature_map: FeatureMap) -> None:
    """Refuses a mechanism whose sensitivity is not that of the mean of a feature map.

    Raises:
      ValueError: the sensitivity, the grid or the failure probability does not follow from the map.
    """
    m = mechanism
    if m.grid is None:  # simulated noise, which may be for a published diameter
        largest, left = proved_diameter(feature_map, m.delta)
        failure = feature_map.failure_probability if left < m.delta else 0.0
        choices = [(largest, failure), (feature_map.published_diameter, 0.0)]
        kind, size = noise_of(m.noise), feature_map.num_features
        bounds = [(kind.sensitivity(diameter, size, integers=False) / m.num_rows, f) for diameter, f in choices]
        known = any(are_close(m.sensitivity, bound) and m.failure_probability == f for bound, f in bounds)
        require(known, "the sensitivity does not follow from the feature map")
        return
    integers = feature_map.integers(m.num_rows)
    largest, left = proved_diameter(integers, m.delta)
    check_follows("the grid", m.grid, 1 / (integers.units * m.num_rows))
    sensitivity = noise_of(m.noise).sensitivity(largest, feature_map.num_features, integers=True)
    check_follows("the sensitivity", m.sensitivity, sensitivity * m.grid)
    failure = integers.failure_probability if left < m.delta else 0.0
    require(m.failure_probability == failure, "the failure probability does not follow from the feature map")


def check_coordinates(noisy: NoisyEmbedding) -> None:
    """Refuses coordinates of another number than features, off the grid of the noise, or too far for features and
    noise: an entry of Gaussian or Laplace noise is beyond 100 of its scale with probability 1e-43 or less.

    Raises:
      ValueError: such coordinates.
    """
    mechanism, coordinates = noisy.mechanism, noisy.coordinates
    check_array(coordinates, "coordinates", "f", (noisy.feature_map.num_features,))
    most = noisy.feature_map.norm_bound + _MAX_NOISE * mechanism.scale
    require(float(np.abs(coordinates).max()) <= most, "a coordinate is beyond the features and the noise")
    if mechanism.grid is not None:
        integers = np.rint(coordinates / mechanism.grid)
        on_grid = integers * mechanism.grid == coordinates
        on_grid |= np.abs(integers) >= _MAX_EXACT
        require(bool(on_grid.all()), "coordinates are not on the grid of the noise")


def check_embedding(noisy: NoisyEmbedding, budget: PrivacyBudget, share: float = 1.0) -> None:
    """Refuses a noisy embedding that a measurement with a share of a budget cannot have made.

    Raises:
      ValueError: as :func:`check_coordinates`, :func:`check_noise` and :func:`check_sensitivity`.
    """
    check_noise(noisy.mechanism, budget, share)
    check_sensitivity(noisy.mechanism, noisy.feature_map)
    check_coordinates(noisy)


def _share(mechanism: Mechanism, budget: PrivacyBudget) -> float:
    """The share of a budget that Gaussian noise has."""
    left = PrivacyBudget(budget.epsilon, mechanism.delta - mechanism.failure_probability)
    if mechanism.rho is not None:
        share = mechanism.rho / zcdp_rho(left)
    else:
        calibration = cast(Calibration, mechanism.calibration)
        share = (mechanism.sensitivity / mechanism.scale * gaussian_noise_multiplier(left, calibration)) ** 2
    return 1.0 if are_close(share, 1.0) else share


def check_parts(mechanisms: Sequence[Mechanism], composition: Composition) -> None:
    """Refuses a composition that is not that of an embedding, and of counts of classes if there are any, which
    together spend all of a budget.

    Raises:
      ValueError: such mechanisms, or such a composition.
    """
    c = composition
    require(0 < c.epsilon < math.inf and 0 < c.delta < 1, "ε or δ is out of range")
    require(1 <= len(mechanisms) <= 2, "expected an embedding, and counts of classes if there are any")
    require(len({m.num_rows for m in mechanisms}) == 1, "the measurements have different N")
    delta = c.delta
    for mechanism in mechanisms:
        require(0 < mechanism.delta == delta, "δ does not follow from the budget")
        require(0 <= mechanism.failure_probability < delta and mechanism.scale > 0, "a number is out of range")
        budget = PrivacyBudget(c.epsilon, delta)
        check_noise(mechanism, budget, 1.0 if len(mechanisms) == 1 else _share(mechanism, budget))
        delta -= mechanism.failure_probability
    known = Composition.of(mechanisms, with_room(PrivacyBudget(c.epsilon, c.delta)))
    for name in ("rho", "mu"):
        check_follows(name, getattr(c, name), getattr(known, name))
    same = c.secure == known.secure and c.failure_probability == known.failure_probability
    require(same, "the composition does not follow from the mechanisms")
    left = c.delta - c.failure_probability
    if all(mechanism.calibration != "classical" for mechanism in mechanisms):  # which has more noise than it needs
        check_follows("ε", c.epsilon, zcdp_epsilon(c.rho, left) if c.mu is None else gaussian_epsilon(1 / c.mu, left))


def check_described(measurements: Any, mechanisms: Sequence[Mechanism]) -> None:
    """Refuses descriptions of measurements, as in a statement, with numbers that do not follow from their mechanisms.

    Args:
      measurements: what was read; what it says of each map is not checked.
      mechanisms: of each.

    Raises:
      ValueError: they are no such descriptions.
    """
    for error in _validator("measurements").iter_errors(measurements):
        raise ValueError(f"a measurement is not described as it should be ({error.validator})")
    require(len(measurements) == len(mechanisms), "expected one description for each measurement")
    for number, (said, m) in enumerate(zip(measurements, mechanisms, strict=True)):
        feature_map = said["feature_map"] | {"diameter": m.sensitivity * m.num_rows}
        counts = None if said["cell_noise"] is None else [m.scale * m.num_rows] * 2
        expected = said | statements.noise_statement(m) | {"feature_map": feature_map, "cell_noise": counts}
        _compare(said, expected, f"measurements.{number}")


@functools.cache
def _validator(part: str | None = None):
    """Of statements, or of one field of them."""
    import jsonschema  # here: it takes a while to import

    schema = statements.schema()
    return jsonschema.Draft202012Validator(schema if part is None else schema["properties"][part])


def check_statement(statement: Any, total: Any, follows: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
    """Refuses a privacy statement that does not say what follows from the mechanisms.

    Args:
      statement: what was read.
      total: of all releases, as it was read beside the mechanisms. It comes from a ledger.
      follows: the statement that follows from the mechanisms, as a function of a valid total. The versions of libraries
        are those at the time of the release, and may differ.

    Raises:
      ValueError: it is no statement, or another one.
    """
    for error in _validator().iter_errors(statement):
        raise ValueError(f"{'.'.join(map(str, error.absolute_path)) or 'it'}: is not what a statement may have there")
    require(total == statement["total"], "total: is not the one that was recorded with the measurements")
    _compare(_comparable(statement), _comparable(follows(total)), "")
    if total is not None:
        failure = math.fsum(measurement["failure_probability"] for measurement in statement["measurements"])
        check_total(statement["total"], statement["epsilon"], statement["delta"], statement["rho"], failure)


# The module of a proof was another one in earlier versions.
_PROOF = re.compile(r"kme_jax\.feature_maps\.[a-z_]+ \(")


def _comparable(statement: dict[str, Any]) -> dict[str, Any]:
    """A statement without what differs between versions: of libraries, and of the place of a proof."""
    measurements = []
    for measurement in statement["measurements"]:
        proof = _PROOF.sub("(", measurement["feature_map"]["proof"])
        measurements.append(measurement | {"feature_map": measurement["feature_map"] | {"proof": proof}})
    return statement | {"versions": None, "measurements": measurements}


def _compare(found: Any, expected: Any, place: str) -> None:
    numbers = (int, float)
    if type(found) in numbers and type(expected) in numbers:
        same = are_close(found, expected) if float in (type(found), type(expected)) else found == expected
    elif isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for name in expected:
            _compare(found[name], expected[name], f"{place}.{name}" if place else name)
        same = True
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, pair in enumerate(zip(found, expected, strict=True)):
            _compare(*pair, f"{place}.{number}")
        same = True
    else:
        same = type(found) is type(expected) and not isinstance(found, dict | list) and found == expected
    require(same, f"{place}: does not follow from the mechanisms")
