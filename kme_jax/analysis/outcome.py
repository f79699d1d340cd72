"""The result of a statistical test."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kme_jax._numerics import html
from kme_jax._numerics.short_repr import short_repr


@short_repr
@dataclasses.dataclass(frozen=True)
class TestResult:
    """The result of a test of a hypothesis. Public if the other rows of the test are.

    Attributes:
      hypothesis: what the test may reject, as a sentence.
      statistic: its size grows with the evidence against the hypothesis. It is about 1 on average if the hypothesis is
        true. For a table it is that of the column with the smallest p-value.
      p_value: the probability of a statistic of at least this size if the hypothesis is true, about.
      parts: for a table, the p-value of each column by itself, not adjusted for their number. Empty for points.
    """

    __test__ = False  # pytest would collect it

    hypothesis: str
    statistic: float
    p_value: float
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def _in_short(self) -> str:
        return str(self)

    def __str__(self) -> str:
        verdict = "rejected at the level 5 %" if self.p_value <= 0.05 else "not rejected at the level 5 %"
        return f"p = {html.number(self.p_value)}: {self.hypothesis}: {verdict}"

    def to_json(self) -> dict[str, Any]:
        """All fields, as plain JSON values."""
        return dataclasses.asdict(self) | {"parts": dict(self.parts)}
