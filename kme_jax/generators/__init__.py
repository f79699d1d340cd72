"""DP-MERF: generators trained on one noisy mean embedding. Needs flax."""

from kme_jax.generators.algorithm import dp_merf
from kme_jax.generators.measure import measure_generator, measure_labelled
from kme_jax.generators.networks import MLP, Convolutional, Network, SmoothImages
from kme_jax.generators.release import GeneratorMeasurement, GeneratorRelease
from kme_jax.generators.train import Generator, GeneratorReport, Training, train_generator

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
