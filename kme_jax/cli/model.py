"""The kernel and the size of the feature map: the flags that release and plan share, and their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import kme_jax
from kme_jax.cli import parsing
from kme_jax.cli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

KERNELS: dict[str, Callable[[float], kme_jax.Kernel]] = {
    "gaussian": lambda length: kme_jax.Gaussian(1 / (2 * length**2)),
    "laplacian": lambda length: kme_jax.Laplacian(1 / length),
    "matern32": lambda length: kme_jax.Matern32(length),
    "matern52": lambda length: kme_jax.Matern52(length),
}
"""From the name of a kernel to a function of its length."""

_MAX_SAMPLED = 1000  # public points whose distance to their nearest neighbour is computed


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --kernel, --length, --num_features and --seed."""
    parser.add_argument(
        "--kernel", choices=sorted(KERNELS), help="The kernel. Columns are scaled to [0, 1] first. Default: gaussian."
    )
    parser.add_argument(
        "--length",
        type=float,
        metavar="L",
        help="The kernel's length, as a share of the columns' ranges. Structure finer than L is lost. Default: 0.03 √d "
        "for d columns. With public points: twice the median distance from a point to its nearest neighbour, at most "
        "√(d/6)/2, if that is longer.",
    )
    parser.add_argument(
        "--num_features", type=int, metavar="J", help="The largest number of Fourier features, even. Default: 10000."
    )
    parser.add_argument(
        "--seed",
        type=parsing.seed,
        default=0,
        help="The seed of public random numbers. The noise has no seed: it differs every time. Default: 0.",
    )


def default_length(points: np.ndarray) -> float:
    """A length for which the kernel reaches from one public point to the next.

    A shorter kernel could not represent rows between the points. The length is twice the median distance from a point
    to its nearest neighbour, computed for at most 1000 points. It is no more than half of √(d/6), the root mean square
    distance of uniform rows: with a longer kernel all rows look alike.

    Args:
      points: public points [M, d] in [0, 1]^d.

    Returns:
      The length; 0 if there are no two different points.
    """
    import numpy as np
    from scipy.spatial import KDTree

    points = np.unique(points, axis=0)
    if len(points) < 2:
        return 0.0
    sampled = points[np.random.default_rng(0).permutation(len(points))[:_MAX_SAMPLED]]
    length = 2 * float(np.median(KDTree(points).query(sampled, 2)[0][:, 1]))
    return min(length, math.sqrt(points.shape[1] / 6) / 2)


def length(args: argparse.Namespace, dim: int, points: np.ndarray | None = None) -> float:
    """The kernel's length.

    Args:
      args: --length, if it was given.
      dim: d, the number of columns.
      points: public points [M, d] in [0, 1]^d, if there are any. The default depends on them.
    """
    if args.length is not None:
        return args.length
    return max(0.03 * math.sqrt(dim), 0.0 if points is None else default_length(points))


def kernel(args: argparse.Namespace, length: float) -> kme_jax.Kernel:
    """The kernel of this length.

    Raises:
      InputError: if the length is too small or too large.
    """
    if not 1e-4 <= length <= 100:
        raise InputError(f"--length must be between 0.0001 and 100 times the columns' ranges, got {length:g}")
    return KERNELS[args.kernel or "gaussian"](length)


def num_features(args: argparse.Namespace) -> int:
    """The largest number of Fourier features.

    Raises:
      InputError: if the number is odd, too small or too large.
    """
    count = 10_000 if args.num_features is None else args.num_features
    if not 2 <= count <= 10**6 or count % 2:
        raise InputError(f"--num_features must be even and from 2 to a million, got {count}")
    return count
