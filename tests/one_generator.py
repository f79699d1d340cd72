"""Trains a generator of images, and prints a digest of all that it is: python -m tests.one_generator"""

import hashlib

import jax
import numpy as np

from kme_jax import FourierMap, Gaussian, PrivacyBudget, dp_merf
from kme_jax.feature_maps import LabelledMap
from kme_jax.generators import SmoothImages, Training


def digest():
    features = LabelledMap(FourierMap.from_kernel(jax.random.key(1), Gaussian(0.02), 400, 64), 2)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(size=(2000, 64)), rng.integers(0, 2, (2000, 1))], axis=1)
    generator = dp_merf(
        jax.random.key(2),
        rows.astype(np.float32),
        features,
        SmoothImages(8, 8, widths=(50, 60), styles=3),
        Training(num_steps=60, num_cycles=1, batch_size=60, features_per_step=100),
        budget=PrivacyBudget(1.0, 1e-5),
        bounds=(0.0, 1.0),
        levels=255,
    )
    sha = hashlib.sha256(generator.sample(100).tobytes())
    for name in sorted(generator.state):
        sha.update(generator.state[name].tobytes())
    return f"{sha.hexdigest()} {generator.report.fit}"


if __name__ == "__main__":
    print(digest())
