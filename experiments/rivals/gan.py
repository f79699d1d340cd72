"""Conditional GANs whose critic is trained by DP-SGD: DP-GAN and DP-CGAN.

The critic learns to tell private rows from rows of the generator. The generator learns from the critic alone, which is
post-processing. Labels of generated rows are drawn from public or noisy shares of the classes.

* DP-GAN (Xie et al. 2018) clips the gradient of a private row and of a generated row together. As revisited by Bie,
  Kamath & Zhang (2023), it is conditional and its critic takes many steps for each step of the generator.
* DP-CGAN (Torkzadehmahani, Kairouz & Paten 2019) clips the gradients of private and of generated rows apart.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.rivals import dp_sgd
from experiments.rivals.columns import Columns
from experiments.rivals.critic import Critic
from kme_jax import PrivacyBudget
from kme_jax._numerics.precision import Progress
from kme_jax._numerics.shapes import AnyArray
from kme_jax.generators.networks import Network

_ROWS_AT_ONCE = 1000  # that are sampled


@dataclasses.dataclass(frozen=True)
class Gan:
    """How a GAN is trained. It is public.

    Attributes:
      clips: whether gradients of a private and of a generated row are clipped "together" or "apart".
      generator: its network.
      critic: its network.
      batch_size: mean number of private rows in a step of the critic.
      num_steps: of the critic.
      critic_steps: of them for each step of the generator.
      norm: C, to which gradients are clipped.
      critic_rate: learning rate of the critic.
      generator_rate: learning rate of the generator.
      generator_batch: rows in a step of the generator.
      warm_up: steps of the critic before the generator's first step; learning rates rise for as long.
      average: decay of the moving average of the generator, which is what is sampled.
      beta1: decay of the first moment of Adam.
    """

    clips: Literal["together", "apart"]
    generator: Network
    critic: Critic
    batch_size: int = 600
    num_steps: int = 2000
    critic_steps: int = 5
    norm: float = 1.0
    critic_rate: float = 1e-3
    generator_rate: float = 1e-3
    generator_batch: int = 200
    warm_up: int = 100
    average: float = 0.98
    beta1: float = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained GAN.

    Attributes:
      gan: how it was trained.
      columns: of its rows.
      plan: of DP-SGD.
      shares: of the classes, [L].
      state: parameters and statistics of the averaged generator.
    """

    gan: Gan
    columns: Columns
    plan: dp_sgd.Plan
    shares: np.ndarray
    state: Any

    def sample(self, num_rows: int, *, seed: int, labels: np.ndarray | None = None) -> np.ndarray:
        """Synthetic rows, float32 [num_rows, columns], the label last. Labels have the classes' shares by default."""
        rng = np.random.default_rng(seed)
        if labels is None:
            labels = rng.choice(len(self.shares), num_rows, p=self.shares)
        blocks = []
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            own = np.resize(labels[start : start + _ROWS_AT_ONCE], _ROWS_AT_ONCE)
            key = jax.random.fold_in(jax.random.key(seed), start)
            rows = _sampled(self.gan, self.columns, *self.state, key, own)
            blocks.append(np.asarray(rows)[: num_rows - start])
        return self.columns.decoded(np.concatenate(blocks), np.asarray(labels))


def noisy_shares(key: jax.Array, labels: np.ndarray, num_labels: int, scale: float) -> np.ndarray:
    """Shares of the classes, [L], from counts with noise N(0, scale²)."""
    counts = np.bincount(labels, minlength=num_labels) + scale * np.asarray(jax.random.normal(key, (num_labels,)))
    counts = np.maximum(counts, 1)
    return counts / counts.sum()


def train(
    seed: int,
    rows: np.ndarray,
    columns: Columns,
    gan: Gan,
    budget: PrivacyBudget,
    count_scale: float = 0.0,
    progress: Progress | None = None,
) -> Trained:
    """Trains a GAN on private rows.

    Formal guarantee: (ε, δ)-differential privacy for one row that is added or removed, with a public rate of sampling,
    and with simulated noise. See ``dp_sgd``.

    Args:
      seed: of all randomness.
      rows: private, [N, columns].
      columns: of the rows.
      gan: how.
      budget: (ε, δ).
      count_scale: noise of the counts of the classes. If it is 0, all classes have equal shares.
      progress: called with (steps done, steps).

    Raises:
      ValueError: see ``dp_sgd.plan``.
    """
    plan = dp_sgd.plan(len(rows), gan.batch_size, gan.num_steps, budget, count_scale)
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    encoded, labels = columns.encoded(rows)
    shares = np.full(columns.num_labels, 1 / columns.num_labels)
    if count_scale:
        shares = noisy_shares(jax.random.fold_in(key, 0), labels, columns.num_labels, count_scale)
    state = start(gan, columns, key)
    for step in range(gan.num_steps):
        indices, used = dp_sgd.sample(rng, len(rows), plan)
        own = jax.random.fold_in(key, step + 1)
        state = _critic_step(
            gan, columns, state, own, encoded[indices], labels[indices], used, shares, plan.noise_multiplier
        )
        if step >= gan.warm_up and step % gan.critic_steps == 0:
            state = _generator_step(gan, columns, state, own, shares)
        if progress and step % 20 == 0:
            progress(step, gan.num_steps)
    return Trained(gan, columns, plan, shares, jax.tree.map(np.asarray, state.averaged))


class State(NamedTuple):
    """What training changes. Statistics are those of the generator's batch normalisation."""

    critic: Any
    critic_moments: Any
    generator: Any
    statistics: Any
    generator_moments: Any
    averaged: Any


def _build(gan: Gan, columns: Columns, rngs: nnx.Rngs) -> nnx.Module:
    return gan.generator.build(columns.num_labels, columns.width, rngs)


