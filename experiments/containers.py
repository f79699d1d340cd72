"""Random tables in containers of many kinds, and neighbours of them, for an attack on how cells become codes.

A case is a schema, a list of rows of Python cells, one row that replaces another one, and a container. Both tables are
put into the container by the same call. Whatever the container makes of them, only the codes of that row may differ,
and neither table may be refused if the other one is not. ``num_violations`` counts the cases where this fails, for the
library's own encoder or for the one before it, ``old_encoder``, which it has to find out.

What the container itself loses is left out:

* Floats of 32 bits that a .csv file holds with fewer digits than they have as floats of 64 bits. pandas writes 0.1 for
  one in a column of them, and 0.10000000149011612 where another row has made the column wider.
* ``pandas.read_csv`` before pandas 3.1, whose own parser of floats is off by a last digit. There, cases use
  ``float_precision="round_trip"``.
* Numbers beside a time in ``pyarrow.array``, and so in ``pyarrow.Table.from_pandas``, ``DataFrame.to_parquet`` and
  series of ``pandas.ArrowDtype``.
  pyarrow makes times of them without a word, microseconds since 1970. A DataFrame itself is read as it is.
* Numbers beside a ``numpy.timedelta64`` in ``numpy.array``, which makes durations of them.
* Text that NumPy makes of a missing cell. ``numpy.array(["a", nan])`` holds "nan", which may be a category.
* Containers that do not accept mixed cells at all, such as ``pyarrow.array([1, "a"])``: the error is theirs, and comes
  before the library sees anything.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import math
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from kme_jax import Bounds, LatticeMap, integer_embedding
from kme_jax._numerics.cells import UNREADABLE, is_number_type, parse_number
from kme_jax.embedding import integer_embedding_of_batches
from kme_jax.feature_maps.table import Binning
from kme_jax.kernels import Gaussian
from kme_jax.table import Categorical, Column, Datetime, Numeric, Ordinal, Schema, open_table
from kme_jax.table import plan as plans
from kme_jax.table.columns import Marks

Container = Callable[[list[list[Any]], Schema, pathlib.Path], Any]
Encoder = Callable[[Any, Schema], np.ndarray]


class Odd:
    """An object that raises an error whatever it is asked."""

    def _fail(self, *_):
        raise RuntimeError("asked")

    __str__ = __repr__ = __float__ = __int__ = __index__ = __array__ = __len__ = _fail
    __hash__ = object.__hash__


# -- schemas and cells

_WORDS = ("a", "b", "red", "yes", "no", "Rome", "n")
_DIGITS = ("0", "1", "2", "7", "42")
_DECIMALS = ("0.5", "1.25", "-3.75", "0.1", "2.50")
_DATES = ("2024-01-01", "2024-03-01", "2023-12-31 12:00:00", "20240105")
_LONG = ("1234567890123456789", "2234567890123456789", "9007199254740993")
_CLOCKS = ("10:30", "23:59:59")
_CATEGORIES = (
    _WORDS,
    _DIGITS,
    _DECIMALS,
    _DATES,
    _LONG,
    _CLOCKS,
    ("true", "false", "True"),
    ("nan", "NA", "inf", "-1"),
)

_DAY = datetime.date(2024, 3, 1)
_TIME = datetime.datetime(2024, 1, 5, 23, 59, 59, 999_999)
_ZONE = datetime.timezone(datetime.timedelta(hours=9))
# What a column may be made of, before odd cells come in: a column is mostly of one of these.
FAMILIES: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int": (0, 1, 2, 7, 42, -5, 100, 20240301),
    "float": (0.0, 0.5, 1.0, 1.25, -3.75, 2.5, 0.1, 7.0, 1e6),
    "long": (1234567890123456789, 2234567890123456789, 9007199254740993, 1),
    "text": (*_WORDS, "", " a "),
    "digits": ("0", "1", "01", "1.0", "42", "0.5", "2.50", "20240301", "1234567890123456789"),
    "words": ("true", "False", "TRUE", "no"),
    "dates": (_DAY, datetime.date(2024, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "times": (_TIME, datetime.datetime(2024, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 5)),
    "zoned": (_TIME.replace(tzinfo=_ZONE), datetime.datetime(2024, 1, 1, tzinfo=_ZONE)),
    "iso": ("2024-01-01", "2024-03-01 00:00:00", "2023-12-31T12:00:00", "2024-01-01T09:00:00+09:00"),
    "decimal": (Decimal("0.50"), Decimal("1"), Decimal("2.5"), Decimal("-3.75"), Decimal("1234567890123456789")),
    "numpy": (np.float32(1), np.float16(0.5), np.int8(7), np.float64(2.5), np.uint64(42)),
    "numpy times": (np.datetime64("2024-01-01"), np.datetime64("2024-03-01T12:00:00.5")),
    "complex": (1 + 0j, 0.5 + 0j, 1 + 1j),
    "clocks": (datetime.time(10, 30), datetime.time(23, 59, 59)),
    "durations": (datetime.timedelta(seconds=1), datetime.timedelta(days=1)),
    "lists": ([1], [], [1, 2]),
    "periods": (pandas.Period("2024-01-01", "D"), pandas.Period("2024-03-01", "D"), pandas.NaT),
    "intervals": (pandas.Interval(0, 1), pandas.Interval(1, 2)),
    "categories": (),  # those of the schema, as text
    "numbers of categories": (),  # those of the schema that are numbers or times, as such
}
# What turns the type of a column into another one.
ODD_CELLS: tuple[Any, ...] = (
    *(None, math.nan, math.inf, -math.inf, "n/a", "x", "", "True", "1", "2024-01-01", "\xe9", "\ud800", b"\xff", b"1"),
    *(True, False, 1, -1, 0.5, 2**53 + 1, 2**60, 2**63, 2**64, -(2**70), 10**400, 20240301),
    *(1j, 1 + 0j, np.float32(1), np.float32(0.5), np.float16(0.5), np.longdouble(1), np.int8(1), np.uint64(2**63)),
    *(np.bool_(True), np.str_("a"), np.complex64(1), np.datetime64("2024-01-01", "D"), np.datetime64("NaT")),
    *(np.timedelta64(1, "s"), np.timedelta64("NaT"), np.datetime64(2**40, "Y")),
    *(Decimal("1.0"), Decimal("NaN"), Decimal("sNaN"), Decimal("1e500"), Fraction(1, 2)),
    *(_DAY, _TIME, _TIME.replace(tzinfo=_ZONE), datetime.datetime.max, datetime.datetime.min, datetime.time(10, 30)),
    *(datetime.timedelta(seconds=1), [1], (1,), {"a": 1}, {1}, np.ones(2), object(), Odd()),
    *(pandas.NA, pandas.NaT, pandas.Timestamp("2024-01-01"), pandas.Timestamp("2024-01-01", tz="Asia/Tokyo")),
    *(pandas.Timedelta(1, "s"), pandas.Period("2024-01", "M"), pandas.Interval(0, 1)),
)
_MILD_CELLS: tuple[Any, ...] = (None, None, math.nan, True, 1, 0.5, 2**60, "1")


def _bools(rng: np.random.Generator) -> bool:
    return bool(rng.integers(2))


def _choice(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def random_column(rng: np.random.Generator, name: str) -> Column:
    """A column of any kind, nullable or not, with or without a default."""
    nullable, kind = _bools(rng), int(rng.integers(4))
    if kind == 0:
        integer = _bools(rng)
        bounds = (-4, 100) if integer else _choice(rng, [(-3.5, 2.5), (0.1, 100.1), (0.0, 1e6)])
        step = _choice(rng, [None, 2 if integer else 0.5])
        default = _choice(rng, [None, bounds[0]])
        return Numeric(name, *bounds, integer=integer, step=step, nullable=nullable, default=default)
    if kind == 3:
        resolution = _choice(rng, ["day", "hour", "minute", "second"])
        default = _choice(rng, [None, "2024-03-01"])
        lower = _choice(rng, ["2023-12-01", "0001-01-01"]) if resolution == "day" else "2023-12-01"
        return Datetime(name, lower, "2024-12-31", resolution, nullable=nullable, default=default)
    column = Categorical if kind == 1 else Ordinal
    categories: list[str] = []
    for words in rng.permutation(len(_CATEGORIES))[: int(rng.integers(1, 4))]:
        for category in _CATEGORIES[words]:
            tried = column(name, (*categories, category))
            numbers = [parse_number(word.encode()) for word in tried.categories]
            num_missing = sum(number is not None and math.isnan(number) for number in numbers)
            if _bools(rng) and tried.one_of_two() is None and num_missing < 2:
                categories.append(category)
    categories = categories or ["a", "b"]
    default = _choice(rng, [None, categories[-1]])
    made = column(name, tuple(categories), nullable=nullable, default=default)
    word = made.missing_word()  # which missing cells have to count as
    return made if word is None else column(name, tuple(categories), nullable=False, default=word)


def _typed(category: str) -> Any:
    """A category as the number or the time that it is."""
    for read in (int, float, datetime.datetime.fromisoformat, datetime.time.fromisoformat):
        try:
            return read(category)
        except ValueError:
            continue
    return category


def random_cells(rng: np.random.Generator, column: Column, num_rows: int) -> list[Any]:
    """Cells of a column: of one family, and in one of three columns a few of other kinds."""
    families = FAMILIES
    if isinstance(column, Categorical):
        typed = tuple(map(_typed, column.categories))
        families = families | {"categories": column.categories, "numbers of categories": typed}
    family = _choice(rng, [cells for cells in families.values() if cells])
    cells = [_choice(rng, family) for _ in range(num_rows)]
    if rng.integers(3) == 0:
        cells[int(rng.integers(num_rows))] = _choice(rng, (*ODD_CELLS[:12], None, math.nan))
    return cells


# -- containers

_VERSION = tuple(map(int, pandas.__version__.split(".")[:2]))
EXACT = {} if _VERSION >= (3, 1) else {"float_precision": "round_trip"}
"""Options of pandas.read_csv with which it reads floats exactly."""


def _columns(rows: list[list[Any]]) -> list[list[Any]]:
    return [list(cells) for cells in zip(*rows, strict=True)]


def _frame(rows, schema, _folder=None) -> pandas.DataFrame:
    """pandas infers the types."""
    return pandas.DataFrame(dict(zip(schema.names, _columns(rows), strict=True)))


def _frame_of_rows(rows, schema, _folder=None):
    return pandas.DataFrame(rows, columns=list(schema.names))


def _is_float(cell: Any) -> bool:
    return isinstance(cell, float | np.floating)


def _frame_of_array(rows, schema, _folder=None):
    """NumPy infers the types."""
    for cells in _columns(rows):
        durations = [isinstance(cell, np.timedelta64 | datetime.timedelta) for cell in cells]
        if any(durations) and not all(durations):
            raise TypeError("numbers would become durations")
        if any(isinstance(cell, str) for cell in cells) and any(cell != cell for cell in cells if _is_float(cell)):
            raise TypeError("a missing cell would become text")
    return pandas.DataFrame({name: np.array(cells) for name, cells in zip(schema.names, _columns(rows), strict=True)})


def _frame_of_objects(rows, schema, _folder=None):
    return _frame(rows, schema).astype(object)


def _converted(*kinds: Any) -> Container:
    """A type that is asked for, where pandas can have it."""

    def build(rows, schema, _folder=None):
        series = {}
        for place, (name, cells) in enumerate(zip(schema.names, _columns(rows), strict=True)):
            series[name] = pandas.Series(cells, dtype=kinds[place % len(kinds)])
        return pandas.DataFrame(series)

    return build


def _categories(rows, schema, _folder=None):
    return _frame(rows, schema).astype("category")


def _nullable(backend: str) -> Container:
    return lambda rows, schema, _folder=None: _frame(rows, schema).convert_dtypes(dtype_backend=backend)


def _sparse(rows, schema, _folder=None):
    frame = _frame(rows, schema)
    return pandas.DataFrame({name: pandas.arrays.SparseArray(frame[name].to_numpy()) for name in frame})


def _concatenated(rows, schema, _folder=None):
    """pandas joins the types of two frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.concat([_frame(part, schema) for part in (rows[:1], rows[1:])], ignore_index=True)


