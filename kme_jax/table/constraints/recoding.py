"""From released columns to the columns that are measured, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import graphlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import shown
from kme_jax.table.columns import Column, Datetime
from kme_jax.table.constraints.base import Clause, Codes, ColumnCodes, Constraint, Determination
from kme_jax.table.constraints.calendar import Calendar
from kme_jax.table.constraints.exchange import Exchange

_MOST_CLAUSES = 60  # that exclude values of one column
_MOST_COMBINATIONS = 100_000
_NUM_DONORS = 96  # rows, of which the most similar one gives its value
_MOST_AT_ONCE = 1 << 16  # rows that get values
_MOST_KEYS = 40  # combinations of clauses, between which values are exchanged
_MOST_GROUPS = 16  # of the values of an ordered column
_ROUNDS = 6  # of exchanges: a partner has one value to give


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class Recoding:
    """What the constraints of a schema mean for the codes of rows.

    Attributes:
      columns: the C released columns.
      clauses: what is excluded, by the name of the measured column that gives way. A column that gives way for another
        one comes after it.
      determinations: of columns that follow from others. They come after those that they follow from.
      measured: the columns that are measured.
      by_constraint: for each constraint, what it excludes, and the determination of the columns that it determines.
      families: by place of a measured column without order, groups of its codes with the same values in columns that
        follow from it: numbers of the groups, for every code, [codes]. First come groups in which all of these columns
        agree, then those in which all agree but the one whose constraint is last, and so on. Of a column with an order,
        up to 16 ranges of values count as values.
    """

    columns: tuple[Column, ...]
    clauses: dict[str, list[Clause]]
    determinations: tuple[Determination, ...]
    measured: tuple[Column, ...]
    by_constraint: tuple[tuple[list[Clause], Determination | None], ...]
    families: dict[int, list[Int64[np.ndarray, "codes"]]]

    @classmethod
    def create(cls, columns: Sequence[Column], constraints: Sequence[Constraint]) -> Recoding:
        """The recoding of constraints between columns.

        Raises:
          ValueError: a constraint does not fit the columns, or constraints contradict each other.
        """
        by_name = {column.name: column for column in columns}
        found: dict[str, Determination] = {
            column.name: Calendar(column) for column in columns if isinstance(column, Datetime) and column.parts
        }
        determinations: list[Determination | None] = []
        for label, constraint in _labelled(constraints):
            with _named(label):
                determinations.append(determination := constraint.determination(by_name, found))
                if determination is None:
                    continue
                for name in determination.columns:
                    if isinstance(found.get(name), Calendar):
                        raise ValueError(f"{name} has parts, so it cannot follow from others: leave parts out")
                    if name in found:
                        raise ValueError(f"{name} already follows from other columns")
                    found[name] = determination
        order = _in_order({name: set(one.sources) for name, one in found.items()})
        first = {one.columns[0] for one in found.values()}  # in its place are those that are measured instead
        parts = [(c,) if c.name not in found else found[c.name].measured if c.name in first else () for c in columns]
        measured = tuple(itertools.chain(*parts))
        for part in itertools.chain(*(one.measured for one in found.values())):
            if part.name in by_name:
                raise ValueError(f"constraints: {part.name} is the name of a column that is measured: rename yours")
        clauses: dict[str, list[Clause]] = {}
        of_constraints: list[list[Clause]] = []
        for label, constraint in _labelled(constraints):
            with _named(label):
                of_constraints.append(_clauses(constraint, columns, measured, found))
            for clause in of_constraints[-1]:
                clauses.setdefault(clause.column, []).append(clause)
        for one in found.values():
            if isinstance(one, Calendar) and one.measured[1].name not in clauses:  # constraints might contradict it
                clauses |= {clause.column: one.clauses for clause in one.clauses}
        sources = {name: {s for clause in group for s in clause.sources} for name, group in clauses.items()}
        in_order = {name: clauses[name] for name in _in_order(sources) if name in clauses}
        all_found = tuple(dict.fromkeys(found[name] for name in order if name in found))
        by_constraint = tuple(zip(of_constraints, determinations, strict=True))
        followers = [name for one in determinations if one for name in one.columns]
        families = _families(columns, measured, all_found, followers)
        recoding = cls(tuple(columns), in_order, all_found, measured, by_constraint, families)
        for name in in_order:
            recoding._check(name)
        return recoding

    def addends(self, name: str) -> tuple[str, ...] | None:
        """Names of the measured columns whose sum a column is; itself, if it is measured. None if it is no sum."""
        found = next((one for one in self.determinations if name in one.columns), None)
        if found is None:
            return (name,)
        parts: list[str] = []
        for addend in found.addends or ():
            is_measured = addend in [part.name for part in found.measured]
            names = (addend,) if is_measured else self.addends(addend)
            parts += names or ()
            if names is None:
                return None
        return tuple(parts) or None

    def codes_of(self, name: str, codes: Codes) -> tuple[str, Codes]:
        """The measured column and its codes that stand for codes of a column, if it is measured or looked up.

        Args:
          name: of a released or a measured column.
          codes: of this column.

        Raises:
          ValueError: the column follows from others in another way.
        """
        found = next((one for one in self.determinations if name in one.columns), None)
        if found is None:
            return name, codes
        others = found.codes_of(name, codes)
        if others is None:
            raise ValueError(f"{name} follows from {shown(found.sources or [part.name for part in found.measured])}")
        return self.codes_of(*others)

    def measured_codes(self, codes: Int[np.ndarray, "n d"]) -> Int64[np.ndarray, "n m"]:
        """Codes of the measured columns, for those of the released ones. SENSITIVE if the rows are.

        Formal guarantee: row i of the result is a function of row i and the schema alone. So rows that differ in one
        row before differ in one row after, and what is proved for neighbouring tables holds. Rows that break a
        constraint are repaired and never dropped. In a row that has an excluded value, the column that gives way gets
        the nearest value that is not excluded: nearest to its value, or, if this has no order, to the column's usual
        value. Columns that follow from others are not looked at, except for the gap of an ``Order``.

        Args:
          codes: of the C released columns.
        """
        rows = self._measured(codes)
        for name, group in self.clauses.items():
            rows[name] = self._repaired(name, group, rows, len(codes))
        return _stacked([rows[column.name] for column in self.measured], len(codes))

    def released_codes(
        self, codes: Int[np.ndarray, "n m"], seed: int = 0, bins: Int[np.ndarray, "n m"] | None = None
    ) -> Int64[np.ndarray, "n d"]:
        """Codes of released columns that meet all constraints, for codes of the measured ones. Not for private rows.

        If bins are known, rows that break a clause first exchange values of any column that clauses name, so that both
        rows break fewer clauses and the counts of pairs of bins change least, see ``Exchange``. Single columns
        keep their distributions.

        What is left is changed in the columns that give way. An excluded value is exchanged with that of another row,
        in which it is not excluded: of 96 random rows, the one that agrees in most columns. Where no row takes the
        value, the row gets that of a similar row to which the same clauses apply. If there is none, it gets the nearest
        value that is not excluded.

        Args:
          codes: of the measured columns, of synthetic rows.
          seed: of the choice of other rows.
          bins: the bin of every row and column, 0 or more, such as those of ``RelaxedRows.bins_of``; None if only
            columns that give way are to change.
        """
        codes = np.asarray(codes, np.int64)
        if bins is not None and self.clauses and len(codes):
            names, clauses = [column.name for column in self.measured], itertools.chain(*self.clauses.values())
            exchange = Exchange.create(codes, np.asarray(bins, np.int64), names, clauses)
            exchange.run(np.random.default_rng([seed, 3]))
            codes = exchange.codes
        rows = {column.name: codes[:, place] for place, column in enumerate(self.measured)}
        random = np.random.default_rng([seed, 2])
        for name, group in self.clauses.items():
            rows[name] = self._replaced(name, group, rows, codes, random)
        for one in self.determinations:
            found = [rows[part.name] for part in one.measured]
            released = one.to_released(found, [rows[name] for name in one.sources])
            rows |= dict(zip(one.columns, released, strict=True))
        return _stacked([rows[column.name] for column in self.columns], len(codes))

    def broken(self, codes: Int[np.ndarray, "n d"]) -> Bool[np.ndarray, "n"]:
        """Whether each row breaks a constraint, [n]. SENSITIVE if the rows are."""
        return np.any(self.broken_by(codes), axis=0)

    def broken_by(self, codes: Int[np.ndarray, "n d"]) -> Bool[np.ndarray, "constraints n"]:
        """Whether each row breaks each constraint, [constraints, n]. SENSITIVE if the rows are."""
        released, rows = self._by_name(codes), self._measured(codes)
        found = np.zeros((len(self.by_constraint), len(codes)), bool)
        for of_constraint, (clauses, one) in zip(found, self.by_constraint, strict=True):
            for clause in clauses:
                of_constraint |= clause.applies(rows, len(codes)) & clause.excluded.have(rows[clause.column])
            if one is not None:
                sources = [released[name] for name in one.sources]
                of_constraint |= one.breaks([released[name] for name in one.columns], sources)
        return found

    def _measured(self, codes: Int[np.ndarray, "n d"]) -> dict[str, ColumnCodes]:
        """Codes of the measured columns by name, before excluded values are replaced. Each row by itself."""
        rows = self._by_name(codes)
        result = dict(rows)
        for one in self.determinations:
            sources = [rows[name] for name in one.sources]
            found = one.to_measured([rows[name] for name in one.columns], sources)
            result |= {part.name: of_part for part, of_part in zip(one.measured, found, strict=True)}
            rows |= dict(zip(one.columns, one.to_released(found, sources), strict=True))
        return {column.name: result[column.name] for column in self.measured}

    def _by_name(self, codes: Int[np.ndarray, "n d"]) -> dict[str, ColumnCodes]:
        codes = np.asarray(codes, np.int64)
        return {column.name: codes[:, place] for place, column in enumerate(self.columns)}

    @property
    def is_identity(self) -> bool:
        """Whether the released columns are measured as they are, and nothing is excluded."""
        return not self.clauses and not self.determinations

    @functools.cached_property
    def _of_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.measured}

    def _allowed(
        self, name: str, group: Sequence[Clause], rows: Mapping[str, ColumnCodes], num_rows: int
    ) -> tuple[Int64[np.ndarray, "n"], dict[int, Codes]]:
        """The combination of clauses that apply to each row, [n], and the codes that each combination allows."""
        keys = np.zeros(num_rows, np.int64)
        for i, clause in enumerate(group):
            keys |= clause.applies(rows, num_rows).astype(np.int64) << i
        num_codes, allowed = self._of_name[name].num_codes, {}
        for key in np.unique(keys).tolist():
            excluded = [clause.excluded for i, clause in enumerate(group) if key >> i & 1]
            allowed[key] = Codes.union(excluded).others(num_codes)
        return keys, allowed

    def _repaired(
        self, name: str, group: Sequence[Clause], rows: Mapping[str, ColumnCodes], num_rows: int
    ) -> ColumnCodes:
        """Codes of a column, where those that are excluded are the nearest allowed ones. Each row by itself."""
        keys, allowed = self._allowed(name, group, rows, num_rows)
        repaired, column = np.array(rows[name]), self._of_name[name]
        for key, places in _places(keys):
            wrong = places[~allowed[key].have(repaired[places])]
            if len(wrong):
                repaired[wrong] = _nearest_allowed(column, allowed[key], repaired[wrong])
        return repaired

    def _replaced(
        self,
        name: str,
        group: Sequence[Clause],
        rows: Mapping[str, ColumnCodes],
        all_codes: Int64[np.ndarray, "n m"],
        random: np.random.Generator,
    ) -> ColumnCodes:
        """Codes of a column, where those that are excluded are those of similar rows, see ``released_codes``."""
        keys, allowed = self._allowed(name, group, rows, len(all_codes))
        replaced = np.array(rows[name])
        by_key = dict(_places(keys))
        wrong = {key: places[~allowed[key].have(replaced[places])] for key, places in by_key.items()}
        if not any(map(len, wrong.values())):
            return replaced
        scaled = self._scaled(all_codes)
        if len(by_key) <= _MOST_KEYS:
            for only_wrong in (True, False):
                partners = wrong if only_wrong else by_key
                for key, other in itertools.permutations(by_key, 2):
                    _exchange(replaced, wrong[key], partners[other], (allowed[key], allowed[other]), scaled, random)
        for key, places in by_key.items():
            fits = allowed[key].have(replaced[places])
            left, donors = places[~fits], places[fits]
            if not len(left):
                continue
            if not len(donors):
                replaced[left] = _nearest_allowed(self._of_name[name], allowed[key], replaced[left])
                continue
            replaced[left] = replaced[_similar(left, donors, scaled, random)]
        return replaced

    def _scaled(self, all_codes: Int64[np.ndarray, "n m"]) -> Float32[np.ndarray, "n m"]:
        """Codes of the measured columns, whose distances are 1 or more for rows that do not agree at all, [n, m]."""
        deviations = np.maximum(all_codes.std(axis=0), 1e-9)
        scales = np.where([column.ordered for column in self.measured], deviations, 1)
        return np.ascontiguousarray(all_codes / scales, np.float32)

    def _check(self, name: str) -> None:
        """Refuses clauses that leave a column no value in some rows.

        Raises:
          ValueError: see above, or there are too many combinations to tell.
        """
        group, column = self.clauses[name], self._of_name[name]
        if len(group) > _MOST_CLAUSES:
            raise ValueError(f"constraints: more than {_MOST_CLAUSES} exclude values of {name}")
        if Codes.union([clause.excluded for clause in group]).others(column.num_codes).ranges:
            return
        sources = sorted({source for clause in group for source in clause.sources})
        among = [c for other in sources for c in self.clauses.get(other, []) if c.sources <= set(sources)]
        pieces = []
        for source in sources:
            sets = [codes for c in (*group, *among) for when in c.when for key, codes in when.items() if key == source]
            sets += [c.excluded for c in among if c.column == source]
            pieces.append(sorted({0, *(end for codes in sets for pair in codes.ranges for end in pair)}))
            pieces[-1] = [code for code in pieces[-1] if code < self._of_name[source].num_codes]
        if np.prod([float(len(piece)) for piece in pieces]) > _MOST_COMBINATIONS:
            raise ValueError(f"constraints: too many combinations of conditions on {shown(sources)} decide {name}")
        combinations = np.array(list(itertools.product(*pieces)), np.int64)
        rows = {source: combinations[:, i] for i, source in enumerate(sources)}
        possible = np.ones(len(combinations), bool)
        for clause in among:
            possible &= ~(clause.applies(rows, len(possible)) & clause.excluded.have(rows[clause.column]))
        keys, allowed = self._allowed(name, group, rows, len(combinations))
        for key, codes in allowed.items():
            places = np.flatnonzero((keys == key) & possible)
            if len(places) and not codes.ranges:
                values = [
                    f"{source} is {self._of_name[source].labels(rows[source][places[:1]])[0]}" for source in sources
                ]
                condition = f" if {shown(values)}" if values else ""
                raise ValueError(f"constraints contradict each other: no value of {name} is left{condition}")


def _families(
    columns: Sequence[Column],
    measured: Sequence[Column],
    determinations: Iterable[Determination],
    followers: Iterable[str],
) -> dict[int, list[Int64[np.ndarray, "codes"]]]:
    """See ``Recoding.families``.

    Args:
      columns: the released columns.
      measured: the measured columns.
      determinations: in an order in which each comes after those that it follows from.
      followers: names of columns that follow from others, in the order of their constraints.
    """
    # A column with an order may have billions of codes, and its bins have neighbours.
    sources = [(place, column) for place, column in enumerate(measured) if not column.ordered]
    known = {column.name: (place, np.arange(column.num_codes)) for place, column in sources}
    for one in determinations:
        if not one.measured and len(one.sources) == 1 and one.sources[0] in known:
            place, codes = known[one.sources[0]]
            released = one.to_released((), (codes,))
            known |= {name: (place, of_name) for name, of_name in zip(one.columns, released, strict=True)}
    by_name = {column.name: column for column in columns}
    families: dict[int, list[Int64[np.ndarray, "codes"]]] = {}
    for name in followers:
        if name in known:
            place, codes = known[name]
            levels = families.setdefault(place, [])
            both = np.stack([_grouped(by_name[name], codes), *levels[:1]])
            levels.insert(0, np.unique(both, axis=1, return_inverse=True)[1].reshape(-1))
    return families


def _grouped(column: Column, codes: ColumnCodes) -> Int64[np.ndarray, "n"]:
    """Groups of codes of a column, [n]: at most ``_MOST_GROUPS`` of neighbouring values if it has an order."""
    different, groups = np.unique(codes, return_inverse=True)
    return groups.reshape(-1) * min(len(different), _MOST_GROUPS) // len(different) if column.ordered else groups


def _labelled(constraints: Sequence[Constraint]) -> Iterator[tuple[str, Constraint]]:
    """Each constraint with its number and kind, for errors."""
    return ((f"constraint {place} ({one.kind})", one) for place, one in enumerate(constraints, 1))


@contextlib.contextmanager
def _named(label: str) -> Iterator[None]:
    """Errors within start with a label."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _clauses(
    constraint: Constraint, columns: Sequence[Column], measured: Sequence[Column], found: Mapping[str, Determination]
) -> list[Clause]:
    """What a constraint between measured columns excludes.

    Raises:
      ValueError: it does not fit the columns, or is about a column that is not measured.
    """
    try:
        clauses = constraint.clauses(measured)
    except ValueError as error:
        try:
            of_released = constraint.clauses(columns)
        except ValueError:
            raise error from None  # it is about measured columns, and says what is wrong with them
        names = {name for clause in of_released for name in (clause.column, *clause.sources)}
        for name in sorted(names & set(found)):
            others = found[name].sources or tuple(part.name for part in found[name].measured)
            raise ValueError(
                f"{name} follows from {shown(others)}, so nothing else can be said of it{found[name].remedy}"
            ) from None
        raise
    for clause in clauses:
        sets = [(clause.column, clause.excluded), *(pair for when in clause.when for pair in when.items())]
        for one in found.values():
            for part in one.measured:
                if not all(one.keeps(part.name, codes) for name, codes in sets if name == part.name):
                    raise ValueError(
                        f"{part.name} may change at a bound of {shown(one.columns)}: no other constraint "
                        "can be about it, except whether it is missing"
                    )
    return clauses


