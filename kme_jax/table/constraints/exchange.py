"""Exchanges of values between synthetic rows, after which fewer rows break a clause and pairs of columns are kept.

Most rows break a clause where a bin of a column straddles its limit. Rows in a bin of ages from 13 to 19 may be
children below 15 or not, and which of them are is drawn at random within the bin. So of two rows of this bin, one may
have the education of a child and be 17, and the other that of an adult and be 14. If education gave way, it would no
longer fit the other columns of both rows, although it was right. If the rows exchange their ages, both are valid, and
no count of a pair of bins changes. So every column that a clause names may be exchanged, and counts of pairs of bins
decide which one is. This is post-processing: it spends nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax.table.constraints.base import Clause, Codes

_PASSES = 8  # over all rows that break a clause
_NUM_PARTNERS = 96  # of a row: random rows, of which every second one breaks a clause itself
_MOST_COMPARED = 8  # partners of a row and a column that make rows valid, by what happens to pairs
_BATCHES, _LEAST_BATCH, _MOST_AT_ONCE = 64, 128, 2048  # of rows that get their partners at the same time
# What an exchange of a column that others give way for costs beside the counts of pairs, for each other column. It
# changes pairs within bins, too. The column that gives way comes first, unless pairs suffer clearly.
_OF_SOURCES = 4.0


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """The state of an exchange.

    Attributes:
      codes: of the rows, changed in place, [n, m].
      groups: the bin of every row and column, changed in place, [n, m]. Bins are numbered through all columns, D in
        all.
      excess: counts of every pair of bins, less those at the start, changed in place, [D, D].
      met: whether the code of each row is in a set that a clause names, changed in place, [sets, n].
      places: the column that each of these sets is about, [sets].
      clauses: for every clause, combinations of sets. A row that is in all sets of a combination breaks the clause.
      giving: the columns that give way in a clause.
    """

    codes: Int64[np.ndarray, "n m"]
    groups: Int64[np.ndarray, "n m"]
    excess: Int32[np.ndarray, "D D"]
    met: Bool[np.ndarray, "sets n"]
    places: Int64[np.ndarray, "sets"]
    clauses: list[list[list[int]]]
    giving: set[int]

    @classmethod
    def create(
        cls,
        codes: Int64[np.ndarray, "n m"],
        bins: Int64[np.ndarray, "n m"],
        names: Sequence[str],
        clauses: Iterable[Clause],
    ) -> Exchange:
        """The state before any exchange.

        Args:
          codes: of synthetic rows.
          bins: the bin of every row and column: the ranges of codes whose pairs are known.
          names: of the columns.
          clauses: what is excluded.
        """
        sizes = bins.max(axis=0, initial=-1) + 1
        sets: dict[tuple[str, Codes], int] = {}
        found, giving = [], set()
        for clause in clauses:
            giving.add(names.index(clause.column))
            parts = [{**combination, clause.column: clause.excluded} for combination in clause.when]
            found.append([[sets.setdefault(one, len(sets)) for one in part.items()] for part in parts])
        places = np.array([names.index(name) for name, _ in sets], np.int64)
        met = np.zeros((len(sets), len(codes)), bool)
        for row, (_, of_set), place in zip(met, sets, places.tolist(), strict=True):
            row[:] = of_set.have(codes[:, place])
        excess = np.zeros((int(sizes.sum()),) * 2, np.int32)
        return cls(np.array(codes, order="F"), bins + np.cumsum(sizes) - sizes, excess, met, places, found, giving)

    def run(self, random: np.random.Generator) -> None:
        """Exchanges values until no row breaks a clause, or no partner is found.

        Each row that breaks a clause looks at 96 random rows, half of which break one, too, and at each column that
        clauses name. It takes the exchange after which both rows break fewer clauses, and which costs least for each of
        these. The cost is by how much the sum of the squared excess counts of pairs of bins grows. So rows differ in
        few columns at first, and later what many exchanges have done to a pair is undone by others.
        """
        rows = np.arange(len(self.codes))
        for _ in range(_PASSES):
            wrong = random.permutation(rows[self._broken(rows)])
            size = min(max(_LEAST_BATCH, -(-len(wrong) // _BATCHES)), _MOST_AT_ONCE)
            done = [self._exchange(wrong[i : i + size], wrong, random) for i in range(0, len(wrong), size)]
            if not any(done):
                return

    def _broken(self, rows: Int64[np.ndarray, "k"]) -> Bool[np.ndarray, "k"]:
        """Whether each of these rows breaks a clause, [k]."""
        broken = np.zeros(len(rows), bool)
        for combination in (combination for clause in self.clauses for combination in clause):
            broken |= self._in_all(combination, rows)
        return broken

    def _in_all(self, sets: Sequence[int], rows: Int64[np.ndarray, "*k"]) -> Bool[np.ndarray, "*k"]:
        """Whether each of these rows is in all of the sets."""
        inside = np.ones(rows.shape, bool)
        for one in sets:
            inside &= self.met[one][rows]
        return inside

    def _exchange(
        self, ours: Int64[np.ndarray, "k"], wrong: Int64[np.ndarray, "wrong"], random: np.random.Generator
    ) -> int:
        """Exchanges a value of each of these rows with its best partner. Returns the number of exchanges.

        Args:
          ours: rows, those of which that break a clause look for partners.
          wrong: rows, many of which break a clause.
          random: of the partners.
        """
        ours = ours[self._broken(ours)]
        partners = random.integers(0, len(self.codes), (len(ours), _NUM_PARTNERS))
        partners[:, ::2] = wrong[random.integers(0, len(wrong), (len(ours), _NUM_PARTNERS // 2))]
        lowest, places, chosen = np.full(len(ours), np.inf), np.zeros(len(ours), np.int64), np.array(ours)
        for place in np.unique(self.places).tolist():
            change = self._change(place, ours, partners)
            order = np.argsort(change >= 0, axis=1, kind="stable")[:, :_MOST_COMPARED]
            found = np.flatnonzero(np.take_along_axis(change, order[:, :1], 1) < 0)
            fewer, theirs = (np.take_along_axis(one, order, 1)[found] for one in (-change, partners))
            cost = self._cost(place, ours[found], theirs)
            cost = np.where(fewer > 0, np.where(cost > 0, cost / np.maximum(fewer, 1), cost * fewer), np.inf)
            best = np.arange(len(found)), cost.argmin(1)
            is_lower = cost[best] < lowest[found]
            rows = found[is_lower]
            lowest[rows], places[rows], chosen[rows] = cost[best][is_lower], place, theirs[best][is_lower]
        order = np.argsort(lowest, kind="stable")
        order = order[np.isfinite(lowest[order])]
        both = np.stack([ours[order], chosen[order]], axis=1)
        is_first = np.zeros(both.size, bool)
        is_first[np.unique(both, return_index=True)[1]] = True
        taken = order[is_first.reshape(-1, 2).all(1)]  # each row is in one exchange
        for place in np.unique(places[taken]).tolist():
            of_place = taken[places[taken] == place]
            self._swap(place, ours[of_place], chosen[of_place])
        return len(taken)

    def _change(
        self, place: int, ours: Int64[np.ndarray, "k"], partners: Int64[np.ndarray, "k partners"]
    ) -> Int64[np.ndarray, "k partners"]:
        """How many more clauses a row and a partner break after they exchange their values of a column."""
        change = np.zeros(partners.shape, np.int64)
        for clause in self.clauses:
            if not any(self.places[one] == place for combination in clause for one in combination):
                continue
            now, then = np.zeros((2, *partners.shape), bool), np.zeros((2, *partners.shape), bool)
            for combination in clause:
                of_value = [one for one in combination if self.places[one] == place]
                of_rest = [one for one in combination if self.places[one] != place]
                our_value, our_rest = (self._in_all(sets, ours)[:, None] for sets in (of_value, of_rest))
                their_value, their_rest = (self._in_all(sets, partners) for sets in (of_value, of_rest))
                now |= np.stack([np.broadcast_to(our_value & our_rest, partners.shape), their_value & their_rest])
                then |= np.stack([their_value & our_rest, our_value & their_rest])
            change += then.sum(0) - now.sum(0)
        return change

    def _cost(
        self, place: int, ours: Int64[np.ndarray, "k"], partners: Int64[np.ndarray, "k partners"]
    ) -> Float64[np.ndarray, "k partners"]:
        """By how much half the sum of the squared excess counts grows if rows exchange their values of a column."""
        flat, size = self.excess.reshape(-1), len(self.excess)
        first, second = self.groups[ours][:, None], self.groups[partners]
        old, new = first[..., [place]], second[..., [place]]
        change = flat[new * size + first] - flat[old * size + first]
        change += flat[old * size + second] - flat[new * size + second] + 2
        change[(first == second) | (old == new)] = 0
        change[..., place] = 0
        return change.sum(-1) + (0.0 if place in self.giving else _OF_SOURCES * (self.groups.shape[1] - 1))

    def _swap(self, place: int, first: Int64[np.ndarray, "pairs"], second: Int64[np.ndarray, "pairs"]) -> None:
        """Exchanges the values of a column between pairs of rows. Each row is in one pair."""
        others = [a for a in range(self.groups.shape[1]) if a != place]
        for mine, theirs in ((first, second), (second, first)):
            rest = self.groups[mine][:, others]
            for rows, step in ((mine, -1), (theirs, 1)):
                group = np.broadcast_to(self.groups[rows, place][:, None], rest.shape)
                np.add.at(self.excess, (group, rest), step)
                np.add.at(self.excess, (rest, group), step)
        of_sets = [self.met[one] for one in np.flatnonzero(self.places == place)]
        for values in (self.codes[:, place], self.groups[:, place], *of_sets):
            values[first], values[second] = values[second], values[first]