def _optimisers(gan: Gan) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    def rate(peak: float, steps: int, warm_up: int) -> optax.Schedule:
        return optax.warmup_cosine_decay_schedule(0.0, peak, warm_up, max(steps, warm_up + 1), end_value=0.1 * peak)

    generator_steps = gan.num_steps // gan.critic_steps
    critic = optax.adam(rate(gan.critic_rate, gan.num_steps, gan.warm_up), b1=gan.beta1)
    generator = optax.adam(rate(gan.generator_rate, generator_steps, 20), b1=gan.beta1)
    return critic, generator


def start(gan: Gan, columns: Columns, key: jax.Array) -> State:
    """Random networks."""
    generator_key, critic_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    critic = gan.critic.start(columns, critic_key)
    _, generator, statistics = nnx.split(_build(gan, columns, nnx.Rngs(generator_key)), nnx.Param, ...)
    optimisers = _optimisers(gan)
    return State(
        critic,
        optimisers[0].init(critic),
        generator,
        statistics,
        optimisers[1].init(generator),
        (generator, statistics),
    )


@functools.lru_cache(maxsize=8)
def _graph(gan: Gan, columns: Columns) -> nnx.GraphDef:
    """The structure of the generator."""
    return nnx.split(nnx.eval_shape(lambda: _build(gan, columns, nnx.Rngs(0))), nnx.Param, ...)[0]


def _generate(
    gan: Gan, columns: Columns, generator: Any, statistics: Any, key: jax.Array, labels: jax.Array, train: bool
) -> tuple[jax.Array, Any]:
    """Rows [n, width] with labels [n], and the statistics after them."""
    module = nnx.merge(_graph(gan, columns), generator, statistics, copy=True)
    if not train:
        module.eval()
    code_key, row_key = jax.random.split(key)
    codes = jax.random.normal(code_key, (len(labels), gan.generator.num_normals(columns.width)))
    raw = module(jnp.concatenate([codes, jax.nn.one_hot(labels, columns.num_labels)], axis=1))
    return columns.relaxed(row_key, raw), nnx.split(module, nnx.Param, ...)[2]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sampled(gan, columns, generator, statistics, key, labels):
    return _generate(gan, columns, generator, statistics, key, labels, train=False)[0]


def critic_gradients(
    gan: Gan,
    columns: Columns,
    state: State,
    key: jax.Array,
    rows: AnyArray,
    labels: AnyArray,
    used: AnyArray,
    shares: AnyArray,
    noise_multiplier: float | jax.Array,
) -> list[jax.Array]:
    """The noisy gradients of the critic on a Poisson sample, by each of its matrices.

    Without noise, they change by at most C over the mean batch if one row is added or removed.

    Args:
      gan: how.
      columns: of the rows.
      state: of training.
      key: of generated rows and of noise.
      rows: encoded private rows and padding, [room, width].
      labels: of the rows, [room].
      used: 1 for a row, 0 for padding, [room].
      shares: of the classes of generated rows, [L].
      noise_multiplier: σ.
    """
    label_key, row_key, noise_key = jax.random.split(key, 3)
    drawn = jax.random.choice(label_key, columns.num_labels, (len(used),), p=jnp.asarray(shares))
    made, _ = _generate(gan, columns, state.generator, state.statistics, row_key, drawn, train=True)
    real = gan.critic.layers(
        columns, state.critic, jnp.asarray(rows), jnp.asarray(labels), lambda scores: jax.nn.softplus(-scores)
    )
    fake = gan.critic.layers(columns, state.critic, made, drawn, jax.nn.softplus)
    if gan.clips == "together":
        pairs = [
            (jnp.concatenate([x, y], axis=1), jnp.concatenate([g, h], axis=1))
            for (x, g), (y, h) in zip(real, fake, strict=True)
        ]
        private = dp_sgd.clipped_sum(pairs, jnp.asarray(used), gan.norm)
        public = [jnp.zeros_like(x) for x in private]
    else:
        private = dp_sgd.clipped_sum(real, jnp.asarray(used), gan.norm)
        public = dp_sgd.clipped_sum(fake, jnp.ones(len(used)), gan.norm)
    private = dp_sgd.with_noise(noise_key, private, noise_multiplier * gan.norm)
    return [x / gan.batch_size + y / len(used) for x, y in zip(private, public, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _critic_step(gan, columns, state, *arguments):
    """One step of DP-SGD. Arguments are those of :func:`critic_gradients`."""
    gradients = critic_gradients(gan, columns, state, *arguments)
    with jax.numpy_dtype_promotion("standard"):  # optax divides whole numbers
        updates, moments = _optimisers(gan)[0].update(gradients, state.critic_moments)
    return state._replace(critic=optax.apply_updates(state.critic, updates), critic_moments=moments)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generator_step(gan, columns, state, key, shares):
    label_key, row_key = jax.random.split(jax.random.fold_in(key, 1))
    drawn = jax.random.choice(label_key, columns.num_labels, (gan.generator_batch,), p=shares)

    def loss(generator):
        made, statistics = _generate(gan, columns, generator, state.statistics, row_key, drawn, train=True)
        scores, _ = gan.critic.scores(columns, state.critic, made, drawn)
        return jnp.mean(jax.nn.softplus(-scores)), statistics

    gradients, statistics = jax.grad(loss, has_aux=True)(state.generator)
    with jax.numpy_dtype_promotion("standard"):
        updates, moments = _optimisers(gan)[1].update(gradients, state.generator_moments)
    generator = optax.apply_updates(state.generator, updates)
    averaged = jax.tree.map(
        lambda old, new: gan.average * old + (1 - gan.average) * new, state.averaged, (generator, statistics)
    )
    return state._replace(generator=generator, statistics=statistics, generator_moments=moments, averaged=averaged)
