"""The choice of Fourier features if there are no public points. The kernel and the proposal alone decide it."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from kme_jax.domain import NormalProposal
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.waves import SpectralMap
from kme_jax.kernels import Gaussian, Kernel

_REACH = 6.0  # standard deviations of the proposal: a share of 2e-9 of its draws is further out


def spectral_map(
    key: PRNGKeyArray,
    kernel: Kernel,
    proposal: NormalProposal,
    num_features: int = 10_000,
    *,
    box: tuple[Float[np.ndarray, "d"], Float[np.ndarray, "d"]] | None = None,
) -> SpectralMap:
    """A LatticeMap if the kernel is Gaussian and a lattice of at most J features covers the box. Else a FourierMap.

    Args:
      key: a JAX random key for the frequencies of a FourierMap.
      kernel: k, shift-invariant.
      proposal: a public proposal.
      num_features: J, even. A LatticeMap may have fewer features.
      box: public lower and upper bounds of all rows, [d] each. If None, six standard deviations of the proposal to all
        sides.

    Raises:
      ValueError: if num_features is odd or below 2, or the kernel is not shift-invariant, or the box is so far from the
        origin that rows in it would count as zero in random features.

    Examples:
      >>> import jax
      >>> from kme_jax import Gaussian, Laplacian, NormalProposal, spectral_map
      >>> proposal = NormalProposal.from_bounds([-4, -4], [4, 4])
      >>> for kernel in (Gaussian(gamma=0.5), Laplacian(gamma=0.5)):
      ...     print(type(spectral_map(jax.random.key(0), kernel, proposal)).__name__)
      LatticeMap
      FourierMap
    """
    reach = _REACH * proposal.scale
    lower, upper = box or (proposal.mean - reach, proposal.mean + reach)
    if isinstance(kernel, Gaussian) and LatticeMap.fits(kernel, lower, upper, num_features):
        return LatticeMap.from_box(kernel, lower, upper, num_features)
    fourier = FourierMap.from_kernel(key, kernel, num_features, proposal.dim)
    if not (np.maximum(np.abs(lower), np.abs(upper)) <= fourier.row_bound).all():
        region = "proposal" if box is None else "box"
        remedy = "subtract a public centre from the columns, or use a kernel" if box is None else "use a kernel"
        raise ValueError(
            f"rows beyond {fourier.row_bound:.3g} count as zero, and the {region} reaches beyond it: {remedy} with a "
            "larger length"
        )
    return fourier
