"""Weighted sums over rows of functions of (point, row) pairs, in one GPU kernel.

A program of 128 threads keeps the coordinates of a few points in registers, and takes the rows of one tile one after
another. In float32, rows come from shared memory. In float64 they come through the cache, because copies to shared
memory do not support float64. Only the sums are stored, so the arithmetic units limit the speed. The kernel is written
in Pallas (Mosaic GPU). It needs an NVIDIA GPU of compute capability 9.0 or higher, and JAX 0.11 or later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Real

from kme_jax._numerics.exp2 import exp2_by_polynomial
from kme_jax._numerics.shapes import AnyArray
from kme_jax._numerics.short_repr import short_repr

Array = jax.Array

MAX_COLUMNS = 32  # more would not fit into registers
_THREADS = 128  # of a program: one warpgroup
_LINE = 256  # largest number of values that one copy to shared memory moves along an axis
_SHARED_BYTES = 32 * 1024  # of rows, so that six programs share a multiprocessor
# Of one pass of the innermost loop, which takes several rows. Thousands of operations would take seconds to lower,
# because Mosaic's choice of layouts takes longer than in proportion to them.
_MOST_OPERATIONS = 200
_LEAST_CAPABILITY, _LEAST_JAX = (9, 0), (0, 11)


@short_repr
class Columns(NamedTuple):
    """Functions f_1, ..., f_c of pairs, in terms of single columns of points and rows.

    Attributes:
      points: the columns of points that the functions use, [m, p].
      rows: the columns of rows that the functions use, [n, p].
      values: a function of (functions, columns of points, columns of rows, exp2) that returns c arrays. Columns
        broadcast against each other. ``functions`` is the pytree that these columns come from, with scalar leaves.
    """

    points: Real[AnyArray, "m p"]
    rows: Real[AnyArray, "n p"]
    values: Callable[[Any, Sequence[Array], Sequence[Array], Callable[[Array], Array]], tuple[Array, ...]]


@functools.cache
def is_supported(device: jax.Device) -> bool:  # pyright: ignore[reportInvalidTypeForm]  # JAX has no stub for it
    """Whether the kernel can run on a device."""
    capability = str(getattr(device, "compute_capability", ""))
    if device.platform != "gpu" or jax.__version_info__ < _LEAST_JAX or not capability.replace(".", "").isdigit():
        return False
    return tuple(map(int, capability.split("."))) >= _LEAST_CAPABILITY


def tile_shape(num_columns: int, dtype: np.dtype) -> tuple[int, int]:
    """The numbers of rows and of points of one program, for a number of columns."""
    itemsize = np.dtype(dtype).itemsize
    per_thread = 16 // itemsize if num_columns <= 48 // itemsize else 8 // itemsize
    return _SHARED_BYTES // itemsize // _width(num_columns), _THREADS * per_thread


def _width(num_columns: int) -> int:
    """Number of values of a row in shared memory, weight included: a power of two, so that lines hold complete rows."""
    return 1 << num_columns.bit_length()


def columns_of(functions: Any, dim: int, dtype: np.dtype) -> int | None:
    """Number of columns that the functions use in this kernel; None if they do not support it, or use too many."""
    leaves, structure = jax.tree.flatten(functions)
    if dtype not in (np.float32, np.float64) or any(np.ndim(leaf) for leaf in leaves):
        return None
    return _num_columns(structure, dim, np.dtype(dtype))


@functools.lru_cache(maxsize=64)
def _num_columns(structure: Any, dim: int, dtype: np.dtype) -> int | None:
    functions = jax.tree.unflatten(structure, [1.0] * structure.num_leaves)
    form, widths = getattr(functions, "columns", None), []
    if form is None:
        return None

    def look(points, rows):
        columns = form(points, rows)
        widths.append(MAX_COLUMNS + 1 if columns is None else columns.rows.shape[1])

    jax.eval_shape(look, *[jax.ShapeDtypeStruct((1, dim), dtype)] * 2)
    return widths[0] if widths[0] <= MAX_COLUMNS else None


def _num_operations(form: Columns, functions: Any, exp2: Callable[[Array], Array]) -> int:
    """Number of operations of the functions of one row."""
    columns = [jax.ShapeDtypeStruct((1,), form.rows.dtype)] * form.rows.shape[1]
    values = jax.make_jaxpr(lambda f, z, x: form.values(f, z, x, exp2))(functions, columns, columns)
    return max(1, len(values.jaxpr.eqns))


def sums(
    functions: Any, points: Array, rows: Array, weights: Array, count: Array | None = None, *, interpret: Any = None
) -> Array:
    """Σ_n a_n f(z_m, x_n) over the rows of each tile: [c, tiles, m]. Traceable.

    Args:
      functions: a pytree with scalar leaves, a method ``columns`` (points, rows) -> :class:`Columns`, and
        ``num_values``, which is c.
      points: z, [m, d], float32 or float64. m is a multiple of the number from ``tile_shape``.
      rows: x, [n, d], of the same dtype. n is a multiple of the number from ``tile_shape``.
      weights: a, [n], of the same dtype.
      count: a vector whose first entry is the number of rows, if rows after it have weight 0. They then take hardly any
        time. It has the same dtype, which is exact for numbers up to 2^24.
      interpret: parameters of Pallas' interpreter, which runs without a GPU; for tests.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu

    plgpu = cast(Any, mosaic_gpu)  # its functions have other arguments before _LEAST_JAX

    form, dtype, num_values = functions.columns(points, rows), rows.dtype, functions.num_values
    num_columns = form.rows.shape[1]
    tile_rows, tile_points = tile_shape(num_columns, dtype)
    width, lines = _width(num_columns), tile_rows * _width(num_columns) // _LINE
    exp2, shared = (jnp.exp2, True) if dtype == np.float32 else (exp2_by_polynomial, False)
    unrolled = max(1, min(8, 32 // width, _MOST_OPERATIONS // _num_operations(form, functions, exp2)))
    unrolled = 1 << (unrolled.bit_length() - 1)  # a line has a power of two of rows
    num_tiles, num_points = rows.shape[0] // tile_rows, points.shape[0]
    leaves, structure = jax.tree.flatten(functions)
    packed = jnp.concatenate([form.rows, weights[:, None]], axis=1)
    packed = jnp.pad(packed, ((0, 0), (0, width - num_columns - 1))).reshape(-1, _LINE)
    count = jnp.full(1, rows.shape[0], dtype) if count is None else count
    numbers = [jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves])] if leaves else []
    parameters = jnp.concatenate([*numbers, count])

    def program(parameters_ref, points_ref, rows_ref, sums_ref, *scratch):
        which_points, tile = jax.lax.axis_index("points"), jax.lax.axis_index("tiles")
        lines_ref, first_line = (scratch[0], 0) if shared else (rows_ref, tile * lines)
        if shared:
            plgpu.copy_gmem_to_smem(rows_ref.at[pl.ds(tile * lines, lines)], *scratch)
        scalars = [parameters_ref[k] for k in range(len(leaves))]
        scaled = jax.tree.unflatten(structure, scalars)
        mine = pl.ds(which_points * tile_points, tile_points)
        coordinates = [plgpu.load(points_ref.at[c, mine]) for c in range(num_columns)]
        if shared:
            plgpu.barrier_wait(scratch[1])

        def add_group(totals, line, first):
            sums_of_group: list[Array | None] = [None] * num_values
            for row in range(unrolled):
                *x, weight = (lines_ref[first_line + line, (first + row) * width + c] for c in range(num_columns + 1))
                values = form.values(scaled, coordinates, x, exp2)
                sums_of_group = [
                    value * weight if total is None else total + value * weight
                    for total, value in zip(sums_of_group, values, strict=True)
                ]
            return tuple(total + term for total, term in zip(totals, sums_of_group, strict=True))

        def add_line(line, totals):
            return jax.lax.fori_loop(
                jnp.int32(0),
                jnp.int32(_LINE // width // unrolled),
                lambda group, totals: add_group(totals, line, group * unrolled),
                totals,
            )

        zero = jnp.zeros(tile_points, dtype)
        filled = (parameters_ref[len(leaves)].astype(jnp.int32) * width + _LINE - 1) // _LINE
        filled_lines = jnp.clip(filled - tile * lines, 0, lines)
        totals = jax.lax.fori_loop(jnp.int32(0), filled_lines, add_line, (zero,) * num_values)
        for k, total in enumerate(totals):
            sums_ref[k, tile, mine] = total

    kernel = plgpu.kernel(
        program,
        out_type=jax.ShapeDtypeStruct((num_values, num_tiles, num_points), dtype),
        scratch_types=[plgpu.SMEM((lines, _LINE), dtype), plgpu.Barrier()] if shared else [],
        grid=(num_points // tile_points, num_tiles),
        grid_names=("points", "tiles"),
        compiler_params=plgpu.CompilerParams(approx_math=dtype == np.float32),
        interpret=interpret,
    )
    return kernel(parameters, form.points.T, packed)
