"""Estimates with intervals, from releases of points."""

import dataclasses
import functools
import json
import math
import warnings

import numpy as np
import pytest

from kme_jax import Bounds, Gaussian, Laplacian, PrivacyBudget, Release, WeightedSample, cli, estimate, measure
from kme_jax.analysis import PosteriorDraws, posterior, posterior_draws
from kme_jax.analysis.point_queries import PointsQuery
from kme_jax.embedding import mean_embedding
from kme_jax.synthesis.posterior import PosteriorMean, PosteriorReport
from tests import compiled

NAMES = ("age", "pay, net")
BOUNDS = Bounds.create(np.array([0.0, 0.0]), np.array([100.0, 50.0]), NAMES)
KERNEL = Gaussian(gamma=8.0)
BUDGET = PrivacyBudget(1.0, 1e-5)


def _people(rng, number):
    age = rng.normal(45, 12, number)
    return np.stack([age, 20 + 0.2 * (age - 45) + rng.normal(0, 4, number)], axis=1)


@pytest.fixture(scope="module")
def rows():
    return _people(np.random.default_rng(0), 3000)


@pytest.fixture(scope="module")
def measured(rows):
    return _measured(rows, KERNEL, BOUNDS)


def _measured(rows, kernel, bounds):
    """A measurement with the same noise in each run. Secure noise has no seed."""
    secure = measure(rows, kernel, budget=BUDGET, bounds=bounds)
    exact = mean_embedding(secure.noisy.feature_map, bounds.to_unit(rows)).coordinates
    mechanism = secure.noisy.mechanism
    noise = mechanism.scale * np.random.default_rng(0).normal(size=len(exact))
    on_grid = np.round((exact + noise) / mechanism.grid) * mechanism.grid
    return dataclasses.replace(secure, noisy=dataclasses.replace(secure.noisy, coordinates=on_grid))


@pytest.fixture(scope="module")
def amounts():
    """Measurements of one column, by frequencies and on a lattice."""
    bounds = Bounds.create([0], [50], ["age"])
    return [_measured(_amounts(), kernel, bounds) for kernel in (Laplacian(5.0), Gaussian(50.0))]


