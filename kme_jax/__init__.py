"""Private release of databases by kernel mean embeddings, in JAX.

The three steps (Balog et al. 2018, section 3.2): :func:`mean_embedding` of the private rows under a feature map,
:func:`perturb` it within a :class:`PrivacyBudget`, and represent the result as a :class:`WeightedSample`.
:func:`improved`, :func:`algorithm1` and :func:`algorithm2` do all three. :func:`release` does so for points that may be
published, and :func:`release_table` for a table with a :class:`Schema`.

A name is imported when it is first used, so that ``import kme_jax`` itself takes no time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kme_jax._version import __version__

if TYPE_CHECKING:
    from kme_jax._numerics.precision import float64
    from kme_jax._numerics.pytrees import pytree_dataclass
    from kme_jax.algorithms import algorithm1, algorithm2, exponential_mechanism, improved, noisy_function
    from kme_jax.analysis import estimate
    from kme_jax.domain import Bounds, NormalProposal
    from kme_jax.embedding import (
        IntegerEmbedding,
        MeanEmbedding,
        integer_embedding,
        integer_embedding_of_batches,
        integer_embedding_of_processes,
        mean_embedding,
        mean_embedding_of_batches,
    )
    from kme_jax.feature_maps import (
        FeatureMap,
        FourierMap,
        LabelledMap,
        LatticeMap,
        MixedMap,
        PolynomialMap,
        QuadratureMap,
        RandomBinningMap,
        RandomMaclaurinMap,
        SubspaceMap,
        TensorSketchMap,
        spectral_map,
    )
    from kme_jax.generators.algorithm import dp_merf
    from kme_jax.kernels import (
        Exponential,
        Gaussian,
        GaussianSum,
        Kernel,
        Laplacian,
        Matern32,
        Matern52,
        Polynomial,
    )
    from kme_jax.points.measure import measure, release
    from kme_jax.points.release import Measurement, Release
    from kme_jax.privacy import NoisyEmbedding, PrivacyBudget, perturb, perturb_securely
    from kme_jax.privacy.ledger import Ledger, Spending
    from kme_jax.processes import ProcessError, Processes
    from kme_jax.storage.rows import BatchedRows, open_rows
    from kme_jax.synthesis import (
        WeightedSample,
        adaptive_weights,
        closed_form_weights,
        l1_ball_weights,
        posterior_mean,
        represent,
        uniform,
    )
    from kme_jax.table import (
        Categorical,
        Constant,
        Datetime,
        Identifier,
        Numeric,
        Ordinal,
        Schema,
        Weight,
        measure_table,
        release_table,
    )

# What ``from kme_jax import *`` imports. The names of tables are among them if pyarrow is installed, which is an extra.
__all__ = [
    "BatchedRows",
    "Bounds",
    "Exponential",
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
    "Polynomial",
    "PolynomialMap",
    "PrivacyBudget",
    "ProcessError",
    "Processes",
    "QuadratureMap",
    "RandomBinningMap",
    "RandomMaclaurinMap",
    "Release",
    "Spending",
    "SubspaceMap",
    "TensorSketchMap",
    "WeightedSample",
    "__version__",
    "adaptive_weights",
    "algorithm1",
    "algorithm2",
    "closed_form_weights",
    "dp_merf",
    "estimate",
    "exponential_mechanism",
    "float64",
    "improved",
    "integer_embedding",
    "integer_embedding_of_batches",
    "integer_embedding_of_processes",
    "l1_ball_weights",
    "load",
    "mean_embedding",
    "mean_embedding_of_batches",
    "measure",
    "noisy_function",
    "open_rows",
    "perturb",
    "perturb_securely",
    "posterior_mean",
    "pytree_dataclass",
    "release",
    "represent",
    "spectral_map",
    "uniform",
]
if importlib.util.find_spec("pyarrow") is not None:
    __all__ += [
        "Categorical",
        "Constant",
        "Datetime",
        "Identifier",
        "Numeric",
        "Ordinal",
        "Schema",
        "Weight",
        "measure_table",
        "release_table",
    ]

# Where each public name is defined: the same as the imports above, which type checkers and editors read.
_MODULES = {
    "_numerics.precision": ("float64",),
    "_numerics.pytrees": ("pytree_dataclass",),
    "algorithms": ("algorithm1", "algorithm2", "exponential_mechanism", "improved", "noisy_function"),
    "analysis": ("estimate",),
    "domain": ("Bounds", "NormalProposal"),
    "embedding": (
        "IntegerEmbedding",
        "MeanEmbedding",
        "integer_embedding",
        "integer_embedding_of_batches",
        "integer_embedding_of_processes",
        "mean_embedding",
        "mean_embedding_of_batches",
    ),
    "feature_maps": (
        "FeatureMap",
        "FourierMap",
        "LabelledMap",
        "LatticeMap",
        "MixedMap",
        "PolynomialMap",
        "QuadratureMap",
        "RandomBinningMap",
        "RandomMaclaurinMap",
        "SubspaceMap",
        "TensorSketchMap",
        "spectral_map",
    ),
    "generators.algorithm": ("dp_merf",),
    "kernels": (
        "Exponential",
        "Gaussian",
        "GaussianSum",
        "Kernel",
        "Laplacian",
        "Matern32",
        "Matern52",
        "Polynomial",
    ),
    "points.measure": ("measure", "release"),
    "points.release": ("Measurement", "Release"),
    "privacy": ("NoisyEmbedding", "PrivacyBudget", "perturb", "perturb_securely"),
    "privacy.ledger": ("Ledger", "Spending"),
    "processes": ("ProcessError", "Processes"),
    "storage.rows": ("BatchedRows", "open_rows"),
    "synthesis": (
        "WeightedSample",
        "adaptive_weights",
        "closed_form_weights",
        "l1_ball_weights",
        "posterior_mean",
        "represent",
        "uniform",
    ),
    "table": (
        "Categorical",
        "Constant",
        "Datetime",
        "Identifier",
        "Numeric",
        "Ordinal",
        "Schema",
        "Weight",
        "measure_table",
        "release_table",
    ),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_PRODUCTS = ("points", "table", "generators")


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULE_OF})


def load(folder: str | os.PathLike[str], kinds: Sequence[str] | None = None) -> Any:
    """What a folder holds: a ``Measurement`` or ``Release`` of points, of a table or of a generator.

    What does not follow from the mechanisms is refused, see ``kme_jax.privacy.verification``. Products are imported one
    after the other until one of them has registered the folder's kind, so that points need neither pyarrow nor flax.

    Args:
      folder: its path.
      kinds: names of the kinds that are expected, such as "release", as its manifest says it; None for any.

    Raises:
      ReleaseError: it holds nothing of these kinds, or is damaged, or edited, or of another version.
      ModuleNotFoundError: a library is missing that this kind of release needs.

    Examples:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> from kme_jax import Gaussian, PrivacyBudget, load, measure
      >>> rows = np.random.default_rng(0).normal(size=(1000, 2))  # private
      >>> points = np.random.default_rng(1).normal(size=(20, 2))  # public
      >>> measured = measure(rows, Gaussian(gamma=0.5), points, budget=PrivacyBudget(1.0, 1e-5))
      >>> folder = measured.save(pathlib.Path(tempfile.mkdtemp()) / "measured")
      >>> type(load(folder)).__name__
      'Measurement'
    """
    from kme_jax.storage import folders

    missing: list[str] = []
    for product in _PRODUCTS:
        try:
            importlib.import_module(f"{__name__}.{product}.release")
        except ModuleNotFoundError as error:
            missing.append(str(error))
            continue
        try:
            return folders.load(folder, kinds)
        except folders.UnknownKindError:
            if product == _PRODUCTS[-1] and not missing:
                raise
    raise ModuleNotFoundError("; ".join(missing))
