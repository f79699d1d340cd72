"""Kinds of columns: the values that a column may have, from public knowledge, and the category codes of its cells.

A *category code* is the index of a value of the column. For numbers and times the values lie on a grid. The content of
a cell never raises an error or a warning. A number or time beyond a bound gets the code of the bound. A cell that is
missing or unreadable gets the code for missing cells, or the code of a public default.

The code of a cell depends on this cell and on the schema, and on nothing else. It does not depend on the type of the
column, because one row can change the type: one text among bools makes them objects, and one missing cell makes whole
numbers floats. So every type is accepted, and text and typed cells are read alike:

* A cell is missing, a number, a time (an instant in whole seconds, in UTC unless it names a zone), text, or unreadable.
  None, NaN, NaT, blank text and the words that readers of .csv files take for missing cells are missing.
* A cell that is one of the words for missing cells of its column is missing, see ``kme_jax.table.words``.
  The schema may also say that numbers in text have a decimal comma.
* A bool is the number 1 or 0, and so are the words true and false. A complex number without an imaginary part is its
  real part. Lists, structs, durations and all other types are unreadable.
* A numeric column reads numbers, and text that is a number. A decimal is rounded once, from its text.
* In a categorical column, text is the category of exactly this text. Other text, and typed cells, are the category
  with the same number, the same time, or the same time of day: 1, 1.0, "01" and true are the category "1". A number
  that is not whole, and is exactly a number of 32 or of 16 bits, is also the category that rounds to it, if there is
  only one.
* A datetime column reads times, text that is an ISO time, and whole numbers of eight digits: 20240301 is a day.

Two categories can be the same number or time ("1" and "01"). Only a .csv file can tell them apart, because it has only
text. The same holds for a category that is a word for missing cells ("NA"), unless missing cells count as this
category. With such a schema, a table that is not from a .csv file is refused, whatever its cells hold.
"""

from __future__ import annotations

from kme_jax.table.columns.base import LABEL, MISSING, SECONDS, Column, Cycle, is_label, pandas_module
from kme_jax.table.columns.categorical import MAX_CATEGORIES, Categorical, Ordinal
from kme_jax.table.columns.datetime import Datetime, year_in
from kme_jax.table.columns.entries import (
    DRAFTED,
    DROP,
    FIELDS,
    KINDS,
    OTHER_KINDS,
    column_of,
    dropped_name,
    unknown_field,
)
from kme_jax.table.columns.numeric import MAX_STEPS, Numeric, numeric_values

__all__ = [
    "DRAFTED",
    "DROP",
    "FIELDS",
    "KINDS",
    "LABEL",
    "MAX_CATEGORIES",
    "MAX_STEPS",
    "MISSING",
    "OTHER_KINDS",
    "SECONDS",
    "Categorical",
    "Column",
    "Cycle",
    "Datetime",
    "Numeric",
    "Ordinal",
    "column_of",
    "dropped_name",
    "is_label",
    "numeric_values",
    "pandas_module",
    "unknown_field",
    "year_in",
]
