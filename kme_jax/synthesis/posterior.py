"""The posterior mean of μ̂ given its noisy Fourier features: the noise is known exactly, so its likelihood is too.

The prior over distributions is a finite Dirichlet process mixture (Ishwaran & Zarepour 2002) on public quantities:

    ν = Σ_k w_k N(z_k, s_g² I) for k in group g,   w ~ Dirichlet(α/K, ..., α/K),   z_k ~ N(c, diag(tS)²),
    c ~ N(C, diag(0.7 S)²),   log t ~ N(log 0.7, 0.5² I),   log(s_g/ℓ) ~ N(log 0.2, 1),   log α ~ N(log 10, 1),

with N(C, diag(S)²) the proposal and ℓ a length of the kernel. Where the atoms are is learnt: about the proposal, and in
part of its width, so that one that is wider than need be costs little. There are K atoms in G groups of equal size,
each with a width of its own, which may get as small as it likes, and a concentration α of the weights, from a few atoms
that matter to all of them. (With one width for all, a few wide atoms that fit roughly keep the others, as wide, from
helping.) What is observed is β | ν ~ N(ψ(ν), σ² I) with ψ(ν) = Σ_k w_k exp(−s²‖ω‖²/2) ψ(z_k), because E ψ(z + sξ) =
exp(−s²‖ω‖²/2) ψ(z) for normal ξ. The posterior mean E[ψ(ν) | β] has the least expected squared distance to ψ(ν) of all
estimates, and is itself the embedding of a distribution: the mean of the posterior draws of ν. Noise-aware inference
after a private release is from Bernstein & Sheldon (2018). It sees μ̃ and public quantities only, so it is
post-processing, of no privacy cost: where the prior is a bad description of the rows the answer is less accurate, never
less private.

Hamiltonian Monte Carlo (Neal 2011; blackjax) draws from it in w's logarithmic coordinates (w = softmax of
log-gamma variables), from a start that is annealed: the likelihood is raised from a flat one to its own. A sampler
whose misfit still falls while its draws are taken was late, and takes others.

Rows of which no such ν is a good description, or a sampler that has not found it, show in a misfit above that of the
noise. Then the positive-part estimate of James & Stein (1961) goes back from the posterior mean m towards β, as far as
the excess says,

    m + max(0, 1 − F′σ²/‖β − m‖²) (β − m),   F′ = F (1 + 5 √(2/F)),

so that the error is at most about that of the noise, however wrong the prior is; F′ is five standard deviations of
the noise's own misfit above F, so that a posterior that explains β is left alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from kme_jax.feature_maps.waves import SpectralMap, Waves
from kme_jax.numerics import Progress
from kme_jax.privacy.mechanisms import Mechanism, PrivateEmbedding
from kme_jax.proposals import NormalProposal
from kme_jax.pytrees import pytree_dataclass

Array = jax.Array
# centres [K, d] and location [d] in lengths from the proposal's mean, log_spread [d], log_gammas [K], log_widths [G],
# log_concentration []
Parameters = dict[str, Array]

_NUM_WIDTHS = 5  # G
_WIDTH_MEDIAN, _WIDTH_SD = 0.2, 1.0  # of s/ℓ, and of its logarithm
_CONCENTRATION_MEDIAN, _CONCENTRATION_SD = 10.0, 1.0  # of α, and of its logarithm
_LOCATION_SD = 0.7  # of c, in scales of the proposal
_SPREAD_MEDIAN, _SPREAD_SD = 0.7, 0.5  # of t, and of its logarithm
_ACCEPTANCE = 0.75

_GAIN = 0.3  # of the logarithm of the step, per unit of acceptance rate

# Rounds of trajectories: annealed; at temperature 1, while the metric is learnt; while the step for it is; with
# the metric fixed and the step adapted by less and less, which leaves the posterior the chain's limit (Roberts &
# Rosenthal 2007). The last three are an attempt, which is made again, from where the last one ended, if it shows that
# it began elsewhere.
_ANNEALED, _LEARNT, _STEPPED, _SAMPLED = 30, 20, 10, 50
_ATTEMPT, _ATTEMPTS = _LEARNT + _STEPPED + _SAMPLED, 3
_DRIFT = 0.05  # of the misfit from one half to the other, in units of five standard deviations of the noise's own


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class _Model:
    """The posterior's density, all in float32 and in units of ℓ.

    Attributes:
      waves: ψ in units of ℓ from the proposal's mean.
      target: β, [J].
      variance: σ² times the temperature.
      precision: (ℓ / scale of the proposal)², [d].
    """

    waves: Waves
    target: Array
    variance: Array
    precision: Array

    def features(self, parameters: Parameters) -> Array:
        """ψ(ν), [J]."""
        weights = jax.nn.softmax(parameters["log_gammas"])
        return self.waves.mixture_of_normals(parameters["centres"], weights, jnp.exp(parameters["log_widths"]))

    def log_density(self, parameters: Parameters) -> Array:
        """Of the parameters given β, up to a constant."""
        residual = self.target - self.features(parameters)
        log_gammas = parameters["log_gammas"]
        shape = _shape(parameters)
        offsets = parameters["centres"] - parameters["location"][None, :]
        spread = (parameters["log_spread"] - math.log(_SPREAD_MEDIAN)) / _SPREAD_SD
        width = (parameters["log_widths"] - math.log(_WIDTH_MEDIAN)) / _WIDTH_SD
        concentration = (parameters["log_concentration"] - math.log(_CONCENTRATION_MEDIAN)) / _CONCENTRATION_SD
        return (
            -0.5 * jnp.sum(jnp.square(residual)) / self.variance
            - 0.5 * jnp.sum(self.precision_of(parameters)[None, :] * jnp.square(offsets))
            - len(log_gammas) * jnp.sum(parameters["log_spread"])
            - 0.5 * jnp.sum(self.precision * jnp.square(parameters["location"])) / _LOCATION_SD**2
            - 0.5 * jnp.sum(jnp.square(spread))
            + jnp.sum(shape * log_gammas - jnp.exp(log_gammas) - jax.scipy.special.gammaln(shape))
            - 0.5 * jnp.sum(jnp.square(width))
            - 0.5 * jnp.square(concentration)
        )

    def precision_of(self, parameters: Parameters) -> Array:
        """1 / variance of the atoms' centres about their location, [d]."""
        return self.precision * jnp.exp(-2 * parameters["log_spread"])

    def curvature(self, parameters: Parameters) -> Parameters:
        """The diagonal of about −∇² log density: squared derivatives of ψ(ν) over σ², and the prior's."""
        squares, widths = self.waves.squares(), jnp.exp(parameters["log_widths"])
        weights = jax.nn.softmax(parameters["log_gammas"])
        # Of one atom of each group, [G, n].
        damping = jnp.exp(-jnp.square(widths)[:, None] * squares[None, :])
        energies = jnp.square(self.waves.amplitudes)[None, :] * damping / self.variance
        columns = jnp.square(2 * math.pi * self.waves.turns)
        size = weights.shape[0] // widths.shape[0]
        strength = jnp.repeat(jnp.sum(energies, axis=1), size)
        moves = jnp.repeat(energies @ columns, size, axis=0)
        shape = _shape(parameters)
        fourth = jnp.square(jnp.concatenate([squares, squares]))
        slopes = jnp.square(self.waves.mixtures(parameters["centres"], weights, widths)) @ fourth
        return {
            "centres": jnp.square(weights)[:, None] * moves + self.precision_of(parameters)[None, :],
            "location": weights.shape[0] * self.precision_of(parameters) + self.precision / _LOCATION_SD**2,
            "log_spread": jnp.full_like(parameters["log_spread"], 2 * weights.shape[0] + 1 / _SPREAD_SD**2),
            "log_gammas": jnp.square(weights) * strength + shape + jnp.exp(parameters["log_gammas"]),
            "log_widths": widths**4 * slopes / self.variance + 1 / _WIDTH_SD**2,
            # a² ψ′(a) is between 1 and 1 + a.
            "log_concentration": weights.shape[0] * (1 + shape) + 1 / _CONCENTRATION_SD**2,
        }