_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)


def _without_times(container: Container) -> Container:
    """Only columns in which numbers do not become times."""

    def build(rows, schema, folder=None):
        for cells in _columns(rows):
            if any(map(is_number_type, cells)) and any(isinstance(cell, _TIMES) for cell in cells):
                raise TypeError("numbers would become times")
        return container(rows, schema, folder)

    return build


@_without_times
def _table(rows, schema, _folder=None) -> pa.Table:
    return pa.table({name: pa.array(cells) for name, cells in zip(schema.names, _columns(rows), strict=True)})


@_without_times
def _table_of_frame(rows, schema, _folder=None):
    return pa.Table.from_pandas(_frame(rows, schema), preserve_index=False)


def _chunked(rows, schema, _folder=None):
    table = _table(rows, schema, None)
    return pa.concat_tables([table[start : start + 3] for start in range(0, len(rows), 3)])


def _dictionaries(rows, schema, _folder=None):
    return pa.table([column.dictionary_encode() for column in _table(rows, schema, None).columns], names=schema.names)


def _written(write: Callable[[Any, Any], None], suffix: str) -> Callable[[Container], Container]:
    def of(container: Container) -> Container:
        def build(rows, schema, folder):
            path = folder / f"table{suffix}"
            write(container(rows, schema, folder), path)
            return path

        return build

    return of