@pytest.fixture(scope="module", params=["by hand", pytest.param("sampler", marks=pytest.mark.long)])
def draws(request, measured):
    """Draws of a short run of the sampler, or made by hand: the sampler takes long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        short = functools.partial(posterior.posterior_mean, num_atoms=20, num_trajectories=4, num_leaps=20)
        patch.setattr(posterior, "posterior_mean", short if request.param == "sampler" else _made_by_hand)
        return posterior_draws(measured, smooth=True, seed=1)


def _made_by_hand(key, noisy, proposal, **options):
    """Mixtures around other people of the same distribution."""
    centres = np.clip(BOUNDS.to_unit(_people(np.random.default_rng(9), 24 * 40)), 0, 1).reshape(24, 40, 2)
    weights, widths = np.full((24, 40), 1 / 40), np.full((24, 40), 0.03)
    mean = PosteriorMean(noisy.feature_map, noisy.coordinates, centres, weights, widths, mechanism=noisy.mechanism)
    return mean, PosteriorReport(np.ones((1, 1)), 0.8, True, 0.0, 1)


def _released(measured, rows):
    points = BOUNDS.from_unit(BOUNDS.to_unit(rows[:50]))
    return Release(measured, WeightedSample(points, np.full(50, 1 / 50), measured.noisy.mechanism), 0)


QUERIES = {
    "mean(age)": lambda x: x[:, 0].mean(),
    "SD( age )": lambda x: x[:, 0].std(),
    "median(pay, net)": lambda x: np.median(x[:, 1]),
    "quantile(pay, net, 0.9)": lambda x: np.quantile(x[:, 1], 0.9),
    "share(age>=50 and pay, net<20)": lambda x: np.mean((x[:, 0] >= 50) & (x[:, 1] < 20)),
    "mean(age) where pay, net>20 and age<=60": lambda x: x[(x[:, 1] > 20) & (x[:, 0] <= 60), 0].mean(),
    "correlation(age, pay, net)": lambda x: np.corrcoef(x.T)[0, 1],
    "slope(pay, net, age)": lambda x: np.polyfit(x[:, 0], x[:, 1], 1)[0],
    "count(age>=50) where pay, net<20": lambda x: np.mean((x[:, 0] >= 50) & (x[:, 1] < 20)),
    "sum(pay, net) where age>=50": lambda x: x[x[:, 0] >= 50, 1].sum() / len(x),
    "share(age>49.95 AND age<50.05) Where age>20": lambda x: np.mean(x[x[:, 0] > 20, 0] == 50),
}


@pytest.mark.parametrize("text", QUERIES)
def test_queries_are_answered_as_by_hand(rng, text):
    rows = _people(rng, 4000).round(1)
    query = PointsQuery.parse(text, NAMES)
    uniform = query.answer(NAMES, rows, np.full(4000, 1 / 4000))
    assert uniform == pytest.approx(QUERIES[text](rows), rel=1e-3)
    weights = rng.integers(0, 4, 4000)  # a weight of 3 is a row that occurs three times
    weighted = query.answer(NAMES, rows, weights.astype(float))
    assert weighted == pytest.approx(QUERIES[text](np.repeat(rows, weights, axis=0)), rel=3e-3)


def test_nobody_counts(rng):
    query = PointsQuery.parse("mean(age) where age>1000", NAMES)
    assert math.isnan(query.answer(NAMES, _people(rng, 10), np.full(10, 0.1)))
    for text in ("correlation(age, pay, net)", "slope(pay, net, age)"):
        assert math.isnan(PointsQuery.parse(text, NAMES).answer(NAMES, np.ones((3, 2)), np.ones(3)))


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        ("share(age<=4)", True),
        ("quantile(age, 0.1)", True),
        ("mean(age) where age>=4", True),
        ("share(age<=40)", False),
        ("median(age)", False),
        ("mean(age)", False),
    ],
)
def test_a_warning_says_that_rows_near_a_bound_are_not_told_apart(amounts, text, is_near):
    """A fifth of the rows are within the length of the kernel, about 7, of a bound. Nobody knows how many are below 4.

    Draws of a LatticeMap allow for that, and those of other maps do not.
    """
    points = np.concatenate([np.linspace(0, 4.5, 20), np.linspace(20, 50, 80)])[:, None]
    for measured, has_draws_that_allow_for_it in zip(amounts, (False, True), strict=True):
        sample = WeightedSample(points, np.full(100, 0.01), measured.noisy.mechanism)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimate(measured, text, replicates=PosteriorDraws(measured, (sample, sample), 0))
        assert ["closer to the bound 0 of age than the kernel's length" in str(one.message) for one in caught] == (
            [True] * (is_near and not has_draws_that_allow_for_it)
        )


BAD = {
    "mean": "expected one of mean, sum, sd",
    "mode(age)": "expected one of mean, sum, sd",
    "mean(aeg)": "no column 'aeg'",
    "quantile(age)": "share of rows from 0 to 1",
    "quantile(age, 1.5)": "share of rows from 0 to 1",
    "correlation(age)": "two columns with a comma",
    "slope(age, height)": "no column 'height'",
    "share(age)": "expected one of the columns age, pay, net, one of",
    "share(age>=old)": "and a number",
    "share(age>=5 or age<3)": "joined by and, not by or",
    "share()": "there is nothing in the brackets of share",
    "share(age=50)": "points are smooth: ask for a range",
    "mean(age) where age!=50": "points are smooth: ask for a range",
    "mean(age) where height>3": "expected one of the columns",
    "mean(age) by age": "there are no groups in points",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_queries(measured, text):
    with pytest.raises(ValueError, match=BAD[text]) as error:
        estimate(measured, text)
    assert "\n" not in str(error.value)


def test_draws_are_distributions_within_the_bounds(draws):
    assert len(draws.samples) > 10
    for sample in draws.samples:
        assert sample.weights.sum() == pytest.approx(1)
        assert -0.05 < sample.weights.min() < 0  # the correction is a small one, of both signs
        assert (sample.points >= BOUNDS.lower).all()
        assert (sample.points <= BOUNDS.upper).all()
        assert sample.mechanism is draws.measurement.noisy.mechanism


def test_points_stand_for_normal_distributions(monkeypatch, measured):
    """Means and variances of a draw are those of its mixture: there is one atom of known width."""
    mean = PosteriorMean(
        measured.noisy.feature_map,
        measured.noisy.coordinates,
        centres=np.array([[[0.4, 0.6], [0.5, 0.5]]] * 4),
        weights=np.array([[0.75, 0.25]] * 4),
        widths=np.array([[0.05, 0.02]] * 4),
        mechanism=measured.noisy.mechanism,
    )
    report = PosteriorReport(np.ones((1, 1)), 0.8, True, 0.0, 1)
    monkeypatch.setattr(posterior, "posterior_mean", lambda *_, **__: (mean, report))
    monkeypatch.setattr(posterior, "corrections", lambda measurement, draws, anchors, *_: np.zeros((2, len(anchors))))
    sample = posterior_draws(measured, smooth=True).samples[0]
    unit = BOUNDS.to_unit(sample.points)
    centre = sample.weights @ unit
    np.testing.assert_allclose(centre, [0.425, 0.575], atol=1e-9)
    between = 0.75 * 0.25 * 0.1**2
    variance = sample.weights @ np.square(unit - centre)
    np.testing.assert_allclose(variance, 0.75 * 0.05**2 + 0.25 * 0.02**2 + between, rtol=2e-3)
    equal = posterior_draws(measured, smooth=True).estimate(lambda s: s.expectation(lambda z: z[:, 0]))
    assert equal.standard_error < 1e-9  # all draws are the same distribution
    report = dataclasses.replace(report, converged=False)
    with pytest.raises(ValueError, match="no mixture that explains"):
        posterior_draws(measured)


def test_the_correction_is_the_formula(rng, measured):
    """η = W Ψ (Ψᵀ W Ψ + (σ²/τ²) I)⁻¹ (β + ξ − ψ(ν)), in the other order of the matrices, and without noise."""
    anchors, points = rng.random((60, 2)), rng.random((40, 2))
    draws = [(points, np.full(40, 1 / 40)), (points[:10], np.full(10, 0.1))]
    added = posterior.corrections(measured, draws, anchors, _NoNoise())
    feature_map, mechanism = measured.noisy.feature_map, measured.noisy.mechanism
    psi = np.asarray(compiled.features(feature_map, anchors.astype(np.float32)), np.float64)
    psi -= psi.mean(axis=0)
    inner = psi.T @ psi / 60 + mechanism.variance * mechanism.num_rows / 30 * np.eye(psi.shape[1])
    for (own, weights), eta in zip(draws, added, strict=True):
        features = np.asarray(compiled.features(feature_map, own.astype(np.float32)), np.float64)
        left = measured.noisy.coordinates - weights @ features
        np.testing.assert_allclose(eta, psi @ np.linalg.solve(inner, left) / 60, atol=1e-6)
        assert abs(eta.sum()) < 1e-9


@pytest.mark.long
def test_draws_differ_next_to_faces_in_what_features_cannot_tell(rng, measured):
    """Where τ² is larger, draws begin from a random density: the posterior of a normal distribution, with its variance.

    Its covariance is C − C Ψ (Ψᵀ C Ψ + σ² I)⁻¹ Ψᵀ C, where C is the diagonal matrix of the variances of v.
    """
    anchors, number = 0.1 * rng.random((12, 2)), 3000  # so close that features hardly tell them apart
    factors = rng.uniform(1000, 2000, size=12)
    draws = [(np.full((1, 2), 0.5), np.ones(1))] * number
    added = posterior.corrections(measured, draws, anchors, rng, factors)
    feature_map, mechanism = measured.noisy.feature_map, measured.noisy.mechanism
    psi = np.asarray(compiled.features(feature_map, anchors.astype(np.float32)), np.float64)
    psi -= factors @ psi / factors.sum()
    prior = np.diag(30 / mechanism.num_rows * factors / 12)
    inner = psi.T @ prior @ psi + mechanism.variance * np.eye(psi.shape[1])
    expected = prior - prior @ psi @ np.linalg.solve(inner, psi.T @ prior)
    free = np.eye(12) - np.outer(factors, np.ones(12)) / factors.sum()  # weights without a sum
    expected = free @ expected @ free.T
    h = rng.normal(size=(12, 5))
    np.testing.assert_allclose(np.var(added @ h, axis=0), np.diag(h.T @ expected @ h), rtol=0.15)


def _heaped(measured, monkeypatch, **options):
    """Draws of rows that may share values, from mixtures made by hand."""
    monkeypatch.setattr(posterior, "posterior_mean", _made_by_hand)
    return posterior_draws(measured, seed=1, **options)


def test_half_of_a_draw_is_on_few_points_that_explain_the_measurement(measured, monkeypatch):
    feature_map, mechanism = measured.noisy.feature_map, measured.noisy.mechanism
    for sample in _heaped(measured, monkeypatch).samples[:3]:
        points, inverse = np.unique(BOUNDS.to_unit(sample.points).round(6), axis=0, return_inverse=True)
        weights = np.bincount(inverse, sample.weights)
        assert abs(weights.sum() - 1) < 1e-9
        assert np.sort(weights)[-60:].sum() > 0.3
        psi = np.asarray(compiled.features(feature_map, points.astype(np.float32)), np.float64)
        left = weights @ psi - measured.noisy.coordinates
        assert np.sqrt(np.mean(np.square(left)) / mechanism.variance) < 2


def test_heaps_make_intervals_of_shares_longer_and_not_those_of_means(measured, monkeypatch):
    heaped, smooth = (_heaped(measured, monkeypatch, smooth=is_smooth) for is_smooth in (False, True))
    ratios = {
        text: estimate(measured, text, replicates=heaped).standard_error
        / estimate(measured, text, replicates=smooth, smooth=True).standard_error
        for text in ("share(age>=50)", "mean(age)", "mean(pay, net)")
    }
    assert ratios["share(age>=50)"] > 2
    assert max(ratios["mean(age)"], ratios["mean(pay, net)"]) < 1.5
    with pytest.raises(ValueError, match="were made without it"):
        estimate(measured, "mean(age)", replicates=heaped, smooth=True)


def test_quantiles_of_signed_weights_are_not_biased(rng):
    """A cumulative distribution with noise is made to increase. Its running maximum would be too large everywhere."""
    values = np.sort(rng.random(400))[:, None]
    found = []
    for _ in range(50):
        weights = np.full(400, 1 / 400) + 0.01 * rng.normal(size=400)
        found.append(PointsQuery.parse("median(x)", ("x",)).answer(("x",), values, weights / weights.sum()))
    exact = np.median(values)
    assert abs(np.mean(found) - exact) < 3 * np.std(found) / np.sqrt(50)


class _NoNoise:
    def standard_normal(self, shape):
        return np.zeros(shape)


def test_a_wrong_prior_does_not_bias_means(rows, measured, monkeypatch):
    """Draws that are far off are corrected: the same wrong normal distribution in the place of all draws."""
    places = {"centres": np.full((8, 5, 2), 0.3), "weights": np.full((8, 5), 0.2), "widths": np.full((8, 5), 0.2)}
    noisy, report = measured.noisy, PosteriorReport(np.ones((1, 1)), 0.8, True, 0.0, 1)
    box = np.zeros(2), np.ones(2)
    mean = PosteriorMean(noisy.feature_map, noisy.coordinates, **places, mechanism=noisy.mechanism, box=box)
    monkeypatch.setattr(posterior, "posterior_mean", lambda *_, **__: (mean, report))
    corrected = posterior_draws(measured)
    monkeypatch.setattr(posterior, "corrections", lambda measurement, draws, anchors, *_: np.zeros((4, len(anchors))))
    plain = posterior_draws(measured)
    for text in ("mean(age)", "sd(age)", "mean(pay, net)"):
        private = PointsQuery.parse(text, NAMES).answer(NAMES, rows, np.full(len(rows), 1 / len(rows)))
        before, after = (estimate(measured, text, replicates=draws) for draws in (plain, corrected))
        assert abs(after.value - private) < 5 * after.standard_error + 0.1 * abs(before.value - private), text
        assert abs(before.value - private) > 10 * after.standard_error, text


def _amounts():
    """A fifth of the rows is on the lower bound."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(8000) < 0.2, 0, np.minimum(rng.lognormal(1.5, 0.7, 8000), 50))[:, None]


