"""Steps 1 and 2 for tables: from a private table to measurements that may be published."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from jaxtyping import PRNGKeyArray

from kme_jax._numerics.precision import MAX_SEED, Progress
from kme_jax._numerics.progress import reporter, shows_progress
from kme_jax.embedding import IntegerEmbedding
from kme_jax.feature_maps.base import MAX_SUM_BITS
from kme_jax.feature_maps.table import COUNT_WEIGHT, TableMap
from kme_jax.partial import Task
from kme_jax.partial.runs import RunFolder
from kme_jax.partial.sums import library_versions
from kme_jax.privacy.budget import (
    ADD_REMOVE_PERSON,
    REPLACE_ONE,
    PrivacyBudget,
    check_budget,
    check_integer,
    check_num_rows,
)
from kme_jax.privacy.calibration import takes_fine_noise
from kme_jax.privacy.composition import Composition
from kme_jax.privacy.ledger import Spending
from kme_jax.privacy.mechanisms import NoisyEmbedding
from kme_jax.privacy.perturb import perturb_integers, perturb_securely, secure_mechanism
from kme_jax.privacy.statement import privacy_statement
from kme_jax.storage.folders import (
    check_folder,
)
from kme_jax.table import planning as plans
from kme_jax.table.engines import engine_source
from kme_jax.table.parts import PART_ROWS, PartedSource
from kme_jax.table.rare_fit import SURELY, choose_rare
from kme_jax.table.readers import TableSource, open_table
from kme_jax.table.release import (
    COUNT,
    MAX_ROWS,
    NAMES,
    TableMeasurement,
    TableRelease,
    binnings_and_target,
    check_columns,
    check_relation,
    public_inputs,
    table_statement,
)
from kme_jax.table.schema import Schema
from kme_jax.table.sources import RowSource

_ROOM = 1 << 26  # bytes of free space that a folder needs
_MOST_PROCESSES = 1024
_COUNT = len(NAMES)  # the number of the measurement of the number of rows


def _report(progress: Progress, before: int, total: int, done: int) -> None:
    """Reports progress with one pass as progress with all of them."""
    progress(before + done, total)


@dataclasses.dataclass(frozen=True)
class _Session:
    """Measurements of one source, one after the other.

    Measurements have the numbers of their names in ``NAMES``. That of a private number of rows has the next number, and
    is the first.
    """

    source: RowSource
    budget: PrivacyBudget
    simulation: PRNGKeyArray | None
    progress: Progress | None
    folder: RunFolder | None = None
    run: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    @property
    def rows_are_public(self) -> bool:
        return self.budget.relation == REPLACE_ONE

    @property
    def fine(self) -> bool:
        """Whether all noise is calibrated by ``fine_rho``. It depends on the budget alone."""
        return takes_fine_noise(self.budget)

    def sum(self, number: int, feature_map: TableMap) -> IntegerEmbedding:
        """Step 1 for the measurement of this number: the exact sum of the map over all rows. SENSITIVE.

        Args:
          number: of the measurement.
          feature_map: ψ.
        """
        passes = len(NAMES) if self.rows_are_public else len(NAMES) + 1
        num_rows = self.source.num_rows
        total, before = passes * num_rows, (number - len(NAMES)) % passes * num_rows
        report = self.progress and functools.partial(_report, self.progress, before, total)
        task = Task(
            feature_map,
            self.source.encoding,
            num_rows if self.rows_are_public else plans.MOST_PRIVATE_ROWS,
            self.rows_are_public,
            self._name(number),
            self.run if self.folder is None else self.folder.run,
        )
        return self.source.sum(task, report)

    @staticmethod
    def _name(number: int) -> str:
        return (*NAMES, COUNT)[number]

    def _perturb(self, number: int, embedding: IntegerEmbedding, share: float) -> NoisyEmbedding:
        """Step 2 for the measurement of this number."""
        if self.simulation is None:
            return perturb_securely(embedding, self.budget, share=share, fine=self.fine)
        key = jax.random.fold_in(self.simulation, number)
        return perturb_integers(key, embedding, self.budget, share=share, fine=self.fine)

    def kept(self, number: int, feature_map: TableMap) -> NoisyEmbedding | None:
        """The noisy result of the measurement of this number, if an earlier run of the folder has drawn its noise."""
        return None if self.folder is None else self.folder.noisy(self._name(number), feature_map)

    def measure(
        self,
        number: int,
        feature_map: TableMap,
        share: float,
        count: int = 1,
        summed: IntegerEmbedding | None = None,
    ) -> NoisyEmbedding:
        """Steps 1 and 2, see :meth:`sum`. Noise is drawn at most once in a folder, see ``kme_jax.partial.runs``.

        Args:
          number: of the measurement.
          feature_map: ψ.
          share: of ρ.
          count: the noisy number of rows, if their number is private.
          summed: the result of :meth:`sum`, if it was called before.
        """
        kept = self.kept(number, feature_map)
        if kept is not None:
            return kept
        embedding = self.sum(number, feature_map) if summed is None else summed
        if not self.rows_are_public:
            embedding = embedding.with_public_count(count)
        noisy = self._perturb(number, embedding, share)
        if self.folder is not None:
            self.folder.keep_noisy(self._name(number), noisy)
        return noisy


@shows_progress("rows")
def measure_table(
    source: RowSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    budget: PrivacyBudget,
    target: str | None = None,
    spending: Spending | None = None,
    folder: str | os.PathLike | None = None,
    secure: bool = True,
    seed: int = 0,
    partials: str | os.PathLike | None = None,
    processes: int = 1,
    progress: Progress | bool = False,
) -> TableMeasurement:
    """The part of :func:`release_table` that sees private rows: steps 1 and 2, for three measurements.

    Formal guarantee: (ε, δ)-differential privacy for one row, or for one person. Rows enter through
    ``kme_jax.embedding.integer_sum`` alone, as category codes. The code of a cell depends on this cell and the schema
    alone (``Schema.encode``). Each measurement has discrete Gaussian noise for the proved sensitivity of
    ``TableIntegers``, see ``perturb_securely``. Bins, pairs and cells of the second and third measurements are
    functions of the schema, N, the budget and noisy counts (``kme_jax.table.planning``). So the measurements
    compose: their ρ adds up, in public shares, see ``Composition``. The ledger is written, with all of the budget,
    before noise is drawn. No error depends on the content of a cell. Columns of ``Schema.written`` are no part of
    the codes: what a release has in their place follows from the schema and its number of rows. Only ids of persons
    have an influence, as in a dropped column: they decide which rows are used.

    If the relation of the budget is replace_one, N is public. If it is add_remove, N is private. Another measurement
    comes first: the sum of a feature that is 1 for every row, so its sensitivity is 1. It has 2 % of ρ. Its noisy count
    replaces N in every plan, every divisor and every result. Whatever its value, nothing fails: it is limited to the
    range from 2 to a billion, and integers have room for a billion rows (``plan.largest_maps``). There may be no rows.
    Tables of more than a billion rows are refused: the guarantee is for tables up to this size.

    If the relation is add_remove_person, N is private, too, and at most k rows of each person are used
    (``kme_jax.table.persons``). Which rows of a person are used depends on this person alone. So all sums of neighbours
    differ by those of at most k rows, and every sensitivity, also that of the count, is k times as large
    (``proved_sensitivity``). All else is as for add_remove.

    If the schema has weights, N has to be private. A row counts as the part w / U of a row, which depends on its own
    cell alone and is at most 1 (``kme_jax.table.weights``). So each row adds no more to a sum than it does without
    weights (``TableIntegers.sum_at_levels``), and all sensitivities hold. The noisy count is of the sum of these parts.

    Args:
      source: the private table: what ``kme_jax.table.open_table`` takes or returns; a DataFrame of Spark, or a
        DataFrame or Bag of Dask; or a ``RowSource`` of your own. It is read three times, or four times if the number of
        its rows is private.
      schema: of its columns, from public knowledge.
      budget: (ε, δ) and the relation. Under add_remove_person it names the column with the ids of persons, which the
        schema drops or replaces by new ids. If N is public, δ is in (0, 1/N). If it is private, choose δ well below 1
        over what is known of N.
      target: the name of the column that the other columns are meant to predict, if there is one. If it has few values
        (three, or as many as the noise allows), all marginals are split by it. Otherwise all pairs with it are
        measured in the third measurement.
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
      folder: a new folder to which the measurement is saved at once; None to save nothing.
      secure: whether noise is secure. Simulated noise is for experiments: it is reproducible and NOT private.
      seed: of simulated noise.
      partials: a folder that keeps what is finished, for tables in files. If the process is interrupted, the same call
        goes on there: no part is summed twice, noise is drawn once for each measurement, and the ledger has one entry.
        It is SENSITIVE. A complete run deletes what it holds, and cannot go on. See ``kme_jax.partial.runs``. None to
        keep nothing.
      processes: how many processes of this machine sum parts of the rows, for tables in files. They help if there are
        several files, or Parquet files. A program that asks for more than one needs ``if __name__ == "__main__":``.
      progress: True for a bar, or a function that is called with (rows read, rows to read in all). Under
        add_remove both tell the private number of rows, so what it writes is SENSITIVE; the bar shows a share.

    Raises:
      ValueError: the budget is invalid, or the ledger says that it is spent (``LedgerError``); there is a ledger for
        simulated noise; the table does not fit the schema (``FileError``), or was opened with another schema; the
        folder cannot be written (``ReleaseError``); the run of ``partials`` cannot go on (``RunError``), such as with
        another table, schema or budget; or the table is not in files, and an option needs files.
      ModuleNotFoundError: OpenDP is not installed.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, measure_table
      >>> rng = np.random.default_rng(0)
      >>> people = pa.table({"age": rng.integers(18, 91, 1000), "rich": rng.choice(["no", "yes"], 1000)})  # private
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("rich", ("no", "yes"))))
      >>> measured = measure_table(people, schema, budget=PrivacyBudget(1.0, 1e-5))
      >>> measured.statement["private"]
      True
    """
    planned, seed = Composition.planned(budget), check_integer("seed", seed, 0, MAX_SEED)
    check_columns(schema, target)
    if spending is not None and not isinstance(spending, Spending):
        raise ValueError(
            f"spending: expected a Spending, got a {type(spending).__name__}: Spending(Ledger(path), name)"
        )
    if spending is not None and not secure:
        raise ValueError("a ledger is for secure noise: simulated noise releases nothing, so leave spending out")
    source = _opened(source, schema, budget)
    processes = check_integer("processes", processes, 1, _MOST_PROCESSES)
    rows_are_public = budget.relation == REPLACE_ONE
    if rows_are_public:
        source.check_size()
        check_num_rows(source.num_rows, budget)
    elif source.num_rows > plans.MOST_PRIVATE_ROWS:
        raise ValueError(f"source: a table with a private number of rows has at most {plans.MOST_PRIVATE_ROWS:,}")
    in_files = _in_files(source) if partials is not None or processes > 1 else None
    # A noisy count is not known yet. It decides whether marginals are split by the target, and the number of cells.
    possible = [(source.num_rows, _layout(schema, target, source.num_rows, planned))]
    if not rows_are_public:
        rho = plans.comparable_rho(planned)
        possible = plans.Layout.possible(*binnings_and_target(schema, target), rho, planned.relation)
    for num_rows, layout in possible:
        shares = plans.shares_of_all(layout, budget.relation)
        _check_room(layout, shares, num_rows if rows_are_public else plans.MOST_PRIVATE_ROWS, budget)
        draft = _draft(plans.singles_map(layout), num_rows, budget, shares[0], planned, schema, target)
        if folder is not None:
            _check_save(draft, folder)
    with contextlib.ExitStack() as stack:
        run = None
        if partials is not None:
            of = _made_of(cast(TableSource, in_files), target, budget, spending, None if secure else seed)
            run = stack.enter_context(RunFolder.opened(partials, of, source.label))
        if in_files is not None:
            source = stack.enter_context(PartedSource(in_files, run, processes))
        session = _Session(source, budget, None if secure else jax.random.key(seed), reporter(progress), run)
        return _measured(session, planned, target, spending, folder)


def _in_files(source: RowSource) -> TableSource:
    """The source, if it is a table in files.

    Raises:
      ValueError: it is not.
    """
    if not isinstance(source, TableSource) or any(reader.identity is None for reader in source.files):
        raise ValueError("partials and processes: they need a table in files; write it to a file, or leave them out")
    return source


def _made_of(
    source: TableSource, target: str | None, budget: PrivacyBudget, spending: Spending | None, seed: int | None
) -> dict[str, Any]:
    """What a run is of, see ``RunFolder.opened``."""
    return {
        "table": source.identities,
        "schema": source.schema.to_json(),
        "target": target,
        "budget": [budget.epsilon, budget.delta, budget.relation, budget.max_rows, budget.person],
        "ledger": None if spending is None else [str(spending.ledger.path.absolute()), spending.database],
        "kind of noise": seed,
        "version of a library": library_versions(),
        "size of parts": PART_ROWS,
    }


def _measured(
    session: _Session,
    planned: Composition,
    target: str | None,
    spending: Spending | None,
    folder: str | os.PathLike | None,
) -> TableMeasurement:
    """The measurements, after all checks of what was given."""
    schema, run = session.source.schema, None if session.folder is None else session.folder.run
    if spending is not None:
        spending.check(planned, run=run)
    # All rows are read once before anything is spent. So rows that cannot be read cost nothing.
    if session.rows_are_public:
        number, of_first = 0, plans.singles_map(_layout(schema, target, session.source.num_rows, planned))
    else:
        number, of_first = _COUNT, plans.count_map(binnings_and_target(schema, target)[0])
    with _kept(session.folder):
        first = session.sum(number, of_first) if session.kept(number, of_first) is None else None
        total = None if spending is None else spending.spend(planned, run=run)
        with contextlib.nullcontext() if spending is None or run is not None else spending.recorded(folder):
            result = _measure_table(session, first, planned, target, total, folder)
        if session.folder is not None:
            session.folder.complete()
    return result


@contextlib.contextmanager
def _kept(folder: RunFolder | None) -> Iterator[None]:
    """Adds a note to any error or interruption: that the run can go on, if it has a folder."""
    try:
        yield
    except BaseException as error:
        if folder is not None:
            error.add_note(f"what is finished is kept in {folder.path}: do the same again to go on")
        raise


def _opened(source: Any, schema: Schema, budget: PrivacyBudget) -> RowSource:
    """The source, opened for a budget.

    Raises:
      ValueError: as :func:`measure_table`, or the budget names no column of persons, or the source has others.
    """
    check_budget(budget)
    if budget.relation == ADD_REMOVE_PERSON and budget.person is None:
        raise ValueError(
            f"budget: name the column with the ids of persons: PrivacyBudget(..., {ADD_REMOVE_PERSON!r}, 5, 'id')"
        )
    check_relation(schema, budget.relation)
    if not isinstance(source, RowSource):
        of_engine = engine_source(source, schema, budget.person)
        if of_engine is not None:
            return of_engine
        return open_table(source, schema, person=budget.person, max_rows=budget.max_rows)
    if source.schema != schema:
        raise ValueError("source: it was opened with another schema; give the same schema to open_table and here")
    if (source.person, source.max_rows) != (budget.person, budget.max_rows):
        raise ValueError("source: it was opened for other persons, or another max_rows, than those of the budget")
    return source


def _layout(schema: Schema, target: str | None, num_rows: int, planned: Composition) -> plans.Layout:
    """The layout for N rows, or for a noisy count of them."""
    rho = plans.comparable_rho(planned)
    return plans.Layout.create(*binnings_and_target(schema, target), num_rows, rho, planned.relation)


def _check_room(layout: plans.Layout, shares: Sequence[float], num_rows: int, budget: PrivacyBudget) -> None:
    """Refuses a budget or an N for which 64-bit integers could overflow under some plan, see ``plans.largest_maps``.

    Raises:
      ValueError: a sum of weights over N rows, or the noise, may not fit 64-bit integers.
    """
    if budget.relation != REPLACE_ONE:
        of_rows = plans.Largest(COUNT_WEIGHT**2, COUNT_WEIGHT)
        secure_mechanism(of_rows, 1, budget, share=plans.COUNT_SHARE, fine=takes_fine_noise(budget))
    for largest, share in zip(plans.largest_maps(layout), shares, strict=True):
        if share:
            if num_rows * largest.weight >= 2**MAX_SUM_BITS:
                raise ValueError(f"num_rows: {num_rows} rows are more than can be summed exactly; release fewer")
            secure_mechanism(largest, num_rows, budget, share=share, fine=takes_fine_noise(budget))


def _draft(
    singles_map: TableMap,
    num_rows: int,
    budget: PrivacyBudget,
    share: float,
    planned: Composition,
    schema: Schema,
    target: str | None,
) -> TableMeasurement:
    """A measurement without rows or noise. If its statement or its folder cannot be written, nothing is spent yet."""
    integers, fine = singles_map.integers(num_rows), takes_fine_noise(budget)
    mechanism = secure_mechanism(integers, num_rows, budget, share=share, fine=fine)
    nothing = NoisyEmbedding(singles_map, np.zeros(singles_map.num_features), mechanism)
    statement = privacy_statement({NAMES[0]: nothing}, composition=planned, public_inputs=public_inputs(schema, target))
    return TableMeasurement(
        schema, target, plans.Plan([], [], np.zeros((0, 2), np.int64)), {NAMES[0]: nothing}, statement
    )


def _check_save(draft: TableMeasurement, folder: str | os.PathLike) -> None:
    """Refuses a folder to which the measurement could not be saved. It saves a draft beside the folder for a moment.

    Raises:
      ReleaseError: the folder exists, or cannot be written.
    """
    folder = check_folder(folder, _ROOM)
    with tempfile.TemporaryDirectory(prefix=".kme_jax-", dir=folder.parent) as place:
        draft.save(pathlib.Path(place) / "draft")


def _measure_table(
    session: _Session,
    first: IntegerEmbedding | None,
    planned: Composition,
    target: str | None,
    total: dict[str, Any] | None,
    folder: str | os.PathLike | None,
) -> TableMeasurement:
    """The measurements, after all checks and after the budget is spent.

    ``first`` is the sum for the first of them; None if its noisy result was kept by an earlier run.

    Formal guarantee: no check fails in here. Integers do not overflow under any plan (``_check_room``). Σ ρ is at most
    the planned ρ (``Composition.of``). The statement and the folder of a draft could be written. Only errors of the
    machine remain: memory, the disk, or a file that changes.
    """
    schema, budget, measured = session.source.schema, session.budget, {}
    if session.rows_are_public:
        num_rows = session.source.num_rows
    else:
        counted = plans.count_map(binnings_and_target(schema, target)[0])
        measured[COUNT] = session.measure(_COUNT, counted, plans.COUNT_SHARE, summed=first)
        num_rows = plans.noisy_count(measured[COUNT])
    layout = _layout(schema, target, num_rows, planned)
    shares, rho = plans.shares(layout), plans.comparable_rho(planned)
    shares_of_all = plans.shares_of_all(layout, budget.relation)
    of_singles = first if session.rows_are_public else None
    measured[NAMES[0]] = session.measure(0, plans.singles_map(layout), shares_of_all[0], num_rows, of_singles)
    singles = plans.Singles.read(layout, measured[NAMES[0]])
    plan = plans.Plan.create(layout, singles, num_rows, rho, schema.recoding.families)
    chosen: list[int] = []
    products: list[tuple[int, int]] = []
    triples: list[tuple[int, ...]] = []
    rare: tuple[list[tuple[int, int]], float] = [], plans.RARE_SHARES[0]
    coarse = plans.coarse_map(layout, plan, plans.triples_pay(layout, num_rows, shares[1] * rho))
    if coarse is not None:
        measured[NAMES[1]] = session.measure(1, coarse, shares_of_all[1], num_rows)
        associated = plans.association(layout, plan, singles, measured[NAMES[1]])
        chosen = plans.choose_pairs(layout, plan, associated, num_rows, shares[2] * rho)
        products = plans.strong_pairs(layout, plan, singles, measured[NAMES[1]], chosen)
        triples = plans.choose_triples(layout, measured[NAMES[1]])
        surely = plans.association(layout, plan, singles, measured[NAMES[1]], doubt=SURELY)
        rare = choose_rare(layout, plan, singles, surely, chosen, num_rows, shares[2] * rho)
    last = plans.pairs_map(layout, plan, chosen, plans.zoom_blocks(layout, singles), products, triples, *rare)
    if last is not None:
        measured[NAMES[2]] = session.measure(2, last, shares_of_all[2], num_rows)
    statement = table_statement(schema, target, measured, budget, total)
    result = TableMeasurement(schema, target, plan, measured, statement)
    if folder is not None:
        result.save(folder)
    return result


def release_table(
    source: RowSource | pa.Table | str | os.PathLike | Any,
    schema: Schema,
    *,
    budget: PrivacyBudget,
    target: str | None = None,
    spending: Spending | None = None,
    num_rows: int | None = None,
    secure: bool = True,
    seed: int = 0,
    progress: Progress | bool = False,
) -> TableRelease:
    """A synthetic table in place of a private one: :func:`measure_table`, then ``TableMeasurement.synthesise``.

    Args:
      source: the private table, as for :func:`measure_table`.
      schema: of its columns.
      budget: (ε, δ) and the relation, as for :func:`measure_table`.
      target: the name of the column that the other columns are meant to predict, as for :func:`measure_table`.
      spending: the curator's ledger, and the name of the rows in it; None if nothing is to be recorded.
      num_rows: number of rows of the synthetic table; None for N, or its noisy count.
      secure: whether noise is secure.
      seed: of the synthesis, and of simulated noise.
      progress: True for a bar, or a function that is called with (work done, total work) by the synthesis.

    Raises:
      ValueError: as :func:`measure_table`, or the number of synthetic rows is not from 1 to a billion.
      ModuleNotFoundError: OpenDP is not installed.

    Examples:
      >>> import numpy as np, pyarrow as pa
      >>> from kme_jax import Categorical, Numeric, PrivacyBudget, Schema, release_table
      >>> rng = np.random.default_rng(0)
      >>> people = pa.table({"age": rng.integers(18, 91, 1000), "rich": rng.choice(["no", "yes"], 1000)})  # private
      >>> schema = Schema((Numeric("age", 0, 110, integer=True), Categorical("rich", ("no", "yes"))))
      >>> released = release_table(people, schema, budget=PrivacyBudget(1.0, 1e-5), target="rich")
      >>> released.to_pandas().shape
      (1000, 2)
      >>> min(row["age"] for row in released.sample(50, where="age>=65").to_pylist()) >= 65
      True
    """
    source = _opened(source, schema, budget)
    if budget.relation == REPLACE_ONE:
        source.check_size()
    if num_rows is not None or budget.relation == REPLACE_ONE:
        num_rows = check_integer("num_rows", source.num_rows if num_rows is None else num_rows, 1, MAX_ROWS)
    measured = measure_table(
        source,
        schema,
        budget=budget,
        target=target,
        spending=spending,
        secure=secure,
        seed=seed,
        progress=progress is True,
    )
    return measured.synthesise(num_rows, seed=seed, progress=progress)
