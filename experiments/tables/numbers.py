"""Means, standard deviations, quantiles and dependence of released numbers, beside direct noisy answers.

A direct answer is the best that a curator could do who knew the question: the mean of one column within its public
bounds, plus noise for an equal share of the whole budget. The unit of an error of a mean is the standard deviation of
this noise. So a mean with an error of one unit is as good as if nothing else had been released.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from kme_jax.privacy.budget import ADD_REMOVE, PrivacyBudget
from kme_jax.privacy.composition import Composition
from kme_jax.table.columns import Column, numeric_values
from kme_jax.table.evaluate import QUANTILES, correlation_ratio, covariance
from kme_jax.table.schema import Schema

_STRONGEST = 10  # pairs whose correlations and slopes are compared, or whose means of groups are
PRECISE = 0.05  # largest relative noise of a direct answer for which a release is judged


def number_errors(schema: Schema, private: np.ndarray, synthetic: np.ndarray, budget: PrivacyBudget) -> dict[str, Any]:
    """How far the numbers of a synthetic table are from those of the private table.

    Args:
      schema: of both tables.
      private: codes, [n, C].
      synthetic: codes, [m, C].
      budget: of the whole release.

    Returns:
      "columns": for each numeric column "name"; "mean", the error in units of a direct noisy mean with ρ / C; "bias",
      the same error in units of the private standard deviation; "sd", the ratio of standard deviations; "sd_noise", the
      relative standard deviation of a direct noisy standard deviation with ρ / C; and "quantile", the largest error of
      five quantiles, in private standard deviations. "pairs": for each of the ten most
      correlated pairs of numbers "names"; "correlation" and "slopes", the ratios to the private ones; and "noise", the
      standard deviation of a direct noisy covariance with ρ / (number of pairs), relative to the covariance.
      "groups": see :func:`_groups`.
    """
    rho = cast(float, Composition.planned(budget).rho)
    if budget.relation == ADD_REMOVE:  # a sum of values around the middle of their bounds has half the sensitivity
        rho *= 4
    columns = [(j, column) for j, column in enumerate(schema.columns) if column.kind == "numeric"]
    tables = {j: [numeric_values(column, codes[:, j]) for codes in (private, synthetic)] for j, column in columns}
    return {
        "columns": [
            _column(column, tables[j], len(private), rho / len(schema.columns))
            for j, column in columns
            if np.nanmin(tables[j][0]) < np.nanmax(tables[j][0]) and not np.isnan(tables[j][1]).all()
        ],
        "pairs": _pairs(dict(columns), tables, len(private), rho),
        "groups": _groups(schema, (private, synthetic), tables, rho),
    }


def _column(column: Column, tables: list[np.ndarray], num_rows: int, rho: float) -> dict[str, Any]:
    private, synthetic = (values[~np.isnan(values)] for values in tables)
    noise = (column.upper - column.lower) / num_rows / math.sqrt(2 * rho)
    difference, sd = float(synthetic.mean() - private.mean()), float(private.std())
    quantiles = np.quantile(synthetic, QUANTILES) - np.quantile(private, QUANTILES)
    return {
        "name": column.name,
        "mean": difference / noise,
        "bias": difference / sd,
        "sd": float(synthetic.std()) / sd,
        "sd_noise": _sd_noise(column, private, num_rows, rho),
        "quantile": float(np.abs(quantiles).max()) / sd,
    }


def _sd_noise(column: Column, private: np.ndarray, num_rows: int, rho: float) -> float:
    """The relative noise of a standard deviation from a noisy mean and a noisy mean square, with half of ρ each.

    Values are taken around the middle of their bounds, so that squares are as small as possible. To first order.
    """
    radius, distance = (column.upper - column.lower) / 2, float(private.mean()) - (column.upper + column.lower) / 2
    noise = radius / num_rows / math.sqrt(rho)  # of a sum of numbers from 0 to 1, times the radius
    return math.hypot(radius * noise, 2 * distance * 2 * noise) / (2 * float(private.var()))


def _pairs(
    columns: dict[int, Column], tables: dict[int, list[np.ndarray]], num_rows: int, rho: float
) -> list[dict[str, Any]]:
    pairs = []
    for i, j in itertools.combinations(columns, 2):
        private, synthetic = (covariance(tables[i][k], tables[j][k]) for k in range(2))
        if private is not None and private[0, 1]:
            pairs.append((abs(private[0, 1]) / math.sqrt(private[0, 0] * private[1, 1]), i, j, private, synthetic))
    num_pairs = max(1, math.comb(len(columns), 2))
    result = []
    for _, i, j, private, synthetic in sorted(pairs, key=lambda pair: -pair[0])[:_STRONGEST]:
        ranges = [columns[k].upper - columns[k].lower for k in (i, j)]
        noise = math.prod(ranges) / 2 / num_rows / math.sqrt(2 * rho / num_pairs)
        pair = {"names": [columns[i].name, columns[j].name], "noise": noise / abs(float(private[0, 1]))}
        if synthetic is None:
            pair |= {"correlation": 0.0, "slopes": [0.0, 0.0]}
        else:
            ratio, spreads = synthetic[0, 1] / private[0, 1], np.diag(synthetic) / np.diag(private)
            pair |= {"correlation": float(ratio / np.sqrt(spreads.prod())), "slopes": (ratio / spreads).tolist()}
        result.append(pair)
    return result


def _groups(
    schema: Schema, codes: tuple[np.ndarray, np.ndarray], tables: dict[int, list[np.ndarray]], rho: float
) -> list[dict[str, Any]]:
    """Means of a number by the values of a category, for the ten pairs that depend on each other most.

    Args:
      schema: of both tables.
      codes: of the private and the synthetic table, [n, C] and [m, C].
      tables: by index of a number, its values in both tables.
      rho: ρ of a release.

    Returns:
      For each pair "names", of the number and the category; "spread", the share of the differences between groups that
      is kept; "error", the root mean square error of the mean of a private row's group, in private standard
      deviations of the number; and "noise", the same for direct noisy means with ρ / (number of such pairs), relative
      to the differences between groups. "spread" is the slope of synthetic means as a function of private ones. Groups
      count by their private rows. A group without synthetic rows has the mean of all.
    """
    categories = [(k, column) for k, column in enumerate(schema.columns) if column.kind in ("categorical", "ordinal")]
    pairs = []
    for (j, values), (k, category) in itertools.product(tables.items(), categories):
        ratio = correlation_ratio(values[0], codes[0][:, k])
        if ratio is not None and ratio > 1e-9:
            pairs.append((ratio, j, k, category.name))
    result, share = [], rho / max(1, len(tables) * len(categories))
    for _, j, k, name in sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:_STRONGEST]:
        number, size = schema.columns[j], schema.columns[k].num_codes
        (private, rows), (synthetic, _) = (
            _means(values, of_table[:, k], size) for values, of_table in zip(tables[j], codes, strict=True)
        )
        weights = rows / rows.sum()
        between = private - weights @ private
        differences, variance = synthetic - private, float(weights @ np.square(between))
        noise = (number.upper - number.lower) / np.maximum(rows, 1) / math.sqrt(2 * share)
        result.append(
            {
                "names": [number.name, name],
                "spread": 1 + float(weights @ (differences * between)) / variance,
                "error": math.sqrt(float(weights @ np.square(differences))) / float(np.nanstd(tables[j][0])),
                "noise": math.sqrt(float(weights @ np.square(noise)) / variance),
            }
        )
    return result


def _means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each group, that of all rows for an empty one, and its number of rows. Missing numbers are left
    out."""
    present = ~np.isnan(values)
    rows = np.bincount(groups[present], minlength=num_groups)
    sums = np.bincount(groups[present], values[present], minlength=num_groups)
    return np.where(rows > 0, sums / np.maximum(rows, 1), values[present].mean() if present.any() else 0.0), rows