_parquet = _written(lambda table, path: pyarrow.parquet.write_table(table, path), ".parquet")
_parquet_of_pandas = _written(lambda frame, path: frame.to_parquet(path), ".parquet")
_csv_of_pandas = _written(lambda frame, path: frame.to_csv(path, index=False), ".csv")
_csv_of_arrow = _written(lambda table, path: pyarrow.csv.write_csv(table, path), ".csv")


def _read_again(container: Container, **options: Any) -> Container:
    def build(rows, schema, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = container(rows, schema, folder).read_bytes()
            return pandas.read_csv(io.BytesIO(text), **EXACT, **options)

    return build


CONTAINERS: dict[str, Container] = {
    "DataFrame of lists": _frame,
    "DataFrame of rows": _frame_of_rows,
    "DataFrame of arrays": _frame_of_array,
    "DataFrame of objects": _frame_of_objects,
    "DataFrame of floats": _converted("float64", "Float64", "float32", "longdouble"),
    "DataFrame of nullable numbers": _converted("Int64", "Float64", "boolean", "UInt8"),
    "DataFrame of texts": _converted("string", "str", "string[pyarrow]"),
    "DataFrame of categories": _converted("category"),
    "DataFrame turned into categories": _categories,
    "DataFrame of complex numbers": _converted("complex128", "complex64"),
    "DataFrame of times": _converted("datetime64[ns]", "datetime64[s]", "datetime64[us, UTC]", "timedelta64[ns]"),
    "DataFrame of Arrow types": _without_times(
        _converted(
            *(pandas.ArrowDtype(kind) for kind in (pa.float64(), pa.string(), pa.timestamp("us"), pa.decimal128(30, 5)))
        )
    ),
    "nullable DataFrame": _nullable("numpy_nullable"),
    "Arrow DataFrame": _without_times(_nullable("pyarrow")),
    "sparse DataFrame": _sparse,
    "joined DataFrames": _concatenated,
    "pyarrow table": _table,
    "pyarrow table of a DataFrame": _table_of_frame,
    "pyarrow table in chunks": _chunked,
    "pyarrow table of dictionaries": _dictionaries,
    "Parquet": _parquet(_table),
    "Parquet of pandas": _parquet_of_pandas(_without_times(_frame)),
    ".csv of pandas": _csv_of_pandas(_frame),
    ".csv of pyarrow": _csv_of_arrow(_table),
    ".csv of pandas, read again": _read_again(_csv_of_pandas(_frame)),
    ".csv of pandas, read again in Arrow types": _read_again(_csv_of_pandas(_frame), dtype_backend="pyarrow"),
    ".csv of pyarrow, read again": _read_again(_csv_of_arrow(_table)),
}


# -- encoders


def new_encoder(data: Any, schema: Schema) -> np.ndarray:
    """The codes of the library."""
    batches = list(open_table(data, schema).batches())
    codes = np.concatenate([schema.encode(batch) for batch in batches])
    parts = [batch[start : start + 2] for batch in batches for start in range(0, batch.num_rows, 2)]
    if not np.array_equal(np.concatenate([schema.encode(part) for part in parts]), codes):
        raise AssertionError("codes depend on the batches")
    return codes


def _old_cell(value: Any) -> bytes | None:
    try:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bool | np.bool_):
            return str(bool(value)).lower().encode()
        if isinstance(value, int):
            return b"%d" % max(-(2**64), min(value, 2**64))
        if isinstance(value, float):
            return np.format_float_positional(value, trim="-").encode()
        return str(value).encode(errors="replace")
    except Exception:
        return UNREADABLE


