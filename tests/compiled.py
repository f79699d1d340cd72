"""Feature maps and kernels as one program each. Without it, each of their operations is compiled for each shape."""

import functools

import jax


@jax.jit
def features(feature_map, rows):
    """ψ of rows [n, d], [n, F]."""
    return feature_map(rows)


@functools.partial(jax.jit, static_argnames="expand")
def pairwise(kernel, x, y, expand=False):
    """k of all pairs of rows [n, d] and [m, d], [n, m]."""
    return kernel.pairwise(x, y, expand=expand)


@functools.partial(jax.jit, static_argnames="expand")
def pairwise_of_each(kernels, x, y, expand=False):
    """The same for several kernels, as one program: a list of [n, m]."""
    return [kernel.pairwise(x, y, expand=expand) for kernel in kernels]


@jax.jit
def one_by_one(kernel, x, y):
    """The same by the form of two points."""
    return jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(y))(x)


@jax.jit
def one_by_one_of_each(kernels, x, y):
    """The same for several kernels, as one program: a list of [n, m]."""
    return [one_by_one(kernel, x, y) for kernel in kernels]
