import math
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy import stats

from kme_jax import (
    FourierMap,
    Gaussian,
    LatticeMap,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    integer_embedding,
    l1_ball_weights,
    mean_embedding,
    perturb,
    perturb_securely,
    posterior_mean,
    represent,
)
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy import (
    gaussian_noise_multiplier,
    secure,
    secure_mechanism,
    simulated_mechanism,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from kme_jax.privacy.calibration import takes_fine_noise
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.perturb import perturb_integers
from kme_jax.synthesis import joint_reduced_set

BUDGET = PrivacyBudget(1.0, 1e-6)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(0, 1, (2000, 2))


@pytest.fixture(scope="module")
def embedding(rows):
    return integer_embedding(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 4000, 2), rows)


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_noise_has_the_scale_that_is_said(embedding, rows, delta):
    """Accepted; two thirds and three halves of it would not be. Coordinates are on the grid."""
    noisy = perturb_securely(embedding, PrivacyBudget(1.0, delta))
    mechanism = noisy.mechanism
    assert mechanism.secure
    assert mechanism.noise_source.startswith("OpenDP 0.16")
    noise = (noisy.coordinates - mean_embedding(noisy.feature_map, rows).coordinates) / math.sqrt(mechanism.variance)
    # Relative standard deviation of the empirical one: √((kurtosis − 1) / 4F), of a normal or Laplace distribution.
    assert np.std(noise) == pytest.approx(1, abs=5 * math.sqrt((2 if delta else 5) / 16000))
    assert abs(noise.mean()) < 5 / math.sqrt(4000)
    steps = noisy.coordinates / mechanism.grid
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)


def test_two_releases_have_different_noise_and_no_seed(embedding):
    first, second = (perturb_securely(embedding, BUDGET).coordinates for _ in range(2))
    assert (first != second).mean() > 0.99
    np.random.seed(0)
    third = perturb_securely(embedding, BUDGET).coordinates
    np.random.seed(0)
    assert (third != perturb_securely(embedding, BUDGET).coordinates).mean() > 0.99


def test_what_security_costs(embedding, rows):
    """σ beside that of continuous noise at the same budget: as large for fine integers, larger for coarse ones."""
    simulated = perturb(jax.random.key(0), mean_embedding(embedding.integer_map.feature_map, rows), BUDGET).mechanism
    mechanism = secure_mechanism(embedding.integer_map, len(rows), BUDGET)
    assert 1 < mechanism.scale / simulated.scale < 1.001
    assert mechanism.calibration == "analytic"
    coarse = secure_mechanism(TableMap.of_codes(3, 1).integers(len(rows)), len(rows), BUDGET)
    assert 1.04 < coarse.scale / coarse.sensitivity * simulated.sensitivity / simulated.scale < 1.12
    assert coarse.calibration == "zcdp"
    assert not simulated.secure
    assert mechanism.sensitivity / simulated.sensitivity < 1.001


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_accounting_agrees_with_opendp(epsilon, delta):
    import opendp.prelude as dp

    rho = zcdp_rho(PrivacyBudget(epsilon, delta))
    assert zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-7)
    assert zcdp_delta(rho, epsilon) <= delta
    assert zcdp_delta(1.001 * rho, epsilon) > delta
    assert 1 / math.sqrt(2 * rho) > gaussian_noise_multiplier(PrivacyBudget(epsilon, delta))
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, scale=1e9)
    curve = dp.c.make_zCDP_to_approxDP(measurement).map(1e9 * math.sqrt(2 * rho))
    assert curve.epsilon(delta) == pytest.approx(epsilon, rel=1e-6)


def test_no_noise_no_privacy_loss():
    assert zcdp_delta(0.0, 1.0) == 0
    assert zcdp_epsilon(0.0, 1e-6) == 0
    with pytest.raises(ValueError, match="Laplace"):
        zcdp_rho(PrivacyBudget(1.0, 0.0))


def test_the_mechanism_is_recomputed_from_what_it_says(embedding, rows):
    """ε from ρ, ρ from σ and Δ, with the formulas written out."""
    mechanism = secure_mechanism(embedding.integer_map, len(rows), BUDGET)
    mu = mechanism.sensitivity / mechanism.scale
    fine = stats.norm.cdf(mu / 2 - 1 / mu) - math.e * stats.norm.cdf(-mu / 2 - 1 / mu)
    assert 0.99e-6 < fine + (1 + math.e) * mechanism.discreteness <= 1e-6
    mechanism = secure_mechanism(TableMap.of_codes(3, 1).integers(len(rows)), len(rows), BUDGET)
    assert mechanism.rho == pytest.approx((mechanism.sensitivity / mechanism.scale) ** 2 / 2, rel=1e-9)
    orders = 1 + np.geomspace(1e-2, 1e4, 100_000)
    log_deltas = (orders - 1) * (orders * mechanism.rho - 1.0) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    assert np.exp(log_deltas.min()) <= 1e-6 * (1 + 1e-6)  # the orders are a grid
    assert mechanism.grid == pytest.approx(1 / len(rows))


