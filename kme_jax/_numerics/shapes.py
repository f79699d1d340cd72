"""The type of an array in annotations with shapes. CONTRIBUTING lists the names of dimensions."""

from __future__ import annotations

import jax
import numpy as np

AnyArray = np.ndarray | jax.Array
"""An array of NumPy or of JAX."""