def _places(keys: Int64[np.ndarray, "n"]) -> Iterator[tuple[int, Int64[np.ndarray, "places"]]]:
    """Each different key with its places."""
    order = np.argsort(keys, kind="stable")
    if not len(keys):
        return iter(())
    different, starts = np.unique(keys[order], return_index=True)
    return zip(different.tolist(), np.split(order, starts[1:]), strict=True)


def _similar(
    places: Int64[np.ndarray, "k"],
    donors: Int64[np.ndarray, "donors"],
    scaled: Float32[np.ndarray, "n m"],
    random: np.random.Generator,
) -> Int64[np.ndarray, "k"]:
    """For each place, that of random donors whose row agrees in most columns, [k]."""
    found = np.empty(len(places), np.int64)
    for start in range(0, len(places), _MOST_AT_ONCE):
        ours = scaled[places[start : start + _MOST_AT_ONCE]]
        best = np.full(len(ours), np.inf, np.float32)
        for _ in range(_NUM_DONORS):
            candidates = donors[random.integers(0, len(donors), len(ours))]
            distance = np.minimum(np.abs(ours - scaled[candidates]), 1).sum(1)
            closer = distance < best
            best[closer] = distance[closer]
            found[start : start + len(ours)][closer] = candidates[closer]
    return found


