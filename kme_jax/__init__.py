"""Private release of databases by kernel mean embeddings, in JAX.

The three steps (Balog et al. 2018, section 3.2): :func:`mean_embedding` of the private rows under a feature map,
:func:`perturb` it within a :class:`PrivacyBudget`, and represent the result as a :class:`WeightedSample`.
:func:`improved`, :func:`algorithm1` and :func:`algorithm2` do all three.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from kme_jax._numerics.pytrees import pytree_dataclass
from kme_jax._version import __version__
from kme_jax.algorithms import algorithm1, algorithm2, improved
from kme_jax.domain import Bounds, NormalProposal
from kme_jax.embedding import (
    IntegerEmbedding,
    MeanEmbedding,
    integer_embedding,
    integer_embedding_of_batches,
    mean_embedding,
    mean_embedding_of_batches,
)
from kme_jax.feature_maps import FeatureMap, FourierMap, LabelledMap, LatticeMap, MixedMap, SubspaceMap, spectral_map
from kme_jax.generators.algorithm import dp_merf
from kme_jax.kernels import Gaussian, GaussianSum, Kernel, Laplacian, Matern32, Matern52
from kme_jax.points.measure import measure, release
from kme_jax.points.release import Measurement, Release
from kme_jax.privacy import NoisyEmbedding, PrivacyBudget, perturb, perturb_securely
from kme_jax.privacy.ledger import Ledger, Spending
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
    "NoisyEmbedding",
    "NormalProposal",
    "PrivacyBudget",
    "Release",
    "Spending",
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
    "load",
    "mean_embedding",
    "mean_embedding_of_batches",
    "measure",
    "perturb",
    "perturb_securely",
    "posterior_mean",
    "pytree_dataclass",
    "release",
    "represent",
    "spectral_map",
    "uniform",
]


def load(folder: str | os.PathLike[str], kinds: Sequence[str] | None = None) -> Any:
    """What a folder holds: a ``Measurement`` or ``Release`` of points, of a table or of a generator.

    What does not follow from the mechanisms is refused, see ``kme_jax.privacy.verification``.

    Args:
      folder: its path.
      kinds: names of the kinds that are expected, such as "release", as its manifest says it; None for any.

    Raises:
      ReleaseError: it holds nothing of these kinds, or is damaged, or edited, or of another version.
      ModuleNotFoundError: a library is missing that this kind of release needs.
    """
    from kme_jax.storage import folders

    missing = None
    for product in ("points", "generators", "table"):
        try:
            importlib.import_module(f"kme_jax.{product}.release")
        except ModuleNotFoundError as error:
            missing = error
    try:
        return folders.load(folder, kinds)
    except folders.UnknownKindError:
        raise missing or sys.exception() from None
