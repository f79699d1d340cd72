import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from kme_jax import (
    FourierMap,
    Gaussian,
    Laplacian,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    improved,
    mean_embedding,
    perturb,
    posterior_mean,
    represent,
)
from kme_jax.feature_maps.waves import FreeWaves
from kme_jax.nonprivate import Reference
from kme_jax.synthesis import joint_reduced_set, posterior
from kme_jax.synthesis.posterior import Model, SamplerSettings, sample_posterior
from tests import compiled

KERNEL = Gaussian(0.5)
PROPOSAL = NormalProposal.create(np.zeros(2), 4.0)
SMALL = {"num_atoms": 20, "num_trajectories": 4, "num_leaps": 15}


def _clusters(num_rows=20_000):
    rng = np.random.default_rng(3)
    centres = np.array([[2.0, -1.0], [-3.0, 0.5], [0.0, 3.0]])
    return centres[rng.choice(3, num_rows, p=[0.6, 0.3, 0.1])] + rng.normal(0, 0.3, (num_rows, 2))


@pytest.fixture(scope="module")
def released():
    """Rows, their noisy Fourier embedding at ε = 0.1, and its posterior mean."""
    rows = _clusters()
    fourier = FourierMap.from_kernel(jax.random.key(1), KERNEL, 1000, 2)
    embedding = mean_embedding(fourier, rows)
    private = perturb(jax.random.key(2), embedding, PrivacyBudget(0.1, 1e-6))
    steps = []
    mean, report = posterior_mean(
        jax.random.key(3), private, PROPOSAL, **SMALL, progress=lambda *done: steps.append(done)
    )
    assert steps[-1] == (len(steps), len(steps))
    return rows, embedding, private, mean, report


