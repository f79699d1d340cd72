"""Greedy pre-images as a single GPU kernel, which takes every Adam step of every point.

One program of 128 threads works for one embedding. It keeps the frequencies and the residual in shared memory, so a
step takes one or two microseconds. A loop of small kernels takes ten times as long to launch. The kernel is written in
Pallas (Mosaic GPU). It needs an NVIDIA GPU of compute capability 9.0 or higher, and JAX 0.11 or later.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Float, Float32

from kme_jax._numerics import fused

Array = jax.Array

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of Adam

# Coefficients of cos 2πr in powers of r², and of sin 2πr / r in powers of r², for |r| ≤ 1/2. They were fitted by least
# squares at Chebyshev points. The error before rounding is at most 2e-8.
COSINE = (0.999999995, -19.7392056, 64.9391584, -85.4507597, 60.1720489, -25.9824248, 6.54757138)
SINE = (6.28318528, -41.3416978, 81.605046, -76.7018209, 42.0178586, -14.8737828, 3.2058294)

_CHUNK = 512  # frequencies at a time, four for each thread
_SHARED_BYTES = 220 * 1024


def polynomial(coefficients: tuple[float, ...], y: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Σ_i c_i yⁱ."""
    value = coefficients[-1] * y + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * y + coefficient
    return value


def is_supported(
    device: jax.Device,  # pyright: ignore[reportInvalidTypeForm]  # JAX has no stub for it
    num_frequencies: int,
    dim: int,
    dtype: Any,
) -> bool:
    """Whether the kernel can run on a device for this number of frequencies J/2, of columns d and this dtype."""
    fits = (dim + 2) * 4 * _padded(num_frequencies) <= _SHARED_BYTES
    return fits and dtype == jnp.float32 and fused.is_supported(device)


