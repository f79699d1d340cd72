"""From a private table to a folder that may be published: noisy tables of counts, synthetic rows, and a report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kme_jax.embedding import IntegerEmbedding, integer_embedding_of_batches
from kme_jax.feature_maps.integer import MAX_SUM_BITS, integer_map
from kme_jax.feature_maps.table import Grid, TableMap
from kme_jax.folders import (
    arrays_writer,
    check_folder,
    damaged,
    json_writer,
    open_folder,
    save_folder,
)
from kme_jax.ledger import Ledger
from kme_jax.numerics import MAX_SEED, Progress
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_num_rows
from kme_jax.privacy.mechanisms import (
    Composition,
    PrivateEmbedding,
    perturb_integers,
    perturb_securely,
    secure_mechanism,
)
from kme_jax.privacy.statement import budget_in_short, privacy_statement
from kme_jax.serialisation import decode, decode_embedding, encode
from kme_jax.synthesis.relaxed import RelaxedRows
from kme_jax.table import measurement as plans
from kme_jax.table.files import TableSource, open_table, write_table
from kme_jax.table.report import report
from kme_jax.table.schema import MISSING, Schema
from kme_jax.table.synthesis import synthesise
from kme_jax.validation import require
from kme_jax.verification import check_embedding, check_statement, with_room

MAX_COLUMNS = 200
MAX_ROWS = 10**9
_NAMES = ("single columns", "pairs, coarsely", "some pairs, finely")
_ROOM = 1 << 26  # bytes that have to be there
_CONDITION = re.compile(r"\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*$", re.DOTALL)


def check_columns(schema: Schema, target: str | None) -> None:
    """Raises ValueError for a schema of too many columns, and a target that is none of them."""
    if len(schema.columns) > MAX_COLUMNS:
        raise ValueError(f"schema: at most {MAX_COLUMNS} columns can be released, got {len(schema.columns)}")
    if target is not None and target not in schema.names:
        raise ValueError(f"target: the schema has no column {target!r}")


def _grids(schema: Schema, target: str | None) -> tuple[list[Grid], int]:
    """Grids of the columns, and the index of the target or −1."""
    grids = [Grid.create(c.num_codes, ordered=c.ordered, missing=c.nullable) for c in schema.columns]
    return grids, -1 if target is None else schema.index(target)


@dataclasses.dataclass(frozen=True, eq=False)
class TableMeasurement:
    """All that is ever learnt from a private table, and what it takes to use it. All of it is public.

    Attributes:
      schema: of the columns.
      target: the name of the column that others are to predict, or None.
      plan: the bins that pairs were measured in.
      measured: the noisy embeddings, by name, in order.
      statement: the privacy statement, see ``kme_jax.privacy.statement``.
    """

    schema: Schema
    target: str | None
    plan: plans.Plan
    measured: dict[str, PrivateEmbedding]
    statement: dict[str, Any]

    def synthesise(
        self, num_rows: int | None = None, *, seed: int = 0, progress: Progress | None = None
    ) -> TableRelease:
        """A synthetic table for the measurements: post-processing, which spends nothing, as often as one likes.

        Args:
          num_rows: of the table; as many as the private one has, if None.
          seed: of the synthesis.
          progress: called with (work done, work in all).

        Raises:
          ValueError: num_rows is not from 1 to a billion; a seed that is not from 0 to 2³² − 1.
        """
        num_rows = self.statement["num_rows"] if num_rows is None else num_rows
        num_rows = check_integer("num_rows", num_rows, 1, MAX_ROWS)
        seed = check_integer("seed", seed, 0, MAX_SEED)
        layout = plans.Layout.of_plan(*_grids(self.schema, self.target), self.plan)
        several = [self.measured.get(name) for name in _NAMES]
        rows = synthesise(layout, self.plan, several, seed=seed, progress=progress)
        return TableRelease(self, rows, self.schema.decode(rows.sample(num_rows, seed)), seed)

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes measurements.npz, schema.json, privacy.json and a manifest into a new folder: all of them, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        return save_folder(folder, "table measurement", self._writers())

    def _writers(self) -> dict[str, Any]:
        arrays: dict[str, np.ndarray] = {}
        tree = {
            "target": self.target,
            "schema": _digest(self.schema),
            "total": self.statement["total"],
            "bins": encode(tuple(self.plan.bins), arrays, "bins"),
            "unions": encode(tuple(self.plan.unions), arrays, "unions"),
            "measured": {name: self._encoded(name, arrays) for name in self.measured},
        }
        return {
            "measurements.npz": arrays_writer(arrays, tree),
            "schema.json": self.schema.write,
            "privacy.json": json_writer(self.statement),
        }

    def _encoded(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        private = self.measured[name]
        parts = {field.name: getattr(private, field.name) for field in dataclasses.fields(private)}
        return {part: encode(value, arrays, f"{name}.{part}") for part, value in parts.items()}

    @classmethod
    def load(cls, folder: str | os.PathLike) -> TableMeasurement:
        """The measurement of a folder that it, or a release, was saved to. What does not follow from the mechanisms is
        refused, see ``kme_jax.verification``.

        Raises:
          ReleaseError: there is none, or it is damaged, or edited, or of another version.
        """
        opened = open_folder(folder, ("table measurement", "table release"))
        document, statement = opened.json("schema.json"), opened.json("privacy.json")
        with damaged(opened.path / "schema.json"):
            schema = Schema.from_json(document)
        with opened.arrays("measurements.npz") as arrays:
            tree = arrays.tree()
            if not isinstance(tree, dict) or set(tree) != {"target", "schema", "total", "bins", "unions", "measured"}:
                raise ValueError("it has other fields")
            require(tree["schema"] == _digest(schema), "it is of another schema")
            target = decode(tree["target"], arrays, str | None)
            check_columns(schema, target)
            bins, unions = (decode(tree[name], arrays, tuple[np.ndarray, ...]) for name in ("bins", "unions"))
            if not isinstance(tree["measured"], dict):
                raise ValueError("it has no measurements")
            measured = {name: decode_embedding(value, arrays) for name, value in tree["measured"].items()}
            plan = plans.Plan(list(bins), list(unions))
        with damaged(opened.path / "privacy.json"):
            follows = functools.partial(_checked_statement, schema, target, plan, measured, statement)
            check_statement(statement, tree["total"], follows)
        return cls(schema, target, plan, measured, statement)


def _digest(schema: Schema) -> str:
    return hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()


def _statement(
    schema: Schema,
    target: str | None,
    measured: dict[str, PrivateEmbedding],
    budget: PrivacyBudget,
    total: dict[str, Any] | None,
) -> dict[str, Any]:
    """The privacy statement of measurements that spend no more than a budget."""
    composition = Composition.of([private.mechanism for private in measured.values()], budget)
    return privacy_statement(
        measured, composition=composition, public_inputs=_public_inputs(schema, target), total=total
    )


def _checked_statement(
    schema: Schema,
    target: str | None,
    plan: plans.Plan,
    measured: dict[str, PrivateEmbedding],
    statement: dict[str, Any],
    total: dict[str, Any] | None,
) -> dict[str, Any]:
    """The statement that follows from measurements that were read from a file.

    Raises:
      ValueError: measurements that :func:`measure_table` cannot have made, for this schema and the statement's ε and δ.
    """
    budget = PrivacyBudget(statement["epsilon"], statement["delta"])
    grids, index = _grids(schema, target)
    layout = plans.Layout.of_plan(grids, index, plan)
    plan.check(layout)
    require(set(measured) <= set(_NAMES), "a measurement has an unknown name")
    plans.check_maps(layout, plan, [m and m.feature_map for m in map(measured.get, _NAMES)])
    for name, share in zip(_NAMES, plans.shares(layout), strict=True):
        if name in measured:
            check_embedding(measured[name], budget, share)
            require(measured[name].mechanism.num_rows == statement["num_rows"], "the measurements have different N")
    if _NAMES[2] not in measured:
        singles = plans.Singles.read(layout, measured[_NAMES[0]])
        require(not plans.zoom_blocks(layout, singles), "the measurement of what stands out is missing")
    expected = _statement(schema, target, {n: measured[n] for n in _NAMES if n in measured}, with_room(budget), total)
    return expected | {
        "epsilon": budget.epsilon,
        "groups": [{"rows": 1, "epsilon": budget.epsilon}, *expected["groups"][1:]],
    }


@dataclasses.dataclass(frozen=True, eq=False)
class TableRelease:
    """A release of a table: measurements, and synthetic rows made from them. All of it is public.

    Attributes:
      measurement: the noisy embeddings and their privacy statement.
      rows: the distribution that synthetic rows are drawn from.
      table: synthetic rows, without weights.
      seed: of the synthesis.
    """

    measurement: TableMeasurement
    rows: RelaxedRows
    table: pa.Table
    seed: int

    def __repr__(self) -> str:
        size = f"{self.table.num_rows} rows, {len(self.schema.columns)} columns"
        return f"TableRelease({budget_in_short(self.statement)}, {size})"

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
        """Names of the columns."""
        return self.schema.names

    def sample(self, num_rows: int, *, seed: int = 0, where: Sequence[str] = (), weighted: bool = False) -> pa.Table:
        """Other synthetic rows: from the release alone, so that nothing is spent.

        Args:
          num_rows: how many.
          seed: of the sampling.
          where: conditions that all of them meet, such as "age>=65" or "sex=Female", by =, !=, <, <=, > and >=. Missing
            values meet "!=" of a value, and "=missing".
          weighted: whether rows have weights, in a last column "weight", that sum to 1: few rows then show more of what
            is rare.

        Raises:
          ValueError: a condition that cannot be read, or that no row of the release meets; num_rows is
            not from 1 to a billion.
        """
        num_rows, seed = check_integer("num_rows", num_rows, 1, MAX_ROWS), check_integer("seed", seed, 0, MAX_SEED)
        conditions = [where] if isinstance(where, str) else where
        rows = self.rows.given(_ranges(self.schema, conditions)) if conditions else self.rows
        if not weighted:
            return self.schema.decode(rows.sample(num_rows, seed))
        if "weight" in self.schema.names:
            raise ValueError("weighted: a column is named weight already")
        codes, weights = rows.weighted_sample(num_rows, seed)
        return self.schema.decode(codes).append_column("weight", pa.array(weights))

    def save(self, folder: str | os.PathLike) -> pathlib.Path:
        """Writes synthetic.parquet, report.html, schema.json, privacy.json, measurements.npz (the noisy embeddings),
        rows.npz (what other rows are drawn from) and a manifest into a new folder: all of them, or nothing.

        Raises:
          ReleaseError: the folder exists, or cannot be written.
        """
        arrays: dict[str, np.ndarray] = {}
        tree = {"rows": encode(self.rows, arrays, "rows"), "seed": self.seed, "num_rows": self.table.num_rows}
        text = report(self)
        added = {
            "rows.npz": arrays_writer(arrays, tree),
            "synthetic.parquet": lambda path: write_table(path, self.table),
            "report.html": lambda path: path.write_text(text, encoding="utf-8"),
        }
        return save_folder(folder, "table release", self.measurement._writers() | added)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> TableRelease:
        """A release that :meth:`save` has written.

        Raises:
          ReleaseError: it is none, is damaged, or edited, or of another version.
        """
        opened = open_folder(folder, ("table release",))
        measurement = TableMeasurement.load(folder)
        opened.read("report.html")
        with opened.arrays("rows.npz") as arrays:
            tree = arrays.tree()
            if not isinstance(tree, dict) or set(tree) != {"rows", "seed", "num_rows"}:
                raise ValueError("it has other fields")
            rows, seed = decode(tree["rows"], arrays, RelaxedRows), decode(tree["seed"], arrays, int)
            rows.check_codes([column.num_codes for column in measurement.schema.columns])
            num_rows = decode(tree["num_rows"], arrays, int)
            require(seed >= 0, "seed: is negative")
        content = opened.read("synthetic.parquet")
        with damaged(opened.path / "synthetic.parquet"):
            with pyarrow.parquet.ParquetFile(pa.BufferReader(content)) as file:
                require(file.metadata.num_rows == num_rows, "it has another number of rows")
                table = file.read()
            measurement.schema.check(table)
        return cls(measurement, rows, table, seed)


def _ranges(schema: Schema, conditions: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """Ranges of codes [first, last) that meet conditions, by column."""
    allowed: dict[int, list[tuple[int, int]]] = {}
    for text in conditions:
        # Names may have any characters: the longest one that begins the condition and leaves a comparison.
        named = [(n, _CONDITION.match(text.strip()[len(n) :])) for n in schema.names if text.strip().startswith(n)]
        name, found = max((pair for pair in named if pair[1]), key=lambda pair: len(pair[0]), default=("", None))
        if found is None:
            raise ValueError(f"condition {text!r}: expected a column, one of = != < <= > >=, and a value: age>=65")
        column, comparison = schema.columns[schema.index(name)], found[1]
        if comparison in ("=", "==", "!="):
            code = column.code(found[2])
            ranges = [(0, code), (code + 1, column.num_codes)] if comparison == "!=" else [(code, code + 1)]
        elif not column.ordered or found[2] == MISSING:
            raise ValueError(f"condition {text!r}: {name} has no order for it; use = or !=")
        else:
            below, until = column.below(found[2])
            last = column.num_values
            ranges = [{"<": (0, below), "<=": (0, until), ">=": (below, last), ">": (until, last)}[comparison]]
        before = allowed.get(schema.index(name), [(0, column.num_codes)])
        both = [(max(a, c), min(b, d)) for a, b in before for c, d in ranges]
        allowed[schema.index(name)] = [(low, high) for low, high in both if low < high]
    return allowed


@dataclasses.dataclass(frozen=True)
class _Session:
    """Measurements of one source, one after the other."""

    source: TableSource
    budget: PrivacyBudget
    simulation: jax.Array | None
    progress: Progress | None

    def sum(self, number: int, feature_map: TableMap) -> IntegerEmbedding:
        """SENSITIVE."""
        total = len(_NAMES) * self.source.num_rows

        def batches() -> Iterator[np.ndarray]:
            done = number * self.source.num_rows
            for codes in self.source.codes():
                yield codes.astype(np.float64)
                done += len(codes)
                if self.progress:
                    self.progress(done, total)

        return integer_embedding_of_batches(feature_map, batches(), self.source.num_rows)

    def perturb(self, number: int, embedding: IntegerEmbedding, share: float) -> PrivateEmbedding:
        if self.simulation is None:
            return perturb_securely(embedding, self.budget, share=share)
        key = jax.random.fold_in(self.simulation, number)
        return perturb_integers(key, embedding, self.budget, share=share)

    def measure(self, number: int, feature_map: TableMap, share: float) -> PrivateEmbedding:
        return self.perturb(number, self.sum(number, feature_map), share)


def measure_table(
    source: TableSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    target: str | None = None,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    folder: str | os.PathLike | None = None,
    secure: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TableMeasurement:
    """The part of :func:`release_table` that sees private rows: steps 1 and 2, three times.

    Formal guarantee: (ε, δ)-differential privacy for one row, N public. Rows enter through
    ``integer_embedding_of_batches`` alone, as codes: a cell of a row becomes a code by itself (``Schema.encode``). Each
    measurement has the diameter of ``TableIntegers`` and discrete Gaussian noise, see ``perturb_securely``. Bins, pairs
    and cells of the second and third are functions of the schema, N, the budget and noisy counts (``measurement``), so
    that they compose: ρ adds up, in public shares, see ``Composition``. The ledger is written, with all of the budget,
    before noise is drawn. No error depends on what a cell holds.

    Args:
      source: the private table, see ``kme_jax.table.files.open_table``; it is read three times.
      schema: of its columns, from public knowledge.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      target: the name of the column that others are to predict, if any. Where it has few values, three or as many as
        the noise has room for, all tables of counts are split by it; otherwise pairs with it are all measured.
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before; what is spent adds up.
      folder: a new one that the measurement is saved to at once.
      secure: whether noise is secure. Simulated noise is for experiments: reproducible, NOT private.
      seed: of simulated noise.
      progress: called with (rows read, 3 N).

    Raises:
      ValueError: a budget that cannot be; a spent budget (``LedgerError``); a ledger for simulated noise; a table that
        does not fit the schema (``FileError``), or was opened with another one; a folder that cannot be written
        (``ReleaseError``).
      ModuleNotFoundError: OpenDP is not installed.
    """
    budget = PrivacyBudget(epsilon, delta)
    planned, seed = Composition.planned(budget), check_integer("seed", seed, 0, MAX_SEED)
    check_columns(schema, target)
    if ledger is not None and not secure:
        raise ValueError("a ledger is for secure noise: simulated noise releases nothing")
    source = source if isinstance(source, TableSource) else open_table(source, schema)
    if source.schema != schema:
        raise ValueError("source: it was opened with another schema")
    num_rows = source.num_rows
    check_num_rows(num_rows, budget)
    layout = plans.Layout.create(*_grids(schema, target), num_rows, planned.rho)
    shares, singles_map = plans.shares(layout), plans.singles_map(layout)
    _check_room(layout, shares, num_rows, budget)
    draft = _draft(singles_map, num_rows, budget, shares[0], planned, schema, target)
    if folder is not None:
        _check_save(draft, folder)
    if ledger is not None:
        ledger.check(database, again=again)
    session = _Session(source, budget, None if secure else jax.random.key(seed), progress)
    # All rows are read once, and found to be readable, before anything is spent.
    first = session.sum(0, singles_map)
    total = None if ledger is None else ledger.spend(database, planned, again=again)
    with contextlib.nullcontext() if ledger is None else ledger.recorded(folder):
        return _measure_table(session, layout, shares, first, planned, target, total, folder)


def _public_inputs(schema: Schema, target: str | None) -> list[str]:
    filled = ", filled in from rows that were said to be public" * schema.filled_from_data
    return [f"schema of {len(schema.columns)} columns{filled}", *([] if target is None else [f"target {target}"])]


def _check_room(layout: plans.Layout, shares: Sequence[float], num_rows: int, budget: PrivacyBudget) -> None:
    """Refuses a budget or an N for which the integers of any plan would have no room, see ``plans.largest_maps``.

    Raises:
      ValueError: Σ of weights over N rows, or the noise, may be beyond 64-bit integers.
    """
    for largest, share in zip(plans.largest_maps(layout), shares, strict=True):
        if share:
            if num_rows * largest.weight >= 2**MAX_SUM_BITS:
                raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly")
            secure_mechanism(largest, num_rows, budget, share=share)


def _draft(
    singles_map: TableMap,
    num_rows: int,
    budget: PrivacyBudget,
    share: float,
    planned: Composition,
    schema: Schema,
    target: str | None,
) -> TableMeasurement:
    """A measurement without rows or noise: what fails to be stated or saved does so before anything is spent."""
    mechanism = secure_mechanism(integer_map(singles_map, num_rows), num_rows, budget, share=share)
    nothing = PrivateEmbedding(singles_map, np.zeros(singles_map.num_features), mechanism)
    statement = privacy_statement(
        {_NAMES[0]: nothing}, composition=planned, public_inputs=_public_inputs(schema, target)
    )
    return TableMeasurement(schema, target, plans.Plan([], []), {_NAMES[0]: nothing}, statement)


def _check_save(draft: TableMeasurement, folder: str | os.PathLike) -> None:
    """Refuses a folder that the measurement could not be saved to, by saving a draft beside it for a moment.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    folder = check_folder(folder, _ROOM)
    with tempfile.TemporaryDirectory(prefix=".kme_jax-", dir=folder.parent) as place:
        draft.save(pathlib.Path(place) / "draft")


