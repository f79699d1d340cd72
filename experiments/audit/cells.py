"""Random schemas, and random cells of many kinds."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas

from kme_jax._numerics.cells import parse_number
from kme_jax.table import Categorical, Column, Datetime, Numeric, Ordinal


class Odd:
    """An object whose methods all raise an error."""

    def _fail(self, *_):
        raise RuntimeError("asked")

    __str__ = __repr__ = __float__ = __int__ = __index__ = __array__ = __len__ = _fail
    __hash__ = object.__hash__


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
# Most cells of a column are of one of these families.
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
    "numbers of categories": (),  # those of the schema, as numbers or times if they are
}
# Cells that change the type of a column.
ODD_CELLS: tuple[Any, ...] = (
    *(None, math.nan, math.inf, -math.inf, "n/a", "x", "", "True", "1", "2024-01-01", "\xe9", "\ud800", b"\xff", b"1"),
    *(True, False, 1, -1, 0.5, 2**53 + 1, 2**60, 2**63, 2**64, -(2**70), 10**400, 20240301),
    *(1j, 1 + 0j, np.float32(1), np.float32(0.5), np.float16(0.5), np.longdouble(1), np.int8(1), np.uint64(2**63)),
    *(np.bool_(True), np.str_("a"), np.complex64(1), np.datetime64("2024-01-01", "D"), np.datetime64("NaT", "s")),
    *(np.timedelta64(1, "s"), np.timedelta64("NaT", "s"), np.datetime64(2**40, "Y")),
    *(Decimal("1.0"), Decimal("NaN"), Decimal("sNaN"), Decimal("1e500"), Fraction(1, 2)),
    *(_DAY, _TIME, _TIME.replace(tzinfo=_ZONE), datetime.datetime.max, datetime.datetime.min, datetime.time(10, 30)),
    *(datetime.timedelta(seconds=1), [1], (1,), {"a": 1}, {1}, np.ones(2), object(), Odd()),
    *(pandas.NA, pandas.NaT, pandas.Timestamp("2024-01-01"), pandas.Timestamp("2024-01-01", tz="Asia/Tokyo")),
    *(pandas.Timedelta(1, "s"), pandas.Period("2024-01", "M"), pandas.Interval(0, 1)),
)
MILD_CELLS: tuple[Any, ...] = (None, None, math.nan, True, 1, 0.5, 2**60, "1")


def random_bool(rng: np.random.Generator) -> bool:
    """True or False."""
    return bool(rng.integers(2))


def choice(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    """One of the values."""
    return values[int(rng.integers(len(values)))]


def random_column(rng: np.random.Generator, name: str) -> Column:
    """A column of any kind, nullable or not, with or without a default."""
    nullable, kind = random_bool(rng), int(rng.integers(4))
    if kind == 0:
        integer = random_bool(rng)
        bounds = (-4, 100) if integer else choice(rng, [(-3.5, 2.5), (0.1, 100.1), (0.0, 1e6)])
        step = choice(rng, [None, 2 if integer else 0.5])
        default = choice(rng, [None, bounds[0]])
        return Numeric(name, *bounds, integer=integer, step=step, nullable=nullable, default=default)
    if kind == 3:
        resolution = choice(rng, ["day", "hour", "minute", "second"])
        default = choice(rng, [None, "2024-03-01"])
        lower = choice(rng, ["2023-12-01", "0001-01-01"]) if resolution == "day" else "2023-12-01"
        return Datetime(name, lower, "2024-12-31", resolution, nullable=nullable, default=default)
    column = Categorical if kind == 1 else Ordinal
    categories: list[str] = []
    for words in rng.permutation(len(_CATEGORIES))[: int(rng.integers(1, 4))]:
        for category in _CATEGORIES[words]:
            tried = column(name, (*categories, category))
            numbers = [parse_number(word.encode()) for word in tried.categories]
            num_missing = sum(number is not None and math.isnan(number) for number in numbers)
            if random_bool(rng) and tried.one_of_two() is None and num_missing < 2:
                categories.append(category)
    categories = categories or ["a", "b"]
    default = choice(rng, [None, categories[-1]])
    as_drawn = column(name, tuple(categories), nullable=nullable, default=default)
    word = as_drawn.missing_word()  # a category that missing cells have to count as
    return as_drawn if word is None else column(name, tuple(categories), nullable=False, default=word)


def _typed(category: str) -> Any:
    """A category as a number or a time, if it is one."""
    for read in (int, float, datetime.datetime.fromisoformat, datetime.time.fromisoformat):
        try:
            return read(category)
        except ValueError:
            continue
    return category


def random_cells(rng: np.random.Generator, column: Column, num_rows: int) -> list[Any]:
    """Cells of a column. They are of one family; in one of three columns one cell is of another kind."""
    families = FAMILIES
    if isinstance(column, Categorical):
        typed = tuple(map(_typed, column.categories))
        families = families | {"categories": column.categories, "numbers of categories": typed}
    family = choice(rng, [cells for cells in families.values() if cells])
    cells = [choice(rng, family) for _ in range(num_rows)]
    if rng.integers(3) == 0:
        cells[int(rng.integers(num_rows))] = choice(rng, (*ODD_CELLS[:12], None, math.nan))
    return cells
