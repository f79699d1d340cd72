"""Releases of tables: noisy marginals, synthetic rows, a report and the privacy statement, as a folder."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from jaxtyping import Int, Int64, Shaped

from kme_jax._numerics import html
from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.short_repr import short_repr
from kme_jax._numerics.text import said, shown, shown_for
from kme_jax._numerics.validation import TOLERANCE, are_close, require
from kme_jax.feature_maps.table import Binning
from kme_jax.privacy.budget import ADD_REMOVE, REPLACE_ONE, PrivacyBudget, Relation, check_integer
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.statement import COUNTED_BY, budget_in_short, card_of, privacy_statement, relation_of, rows_used
from kme_jax.privacy.verification import check_embedding, check_statement
from kme_jax.storage.codec import decode, decode_embedding, encode, encode_embedding
from kme_jax.storage.folders import (
    Kind,
    arrays_writer,
    damaged,
    json_writer,
    open_folder,
    register_kind,
    save_folder,
)
from kme_jax.table import balance
from kme_jax.table import planning as plans
from kme_jax.table.cells import CellNoise
from kme_jax.table.columns import Numeric, numeric_values
from kme_jax.table.conditions import Term, terms_of
from kme_jax.table.constraints import Order
from kme_jax.table.draw import Support, drawn, met_by, released_codes
from kme_jax.table.fit import synthesise
from kme_jax.table.readers import write_table
from kme_jax.table.relaxed import RelaxedRows
from kme_jax.table.report import MeasuredCells, report
from kme_jax.table.schema import Schema, check_schema
from kme_jax.table.written import refusals_explained

MAX_COLUMNS = 200
_ROWS_OF_COUNT, _ENOUGH_ROWS = 10, 50_000  # of released rows with weights, which count in part
MAX_ROWS = 10**9
COUNT = "number of rows"
"""The name of the measurement of a private number of rows. It comes before the others."""

NAMES = ("single columns", "pairs, coarsely", "some pairs, finely")


def check_columns(schema: Schema, target: str | None) -> None:
    """Raises ValueError if it is no schema, or has too many columns, or the target is not one that is measured."""
    check_schema(schema)
    number = max(len(schema.released), len(schema.measured.columns))
    if number > MAX_COLUMNS:
        raise ValueError(
            f"schema: at most {MAX_COLUMNS} columns can be released and measured, got {number}; remove some"
        )
    if target is not None and not isinstance(target, str):
        raise ValueError(f"target: expected the name of one column, got {said(target)}")
    refused = [column.refusal for column in schema.written_columns if column.name == target]
    if refused:
        raise ValueError(f"target: {refused[0]}; choose one of {shown(schema.measured.names)}")
    if target is not None and target in schema.dropped:
        raise ValueError(f"target: the schema drops {target!r}; choose one of {shown(schema.measured.names)}")
    if target is not None and target not in schema.names:
        raise ValueError(f"target: the schema has no column {target!r}, only {shown_for(target, schema.names)}")
    if target is not None and target not in schema.measured.names:
        raise ValueError(f"target: {target!r} is not measured itself; choose one of {shown(schema.measured.names)}")


def check_relation(schema: Schema, relation: Relation) -> None:
    """Raises ValueError if it is no schema, or rows have weights and the relation makes the number of rows public."""
    check_schema(schema)
    if schema.weight is not None and relation == REPLACE_ONE:
        raise ValueError(
            f"relation: rows with weights, in {shown([schema.weight.name])}, need {ADD_REMOVE!r}, because the sum of "
            "the weights is private"
        )


def weights_of(schema: Schema) -> str:
    """The weights of rows in words, as the statement says them; "" if there are none."""
    if schema.weight is None:
        return ""
    named = f"{schema.weight.name}, at most {repr(schema.weight.upper).removesuffix('.0')}"
    return f"{named}: the number of rows is the sum of the weights, divided by this largest one"


def binnings_and_target(schema: Schema, target: str | None) -> tuple[list[Binning], int]:
    """A binning for each measured column, and the index of the target among them or −1."""
    schema = schema.measured
    binnings = [
        Binning.create(c.num_codes, ordered=c.ordered, missing=c.nullable, knots=c.codes_of_knots)
        for c in schema.columns
    ]
    return binnings, -1 if target is None else schema.index(target)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class TableMeasurement:
    """The measurements of a private table, and what is needed to use them. Public.

    There are at most three, and one more of the number of rows if that is private.

    Nothing else is ever learnt from the private table.

    Attributes:
      schema: of the columns.
      target: the name of the column that the other columns are meant to predict, or None.
      plan: the bins in which pairs were measured.
      measured: the noisy embeddings by name, in order.
      statement: the privacy statement, see ``kme_jax.privacy.statement``.
    """

    schema: Schema
    target: str | None
    plan: plans.Plan
    measured: dict[str, NoisyEmbedding]
    statement: dict[str, Any]

    def _in_short(self) -> str:
        size = f"{len(self.schema.columns)} columns, {len(self.measured)} measurements"
        return f"{budget_in_short(self.statement)}, {size}"

    def _repr_html_(self) -> str:
        facts = [("measured", f"{'; '.join(self.measured)}"), ("columns", str(len(self.schema.columns)))]
        facts += [("next", ".synthesise() makes a release with synthetic rows, and spends nothing")]
        return card_of("TableMeasurement", self.statement, facts)

    def synthesise(
        self, num_rows: int | None = None, *, seed: int = 0, progress: Progress | bool = False
    ) -> TableRelease:
        """A synthetic table for the measurements. This is post-processing: each call spends nothing.

        Args:
          num_rows: number of synthetic rows; None for N, or its noisy count. If rows have weights, the count is of rows
            of the largest weight, so None stands for up to ten times as many rows.
          seed: of the synthesis.
          progress: True for a bar, or a function that is called with (work done, total work).

        Raises:
          ValueError: num_rows is not from 1 to a billion, or the seed is not from 0 to 2³² − 1.
        """
        num_rows = self._usual_num_rows if num_rows is None else num_rows
        num_rows = check_integer("num_rows", num_rows, 1, MAX_ROWS)
        seed = check_integer("seed", seed, 0, MAX_SEED)
        measured = [self.measured.get(name) for name in NAMES]
        rows = synthesise(
            self.layout, self.plan, measured, cycles=self.schema.measured.cycles, seed=seed, progress=progress
        )
        codes = released_codes(rows, self.schema, balance.sample(rows, num_rows, seed), seed)
        return TableRelease(self, rows, self.with_weights(self.schema.decode(codes)), seed)

    @property
    def _usual_num_rows(self) -> int:
        count = self.statement["num_rows"]
        return count if self.schema.weight is None else max(count, min(_ROWS_OF_COUNT * count, _ENOUGH_ROWS))

    def with_weights(self, rows: pa.Table, share: float = 1.0) -> pa.Table:
        """Synthetic rows with their weights, if private rows have some. Otherwise rows as they are.

        All weights are equal. Their sum is the noisy sum of the private ones, or a share of it.

        Args:
          rows: as from ``Schema.decode``.
          share: of the population that the rows stand for.
        """
        weight = self.schema.weight
        if weight is None:
            return rows
        of_row = share * self.statement["num_rows"] * weight.upper / max(1, rows.num_rows)
        place = rows.column_names.index(weight.name)
        return rows.set_column(place, weight.name, pa.array(np.full(rows.num_rows, of_row)))

    @property
    def layout(self) -> plans.Layout:
        """The columns, their cells, and the column by which marginals are split."""
        binnings = binnings_and_target(self.schema, self.target)
        return self.plan.layout(*binnings, self.measured[NAMES[0]])

    @property
    def rows_noise(self) -> float:
        """Standard deviation of the noise of the number of rows: 0 if the number is public."""
        noisy = self.measured.get(COUNT)
        return 0.0 if noisy is None else plans.sigma(noisy, plans.map_of(noisy).blocks[0])

    @property
    def measured_cells(self) -> list[MeasuredCells]:
        """For each measured column, the cells in which the first measurement counts its values, and their noise."""
        layout, num_rows = self.layout, self.statement["num_rows"]
        singles = plans.Singles.read(layout, self.measured[NAMES[0]], denoised=False)
        noise = {j: singles.of_all(a)[1] for a, j in enumerate(layout.columns)}
        if layout.split >= 0 and layout.has_classes:
            noise[layout.split] = CellNoise(singles.classes_sigma)
        elif layout.split >= 0:  # the sums over the cells of the smallest marginal
            a = min(range(len(singles.sums)), key=lambda a: len(singles.sums[a]))
            noise[layout.split] = CellNoise(singles.sigmas[a] * math.sqrt(len(singles.sums[a])))
        errors = dict.fromkeys(noise, math.inf)
        for a, moments in enumerate(singles.moments):
            j = layout.columns[a]
            column = self.schema.measured.columns[j]
            if moments is not None and isinstance(column, Numeric):
                # The mean is a ratio of noisy sums. Scores are between −1 and 1.
                of_missing = singles.of_all(a)[1].sigma if column.nullable else 0.0
                ends = numeric_values(column, np.asarray([moments.moment.low[0], moments.moment.high[0]]))
                errors[j] = (
                    float(ends[1] - ends[0]) / 2 * math.hypot(moments.sigma, self.rows_noise, of_missing) / num_rows
                )
        cells = [(binning.first_codes(), noise[j].times(1 / num_rows)) for j, binning in enumerate(layout.binnings)]
        return [MeasuredCells(*of_column, errors[j], self.rows_noise / num_rows) for j, of_column in enumerate(cells)]

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes measurements.npz, schema.json, privacy.json and a manifest into a new folder: all of them, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        return save_folder(folder, "table measurement", self._writers())

    def _writers(self) -> dict[str, Any]:
        arrays: dict[str, Shaped[np.ndarray, "..."]] = {}
        tree = {
            "target": self.target,
            "schema": _digest(self.schema),
            "total": self.statement["total"],
            "bins": encode(tuple(self.plan.bins), arrays, "bins"),
            "unions": encode(tuple(self.plan.unions), arrays, "unions"),
            "ranges": encode(self.plan.ranges, arrays, "ranges"),
            "measured": {name: encode_embedding(noisy, arrays, name) for name, noisy in self.measured.items()},
        }
        return {
            "measurements.npz": arrays_writer(arrays, tree),
            "schema.json": self.schema.write,
            "privacy.json": json_writer(self.statement),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike) -> TableMeasurement:
        """The measurement in the folder of a measurement or of a release.

        A statement that does not follow from the mechanisms is refused, see ``kme_jax.privacy.verification``.

        Raises:
          ReleaseError: the folder has no measurement, is damaged or edited, or has another version.
        """
        opened = open_folder(folder, ("table measurement", "table release"))
        document, statement = opened.json("schema.json"), opened.json("privacy.json")
        with damaged(opened.path / "schema.json"):
            schema = _schema_of(document)
        with opened.arrays("measurements.npz") as arrays:
            tree = arrays.tree()
            fields = {"target", "schema", "total", "bins", "unions", "measured"}
            if not isinstance(tree, dict) or set(tree) - {"ranges"} != fields:
                raise ValueError("it has other fields")
            require(tree["schema"] == _digest(schema), "it is of another schema")
            target = decode(tree["target"], arrays, str | None)
            check_columns(schema, target)
            bins, unions = (decode(tree[name], arrays, tuple[Int[np.ndarray, "_"], ...]) for name in ("bins", "unions"))
            if not isinstance(tree["measured"], dict):
                raise ValueError("it has no measurements")
            measured = {name: decode_embedding(value, arrays) for name, value in tree["measured"].items()}
            ranges = np.zeros((0, 2), np.int64)  # earlier versions had none
            if "ranges" in tree:
                ranges = decode(tree["ranges"], arrays, Int64[np.ndarray, "scored 2"])
            plan = plans.Plan(list(bins), list(unions), ranges)
        with damaged(opened.path / "privacy.json"):
            follows = functools.partial(_checked_statement, schema, target, plan, measured, statement)
            check_statement(statement, tree["total"], follows)
        return cls(schema, target, plan, measured, statement)


def _digest(schema: Schema) -> str:
    """A digest of the schema as earlier versions write it: they have no word for the larger column that follows."""
    document = schema.to_json()
    for constraint in document.get("constraints", []):
        if constraint.get("follows") == "larger":
            del constraint["follows"]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def table_statement(
    schema: Schema,
    target: str | None,
    measured: dict[str, NoisyEmbedding],
    budget: PrivacyBudget,
    total: dict[str, Any] | None,
    *,
    tolerance: float = 0.0,
) -> dict[str, Any]:
    """The privacy statement of measurements that spend no more than a budget, see ``Composition.of``."""
    composition = Composition.of([noisy.mechanism for noisy in measured.values()], budget, tolerance=tolerance)
    planned = Composition.planned(budget)
    if composition.discreteness is not None and not are_close(cast(float, composition.rho), cast(float, planned.rho)):
        # Noisy counts decided that a measurement was left out. With others it would have been made.
        composition = dataclasses.replace(composition, rho=planned.rho)
    return privacy_statement(
        measured, composition=composition, public_inputs=public_inputs(schema, target), total=total
    )


def _checked_statement(
    schema: Schema,
    target: str | None,
    plan: plans.Plan,
    measured: dict[str, NoisyEmbedding],
    statement: dict[str, Any],
    total: dict[str, Any] | None,
) -> dict[str, Any]:
    """The statement that follows from measurements that were read from a file.

    Raises:
      ValueError: :func:`measure_table` cannot have returned the measurements for this schema and the statement's ε and
        δ.
    """
    max_rows = statement.get("max_rows")  # statements of earlier versions do not have it
    budget = PrivacyBudget(
        statement["epsilon"],
        statement["delta"],
        relation_of(statement),
        1 if max_rows is None else max_rows,
        statement.get("person"),
    )
    check_relation(schema, budget.relation)
    binnings, index = binnings_and_target(schema, target)
    counted = set() if budget.relation == REPLACE_ONE else {COUNT}
    complete = {NAMES[0], *counted} <= set(measured) <= {*NAMES, *counted}
    require(complete, "a measurement is missing, or has an unknown name")
    for name in counted:
        of_rows = plans.count_map(binnings), plans.count_map(binnings, 1)
        require(any(map(plans.map_of(measured[name]).equals, of_rows)), "the number of rows is not measured")
        check_embedding(measured[name], budget, plans.COUNT_SHARE)
        follows = measured[name].mechanism.num_rows == 1 and plans.noisy_count(measured[name]) == statement["num_rows"]
        require(follows, "the number of rows does not follow from its measurement")
    layout = plan.layout(binnings, index, measured[NAMES[0]])
    rho = plans.comparable_rho(Composition.planned(budget))
    created = plans.Layout.create(binnings, index, statement["num_rows"], rho, budget.relation)
    of_version = created.binnings if layout.counted_cells else tuple(binnings)
    require(layout.binnings == of_version, "the number of cells does not follow from the number of rows")
    require(layout.segmented in ((), created.segmented), "the segments do not follow from the number of rows")
    plan.check(layout)
    plans.check_maps(layout, plan, [m and plans.map_of(m) for m in map(measured.get, NAMES)])
    for name, share in zip(NAMES, plans.shares_of_all(layout, budget.relation), strict=True):
        if name in measured:
            check_embedding(measured[name], budget, share)
            require(measured[name].mechanism.num_rows == statement["num_rows"], "the measurements have different N")
    if NAMES[2] not in measured:
        singles = plans.Singles.read(layout, measured[NAMES[0]])
        require(not plans.zoom_blocks(layout, singles), "the measurement of what stands out is missing")
    in_order = {name: measured[name] for name in (COUNT, *NAMES) if name in measured}
    return table_statement(schema, target, in_order, budget, total, tolerance=TOLERANCE)


@short_repr
@dataclasses.dataclass(frozen=True, eq=False)
class TableRelease:
    """A release of a table: measurements, and synthetic rows that were drawn from them. Public.

    Attributes:
      measurement: the noisy embeddings and their privacy statement.
      rows: the distribution of measured columns that synthetic rows are drawn from.
      table: synthetic rows. They have weights, which are equal, if the private rows have some.
      seed: of the synthesis.
    """

    measurement: TableMeasurement
    rows: RelaxedRows
    table: pa.Table
    seed: int

    def _in_short(self) -> str:
        size = f"{self.table.num_rows} synthetic rows, {len(self.columns)} columns"
        return f"{budget_in_short(self.statement)}, {size}"

    def _repr_html_(self) -> str:
        facts = [("synthetic", f"{self.table.num_rows} rows of {len(self.columns)} columns")]
        facts += [] if self.target is None else [("target", self.target)]
        few = [list(row.values()) for row in self.table.slice(0, html.MAX_ROWS).to_pylist()]
        return card_of("TableRelease", self.statement, facts, html.first_rows(self.columns, few, self.table.num_rows))

    @property
    def schema(self) -> Schema:
        """Of the columns."""
        return self.measurement.schema

    @property
    def target(self) -> str | None:
        """The column that others are to predict, if one was named."""
        return self.measurement.target

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement."""
        return self.measurement.statement

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``table``, those that are written without being measured included."""
        return self.schema.released_names

    def sample(self, num_rows: int, *, seed: int = 0, where: Sequence[str] = (), weighted: bool = False) -> pa.Table:
        """New synthetic rows, drawn from the release alone. Nothing is spent.

        Ids of an ``Identifier`` count from 1 in every sample.

        Args:
          num_rows: number of rows. If private rows have weights, those of the sample add up to the weight of the
            released rows that meet the conditions.
          seed: of the sampling.
          where: conditions that every row meets, such as "age>=65", "18<=age<65 and job in (nurse, baker)", or
            "end>begin or (age<18 and sex=Female)". Comparisons are =, !=, <, <=, > and >=, with a value or with another
            column. "and" binds closer than "or". A missing value meets "=missing", and "!=" of any other value; it
            meets no comparison with a column. Values are read as cells are: "true" is the category "True". A value
            may have quotes around it.
          weighted: whether rows have weights, with sum 1, in a last column "weight". A small weighted sample shows more
            of what is rare.

        Raises:
          ValueError: a condition cannot be read, no row of the release meets the conditions, or num_rows is not from 1
            to a billion.
        """
        num_rows, seed = check_integer("num_rows", num_rows, 1, MAX_ROWS), check_integer("seed", seed, 0, MAX_SEED)
        if weighted and self.schema.weight is not None:
            raise ValueError("weighted: rows have the weights of the schema already; sample without weighted")
        if weighted and "weight" in self.columns:
            raise ValueError("weighted: a column is named weight already; sample without weights")
        conditions = [where] if isinstance(where, str) else where
        terms = _terms_of(self.schema, conditions)
        codes, weights = drawn(self.rows, self.schema, terms, num_rows, seed, weighted)
        table = self.schema.decode(codes)
        if weighted:
            return table.append_column("weight", pa.array(weights))
        share = 1.0
        if self.schema.weight is not None and conditions:
            share = max(self._share_of(terms), 0.5 / self.table.num_rows)  # a weight is positive
        return self.measurement.with_weights(table, share)

    def _share_of(self, terms: Sequence[Term]) -> float:
        """The share of the released rows that meet a term."""
        return float(met_by(self.schema, terms, self.schema.encode(self.table, words=False)).mean())

    def support(self, where: str | Sequence[str]) -> Support:
        """How many private rows meet conditions, about, beside the noise of a count.

        Args:
          where: conditions, as for :meth:`sample`.

        Raises:
          ValueError: a condition cannot be read.
        """
        terms = _terms_of(self.schema, [where] if isinstance(where, str) else where)
        noises = [m["cell_noise"][1] for m in self.statement["measurements"] if m["cell_noise"]]
        units, used = self.schema.units_of_row, rows_used(self.statement)
        rows = self._share_of(terms) * self.statement["num_rows"]
        return Support(rows * units, noises[-1] * units, used, self.schema.weight is not None)

    def to_pandas(self, table: pa.Table | None = None) -> Any:
        """Synthetic rows as a DataFrame, with the types that the schema says, see ``Schema.to_pandas``.

        Args:
          table: rows from :meth:`sample`; None for the rows of the release.

        Raises:
          ModuleNotFoundError: pandas is not installed.
        """
        return self.schema.to_pandas(self.table if table is None else table)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes synthetic.parquet, report.html, schema.json, privacy.json, measurements.npz (the noisy embeddings),
        rows.npz (the distribution from which more rows are drawn) and a manifest into a new folder: all of them, or
        nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        arrays: dict[str, Shaped[np.ndarray, "..."]] = {}
        tree = {"rows": encode(self.rows, arrays, "rows"), "seed": self.seed, "num_rows": self.table.num_rows}
        text = self._report()
        added = {
            "rows.npz": arrays_writer(arrays, tree),
            "synthetic.parquet": lambda path: write_table(path, self.table),
            "report.html": lambda path: path.write_text(text, encoding="utf-8"),
        }
        return save_folder(folder, "table release", self.measurement._writers() | added)

    def _report(self) -> str:
        """The text of report.html. It also shows the columns that were measured instead of others."""
        measured = dict(zip(self.schema.measured.names, self.measurement.measured_cells, strict=True))
        extended, table = self.schema.extended, self.table
        if extended is not self.schema:
            table = extended.decode(self.schema.extended_codes(self.schema.encode(table, words=False)))
        cells = [measured.get(name) for name in extended.names]
        follows = {
            name: (*one.sources, *(part.name for part in one.measured))
            for one in self.schema.recoding.determinations
            for name in one.columns
        }
        return report(table, extended, self.statement, self.target, cells, len(self.schema.columns), follows)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> TableRelease:
        """A release that :meth:`save` has written.

        Raises:
          ReleaseError: the folder has no release of a table, is damaged or edited, or has another version.
        """
        opened = open_folder(folder, ("table release",))
        measurement = TableMeasurement.load(folder)
        opened.read("report.html")
        with opened.arrays("rows.npz") as arrays:
            tree = arrays.tree()
            if not isinstance(tree, dict) or set(tree) != {"rows", "seed", "num_rows"}:
                raise ValueError("it has other fields")
            rows, seed = decode(tree["rows"], arrays, RelaxedRows), decode(tree["seed"], arrays, int)
            rows.check_codes([column.num_codes for column in measurement.schema.measured.columns])
            num_rows = decode(tree["num_rows"], arrays, int)
            require(seed >= 0, "seed: is negative")
        content = opened.read("synthetic.parquet")
        with damaged(opened.path / "synthetic.parquet"):
            with pyarrow.parquet.ParquetFile(pa.BufferReader(content)) as file:
                require(file.metadata.num_rows == num_rows, "it has another number of rows")
                table = file.read()
            measurement.schema.check(table)
            table = measurement.schema.with_released_types(table)
            require(table.equals(measurement.with_weights(table)), "its weights do not follow from the number of rows")
        return cls(measurement, rows, table, seed)


def _terms_of(schema: Schema, conditions: Sequence[str]) -> list[Term]:
    """The terms of conditions on the columns of ``schema.extended``.

    Raises:
      ValueError: a condition cannot be read, or is about a written column.
    """
    with refusals_explained(schema.written_columns):
        return terms_of(schema.extended.columns, conditions)


def public_inputs(schema: Schema, target: str | None) -> list[str]:
    """The public inputs that the privacy statement lists."""
    filled = ", filled in from rows that were said to be public" * schema.filled_from_data
    constraints = [f"constraints: {'; '.join(one.text for one in schema.constraints)}"] if schema.constraints else []
    columns = f"schema of {len(schema.released)} columns{filled}"
    names = ", ".join(f"{column.name} ({column.kind})" for column in schema.unread_columns)
    written = [f"columns that are not measured: {names}"] if names else []
    if schema.weight is not None:
        written.append(f"{COUNTED_BY}{weights_of(schema)}")
    return [columns, *written, *constraints, *([] if target is None else [f"target {target}"])]


def _schema_of(document: Any) -> Schema:
    """The schema of a release. In those of earlier versions the larger column of every order follows, and no word says
    so.

    Args:
      document: of schema.json.
    """
    listed = document.get("constraints") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        return Schema.from_json(document)
    is_order = [isinstance(entry, dict) and entry.get("kind") == Order.kind for entry in listed]
    entries = [{"follows": "larger"} | entry if one else entry for entry, one in zip(listed, is_order, strict=True)]
    return Schema.from_json(document | {"constraints": entries})


_FILES = ("measurements.npz", "schema.json", "privacy.json")
_REMEDY = "kme-jax synthesise {} --output=... makes a release of it"
register_kind(
    Kind("table measurement", 2, _FILES, "the measurement of a release of a table", TableMeasurement.load, _REMEDY)
)
register_kind(
    Kind(
        "table release",
        2,
        ("rows.npz", "synthetic.parquet", "report.html", *_FILES),
        "a release of a table",
        TableRelease.load,
    )
)