def _exchange(
    values: ColumnCodes,
    wrong: Int64[np.ndarray, "wrong"],
    partners: Int64[np.ndarray, "partners"],
    allowed: tuple[Codes, Codes],
    scaled: Float32[np.ndarray, "n m"],
    random: np.random.Generator,
) -> None:
    """Exchanges excluded values with those of similar rows, in place, where both values are allowed afterwards.

    Args:
      values: of all rows.
      wrong: places of rows, some of which have excluded values.
      partners: places of other rows.
      allowed: for the rows that are wrong, and for the partners.
      scaled: codes of all measured columns.
      random: of the choice.
    """
    for _ in range(_ROUNDS):
        ours = wrong[~allowed[0].have(values[wrong]) & allowed[1].have(values[wrong])]
        theirs = partners[allowed[0].have(values[partners])]
        if not len(ours) or not len(theirs):
            return
        ours = random.permutation(ours)[: len(theirs)]
        found, first = np.unique(_similar(ours, theirs, scaled, random), return_index=True)  # each partner once
        ours = ours[first]
        values[ours], values[found] = values[found], values[ours]


def _nearest_allowed(column: Column, allowed: Codes, codes: ColumnCodes) -> ColumnCodes:
    """The allowed codes that are nearest to codes, or to the column's usual value where codes have no order, [n].

    They stand for missing cells only if no value is allowed. If nothing were allowed, which ``_check`` rules out, codes
    would stay: no private row may raise an error.
    """
    if not allowed.ranges:
        return codes
    values = Codes(tuple((a, min(b, column.num_values)) for a, b in allowed.ranges if a < column.num_values))
    has_order = codes < (column.num_values if column.ordered else 0)
    return (values if values.ranges else allowed).nearest(np.where(has_order, codes, column.usual))


def _in_order(sources: Mapping[str, set[str]]) -> list[str]:
    """Names, where each comes after those that it depends on.

    Raises:
      ValueError: some depend on each other.
    """
    try:
        return list(graphlib.TopologicalSorter(sources).static_order())
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ValueError(f"constraints go in a circle: {circle}; only one of two columns can give way") from None


def _stacked(columns: Sequence[ColumnCodes], num_rows: int) -> Int64[np.ndarray, "n m"]:
    """Columns of codes as an array, column after column in memory."""
    result = np.empty((num_rows, len(columns)), np.int64, order="F")
    for place, codes in enumerate(columns):
        result[:, place] = codes
    return result
