"""Private release of databases by kernel mean embeddings, in JAX.

The three steps (Balog et al. 2018, section 3.2): :func:`mean_embedding` of the private rows under a feature map,
:func:`perturb` it within a :class:`PrivacyBudget`, and represent the result as a :class:`WeightedSample`.
:func:`improved`, :func:`algorithm1` and :func:`algorithm2` do all three.
"""

from kme_jax._version import __version__
from kme_jax.algorithms import algorithm1, algorithm2, dp_merf, improved
from kme_jax.bounds import Bounds
from kme_jax.embedding import (
    IntegerEmbedding,
    MeanEmbedding,
    integer_embedding,
    integer_embedding_of_batches,
    mean_embedding,
    mean_embedding_of_batches,
)
from kme_jax.feature_maps import FeatureMap, FourierMap, LabelledMap, LatticeMap, MixedMap, SubspaceMap, spectral_map
from kme_jax.kernels import Gaussian, GaussianSum, Kernel, Laplacian, Matern32, Matern52
from kme_jax.ledger import Ledger
from kme_jax.privacy import PrivacyBudget, PrivateEmbedding, perturb, perturb_securely
from kme_jax.proposals import NormalProposal
from kme_jax.release import Measurement, Release, measure, release
from kme_jax.synthesis import WeightedSample, adaptive, closed_form, l1_ball, posterior_mean, represent, uniform

__all__ = [
    "Bounds",
    "FeatureMap",
    "FourierMap",
    "Gaussian",
    "GaussianSum",
    "IntegerEmbedding",
    "Kernel",
    "LabelledMap",
    "Laplacian",
    "LatticeMap",
    "Ledger",
    "Matern32",
    "Matern52",
    "MeanEmbedding",
    "Measurement",
    "MixedMap",
    "NormalProposal",
    "PrivacyBudget",
    "PrivateEmbedding",
    "Release",
    "SubspaceMap",
    "WeightedSample",
    "__version__",
    "adaptive",
    "algorithm1",
    "algorithm2",
    "closed_form",
    "dp_merf",
    "improved",
    "integer_embedding",
    "integer_embedding_of_batches",
    "l1_ball",
    "mean_embedding",
    "mean_embedding_of_batches",
    "measure",
    "perturb",
    "perturb_securely",
    "posterior_mean",
    "release",
    "represent",
    "spectral_map",
    "uniform",
]
