"""Synthetic rows that meet conditions, and the constraints of their schema."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int64

from kme_jax.table import balance
from kme_jax.table.conditional import NO_ROWS, Ranges, conditioned
from kme_jax.table.constraints import Codes
from kme_jax.table.relaxed import RelaxedRows
from kme_jax.table.schema import Schema

_LEAST_DRAWN, _MOST_DRAWN = 1 << 12, 1 << 20  # rows at once
_MOST_WORK = 1 << 23  # rows that are drawn in all, and at least 64 for each row that is asked for
_EACH = 64
_MOST_IN_VAIN = 1 << 20  # rows that are drawn as long as none meets the conditions


def drawn(
    rows: RelaxedRows, schema: Schema, ranges: Ranges, num_rows: int, seed: int, weighted: bool = False
) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"] | None]:
    """Codes of released columns, [num_rows, d], and weights with sum 1, or None.

    Conditions on columns that are measured are met by the distribution that rows are drawn from. A constraint may
    change such a column afterwards, and other columns follow from them. So, if there are constraints, rows are drawn
    until enough of them meet all conditions.

    Args:
      rows: the distribution of the measured columns.
      schema: of the released columns.
      ranges: by index of a column of ``schema.extended``, the ranges of codes that are allowed.
      num_rows: number of rows.
      seed: of the sampling.
      weighted: whether rows have weights.

    Raises:
      ValueError: the release has no such rows, or too few of them were found.
    """
    names, extended = schema.measured.names, schema.extended.names
    sets = {j: Codes.union([Codes(tuple(allowed))]) for j, allowed in ranges.items()}
    measured: dict[int, list[tuple[int, int]]] = {}
    for j, codes in sets.items():
        try:
            name, codes = schema.recoding.codes_of(extended[j], codes)
        except ValueError:  # the rows will tell
            continue
        place = names.index(name)
        num_codes = schema.measured.columns[place].num_codes
        others = Codes(tuple(measured.get(place, [(0, num_codes)]))).others(num_codes)
        measured[place] = list(Codes.union([others, codes.others(num_codes)]).others(num_codes).ranges)
    distribution = conditioned(rows, measured) if measured else rows
    parts: list[Int64[np.ndarray, "n d"]] = []
    of_parts: list[Float[np.ndarray, "n"]] = []
    found, work, size = 0, 0, num_rows
    while found < num_rows:
        of_part = np.random.SeedSequence([seed, len(parts)]).generate_state(1)[0] if parts else seed
        if weighted:
            codes, weights = distribution.weighted_sample(size, int(of_part))
        else:
            codes, weights = balance.sample(distribution, size, int(of_part)), np.ones(size)
        codes = schema.released_codes(codes, int(of_part))
        met = np.ones(len(codes), bool) if schema.recoding.is_identity else _met(sets, schema.extended_codes(codes))
        parts.append(codes[met])
        of_parts.append(weights[met] * size)  # those of a part sum to 1
        found, work = found + int(met.sum()), work + size
        if found < num_rows and work >= (max(_MOST_WORK, _EACH * num_rows) if found else _MOST_IN_VAIN):
            raise ValueError(NO_ROWS if not found else f"only {found} rows that meet the conditions were found")
        missing = (num_rows - found) * work / max(1, found)
        size = int(min(max(1.2 * missing, _LEAST_DRAWN), _MOST_DRAWN))
    codes, weights = np.concatenate(parts)[:num_rows], np.concatenate(of_parts)[:num_rows]
    return codes, weights / weights.sum() if weighted else None


def _met(sets: dict[int, Codes], codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
    met = np.ones(len(codes), bool)
    for j, allowed in sets.items():
        met &= allowed.have(codes[:, j])
    return met
