"""The posterior mean of μ̂ given its noisy Fourier features. The distribution of the noise is known exactly.

The prior over distributions is a finite Dirichlet process mixture (Ishwaran & Zarepour 2002) on public quantities:

    ν = Σ_k w_k N(z_k, s_g² I) for k in group g,   w ~ Dirichlet(α/K, ..., α/K),   z_k ~ N(c, diag(tS)²),
    c ~ N(C, diag(0.7 S)²),   log t ~ N(log 0.7, 0.5² I),   log(s_g/ℓ) ~ N(log 0.2, 1),   log α ~ N(log 10, 1),

with N(C, diag(S)²) the proposal and ℓ a length of the kernel. The location c and the spread t of the atoms are learnt,
so a proposal that is too wide costs little. There are K atoms in G groups of equal size. Each group has a width of its
own, which may become as small as the rows need. (With a single width, a few wide atoms that fit roughly would keep the
others wide too.) The concentration α says whether a few atoms or all of them have most of the weight. The observation
is β | ν ~ N(ψ(ν), σ² I) with ψ(ν) = Σ_k w_k exp(−s²‖ω‖²/2) ψ(z_k), because E ψ(z + sξ) = exp(−s²‖ω‖²/2) ψ(z) for normal
ξ. The posterior mean E[ψ(ν) | β] has the least expected squared distance to ψ(ν) of all estimates. It is itself the
embedding of a distribution, the mean of the posterior draws of ν. Noise-aware inference after a release is from
Bernstein & Sheldon (2018). It sees μ̃ and public quantities only, so it is post-processing and spends nothing. If the
prior describes the rows badly, the result is less accurate, but no less private.

Rows in a box may lie on its faces. Normal distributions spread such rows over both sides of a face. So with a box, each
N(z_k, s_g² I) is cut: what is beyond a bound of a column is moved to that bound. Its features have a closed form for
each column, by the Faddeeva function, and those of a lattice are products of columns. S is twice that of the proposal
then, so that centres may be beyond a face: such an atom is nearly a point mass of that column. Other maps would need
this function for each column of every frequency and atom, and their distributions are not cut.

Hamiltonian Monte Carlo (Neal 2011) draws from the posterior. Weights have logarithmic coordinates (w = softmax of
log-gamma variables). Several chains move at the same time, as one batch, with a common step size. They start from draws
near the prior and are annealed: the temperature of the likelihood falls to 1. At high temperatures only a subset of
random frequencies is used. Chains end in different modes and rarely leave them. In a mode that fits worse, the mean is
further from the truth. So after every round before sampling, chains are resampled in proportion to
exp(−‖β − ψ(ν)‖²/2σ²T), with the mean misfit over half a round and the temperature T. Chains that fit well are copied,
as in a sequential Monte Carlo sampler (Del Moral, Doucet & Jasra 2006; weights from means are a rule of thumb). No
chain is resampled while draws are taken. The metric and the limit of the step are fixed then. If the misfit still
falls, sampling began too early, and begins again from the current state of the chains.

If no such ν describes the rows well, or the sampler has not found it, the misfit is above that of the noise. Then the
positive-part estimate of James & Stein (1961) moves from the posterior mean m towards β, in proportion to the excess,

    m + max(0, 1 − F′σ²/‖β − m‖²) (β − m),   F′ = F (1 + 5 √(2/F)).

So the error is at most about that of the noise, however wrong the prior is. F′ is five standard deviations of the
noise's own misfit above F, so a posterior that explains β is not changed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Float32, Float64, Int, PRNGKeyArray

from kme_jax._numerics import html
from kme_jax._numerics.precision import Progress, reproducible_jit
from kme_jax._numerics.progress import shows_progress
from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr
from kme_jax.domain import NormalProposal
from kme_jax.feature_maps.waves import SpectralMap, Waves
from kme_jax.privacy.mechanisms import Mechanism, NoisyEmbedding, check_noisy

Array = jax.Array
# centres [K, d] and location [d] in lengths from the proposal's mean, log_spread [d], log_gammas [K], log_widths [G],
# log_concentration []
Parameters = Mapping[str, Float32[AnyArray, "..."]]

_NUM_WIDTHS = 5  # G
_WIDTH_MEDIAN, _WIDTH_SD = 0.2, 1.0  # of s/ℓ, and of its logarithm
_CONCENTRATION_MEDIAN, _CONCENTRATION_SD = 10.0, 1.0  # of α, and of its logarithm
_LOCATION_SD = 0.7  # of c, in scales of the proposal
_SPREAD_MEDIAN, _SPREAD_SD = 0.7, 0.5  # of t, and of its logarithm
_CUT_SCALE = 2.0  # scales of a proposal in which S is, if there is a box
_ACCEPTANCE = 0.75

_GAIN = 0.3  # of the logarithm of the step, per unit of acceptance rate

_FEW = 625  # frequencies of the coarse rounds
_DRAWS = 50  # approximate number of draws that are kept
# Largest fall of the misfit between halves, in units of five standard deviations of the noise's own misfit.
_DRIFT = 0.05


@short_repr
@dataclasses.dataclass(frozen=True)
class SamplerSettings:
    """The numbers of atoms, chains and rounds of the sampler.

    Rounds that learn, adapt the step and sample are an attempt. A new attempt starts where the last one ended, if the
    chains had not settled.

    Attributes:
      num_atoms: K, with five different widths, or with one if K is not a multiple of five.
      num_trajectories: number of trajectories of each chain in each round.
      num_leaps: number of leapfrog steps of a trajectory. Each takes one gradient.
      num_chains: C, the number of chains.
      coarse: rounds that are annealed with a subset of the frequencies.
      annealed: rounds that are annealed with all frequencies.
      learnt: rounds at temperature 1 while the metric is learnt.
      stepped: rounds while the step for this metric is learnt.
      sampled: rounds while draws are taken. The metric is fixed, and the step is adapted less and less, so the chains
        still converge to the posterior (Roberts & Rosenthal 2007).
      attempts: largest number of attempts.

    Raises:
      ValueError: a number is below 1.
    """

    num_atoms: int = 100
    num_trajectories: int = 8
    num_leaps: int = 50
    num_chains: int = 4
    coarse: int = 6
    annealed: int = 2
    learnt: int = 3
    stepped: int = 1
    sampled: int = 6
    attempts: int = 3

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def num_rounds(self, attempts: int) -> int:
        """The number of rounds with this number of attempts."""
        return self.coarse + self.annealed + attempts * (self.learnt + self.stepped + self.sampled)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """The posterior's density, all in float32 and in units of ℓ.

    Attributes:
      waves: ψ in units of ℓ from the proposal's mean.
      target: β, in the layout of the waves.
      variance: σ² times the temperature.
      precision: (ℓ / scale of the proposal)², [d].
    """

    waves: Waves
    target: Float32[AnyArray, "..."]
    variance: Float32[AnyArray, ""]
    precision: Float32[AnyArray, "d"]

    def table(self, parameters: Parameters) -> Float32[Array, "..."]:
        """ψ(ν), in the layout of the waves."""
        weights = jax.nn.softmax(parameters["log_gammas"])
        return self.waves.table_of_normals(parameters["centres"], weights, jnp.exp(parameters["log_widths"]))

    def log_density(self, parameters: Parameters) -> tuple[Float32[Array, ""], Float32[Array, "..."]]:
        """The log density of the parameters given β, up to a constant; and ψ(ν), in the layout of the waves."""
        table = self.table(parameters)
        log_gammas = parameters["log_gammas"]
        shape = _shape(parameters)
        offsets = parameters["centres"] - parameters["location"][None, :]
        spread = (parameters["log_spread"] - math.log(_SPREAD_MEDIAN)) / _SPREAD_SD
        width = (parameters["log_widths"] - math.log(_WIDTH_MEDIAN)) / _WIDTH_SD
        concentration = (parameters["log_concentration"] - math.log(_CONCENTRATION_MEDIAN)) / _CONCENTRATION_SD
        density = (
            -0.5 * jnp.sum(jnp.square(self.target - table)) / self.variance
            - 0.5 * jnp.sum(self.precision_of(parameters)[None, :] * jnp.square(offsets))
            - len(log_gammas) * jnp.sum(parameters["log_spread"])
            - 0.5 * jnp.sum(self.precision * jnp.square(parameters["location"])) / _LOCATION_SD**2
            - 0.5 * jnp.sum(jnp.square(spread))
            + jnp.sum(shape * log_gammas - jnp.exp(log_gammas) - jax.scipy.special.gammaln(shape))
            - 0.5 * jnp.sum(jnp.square(width))
            - 0.5 * jnp.square(concentration)
        )
        return density, table

    def precision_of(self, parameters: Parameters) -> Float32[AnyArray, "d"]:
        """1 / variance of the atoms' centres about their location, [d]."""
        return self.precision * jnp.exp(-2 * parameters["log_spread"])

    def curvature(self, parameters: Parameters) -> Parameters:
        """The approximate diagonal of −∇² log density: squared derivatives of ψ(ν) over σ², plus that of the prior."""
        squares, widths = self.waves.squares(), jnp.exp(parameters["log_widths"])
        weights = jax.nn.softmax(parameters["log_gammas"])
        # For one atom of each group, [G, n].
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


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """The state of C chains.

    Attributes:
      parameters: of the chains, with a first axis [C].
      log_metric: logarithm of the diagonal of each chain's metric, of the same shapes.
      log_step: logarithm of the step size of all chains, [].
    """

    parameters: Parameters
    log_metric: Parameters
    log_step: Float32[Array, ""]


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Settings of each trajectory of a round, [num_trajectories] each.

    Attributes:
      temperature: of the likelihood.
      learning: weight of the current curvature in the logarithm of the metric, from 0 to 1.
      gain: change of the logarithm of the step per unit of acceptance rate.
      choosing: 1 if chains are resampled after the round, otherwise 0.
    """

    temperature: Float[AnyArray, "trajectories"]
    learning: Float[AnyArray, "trajectories"]
    gain: Float[AnyArray, "trajectories"]
    choosing: Float[AnyArray, "trajectories"]


@functools.partial(reproducible_jit, static_argnames=("num_chains", "num_atoms", "num_widths"))
def _start(model: Model, key: Array, *, num_chains: int, num_atoms: int, num_widths: int):
    """The model in the layout of its waves, the model with fewer frequencies, and chains that start near the prior.

    The target of the argument ``model`` is features [J].
    """
    target = model.waves.table(model.target)
    few, few_target = model.waves.fewer(_FEW, target)
    dim = model.precision.shape[0]
    centres = jax.random.normal(jax.random.fold_in(key, 0), (num_chains, num_atoms, dim), jnp.float32)

    def every(value, *shape):
        return jnp.full((num_chains, *shape), math.log(value), jnp.float32)

    parameters = {
        "centres": _SPREAD_MEDIAN * centres / jnp.sqrt(model.precision)[None, None, :],
        "location": every(1.0, dim),
        "log_spread": every(_SPREAD_MEDIAN, dim),
        "log_gammas": every(_CONCENTRATION_MEDIAN / num_atoms, num_atoms),
        "log_widths": every(_WIDTH_MEDIAN, num_widths),
        "log_concentration": every(_CONCENTRATION_MEDIAN),
    }
    chains = Chains(parameters, jax.tree.map(jnp.zeros_like, parameters), jnp.log(jnp.float32(0.1)))
    return dataclasses.replace(model, target=target), dataclasses.replace(model, waves=few, target=few_target), chains


# Not ``reproducible_jit``: on a GPU, algorithms that XLA chooses by timing halve the time of products with 5000
# frequencies.
@functools.partial(jax.jit, static_argnames="num_leaps")
def run_round(
    model: Model, key: PRNGKeyArray, number: Int[Array, ""], chains: Chains, plan: Plan, *, num_leaps: int
) -> tuple[
    Chains,
    Float32[Array, "F"],
    tuple[Parameters, Float32[Array, "trajectories chains"], Float32[Array, "trajectories chains"]],
]:
    """One round of HMC trajectories of all chains at the same time.

    Args:
      model: the density of the posterior.
      key: a JAX random key, the same for all rounds.
      number: of the round.
      chains: the state of the chains at the start.
      plan: the settings of each trajectory.
      num_leaps: number of leapfrog steps of a trajectory.

    Returns:
      The chains; Σ ψ(ν) over chains and trajectories, in the order of the features; and the parameters, ‖β − ψ(ν)‖² and
      the acceptance rates after every trajectory, [num_trajectories, C, ...].
    """
    num_chains = chains.parameters["log_concentration"].shape[0]
    key = jax.random.fold_in(key, number)

    def advance(carry, now):
        (chains, total), (key, plan) = carry, now
        tempered = dataclasses.replace(model, variance=model.variance * plan.temperature)

        def learn(log_metric):
            curvature = jax.vmap(tempered.curvature)(chains.parameters)
            return jax.tree.map(lambda old, new: old + plan.learning * (jnp.log(new) - old), log_metric, curvature)

        log_metric = jax.lax.cond(plan.learning > 0, learn, lambda old: old, chains.log_metric)
        jitter_key, move_key = jax.random.split(key)
        # The length is random, because trajectories of a fixed length could return to where they started.
        step = jnp.exp(chains.log_step) * jax.random.uniform(jitter_key, (), jnp.float32, 0.7, 1.3)
        move = functools.partial(_trajectory, tempered, step, num_leaps=num_leaps)
        keys = jax.random.split(move_key, num_chains)
        parameters, table, rate = jax.vmap(move)(keys, chains.parameters, log_metric)
        misfit = jnp.sum(jnp.square(model.target[None] - table), axis=tuple(range(1, table.ndim)))
        log_step = chains.log_step + plan.gain * (jnp.mean(rate) - _ACCEPTANCE)
        return (Chains(parameters, log_metric, log_step), total + table), (parameters, misfit, rate)

    num_trajectories = plan.gain.shape[0]
    start = (chains, jnp.zeros((num_chains, *model.target.shape), model.target.dtype))
    (chains, total), trace = jax.lax.scan(advance, start, (jax.random.split(key, num_trajectories), plan))
    late = jnp.mean(trace[1][num_trajectories // 2 :], axis=0)
    log_weights = -0.5 * plan.choosing[-1] * late / (model.variance * plan.temperature[-1])
    chosen = resampled(jax.random.fold_in(key, num_trajectories), log_weights)
    parameters, log_metric = jax.tree.map(lambda values: values[chosen], (chains.parameters, chains.log_metric))
    return (
        Chains(parameters, log_metric, chains.log_step),
        jnp.sum(jax.vmap(model.waves.features)(total), axis=0),
        trace,
    )


def resampled(key: PRNGKeyArray, log_weights: Float[Array, "n"]) -> Int[Array, "n"]:
    """Indices in proportion to n weights, by systematic resampling, [n]. Each appears once if all weights are equal.

    Args:
      key: a JAX random key.
      log_weights: logarithms of the weights, up to a constant, [n].
    """
    number = log_weights.shape[0]
    cumulative = jnp.cumsum(jax.nn.softmax(log_weights))
    places = (jnp.arange(number, dtype=jnp.float32) + jax.random.uniform(key, (), log_weights.dtype, 0.1, 0.9)) / number
    return jnp.minimum(jnp.searchsorted(cumulative, places), number - 1)


def _trajectory(model: Model, step: Array, key: Array, parameters: Parameters, log_metric: Parameters, *, num_leaps):
    """One trajectory of one chain (Neal 2011, figure 2): parameters, ψ(ν) and the probability of acceptance."""
    start, unravel = ravel_pytree(parameters)
    metric = jnp.exp(ravel_pytree(log_metric)[0])
    momentum_key, accept_key = jax.random.split(key)
    initial_momentum = jnp.sqrt(metric) * jax.random.normal(momentum_key, start.shape, start.dtype)

    def leap(number, state):
        """A step of the position, except at the first leap, and of the momentum, half a step at both ends."""
        position, momentum, ended, started = state
        position = position + jnp.where(number > 0, step, 0.0) * momentum / metric
        ended, gradient = jax.value_and_grad(lambda flat: model.log_density(unravel(flat)), has_aux=True)(position)
        share = jnp.where((number == 0) | (number == num_leaps), 0.5, 1.0)
        started = jax.tree.map(lambda now, first: jnp.where(number == 0, now, first), ended, started)
        return position, momentum + share * step * gradient, ended, started

    nowhere = (jnp.zeros((), jnp.float32), jnp.zeros_like(model.target))
    end, arrived, (reached, end_table), (density, table) = jax.lax.fori_loop(
        0, num_leaps + 1, leap, (start, initial_momentum, nowhere, nowhere)
    )
    gained = reached - density - 0.5 * jnp.sum((jnp.square(arrived) - jnp.square(initial_momentum)) / metric)
    rate = jnp.nan_to_num(jnp.exp(jnp.minimum(gained, 0.0)))
    accepted = jax.random.uniform(accept_key) < rate
    return unravel(jnp.where(accepted, end, start)), jnp.where(accepted, end_table, table), rate


@short_repr
@dataclasses.dataclass(frozen=True)
class PosteriorReport:
    """The report of the sampler.

    Attributes:
      misfits: ‖β − ψ(ν)‖² / (F σ²) after every trajectory of every chain, [trajectories, C]. It is about 1 if ν
      explains
        β up to the noise. Rounds with a subset of the frequencies have the misfit of the subset over its share of F.
      acceptance: mean acceptance rate of the trajectories whose draws are used.
      converged: whether the mean misfit of the last half is at most 1 + 5 √(2/F), five standard deviations of the
        noise's own misfit above 1. Then the sampler has found distributions that explain β.
      kept: the share of β − E[ψ(ν) | β] that the result keeps, in [0, 1). It is 0 unless the misfit of the mean exceeds
        this limit.
      attempts: number of attempts at sampling, 1 to 3. The last one is used.
    """

    misfits: Float[np.ndarray, "trajectories chains"]
    acceptance: float
    converged: bool
    kept: float
    attempts: int

    def _repr_html_(self) -> str:
        misfits = np.asarray(self.misfits, np.float64)
        facts = [("sampled", f"{self.attempts} attempt{'s' * (self.attempts > 1)}: {html.converged(self.converged)}")]
        facts += [("acceptance", html.number(self.acceptance)), ("share of noise kept", html.number(self.kept))]
        facts += [("misfit", "about 1 if the mixtures explain the embedding up to its noise")]
        trace = html.trace(misfits.mean(axis=1), "mean misfit of the chains") if len(misfits) else ""
        return html.card("PosteriorReport", facts, trace)


@pytree_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorMean:
    """E[ν | β] of :func:`posterior_mean`, the mean of S draws of a mixture of K normal distributions. Public.

    Attributes:
      feature_map: ψ.
      coordinates: E[ψ(ν) | β], the mean over all trajectories, [F]: the denoised coordinates. If no ν explains the
      noisy
        coordinates, they have the correction at the end of the module's text.
      centres: z, [S, K, d].
      weights: w, positive, [S, K]. Each row sums to 1.
      widths: s, standard deviations, [S, K].
      mechanism: of the noisy embedding.
      box: bounds at which the normal distributions are cut, [d] each; None if they are not.
    """

    feature_map: SpectralMap
    coordinates: Float64[np.ndarray, "F"]
    centres: Float64[np.ndarray, "draws K d"]
    weights: Float64[np.ndarray, "draws K"]
    widths: Float64[np.ndarray, "draws K"]
    mechanism: Mechanism
    box: tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]] | None = None

    def sample(self, num_points: int, seed: int) -> Float64[np.ndarray, "M d"]:
        """Points of the mean distribution, [num_points, d].

        Sampling is systematic over draws and atoms, in antithetic pairs.

        Raises:
          ValueError: num_points < 1.
        """
        if num_points < 1:
            raise ValueError(f"num_points must be at least 1, got {num_points}")
        rng = np.random.default_rng(seed)
        num_pairs = -(-num_points // 2)
        # Atoms are ordered along a random direction, so that neighbours in the systematic sample are close in space.
        centres = self.centres.reshape(-1, self.centres.shape[2])
        order = np.argsort(centres @ rng.normal(size=centres.shape[1]), kind="stable")
        cumulative = np.cumsum(self.weights.reshape(-1)[order])
        picks = np.searchsorted(cumulative, (np.arange(num_pairs) + rng.uniform()) / num_pairs * cumulative[-1])
        atoms = order[np.minimum(picks, len(order) - 1)]
        shifts = rng.normal(size=(num_pairs, centres.shape[1])) * self.widths.reshape(-1)[atoms, None]
        pairs = np.concatenate([centres[atoms] + shifts, centres[atoms] - shifts])
        return pairs[:num_points] if self.box is None else np.clip(pairs[:num_points], *self.box)


def posterior_mean(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    proposal: NormalProposal,
    *,
    num_atoms: int = 100,
    num_trajectories: int = 8,
    num_leaps: int = 50,
    num_chains: int = 4,
    box: tuple[Float[AnyArray, "d"], Float[AnyArray, "d"]] | None = None,
    progress: Progress | bool = False,
) -> tuple[PosteriorMean, PosteriorReport]:
    """The posterior mean of μ̂ given a noisy embedding, by Hamiltonian Monte Carlo. Post-processing.

    The text at the top of ``kme_jax.synthesis.posterior`` has the model and the sampler.

    Args:
      key: a JAX random key, independent of the noise and of the rows.
      embedding: the noisy embedding μ̃ of a FourierMap, LatticeMap or QuadratureMap, with Gaussian noise.
      proposal: public; it sets the prior of the atoms.
      num_atoms: K, with five different widths, or with one if K is not a multiple of five.
      num_trajectories: number of trajectories of each chain in each of 18 rounds. The last 6 rounds are used. If the
        misfit shows that the chains had not settled, there are 10 or 20 more rounds.
      num_leaps: number of leapfrog steps of a trajectory. Each takes one gradient.
      num_chains: C, the number of chains.
      box: public lower and upper bounds of the rows, [d] each, at which normal distributions are cut; None if they are
        not. They are cut for a LatticeMap only.
      progress: True for a bar, or a function that is called with (rounds done, total rounds).

    Returns:
      The posterior mean, and the report of the sampler.

    Raises:
      TypeError: the embedding is not a ``NoisyEmbedding``.
      ValueError: the map has no frequencies, the noise is not Gaussian, the proposal has another number
        of columns, or a count is below 1.

    Examples:
      >>> import jax, numpy as np
      >>> from kme_jax import Gaussian, NormalProposal, PrivacyBudget, mean_embedding, perturb
      >>> from kme_jax import posterior_mean, spectral_map
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> proposal = NormalProposal.from_bounds([-4, -4], [4, 4])  # public
      >>> features = spectral_map(jax.random.key(0), Gaussian(gamma=0.5), proposal)
      >>> embedding = mean_embedding(features, rows)
      >>> noisy = perturb(jax.random.key(1), embedding, PrivacyBudget(1.0, 1e-5))
      >>> mean, report = posterior_mean(jax.random.key(2), noisy, proposal)
      >>> before, after = (np.linalg.norm(x.coordinates - embedding.coordinates) for x in (noisy, mean))
      >>> bool(after < before / 2)  # most of the noise is gone
      True
    """
    settings = SamplerSettings(num_atoms, num_trajectories, num_leaps, num_chains)
    return sample_posterior(key, embedding, proposal, settings, box=box, progress=progress)


@shows_progress("posterior")
def sample_posterior(
    key: PRNGKeyArray,
    embedding: NoisyEmbedding,
    proposal: NormalProposal,
    settings: SamplerSettings,
    *,
    box: tuple[Float[AnyArray, "d"], Float[AnyArray, "d"]] | None = None,
    progress: Progress | bool = False,
) -> tuple[PosteriorMean, PosteriorReport]:
    """:func:`posterior_mean` with all settings of the sampler.

    Args:
      key: as for :func:`posterior_mean`.
      embedding: as for :func:`posterior_mean`.
      proposal: as for :func:`posterior_mean`.
      settings: of the sampler.
      box: as for :func:`posterior_mean`.
      progress: as for :func:`posterior_mean`.

    Returns:
      As :func:`posterior_mean`.

    Raises:
      TypeError: the embedding is not a ``NoisyEmbedding``.
      ValueError: as :func:`posterior_mean`, but for the settings, which are valid by themselves.
    """
    num_atoms, num_trajectories = settings.num_atoms, settings.num_trajectories
    check_noisy(embedding)
    feature_map, mechanism = embedding.feature_map, embedding.mechanism
    if not isinstance(feature_map, SpectralMap):
        raise ValueError(
            f"expected the noisy embedding of Fourier features (a FourierMap), got {type(feature_map).__name__}: "
            "adaptive_weights with points takes any map"
        )
    if mechanism.noise != "gaussian":
        raise ValueError(
            f"expected Gaussian noise, got {mechanism.noise}: the model has the likelihood of Gaussian noise; "
            "adaptive_weights with points takes any noise"
        )
    if proposal.dim != feature_map.dim:
        raise ValueError(f"proposal: expected {feature_map.dim} columns, as the embedding has, got {proposal.dim}")
    num_widths = math.gcd(num_atoms, _NUM_WIDTHS)
    num_features, length = feature_map.num_features, feature_map.length_scale

    def single(value) -> Array:
        return cast(Array, np.asarray(value, np.float32))

    waves, scale = feature_map.waves(proposal.mean, length), proposal.scale
    cut_box = None if box is None else (np.asarray(box[0], np.float64), np.asarray(box[1], np.float64))
    cut = None if cut_box is None else waves.cut_at(*((bound - proposal.mean) / length for bound in cut_box))
    if cut is not None:
        waves, scale = cut, _CUT_SCALE * scale
    model = Model(
        waves=waves,
        target=single(embedding.coordinates),
        variance=single(mechanism.variance),
        precision=single(np.square(length / scale)),
    )
    model, coarse, chains = _start(
        model, key, num_chains=settings.num_chains, num_atoms=num_atoms, num_widths=num_widths
    )
    share = coarse.waves.amplitudes.shape[0] / model.waves.amplitudes.shape[0]
    hottest = max(1.0, feature_map.kernel.diagonal_bound / (num_atoms * mechanism.variance))
    spare = 5 * math.sqrt(2 / num_features)  # five standard deviations of the noise's own misfit
    done, attempts = 0, 1
    misfits: list[np.ndarray] = []

    def advance(model: Model, plans: Plan) -> tuple[list[Array], dict[str, np.ndarray], np.ndarray]:
        """Σ ψ(ν) of each round, and parameters and acceptance rates after every trajectory."""
        nonlocal chains, done
        sums, traces = [], []
        for start in range(0, len(plans.gain), num_trajectories):
            plan = jax.tree.map(lambda values, start=start: single(values[start : start + num_trajectories]), plans)
            chains, total, trace = run_round(model, key, 1 + done, chains, plan, num_leaps=settings.num_leaps)
            sums.append(total)
            traces.append(trace)
            done += 1
            if callable(progress):
                jax.block_until_ready(chains)
                progress(done, settings.num_rounds(attempts))
        parameters, misfit, rates = jax.tree.map(lambda *rounds: np.concatenate(rounds).astype(np.float64), *traces)
        misfits.append(misfit / (num_features * mechanism.variance))
        return sums, parameters, rates

    # A share of the frequencies at temperature 1 has as much information as all frequencies at temperature 1/share.
    middle = min(hottest, 1 / share) if share < 1 else hottest ** (settings.annealed / settings.num_rounds(0))
    advance(coarse, _annealing(share * hottest, share * middle, settings.coarse * num_trajectories))
    misfits[0] /= share
    advance(model, _annealing(middle, 1, settings.annealed * num_trajectories))
    while True:
        learning, sampling = _attempt(settings)
        advance(model, learning)
        sums, draws, rates = advance(model, sampling)
        early, late = (float(np.mean(half)) for half in np.array_split(misfits[-1], 2))
        # Chains have not settled if their misfit still falls or exceeds that of the noise. Early and late draws are
        # compared as by Geweke (1992).
        if attempts == settings.attempts or (early - late <= _DRIFT * spare and late <= 1 + spare):
            break
        attempts += 1
    mean = sum(np.asarray(total, np.float64) for total in sums) / rates.size
    residual = np.asarray(embedding.coordinates, np.float64) - mean
    kept = max(0.0, 1 - (1 + spare) * num_features * mechanism.variance / float(residual @ residual))
    every = max(1, rates.size // _DRAWS)
    draws = {name: value[::-every].reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    weights = np.exp(draws["log_gammas"] - draws["log_gammas"].max(axis=1, keepdims=True))
    result = PosteriorMean(
        feature_map=feature_map,
        coordinates=mean + kept * residual,
        centres=proposal.mean + length * draws["centres"],
        weights=weights / weights.sum(axis=1, keepdims=True),
        widths=length * np.repeat(np.exp(draws["log_widths"]), num_atoms // num_widths, axis=1),
        mechanism=mechanism,
        box=None if cut is None else cut_box,
    )
    settled = late <= 1 + spare
    return result, PosteriorReport(np.concatenate(misfits), float(np.mean(rates)), settled, kept, attempts)


def _annealing(hottest: float, coldest: float, number: int) -> Plan:
    """The plan of annealing, for ``number`` trajectories. The metric of each is that of its start."""
    temperature = np.geomspace(hottest, coldest, number)
    return Plan(temperature, learning=np.ones(number), gain=np.full(number, _GAIN), choosing=np.ones(number))


def _attempt(settings: SamplerSettings) -> tuple[Plan, Plan]:
    """The plans of an attempt: to learn the metric and the step, and to sample."""
    num_trajectories = settings.num_trajectories
    rounds_of_attempt = settings.learnt, settings.stepped, settings.sampled
    learnt, stepped, sampled = (np.arange(rounds * num_trajectories) for rounds in rounds_of_attempt)
    burnt = np.ones(len(learnt) + len(stepped))
    return (
        Plan(
            temperature=burnt,
            learning=np.concatenate([1 / (1 + learnt), np.zeros(len(stepped))]),  # the mean of the curvatures so far
            gain=_GAIN * np.concatenate([np.ones(len(learnt)), 1 / (1 + 4 * stepped / num_trajectories)]),
            choosing=burnt,
        ),
        Plan(
            temperature=np.ones(len(sampled)),
            learning=np.zeros(len(sampled)),
            gain=0.2 * _GAIN / (1 + sampled / num_trajectories),
            choosing=np.zeros(len(sampled)),
        ),
    )