@pytest.mark.parametrize(
    "feature_map",
    [
        pytest.param(LatticeMap.from_box(Gaussian(0.5), [-6.0, -6.0], [6.0, 6.0]), marks=pytest.mark.long),
        SubspaceMap.from_points(Gaussian(0.5), np.random.default_rng(1).normal(0, 1, (100, 2))),
        pytest.param(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.5), 400, 2), marks=pytest.mark.slow),
    ],
    ids=["lattice", "subspace", "fourier"],
)
def test_step_three_takes_a_secure_embedding(feature_map, rows):
    """Algorithm 1 with both kinds of weights, algorithm 2, and the improved release."""
    noisy = perturb_securely(integer_embedding(feature_map, rows), BUDGET)
    if isinstance(feature_map, SubspaceMap):
        sample, _ = adaptive_weights(noisy)
        assert closed_form_weights(noisy).mechanism.secure
        bounded, _ = l1_ball_weights(noisy)
        assert np.abs(bounded.weights).sum() <= 1 + 1e-9
        assert np.linalg.norm(bounded.expectation(lambda z: z)) < 0.3
    elif isinstance(feature_map, FourierMap):
        candidates = np.random.default_rng(1).normal(0, 2, (200, 2))
        sample, _ = joint_reduced_set(jax.random.key(1), noisy, candidates, 30, num_steps=40)
    else:
        proposal = NormalProposal.create(np.zeros(2), 1.0)
        mean, _ = posterior_mean(jax.random.key(1), noisy, proposal, num_atoms=20, num_trajectories=4, num_leaps=10)
        sample, _ = represent(mean, 50)
    assert sample.mechanism.secure
    error = np.linalg.norm(sample.expectation(lambda z: z))
    assert error < 0.3


def test_only_exact_sums_get_secure_noise(rows, embedding):
    mean = mean_embedding(embedding.integer_map.feature_map, rows)
    with pytest.raises(TypeError, match="integer_embedding, got MeanEmbedding"):
        perturb_securely(mean, BUDGET)
    with pytest.raises(TypeError, match="mean_embedding, got IntegerEmbedding"):
        perturb(jax.random.key(0), embedding, BUDGET)


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, 2.0]),
        np.array([np.nan]),
        np.array([1, 2], np.int32),
        np.zeros((2, 2), np.int64),
        np.zeros(0, np.int64),
        [1, 2],
    ],
    ids=["float", "NaN", "int32", "two axes", "empty", "list"],
)
@pytest.mark.parametrize("add", [secure.add_gaussian, secure.add_laplace])
def test_noise_is_added_to_integers_only(values, add):
    with pytest.raises(TypeError, match="one-dimensional array of int64"):
        add(values, 10.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**56])
@pytest.mark.parametrize("add", [secure.add_gaussian, secure.add_laplace])
def test_a_scale_that_cannot_be_is_refused(scale, add):
    with pytest.raises(ValueError, match=r"64-bit|scale of noise must be positive"):
        add(np.array([1]), scale)


def test_what_the_mechanism_refuses(embedding):
    integers = embedding.integer_map.feature_map.integers(2000)
    with pytest.raises(ValueError, match="num_rows must be at least 1"):
        secure_mechanism(integers, 0, BUDGET)
    with pytest.raises(ValueError, match="64-bit"):
        secure_mechanism(integers, 2000, PrivacyBudget(1e-9, 0.0))


@pytest.mark.parametrize("share", [0.0, -0.5, 5.0, 1.0000001, math.nan, math.inf, True, "1", None, 1j])
def test_a_share_is_a_part_of_the_budget(embedding, rows, share):
    """In one place for noise of both kinds. A share of 5 once gave noise for ε = 2.58 of a budget of 1."""
    integers, feature_map = embedding.integer_map, embedding.integer_map.feature_map
    for draw in (
        lambda: secure_mechanism(integers, 2000, BUDGET, share=share),
        lambda: perturb_securely(embedding, BUDGET, share=share),
        lambda: perturb_integers(jax.random.key(0), embedding, BUDGET, share=share),
        lambda: simulated_mechanism(feature_map, 2000, BUDGET, share=share),
        lambda: perturb(jax.random.key(0), mean_embedding(feature_map, rows), BUDGET, share=share),
        lambda: perturb(
            jax.random.key(0), mean_embedding(feature_map, rows), PrivacyBudget(1, 0), noise="laplace", share=share
        ),
    ):
        with pytest.raises(ValueError, match="share"):
            draw()


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 1e-3])
def test_shares_that_add_up_to_one_spend_the_budget_and_never_more(epsilon, delta):
    """A refusal would come when the budget is spent."""
    integers, budget = TableMap.of_codes(7).integers(100), PrivacyBudget(epsilon, delta)
    fine = takes_fine_noise(budget)
    for shares in [(0.5, 0.15, 0.35), (0.9, 0.1), (1.0,), (0.1,) * 10, (1 / 3,) * 3]:
        parts = [secure_mechanism(integers, 100, budget, share=share, fine=fine) for share in shares]
        whole = Composition.of(parts, budget)
        assert whole.rho == pytest.approx(Composition.planned(budget).rho, rel=1e-6)
    with pytest.raises(ValueError, match=r"spend more than \(ε, δ\)"):
        Composition.of(
            [secure_mechanism(integers, 100, budget, share=share, fine=fine) for share in (0.5, 0.6)], budget
        )


@pytest.mark.long
def test_without_opendp_the_extra_is_named():
    code = """
import sys
sys.modules["opendp"] = sys.modules["opendp.prelude"] = None
import kme_jax
from kme_jax.privacy import secure
try:
    secure.source()
except ModuleNotFoundError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == 'secure noise needs OpenDP: pip install "kme_jax[secure]"'