def test_the_posterior_mean_is_far_closer_than_the_noisy_embedding(released):
    _, embedding, private, mean, report = released
    noise = np.linalg.norm(private.coordinates - embedding.coordinates)
    error = np.linalg.norm(mean.coordinates - embedding.coordinates)
    assert error < 0.25 * noise
    assert report.converged
    assert 0.3 < report.acceptance <= 1
    late = report.misfits[len(report.misfits) // 2 :]
    assert 0.8 < late.mean() < 1.1  # the noise is explained as noise


def test_draws_are_distributions_and_their_mean_has_the_coordinates(released):
    *_, mean, _ = released
    assert mean.centres.shape == (*mean.weights.shape, 2)
    assert (mean.weights > 0).all()
    np.testing.assert_allclose(mean.weights.sum(axis=1), 1, rtol=1e-12)
    assert (mean.widths > 0).all()
    # The coordinates are means over all trajectories, the draws one of each round: the same up to Monte Carlo error.
    omega = 2 * np.pi * np.asarray(mean.feature_map.turns, np.float64)
    squares = np.sum(omega**2, axis=1)
    total = 0
    for centres, weights, widths in zip(mean.centres, mean.weights, mean.widths, strict=True):
        damping = np.tile(np.exp(-0.5 * widths[:, None] ** 2 * squares), 2)
        angles = centres @ omega.T
        features = mean.feature_map.scale * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        total = total + weights @ (damping * features) / len(mean.widths)
    spread = np.linalg.norm(mean.coordinates)
    assert np.linalg.norm(total - mean.coordinates) < 0.02 * spread


@pytest.mark.long
def test_rows_that_one_wide_atom_fits_roughly_get_more_of_them(rng):
    """A uniform distribution on a cube: a single normal distribution is a trap."""
    rows = rng.uniform(-1, 1, (20_000, 3))
    embedding = mean_embedding(FourierMap.from_kernel(jax.random.key(1), Gaussian(1.0), 1000, 3), rows)
    private = perturb(jax.random.key(2), embedding, PrivacyBudget(1.0, 1e-6))
    mean, _ = posterior_mean(
        jax.random.key(3), private, NormalProposal.create(np.zeros(3), 2.0), num_atoms=50, num_trajectories=8
    )
    assert np.square(mean.weights).sum(axis=1).mean() < 0.5
    noise = np.linalg.norm(private.coordinates - embedding.coordinates)
    assert np.linalg.norm(mean.coordinates - embedding.coordinates) < 0.8 * noise


@pytest.mark.long
def test_a_posterior_that_does_not_explain_the_embedding_is_corrected(released):
    """One atom for three clusters: the error is the noise's, not the much larger one of the fit."""
    _, embedding, _, _, explained = released
    assert explained.kept == 0
    private = perturb(jax.random.key(2), embedding, PrivacyBudget(1.0, 1e-6))
    mean, report = posterior_mean(jax.random.key(3), private, PROPOSAL, num_atoms=1, num_trajectories=4, num_leaps=10)
    assert not report.converged
    assert 0.9 < report.kept < 1
    noise = np.linalg.norm(private.coordinates - embedding.coordinates)
    uncorrected = private.coordinates + (mean.coordinates - private.coordinates) / (1 - report.kept)
    assert np.linalg.norm(uncorrected - embedding.coordinates) > 3 * noise
    assert np.linalg.norm(mean.coordinates - embedding.coordinates) < 1.05 * noise


def test_the_model_is_the_formula(rng):
    """Features against a Monte Carlo mean of ψ over the mixture, the gradient of the density's parts by hand."""
    fourier = FourierMap.from_kernel(jax.random.key(1), KERNEL, 60, 2)
    length, proposal = fourier.length_scale, NormalProposal.create(np.array([1.0, -2.0]), np.array([3.0, 0.5]))
    model = Model(
        waves=fourier.waves(proposal.mean, length),
        target=jnp.asarray(rng.normal(size=(2, 30)), jnp.float32),
        variance=jnp.float32(0.7),
        precision=jnp.asarray((length / proposal.scale) ** 2, jnp.float32),
    )
    parameters = {
        "centres": jnp.asarray(rng.normal(size=(4, 2)), jnp.float32),
        "location": jnp.asarray([0.3, -0.2], jnp.float32),
        "log_spread": jnp.asarray([-0.5, 0.1], jnp.float32),
        "log_gammas": jnp.asarray(rng.normal(size=4), jnp.float32),
        "log_widths": jnp.asarray([-0.7, 0.4], jnp.float32),  # of the first two atoms, and of the others
        "log_concentration": jnp.float32(1.1),
    }
    gammas = np.exp(np.asarray(parameters["log_gammas"], np.float64))
    atoms = rng.choice(4, 200_000, p=gammas / gammas.sum())
    centres = proposal.mean + length * np.asarray(parameters["centres"], np.float64)
    draws = centres[atoms] + length * np.exp([-0.7, -0.7, 0.4, 0.4])[atoms, None] * rng.normal(size=(200_000, 2))
    expected = np.asarray(compiled.features(fourier, jnp.asarray(draws, jnp.float32))).mean(axis=0)
    table = jax.jit(model.table)
    features = np.asarray(jax.jit(model.waves.features)(table(parameters)))
    np.testing.assert_allclose(features, expected, atol=5 * fourier.scale / np.sqrt(200_000))

    def density(parameters):
        residual = (np.asarray(model.target) - np.asarray(table(parameters))).ravel()
        logs = np.asarray(parameters["log_gammas"], np.float64)
        location = length * np.asarray(parameters["location"], np.float64) / proposal.scale
        spread = np.exp(np.asarray(parameters["log_spread"], np.float64))
        offsets = length * np.asarray(parameters["centres"], np.float64) / proposal.scale - location
        widths = np.asarray(parameters["log_widths"], np.float64) - np.log(0.2)
        concentration = float(parameters["log_concentration"])
        shape = np.exp(concentration) / 4
        prior = np.sum(scipy.stats.norm.logpdf(offsets, 0, spread)) + np.sum(scipy.stats.norm.logpdf(location, 0, 0.7))
        prior += (
            np.sum(scipy.stats.norm.logpdf(np.log(spread), np.log(0.7), 0.5))
            - np.sum(widths**2) / 2
            - (concentration - np.log(10)) ** 2 / 2
        )
        gammas = np.sum(shape * logs - np.exp(logs) - scipy.special.gammaln(shape))
        return -(residual @ residual) / 1.4 + prior + gammas

    other = jax.tree.map(lambda value: value + jnp.float32(0.3), parameters)
    log_density = jax.jit(model.log_density)
    difference = float(log_density(other)[0] - log_density(parameters)[0])
    assert difference == pytest.approx(density(other) - density(parameters), rel=1e-4)


@pytest.mark.long
def test_curvature_is_the_gauss_newton_diagonal(rng):
    """Squared norms of the columns of the Jacobian of ψ(ν), with the prior's own second derivatives."""
    model = Model(
        waves=FreeWaves(
            amplitudes=jnp.full(500, np.sqrt(1 / 500), jnp.float32),
            turns=jnp.asarray(rng.normal(size=(500, 2)) / (2 * np.pi), jnp.float32),
            phases=jnp.zeros(500, jnp.float32),
        ),
        target=jnp.zeros((2, 500), jnp.float32),
        variance=jnp.float32(1e-3),
        precision=jnp.ones(2, jnp.float32),
    )
    parameters = {
        "centres": jnp.asarray(10 * rng.normal(size=(4, 2)), jnp.float32),
        "location": jnp.zeros(2, jnp.float32),
        "log_spread": jnp.zeros(2, jnp.float32),
        "log_gammas": jnp.asarray(rng.normal(size=4), jnp.float32),
        "log_widths": jnp.asarray([-1.0, 0.0], jnp.float32),
        "log_concentration": jnp.float32(np.log(4)),  # α/K = 1
    }
    jacobian = jax.jit(jax.jacrev(lambda parameters: model.table(parameters).ravel()))(parameters)
    found = jax.jit(model.curvature)(parameters)
    for name, prior in (("centres", 1.0), ("log_widths", 1.0)):
        columns = np.sum(np.square(np.asarray(jacobian[name])), axis=0) / 1e-3
        np.testing.assert_allclose(np.asarray(found[name]), columns + prior, rtol=0.01)
    # Logits: the mean that the softmax subtracts is left out, which makes it an upper bound of a factor below 4.
    columns = np.sum(np.square(np.asarray(jacobian["log_gammas"])), axis=0) / 1e-3
    ratio = (np.asarray(found["log_gammas"]) - 1 - np.exp(np.asarray(parameters["log_gammas"]))) / columns
    assert ((ratio > 0.5) & (ratio < 8)).all()


@pytest.mark.long
def test_the_sampler_draws_from_the_posterior_it_says():
    """In one dimension, with a flat likelihood: all parameters have the law of the prior."""
    fourier = FourierMap.from_kernel(jax.random.key(1), KERNEL, 200, 1)
    rows = np.zeros((2, 1))  # two rows: noise far beyond any signal
    private = perturb(jax.random.key(2), mean_embedding(fourier, rows), PrivacyBudget(1e-3, 1e-6))
    proposal = NormalProposal.create(np.array([5.0]), 2.0)
    mean, _ = posterior_mean(jax.random.key(3), private, proposal, num_atoms=40, num_trajectories=40, num_leaps=20)
    centres = mean.centres.ravel()
    # About one location in each draw, N(5, 1.4²); together as wide as the proposal, or a little wider.
    locations = mean.centres.mean(axis=(1, 2))
    assert locations.mean() == pytest.approx(5, abs=3 * 1.4 / math.sqrt(10))
    assert locations.std() == pytest.approx(1.4, rel=0.6)
    assert centres.std() == pytest.approx(2 * math.sqrt(0.49 + 0.49 * math.exp(0.5)), rel=0.35)
    logs = np.log(mean.widths / fourier.length_scale)
    assert logs.mean() == pytest.approx(np.log(0.2), abs=0.6)
    # Dirichlet(α/K, ...): E Σ w² = (α/K + 1)/(α + 1), averaged over α.
    alphas = np.exp(np.log(10) + np.random.default_rng(0).normal(size=100_000))
    expected = np.mean((alphas / 40 + 1) / (alphas + 1))
    assert np.square(mean.weights).sum(axis=1).mean() == pytest.approx(expected, rel=0.5)


@pytest.mark.slow
def test_a_smaller_epsilon_gives_more_uncertain_draws(released):
    _, embedding, _, certain, _ = released
    private = perturb(jax.random.key(2), embedding, PrivacyBudget(0.001, 1e-6))
    vague, _ = posterior_mean(jax.random.key(3), private, PROPOSAL, **SMALL)
    spread = [np.std(np.einsum("sk,skd->sd", m.weights, m.centres), axis=0).max() for m in (certain, vague)]
    assert spread[1] > 5 * spread[0]


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        pytest.param("probability", (20, 200), marks=pytest.mark.long),
        pytest.param("uniform", (200,), marks=pytest.mark.long),
        pytest.param("probability", (1500,), marks=pytest.mark.long),
    ],
)
def test_points_represent_the_posterior_mean(released, weights, sizes):
    rows, _, _, mean, _ = released
    reference = Reference.from_rows(KERNEL, rows)
    target = np.linalg.norm(mean.coordinates)
    for size in sizes:
        sample, report = represent(mean, size, weights=weights)
        assert sample.points.shape == (size, 2)
        assert sample.weights.min() >= 0
        assert sample.weights.sum() == pytest.approx(1, abs=1e-9)
        assert (np.ptp(sample.weights) == 0) == (weights == "uniform")
        assert report.converged
        features = np.asarray(compiled.features(mean.feature_map, jnp.asarray(sample.points, jnp.float32)), np.float64)
        gap = np.linalg.norm(sample.weights @ features - mean.coordinates) / target
        assert gap < (0.1 if size == 20 else 0.02)
    if size == 1500:
        assert reference.distance(sample.points, sample.weights) < 0.03


