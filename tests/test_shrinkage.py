"""Shrinkage of noisy embeddings: what it gains, and why nothing is shrunk or herded before the noise."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kme_jax import (
    FourierMap,
    Gaussian,
    LatticeMap,
    MeanEmbedding,
    NoisyEmbedding,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    float64,
    integer_embedding,
    mean_embedding,
    perturb,
    perturb_securely,
)
from kme_jax.privacy import simulated_mechanism
from kme_jax.synthesis import ShrunkEmbedding, shrink

POINTS = np.random.default_rng(1).normal(size=(20, 2))
ROWS = np.random.default_rng(0).normal(0.4, 1.0, size=(300, 2))
MAPS = {
    "subspace": SubspaceMap.from_points(Gaussian(0.5), POINTS),
    "fourier": FourierMap.from_kernel(jax.random.key(0), Gaussian(0.5), 200, 2),
}
PAIRS = 50  # of noise: a draw, and its negative


def _features(feature_map, points):
    with float64():
        return np.asarray(feature_map(jnp.asarray(points)), np.float64)


def _draws(name, epsilon, pairs=PAIRS, noise="gaussian"):
    """The exact embedding [F], and noisy ones in pairs: noise with opposite signs, so that few pairs are enough."""
    feature_map = MAPS[name]
    exact = mean_embedding(feature_map, ROWS).coordinates
    budget = PrivacyBudget(epsilon, 0.0 if noise == "laplace" else 1e-5)
    mechanism = simulated_mechanism(feature_map, len(ROWS), budget, noise=noise)
    rng = np.random.default_rng(0)
    draw = rng.normal if noise == "gaussian" else rng.laplace
    noises = draw(0, mechanism.scale, (pairs, len(exact)))
    draws = np.stack([exact + noises, exact - noises], axis=1).reshape(2 * pairs, -1)
    return exact, [NoisyEmbedding(feature_map, one, mechanism) for one in draws]


def _noisy(name, epsilon):
    return _draws(name, epsilon, 1)[1][0]


def _squared_errors(exact, draws, shrunk):
    """Squared errors of noisy and shrunk embeddings, means of each pair."""
    errors = [[np.sum(np.square(x.coordinates - exact)) for x in both] for both in zip(draws, shrunk, strict=True)]
    return np.reshape(errors, (-1, 2, 2)).mean(axis=1).T


def _is_mean(values, expected):
    """Whether the mean of values is the expected one, but for chance: 4 standard errors."""
    return abs(values.mean() - expected) <= 4 * values.std() / math.sqrt(len(values)) + 1e-12


# -- what it is


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("has_target", [False, True])
def test_it_is_the_positive_part_estimate(name, has_target):
    noisy = _noisy(name, 0.5)
    target = _features(MAPS[name], POINTS).mean(axis=0) if has_target else 0.0
    shrunk = shrink(noisy, POINTS if has_target else None)
    beta, size = noisy.coordinates, len(noisy.coordinates)
    factor = 1 - (size - 2) * noisy.mechanism.scale**2 / np.sum((beta - target) ** 2)
    assert shrunk.amount == pytest.approx(1 - max(0, factor), rel=1e-9)
    np.testing.assert_allclose(shrunk.coordinates, target + max(0, factor) * (beta - target), atol=1e-12)
    assert isinstance(shrunk, ShrunkEmbedding)
    assert not isinstance(shrunk, NoisyEmbedding)  # its error is not that of the mechanism
    assert shrunk.mechanism == noisy.mechanism
    assert "NOT PRIVATE" in repr(shrunk)


def test_a_public_amount_is_taken_as_it_is():
    noisy = _noisy("subspace", 1.0)
    target = _features(MAPS["subspace"], POINTS).mean(axis=0)
    np.testing.assert_array_equal(shrink(noisy, amount=0).coordinates, noisy.coordinates)
    np.testing.assert_allclose(shrink(noisy, POINTS, amount=1).coordinates, target, atol=1e-12)
    np.testing.assert_allclose(shrink(noisy, amount=0.25).coordinates, 0.75 * noisy.coordinates, atol=1e-15)


def test_too_few_features_are_not_shrunk():
    feature_map = SubspaceMap.from_points(Gaussian(0.5), POINTS[:2])
    mechanism = simulated_mechanism(feature_map, 10, PrivacyBudget(0.1, 1e-5))
    noisy = NoisyEmbedding(feature_map, np.array([0.1, 0.2]), mechanism)
    assert shrink(noisy).amount == 0
    np.testing.assert_array_equal(shrink(noisy).coordinates, noisy.coordinates)


def test_an_embedding_at_its_target_stays_there():
    feature_map = MAPS["subspace"]
    mechanism = simulated_mechanism(feature_map, 10, PrivacyBudget(0.1, 1e-5))
    noisy = NoisyEmbedding(feature_map, np.zeros(feature_map.num_features), mechanism)
    assert shrink(noisy).amount == 1
    np.testing.assert_array_equal(shrink(noisy).coordinates, 0)


def test_its_weights_have_its_embedding():
    noisy = _noisy("subspace", 0.5)
    shrunk = shrink(noisy, POINTS)
    weights, raw = shrunk.weights(), closed_form_weights(noisy)
    np.testing.assert_allclose(weights.weights @ _features(MAPS["subspace"], POINTS), shrunk.coordinates, atol=1e-9)
    assert np.abs(weights.weights).sum() < np.abs(raw.weights).sum()
    assert weights.mechanism == noisy.mechanism
    fourier = shrink(_noisy("fourier", 0.5))
    assert fourier.weights(POINTS).weights.shape == (20,)
    with pytest.raises(ValueError, match="give the points"):
        fourier.weights()


@pytest.mark.slow  # compiles a solver
def test_it_is_a_candidate_of_adaptive_weights():
    noisy = _noisy("subspace", 0.5)
    _, report = adaptive_weights(noisy)
    (signed,) = [candidate for candidate in report.candidates if candidate.kind == "signed"]
    shrunk = shrink(noisy, POINTS)
    assert shrunk.amount == pytest.approx(1 - signed.penalty, rel=1e-9)
    assert shrunk.risk == pytest.approx(signed.risk, rel=1e-9)


def test_secure_noise_is_shrunk():
    noisy = perturb_securely(integer_embedding(MAPS["subspace"], ROWS), PrivacyBudget(0.5, 1e-5))
    shrunk = shrink(noisy)
    assert 0 < shrunk.amount < 1
    assert "NOT PRIVATE" not in repr(shrunk)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"amount": -0.1}, "amount must be from 0 to 1"),
        ({"amount": 1.1}, "amount must be from 0 to 1"),
        ({"amount": math.nan}, "amount must be from 0 to 1"),
        ({"target_points": np.zeros((3, 1))}, "target_points: expected 2 columns"),
        ({"target_points": np.full((3, 2), np.nan)}, "target_points"),
        ({"target_points": np.full((3, 2), 1e300)}, "target_points: some have no features"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        shrink(_noisy("fourier", 1.0), **arguments)
    assert "\n" not in str(error.value)


def test_targets_beyond_the_box_are_refused():
    lattice = LatticeMap.from_box(Gaussian(0.5), np.full(2, -2.0), np.full(2, 2.0), 1000)
    mechanism = simulated_mechanism(lattice, 10, PrivacyBudget(1.0, 1e-5))
    noisy = NoisyEmbedding(lattice, np.ones(lattice.num_features), mechanism)
    with pytest.raises(ValueError, match="target_points: some have no features"):
        shrink(noisy, np.full((1, 2), 9.0))


def test_nothing_private_gets_in():
    assert list(inspect.signature(shrink).parameters) == ["embedding", "target_points", "amount"]
    embedding = mean_embedding(MAPS["subspace"], ROWS)
    with pytest.raises(TypeError, match="expected a noisy embedding, the result of perturb, got a MeanEmbedding"):
        shrink(embedding)


# -- what it gains


@pytest.mark.parametrize("has_target", [False, True])
@pytest.mark.parametrize(
    "epsilon", [0.02, *(pytest.param(epsilon, marks=pytest.mark.long) for epsilon in (0.1, 0.5, 2.0))]
)
@pytest.mark.parametrize("name", MAPS)
def test_the_error_is_smaller(name, epsilon, has_target):
    """In every setting, and beyond the chance of the draws."""
    exact, draws = _draws(name, epsilon)
    target = POINTS[:10] if has_target else None
    raw, less = _squared_errors(exact, draws, [shrink(draw, target) for draw in draws])
    gain = raw - less
    assert gain.mean() > 4 * gain.std() / math.sqrt(PAIRS)
    if epsilon == 0.02:
        assert less.mean() < 0.5 * raw.mean()


@pytest.mark.parametrize("epsilon", [20.0, 1000.0])
@pytest.mark.parametrize("name", MAPS)
def test_little_noise_is_kept(name, epsilon):
    exact, draws = _draws(name, epsilon)
    shrunk = [shrink(draw) for draw in draws]
    raw, less = _squared_errors(exact, draws, shrunk)
    assert less.mean() <= 1.01 * raw.mean()
    assert max(one.amount for one in shrunk) < 0.1


@pytest.mark.parametrize("name", MAPS)
def test_laplace_noise_has_less_error_too(name):
    """This is not proved."""
    exact, draws = _draws(name, 10.0, noise="laplace")
    raw, less = _squared_errors(exact, draws, [shrink(draw) for draw in draws])
    assert less.mean() < raw.mean()


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("name", MAPS)
def test_the_error_to_the_distribution_is_smaller_too(name, epsilon):
    """Rows are drawn again with the noise. This is not proved."""
    population = _features(MAPS[name], np.random.default_rng(1).normal(0.4, 1.0, size=(2000, 2)))
    mechanism = simulated_mechanism(MAPS[name], 200, PrivacyBudget(epsilon, 1e-5))
    exact, rng, draws = population.mean(axis=0), np.random.default_rng(0), []
    for _ in range(100):
        sampled = population[rng.integers(2000, size=200)].mean(axis=0)
        noise = rng.normal(0, mechanism.scale, len(exact))
        draws += [NoisyEmbedding(MAPS[name], sampled + part, mechanism) for part in (noise, -noise)]
    raw, less = _squared_errors(exact, draws, [shrink(draw) for draw in draws])
    assert less.mean() < raw.mean()


@pytest.mark.parametrize("distance", [0.0, 1.0, 3.0, 10.0, 100.0])
def test_the_risk_is_within_two_variances_of_the_best_fixed_amount(distance):
    """In units of σ, for μ̂ at a distance from the target. The estimate of the risk is unbiased."""
    feature_map, pairs = MAPS["subspace"], 1000
    size, rng = feature_map.num_features, np.random.default_rng(0)
    mechanism = simulated_mechanism(feature_map, 10, PrivacyBudget(1.0, 1e-5))
    exact, noises = np.zeros(size), mechanism.scale * rng.normal(size=(pairs, 1, size))
    exact[0] = distance * mechanism.scale
    draws = [
        NoisyEmbedding(feature_map, one, mechanism) for one in exact + np.hstack([noises, -noises]).reshape(-1, size)
    ]
    shrunk = [shrink(draw) for draw in draws]
    raw, less = _squared_errors(exact, draws, shrunk) / mechanism.variance
    best = size * distance**2 / (size + distance**2)
    chance = 4 * less.std() / math.sqrt(pairs)
    assert best - chance <= less.mean() <= best + 2 + chance
    assert less.mean() <= raw.mean()
    estimates = np.reshape([one.risk / mechanism.variance for one in shrunk], (-1, 2)).mean(axis=1)
    assert _is_mean(estimates - less, 0)


@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0])
def test_the_risk_of_a_public_amount_is_known(amount):
    exact, draws = _draws("subspace", 0.5, 400)
    shrunk = [shrink(draw, amount=amount) for draw in draws]
    _, errors = _squared_errors(exact, draws, shrunk)
    size, variance = len(exact), shrunk[0].mechanism.variance
    expected = (1 - amount) ** 2 * size * variance + amount**2 * float(exact @ exact)
    assert _is_mean(errors, expected)
    assert _is_mean(np.reshape([one.risk for one in shrunk], (-1, 2)).mean(axis=1), expected)


# -- before the noise


@pytest.mark.parametrize("amount", [0.0, 0.4, 0.9])
def test_a_public_amount_before_the_noise_gives_the_same_result(amount):
    """The sensitivity of the shrunk mean is 1 − a times the other, and so is its noise, for the same draw."""
    feature_map, key = MAPS["subspace"], jax.random.key(3)
    embedding, budget = mean_embedding(feature_map, ROWS), PrivacyBudget(0.5, 1e-5)
    after = shrink(perturb(key, embedding, budget), POINTS, amount=amount)
    target = _features(feature_map, POINTS).mean(axis=0)
    before = (1 - amount) * embedding.coordinates + amount * target
    raw = perturb(key, MeanEmbedding(feature_map, before, len(ROWS)), budget)
    noise = (raw.coordinates - before) * (1 - amount)
    np.testing.assert_allclose(after.coordinates, before + noise, atol=1e-12)


@pytest.mark.parametrize("amount", [0.0, 0.4, 0.9])
def test_the_sensitivity_of_a_public_amount_is_reached(amount):
    points = np.array([[-20.0], [20.0]])
    feature_map = SubspaceMap.from_points(Gaussian(0.5), points)
    means = [mean_embedding(feature_map, rows).coordinates for rows in (points[[0, 0, 0]], points[[0, 0, 1]])]
    mechanism = simulated_mechanism(feature_map, 3, PrivacyBudget(1.0, 1e-5))
    moved = [shrink(NoisyEmbedding(feature_map, mean, mechanism), points, amount=amount).coordinates for mean in means]
    assert np.linalg.norm(moved[1] - moved[0]) == pytest.approx((1 - amount) * feature_map.diameter / 3, rel=1e-5)


# -- amounts that are computed from the private rows. These versions are for the attack alone.


def _amount_of_bound(features):
    """Δ/(Δ + ‖μ̂‖²), with Δ an unbiased estimate of E‖μ̂ − μ‖² (Muandet et al. 2016)."""
    gram, n = features @ features.T, len(features)
    across = (gram.sum() - np.trace(gram)) / (n * (n - 1))
    error = (np.trace(gram) / n - across) / n
    return error / (error + gram.mean())


def _amount_of_left_out_rows(features):
    """The least Σ_n ‖(1 − a) μ̂ without row n − ψ(x_n)‖² over a from 0 to 1 (Muandet et al. 2014, 2016)."""
    without = (features.sum(axis=0) - features) / (len(features) - 1)
    return 1 - np.clip(np.sum(without * features) / np.sum(np.square(without)), 0, 1)


AMOUNTS = {"bound": _amount_of_bound, "left out": _amount_of_left_out_rows}


def _shrunk_mean(features, amount_of):
    return (1 - amount_of(features)) * features.mean(axis=0)


def _ends(num_first, num_rows):
    """Features [cos x, sin x] of rows at 0 and at π."""
    angles = np.where(np.arange(num_rows) < num_first, 0.0, np.pi)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize(("name", "moved"), [("bound", 0.75), ("left out", 1.0)])
def test_four_rows_move_a_shrunk_mean_by_more_than_the_sensitivity(name, moved):
    """The rows 0, 0, 0, π and their neighbours 0, 0, 0, 0. The unshrunk mean moves by 2/4."""
    first, second = (_shrunk_mean(_ends(number, 4), AMOUNTS[name]) for number in (3, 4))
    assert np.linalg.norm(second - first) == pytest.approx(moved)
    assert moved > 2 / 4


@pytest.mark.parametrize("num_rows", [4, 10, 100])
def test_noise_for_the_shrunk_sensitivity_would_be_none(num_rows):
    """Half of the rows at 0, half at π: a = 1, so that (1 − a) · diameter / N = 0. The neighbour's mean is not 0."""
    features = _ends(num_rows // 2, num_rows)
    assert (1 - _amount_of_bound(features)) * 2 / num_rows == pytest.approx(0, abs=1e-15)
    moved = _shrunk_mean(_ends(num_rows // 2 + 1, num_rows), _amount_of_bound) - _shrunk_mean(
        features, _amount_of_bound
    )
    assert np.linalg.norm(moved) > 6 / num_rows**3


@pytest.mark.parametrize(("name", "moved"), [("bound", math.sqrt(10) / 4), ("left out", 1.0)])
def test_kernels_that_are_not_negative_are_no_way_out(name, moved):
    """Two equal rows, and two rows so far apart that k = 0. The unshrunk mean moves by √2/2 = 0.71."""
    first, second = (_shrunk_mean(np.eye(2)[rows], AMOUNTS[name]) for rows in ([0, 0], [0, 1]))
    assert np.linalg.norm(second - first) == pytest.approx(moved)
    assert moved > math.sqrt(2) / 2


def _factor(num_rows):
    """How much more than diameter / N a mean that is shrunk by the bound can move, for N ≥ 3 and ‖ψ‖ = 1."""
    return 9 * (num_rows - 1) / (8 * (num_rows - 2))


@pytest.mark.parametrize("num_rows", [3, 5, 20, 100, 300])
def test_more_noise_would_be_enough_for_the_bound(num_rows):
    """A factor of about 9/8, which rows at two ends nearly reach from N = 5 on, and no other rows exceed."""
    rng, limit, moves = np.random.default_rng(0), 2 * _factor(num_rows) / num_rows, []
    for number in range(num_rows // 2, num_rows):
        means = [_shrunk_mean(_ends(count, num_rows), _amount_of_bound) for count in (number, number + 1)]
        moves.append(np.linalg.norm(means[1] - means[0]))
    for _ in range(50):
        features = rng.normal(rng.uniform(0, 2), 1.0, (num_rows + 1, 3))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        means = [_shrunk_mean(part, _amount_of_bound) for part in (features[1:], features[:-1])]
        apart = np.linalg.norm(features[-1] - features[0])
        assert np.linalg.norm(means[1] - means[0]) <= _factor(num_rows) * apart / num_rows * (1 + 1e-9)
    assert max(2 / num_rows, 0.96 * limit * (num_rows >= 5)) < max(moves) <= limit


# -- herding of private rows


def _herded(rows, number, candidates=None):
    """Kernel herding (Chen, Welling & Smola 2010) of the mean of the rows, among rows or candidates; k(x, y) is
    exp(−(x − y)²/2)."""
    candidates = rows if candidates is None else candidates
    mean = np.exp(-0.5 * (candidates[:, None] - rows) ** 2).mean(axis=1)
    chosen = []
    for t in range(number):
        covered = sum((np.exp(-0.5 * (candidates - x) ** 2) for x in chosen), np.zeros(len(candidates)))
        chosen.append(candidates[np.argmax(mean - covered / (t + 1))])
    return np.array(chosen)


def _distance(x, y):
    """‖Σ k(x, ·)/n − Σ k(y, ·)/n‖ of two databases of one size."""
    both, signs = np.concatenate([x, y]), np.repeat([1.0, -1.0], [len(x), len(y)]) / len(x)
    return math.sqrt(signs @ np.exp(-0.5 * (both[:, None] - both) ** 2) @ signs)


@pytest.mark.parametrize("number", [1, 5, 11])
@pytest.mark.parametrize("grid", [None, np.arange(0.0, 11.0)])
def test_one_row_changes_every_herded_row(number, grid):
    """51 rows at 0 and 50 at 10, and the other way round. Herding starts at the larger group, and alternates."""
    first, second = (np.repeat([0.0, 10.0], counts) for counts in ([51, 50], [50, 51]))
    assert _distance(first, second) == pytest.approx(math.sqrt(2) / 101)
    herded = [_herded(rows, number, grid) for rows in (first, second)]
    assert (herded[0] != herded[1]).all()
    assert _distance(*herded) == pytest.approx(math.sqrt(2) / number)
    assert _distance(*herded) > 9 * math.sqrt(2) / 101


def test_herded_rows_of_a_sample_are_as_unstable():
    """100 normal rows, of which one is replaced: herding takes other rows from then on."""
    rows = np.random.default_rng(0).normal(size=100)
    ratios, changed = [], []
    for i in range(0, 100, 5):
        other = rows.copy()
        other[i] = 3.0
        herded = [_herded(one, 10) for one in (rows, other)]
        ratios.append(_distance(*herded) / (math.sqrt(2) / 100))
        changed.append((herded[0] != herded[1]).sum())
    assert max(ratios) > 1.5
    assert max(changed) >= 8
