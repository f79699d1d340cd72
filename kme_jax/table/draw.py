"""Synthetic rows that meet conditions, and the constraints of their schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table import balance
from kme_jax.table.conditional import NO_ROWS, ConditionalRows, conditioned
from kme_jax.table.conditions import Term
from kme_jax.table.constraints import Codes
from kme_jax.table.rare_categories import RareCategories
from kme_jax.table.relaxed import RelaxedRows, systematic
from kme_jax.table.schema import Schema

_LEAST_DRAWN, _MOST_DRAWN = 1 << 12, 1 << 20  # rows at once
_MOST_WORK = 1 << 23  # rows that are drawn in all, and at least 64 for each row that is asked for
_EACH = 64
_POOL = 16  # rows that are drawn for each that is kept, if some rare categories are allowed
_MOST_IN_VAIN = 1 << 20  # rows that are drawn as long as none meets the conditions
_WEAK = 2.0  # rows that meet conditions, in σ of a count, below which there are hardly more than noise


@short_repr
class Support(NamedTuple):
    """What a release says about the rows that meet conditions.

    Attributes:
      rows: how many private rows meet them, estimated from the released rows.
      noise: σ of the counts of the last measurement, in rows.
      used: which private rows the release is about, in words; "" for all of them.
      weighted: whether rows have weights. ``rows`` and ``noise`` are then sums of weights.
    """

    rows: float
    noise: float
    used: str = ""
    weighted: bool = False

    @property
    def is_weak(self) -> bool:
        """Whether there are hardly more rows than noise."""
        return self.rows < _WEAK * self.noise

    def describe(self) -> str:
        """In one line."""
        noise = f"the noise of a count is up to {self.noise:,.0f}"
        weak = ": what the sample says about them may be noise" if self.is_weak else ""
        used = f" of those that were used ({self.used})" if self.used else ""
        rows = f"private rows{used}"
        if self.weighted:
            return f"{rows} that meet the conditions have weights of about {self.rows:,.0f} in all; {noise}{weak}"
        return f"about {self.rows:,.0f} {rows} meet the conditions; {noise}{weak}"


def released_codes(
    rows: RelaxedRows, schema: Schema, codes: Int64[np.ndarray, "n m"], seed: int
) -> Int64[np.ndarray, "n d"]:
    """Codes of released columns that meet all constraints, for rows that were drawn from a distribution, [n, d].

    Pairs of columns are kept as well as the bins tell them apart, see ``Recoding.released_codes``.

    Args:
      rows: the distribution of the measured columns.
      schema: of the released columns.
      codes: of the measured columns.
      seed: of what is exchanged.
    """
    return schema.released_codes(codes, seed, rows.bins_of(codes) if schema.recoding.clauses else None)


def drawn(
    rows: RelaxedRows, schema: Schema, terms: Sequence[Term], num_rows: int, seed: int, weighted: bool = False
) -> tuple[Int64[np.ndarray, "n d"], Float[np.ndarray, "n"] | None]:
    """Codes of released columns, [num_rows, d], and weights with sum 1, or None.

    Ranges of columns that are measured are met by the distribution that rows are drawn from. A constraint may change
    such a column afterwards, other columns follow from them, and terms may compare columns, or be alternatives. Then
    rows are drawn until enough of them meet a term.

    Args:
      rows: the distribution of the measured columns.
      schema: of the released columns.
      terms: of which rows meet at least one, see ``conditions.terms_of``, for the columns of ``schema.extended``.
      num_rows: number of rows.
      seed: of the sampling.
      weighted: whether rows have weights.

    Raises:
      ValueError: the release has no such rows, or too few of them were found.
    """
    names, extended = schema.measured.names, schema.extended.names
    in_all = set.intersection(*(set(term.ranges) for term in terms))
    sets = {j: Codes.union([Codes(tuple(term.ranges[j])) for term in terms]) for j in in_all}
    is_met = schema.recoding.is_identity and len(terms) == 1 and not terms[0].compared
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
    allowed = _allowed(rows, measured)
    if allowed:  # rows are drawn with any rare category, and weighted by the probability of those that are allowed
        for rare, _ in allowed:
            every = Codes(tuple((code, code + 1) for code in rare.codes.tolist()))
            place = rows.others[rare.place]
            measured[place] = list(Codes.union([Codes(tuple(measured[place])), every]).ranges)
        distribution = conditioned(rows, measured)
    parts: list[Int64[np.ndarray, "n d"]] = []
    of_parts: list[Float[np.ndarray, "n"]] = []
    found, work, size = 0, 0, num_rows
    while found < num_rows:
        of_part = np.random.SeedSequence([seed, len(parts)]).generate_state(1)[0] if parts else seed
        if allowed:
            codes, weights = _with_allowed(rows, distribution, allowed, size, int(of_part)), np.ones(size)
        elif weighted:
            codes, weights = distribution.weighted_sample(size, int(of_part))
        else:
            codes = balance.sample(distribution, size, int(of_part), keeps_rare=not measured)
            weights = np.ones(size)
        codes = released_codes(rows, schema, codes, int(of_part))
        met = np.ones(len(codes), bool) if is_met else met_by(schema, terms, codes)
        parts.append(codes[met])
        of_parts.append(weights[met] * size)  # those of a part sum to 1
        found, work = found + int(met.sum()), work + size
        if found < num_rows and work >= (max(_MOST_WORK, _EACH * num_rows) if found else _MOST_IN_VAIN):
            raise ValueError(NO_ROWS if not found else f"only {found} rows that meet the conditions were found")
        missing = (num_rows - found) * work / max(1, found)
        size = int(min(max(1.2 * missing, _LEAST_DRAWN), _MOST_DRAWN))
    codes, weights = np.concatenate(parts)[:num_rows], np.concatenate(of_parts)[:num_rows]
    return codes, weights / weights.sum() if weighted else None


def _allowed(
    rows: RelaxedRows, ranges: Mapping[int, Sequence[tuple[int, int]]]
) -> list[tuple[RareCategories, Bool[np.ndarray, "K"]]]:
    """The models of columns of which conditions allow some rare categories but not all, and which are allowed.

    Args:
      rows: the distribution.
      ranges: by index of a column, the ranges of codes that are allowed.
    """
    found = []
    for rare in rows.rare:
        of_column = ranges.get(rows.others[rare.place])
        if of_column is not None:
            inside = Codes(tuple(of_column)).have(rare.codes)
            if inside.any() and not inside.all():
                found.append((rare, inside))
    return found


def _with_allowed(
    rows: RelaxedRows,
    distribution: RelaxedRows | ConditionalRows,
    allowed: Sequence[tuple[RareCategories, Bool[np.ndarray, "K"]]],
    num_rows: int,
    seed: int,
) -> Int64[np.ndarray, "n d"]:
    """Codes of rows with rare categories that are allowed, [num_rows, d].

    A row with any rare category is drawn. Its weight is the probability of those that are allowed, given its class and
    its bins in the parents. Rows of a larger pool are kept in proportion to their weights.

    Args:
      rows: the distribution of all rows.
      distribution: that of rows that meet all other conditions.
      allowed: models, and which of their categories are allowed.
      num_rows: number of rows.
      seed: of the sampling.

    Raises:
      ValueError: the release has no such rows.
    """
    random = np.random.default_rng([seed, 3])
    pool = max(num_rows, min(_POOL * num_rows, _MOST_DRAWN))
    codes = np.array(balance.sample(distribution, pool, seed, keeps_rare=False))
    weights, groups = np.ones(pool), [rows.groups_of(rare, codes) for rare, _ in allowed]
    for (rare, inside), of_rows in zip(allowed, groups, strict=True):
        is_rare = rare.are_rare(codes[:, rows.others[rare.place]])
        weights[is_rare] *= rare.probability(of_rows[is_rare], inside)
    if not weights.sum() > 0:
        raise ValueError(NO_ROWS)
    kept = random.permutation(np.repeat(np.arange(pool), systematic(random, weights, num_rows)))
    codes = codes[kept]
    for (rare, inside), of_rows in zip(allowed, groups, strict=True):
        column = rows.others[rare.place]
        codes[:, column] = rare.drawn(codes[:, column], of_rows[kept], random, keeps_counts=False, allowed=inside)
    return codes


def met_by(schema: Schema, terms: Sequence[Term], codes: Int64[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
    """Which rows meet at least one term, [n].

    Args:
      schema: of the released columns.
      terms: for the columns of ``schema.extended``.
      codes: of the released columns.
    """
    extended = schema.extended_codes(codes)
    return np.any([term.met(schema.extended.columns, extended) for term in terms], axis=0)
