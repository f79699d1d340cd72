"""Weighted point clouds: from private rows of numbers to synthetic points."""

from kme_jax.points.release import Measurement, Release

__all__ = ["Measurement", "Release"]
