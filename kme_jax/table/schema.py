"""A schema: the columns of a table, from public knowledge. ``kme_jax.table.columns`` turns cells into codes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int, Int64

from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown, shown_for
from kme_jax.storage.files import FileError, new_file
from kme_jax.table.columns import (
    DROP,
    Categorical,
    Column,
    Cycle,
    Datetime,
    column_of,
    dropped_name,
    is_label,
    pandas_module,
)
from kme_jax.table.constraints import Constraint, Recoding, constraint_of
from kme_jax.table.weights import Weight
from kme_jax.table.written import KINDS, WrittenColumn, refusals_explained, written_of

WRITTEN: dict[str, type[WrittenColumn]] = KINDS | {Weight.kind: Weight}
"""Kinds of columns that are not measured, by their names in JSON."""

SCHEMA_VERSION, WITH_CONSTRAINTS, WITH_WRITTEN = 1, 2, 3  # the smallest one that has what the schema has
_MOST_ERRORS = 5  # columns that an error speaks of
_FIELDS = ("$schema", "schema_version", "filled_from_data", "columns", "constraints", "comment")  # of the JSON document


@short_repr
@dataclasses.dataclass(frozen=True)
class Schema:
    """The schema of a table. It is public, and must not come from the private rows.

    Attributes:
      columns: the C columns that are read and measured, in the order in which they are released. Columns of
        ``kme_jax.table.written`` may be listed among them. They are then in ``written`` instead.
      filled_from_data: whether bounds and categories were read from a public file.
      dropped: names of columns that a table may have, and that are never looked at, such as identifiers and free text.
      constraints: what every released row meets, such as that a trip begins before it ends, see
        ``kme_jax.table.constraints``.
      written: columns that are written into a release without being measured, each with its place among all columns of
        the release. The private table may have them or not. Their cells are not looked at, as those of ``dropped`` are
        not, unless they are the ids of persons. A column of weights (``kme_jax.table.weights``) is read, too.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, Schema
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("job", ("baker", "nurse"), nullable=True)))
      >>> schema.names
      ('age', 'job')
      >>> codes = schema.encode(pa.table({"age": [30, 200], "job": ["nurse", "pilot"]}))
      >>> schema.decode(codes).to_pylist()  # 200 is beyond the bound, and there is no pilot
      [{'age': 30, 'job': 'nurse'}, {'age': 110, 'job': None}]
      >>> from kme_jax import Identifier
      >>> Schema((Identifier("patient"), *schema.columns)).decode(codes).to_pylist()[1]
      {'patient': 2, 'age': 110, 'job': None}
    """

    columns: tuple[Column, ...]
    filled_from_data: bool = False
    dropped: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    written: tuple[tuple[int, WrittenColumn], ...] = ()

    def __post_init__(self):
        columns: Any = self.columns
        kinds = (Column, WrittenColumn)
        if isinstance(columns, kinds) or not all(isinstance(column, kinds) for column in columns):
            raise ValueError("columns: expected a list of columns: Schema([Numeric(...), Categorical(...)])")
        listed = tuple((j, column) for j, column in enumerate(columns) if isinstance(column, WrittenColumn))
        if listed and self.written:
            raise ValueError(f"written: {shown((listed[0][1].name,))} is in the list of columns: leave written out")
        object.__setattr__(self, "columns", tuple(column for column in columns if isinstance(column, Column)))
        object.__setattr__(self, "written", listed or _with_places(self.written, len(self.columns)))
        if not self.columns:
            only = f" that are measured, only {shown([c.name for _, c in self.written])}" * bool(self.written)
            raise ValueError(f"the schema has no columns{only}: list one or more")
        dropped = self.dropped
        if isinstance(dropped, str) or not all(map(is_label, dropped)):
            raise ValueError('dropped: expected a list of names of columns: Schema([...], dropped=["id"])')
        object.__setattr__(self, "dropped", tuple(dropped))
        weights = [column.name for column in self.written_columns if isinstance(column, Weight)]
        if len(weights) > 1:
            raise ValueError(f"more than one column has weights: {shown(weights)}")
        names = (*self.released_names, *self.dropped)
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise ValueError(f"more than one column is named {shown(twice)}; rename or drop one")
        if not isinstance(self.filled_from_data, bool):
            raise ValueError(f"filled_from_data must be true or false, got {said(self.filled_from_data)}")
        constraints = self.constraints
        is_list = isinstance(constraints, list | tuple)
        if not is_list or not all(isinstance(one, Constraint) for one in constraints):
            raise ValueError('constraints: expected a list, such as [Order("begin", "end")]')
        object.__setattr__(self, "constraints", tuple(constraints))
        with refusals_explained(self.written_columns):
            measured = self.measured  # refuses constraints that do not fit
        determinations = [determination for _, determination in self.recoding.by_constraint]
        pairs = zip(self.constraints, determinations, strict=True)
        object.__setattr__(self, "constraints", tuple(one.resolved(of_one) for one, of_one in pairs))
        taken = [column.name for column in self.written_columns if column.name in measured.names]
        if taken:
            raise ValueError(f"constraints: {shown(taken)} is the name of a column that is measured: rename yours")

    def _in_short(self) -> str:
        dropped = f", and {shown(self.dropped)} dropped" if self.dropped else ""
        constraints = f", {len(self.constraints)} constraints" if self.constraints else ""
        return f"{len(self.released)} columns: {shown(self.released_names)}{dropped}{constraints}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are read and measured."""
        return tuple(column.name for column in self.columns)

    @property
    def written_columns(self) -> tuple[WrittenColumn, ...]:
        """The columns that are written without being measured."""
        return tuple(column for _, column in self.written)

    @property
    def weight(self) -> Weight | None:
        """The column with the weights of the rows, if they have some."""
        return next((column for column in self.written_columns if isinstance(column, Weight)), None)

    @property
    def unread_columns(self) -> tuple[WrittenColumn, ...]:
        """The columns that are written, and of which no private cell is read."""
        return tuple(column for column in self.written_columns if not isinstance(column, Weight))

    @property
    def units_of_row(self) -> float:
        """How many units of the population count as one row: the largest weight, or 1 without weights."""
        return 1.0 if self.weight is None else self.weight.upper

    @property
    def released(self) -> tuple[Column | WrittenColumn, ...]:
        """All columns of a release, in their order."""
        columns: list[Column | WrittenColumn] = list(self.columns)
        for place, column in self.written:
            columns.insert(place, column)
        return tuple(columns)

    @property
    def released_names(self) -> tuple[str, ...]:
        """Names of all columns of a release, in their order."""
        return tuple(column.name for column in self.released)

    @functools.cached_property
    def recoding(self) -> Recoding:
        """From the released columns to those that are measured, and back."""
        return Recoding.create(self.columns, self.constraints)

    @functools.cached_property
    def measured(self) -> Schema:
        """The columns that are measured. Without constraints they are the columns of this schema."""
        if self.recoding.is_identity:
            return self
        try:
            return Schema(self.recoding.measured, self.filled_from_data)
        except ValueError as error:
            raise ValueError(f"constraints: {error}") from None

    @functools.cached_property
    def extended(self) -> Schema:
        """The released columns, and after them those that are measured instead of some. It has no constraints.

        Written columns are in it, too, so that an error can speak of them.
        """
        extra = [column for column in self.measured.columns if column.name not in self.names]
        if not extra:
            return self
        plain = [dataclasses.replace(c, parts=False) if isinstance(c, Datetime) else c for c in self.columns]
        return Schema((*plain, *extra), self.filled_from_data, written=self.written)

    def extended_codes(self, codes: Int[np.ndarray, "n d"]) -> Int64[np.ndarray, "n e"]:
        """Codes of the columns of :attr:`extended`, for codes of rows. SENSITIVE if the rows are."""
        names = self.measured.names
        extra = [place for place, name in enumerate(names) if name not in self.names]
        codes = np.asarray(codes).astype(np.int64, copy=False)
        return np.concatenate([codes, self.measured_codes(codes)[:, extra]], axis=1) if extra else codes

    def measured_codes(self, codes: Int[np.ndarray, "n d"]) -> Int64[np.ndarray, "n m"]:
        """Codes of the columns that are measured, for codes of rows. SENSITIVE if the rows are.

        Row by row, see ``Recoding.measured_codes``.
        """
        codes = np.asarray(codes)
        if self.recoding.is_identity:
            return codes.astype(np.int64, copy=False)
        return self.recoding.measured_codes(codes)

    def released_codes(
        self, codes: Int[np.ndarray, "n m"], seed: int = 0, bins: Int[np.ndarray, "n m"] | None = None
    ) -> Int64[np.ndarray, "n d"]:
        """Codes of rows that meet all constraints, for codes of the measured columns. See ``Recoding.released_codes``.

        Args:
          codes: of synthetic rows.
          seed: of what is drawn.
          bins: the bin of every row and column, whose pairs are to be kept; None if only columns that give way are to
            change.
        """
        codes = np.asarray(codes)
        return (
            codes.astype(np.int64, copy=False)
            if self.recoding.is_identity
            else self.recoding.released_codes(codes, seed, bins)
        )

    @property
    def cycles(self) -> dict[int, tuple[Cycle, ...]]:
        """The cycles after which a column may repeat a pattern, by its index, see ``Column.cycles``."""
        return {j: column.cycles for j, column in enumerate(self.columns) if column.cycles}

    def index(self, name: str) -> int:
        """The index of a column.

        Raises:
          ValueError: there is no such column.
        """
        if name not in self.names:
            with refusals_explained(self.written_columns):
                raise ValueError(f"no column {said(name)} in the schema, which has {shown_for(name, self.names)}")
        return self.names.index(name)

    def check_fields(self, fields: pa.Schema, *, weighted: bool = True) -> None:
        """Refuses a table with other column names. Types are not checked, because one row can change them.

        Args:
          fields: of the table.
          weighted: whether the column of weights has to be there, if the schema has one.

        Raises:
          ValueError: columns are missing or extra.
        """
        names = (*self.names, *([self.weight.name] if weighted and self.weight is not None else []))
        missing = [name for name in names if name not in fields.names]
        others = (*self.dropped, *(column.name for column in self.written_columns))
        extra = [name for name in fields.names if name not in self.names and name not in others]
        if len(missing) == len(names):
            # The names of the table are not shown: without a header line they would be private cells.
            raise ValueError(f"it has none of the schema's columns ({shown(missing)}), or no header line")
        if missing or extra:
            texts = [f"it lacks the schema's {shown(missing)}: add it, or remove it from the schema"] * bool(missing)
            remedy = (
                f"add {'it' if len(extra) == 1 else 'each'} to the schema, with the kind drop if it is not released"
            )
            texts += [f"the schema lacks {shown(extra)}: {remedy}"] * bool(extra)
            raise ValueError("; ".join(texts))

    def check_keys(self) -> None:
        """Refuses this schema for tables that are not from .csv files, see ``kme_jax.table.columns``.

        Raises:
          ValueError: two categories of a column are the same number or time, or a category is a word for missing cells
            and missing cells do not count as this category.
        """
        for column in self.columns:
            if not isinstance(column, Categorical):
                continue
            word = column.missing_word()
            if word is not None:
                raise column._error(
                    f"the category {shown((word,))} is a word that programs also read as a missing cell: let it "
                    "be the default of a column that is not nullable, rename it, or give a .csv file"
                )
            alike = column.one_of_two()
            if alike is not None:
                raise column._error(
                    f"categories {shown(alike[:1])} and {shown(alike[1:])} are the same number or time, "
                    "which only a .csv file tells apart: rename or merge the categories, or give a .csv file"
                )

    def encode(self, batch: pa.RecordBatch | pa.Table, *, words: bool = True) -> Int64[np.ndarray, "n d"]:
        """Category codes of rows, int64 [n, C], column after column in memory.

        The code of a cell depends on this cell and on the schema alone. Cells of other columns, dropped and written
        ones among them, are not looked at.

        Args:
          batch: the rows.
          words: whether words for missing cells count as missing. False for released rows, which have no such words.

        Raises:
          ValueError: as for ``check_fields``.
        """
        self.check_fields(batch.schema, weighted=False)
        codes = np.empty((batch.num_rows, len(self.columns)), np.int64, order="F")
        for place, column in enumerate(self.columns):
            codes[:, place] = column.encode(batch.column(column.name), words=words)
        return codes

    def decode(self, codes: Int[np.ndarray, "n d"]) -> pa.Table:
        """The rows of category codes [m, C], as a table with all columns of a release.

        Categories are text, but true and false are bools. Columns that are written have new values for these m rows:
        ids count from 1.

        Raises:
          ValueError: the shape is wrong, or a number is not a code of its column.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(f"expected codes of shape [rows, {len(self.columns)}], got {list(codes.shape)}")
        arrays = {column.name: column.released(column.decode(codes[:, j])) for j, column in enumerate(self.columns)}
        arrays |= {column.name: column.values(len(codes)) for column in self.written_columns}
        return pa.table({name: arrays[name] for name in self.released_names})

    def with_released_types(self, table: pa.Table) -> pa.Table:
        """A table that ``check`` accepts, with the types of ``decode``. Earlier versions released bools as text."""
        for column in self.columns:
            place = table.column_names.index(column.name)
            table = table.set_column(place, column.name, column.released(table.column(place)))
        return table

    def to_pandas(self, table: pa.Table) -> Any:
        """Synthetic rows as a DataFrame. The schema alone decides the types of its columns.

        ========================================  ==========================================
        column of the schema                      type in the DataFrame (if it is nullable)
        ========================================  ==========================================
        numeric, integer                          int64 (Int64)
        numeric                                   float64 (float64, with NaN)
        categorical with categories true, false   bool (boolean)
        other categorical                         category (category, with NaN)
        ordinal                                   ordered category (the same, with NaN)
        datetime                                  datetime64[s] (datetime64[s], with NaT)
        id, without a prefix                      int64
        id, with a prefix                         what pandas has for text
        constant                                  int64, float64, bool or category, as its value
        ========================================  ==========================================

        A DataFrame with these types has the same types again after a release.

        Formal guarantee: types of the private DataFrame have no influence. One row can decide such a type: a bool
        column with one missing cell has the type object. So a type that was copied from the private DataFrame would
        tell something about this one row, without noise. The schema is public, and each column's type is a function of
        the column's kind, its categories, ``integer`` and ``nullable``. The values of the synthetic rows have no
        influence either: all categories are in the type, drawn or not.

        Args:
          table: synthetic rows, from ``decode`` or ``TableRelease.sample``. A column "weight" that the schema does not
            have becomes float64.

        Raises:
          ValueError: columns are missing or extra.
          ModuleNotFoundError: pandas is not installed.
        """
        extra = ["weight"] if "weight" in table.column_names and "weight" not in self.released_names else []
        self.check_fields(table.drop_columns(extra).schema)
        missing = [column.name for column in self.written_columns if column.name not in table.column_names]
        if missing:
            raise ValueError(f"it lacks the schema's {shown(missing)}, which every table of a release has")
        columns = {column.name: column.to_pandas(table.column(column.name)) for column in self.released}
        weights = {name: table.column(name).to_numpy() for name in extra}
        return pandas_module().DataFrame(columns | weights)

    def check(self, table: pa.Table) -> None:
        """Refuses a table with invalid values. Not for private rows, because errors show what they hold.

        Raises:
          ValueError: the columns or their order differ, a cell is not a value of its column, or a type differs.
        """
        if tuple(table.column_names) != self.released_names:
            raise ValueError(f"columns must be {shown(self.released_names)}, got {shown(table.column_names)}")
        for column in self.released:
            column.check(table.column(column.name))

    def to_json(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        constraints = {"constraints": [one.to_json() for one in self.constraints]} if self.constraints else {}
        return {
            "schema_version": _version(bool(self.constraints), bool(self.written)),
            "filled_from_data": self.filled_from_data,
            "columns": [
                *(column.to_json() for column in self.released),
                *({"name": name, "kind": DROP} for name in self.dropped),
            ],
        } | constraints

    @classmethod
    def from_json(cls, document: Any) -> Schema:
        """The schema of plain JSON values.

        Raises:
          ValueError: the version differs, or a field is unknown, not filled in, or of a wrong type.
        """
        if not isinstance(document, dict) or not isinstance(document.get("columns"), list):
            raise ValueError('expected a JSON object with a list "columns"')
        version = document.get("schema_version")
        if type(version) is not int or not SCHEMA_VERSION <= version <= WITH_WRITTEN:
            raise ValueError(
                f"schema_version must be {SCHEMA_VERSION}, got {said(version)}; it is {WITH_CONSTRAINTS} if there are "
                f"constraints, and {WITH_WRITTEN} if there are columns of kind {' or '.join(WRITTEN)}; kme-jax schema "
                "drafts one"
            )
        unknown = sorted(document.keys() - set(_FIELDS))
        if unknown:
            raise ValueError(f"unknown field {said(unknown[0])} (known: {', '.join(_FIELDS)})")
        entries = list(enumerate(document["columns"], 1))
        dropped = [(i, entry) for i, entry in entries if isinstance(entry, dict) and entry.get("kind") == DROP]
        columns: list[Any] = []
        errors: list[str] = []
        for i, entry in entries:
            if (i, entry) not in dropped:
                try:
                    columns.append(written_of(entry, i, WRITTEN) if _is_written(entry) else column_of(entry, i))
                except ValueError as error:
                    errors.append(str(error))
        if errors:
            more = len(errors) - _MOST_ERRORS
            raise ValueError("; ".join(errors[:_MOST_ERRORS]) + f"; and {more} more columns" * (more > 0))
        listed = document.get("constraints", [])
        if not isinstance(listed, list):
            raise ValueError(f"constraints must be a list, got {said(listed)}")
        constraints = tuple(constraint_of(entry, i) for i, entry in enumerate(listed, 1))
        kinds = [column.kind for column in columns if isinstance(column, WrittenColumn)]
        if kinds and version < WITH_WRITTEN:
            raise ValueError(f"schema_version must be {WITH_WRITTEN}, because there is a column of kind {kinds[0]}")
        if constraints and version < WITH_CONSTRAINTS:
            raise ValueError(f"schema_version must be {WITH_CONSTRAINTS}, because there are constraints")
        names = tuple(dropped_name(e, i) for i, e in dropped)
        return cls(tuple(columns), document.get("filled_from_data", False), names, constraints)

    @classmethod
    def read(cls, path: str | os.PathLike) -> Schema:
        """The schema of a .json file.

        Raises:
          FileError: there is no such file, it is no JSON, or the schema is not filled in.
        """
        path = pathlib.Path(path)
        if path.exists() and not path.is_file():  # reading a pipe could wait forever
            raise FileError(f"{path}: is not a file")
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8-sig")))
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror})") from error
        except json.JSONDecodeError as error:
            raise FileError(f"{path}: line {error.lineno}, letter {error.colno} is no JSON: {error.msg}") from error
        except UnicodeDecodeError as error:
            raise FileError(f"{path}: is no JSON in UTF-8") from error
        except RecursionError as error:
            raise FileError(f"{path}: is no JSON of a schema: it is nested too deeply") from error
        except ValueError as error:
            raise FileError(f"{path}: {error}") from error

    def write(self, path: str | os.PathLike) -> None:
        """Writes the schema to a new .json file.

        Raises:
          FileError: the file exists, or cannot be written.
        """
        write_json(path, self.to_json())


def _version(has_constraints: bool, has_written: bool) -> int:
    """The smallest version of a document with these."""
    return WITH_WRITTEN if has_written else WITH_CONSTRAINTS if has_constraints else SCHEMA_VERSION


def _is_written(entry: Any) -> bool:
    """Whether a JSON entry is one of a written column."""
    kind = entry.get("kind") if isinstance(entry, dict) else None
    return isinstance(kind, str) and kind in WRITTEN


def _with_places(written: Any, number: int) -> tuple[tuple[int, WrittenColumn], ...]:
    """Written columns with their places, of which ``number`` other columns take the rest.

    Raises:
      ValueError: they are not in order, or not within the columns of the release.
    """
    sequence = list | tuple
    are_pairs = isinstance(written, sequence) and all(isinstance(p, sequence) and len(p) == 2 for p in written)
    if not are_pairs or not all(isinstance(column, WrittenColumn) for _, column in written):
        raise ValueError("written: expected places with their columns, such as [(0, Identifier(...))]")
    pairs = tuple((place, column) for place, column in written)
    places = [place for place, _ in pairs]
    within = all(type(place) is int and 0 <= place < number + len(pairs) for place in places)
    if not within or places != sorted(set(places)):
        raise ValueError(f"written: places must increase, and be places of a release, got {said(places)}")
    return pairs


def check_schema(schema: Any) -> None:
    """Raises ValueError if it is no schema."""
    if not isinstance(schema, Schema):
        raise ValueError(
            f"schema: expected a Schema, got a {type(schema).__name__}: write Schema([...]) or Schema.read(PATH)"
        )


def write_json(path: str | os.PathLike, document: dict[str, Any]) -> None:
    """Writes a schema or the draft of one to a new .json file, one column in each line.

    Raises:
      FileError: the file exists, or cannot be written.
    """
    lists = {name: document[name] for name in ("columns", "constraints") if name in document}
    text = json.dumps({**document, **dict.fromkeys(lists)}, indent=2, ensure_ascii=False) + "\n"
    for name, entries in lists.items():
        body = ",\n    ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
        text = text.replace(f'  "{name}": null', f'  "{name}": [\n    {body}\n  ]', 1)
    with new_file(path, (".json",)) as file:
        file.write(text.encode())