def summary(releases: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several results of :func:`number_errors` as one.

    Returns:
      "columns", the worst mean first: for each column "name"; "mean", the root mean square error; "bias", the mean
      error, in units of the noise; "bias_in_sd", the same in private standard deviations; "sd", "sd_noise" and
      "quantile", means.
      "pairs", the worst first: "names", "correlation" and "slopes", means; and "noise".
      "groups", the worst first: "names", and "spread", "error" and "noise", means.
    """
    columns: dict[str, list[dict[str, Any]]] = {}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    pairs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for release in releases:
        for column in release["columns"]:
            columns.setdefault(column["name"], []).append(column)
        for pair in release["pairs"]:
            pairs.setdefault(tuple(pair["names"]), []).append(pair)
        for pair in release.get("groups", ()):  # results of earlier versions have none
            groups.setdefault(tuple(pair["names"]), []).append(pair)

    def mean(records: list[dict[str, Any]], name: str) -> float:
        return float(np.mean([record[name] for record in records]))

    of_columns = [
        {
            "name": name,
            "mean": float(np.sqrt(np.mean([np.square(record["mean"]) for record in records]))),
            "bias": mean(records, "mean"),
            "bias_in_sd": mean(records, "bias"),
            "sd": mean(records, "sd"),
            "sd_noise": mean(records, "sd_noise"),
            "quantile": mean(records, "quantile"),
        }
        for name, records in columns.items()
    ]
    of_pairs = [
        {
            "names": list(names),
            "correlation": mean(records, "correlation"),
            "slopes": np.mean([record["slopes"] for record in records], axis=0).tolist(),
            "noise": mean(records, "noise"),
        }
        for names, records in pairs.items()
    ]
    of_groups = [
        {"names": list(names), **{name: mean(records, name) for name in ("spread", "error", "noise")}}
        for names, records in groups.items()
    ]
    return {
        "columns": sorted(of_columns, key=lambda column: -column["mean"]),
        "pairs": sorted(of_pairs, key=lambda pair: -abs(math.log(max(pair["correlation"], 1e-9)))),
        "groups": sorted(of_groups, key=lambda pair: -pair["error"]),
    }


def columns_markdown(result: dict[str, Any], most: int = 12) -> str:
    """The worst columns of every ε as a table. Only its head for results without numbers."""
    head = "| ε | column | error of the mean | bias | bias, SD | SD | noise of a direct SD | quantiles |"
    table = [head, "|---" * 8 + "|"]
    for epsilon, numbers in _releases(result):
        for column in numbers["columns"][:most]:
            errors = f"{column['mean']:.2f} | {column['bias']:+.2f} | {column['bias_in_sd']:+.3f}"
            noise = percent(column["sd_noise"]) if "sd_noise" in column else "–"  # results of earlier versions
            shape = f"× {column['sd']:.3f} | {noise} | {column['quantile']:.3f}"
            table.append(f"| {epsilon} | {column['name']} | {errors} | {shape} |")
    return "\n".join(table)


def pairs_markdown(result: dict[str, Any], most: int = 12) -> str:
    """The worst pairs of every ε as a table. Only its head for results without numbers."""
    table = ["| ε | pair | correlation | slopes | noise of a direct answer |", "|---|---|---|---|---|"]
    for epsilon, numbers in _releases(result):
        for pair in numbers["pairs"][:most]:
            slopes = " and ".join(f"× {slope:.2f}" for slope in pair["slopes"])
            names = " and ".join(pair["names"])
            table.append(f"| {epsilon} | {names} | × {pair['correlation']:.2f} | {slopes} | {percent(pair['noise'])} |")
    return "\n".join(table)


def groups_markdown(result: dict[str, Any], most: int = 12) -> str:
    """The worst means of groups of every ε as a table. Only its head for results without any."""
    table = [
        "| ε | means of | by | differences kept | error, SD | noise of direct means |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon, numbers in _releases(result):
        for pair in numbers.get("groups", [])[:most]:
            names, noise = " | ".join(pair["names"]), percent(pair["noise"])
            table.append(f"| {epsilon} | {names} | × {pair['spread']:.2f} | {pair['error']:.3f} | {noise} |")
    return "\n".join(table)


def percent(noise: float) -> str:
    """The relative noise of a direct answer, and whether it is too much for a judgement."""
    return f"{noise:.1%}{'' if noise <= PRECISE else ' (not judged)'}"


def _releases(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{line['epsilon']:g}", line["numbers"]) for line in result["summary"] if "numbers" in line]
