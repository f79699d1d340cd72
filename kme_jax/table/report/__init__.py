"""A report on a release, as one HTML file. It explains privacy in words, and shows marginals and pairs in pictures."""

from kme_jax.table.report.data import MeasuredCells
from kme_jax.table.report.page import report

__all__ = ["MeasuredCells", "report"]