def _old_float(cell: bytes) -> float | None:
    try:
        return float(cell or b"nan")
    except ValueError:
        return None


def old_encoder(frame: pandas.DataFrame, schema: Schema) -> np.ndarray:
    """BROKEN: how cells of a DataFrame became codes before. A bool in a column of bools is the number 1; in a column of
    objects it is the text "true", which is no number. Categories are compared as text.
    """
    codes = []
    for column in schema.columns:
        series, marks = frame[column.name], Marks(column._missing, column._unreadable)
        if series.dtype != object and not hasattr(series, "cat"):
            codes.append(column.encode(pa.Array.from_pandas(series)))
            continue
        cells = [_old_cell(None if pandas.isna(x) is True else x) or b"" for x in series.astype(object)]
        if isinstance(column, Numeric):
            numbers = [_old_float(cell.strip()) for cell in cells]
            found = column._encode_numbers(np.array(numbers, np.float64), marks)
            found[[number is None for number in numbers]] = marks.unreadable
        elif isinstance(column, Categorical):
            known = {category.encode(): code for code, category in enumerate(column.categories)}
            known |= {b"": marks.missing}
            found = np.array([known.get(cell.strip(), marks.unreadable) for cell in cells])
        else:
            found = column._encode_text(cells, marks)
        codes.append(found)
    return np.stack(codes, axis=1)