def _shape(parameters: Parameters) -> Array:
    """α / K."""
    return jnp.exp(parameters["log_concentration"]) / parameters["log_gammas"].shape[0]


@functools.partial(jax.jit, static_argnames=("num_trajectories", "num_leaps"))
def _run(model, key, parameters, curvature, log_step, gain, *, num_trajectories: int, num_leaps: int):
    """Trajectories of HMC.

    Returns:
      parameters at the end; the logarithm of the step, at the end and its mean; the mean of ψ(ν); ‖β − ψ(ν)‖² and
      acceptance rates, [num_trajectories].
    """
    kernel = blackjax.hmc.build_kernel()
    flat_curvature, unravel = ravel_pytree(curvature)

    def log_density(flat):
        return model.log_density(unravel(flat))

    def advance(carry, key):
        state, log_step, total = carry
        move_key, jitter_key = jax.random.split(key)
        # Trajectories of one length could return to where they started.
        size = jnp.exp(log_step) * jax.random.uniform(jitter_key, (), log_step.dtype, 0.7, 1.3)
        state, info = kernel(move_key, state, log_density, size, 1 / flat_curvature, num_leaps)
        rate = jnp.nan_to_num(info.acceptance_rate)
        features = model.features(unravel(state.position))
        misfit = jnp.sum(jnp.square(model.target - features))
        total = total + features / num_trajectories
        return (state, log_step + gain * (rate - _ACCEPTANCE), total), (misfit, rate, log_step)

    with jax.numpy_dtype_promotion("standard"):
        start = blackjax.hmc.init(ravel_pytree(parameters)[0], log_density)
        (state, log_step, mean), (misfits, rates, log_steps) = jax.lax.scan(
            advance, (start, log_step, jnp.zeros_like(model.target)), jax.random.split(key, num_trajectories)
        )
    return unravel(state.position), (log_step, jnp.mean(log_steps)), mean, misfits, rates