@pytest.mark.long
def test_intervals_with_many_rows_on_a_bound(monkeypatch):
    """Draws that are cut after they were sampled are 4 to 6 standard errors off."""
    monkeypatch.setattr(posterior, "posterior_mean", functools.partial(posterior.posterior_mean, num_trajectories=4))
    rows, functions = _amounts(), {"exp": lambda x: np.exp(-x[:, 0] / 3), "log": lambda x: np.log1p(x[:, 0])}
    measured = _measured(rows, Gaussian(200.0), Bounds.create([0], [50]))
    draws = posterior_draws(measured)
    found = draws.estimate(lambda sample: {name: sample.expectation(h) for name, h in functions.items()})
    for name, h in functions.items():
        assert abs(found[name].value - h(rows).mean()) < 3 * found[name].standard_error, name
    assert found["exp"].standard_error < 0.002


@pytest.mark.parametrize(("centre", "is_refused"), [(0.0, True), (0.5, False)])
def test_draws_that_do_not_fit_into_the_bounds_are_refused(amounts, monkeypatch, centre, is_refused):
    """Draws of a map whose distributions are not cut while they are sampled."""
    measured = amounts[1]
    places = {"centres": np.full((8, 5, 1), centre), "weights": np.full((8, 5), 0.2), "widths": np.full((8, 5), 0.05)}
    mean = PosteriorMean(
        measured.noisy.feature_map, measured.noisy.coordinates, **places, mechanism=measured.noisy.mechanism
    )
    report = PosteriorReport(np.ones((1, 1)), 0.8, True, 0.0, 1)
    monkeypatch.setattr(posterior, "posterior_mean", lambda *_, **__: (mean, report))
    if is_refused:
        with pytest.raises(ValueError, match="a release with wider bounds may have them"):
            posterior_draws(measured)
        mean = dataclasses.replace(mean, box=(np.zeros(1), np.ones(1)))  # draws were cut while they were sampled
    assert len(posterior_draws(measured).samples) == 4


