"""How fast errors decay: slopes, verdicts, the population's embedding, and a small run."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.common.errors import InputError
from experiments.common.mixture import mixture
from experiments.rates import measure, plot, run, slopes
from experiments.rates.claims import CLAIMS, corrected_exponent, printed_exponent, proposition5, rate_of_printed
from experiments.rates.config import PARTS, RatesConfig
from experiments.rates.population import Cubes, Mixture, Transformed
from kme_jax import Gaussian
from kme_jax.gram import gram_matrix

X = [10, 100, 1000, 10_000]


def _invented(slope, number=20, noise=0.1, seed=0):
    """Errors x^slope with lognormal noise, [number, n]."""
    rng = np.random.default_rng(seed)
    return 3 * np.power(np.asarray(X, float), slope) * np.exp(rng.normal(0, noise, (number, len(X))))


# --- slopes and verdicts ---------------------------------------------------------------------------------------------


def test_slopes_of_invented_errors_are_recovered():
    exact = slopes.fitted(X, np.asarray([[x**-0.5 for x in X]] * 2))
    assert (exact.value, exact.low, exact.high) == pytest.approx((-0.5, -0.5, -0.5))
    inside = 0
    for seed in range(200):
        slope = slopes.fitted(X, _invented(-0.5, number=5, seed=seed))
        assert slope.value == pytest.approx(-0.5, abs=0.1)
        inside += slope.low < -0.5 < slope.high
    assert 165 <= inside <= 195  # an interval of 90 %


@pytest.mark.parametrize(
    ("slope", "bound", "convergence_only", "verdict"),
    [
        (-0.3, -0.5, False, "slower"),
        (-0.7, -0.5, False, "faster"),
        (0.7, 0.5, False, "slower"),
        (-0.01, 0.0, True, "unclear"),
        (-0.3, 0.0, True, "decays"),
        (0.3, 0.0, True, "grows"),
    ],
)
def test_verdicts(slope, bound, convergence_only, verdict):
    noise = 1.0 if verdict == "unclear" else 0.1
    found = slopes.fitted(X, _invented(slope, noise=noise))
    assert found.verdict(bound, convergence_only=convergence_only) == verdict


def test_a_slope_between_its_limits_is_as_fast():
    assert slopes.Slope(-0.5, -0.6, -0.4).verdict(-0.5) == "as fast"
    assert slopes.fitted(X, _invented(-0.5, number=1)).verdict(-9.0) == "as fast"  # one repeat shows nothing


def test_the_median_has_an_interval_of_order_statistics():
    errors = np.arange(20.0)[:, None]
    assert [float(value[0]) for value in slopes.median_interval(errors)] == [9.5, 5, 14]
    assert [float(value[0]) for value in slopes.median_interval(errors[:3])] == [1, 0, 2]


# --- exponents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 5, 10])
def test_the_corrected_exponent_gives_the_claimed_rate(dim):
    k = corrected_exponent(dim)
    assert max(-1 / 2, -k / (2 * dim), k / 2 - 1) == pytest.approx(proposition5(dim))
    assert printed_exponent(dim) == pytest.approx(k - 1)
    assert rate_of_printed(dim) > proposition5(dim)  # the misprint is slower than what is claimed


def test_numbers_of_points_follow_the_exponents():
    config = RatesConfig()
    assert measure.num_points_of(config, 1, 16384) == (2048, 1)
    assert measure.num_points_of(config, 2, 256) == (8, 6)
    assert measure.num_points_of(config, 10, 16384) == (2048, 2048)  # at most the largest M
    assert measure.num_features_of(config, 16384) == 4096
    assert measure.num_features_of(config, 256) == 16


# --- the population --------------------------------------------------------------------------------------------------


def test_the_population_is_that_of_the_figures():
    population, rows = Mixture.of_figures(2), mixture(20_000, 2)
    own = population.rows(20_000, np.random.default_rng(0))
    for sample in (rows, own):
        np.testing.assert_allclose(sample.mean(axis=0), population.shares @ population.means, atol=6)
    points = np.random.default_rng(1).normal(0, 300, (50, 2))
    expected = gram_matrix(population.kernel, points, rows).mean(axis=1)
    np.testing.assert_allclose(population.kernel_mean(points), expected, atol=0.015)
    between = gram_matrix(population.kernel, own[:2000], rows[:2000]).mean()
    assert population.squared_norm == pytest.approx(between, rel=0.05)


@pytest.mark.parametrize("dim", [1, 3])
def test_bounded_rows(dim):
    """Rows and points are in [0, 1]^D, and the closed forms are those of means over many rows."""
    population, rng = Cubes.create(dim), np.random.default_rng(0)
    rows, others = population.rows(20_000, rng), population.rows(2000, rng)
    points = population.points(200, 7)
    for values in (rows, points):
        assert values.min() >= 0
        assert values.max() <= 1
    np.testing.assert_array_equal(population.points(50, 7), points[:50])
    expected = gram_matrix(population.kernel, points, rows).mean(axis=1)
    np.testing.assert_allclose(population.kernel_mean(points), expected, atol=0.01)
    assert population.squared_norm == pytest.approx(
        gram_matrix(population.kernel, rows[:2000], others).mean(), rel=0.02
    )
    grid = (np.arange(1000) + 0.5) / 1000 * population.side
    if dim == 1:  # against sums over a fine grid
        cells = (population.corners + grid[None, :]).reshape(-1, 1)
        masses = np.repeat(population.shares / 1000, 1000)
        values = gram_matrix(population.kernel, points, cells) @ masses
        np.testing.assert_allclose(population.kernel_mean(points), values, atol=1e-7)
        assert population.squared_norm == pytest.approx(population.kernel_mean(cells) @ masses, abs=1e-7)


def test_distances_to_the_population_are_those_of_a_mixture():
    """A population of two normal distributions of one column, against a sum over a fine grid."""
    population = Mixture(Gaussian(0.3), np.asarray([[-1.0], [2.0]]), np.asarray([0.25, 0.75]), 0.5)
    grid = np.linspace(-6, 7, 800)
    densities = np.exp(-np.square((grid[:, None] - population.means[:, 0]) / 0.5) / 2) @ population.shares
    masses = densities / densities.sum()
    points, weights = np.asarray([[0.0], [1.5], [3.0]]), np.asarray([0.7, -0.2, 0.4])
    both = np.concatenate([grid[:, None], points]), np.concatenate([masses, -weights])
    expected = np.sqrt(both[1] @ gram_matrix(population.kernel, both[0], both[0]) @ both[1])
    assert population.distance(points, weights) == pytest.approx(expected, rel=1e-9)
    equal = np.full(3, 1 / 3)
    assert population.distance_of_rows(points) == pytest.approx(population.distance(points, equal), rel=1e-9)
    assert population.expected_distance(4) == pytest.approx(np.sqrt((1 - population.squared_norm) / 4))


def test_the_transformed_population():
    population = Mixture.of_figures(2)
    transformed = Transformed.of(population)
    rows = population.rows(3000, np.random.default_rng(0))
    weights = np.full(3000, 1 / 3000)
    expected = np.sqrt((1 - transformed.distance(rows[:1], np.zeros(1)) ** 2) / 3000)  # √((1 − ‖μ‖²)/N)
    assert expected / 3 < transformed.distance(rows, weights) < 2 * expected
    assert transformed.distance(rows[:, ::-1], weights) > 3 * expected  # of another column


# --- runs ------------------------------------------------------------------------------------------------------------


def _small(tmp_path, **changes):
    return RatesConfig(
        dims=(1,), sizes=(64, 128), num_points=(4, 8), num_features=(4, 8), epsilons=(0.1, 1.0), few_sizes=(64, 128),
        num_fixed=8, num_synthetic=5, num_seeds=2, num_searches=2, num_proposals=1, output_dir=str(tmp_path), **changes,
    )  # fmt: skip


def _decaying(setup):
    """Errors of every claim of a part, which decay as x^-1."""
    rng = np.random.default_rng((setup.seed, PARTS.index(setup.part)))
    return {
        name: {
            curve: [float(rng.lognormal(0, 0.01) / x) for x in getattr(setup.config, grid)]
            for curve, grid in claim.curves.items()
        }
        for name, claim in CLAIMS.items()
        if claim.part == setup.part
    }


def test_a_run_is_written_resumed_and_tabulated(tmp_path):
    config = _small(tmp_path)
    config.validate()
    result = run.run(config, dict.fromkeys(PARTS, _decaying))
    assert json.loads((tmp_path / "rates.json").read_text()) == result
    assert len(result["cells"]) == 2 * (len(PARTS) - 1) + 1
    lines = slopes.markdown(result).splitlines()[2:]
    assert len(lines) == len(CLAIMS)
    assert all("−1.0" in line or "−0.9" in line for line in lines)
    assert "(≤ −0.500) faster |" in next(line for line in lines if line.startswith("| proposition 6 |"))
    assert lines[list(CLAIMS).index("theorem11_transformed")].endswith(" decays |")
    assert run.run(config, {})["cells"] == result["cells"]  # nothing is measured again
    more = run.run(dataclasses.replace(config, parts=("sample",)), {})
    assert more["cells"] == result["cells"]  # the parts are no setting


def test_a_proposal_is_for_few_columns():
    config = RatesConfig()
    assert [run.num_repeats(config, "proposal", dim) for dim in (1, 2, 5)] == [1, 1, 0]
    assert [run.num_repeats(config, part, 5) for part in ("sample", "algorithm2")] == [20, 6]


def test_what_was_not_measured_is_not_tabulated(tmp_path):
    result = run.run(_small(tmp_path, parts=("sample",)), {"sample": _decaying})
    lines = slopes.markdown(result).splitlines()[2:]
    assert lines[0].endswith(" faster |")
    assert all(line.endswith("| – |") for line in lines[1:])


@pytest.mark.long
def test_the_picture(tmp_path):
    result = run.run(_small(tmp_path), dict.fromkeys(PARTS, _decaying))
    assert plot.draw(result, tmp_path / "rates.png").stat().st_size > 50_000


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_small_run_measures_every_claim(part, tmp_path):
    config = _small(tmp_path, parts=(part,))
    result = run.run(config)
    of_part = {name: claim for name, claim in CLAIMS.items() if claim.part == part}
    for cell in result["cells"]:
        assert set(cell["errors"]) == (set(of_part) if of_part else {"proposition5"})
        for name, curves in cell["errors"].items():
            for curve, values in curves.items():
                assert len(values) == len(getattr(config, CLAIMS[name].curves[curve]))
                assert 0 < min(values) <= max(values) < 20
    if part == "fixed_points":
        noise = result["cells"][0]["errors"]["privacy_epsilon"]["published"]
        assert noise[0] > 3 * noise[1]


@pytest.mark.long
def test_coordinates_and_weights_have_the_same_distance(tmp_path, monkeypatch):
    """Distances of algorithm 1 are computed from coordinates. Those of its weights are the same."""
    found = []
    closed_form = measure.closed_form_weights

    def remembering(noisy):
        found.append(closed_form(noisy))
        return found[-1]

    monkeypatch.setattr(measure, "closed_form_weights", remembering)
    population = Mixture.of_figures(1)
    errors = measure.public_rows(measure.Setup(_small(tmp_path), population, "public_rows", 7))
    distances = [population.distance(released.points, released.weights) for released in found]
    assert errors["proposition6"]["published"] == pytest.approx(distances, rel=1e-5)
    assert "improved" not in errors["proposition6"]  # only the first repeats have it


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parts": ("sample", "other")}, "--parts"),
        ({"dims": ()}, "--dims must be increasing"),
        ({"sizes": (512, 256)}, "--sizes must be increasing"),
        ({"sizes": (512,)}, "--sizes: a slope needs two values"),
        ({"num_features": (15, 32)}, "--num_features must be even"),
        ({"epsilons": (1.0, 0.1)}, "--epsilons must be increasing"),
        ({"epsilons": (0.1, 2.0)}, "classical"),
        ({"public_share": 0.001}, "--public_share"),
        ({"num_fixed": 5000}, "--num_fixed"),
        ({"num_seeds": 1}, "--num_seeds must be at least 2"),
        ({"num_proposals": 0}, "--num_proposals"),
        ({"delta": 2.0}, "delta"),
    ],
)
def test_errors_are_one_line(change, match):
    with pytest.raises(InputError, match=match) as error:
        RatesConfig(**change).validate()
    assert "\n" not in str(error.value)