# -- cases


@dataclasses.dataclass(frozen=True)
class Case:
    """Two neighbouring tables, and what they are put into.

    Attributes:
      schema: of both.
      rows: cells, one list for each row.
      place: of the row that is replaced.
      row: by which.
      container: a name of ``CONTAINERS``.
    """

    schema: Schema
    rows: list[list[Any]]
    place: int
    row: list[Any]
    container: str

    @property
    def neighbour(self) -> list[list[Any]]:
        """The rows with the other one in its place."""
        return [self.row if i == self.place else row for i, row in enumerate(self.rows)]


def random_case(rng: np.random.Generator, containers: Sequence[str] = tuple(CONTAINERS)) -> Case:
    """A case of one to three columns and three to nine rows. In half of the cases the other row has no cell that a
    container with types of its own would refuse.
    """
    columns = tuple(random_column(rng, f"x{i}") for i in range(int(rng.integers(1, 4))))
    num_rows = int(rng.integers(3, 10))
    rows = [list(row) for row in zip(*(random_cells(rng, c, num_rows) for c in columns), strict=True)]
    place, mild = int(rng.integers(num_rows)), _bools(rng)
    row = list(rows[place])
    for j in range(len(columns)):
        if j == 0 or _bools(rng):
            other = rows[int(rng.integers(num_rows))][j]
            row[j] = _choice(rng, (other, *_MILD_CELLS) if mild else ODD_CELLS)
    return Case(Schema(columns), rows, place, row, _choice(rng, containers))


def _ends_pyarrow(cells: list[Any]) -> bool:
    """Whether there are a time and a number of NumPy, with which pyarrow 26 ends the whole process."""
    scalars = [cell for cell in cells if isinstance(cell, np.generic)]
    times = [isinstance(cell, np.datetime64 | np.timedelta64) for cell in scalars]
    return any(times) and not all(times)


def _built(container: Container, rows: list[list[Any]], schema: Schema, folder: pathlib.Path) -> Any:
    """The table, or None where the container refuses such cells."""
    if any(map(_ends_pyarrow, _columns(rows))):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return container(rows, schema, folder)
    except Exception:
        return None


def _totals(codes: np.ndarray, schema: Schema) -> np.ndarray:
    """Σ q(x_n) of the first measurement of a release of such a table."""
    binnings = [Binning.create(c.num_codes, ordered=c.ordered, missing=c.nullable) for c in schema.columns]
    feature_map = plans.singles_map(plans.Layout(tuple(binnings), -1, -1))
    half = len(codes) // 2
    batches = (part.astype(np.float64) for part in (codes[:half], codes[half:]) if len(part))
    return integer_embedding_of_batches(feature_map, batches, len(codes)).total


