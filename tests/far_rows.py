"""An adversarial search for two rows in a ball whose features are as far apart as possible."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.spatial

_STEPS = 200
_FALL = 0.97  # of the length of a step


def _within(rows, radius):
    norms = jnp.linalg.norm(rows, axis=-1, keepdims=True)
    return rows * jnp.minimum(1, radius / jnp.where(norms > 0, norms, 1))


@jax.jit
def _ascend(feature_map, pairs):
    """Gradient ascent of the distances of pairs of rows [2, n, d] in the ball, with steps of falling length."""

    def distances(pairs):
        first, second = jnp.split(feature_map(pairs.reshape(-1, pairs.shape[2])), 2)
        return jnp.sum(jnp.square(first - second), axis=1)

    radius = feature_map.kernel.radius

    def step(_, state):
        pairs, length = state
        slopes = jax.grad(lambda pairs: jnp.sum(jnp.log(distances(pairs) + 1e-9)))(pairs)
        norms = jnp.linalg.norm(slopes, axis=2, keepdims=True)
        return _within(pairs + length * slopes / (norms + 1e-20), radius), _FALL * length

    return jax.lax.fori_loop(0, _STEPS, step, (pairs, jnp.asarray(0.3 * radius, pairs.dtype)))[0]


def furthest(feature_map, num_pairs=24, seed=0):
    """The largest distance that was found of the features of two rows, or of a row and the zero vector, in float64."""
    rng, radius = np.random.default_rng(seed), feature_map.kernel.radius
    pairs = rng.normal(size=(2, num_pairs, feature_map.dim))
    pairs *= radius * rng.uniform(0.3, 1, (2, num_pairs, 1)) / np.linalg.norm(pairs, axis=2, keepdims=True)
    found = np.asarray(_ascend(feature_map, jnp.asarray(pairs, jnp.float32)), np.float64)
    ends = np.eye(feature_map.dim)[:1] * radius
    rows = np.concatenate([found.reshape(-1, feature_map.dim), ends, -ends])
    rows *= np.minimum(1, radius / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))
    features = np.concatenate([feature_map.host_features(rows), np.zeros((1, feature_map.num_features))])
    return float(scipy.spatial.distance.pdist(features).max())
