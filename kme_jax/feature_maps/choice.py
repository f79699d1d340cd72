"""Which Fourier features to use where no row is public: decided by the kernel and the proposal alone."""

from __future__ import annotations

import jax
import numpy as np

from kme_jax.domain import NormalProposal
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.kernels import Gaussian, Kernel

_REACH = 6.0  # standard deviations of the proposal; further out there are 2e-9 of its draws


def spectral_map(
    key: jax.Array,
    kernel: Kernel,
    proposal: NormalProposal,
    num_features: int = 10_000,
    *,
    box: tuple[np.ndarray, np.ndarray] | None = None,
) -> SpectralMap:
    """A LatticeMap where it fits: a Gaussian kernel, and a box that num_features cover. Otherwise a FourierMap.

    Args:
      key: a JAX random key for the frequencies, if they are random.
      kernel: k, shift-invariant.
      proposal: public.
      num_features: J, even; for a LatticeMap at most.
      box: public lower and upper bounds of all rows, [d] each; six standard deviations of the proposal to all sides if
        None.

    Raises:
      ValueError: num_features odd or below 2; a kernel that is not shift-invariant; a box so far from the origin
        that random features of rows there would count as zero.
    """
    reach = _REACH * proposal.scale
    lower, upper = box or (proposal.mean - reach, proposal.mean + reach)
    if isinstance(kernel, Gaussian) and LatticeMap.fits(kernel, lower, upper, num_features):
        return LatticeMap.from_box(kernel, lower, upper, num_features)
    fourier = FourierMap.from_kernel(key, kernel, num_features, proposal.dim)
    if not (np.maximum(np.abs(lower), np.abs(upper)) <= fourier.row_bound).all():
        what = "proposal" if box is None else "box"
        remedy = "subtract a public centre from the columns, or use a kernel" if box is None else "use a kernel"
        raise ValueError(
            f"rows beyond {fourier.row_bound:.3g} count as zero, and the {what} reaches beyond: {remedy} of more length"
        )
    return fourier