def is_violated(case: Case, folder: pathlib.Path, encoder: Encoder = new_encoder) -> bool | None:
    """Whether the case shows a defect: another row has other codes, the integer sums differ by more than the integers
    of the two rows, or one of the tables is refused.

    Args:
      case: the tables.
      folder: where files are written.
      encoder: what is attacked.

    Returns:
      None where the container refuses one of the tables, so that there is nothing to compare.
    """
    container, found = CONTAINERS[case.container], []
    for rows in (case.rows, case.neighbour):
        table = _built(container, rows, case.schema, folder)
        if table is None:
            return None
        try:
            codes = encoder(table, case.schema)
        except Exception:
            return True
        if len(codes) != len(rows):  # a .csv file has no row where a line is empty
            return None
        found.append(codes)
    first, second = found
    same = np.delete(np.arange(len(first)), case.place)
    if not np.array_equal(first[same], second[same]):
        return True
    one = slice(case.place, case.place + 1)
    moved = _totals(second, case.schema) - _totals(first, case.schema)
    return not np.array_equal(moved, _totals(second[one], case.schema) - _totals(first[one], case.schema))


_POINTS = LatticeMap.from_box(Gaussian(0.5), [0.0, 0.0], [1.0, 1.0])
_NUMBER_FAMILIES = ("bool", "int", "float", "long", "digits", "words", "decimal", "numpy", "complex", "dates")
POINT_CONTAINERS: dict[str, Callable[[list[list[Any]]], Any]] = {
    "lists": lambda rows: rows,
    "array": np.array,
    "array of objects": lambda rows: np.array(rows, object),
    "DataFrame": lambda rows: pandas.DataFrame(rows),
    "nullable DataFrame": lambda rows: pandas.DataFrame(rows).convert_dtypes(),
}


def is_violated_by_points(rng: np.random.Generator) -> bool | None:
    """As :func:`is_violated`, of a random table of numbers as the points product reads it."""
    family = FAMILIES[_choice(rng, _NUMBER_FAMILIES)]
    num_rows = int(rng.integers(2, 7))
    rows = [[_choice(rng, family), _choice(rng, FAMILIES["float"])] for _ in range(num_rows)]
    other = [[_choice(rng, ODD_CELLS), rows[0][1]], *rows[1:]]
    bounds = _choice(rng, [None, Bounds.create([-1.0, 0.0], [50.0, 2.0])])
    build = _choice(rng, list(POINT_CONTAINERS.values()))
    both = []
    for table in (rows, other):
        found = _built(lambda cells, *_: build(cells), table, None, None)
        if found is None or (isinstance(found, np.ndarray) and found.ndim != 2):  # NumPy has looked into cells
            return None
        both.append(found)
    single = [noisy[:1] if isinstance(noisy, list | np.ndarray) else noisy.iloc[:1] for noisy in both]
    try:
        totals = [integer_embedding(_POINTS, noisy, bounds=bounds).total for noisy in (*both, *single)]
    except ValueError:
        return True
    return not np.array_equal(totals[1] - totals[0], totals[3] - totals[2])


def num_violations(
    num_cases: int,
    seed: int,
    *,
    encoder: Encoder = new_encoder,
    containers: Sequence[str] = tuple(CONTAINERS),
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, int]:
    """Violations among so many random cases that could be compared, how many these were, and how many were drawn.

    Args:
      num_cases: how many are compared, one in twenty of them of the points product if the encoder is the library's.
      seed: of the cases.
      encoder: what is attacked.
      containers: names of ``CONTAINERS``.
      progress: called with (cases done, cases in all).
    """
    rng = np.random.default_rng(seed)
    drawn = compared = violations = 0
    with tempfile.TemporaryDirectory() as name:
        while compared < num_cases:
            if encoder is new_encoder and drawn % 20 == 0:
                found = is_violated_by_points(rng)
            else:
                found = is_violated(random_case(rng, containers), pathlib.Path(name), encoder)
            drawn += 1
            if found is not None:
                compared, violations = compared + 1, violations + found
                progress(compared, num_cases)
    return {"violations": violations, "compared": compared, "drawn": drawn}
