"""Pictures that several sections of a report share: what they show. ``templates/pictures.html`` draws them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.report.words import shortened


@short_repr
class BarPart(NamedTuple):
    """A part of a bar.

    Attributes:
      kind: its CSS class, which sets the colour.
      length: in per cent of the room for a bar.
    """

    kind: str
    length: float


@short_repr
@dataclasses.dataclass(frozen=True)
class Bar:
    """A horizontal bar.

    Attributes:
      label: the text before it.
      parts: from left to right.
      value: the text after it.
      description: what it shows, for people who do not see it. Empty if ``value`` says it.
    """

    label: str
    parts: list[BarPart]
    value: str
    description: str = ""


@short_repr
@dataclasses.dataclass(frozen=True)
class Bars:
    """Horizontal bars.

    Attributes:
      name: of the picture.
      bars: from top to bottom.
      kind: further CSS class.
    """

    name: str
    bars: list[Bar]
    kind: str = ""


@short_repr
class Cell(NamedTuple):
    """A cell of a heat map.

    Attributes:
      text: in the cell.
      shade: how strong its colour is, in [0, 1].
    """

    text: str
    shade: float


@short_repr
@dataclasses.dataclass(frozen=True)
class HeatMap:
    """A heat map.

    Attributes:
      name: of the picture.
      columns: label of each column, and what is shown of it, [c].
      rows: label and cells [c] of each row.
    """

    name: str
    columns: list[tuple[str, str]]
    rows: list[tuple[str, list[Cell]]]

    @classmethod
    def create(
        cls,
        name: str,
        rows: Sequence[str],
        columns: Sequence[str],
        shades: Float[np.ndarray, "r c"],
        texts: Sequence[Sequence[str]],
        most: float = math.inf,
    ) -> HeatMap:
        """A heat map from arrays.

        Args:
          name: of the picture.
          rows: labels of the rows, [r].
          columns: labels of the columns, [c].
          shades: how strong colours are, in [0, 1], [r, c].
          texts: of the cells, [r, c].
          most: width of a label of a column, in em. Of a longer one, both ends are shown.
        """
        cells = [list(map(Cell, *row)) for row in zip(texts, shades.tolist(), strict=True)]
        headers = [(label, shortened(label, most)) for label in columns]
        return cls(name, headers, list(zip(rows, cells, strict=True)))


def parts_of(shares: dict[str, float], unit: float) -> list[BarPart]:
    """The parts of a bar that have a length.

    Args:
      shares: by CSS class.
      unit: the share that fills the room.
    """
    return [BarPart(kind, 100 * share / unit) for kind, share in shares.items() if share]