_curvature = jax.jit(_Model.curvature)


@dataclasses.dataclass(frozen=True)
class PosteriorReport:
    """How the sampling went.

    Attributes:
      misfits: ‖β − ψ(ν)‖² / (F σ²) after every trajectory; about 1 when ν explains β up to the noise.
      acceptance: mean acceptance rate of the trajectories whose draws are used.
      converged: whether the mean misfit of the last half is below 1 + 5 √(2/F), five standard deviations of the
        noise's own: the sampler has found distributions that explain β.
      kept: the share of β − E[ψ(ν) | β] that the result keeps, in [0, 1): 0 unless the misfit is as large.
      attempts: how often sampling began, 1 to 3; the last attempt counts.
    """

    misfits: np.ndarray
    acceptance: float
    converged: bool
    kept: float
    attempts: int


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorMean:
    """E[ν | β] of :func:`posterior_mean`, the mean of S draws of a mixture of K normal distributions. Public.

    Attributes:
      feature_map: ψ.
      coordinates: E[ψ(ν) | β], the mean over all trajectories, [F]: the noisy coordinates, denoised. With the
        correction of the module's text where no ν explains them.
      centres: z, [S, K, d].
      weights: w, [S, K], positive, each row summing to 1.
      widths: s, standard deviations, [S, K].
      mechanism: the mechanism behind it.
    """

    feature_map: SpectralMap
    coordinates: np.ndarray
    centres: np.ndarray
    weights: np.ndarray
    widths: np.ndarray
    mechanism: Mechanism

    def sample(self, num_points: int, seed: int) -> np.ndarray:
        """Points of the mean distribution, [num_points, d]: systematic over draws and atoms, in antithetic pairs.

        Raises:
          ValueError: num_points < 1.
        """
        if num_points < 1:
            raise ValueError(f"num_points must be at least 1, got {num_points}")
        rng = np.random.default_rng(seed)
        num_pairs = -(-num_points // 2)
        # In the order of a random direction, so that neighbours in the systematic sample are neighbours in space.
        centres = self.centres.reshape(-1, self.centres.shape[2])
        order = np.argsort(centres @ rng.normal(size=centres.shape[1]), kind="stable")
        cumulative = np.cumsum(self.weights.reshape(-1)[order])
        picks = np.searchsorted(cumulative, (np.arange(num_pairs) + rng.uniform()) / num_pairs * cumulative[-1])
        atoms = order[np.minimum(picks, len(order) - 1)]
        shifts = rng.normal(size=(num_pairs, centres.shape[1])) * self.widths.reshape(-1)[atoms, None]
        pairs = np.concatenate([centres[atoms] + shifts, centres[atoms] - shifts])
        return pairs[:num_points]


def posterior_mean(
    key: Array,
    embedding: PrivateEmbedding,
    proposal: NormalProposal,
    *,
    num_atoms: int = 100,
    num_trajectories: int = 20,
    num_leaps: int = 20,
    progress: Progress | None = None,
) -> tuple[PosteriorMean, PosteriorReport]:
    """The posterior mean of the module's text, by Hamiltonian Monte Carlo.

    Args:
      key: a JAX random key of the sampler's own, independent of the noise and of the rows.
      embedding: μ̃ of a FourierMap or LatticeMap, with Gaussian noise.
      proposal: public: the prior of the atoms.
      num_atoms: K, with five different widths, or with one if K is not a multiple of five.
      num_trajectories: in each of 110 rounds, of which the last 50 are used. Where the misfit shows that the sampler
        got there late, 80 rounds more, or 160.
      num_leaps: leapfrog steps of a trajectory, each one gradient.
      progress: called with (rounds done, rounds in all).

    Returns:
      The mean, and how the sampling went.

    Raises:
      ValueError: another kind of map or noise; a proposal of another dimension; a count below 1.
    """
    feature_map, mechanism = embedding.feature_map, embedding.mechanism
    if not isinstance(feature_map, SpectralMap):
        raise ValueError(f"needs the embedding of a FourierMap or LatticeMap, got {type(feature_map).__name__}")
    if mechanism.noise != "gaussian":
        raise ValueError(f"needs Gaussian noise, got {mechanism.noise}: its likelihood is another one")
    if proposal.dim != feature_map.dim:
        raise ValueError(f"proposal: expected {feature_map.dim} columns, as the embedding has, got {proposal.dim}")
    for name, value in (("num_atoms", num_atoms), ("num_trajectories", num_trajectories), ("num_leaps", num_leaps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    start_key, run_key = jax.random.split(key)
    num_widths = math.gcd(num_atoms, _NUM_WIDTHS)
    num_features, length = feature_map.num_features, feature_map.length_scale

    def single(value):
        return jnp.asarray(np.asarray(value, np.float32))

    model = _Model(
        waves=feature_map.waves(proposal.mean, length),
        target=single(embedding.coordinates),
        variance=single(mechanism.variance),
        precision=single(np.square(length / proposal.scale)),
    )
    spread = single(proposal.scale / length)
    start = _SPREAD_MEDIAN * spread[None, :]
    parameters = {
        "centres": jax.random.normal(start_key, (num_atoms, proposal.dim), jnp.float32) * start,
        "location": jnp.zeros(proposal.dim, jnp.float32),
        "log_spread": jnp.full(proposal.dim, math.log(_SPREAD_MEDIAN), jnp.float32),
        "log_gammas": jnp.full(num_atoms, math.log(_CONCENTRATION_MEDIAN / num_atoms), jnp.float32),
        "log_widths": jnp.full(num_widths, math.log(_WIDTH_MEDIAN), jnp.float32),
        "log_concentration": single(math.log(_CONCENTRATION_MEDIAN)),
    }
    hottest = max(1.0, feature_map.kernel.diagonal_bound / (num_atoms * mechanism.variance))
    temperatures = np.geomspace(hottest, 1, _ANNEALED)
    spare = 5 * math.sqrt(2 / num_features)  # five standard deviations of the noise's own misfit
    log_step, round_, attempts = single(math.log(0.1)), 0, 1
    misfits: list[np.ndarray] = []

    def advance(temperature, curvature, log_step, gain):
        nonlocal parameters, round_
        parameters, log_steps, features, misfit, rate = _run(
            dataclasses.replace(model, variance=single(mechanism.variance * temperature)),
            jax.random.fold_in(run_key, round_),
            parameters,
            curvature,
            log_step,
            single(gain),
            num_trajectories=num_trajectories,
            num_leaps=num_leaps,
        )
        misfits.append(np.asarray(misfit, np.float64) / (num_features * mechanism.variance))
        round_ += 1
        if progress:
            progress(round_, _ANNEALED + attempts * _ATTEMPT)
        return *log_steps, features, rate

    for temperature in temperatures:
        tempered = dataclasses.replace(model, variance=single(mechanism.variance * temperature))
        log_step, *_ = advance(temperature, _curvature(tempered, parameters), log_step, _GAIN)
    while True:
        curvatures: list[Parameters] = []
        for _ in range(_LEARNT):
            curvatures.append(_curvature(model, parameters))
            log_step, *_ = advance(1, curvatures[-1], log_step, _GAIN)
        curvature = jax.tree.map(lambda *values: jnp.exp(sum(map(jnp.log, values)) / _LEARNT), *curvatures)
        log_steps: list[Array] = []
        for _ in range(_STEPPED):
            log_step, mean_log_step, *_ = advance(1, curvature, log_step, _GAIN)
            log_steps.append(mean_log_step)
        log_steps = log_steps[_STEPPED // 2 :]
        log_step = sum(log_steps) / len(log_steps)
        rates, snapshots, mean = [], [], np.zeros(num_features)
        for sampled in range(_SAMPLED):
            log_step, _, features, rate = advance(1, curvature, log_step, _GAIN / (sampled + 1))
            mean += np.asarray(features, np.float64) / _SAMPLED
            rates.append(float(jnp.mean(rate)))
            snapshots.append({name: np.asarray(value, np.float64) for name, value in parameters.items()})
        early, late = (float(np.mean(half)) for half in np.split(np.stack(misfits[-_SAMPLED:]), 2))
        # A chain whose misfit still falls, or is more than the noise, was not where it is to stay (early and late draws
        # are compared as by Geweke 1992).
        if attempts == _ATTEMPTS or (early - late <= _DRIFT * spare and late <= 1 + spare):
            break
        attempts += 1
    residual = np.asarray(embedding.coordinates, np.float64) - mean
    kept = max(0.0, 1 - (1 + spare) * num_features * mechanism.variance / float(residual @ residual))
    log_gammas, log_widths = (
        np.stack([snapshot[name] for snapshot in snapshots]) for name in ("log_gammas", "log_widths")
    )
    weights = np.exp(log_gammas - log_gammas.max(axis=1, keepdims=True))
    result = PosteriorMean(
        feature_map=feature_map,
        coordinates=mean + kept * residual,
        centres=proposal.mean + length * np.stack([snapshot["centres"] for snapshot in snapshots]),
        weights=weights / weights.sum(axis=1, keepdims=True),
        widths=length * np.repeat(np.exp(log_widths), num_atoms // num_widths, axis=1),
        mechanism=mechanism,
    )
    settled = late <= 1 + spare
    return result, PosteriorReport(np.concatenate(misfits), float(np.mean(rates)), settled, kept, attempts)
