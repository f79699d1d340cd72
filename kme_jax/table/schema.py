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
from kme_jax._numerics.text import said, shown
from kme_jax.storage.files import FileError, new_file
from kme_jax.table.columns import DROP, Categorical, Column, Datetime, column_of, dropped_name, is_label, pandas_module
from kme_jax.table.constraints import Constraint, Recoding, constraint_of

SCHEMA_VERSION, WITH_CONSTRAINTS = 1, 2  # the second one only if there are constraints
_MOST_ERRORS = 5  # columns that an error speaks of
_FIELDS = ("$schema", "schema_version", "filled_from_data", "columns", "constraints", "comment")  # of the JSON document


@short_repr
@dataclasses.dataclass(frozen=True)
class Schema:
    """The schema of a table. It is public, and must not come from the private rows.

    Attributes:
      columns: the C columns, in the order in which they are released.
      filled_from_data: whether bounds and categories were read from a public file.
      dropped: names of columns that a table may have, and that are never looked at, such as identifiers and free text.
      constraints: what every released row meets, such as that a trip begins before it ends, see
        ``kme_jax.table.constraints``.

    Examples:
      >>> import pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, Schema
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("job", ("baker", "nurse"), nullable=True)))
      >>> schema.names
      ('age', 'job')
      >>> codes = schema.encode(pa.table({"age": [30, 200], "job": ["nurse", "pilot"]}))
      >>> schema.decode(codes).to_pylist()  # 200 is beyond the bound, and there is no pilot
      [{'age': 30, 'job': 'nurse'}, {'age': 110, 'job': None}]
    """

    columns: tuple[Column, ...]
    filled_from_data: bool = False
    dropped: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self):
        columns = self.columns
        if isinstance(columns, Column) or not all(isinstance(column, Column) for column in columns):
            raise ValueError("columns: expected a list of columns: Schema([Numeric(...), Categorical(...)])")
        object.__setattr__(self, "columns", tuple(columns))
        if not self.columns:
            raise ValueError("the schema has no columns: list one or more")
        dropped = self.dropped
        if isinstance(dropped, str) or not all(map(is_label, dropped)):
            raise ValueError('dropped: expected a list of names of columns: Schema([...], dropped=["id"])')
        object.__setattr__(self, "dropped", tuple(dropped))
        names = (*self.names, *self.dropped)
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
        _ = self.measured  # refuses constraints that do not fit

    def _in_short(self) -> str:
        dropped = f", and {shown(self.dropped)} dropped" if self.dropped else ""
        constraints = f", {len(self.constraints)} constraints" if self.constraints else ""
        return f"{len(self.columns)} columns: {shown(self.names)}{dropped}{constraints}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

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
        """The released columns, and after them those that are measured instead of some. It has no constraints."""
        extra = [column for column in self.measured.columns if column.name not in self.names]
        if not extra:
            return self
        plain = [dataclasses.replace(c, parts=False) if isinstance(c, Datetime) else c for c in self.columns]
        return Schema((*plain, *extra), self.filled_from_data)

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
    def cycles(self) -> dict[int, tuple[int, ...]]:
        """The numbers of codes after which a column may repeat a pattern, by its index, see ``Column.cycles``."""
        return {j: column.cycles for j, column in enumerate(self.columns) if column.cycles}

    def index(self, name: str) -> int:
        """The index of a column.

        Raises:
          ValueError: there is no such column.
        """
        if name not in self.names:
            raise ValueError(f"no column {said(name)} in the schema, which has {shown(self.names)}")
        return self.names.index(name)

    def check_fields(self, fields: pa.Schema) -> None:
        """Refuses a table with other column names. Types are not checked, because one row can change them.

        Raises:
          ValueError: columns are missing or extra.
        """
        missing = [name for name in self.names if name not in fields.names]
        extra = [name for name in fields.names if name not in self.names and name not in self.dropped]
        if len(missing) == len(self.names):
            # The names of the table are not shown: without a header line they would be private cells.
            hint = (
                "; are there commas between the cells of its first line?"
                if len(fields.names) == 1 < len(self.names)
                else ""
            )
            raise ValueError(f"it has none of the schema's columns ({shown(missing)}), or no header line{hint}")
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

    def encode(self, batch: pa.RecordBatch | pa.Table) -> Int64[np.ndarray, "n d"]:
        """Category codes of rows, int64 [n, C], column after column in memory.

        The code of a cell depends on this cell and on the schema alone.

        Raises:
          ValueError: as for ``check_fields``.
        """
        self.check_fields(batch.schema)
        codes = np.empty((batch.num_rows, len(self.columns)), np.int64, order="F")
        for place, column in enumerate(self.columns):
            codes[:, place] = column.encode(batch.column(column.name))
        return codes

    def decode(self, codes: Int[np.ndarray, "n d"]) -> pa.Table:
        """The rows of category codes [m, C], as a table.

        Raises:
          ValueError: the shape is wrong, or a number is not a code of its column.
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != len(self.columns):
            raise ValueError(f"expected codes of shape [rows, {len(self.columns)}], got {list(codes.shape)}")
        arrays = [column.decode(codes[:, place]) for place, column in enumerate(self.columns)]
        return pa.table(arrays, names=list(self.names))

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
        extra = ["weight"] if "weight" in table.column_names and "weight" not in self.names else []
        self.check_fields(table.drop_columns(extra).schema)
        columns = {column.name: column.to_pandas(table.column(column.name)) for column in self.columns}
        weights = {name: table.column(name).to_numpy() for name in extra}
        return pandas_module().DataFrame(columns | weights)

    def check(self, table: pa.Table) -> None:
        """Refuses a table with invalid values. Not for private rows, because errors show what they hold.

        Raises:
          ValueError: the columns or their order differ, a cell is not a value of its column, or a type differs.
        """
        if tuple(table.column_names) != self.names:
            raise ValueError(f"columns must be {shown(self.names)}, got {shown(table.column_names)}")
        for column in self.columns:
            column.check(table.column(column.name))

    def to_json(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        constraints = {"constraints": [one.to_json() for one in self.constraints]} if self.constraints else {}
        return {
            "schema_version": WITH_CONSTRAINTS if self.constraints else SCHEMA_VERSION,
            "filled_from_data": self.filled_from_data,
            "columns": [
                *(column.to_json() for column in self.columns),
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
        if type(version) is not int or not SCHEMA_VERSION <= version <= WITH_CONSTRAINTS:
            raise ValueError(
                f"schema_version must be {SCHEMA_VERSION}, got {said(version)}; it is {WITH_CONSTRAINTS} if there are "
                "constraints; kme-jax schema drafts one"
            )
        unknown = sorted(document.keys() - set(_FIELDS))
        if unknown:
            raise ValueError(f"unknown field {said(unknown[0])} (known: {', '.join(_FIELDS)})")
        entries = list(enumerate(document["columns"], 1))
        dropped = [(i, entry) for i, entry in entries if isinstance(entry, dict) and entry.get("kind") == DROP]
        columns, errors = [], []
        for i, entry in entries:
            if (i, entry) not in dropped:
                try:
                    columns.append(column_of(entry, i))
                except ValueError as error:
                    errors.append(str(error))
        if errors:
            more = len(errors) - _MOST_ERRORS
            raise ValueError("; ".join(errors[:_MOST_ERRORS]) + f"; and {more} more columns" * (more > 0))
        listed = document.get("constraints", [])
        if not isinstance(listed, list):
            raise ValueError(f"constraints must be a list, got {said(listed)}")
        constraints = tuple(constraint_of(entry, i) for i, entry in enumerate(listed, 1))
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
            raise FileError(f"{path}: line {error.lineno} is no JSON: {error.msg}") from error
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