def test_intervals_contain_the_private_statistics(rows, measured, draws):
    for text in ("mean(age)", "sd(pay, net)", "share(age>=50)", "correlation(age, pay, net)", "slope(pay, net, age)"):
        private = PointsQuery.parse(text, NAMES).answer(NAMES, rows, np.full(len(rows), 1 / len(rows)))
        found = estimate(measured, text, replicates=draws)
        assert abs(found.value - private) < 5 * found.standard_error, text
        assert 0 < found.standard_error < 0.2 * abs(private), text
        assert (found.method, found.population) == ("posterior", False)


def test_several_statistics_and_the_population(rows, draws):
    def moments(sample):
        return {"mean": sample.expectation(lambda z: z[:, 0]), "square": sample.expectation(lambda z: z[:, 0] ** 2)}

    of_rows, of_population = draws.estimate(moments), draws.estimate(moments, population=True)
    sampling = rows[:, 0].std() / math.sqrt(len(rows))
    for name, scale in (("mean", sampling), ("square", (rows[:, 0] ** 2).std() / math.sqrt(len(rows)))):
        expected = math.hypot(of_rows[name].standard_error, scale)
        assert of_population[name].standard_error == pytest.approx(expected, rel=0.35), name
        assert of_population[name].population
    nowhere = draws.estimate(lambda s: {"missing": math.nan})
    assert nowhere["missing"].high == math.inf
    assert str(nowhere["missing"]) == "no answer: no rows of the release count, or noise hides how they vary"
    with pytest.raises(ValueError, match="must be a number"):
        draws.estimate(lambda s: "large")
    with pytest.raises(ValueError, match="between 0 and 1"):
        draws.estimate(moments, level=95)