def _measure_table(
    session: _Session,
    layout: plans.Layout,
    shares: Sequence[float],
    first: IntegerEmbedding,
    planned: Composition,
    target: str | None,
    total: dict[str, Any] | None,
    folder: str | os.PathLike | None,
) -> TableMeasurement:
    """The three measurements, when all has been checked, and the budget is spent.

    Formal guarantee: nothing in here can be refused. Integers have room whatever the plan is (``_check_room``); Σ ρ is
    at most the planned one (``Composition.of``); and a draft could be stated and saved. What is left are errors of the
    machine: memory, the disk, a file that changes.
    """
    schema, budget, num_rows = session.source.schema, session.budget, session.source.num_rows
    measured = {_NAMES[0]: session.perturb(0, first, shares[0])}
    singles = plans.Singles.read(layout, measured[_NAMES[0]])
    plan = plans.Plan.create(layout, singles, num_rows, planned.rho)
    chosen: list[int] = []
    if layout.pairs():
        measured[_NAMES[1]] = session.measure(1, plans.coarse_map(layout, plan), shares[1])
        associated = plans.association(layout, plan, singles, measured[_NAMES[1]])
        chosen = plans.choose_pairs(layout, plan, associated, num_rows, shares[2] * planned.rho)
    last = plans.pairs_map(layout, plan, chosen, plans.zoom_blocks(layout, singles))
    if last is not None:
        measured[_NAMES[2]] = session.measure(2, last, shares[2])
    statement = _statement(schema, target, measured, budget, total)
    result = TableMeasurement(schema, target, plan, measured, statement)
    if folder is not None:
        result.save(folder)
    return result


