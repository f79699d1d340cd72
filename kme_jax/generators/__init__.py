"""DP-MERF: generators trained on one noisy mean embedding.

They need flax: ``pip install "kme_jax[generators]"``. Modules that import flax are imported when one of their names is
used, so that this package can be imported without flax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kme_jax.generators.algorithm import dp_merf
    from kme_jax.generators.generator import Generator, GeneratorReport
    from kme_jax.generators.measure import measure_generator, measure_labelled
    from kme_jax.generators.networks import MLP, Convolutional, Network, SmoothImages
    from kme_jax.generators.release import GeneratorMeasurement, GeneratorRelease
    from kme_jax.generators.settings import Training
    from kme_jax.generators.train import train_generator

__all__ = [
    "MLP",
    "Convolutional",
    "Generator",
    "GeneratorMeasurement",
    "GeneratorRelease",
    "GeneratorReport",
    "Network",
    "SmoothImages",
    "Training",
    "dp_merf",
    "measure_generator",
    "measure_labelled",
    "train_generator",
]

_MODULES = {
    "algorithm": ("dp_merf",),
    "generator": ("Generator", "GeneratorReport"),
    "measure": ("measure_generator", "measure_labelled"),
    "networks": ("MLP", "Convolutional", "Network", "SmoothImages"),
    "release": ("GeneratorMeasurement", "GeneratorRelease"),
    "settings": ("Training",),
    "train": ("train_generator",),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
