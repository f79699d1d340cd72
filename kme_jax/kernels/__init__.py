"""Positive-definite kernels k(x, y) on R^d."""

from kme_jax.kernels.base import (
    UNROLLED_COLUMNS,
    Columnwise,
    Gaussian,
    GaussianSum,
    Kernel,
    Laplacian,
    Matching,
    Matern32,
    Matern52,
    OnColumns,
    Product,
    Sum,
    UnitShiftInvariant,
    orthogonal_normal,
    squared_distances,
)
from kme_jax.kernels.dot_products import DotProduct, Exponential, Polynomial

__all__ = [
    "UNROLLED_COLUMNS",
    "Columnwise",
    "DotProduct",
    "Exponential",
    "Gaussian",
    "GaussianSum",
    "Kernel",
    "Laplacian",
    "Matching",
    "Matern32",
    "Matern52",
    "OnColumns",
    "Polynomial",
    "Product",
    "Sum",
    "UnitShiftInvariant",
    "orthogonal_normal",
    "squared_distances",
]
