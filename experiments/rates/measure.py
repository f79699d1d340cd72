"""The errors that the claims are about, each measured once for every D and repeat.

Noise is simulated. A function of this module is a part of the experiment: Setup -> {claim: {curve: errors}}, with an
error for each value of the curve's grid. Every part of every repeat has rows, points and noise of its own.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from experiments.rates.claims import corrected_exponent, printed_exponent
from experiments.rates.config import PARTS, RatesConfig
from experiments.rates.population import PROPOSAL_SCALE, Cubes, Mixture, Population, Transformed, rooted
from kme_jax import (
    FourierMap,
    MeanEmbedding,
    NormalProposal,
    PrivacyBudget,
    SubspaceMap,
    adaptive_weights,
    closed_form_weights,
    improved,
    l1_ball_weights,
    mean_embedding,
    perturb,
)
from kme_jax._numerics.precision import float64
from kme_jax.gram import double_mean, gram_matrix
from kme_jax.synthesis import joint_reduced_set

NUM_CANDIDATES = 1000
_NUM_PAIRED = 256  # rows between which ψ(x)ᵀψ(x′) is compared with k
_FIRST_SEED = 1000  # of random points: seed 0 would give the numbers of the means of the mixture again

Errors = dict[str, dict[str, list[float]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """What a part is measured with."""

    config: RatesConfig
    population: Population
    part: str
    seed: int

    @functools.cached_property
    def rng(self) -> np.random.Generator:
        """Of the rows."""
        return np.random.default_rng((self.seed, self.population.dim, PARTS.index(self.part)))

    def keys(self, number: int) -> jax.Array:
        """Keys of noise, frequencies and solvers."""
        key = jax.random.key(self.seed)
        for value in (self.population.dim, PARTS.index(self.part)):
            key = jax.random.fold_in(key, value)
        return jax.random.split(key, number)

    @property
    def budget(self) -> PrivacyBudget:
        """(ε, δ) where ε is fixed."""
        return PrivacyBudget(self.config.epsilon, self.config.delta)

    def points(self, number: int) -> np.ndarray:
        """Draws of the proposal."""
        return self.population.points(number, _FIRST_SEED + self.seed)

    def oracle(self, sizes: tuple[int, ...]) -> list[float]:
        """√E‖μ̂ − μ‖² at each N."""
        return [self.population.expected_distance(size) for size in sizes]


def _noise(key: jax.Array, embedding: MeanEmbedding, budget: PrivacyBudget, *, published: bool) -> np.ndarray:
    """The noise of a release, [F]: as in the paper, or with the exact condition and the proved diameter."""
    options = {"calibration": "classical", "diameter": "published"} if published else {}
    return perturb(key, embedding, budget, **options).coordinates - embedding.coordinates


def _prefix(embedding: MeanEmbedding, num_points: int) -> MeanEmbedding:
    """The embedding in the span of the first M points."""
    prefix = embedding.feature_map.prefix(num_points)
    return MeanEmbedding(prefix, embedding.coordinates[: prefix.num_features], embedding.num_rows)


def sample(setup: Setup) -> Errors:
    """The error of private rows, which no release of them can be expected to undercut."""
    sizes = setup.config.sizes
    rows = setup.population.rows(sizes[-1], setup.rng)
    errors = [setup.population.distance_of_rows(rows[:size]) for size in sizes]
    return {"sample": {"private": errors, "oracle": setup.oracle(sizes)}}


def num_points_of(config: RatesConfig, dim: int, num_rows: int) -> tuple[int, int]:
    """M(N) of proposition 5 with the corrected and with the printed exponent, at most the largest M.

    The proof allows any constant factor. With the corrected exponent it is such that the largest N has the largest M;
    with the printed one it is 1.
    """
    largest = config.num_points[-1]
    corrected = round(largest * (num_rows / config.sizes[-1]) ** corrected_exponent(dim))
    printed = round(num_rows ** printed_exponent(dim))
    return max(1, corrected), min(max(1, printed), largest)


def fixed_points(setup: Setup) -> Errors:
    """Algorithm 1 with random points: its noise, its projection error and its distance to the population."""
    config, population = setup.config, setup.population
    subspace = SubspaceMap.from_points(population.kernel, setup.points(config.num_points[-1]))
    truth = subspace.basis @ population.kernel_mean(subspace.pivot_points)  # coordinates of the projection of μ
    rows = population.rows(config.sizes[-1], setup.rng)
    embeddings = {size: mean_embedding(subspace, rows[:size]) for size in config.sizes}
    largest = embeddings[config.sizes[-1]]
    keys = iter(setup.keys(4 * len(config.sizes) + 2 * len(config.epsilons) + 2 * len(config.num_points)))

    def noises(embedding: MeanEmbedding, budget: PrivacyBudget) -> list[float]:
        return [float(np.linalg.norm(_noise(next(keys), embedding, budget, published=p))) for p in (True, False)]

    def to_population(embedding: MeanEmbedding, num_points: int) -> float:
        own = _prefix(embedding, num_points)
        noisy = own.coordinates + _noise(next(keys), own, setup.budget, published=True)
        projected = truth[: len(noisy)]
        return rooted(float(np.sum((noisy - projected) ** 2) + population.squared_norm - np.sum(projected**2)))

    by_rows = [noises(_prefix(embeddings[size], config.num_fixed), setup.budget) for size in config.sizes]
    fixed = _prefix(largest, config.num_fixed)
    by_epsilon = [noises(fixed, PrivacyBudget(epsilon, config.delta)) for epsilon in config.epsilons]
    prefixes = [_prefix(largest, number) for number in config.num_points]
    by_points = [noises(prefix, setup.budget) for prefix in prefixes]
    squared_norm = double_mean(population.kernel, rows)
    projection = [rooted(squared_norm - float(np.sum(prefix.coordinates**2))) for prefix in prefixes]
    numbers = [num_points_of(config, population.dim, size) for size in config.sizes]
    both = [
        [to_population(embeddings[size], number) for number in pair]
        for size, pair in zip(config.sizes, numbers, strict=True)
    ]
    oracle = setup.oracle(config.sizes)
    return {
        **{
            name: dict(zip(("published", "improved"), map(list, zip(*errors, strict=True)), strict=True))
            for name, errors in (
                ("privacy_rows", by_rows),
                ("privacy_epsilon", by_epsilon),
                ("privacy_points", by_points),
            )
        },
        "projection": {"published": projection},
        "proposition5": {"published": [corrected for corrected, _ in both], "oracle": oracle},
        "proposition5_printed": {"published": [printed for _, printed in both], "oracle": oracle},
    }


def bounded_points(setup: Setup) -> Errors:
    """Algorithm 1 with random points once more, for bounded rows."""
    return {"proposition5_bounded": fixed_points(setup)["proposition5"]}


def public_rows(setup: Setup) -> Errors:
    """Algorithm 1 with M = ηN public rows: closed-form weights, the L1 ball, and `improved` in the first repeats."""
    config, population = setup.config, setup.population
    rows = population.rows(config.sizes[-1], setup.rng)
    numbers = [int(config.public_share * size) for size in config.sizes]
    points = rows[: numbers[-1]]
    subspace = SubspaceMap.from_points(population.kernel, points)
    own_values = gram_matrix(population.kernel, points, points)
    truth = subspace.basis @ population.kernel_mean(subspace.pivot_points)
    assert isinstance(population, Mixture)
    transformed, keys = Transformed.of(population), setup.keys(2 * len(numbers))
    errors: Errors = {
        "proposition6": {"published": [], "uniform": [], "oracle": setup.oracle(config.sizes)},
        "theorem11": {"l1_ball": [], "oracle": setup.oracle(config.sizes)},
        "theorem11_transformed": {"l1_ball": [], "closed_form": []},
    }
    is_searched = setup.seed < config.num_searches
    if is_searched:
        errors["proposition6"]["improved"] = []
        errors["theorem11_transformed"]["improved"] = []
    for i, (size, number) in enumerate(zip(config.sizes, numbers, strict=True)):
        embedding = _prefix(mean_embedding(subspace, rows[:size]), number)

        def distance(weights: np.ndarray, number: int = number) -> float:
            return population.distance(points[:number], weights, own_values[:number, :number])

        noisy = perturb(keys[2 * i], embedding, setup.budget, calibration="classical", diameter="published")
        projected = truth[: len(noisy.coordinates)]
        squared = np.sum((noisy.coordinates - projected) ** 2) + population.squared_norm - np.sum(projected**2)
        closed, (ball, _) = closed_form_weights(noisy), l1_ball_weights(noisy)
        errors["proposition6"]["published"].append(rooted(float(squared)))
        errors["proposition6"]["uniform"].append(distance(np.full(number, 1 / number)))
        errors["theorem11"]["l1_ball"].append(distance(ball.weights))
        samples = {"l1_ball": ball, "closed_form": closed}
        if is_searched:
            samples["improved"], _ = adaptive_weights(perturb(keys[2 * i + 1], embedding, setup.budget))
            errors["proposition6"]["improved"].append(distance(samples["improved"].weights))
        for name, released in samples.items():
            distance = transformed.distance(points[:number], released.weights)
            errors["theorem11_transformed"][name].append(distance)
    return errors


def features(setup: Setup) -> Errors:
    """Random Fourier features: their deviation from k, what it does to a distance (lemma 14), and their noise.

    The released database of lemma 14 is _NUM_PAIRED further rows with equal weights. The private rows are as many as
    the smallest N; lemma 14 holds for any.
    """
    config, population = setup.config, setup.population
    rows = population.rows(config.sizes[0] + _NUM_PAIRED, setup.rng)
    private, released = rows[_NUM_PAIRED:], rows[:_NUM_PAIRED]
    kernel, signs = population.kernel, np.repeat([-1 / len(released), 1 / len(private)], [len(released), len(private)])
    exact_values = gram_matrix(kernel, rows, rows)
    exact = np.sqrt(signs @ exact_values @ signs)
    keys = setup.keys(3 * len(config.num_features)).reshape(-1, 3)
    deviations, errors, noises = [], [], []
    for number, (frequencies, *noise_keys) in zip(config.num_features, keys, strict=True):
        fourier = FourierMap.from_kernel(frequencies, kernel, number, population.dim, dtype=np.float64)
        with float64():
            psi = np.asarray(fourier(rows))
        deviations.append(float(np.abs(psi @ psi.T - exact_values).max()))
        errors.append(rooted(float(np.linalg.norm(signs @ psi) - exact) ** 2))
        embedding = MeanEmbedding(fourier, psi[_NUM_PAIRED:].mean(axis=0), config.sizes[-1])
        pairs = zip(noise_keys, (True, False), strict=True)
        noises.append([float(np.linalg.norm(_noise(key, embedding, setup.budget, published=p))) for key, p in pairs])
    published, better = map(list, zip(*noises, strict=True))
    return {
        "deviation": {"published": deviations},
        "features": {"published": errors},
        "privacy_features": {"published": published, "improved": better},
    }


def num_features_of(config: RatesConfig, num_rows: int) -> int:
    """J(N) ∝ N^(4/3) of proposition 8, even, such that the largest N has the largest J."""
    number = config.num_features[-1] * (num_rows / config.few_sizes[-1]) ** (4 / 3)
    return max(2, 2 * round(number / 2))


def algorithm2(setup: Setup) -> Errors:
    """Algorithm 2 with J(N) features and a joint reduced set, whose optimum is a local one."""
    config, population = setup.config, setup.population
    rows = population.rows(config.few_sizes[-1], setup.rng)
    candidates, errors = setup.points(NUM_CANDIDATES), []
    keys = setup.keys(3 * len(config.few_sizes)).reshape(-1, 3)
    for size, (frequencies, noise, solver) in zip(config.few_sizes, keys, strict=True):
        number = num_features_of(config, size)
        fourier = FourierMap.from_kernel(frequencies, population.kernel, number, population.dim)
        embedding = mean_embedding(fourier, rows[:size])
        noisy = perturb(noise, embedding, setup.budget, calibration="classical", diameter="published")
        reduced, _ = joint_reduced_set(solver, noisy, candidates, config.num_synthetic)
        errors.append(population.distance(reduced.points, reduced.weights))
    return {"proposition8": {"published": errors, "oracle": setup.oracle(config.few_sizes)}}


def bounded_algorithm2(setup: Setup) -> Errors:
    """Algorithm 2 once more, for bounded rows."""
    return {"proposition8_bounded": algorithm2(setup)["proposition8"]}


def from_proposal(setup: Setup) -> Errors:
    """`improved` with the published proposal, for the panel of proposition 5."""
    config, population = setup.config, setup.population
    rows = population.rows(config.few_sizes[-1], setup.rng)
    prior, errors = NormalProposal.create(np.zeros(population.dim), PROPOSAL_SCALE), []
    for size, key in zip(config.few_sizes, setup.keys(len(config.few_sizes)), strict=True):
        released = improved(key, rows[:size], population.kernel, prior, budget=setup.budget)
        errors.append(population.distance(released.points, released.weights))
    return {"proposition5": {"improved": errors}}


MEASURES = {
    "sample": sample,
    "fixed_points": fixed_points,
    "public_rows": public_rows,
    "features": features,
    "algorithm2": algorithm2,
    "proposal": from_proposal,
    "bounded_points": bounded_points,
    "bounded_algorithm2": bounded_algorithm2,
}


def population_of(part: str, dim: int) -> Population:
    """The distribution of the rows of a part."""
    return Cubes.create(dim) if part.startswith("bounded") else Mixture.of_figures(dim)
