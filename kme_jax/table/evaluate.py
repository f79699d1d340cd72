"""Errors of a released table against the private table. NOT PRIVATE: for the curator alone."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float64, Int, Int64

from kme_jax._numerics.text import printable, shown
from kme_jax.nonprivate import WARNING
from kme_jax.table.check import check_table
from kme_jax.table.columns import Column, numeric_values
from kme_jax.table.marginals import means, total_variation
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import TableRelease
from kme_jax.table.schema import Schema

_TABLES = ("private", "synthetic")
_NARROWEST, _WIDEST = 40, 64  # letters, for names
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_REPEATED, _MOST_REPEATED = 20, 1 << 21  # rows for each row with a weight, and in all
_Codes = Int[np.ndarray, "n"]
_Numbers = Float64[np.ndarray, "n"]


def evaluate_table(
    release: TableRelease,
    source: TableSource | pa.Table | str | os.PathLike | Any,
    *,
    encoding: str | None = None,
    separator: str | None = None,
) -> dict[str, Any]:
    """Errors of the marginals and of the numbers of a release: means, deviations, quantiles, slopes. NOT PRIVATE.

    Args:
      release: the release of the table.
      source: the private table, as ``release_table`` takes it: a path, a pyarrow table, a pandas DataFrame, or what
        ``open_table`` returns. All of its codes are held in memory. If the release is for persons, their rows are cut
        as they were for the release. If rows have weights, statistics are weighted.
      encoding, separator: of a .csv file, see ``open_table``.

    Returns:
      A dictionary of plain JSON values. Rows with a missing value do not count for numbers. Each statistic of both
      tables is {"private", "synthetic"}.

      * "warning", "num_rows", and "mean_total_variation" by the number of columns ("1" to "3");
      * "yardstick": "mean_total_variation" of as many rows, drawn from the private ones with replacement. It says how
        much a table differs from its population. Columns and pairs have a "yardstick" of their own;
      * "columns": "name" and "total_variation" of each. After the released columns come those that are measured instead
        of some, such as the weekday and the time of day of a column of times, with "derived": true. They do not count
        for "mean_total_variation". Derived columns of private rows are those that were measured: of repaired rows.
        For numbers also "mean", "sd" and "quantiles" (of shares 0.1,
        0.25, 0.5, 0.75 and 0.9), or None if no cell has a value, and "mean_error" and "quantile_error", the error of
        the mean and the largest error of a quantile in units of the private standard deviation, or None;
      * "pairs": "names" and "total_variation", the largest distance first. For categories also "unseen", the share of
        synthetic rows whose combination of values no private row has;
      * "not_measured": names of columns that are not compared, because they are not measured: ids and constants;
      * "unreadable": columns with private cells that cannot be read, as ``check_table`` counts them: "name", their
        "share" of all cells, and what they "count_as", or None if they count as missing. The release has read them in
        the same way, so its errors do not show that the schema is wrong;
      * "explained", by pairs of a number and a category: "names", and the share of the variance of the number that is
        between the categories, "private" and "synthetic", the largest first (the squared correlation ratio);
      * "correlations" of pairs of numbers, the strongest private one first: "names", "private" and "synthetic", and
        "slopes", of the regression of the second number on the first, and of the first on the second.

    Raises:
      ValueError: the table does not fit the release's schema (``FileError``), or was opened with another schema; or the
        encoding or the separator is not valid, or given for a table that is open; or no row has a weight.
    """
    schema = release.schema
    if not isinstance(source, TableSource):
        person, max_rows = release.statement.get("person"), release.statement.get("max_rows")
        max_rows = 1 if max_rows is None else max_rows
        source = open_table(source, schema, person=person, max_rows=max_rows, encoding=encoding, separator=separator)
    elif encoding is not None or separator is not None:
        raise ValueError("encoding and separator: the table is open; give them to open_table")
    if source.schema != schema:
        raise ValueError("the table was opened with another schema: give the release's schema to open_table")
    source.check_size()
    ours, theirs = population_codes(source), schema.encode(release.table, words=False)
    distances = total_variation(schema, ours, theirs)
    drawn = np.random.default_rng(0).integers(0, len(ours), source.num_rows)
    yardstick = total_variation(schema, ours, ours[drawn])
    columns = list(enumerate(schema.extended.columns))
    all_ours, all_theirs = schema.extended_codes(ours), schema.extended_codes(theirs)
    singles = [(column.name,) for _, column in columns[len(schema.columns) :]]
    of_singles = distances | total_variation(schema.extended, all_ours, all_theirs, singles)
    of_drawn = yardstick | total_variation(schema.extended, all_ours, all_ours[drawn], singles)
    pairs = sorted((-d, names) for names, d in distances.items() if len(names) == 2)
    return {
        "warning": WARNING,
        "num_rows": source.num_rows,
        "mean_total_variation": means(distances),
        "not_measured": [column.name for column in schema.written_columns],
        "unreadable": [
            {"name": check.name, "share": check.unreadable / source.num_rows, "count_as": check.filled}
            for check in check_table(source)
            if check.unreadable
        ],
        "yardstick": {"mean_total_variation": means(yardstick)},
        "columns": [
            {
                "name": column.name,
                "total_variation": of_singles[column.name,],
                "yardstick": of_drawn[column.name,],
            }
            | ({"derived": True} if (column.name,) in singles else {})
            | _numbers(column, all_ours[:, j], all_theirs[:, j])
            for j, column in columns
        ],
        "pairs": [
            {"names": list(names), "total_variation": -d, "yardstick": yardstick[names]}
            | _unseen(schema, names, ours, theirs)
            for d, names in pairs
        ],
        "explained": _explained(schema, ours, theirs),
        "correlations": _correlations(schema, ours, theirs),
    }


def population_codes(source: TableSource) -> Int64[np.ndarray, "n d"]:
    """Codes of all rows of a table, [n, C]. If rows have weights, each row is there about as often as its weight says.
    SENSITIVE.

    Raises:
      ValueError: no row has a weight, or the file has changed (``FileError``).
    """
    codes = np.concatenate(list(source.codes(levels=True)))
    if source.schema.weight is None:
        return codes
    number = max(len(codes), min(_REPEATED * len(codes), _MOST_REPEATED))
    return codes[source.schema.weight.repeated(codes[:, -1], number), :-1]


def _numbers(column: Column, ours: _Codes, theirs: Int[np.ndarray, "m"]) -> dict[str, Any]:
    if column.kind != "numeric":
        return {}
    values = {"private": numeric_values(column, ours), "synthetic": numeric_values(column, theirs)}
    present = {table: cells[~np.isnan(cells)] for table, cells in values.items()}
    if not all(len(cells) for cells in present.values()):
        return dict.fromkeys(("mean", "sd", "quantiles", "mean_error", "quantile_error"))
    # Squares of shares of the largest number do not overflow.
    largest = max(float(np.abs(cells).max()) for cells in present.values()) or 1.0
    mean, sd = (
        {table: float(f(cells / largest)) * largest for table, cells in present.items()} for f in (np.mean, _deviation)
    )
    quantiles = {table: np.quantile(cells, QUANTILES) for table, cells in present.items()}
    furthest = float(np.abs(quantiles["synthetic"] - quantiles["private"]).max())
    unit = sd["private"]
    return {
        "mean": mean,
        "sd": sd,
        "quantiles": {table: numbers.tolist() for table, numbers in quantiles.items()},
        "mean_error": (mean["synthetic"] - mean["private"]) / unit if unit else None,
        "quantile_error": furthest / unit if unit else None,
    }


def _deviation(values: _Numbers) -> float:
    """The standard deviation; 0 for equal values, whose mean may be rounded."""
    return float(values.std()) if np.ptp(values) else 0.0


def _unseen(
    schema: Schema, names: tuple[str, ...], ours: Int[np.ndarray, "n d"], theirs: Int[np.ndarray, "m d"]
) -> dict[str, float]:
    """The share of synthetic rows whose combination of two categories no private row has."""
    places = [schema.index(name) for name in names]
    columns = [schema.columns[j] for j in places]
    if any(column.kind in ("numeric", "datetime") for column in columns):
        return {}
    cells = [codes[:, places[0]] * columns[1].num_codes + codes[:, places[1]] for codes in (ours, theirs)]
    return {"unseen": float(np.mean(~np.isin(cells[1], np.unique(cells[0]))))}


def covariance(first: _Numbers, second: _Numbers) -> Float64[np.ndarray, "2 2"] | None:
    """The covariance matrix of two columns over the rows that have both numbers. None if one of them is constant, or if
    squares overflow."""
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    with np.errstate(all="ignore"):
        matrix = np.cov(first, second, bias=True)
    return matrix if np.isfinite(matrix).all() and np.diag(matrix).all() else None


def _correlations(schema: Schema, ours: Int[np.ndarray, "n d"], theirs: Int[np.ndarray, "m d"]) -> list[dict[str, Any]]:
    """Correlations and slopes of all pairs of numeric columns in both tables, the strongest first."""
    numeric = [(j, column) for j, column in enumerate(schema.columns) if column.kind == "numeric"]
    values = {column.name: [numeric_values(column, codes[:, j]) for codes in (ours, theirs)] for j, column in numeric}
    pairs = []
    for one, other in itertools.combinations(values, 2):
        matrices = {table: covariance(values[one][i], values[other][i]) for i, table in enumerate(_TABLES)}
        if matrices["private"] is None:
            continue
        slopes = {table: None if m is None else (m[0, 1] / np.diag(m)).tolist() for table, m in matrices.items()}
        correlations = {
            table: None if m is None else float(np.clip(m[0, 1] / np.sqrt(m[0, 0]) / np.sqrt(m[1, 1]), -1, 1))
            for table, m in matrices.items()
        }
        pairs.append({"names": [one, other], **correlations, "slopes": slopes})
    return sorted(pairs, key=lambda pair: -abs(pair["private"]))


def _explained(schema: Schema, ours: Int[np.ndarray, "n d"], theirs: Int[np.ndarray, "m d"]) -> list[dict[str, Any]]:
    """The shares of the variance of numbers that is between the values of a category, in both tables."""
    numbers = [(j, column) for j, column in enumerate(schema.columns) if column.kind == "numeric"]
    categories = [(j, column) for j, column in enumerate(schema.columns) if column.kind in ("categorical", "ordinal")]
    pairs = []
    for j, number in numbers:
        values = [numeric_values(number, codes[:, j]) for codes in (ours, theirs)]
        for k, category in categories:
            shares = [correlation_ratio(one, codes[:, k]) for one, codes in zip(values, (ours, theirs), strict=True)]
            if shares[0] is not None:
                pairs.append({"names": [number.name, category.name], "private": shares[0], "synthetic": shares[1]})
    return sorted(pairs, key=lambda pair: -pair["private"])


def correlation_ratio(values: _Numbers, groups: _Codes) -> float | None:
    """The share of the variance of numbers [n] that is between groups [n], from 0 to 1. None if there is no variance.

    Rows with a missing number do not count.
    """
    present = ~np.isnan(values)
    values, groups = values[present], groups[present]
    if len(values) == 0 or np.ptp(values) == 0:
        return None
    values = values / np.abs(values).max()
    values = values - values.mean()
    counts, sums = np.bincount(groups), np.bincount(groups, values)
    variance = float(values @ values)
    return float(np.clip(np.square(sums) @ (1 / np.maximum(counts, 1)) / variance, 0, 1)) if variance > 0 else None


def describe_table(errors: dict[str, Any]) -> str:
    """The result of :func:`evaluate_table` as text: the worst columns, the worst pairs and the strongest correlations
    first."""
    lines: list[str | tuple[str, ...]] = [errors["warning"]]
    lines += [_unreadable(column) for column in errors.get("unreadable", [])]
    lines.append(("column", "total variation", "yardstick"))

    def distances(name: str, both: dict[str, Any]) -> tuple[str, ...]:
        return (name, f"{both['total_variation']:.2g}", f"{both['yardstick']:.2g}")

    by_distance = sorted(errors["columns"], key=lambda column: -column["total_variation"])
    lines += [distances(_name(column), column) for column in by_distance]
    lines += [distances(" and ".join(pair["names"]), pair) for pair in errors["pairs"][:5]]
    numbers = [column for column in errors["columns"] if column.get("mean")]
    worst = sorted(numbers, key=lambda column: -abs(column["mean_error"] or 0))
    for title, key in (("mean", "mean"), ("standard deviation", "sd")):
        lines += [(title, "private", "synthetic", "error in SDs" if key == "mean" else "ratio")] * bool(worst)
        for column in worst:
            ours, theirs = column[key]["private"], column[key]["synthetic"]
            error = column["mean_error"] if key == "mean" else theirs / ours if ours else None
            lines.append((_name(column), _number(ours), _number(theirs), _number(error, ".3f")))
    by_quantiles = sorted(numbers, key=lambda column: -(column["quantile_error"] or 0))
    lines += [("quantiles", "largest error, in SDs")] * bool(by_quantiles)
    lines += [(_name(column), _number(column["quantile_error"], ".3f")) for column in by_quantiles]
    strongest = errors["correlations"][:5]
    for title in ("correlation", "slope of the second on the first"):
        lines += [(title, "private", "synthetic")] * bool(strongest)
        for pair in strongest:
            slopes = {table: both and both[0] for table, both in pair["slopes"].items()}
            both = pair if title == "correlation" else slopes
            lines.append((" and ".join(pair["names"]), _number(both["private"]), _number(both["synthetic"])))
    explained = errors["explained"][:5]
    lines += [("share of the variance between groups", "private", "synthetic")] * bool(explained)
    for pair in explained:
        lines.append((" by ".join(pair["names"]), *(_number(pair[table], ".3f") for table in _TABLES)))
    unseen = sorted((pair for pair in errors["pairs"] if pair.get("unseen")), key=lambda pair: -pair["unseen"])
    lines += [("combination that no private row has", "share of rows")] * bool(unseen)
    lines += [(" and ".join(pair["names"]), f"{pair['unseen']:.2%}") for pair in unseen[:5]]
    words = {"1": "single columns", "2": "pairs", "3": "triples"}
    for order, mean in errors["mean_total_variation"].items():
        both = {"total_variation": mean, "yardstick": errors["yardstick"]["mean_total_variation"][order]}
        lines.append(distances("mean over " + words[order], both))
    lines.append("yardstick: of as many rows, drawn from the private ones with replacement")
    if errors.get("not_measured"):
        lines.append(f"not measured, so not compared: {printable(shown(errors['not_measured']))}")
    if any(column.get("derived") for column in errors["columns"]):
        lines.append("derived: measured instead of a column, and no column of the table; means above leave them out")
    longest = max(len(printable(line[0])) for line in lines if isinstance(line, tuple))
    width = min(max(longest, _NARROWEST), _WIDEST)
    return "\n".join(line if isinstance(line, str) else _line(width, *line) for line in lines)


def _unreadable(column: dict[str, Any]) -> str:
    """A line on the private cells of a column that the schema cannot read."""
    count_as = "missing" if column["count_as"] is None else column["count_as"]
    text = f"{100 * column['share']:.3g} % of the private cells do not fit the schema, so they count as {count_as}"
    return printable(f"{column['name']}: {text}; see kme-jax check")


def _name(column: dict[str, Any]) -> str:
    return f"derived: {column['name']}" if column.get("derived") else column["name"]


def _line(width: int, name: str, *cells: str) -> str:
    return f"{printable(name):<{width}.{width}}" + "".join(f" {cell:>16}" for cell in cells)


def _number(value: float | None, style: str = ".4g") -> str:
    return "–" if value is None else format(value, style)