def test_draws_of_the_mean_follow_it(released):
    *_, mean, _ = released
    points = mean.sample(4001, seed=0)
    assert points.shape == (4001, 2)
    expected = np.einsum("sk,skd->d", mean.weights, mean.centres) / len(mean.weights)
    np.testing.assert_allclose(points.mean(axis=0), expected, atol=0.1)
    assert (mean.sample(100, seed=0) == mean.sample(100, seed=0)).all()
    assert (mean.sample(100, seed=0) != mean.sample(100, seed=1)).any()


@pytest.mark.long
def test_improved_beats_algorithm_two_on_a_laplacian_kernel_away_from_the_origin():
    kernel, centre = Laplacian(0.5), np.array([100.0, -50.0])
    rows = _clusters() + centre
    proposal = NormalProposal.from_bounds(centre - 8, centre + 8)
    sample = improved(
        jax.random.key(0), rows, kernel, proposal, budget=PrivacyBudget(0.1, 1e-6), num_points=100, num_features=1000
    )
    reference = Reference.from_rows(kernel, rows)
    fourier = FourierMap.from_kernel(jax.random.key(1), kernel, 1000, 2)
    private = perturb(jax.random.key(2), mean_embedding(fourier, rows), PrivacyBudget(0.1, 1e-6))
    other, _ = joint_reduced_set(jax.random.key(3), private, proposal.sample(1000, 0), 100)
    assert reference.distance(sample.points, sample.weights) < reference.distance(other.points, other.weights)
    np.testing.assert_allclose(sample.expectation(lambda z: z), rows.mean(axis=0), atol=0.15)


