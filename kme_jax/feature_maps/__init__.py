"""Feature maps ψ: R^d → R^F with a proved diameter."""

from kme_jax.feature_maps.base import FeatureMap, IntegerMap
from kme_jax.feature_maps.binning import RandomBinningMap
from kme_jax.feature_maps.choice import spectral_map
from kme_jax.feature_maps.fourier import FourierMap
from kme_jax.feature_maps.labelled import LabelledMap, MixedMap
from kme_jax.feature_maps.lattice import LatticeMap
from kme_jax.feature_maps.polynomial import PolynomialMap
from kme_jax.feature_maps.quadrature import QuadratureMap
from kme_jax.feature_maps.sketches import RandomMaclaurinMap, TensorSketchMap
from kme_jax.feature_maps.subspace import SubspaceMap
from kme_jax.feature_maps.transformed import TransformedMap
from kme_jax.feature_maps.transforms import OrientedEdges
from kme_jax.feature_maps.waves import SpectralMap

__all__ = [
    "FeatureMap",
    "FourierMap",
    "IntegerMap",
    "LabelledMap",
    "LatticeMap",
    "MixedMap",
    "OrientedEdges",
    "PolynomialMap",
    "QuadratureMap",
    "RandomBinningMap",
    "RandomMaclaurinMap",
    "SpectralMap",
    "SubspaceMap",
    "TensorSketchMap",
    "TransformedMap",
    "spectral_map",
]