def _padded(num_frequencies: int) -> int:
    return -(-num_frequencies // _CHUNK) * _CHUNK


@functools.partial(jax.jit, static_argnames=("num_steps", "interpret"))
def greedy_points(
    turns: Float32[Array, "embeddings frequencies d"],
    learning_rates: Float32[Array, "embeddings"],
    residuals: Float32[Array, "embeddings 2 frequencies"],
    starts: Float32[Array, "M d"],
    *,
    num_steps: int,
    interpret: Any = None,
) -> tuple[Float32[Array, "embeddings 2 frequencies"], Float32[Array, "embeddings M d"]]:
    """Greedy pre-images, one after another, for several embeddings.

    Args:
      turns: frequencies in turns, [embeddings, J/2, d], float32.
      learning_rates: of Adam, [embeddings].
      residuals: r, of cosines and sines, [embeddings, 2, J/2].
      starts: one for each point, [b, d].
      num_steps: Adam steps for each point.
      interpret: parameters of Pallas' interpreter, which runs without a GPU; for tests.

    Returns:
      The residuals after b points, [embeddings, 2, J/2], and the points, [embeddings, b, d].
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu

    plgpu = cast(Any, mosaic_gpu)  # its functions have other arguments before the least JAX of ``fused``

    num_embeddings, num_frequencies, dim = turns.shape
    padding = (0, 0), (0, 0), (0, _padded(num_frequencies) - num_frequencies)  # the residual is 0 there
    columns, padded = jnp.pad(turns.swapaxes(1, 2), padding), jnp.pad(residuals, padding)
    chunks = [pl.ds(start, _CHUNK) for start in range(0, padded.shape[2], _CHUNK)]

    is_frequency = (jnp.arange(padded.shape[2]) < num_frequencies)[-_CHUNK:].astype(jnp.float32)  # in the last chunk

    def program(
        columns_ref, rates_ref, before_ref, starts_ref, mask_ref, after_ref, points_ref, turns_ref, residual_ref
    ):
        embedding = jax.lax.axis_index("embeddings")
        rate = rates_ref[embedding]
        for chunk in chunks:
            for d in range(dim):
                turns_ref[d, chunk] = plgpu.load(columns_ref.at[embedding, d, chunk])
            for k in range(2):
                residual_ref[k, chunk] = plgpu.load(before_ref.at[embedding, k, chunk])

        def waves(point, chunk):
            """Of one chunk: the frequencies by column, the residual (cosine, sine) and the features (cosine, sine)."""
            turns = [plgpu.load(turns_ref.at[d, chunk]) for d in range(dim)]
            residual = [plgpu.load(residual_ref.at[k, chunk]) for k in range(2)]
            angle = turns[0] * point[0]
            for d in range(1, dim):
                angle = angle + turns[d] * point[d]
            r = angle - jnp.round(angle)
            y = r * r
            return turns, residual, (polynomial(COSINE, y), r * polynomial(SINE, y))

        def step(_, state):
            point, mean, square, power1, power2 = state
            totals: Any = None
            for chunk in chunks:
                turns, (c, s), (cosine, sine) = waves(point, chunk)
                slope = s * cosine - c * sine
                terms = [c * cosine + s * sine, *(slope * column for column in turns)]
                totals = terms if totals is None else [a + b for a, b in zip(totals, terms, strict=True)]
            value, *slopes = (jnp.sum(total) for total in totals)
            value = value * (-4 * math.pi / num_frequencies)
            gradient = [value * slope for slope in slopes]  # of -⟨r, ψ(z)⟩² / ‖ψ(z)‖²
            power1, power2 = BETA1 * power1, BETA2 * power2
            mean = tuple(BETA1 * m + (1 - BETA1) * g for m, g in zip(mean, gradient, strict=True))
            square = tuple(BETA2 * v + (1 - BETA2) * g * g for v, g in zip(square, gradient, strict=True))
            size, unbiased = rate / (1 - power1), 1 / (1 - power2)
            point = tuple(
                z - size * m / (jnp.sqrt(unbiased * v) + EPSILON) for z, m, v in zip(point, mean, square, strict=True)
            )
            return point, mean, square, power1, power2

        def add_point(m, carry):
            start, zero, one = tuple(starts_ref[m, d] for d in range(dim)), jnp.float32(0), jnp.float32(1)
            state = (start, (zero,) * dim, (zero,) * dim, one, one)
            point, *_ = jax.lax.fori_loop(jnp.int32(0), jnp.int32(num_steps), step, state)
            total: Any = None
            for chunk in chunks:
                _, (c, s), (cosine, sine) = waves(point, chunk)
                product = c * cosine + s * sine
                total = product if total is None else total + product
            component = jnp.sum(total) / num_frequencies
            for chunk in chunks:
                _, (c, s), (cosine, sine) = waves(point, chunk)
                change = component * plgpu.load(mask_ref) if chunk is chunks[-1] else component
                residual_ref[0, chunk] = c - change * cosine
                residual_ref[1, chunk] = s - change * sine
            for d in range(dim):
                points_ref[embedding, m, d] = point[d]
            return carry

        jax.lax.fori_loop(jnp.int32(0), jnp.int32(starts.shape[0]), add_point, jnp.int32(0))
        for chunk in chunks:
            for k in range(2):
                after_ref[embedding, k, chunk] = plgpu.load(residual_ref.at[k, chunk])

    kernel = plgpu.kernel(
        program,
        out_type=(
            jax.ShapeDtypeStruct(padded.shape, jnp.float32),
            jax.ShapeDtypeStruct((num_embeddings, starts.shape[0], dim), jnp.float32),
        ),
        scratch_types=[plgpu.SMEM(columns.shape[1:], jnp.float32), plgpu.SMEM(padded.shape[1:], jnp.float32)],
        grid=(num_embeddings,),
        grid_names=("embeddings",),
        # The other semantics infer layouts, which takes minutes for this many operations.
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        interpret=interpret,
    )
    after, points = kernel(columns, learning_rates, padded, starts, is_frequency)
    return after[:, :, :num_frequencies], points
