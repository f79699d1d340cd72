"""Feature maps ψ: R^d → R^F with a proved diameter."""

from kme_jax.feature_maps.base import FeatureMap
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.subspace import SubspaceMap

__all__ = ["FeatureMap", "FourierMap", "SubspaceMap"]
