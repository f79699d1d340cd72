"""The version, in one place that setup.cfg can read without importing JAX."""

__version__ = "0.1.0"
