"""From a private table to measurements that may be published: steps 1 and 2, three times."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax.embedding import IntegerEmbedding, integer_embedding_of_batches
from kme_jax.feature_maps.integer import MAX_SUM_BITS, integer_map
from kme_jax.feature_maps.table import TableMap
from kme_jax.privacy.budget import PrivacyBudget, check_integer, check_num_rows
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import (
    Composition,
    NoisyEmbedding,
    perturb_integers,
    perturb_securely,
    secure_mechanism,
)
from kme_jax.privacy.statement import privacy_statement
from kme_jax.storage.folders import (
    check_folder,
)
from kme_jax.table import plan as plans
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import (
    MAX_ROWS,
    NAMES,
    TableMeasurement,
    TableRelease,
    binnings_and_target,
    check_columns,
    public_inputs,
    table_statement,
)
from kme_jax.table.schema import Schema

_ROOM = 1 << 26  # bytes that have to be there


@dataclasses.dataclass(frozen=True)
class _Session:
    """Measurements of one source, one after the other."""

    source: TableSource
    budget: PrivacyBudget
    simulation: jax.Array | None
    progress: Progress | None

    def sum(self, number: int, feature_map: TableMap) -> IntegerEmbedding:
        """SENSITIVE."""
        total = len(NAMES) * self.source.num_rows

        def batches() -> Iterator[np.ndarray]:
            done = number * self.source.num_rows
            for codes in self.source.codes():
                yield codes.astype(np.float64)
                done += len(codes)
                if self.progress:
                    self.progress(done, total)

        return integer_embedding_of_batches(feature_map, batches(), self.source.num_rows)

    def perturb(self, number: int, embedding: IntegerEmbedding, share: float) -> NoisyEmbedding:
        if self.simulation is None:
            return perturb_securely(embedding, self.budget, share=share)
        key = jax.random.fold_in(self.simulation, number)
        return perturb_integers(key, embedding, self.budget, share=share)

    def measure(self, number: int, feature_map: TableMap, share: float) -> NoisyEmbedding:
        return self.perturb(number, self.sum(number, feature_map), share)


def measure_table(
    source: TableSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    budget: PrivacyBudget,
    target: str | None = None,
    spending: Spending | None = None,
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
      source: the private table, see ``kme_jax.table.readers.open_table``; it is read three times.
      schema: of its columns, from public knowledge.
      budget: (ε, δ), with δ in (0, 1/N).
      target: the name of the column that others are to predict, if any. Where it has few values, three or as many as
        the noise has room for, all tables of counts are split by it; otherwise pairs with it are all measured.
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
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
    planned, seed = Composition.planned(budget), check_integer("seed", seed, 0, MAX_SEED)
    check_columns(schema, target)
    if spending is not None and not secure:
        raise ValueError("a ledger is for secure noise: simulated noise releases nothing")
    source = source if isinstance(source, TableSource) else open_table(source, schema)
    if source.schema != schema:
        raise ValueError("source: it was opened with another schema")
    num_rows = source.num_rows
    check_num_rows(num_rows, budget)
    layout = plans.Layout.create(*binnings_and_target(schema, target), num_rows, planned.rho)
    shares, singles_map = plans.shares(layout), plans.singles_map(layout)
    _check_room(layout, shares, num_rows, budget)
    draft = _draft(singles_map, num_rows, budget, shares[0], planned, schema, target)
    if folder is not None:
        _check_save(draft, folder)
    if spending is not None:
        spending.check()
    session = _Session(source, budget, None if secure else jax.random.key(seed), progress)
    # All rows are read once, and found to be readable, before anything is spent.
    first = session.sum(0, singles_map)
    total = None if spending is None else spending.spend(planned)
    with contextlib.nullcontext() if spending is None else spending.recorded(folder):
        return _measure_table(session, layout, shares, first, planned, target, total, folder)


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
    nothing = NoisyEmbedding(singles_map, np.zeros(singles_map.num_features), mechanism)
    statement = privacy_statement({NAMES[0]: nothing}, composition=planned, public_inputs=public_inputs(schema, target))
    return TableMeasurement(schema, target, plans.Plan([], []), {NAMES[0]: nothing}, statement)


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
    measured = {NAMES[0]: session.perturb(0, first, shares[0])}
    singles = plans.Singles.read(layout, measured[NAMES[0]])
    plan = plans.Plan.create(layout, singles, num_rows, planned.rho)
    chosen: list[int] = []
    if layout.pairs():
        measured[NAMES[1]] = session.measure(1, plans.coarse_map(layout, plan), shares[1])
        associated = plans.association(layout, plan, singles, measured[NAMES[1]])
        chosen = plans.choose_pairs(layout, plan, associated, num_rows, shares[2] * planned.rho)
    last = plans.pairs_map(layout, plan, chosen, plans.zoom_blocks(layout, singles))
    if last is not None:
        measured[NAMES[2]] = session.measure(2, last, shares[2])
    statement = table_statement(schema, target, measured, budget, total)
    result = TableMeasurement(schema, target, plan, measured, statement)
    if folder is not None:
        result.save(folder)
    return result


def release_table(
    source: TableSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    budget: PrivacyBudget,
    target: str | None = None,
    spending: Spending | None = None,
    num_rows: int | None = None,
    secure: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> TableRelease:
    """A synthetic table in place of a private one: :func:`measure_table`, then ``TableMeasurement.synthesise``.

    Args:
      source: the private table; it, and all others that are not named here, as in :func:`measure_table`.
      schema: of its columns.
      budget: (ε, δ), with δ in (0, 1/N).
      target: the column that others are to predict.
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
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
        budget=budget,
        target=target,
        spending=spending,
        secure=secure,
        seed=seed,
    )
    return measured.synthesise(num_rows, seed=seed, progress=progress)