def test_bad_arguments_are_refused(released):
    rows, embedding, private, mean, _ = released
    subspace = mean_embedding(SubspaceMap.from_points(KERNEL, rows[:20]), rows)
    spanned = perturb(jax.random.key(0), subspace, PrivacyBudget(1, 1e-6))
    with pytest.raises(ValueError, match="FourierMap"):
        posterior_mean(jax.random.key(0), spanned, PROPOSAL)
    laplace = perturb(jax.random.key(0), embedding, PrivacyBudget(1.0, 0.0), noise="laplace")
    with pytest.raises(ValueError, match="Gaussian noise"):
        posterior_mean(jax.random.key(0), laplace, PROPOSAL)
    with pytest.raises(ValueError, match="expected 2 columns"):
        posterior_mean(jax.random.key(0), private, NormalProposal.create(np.zeros(3), 1.0))
    for name in ("num_atoms", "num_trajectories", "num_leaps", "num_chains"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            posterior_mean(jax.random.key(0), private, PROPOSAL, **{name: 0})
    for bad in ({"num_points": 0}, {"num_steps": 0}, {"weights": "signed"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            represent(mean, **bad)
    for message, kernel, public in (
        ("subtract a public centre", Laplacian(0.5), NormalProposal.create(np.full(2, 1e7), 1.0)),
        ("columns", KERNEL, NormalProposal.create(np.zeros(5), 1.0)),
    ):
        with pytest.raises(ValueError, match=message):
            improved(jax.random.key(0), rows, kernel, public, budget=PrivacyBudget(1, 1e-6))
    for arguments in ((np.zeros((2, 2)), 1.0), (np.zeros(0), 1.0), (np.zeros(2), 0.0), (np.array([np.nan]), 1.0)):
        with pytest.raises(ValueError, match="mean and scale"):
            NormalProposal.create(*arguments)
    with pytest.raises(ValueError, match="lower bound"):
        NormalProposal.from_bounds(np.zeros(2), np.array([1.0, 0.0]))


def test_the_same_key_gives_the_same_mean(released):
    _, _, private, mean, _ = released
    again, _ = posterior_mean(jax.random.key(3), private, PROPOSAL, **SMALL)
    np.testing.assert_array_equal(again.coordinates, mean.coordinates)


def test_what_changes_between_releases_compiles_nothing(released):
    """Another ε, other rows: the noise, the temperatures and the embedding are arguments."""
    rows, embedding, _, _, _ = released
    settings = SamplerSettings(**SMALL, coarse=1, annealed=1, learnt=1, stepped=1, sampled=1, attempts=1)
    compiled = []
    for epsilon, shift in ((0.1, 0.0), (1.0, 0.5), (0.01, -0.5)):
        moved = mean_embedding(embedding.feature_map, rows + shift)
        private = perturb(jax.random.key(2), moved, PrivacyBudget(epsilon, 1e-6))
        sample_posterior(jax.random.key(3), private, PROPOSAL, settings)
        compiled.append(posterior.run_round._cache_size())
    assert compiled[0] > 0
    assert len(set(compiled)) == 1


def test_chains_that_fit_are_copied():
    """In proportion to their weights; each once where all are as good."""
    choice = jax.jit(posterior.resampled)
    draws = np.stack([choice(jax.random.key(seed), jnp.log(jnp.array([0.1, 0.6, 0.3]))) for seed in range(300)])
    shares = [np.mean(draws == chain) for chain in range(3)]
    np.testing.assert_allclose(shares, [0.1, 0.6, 0.3], atol=0.05)
    far = jnp.array([-2000.0, -1000.0, -3000.0, -1e30])
    assert (np.asarray(posterior.resampled(jax.random.key(0), far)) == 1).all()
    assert np.asarray(posterior.resampled(jax.random.key(0), jnp.zeros(4))).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("lattice", [False, True])
def test_gradients_of_tables_are_those_of_the_features(lattice, rng):
    """Against finite differences of the mixture's features, summed in float64."""
    box = np.full(2, -2.0), np.full(2, 2.0)
    feature_map = (
        LatticeMap.from_box(KERNEL, *box, 2000) if lattice else FourierMap.from_kernel(jax.random.key(1), KERNEL, 60, 2)
    )
    waves = feature_map.waves(np.zeros(2), 1.0)
    turns, amplitudes = (np.asarray(v, np.float64) for v in (waves.turns, feature_map.amplitudes))
    shift = feature_map.centre if lattice else np.zeros(2)
    mixture = rng.normal(size=(4, 2)), rng.uniform(size=4), np.array([0.3, 0.6])
    slope = rng.normal(size=2 * len(turns))

    def product(centres, weights, widths):
        angles = 2 * np.pi * (centres - shift) @ turns.T
        damping = np.exp(-0.5 * np.repeat(widths, 2)[:, None] ** 2 * np.sum((2 * np.pi * turns) ** 2, axis=1))
        sums = [weights @ (damping * f(angles)) for f in (np.cos, np.sin)]
        return slope @ np.concatenate([amplitudes * part for part in sums])

    single = [jnp.asarray(part, jnp.float32) for part in mixture]
    steepness = jnp.asarray(slope, jnp.float32)
    product_and_gradient = jax.jit(
        jax.value_and_grad(lambda parts: steepness @ waves.features(waves.table_of_normals(*parts)))
    )
    value, found = product_and_gradient(single)
    assert float(value) == pytest.approx(product(*mixture), rel=1e-3, abs=1e-4)
    for place, gradient in enumerate(found):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [part.copy() for part in mixture]
                moved[place][index] += step
                ends.append(product(*moved))
            assert float(gradient[index]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=2e-3, abs=2e-4)


@pytest.mark.long
def test_a_sampler_that_is_late_goes_on(released):
    """Cut short while the misfit still falls, it samples again from where it was, and the late draws alone count."""
    _, _, private, _, _ = released
    counts = SMALL | {"num_trajectories": 2}
    settings = SamplerSettings(**counts, coarse=1, annealed=1, learnt=1, stepped=1, sampled=4)
    steps = []
    mean, report = sample_posterior(
        jax.random.key(3), private, PROPOSAL, settings, progress=lambda *done: steps.append(done)
    )
    assert report.attempts > 1
    rounds = 2 + 6 * report.attempts
    assert steps[-1] == (rounds, rounds)
    assert report.misfits.shape == (rounds * 2, 4)
    assert len(mean.weights) == 32
    assert report.misfits[-8:].mean() < 0.5 * report.misfits[8:16].mean()  # of the last attempt, and the first