def release_table(
    source: TableSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    target: str | None = None,
    ledger: Ledger | None = None,
    database: str = "",
    again: bool = False,
    num_rows: int | None = None,
    secure: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TableRelease:
    """A synthetic table in place of a private one: :func:`measure_table`, then ``TableMeasurement.synthesise``.

    Args:
      source: the private table; it, and all others that are not named here, as in :func:`measure_table`.
      schema: of its columns.
      epsilon: ε > 0.
      delta: δ in (0, 1/N).
      target: the column that others are to predict.
      ledger: of the curator.
      database: the name of the rows in the ledger.
      again: whether rows of that name may have been released before.
      num_rows: of the synthetic table; as many as the private one has, if None.
      secure: whether noise is secure.
      seed: of the synthesis, and of simulated noise.
      progress: called with (work done, work in all) by the synthesis.

    Raises:
      ValueError: as :func:`measure_table`; num_rows, or N if there is none, is not from 1 to a billion.
      ModuleNotFoundError: OpenDP is not installed.
    """
    source = source if isinstance(source, TableSource) else open_table(source, schema)
    num_rows = check_integer("num_rows", source.num_rows if num_rows is None else num_rows, 1, MAX_ROWS)
    measured = measure_table(
        source,
        schema,
        epsilon=epsilon,
        delta=delta,
        target=target,
        ledger=ledger,
        database=database,
        again=again,
        secure=secure,
        seed=seed,
    )
    return measured.synthesise(num_rows, seed=seed, progress=progress)
