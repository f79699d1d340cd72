"""How the files of real tables are read and split: see ``experiments.common.datasets``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from kme_jax.table.columns import Categorical, Column, Numeric
from kme_jax.table.schema import Schema

_PRIVATE_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A table to release, and one to test on.

    Attributes:
      name: by which :func:`load` knows it.
      private: the rows to be released.
      test: rows of the same columns that no release sees.
      schema: public.
      target: name of the column that classifiers predict.
    """

    name: str
    private: pa.Table
    test: pa.Table
    schema: Schema
    target: str


def count(name: str, upper: int, lower: int = 0, *, nullable: bool = False) -> Numeric:
    """A column of whole numbers."""
    return Numeric(name, lower, upper, integer=True, nullable=nullable)


def words(name: str, categories: str, *, nullable: bool = False, default: str | None = None) -> Categorical:
    """A column of categories, which are words with blanks between them."""
    return Categorical(name, tuple(categories.split()), nullable, default)


def read(source: Any, schema: Schema, names: tuple[str, ...] | None = None, *, skip_rows: int = 0) -> pa.Table:
    """Rows of a text file with commas. "?" and empty cells are missing. Spaces around a value and a full stop after a
    category are removed.

    Args:
      source: a path (.gz too) or a binary file.
      schema: columns of the result.
      names: columns of the file. Default: those of the schema.
      skip_rows: lines before the first row.
    """
    text = csv.read_csv(
        source,
        read_options=csv.ReadOptions(column_names=names or schema.names, skip_rows=skip_rows),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(schema.names, pa.string()), include_columns=schema.names
        ),
    )
    return pa.table({column.name: _typed(text[column.name], column) for column in schema.columns})


def _typed(text: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    text = pc.utf8_trim_whitespace(text)
    text = pc.if_else(pc.is_in(text, value_set=pa.array(["?", ""])), None, text)
    if column.kind != "numeric":
        return pc.utf8_rtrim(text, characters=".")
    numbers = text.cast(pa.float64())
    return numbers.cast(pa.int64()) if column.integer else numbers


def split(
    name: str,
    rows: pa.Table,
    schema: Schema,
    target: str,
    seed: int,
    groups: np.ndarray | None = None,
) -> Dataset:
    """A random 80 % of the rows are private, the others are for testing.

    Args:
      name: of the data set.
      rows: all rows.
      schema: of the rows.
      target: the column to predict.
      seed: of the split.
      groups: the number of the group of every row, from 0, [n]. A group is private as a whole, or for testing as a
        whole. None for rows that are groups of their own.
    """
    groups = np.arange(rows.num_rows) if groups is None else groups
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    place = np.argsort(order)[groups]  # of the group of every row
    by_place = np.argsort(place, kind="stable")
    num_private = int(np.sum(place < int(_PRIVATE_SHARE * len(order))))
    return Dataset(name, rows.take(by_place[:num_private]), rows.take(by_place[num_private:]), schema, target)