def test_what_has_no_posterior(measured, draws, rows):
    weighted = measure(rows, KERNEL, BOUNDS.lower + 50 * np.ones((3, 2)), budget=BUDGET)
    with pytest.raises(ValueError, match="gives weights to public points"):
        estimate(weighted, "mean(x1)")
    with pytest.raises(ValueError, match="expected a release of points"):
        posterior_draws(draws)
    with pytest.raises(ValueError, match="replicates: they are of another release"):
        estimate(measure(rows, KERNEL, budget=BUDGET, bounds=BOUNDS), "mean(age)", replicates=draws)
    with pytest.raises(ValueError, match="method must be posterior for this release"):
        estimate(measured, "mean(age)", method="direct")


def test_the_command(monkeypatch, tmp_path, capsys, measured, draws, rows):
    monkeypatch.chdir(tmp_path)
    released = _released(measured, rows)
    released.save("published")
    loaded, given = [], []

    def saved_draws(release, **options):
        loaded.append(release)
        given.append(options)
        return PosteriorDraws(release.measurement, draws.samples, draws.seed)

    monkeypatch.setattr("kme_jax.analysis.posterior_draws", saved_draws)
    words = ["estimate", "published", "mean(age)", "slope(pay, net, age)"]
    assert cli.main(["estimate", "published", "share(age>=50)"]) == 0
    assert "if there are none, use --smooth" in capsys.readouterr().out
    assert cli.main(["estimate", "published", "share(age>=50)", "--smooth"]) == 0
    assert "use --smooth" not in capsys.readouterr().out
    assert [options["smooth"] for options in given] == [False, True]
    loaded.clear()
    assert cli.main([*words, "--output=answers.json", "--level=0.9"]) == 0
    printed = capsys.readouterr().out
    expected = estimate(measured, "mean(age)", level=0.9, replicates=draws)
    assert f"mean(age): {expected}  (posterior)\n" in printed
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert answers["mean(age)"][""]["value"] == pytest.approx(expected.value)
    assert len(loaded) == 1  # draws are made once for all questions
    assert cli.main(["estimate", "published", "mean(height)"]) == 2
    assert "no column 'height'" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main(["estimate", "published", "mean(height)", "count(*)", "--population"]) == 2
    assert "ask for a share or a mean" in capsys.readouterr().err.splitlines()[-1]
    assert len(loaded) == 1  # and not before questions are read
    assert cli.main(["estimate", "published", "mean(height)", "mean(age)"]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("mean(age): ")
    assert [line for line in printed.err.splitlines() if line.startswith("error: ")] == [
        "error: query 'mean(height)': there is no column 'height', only age, pay, net"
    ]
    assert cli.main([*words, "--num_replicates=7"]) == 2
    assert "does not apply to points" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main([*words, "--method=bootstrap"]) == 2
    assert "method must be posterior" in capsys.readouterr().err.splitlines()[-1]
